"""A grid of configurations -> one tidy table, priced by `Surface` and bounded in memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import numpy.typing as npt

from medusa_sim.arrays import FloatArray
from medusa_sim.latency.base import Bound, CodeArray, Source
from medusa_sim.plan.cost import joule_per_token, step_watts, usd_per_million_tokens
from medusa_sim.plan.scenario import Scenario
from medusa_sim.plan.speedup import FIXED_BASELINE_BATCH, FIXED_BASELINE_SEQ_LEN
from medusa_sim.plan.surface import Surface, at_counts, price
from medusa_sim.step.grid import Grid
from medusa_sim.step.memory import drafter_bytes, memory_bytes, usable_memory_bytes
from medusa_sim.step.step import decode_step

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

CHUNK_ROWS = 1 << 19
"""Rows computed at once: about 100 MB of columns, whatever the size of the grid."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepTable:
    """Rows of a sweep: text that is the same in every row, numbers, and codes with their labels.

    gain: the column by which a count is chosen.
    """

    text: dict[str, str]
    numbers: dict[str, npt.NDArray[np.int64] | FloatArray | npt.NDArray[np.bool_]]
    codes: dict[str, CodeArray]
    gain: str

    COLUMNS: ClassVar[tuple[str, ...]] = (
        "gpu", "model", "tp", "ep", "dp_attention", "runtime", "kernels", "scope", "latency_model", "drafter",
        "acceptance", "baseline", "batch", "seq_len", "candidates", "drafts", "tokens_per_step",
        "decode_step_us", "verify_step_us",
        "verify_low_us", "verify_high_us", "overhead", "speedup", "speedup_low", "speedup_high",
        "server_speedup", "server_speedup_low", "server_speedup_high", "itl_us", "tpot_us", "tokens_per_s",
        "tokens_per_s_per_user", "usd_per_million_tokens", "watts",
        "joule_per_token", "bound", "source", "memory_bytes", "fits_memory",
    )  # fmt: skip
    LABELS: ClassVar[dict[str, tuple[str, ...]]] = {
        "bound": tuple(code.name.lower() for code in Bound),
        "source": tuple(code.name.lower() for code in Source),
    }

    @property
    def rows(self) -> int:
        """Number of rows."""
        return int(self.numbers["batch"].size)

    def arrow(self) -> pa.Table:
        """The rows as an Arrow table in the order of COLUMNS; text and codes are dictionary-encoded."""
        import pyarrow as pa

        same = np.zeros(self.rows, dtype=np.int8)
        columns = {}
        for name in self.COLUMNS:
            if name in self.text:
                columns[name] = pa.DictionaryArray.from_arrays(same, [self.text[name]])
            elif name in self.codes:
                columns[name] = pa.DictionaryArray.from_arrays(self.codes[name], list(self.LABELS[name]))
            else:
                columns[name] = pa.array(self.numbers[name], from_pandas=True)
        return pa.table(columns)

    def pandas(self) -> pd.DataFrame:
        """The rows as a pandas frame; text and codes are categorical."""
        frame: pd.DataFrame = self.arrow().to_pandas()
        return frame


def sweep(scenarios: Sequence[Scenario], grid: Grid, chunk_rows: int = CHUNK_ROWS) -> Iterator[SweepTable]:
    """Tables of at most about `chunk_rows` rows: scenario by scenario, then batch, length, candidates.

    Each row has the drafting that is best for its count. Counts that a scenario's acceptance does not
    describe have no rows (`Scenario.covered` tells which those are).
    Raises SpecError or CoverageError before the first table that cannot be computed.
    """
    for scenario in scenarios:
        counts = scenario.covered(grid.candidates)
        slices = Slices.of(grid, counts.size, chunk_rows)
        for batch, seq_len in map(slices.at, range(slices.count)):
            yield _table(
                scenario, Grid(batch=grid.batch[batch], seq_len=grid.seq_len[seq_len], candidates=counts)
            )


@dataclass(frozen=True, slots=True)
class Slices:
    """The axes of batch and length cut into numbered pieces of at most so many rows.

    counts: rows of one batch and length, which are never cut. A piece is some whole batches with all lengths,
    or one batch with some lengths.
    """

    batches: int
    lengths: int
    counts: int
    batch_step: int
    length_step: int

    @classmethod
    def of(cls, grid: Grid, counts: int, rows: int) -> Slices:
        """Pieces of a grid with so many counts, of about `rows` rows."""
        batches, lengths = grid.batch.size, grid.seq_len.size
        if lengths * counts > rows:
            return cls(batches, lengths, counts, 1, max(1, rows // counts))
        return cls(batches, lengths, counts, max(1, rows // (lengths * counts)), lengths)

    @property
    def count(self) -> int:
        """How many pieces there are."""
        return -(-self.batches // self.batch_step) * -(-self.lengths // self.length_step)

    def at(self, number: int) -> tuple[slice, slice]:
        """(batches, lengths) of a piece, counted from 0."""
        outer, inner = divmod(number, -(-self.lengths // self.length_step))
        batch, length = outer * self.batch_step, inner * self.length_step
        return slice(batch, batch + self.batch_step), slice(length, length + self.length_step)


def grid_surface(scenario: Scenario, grid: Grid) -> Surface:
    """The surface of a grid with its own counts alone."""
    largest = int(max(grid.candidates.max(), 2))
    options = at_counts(scenario.options(largest), grid.candidates)
    return price(scenario, grid.batch, grid.seq_len, options)


def _table(scenario: Scenario, grid: Grid) -> SweepTable:
    surface = grid_surface(scenario, grid)
    found = surface.by_count
    columns = np.searchsorted(found.counts, grid.candidates)
    in_order = np.array_equal(columns, np.arange(found.counts.size))
    shape = (grid.batch.size, grid.seq_len.size, grid.candidates.size)

    def flat(values: npt.NDArray[np.generic]) -> npt.NDArray[np.generic]:
        whole = np.broadcast_to(values, (*shape[:2], values.shape[-1] if values.ndim else 1))
        if whole.shape[-1] == found.counts.size and not in_order:
            whole = whole[..., columns]
        return np.broadcast_to(whole, shape).ravel()

    return SweepTable(
        text={
            "gpu": scenario.gpu.name,
            "model": scenario.model.name,
            "runtime": scenario.runtime.name,
            "kernels": scenario.kernels,
            "scope": scenario.scope,
            "latency_model": scenario.latency.name,
            "drafter": scenario.drafting.method,
            "acceptance": scenario.profile.name,
            "baseline": scenario.baseline,
        },
        numbers={name: flat(values) for name, values in numbers(surface).items()},  # type: ignore[misc]
        codes={
            name: flat(codes).astype(np.int8, copy=False)
            for name, codes in (("bound", found.bound), ("source", found.source))
        },
        gain=gain_column(scenario),
    )


def gain_column(scenario: Scenario) -> str:
    """The column that chooses a count: the server's speedup where prompts are given, else the step's."""
    return "speedup" if scenario.traffic is None else "server_speedup"


def numbers(surface: Surface) -> dict[str, npt.NDArray[np.generic]]:
    """Every number of a row by the name of its column; each broadcasts with (B, S, 1 + C).

    With baseline `fixed` overhead and speedup are against the one decode step that the paper divides by.
    """
    scenario, found = surface.scenario, surface.by_count
    base_us: FloatArray = found.decode_us
    gain = found.speedup
    if scenario.baseline == "fixed":
        one = decode_step(scenario.setting, FIXED_BASELINE_BATCH, FIXED_BASELINE_SEQ_LEN)
        base_us = np.asarray(one.time_us)
        gain = found.tokens_per_step * base_us / found.step_us
    low, high = found.speedup_band(gain)
    return {
        "tp": np.asarray(scenario.parallel.tp),
        "ep": np.asarray(scenario.parallel.ep),
        "dp_attention": np.asarray(scenario.parallel.dp_attention),
        "batch": surface.batch[:, None, None],
        "seq_len": surface.seq_len[None, :, None],
        "candidates": found.counts,
        "drafts": found.drafts,
        "tokens_per_step": found.tokens_per_step,
        "decode_step_us": found.decode_us,
        "verify_step_us": found.step_us,
        "verify_low_us": found.low_us,
        "verify_high_us": found.high_us,
        "overhead": found.step_us / base_us,
        "speedup": gain,
        "speedup_low": low,
        "speedup_high": high,
        **_throughput(surface),
    }


_OF_A_MODEL = (
    "server_speedup", "server_speedup_low", "server_speedup_high", "itl_us", "tpot_us", "tokens_per_s",
    "tokens_per_s_per_user", "usd_per_million_tokens", "watts", "joule_per_token", "memory_bytes",
    "fits_memory",
)  # fmt: skip


def _throughput(surface: Surface) -> dict[str, npt.NDArray[np.generic]]:
    """Latency, throughput and memory; empty for `scope="block"`, which is one block and not a model."""
    scenario, found, served = surface.scenario, surface.by_count, surface.served
    if scenario.scope == "block":
        return dict.fromkeys(_OF_A_MODEL, np.full((), np.nan))
    batch = surface.batch[:, None, None]
    rate, drawn = surface.tokens_per_s, step_watts(surface)
    low, high = surface.server_speedup_band
    beside = [drafter_bytes(scenario.shard, option.drafter) for option in found.options]
    weights, kv, slots = (found.by_option([added[i] for added in beside]) for i in range(3))
    needed = memory_bytes(
        scenario.shard, weights, kv, slots, batch, surface.seq_len[None, :, None], found.counts
    )
    fits = needed <= usable_memory_bytes(scenario.gpu)

    def where_it_fits(cost: FloatArray) -> FloatArray:
        """What cannot be run costs nothing that could be compared."""
        return np.where(fits, cost, np.nan)

    return {
        "server_speedup": surface.server_speedup,
        "server_speedup_low": low,
        "server_speedup_high": high,
        "itl_us": served.itl_us,
        "tpot_us": served.tpot_us,
        "tokens_per_s": rate,
        "tokens_per_s_per_user": rate / batch,
        "usd_per_million_tokens": where_it_fits(
            usd_per_million_tokens(scenario.usd_per_gpu_hour, scenario.gpus, rate)
        ),
        "watts": drawn,
        "joule_per_token": where_it_fits(joule_per_token(drawn, rate)),
        "memory_bytes": needed,
        "fits_memory": fits,
    }
