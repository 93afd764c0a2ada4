"""A sweep for people at a terminal: the answer first, one line for each batch and length."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from medusa_sim.answer import (
    BATCHES_SEARCHED,
    FREE_SEARCHED,
    FREE_WITHIN,
    Best,
    best_counts,
    cheaper_pairs,
    every_count,
    free_budget,
    last_paying_batch,
)
from medusa_sim.latency.base import Bound
from medusa_sim.report.numbers import NOTHING, duration, significant, times
from medusa_sim.report.text import TextTable
from medusa_sim.sweep import Grid, SweepSetting, sweep

_HEADERS = (
    "batch",
    "length",
    "best count",
    "speedup",
    "80 % interval",
    "tokens/step",
    "overhead",
    "plain step",
    "verify step",
    "tokens/s",
    "plain tokens/s",
    "free up to",
    "waits for",
    "fits",
)


def headline(sweep_setting: SweepSetting) -> str:
    """What was swept, on one line."""
    setting = sweep_setting.setting
    model, runtime = setting.model, setting.runtime
    latency = setting.latency.name
    if latency == "calibrated":
        latency += f" ({sweep_setting.kernels} kernels)"
    drafting = setting.drafter.name
    if drafting == "medusa":
        drafting = f"{setting.depth} Medusa heads"
    scope = f"{drafting}, " if setting.scope == "model" else "one block, "
    fixed = sweep_setting.baseline == "fixed"
    against = ", against the decode step at batch 1 and length 1024" if fixed else ""
    return (
        f"{sweep_setting.gpu.name}, {model.name} {model.dtype}: {scope}{runtime.name}, {latency}, "
        f"acceptance {sweep_setting.acceptance.name}{against}"
    )


def best_of(sweep_setting: SweepSetting, grid: Grid) -> Best:
    """Best count for each batch and length of the grid, whatever its size."""
    parts = [best_counts(table, grid.candidates.size) for table in sweep([sweep_setting], grid)]
    names = parts[0].columns
    return Best(
        columns={name: np.concatenate([part.columns[name] for part in parts]) for name in names},
        bound=np.concatenate([part.bound for part in parts]),
        plain_tokens_per_s=np.concatenate([part.plain_tokens_per_s for part in parts]),
    )


def free_counts(sweep_setting: SweepSetting, grid: Grid) -> list[str]:
    """The free budget of each batch and length, in the order of the grid; `256+` where all are free."""
    setting = sweep_setting.setting
    found: list[str] = []
    for batch in grid.batch:
        computed = every_count(setting, batch[None], grid.seq_len, FREE_SEARCHED)
        budget = free_budget(computed.verify_us / computed.decode.time_us)[0]
        found += [f"{count}+" if count >= FREE_SEARCHED else str(count) for count in budget]
    return found


def best_table(sweep_setting: SweepSetting, grid: Grid) -> TextTable:
    """One row for each batch and length: the best count and what it gives."""
    best = best_of(sweep_setting, grid)
    column = {name: values.tolist() for name, values in best.columns.items()}
    rows = []
    for i, free in enumerate(free_counts(sweep_setting, grid)):
        fits = column["fits_memory"][i]
        rows.append(
            (
                str(column["batch"][i]),
                str(column["seq_len"][i]),
                str(column["candidates"][i]),
                times(column["speedup"][i]),
                f"{column['speedup_low'][i]:.2f}-{column['speedup_high'][i]:.2f}",
                significant(column["tokens_per_step"][i], 3),
                f"{column['overhead'][i]:.2f}",
                duration(column["decode_step_us"][i]),
                duration(column["verify_step_us"][i]),
                _rate(column["tokens_per_s"][i]),
                _rate(float(best.plain_tokens_per_s[i])),
                free,
                Bound(int(best.bound[i])).name.lower(),
                ("yes" if fits else "NO") if isinstance(fits, bool) else NOTHING,
            )
        )
    text_columns = {"waits for", "fits"}
    empty = {name for j, name in enumerate(_HEADERS) if all(row[j] == NOTHING for row in rows)}
    kept = [j for j, name in enumerate(_HEADERS) if name not in empty]
    return TextTable(
        headers=tuple(_HEADERS[j] for j in kept),
        rows=tuple(tuple(row[j] for j in kept) for row in rows),
        right=tuple(_HEADERS[j] not in text_columns for j in kept),
    )


def _rate(tokens_per_s: float) -> str:
    return NOTHING if math.isnan(tokens_per_s) else f"{tokens_per_s:,.0f}"


def verdicts(sweep_setting: SweepSetting, grid: Grid) -> list[str]:
    """What follows from the grid: where it stops paying, what is free, where a larger count is cheaper."""
    told = [_paying(sweep_setting, grid), _free_meaning()]
    cheaper = cheaper_hints(sweep_setting, grid)
    if cheaper:
        told.append("Cheaper though larger: " + "; ".join(cheaper) + ".")
    return told


def _paying(sweep_setting: SweepSetting, grid: Grid) -> str:
    last = last_paying_batch(sweep_setting, grid.seq_len, grid.candidates)
    parts = []
    for seq_len, batch in zip(grid.seq_len, last, strict=True):
        if batch >= BATCHES_SEARCHED:
            parts.append(f"at every batch to {BATCHES_SEARCHED} (length {seq_len})")
        elif batch == 0:
            parts.append(f"at no batch (length {seq_len})")
        else:
            parts.append(f"up to batch {batch} (length {seq_len})")
    return f"Some count of the grid beats plain decoding {', '.join(parts)}; memory apart."


def _free_meaning() -> str:
    return (
        f"`free up to`: every count up to it costs at most {FREE_WITHIN - 1:.0%} more than a plain step "
        f"(searched to {FREE_SEARCHED})."
    )


def cheaper_hints(sweep_setting: SweepSetting, grid: Grid, most: int = 6) -> list[str]:
    """Up to `most` hints such as `batch 4: 96 is cheaper than 80`."""
    hints: list[str] = []
    for table in sweep([sweep_setting], grid):
        counts = grid.candidates.size
        verify_us = np.asarray(table.numbers["verify_step_us"]).reshape(-1, counts)
        batch = table.numbers["batch"].reshape(-1, counts)[:, 0]
        seq_len = table.numbers["seq_len"].reshape(-1, counts)[:, 0]
        for case in range(verify_us.shape[0]):
            for less, more in cheaper_pairs(grid.candidates, verify_us[case]):
                at = f"batch {batch[case]}" + (f", length {seq_len[case]}" if grid.seq_len.size > 1 else "")
                hints.append(f"{at}: {more} than {less}")
                if len(hints) >= most:
                    return hints
    return hints


def sources(settings: Sequence[SweepSetting]) -> dict[str, dict[str, str]]:
    """Where the numbers of a sweep come from: GPU, model, runtime, kernels, acceptance."""
    found: dict[str, dict[str, str]] = {}
    for item in settings:
        gpu, model, runtime = item.gpu, item.setting.model, item.setting.runtime
        found[f"gpu {gpu.name}"] = dict(gpu.sources)
        found[f"model {model.name}"] = {"sizes": model.source}
        found[f"runtime {runtime.name}"] = dict(runtime.sources)
        found[f"acceptance {item.acceptance.name}"] = {"tokens_per_step": item.acceptance.source}
        if item.setting.latency.name == "calibrated":
            found[f"kernels {gpu.name} {item.kernels}"] = kernel_sources(item)
    return found


def kernel_sources(item: SweepSetting) -> dict[str, str]:
    """Source, rows and errors of every kernel of the set: `gemm.fp16` -> one line."""
    chosen = item.gpu.kernel_set(item.kernels)
    told = {}
    for section in ("gemm", "attention", "elementwise"):
        for key, kernel in getattr(chosen, section).items():
            fit = kernel.fit
            told[f"{section}.{key}"] = (
                f"{fit.source}; {fit.rows} rows, mean error {fit.fit_error:.1%} of the fit, "
                f"{fit.heldout_error:.1%} on shapes held back"
            )
    return told
