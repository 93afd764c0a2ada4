"""Measured rows of engines' kernels, and what each kernel of latent attention, collectives and dispatch ran.

Rows with a word in `suspect` are left out, and an L40S beyond two ranks: bad data.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from common.measured_pairs import joined, kernel_pairs
from common.routing import with_routing
from common.study import GPU_OF_ROWS, is_here, measured
from medusa_sim.engines.runtime import load_runtime
from medusa_sim.errors import SpecError
from medusa_sim.gpus.gpu import Gpu, load_gpu
from medusa_sim.lab.calibrate.collective import fit_collective
from medusa_sim.lab.calibrate.dispatch import fit_dispatch
from medusa_sim.lab.calibrate.errors import mape
from medusa_sim.lab.calibrate.hardware_file import FittedKernel
from medusa_sim.lab.calibrate.latent import fit_latent
from medusa_sim.lab.calibrate.rows import Rows
from medusa_sim.lab.measure.shapes import LEAST_ROWS
from medusa_sim.latency.collective import collective_time
from medusa_sim.operators.attention import Attention
from medusa_sim.operators.table import check_rows, operators_of
from medusa_sim.step.rows import predicted_rows

MIXERS = ("gdn", "kda", "mamba2", "hyper_connections", "window_attention", "sparse")
SOURCE = "aiconfigurator-core 0.12 (Apache-2.0): {gpu}, {engine} {versions}, {kernel}"
NOT_DEFAULT = ("eager", "deepep_normal", "deepep_ht", "deepep_v2", "NVLinkOneSided")
"""Kernels whose name has one of these are not what a library takes by itself in a decoding step."""
SHARED_ERROR = 0.03
"""A release whose rows the newest one's kernel meets as closely as this needs none of its own."""


def with_op(frame: pd.DataFrame, name: str) -> pd.DataFrame:
    """Recorded rows with the operator that their table is of, where no column `op` names it."""
    if "op" in frame:
        return frame
    phase = frame["phase"].astype(str) if "phase" in frame else pd.Series("", index=frame.index)
    if name == "mla":
        op = phase.str.contains("prefill").map({True: "mla_prefill", False: "mla_decode"})
    elif name == "moe_dispatch":
        op = phase.str.contains("combine").map({True: "combine", False: "dispatch"})
    else:
        op = pd.Series("gemm" if name == "quant_gemm" else name, index=frame.index)
    return frame.assign(op=op)


def by_gpu(name: str, gpus: list[str]) -> Iterator[tuple[Gpu, pd.DataFrame]]:
    """Rows of `moe_tp/NAME.parquet` by GPU, of those that are named (all without a name)."""
    frame = pd.read_parquet(measured(f"moe_tp/{name}.parquet"))
    frame = with_op(frame.astype(dict.fromkeys(frame.select_dtypes("category").columns, str)), name)
    if name == "moe":
        frame = with_routing(frame)
        if "model" not in frame:  # the wheel names layers by their sizes alone
            hidden, inter, topk, many = (
                frame[name].astype(str) for name in ("hidden", "inter", "topk", "experts")
            )
            frame["model"] = hidden + " x " + inter + ", " + topk + " of " + many
    for recorded, rows in frame[frame["gpu"].isin(GPU_OF_ROWS)].groupby("gpu"):
        if GPU_OF_ROWS[str(recorded)] in (gpus or GPU_OF_ROWS.values()):
            yield load_gpu(GPU_OF_ROWS[str(recorded)]), rows


def is_sound(rows: pd.DataFrame) -> pd.Series[bool]:
    """Rows that carry no word in `suspect`."""
    return rows["suspect"].astype(str) == "" if "suspect" in rows else pd.Series(data=True, index=rows.index)


def is_trusted(rows: pd.DataFrame, table: str, card: Gpu) -> pd.Series[bool]:
    """Sound rows, without those of an L40S beyond two ranks."""
    is_far = table == "collectives" and card.name == "l40s"
    return is_sound(rows) & (rows["ranks"] <= 2) if is_far else is_sound(rows)


def experts(gpus: list[str], *, spread: bool = False) -> Iterator[tuple[Gpu, str, pd.DataFrame]]:
    """Layers of experts by GPU and engine; those of expert parallelism where `spread`."""
    for gpu, rows in by_gpu("moe", gpus):
        kept = rows[((rows["ep"] > 1) == spread) & (rows["inter"] % rows["tp"] == 0)]
        for engine, part in kept.groupby("engine"):
            checked = check_rows(part.reset_index(drop=True), "moe.parquet", need_time=True)
            yield gpu, str(engine), checked


def mixers(*names: str) -> Iterator[pd.DataFrame]:
    """Checked rows of each file of `kernels_2026`."""
    for name in names or MIXERS:
        yield recorded_rows(measured(f"kernels_2026/{name}.parquet"))


PLAIN = "engine == 'sglang' and kernel == 'trtllm_mha' and kv_cache_dtype == 'bfloat16'"


def plain_decoding(gpu: str) -> pd.DataFrame:
    """SGLang's rows of trtllm-gen with one query and a 16-bit cache whose window holds every key."""
    (frame,) = mixers("window_attention")
    rows = frame.query(f"gpu == @gpu and {PLAIN} and phase == 'generation' and prefix < window")
    rows = rows.assign(op="decode_attention", kv_len=rows["prefix"] + 1, dtype=rows["attn_dtype"])
    needed = [*Attention.COLUMNS, "op", "dtype", "time_us", "version"]
    return check_rows(rows[needed].reset_index(drop=True), "window_attention", need_time=True)


def recorded_rows(path: Path) -> pd.DataFrame:
    """Checked rows of a recorded table."""
    return check_rows(with_op(pd.read_parquet(path), path.stem), path.name, need_time=True)


def linear(gpus: list[str]) -> Iterator[tuple[Gpu, str, Rows[Any]]]:
    """Quantised linear layers by GPU, engine and format."""
    frame = recorded_rows(measured("moe_tp/quant_gemm.parquet"))
    for (recorded, engine), part in frame.groupby(["gpu", "engine"], observed=True):
        gpu, rows = load_gpu(GPU_OF_ROWS[str(recorded)]), part.reset_index(drop=True)
        times = rows["time_us"].to_numpy(dtype=np.float64)
        for index, operator in operators_of(rows) if not gpus or gpu.name in gpus else ():
            yield gpu, str(engine), Rows(operator, times[index])


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Rows of one kernel: engine, name, version (empty: of all), their operator and times."""

    engine: str
    kernel: str
    version: str
    rows: Rows[Any]
    versions: str
    recorded: str

    @staticmethod
    def read(name: str, gpu: str) -> Iterator[Measured]:
        """Rows of a GPU by engine, kernel, operator and, for collectives, version."""
        for card, rows in by_gpu(name, [gpu]):
            frame = check_rows(rows[is_trusted(rows, name, card)], name, need_time=True)
            frame["release"] = frame["version"]
            if name != "collectives":
                frame["version"] = ""
            for index, operator in operators_of(frame, by=("engine", "kernel", "version")):
                part = frame.iloc[index]
                first = {column: str(part[column].iloc[0]) for column in ("engine", "kernel", "version")}
                times = part["time_us"].to_numpy(dtype=np.float64)
                yield Measured(
                    **first, rows=Rows(operator, times, first["kernel"]),
                    versions=", ".join(sorted(part["release"].unique())), recorded=str(part["gpu"].iloc[0]),
                )  # fmt: skip

    @property
    def is_few(self) -> bool:
        """Whether there are too few rows for a fit."""
        return self.rows.time_us.size < LEAST_ROWS

    @property
    def form(self) -> str:
        """Format and shape, the key of its kernel."""
        return str(self.rows.operator.form)

    @property
    def source(self) -> str:
        """One line that is kept with the parameters."""
        named = {"engine": self.engine, "versions": self.versions, "kernel": self.kernel}
        return SOURCE.format(gpu=self.recorded, **named)

    @property
    def is_other(self) -> bool:
        """Whether a library does not take it by itself."""
        return any(word in self.kernel for word in NOT_DEFAULT)

    @property
    def newest_first(self) -> tuple[int, ...]:
        """Orders versions."""
        numbers = [int("".join(c for c in part if c.isdigit()) or 0) for part in self.version.split(".")]
        return tuple(-number for number in numbers)


TABLES = ("moe", "mla", "collectives", "moe_dispatch", "quant_gemm")
"""Recorded tables of `moe_tp` whose rows have kernels."""
FILES = (*(f"moe_tp/{name}.parquet" for name in TABLES), *(f"kernels_2026/{name}.parquet" for name in MIXERS))


def pairs() -> pd.DataFrame:
    """Every recorded row that some kernel of its GPU predicts, as a pair (`common/measured_pairs.py`).

    Tables that are not here are left out, as long as one is.
    """
    if not any(map(is_here, FILES)):
        measured(FILES[0])
    return joined(frames())


def frames() -> Iterator[pd.DataFrame]:
    """The same, kernel by kernel."""
    yield from _recorded_pairs()
    yield from _mixer_pairs()


def _recorded_pairs() -> Iterator[pd.DataFrame]:
    for name in filter(lambda name: is_here(f"moe_tp/{name}.parquet"), TABLES):
        for card, rows in by_gpu(name, []):
            keep = is_trusted(rows, name, card)
            spread = pd.Series(data=False, index=rows.index)
            if name == "moe":
                keep &= rows["inter"] % rows["tp"] == 0
                spread = rows["ep"] > 1
            if name == "quant_gemm":  # eager, with floors of 150 us and more
                keep &= (rows["engine"] != "vllm") | (rows["dtype"] != "fp8_block")
            for of_these, what in ((keep & ~spread, ""), (keep & spread, ", spread")):
                if of_these.any():
                    checked = check_rows(
                        rows[of_these].reset_index(drop=True), f"{name}.parquet", need_time=True
                    )
                    yield from _predicted(checked, card, f"moe_tp/{name}.parquet", what)


def _mixer_pairs() -> Iterator[pd.DataFrame]:
    here = [name for name in MIXERS if is_here(f"kernels_2026/{name}.parquet")]
    for name, frame in zip(here, mixers(*here) if here else (), strict=True):
        for gpu, rows in frame.groupby("gpu"):
            yield from _predicted(
                rows.reset_index(drop=True), load_gpu(str(gpu)), f"kernels_2026/{name}.parquet", ""
            )


def _predicted(rows: pd.DataFrame, card: Gpu, data: str, what: str) -> Iterator[pd.DataFrame]:
    """Pairs of the rows that there is a kernel for."""
    try:
        found = predicted_rows(rows, card, load_runtime("kernel"), leave_out=lambda _: None, cold=False)
    except SpecError:  # for none of them
        return
    yield from kernel_pairs(found, card, data=data, what=what)


Found = Iterator[tuple[str, FittedKernel]]


def serving_kernels(gpu: str) -> Found:
    """Engine and kernel: latent attention, collectives, dispatch and combination.

    An engine takes by itself the latent kernel of most rows, and what dispatches with the least latency.
    """
    card = load_gpu(gpu)
    latent = sorted(Measured.read("mla", gpu), key=lambda each: -len(each.rows.time_us))
    yield from _keyed(latent, "mla", fit_latent, card)
    yield from _collectives(gpu, card)
    dispatch = sorted(Measured.read("moe_dispatch", gpu), key=lambda each: each.is_other)
    yield from _keyed(dispatch, "dispatch", fit_dispatch, card)


def _keyed(rows: list[Measured], section: str, fit: Callable[..., Any], card: Gpu) -> Found:
    """The first kernel of an engine and form has the form as its key, others their name behind it."""
    taken: set[tuple[str, str]] = set()
    for each in rows:
        if each.is_few:
            continue
        mark = f"@{each.kernel}" if (each.engine, each.form) in taken else ""
        taken.add((each.engine, each.form))
        kernel = fit(each.rows, card, source=each.source)
        yield each.engine, FittedKernel(section=section, key=f"{each.form}{mark}", kernel=kernel)


def _collectives(gpu: str, card: Gpu) -> Found:
    """The newest release, and older ones that differ."""
    rows = sorted(
        _joined(Measured.read("collectives", gpu)), key=lambda each: (each.is_other, each.newest_first)
    )
    known: dict[tuple[str, str, str], Any] = {}
    for each in rows:
        newest = known.get((each.engine, each.kernel, each.form))
        if newest is not None:
            error = mape(collective_time(card, newest, each.rows.operator).time_us, each.rows.time_us)
            if error < max(SHARED_ERROR, newest.fit.fit_error):
                continue
        if each.is_few:
            continue
        kernel = fit_collective(each.rows, card, source=each.source)
        others = {name for engine, name, form in known if (engine, form) == (each.engine, each.form)}
        mark = f"@{each.kernel}" if others - {each.kernel} else ""
        key = each.form if newest is None else each.rows.operator.forms[0]
        known.setdefault((each.engine, each.kernel, each.form), kernel)
        yield each.engine, FittedKernel(section="collective", key=f"{key}{mark}", kernel=kernel)


def _joined(found: Iterator[Measured]) -> Iterator[Measured]:
    """Too few rows for a fit are joined with those of other dtypes and releases of the same kernel."""
    few: dict[tuple[str, str, str], list[Measured]] = {}
    for each in found:
        if not each.is_few:
            yield each
        else:
            few.setdefault((each.engine, each.kernel, each.rows.operator.kind), []).append(each)
    for parts in few.values():
        newest = min(parts, key=lambda each: each.newest_first)
        columns = {
            name: np.concatenate([np.asarray(each.rows.operator.sizes[name]) for each in parts])
            for name in newest.rows.operator.COLUMNS
        }
        times = np.concatenate([each.rows.time_us for each in parts])
        versions = ", ".join(sorted({each.version for each in parts}))
        rows = Rows(newest.rows.operator.with_columns(**columns), times, newest.kernel)
        yield replace(newest, rows=rows, versions=versions)
