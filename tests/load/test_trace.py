"""Trace files: public column names, and one line for what is none."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from load_tables import constant_table, limits, requests
from one_line import one_line

from medusa_sim.errors import DataError, UsageError
from medusa_sim.grid.cells import price
from medusa_sim.load.answer import run_load
from medusa_sim.load.arguments import LoadArguments
from medusa_sim.load.lengths import Lengths
from medusa_sim.load.limits import SchedulerLimits, limits_of
from medusa_sim.load.load_test import load_test
from medusa_sim.load.policies import Fixed
from medusa_sim.load.requests import Requests
from medusa_sim.load.serving_loop import run
from medusa_sim.load.sources import open_loop
from medusa_sim.load.trace import read_trace
from medusa_sim.report.load.screen import server_facts, sessions_text
from medusa_sim.scenario.scenario import Scenario
from medusa_sim.serving.traffic import step_limits
from medusa_sim.step.memory import request_bytes

GOOD = "arrival_s,prompt_tokens,output_tokens\n1.5,10,3\n1.5,20,4\n4.0,5,1\n"


def written(folder: Path, text: str, name: str = "trace.csv") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("header", "rows"),
    [
        ("arrival_s,prompt_tokens,output_tokens", "{},{},{}"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens", "2023-11-16 18:17:0{}.0,{},{}"),
        ("arrived_at,num_prefill_tokens,num_decode_tokens", "{},{},{}"),
        ("timestamp_ms,input_length,output_length", "{}000,{},{}"),
        ("Timestamp,Model,Request tokens,Response tokens", "{},ChatGPT,{},{}"),
    ],
)
def test_public_names_are_read(tmp_path, header, rows):
    lines = [rows.format(*values) for values in ((1, 10, 3), (1, 20, 4), (4, 5, 1))]
    found = read_trace(written(tmp_path, "\n".join([header, *lines]) + "\n"))
    assert found.arrival_s.tolist() == [0.0, 0.0, 3.0]
    assert found.prompt_tokens.tolist() == [10, 20, 5]
    assert found.output_tokens.tolist() == [3, 4, 1]


def test_a_trace_with_sessions_keeps_who_follows_whom(tmp_path):
    text = (
        "arrival_s,prompt_tokens,output_tokens,Conversation ID,think_ms\n"
        "0,10,3,a,\n1,20,4,b,\n2,30,5,a,500\n3,40,6,,\n4,50,7,a,\n5,60,8,,\n"
    )
    found = read_trace(written(tmp_path, text))
    assert found.before.tolist() == [-1, -1, 0, -1, 2, -1]
    assert found.session_tokens.tolist() == [0, 0, 13, 0, 35, 0]
    assert found.pause_s.tolist() == [0.0, 0.0, 0.5, 0.0, 0.0, 0.0]
    assert found.first(4).before.tolist() == [-1, -1, 0, -1]
    few = SchedulerLimits(kv_blocks=1000, positions=56)  # the last two are too long
    assert found.fitting(few, 0, drop_long=True)[0].before.tolist() == [-1, -1, 0, -1]
    assert read_trace(written(tmp_path, text.replace(",a,", ",,"))).session is None  # nobody follows another
    with pytest.raises(DataError, match="think_ms of request 2 is below 0"):
        read_trace(written(tmp_path, text.replace("500", "-1")))


def test_the_answer_says_that_sessions_keep_their_order(tmp_path):
    path = written(tmp_path, "arrival_s,prompt_tokens,output_tokens,session\n0,10,3,a\n0.001,20,4,a\n")
    test = load_test(
        Scenario(gpu="h100-sxm", model="llama-3.1-8b", runtime="vllm"), policies=("none",), trace=path
    )
    told = sessions_text(test)
    assert told == [
        "1 of 2 requests follow another in their session: each is sent when that has finished, not before "
        "its own time; latencies count from then"
    ]
    first = test.point(test.servers[0], None).first_result
    assert first.arrival_s[1] == first.finish_s[0]


def test_parquet_reads_as_csv_does_and_what_is_none_is_one_line(tmp_path):
    csv = read_trace(written(tmp_path, GOOD))
    path = tmp_path / "trace.parquet"
    pd.read_csv(tmp_path / "trace.csv").to_parquet(path)
    other = read_trace(path)
    np.testing.assert_array_equal(csv.arrival_s, other.arrival_s)
    np.testing.assert_array_equal(csv.prompt_tokens, other.prompt_tokens)
    for path in (written(tmp_path, "no parquet", "trace.parquet"), tmp_path / "none.parquet", tmp_path):
        with pytest.raises(DataError):
            read_trace(path)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("arrival_s,prompt_tokens,output_tokens\n", "no rows|no requests"),
        ("", "cannot be read"),
        ("prompt_tokens,output_tokens\n1,2\n", "no column of arrivals"),
        ("arrival_s,output_tokens\n1,2\n", "no column of prompt tokens"),
        (GOOD.replace("20", "twenty"), "prompt tokens of request 1 is 'twenty'"),
        (GOOD.replace("20", "-2"), "prompt tokens of request 1 is -2"),
        (GOOD.replace("20", "2.5"), "prompt tokens of request 1 is 2.5"),
        (GOOD.replace("4.0", "soon"), "arrival of request 2 is 'soon'"),
        (GOOD.replace("4.0", "nan"), "arrival of request 2 is nan"),
        (GOOD.replace("20", "9" * 400), "prompt tokens: a number of hundreds of digits"),
        (GOOD.replace("4.0", "4.0,1").replace("1.5", "1.5,1"), "more fields than the header"),
        (GOOD.replace("4.0", "1700000000000"), "arrival of request 2 is 1.7e\\+12 s.*arrival_ms"),
        (GOOD.replace("4.0", "1.0"), "request 2 arrives at 1 s, before"),
    ],
)
def test_what_is_no_trace_is_one_line(tmp_path, text, told):
    with one_line(DataError, match=told):
        read_trace(written(tmp_path, text))


@pytest.mark.parametrize(
    ("arrivals", "fits"),
    [((0, 50), True), ((0, 51), False), ((0, 40, 100), True), ((0, 40, 102), False), ((0.5, 102.0), True)],
)
def test_whole_numbers_more_than_fifty_apart_may_be_milliseconds(tmp_path, arrivals, fits):
    """On average over the gaps; a column that says its unit is taken at its word."""
    rows = "".join(f"{at},10,3\n" for at in arrivals)
    sizes = ",prompt_tokens,output_tokens\n"
    path = written(tmp_path, f"timestamp{sizes}{rows}")
    if fits:
        assert read_trace(path).arrival_s[-1] == arrivals[-1] - arrivals[0]
    else:
        with pytest.raises(DataError, match=f"{arrivals[-1] / (len(arrivals) - 1):.0f} apart"):
            read_trace(path)
    assert read_trace(written(tmp_path, f"arrival_s{sizes}{rows}")).count == len(arrivals)


def test_priorities_are_refused_by_name(tmp_path):
    table = pd.read_csv(written(tmp_path, GOOD))
    for priorities, refused in (([0, 0, 0], False), ([0, 0, 1], True), ([0, 2, 1], True)):
        path = tmp_path / "trace.parquet"
        table.assign(priority=priorities).to_parquet(path)
        if refused:
            with pytest.raises(DataError, match=r"priorities.*not simulated"):
                read_trace(path)
        else:
            assert read_trace(path).count == 3


def test_times_of_any_kind_are_seconds(tmp_path):
    table = pd.read_csv(written(tmp_path, GOOD))
    for number, unit in enumerate(("s", "ms", "ns")):
        passed = pd.to_timedelta(table["arrival_s"], unit="s").astype(f"timedelta64[{unit}]")
        for column in (passed, pd.Timestamp("2024-01-01") + passed):
            path = tmp_path / f"{number}.parquet"
            table.assign(arrival_s=column).to_parquet(path)
            assert read_trace(path).arrival_s.tolist() == [0.0, 0.0, 2.5 if unit != "s" else 3.0]


def test_long_requests_are_refused_or_left_out(tmp_path):
    asked = read_trace(written(tmp_path, GOOD))
    model, card = SchedulerLimits(kv_blocks=100, positions=16), SchedulerLimits(kv_blocks=1, positions=100)
    with pytest.raises(UsageError, match=r"1 of 3 requests .* request 1 with 20 prompt .* 16 positions"):
        asked.fitting(model, 0, drop_long=False)
    with pytest.raises(UsageError, match="KV cache holds 16 tokens"):
        asked.fitting(card, 2, drop_long=False)
    left, dropped = asked.fitting(model, 0, drop_long=True)
    assert dropped == 1
    assert left.prompt_tokens.tolist() == [10, 5]
    with pytest.raises(UsageError, match="3 of 3"):
        asked.fitting(SchedulerLimits(kv_blocks=100, positions=2), 0, drop_long=True)


def test_the_azure_hours_are_read(shared_data):
    found = read_trace(shared_data / "traces" / "azure_2023_conv.parquet")
    assert found.count == 19_366
    assert found.arrival_s[0] == 0.0
    assert found.rate_per_s == pytest.approx(5.53, rel=0.01)


def test_a_column_without_a_unit_may_not_hold_milliseconds(tmp_path):
    rows = [f"{1000 * i},10,3" for i in range(5)]
    for name, refused in (("timestamp", True), ("arrival_ms", False), ("arrival_s", False)):
        path = written(tmp_path, "\n".join([f"{name},prompt_tokens,output_tokens", *rows]) + "\n")
        if not refused:
            assert read_trace(path).count == 5
            continue
        with pytest.raises(DataError, match="arrival_s or arrival_ms"):
            read_trace(path)


STEP_S = 0.01


def in_sessions(count: int, sessions: int, rate: float, seed: int, pause_s: float) -> Requests:
    random = np.random.default_rng(seed)
    lengths = Lengths(prompt_tokens=30, output_tokens=20)
    return replace(
        open_loop(rate, lengths, count=count, seed=seed, most=150),
        session=random.integers(-1, sessions, count),
        pause_s=random.random(count) * pause_s,
        warm=0,
    )


@settings(max_examples=50)
@given(
    seed=st.integers(0, 1000), count=st.integers(1, 80), sessions=st.integers(1, 30),
    rate=st.floats(0.5, 500.0), pause_s=st.sampled_from([0.0, 0.5]), most=st.integers(1, 8),
    ahead=st.booleans(), drafts=st.integers(0, 2),
)  # fmt: skip
def test_a_request_comes_when_the_one_before_it_has_finished(
    seed, count, sessions, rate, pause_s, most, ahead, drafts
):
    asked = in_sessions(count, sessions, rate, seed, pause_s)
    table = constant_table(STEP_S, rates=(0.7, 0.4), steps_ahead=int(ahead), client_s=0.002)
    found = run(asked, table, limits(max_requests=most, kv_blocks=40), Fixed(drafts), seed)
    assert np.isfinite(found.finish_s).all()
    assert found.whole.emitted == asked.output_tokens.sum()
    before = asked.before
    follows = before >= 0
    expected = asked.arrival_s.copy()
    sent_s = found.finish_s[before] + asked.pause_s
    expected[follows] = np.maximum(expected, sent_s)[follows]
    np.testing.assert_allclose(found.arrival_s, expected)
    assert (found.first_token_s > found.arrival_s).all()


def test_sessions_of_one_request_change_nothing():
    table = constant_table(STEP_S, rates=(0.7,))
    asked = open_loop(30.0, Lengths(prompt_tokens=30, output_tokens=20), count=300)
    alone = replace(asked, session=np.arange(300))
    found, other = (run(each, table, limits(max_requests=8), Fixed(1)) for each in (asked, alone))
    np.testing.assert_array_equal(found.finish_s, other.finish_s)


def test_one_session_is_served_one_after_the_other():
    asked = requests([0.0, 0.0, 0.0], prompt=[4, 4, 4], output=[3, 2, 1])
    asked = replace(asked, session=np.zeros(3, dtype=np.int64), pause_s=np.array([9.0, 1.0, 0.0]))
    found = run(asked, constant_table(STEP_S), limits(max_requests=4), Fixed(0))
    assert found.finish_s.tolist() == pytest.approx([0.03, 1.05, 1.06])


def test_a_session_finds_what_it_said_before_and_its_first_request_nothing():
    asked = requests([0.0, 0.0, 0.0], prompt=[100, 300, 300], output=[20, 2, 2])
    asked = replace(asked, session=np.zeros(3, dtype=np.int64))
    computed = [
        run(asked, constant_table(STEP_S), limits(prefix_hit_rate=0.9, shares_prefix=kind), Fixed(0))
        for kind in (False, True)
    ]
    assert computed[0].whole.prompt_tokens == 100 + (300 - 120) + (300 - 270)
    assert computed[1].whole.prompt_tokens == 10 + 30 + 30  # one text of all requests


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
    assert step_limits(scenario.runtime, scenario.gpu) == expected


@pytest.mark.parametrize(("runtime", "each"), [("tensorrt-llm", 8), ("sglang", 1)])
def test_gpus_that_split_attention_have_limits_of_their_own_where_the_engine_says_so(runtime, each):
    split = Scenario(gpu="b200", model="deepseek-r1", runtime=runtime, tp=8, dp_attention=True, drafter="mtp")
    whole = step_limits(split.runtime, split.gpu)
    assert step_limits(split.runtime, split.gpu, schedulers=8) == (each * whole[0], each * whole[1])
    assert limits_of(split, None).token_budget == each * whole[1]


def test_the_limits_of_a_run_are_printed_with_whose_they_are():
    scenario = Scenario(gpu="l40s", model="llama-3.1-8b", runtime="vllm", drafter="eagle3")
    for asked, most in (({}, 256), ({"max_num_seqs": 64}, 64)):
        facts = server_facts(load_test(scenario, policies=("none",), requests=20, **asked))
        told = next(fact.text for fact in facts if fact.label == "Server")
        assert f"{most} requests" in told
        assert ("vllm" in told) is not bool(asked)


@pytest.mark.parametrize("model", ["gemma-3-27b", "gpt-oss-20b", "llama-3.1-8b", "mistral-7b"])
@pytest.mark.parametrize("length", [2048, 16384, 30000])
def test_load_holds_as_many_requests_as_a_sweep_fits(model, length):
    scenario = Scenario(gpu="h100-sxm", model=model, runtime="vllm", drafter="ngram", acceptance=0.5)
    found = limits_of(scenario, None, LoadArguments(max_num_seqs=16, max_num_batched_tokens=16))
    swept = int(price(scenario, [1], [length], ()).surface.max_batch[0, 0])
    # a sweep's activations are those of its own batch, a block is the last one's rounding
    assert found.kv_blocks / found.blocks_of(length) == pytest.approx(swept, rel=0.03, abs=1.0)


def test_each_gpu_keeps_the_cache_of_its_own_requests():
    """DeepSeek-R1 on eight H200s: as many requests as a sweep fits, none longer than one GPU's cache."""
    length = 131_072
    scenario = Scenario(gpu="h200-sxm", model="deepseek-r1", runtime="sglang", drafter="mtp", tp=8, ep=8,
                        dp_attention=True)  # fmt: skip
    found = limits_of(scenario, None, LoadArguments(max_num_seqs=64, max_num_batched_tokens=64))
    swept = int(price(scenario, [1], [length], ()).surface.max_batch[0, 0])
    assert swept == 32
    each = found.blocks_of(length)
    fits = [n for n in range(1, 65) if n * each <= found.kv_blocks_for(n)]
    assert fits == list(range(1, swept + 1))
    assert length < found.longest_request(0) <= found.own_kv_tokens == found.kv_tokens / 8


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
    a_block = float(np.diff(request_bytes(scenario.shard, np.array([0, 16])))[0])
    assert found.kv_blocks * a_block / 2**30 == pytest.approx(logged_gib, rel=0.012)


def test_more_requests_in_a_step_leave_less_cache():
    """The profile run draws for all of them: 38.8 bytes a logit, of which the widest step hides the first."""
    scenario = Scenario(gpu="h100-sxm", model="llama-3.1-8b", runtime="vllm-0.11", drafter="eagle3")
    few, many, most = (
        limits_of(scenario, None, LoadArguments(max_num_seqs=n)).kv_tokens for n in (16, 512, 1024)
    )
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
    three, given, computed, tiers, none, any_number = test.servers
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
    shared, own = (SchedulerLimits(**given, shares_prefix=kind) for kind in (True, False))
    assert (shared.found_tokens(640), shared.shared_blocks(640), own.shared_blocks(640)) == (480, 30, 0)
    assert shared.found_tokens(1) == 0  # a token at least is computed
