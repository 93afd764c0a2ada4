"""Trace files: public column names, and one line for what is none."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from one_line import one_line

from medusa_sim.errors import DataError, UsageError
from medusa_sim.load.limits import Limits
from medusa_sim.load.question import load_test
from medusa_sim.load.trace import read_trace
from medusa_sim.plan.scenario import Scenario
from medusa_sim.report.load_text import sessions_text

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
    assert found.said.tolist() == [0, 0, 13, 0, 35, 0]
    assert found.pause_s.tolist() == [0.0, 0.0, 0.5, 0.0, 0.0, 0.0]
    assert found.first(4).before.tolist() == [-1, -1, 0, -1]
    few = Limits(kv_blocks=1000, positions=56)  # the last two are too long
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
    first = test.point(test.served[0], None).first
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


def test_priorities_are_refused_by_name(tmp_path):
    table = pd.read_csv(written(tmp_path, GOOD))
    for priorities, refused in (([0, 0, 0], False), ([0, 2, 1], True)):
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
    model, card = Limits(kv_blocks=100, positions=16), Limits(kv_blocks=1, positions=100)
    with pytest.raises(UsageError, match=r"1 of 3 requests .* request 1 with 20 prompt .* 16 positions"):
        asked.fitting(model, 0, drop_long=False)
    with pytest.raises(UsageError, match="KV cache holds 16 tokens"):
        asked.fitting(card, 2, drop_long=False)
    left, dropped = asked.fitting(model, 0, drop_long=True)
    assert dropped == 1
    assert left.prompt_tokens.tolist() == [10, 5]
    with pytest.raises(UsageError, match="3 of 3"):
        asked.fitting(Limits(kv_blocks=100, positions=2), 0, drop_long=True)


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
