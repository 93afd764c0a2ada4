"""The simulator beside a decoder on this project's own CPUs, and beside papers: tables of docs/validation.md.

    python benchmarks/validation.py            # both
    python benchmarks/validation.py --write    # into the sections `steps` and `published`

Everything comes from files that are part of
the project: profiles/operators and profiles/decoder hold what was measured, profiles/published papers.
`make docs` writes them; what a table sums up, `medusa-sim validate decoder` and `reproduce` print in full.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pandas as pd
from common.pages import write_tables
from common.script import command_line
from common.study import table

from medusa_sim import data
from medusa_sim.gpus.gpu import load_gpu
from medusa_sim.lab.reproduce import reproduction
from medusa_sim.lab.validate.comparison import ALLOWANCE
from medusa_sim.lab.validate.generations import validate_runs
from medusa_sim.lab.validate.score_tables import choice_table, comparisons_table
from medusa_sim.lab.validate.steps import DecoderValidation, validate_decoder
from medusa_sim.latency.by_name import LatencyName
from medusa_sim.report.table import markdown
from medusa_sim.report.words.numbers import percent

LATENCIES: tuple[LatencyName, ...] = ("measured", "calibrated")
REACH = 0.05
"""How far above its floor a speedup, and how far below the best a chosen count, may lie."""


def decoder_tables() -> Iterator[str]:
    """Steps and choices of every device, misses first; tokens and wall clock of whole runs, their choices."""
    root = data.shipped_dir() / "profiles" / "decoder"
    folders = sorted((path.parent for path in root.glob("*/steps.csv")), key=_place)
    rows = [
        _summary(folder.name, latency, validate_decoder(
            folder, load_gpu(folder.name), kernels="torch", latency=latency, fallback="calibrated"
        ))
        for folder in folders for latency in LATENCIES
    ]  # fmt: skip
    headers = "device | operators | short in | speedup | floor | decode step | verify step | regret"
    yield table(headers, 3, sorted(rows, key=lambda row: not row[2]))
    for path in sorted(root.glob("*/runs.csv")):
        gpu = load_gpu(path.parent.name)
        found = validate_runs(path.parent, gpu, kernels="torch", latency="measured", fallback="calibrated")
        yield markdown(comparisons_table(found.comparisons, ""))
        yield markdown(replace(choice_table(found.choices), title=""))


def _summary(name: str, latency: str, found: DecoderValidation) -> tuple[str, ...]:
    """What was asked, what came out, and what falls short."""
    by_name = {each.quantity: each for each in found.comparisons}
    speedup = by_name["speedup"]
    regret = max(choice.regret for choice in found.choices)
    short = [
        f"{each.quantity} {percent(each.mean)} (floor {percent(each.floor)})"
        for each in found.comparisons
        if each.mean > each.floor + (REACH if each is speedup else ALLOWANCE)
    ]
    short += [f"count gives away {percent(regret)}"] if regret >= REACH else []
    steps = (by_name[quantity].mean for quantity in ("decode step", "verify step"))
    return name, latency, ", ".join(short), *map(percent, (speedup.mean, speedup.floor, *steps, regret))


def _place(folder: Path) -> tuple[str, bool, float]:
    """Machine, form and parameters in the name: `cpu-emerald-rapids-3m`, `cpu-epyc-genoa-50m-bf16-packed`."""
    name = folder.name.removesuffix("-packed").removesuffix("-bf16")
    machine, size = name.rsplit("-", 1)
    return machine, name != folder.name, float(size.rstrip("mb"))


def published_tables() -> Iterator[str]:
    """Rates that papers print: plain decoding of two tables, draft lengths, methods of drafting."""
    for name in ("table1-rates", "table4"):
        headers = "model | published tokens/s | predicted | error | fitted | device (ms) | published overhead"
        yield table(f"{headers} | predicted", 1, [
            (row["model"], f"{row['published_tokens_per_s']:.1f}", f"{row['predicted_tokens_per_s']:.1f}",
             _signed(row["error"]), "yes" if row["is_fitted"] else "", f"{row['device_us'] / 1e3:.1f}",
             f"{row['published_overhead']:.2f}", f"{row['predicted_overhead']:.2f}")
            for row in reproduction(name).frame.to_dict("records")
        ])  # fmt: skip
    headers = "draft | acceptance rate | mean error | worst | best length, published | predicted"
    drafts = reproduction("figure7b").frame.groupby("draft")
    yield table(headers, 1, [
        (draft, f"{found['acceptance_rate'].iloc[0]:.3f}", *_errors(found[~found["is_fitted"]]),
         _best_length(found, "published"), _best_length(found, "predicted"))
        for draft, found in drafts
    ])  # fmt: skip
    frame = reproduction("rsd-token-rates").frame
    yield table("target | method | rows | mean error | worst | bias", 2, [
        (*key, len(found), *_errors(found), _signed(found["error"].mean()))
        for key, found in frame[~frame["is_fitted"]].groupby(["target", "decoder"])
    ])  # fmt: skip


def _signed(error: float) -> str:
    return f"{100 * error:+.1f} %"


def _errors(found: pd.DataFrame) -> tuple[str, str]:
    """Mean and worst."""
    size = found["error"].abs()
    return percent(size.mean()), percent(size.max())


def _best_length(found: pd.DataFrame, whose: str) -> str:
    """The draft length of the most tokens/s, and these."""
    best = found.iloc[int(found[f"{whose}_tokens_per_s"].argmax())]
    return f"{best['gamma']}: {best[f'{whose}_tokens_per_s']:.1f}"


def main() -> None:
    """Print the tables; write them where asked."""
    given = command_line(__doc__, writes="the tables into docs/validation.md").parse_args()
    for section, tables in (("steps", list(decoder_tables())), ("published", list(published_tables()))):
        print("\n".join(tables))
        if given.write:
            write_tables("validation.md", section, tables)


if __name__ == "__main__":
    main()
