"""Predicted beside all that was measured: groups that ship, the page of accuracy, rows for who has the data.

    python benchmarks/accuracy.py             # what slid since; exit 3 where a group did
    python benchmarks/accuracy.py --write     # profiles/accuracy.csv, docs/accuracy.md, out/accuracy
    python benchmarks/accuracy.py --page      # docs/accuracy.md from the groups that ship: needs no rows
    python benchmarks/accuracy.py --only served_rows published

Each script of SCRIPTS yields its pairs (`common/measured_pairs.py`); other pages are views of the same
functions.
What ships are groups of five rows and more, as a CSV: a table that a person reads and a review shows line by
line. The rows themselves, a million with those of kernels, go to out/accuracy/pairs.parquet and stay there.
Groups whose rows are not here stay as they were. A group whose mean error grew by more than a tenth of itself
stops the command, unless --accept says that this is meant.
"""

from __future__ import annotations

import importlib
import math
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np
import pandas as pd
from common.measured_pairs import KEYS, grouped, joined
from common.page_commands import pages_by_command, sources_of
from common.pages import DOCS, filled
from common.script import ROOT, command_line
from common.study import table
from evidence_rule import rule

from medusa_sim.engines.accuracy_groups import ACCURACY_FILE, ROW_KINDS, Group, groups, mean_of, table_text
from medusa_sim.report.table import markdown
from medusa_sim.report.words.numbers import NOTHING, percent
from medusa_sim.report.words.standing import kinds_table
from medusa_sim.writing import write_text

SCRIPTS = {
    "operator_rows": ("kernel",), "kernel_rows": ("kernel",), "served_rows": ("served",),
    "deepseek_rows": ("served",), "engine_fit": ("step", "round", "speedup"),
    "published": ("step", "round", "speedup"), "serving_validation": ("load",), "local_speed": ("local",),
    "draft_pairs": ("acceptance",), "own_servers": ("served",),
}  # fmt: skip
"""Modules with `pairs()`, and the kinds that they compare; nothing else says which rows are compared."""
GROWTH, ROUNDING = 0.1, 0.0005
"""A group slides where its error grew by more than this share of itself, and more than rounding."""
SHIPPED = ROOT / "profiles" / ACCURACY_FILE
PEERS = (
    ("aiconfigurator", "served under Poisson load, end to end", "engines/vllm015_serving.csv", "21.5", "E2E"),
    ("BLIS", "the same, calibrated on it", "engines/vllm015_serving.csv", "8.5 to 10.3", "E2E"),
)
"""Other simulators on rows that are compared here, as they were published: who, on what, its file, their mean
error (%), the quantity. (Rows of kernels are the peer's own table, which looks them up.)"""


def key(group: Group) -> tuple[str, ...]:
    """What a group is told apart by."""
    return tuple(getattr(group, name) for name in KEYS)


def found_pairs(names: Iterable[str]) -> tuple[pd.DataFrame, dict[str, str]]:
    """(all pairs of these scripts, why others are not among them)."""
    frames, lacking = [], dict[str, str]()
    for name in names:
        begun = time.monotonic()
        try:
            is_script = (ROOT / "benchmarks" / f"{name}.py").is_file()
            frames.append(importlib.import_module(name if is_script else f"common.{name}").pairs())
        except SystemExit as error:  # rows that are not here
            lacking[name] = str(error)
            print(f"{name}: {error}", file=sys.stderr)
            continue
        print(f"{name}: {len(frames[-1]):,} pairs, {time.monotonic() - begun:.0f} s", file=sys.stderr)
    return joined(frames), lacking


def slid(before: Sequence[Group], now: Sequence[Group]) -> list[str]:
    """A line for every group whose mean error grew by more than a tenth of itself."""
    known = {key(group): group for group in before}
    return [
        f"{' '.join(filter(None, key(group)))}: {percent(old.error, 2)} -> {percent(group.error, 2)} "
        f"({group.rows} rows)"
        for group in now
        for old in [known.get(key(group), group)]
        if group.error > (1.0 + GROWTH) * old.error + ROUNDING
    ]


def merged(before: Sequence[Group], now: Sequence[Group]) -> list[Group]:
    """The groups of now, and those of before whose rows were not compared."""
    files = {group.data for group in now}
    every = [*now, *(group for group in before if group.data not in files)]
    order = list(ROW_KINDS)
    return sorted(every, key=lambda group: (order.index(group.kind), *key(group)[1:]))


# The page: every table is a sum of groups.


def told(value: float, digits: int = 1) -> str:
    """Per cent; a dash for nan."""
    return NOTHING if math.isnan(value) else percent(value, digits)


def signed(value: float, digits: int = 1) -> str:
    """The same with its sign."""
    return NOTHING if math.isnan(value) else f"{100.0 * value:+.{digits}f} %"


def cells_of(found: Sequence[Group]) -> tuple[str, ...]:
    """Rows, error, bias, worst, held, half-width, left out, fitted, source of some groups together."""
    worst = max(found, key=lambda group: abs(group.worst))
    fitted = {group.fitted for group in found}
    return (
        f"{sum(group.rows for group in found):,}",
        told(mean_of(found, "error")), signed(mean_of(found, "bias")), signed(worst.worst, 0),
        told(mean_of(found, "held"), 0), told(mean_of(found, "half_width")), told(mean_of(found, "left_out")),
        fitted.pop() if len(fitted) == 1 else "in part", "; ".join(sorted({group.source for group in found})),
    )  # fmt: skip


HEADERS = "rows | mean error | bias | worst row | in band | half-width | left out | fitted | rows are in"


def by(found: Sequence[Group], names: str) -> str:
    """A table of groups by some of their columns."""
    columns = names.split()
    parts: dict[tuple[str, ...], list[Group]] = {}
    for group in found:
        parts.setdefault(tuple(getattr(group, name) for name in columns), []).append(group)
    lines = [(*place, *cells_of(part)) for place, part in sorted(parts.items())]
    return table(f"{' | '.join(columns)} | {HEADERS}", len(columns), lines)


BY = {
    "served": "engine gpu weights family model",
    "load": "what engine gpu weights family",
    "step": "engine gpu weights family model",
    "round": "engine gpu weights family model",
    "speedup": "engine gpu weights family model",
    "kernel": "engine gpu what weights",
    "local": "what engine gpu",
    "acceptance": "what engine model",
}
"""Columns of the page's table of each kind, in its order."""


def overview(found: Sequence[Group]) -> str:
    """A line for each kind."""
    lines = []
    for kind, says in ROW_KINDS.items():
        own = [group for group in found if group.kind == kind]
        if not own:
            continue
        held = [group.held for group in own if group.held is not None]
        worst = max(own, key=lambda group: group.error)
        place = " ".join(filter(None, (worst.what, worst.engine, worst.gpu, worst.model, worst.weights)))
        lines.append((
            kind, says, f"{sum(group.rows for group in own):,}", len(own), told(mean_of(own, "error")),
            told(float(np.mean(held)) if held else math.nan, 0), told(mean_of(own, "left_out")),
            f"{percent(worst.error)} {place}",
        ))  # fmt: skip
    return table(
        "kind | what | rows | groups | mean error | in band, by group | left out | group furthest off",
        2,
        lines,
    )


def command_of(kind: str) -> str:
    """What compares the rows of a kind again."""
    names = " ".join(script for script, kinds in SCRIPTS.items() if kind in kinds)
    return f"`python benchmarks/accuracy.py --only {names}`"


def page(found: Sequence[Group]) -> str:
    """docs/accuracy.md."""
    sections = []
    for kind, names in BY.items():
        if own := [group for group in found if group.kind == kind]:
            title = ROW_KINDS[kind]
            sections.append(f"## {title[:1].upper()}{title[1:]}\n\n{command_of(kind)}\n\n{by(own, names)}")
    peers = table("who | on | error, mean % | here, mean % | rows are in", 2, [
        (who, what, theirs, told(mean_of(own, "error")), *{group.source for group in own})
        for who, what, data, theirs, quantity in PEERS
        if (own := [group for group in found if (group.data, group.what) == (data, quantity)])
    ])  # fmt: skip
    classes = markdown(replace(kinds_table(), title=""))
    commands = table("command | page | rows are in", 3, [
        (command, ", ".join(pages), "; ".join(sources_of(command)))
        for command, pages in pages_by_command().items()
    ])  # fmt: skip
    tables = {
        "overview": overview(found), "classes": classes, "peers": peers, "where": where(found),
        "commands": commands,
    }  # fmt: skip
    return filled("accuracy", **tables, sections="\n".join(sections))


def where(found: Sequence[Group]) -> str:
    """A line for each file of rows: what was compared, and where anybody finds it."""
    repeated = rule().keys()
    files: dict[str, list[Group]] = {}
    for group in found:
        files.setdefault(group.data, []).append(group)
    lines = [
        (*data.rsplit("/", 1), ", ".join(dict.fromkeys(group.kind for group in own)),
         f"{sum(group.rows for group in own):,}", len(own), own[0].source,
         "make evidence" if data in repeated else "make accuracy")
        for data, own in sorted(files.items())
    ]  # fmt: skip
    return table("folder | file | kind | rows | groups | rows are in | repeated by", 3, lines)


def lines_of_rows(pairs: pd.DataFrame) -> Iterator[str]:
    """What was compared, by kind."""
    for kind, own in pairs.groupby("kind", sort=False):
        yield f"{kind}: {len(own):,} rows, mean error {percent(float(own.error.abs().mean()))}"


def main() -> None:
    """Compare; write where asked."""
    parser = command_line(__doc__, writes="profiles/accuracy.csv, docs/accuracy.md and out/accuracy")
    every = tuple(SCRIPTS)
    parser.add_argument("--only", nargs="+", choices=every, default=every, help="these scripts alone")
    parser.add_argument("--accept", action="store_true", help="--write although a group slid")
    parser.add_argument("--page", action="store_true", help="write docs/accuracy.md from what ships, alone")
    asked = parser.parse_args()
    if asked.page:
        write_text(DOCS / "accuracy.md", page(groups()))
        return
    pairs, lacking = found_pairs(asked.only)
    if pairs.empty:
        sys.exit(next(iter(lacking.values())))
    print(*lines_of_rows(pairs), sep="\n")
    before, now = groups(), grouped(pairs)
    worse = slid(before, now)
    print(*(f"slid: {line}" for line in worse), sep="\n")
    if not asked.write or (worse and not asked.accept):
        if worse and asked.write:
            print("nothing was written; --accept writes although these groups slid", file=sys.stderr)
        sys.exit(3 if worse else 0)
    shipped = merged(before, now)
    folder = ROOT / "out" / "accuracy"
    folder.mkdir(parents=True, exist_ok=True)
    pairs.to_parquet(folder / "pairs.parquet", index=False)
    write_text(SHIPPED, table_text(shipped))
    write_text(DOCS / "accuracy.md", page(shipped))
    print(
        f"{len(shipped)} groups in {SHIPPED.relative_to(ROOT)}; rows in {folder.relative_to(ROOT)}",
        file=sys.stderr,
    )


if __name__ == "__main__":
    main()
