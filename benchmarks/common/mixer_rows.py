"""Kernels of mixers on rows that no fit has seen: of numbers of heads left out, and of other GPUs.

`python benchmarks/kernels.py left-out mixers [GPU ...]` (a second a kernel) and `transfer mixers` run these.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from common.kernel_rows import mixers
from common.pages import write_tables
from common.study import Beside, left_out_us, table, width_to_add
from medusa_sim.arrays import BoolArray, FloatArray, IntArray
from medusa_sim.gpus.carried import carried
from medusa_sim.gpus.gpu import Gpu, load_gpu
from medusa_sim.gpus.kernels import StreamKernel
from medusa_sim.lab.calibrate.bands import residual_bands
from medusa_sim.lab.calibrate.driver import FOLDS
from medusa_sim.lab.calibrate.errors import ratio_mape
from medusa_sim.lab.calibrate.rows import Rows, heldout_groups
from medusa_sim.lab.calibrate.stream import UNSEEN, refitted_stream
from medusa_sim.lab.measure.shapes import LEAST_ROWS
from medusa_sim.latency.bands import residual_band
from medusa_sim.latency.stream import is_host_bound, stream_time
from medusa_sim.operators.columns import IndexArray, texts
from medusa_sim.operators.kinds import KIND_OF
from medusa_sim.operators.stream import Stream
from medusa_sim.operators.table import operators_of
from medusa_sim.report.words.numbers import NOTHING, percent

DOCUMENTED = "h100-sxm"
PAIRS = (("b200", "gb200"), ("gb200", "b200"), ("h100-sxm", "b200"), ("l40s", "rtx-pro-6000"))
"""Lender and borrower: GPUs of one architecture first."""


def _rows_of_kernels(rows: Any, lender: Gpu) -> Iterator[tuple[str, IndexArray, Stream, StreamKernel]]:
    """Section, places, operator and the lender's kernel of what rows of one GPU ran."""
    for index, operator in operators_of(rows, by=("engine", "kernel")) if len(rows) else ():
        engine, name = (str(texts(rows, column, index[:1])[0]) for column in ("engine", "kernel"))
        held = lender.kernels.get(engine)
        if held is None or not isinstance(operator, Stream):
            continue
        section = KIND_OF[operator.kind].section
        kernels: list[Any] = [
            kernel for key, kernel in held.table(section).items()
            if key.partition("@")[0] == operator.form and getattr(kernel, "name", "") == name
        ]  # fmt: skip
        for kernel in kernels[:1]:
            yield section, index, operator, kernel


def left_out_mixers(gpus: list[str]) -> None:
    """Shares of rows in bands: the stored ones; of refits without a fifth of the groups, made without it.

    The last is what a number of heads finds that nobody measured. Ratios of times are those of such refits.
    The table of the GPU DOCUMENTED goes into docs/validation.md.
    """
    found: dict[str, list[tuple[float, ...]]] = defaultdict(list)
    for frame in mixers():
        for gpu in gpus or sorted(set(frame["gpu"])):
            rows, card = frame[frame["gpu"] == gpu].reset_index(drop=True), load_gpu(gpu)
            for section, index, operator, kernel in _rows_of_kernels(rows, card):
                own = Rows(operator, rows["time_us"].to_numpy(dtype=np.float64)[index])
                groups = heldout_groups(own) if index.size >= LEAST_ROWS else np.zeros(0, dtype=np.int64)
                if kernel.fit.inherited_from or len(set(groups)) < 3:  # else bands are of a single group
                    continue
                words = (section, operator.kind, *(getattr(operator, name, "") for name in ("part", "phase")))
                found[" ".join(filter(None, words))].append(_scores(own, kernel, card, groups))
    headers = "operator | kernels | rows | in stored bands | held out, in bands | held out | T(batch) / T(1)"
    lines = [(what, len(every), *_means(every)) for what, every in sorted(found.items())]
    written = table(f"{headers} | T(q) / T(first q)", 1, lines)
    print(written)
    if gpus == [DOCUMENTED]:
        write_tables("validation.md", "mixers", [written + "\n"])


def _scores(rows: Rows[Any], kernel: StreamKernel, card: Gpu, groups: IntArray) -> tuple[float, ...]:
    """Rows, shares in stored bands and in those of refits, errors of refits, and of ratios by two sizes."""
    time = stream_time(card, kernel, rows.operator, cold=False)
    stored = (rows.time_us >= time.low_us) & (rows.time_us <= time.high_us)
    refit = partial(refitted_stream, kernel, gpu=card)
    held_us = left_out_us(rows, groups % FOLDS, refit, partial(stream_time, card, cold=False))
    ratio = rows.time_us / held_us
    inside = _held_by_refits(ratio, rows.operator, groups)
    shares = (float(each.mean()) for each in (stored, inside, np.abs(1.0 / ratio - 1.0)))
    return ratio.size, *shares, *(_growth(rows, held_us, axis) for axis in ("batch", "q_len"))


def _held_by_refits(ratio: FloatArray, operator: Stream, groups: IntArray) -> BoolArray:
    """Whether rows lie in bands that were made without their fold; ratio: measured over predicted."""
    ends, size = KIND_OF[operator.kind].ranges, operator.size
    inside = np.zeros(ratio.size, dtype=np.bool_)
    for fold in set(groups % FOLDS):
        held = groups % FOLDS == fold
        widen = 1.0 + UNSEEN.get(operator.kind, 1.0) / len(set(groups[~held]))
        bands = residual_bands(ratio[~held], 1.0, size[~held], ends, least_rows=LEAST_ROWS, widen=widen)
        low, high = residual_band(bands, size[held]) if bands else (0.0, 0.0)
        inside[held] = (ratio[held] >= low) & (ratio[held] <= high)
    return inside


def _means(every: list[tuple[float, ...]]) -> list[str]:
    """All rows, and the mean of each of the other scores over kernels, by their rows."""
    sizes, *scores = np.array(every, dtype=np.float64).T
    cells = [f"{sizes.sum():.0f}"]
    for digits, each in zip((0, 0, 1, 1, 1), scores, strict=True):
        told = np.isfinite(each)
        mean = float(np.average(each[told], weights=sizes[told])) if told.any() else None
        cells.append(NOTHING if mean is None else percent(mean, digits))
    return cells


def _growth(rows: Rows[Any], predicted_us: FloatArray, axis: str) -> float:
    """Error of T(x) / T(least x) of rows that differ in this size alone; NaN where none do."""
    sizes = rows.operator.sizes
    if axis not in sizes:
        return float("nan")
    label = rows.labels(*(name for name in sizes if name != axis))
    value = np.broadcast_to(np.asarray(sizes[axis], dtype=np.float64), label.shape)
    least = np.full(label.max() + 1, np.inf)
    np.minimum.at(least, label, value)
    return ratio_mape(predicted_us, rows.time_us, np.where(value > least[label], 2, 1), label)


def transfer_mixers(_: list[str]) -> None:
    """One GPU's parameters on another's rows, by operator; what an eager path's host bounds stands apart.

    Then what bands of each section lack on other GPUs, on average over these, and rows inside with it.
    """
    device: dict[tuple[str, bool], list[Beside]] = defaultdict(list)
    for frame in mixers():
        for lender, borrower in PAIRS:
            rows = frame[frame["gpu"] == borrower].reset_index(drop=True)
            card, other, found = load_gpu(borrower), load_gpu(lender), defaultdict(list)
            for section, index, operator, own in _rows_of_kernels(rows, other):
                kernel = carried(own, other.chip, card.chip, section)
                time = stream_time(card, kernel, operator, cold=False)
                ends = (rows["time_us"].to_numpy()[index], time.low_us, time.high_us)
                waits = is_host_bound(card, kernel, operator) + np.zeros(index.size)
                found[section, operator.kind].append([*(each / time.time_us for each in ends), waits])
            for (section, kind), parts in found.items():
                every_row = np.concatenate(parts, axis=1)
                for share, bound in ((0.0, "device"), (1.0, "host")):
                    every = Beside(*every_row[:3, every_row[3] == share])
                    if every.ratio.size:
                        what = f"{kind:20} {lender:10} -> {borrower:14} {bound:6}"
                        more = f"beyond the own band +-{width_to_add([every]):.2f}"
                        print(f"{what} {every.ratio.size:6} rows: {every.error:.1%}, {more}")
                        if bound == "device":
                            device[section, other.architecture == card.architecture].append(every)
    for (section, alike), group in sorted(device.items()):
        width = width_to_add(group)
        inside = ", ".join(f"{each.coverage(width):.0%}" for each in group)
        kin = "the same" if alike else "another"
        print(f"{section}, {kin} architecture: for 80% add {width:.2f}, with which {inside} are inside")
