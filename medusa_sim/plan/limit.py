"""The limit beside an engine's answer: the same configuration with its kernels alone.

A graph of kernels without host, server or drafting overhead is what no engine beats by much; the distance to
it is what the engine takes of the gain.
"""

from __future__ import annotations

from dataclasses import replace

from medusa_sim.arrays import FloatArray
from medusa_sim.plan.draft_options import DraftOption
from medusa_sim.plan.scenario import Scenario
from medusa_sim.specs.runtime import load_runtime
from medusa_sim.step.step import Setting, decode_step, verify_step

LIMIT = "cuda-graph"
"""The runtime of kernels alone."""


def limit_of(scenario: Scenario) -> Scenario | None:
    """The scenario with kernels alone; None where its runtime is no engine."""
    if scenario.runtime.engine is None:
        return None
    return scenario.but(runtime=LIMIT, chain_only=scenario.chain_only)


def kernels_speedup(
    setting: Setting, option: DraftOption, batch: int, seq_len: int, candidates: int, tokens_per_step: float
) -> float | None:
    """Speedup of one configuration with kernels alone; None where the runtime is no engine."""
    if setting.runtime.engine is None:
        return None
    alone = replace(setting, runtime=load_runtime(LIMIT), drafter=option.drafter)
    plain: FloatArray = decode_step(alone, batch, seq_len).time_us
    return float(tokens_per_step * plain / verify_step(alone, batch, seq_len, candidates).time_us)
