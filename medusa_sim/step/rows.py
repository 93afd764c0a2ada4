"""Rows of operators -> the same rows with a predicted time, its band, what bounds it and its source."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from medusa_sim.data import DataDir
from medusa_sim.errors import SpecError
from medusa_sim.latency.base import Bound, LatencyModel, Source, labels
from medusa_sim.latency.by_name import Fallback, LatencyName, latency_model
from medusa_sim.operators.columns import CHOICE_COLUMNS, WHOLE_COLUMNS, texts
from medusa_sim.operators.table import operators_of
from medusa_sim.specs.gpu import Gpu
from medusa_sim.specs.runtime import Runtime
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

    Each row is one launch: kernel time plus the runtime's gap, and what launching it takes the host
    (`compose.step_us`).
    kernels None: the set of the row's `engine`, where there is such a column, else the runtime's for its
    dtype; a row may name the `kernel` too. CHOSEN_COLUMN then says which kernel it was. cold: whether
    operands come from HBM. leave_out: told one line of each operator that there is no kernel for; its rows
    are left out.

    Raises:
        SpecError: no kernel set, or no kernel in it, for a row's operator and dtype; with `leave_out` only
            where no row is left.
        CoverageError: `latency="measured"` and a shape that was not recorded.
    """
    models: dict[tuple[str, ...], LatencyModel] = {}
    by = tuple(column for column in CHOICE_COLUMNS if column in frame and kernels is None)
    places = np.full(len(frame), "", dtype=object)
    time_us, low_us, high_us = (np.empty(len(frame)) for _ in range(3))
    bound, source = (np.zeros(len(frame), dtype=np.int8) for _ in range(2))
    is_kept = np.ones(len(frame), dtype=np.bool_)
    for index, operator in operators_of(frame, by=by):
        asked = {column: str(texts(frame, column, index[:1])[0]) for column in by}
        try:
            chosen = (kernels or runtime.kernel_set(operator.dtype), *asked.values())
            if chosen not in models:
                models[chosen] = latency_model(
                    gpu,
                    latency,
                    chosen[0],
                    cold=cold,
                    fallback=fallback,
                    data_dir=data_dir,
                    serves=runtime.library,
                    **asked,
                )
            predicted = models[chosen].time(operator)
        except SpecError as error:
            is_kept[index] = False
            if leave_out is None or not is_kept.any():
                raise
            leave_out(str(error))
            continue
        host_us = runtime.host_us_per_launch
        device_us = predicted.time_us + runtime.launch_us
        time_us[index] = step_us(device_us, host_us)
        low_us[index] = step_us(predicted.low_us + runtime.launch_us, host_us)
        high_us[index] = step_us(predicted.high_us + runtime.launch_us, host_us)
        waits = np.where(runtime.launch_us > predicted.time_us, np.int8(Bound.LATENCY), predicted.bound)
        bound[index] = np.where(host_us > device_us, np.int8(Bound.HOST), waits)
        source[index] = predicted.source
        places[index] = predicted.kernels or (chosen[0] if latency == "calibrated" else latency)
    more = {CHOSEN_COLUMN: places} if by else {}
    kept = frame.rename(columns={name: f"{GIVEN_PREFIX}{name}" for name in (*PREDICTED_COLUMNS, *more)})
    whole = kept.assign(
        # sizes as integers again, blank where they were blank
        **{column: kept[column].astype("Int64") for column in WHOLE_COLUMNS if column in kept},
        predicted_us=time_us,
        low_us=low_us,
        high_us=high_us,
        bound=labels(bound, Bound),
        source=labels(source, Source),
        **more,
    )
    return whole if is_kept.all() else whole[is_kept].reset_index(drop=True)
