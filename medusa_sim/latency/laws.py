"""Times of one fitted kernel, by kind of operator.

A kind without an entry is a stream: bytes, FLOPs and steps by class (`latency.stream`).
Kinds of which a set has one kernel for each name, or of which several kernels share a time, are the latency
model's own (`latency.calibrated`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

import numpy as np

from medusa_sim.gpus.gpu import Gpu
from medusa_sim.gpus.kernels import GemmKernel, SerialGemm, without_clusters
from medusa_sim.latency.collective import collective_time
from medusa_sim.latency.dispatch import dispatch_time
from medusa_sim.latency.gemm import gemm_time
from medusa_sim.latency.latent import latent_time
from medusa_sim.latency.moe import experts_time
from medusa_sim.latency.operator_time import OperatorTime
from medusa_sim.latency.serial import serial_gemm_time
from medusa_sim.latency.stream import stream_time
from medusa_sim.operators.gemm import Gemm
from medusa_sim.operators.kinds import COLLECTIVE, DISPATCH, EXPERTS, LATENT, LINEAR, Kind


class Law(Protocol):
    """Time of one launch of an operator by one fitted kernel, each of its own class."""

    def __call__(self, gpu: Gpu, kernel: Any, operator: Any, *, cold: bool) -> OperatorTime:
        """Time for every shape that the operator holds.

        cold: as in a step. Operands come from HBM, and nothing is faster than the roofline; requests have
        unequal lengths (A8 to A10); the host is its runtime's (F4); a larger message is never faster (C4).
        Else as rows were measured: one operator over and over, whose operands may lie in L2.
        """
        ...


def linear_time(
    gpu: Gpu, kernel: GemmKernel | SerialGemm, operator: Gemm, *, cold: bool, form: str
) -> OperatorTime:
    """Time of one linear layer, on a device of either kind."""
    if isinstance(kernel, GemmKernel):
        return gemm_time(gpu, kernel, operator, cold=cold, form=form)
    return serial_gemm_time(gpu, kernel, operator)


def in_another_library(
    gpu: Gpu, kernel: GemmKernel, operator: Gemm, time: OperatorTime, *, form: str
) -> OperatorTime:
    """A library's clusters may not be another's: the band reaches to what blocks launched alone take.

    SGLang's fp8 layers on Hopper compute 512 rows for 257. vLLM's source has the same clusters, others choose
    by shape, and nobody measured either.
    """
    alone = without_clusters(kernel)
    if alone is kernel:
        return time
    alone_us = gemm_time(gpu, alone, operator, form=form).time_us
    less = np.log(time.time_us / time.low_us), np.log(np.maximum(time.time_us / alone_us, 1.0))
    return replace(time, low_us=time.time_us * np.exp(-np.hypot(*less)))


LAWS: dict[Kind, Callable[..., OperatorTime]] = {
    LINEAR: linear_time,
    EXPERTS: experts_time,
    LATENT: latent_time,
    COLLECTIVE: collective_time,
    DISPATCH: dispatch_time,
}
"""All others but those of streams."""
_ASK_FORMAT = (LINEAR, EXPERTS)
"""Kinds whose law asks in which numeric format a kernel was fitted: it may time another one's operators."""


def law_of_kind(kind: Kind, form: str) -> Law:
    """The law of a kind's kernels that were fitted in this numeric format."""
    law = LAWS.get(kind, stream_time)
    return partial(law, form=form) if kind in _ASK_FORMAT else law
