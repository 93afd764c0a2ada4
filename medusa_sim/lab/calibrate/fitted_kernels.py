"""A table of measured rows -> fitted kernels of every operator and dtype that it holds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from medusa_sim.arrays import as_float
from medusa_sim.errors import DataError
from medusa_sim.gpus.gpu import Gpu
from medusa_sim.lab.calibrate.fits import fitter
from medusa_sim.lab.calibrate.hardware_file import FittedKernel
from medusa_sim.lab.calibrate.rows import Rows
from medusa_sim.lab.calibrate.transfer import fit_linear
from medusa_sim.lab.calibrate.unfused import fit_unfused
from medusa_sim.lab.measure.shapes import LEAST_ROWS
from medusa_sim.latency.choice import NAME_MARK
from medusa_sim.latency.roofline import roofline_time_us
from medusa_sim.operators.attention import UNFUSED_KINDS, Attention
from medusa_sim.operators.columns import texts
from medusa_sim.operators.experts import Experts
from medusa_sim.operators.gemm import Gemm
from medusa_sim.operators.kinds import KIND_OF, LINEAR, operator_of
from medusa_sim.operators.stream import Stream
from medusa_sim.operators.table import operators_of

if TYPE_CHECKING:
    import pandas as pd


_START_SET = "torch"
SUSPECT_COLUMN = "suspect"
"""Column in which whoever recorded a row says why it cannot be trusted."""
NAMED = (Gemm, Experts, Stream)
"""Operators whose rows may name a kernel of the library, each with a fit of its own."""


def fitted_kernels(
    frame: pd.DataFrame,
    gpu: Gpu,
    source: str,
    *,
    kernel_set: str = _START_SET,
    leave_out: Callable[[str], object] | None = None,
) -> Iterator[FittedKernel]:
    """Fit each operator of checked rows with times (`read_rows(..., need_time=True)`), one after another.

    source: one line that is stored with the parameters. kernel_set: the library, whose tiles a fit begins
    with. Attention and elementwise kernels of different 16-bit dtypes are one kernel. Linear layers of one
    weight shape cannot tell a ramp from a bandwidth: they start from what was fitted to measured linear
    layers of the same GPU, with the ramp of the unfused one-row products among the rows, as the Medusa
    paper's Tables 6 and 8 need. leave_out: told one line of each operator with too few rows or shapes for a
    fit, which is passed over, and of rows that are not used; without it such an operator ends the fits. Where
    rows name the kernel of the library, each is fitted for itself.

    Raises:
        DataError: too few rows or shapes for a fit.
    """
    frame = _usable(frame, gpu.name, kernel_set, leave_out)
    groups = list(_groups(frame, gpu))
    unfused = [rows for rows, _ in groups if rows.operator.kind in UNFUSED_KINDS]
    ramp_us = None
    if unfused:
        try:
            products = fit_unfused(_joined(unfused), gpu, source=source)
        except DataError as error:
            _left_out(error, leave_out)
        else:
            ramp_us = products.vector_ramp_us
            yield FittedKernel(section="unfused", key="", kernel=products)
    for rows, is_own in groups:
        if rows.operator.kind in UNFUSED_KINDS:
            continue
        kind = KIND_OF[rows.operator.kind]
        section, key = kind.place(rows.operator, gpu.architecture)
        fit = fitter(kind, gpu.architecture)
        if section == LINEAR.section:
            fit = partial(fit_linear, kernel_set=kernel_set, ramp_us=ramp_us)
        try:
            kernel = fit(rows, gpu, source=source)
        except DataError as error:
            _left_out(error, leave_out)
        else:
            mark = "" if is_own else f"{NAME_MARK}{rows.kernel}"
            yield FittedKernel(section=section, key=f"{key}{mark}", kernel=kernel)


def _usable(
    frame: pd.DataFrame, gpu: str, kernel_set: str, leave_out: Callable[[str], object] | None
) -> pd.DataFrame:
    """Rows with an empty `suspect`, of this GPU and of the engine that the set is named after, if any.

    What is left out is told. Raises DataError where nothing is left.
    """
    kept = np.ones(len(frame), dtype=np.bool_)
    if SUSPECT_COLUMN in frame:
        suspect = texts(frame, SUSPECT_COLUMN) != ""
        if suspect.any() and leave_out is not None:
            leave_out(f"{int(suspect.sum())} rows with a word in the column {SUSPECT_COLUMN}")
        kept &= ~suspect
    for column, name in (("gpu", gpu), ("engine", kernel_set)):
        if column in frame and (named_so := texts(frame, column) == name).any():
            if not named_so.all() and leave_out is not None:
                leave_out(f"{int((~named_so).sum())} rows of other {column}s than {name}")
            kept &= named_so
    if not kept.any():
        raise DataError(f"no rows left of {len(frame)} for kernel set {kernel_set!r}; give rows to fit")
    return frame if kept.all() else frame[kept].reset_index(drop=True)


def _groups(frame: pd.DataFrame, gpu: Gpu) -> Iterator[tuple[Rows[Any], bool]]:
    """Rows by operator, format and, where a library names its kernels, by kernel; whether that is its own.

    Of several kernels for one format the library's own is the fastest, of the least median of time over
    roofline, among those with at least half as many rows as any. Where none of what streams has rows enough
    for a fit, they are one kernel without a name, whose parts the library takes by the number of tokens.
    """
    times = frame["time_us"].to_numpy(dtype=np.float64)
    for index, operator in operators_of(frame):
        if not isinstance(operator, NAMED) or "kernel" not in frame:
            yield Rows(operator, times[index]), True
            continue
        rows = frame.iloc[index].reset_index(drop=True)
        if isinstance(operator, Stream) and rows["kernel"].value_counts().max() < LEAST_ROWS:
            yield Rows(operator, times[index]), True
            continue
        parts = []
        for part, of_kernel in operators_of(rows, by=("kernel",)):
            time_us = times[index][part]
            name = str(texts(rows, "kernel", part[:1])[0])
            slowness = float(np.median(time_us / roofline_time_us(gpu, of_kernel)))
            parts.append((slowness, Rows(of_kernel, time_us, name)))
        most = max(own.time_us.size for _, own in parts)
        fastest = min(slowness for slowness, own in parts if 2 * own.time_us.size >= most)
        yield from ((own, slowness == fastest) for slowness, own in parts)


def _left_out(error: DataError, leave_out: Callable[[str], object] | None) -> None:
    if leave_out is None:
        raise error
    leave_out(str(error))


def _joined(groups: list[Rows[Any]]) -> Rows[Attention]:
    """QK^T and PV rows together: both products cost the same."""
    dtypes = {rows.operator.dtype for rows in groups}
    if len(dtypes) > 1:
        raise DataError(f"unfused attention rows of {', '.join(sorted(dtypes))}: fit one dtype at a time")
    sizes = {
        name: np.concatenate([as_float(rows.operator.sizes[name]) for rows in groups])
        for name in Attention.COLUMNS
    }
    both = cast("Attention", operator_of("qk", dtypes.pop(), sizes))
    return Rows(both, np.concatenate([rows.time_us for rows in groups]))
