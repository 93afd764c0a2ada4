"""A fit of layers of experts finds the kernel that made the rows, and its file reads back."""

from pathlib import Path

import msgspec
import numpy as np
import pandas as pd
import pytest

from medusa_sim.calibrate.fit import UNFITTED, Rows, heldout_groups
from medusa_sim.calibrate.moe import TILES, rules_of
from medusa_sim.calibrate.rows import fitted_kernels, write_kernels
from medusa_sim.errors import DataError
from medusa_sim.latency.moe import experts_time
from medusa_sim.operators.experts import Experts
from medusa_sim.operators.table import check_rows, operators_of
from medusa_sim.specs.fitted import ExpertKernel
from medusa_sim.specs.gpu import Gpu, load_gpu

GPU = load_gpu("h100-sxm")
RULE = rules_of("bf16", GPU)[1]
TRUE = ExpertKernel(
    name="triton", ramp_us=25.0, expert_us=0.004, token_us=0.02, pair_us=0.0005, bandwidth_fraction=0.9,
    peak_fraction=0.7, activation_ratio=0.9, load_ratio=4.5, tile_k=150.0, memory_norm=2.0, step_norm=10.0,
    wave_rounding=0.5, contention=0.5, throttle=0.3, throttle_us=800.0, tiles=TILES,
    default_tiles=RULE.default_tiles, tuned=RULE.tuned, fit=UNFITTED,
)  # fmt: skip
MODELS = ((2048, 768, 128, 8), (6144, 2048, 256, 8), (4096, 14336, 8, 2), (4096, 1024, 512, 10))


def table() -> pd.DataFrame:
    """Rows of four models at two widths, without times."""
    tokens = (1, 2, 4, 8, 16, 64, 128, 160, 256, 512, 1024, 4096)
    rows = [
        {"engine": "sglang", "kernel": "triton", "dtype": "bfloat16", "tokens": count, "hidden": hidden,
         "inter": inter, "topk": topk, "experts": experts, "tp": tp, "distribution": kind, "suspect": ""}
        for hidden, inter, experts, topk in MODELS
        for tp in (1, 4)
        for kind in ("balanced", "power_law_1.2")
        for count in tokens
    ]  # fmt: skip
    return pd.DataFrame(rows)


@pytest.fixture(scope="module")
def frame() -> pd.DataFrame:
    found = check_rows(table().assign(time_us=1.0), "moe")
    for index, operator in operators_of(found):
        assert isinstance(operator, Experts)
        times = found["time_us"].to_numpy(copy=True)
        times[index] = experts_time(GPU, TRUE, operator, cold=False).time_us
        found["time_us"] = times
    return found


def test_the_kernel_is_found_with_its_rule_and_reads_back_and_what_is_left_out_is_said(frame, tmp_path):
    wrong = frame.assign(suspect=["odd"] * 30 + [""] * (len(frame) - 30))
    wrong.loc[len(frame) - 10 :, "engine"] = "vllm"
    wrong["gpu"] = ["h100-sxm"] * (len(frame) - 15) + ["b200"] * 5 + ["h100-sxm"] * 10
    told: list[str] = []
    (found,) = fitted_kernels(wrong, GPU, "made up", kernel_set="sglang", leave_out=told.append)
    kernel = found.kernel
    assert isinstance(kernel, ExpertKernel)
    assert (found.section, found.key, kernel.name) == ("moe", "bf16", "triton")
    assert kernel.default_tiles == RULE.default_tiles
    assert kernel.fit.rows == len(frame) - 45
    assert "5 rows of other gpus than h100-sxm" in told
    assert any("30 rows with a word in the column suspect" in line for line in told)
    assert any("rows of other engines than sglang" in line for line in told)
    assert kernel.fit.fit_error < 0.03
    assert kernel.fit.heldout_error < 0.06
    write_kernels(tmp_path, GPU, "mine", [found])
    again = load_gpu_from(tmp_path).kernels["mine"].moe["bf16"]
    assert again.name == "triton"
    assert again.tuned == kernel.tuned
    assert msgspec.structs.astuple(again)[1:5] == pytest.approx(
        msgspec.structs.astuple(kernel)[1:5], rel=1e-5
    )
    with pytest.raises(DataError, match="no rows left"):
        list(fitted_kernels(frame.assign(suspect="x"), GPU, "made up", kernel_set="sglang"))


def load_gpu_from(folder: Path) -> Gpu:
    home = folder / "data" / "hardware"
    home.mkdir(parents=True)
    (folder / "h100-sxm.toml").rename(home / "h100-sxm.toml")
    return load_gpu("h100-sxm", folder / "data")


def test_whole_models_are_held_out(frame):
    (_, operator) = operators_of(frame)[0]
    assert isinstance(operator, Experts)
    groups = heldout_groups(Rows(operator, np.ones(len(frame))))
    assert len(np.unique(groups)) == len(MODELS)
