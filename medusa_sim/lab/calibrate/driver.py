"""The driver of a fit: a law's errors on rows, its least ones, and those on groups that a refit left out.

Fits of kernels (`fits.FITS`) have three levels, named alike in every module:

- search: tries what is counted or chosen (tiles, splits, styles), each with a refit inside. Once a kernel.
- refit: brings a kernel whose choices are made to some rows. `FitDriver.with_fit` calls it for every fold.
- least squares: one search for the continuous parameters that the rows can tell apart.

To retune one: what a parameter begins with and how far it may go stand in `starts.toml`, what a fit may
spend in its `Budget`, what it tries in the constants of its module. Then `python benchmarks/kernels.py` fits
what ships again, and its studies (`left-out ...`) say whether rows that no fit saw come nearer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from medusa_sim.arrays import FloatArray, IntArray, as_float
from medusa_sim.gpus.fitted import Fit, Residual
from medusa_sim.gpus.gpu import Gpu
from medusa_sim.gpus.kernels import Kernel
from medusa_sim.lab.calibrate.bands import residual_bands
from medusa_sim.lab.calibrate.errors import mape
from medusa_sim.lab.calibrate.rows import OperatorT, Rows, heldout_groups
from medusa_sim.lab.calibrate.search import Limits, least_squares, soft_cost
from medusa_sim.latency.operator_time import OperatorTime
from medusa_sim.operators.kinds import KIND_OF

KernelT = TypeVar("KernelT", bound=Kernel)
UNFITTED = Fit(
    source="being fitted",
    rows=0,
    fit_error=0.0,
    heldout_error=0.0,
    residuals=(Residual(size_max=1.0, low=1.0, high=1.0),),
)
"""Of a kernel on its way to the least objective."""


FOLDS = 5
"""Of most fits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """What a fit may spend and how it is judged: more takes longer, and moves parameters a little."""

    search_rows: int | None = None
    """Rows by which choices are made, drawn evenly over the shapes (`Rows.thin`); None: all."""
    fit_rows: int | None = None
    """Rows of one least squares, drawn as evenly."""
    evaluations: int | None = None
    """How often one least squares may time all rows, slopes not counted; None: until it has converged."""
    band_rows: int = 1
    """The fewest rows of a range of sizes that has a band of its own (`residual_bands`)."""
    folds: int = FOLDS
    """Refits that give the held-out error and the bands, each without a part of the groups."""


@dataclass(frozen=True, slots=True)
class FitDriver(Generic[OperatorT, KernelT]):
    """The law that times a kind of operator on one GPU, and what every fit does with it."""

    gpu: Gpu
    time: Callable[[Gpu, KernelT, OperatorT], OperatorTime]
    """The law, of operators whose operands may be in the cache, as rows were measured."""
    budget: Budget = Budget()

    def time_us(self, kernel: KernelT, rows: Rows[OperatorT]) -> FloatArray:
        """Predicted time of each row."""
        return self.time(self.gpu, kernel, rows.operator).time_us

    def cost(self, kernel: KernelT, rows: Rows[OperatorT]) -> float:
        """The objective."""
        return soft_cost(np.log(self.time_us(kernel, rows) / rows.time_us))

    def best(self, kernels: Iterable[KernelT], rows: Rows[OperatorT]) -> KernelT:
        """The kernel of the least objective."""
        return min(kernels, key=lambda kernel: self.cost(kernel, rows))

    def least_squares(
        self, kernel: KernelT, limits: Limits, rows: Rows[OperatorT], **options: Any
    ) -> KernelT:
        """The kernel with the parameters of `limits` at the least objective, within the budget.

        options: of `search.least_squares`.
        """
        log_time = np.log(rows.time_us)

        def errors(trial: KernelT) -> FloatArray:
            return np.log(self.time_us(trial, rows)) - log_time

        return least_squares(kernel, limits, errors, **{"max_nfev": self.budget.evaluations, **options})

    def with_fit(
        self,
        kernel: KernelT,
        rows: Rows[OperatorT],
        refit: Callable[[KernelT, Rows[OperatorT]], KernelT],
        *,
        source: str,
        groups: IntArray | None = None,
        unseen: float = 0.0,
    ) -> KernelT:
        """The kernel with its `fit`: errors on the rows, and of refits without each fold of the groups.

        refit: gives it for other rows from where it is. groups: a label a row, counted from 0,
        `heldout_groups` where None; those with the same remainder by `Budget.folds` are left out together.
        unseen: by how much one group would widen the bands; more do so as much less.
        """
        groups = heldout_groups(rows) if groups is None else groups
        ends = KIND_OF[rows.operator.kind].ranges
        heldout_us = np.empty_like(rows.time_us)
        folds = self.budget.folds
        for fold in range(min(folds, int(groups.max()) + 1)):
            held: npt.NDArray[np.bool_] = groups % folds == fold
            heldout_us[held] = self.time_us(refit(kernel, rows.where(~held)), rows.where(held))
        size, widen = as_float(rows.operator.size), 1.0 + unseen / (int(groups.max()) + 1)
        fit = Fit(
            source=source,
            rows=len(rows.time_us),
            fit_error=mape(self.time_us(kernel, rows), rows.time_us),
            heldout_error=mape(heldout_us, rows.time_us),
            residuals=residual_bands(rows.time_us, heldout_us, size, ends, self.budget.band_rows, widen),
        )
        return replace(kernel, fit=fit)


def warm(time: Callable[..., OperatorTime]) -> Callable[[Gpu, Any, Any], OperatorTime]:
    """A law with operands that may be in the cache."""
    return partial(time, cold=False)
