"""What a step and the KV cache hold: by card and engine, and with layers that keep a window."""

import numpy as np
import pytest
from load_tables import constant_table

from medusa_sim.load.limits import Limits, limits_of, step_limits
from medusa_sim.load.question import load_test, run_load
from medusa_sim.plan.scenario import Scenario
from medusa_sim.plan.surface import price
from medusa_sim.report import load_text
from medusa_sim.step.memory import cache_bytes


@pytest.mark.parametrize(
    ("gpu", "runtime", "expected"),
    [
        ("h100-sxm", "vllm", (1024, 8192)), ("h200-sxm", "vllm", (1024, 8192)),
        ("a100-80gb-sxm", "vllm", (256, 2048)), ("l40s", "vllm", (256, 2048)),
        ("l4", "vllm-0.10", (256, 2048)), ("h100-sxm", "vllm-0.8", (256, 2048)),
        ("b200", "sglang", (2048, 16384)), ("h100-sxm", "cuda-graph", (256, 8192)),
    ],
)  # fmt: skip
def test_engines_limit_steps_by_card(gpu, runtime, expected):
    scenario = Scenario(gpu=gpu, model="llama-3.1-8b", runtime=runtime, drafter="eagle3")
    assert step_limits(scenario) == expected


def test_the_limits_of_a_run_are_printed_with_whose_they_are():
    scenario = Scenario(gpu="l40s", model="llama-3.1-8b", runtime="vllm", drafter="eagle3")
    own = load_text.headline(load_test(scenario, policies=("none",), requests=20))
    assert "256 in a step of at most 2048 tokens (vllm" in own
    told = load_text.headline(load_test(scenario, policies=("none",), requests=20, max_num_seqs=64))
    assert "64 in a step" in told


@pytest.mark.parametrize("model", ["gemma-3-27b", "gpt-oss-20b", "llama-3.1-8b", "mistral-7b"])
@pytest.mark.parametrize("length", [2048, 16384, 30000])
def test_load_holds_as_many_requests_as_a_sweep_fits(model, length):
    scenario = Scenario(gpu="h100-sxm", model=model, runtime="vllm", drafter="ngram", acceptance=0.5)
    found = limits_of(scenario, None, max_requests=16, token_budget=16)
    swept = int(price(scenario, [1], [length], ()).max_batch[0, 0])
    # a sweep's activations are those of its own batch, a block is the last one's rounding
    assert found.kv_blocks / found.blocks_of(length) == pytest.approx(swept, rel=0.03, abs=1.0)


@pytest.mark.parametrize(
    ("model", "dtype", "tp", "logged_gib"),
    [
        ("llama-3.1-8b", "bf16", 1, 51.38),
        ("llama-3.1-70b", "fp8", 2, 32.00),
        ("qwen3-32b", "bf16", 1, 4.45),
        ("qwen3-32b", "bf16", 2, 34.49),
        ("gpt-oss-20b", None, 1, 50.28),
    ],
)
def test_the_cache_is_as_large_as_an_engine_logs(model, dtype, tp, logged_gib):
    """vLLM 0.11.0 on an H100 with its own limits (github.com/llm-d/llm-d-benchmark, config_explorer)."""
    scenario = Scenario(gpu="h100-sxm", model=model, runtime="vllm-0.11", drafter="ngram", acceptance=0.5,
                        dtype=dtype, tp=tp)  # fmt: skip
    found = limits_of(scenario, None)
    a_block = float(np.diff(cache_bytes(scenario.shard, 0.0, np.array([0, 16])))[0])
    assert found.kv_blocks * a_block / 2**30 == pytest.approx(logged_gib, rel=0.012)


def test_more_requests_in_a_step_leave_less_cache():
    """The profile run draws for all of them: 38.8 bytes a logit, of which the widest step hides the first."""
    scenario = Scenario(gpu="h100-sxm", model="llama-3.1-8b", runtime="vllm-0.11", drafter="eagle3")
    few, many, most = (limits_of(scenario, None, max_requests=n).kv_tokens for n in (16, 512, 1024))
    assert few > many > most
    assert (many - most) * 131072 == pytest.approx(38.8 * 128256 * 512, rel=0.01)


def test_a_server_holds_memory_for_the_drafts_that_its_policy_ever_chooses():
    """For the sixteen that its acceptance describes a schedule of three had 56 % of the cache."""
    scenario = Scenario(
        gpu="l40s", model="llama-3.2-3b", drafter="ngram", acceptance=0.6, runtime="tensorrt-llm"
    )
    test = load_test(
        scenario, policies=["3", "schedule=1:3", "schedule", "adaptive", "none", "budget"],
        users=8, requests=40, seeds=1,
    )  # fmt: skip
    three, given, computed, tiers, none, any_number = test.served
    assert [each.table.drafts_max for each in (three, given, tiers, none, any_number)] == [3, 3, 7, 0, 16]
    assert given.limits.kv_tokens == three.limits.kv_tokens
    assert none.limits.kv_tokens > three.limits.kv_tokens > any_number.limits.kv_tokens
    entries = computed.policy().entries
    assert computed.table.drafts_max == max(drafts for _, drafts in entries)
    first, second = (test.point(each, None).mean for each in (three, given))
    assert first == pytest.approx(second, rel=1e-12, nan_ok=True)


def test_windows_are_not_held_as_full_layers():
    scenario = Scenario(gpu="h100-sxm", model="gemma-3-27b", runtime="vllm", drafter="ngram", acceptance=0.5)
    found = limits_of(scenario, None)
    assert found.kv_blocks * found.block_tokens / 16384 < 3.0
    assert 10 <= found.kv_blocks // found.blocks_of(16384) <= 13
    assert found.longest_request(0) == scenario.model.max_seq_len
    test = load_test(
        scenario, policies=("none",), prompt_tokens=16000, output_tokens=200, length_cv=0, requests=40,
        seeds=1,
    )  # fmt: skip
    assert run_load(test, [0.3], search=False).points[0].mean["ttft_mean_s"] < 20.0


def test_a_shared_prefix_is_held_once():
    given = {"kv_blocks": 100, "positions": 4096, "prefix_hit_rate": 0.75}
    shared, own = (Limits(**given, shares_prefix=kind) for kind in (True, False))
    assert (shared.found_tokens(640), shared.shared_blocks(640), own.shared_blocks(640)) == (480, 30, 0)
    assert shared.found_tokens(1) == 0  # a token at least is computed


def test_blocks_of_many_requests_are_those_of_each():
    from medusa_sim.load.decoding import Decoding
    from medusa_sim.load.draws import Draws

    held = np.minimum(np.arange(400.0), 64 + 0.25 * np.arange(400.0))
    random = np.random.default_rng(0)
    for limits in (
        Limits(kv_blocks=9000, positions=4096, lookahead=3),
        Limits(kv_blocks=9000, positions=4096, lookahead=3, held=held),
    ):
        draws = Draws(constant_table(0.01, rates=(0.7,) * 3), np.full(20, 100), seed=0, spread=0.0)
        decoding = Decoding(limits, draws)
        lengths = random.integers(1, 4000, size=20)
        for place, length in enumerate(lengths):
            decoding.join(place, 100, int(length))
        for drafts in (0, 3):
            each = sum(limits.blocks_of(int(length) + drafts) for length in lengths)
            assert decoding.blocks(drafts) == pytest.approx(each, abs=20 * (limits.held is not None))
            steps = decoding.steps_until_full(drafts, limits.kv_blocks)
            assert decoding.blocks(drafts, steps) <= limits.kv_blocks
            assert decoding.blocks_bound(drafts, 5) >= decoding.blocks(drafts, 5)
