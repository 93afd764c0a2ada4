"""Fits latent attention, collectives and dispatch of serving engines, and scores them on what was held out.

    python benchmarks/serving_kernels.py fit [GPU ...]      writes hardware/*.toml
    python benchmarks/serving_kernels.py score [GPU ...]    prints the errors that stand in hardware/*.toml
    python benchmarks/serving_kernels.py heads | ranks      further hold-outs, fitted anew

The rows are not part of this project (CONTRIBUTING.md): `moe_tp/mla.parquet`, `collectives.parquet` and
`moe_dispatch.parquet` lie in $MEDUSA_SIM_DATA or ../shared/data. One kernel for each engine, name and key; a
release of a library has a kernel of its own where the newest one's misses its rows.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from recorded import GPU_OF_ROWS, data_folder, present

from medusa_sim.arrays import BoolArray, FloatArray
from medusa_sim.calibrate.collective import fit_collective, fit_dispatch
from medusa_sim.calibrate.fit import LEAST_ROWS, Rows, mape
from medusa_sim.calibrate.latent import fit_latent
from medusa_sim.calibrate.rows import FittedKernel, write_kernels
from medusa_sim.latency.attention import latent_time
from medusa_sim.latency.collective import collective_time
from medusa_sim.operators.experts import Collective, Dispatch
from medusa_sim.operators.latent import LatentAttention
from medusa_sim.operators.table import check_rows, operators_of
from medusa_sim.report.text import TextTable, markdown, percent
from medusa_sim.specs.fitted import CollectiveKernel
from medusa_sim.specs.gpu import Gpu, load_gpu

ROOT = Path(__file__).resolve().parents[1]
SOURCE = "aiconfigurator-core 0.12 (Apache-2.0): {gpu}, {engine} {versions}, {kernel}"
NOT_DEFAULT = ("eager", "deepep_normal", "deepep_ht", "deepep_v2", "NVLinkOneSided")
"""Kernels whose name has one of these are not what a library takes by itself in a decoding step."""
SHARED_ERROR = 0.03
"""A release whose rows the newest one's kernel meets as closely as this needs none of its own."""


@dataclass(frozen=True, slots=True)
class Measured:
    """Rows of one kernel: engine, name, version (empty: of all), their operator and times."""

    engine: str
    kernel: str
    version: str
    rows: Rows[LatentAttention] | Rows[Collective] | Rows[Dispatch]
    versions: str


def folder() -> Path:
    """Where the tables lie."""
    return present(data_folder() / "moe_tp")


def table(name: str) -> pd.DataFrame:
    """Rows of a table that are not suspect, of GPUs with a file; L40S beyond two ranks is bad data."""
    frame = pd.read_parquet(folder() / f"{name}.parquet")
    words = frame.select_dtypes("category").columns
    frame = frame.astype(dict.fromkeys(words, str))
    keep = frame["gpu"].isin(GPU_OF_ROWS)
    if "suspect" in frame:
        keep &= frame["suspect"] == ""
    if name == "collectives":
        keep &= ~((frame["gpu"] == "l40s") & (frame["ranks"] > 2))
    return frame[keep]


def measured(name: str, gpu: str) -> Iterator[Measured]:
    """Rows of a table by engine, kernel, operator and, for collectives, version."""
    frame = table(name)
    frame = check_rows(frame[frame["gpu"] == gpu], name, need_time=True)
    if name != "collectives":
        frame = frame.assign(version_of_all=frame["version"], version="")
    for index, operator in operators_of(frame, by=("engine", "kernel", "version")):
        part = frame.iloc[index]
        versions = part["version_of_all" if name != "collectives" else "version"].unique()
        yield Measured(
            engine=str(part["engine"].iloc[0]),
            kernel=str(part["kernel"].iloc[0]),
            version=str(part["version"].iloc[0]),
            rows=Rows(operator, part["time_us"].to_numpy(dtype=np.float64)),  # type: ignore[arg-type]
            versions=", ".join(sorted(versions)),
        )


def fitted(gpu: str) -> dict[str, list[FittedKernel]]:
    """Kernels of every engine, by set."""
    card = load_gpu(GPU_OF_ROWS[gpu])
    sets: dict[str, list[FittedKernel]] = {}
    for one in (*latent_kernels(gpu, card), *collective_kernels(gpu, card), *dispatch_kernels(gpu, card)):
        engine, kernel = one
        print(
            f"{gpu} {engine} {kernel.section} {kernel.key}: {kernel.kernel.fit.rows} rows, fit "
            f"{kernel.kernel.fit.fit_error:.3f}, held out {kernel.kernel.fit.heldout_error:.3f}",
            file=sys.stderr,
            flush=True,
        )
        sets.setdefault(engine, []).append(kernel)
    return sets


Found = Iterator[tuple[str, FittedKernel]]


def latent_kernels(gpu: str, card: Gpu) -> Found:
    """Latent attention: the kernel of most rows is what an engine takes by itself."""
    rows = sorted(measured("mla", gpu), key=lambda each: -len(each.rows.time_us))
    yield from _keyed(
        rows,
        "mla",
        lambda each: fit_latent(each.rows, card, source=_source(gpu, each), name=each.kernel),  # type: ignore[arg-type]
    )


def dispatch_kernels(gpu: str, card: Gpu) -> Found:
    """Dispatch and combination: what decodes with the least latency is what an engine takes by itself."""
    rows = sorted(measured("moe_dispatch", gpu), key=lambda each: _is_other(each.kernel))
    yield from _keyed(
        rows,
        "dispatch",
        lambda each: fit_dispatch(each.rows, card, source=_source(gpu, each), name=each.kernel),  # type: ignore[arg-type]
    )


def collective_kernels(gpu: str, card: Gpu) -> Found:
    """Collectives: the newest release, and older ones that differ."""
    rows = sorted(
        _joined(measured("collectives", gpu)),
        key=lambda each: (_is_other(each.kernel), _newest_first(each.version)),
    )
    known: dict[tuple[str, str, str], CollectiveKernel] = {}
    for each in rows:
        operator = each.rows.operator
        assert isinstance(operator, Collective)
        newest = known.get((each.engine, each.kernel, operator.form))
        if newest is not None and _meets(newest, each, operator, card):
            continue
        if len(each.rows.time_us) < LEAST_ROWS:
            continue
        kernel = fit_collective(each.rows, card, source=_source(gpu, each), name=each.kernel)  # type: ignore[arg-type]
        others = {name for engine, name, form in known if (engine, form) == (each.engine, operator.form)}
        mark = f"@{each.kernel}" if others - {each.kernel} else ""
        key = operator.form if newest is None else operator.forms[0]
        known.setdefault((each.engine, each.kernel, operator.form), kernel)
        yield each.engine, FittedKernel(section="collective", key=f"{key}{mark}", kernel=kernel)


def _joined(found: Iterator[Measured]) -> Iterator[Measured]:
    """Too few rows for a fit are joined with those of other dtypes and releases of the same kernel."""
    few: dict[tuple[str, str, str], list[Measured]] = {}
    for each in found:
        if len(each.rows.time_us) >= LEAST_ROWS:
            yield each
        else:
            few.setdefault((each.engine, each.kernel, each.rows.operator.kind), []).append(each)
    for parts in few.values():
        newest = min(parts, key=lambda each: _newest_first(each.version))
        operator = newest.rows.operator
        columns = {
            name: np.concatenate([np.asarray(each.rows.operator.columns[name]) for each in parts])
            for name in operator.COLUMNS
        }
        times = np.concatenate([each.rows.time_us for each in parts])
        joined: Rows[Collective] = Rows(operator.with_columns(**columns), times)  # type: ignore[arg-type]
        versions = ", ".join(sorted({each.version for each in parts}))
        yield replace(newest, rows=joined, versions=versions)


def _meets(kernel: CollectiveKernel, each: Measured, operator: Collective, card: Gpu) -> bool:
    error = mape(collective_time(card, kernel, operator).time_us, each.rows.time_us)
    return error < max(SHARED_ERROR, kernel.fit.fit_error)


def _keyed(rows: list[Measured], section: str, fit: Callable[[Measured], object]) -> Found:
    taken: set[tuple[str, str]] = set()
    for each in rows:
        if len(each.rows.time_us) < LEAST_ROWS:
            continue
        form = each.rows.operator.form
        mark = f"@{each.kernel}" if (each.engine, form) in taken else ""
        taken.add((each.engine, form))
        yield each.engine, FittedKernel(section=section, key=f"{form}{mark}", kernel=fit(each))  # type: ignore[arg-type]


def _is_other(kernel: str) -> bool:
    return any(word in kernel for word in NOT_DEFAULT)


def _newest_first(version: str) -> tuple[int, ...]:
    numbers = [int("".join(c for c in part if c.isdigit()) or 0) for part in version.split(".")]
    return tuple(-number for number in numbers)


def _source(gpu: str, each: Measured) -> str:
    return SOURCE.format(gpu=gpu, engine=each.engine, versions=each.versions, kernel=each.kernel)


def fit(gpus: list[str]) -> None:
    """Fit and write."""
    for gpu in gpus:
        for kernel_set, kernels in fitted(gpu).items():
            card = load_gpu(GPU_OF_ROWS[gpu])
            write_kernels(ROOT / "hardware", card, kernel_set, kernels)


def score(gpus: list[str]) -> None:
    """Errors that stand with the fits, weighted by rows."""
    lines = []
    for gpu in gpus:
        card = load_gpu(GPU_OF_ROWS[gpu])
        for name, held in card.kernels.items():
            groups: dict[str, list[tuple[int, float, float]]] = {}
            sections: dict[str, Mapping[str, Any]] = {
                "mla": held.mla,
                "collective": held.collective,
                "dispatch": held.dispatch,
            }
            for section, kernels in sections.items():
                for key, kernel in kernels.items():
                    if not kernel.fit.inherited_from:
                        own = (kernel.fit.rows, kernel.fit.fit_error, kernel.fit.heldout_error)
                        groups.setdefault(_group(section, key, kernel.name), []).append(own)
            for group, fits in groups.items():
                rows, fit_error, heldout = (np.asarray(column) for column in zip(*fits, strict=True))
                lines.append(
                    (
                        card.name,
                        name,
                        group,
                        str(len(fits)),
                        str(int(rows.sum())),
                        percent(float(np.average(fit_error, weights=rows))),
                        percent(float(np.average(heldout, weights=rows))),
                    )
                )
    headers = ("GPU", "set", "operator", "kernels", "rows", "fit", "held out")
    print(markdown(TextTable(headers, tuple(lines), (False, False, False, True, True, True, True))))


def _group(section: str, key: str, name: str) -> str:
    if section == "mla":
        words = key.partition("@")[0].split("_")
        scope = "kernel" if "module" not in words else "wide module" if "wideep" in words else "module"
        cache = " fp8 cache" if words[2:3] == ["fp8"] or words[1] == "fp8" else ""
        return f"MLA {words[0]} {scope}{cache}"
    if section == "collective":
        action = "all-reduce" if key.startswith("all_reduce") else "other collectives"
        return f"{action}{' eager' if 'eager' in name else ''}"
    return f"dispatch, combine: {name}"


def heads(gpus: list[str]) -> None:
    """Latent attention with one number of heads left out that lies between others."""
    lines = []
    for gpu in gpus:
        card = load_gpu(GPU_OF_ROWS[gpu])
        for each in measured("mla", gpu):
            operator = each.rows.operator
            counts = np.unique(np.asarray(operator.columns["heads"]))
            if len(each.rows.time_us) < LEAST_ROWS or len(counts) < 4 or operator.kind != "mla_decode":
                continue
            errors = [_without(each, card, count) for count in counts[1:-1]]
            lines.append((card.name, each.engine, operator.form, *(percent(error) for error in errors)))
    headers = ("GPU", "engine", "kernel", "4 heads", "8 heads", "32 heads")
    print(markdown(TextTable(headers, tuple(lines), (False, False, False, True, True, True))))


def _without(each: Measured, card: Gpu, count: float) -> float:
    held: BoolArray = np.asarray(each.rows.operator.columns["heads"]) == count
    kernel = fit_latent(each.rows.where(~held), card, source="held out")  # type: ignore[arg-type]
    left: Rows[LatentAttention] = each.rows.where(held)  # type: ignore[assignment]
    predicted: FloatArray = latent_time(card, kernel, left.operator, cold=False).time_us
    return mape(predicted, left.time_us)


def ranks(_: list[str]) -> None:
    """Four ranks of a GB200 from two and eight of a B200, the same chip and link, with the same library."""
    card = load_gpu("b200")
    lines = []
    four = {
        (e.engine, e.kernel, e.version, e.rows.operator.form): e for e in measured("collectives", "gb200")
    }
    for each in measured("collectives", "b200_sxm"):
        other = four.get((each.engine, each.kernel, each.version, each.rows.operator.form))
        if other is None or len(each.rows.time_us) < LEAST_ROWS or _is_other(each.kernel):
            continue
        kernel = fit_collective(each.rows, card, source="held out", name=each.kernel)  # type: ignore[arg-type]
        cells = []
        for count in (2.0, 4.0):
            keep = np.asarray(other.rows.operator.columns["ranks"]) == count
            part: Rows[Collective] = other.rows.where(keep)  # type: ignore[assignment]
            cells.append(percent(mape(collective_time(card, kernel, part.operator).time_us, part.time_us)))
        lines.append((each.engine, each.version, each.rows.operator.form, *cells))
    headers = ("engine", "version", "collective", "2 ranks (the other machine)", "4 ranks (held out)")
    print(markdown(TextTable(headers, tuple(lines), (False, False, False, True, True))))


COMMANDS: dict[str, Callable[[list[str]], None]] = {
    "fit": fit,
    "score": score,
    "heads": heads,
    "ranks": ranks,
}


def main() -> None:
    """Run a command on the GPUs that are named, by their key in the tables; on all without a name."""
    command, gpus = sys.argv[1:2], sys.argv[2:] or list(GPU_OF_ROWS)
    if not command or command[0] not in COMMANDS or set(gpus) - set(GPU_OF_ROWS):
        sys.exit(f"give one of {', '.join(COMMANDS)}, and GPUs of {', '.join(GPU_OF_ROWS)}")
    COMMANDS[command[0]](gpus)


if __name__ == "__main__":
    main()
