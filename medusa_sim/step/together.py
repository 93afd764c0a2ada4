"""Passes that launch the same kernels at different sizes, timed as one pass with an axis for them.

A drafter runs the same layers for each of its drafts, and at every draft length: for eight lengths 15 passes
of a dozen kernels. Along a last axis they are two, whose kernels are asked for their times once.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from medusa_sim.latency.model import LatencyModel
from medusa_sim.operators.operator import Operator, Size
from medusa_sim.step.kernels import decomposed
from medusa_sim.step.launch import Launch
from medusa_sim.step.pass_time import work_time
from medusa_sim.step.pass_work import PassWork
from medusa_sim.step.step_time import StepTime
from medusa_sim.step.workload import Workload


def work_times(latency: LatencyModel, works: Sequence[PassWork]) -> list[StepTime]:
    """`pass_time.work_time` of each pass."""
    works = [replace(work, launches=tuple(decomposed(latency, work.launches))) for work in works]
    alike: dict[Hashable, list[int]] = {}
    for place, work in enumerate(works):
        alike.setdefault(_form(work), []).append(place)
    times: dict[int, StepTime] = {}
    for places in alike.values():
        if len(places) == 1:
            times[places[0]] = work_time(latency, works[places[0]])
            continue
        together = work_time(latency, _joined([works[place] for place in places]))
        for index, place in enumerate(places):
            times[place] = _one_of(together, index, works[place])
    return [times[place] for place in range(len(works))]


def _form(work: PassWork) -> Hashable:
    """What passes have in common that differ in sizes alone. Passes are of one model."""
    workload = work.workload
    launches = tuple(map(_form_of_launch, work.launches))
    own = work.of, work.layers, work.reads_accepted, work.schedulers
    return id(work.runtime), own, workload.phase, workload.overlap, launches


def _form_of_launch(launch: Launch) -> Hashable:
    operator = launch.operator
    labels = tuple(getattr(operator, name) for name in operator.LABELS)
    kernel = (operator.name, operator.kind, operator.dtype, operator.stored_dtype, labels)
    composed = tuple(map(_form_of_launch, launch.composed))
    return kernel, launch.part, launch.count, launch.share, launch.ends is None, composed


def _joined(works: Sequence[PassWork]) -> PassWork:
    """One pass, whose sizes have those of each along a last axis."""
    launches = zip(*(work.launches for work in works), strict=True)
    return replace(
        works[0],
        workload=_joined_workloads([work.workload for work in works]),
        launches=tuple(map(_joined_launches, launches)),
    )


def _joined_workloads(workloads: Sequence[Workload]) -> Workload:
    batch, seq_len, query_tokens = (
        _joined_sizes([getattr(workload, name) for workload in workloads])
        for name in ("batch", "seq_len", "query_tokens")
    )
    return replace(workloads[0], batch=batch, seq_len=seq_len, query_tokens=query_tokens)


def _joined_launches(launches: Sequence[Launch]) -> Launch:
    ends: tuple[Operator, Operator] | None = None
    if launches[0].ends is not None:
        few, many = zip(*(launch.ends for launch in launches if launch.ends is not None), strict=True)
        ends = _joined_operators(few), _joined_operators(many)
    composed = zip(*(launch.composed for launch in launches), strict=True)
    return replace(
        launches[0],
        operator=_joined_operators([launch.operator for launch in launches]),
        ends=ends,
        composed=tuple(map(_joined_launches, composed)),
    )


def _joined_operators(operators: Sequence[Operator]) -> Operator:
    sizes = {
        name: _joined_sizes([getattr(operator, name) for operator in operators])
        for name in operators[0].COLUMNS
    }
    return operators[0].with_columns(**sizes)


def _joined_sizes(sizes: Sequence[Size]) -> Size:
    """Along a last axis, of length 1 where all are the same; one number stays one."""
    first = sizes[0]
    if not any(isinstance(size, np.ndarray) for size in sizes):  # most: widths of layers
        return first if len(set(sizes)) == 1 else np.asarray(sizes)
    if all(size is first or np.array_equal(size, first) for size in sizes[1:]):
        return np.asarray(first)[..., None] if np.ndim(first) else first
    return np.stack(np.broadcast_arrays(*sizes), axis=-1)


def _one_of(together: StepTime, index: int, work: PassWork) -> StepTime:
    """The time of the pass at an index of the last axis."""

    def one(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return values[..., min(index, values.shape[-1] - 1)] if values.ndim else values

    step = together.mapped(one, one)
    ((_, kernels),) = step.passes
    return replace(step, passes=((work, kernels),))
