"""Beside an engine's answer its kernels alone, and beside kernels alone what an engine would give.

The limit of an engine is its own kernels, merged and padded as it runs them, without the time of its host: no
step of it is shorter, and the distance is what the engine takes of the gain. The runtime `cuda-graph` is no
such limit: it launches norms, rope and activation one by one with a gap before each, and an engine that
merges them is up to 12 % quicker at batch 1.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from medusa_sim.arrays import FloatArray, IntArray
from medusa_sim.plan.defaults import RUNS_CHAINS, RUNS_TREES
from medusa_sim.plan.scenario import Scenario
from medusa_sim.plan.surface import price
from medusa_sim.specs.runtime import load_runtime

LIMIT = RUNS_TREES
"""The runtime of kernels without an engine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InEngine:
    """The best chains of the engine that runs this drafter, one entry per (batch, seq_len), length innermost.

    candidates: 1 where plain decoding is best.
    """

    scenario: Scenario
    batch: IntArray
    seq_len: IntArray
    candidates: IntArray
    speedup: FloatArray


def in_engine(scenario: Scenario, batch: IntArray, seq_len: IntArray) -> InEngine | None:
    """What the newest engine of chains would give; None where nothing runs as kernels alone, or not there."""
    engine = load_runtime(RUNS_CHAINS)
    is_known = engine.engine is not None and scenario.drafting.method in engine.engine.drafters
    if scenario.runtime.name != LIMIT or scenario.scope != "model" or not is_known or scenario.chain_only:
        return None
    if scenario.profile.heads is None:
        return None  # a curve of tree sizes knows no chains
    served = scenario.but(runtime=RUNS_CHAINS, chain_only=True)
    found = price(served, batch, seq_len).by_count
    gain = np.where(found.fits, found.speedup, -np.inf).reshape(-1, found.counts.size)
    best = np.argmax(gain, axis=-1)
    return InEngine(
        scenario=served,
        batch=np.repeat(batch, seq_len.size),
        seq_len=np.tile(seq_len, batch.size),
        candidates=found.counts[best],
        speedup=gain[np.arange(best.size), best],
    )


def limit_of(scenario: Scenario) -> Scenario | None:
    """The scenario with the engine's own kernels alone; None where its runtime is no engine."""
    if scenario.runtime.engine is None:
        return None
    return scenario.but(runtime=scenario.runtime.kernels_alone, chain_only=scenario.chain_only)
