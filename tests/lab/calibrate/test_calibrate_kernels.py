"""Fitting the GEMM model, storing what was fitted, and the scores it is judged by."""

import stat
from pathlib import Path

import msgspec
import numpy as np
import pandas as pd
import pytest
from made_up import made_up_fit

from medusa_sim.errors import DataError, OutputError, SpecError
from medusa_sim.gpus.fitted_experts import ExpertKernel
from medusa_sim.gpus.gpu import Gpu, load_gpu
from medusa_sim.gpus.kernels import GemmKernel, GemmTile, StreamKernel
from medusa_sim.lab.calibrate import transfer
from medusa_sim.lab.calibrate.driver import UNFITTED
from medusa_sim.lab.calibrate.errors import mape, ratio_mape
from medusa_sim.lab.calibrate.fitted_kernels import _groups, fitted_kernels
from medusa_sim.lab.calibrate.gemm import _resolution_us, fit_gemm, gemm_start, merged_repeats
from medusa_sim.lab.calibrate.hardware_file import FittedKernel, as_marked, write_fits, write_kernels
from medusa_sim.lab.calibrate.moe import TILES, rules_of
from medusa_sim.lab.calibrate.rows import Rows, heldout_groups
from medusa_sim.lab.calibrate.transfer import fit_transferred_gemm
from medusa_sim.lab.reproduce.published import operator_table
from medusa_sim.lab.validate.comparison import choice_of
from medusa_sim.latency.gemm import gemm_time
from medusa_sim.latency.moe import experts_time
from medusa_sim.operators.columns import REQUIRED_COLUMNS
from medusa_sim.operators.experts import Experts
from medusa_sim.operators.gemm import Gemm
from medusa_sim.operators.kinds import KIND_OF
from medusa_sim.operators.operator import Size
from medusa_sim.operators.table import check_rows, operators_of

GPU = load_gpu("a100-80gb-pcie")
TRUE = msgspec.structs.replace(
    GPU.kernels["torch"].gemm["fp16"], tiles=(GemmTile(m=64, n=128), GemmTile(m=128, n=128)), splits=(1, 2)
)
SMALL = GemmKernel(
    ramp_us=3.14159265,
    bandwidth_fraction=0.8,
    peak_fraction=0.9,
    load_ratio=5.0,
    tile_k=100.0,
    memory_norm=4.0,
    step_norm=6.0,
    split_us=2.0,
    splits=(1, 2),
    tiles=(GemmTile(m=64, n=64), GemmTile(m=128, n=128, selection_penalty=1.25)),
    fit=made_up_fit((64.0, 0.9, 1.1), rows=2, errors=(0.05, 0.06)),
)
FILE = """# a comment that stays
name = "x"

[sms]
value = 108  # so does this one
source = "a datasheet"

[kernels.torch.gemm.bf16]
ramp_us = 1.0
"""


def gemm(m: Size, n: Size, k: Size) -> Gemm:
    return Gemm(name="rows", m=np.asarray(m), n=np.asarray(n), k=np.asarray(k), dtype="fp16")


def made_rows(noise: float = 0.0) -> Rows[Gemm]:
    """Times of the known kernel TRUE on a grid of shapes."""
    m = np.array([1, 8, 16, 32, 64, 80, 96, 128, 160, 192, 256, 384, 512, 1024, 2048], dtype=float)
    shapes = [(n, k) for n in (1536, 4096, 8192, 22016) for k in (2048, 4096, 11008)]
    grid = np.array([(each, n, k) for n, k in shapes for each in m]).T
    time = gemm_time(GPU, TRUE, gemm(*grid)).time_us
    noisy = time * np.exp(noise * np.random.default_rng(3).normal(size=time.shape))
    return Rows(gemm(*grid), noisy)


def test_a_fit_recovers_the_times_of_a_known_kernel_on_held_out_shapes():
    start = msgspec.structs.replace(gemm_start("torch", "fp16", GPU), tiles=TRUE.tiles, splits=TRUE.splits)
    kernel = fit_gemm(made_rows(noise=0.02), GPU, source="made up", start=start)
    assert kernel.fit.source == "made up"
    assert kernel.fit.rows == 180
    # Noise of 2 % alone costs 1.6 % (the mean size of a normal).
    assert kernel.fit.fit_error == pytest.approx(0.016, abs=0.005)
    assert kernel.fit.heldout_error < 0.025
    assert [residual.size_max for residual in kernel.fit.residuals] == [
        float(edge) for edge in KIND_OF["gemm"].ranges
    ]
    assert all(0.9 < residual.low <= residual.high < 1.1 for residual in kernel.fit.residuals)


def test_a_fit_that_is_not_shown_the_tiles_comes_near_and_is_deterministic():
    kernel = fit_gemm(made_rows(), GPU, source="made up")
    assert kernel.fit.heldout_error < 0.05  # most of it is smaller tiles that the made-up library lacks
    assert fit_gemm(made_rows(), GPU, source="made up") == kernel


def test_repeats_become_their_median_and_too_little_to_fit_is_an_error():
    repeated = Rows(gemm([2, 1, 1, 1], [8, 8, 8, 8], [4, 4, 4, 4]), np.array([5.0, 10.0, 99.0, 11.0]))
    rows = merged_repeats(repeated)
    assert rows.operator.m.tolist() == [1.0, 2.0]
    assert rows.time_us.tolist() == [11.0, 5.0]
    with pytest.raises(DataError, match="one weight shape"):
        fit_gemm(Rows(gemm([1, 2], [8, 8], [4, 4]), np.array([1.0, 2.0])), GPU, source="made up")


def test_times_in_whole_microseconds_weigh_short_kernels_less():
    operator = gemm(np.array([1, 2, 4]), 4096, 4096)
    assert _resolution_us(Rows(operator, np.array([3.0, 4.5, 7.0]))) == 1.0
    assert _resolution_us(Rows(operator, np.array([3.25, 4.5, 7.1]))) == 0.0


def test_storing_keeps_everything_else_reads_back_and_twice_is_once(tmp_path):
    path = tmp_path / "x.toml"
    path.write_text(FILE)
    path.chmod(0o644)
    write_fits(path, [(("kernels", "torch", "gemm", "fp16"), SMALL)])
    text = path.read_text()
    assert text.startswith(FILE.rstrip())
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    stored = msgspec.toml.decode(text)["kernels"]["torch"]["gemm"]["fp16"]
    back = msgspec.convert(stored, GemmKernel)
    assert back == msgspec.structs.replace(SMALL, ramp_us=3.14159)
    defaults = {field.name: field.default for field in msgspec.structs.fields(GemmKernel)}
    assert not [name for name in stored if stored[name] == defaults[name]]
    assert [each.name for each in tmp_path.iterdir()] == ["x.toml"]
    path = tmp_path / "x.toml"
    path.write_text(FILE)
    write_fits(path, [(("kernels", "torch", "gemm", "fp16"), SMALL)])
    once = path.read_text()
    write_fits(path, [(("kernels", "torch", "gemm", "fp16"), SMALL)])
    assert path.read_text() == once


def test_store_says_what_it_cannot_read_or_write(tmp_path, monkeypatch):
    with pytest.raises(SpecError, match=r"missing\.toml"):
        write_fits(tmp_path / "missing.toml", [(("kernels", "torch", "gemm", "fp16"), SMALL)])
    broken = tmp_path / "broken.toml"
    broken.write_text("[sms\n")
    with pytest.raises(SpecError, match=r"broken\.toml"):
        write_fits(broken, [(("kernels", "torch", "gemm", "fp16"), SMALL)])
    path = tmp_path / "x.toml"
    path.write_text(FILE)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(OutputError, match=r"x\.toml"):
        write_fits(path, [(("kernels", "torch", "gemm", "fp16"), SMALL)])
    assert path.read_text() == FILE
    assert sorted(each.name for each in tmp_path.iterdir()) == ["broken.toml", "x.toml"]


def test_errors_are_relative_and_those_of_ratios_forgive_a_common_factor():
    assert mape(np.array([1.1, 0.9]), np.array([1.0, 1.0])) == pytest.approx(0.1)
    assert mape(np.array([2.0]), np.array([1.0])) == pytest.approx(1.0)
    m, shape = np.array([1, 64, 1, 64]), np.array([0, 0, 1, 1])
    measured = np.array([10.0, 20.0, 5.0, 6.0])
    assert ratio_mape(1.3 * measured, measured, m, shape) == pytest.approx(0.0, abs=1e-12)
    steeper = measured * np.array([1.0, 1.2, 1.0, 1.0])
    assert ratio_mape(steeper, measured, m, shape) == pytest.approx(0.1)
    assert np.isnan(ratio_mape(measured[1:2], measured[1:2], m[1:2], shape[1:2]))


def test_regret_is_what_the_wrong_count_gives_away():
    tokens = np.array([1.0, 3.0, 3.3])
    for last, best in ((20.0, 64), (11.5, 128)):
        gain = tokens / np.array([10.0, 11.0, last])
        right = choice_of("a model", 1, (1, 64, 128), gain, gain)
        flat = choice_of("a model", 1, (1, 64, 128), gain, tokens)  # always takes 128
        assert (right.regret, right.measured, flat.predicted) == (0.0, best, 128)
        assert flat.regret == pytest.approx(1.0 - (3.3 / last) / max(3.0 / 11.0, 3.3 / last))


def test_a_single_row_does_not_replace_what_was_measured():
    frame = pd.DataFrame([{"op": "up_proj", "m": 1, "n": 4096, "k": 4096, "dtype": "fp16", "time_us": 20.0}])
    rows = check_rows(frame.reindex(columns=[*REQUIRED_COLUMNS, "time_us"]), "one.csv")
    with pytest.raises(DataError, match="1 rows of gemm"):
        list(fitted_kernels(rows, load_gpu("a100-80gb-pcie"), "one.csv"))


H100 = load_gpu("h100-sxm")
RULE = rules_of("bf16", H100)[1]
EXPERTS = ExpertKernel(
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
        {"op": "moe", "engine": "sglang", "kernel": "triton", "dtype": "bfloat16", "tokens": count,
         "hidden": hidden, "inter": inter, "topk": topk, "experts": experts, "tp": tp,
         "distribution": kind, "suspect": ""}
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
        times[index] = experts_time(H100, EXPERTS, operator, cold=False).time_us
        found["time_us"] = times
    return found


def test_the_kernel_is_found_with_its_rule_and_reads_back_and_what_is_left_out_is_stated(frame, tmp_path):
    wrong = frame.assign(suspect=["odd"] * 30 + [""] * (len(frame) - 30))
    wrong.loc[len(frame) - 10 :, "engine"] = "vllm"
    wrong["gpu"] = ["h100-sxm"] * (len(frame) - 15) + ["b200"] * 5 + ["h100-sxm"] * 10
    told: list[str] = []
    (found,) = fitted_kernels(wrong, H100, "made up", kernel_set="sglang", leave_out=told.append)
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
    write_kernels(tmp_path, H100, "mine", [found])
    again = load_gpu_from(tmp_path).kernels["mine"].moe["bf16"]
    assert again.name == "triton"
    assert again.tuned == kernel.tuned
    assert msgspec.structs.astuple(again)[1:5] == pytest.approx(
        msgspec.structs.astuple(kernel)[1:5], rel=1e-5
    )
    with pytest.raises(DataError, match="no rows left"):
        list(fitted_kernels(frame.assign(suspect="x"), H100, "made up", kernel_set="sglang"))


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


START = GemmKernel(
    ramp_us=4.0,
    bandwidth_fraction=0.85,
    peak_fraction=0.85,
    load_ratio=3.0,
    tile_k=50.0,
    memory_norm=4.0,
    step_norm=6.0,
    split_us=3.0,
    splits=(1,),
    tiles=(GemmTile(m=64, n=64), GemmTile(m=128, n=128), GemmTile(m=128, n=256)),
    wave_rounding=0.6,
    fit=made_up_fit((4096.0, 0.9, 1.1)),
)
M = np.array([1, 16, 32, 64, 96, 128, 192, 256, 320, 384, 512, 768, 1024, 2048], dtype=float)


def rows_of(kernel: GemmKernel, n: float = 17920.0, k: float = 6656.0) -> Rows[Gemm]:
    operator = Gemm(name="rows", m=M, n=np.full_like(M, n), k=np.full_like(M, k), dtype="fp16")
    return Rows(operator, gemm_time(GPU, kernel, operator).time_us)


def test_what_one_shape_can_tell_is_recovered():
    made = msgspec.structs.replace(START, ramp_us=38.0, bandwidth_fraction=0.78, peak_fraction=0.9)
    found = fit_transferred_gemm(rows_of(made), GPU, start=START, ramp_us=38.0, source="made up")
    # START's own times for other layers hold it back a little.
    assert found.bandwidth_fraction == pytest.approx(0.78, rel=0.02)
    assert found.peak_fraction == pytest.approx(0.9, rel=0.02)
    assert found.fit.fit_error < 0.005
    assert found.tiles == START.tiles
    kept = ("splits", "tile_k", "split_us", "step_norm")
    assert all(getattr(found, name) == getattr(START, name) for name in kept)


def test_a_preference_for_a_large_tile_is_found_where_it_begins():
    preferred = GemmTile(m=128, n=256, selection_penalty=0.5, m_min=129)
    made = msgspec.structs.replace(START, ramp_us=38.0, tiles=(*START.tiles, preferred))
    usual = msgspec.structs.replace(
        START, ramp_us=38.0, tiles=(*START.tiles[:2], GemmTile(m=128, n=256, selection_penalty=1.4))
    )
    start = msgspec.structs.replace(usual, ramp_us=4.0)
    rows, without = rows_of(made), rows_of(usual)
    assert not np.allclose(rows.time_us, without.time_us, rtol=0.02)
    found = fit_transferred_gemm(rows, GPU, start=start, ramp_us=38.0, source="made up")
    entry = found.tiles[-1]
    assert (entry.m, entry.n) == (128, 256)
    # It holds for wide outputs only: from half of the measured width.
    assert entry.n_min == 8960
    # Without the entry it is several times as much; START's own selection penalty of 1.4 stays below it.
    assert found.fit.fit_error < 0.03


def test_two_weight_shapes_are_refused():
    one, other = rows_of(START), rows_of(START, n=4096.0)
    sizes = {
        name: np.concatenate([rows.operator.sizes[name] for rows in (one, other)]) for name in Gemm.COLUMNS
    }
    both = Rows(one.operator.with_columns(**sizes), np.concatenate([one.time_us, other.time_us]))
    with pytest.raises(DataError, match="2 weight shapes"):
        fit_transferred_gemm(both, GPU, start=START, ramp_us=38.0, source="two")


@pytest.mark.slow
def test_the_papers_tables_refit_to_the_shipped_kernels(monkeypatch):
    """Of the preferences that are tried, the shipped one and every eighth: it is best by far or it is not."""
    import pandas as pd

    chosen, every = GPU.kernel_set("paper").gemm["fp16"].tiles[-1], transfer._preferring
    monkeypatch.setattr(
        transfer,
        "_preferring",
        lambda *given: (
            each for i, each in enumerate(every(*given)) if i % 8 == 0 or each.tiles[-1] == chosen
        ),
    )
    tables = [operator_table(name) for name in ("medusa_table6", "medusa_table8")]
    frame = pd.concat(tables, ignore_index=True)
    found = {each.section: each.kernel for each in fitted_kernels(frame, GPU, "Tables 6 and 8")}
    shipped = GPU.kernel_set("paper")
    linear, products = found["gemm"], found["unfused"]
    assert isinstance(linear, GemmKernel)
    assert linear.ramp_us == products.vector_ramp_us
    rows = tables[1]
    operator = Gemm(
        name="rows", m=rows["m"].to_numpy(), n=rows["n"].to_numpy(), k=rows["k"].to_numpy(), dtype="fp16"
    )
    refitted = gemm_time(GPU, linear, operator).time_us
    # The optimiser stops within a few thousandths of the same times.
    assert gemm_time(GPU, shipped.gemm["fp16"], operator).time_us == pytest.approx(refitted, rel=5e-3)


def test_the_librarys_own_kernel_is_the_fastest_of_those_with_rows_enough():
    """Twice as fast with a third of the rows is somebody's special kernel."""
    sizes = {"slow": (6, 3.0), "own": (4, 2.0), "special": (2, 1.0)}
    frame = pd.DataFrame(
        [
            {"op": "up", "m": 64 * (place + 1), "n": 4096, "k": 4096, "dtype": "fp16", "kernel": name,
             "time_us": 100.0 * times * (place + 1)}
            for name, (count, times) in sizes.items() for place in range(count)
        ]
    )  # fmt: skip
    found = {
        own.kernel: (own.time_us.size, is_own) for own, is_own in _groups(check_rows(frame, "rows"), GPU)
    }
    assert found == {"slow": (6, False), "own": (4, True), "special": (2, False)}


def test_a_kernel_that_is_a_librarys_fallback_remains_one_when_it_is_fitted_again():
    """No fit tells it: without the mark a fallback of 176 ms a module served in steps."""
    card, key = load_gpu("rtx-pro-6000"), "hca_context_fp8_bf16"
    fitted = msgspec.structs.replace(card.kernels["sglang"].sparse[key], fallback=False)
    for each, is_fallback in ((key, True), ("of_its_own", False)):
        kernel = as_marked(card, "sglang", FittedKernel(section="sparse", key=each, kernel=fitted))
        assert isinstance(kernel, StreamKernel)
        assert kernel.fallback is is_fallback
