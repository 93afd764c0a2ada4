"""Table 1's overheads and Table 3's ablation of the Medusa paper, predicted beside published.

The paper decodes with Hugging Face code that the host launches, at batch 1: runtime `hf-eager`, whose host
waits for the device while it accepts. Nothing is fitted to the published overheads.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from medusa_sim.acceptance.heads import (
    HeadAccuracy,
    chain_tokens_per_step,
    expected_tokens_per_step,
    optimal_order,
)
from medusa_sim.acceptance.profile import load_acceptance
from medusa_sim.acceptance.tree import CandidateTree
from medusa_sim.data import DataDir
from medusa_sim.errors import SpecError
from medusa_sim.lab.reproduce.published import PAPER_GPU, read_published
from medusa_sim.scenario.scenario import Scenario
from medusa_sim.step.drafter.medusa import Medusa
from medusa_sim.step.setting import Setting
from medusa_sim.step.step import decode_step, prefill_step, speculative_step

if TYPE_CHECKING:
    import pandas as pd

HEADS = 5
"""Of the paper's models."""
CANDIDATES = 64
CONTEXT = 512
"""A typical context of MT-bench answers; between 256 and 1024 no overhead moves by more than 0.01."""
LEVELS = 5
"""Levels with the root of the public tree of 64 candidates (mc_sim_7b_63)."""
OUTPUT_TOKENS, PROMPT_TOKENS = 300, 200
"""Assumed size of an MT-bench answer, for what the published ratio counts besides steps."""


def overhead(setting: Setting, tokens_per_step: float, candidates: int = CANDIDATES) -> dict[str, float]:
    """Overhead of one verification step at batch 1 under a host-bound runtime.

    device_overhead: kernels alone. step_overhead: the whole step. predicted_overhead: as acceleration rate /
    end-to-end speedup gives it, prompt and last step included. decode_step_us, host_bound: of a plain step.
    """
    plain = decode_step(setting, 1, CONTEXT)
    whole = speculative_step(setting, 1, CONTEXT, candidates)
    step_us, decode_us = float(whole.time_us), float(plain.time_us)
    prompt_us = float(prefill_step(setting, 1, PROMPT_TOKENS).time_us)
    steps = OUTPUT_TOKENS / tokens_per_step
    plain_total = prompt_us + OUTPUT_TOKENS * decode_us
    speedup = plain_total / (prompt_us + (steps + 1.0) * step_us)
    return {
        "predicted_overhead": tokens_per_step / speedup,
        "device_overhead": float(whole.device_us / plain.device_us),
        "step_overhead": step_us / decode_us,
        "decode_step_us": decode_us,
        "host_bound": bool(plain.host_us > plain.device_us),
    }


def _setting(model: str, data_dir: DataDir) -> Setting:
    setting = Scenario(gpu=PAPER_GPU, model=model, runtime="hf-eager", data_dir=data_dir).setting
    return replace(setting, drafter=Medusa(heads=HEADS), compacted_drafts=LEVELS - 1)


def overhead_of(
    model: str, tokens_per_step: float, host_us_per_launch: float, data_dir: DataDir = None
) -> float:
    """Overhead as published ratios count it, on a host that takes so long for a launch."""
    setting = _setting(model, data_dir)
    runtime = replace(setting.runtime, host_us_per_launch=host_us_per_launch)
    return overhead(replace(setting, runtime=runtime), tokens_per_step)["predicted_overhead"]


def table1(data_dir: DataDir = None) -> pd.DataFrame:
    """Table 1: overhead of 64 candidates with five heads, batch 1.

    Columns: model, published_overhead, predicted_overhead (with the counting), difference (in overhead), then
    its parts: device_overhead, step_overhead, decode_step_us, published_tokens_per_s (of plain decoding),
    host_bound.
    """
    import pandas as pd

    printed = read_published("medusa_table1")
    pairs = zip(printed["model"], printed["acc_rate"].astype(float), strict=True)
    frame = pd.DataFrame([overhead(_setting(model, data_dir), rate) for model, rate in pairs])
    frame.insert(0, "model", printed["model"])
    frame.insert(1, "published_overhead", printed["overhead"])
    frame.insert(3, "difference", frame["predicted_overhead"] - frame["published_overhead"])
    frame.insert(7, "published_tokens_per_s", printed["baseline_tokens_per_s_approx"])
    return frame


def best_cartesian(heads: HeadAccuracy, candidates: int) -> CandidateTree:
    """The best tree `s_1 x ... x s_K` (2.1.2) of at most that many candidates, by trying all."""
    best, most = CandidateTree.chain(0), 1.0
    stack: list[tuple[int, ...]] = [()]
    while stack:
        branches = stack.pop()
        for s in range(1, heads.ranks + 1):
            longer = (*branches, s)
            size = 1 + int(sum(np.cumprod(longer)))
            if size > candidates or len(longer) > heads.depth:
                break
            tree = CandidateTree.cartesian(longer)
            tokens = expected_tokens_per_step(tree, heads)
            if tokens > most:
                best, most = tree, tokens
            stack.append(longer)
    return best


def table3(data_dir: DataDir = None) -> pd.DataFrame:
    """Table 3: what each technique adds to the speedup of Vicuna-7B.

    Columns: technique, candidates, tokens_per_step, predicted_overhead, predicted_speedup,
    published_speedup, difference.
    Medusa-1 rows use the public heads' accuracies; Medusa-2 the acceleration rate of Table 1.
    """
    import pandas as pd

    heads = load_acceptance("medusa1-vicuna-7b", data_dir).heads
    if heads is None:
        raise SpecError("acceptance medusa1-vicuna-7b holds no heads; remove your own file of that name")
    dense = best_cartesian(heads, CANDIDATES)
    order = optimal_order(heads, CANDIDATES)
    chain = float(chain_tokens_per_step(heads)[-1])
    printed = read_published("medusa_table1")
    medusa2 = float(printed["acc_rate"][printed["model"] == "vicuna-7b"].iloc[0])
    cases = (
        ("Medusa-1 heads without tree attention", HEADS + 1, chain, 1.5),
        ("adding tree attention", dense.candidates, expected_tokens_per_step(dense, heads), 1.9),
        ("using optimised tree configuration", CANDIDATES, float(order.tokens_per_step[-1]), 2.2),
        ("training heads with Medusa-2", CANDIDATES, medusa2, 2.8),
    )
    setting = _setting("vicuna-7b", data_dir)
    return pd.DataFrame(
        [
            {
                "technique": technique,
                "candidates": candidates,
                "tokens_per_step": tokens,
                "predicted_overhead": (cost := overhead(setting, tokens, candidates)["predicted_overhead"]),
                "predicted_speedup": tokens / cost,
                "published_speedup": speedup,
                "difference": tokens / cost - speedup,
            }
            for technique, candidates, tokens, speedup in cases
        ]
    )
