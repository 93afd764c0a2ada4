"""The answer of a sweep in sentences: gains at its ends, where speculation pays, what other counts give."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from medusa_sim.grid.cell import Cell
from medusa_sim.grid.cells import Cells
from medusa_sim.plan.sweep_answer import SweepAnswer
from medusa_sim.report.words.break_even import break_even_text
from medusa_sim.report.words.numbers import batch_text, counted, drafts_text, times

T = TypeVar("T")


def answer_text(answer: SweepAnswer) -> str:
    """The gain at the first and the last batch and length that fit, or that there is none."""
    counts = answer.column("candidates").tolist()
    rows = [row for row, fits in enumerate(answer.fits) if fits]
    if all(counts[row] == 1 for row in rows):
        return "Speculation gives no gain at any of these batches and lengths."
    chains = answer.best.configurations.are_chains
    gains = [
        (
            f"{times(answer.gains[row][0])} with {counted(counts[row], chains)}"
            if counts[row] > 1
            else "no gain"
        )
        + f" at {row_text(answer, row)}"
        for row in ends_of(rows)
    ]
    return f"Speculation gives {' and '.join(gains)}."


def by_batch(answer: SweepAnswer) -> list[str]:
    """At which batches speculation pays, a text a length."""
    several = answer.grid.seq_len.size > 1
    return [
        break_even_text(break_even, "batch") + (f" at length {seq_len:,}" if several else "")
        for seq_len, break_even in zip(answer.grid.seq_len, answer.break_evens, strict=True)
    ]


def better_text(answer: SweepAnswer) -> str:
    """The best of all counts where the answer is about others; empty where these have it."""
    best, counts = answer.best_of_all, answer.column("candidates").tolist()
    gains = answer.column(answer.gain, best).tolist()
    chains = best.configurations.are_chains
    better = [
        f"{counted(count, chains)} at {row_text(answer, row)} ({times(gains[row])})"
        for row, count in enumerate(answer.column("candidates", best).tolist())
        if answer.fits[row] and count != counts[row]
    ]
    return f"of all counts the best is {' and '.join(ends_of(better))}" if better else ""


def engine_text(best: Cells) -> str:
    """Gain in the engine that runs a drafter, at the first and the last batch; empty where neither fits."""
    surface = best.surface
    several = surface.seq_len.size > 1
    ends = [
        f"{times(float(best.speedup[b, s, 0]))} with {drafts_text(Cell(cells=best, b=b, s=s).candidates)} at "
        + batch_text(int(surface.batch[b]), int(surface.seq_len[s]), several=several)
        for b, s in ends_of([(0, 0), (best.shape[0] - 1, best.shape[1] - 1)])
        if best.fits[b, s, 0]
    ]
    name = best.scenario.runtime.name
    return f"{name} runs no trees (--runtime vllm); its chain gives {', '.join(ends)}" if ends else ""


def row_text(answer: SweepAnswer, row: int) -> str:
    """The batch and length of a row of the grid."""
    b, s = divmod(row, answer.grid.seq_len.size)
    return batch_text(
        int(answer.grid.batch[b]), int(answer.grid.seq_len[s]), several=answer.grid.seq_len.size > 1
    )


def ends_of(several: Sequence[T]) -> list[T]:
    """The first and the last, once where they are the same."""
    return list(dict.fromkeys((several[0], several[-1])))
