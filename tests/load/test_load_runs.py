"""Runs of a made-up server under every policy and limit, to eight digits."""

import numpy as np
import pytest
from load_tables import MOST_TOKENS, constant_table, limits, prompt_times
from tables import table

from medusa_sim.arrays import Halves
from medusa_sim.load.lengths import Lengths
from medusa_sim.load.metrics import metrics_of
from medusa_sim.load.policies import Adaptive, Budget, BySize, Fixed, Policy, ThroughputAware
from medusa_sim.load.serving_loop import run
from medusa_sim.load.slos import Slos
from medusa_sim.load.sources import closed_loop, open_loop
from medusa_sim.load.step_table import StepTable

RATES = (0.8, 0.6, 0.45, 0.3, 0.2, 0.1, 0.05)
RUNS = table("load_runs")


def server() -> StepTable:
    """4 ms, 0.2 ms a request, 1 ns a token of it, a quarter more a draft; 20 us a token of prompts."""
    lengths = np.array([1.0, 400.0, 1e6])
    b, k = np.arange(65)[None, :, None], np.arange(8)[:, None, None]
    step_s = (0.004 + b * (2e-4 + 1e-9 * lengths)) * (1.0 + 0.02 * k + 0.0015 * k * b)
    tokens = np.arange(MOST_TOKENS)
    return constant_table(
        0.004, RATES, requests_max=64, lengths=lengths, step_s=step_s, client_s=0.001,
        sending_s=1e-5, drafting_share=np.full((8, 65), 0.1), idle_share=np.full(65, 0.03),
        prompts=prompt_times(linear_s=2e-5 * tokens, drafter_s=2e-6 * tokens), steps_ahead=1,
        halves=Halves(np.full((8, 65), 0.05), np.full((8, 65), 0.07)),
    )  # fmt: skip


def policy_of(name: str, of: StepTable) -> Policy:
    return {
        "none": Fixed(0), "three": Fixed(3), "adaptive": Adaptive(), "budget": Budget.from_table(of),
        "throughput": ThroughputAware(step_s=of.step_s[:, :, 0]), "sizes": BySize(((1, 5), (8, 3), (24, 0))),
    }[name]  # fmt: skip


LIMITS = {
    "wide": {}, "few": {"max_requests": 6, "schedulers": 2}, "small": {"kv_blocks": 260, "max_requests": 40},
    "chunks": {"token_budget": 96, "max_requests": 64}, "apart": {"prompt_interval": 4},
    "found": {"prefix_hit_rate": 0.5},
    "held": {"prompt_wait": 3, "token_budget": 512, "max_requests": 64},
}  # fmt: skip


def found_of(case: str) -> dict[str, float]:
    """Metrics of `policy limits arrivals`."""
    policy, bounds, arrivals = case.split(" ")
    lengths = Lengths(prompt_tokens=120, output_tokens=40)
    if arrivals == "users":
        asked = closed_loop(12, lengths, count=150, think_s=0.02, seed=3)
    else:
        asked = open_loop(float(arrivals), lengths, count=250, seed=3, burstiness=0.7)
        asked = asked.with_cancelled(0.2, 3) if policy == "three" else asked
    whole = server()
    given = policy_of(policy, whole)
    table_of = whole.for_drafts(len(RATES) if given.longest is None else given.longest)
    within = limits(**LIMITS[bounds])
    result = run(asked, table_of, within, given, seed=5)
    return metrics_of(result, table_of, within, Slos(ttft_s=0.2, tpot_s=0.02))


@pytest.mark.parametrize("case", RUNS)
def test_a_run_has_its_metrics(case):
    assert found_of(case) == pytest.approx(RUNS[case], rel=1e-8, nan_ok=True)
