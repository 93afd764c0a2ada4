"""Fits and operators made up for tests of laws, and the tile that a library is expected to take."""

import numpy as np

from medusa_sim.arrays import IntArray
from medusa_sim.gpus.fitted import Fit, Residual
from medusa_sim.gpus.fitted_attention import AttentionPath
from medusa_sim.gpus.gpu import Gpu
from medusa_sim.gpus.kernels import GemmKernel
from medusa_sim.latency.gemm import gemm_choice
from medusa_sim.operators.gemm import Gemm
from medusa_sim.operators.latent import LatentAttention, LatentKind
from medusa_sim.operators.operator import Size


def made_up_fit(
    *bands: tuple[float, float, float], rows: int = 1, errors: tuple[float, float] = (0.0, 0.0)
) -> Fit:
    """A fit with these bands (size_max, low, high); errors: on the rows and held out."""
    return Fit(
        source="made up for tests",
        rows=rows,
        fit_error=errors[0],
        heldout_error=errors[1],
        residuals=tuple(Residual(size_max=size, low=low, high=high) for size, low, high in bands),
    )


def latent(kind: LatentKind = "mla_decode", **sizes: Size) -> LatentAttention:
    """One sequence of 1,024 cached tokens and 16 heads unless said otherwise."""
    given: dict[str, Size] = {"batch": 1, "q_len": 1, "kv_len": 1024, "heads": 16, **sizes}
    return LatentAttention(
        name=kind, kind=kind, dtype="bf16", batch=given["batch"], q_len=given["q_len"],
        kv_len=given["kv_len"], heads=given["heads"],
    )  # fmt: skip


def chosen_tile(gpu: Gpu, kernel: GemmKernel, operator: Gemm) -> tuple[IntArray, IntArray, IntArray]:
    """tile_m, tile_n and split of k for every shape of the operator."""
    candidates = np.asarray([(tile.m, tile.n, split) for tile in kernel.tiles for split in kernel.splits])
    tile_m, tile_n, split = np.moveaxis(candidates[gemm_choice(gpu, kernel, operator)], -1, 0)
    return tile_m, tile_n, split


FIT = made_up_fit((4096.0, 0.9, 1.1), rows=20, errors=(0.05, 0.06))
PATH = AttentionPath(
    ramp_us=7.0, tile_rows=64, tile_keys=64, packs_gqa=True, ctas_per_sm=1, sharing=0.5, cta_us=3.0,
    row_us=0.01, whole_fraction=0.6, split_fraction=0.7, split_above=128, split_us=2.0, split_step_us=0.4,
    bandwidth_fraction=0.9, l2_ratio=2.0, l2_fill=0.8, l2_sharpness=8.0, store_passes=0.0, append_ratio=0.0,
)  # fmt: skip
