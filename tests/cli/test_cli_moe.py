"""Layers of experts through `time` and `validate`: the kernel that a row names, wrong rows in one line."""

from pathlib import Path

import pytest
from asking import frame, refused

COLUMNS = (
    "engine,kernel,dtype,tokens,hidden,inter,topk,experts,tp,ep,distribution,local_experts_hit,local_rows"
)
ROWS = (
    "sglang,sglang_fused_moe_triton,fp8_block,16,2048,768,8,128,1,1,balanced,128,128",
    "vllm,,bfloat16,16,2048,768,8,128,1,1,power_law_1.2,70.5,128",
    "sglang,brand_new_kernel,bfloat16,16,2048,768,8,128,1,1,power_law_1.2,70.5,128",
    "nobody,,int4_wo,16,2048,768,8,128,1,1,power_law_1.2,70.5,128",
)


def write(folder: Path, rows: tuple[str, ...] = ROWS, more: str = "", cell: str = "") -> str:
    path = folder / "moe.csv"
    path.write_text("\n".join([COLUMNS + more, *(row + cell for row in rows)]) + "\n")
    return str(path)


def test_each_row_is_timed_by_the_kernel_it_names_or_the_nearest_which_is_said(tmp_path):
    path = write(tmp_path, more=",op", cell=",moe")
    asked = "time --gpu h100-sxm --runtime kernel --cache as-measured --ops"
    found = frame(*asked.split(), path)
    assert list(found["kernels"]) == ["sglang:fp8_block", "vllm:bf16", "sglang:bf16", "sglang:int4"]
    assert list(found["source"]) == ["calibrated", "calibrated", "borrowed", "borrowed"]
    assert list(found["tokens"]) == [16] * 4
    assert (found["low_us"] <= found["predicted_us"]).all()
    assert (found["predicted_us"] <= found["high_us"]).all()


def test_validate_reads_a_table_without_op_and_tells_kernels_apart(tmp_path):
    path = write(tmp_path, more=",time_us", cell=",200")
    found = frame("validate", "--gpu", "h100-sxm", "--measured", path, "--cache", "as-measured")
    assert set(found["op"]) == {"moe"}
    assert set(found["kernels"]) == {"sglang:fp8_block", "vllm:bf16", "sglang:bf16", "sglang:int4"}


@pytest.mark.usefixtures("bare_gpu")
def test_a_card_without_kernels_of_experts_is_named(tmp_path):
    refused("bare", "time", "--gpu", "bare", "--ops", write(tmp_path, (ROWS[1],)), code=1)
