"""Communication between GPUs: what crosses the link, and rows of recorded tables."""

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from medusa_sim.operators.experts import Collective, CollectiveKind, Dispatch, DispatchKind
from medusa_sim.operators.table import check_rows, operators_of


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
