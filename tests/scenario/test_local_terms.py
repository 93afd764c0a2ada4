"""What only llama.cpp has: drafts that end unsure, power limits, drafters that read back, last logits."""

import re
from dataclasses import replace

import numpy as np
import pytest
from one_line import one_line

from medusa_sim.acceptance.p_min import sure_drafts
from medusa_sim.doubts.room import model_too_large
from medusa_sim.errors import SpecError, UsageError
from medusa_sim.grid.surface import surface_at
from medusa_sim.scenario.scenario import Scenario
from medusa_sim.step.drafter import drafter_class
from medusa_sim.step.last_logits import last_logits
from medusa_sim.step.pass_cost import timed_pass
from medusa_sim.step.step import decode_step, verification_step, verification_work
from medusa_sim.step.verified import drafted_tokens
from medusa_sim.step.workload import verify

OWN = {
    "gpu": "rtx-5090", "runtime": "llama.cpp-cuda", "model": "qwen3.5-27b", "weight_dtype": "Q4_K_M",
    "drafter": "mtp", "acceptance": 0.8,
}  # fmt: skip


def of(**more):
    return Scenario(**{**OWN, **more})


def test_a_drafter_that_is_right_about_itself_loses_what_it_was_unsure_of():
    rates = np.array([0.5, 0.8, 0.95])
    for p_min in (0.0, 0.3, 0.6, 0.9):
        kept, accepted = sure_drafts(rates, p_min)
        assert (kept[p_min > 0.0] <= 1.0).all()
        assert (accepted <= np.minimum(kept, rates) + 1e-12).all()
        assert (accepted >= p_min * kept - 1e-12).all()  # what is kept is at least so sure
    assert sure_drafts(rates, 0.0)[1] == pytest.approx(rates)


def test_acceptance_by_p_min_is_what_was_measured():
    """Accepted over drafted, five drafts of Qwen3.8-27B's own head on one GPU (August 2026)."""
    measured = {0.2: 0.582, 0.4: 0.648, 0.6: 0.771, 0.8: 0.858}
    errors = []
    for p_min, share in measured.items():
        kept, accepted = (np.cumprod(np.full(5, each)) for each in sure_drafts(np.array([0.803]), p_min))
        errors.append(accepted.sum() / kept.sum() / share - 1.0)
    assert np.abs(errors).mean() < 0.03


def test_lengths_are_a_distribution_whatever_the_requests():
    kept = (0.9, 0.7, 0.5)
    for batch in (1, 2, 8, 30):
        tokens, weights = drafted_tokens(np.array([float(batch)]), np.array([3.0]), kept)
        assert weights.sum() == pytest.approx(1.0)
        assert (tokens * weights).sum() == pytest.approx(1.0 + np.cumprod(kept).sum())
        assert tokens[weights > 0].max() == pytest.approx(4.0)


def test_unsure_drafts_cost_less_and_give_less():
    surfaces = [surface_at(of(p_min=p_min), [1], [512]) for p_min in (0.0, 0.4, 0.8)]
    steps = np.array([(each.verify.time_us + each.drafting[-1].time_us)[0, 0, -1] for each in surfaces])
    assert (np.diff(steps) < 0.0).all()
    tokens = [each.configurations.tokens_per_step[-1] for each in surfaces]
    assert (np.diff(tokens) < 0.0).all()


@pytest.mark.parametrize(
    ("given", "error", "told"),
    [
        ({"p_min": 0.4, "drafter": "ngram"}, UsageError, "--p-min"),
        ({"p_min": 0.4, "runtime": "vllm", "weight_dtype": None}, UsageError, "llama.cpp"),
        ({"power_limit": 400, "runtime": "vllm", "weight_dtype": None}, UsageError, "llama.cpp"),
        ({"power_limit": 100}, SpecError, "575 W"),
        ({"power_limit": 200, "gpu": "rtx-4090-laptop"}, SpecError, "board_watts"),
    ],
)
def test_what_does_not_go_there_is_refused_in_one_line(given, error, told):
    with one_line(error, told):
        _ = of(**given).setting


def test_a_power_limit_slows_arithmetic_and_no_memory():
    whole, capped = (of(power_limit=watts).setting for watts in (None, 350))
    plain, seven = (
        [float(step(each, *at).time_us) for each in (whole, capped)]
        for step, at in ((decode_step, (1, 512)), (verification_step, (1, 512, 7)))
    )
    assert plain[1] / plain[0] < 1.02
    assert 1.05 < seven[1] / seven[0] < 1.4
    assert float(decode_step(of(power_limit=2000).setting, 1, 512).time_us) == plain[0]


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"model": "llama-3-70b", "gpu": "rtx-3090"}, r"-ngl \d\d \(of 80 layers\) leaves 1\d\.\d GB"),
        ({"model": "qwen3.5-35b-a3b", "gpu": "rtx-4080"}, r"--n-cpu-moe \d+ \(experts of \d+ of 40 layers\)"),
        ({"model": "llama-3-70b", "gpu": "m2", "runtime": "mlx", "weight_dtype": "4bit"}, "a smaller file"),
    ],
)
def test_what_does_not_fit_says_what_does(given, told):
    scenario = of(**{"drafter": "ngram", **given})
    (line,) = model_too_large(scenario)
    assert re.search(told, line)
    assert "--tp" not in line


def test_a_drafter_reads_the_verified_tokens_back():
    at = of()
    for runtime in (at.setting.runtime, of(runtime="llama.cpp-vulkan").setting.runtime):
        works = drafter_class("mtp").sized(at.drafting.parts, 3).work(at.shard, verify(1, 512, 4), runtime)
        rows = [int(np.max(work.workload.query_tokens)) for work in works]
        heads = [any(each.operator.name == "lm_head" for each in work.launches) for work in works]
        assert rows == [4, 1, 1, 1]
        assert heads == [False, True, True, True]
    served = (
        drafter_class("mtp")
        .sized(at.drafting.parts, 3)
        .work(at.shard, verify(1, 512, 4), of(runtime="vllm", weight_dtype=None).setting.runtime)
    )
    assert len(served) == 3


def test_a_prompt_pays_the_head_once():
    setting = of().setting
    work = verification_work(setting, 1, 512, 8)
    prompt = replace(work, launches=last_logits(work.launches, 1))
    assert float(timed_pass(setting.latency, prompt).time_us) < float(
        timed_pass(setting.latency, work).time_us
    )
    count = {each.operator.name: 0 for each in work.launches}
    for launch in prompt.launches:
        count[launch.operator.name] += launch.count
    assert count["up_proj"] == sum(each.count for each in work.launches if each.operator.name == "up_proj")
