"""Rows of operators -> the same rows with a predicted time, its band, what bounds it and its source."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cache, partial
from typing import TYPE_CHECKING

import numpy as np

from medusa_sim.arrays import IntArray
from medusa_sim.data import DataDir
from medusa_sim.engines.runtime import Runtime
from medusa_sim.errors import SpecError
from medusa_sim.gpus.gpu import Gpu
from medusa_sim.latency.by_name import Fallback, LatencyName, latency_model
from medusa_sim.latency.calibrated import CalibratedLatency
from medusa_sim.latency.model import LatencyModel
from medusa_sim.latency.operator_time import Bound, OperatorTime, Source, names_of
from medusa_sim.operators.columns import CHOICE_COLUMNS, WHOLE_COLUMNS, texts
from medusa_sim.operators.table import operators_of
from medusa_sim.step.compose import step_us

if TYPE_CHECKING:
    import pandas as pd

PREDICTED_COLUMNS = ("predicted_us", "low_us", "high_us", "bound", "source")
CHOSEN_COLUMN = "kernels"
"""Place of the fitted kernel, `set:key`, in tables whose rows name an engine or a kernel."""
GIVEN_PREFIX = "given_"
"""A column of the file that has the name of a predicted one is kept under this prefix."""


def predicted_rows(
    frame: pd.DataFrame,
    gpu: Gpu,
    runtime: Runtime,
    *,
    latency: LatencyName = "calibrated",
    kernels: str | None = None,
    cold: bool = True,
    fallback: Fallback = "refuse",
    data_dir: DataDir = None,
    leave_out: Callable[[str], object] | None = None,
) -> pd.DataFrame:
    """A copy of checked rows (`operators.table.read_rows`) with PREDICTED_COLUMNS, in the same order.

    Each row is one launch (`launched`). kernels None: the set of the row's `engine`, where there is such a
    column, else the runtime's for its dtype; a row may name the `kernel` too. CHOSEN_COLUMN then says which
    kernel it was. cold: whether operands come from HBM. leave_out: told one line of each operator that there
    is no kernel for; its rows are left out.

    Raises:
        SpecError: no kernel set, or no kernel in it, for a row's operator and dtype; with `leave_out` only
            where no row is left.
        CoverageError: `latency="measured"` and a shape that was not recorded.
    """
    columns = tuple(column for column in CHOICE_COLUMNS if column in frame and kernels is None)

    @cache
    def model_of(kernel_set: str, *named: str) -> LatencyModel:
        """The model of a kernel set, for rows that name an engine or a kernel."""
        asked = dict(zip(columns, named, strict=True))
        calibrated = partial(CalibratedLatency, gpu, kernel_set, cold=cold, serves=runtime.library, **asked)
        return latency_model(gpu, latency, calibrated, fallback=fallback, data_dir=data_dir)

    found: list[tuple[IntArray, OperatorTime]] = []
    refused: list[IntArray] = []
    for index, operator in operators_of(frame, by=columns):
        named = [str(texts(frame, column, index[:1])[0]) for column in columns]
        try:
            kernel_set = kernels or runtime.kernel_set(operator.dtype)
            time = launched(runtime, model_of(kernel_set, *named).time(operator))
        except SpecError as error:
            refused.append(index)
            if leave_out is None or sum(map(len, refused)) == len(frame):
                raise
            leave_out(str(error))
            continue
        place = time.place or (kernel_set if latency == "calibrated" else latency)
        found.append((index, replace(time, place=place)))
    predicted = _with_times(frame, found, says_kernels=bool(columns))
    if not refused:
        return predicted
    return predicted.drop(index=predicted.index[np.concatenate(refused)]).reset_index(drop=True)


def launched(runtime: Runtime, kernel: OperatorTime) -> OperatorTime:
    """A kernel that is launched by itself: with the gap before it, and what launching it takes the host."""
    gap_us, host_us = runtime.launch_us, runtime.host_us_per_launch
    bound = np.where(gap_us > kernel.time_us, np.int8(Bound.LATENCY), kernel.bound)
    bound = np.where(host_us > kernel.time_us + gap_us, np.int8(Bound.HOST), bound)
    time_us, low_us, high_us = (
        step_us(us + gap_us, host_us) for us in (kernel.time_us, kernel.low_us, kernel.high_us)
    )
    return replace(kernel, time_us=time_us, low_us=low_us, high_us=high_us, bound=bound)


def _with_times(
    frame: pd.DataFrame, found: Iterable[tuple[IntArray, OperatorTime]], *, says_kernels: bool
) -> pd.DataFrame:
    """The rows with PREDICTED_COLUMNS, and CHOSEN_COLUMN where that is asked for."""
    time_us, low_us, high_us = (np.empty(len(frame)) for _ in range(3))
    bound, source = (np.zeros(len(frame), dtype=np.int8) for _ in range(2))
    places = np.full(len(frame), "", dtype=object)
    for index, time in found:
        time_us[index], low_us[index], high_us[index] = time.time_us, time.low_us, time.high_us
        bound[index], source[index], places[index] = time.bound, time.source, time.place
    chosen = {CHOSEN_COLUMN: places} if says_kernels else {}
    given = frame.rename(columns={name: f"{GIVEN_PREFIX}{name}" for name in (*PREDICTED_COLUMNS, *chosen)})
    return given.assign(
        # sizes as integers again, blank where they were blank
        **{column: given[column].astype("Int64") for column in WHOLE_COLUMNS if column in given},
        predicted_us=time_us,
        low_us=low_us,
        high_us=high_us,
        bound=names_of(bound, Bound),
        source=names_of(source, Source),
        **chosen,
    )
