"""The kernels with which the Medusa paper's operators are predicted, on each of its three GPUs."""

from __future__ import annotations

import dataclasses

import msgspec

from medusa_sim.data import DataDir
from medusa_sim.errors import SpecError
from medusa_sim.latency.calibrated import CalibratedLatency
from medusa_sim.reproduce.published import PAPER_GPU
from medusa_sim.specs.gpu import Gpu, load_gpu
from medusa_sim.specs.kernels import KernelSet

PAPER_SET = "paper"
MEASURED_SET = "torch"
_DTYPE = "fp16"


def paper_latency(gpu: Gpu, data_dir: DataDir = None) -> CalibratedLatency:
    """The `paper` kernel set of a GPU, or what stands in for it where the paper prints no times.

    The paper prints operator times for the A100 only. On another GPU the linear layers are those
    fitted to that GPU's own measured rows (set `torch`), the attention products have the A100's
    efficiencies, and both keep the A100 rows' cost of an eager launch. `fit.inherited_from` says so.
    Raises SpecError where the A100 has no `paper` set or the GPU no measured linear layers.
    """
    if PAPER_SET in gpu.kernels:
        return CalibratedLatency(gpu, PAPER_SET)
    a100 = load_gpu(PAPER_GPU, data_dir)
    paper, measured = a100.kernel_set(PAPER_SET), a100.kernel_set(MEASURED_SET)
    own = gpu.kernel_set(MEASURED_SET).gemm
    if _DTYPE not in own or _DTYPE not in paper.gemm or _DTYPE not in measured.gemm or paper.unfused is None:
        raise SpecError(
            f"{gpu.name}: the paper's figures need {_DTYPE} linear layers fitted for it and for {PAPER_GPU}; "
            "fit them: medusa-sim calibrate"
        )
    launch_us = max(0.0, paper.gemm[_DTYPE].ramp_us - measured.gemm[_DTYPE].ramp_us)
    linear = msgspec.structs.replace(own[_DTYPE], ramp_us=own[_DTYPE].ramp_us + launch_us)
    products = msgspec.structs.replace(
        paper.unfused,
        fit=msgspec.structs.replace(paper.unfused.fit, inherited_from=f"{PAPER_GPU}:{PAPER_SET}"),
    )
    stand_in = KernelSet(gemm={_DTYPE: linear}, unfused=products)
    return CalibratedLatency(
        dataclasses.replace(gpu, kernels={**gpu.kernels, PAPER_SET: stand_in}), PAPER_SET
    )


def paper_roof(gpu: Gpu) -> Gpu:
    """The GPU with the peaks that the paper draws (181 TFLOP/s for the RTX A6000), for roofs only."""
    return dataclasses.replace(gpu, peak_flops_per_s={**gpu.peak_flops_per_s, **gpu.paper_peak_flops_per_s})
