"""Terms of engines outside their range: which are named, and the requests that a drafter leaves."""

import numpy as np
import pytest

from medusa_sim import Scenario
from medusa_sim.doubts.acceptance import typed_acceptance
from medusa_sim.doubts.of_answer import answer_doubts
from medusa_sim.doubts.of_scenario import engine_on_other_gpus, first_token_doubts
from medusa_sim.doubts.room import model_too_large
from medusa_sim.doubts.terms import WORDS, terms_out_of_range
from medusa_sim.engines.engine import UNITS
from medusa_sim.grid.axes import Grid
from medusa_sim.load.arguments import LoadArguments
from medusa_sim.load.limits import limits_of
from medusa_sim.plan.recommend import recommend
from medusa_sim.report.recommend.warnings import warnings
from medusa_sim.report.words.caveats import caveats
from medusa_sim.scenario.question import Question
from medusa_sim.scenario.scenario import Scenario as PlanScenario
from medusa_sim.serving.traffic import drafting_requests, step_limits
from medusa_sim.step.memory import step_memory_bytes

DENSE = {"gpu": "h100-sxm", "model": "llama-3.1-8b", "drafter": "eagle3", "acceptance": "0.7,0.5,0.35"}
SERVED = {"prompt_tokens": 256, "output_tokens": 256}


def test_a_term_that_carries_more_than_a_tenth_outside_its_range_is_named():
    busy = Scenario(**DENSE, **SERVED, runtime="sglang")
    (told,) = terms_out_of_range(busy, (1, 256), 640)
    assert "launches of prompts" in told
    assert "measured elsewhere" in told
    assert "latent" in told
    assert "ordinary launches" in told
    assert not terms_out_of_range(busy, (1, 4), 640)  # little of a step carries prompts
    assert not terms_out_of_range(Scenario(**DENSE, runtime="sglang"), (1, 512), 640)  # nobody sends any
    # inside its range it is not named, whatever it takes
    home = Scenario(gpu="h200-sxm", model="deepseek-r1", drafter="mtp", tp=8, runtime="sglang", **SERVED)
    assert not any("prompts" in line for line in terms_out_of_range(home, (1, 48), 640))
    assert not terms_out_of_range(Scenario(**DENSE, runtime="cuda-graph"), (1, 512), 640)


def test_what_is_charged_for_requests_beyond_those_measured_is_named():
    told = " ".join(terms_out_of_range(Scenario(**DENSE, runtime="vllm"), (1, 1024), 640))
    assert "for each request" in told
    assert "wider" in told
    assert not terms_out_of_range(Scenario(**DENSE, runtime="vllm-0.14"), (1, 16), 640)
    assert set(WORDS) <= set(UNITS)


def test_the_sentence_stands_in_every_answer():
    scenario = Scenario(**DENSE, **SERVED, runtime="sglang")
    (told, most) = answer_doubts(scenario, 640, (1, 256))
    assert "at most 48 requests" in most
    assert not any("at most 48" in line for line in answer_doubts(scenario, 640, (1, 48)))
    grid = Grid.of([1, 256], [640], [1, 4])
    assert any(told.lower() in line.lower() for line in caveats([scenario], grid))
    assert told in scenario.sweep([1, 256], [640], [1, 4]).attrs["warnings"]
    answer = recommend(scenario, Question(batch_max=256, seq_len=(640,)))
    assert any("launches of prompts" in line for line in warnings(answer))


def assert_no_narrower(batch, ends, known):
    """Half-widths never fall below those at the requests that were measured, or at their doubles."""
    low, value, high = ends
    for half in (np.log(value / low), np.log(high / value)):
        for edge in (known, 2 * known, 4 * known):
            (at,) = half[batch == edge]
            assert (half[batch >= edge] >= at - 1e-9).all(), (edge, half)


@pytest.mark.parametrize(
    "runtime", ["vllm", "vllm-0.10", "vllm-0.14", "sglang", "sglang-0.4", "tensorrt-llm"]
)
@pytest.mark.parametrize("set_up", [
    {"gpu": "h100-sxm", "model": "llama-3.1-8b"}, {"gpu": "b200", "model": "llama-3.1-8b", "dtype": "fp8"},
    {"gpu": "h200-sxm", "model": "llama-3.3-70b", "tp": 4}, {"gpu": "h100-sxm", "model": "qwen3-30b-a3b"},
])  # fmt: skip
def test_no_band_of_a_speedup_is_narrower_beyond_what_was_measured(runtime, set_up):
    asked = {**set_up, "runtime": runtime, "drafter": "eagle3", "acceptance": "0.7,0.5,0.35"}
    batch = [64, 128, 200, 256, 257, 288, 384, 511, 512, 513, 640, 768, 1024, 2048]
    for traffic in ({}, SERVED):
        scenario = Scenario(**asked, **traffic)
        frame = scenario.sweep(batch, [640], [1, 2, 4])
        known = scenario.setting.runtime.engine.measured_requests
        for count in (2, 4):
            rows = frame[(frame.candidates == count) & (frame.batch >= known)]
            for names in (
                ("speedup_low", "speedup", "speedup_high"),
                ("verify_low_us", "verify_step_us", "verify_high_us"),
            ):
                ends = tuple(rows[name].to_numpy() for name in names)
                assert_no_narrower(rows.batch.to_numpy(), ends, known)
        alone = scenario.sweep([513], [640], [1, 2, 4]).iloc[-1]
        among = frame[(frame.candidates == 4) & (frame.batch == 513)].iloc[0]
        names = ["speedup_low", "speedup_high", "verify_low_us"]
        assert alone[names].tolist() == pytest.approx(among[names].tolist())


def test_a_drafter_leaves_fewer_requests_where_an_engine_says_so():
    for runtime, most in (("sglang", 48), ("vllm", 1024)):
        scenario = PlanScenario(**DENSE, runtime=runtime)
        plain = step_limits(scenario.runtime, scenario.gpu)[0]
        assert drafting_requests(scenario.runtime, scenario.gpu) == min(most, plain)
        limits = limits_of(scenario, scenario.options()[0])
        assert limits.max_requests == min(most, plain)
        assert limits_of(scenario, scenario.options()[0], LoadArguments(max_num_seqs=96)).max_requests == 96


def test_layers_that_fit_stay_on_the_card_and_the_others_are_counted():
    """As many whole layers as leave no byte beyond the room; the host reads 80 GB/s of the others."""
    scenario = Scenario(
        gpu="rtx-4090", model="llama-3.1-70b", weight_dtype="q4_k_m", runtime="llama.cpp-cuda",
        drafter="ngram", acceptance=0.5,
    )  # fmt: skip
    whole = float(step_memory_bytes(scenario.shard, None, 1, 1, 1))
    a_layer, room = scenario.shard.layers_weight_bytes / 80, scenario.usable_memory_bytes
    kept = max(count for count in range(81) if whole - (80 - count) * a_layer <= room)
    (told,) = model_too_large(scenario)
    assert f"-ngl {kept} (of 80 layers)" in told
    assert f"leaves {(whole - room) / 1e9:.1f} GB" in told
    assert f"waits {1e3 * (whole - room) / 80e9:.0f} ms" in told


def test_a_model_of_experts_leaves_experts_with_the_host():
    scenario = Scenario(
        gpu="rtx-4090", model="gpt-oss-120b", runtime="llama.cpp-cuda", drafter="ngram", acceptance=0.5
    )
    beyond = float(step_memory_bytes(scenario.shard, None, 1, 1, 1)) - scenario.usable_memory_bytes
    a_layer = 128 * 3 * 2880 * 2880 * (0.5 + 1 / 32)  # mxfp4; the model's card: 128 experts, 4 of them woken
    moved = next(count for count in range(37) if count * a_layer >= beyond)
    (told,) = model_too_large(scenario)
    assert f"--n-cpu-moe {moved} " in told
    assert f"waits {1e3 * moved * a_layer * 4 / 128 / 80e9:.0f} ms" in told


@pytest.mark.parametrize(("scope", "lines"), [("model", 1), ("block", 0)])
def test_an_engines_terms_on_other_gpus_are_named_where_a_whole_step_is_priced(scope, lines):
    scenario = Scenario(gpu="h100-sxm", model="llama-3.1-70b", runtime="sglang", tp=4, drafter="eagle3",
                        acceptance=0.7, scope=scope)  # fmt: skip
    assert len(list(engine_on_other_gpus(scenario))) == lines


@pytest.mark.parametrize(
    ("runtime", "dp_attention", "lines"),
    [
        ("vllm", False, 0),
        ("vllm", True, 1),
        ("sglang", False, 1),
        ("sglang", True, 1),
        ("cuda-graph", False, 0),
    ],
)
def test_first_tokens_are_known_in_the_engine_that_they_were_measured_in(runtime, dp_attention, lines):
    scenario = Scenario(gpu="h200-sxm", model="deepseek-r1", tp=8, runtime=runtime, drafter="mtp",
                        dp_attention=dp_attention, acceptance=0.7)  # fmt: skip
    assert len(first_token_doubts(scenario)) == lines


@pytest.mark.parametrize(("drafts", "told"), [(1, False), (2, True), (3, True)])
def test_a_rate_as_llama_cpp_logs_it_is_given_in_percent(drafts, told):
    """Of one draft the chance of each is the share of all."""
    scenario = Scenario(
        gpu="rtx-4090", model="llama-3.1-8b", runtime="llama.cpp-cuda", drafter="ngram", acceptance=0.5,
        max_drafts=drafts,
    )  # fmt: skip
    assert any("50%@3" in line for line in typed_acceptance(scenario)) is told
