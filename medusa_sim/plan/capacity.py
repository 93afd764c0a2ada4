"""What speculation does to the largest batch that fits, and to the throughput that the card can reach."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any

import numpy as np

from medusa_sim.arrays import BoolArray, IntArray, among, distinct
from medusa_sim.errors import MedusaSimError
from medusa_sim.plan.cell import Cell
from medusa_sim.plan.cells import Cells, price
from medusa_sim.plan.configurations import PLAIN
from medusa_sim.plan.draft_options import DraftOption
from medusa_sim.plan.scenario import Scenario
from medusa_sim.plan.surface import in_groups
from medusa_sim.specs.gpu import gpu_names, load_gpu
from medusa_sim.step.memory import MemoryParts, memory_parts
from medusa_sim.step.step import decode_step
from medusa_sim.units import BYTES_PER_ELEMENT

_EVERY_BATCH_TO = 64
_RATIO = 1.05
"""Every batch is tried to the first, beyond it every 5 % as long as it fits, and each around the best."""
_NEAR = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """The best throughput of one length with and without speculation, each at its own best batch.

    max_batch_with: of the configuration of `with_speculation`. gain: ratio of the two throughputs; None where
    not even one sequence fits.
    """

    seq_len: int
    max_batch_without: int
    max_batch_with: int
    without_speculation: Cell | None
    with_speculation: Cell | None

    @property
    def gain(self) -> float | None:
        """Throughput with speculation over throughput without."""
        if self.without_speculation is None or self.with_speculation is None:
            return None
        return float(self.with_speculation.tokens_per_s / self.without_speculation.tokens_per_s)


def batches_tried(largest: int) -> IntArray:
    """Batches at which throughput is looked at first, up to the largest that fits without speculation."""
    if largest < 1:
        return np.empty(0, dtype=np.int64)
    every = np.arange(1, min(largest, _EVERY_BATCH_TO) + 1)
    ratio = 1 + int(np.ceil(np.log(max(largest / every[-1], 1.0)) / np.log(_RATIO)))
    beyond = np.rint(np.geomspace(every[-1], largest, ratio)).astype(np.int64)
    return distinct(every, beyond)


def capacities(
    scenario: Scenario,
    options: Sequence[DraftOption],
    first: Sequence[tuple[Cells, int]],
    searched: Cells,
    max_latency_us: float | None = None,
) -> tuple[Capacity, ...]:
    """For each length of `searched` the best operating points among all batches that fit.

    first: of few counts, with the place of each length in it, at its `batches_tried` among others. Those
    around the best and those that were searched are looked at with every count. max_latency_us: longest time
    per output token of one user.
    """
    surface = searched.surface

    def best_points(group: slice, *, speculate: bool) -> list[Cell | None]:
        best = partial(best_operating_point, max_latency_us=max_latency_us, speculate=speculate)
        found, near = [], []
        for s in range(surface.seq_len.size)[group]:
            (coarse, at), largest = first[s], int(surface.max_batch[s, PLAIN])
            rows = among(coarse.surface.batch, batches_tried(largest))
            found.append(fastest(best(coarse, at, rows=rows), best(searched, s)))
            middle = 0 if found[-1] is None else found[-1].batch
            near.append(np.arange(max(1, middle - _NEAR), min(largest, middle + _NEAR) + 1) * (middle > 0))
        every = distinct(*near)
        if not (every > 0).any():
            return found
        fine = price(scenario, every[every > 0], surface.seq_len[group], options if speculate else ())
        return [
            fastest(point, point and best(fine, at, rows=among(fine.surface.batch, near[at])))
            for at, point in enumerate(found)
        ]

    pairs = [
        pair
        for group in in_groups(surface.seq_len.size)
        for pair in zip(best_points(group, speculate=False), best_points(group, speculate=True), strict=True)
    ]
    return tuple(
        Capacity(
            seq_len=int(surface.seq_len[s]),
            max_batch_without=int(surface.max_batch[s, PLAIN]),
            max_batch_with=0 if best is None else best.max_batch,
            without_speculation=without,
            with_speculation=best,
        )
        for s, (without, best) in enumerate(pairs)
    )


def fastest(*points: Cell | None) -> Cell | None:
    """The largest throughput; None where none is known."""
    known = [point for point in points if point is not None]
    return max(known, key=lambda point: point.tokens_per_s, default=None)


def best_operating_point(
    every: Cells,
    s: int,
    max_latency_us: float | None,
    *,
    speculate: bool,
    rows: BoolArray | bool = True,
) -> Cell | None:
    """The largest throughput at one length of the cells that fit and keep the latency; None if none does.

    rows: (B,) batches that count.
    """
    place = slice(1, None) if speculate else slice(0, 1)
    allowed = every.fits[:, s, place] & np.reshape(rows, (-1, 1))
    if max_latency_us is not None:
        allowed = allowed & (every.tpot_us[:, s, place] <= max_latency_us)
    if not allowed.any():
        return None
    rate = every.tokens_per_s[:, s, place]
    row, column = np.unravel_index(int(np.argmax(np.where(allowed, rate, -np.inf))), rate.shape)
    return Cell(cells=every, b=int(row), s=s, k=int(place.start or 0) + int(column))


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One change with which what was asked fits. option: as a command takes it; bytes of one GPU."""

    option: str
    needed_bytes: float
    usable_bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortfall:
    """A batch and length that do not fit even without speculation: bytes of one GPU, and what would fit."""

    batch: int
    seq_len: int
    parts: MemoryParts
    usable_bytes: float
    changes: tuple[Change, ...]

    @property
    def needed_bytes(self) -> float:
        """Weights, KV cache and activations of the plain step."""
        return float(self.parts.total)


def shortfall(scenario: Scenario, batch: int, seq_len: int) -> Shortfall | None:
    """What is missing for a batch and length, and up to three changes that would do; None where both fit.

    Every change was tried: a smaller batch or context, narrower weights or KV cache, more GPUs, another GPU,
    several of another.
    """
    parts, room = _plain(scenario, batch, seq_len), scenario.usable_memory_bytes
    if scenario.scope == "block" or float(parts.total) <= room:
        return None
    firsts = (next(filter(None, kind), None) for kind in _changes(scenario, batch, seq_len))
    changes = tuple(islice(filter(None, firsts), 3))
    return Shortfall(batch=batch, seq_len=seq_len, parts=parts, usable_bytes=room, changes=changes)


def _plain(scenario: Scenario, batch: int, seq_len: int) -> MemoryParts:
    return memory_parts(scenario.shard, 0.0, 0.0, 0.0, batch, seq_len, 1)


def _changes(scenario: Scenario, batch: int, seq_len: int) -> Iterator[Iterator[Change | None]]:
    """Kinds of changes, each with its alternatives from the least; None: it would not do."""

    def tried(option: str, size: int = batch, length: int = seq_len, **changes: Any) -> Change | None:
        try:
            other = scenario.but(**changes) if changes else scenario
            needed, room = float(_plain(other, size, length).total), other.usable_memory_bytes
            if needed > room:
                return None
            decode_step(other.setting, 1, 1)
        except MedusaSimError:  # nobody can run that, or the card lacks every kernel of a format
            return None
        return Change(option=option, needed_bytes=needed, usable_bytes=room)

    def largest(low: int, high: int, fits: Callable[[int], Change | None]) -> Iterator[Change | None]:
        """The largest whole number below `high` that fits."""
        if fits(low) is None:
            return
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if fits(middle) else (low, middle)
        yield fits(low)

    folder = scenario.arguments.data_dir
    cards = sorted((load_gpu(name, folder) for name in gpu_names(folder)), key=lambda gpu: gpu.memory_bytes)
    larger = [gpu for gpu in cards if gpu.memory_bytes > scenario.gpu.memory_bytes]
    tps = [tp for tp in (2, 4, 8, 16) if tp > scenario.parallel.tp]
    yield largest(1, batch, lambda size: tried(f"--batch {size}", size=size))
    yield (
        tried(f"--weight-dtype {form}", weight_dtype=form)
        for form, size in (("fp8", 1.0), ("int4", 0.5))
        if size < BYTES_PER_ELEMENT[scenario.model.weight_dtype]
    )
    yield (tried(f"--tp {tp}", tp=tp) for tp in tps)
    yield (tried(f"--gpu {gpu.name}", gpu=gpu.name) for gpu in larger)
    if scenario.model.kv_dtype != "fp8":
        yield (tried("--kv-dtype fp8", kv_dtype=form) for form in ("fp8",))
    yield largest(1, seq_len, lambda length: tried(f"--seq {length}", length=length))
    yield (
        tried(f"--gpu {gpu.name} --tp {tp}", gpu=gpu.name, tp=tp) for tp in tps for gpu in reversed(larger)
    )
    yield (tried(f"--weight-dtype int4 --tp {tp}", weight_dtype="int4", tp=tp) for tp in tps)
