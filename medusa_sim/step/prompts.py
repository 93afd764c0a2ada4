"""Kernels of prompts (`step.prompt_kernels`) and an engine -> the time of a step that carries them.

Prompts ride on decode steps (chunked prefill, mixed batches), or have prefill passes of their own between
two steps (SGLang without mixed chunks). Either way the one equation is (N8), `PromptTerms.mixed_us`:

    added      = g (read + more where it is above 0) + more where it is below 0
    mixed step = |step + added, launches|_3 + extra       prompts ride on the step
               = step + |added, launches|_3 + extra       they have passes of their own

    step       the decode step without prompts
    more       its linear layers for the prefill tokens; below 0 where padding of the step is saved
    read       attention of the prompts, and their drafter
    g, extra   of an engine: share of fitted kernels that its own take, what it adds a step (`prompt_terms`)
    launches   of the host, where no CUDA graph holds the step or pass (`PromptHost`); else 0
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from medusa_sim.arrays import FloatArray, IntArray
from medusa_sim.engines.engine import Engine
from medusa_sim.engines.term import Term
from medusa_sim.operators.operator import Size
from medusa_sim.step.drafter import lookups
from medusa_sim.step.graphs import most_captured_tokens
from medusa_sim.step.host import Added, host_share, launching_us, overlapped_us
from medusa_sim.step.network import model_launches
from medusa_sim.step.setting import Setting
from medusa_sim.step.workload import prefill

LEAST_PROMPTS = 1e-9
"""Stands for no prompt where prompts are divided by."""


def prompts_apart(setting: Setting) -> bool:
    """Whether prompts have prefill passes of their own."""
    engine = setting.runtime.engine
    return engine is not None and engine.prompts_apart


class PromptTerms(NamedTuple):
    """What turns the kernels of prompts into the time of a step that carries them."""

    share: float = 1.0
    """g: of fitted kernels that an engine's own take."""
    extra_us: float = 0.0
    """extra: what an engine adds to a step with prompts."""
    are_apart: bool = False
    """Whether prompts have passes of their own."""

    def more_us(
        self,
        linear_us: FloatArray | float,
        decode_us: FloatArray | float,
        saved_us: FloatArray | float,
        logits_us: float = 0.0,
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
        launches_us: FloatArray | float,
    ) -> FloatArray:
        """(N8): microseconds of a step that carries prompts; all broadcast.

        step_us: of the step without them; more_us: of its linear layers for their tokens, below 0 where a
        padded step takes longer than one with prompts; read_us: attention and drafter of prompts;
        launches_us: of the host (`PromptHost.launches_us`).
        """
        # the share is of what prompts add, not of what a step without padding saves
        added_us = self.share * (read_us + more_us) + (1.0 - self.share) * np.minimum(more_us, 0.0)
        launched_us = added_us if self.are_apart else step_us + added_us
        return overlapped_us(launched_us, launches_us) + self._exposed_us(step_us)

    def mixed(
        self,
        step_us: FloatArray,
        more_us: FloatArray | float,
        read_us: FloatArray | float,
        launches_us: FloatArray | float,
        launches_band: FloatArray | float,
    ) -> Added:
        """`mixed_us` with the half-width that it has from its launches. launches_band: theirs, relative."""
        time_us = self.mixed_us(step_us, more_us, read_us, launches_us)
        if not np.any(launches_us):
            return Added(time_us, np.zeros(()))
        share = host_share(launches_us, time_us - self._exposed_us(step_us))
        return Added(time_us, share * launches_band * launches_us)

    def _exposed_us(self, step_us: FloatArray | float) -> FloatArray | float:
        """Of a mixed step, what no launch of prompts overlaps."""
        return step_us + self.extra_us if self.are_apart else self.extra_us


def prompt_terms(setting: Setting) -> PromptTerms:
    """The terms of an engine; without one kernels are all."""
    engine = setting.runtime.engine
    if engine is None:
        return PromptTerms()
    return PromptTerms(
        share=engine.prompt_share.value,
        extra_us=setting.model.layers * engine.prompt_us_per_layer.value,
        are_apart=prompts_apart(setting),
    )


def read_us(
    gpus: int,
    prompts: Size,
    attention_us: FloatArray | float,
    drafter_us: FloatArray | float,
    imbalance_us: FloatArray | float,
) -> FloatArray | float:
    """(N8) read: what `prompts` take besides linear layers; broadcasts, in the unit given.

    gpus: that attend to their own requests; attention_us: of all prompts, the drafter's with it; drafter_us:
    its linear layers; imbalance_us: where one GPU has all prompts (`prompt_kernels.imbalance_us`). The GPU
    that has most has an even share of them, but never less than one: of 2 on 4 GPUs one, a half; of 8 two.
    """
    if gpus == 1:
        return attention_us + drafter_us
    some = np.maximum(prompts, LEAST_PROMPTS)
    busiest_share = np.maximum(some / gpus, np.minimum(some, 1.0)) / some
    uneven = (gpus * busiest_share - 1.0) / (gpus - 1.0)  # 1 where it has all, 0 where all have as many
    return busiest_share * attention_us + drafter_us + uneven * imbalance_us


# The host: it launches prompts kernel by kernel, always or only in a step that outgrows the graphs.


class PromptHost(NamedTuple):
    """The host that launches a step or pass with prompts kernel by kernel: launches of (N8).

    An engine's graphs hold no prompts at all (`always_us`), or they hold a step up to so many rows
    (`outgrown_us`). Numbers of one server, or arrays of several that broadcast with what is asked.
    """

    always_us: FloatArray | float = 0.0
    """Of each pass of prompts, or step that they ride on."""
    outgrown_us: FloatArray | float = 0.0
    """Of a step that a graph would hold without prompts: (N3), as of one that only decodes."""
    most_rows: FloatArray | float = np.inf
    """Rows of the largest graph; those of prompts count as those of requests that decode."""
    band: FloatArray | float = 0.0
    """Relative half-width of the 80 % band of these times."""

    def launches_us(self, decode_rows: FloatArray | float, rows: FloatArray | float) -> FloatArray | float:
        """Of a step of so many rows, `decode_rows` without its prompts; 0 where a graph holds it."""
        is_outgrown: Any = (decode_rows <= self.most_rows) & (rows > self.most_rows)
        launches_us: FloatArray | float = self.always_us + is_outgrown * self.outgrown_us
        return launches_us

    def at(self, place: IntArray) -> PromptHost:
        """Of some of several servers, by their places."""
        return PromptHost(*(np.asarray(values)[place] for values in self))


GRAPHS = PromptHost()
"""Where graphs hold all prompts, or the host works far ahead of the device."""


def prompt_host(setting: Setting, candidates: float) -> PromptHost:
    """The host of a server whose requests verify so many tokens if they draft; above 1 it has a drafter."""
    engine = setting.runtime.engine
    if engine is None:
        return GRAPHS
    term = _launch_term(setting, engine, has_drafter=candidates > 1.0)
    if term.value:
        launches = model_launches(setting.shard, prefill(1, 1), setting.runtime)
        kernels = sum(launch.kernel_count for launch in launches)
        return PromptHost(always_us=term.value * kernels, band=term.band)
    if engine.prompts_apart or engine.graph_unit == "requests":
        return GRAPHS
    return PromptHost(
        outgrown_us=float(launching_us(engine, setting.model.layers, captured=False).time_us),
        most_rows=most_captured_tokens(engine, candidates),
        band=engine.eager_us_per_layer.band,
    )


def prompt_hosts(setting: Setting, candidates: FloatArray) -> PromptHost:
    """`prompt_host` of several servers, (cells,)."""
    distinct, place = np.unique(candidates, return_inverse=True)
    hosts = (prompt_host(setting, tokens) for tokens in distinct.tolist())
    return PromptHost(*(np.asarray(values)[place] for values in zip(*hosts, strict=True)))


def _launch_term(setting: Setting, engine: Engine, *, has_drafter: bool) -> Term:
    """What the host takes for each kernel of a step with prompts; 0: graphs hold it.

    Where prompts ride on a step, the whole step is launched so, with a drafter or without. Passes of their
    own have another host with one that drafts by passes: their graphs hold no hidden states.
    """
    drafts_by_passes = has_drafter and setting.drafter_name not in lookups()
    if engine.prompts_apart and not drafts_by_passes:
        return engine.prefill_us_per_launch
    return engine.prompt_us_per_launch
