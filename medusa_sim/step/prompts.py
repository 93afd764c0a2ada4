"""How an engine runs the kernels of prompts (`step.prompt_kernels`): its terms, hosts and graphs.

Prompts ride on decode steps (chunked prefill), or have passes of their own between two steps (SGLang without
mixed chunks).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from medusa_sim.arrays import FloatArray
from medusa_sim.specs.engine import Engine
from medusa_sim.specs.term import Term
from medusa_sim.step import compose
from medusa_sim.step.drafter import lookups
from medusa_sim.step.graphs import most_captured_tokens
from medusa_sim.step.host import launching_us
from medusa_sim.step.network import model_launches
from medusa_sim.step.setting import Setting
from medusa_sim.step.workload import prefill


def prompts_apart(setting: Setting) -> bool:
    """Whether prompts have passes of their own."""
    engine = setting.runtime.engine
    return engine is not None and engine.prompts_apart


def prompt_term(setting: Setting, engine: Engine, *, has_drafter: bool) -> Term:
    """What the host takes for each kernel of a prompt that no graph holds.

    has_drafter: one that drafts by passes makes another host where prompts have passes of their own. Where
    they ride on a step, the whole step is launched so.
    """
    drafts_by_passes = has_drafter and setting.drafter_name not in lookups()
    if engine.prompts_apart and not drafts_by_passes:
        return engine.prefill_us_per_launch
    return engine.prompt_us_per_launch


def prompt_host_us(setting: Setting, *, has_drafter: bool) -> float:
    """Microseconds of the host in a pass of prompts, or in a step that they ride on (`prompt_term`)."""
    engine = setting.runtime.engine
    if engine is None or not (term := prompt_term(setting, engine, has_drafter=has_drafter)).value:
        return 0.0
    launches = model_launches(setting.shard, prefill(1, 1), setting.runtime)
    return term.value * sum(launch.kernel_count for launch in launches)


class PromptTerms(NamedTuple):
    """What turns the kernels of prompts into the time of a step that carries them."""

    share: float = 1.0
    """g: of fitted kernels that an engine's own take."""
    beside_us: float = 0.0
    """Of a step with prompts."""
    are_apart: bool = False
    """Whether prompts have passes of their own."""

    def mixed_us(
        self,
        step_us: FloatArray | float,
        more_us: FloatArray | float,
        read_us: FloatArray | float,
        host_us: FloatArray | float,
    ) -> FloatArray:
        """(N8): microseconds of a step that carries prompts; all broadcast.

        step_us: without them; more_us: what its linear layers take for their tokens, below 0 where a padded
        step takes longer than one with prompts; read_us: attention and drafter of prompts; host_us: of the
        launches that no graph holds, 0: there are none.
        """
        # the share is of what prompts add, not of what a step without padding saves
        added_us = self.share * (read_us + np.maximum(more_us, 0.0)) + np.minimum(more_us, 0.0)
        before_us, pass_us = (step_us, added_us) if self.are_apart else (0.0, step_us + added_us)
        return compose.step_us(np.asarray(pass_us), host_us, before_us + self.beside_us)


def prompt_terms(setting: Setting) -> PromptTerms:
    """The terms of an engine; without one kernels are all."""
    engine = setting.runtime.engine
    if engine is None:
        return PromptTerms()
    return PromptTerms(
        share=engine.prompt_share.value,
        beside_us=setting.model.layers * engine.prompt_us_per_layer.value,
        are_apart=prompts_apart(setting),
    )


def graph_rows(setting: Setting, verified_tokens: float) -> float:
    """Most rows of a step that prompts ride on and a graph holds; infinite where that makes no difference.

    verified_tokens: of each request, for which graphs were captured. Rows of prompts count as those of
    requests.
    """
    engine = setting.runtime.engine
    if engine is None or engine.prompts_apart or engine.graph_unit == "requests":
        return np.inf
    return most_captured_tokens(engine, verified_tokens)


def eager_host_us(setting: Setting) -> float:
    """Microseconds of the host in a step of more rows: (N3), the same as of a step that carries nothing."""
    engine = setting.runtime.engine
    if engine is None or np.isinf(graph_rows(setting, 1.0)):
        return 0.0
    return float(launching_us(engine, setting.model.layers, captured=False).time_us)
