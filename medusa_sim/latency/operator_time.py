"""The time of a launch: how long, how sure, what bounds it and who says so."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from medusa_sim.arrays import BoolArray, FloatArray
from medusa_sim.gpus.fitted import UNSEEN_TOGETHER

CodeArray: TypeAlias = npt.NDArray[np.int8]


class Bound(IntEnum):
    """What bounds the time of a kernel."""

    MEMORY = 0
    COMPUTE = 1
    LATENCY = 2
    """The fixed ramp of starting and draining kernels, or the gaps between them, take the largest share."""
    HOST = 3
    """The host cannot launch kernels as fast as the device finishes them (whole steps only)."""


class Source(IntEnum):
    """Where a time comes from, most trustworthy first. Merging takes the worst. Never defaulted."""

    MEASURED = 0
    INTERPOLATED = 1
    CALIBRATED = 2
    BORROWED = 3
    """Fitted to another GPU, or to another library's kernel, whose efficiencies are carried over
    (`gpus.inheritance`)."""
    EXTRAPOLATED = 4
    """A fitted kernel beyond what its rows had: weights or K and V stored in another width, whose unpacking
    nobody measured; experts spread over several GPUs; several queries of latent attention."""
    ROOFLINE = 5


def names_of(codes: CodeArray, enum: type[Bound | Source]) -> npt.NDArray[np.str_]:
    """Names of codes in lower case."""
    return np.asarray([code.name.lower() for code in enum])[codes]


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorTime:
    """Time of one launch of an operator, for every shape it holds; arrays broadcast against that shape."""

    time_us: FloatArray
    """Predicted time."""
    low_us: FloatArray
    """Lower end of the band that holds 80 % of the held-out residuals."""
    high_us: FloatArray
    """Upper end."""
    bound: CodeArray
    """`Bound` codes."""
    source: CodeArray
    """`Source` codes."""
    place: str = ""
    """Place of the fitted kernel, `set:key`, where it was chosen among several (`latency.choice.choose`)."""
    device_half: float = 0.0
    """Half-width, in the logarithm, of the error that all kernels on the device share: it cancels in ratios
    of their times. Where it is not 0, the rest of the band is shared by all of them, too."""
    together: float = UNSEEN_TOGETHER
    """Of a borrowed kernel, the part of its band that all kernels of its kind share (`Fit.together`)."""

    @property
    def set_name(self) -> str:
        """Kernel set of the fitted kernel (of `place`)."""
        return self.place.partition(":")[0]

    @property
    def key(self) -> str:
        """Key of the fitted kernel in its set (of `place`)."""
        return self.place.partition(":")[2]

    def every(self, change: Callable[[npt.NDArray[Any]], npt.NDArray[Any]]) -> OperatorTime:
        """With every array, codes too, replaced by what `change` makes of it."""
        return replace(
            self,
            time_us=change(self.time_us),
            low_us=change(self.low_us),
            high_us=change(self.high_us),
            bound=change(self.bound),
            source=change(self.source),
        )

    def broadcast(self) -> OperatorTime:
        """With a bound and a source for every time."""
        return self.every(lambda values: np.broadcast_to(values, self.time_us.shape))

    def joined(self, other: OperatorTime) -> OperatorTime:
        """Times of one kernel along one axis, then the other's; both are broadcast."""
        return replace(
            self,
            time_us=np.concatenate([self.time_us, other.time_us]),
            low_us=np.concatenate([self.low_us, other.low_us]),
            high_us=np.concatenate([self.high_us, other.high_us]),
            bound=np.concatenate([self.bound, other.bound]),
            source=np.concatenate([self.source, other.source]),
        )

    def mapped(self, change: Callable[[FloatArray], FloatArray]) -> OperatorTime:
        """With the time and both ends of its band replaced by what `change` makes of them."""
        return replace(
            self, time_us=change(self.time_us), low_us=change(self.low_us), high_us=change(self.high_us)
        )


def replaced_where(time: OperatorTime, other: OperatorTime, where: BoolArray) -> OperatorTime:
    """The time, with those of another where `where` holds; the shapes broadcast.

    Of two borrowed kernels the whole is off together with its kind as the more so of them is.
    """
    names = ("time_us", "low_us", "high_us", "bound", "source")
    chosen = {name: np.where(where, getattr(other, name), getattr(time, name)) for name in names}
    return replace(time, **chosen, together=max(time.together, other.together))
