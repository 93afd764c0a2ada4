"""Where a GEMM fit begins: the tiles a library has, and starting values of what is fitted.

Libraries differ in how a tile is found. cuBLAS and its relatives choose by a heuristic of their own, so every
common tile is offered and the fit learns what is taken. The fp8 `fp8_scaled_mm` kernels of SGLang fix the
tile by the shape; their ranges are read off its public source (sgl-kernel, csrc/gemm/fp8_gemm_kernel.cu,
Apache-2.0) for Ada. On Hopper the steps of the measured rows at m = 64, 128 and multiples of 256 say 64 x 64
tiles, then 64 x 128 and 128 x 128 in clusters of two along m.
"""

from __future__ import annotations

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


def gemm_start(kernel_set: str, dtype: str, gpu: Gpu) -> GemmKernel:
    """Tiles, splits and starting values for `fit_gemm` (its `fit` is empty).

    kernel_set: `torch`, `sglang` or `paper`. The fp8 kernels of `sglang` include the quantisation of the
    activations, never split k and have tiles that are known; everything else gets the
    common tiles.
    """
    has_fixed_tiles = kernel_set == "sglang" and dtype == "fp8" and gpu.architecture in _FIXED_FP8_TILES
    is_ada = gpu.architecture == "ada"
    return GemmKernel(
        ramp_us=3.0,
        bandwidth_fraction=0.85,
        peak_fraction=0.85,
        load_ratio=5.0,
        tile_k=150.0,
        memory_norm=4.0,
        step_norm=5.0,
        split_us=2.0 if not has_fixed_tiles else 0.0,
        splits=(1, 2, 3, 4, 6, 8) if not has_fixed_tiles else (1,),
        tiles=_FIXED_FP8_TILES[gpu.architecture] if has_fixed_tiles else _COMMON_TILES,
        fit=UNFITTED,
        l2_ratio=2.5 if kernel_set == "torch" else 0.0,
        drain_k=100.0 if kernel_set == "torch" else 0.0,
        wave_rounding=0.6,
        contention=0.2,
        throttle=0.3,
        throttle_us=1000.0,
        quantise_ratio=0.6 if has_fixed_tiles else 0.0,
        padding_ratio=1.5 if has_fixed_tiles and not is_ada else 0.0,
        resident_share=0.9 if has_fixed_tiles and is_ada else 0.0,
    )


_FIXED_FP8_TILES = {"hopper": _HOPPER_FP8_TILES, "ada": _ADA_FP8_TILES}
