"""A sweep for people at a terminal: the answer first, one line for each batch and length."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from medusa_sim.latency.base import Bound
from medusa_sim.plan.insights import BATCHES_SEARCHED, FREE_WITHIN, SEARCHED, Answer, Paying
from medusa_sim.plan.sweep import SweepSetting
from medusa_sim.report.numbers import NOTHING, duration, percent, significant, span, times
from medusa_sim.report.text import TextTable

_EXPENDABLE = ("plain step", "verify step", "plain", "waits for", "tokens/step", "tokens/s", "any count")
"""Columns that a narrow terminal leaves out, the first one first."""


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


def best_table(found: Answer) -> TextTable:
    """One row for each batch and length: the best count and what it gives.

    Columns that say nothing here (one length, no throughput, everything fits) are left out.
    """
    best, fine = found.best, found.fine
    column = {name: values.tolist() for name, values in best.columns.items()}
    texts: dict[str, list[str]] = {
        "batch": [str(value) for value in column["batch"]],
        "length": [str(value) for value in column["seq_len"]],
        "best count": [str(value) for value in column["candidates"]],
        "fits": [_fits(value) for value in column["fits_memory"]],
        "speedup": [times(value) for value in column["speedup"]],
        "80 %": [
            f"{low:.2f}-{high:.2f}"
            for low, high in zip(column["speedup_low"], column["speedup_high"], strict=True)
        ],
        "tokens/step": [significant(value, 3) for value in column["tokens_per_step"]],
        "overhead": [f"{value:.2f}" for value in column["overhead"]],
        "plain step": [duration(value) for value in column["decode_step_us"]],
        "verify step": [duration(value) for value in column["verify_step_us"]],
        "tokens/s": [_rate(value) for value in column["tokens_per_s"]],
        "plain": [_rate(float(value)) for value in best.plain_tokens_per_s],
        "any count": [
            f"{count}: {times(float(gain))}" for count, gain in zip(fine.count, fine.speedup, strict=True)
        ],
        "free to": [free_text(int(free)) for free in fine.free],
        "waits for": [Bound(int(code)).name.lower() for code in best.bound],
    }
    if found.grid.seq_len.size == 1:
        del texts["length"]
    if set(texts["fits"]) <= {"yes", NOTHING}:
        del texts["fits"]
    kept = {name: cells for name, cells in texts.items() if set(cells) != {NOTHING}}
    return TextTable(
        headers=tuple(kept),
        rows=tuple(zip(*kept.values(), strict=True)),
        right=tuple(name not in ("waits for", "fits") for name in kept),
        expendable=_EXPENDABLE,
    )


def free_text(count: int) -> str:
    """A free budget; `256+` where the search ended before it did."""
    return f"{count}+" if count >= SEARCHED else str(count)


def _rate(tokens_per_s: float) -> str:
    return NOTHING if math.isnan(tokens_per_s) else f"{tokens_per_s:,.0f}"


def _fits(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "NO"
    return NOTHING


def verdicts(found: Answer) -> list[str]:
    """What follows from the grid: where it stops paying, what is free, where a larger count is cheaper."""
    hints = cheaper_hints(found)
    told = [
        _paying(found),
        _free(found),
        *([f"A larger count is cheaper: {'; '.join(hints)}."] if hints else []),
    ]
    if not all(found.best.columns["fits_memory"].astype(np.float64)):
        told.append("fits NO: weights, KV cache and activations exceed 90 % of the GPU's memory.")
    return told


def _paying(found: Answer) -> str:
    ranges = [f"{text}{_at_length(found, i)}" for i, text in enumerate(paying_ranges(found.paying))]
    return f"Pays {'; '.join(ranges)}, with the best of any count (every count to {SEARCHED} is looked at)."


def _at_length(found: Answer, case: int) -> str:
    return f" at length {found.grid.seq_len[case]}" if found.grid.seq_len.size > 1 else ""


def paying_ranges(paying: Paying) -> list[str]:
    """For each length: `up to batch 52`, `at batch 4..64`, or that it pays wherever it fits."""
    parts = []
    for last, searched, spans in zip(
        paying.last.tolist(), paying.searched.tolist(), paying.spans, strict=True
    ):
        if searched and (len(spans) > 1 or (spans and last == 0)):
            parts.append("at batch " + ", ".join(span(first, end) for first, end in spans))
        elif searched == 0:
            parts.append("nowhere: two candidates at batch 1 do not fit in memory")
        elif last == 0:
            parts.append("at no batch")
        elif last < searched:
            parts.append(f"up to batch {last}")
        elif searched < BATCHES_SEARCHED:
            parts.append(f"at every batch that fits in memory, to {searched}")
        else:
            parts.append(f"at every batch to {searched}")
    return parts


def _free(found: Answer) -> str:
    meaning = f"Free to: every count up to it costs at most {FREE_WITHIN - 1:.0%} more than a plain step"
    if found.drafting_share <= 0.0:
        return f"{meaning} (searched to {SEARCHED})."
    alone = free_text(int(found.fine.free_verification[0]))
    batch = found.grid.batch[0]
    return (
        f"{meaning}; at batch {batch} drafting alone adds {percent(found.drafting_share)}, without it "
        f"verification is free up to {alone}."
    )


def cheaper_hints(found: Answer, most: int = 6) -> list[str]:
    """Up to `most` hints such as `batch 4: 96 is cheaper than 80`."""
    several = found.grid.seq_len.size > 1
    return [
        f"batch {pair.batch}{f', length {pair.seq_len}' if several else ''}: "
        f"{pair.more} is cheaper than {pair.less}"
        for pair in found.cheaper[:most]
    ]


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
