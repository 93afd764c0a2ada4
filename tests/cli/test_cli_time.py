"""`time`, `calibrate`, `validate`, `specs`, `roofline`: rows in, predictions and parameters out."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from asking import answered, document, frame, run

from medusa_sim.engines.runtime import load_runtime
from medusa_sim.gpus.gpu_names import gpu_names
from medusa_sim.models.named import model_names

HEADER = "op,m,n,k,batch,q_len,kv_len,heads,kv_heads,head_dim,dtype,time_us,source,remark"
ROWS = (
    "mlp_up_proj,64,11008,4096,,,,,,,fp16,70,bench,first",
    "decode_attention,,,,8,1,1024,32,32,128,fp16,90.5,bench,",
    "input_layernorm,64,4096,,,,,,,,fp16,4,bench,norm",
    "qk,,,,8,64,1024,32,32,128,fp16,120,bench,",
    "mlp_up_proj,1,11008,4096,,,,,,,fp16,60,bench,last",
)


@pytest.fixture
def ops(tmp_path: Path) -> Path:
    path = tmp_path / "ops.csv"
    path.write_text("\n".join([HEADER, *ROWS]) + "\n")
    return path


def test_every_row_and_column_is_kept_in_order(ops):
    found = frame("time", "--gpu", "a100-80gb-pcie", "--ops", ops, "--latency", "roofline")
    given = pd.read_csv(ops)
    expected = [*given.columns, "predicted_us", "low_us", "high_us", "bound", "source"]
    expected[expected.index("source")] = "given_source"
    assert list(found.columns) == expected
    for column in given:
        kept = found["given_source" if column == "source" else column]
        pd.testing.assert_series_equal(kept, given[column], check_names=False, check_dtype=False)
    assert set(found["source"]) == {"roofline"}
    assert (found["low_us"] <= found["predicted_us"]).all()


def test_times_are_the_roofline_of_each_row(ops):
    found = frame("time", "--gpu", "a100-80gb-pcie", "--ops", ops, "--latency", "roofline")
    # 2 bytes x (n k + m (n + k)) over 1935 GB/s: memory-bound at 64 tokens and at 1
    for row, m in ((0, 64), (4, 1)):
        expected = 2 * (11008 * 4096 + m * (11008 + 4096)) / 1935e9 * 1e6
        assert found["predicted_us"][row] == pytest.approx(expected, rel=1e-12)
        assert found["bound"][row] == "memory"


def test_experts_are_timed_by_the_kernel_they_name_or_the_nearest_which_is_stated(tmp_path):
    sizes = "op,tokens,hidden,inter,topk,experts,tp,ep,distribution,local_experts_hit,local_rows"
    rows = (
        "sglang,sglang_fused_moe_triton,fp8_block,moe,16,2048,768,8,128,1,1,balanced,128,128",
        "vllm,,bfloat16,moe,16,2048,768,8,128,1,1,power_law_1.2,70.5,128",
        "sglang,brand_new_kernel,bfloat16,moe,16,2048,768,8,128,1,1,power_law_1.2,70.5,128",
        "nobody,,int4_wo,moe,16,2048,768,8,128,1,1,power_law_1.2,70.5,128",
    )
    path = tmp_path / "moe.csv"
    path.write_text(
        "\n".join([f"engine,kernel,dtype,{sizes},time_us", *(f"{row},200" for row in rows)]) + "\n"
    )
    asked = ("--gpu", "h100-sxm", "--runtime", "kernel", "--cache", "as-measured")
    found = frame("time", *asked, "--ops", path)
    assert list(found["kernels"]) == ["sglang:fp8_block", "vllm:bf16", "sglang:bf16", "sglang:int4"]
    assert list(found["source"]) == ["calibrated", "calibrated", "borrowed", "borrowed"]
    assert (found["low_us"] <= found["predicted_us"]).all()
    assert (found["predicted_us"] <= found["high_us"]).all()
    scored = frame("validate", "rows", *asked[:2], path, *asked[-2:])
    assert set(scored["kernels"]) == set(found["kernels"])


def test_a_host_bound_runtime_waits_for_its_host(ops):
    asked = ("time", "--gpu", "h100-sxm", "--ops", ops, "--latency", "roofline", "--runtime", "hf-eager")
    rows = document(*asked)["rows"]
    assert rows[2]["bound"] == "host"
    host_us = load_runtime("hf-eager").host_us_per_launch
    assert host_us < rows[2]["predicted_us"] < 1.01 * host_us


def test_validate_scores_by_operator_and_range(ops):
    rows = document("validate", "rows", ops, "--latency", "roofline")["rows"]
    linear = {row["size"]: row for row in rows if row["op"] == "linear"}
    assert linear["all"]["rows"] == 2
    assert linear["m 1..16"]["rows"] == 1
    predicted = [2 * (11008 * 4096 + m * (11008 + 4096)) / 1935e9 * 1e6 for m in (64, 1)]
    errors = [abs(p / t - 1) for p, t in zip(predicted, (70.0, 60.0), strict=True)]
    assert linear["all"]["mean"] == pytest.approx(np.mean(errors), rel=1e-9)
    assert linear["all"]["worst"] == pytest.approx(max(errors), rel=1e-9)
    assert linear["all"]["ratio"] == pytest.approx(abs(predicted[0] / predicted[1] / (70 / 60) - 1), rel=1e-9)
    assert {row["op"] for row in rows} == {"linear", "decode_attention", "rms_norm", "qk"}


def test_validate_fails_above_a_threshold_with_exit_3(ops):
    args = ("validate", "rows", "--latency", "roofline", str(ops), "--fail-above")
    result = run(*args, "5")
    assert result.exit_code == 3
    assert "is above 5 %" in result.stderr
    assert run(*args, "100").exit_code == 0
    for gate in ("nan", "inf", "0"):  # a gate that lets everything pass is none
        assert run(*args, gate).exit_code == 2


def test_regret_of_a_perfect_and_a_wrong_prediction():
    from medusa_sim.acceptance.profile import load_acceptance
    from medusa_sim.lab.validate.regrets import regrets

    m = np.unique(np.outer(range(1, 17), [1, 8, *range(16, 129, 8)]))
    true = 100.0 * np.ceil(m / 64)
    rows = pd.DataFrame(
        {
            "op": np.repeat(["up", "down"], m.size),
            "m": np.tile(m, 2),
            "n": 4096,
            "k": 4096,
            "given_source": "model",
        }
    )
    rows["time_us"] = np.tile(true, 2)
    rows["predicted_us"] = rows["time_us"]
    acceptance = load_acceptance("paper-fig21")
    perfect = regrets(rows, acceptance)
    assert perfect[0].mean == 0.0
    assert perfect[0].cases == 16
    rows["predicted_us"] = 1.0  # every count looks equally dear, so the largest is taken
    wrong = regrets(rows, acceptance)[0]
    # at batch 16, 128 candidates take 32 tiles where 1 to 4 candidates take one
    assert wrong.worst > 0.5
    assert wrong.worst_at.startswith("batch")


def test_calibrate_writes_what_time_then_uses(tmp_path):
    m = np.arange(1, 257, 4)
    rows = pd.concat(
        [
            pd.DataFrame({"op": "add", "m": m, "n": n, "time_us": 2.0 + 3 * 2 * m * n / 600e9 * 1e6})
            for n in (2048, 4096, 8192, 16384)
        ]
    )
    for column in ("k", "batch", "q_len", "kv_len", "heads", "kv_heads", "head_dim"):
        rows[column] = np.nan
    rows["dtype"] = "fp16"
    path = tmp_path / "rows.csv"
    rows.to_csv(path, index=False)
    folder = tmp_path / "data"
    common = ("--gpu", "a40", "--kernels", "mine", "--data-dir", str(folder))
    answered("calibrate", "rows", *common, path, "--dry-run")
    assert not folder.exists()
    fit = frame("calibrate", "rows", *common, path, "--source", "made up")
    assert set(fit["key"]) == {"residual"}
    assert [p.name for p in (folder / "hardware").iterdir()] == ["a40.toml"]
    found = frame("time", *common, "--ops", path, "--cache", "as-measured")
    error = np.mean(np.abs(found["predicted_us"] / found["time_us"] - 1))
    assert error == pytest.approx(fit["fit_error"][0], abs=1e-3)
    shown = run("specs", "a40", "--with-kernels", "--data-dir", str(folder), "--format", "csv").stdout
    assert "made up" in shown


def test_the_overview_names_everything_with_its_source():
    text = run("specs").stdout
    for name in (*gpu_names(), *model_names(), "cuda-graph", "paper-fig21"):
        assert name in text
    rows = frame("specs")
    assert set(rows["kind"]) == {"gpu", "model", "runtime", "acceptance", "price"}
    assert (rows["source"].str.len() > 5).all()
    text = run("specs", "a40").stdout
    assert "696.0 GB/s" in text
    assert "datasheet" in text


def test_roofline_points_lie_on_the_roof():
    rows = frame("roofline", "--latency", "roofline", "--batch", "1,16")
    assert set(rows["phase"]) == {"prefill", "decode", "verify"}
    intensity = rows["operational_intensity"]
    np.testing.assert_allclose(intensity, rows["flops"] / rows["bytes"], rtol=1e-12)
    np.testing.assert_allclose(rows["flops_per_s"], np.minimum(312e12, intensity * 1935e9), rtol=1e-9)


@pytest.mark.parametrize("suffix", ["png", "svg", "pdf"])
def test_roofline_is_drawn(suffix, tmp_path):
    path = tmp_path / f"roof.{suffix}"
    args = ("roofline", "--latency", "roofline", "--runtime", "paper", "--plot", str(path))
    assert run(*args).exit_code == 0
    first = path.read_bytes()
    assert run(*args).exit_code == 0
    assert path.read_bytes() == first
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


def test_each_file_is_scored_under_its_own_name(tmp_path):
    rows = {"norms": "rms_norm,{m},4096,,fp16,{t}", "layers": "gemm,{m},4096,4096,fp16,{t}"}
    for name, row in rows.items():
        lines = [row.format(m=m, t=20 + m) for m in (1, 8, 64)]
        (tmp_path / f"{name}.csv").write_text("\n".join(["op,m,n,k,dtype,time_us", *lines]) + "\n")
    files = [tmp_path / f"{name}.csv" for name in rows]
    told = answered("validate", "rows", "--gpu", "a40", *files).stdout
    norms, layers = told.split("layers.csv")
    assert "norms.csv" in norms
    assert "rms_norm" in norms
    assert "rms_norm" not in layers


@pytest.mark.parametrize(
    ("factor", "unit"), [(1e-3, "milliseconds"), (1e-6, "seconds"), (1e3, "nanoseconds")]
)
def test_times_in_another_unit_are_asked_about(tmp_path, factor, unit):
    (tmp_path / "rows.csv").write_text(
        f"op,m,n,k,dtype,time_us\ngemm,8192,11008,4096,fp16,{7000.0 * factor}\n"
    )
    words = ("validate", "rows", "--gpu", "a40", tmp_path / "rows.csv")
    assert answered(*words).stderr == f"rows.csv: time_us is microseconds; the times look like {unit}\n"


def test_a_file_without_a_kernel_is_left_out_and_the_others_are_judged(tmp_path):
    for dtype in ("nvfp4", "fp16"):
        line = f"op,m,n,k,dtype,time_us\ngemm,8,11008,4096,{dtype},150\n"
        (tmp_path / f"{dtype}.csv").write_text(line)
    words = ("validate", "rows", "--gpu", "a40", tmp_path / "nvfp4.csv")
    told = run(*words).stderr
    assert told.startswith("Error: gpu 'a40', kernel set 'sglang': no gemm kernel for 'nvfp4'")
    done = answered(*words, tmp_path / "fp16.csv")
    assert done.stderr == told.replace("Error: ", "left out: nvfp4.csv: ")
    assert done.stdout.startswith("fp16.csv")


def test_the_help_page_keeps_the_lines_of_its_table():
    lines = [line.strip() for line in run("time", "--help").output.splitlines()]
    assert "Kinds of rows (op), and their columns:" in lines
    assert not any("\\b" in line for line in lines)
