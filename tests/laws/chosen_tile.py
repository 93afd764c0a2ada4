"""The tile that a library is expected to take, in words of the kernel."""

import numpy as np

from medusa_sim.arrays import IntArray
from medusa_sim.latency.gemm import gemm_choice
from medusa_sim.operators.operator import Gemm
from medusa_sim.specs.gpu import Gpu
from medusa_sim.specs.kernels import GemmKernel


def chosen_tile(gpu: Gpu, kernel: GemmKernel, operator: Gemm) -> tuple[IntArray, IntArray, IntArray]:
    """tile_m, tile_n and split of k for every shape of the operator."""
    candidates = np.asarray([(tile.m, tile.n, split) for tile in kernel.tiles for split in kernel.splits])
    tile_m, tile_n, split = np.moveaxis(candidates[gemm_choice(gpu, kernel, operator)], -1, 0)
    return tile_m, tile_n, split
