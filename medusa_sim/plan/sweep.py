"""A grid of configurations -> one tidy table, computed by broadcasting and bounded in memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import numpy.typing as npt

from medusa_sim.acceptance.profile import AcceptanceProfile
from medusa_sim.arrays import FloatArray, IntArray
from medusa_sim.latency.base import Bound, CodeArray, Source
from medusa_sim.plan.speedup import Baseline, Steps, speedup, speedup_band, steps, tokens_per_s
from medusa_sim.specs.gpu import Gpu
from medusa_sim.step.grid import Grid
from medusa_sim.step.memory import step_memory_bytes, usable_memory_bytes
from medusa_sim.step.step import Setting

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

CHUNK_ROWS = 1 << 19
"""Rows computed at once: about 100 MB of columns, whatever the size of the grid."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepSetting:
    """One GPU and one model of a sweep, with the acceptance profile that turns steps into tokens."""

    gpu: Gpu
    kernels: str
    setting: Setting
    acceptance: AcceptanceProfile
    baseline: Baseline = "same"


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepTable:
    """Rows of a sweep: text that is the same in every row, numbers, and codes with their labels."""

    text: dict[str, str]
    numbers: dict[str, npt.NDArray[np.int64] | FloatArray | npt.NDArray[np.bool_]]
    codes: dict[str, CodeArray]

    COLUMNS = (
        "gpu", "model", "runtime", "kernels", "scope", "latency_model", "drafter", "acceptance", "baseline",
        "batch", "seq_len", "candidates", "tokens_per_step", "decode_step_us", "verify_step_us",
        "verify_low_us", "verify_high_us", "overhead", "speedup", "speedup_low", "speedup_high",
        "tokens_per_s", "tokens_per_s_per_user", "bound", "source", "memory_bytes", "fits_memory",
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


def sweep(settings: Sequence[SweepSetting], grid: Grid, chunk_rows: int = CHUNK_ROWS) -> Iterator[SweepTable]:
    """Tables of at most about `chunk_rows` rows: GPU and model, then batch, length, candidates.

    Raises SpecError or CoverageError before the first table that cannot be computed.
    """
    per_batch = grid.seq_len.size * grid.candidates.size
    if per_batch > chunk_rows:
        lengths = max(1, chunk_rows // grid.candidates.size)
        slices = [(slice(b, b + 1), slice(s, s + lengths))
                  for b in range(grid.batch.size)
                  for s in range(0, grid.seq_len.size, lengths)]  # fmt: skip
    else:
        batches = max(1, chunk_rows // per_batch)
        slices = [(slice(b, b + batches), slice(None)) for b in range(0, grid.batch.size, batches)]
    for setting in settings:
        for batch, seq_len in slices:
            yield _table(
                setting,
                Grid(batch=grid.batch[batch], seq_len=grid.seq_len[seq_len], candidates=grid.candidates),
            )


def _table(sweep_setting: SweepSetting, grid: Grid) -> SweepTable:
    setting, gpu = sweep_setting.setting, sweep_setting.gpu
    batch = grid.batch[:, None, None]
    seq_len = grid.seq_len[None, :, None]
    candidates = grid.candidates[None, None, :]
    computed = steps(setting, batch, seq_len, candidates, sweep_setting.baseline)
    tokens = sweep_setting.acceptance.tokens_per_step(candidates)
    low, high = speedup_band(computed, tokens, sweep_setting.acceptance.band(candidates))
    numbers: dict[str, npt.ArrayLike] = {
        "batch": batch,
        "seq_len": seq_len,
        "candidates": candidates,
        "tokens_per_step": tokens,
        "decode_step_us": computed.decode.time_us,
        "verify_step_us": computed.verify_us,
        "verify_low_us": computed.verify_low_us,
        "verify_high_us": computed.verify_high_us,
        "overhead": computed.overhead,
        "speedup": speedup(tokens, computed.overhead),
        "speedup_low": low,
        "speedup_high": high,
        **_throughput(sweep_setting, batch, seq_len, candidates, computed, tokens),
    }
    shape = (grid.batch.size, grid.seq_len.size, grid.candidates.size)
    flat = {name: np.broadcast_to(value, shape).ravel() for name, value in numbers.items()}
    plain = candidates == 1
    codes = {
        "bound": np.where(plain, computed.decode.bound, computed.verify.bound),
        "source": np.where(plain, computed.decode.source, computed.verify.source),
    }
    return SweepTable(
        text={
            "gpu": gpu.name,
            "model": setting.model.name,
            "runtime": setting.runtime.name,
            "kernels": sweep_setting.kernels,
            "scope": setting.scope,
            "latency_model": setting.latency.name,
            "drafter": setting.drafter.name,
            "acceptance": sweep_setting.acceptance.name,
            "baseline": sweep_setting.baseline,
        },
        numbers=flat,
        codes={
            name: np.broadcast_to(code, shape).ravel().astype(np.int8, copy=False)
            for name, code in codes.items()
        },
    )


def _throughput(
    sweep_setting: SweepSetting,
    batch: IntArray,
    seq_len: IntArray,
    candidates: IntArray,
    computed: Steps,
    tokens: FloatArray,
) -> dict[str, npt.ArrayLike]:
    """Throughput and memory; empty for `scope="block"`, which is one block and not a model."""
    setting = sweep_setting.setting
    if setting.scope == "block":
        empty = np.full((), np.nan)
        return dict.fromkeys(("tokens_per_s", "tokens_per_s_per_user", "memory_bytes", "fits_memory"), empty)
    rate = tokens_per_s(batch, tokens, computed.verify_us)
    speculative_bytes = step_memory_bytes(setting.model, setting.drafter, batch, seq_len, candidates)
    plain_bytes = step_memory_bytes(setting.model, None, batch, seq_len, 1)
    memory_bytes = np.where(candidates == 1, plain_bytes, speculative_bytes)
    return {
        "tokens_per_s": rate,
        "tokens_per_s_per_user": rate / batch,
        "memory_bytes": memory_bytes,
        "fits_memory": memory_bytes <= usable_memory_bytes(sweep_setting.gpu),
    }
