"""Rows of latent attention, collectives and dispatch through `predicted_rows`: whose kernel times them."""

import numpy as np
import pandas as pd
import pytest

from medusa_sim.errors import SpecError
from medusa_sim.latency.calibrated import CalibratedLatency
from medusa_sim.operators.experts import Collective
from medusa_sim.operators.table import check_rows
from medusa_sim.specs.gpu import load_gpu
from medusa_sim.specs.runtime import load_runtime
from medusa_sim.step.rows import predicted_rows
from medusa_sim.units import US_PER_S


def predicted(rows: list[dict[str, object]], gpu: str = "h100-sxm") -> pd.DataFrame:
    frame = check_rows(pd.DataFrame(rows), "rows")
    return predicted_rows(frame, load_gpu(gpu), load_runtime("kernel"), cold=False)


def latent(**columns: object) -> dict[str, object]:
    given = {"op": "mla_decode", "mla_dtype": "bfloat16", "kv_dtype": "bfloat16", "gemm_dtype": "none",
             "scope": "kernel", "heads": 16, "batch": 8, "q_len": 1, "kv_len": 4096}  # fmt: skip
    return given | columns


def test_the_engine_and_the_scope_choose_the_kernel_of_latent_attention():
    found = predicted(
        [
            latent(engine="sglang", kernel="flash_attention"),
            latent(engine="trtllm", kernel="default"),
            latent(engine="vllm", kernel="FLASH_ATTN_MLA", scope="module", gemm_dtype="bfloat16"),
            latent(engine="sglang", kernel="nobody's"),
        ]
    )
    places = [
        "sglang:decode_bf16",
        "trtllm:decode_bf16",
        "vllm:decode_bf16_module_bf16",
        "sglang:decode_bf16",
    ]
    assert found["kernels"].tolist() == places
    assert found["source"].tolist() == ["calibrated"] * 3 + ["borrowed"]
    assert found["predicted_us"].iloc[2] > 2 * found["predicted_us"].iloc[0]
    found = predicted([latent(engine="sglang", kernel="triton", kv_dtype="fp8")], "l40s")
    assert found["kernels"].tolist() == ["sglang:decode_bf16"]
    assert found["source"].tolist() == ["borrowed"]


def test_the_release_and_the_launch_choose_the_kernel_of_a_collective():
    row = {"op": "all_reduce", "dtype": "bfloat16", "engine": "sglang", "ranks": 4, "bytes": 65536}
    graph, eager = "SGLang_CustomAllReduce_graph", "SGLang_CustomAllReduce_eager"
    found = predicted(
        [
            row | {"kernel": graph, "version": "0.5.14"},
            row | {"kernel": graph, "version": "0.5.10"},
            row | {"kernel": eager, "version": "0.5.14"},
            row | {"kernel": graph, "version": "9.9"},
        ]
    )
    assert found["kernels"].iloc[0] == found["kernels"].iloc[3] == "sglang:all_reduce_bf16"
    assert found["kernels"].iloc[1] == "sglang:all_reduce_bf16-0.5.10"
    assert found["kernels"].iloc[2].endswith(f"@{eager}")
    newest, older, launched = found["predicted_us"].iloc[:3]
    assert newest < older < launched


def test_the_backend_chooses_the_kernel_of_dispatch():
    row = {"engine": "sglang", "ep": 8, "nodes": 1, "sms": 24, "hidden": 4096, "topk": 8, "experts": 256,
           "tokens": 64, "phase": "combine", "dtype": ""}  # fmt: skip
    found = predicted([row | {"backend": name} for name in ("deepep_ll", "deepep_normal")])
    assert found["kernels"].tolist() == ["sglang:combine_bf16", "sglang:combine_bf16@deepep_normal"]
    assert found["predicted_us"].iloc[0] < found["predicted_us"].iloc[1]


@pytest.mark.parametrize("gpu", ["a100-80gb-sxm", "h100-sxm", "h200-sxm", "b200", "gb200", "rtx-pro-6000"])
@pytest.mark.parametrize("kind", ["all_reduce", "all_gather", "reduce_scatter", "all_to_all"])
def test_shipped_collectives_lie_between_their_measured_ranks_and_above_the_link(gpu, kind):
    card = load_gpu(gpu)
    model = CalibratedLatency(card, "nccl")
    message = 2.0 ** np.arange(12, 31, 3)
    made = [
        Collective(name=kind, kind=kind, dtype="fp16", message_bytes=message, ranks=ranks)
        for ranks in (1, 2, 4)
    ]
    one, two, four = (model.time(operator).time_us for operator in made)
    assert (one == 0.0).all()
    ends = [0, 1, -2, -1]  # between them a library may change its algorithm at other sizes
    assert (four[ends] >= 0.95 * two[ends]).all()
    line_us = made[2].link_bytes / card.link_bandwidth_bytes_per_s * US_PER_S
    assert (four[-2:] >= line_us[-2:]).all()


def test_a_card_without_rows_of_its_link_is_refused_in_one_line(bare_gpu):
    row = {"op": "all_reduce", "dtype": "bf16", "ranks": 2, "bytes": 65536}
    with pytest.raises(SpecError, match=bare_gpu):
        predicted([row], bare_gpu)
