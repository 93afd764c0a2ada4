"""Device, host and engine -> the time of a step: the one place where they are put together.

    t = |device, launching host|_3 + exposed
        device   kernels, and the gaps between them
        host     what launching them takes the host, which works ahead of the device
        exposed  what an engine adds before or after its kernels, while the device waits (`step/host.py`)

Everything that prices a step (one step, a grid, rows of operators, a search) adds `Cost`s and reads
`time_us`, or hands the three to `step_us`. What prompts add has its own device and host (N8).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from functools import cached_property

import numpy as np

from medusa_sim.arrays import FloatArray, Halves, IntArray, in_quadrature
from medusa_sim.step.host import overlapped_us

RATIO_SHARE = 0.5
"""Share of the combined error of kernels and engine that survives in a ratio of two steps, for 80 %.

With it the bands hold 81 % of 151 published speedups, each predicted without its source; with one source left
out of this choice the others ask for 0.5 to 0.7 (`python benchmarks/engine_fit.py`). The rows do not tell
shares of kernels and of terms apart (benchmarks/log).
"""
LEAST_SHARE = 0.1
"""Of a step's time: the error of its set-up takes the lower end of its band no further down."""


def step_us(
    device_us: FloatArray, host_us: FloatArray | float, exposed_us: FloatArray | float = 0.0
) -> FloatArray:
    """Microseconds of a step: |device, host|_3 + exposed (`overlapped_us`); arrays broadcast."""
    device, host = np.asarray(device_us), np.asarray(host_us)
    launched = overlapped_us(device, host) if host.any() else device
    return np.asarray(launched + exposed_us) if np.any(exposed_us) else launched


def _nothing() -> FloatArray:
    return np.zeros(())


@dataclass(frozen=True, kw_only=True, eq=False)
class Cost:
    """What a step takes, before device, host and engine are put together; microseconds, shapes broadcast.

    Costs of passes one after another add with `+`; their errors are taken as independent, but for that of the
    set-up, which they share.
    """

    device_us: FloatArray = field(default_factory=_nothing)
    """Kernels and the gaps between them."""
    host_us: FloatArray = field(default_factory=_nothing)
    """The host that launches them, ahead of the device."""
    exposed_us: FloatArray = field(default_factory=_nothing)
    """What adds to both."""
    below_square: FloatArray = field(default_factory=_nothing)
    """Squared half-width of the 80 % band of `device_us`, downwards."""
    above_square: FloatArray = field(default_factory=_nothing)
    """The same upwards."""
    step_square: FloatArray = field(default_factory=_nothing)
    """The same of what an engine adds to every step."""
    draft_square: FloatArray = field(default_factory=_nothing)
    """The same of what it adds to a step that drafts."""
    setup_half_us: FloatArray = field(default_factory=_nothing)
    """Half-width by which steps of a set-up differ from those of others, plain and drafting alike, so that no
    ratio has it."""
    gain_square: FloatArray = field(default_factory=_nothing)
    """Squared half-width, on the logarithm, by which rounds of other sources differ from an engine's terms
    beside what their plain steps do: of a round, and of its ratio to a plain step."""

    @cached_property
    def time_us(self) -> FloatArray:
        """Device, host and engine together."""
        return step_us(self.device_us, self.host_us, self.exposed_us)

    @cached_property
    def low_us(self) -> FloatArray:
        """Lower end of the 80 % band."""
        low_us = self._low_us
        if not self.setup_half_us.any() and not self.gain_square.any():
            return low_us
        of_round_us = self._as_a_round(self.time_us - low_us, -np.expm1(-np.sqrt(self.gain_square)))
        below_us = np.sqrt(of_round_us**2 + self.setup_half_us**2)
        return np.maximum(self.time_us - below_us, np.minimum(low_us, LEAST_SHARE * self.time_us))

    @property
    def _low_us(self) -> FloatArray:
        low_us = self._fast_us
        if not self.has_engine_band:
            return low_us
        below_us = np.sqrt((self.time_us - low_us) ** 2 + self.engine_square)
        # an engine adds nothing negative: kernels alone, at their fastest, are the floor
        floor_us = np.minimum(low_us, step_us(self._fast_device_us, self.host_us))
        return np.maximum(self.time_us - below_us, floor_us)

    @cached_property
    def high_us(self) -> FloatArray:
        """Upper end of the 80 % band."""
        high_us = self._slow_us
        if not self.has_engine_band and not self.setup_half_us.any() and not self.gain_square.any():
            return high_us
        own_us = np.sqrt((high_us - self.time_us) ** 2 + self.engine_square)
        of_round_us = self._as_a_round(own_us, np.expm1(np.sqrt(self.gain_square)))
        return np.asarray(self.time_us + np.sqrt(of_round_us**2 + self.setup_half_us**2))

    def _as_a_round(self, own_us: FloatArray, gain: FloatArray) -> FloatArray:
        """A half-width of kernels and engine, at least that by which the ratio to a plain step errs.

        What both steps have in common errs in the plain step, so that a round is no surer than their ratio.
        gain: of the ratio, as a share of the step.
        """
        return np.maximum(own_us, in_quadrature(RATIO_SHARE * own_us, gain * self.time_us))

    @property
    def kernel_halves(self) -> Halves:
        """Half-widths of the step by the band of its kernels alone."""
        return Halves.within(self._fast_us, self.time_us, self._slow_us)

    @property
    def halves(self) -> Halves:
        """Half-widths of the step."""
        return Halves.within(self.low_us, self.time_us, self.high_us)

    @cached_property
    def _slow_us(self) -> FloatArray:
        """With kernels at the upper end of their band."""
        return step_us(self.device_us + np.sqrt(self.above_square), self.host_us, self.exposed_us)

    @cached_property
    def _fast_us(self) -> FloatArray:
        """With kernels at the lower end of their band."""
        return step_us(self._fast_device_us, self.host_us, self.exposed_us)

    @property
    def _fast_device_us(self) -> FloatArray:
        return np.asarray(self.device_us - np.sqrt(self.below_square))

    @property
    def has_engine_band(self) -> bool:
        """Whether an engine adds anything uncertain."""
        return bool(self.step_square.any() or self.draft_square.any())

    @property
    def engine_square(self) -> FloatArray:
        """Squared half-width of what an engine adds."""
        return np.asarray(self.step_square + self.draft_square)

    def __add__(self, other: Cost) -> Cost:
        """Both one after the other."""
        return Cost(**{name: getattr(self, name) + getattr(other, name) for name in COST_FIELDS})

    def mapped(self, change: Callable[[FloatArray], FloatArray]) -> Cost:
        """The cost with every array replaced by what `change` makes of it."""
        return Cost(**{name: change(getattr(self, name)) for name in COST_FIELDS})


COST_FIELDS = tuple(entry.name for entry in fields(Cost))


def along(values: FloatArray, index: IntArray | slice) -> FloatArray:
    """The entries `index` of the last axis; what does not vary along it stays as it is."""
    if values.ndim == 0 or values.shape[-1] == 1:
        return values
    return np.asarray(values[..., index])


def overhead_halves(step: Cost, plain: Cost) -> Halves:
    """Half-widths of the overhead step / plain.

    The kernels' band is that of `step`, alone where no engine adds anything. What an engine adds to every
    step moves the ratio by the difference of its shares in the two, what drafting adds by its own. Of both
    RATIO_SHARE counts: an engine's two steps read the same weights and K and V, so that part of the error of
    their kernels is common and cancels, and terms fitted to the same steps err against each other. Both
    are joined by what rounds of other sources with that kind of drafter miss by (`gain_square`).
    """
    kernels = step.kernel_halves
    if not (step.has_engine_band or plain.has_engine_band):
        return kernels
    shared = np.sqrt(step.step_square) / step.time_us - np.sqrt(plain.step_square) / plain.time_us
    engine = in_quadrature(shared, np.sqrt(step.draft_square) / step.time_us)
    gain = np.sqrt(step.gain_square)
    return Halves(*(in_quadrature(RATIO_SHARE * in_quadrature(half, engine), gain) for half in kernels))
