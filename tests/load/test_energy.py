"""Watts and joules a token of a run: bounds, what an idle server draws, measured watts of closed loops."""

import numpy as np
import pandas as pd
import pytest

from medusa_sim.load.arrivals import Drawn, Lengths
from medusa_sim.load.simulate import LoadPoint, LoadTest, Server
from medusa_sim.plan.scenario import Scenario

PLAIN = Scenario(
    gpu="h100-sxm", model="llama-3.1-8b", runtime="vllm-0.11", drafter="eagle3", acceptance="0.8,0.6,0.4"
)
LENGTHS = Lengths(prompt_tokens=125.0, output_tokens=400.0, prompt_cv=0.5, output_cv=0.5)


def point(
    scenario: Scenario = PLAIN, policy: str = "none", rate: float | None = None, **source: object
) -> LoadPoint:
    users = source.get("users")
    test = LoadTest(
        scenario=scenario,
        source=Drawn(lengths=LENGTHS, **{"count": 300, **source}),
        policies=(policy,),
        server=Server(max_requests=users or 64),
        seeds=1,
    )
    return test.point(test.served[0], rate)


def test_a_server_with_next_to_nothing_to_do_draws_its_idle_watts():
    power = PLAIN.gpu.power
    lazy, busy = point(rate=0.02, count=30).mean, point(rate=8.0).mean
    assert lazy["watts"] == pytest.approx(power.fit.idle_watts, rel=0.15)
    assert power.fit.idle_watts < lazy["watts"] < busy["watts"] < power.limit_watts
    assert lazy["joule_per_token"] > busy["joule_per_token"]


def test_energy_follows_time_and_a_card_without_power_has_none():
    plain, drafted = (point(policy=policy, users=8).mean for policy in ("none", "3"))
    assert drafted["joule_per_token"] < plain["joule_per_token"]
    found = point(PLAIN.but(gpu="cpu-emerald-rapids-50m", model="llama-68m", runtime="cuda-graph",
                            latency="roofline", dtype="fp32"), rate=0.5, count=20).mean  # fmt: skip
    assert np.isnan(found["watts"])
    assert np.isnan(found["joule_per_token"])


def test_a_closed_loop_draws_what_was_measured(shared_data):
    power = pd.read_csv(shared_data / "engines" / "power_mlenergy.csv")
    rows = power[power.model.str.endswith("Llama-3.1-8B-Instruct") & power.max_num_seqs.isin([8, 32, 128])]
    misses = []
    for row in rows.itertuples():
        found = point(users=int(row.max_num_seqs), count=6 * int(row.max_num_seqs)).mean
        misses.append(abs(found["watts"] / row.watts_all_gpus - 1.0))
        assert found["joule_per_token"] == pytest.approx(row.joule_per_token, rel=0.15)
    assert np.mean(misses) < 0.08
