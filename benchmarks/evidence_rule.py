"""Which rows of the public wheel the fits saw: evidence_rule.json, how it is read and how it is written.

    python benchmarks/evidence_rule.py FILE.whl    # the rule anew, for who has the rows

By file of ours and table of the wheel the rule holds clauses: values by column, of columns that describe a
shape, never a time. Where values do not tell the given rows from others, it holds a hash of each given row.
The others are an exam: the rule never names one, and nothing prints or keeps them.
"""

from __future__ import annotations

import base64
import hashlib
import json
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from common.evidence_rows import LAYOUTS, TIME, Layout, Place
from common.evidence_wheel import fetched, unzipped
from common.script import command_line
from common.study import GPU_OF_ROWS, measured
from numpy.typing import NDArray

from medusa_sim.arrays import BoolArray

RULE = Path(__file__).with_name("evidence_rule.json")
SAME_TIME = 1e-4
"""Rounding of a time: some of ours to a nanosecond."""
Clause = dict[str, Any]
"""Values by column: a row belongs where every column named has one of its values. ONLY: of these rows, those
whose hash is among the given ones."""
ONLY = "only"
HASH_BYTES, HASH_CHARACTERS = 6, 8
"""Of a hash, raw and in base64."""
MOST_PARTS = 32
"""Values of a column by which clauses are told apart."""
_PART = 10
"""Length of a clause, about, in hashes."""


def read(path: Path) -> pd.DataFrame:
    """A table, its categories as text."""
    frame = pd.read_parquet(path)
    return frame.astype(dict.fromkeys(frame.select_dtypes("category").columns, str))


def rule() -> dict[str, dict[str, list[Clause]]]:
    """Clauses by file of ours and path of a table."""
    held: dict[str, dict[str, list[Clause]]] = json.loads(RULE.read_text(encoding="utf-8"))
    return held


def shapes(rows: pd.DataFrame) -> list[str]:
    """Columns that describe a row, without its time."""
    return [name for name in rows.columns if name != TIME and bool(rows[name].notna().all())]


def hashes(rows: pd.DataFrame, columns: list[str]) -> NDArray[np.str_]:
    """(rows,) short hash of each row's values, in characters."""
    texts = (
        rows[name].map(lambda value: f"{value:g}" if isinstance(value, float) else str(value))
        for name in columns
    )
    return np.array([
        base64.b64encode(hashlib.blake2b("|".join(each).encode(), digest_size=HASH_BYTES).digest()).decode()
        for each in zip(*texts, strict=True)
    ], dtype=f"U{HASH_CHARACTERS}")  # fmt: skip


def holds(rows: pd.DataFrame, clauses: list[Clause]) -> BoolArray:
    """The rows that belong to any of the clauses."""
    found = np.zeros(len(rows), dtype=np.bool_)
    for clause in clauses:
        own = np.ones(len(rows), dtype=np.bool_)
        for name, values in clause.items():
            if name != ONLY:
                own &= rows[name].isin(values).to_numpy()
        if ONLY in clause:
            given = textwrap.wrap(clause[ONLY], HASH_CHARACTERS)
            own[own] = np.isin(hashes(rows[own], shapes(rows)), given)
        found |= own
    return found


# How it is written.


def clauses_of(rows: pd.DataFrame, given: BoolArray) -> list[Clause]:
    """Clauses that hold the given rows and no other, as short as can be found."""
    columns = shapes(rows)
    coded = [pd.factorize(rows[name], sort=True) for name in columns]
    codes = np.stack([own for own, _ in coded], axis=1)
    named = hashes(rows[given], columns)
    parts = _parts(codes, given, np.cumsum(given) - 1)
    return [
        {columns[j]: [_plain(coded[j][1][code]) for code in allowed] for j, allowed in clause.items()}
        | ({} if alone is None else {ONLY: "".join(np.sort(named[alone]))})
        for clause, alone in parts
    ]  # fmt: skip


_Part = tuple[dict[int, list[int]], NDArray[np.int64] | None]
"""Codes by column; the places among the given rows of those that must be named, None for none."""


def _plain(value: Any) -> Any:
    """A value that JSON takes."""
    return value.item() if isinstance(value, np.generic) else value


def _parts(codes: NDArray[np.int64], given: BoolArray, place: NDArray[np.int64]) -> list[_Part]:
    """A tree of splits: one clause, or those of parts by the column that leaves least to tell apart.

    codes: (rows, columns) of values; place: of each row among the given ones.
    """
    clause, excess = _listed(codes, given)
    if not excess:
        return [(clause, None)]
    alone: list[_Part] = [(clause, place[given])]
    values = [np.unique(column) for column in codes[given].T]
    splits = [j for j, own in enumerate(values) if 1 < own.size <= MOST_PARTS]
    if not splits:
        return alone

    def cost(j: int) -> int:
        parts = (codes[:, j] == code for code in values[j])
        return sum(
            _PART + (int(given[own].sum()) if _listed(codes[own], given[own])[1] else 0) for own in parts
        )

    split = min(splits, key=cost)
    found = [
        ({**inner, split: [int(code)]}, named)
        for code in values[split]
        for own in [codes[:, split] == code]
        for inner, named in _parts(codes[own], given[own], place[own])
    ]
    return min(alone, found, key=_length)


def _length(parts: list[_Part]) -> int:
    """Characters, about."""
    return sum(
        len(str(clause)) + HASH_CHARACTERS * (0 if named is None else named.size) for clause, named in parts
    )


def _listed(codes: NDArray[np.int64], given: BoolArray) -> tuple[dict[int, list[int]], int]:
    """Values of the given rows by column, without columns that tell nothing; how many rows too many."""
    outside = np.empty(codes.shape, dtype=np.bool_)
    for j, column in enumerate(codes.T):
        allowed = np.zeros(column.max() + 1, dtype=np.bool_)
        allowed[column[given]] = True
        outside[:, j] = ~allowed[column]
    number = outside.sum(axis=1)
    excess = int(((number == 0) & ~given).sum())
    values = {j: np.unique(codes[given, j]).tolist() for j in range(codes.shape[1])}
    for j in sorted(values, key=lambda j: -len(values[j])):
        if not (outside[:, j] & (number == 1)).any():  # no row is out for this column alone
            number -= outside[:, j]
            del values[j]
    return values, excess


def keys(rows: pd.DataFrame, columns: list[str]) -> NDArray[np.uint64]:
    """(rows,) hash of each row's values; a number of any width and a blank are the same everywhere."""
    texts = {
        name: rows[name].astype(np.float64).fillna(-1.0).to_numpy()
        if pd.api.types.is_numeric_dtype(rows[name]) or rows[name].isna().all()
        else rows[name].astype(object).map(str).to_numpy(dtype=object)
        for name in columns
    }  # fmt: skip
    return np.asarray(pd.util.hash_pandas_object(pd.DataFrame(texts), index=False), dtype=np.uint64)


def given_rows(layout: Layout) -> pd.DataFrame:
    """Rows of our file that a fit may have seen: of GPUs with a hardware file, none that are suspect."""
    ours = read(measured(layout.file))
    kept = pd.Series(data=True, index=ours.index)
    if "suspect" in ours:
        kept &= ours["suspect"] == ""
    if not layout.system:
        kept &= ours["gpu"].isin([*GPU_OF_ROWS, *GPU_OF_ROWS.values()])
    return ours[kept].reset_index(drop=True)


def may_be_of(ours: pd.DataFrame, layout: Layout, place: Place) -> bool:
    """Whether the file has rows of the place's version, engine and GPU at all."""
    names = {"version": {place.version}, "engine": {place.framework, place.engine}}
    if not layout.system:
        names["gpu"] = {place.system, place.gpu}
    return all(name not in ours or not allowed.isdisjoint(ours[name]) for name, allowed in names.items())


def check_times(rows: pd.DataFrame, ours: pd.DataFrame, columns: list[str], where: str) -> None:
    """Stop unless rows of the wheel have the shapes and times of ours, repeats among them."""
    known = keys(ours, columns)
    own = ours[np.isin(known, keys(rows, columns))]
    if len(rows) != len(own):
        sys.exit(f"{where}: {len(rows)} rows of the wheel have the shapes of {len(own)} of ours")
    theirs, given = (
        each[TIME].to_numpy(dtype=np.float64)[np.lexsort((each[TIME], keys(each, columns)))]
        for each in (rows, own)
    )
    apart = np.abs(theirs / given - 1.0)
    if not (apart < SAME_TIME).all():
        sys.exit(f"{where}: {int((apart >= SAME_TIME).sum())} times differ")


def write(folder: Path, told: Callable[[str], None]) -> None:
    """RULE, from the rows of ours and the tables of the wheel in a folder."""
    found: dict[str, dict[str, list[Clause]]] = {}
    paths = sorted(folder.rglob("*.parquet"))
    for layout in LAYOUTS:
        ours = given_rows(layout)
        lacking = len(ours)
        parts = found[layout.file] = {}
        for path in paths:
            place = Place.of(path.relative_to(folder).as_posix())
            if not layout.takes(place) or not may_be_of(ours, layout, place):
                continue
            rows = layout.rows(read(path), place)
            columns = [name for name in rows.columns if name in ours and name != TIME]
            given = np.isin(keys(rows, columns), keys(ours, columns))
            if not given.any():
                continue
            check_times(rows[given], ours, columns, f"{layout.file}, {place.path}")
            parts[place.path] = clauses_of(rows, given)
            if not np.array_equal(holds(rows, parts[place.path]), given):
                sys.exit(f"{layout.file}: no clause tells which rows of {place.path} are given")
            lacking -= int(given.sum())
        if lacking:
            sys.exit(f"{layout.file}: {lacking} rows are in none of the wheel's tables")
        told(f"{layout.file}: {len(ours):,} rows of {len(parts)} tables")
    text = json.dumps(found, separators=(",", ":")).replace("},{", "},\n{").replace('}]},"', '}]},\n"')
    RULE.write_text(f"{text}\n", encoding="utf-8")
    told(f"{RULE.name}: {RULE.stat().st_size / 1e3:.0f} kB")


def main() -> None:
    """Write the rule from a wheel."""
    parser = command_line(__doc__)
    parser.add_argument("wheel", type=Path, metavar="FILE.whl")
    write(unzipped(fetched(parser.parse_args().wheel)), lambda line: print(line, flush=True))


if __name__ == "__main__":
    main()
