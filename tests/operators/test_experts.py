"""Layers of experts and what GPUs send each other: counts, padded rows, rows of tables recorded elsewhere."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from one_line import one_line

from medusa_sim.errors import DataError
from medusa_sim.operators.experts import Collective, CollectiveKind, Dispatch, DispatchKind, Experts
from medusa_sim.operators.table import check_rows, operators_of, read_rows

HEADER = "engine,kernel,dtype,tokens,hidden,inter,topk,experts,tp,ep,distribution,gated"
ROWS = (
    "sglang,triton,fp8_block,16,2048,768,8,128,2,1,balanced,True",
    "vllm,triton,bfloat16,16,2048,768,8,128,1,1,power_law_1.2,True",
    "vllm,triton,int4_wo,1,2048,768,8,128,1,4,balanced,False",
)


def write(folder: Path, rows: tuple[str, ...] = ROWS, header: str = HEADER) -> Path:
    path = folder / "moe.csv"
    path.write_text("\n".join([header, *rows]) + "\n", encoding="utf-8")
    return path


def experts(**sizes: object) -> Experts:
    given: dict[str, object] = {"tokens": 16, "hidden": 2048, "inter": 768, "experts": 128, "topk": 8,
                                "local_experts": 128, "hit": 80.0, "rows": 128.0}  # fmt: skip
    return Experts(name="moe", dtype="bf16", **given | sizes)  # sizes by name


def test_a_table_without_op_is_told_by_its_columns(tmp_path):
    groups = operators_of(read_rows(write(tmp_path)), by=("engine", "kernel"))
    by_row = {int(index[0]): operator for index, operator in groups}
    assert [by_row[row].form for row in range(3)] == ["fp8_block", "bf16", "int4"]
    first, second, third = (by_row[row] for row in range(3))
    assert isinstance(first, Experts)
    assert isinstance(second, Experts)
    assert isinstance(third, Experts)
    assert (first.inter, first.hit, first.rows) == (384.0, 128.0, 128.0)  # width over tp; no overlap
    assert second.hit == pytest.approx(128 * (1 - (1 - 8 / 128) ** 16))  # tokens that choose alone
    assert (third.local_experts, third.hit, third.gated) == (32.0, 2.0, False)


def test_a_union_that_is_known_is_taken(tmp_path):
    rows = tuple(f"{row},17.5,90" for row in ROWS)
    frame = read_rows(write(tmp_path, rows, HEADER + ",local_experts_hit,local_rows"))
    for _, operator in operators_of(frame):
        assert isinstance(operator, Experts)
        assert (operator.hit, operator.rows) == (17.5, 90.0)


def test_weights_are_read_once_for_each_expert_that_is_woken():
    few, many = experts(hit=10), experts(hit=20)
    assert many.weight_bytes == 2 * few.weight_bytes == 2 * (2.0 * 10 * 3 * 2048 * 768)
    assert few.flops == many.flops == 2.0 * 128 * 3 * 2048 * 768
    assert experts(gated=False).flops == pytest.approx(2 / 3 * experts().flops)


def test_rows_are_padded_to_whole_tiles_as_counted_and_as_expected_elsewhere():
    counted = experts(padded16=1300.0, padded64=5200.0, padded128=10400.0)
    assert counted.padded_rows(16) == 1300.0
    assert 1300.0 < counted.padded_rows(32) < 5200.0
    for tile in (8, 16, 32, 64, 128, 256):
        lone = experts(hit=128.0).padded_rows(tile)
        assert lone == pytest.approx(128 * tile)  # one row an expert: a tile each
        expected = experts().padded_rows(tile)
        assert max(128.0, 80.0 * tile) <= expected <= 128.0 + 80.0 * tile
    assert np.all(np.diff([float(experts(rows=rows).padded_rows(64)) for rows in (80, 200, 900)]) > 0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"topk": 200}, "column topk: given '200 with experts 128' .*at most experts"),
        ({"ep": 3}, "column ep: given '3 with experts 128'"),
        ({"tp": 5}, "column tp: given '5 with inter 768'"),
        ({"tokens": -1}, "column tokens: given '-1'"),
        ({"dtype": "fp9"}, "column dtype: unknown dtype 'fp9'"),
        ({"inter": np.nan}, "column inter: given 'blank'"),
    ],
)
def test_rows_that_contradict_themselves_are_one_line(tmp_path, change, message):
    frame = pd.read_csv(write(tmp_path)).assign(**{"local_experts_hit": 2.0, **change})
    with one_line(DataError, match=message):
        check_rows(frame, "moe.csv")


def test_a_missing_column_is_named(tmp_path):
    frame = pd.read_csv(write(tmp_path)).assign(op="moe").drop(columns="hidden")
    with pytest.raises(DataError, match=r"missing column hidden, which moe\.csv, row 1 needs"):
        check_rows(frame, "moe.csv")


def collective(kind: CollectiveKind, message: float, ranks: int) -> Collective:
    return Collective(name=kind, kind=kind, dtype="bf16", message_bytes=message, ranks=ranks)


def dispatch(kind: DispatchKind, ranks: int, topk: int = 8, tokens: int = 64) -> Dispatch:
    return Dispatch(
        name=kind, kind=kind, dtype="bf16", tokens=tokens, hidden=7168, topk=topk, experts=256, ranks=ranks
    )


@given(message=st.integers(2, 10**9), ranks=st.integers(1, 72))
def test_an_all_reduce_is_a_reduce_scatter_and_an_all_gather(message, ranks):
    sent = [collective(kind, message, ranks).link_bytes for kind in ("reduce_scatter", "all_gather")]
    assert collective("all_reduce", message, ranks).link_bytes == pytest.approx(sum(sent))
    assert sum(sent) <= 2 * message
    assert collective("all_to_all", message, 1).link_bytes == 0


@given(ranks=st.integers(1, 64), topk=st.integers(1, 16))
def test_a_token_goes_at_most_once_to_each_rank(ranks, topk):
    copies = dispatch("dispatch", ranks, topk).copies
    assert 1 - 1e-9 <= copies <= min(ranks, topk) + 1e-9
    assert dispatch("dispatch", 1, topk).link_bytes == 0


def test_rows_of_recorded_tables_are_read():
    rows = [
        {"op": op, "dtype": "half", "engine": "nccl", "version": version, "ranks": 8, "bytes": 2.0**30}
        for op, version in (("alltoall", "1"), ("all_reduce", "1"), ("all_reduce", "2"))
    ]
    groups = operators_of(check_rows(pd.DataFrame(rows), "collectives"))
    assert [operator.kind for _, operator in groups] == ["all_reduce", "all_reduce", "all_to_all"]
    forms = [operator.forms[0] for _, operator in groups if isinstance(operator, Collective)]
    assert forms == ["all_reduce_fp16-1", "all_reduce_fp16-2", "all_to_all_fp16-1"]


def test_rows_of_dispatch_are_read_with_their_backend_and_without_dtype():
    frame = pd.DataFrame(
        {
            "engine": "trtllm",
            "backend": "NVLinkTwoSided",
            "phase": ["alltoall_dispatch", "alltoall_combine_low_precision", "alltoall_prepare"],
            "dtype": ["nvfp4", "", "default"],
            "ep": 4,
            "nodes": 0,
            "sms": 0,
            "hidden": 7168,
            "topk": 8,
            "experts": 256,
            "tokens": 16,
        }
    )
    checked = check_rows(frame, "dispatch")
    assert checked["kernel"].unique().tolist() == ["NVLinkTwoSided"]
    assert checked["op"].tolist() == ["dispatch", "combine", "dispatch"]
    forms = {operator.form for _, operator in operators_of(checked)}
    assert forms == {"dispatch_nvfp4", "combine_low_precision_bf16", "prepare_bf16"}
