"""Where linear layers change the decision: the tables of docs/hybrids.md, and docs/images/hybrids.svg.

    python benchmarks/hybrid_break_even.py            # the tables; three seconds of one core
    python benchmarks/hybrid_break_even.py --write    # both

Every model gets the same chain of drafts and the same acceptance, so that only its steps differ; a draft
costs one EAGLE-3 layer of its width. Batches are those of one step, whether so many requests fit or not.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import matplotlib as mpl
import numpy as np
from common.pages import DOCS, write_tables
from common.script import command_line
from common.study import table
from matplotlib.figure import Figure

from medusa_sim.arrays import FloatArray
from medusa_sim.grid.axes import Grid
from medusa_sim.grid.sweep import sweep
from medusa_sim.models.state_rules import RULES
from medusa_sim.scenario.scenario import Scenario

ACCEPTED = 0.6
"""Chance of a draft to be accepted after those before it."""
DRAFTS = (1, 2, 3, 5, 7)
BATCHES = tuple(int(2**power) for power in range(11))
LENGTH = 4096
RUNTIME = "vllm-0.33"


@dataclass(frozen=True, slots=True)
class Case:
    """A model and how it runs. layers: what its mixers are."""

    model: str
    layers: str
    gpus: int
    weights: str | None = None


PANELS = {
    "About 3e9 active parameters, one H200": (
        Case("kimi-linear-48b-a3b", "linear (KDA)", 1),
        Case("nemotron-3-nano-30b-a3b", "linear (Mamba-2)", 1),
        Case("deepseek-v2-lite", "latent (MLA)", 1),
        Case("llama-3.2-3b", "dense, attention", 1),
    ),
    "12e9 to 37e9 active parameters, eight H200": (
        Case("qwen3.5-397b-a17b", "linear (GDN)", 8, "fp8"),
        Case("nemotron-3-super-120b-a12b", "linear (Mamba-2)", 8),
        Case("deepseek-v3", "latent (MLA)", 8),
        Case("mistral-small-24b", "dense, attention", 8),
    ),
}


def speedups(case: Case) -> FloatArray:
    """Speedup by batch and draft length, shape (BATCHES, DRAFTS)."""
    rates = ",".join(f"{ACCEPTED**depth:.4f}" for depth in range(1, max(DRAFTS) + 1))
    scenario = Scenario(
        model=case.model, gpu="h200-sxm", tp=case.gpus, weight_dtype=case.weights, runtime=RUNTIME,
        drafter="eagle3", acceptance=rates,
    )  # fmt: skip
    (table,) = sweep([scenario], Grid.of(BATCHES, [LENGTH], [count + 1 for count in DRAFTS]))
    return np.asarray(table.numbers["speedup"], dtype=np.float64).reshape(len(BATCHES), len(DRAFTS))


def break_even(found: FloatArray) -> list[str]:
    """Smallest batch from which each draft length loses, to the largest batch; `-` where none does."""
    said = []
    for column in found.T:
        loses = column < 1.0
        from_there = np.logical_and.accumulate(loses[::-1])[::-1]
        said.append(str(BATCHES[int(np.argmax(from_there))]) if from_there.any() else "-")
    return said


def tables(found: dict[str, dict[Case, FloatArray]]) -> Iterator[str]:
    """Of each panel where chains lose and what three drafts gain; then what engines do with states."""
    three, every = DRAFTS.index(3), range(0, len(BATCHES), 2)
    for cases in found.values():
        yield table(" | ".join(["model", "layers", *(f"{count} drafts" for count in DRAFTS)]), 2, [
            (case.model, case.layers, *break_even(gains)) for case, gains in cases.items()
        ])  # fmt: skip
        yield table(" | ".join(["model", *(f"batch {BATCHES[row]}" for row in every)]), 1, [
            (case.model, *(f"{gains[row, three]:.2f}" for row in every)) for case, gains in cases.items()
        ])  # fmt: skip
    rules = [(each.engine, each.drafts, each.states, each.prefixes, each.source) for each in RULES.values()]
    yield table("engine | drafts | states | prompts | said in", 5, rules)


def draw(found: dict[str, dict[Case, FloatArray]], file: Path) -> None:
    """Speedup over batch for one, three and seven drafts, a panel a row of models."""
    mpl.rcParams["svg.hashsalt"] = "hybrids"
    figure = Figure(figsize=(11.0, 7.0), layout="constrained")
    axes = figure.subplots(len(found), 3, sharex=True, sharey=True)
    for row, (title, cases) in enumerate(found.items()):
        for column, count in enumerate((1, 3, 7)):
            axis = axes[row][column]
            for number, (case, gains) in enumerate(cases.items()):
                style = "-" if case.layers.startswith("linear") else ("--" if "MLA" in case.layers else ":")
                label = f"{case.model}, {case.layers}"
                axis.plot(BATCHES, gains[:, DRAFTS.index(count)], style, color=f"C{number}", label=label)
            axis.axhline(1.0, color="0.5", linewidth=0.8)
            axis.set_xscale("log", base=2)
            axis.set_title(f"{count} draft{'s' if count > 1 else ''}" if row == 0 else "", fontsize=10)
            if row == len(found) - 1:
                axis.set_xlabel("requests in a step")
        axes[row][0].set_ylabel(f"speedup\n{title}", fontsize=8)
        axes[row][2].legend(fontsize=7, loc="upper right")
    file.parent.mkdir(exist_ok=True)
    figure.savefig(file, metadata={"Date": None})


def main() -> None:
    """Print the tables; write both files where asked."""
    given = command_line(__doc__, writes="docs/hybrids.md and docs/images/hybrids.svg").parse_args()
    found = {title: {case: speedups(case) for case in cases} for title, cases in PANELS.items()}
    found_tables = list(tables(found))
    print("\n".join(found_tables))
    if given.write:
        draw(found, DOCS / "images" / "hybrids.svg")
        write_tables("hybrids.md", "tables", found_tables)


if __name__ == "__main__":
    main()
