"""The table of a sweep: a line for each batch and length."""

from __future__ import annotations

from medusa_sim.grid.quantity import BY_NAME, with_unlisted
from medusa_sim.plan.sweep_answer import FreeBudgets, SweepAnswer
from medusa_sim.report.quantity_table import quantity_table, quantity_text
from medusa_sim.report.table import TextTable
from medusa_sim.report.words.numbers import NOTHING, span, times

_TABLE = (
    "batch", "seq_len", "candidates", "near_best", "drafts", "fits_memory", "speedup",
    "baseline_speedup", "interval", "step_speedup", "kernels_speedup", "tokens_per_step", "overhead",
    "baseline_overhead", "decode_step_us", "verify_step_us", "tokens_per_s", "plain_tokens_per_s",
    "usd_per_million_tokens", "joule_per_token", "free_candidates", "bound",
)  # fmt: skip
"""Columns of the table for people."""

_EXPENDABLE = (
    "joule_per_token", "usd_per_million_tokens", "near_best", "free_candidates", "decode_step_us",
    "plain_tokens_per_s", "bound", "verify_step_us", "overhead", "baseline_overhead",
    "tokens_per_s", "tokens_per_step",
)  # fmt: skip
"""Columns that a narrow terminal leaves out, the first one first."""

_OVER_PLAIN, _OVER_BASELINE = ("speedup", "overhead"), ("baseline_speedup", "baseline_overhead")
"""Columns that compare with plain decoding at the same batch and length, and with a fixed baseline."""


def best_table(answer: SweepAnswer) -> TextTable:
    """One row for each batch and length: the best count and what it gives.

    Columns that say nothing here (one length, no throughput, everything fits) are left out.
    """
    fits = answer.fits
    worded: dict[str, list[str]] = {
        "near_best": [NOTHING if low == high else f"{span(low, high)}" for low, high in answer.near_best],
        "drafts": [str(value) if value else NOTHING for value in answer.column("drafts").tolist()],
        answer.gain: [times(value) for value, _, _ in answer.gains],
        "interval": [f"{low:.2f}-{high:.2f}" for _, low, high in answer.gains],
        "free_candidates": [free_text(int(free), answer.free) for free in answer.free.whole],
    }
    unit = "heads" if answer.scenario.drafting.drafter_class.unit == "head" else "drafts"
    left_out = {
        *(["seq_len"] if answer.grid.seq_len.size == 1 else []),
        *(["fits_memory"] if all(fits) else []),
        *(_OVER_PLAIN if answer.scenario.baseline == "fixed" else _OVER_BASELINE),
        *(["step_speedup"] if answer.scenario.traffic is None else []),
    }
    columns: dict[str, list[str]] = {}
    for name in with_unlisted(_TABLE):
        if name in left_out or not BY_NAME[name].title:
            continue
        cells = worded.get(name) or [quantity_text(name, value) for value in answer.column(name).tolist()]
        is_always_shown = name in ("batch", "seq_len", "fits_memory")
        is_heads = name == "drafts" and not answer.best.configurations.are_chains
        columns[unit if is_heads else name] = [
            cell if here or is_always_shown else NOTHING for cell, here in zip(cells, fits, strict=True)
        ]
    return quantity_table(columns, words=("bound", "fits_memory"), expendable=_EXPENDABLE)


def free_text(count: int, free: FreeBudgets) -> str:
    """A free budget; `256+` where the search ended before it did."""
    return f"{count}+" if count >= free.largest else str(count)
