"""The driver of a fit: a law's errors on rows, its least ones, and those on groups that a refit left out."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from medusa_sim.arrays import FloatArray, IntArray, as_float
from medusa_sim.lab.calibrate.bands import residual_bands
from medusa_sim.lab.calibrate.errors import mape
from medusa_sim.lab.calibrate.kind_rows import OperatorT, Rows, heldout_groups
from medusa_sim.lab.calibrate.search import Limits, refined, soft_cost
from medusa_sim.latency.operator_time import OperatorTime
from medusa_sim.operators.kinds import KIND_OF
from medusa_sim.specs.fitted import Fit, Residual
from medusa_sim.specs.gpu import Gpu
from medusa_sim.specs.kernels import Kernel

KernelT = TypeVar("KernelT", bound=Kernel)
FOLDS = 5
"""Refits of `Law.with_fit`, each without a part of the groups."""
UNFITTED = Fit(
    source="being fitted",
    rows=0,
    fit_error=0.0,
    heldout_error=0.0,
    residuals=(Residual(size_max=1.0, low=1.0, high=1.0),),
)
"""Of a kernel on its way to the least objective."""


@dataclass(frozen=True, slots=True)
class Law(Generic[OperatorT, KernelT]):
    """The driver of a fit: the law that times a kind of operator on one GPU, and what fits do with it."""

    gpu: Gpu
    time: Callable[[Gpu, KernelT, OperatorT], OperatorTime]
    """The law, of operators whose operands may be in the cache, as rows were measured."""

    def time_us(self, kernel: KernelT, rows: Rows[OperatorT]) -> FloatArray:
        """Predicted time of each row."""
        return self.time(self.gpu, kernel, rows.operator).time_us

    def cost(self, kernel: KernelT, rows: Rows[OperatorT]) -> float:
        """The objective."""
        return soft_cost(np.log(self.time_us(kernel, rows) / rows.time_us))

    def best(self, kernels: Iterable[KernelT], rows: Rows[OperatorT]) -> KernelT:
        """The kernel of the least objective."""
        return min(kernels, key=lambda kernel: self.cost(kernel, rows))

    def refined(self, kernel: KernelT, limits: Limits, rows: Rows[OperatorT], **options: Any) -> KernelT:
        """The kernel with the parameters of `limits` at the least objective, as `refined`."""
        log_time = np.log(rows.time_us)
        return refined(kernel, limits, lambda trial: np.log(self.time_us(trial, rows)) - log_time, **options)

    def with_fit(
        self,
        kernel: KernelT,
        rows: Rows[OperatorT],
        refit: Callable[[KernelT, Rows[OperatorT]], KernelT],
        *,
        source: str,
        groups: IntArray | None = None,
        folds: int = FOLDS,
        least_rows: int = 1,
        unseen: float = 0.0,
    ) -> KernelT:
        """The kernel with its `fit`: errors on the rows, and of refits without each fold of the groups.

        refit: gives it for other rows from where it is. groups: a label a row, counted from 0,
        `heldout_groups` where None; those with the same remainder by `folds` are left out together.
        least_rows: of the bands' ranges of size (`residual_bands`). unseen: by how much one group would widen
        them; more do so as much less.
        """
        groups = heldout_groups(rows) if groups is None else groups
        ends = KIND_OF[rows.operator.kind].ranges
        heldout_us = np.empty_like(rows.time_us)
        for fold in range(min(folds, int(groups.max()) + 1)):
            held: npt.NDArray[np.bool_] = groups % folds == fold
            heldout_us[held] = self.time_us(refit(kernel, rows.where(~held)), rows.where(held))
        size, widen = as_float(rows.operator.size), 1.0 + unseen / (int(groups.max()) + 1)
        bands = residual_bands(rows.time_us, heldout_us, size, ends, least_rows=least_rows, widen=widen)
        fit = Fit(
            source=source,
            rows=len(rows.time_us),
            fit_error=mape(self.time_us(kernel, rows), rows.time_us),
            heldout_error=mape(heldout_us, rows.time_us),
            residuals=bands,
        )
        return msgspec.structs.replace(kernel, fit=fit)


def warm(time: Callable[..., OperatorTime]) -> Callable[[Gpu, Any, Any], OperatorTime]:
    """A law with operands that may be in the cache."""
    return partial(time, cold=False)
