"""Where a GEMM fit begins: the tiles a library has, and starting values of what is fitted.

Libraries differ in how a tile is found. cuBLAS and its relatives choose by a heuristic of their own, so every
common tile is offered and the fit learns what is taken. The fp8 `fp8_scaled_mm` kernels of SGLang fix the
tile by the shape; their ranges are read off its public source (sgl-kernel, csrc/gemm/fp8_gemm_kernel.cu,
Apache-2.0) for Ada. On Hopper the steps of the measured rows at m = 64, 128 and multiples of 256 say 64 x 64
tiles, then 64 x 128 and 128 x 128 in clusters of two along m. DeepGEMM (MIT, `get_best_config`) counts waves.
"""

from __future__ import annotations

from math import gcd
from typing import Any

from medusa_sim.calibrate.fit import UNFITTED
from medusa_sim.specs.gpu import Gpu
from medusa_sim.specs.kernels import GemmKernel, GemmTile

_COMMON_TILES = tuple(
    GemmTile(m=m, n=n) for m in (16, 32, 64, 128, 256) for n in (64, 128, 256) if (m, n) != (256, 256)
)
_HOPPER_FP8_TILES = (
    GemmTile(m=64, n=64, m_max=64),
    GemmTile(m=64, n=128, cluster=2, loads_padding=True, m_min=65, m_max=128),
    GemmTile(m=128, n=128, cluster=2, loads_padding=True, m_min=129),
)
_ADA_FP8_TILES = (
    GemmTile(m=16, n=64, m_max=16, n_max=8192),
    GemmTile(m=32, n=64, m_max=16, n_min=8193, n_max=16384),
    GemmTile(m=16, n=64, m_max=64, n_min=16385),
    GemmTile(m=32, n=64, m_min=17, m_max=64, n_max=16384),
    GemmTile(m=64, n=64, m_min=65, m_max=128, n_max=16384),
    GemmTile(m=32, n=64, m_min=65, m_max=128, n_min=16385),
    GemmTile(m=128, n=64, m_min=129, m_max=256, n_max=8192),
    GemmTile(m=64, n=128, m_min=129, m_max=256, n_min=8193, n_max=16384),
    GemmTile(m=128, n=64, m_min=129, m_max=256, n_min=16385),
    GemmTile(m=128, n=128, m_min=257),
)


def gemm_start(kernel_set: str, form: str, gpu: Gpu) -> GemmKernel:
    """Tiles, splits and starting values for `fit_gemm` (its `fit` is empty).

    kernel_set: `torch`, `sglang`, `trtllm` or `paper`. form: numeric format. What is known of a library's
    kernels on an architecture (`_KNOWN`); everything else gets the common tiles.
    """
    of_torch: dict[str, Any] = {"l2_ratio": 2.5, "drain_k": 100.0} if kernel_set == "torch" else {}
    known = _KNOWN.get((kernel_set, form, gpu.architecture), of_torch)
    common: dict[str, Any] = {
        "ramp_us": 3.0,
        "bandwidth_fraction": 0.85,
        "peak_fraction": 0.85,
        "load_ratio": 5.0,
        "tile_k": 150.0,
        "memory_norm": 4.0,
        "step_norm": 5.0,
        "split_us": 2.0,
        "splits": (1, 2, 3, 4, 6, 8),
        "tiles": _COMMON_TILES,
        "wave_rounding": 0.6,
        "contention": 0.2,
        "throttle": 0.3,
        "throttle_us": 1000.0,
        "fit": UNFITTED,
    }
    return GemmKernel(**{**common, **known})


def _tiles(heights: tuple[int, ...], widths: tuple[int, ...]) -> tuple[GemmTile, ...]:
    return tuple(GemmTile(m=m, n=n) for m in heights for n in widths)


def _deep_gemm_tiles() -> tuple[GemmTile, ...]:
    """What DeepGEMM offers on Hopper: 64 rows alone up to 64 tokens, and widths in steps of 16."""
    return tuple(
        GemmTile(m=m, n=n, m_min=1 if m == 64 else 65, pace_alone=_ALONE.get((m, n), 1.0))
        for m in (64, 128, 256)
        for n in range(16, 257, 16)
        if (n <= 128 or gcd(n, 128) == n - 128) and (m <= 128 or n <= 128)
    )


_ALONE = {(128, 192): 3.0, (128, 256): 3.0, (256, 96): 3.0}
"""Read off the measured rows: two to four times as long where 97 to 132 such tiles are the whole launch."""
_WHOLE: dict[str, Any] = {"splits": (1,), "split_us": 0.0}
"""Kernels that never split k."""
_QUANTISES: dict[str, Any] = {**_WHOLE, "quantise_ratio": 0.6}
"""And whose rows hold the pass that quantises the activations."""
_BLACKWELL: dict[str, Any] = {**_QUANTISES, "tiles": _tiles((128, 256), (64, 128, 256)), "drain_k": 100.0}
"""Tensor Cores of Blackwell take 128 rows at least, however few are there."""

_WEIGHT_ONLY: dict[str, Any] = {
    **_WHOLE,
    "tiles": _tiles((16, 32, 64, 128), (64, 128, 256)),
    "load_ratio": 2.4,
    "drain_k": 100.0,
    "unpack_rows": 20.0,
}
"""Kernels that unpack weights in registers, on the tiles of Ampere's instructions."""

_KNOWN: dict[tuple[str, str, str], dict[str, Any]] = {
    ("sglang", "fp8", "hopper"): {**_QUANTISES, "tiles": _HOPPER_FP8_TILES, "padding_ratio": 1.5},
    ("sglang", "fp8", "ada"): {**_QUANTISES, "tiles": _ADA_FP8_TILES, "resident_share": 0.9},
    ("sglang", "fp8_block", "hopper"): {
        **_QUANTISES,
        "tiles": _deep_gemm_tiles(),
        "drain_k": 100.0,
        "fewest_waves": True,
    },
    ("sglang", "bf16", "blackwell"): {
        "tiles": tuple(tile for tile in _COMMON_TILES if tile.m >= 64),
        "drain_k": 100.0,
    },
    **{("sglang", form, "blackwell"): _BLACKWELL for form in ("fp8", "fp8_block", "nvfp4")},
    ("sglang", "nvfp4", "rtxblackwell"): {
        **_QUANTISES,
        "tiles": _tiles((128, 256), (128,)),
        "drain_k": 100.0,
    },
    ("trtllm", "fp8_block", "ada"): {
        **_QUANTISES,
        "tiles": _tiles((32, 64, 128), (64, 128)),
        "drain_k": 100.0,
        "hot_copies": 5,
    },
    ("sglang", "int4", "ampere"): _WEIGHT_ONLY,
    ("trtllm", "int4", "ampere"): {**_WEIGHT_ONLY, "vector_rows": 4, "vector_ramp_us": 8.0},
}
"""What is known of (library, format, architecture), beside the common start.

TensorRT-LLM's weight-only layers take a kernel of vector products up to 4 tokens (its plugin's small-m fast
path). Rows of its fp8_block layers on the L40S took turns with copies of the weights, five at most: those
whose copies fit the 96 MB of L2 were read from there.
"""
