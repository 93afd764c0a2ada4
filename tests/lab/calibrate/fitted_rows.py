"""Rows of products for fits."""

import numpy as np

from medusa_sim.gpus.gpu import load_gpu
from medusa_sim.lab.calibrate.rows import Rows
from medusa_sim.operators.gemm import Gemm

GPU = load_gpu("a100-80gb-pcie")


def gemm(m: object, n: object = 4096.0, k: object = 4096.0) -> Gemm:
    m, n, k = (np.asarray(each, dtype=float) for each in np.broadcast_arrays(m, n, k))
    return Gemm(name="rows", m=m, n=n, k=k, dtype="fp16")


def of(time_us: object, **sizes: object) -> Rows[Gemm]:
    return Rows(gemm(**sizes), np.asarray(time_us, dtype=float))
