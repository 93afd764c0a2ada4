"""Device, host and engine -> the time of a step: the one place where they are put together.

    t = |device, launching host|_3 + exposed
        device   kernels, and the gaps between them
        host     what launching them takes the host, which works ahead of the device
        exposed  what an engine adds after or before its kernels and hides behind nothing

Everything that prices a step (one step, a grid, rows of operators, a search) adds `Cost`s and reads
`time_us`; no other module knows this law.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np

from medusa_sim.arrays import FloatArray, IntArray
from medusa_sim.latency.waves import norm_max
from medusa_sim.operators.operator import Size
from medusa_sim.specs.runtime import Runtime

HOST_OVERLAP = 3.0
"""Exponent of the smooth maximum of device and host: 1 adds, infinity overlaps perfectly.

From the plain steps of the Medusa paper (arXiv 2401.10774): Table 1 alone asks for 2.7, Table 4 for 4.8
(`medusa-sim reproduce table1-rates`, docs/method.md, runtime).
"""

Pass = Literal["target", "draft", "continued"]
"""A forward pass of the target, one of a drafter, or kernels that continue the pass before them (heads)."""


def step_us(
    device_us: FloatArray, host_us: FloatArray | float, exposed_us: FloatArray | float = 0.0
) -> FloatArray:
    """Microseconds of a step: |device, host|_p + exposed with p = HOST_OVERLAP; arrays broadcast.

    Never below the longer of device and host; at most 26 % above it, where both take as long, since each
    then waits for the other now and again.
    """
    device, host = np.asarray(device_us), np.asarray(host_us)
    overlapped = norm_max(device, host, HOST_OVERLAP) if host.any() else device
    return np.asarray(overlapped + exposed_us)


@dataclass(frozen=True, kw_only=True, eq=False)
class Cost:
    """What a step takes, before device, host and engine are put together; microseconds, shapes broadcast.

    device_us, host_us, exposed_us: as in `step_us`. below_us, above_us: half-widths of the 80 % band of
    device_us. Costs of passes one after another add with `+`; their errors are taken as independent.
    """

    device_us: FloatArray
    host_us: FloatArray
    exposed_us: FloatArray
    below_us: FloatArray
    above_us: FloatArray

    @cached_property
    def time_us(self) -> FloatArray:
        """Device, host and engine together."""
        return step_us(self.device_us, self.host_us, self.exposed_us)

    @cached_property
    def low_us(self) -> FloatArray:
        """Lower end of the 80 % band."""
        return step_us(self.device_us - self.below_us, self.host_us, self.exposed_us)

    @cached_property
    def high_us(self) -> FloatArray:
        """Upper end of the 80 % band."""
        return step_us(self.device_us + self.above_us, self.host_us, self.exposed_us)

    def __add__(self, other: Cost) -> Cost:
        """Both one after the other."""
        return Cost(
            device_us=self.device_us + other.device_us,
            host_us=self.host_us + other.host_us,
            exposed_us=self.exposed_us + other.exposed_us,
            below_us=np.hypot(self.below_us, other.below_us),
            above_us=np.hypot(self.above_us, other.above_us),
        )

    def at(self, index: IntArray) -> Cost:
        """The entries `index` of the last axis; what does not vary along it stays as it is."""
        return Cost(
            device_us=_along(self.device_us, index),
            host_us=_along(self.host_us, index),
            exposed_us=_along(self.exposed_us, index),
            below_us=_along(self.below_us, index),
            above_us=_along(self.above_us, index),
        )


def _along(values: FloatArray, index: IntArray) -> FloatArray:
    if values.ndim == 0 or values.shape[-1] == 1:
        return values
    return np.take(values, index, axis=-1)


def host_and_exposed_us(
    runtime: Runtime, kernels: int, of: Pass, batch: Size, query_tokens: Size
) -> tuple[FloatArray, FloatArray]:
    """(host, exposed) microseconds of one pass of `kernels` launches over batch x query_tokens tokens.

    host = launches x host_us_per_launch, and host_us_per_step for a forward pass of its own. exposed: what
    an engine takes for each step, sequence and emitted token less what it hides, and for each draft pass.
    """
    own_pass = of != "continued"
    host = kernels * runtime.host_us_per_launch + own_pass * runtime.host_us_per_step
    del batch, query_tokens
    return np.asarray(host), np.zeros(())
