"""One step, kernel by kernel: what is launched, how long it takes, what bounds it and who says so."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from medusa_sim.arrays import FloatArray
from medusa_sim.latency.operator_time import Bound, OperatorTime, Source
from medusa_sim.step.pass_times import PassTimes
from medusa_sim.step.setting import Setting
from medusa_sim.step.step import decode_step, speculative_step

if TYPE_CHECKING:
    import pandas as pd

GAPS = "launch gaps"
WAITING = "host and engine"


def breakdown(setting: Setting, batch: int, seq_len: int, candidates: int) -> pd.DataFrame:
    """One row an operator of each pass; the times add up to the whole step.

    Where a step may verify more or fewer tokens, or run a pass or not, a row is the mean over these cases.

    Columns: pass (`target`, `draft 1`, ...), op, part, launches, time_us, low_us, high_us (all launches
    together; an 80 % band), bound, source, share (of the step). The last rows are the gaps between launches
    and what host and engine add; they have no source. Each band is of its row alone, never below 0; the error
    of the set-up, which all rows share (`Cost.setup_half_us`), and that between sources of rounds
    (`Cost.gain_square`) are in the step's band only. Where no kernel is borrowed, no row ends at 0 and rounds
    differ by nothing more, squared half-widths of the rows and of the set-up add up to the step's.
    """
    import pandas as pd

    if candidates == 1:
        step = decode_step(setting, batch, seq_len)
    else:
        step = speculative_step(setting, batch, seq_len, candidates)
    frame = pd.DataFrame(list(_kernels(step)))
    waiting_us = float(step.time_us) - float(step.device_us)
    rest = pd.DataFrame(
        [
            {"op": GAPS, "time_us": step.gaps_us, "bound": Bound.LATENCY.name.lower()},
            {"op": WAITING, "time_us": waiting_us, "bound": Bound.HOST.name.lower()},
        ]
    )
    rest = rest.assign(launches=0, source="")
    added_us = np.sqrt(float(step.cost.engine_square)) * (rest["op"] == WAITING)
    rest["low_us"] = (rest["time_us"] - added_us).clip(lower=0.0)
    rest["high_us"] = rest["time_us"] + added_us
    rest = rest[(rest["time_us"] > 0.0) | (rest["high_us"] > rest["time_us"])]
    rest = rest.assign(**{"pass": "", "part": ""})
    every_part = frame if rest.empty else pd.concat([frame, rest[list(frame.columns)]], ignore_index=True)
    return every_part.assign(share=every_part["time_us"] / float(step.time_us))


def _kernels(step: PassTimes) -> Iterator[dict[str, object]]:
    for number, kernels in enumerate(step.passes):
        name = kernels.work.name if kernels.work.name != "draft" else f"draft {number}"
        chances = np.full(1, kernels.share) if kernels.chances is None else kernels.chances
        for launch, time in kernels.own_times:
            time_us, low_us, high_us = (launch.count * us for us in _mean_and_ends(time, chances))
            yield {
                "pass": name,
                "op": launch.operator.name,
                "part": launch.part,
                "launches": launch.count,
                "time_us": time_us,
                "low_us": low_us,
                "high_us": high_us,
                "bound": _longest_bound(time, chances).name.lower(),
                "source": Source(int(np.max(time.source))).name.lower(),
            }


def _mean_and_ends(time: OperatorTime, chances: FloatArray) -> tuple[float, float, float]:
    """(time, low, high) of one launch: the mean over cases with such chances (cases,).

    Half-widths are roots of mean squares, as those of a step are (`Cost`).
    """
    below, above = time.time_us - time.low_us, time.high_us - time.time_us
    mean, below_square, above_square = (
        float((chances * values).sum()) for values in (time.time_us, below**2, above**2)
    )
    return mean, max(mean - below_square**0.5, 0.0), mean + above_square**0.5


def _longest_bound(time: OperatorTime, chances: FloatArray) -> Bound:
    """What bounds most of the time over cases with such chances (cases,)."""
    codes, weighed_us = np.broadcast_arrays(time.bound, chances * time.time_us)
    return Bound(int(np.argmax(np.bincount(codes.ravel(), weighed_us.ravel()))))
