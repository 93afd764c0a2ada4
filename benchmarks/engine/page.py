"""A record of the engine as Markdown: the section `run` of docs/validation-engines.md.

python benchmarks/engine/page.py profiles/engines/*
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from steps_compared import FIT_BATCHES, FIT_DRAFTS, EngineValidation, tokens_per_step, validate_engine

SOURCES = ("vLLM", "decoder", "predicted", "decoder, latest copy")
METHODS = {"draft": "draft model", "ngram": "n-gram"}


def page(found: EngineValidation) -> str:
    """One record: what was fitted, errors of what was predicted, choices, acceptance."""
    meta = found.record.meta
    lines = [
        f"## {meta.title}",
        "",
        f"{meta.passes} passes, {meta.seconds} s in all, load average {meta.environment.load_average:g} at the "
        f"start; {meta.settings}. Steps are timed one by one, by the CPU time of the engine's process where it has one thread, beside a fixed piece of work whose time divides out how fast the machine runs at the moment; of each cell the middle pass counts, of two the one that met the machine nearer to its usual speed.",
        "",
        *_steadiness(found),
        *_terms(found),
        *_scores(found),
        *_choices(found),
        *_break_even(found),
        *_acceptance(found),
    ]
    return "\n".join(lines) + "\n"


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]], numbers_from: int) -> list[str]:
    bars = ["---" if i < numbers_from else "---:" for i in range(len(heads))]
    return ["| " + " | ".join(cells) + " |" for cells in (heads, bars, *rows)] + [""]


def _steadiness(found: EngineValidation) -> list[str]:
    told = f"The passes differ by {found.passes_differ:.1%} of a step in the mean"
    if found.record.meta.passes < 2:
        told = "One pass only, with nothing to compare it with"
    told += f"; other programs made the wall clock run {found.wall_share:.2f} times as long"
    if found.is_steady:
        return [f"{told}.", ""]
    return [f"**{told}: too much to judge anything below. End other programs and run it again.**", ""]


def _terms(found: EngineValidation) -> list[str]:
    batches = " and ".join(str(batch) for batch in FIT_BATCHES)
    first = found.record.meta.targets[0]
    terms = asdict(found.terms)
    named = {f"step of {target}": value for target, value in terms.pop("step").items()} | terms
    heads = [name.replace("_", " ") for name in named]
    return [
        f"Beside kernels, in microseconds, fitted to plain decoding at {batches} requests of every target and to "
        f"{FIT_DRAFTS} drafts at the same batches of {first}:",
        "",
        *_table(heads, [[f"{value:.1f}" for value in named.values()]], 0),
    ]


def _scores(found: EngineValidation) -> list[str]:
    heads = ["target", "quantity", "cells", "mean", "worst", "bias", "passes differ", "worst cell"]
    passes = {cell.step.target: cell.passes for cell in found.cells}
    rows = [
        [
            *(target, s.quantity, str(s.cells), f"{s.mean:.1%}", f"{s.worst:.1%}", f"{s.bias:+.1%}"),
            *(f"{s.floor:.1%}" if passes[target] > 1 else "one pass", s.worst_at),
        ]
        for target, s in found.scores
    ]
    return ["Errors of the cells that nothing was fitted to:", "", *_table(heads, rows, 2)]


def _choices(found: EngineValidation) -> list[str]:
    apart = [choice.grid_steps for _, choice in found.choices]
    regret = [choice.regret for _, choice in found.choices]
    batches = sorted({choice.batch for _, choice in found.choices})
    by_row: dict[tuple[str, str], dict[int, str]] = {}
    for method, choice in found.choices:
        told = str(choice.predicted)
        if choice.predicted != choice.measured:
            told += f" ({choice.measured})"
        by_row.setdefault((choice.model, method), {})[choice.batch] = told
    rows = [
        [target, METHODS[method], *(told[batch] for batch in batches)]
        for (target, method), told in by_row.items()
    ]
    return [
        "Best number of drafts by batch, predicted (measured where it differs), with the acceptance of the shipped "
        f"pair; 0 is plain decoding. At most {max(apart)} places of the grid apart, {max(regret):.1%} of the speedup "
        f"given away at worst, {sum(regret) / len(regret):.1%} in the mean.",
        "",
        *_table(["target", "method", *(str(batch) for batch in batches)], rows, 2),
    ]


def _break_even(found: EngineValidation) -> list[str]:
    def batch(value: float) -> str:
        return "never pays" if value == 0.0 else f"{value:.1f}" if value < float("inf") else "always pays"

    rows = [
        [row.target, METHODS[row.method], str(row.drafts), batch(row.predicted), batch(row.measured)]
        for row in found.break_even
    ]
    heads = ["target", "method", "drafts", "predicted", "measured"]
    return ["Break-even batch:", "", *_table(heads, rows, 3)]


def _acceptance(found: EngineValidation) -> list[str]:
    accepted = found.record.accepted
    longest = max(row.position for row in accepted)
    rows = []
    for method, title in METHODS.items():
        for source in SOURCES:
            cells = {row.position: row for row in accepted if row.method == method and row.source == source}
            if cells:
                told = [f"{cells[i].share:.3f} ± {cells[i].error:.3f}" for i in range(1, longest + 1)]
                rows.append(
                    [title, source, *told, f"{tokens_per_step(accepted, method, source, longest):.3f}"]
                )
    heads = ["method", "source", *(str(i) for i in range(1, longest + 1)), "tokens per step"]
    texts = [
        f"- {METHODS.get(text.method, 'plain')}: {text.same} of {text.texts} texts are the decoder's to the last "
        f"token ({text.common_tokens / text.tokens:.1%} of the tokens before a first difference)."
        for text in found.record.texts
    ]
    return [
        "The shipped checkpoints, greedy, in vLLM and in the project's decoder on the same prompts:",
        "",
        *texts,
        "",
        "Share of steps that accepted at least so many drafts, ± the standard error between texts. Predicted comes "
        "from plain texts of other prompts:",
        "",
        *_table(heads, rows, 2),
    ]


if __name__ == "__main__":
    folders = [Path(name) for name in sys.argv[1:]]
    sys.path.append(str(Path(__file__).resolve().parents[1]))
    from pages import write_section

    text = "\n".join(page(validate_engine(folder)) for folder in folders)
    write_section("validation-engines.md", "run", f"# A served engine on a CPU\n\n{text}")
