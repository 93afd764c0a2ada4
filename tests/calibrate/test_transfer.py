"""Rows of one weight shape bring another kernel set of the same GPU to them."""

import msgspec
import numpy as np
import pytest
from made_up import made_up_fit

from medusa_sim.calibrate.fit import Rows
from medusa_sim.calibrate.rows import fitted_kernels
from medusa_sim.calibrate.transfer import fit_transferred_gemm
from medusa_sim.errors import DataError
from medusa_sim.latency.gemm import gemm_time
from medusa_sim.operators.operator import Gemm
from medusa_sim.reproduce.published import operator_table
from medusa_sim.specs.gpu import load_gpu
from medusa_sim.specs.kernels import GemmKernel, GemmTile

GPU = load_gpu("a100-80gb-pcie")
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
def test_the_papers_tables_refit_to_the_shipped_kernels():
    import pandas as pd

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
