"""The calibrated GEMM model: physics as properties, a few published times as golden values."""

import dataclasses
import math

import msgspec
import numpy as np
import pytest
from made_up import chosen_tile, made_up_fit

from medusa_sim.errors import SpecError
from medusa_sim.gpus.gpu import Gpu, load_gpu
from medusa_sim.gpus.gpu_names import gpu_names
from medusa_sim.gpus.kernels import GemmKernel, GemmTile
from medusa_sim.lab.calibrate.gemm import fit_gemm, gemm_start
from medusa_sim.lab.calibrate.rows import Rows
from medusa_sim.latency.gemm import gemm_candidates_us, gemm_choice, gemm_chosen_us, gemm_time
from medusa_sim.latency.operator_time import Bound, Source
from medusa_sim.latency.tiles import candidates_of
from medusa_sim.operators.gemm import Gemm
from medusa_sim.units import BYTES_PER_ELEMENT, format_of

GPU = load_gpu("a100-80gb-pcie")
KERNEL = GemmKernel(
    ramp_us=4.0,
    bandwidth_fraction=0.85,
    peak_fraction=0.9,
    load_ratio=5.0,
    l2_ratio=2.5,
    tile_k=100.0,
    drain_k=20.0,
    memory_norm=4.0,
    step_norm=6.0,
    split_us=2.0,
    splits=(1, 2, 4),
    tiles=tuple(GemmTile(m=m, n=n) for m in (16, 64, 128, 256) for n in (64, 128, 256) if m + n < 512),
    wave_rounding=0.6,
    contention=0.2,
    throttle=0.2,
    throttle_us=500.0,
    fit=made_up_fit((64.0, 0.9, 1.2), (512.0, 0.95, 1.1)),
)
FITTED = {
    name: load_gpu(name).kernels["torch"].gemm["fp16"]
    for name in ("a100-80gb-pcie", "a40", "h100-sxm", "rtx-a6000")
}


def gemm(m: object, n: object, k: object, dtype: str = "fp16", weight_dtype: str | None = None) -> Gemm:
    return Gemm(name="up", m=m, n=n, k=k, dtype=dtype, weight_dtype=weight_dtype)


def time_us(operator: Gemm, kernel: GemmKernel = KERNEL) -> np.ndarray:
    return gemm_time(GPU, kernel, operator).time_us


def by_hand_us(gpu: Gpu, kernel: GemmKernel, operator: Gemm, choice: tuple[int, int], *, cold: bool) -> float:
    """The equations of the module's docstring, of one shape, number by number; choice: (tile, split)."""
    tile, split = kernel.tiles[choice[0]], kernel.splits[choice[1]]
    m, n, k = (float(size) for size in (operator.m, operator.n, operator.k))
    x_bytes, w_bytes = BYTES_PER_ELEMENT[operator.dtype], BYTES_PER_ELEMENT[operator.stored_dtype]
    bandwidth, peak = gpu.bandwidth_bytes_per_s / 1e6, gpu.peak(operator.dtype) / 1e6

    def longer(first: float, second: float, norm: float) -> float:
        return max(first, second) * (1 + (min(first, second) / max(first, second)) ** norm) ** (1 / norm)

    rows = tile.cluster * math.ceil(m / (tile.m * tile.cluster))
    columns = math.ceil(n / tile.n)
    x = rows * columns * split / gpu.sms
    waves = 1 - kernel.contention * (1 - x)
    if x > 1:
        waves = kernel.wave_rounding * math.ceil(x) + (1 - kernel.wave_rounding) * x
    arithmetic = 2 * (tile.m + kernel.unpack_rows) * tile.n / (kernel.peak_fraction * peak / gpu.sms)
    loads = (tile.m * x_bytes + tile.n * w_bytes) / (kernel.load_ratio * bandwidth / gpu.sms)
    step = longer(arithmetic, loads, kernel.step_norm)
    y = 2 * m * n * k / peak
    tiles = (1 + kernel.throttle * y / (y + kernel.throttle_us)) * waves * (k / split + kernel.tile_k) * step
    pace = tile.pace
    if rows * columns * split <= gpu.sms:
        over_half = rows * tile.m - m < tile.m / 2 and (rows > 1 or tile.m != 128)
        pace = tile.pace_alone if over_half else tile.pace_half
    tiles *= pace
    if kernel.l2_ratio:
        shared = k * (m * columns * x_bytes + n * rows * w_bytes) / (kernel.l2_ratio * bandwidth)
        tiles = longer(tiles, shared, kernel.step_norm)
    if kernel.padding_ratio and tile.loads_padding:
        tiles += columns * (rows * tile.m - m) * k * x_bytes / (kernel.padding_ratio * bandwidth)
    weights, read = n * k * w_bytes, m * k * x_bytes
    if kernel.resident_share:
        again = max(1.0, columns / max(1.0, gpu.sms / rows)) - 1
        read *= 1 + again / (1 + (kernel.resident_share * gpu.l2_bytes / read) ** 4)
    hot = 0.0
    if not cold:
        room = kernel.hot_share * gpu.l2_bytes
        hot = float(weights <= room)
        if kernel.hot_copies:
            copies = min(kernel.hot_copies, math.ceil(gpu.l2_bytes / weights))
            hot = min(max(1 - (copies * weights / room - 1) / 0.1, 0.0), 1.0)
    memory = (read + m * n * max(x_bytes, 2)) / kernel.bandwidth_fraction
    memory += weights * (hot / (kernel.hot_ratio or 1) + (1 - hot) / kernel.bandwidth_fraction)
    time = longer(memory / bandwidth, tiles, kernel.memory_norm) + kernel.drain_k * step
    time += kernel.vector_ramp_us if m <= kernel.vector_rows else kernel.ramp_us
    if kernel.quantise_ratio:
        time += (2 + x_bytes) * m * k / (kernel.quantise_ratio * bandwidth)
    if split > 1:
        time += kernel.split_us + 2 * 4 * m * n * split / (kernel.load_ratio * bandwidth)
    if hot and not kernel.hot_copies:
        time = max(time, (weights + m * (n + k) * x_bytes) / bandwidth)
    return time


@pytest.mark.parametrize("cold", [True, False])
def test_the_time_is_that_of_the_equations(cold):
    """Of every tile of every shipped kernel with rows of its own, and of the one above."""
    of_own = [
        (gpu, kernel, form)
        for gpu in map(load_gpu, gpu_names())
        for kernels in gpu.kernels.values()
        for form, kernel in kernels.gemm.items()
        if not kernel.fit.inherited_from
    ]
    sizes = [(1, 4096, 1024), (16, 512, 128), (100, 17_000, 4096), (129, 4096, 14_336), (5000, 8192, 8192)]
    m, n, k = np.transpose(sizes)
    for gpu, kernel, form in [*of_own, (GPU, KERNEL, "fp16")]:
        stored = format_of(form)
        made = gemm(m, n, k, stored.dtype, stored.weight_dtype)
        times = gemm_candidates_us(gpu, kernel, made, cold=cold)
        found = times.reshape(len(kernel.tiles), len(kernel.splits), len(sizes))
        for tile, split, at in np.argwhere(np.isfinite(found)):
            one = gemm(*sizes[at], stored.dtype, stored.weight_dtype)
            told = by_hand_us(gpu, kernel, one, (tile, split), cold=cold)
            assert found[tile, split, at] == pytest.approx(told, rel=1e-9), (gpu.name, form)


def test_bounds_are_ramp_arithmetic_or_memory():
    fast = dataclasses.replace(GPU, bandwidth_bytes_per_s=2 * GPU.bandwidth_bytes_per_s)
    kernel = msgspec.structs.replace(KERNEL, l2_ratio=0.0, load_ratio=50.0)
    operator = gemm(8192, 8192, 8192)
    before, after = gemm_time(GPU, kernel, operator), gemm_time(fast, kernel, operator)
    assert before.bound == Bound.COMPUTE
    assert after.time_us == pytest.approx(before.time_us, rel=0.02)
    assert gemm_time(GPU, KERNEL, gemm(1, 64, 64)).bound == Bound.LATENCY


def test_the_choice_is_the_least_time_without_penalties_and_they_and_ranges_of_tiles_move_it_alone():
    many = gemm(np.arange(8, 400, 8), 4096, 4096)
    every = gemm_candidates_us(GPU, KERNEL, many)
    assert every.shape[0] == len(KERNEL.tiles) * len(KERNEL.splits)
    assert np.array_equal(gemm_choice(GPU, KERNEL, many), np.argmin(every, axis=0))
    tiles = (GemmTile(m=64, n=64), GemmTile(m=128, n=128))
    operator = gemm(128, 8192, 4096)
    free = msgspec.structs.replace(KERNEL, tiles=tiles, splits=(1,))
    first = chosen_tile(GPU, free, operator)[0]
    penalised = tuple(
        msgspec.structs.replace(t, selection_penalty=9.0 if t.m == first else 1.0) for t in tiles
    )
    moved = msgspec.structs.replace(free, tiles=penalised)
    assert chosen_tile(GPU, moved, operator)[0] != first
    assert np.array_equal(gemm_candidates_us(GPU, moved, operator), gemm_candidates_us(GPU, free, operator))
    tiles = (GemmTile(m=64, n=64, m_max=64), GemmTile(m=128, n=128, m_min=65))
    kernel = msgspec.structs.replace(KERNEL, tiles=tiles, splits=(1,))
    assert chosen_tile(GPU, kernel, gemm(np.array([1, 64, 65, 500]), 8192, 4096))[0].tolist() == [
        64,
        64,
        128,
        128,
    ]


def test_candidates_are_tiles_with_every_split_and_a_split_is_made_dearer():
    """A tile chosen as if 1.2 times as long, and split twice 1.5 times of that."""
    tiles = (
        GemmTile(m=64, n=128, m_max=512, pace=0.9),
        GemmTile(m=128, n=64, selection_penalty=1.2, n_min=96),
    )
    kernel = msgspec.structs.replace(KERNEL, tiles=tiles, splits=(1, 2, 4), split_penalty=1.5)
    every, cut = candidates_of(kernel), [1.0, 1.5, 1.5]
    assert every.split.tolist() == [1, 2, 4] * 2
    assert every.tile_m.tolist() == [64] * 3 + [128] * 3
    assert every.selection_penalty == pytest.approx([*cut, *(1.2 * each for each in cut)])
    assert every.pace.tolist() == [0.9] * 3 + [1.0] * 3
    assert every.m_max.tolist() == [512] * 3 + [np.inf] * 3
    found = [every.allowed(np.asarray(m), np.asarray(n))[[0, -1]].tolist() for m, n in ((512, 95), (513, 96))]
    assert found == [[True, False], [False, True]]


def test_bands_and_sources_are_those_of_the_fit_and_a_dtype_without_a_peak_is_an_error():
    time = gemm_time(GPU, KERNEL, gemm(np.array([64, 65, 9999]), 4096, 4096))
    assert time.low_us / time.time_us == pytest.approx([0.9, 0.95, 0.95])
    assert time.high_us / time.time_us == pytest.approx([1.2, 1.1, 1.1])
    assert (time.source == Source.CALIBRATED).all()
    with pytest.raises(SpecError, match="fp8"):
        gemm_time(GPU, KERNEL, gemm(1, 64, 64, dtype="fp8"))


@pytest.mark.parametrize(
    ("name", "m", "n", "k", "measured_us"),
    [
        ("a100-80gb-pcie", 64, 8192, 28672, 307.0),
        ("a100-80gb-pcie", 384, 4096, 4096, 66.0),
        ("h100-sxm", 64, 8192, 8192, 50.0),
        ("a40", 64, 8192, 4096, 130.0),
    ],
)
def test_single_published_times(name, m, n, k, measured_us):
    """Kernel times that the vidur project (MIT) published; 12 % is the model's own 80 % band there."""
    predicted = gemm_time(load_gpu(name), FITTED[name], gemm(m, n, k)).time_us
    assert predicted == pytest.approx(measured_us, rel=0.12)


def test_on_the_a6000_96_tokens_are_cheaper_than_80():
    """LLMServingSim (MIT) published 208 us at 80 and 175 us at 96 (n 4096, k 14336): a change of tile.

    The model finds the change and its direction; 12 % is its own 80 % band there.
    """
    gpu, operator = load_gpu("rtx-a6000"), gemm(np.array([80, 96]), 4096, 14336)
    time = gemm_time(gpu, FITTED["rtx-a6000"], operator).time_us
    tile_m, tile_n, _ = chosen_tile(gpu, FITTED["rtx-a6000"], operator)
    assert time[1] < time[0]
    assert (tile_m[0], tile_n[0]) != (tile_m[1], tile_n[1])
    assert time == pytest.approx([208.0, 175.0], rel=0.12)


TABLES = [
    *((name, "torch", "fp16") for name in ("a100-80gb-pcie", "a40", "h100-sxm", "rtx-a6000")),
    *((name, "sglang", "bf16") for name in ("a100-80gb-sxm", "h100-sxm", "h200-sxm", "l40s")),
    *((name, "sglang", "fp8") for name in ("h100-sxm", "h200-sxm", "l40s")),
]


def kernel_of(name: str, kernels: str, dtype: str) -> tuple[Gpu, GemmKernel]:
    gpu = load_gpu(name)
    return gpu, gpu.kernel_set(kernels).gemm[dtype]


def layer(m: object, n: object, k: object, dtype: str) -> Gemm:
    m, n, k = (np.asarray(size, dtype=np.float64) for size in (m, n, k))
    return Gemm(name="layer", m=m, n=n, k=k, dtype=dtype)


@pytest.mark.parametrize(("name", "kernels", "dtype"), TABLES)
def test_time_falls_with_m_only_where_the_tile_changes_or_padding_is_loaded(name, kernels, dtype):
    gpu, kernel = kernel_of(name, kernels, dtype)
    n, k = 64.0 * np.random.default_rng(0).integers(1, 450, (2, 24, 1))
    operator = layer(np.r_[1:700, 1500:1510, 8000:8010], n, k, dtype)
    time = gemm_time(gpu, kernel, operator).time_us
    falls = np.diff(time) < -1e-9 * time[:, 1:]
    changes = (np.diff(np.stack(chosen_tile(gpu, kernel, operator)), axis=-1) != 0).any(axis=0)
    assert not (falls & ~changes).any() or any(tile.loads_padding for tile in kernel.tiles)


@pytest.mark.parametrize(("name", "kernels", "dtype"), TABLES)
def test_the_time_is_that_of_the_chosen_candidate(name, kernels, dtype):
    gpu, kernel = kernel_of(name, kernels, dtype)
    operator = layer([1, 64, 65, 128, 129, 257, 1024, 8192], 6144, 4096, dtype)
    chosen = gemm_choice(gpu, kernel, operator)
    time_us = gemm_time(gpu, kernel, operator).time_us
    every = gemm_candidates_us(gpu, kernel, operator)
    assert gemm_chosen_us(gpu, kernel, operator, chosen) == pytest.approx(time_us, rel=1e-12)
    assert every[chosen, np.arange(8)] == pytest.approx(time_us, rel=1e-12)


@pytest.mark.parametrize("name", ["h100-sxm", "h200-sxm", "l40s"])
def test_fp8_tiles_follow_the_library_and_cover_every_shape_once(name):
    gpu, kernel = kernel_of(name, "sglang", "fp8")
    assert kernel.splits == (1,)
    operator = layer(np.arange(1, 1200)[:, None], [512, 8192, 8193, 16384, 16385, 65536], 4096, "fp8")
    allowed = np.isfinite(gemm_candidates_us(gpu, kernel, operator)).sum(axis=0)
    assert allowed.min() == allowed.max() == 1


def test_fp8_on_hopper_steps_where_a_cluster_begins_and_falls_towards_its_end():
    gpu, kernel = kernel_of("h100-sxm", "sglang", "fp8")
    times = gemm_time(gpu, kernel, layer([128, 129, 256, 257, 512], 65536, 8192, "fp8")).time_us
    # Measured there: 214, 345, 236, 592, 387 us (aiconfigurator-core 0.12); 15 % is the 80 % band.
    assert times == pytest.approx([214.0, 345.0, 236.0, 592.0, 387.0], rel=0.15)


def test_a_fit_finds_the_kernel_that_made_the_rows():
    gpu, kernel = kernel_of("h100-sxm", "sglang", "fp8")
    n, k, m = np.meshgrid(
        [512, 2048, 8192, 28672], [1024, 4096, 16384], [1, 16, 64, 65, 128, 129, 256, 512, 2048]
    )
    operator = layer(m.ravel(), n.ravel(), k.ravel(), "fp8")
    true_us = gemm_time(gpu, kernel, operator).time_us
    rows = Rows(layer(m.ravel(), n.ravel(), k.ravel(), "fp8"), true_us)
    found = fit_gemm(rows, gpu, source="made", start=gemm_start("sglang", "fp8", gpu))
    # Norms, waves and contention trade against each other: the times are what has to come back.
    assert found.fit.fit_error < 0.01
    assert found.bandwidth_fraction == pytest.approx(kernel.bandwidth_fraction, rel=0.03)
    assert found.fit.heldout_error < 0.03


def test_rows_faster_than_memory_tell_which_weights_were_hot():
    gpu = load_gpu("l40s")
    n, m = np.meshgrid([1024, 2048, 8192, 16384], [1, 16, 64, 128, 256])
    weights_us = 2.0 * n * 4096 / gpu.bandwidth_bytes_per_s * 1e6
    time_us = np.where(n <= 2048, 0.5, 1.3) * weights_us + 0.02 * m
    rows = Rows(layer(m.ravel(), n.ravel(), np.full(m.size, 4096), "bf16"), time_us.ravel())
    found = fit_gemm(rows, gpu, source="made", start=gemm_start("sglang", "bf16", gpu))
    assert found.hot_share * gpu.l2_bytes == pytest.approx(2.0 * 2048 * 4096)
