"""Operator rows: what is read, what is refused, and how rows become operators."""

from pathlib import Path
from typing import get_args

import numpy as np
import pandas as pd
import pytest
from asking import run
from hypothesis import given
from hypothesis import strategies as st
from one_line import one_line

from medusa_sim.errors import DataError
from medusa_sim.operators.attention import Attention
from medusa_sim.operators.collective import Collective, CollectiveKind
from medusa_sim.operators.columns import KINDS, REQUIRED_COLUMNS
from medusa_sim.operators.dispatch import Dispatch, DispatchKind
from medusa_sim.operators.elementwise import Elementwise, ElementwiseKind
from medusa_sim.operators.experts import Experts
from medusa_sim.operators.gemm import Gemm
from medusa_sim.operators.recurrent import Recurrent
from medusa_sim.operators.table import check_rows, operators_of, read_rows
from medusa_sim.units import FORMATS

HEADER = "op,m,n,k,batch,q_len,kv_len,heads,kv_heads,head_dim,dtype,time_us"
GOOD = [
    "mlp_up_proj,8,4096,1024,,,,,,,fp16,12.5",
    "decode_attention,,,,4,1,2048,32,8,128,bf16,20",
    "input_layernorm,64,4096,,,,,,,,fp16,4",
    "qk,,,,16,64,32,52,52,128,fp16,80",
    "gemm,8,4096,1024,,,,,,,fp8,9",
]


def write(folder: Path, lines: list[str], header: str = HEADER) -> Path:
    path = folder / "ops.csv"
    path.write_text("\n".join([header, *lines]) + "\n", encoding="utf-8")
    return path


def test_rows_are_grouped_by_kind_and_dtype(tmp_path):
    frame = read_rows(write(tmp_path, GOOD), need_time=True)
    groups = operators_of(frame)
    assert sorted(int(i) for index, _ in groups for i in index) == [0, 1, 2, 3, 4]
    by_first_row = {int(index[0]): operator for index, operator in groups}
    assert isinstance(by_first_row[0], Gemm)
    assert isinstance(by_first_row[1], Attention)
    assert by_first_row[1].kind == "decode_attention"
    assert isinstance(by_first_row[2], Elementwise)
    assert by_first_row[2].kind == "rms_norm"
    assert by_first_row[4].dtype == "fp8"
    np.testing.assert_array_equal(by_first_row[3].q_len, [64.0])


def test_unknown_columns_and_blank_text_survive(tmp_path):
    path = write(tmp_path, [line + ",A100,kept" for line in GOOD], HEADER + ",gpu,note")
    frame = read_rows(path)
    assert list(frame["note"]) == ["kept"] * len(GOOD)
    assert list(frame["gpu"]) == ["A100"] * len(GOOD)


def test_parquet_reads_as_csv_does(tmp_path):
    frame = read_rows(write(tmp_path, GOOD))
    stored = tmp_path / "ops.parquet"
    frame.to_parquet(stored)
    pd.testing.assert_frame_equal(read_rows(stored), frame)


def test_time_is_optional_unless_needed(tmp_path):
    path = write(tmp_path, [line.rsplit(",", 1)[0] for line in GOOD], HEADER.removesuffix(",time_us"))
    assert "time_us" not in read_rows(path)
    with pytest.raises(DataError, match=r"missing column.*time_us"):
        read_rows(path, need_time=True)


@pytest.mark.parametrize("column", REQUIRED_COLUMNS)
def test_a_missing_column_is_named(tmp_path, column):
    frame = read_rows(write(tmp_path, GOOD)).drop(columns=column)
    with pytest.raises(DataError, match=rf"t\.csv.*missing column.* {column}\b"):
        check_rows(frame, "t.csv")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("gemm,eight,4096,1024,,,,,,,fp16,1", "row 6, column m: given 'eight'"),
        ("gemm,-8,4096,1024,,,,,,,fp16,1", "row 6, column m: given '-8'"),
        ("gemm,0,4096,1024,,,,,,,fp16,1", "row 6, column m: given '0'"),
        ("gemm,1.5,4096,1024,,,,,,,fp16,1", "row 6, column m: given '1.5'"),
        ("gemm,inf,4096,1024,,,,,,,fp16,1", "row 6, column m: given 'inf'"),
        ("gemm,1e15,4096,1024,,,,,,,fp16,1", "row 6, column m: given '1e15'"),
        ("gemm,8,4096,1024,,,,,,,fp16,-3", "row 6, column time_us: given '-3'"),
        ("gemm,8,4096,1024,,,,,,,fp17,1", "row 6, column dtype: unknown dtype 'fp17'; did you mean 'fp16'"),
        ("gemm,8,4096,1024,,,,,,,,1", "row 6, column dtype: given 'blank'"),
        ("gemm,8,4096,nan,,,,,,,fp16,1", "row 6, column op: unknown operator 'gemm'.*given: m, n"),
        (
            "rmsnorm,8,4096,,,,,,,,fp16,1",
            "row 6, column op: unknown operator 'rmsnorm'; did you mean 'rms_norm'",
        ),
        ("rms_norm,8,,,,,,,,,fp16,1", "row 6, column n: given 'blank'"),
        ("decode_attention,,,,4,1,,32,8,128,bf16,1", "row 6, column kv_len: given 'blank'"),
        ("decode_attention,,,,4,1,9,32,5,128,bf16,1", "row 6, column kv_heads: given '5 with heads 32'"),
        ("decode_attention,,,,4,2,9,32,8,128,bf16,1", "row 6, column q_len: given '2'.*verify_attention"),
        ("verify_attention,,,,4,9,8,32,8,128,bf16,1", "row 6, column kv_len: given '8 with q_len 9'"),
    ],
)
def test_a_wrong_cell_is_one_line_with_its_place(tmp_path, line, message):
    with one_line(DataError, "ops.csv", match=message):
        read_rows(write(tmp_path, [*GOOD, line]))


def test_text_in_a_parquet_number_column_is_refused(tmp_path):
    frame = read_rows(write(tmp_path, GOOD)).astype({"m": object})
    frame.loc[2, "m"] = "many"
    with pytest.raises(DataError, match="row 3, column m: given 'many'"):
        check_rows(frame, "t.parquet")


@pytest.mark.parametrize(("name", "content"), [("a.csv", ""), ("a.csv", HEADER + "\n"), ("a.txt", HEADER)])
def test_files_without_rows_are_refused(tmp_path, name, content):
    path = tmp_path / name
    path.write_text(content, encoding="utf-8")
    with pytest.raises(DataError, match=name.replace(".", r"\.")):
        read_rows(path)


def test_missing_files_and_broken_parquet_are_refused(tmp_path):
    with pytest.raises(DataError, match="no such file"):
        read_rows(tmp_path / "none.csv")
    with pytest.raises(DataError, match="is a folder"):
        read_rows(tmp_path)
    broken = tmp_path / "broken.parquet"
    broken.write_bytes(b"not parquet")
    with pytest.raises(DataError, match="cannot be read"):
        read_rows(broken)
    twice = write(tmp_path, [line + ",8" for line in GOOD], HEADER + ",m")
    with pytest.raises(DataError, match="m given twice"):
        read_rows(twice)
    ragged = write(tmp_path, [GOOD[0] + ",1,2,3", GOOD[1]])
    with pytest.raises(DataError):
        read_rows(ragged)


def test_a_linear_layer_may_have_any_name_and_aliases_are_elementwise_kinds(tmp_path):
    frame = read_rows(write(tmp_path, ["add,8,4096,1024,,,,,,,fp16,1", "add,8,4096,,,,,,,,fp16,1"]))
    kinds = {type(operator).__name__ for _, operator in operators_of(frame)}
    assert kinds == {"Gemm", "Elementwise"}
    assert set(KINDS.values()) >= set(get_args(ElementwiseKind))


@pytest.mark.parametrize(
    ("p10", "p90", "told"),
    [("x", "9", "column p10_us: given 'x'"), ("5", "9", "column p10_us.*at most time_us = 4"),
     ("3", "3.5", "column p90_us.*at least time_us = 4"), ("nan", "", None), ("4", "4", None)],
)  # fmt: skip
def test_a_spread_encloses_its_time(tmp_path, p10, p90, told):
    header = "op,m,n,k,dtype,time_us,p10_us,p90_us"
    path = write(tmp_path, [f"up,1,8,8,fp16,4,{p10},{p90}"], header)
    if told is not None:
        with pytest.raises(DataError, match=told):
            read_rows(path, need_time=True)
        return
    rows = read_rows(path, need_time=True)
    assert (rows["p10_us"].iloc[0], rows["p90_us"].iloc[0]) == (4.0, 4.0)


def test_tables_of_verification_kernels_are_read_as_they_are(tmp_path):
    """Their heads are `q_heads`, their engine has a column of another name, and they name no operator."""
    header = "engine_or_library,kernel,dtype,kv_dtype,q_heads,kv_heads,head_dim,batch,q_len,kv_len,value_us"
    lines = [
        "vllm-flash-attn,num_splits forced to 1,bf16,fp8_e4m3,32,8,128.0,1,8,4096,9",
        "vllm-flash-attn,split-KV,bf16,bf16,32,8,128.0,1,1,4096,9",
        "FlashMLA,flash_mla_with_kvcache,bf16,bf16,16,1,576.0,128,2,4096,218",
    ]
    frame = read_rows(write(tmp_path, lines, header))
    assert frame["op"].tolist() == ["verify_attention", "decode_attention", "mla_decode"]
    found = {operator.kind: operator for _, operator in operators_of(frame, by=("engine", "kernel"))}
    assert found["verify_attention"].stored_dtype == "fp8"
    assert found["decode_attention"].stored_dtype == "bf16"


MOE_HEADER = "op,engine,kernel,dtype,tokens,hidden,inter,topk,experts,tp,ep,distribution,gated"
MOE_ROWS = (
    "moe,sglang,triton,fp8_block,16,2048,768,8,128,2,1,balanced,True",
    "moe,vllm,triton,bfloat16,16,2048,768,8,128,1,1,power_law_1.2,True",
    "moe,vllm,triton,int4_wo,1,2048,768,8,128,1,4,balanced,False",
)


def moe_csv(folder: Path, rows: tuple[str, ...] = MOE_ROWS, header: str = MOE_HEADER) -> Path:
    return write(folder, list(rows), header)


def experts(**sizes: object) -> Experts:
    given: dict[str, object] = {"tokens": 16, "hidden": 2048, "inter": 768, "experts": 128, "topk": 8,
                                "local_experts": 128, "hit": 80.0, "rows": 128.0}  # fmt: skip
    return Experts(name="moe", dtype="bf16", **given | sizes)  # sizes by name


def test_columns_of_experts_become_their_operator(tmp_path):
    groups = operators_of(read_rows(moe_csv(tmp_path)), by=("engine", "kernel"))
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
    rows = tuple(f"{row},17.5,90" for row in MOE_ROWS)
    frame = read_rows(moe_csv(tmp_path, rows, MOE_HEADER + ",local_experts_hit,local_rows"))
    for _, operator in operators_of(frame):
        assert isinstance(operator, Experts)
        assert (operator.hit, operator.rows) == (17.5, 90.0)


def test_rows_are_padded_to_whole_tiles_as_counted_and_as_expected_elsewhere():
    counted = experts(padded16=1300.0, padded64=5200.0, padded128=10400.0)
    assert counted.padded_rows(16) == 1300.0
    # 80 experts for 128 rows, each with 1.6 on average: 80 t / (1 - (1 - 1 / 1.6)^t); half way, in powers of
    # two, the share by which tiles of 16 and of 64 differ from that
    spread = {tile: 80 * tile / (1 - 0.375**tile) for tile in (16, 32, 64)}
    between = spread[32] * np.sqrt(1300 / spread[16] * 5200 / spread[64])
    assert counted.padded_rows(32) == pytest.approx(between)
    assert [experts().padded_rows(tile) for tile in spread] == pytest.approx(list(spread.values()))
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
    frame = pd.read_csv(moe_csv(tmp_path)).assign(**{"local_experts_hit": 2.0, **change})
    with one_line(DataError, match=message):
        check_rows(frame, "moe.csv")


def test_a_missing_column_of_experts_is_named(tmp_path):
    frame = pd.read_csv(moe_csv(tmp_path)).drop(columns="hidden")
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


def test_a_combination_adds_every_copy_of_a_token_and_a_dispatch_nothing():
    # 2 of 4 ranks by chance: 4 (1 - (3 / 4)^2) = 1.75 copies of 8 tokens of 7,168 values in bf16
    assert float(dispatch("combine", 4, 2, 8).flops) == pytest.approx(8 * 1.75 * 7168)
    assert float(dispatch("dispatch", 4, 2, 8).flops) == 0.0
    assert float(dispatch("combine", 4, 2, 8).bytes) == pytest.approx(2 * 2 * 8 * 1.75 * 7168)


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
            "op": ["dispatch", "combine", "dispatch"],
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
    found = [operator for _, operator in operators_of(checked)]
    assert {operator.form for operator in found} == {
        "dispatch_nvfp4", "combine_low_precision_bf16", "prepare_bf16",
    }  # fmt: skip
    assert all((operator.sizes["nodes"] == 1).all() for operator in found)


@pytest.mark.parametrize("time_us", ["1e-310", "5e-324", "1e-9", "0", "-1", "1e400", "inf"])
def test_a_time_that_no_kernel_takes_is_refused_before_it_divides(tmp_path, time_us):
    """Errors relative to it would be infinite."""
    path = write(tmp_path, [*GOOD, f"gemm,8,4096,1024,,,,,,,fp16,{time_us}"])
    with one_line(DataError) as caught:
        read_rows(path, need_time=True)
    assert "microseconds from 0.001 to" in str(caught.value)
    done = run("validate", "rows", path, "--gpu", "a100-80gb-pcie")
    assert done.exit_code == 1
    assert done.stderr.count("\n") == 1


def test_experts_without_a_number_of_gpus_are_whole(tmp_path):
    frame = read_rows(moe_csv(tmp_path)).drop(columns=["tp", "ep"])
    (_, first), *_ = operators_of(frame.iloc[:1], by=("engine", "kernel"))
    assert (first.inter, first.local_experts) == (frame["inter"].iloc[0], frame["experts"].iloc[0])


def test_a_column_that_is_not_there_is_shown_with_the_first_row_that_needs_it(tmp_path):
    path = tmp_path / "ops.csv"
    path.write_text(
        "op,m,batch,q_len,kv_len,heads,kv_heads,head_dim,dtype,time_us\n"
        "decode_attention,,4,1,9,32,8,128,bf16,1\nrms_norm,8,,,,,,,fp16,1\nrms_norm,9,,,,,,,fp16,1\n"
    )
    with pytest.raises(DataError, match=r"missing column n, which .*row 2 needs"):
        read_rows(path)


@pytest.mark.parametrize(("kind", "engine", "dtype"), [
    ("gdn", "trtllm", "bf16"), ("gdn", "vllm", "fp32"), ("gdn", "another", "fp32"),
    ("mamba2", "trtllm", "fp32"),
])  # fmt: skip
def test_states_have_the_dtype_that_the_engine_keeps(kind, engine, dtype):
    made = Recurrent.row_fields(kind, FORMATS["bf16"], {}, {"engine": [engine, "vllm"]})
    assert made == {"state_dtype": dtype}
