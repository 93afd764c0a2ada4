"""Layers of experts through `time` and `validate`: the kernel that a row names, wrong rows in one line."""

from __future__ import annotations

import io
from pathlib import Path

import pandas as pd
import pytest
from click.testing import CliRunner, Result

from medusa_sim.cli import cli

COLUMNS = (
    "engine,kernel,dtype,tokens,hidden,inter,topk,experts,tp,ep,distribution,local_experts_hit,local_rows"
)
ROWS = (
    "sglang,sglang_fused_moe_triton,fp8_block,16,2048,768,8,128,1,1,balanced,128,128",
    "vllm,,bfloat16,16,2048,768,8,128,1,1,power_law_1.2,70.5,128",
    "sglang,brand_new_kernel,bfloat16,16,2048,768,8,128,1,1,power_law_1.2,70.5,128",
    "nobody,,int4_wo,16,2048,768,8,128,1,1,power_law_1.2,70.5,128",
)


def run(*args: str) -> Result:
    return CliRunner().invoke(cli, list(args), catch_exceptions=False)


def write(folder: Path, rows: tuple[str, ...] = ROWS, more: str = "", cell: str = "") -> str:
    path = folder / "moe.csv"
    path.write_text("\n".join([COLUMNS + more, *(row + cell for row in rows)]) + "\n")
    return str(path)


def test_each_row_is_timed_by_the_kernel_it_names_or_the_nearest_which_is_said(tmp_path: Path) -> None:
    result = run(
        "time", "--gpu", "h100-sxm", "--ops", write(tmp_path, more=",op", cell=",moe"), "--runtime", "kernel",
        "--cache", "as-measured", "--format", "csv",
    )  # fmt: skip
    assert result.exit_code == 0, result.stderr
    found = pd.read_csv(io.StringIO(result.stdout))
    assert list(found["kernels"]) == ["sglang:fp8_block", "vllm:bf16", "sglang:bf16", "sglang:int4"]
    assert list(found["source"]) == ["calibrated", "calibrated", "borrowed", "borrowed"]
    assert list(found["tokens"]) == [16] * 4
    assert (found["low_us"] <= found["predicted_us"]).all()
    assert (found["predicted_us"] <= found["high_us"]).all()


def test_validate_reads_a_table_without_op_and_tells_kernels_apart(tmp_path: Path) -> None:
    path = write(tmp_path, more=",time_us", cell=",200")
    result = run("validate", "--gpu", "h100-sxm", "--measured", path, "--cache", "as-measured",
                 "--format", "csv")  # fmt: skip
    assert result.exit_code == 0, result.stderr
    found = pd.read_csv(io.StringIO(result.stdout))
    assert set(found["op"]) == {"moe"}
    assert set(found["kernels"]) == {"sglang:fp8_block", "vllm:bf16", "sglang:bf16", "sglang:int4"}


@pytest.mark.parametrize(
    ("gpu", "row", "told"),
    [
        ("h100-sxm", ROWS[0].replace(",8,128,", ",300,128,"), "column topk: given '300 with experts 128'"),
        ("h100-sxm", ROWS[0].replace("fp8_block", "fp9"), "unknown dtype 'fp9'; did you mean 'fp8'"),
        ("h100-sxm", ROWS[0].replace(",16,", ",-16,"), "column tokens: given '-16'"),
        ("bare", ROWS[1], "bare"),
    ],
)
@pytest.mark.usefixtures("bare_gpu")
def test_wrong_rows_are_one_line(tmp_path: Path, gpu: str, row: str, told: str) -> None:
    result = CliRunner().invoke(cli, ["time", "--gpu", gpu, "--ops", write(tmp_path, (row,))])
    assert result.exit_code == 1
    assert told in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
