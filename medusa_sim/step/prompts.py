"""Kernels of prompts (`step.prompt_kernels`) and an engine -> the time of a step that carries them.

Prompts ride on decode steps (chunked prefill, mixed batches), or have prefill passes of their own between
two steps (SGLang without mixed chunks). Either way the one equation is (N8), `PromptTerms.mixed_us`:

    added      = g (read + more where it is above 0) + more where it is below 0
    mixed step = |step + added, launches|_3 + beside      prompts ride on the step
               = step + |added, launches|_3 + beside      they have passes of their own

    step       the decode step without prompts
    more       its linear layers for the prefill tokens; below 0 where padding of the step is saved
    read       attention of the prompts, and their drafter
    g, beside  of an engine: share of fitted kernels that its own take, what it adds a step (`prompt_terms`)
    launches   of the host, where no CUDA graph holds the pass (`prompt_host_us`, `eager_host_us`); else 0
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
    """Whether prompts have prefill passes of their own."""
    engine = setting.runtime.engine
    return engine is not None and engine.prompts_apart


class PromptTerms(NamedTuple):
    """What turns the kernels of prompts into the time of a step that carries them."""

    share: float = 1.0
    """g: of fitted kernels that an engine's own take."""
    beside_us: float = 0.0
    """What an engine adds to a step with prompts."""
    are_apart: bool = False
    """Whether prompts have passes of their own."""

    def more_us(
        self,
        linear_us: FloatArray | float,
        decode_us: FloatArray | float,
        saved_us: FloatArray | float,
        logits_us: float,
    ) -> FloatArray | float:
        """(N8) more: of the linear layers that a step or pass with prompts runs, what it adds.

        linear_us: of the prompts' tokens, and where they ride those of requests too, whose layers take
        decode_us without prompts; saved_us: because tokens of a request share experts; logits_us: of a pass
        of its own. All broadcast, in the unit given.
        """
        return linear_us + logits_us if self.are_apart else linear_us - saved_us - decode_us

    def mixed_us(
        self,
        step_us: FloatArray | float,
        more_us: FloatArray | float,
        read_us: FloatArray | float,
        host_us: FloatArray | float,
    ) -> FloatArray:
        """(N8): microseconds of a step that carries prompts; all broadcast.

        step_us: of the step without them; more_us: of its linear layers for their tokens, below 0 where a
        padded step takes longer than one with prompts; read_us: attention and drafter of prompts; host_us: of
        the launches that no graph holds, 0: there are none.
        """
        # the share is of what prompts add, not of what a step without padding saves
        added_us = self.share * (read_us + np.maximum(more_us, 0.0)) + np.minimum(more_us, 0.0)
        if self.are_apart:
            return compose.step_us(np.asarray(added_us), host_us, step_us + self.beside_us)
        return compose.step_us(np.asarray(step_us + added_us), host_us, self.beside_us)


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


# The host: it launches prompts kernel by kernel, always or only in a step that outgrows the graphs.


def prompt_host_us(setting: Setting, *, has_drafter: bool) -> float:
    """Microseconds of the host that launches a prefill pass, or a mixed step; 0 where a graph holds it.

    has_drafter: whether one is loaded, in this step or not.
    """
    engine = setting.runtime.engine
    if engine is None or not (term := prompt_term(setting, engine, has_drafter=has_drafter)).value:
        return 0.0
    launches = model_launches(setting.shard, prefill(1, 1), setting.runtime)
    return term.value * sum(launch.kernel_count for launch in launches)


def prompt_term(setting: Setting, engine: Engine, *, has_drafter: bool) -> Term:
    """What the host takes for each kernel of `prompt_host_us`.

    Where prompts ride on a step, the whole step is launched so, with a drafter or without. Passes of their
    own have another host with one that drafts by passes: their graphs hold no hidden states.
    """
    drafts_by_passes = has_drafter and setting.drafter_name not in lookups()
    if engine.prompts_apart and not drafts_by_passes:
        return engine.prefill_us_per_launch
    return engine.prompt_us_per_launch


def graph_rows(setting: Setting, verified_tokens: float) -> float:
    """Most rows of a mixed step that a graph holds; infinite where prompts never take a step out of one.

    verified_tokens: of each request, for which graphs were captured. Rows of prompts count as those of
    requests.
    """
    engine = setting.runtime.engine
    if engine is None or engine.prompts_apart or engine.graph_unit == "requests":
        return np.inf
    return most_captured_tokens(engine, verified_tokens)


def launches_us(
    always_us: float,
    eager_us: float,
    decode_rows: FloatArray | float,
    rows: FloatArray | float,
    most_rows: FloatArray | float,
) -> FloatArray | float:
    """(N8) launches of a step of so many rows, `decode_rows` without prompts; broadcasts, in the unit given.

    Either an engine's graphs hold no prompts at all (always_us, `prompt_host_us`), or they hold the step and
    not its further rows (eager_us, `eager_host_us`, of more than most_rows, `graph_rows`).
    """
    if always_us or not eager_us:
        return always_us
    is_outgrown = np.asarray((decode_rows <= most_rows) & (rows > most_rows))
    return np.asarray(eager_us * is_outgrown)


def eager_host_us(setting: Setting) -> float:
    """Microseconds of the host in a step of more than `graph_rows`: (N3), as in one that only decodes."""
    engine = setting.runtime.engine
    if engine is None or np.isinf(graph_rows(setting, 1.0)):
        return 0.0
    return float(launching_us(engine, setting.model.layers, captured=False).time_us)
