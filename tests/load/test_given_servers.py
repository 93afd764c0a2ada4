"""A closed loop beside a server that was given to the project: requests of one length stay in step."""

import pandas as pd
import pytest

from medusa_sim import data
from medusa_sim.load.load_test import load_test
from medusa_sim.scenario.scenario import Scenario

GIVEN = pd.read_csv(data.shipped_dir() / "profiles" / "servers" / "qwen3-8b-h100-vllm-0.30.csv")


def medians_ms(runs):
    """Medians between tokens, measured and played, of some runs."""
    played = []
    for run in runs.itertuples():
        scenario = Scenario(gpu=run.gpu, model=run.model, runtime=run.runtime, dtype=run.dtype)
        test = load_test(
            scenario, policies=("none",), users=run.concurrency, requests=max(50, 5 * run.concurrency),
            seeds=1, prompt_tokens=run.prompt, output_tokens=run.output, length_cv=0,
        )  # fmt: skip
        played.append(1e3 * test.point(test.servers[0], None).mean["itl_p50_s"])
    return pd.DataFrame({"measured": runs.itl_median_ms.to_numpy(), "played": played})


@pytest.mark.parametrize(("dtype", "mean", "worst"), [("bf16", 0.03, 0.08), ("fp8", 0.05, 0.10)])
def test_medians_between_tokens_are_those_of_users_whose_requests_stay_in_step(dtype, mean, worst):
    """Most steps carry no prompts: 128 users of 1,024 + 128 tokens would mix to twice the median."""
    runs = GIVEN[(GIVEN["dtype"] == dtype) & (GIVEN.concurrency <= 128)]
    found = medians_ms(runs)
    errors = (found.played / found.measured - 1.0).abs()
    assert errors.mean() < mean
    assert errors.max() < worst
