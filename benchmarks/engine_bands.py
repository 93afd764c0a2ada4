"""What bands of speedups and of versions that nobody measured have beside those of kernels and terms.

    python benchmarks/engine_bands.py            # what each needs, and what it then holds by source
    python benchmarks/engine_bands.py --write    # the shares into medusa_sim/engines/runtimes.toml

`gain_share` of a version: the least with which 80 % intervals of its published speedups, each predicted by a
fit without its source, hold 80 % on average over sources, and no source of LARGE cells or more falls below
LEAST_HELD; look-ups and passes apart, of dense models (`round_bands.py` tells others). A version with fewer
than LARGE such cells takes what all versions of its engine need on average over sources, one with a single
source at least that and what all engines need so, an engine without any the latter.
Sources of few cells hold all at any width, and a share sees the sources that it is told by: the second table
has each source by a share that was found without it.
The newest vLLM, of which nothing was measured, is judged by what older ones measured, priced as the newest:
speedups, and for `between_share` plain steps and rounds, on average over sources alone. Rounds have their
`gain_share` besides.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pandas as pd
from common.engine_rows import Kernels, banded, published_rows
from common.script import ROOT, command_line
from common.study import PROMISED, left_out, table
from common.terms import bare, stored, with_term_line
from engine_fit import TERMS, errors, fit

from medusa_sim.step.compose import RATIO_SHARE
from medusa_sim.step.drafter import lookups
from medusa_sim.writing import write_text

NEWEST = "vllm-0.33"
LARGE, LEAST_HELD = 8, 0.6
CONTRADICTED = 0.1
"""Weight of rows that another source contradicts, in the fit too."""
MIXTURE = "qwen3-30b-a3b"
OTHERS = ("tensorrt-llm-1.2",)
"""Engines without a published speedup here; their older and newer versions inherit."""
BETWEEN = "what vLLM's sources of 2024 to 2026 err by, priced as this version (benchmarks/engine_bands.py)"
GAIN = "what published speedups of this version miss by, each without its source (benchmarks/engine_bands.py)"
GAIN_NEWEST = f"speedups: {BETWEEN}"
NEAR = "in engines/nearness.toml"
ALIKE = "as all versions of its engine together (benchmarks/engine_bands.py)"
EVERY = "as all engines together; nothing was measured (benchmarks/engine_bands.py)"


class Share(NamedTuple):
    """What a term of a runtime needs, and the cells by which it was told."""

    runtime: str
    term: str
    share: float
    source: str
    cells: pd.DataFrame


def held(cells: pd.DataFrame, share: float) -> pd.Series:
    """Share of the cells of each source that intervals hold which have so much more, in quadrature."""
    low, high = np.hypot(cells.low, share), np.hypot(cells.high, share)
    inside = pd.Series((-low <= cells.short_out) & (cells.short_out <= high), index=cells.index)
    by_source: pd.Series = inside.groupby(cells.source).mean()
    return by_source


def needed(cells: pd.DataFrame, least: float = LEAST_HELD) -> float:
    """The least share with which sources hold, large ones at least so much each, to half a per cent.

    Rows that another source contradicts count for that floor alone: which of both is right nobody knows.
    """
    agreed = cells[cells.weight > CONTRADICTED]
    large = cells.groupby("source").size() >= LARGE
    for share in np.arange(0.0, 1.0, 0.005):
        every = held(cells, float(share))
        if held(agreed, float(share)).mean() >= PROMISED and (every[large] >= least).all():
            return float(round(share, 3))
    raise ValueError("no share holds so much")


def found_rows() -> tuple[pd.DataFrame, pd.DataFrame]:
    """(every cell with a fit without its source, vLLM's as the newest version); no band has these shares."""
    rows = published_rows()
    own, newest = (
        [Kernels(row) for row in each]
        for each in (rows, [replace(row, runtime=NEWEST) for row in rows if row.runtime.startswith("vllm")])
    )
    every = np.array(own, dtype=object)
    out = left_out(
        [each.row.group for each in own],
        lambda keep: fit(list(every[keep])),
        lambda values, part: errors(values, list(every[part])),
    )
    for each in (*own, *newest):
        each.setting = replace(each.setting, runtime=bare(each.setting.runtime))
    shipped = errors(stored(TERMS), newest)
    return banded(own, errors(stored(TERMS), own), out), banded(newest, shipped, shipped)


def asked_by(speedups: pd.DataFrame, version: str) -> tuple[float, str, pd.DataFrame]:
    """(the share of a version, its source, the cells that it holds then).

    One source does not tell how sources differ: a version that has no other takes at least what all of its
    engine need, and what all engines do.
    """
    own = speedups[speedups.runtime == version]
    of_engine = speedups[speedups.engine == version.partition("-")[0]]
    every = of_engine if len(of_engine) else speedups
    if len(own) < LARGE:
        return needed(every, 0.0), ALIKE, every
    least = 0.0 if len(set(own.source)) > 1 else max(needed(each, 0.0) for each in (every, speedups))
    return max(needed(own), least), GAIN, own


def nested_table(own: pd.DataFrame) -> str:
    """What intervals hold of a source by a share that was found without it too: passes, dense models."""
    speedups = own[(own.kind == "speedup") & ~own.drafter.isin(lookups())]
    dense = speedups[~speedups.source.str.contains(MIXTURE)]
    dense = dense.assign(engine=dense.runtime.str.partition("-")[0])
    lines, every = [], []
    for source, part in dense.groupby("source", sort=False):
        version = str(part.runtime.iloc[0])
        share, *_ = asked_by(dense[dense.source != source], version)
        every.append((len(part), float(held(part, share).iloc[0])))
        against = int((part.weight <= CONTRADICTED).sum())
        named = f"{source} ({against} cells contradicted by other sources)" if against else source
        lines.append((named, version, len(part), f"{share:.3f}", f"{every[-1][1]:.0%}"))
    cells, sources = np.array(every).T
    large = sources[cells >= LARGE]
    lines.append(("mean over sources", "", len(sources), "", f"{sources.mean():.0%}"))
    lines.append((f"mean over those of {LARGE} cells and more", "", len(large), "", f"{large.mean():.0%}"))
    return table("source | runtime | cells | share without it | held %", 2, lines)


def as_rounds(cells: pd.DataFrame, gain: float) -> pd.DataFrame:
    """Rounds whose ratios to plain steps err by so much (`Cost.gain_square`)."""
    ends = {
        name: np.maximum(cells[name], np.hypot(RATIO_SHARE * cells[name], gain)) for name in ("low", "high")
    }
    return cells.assign(**ends)


def shares(own: pd.DataFrame, newest: pd.DataFrame) -> Iterator[Share]:
    """What each runtime needs. own, newest: of `found_rows`."""
    speedups = own[(own.kind == "speedup") & ~own.source.str.contains(MIXTURE)]
    speedups = speedups.assign(engine=speedups.runtime.str.partition("-")[0])
    as_newest = newest[newest.kind == "speedup"]
    passes = as_newest[~as_newest.drafter.isin(lookups())]
    steps = [newest[newest.kind == "plain"], as_rounds(newest[newest.kind == "round"], needed(passes, 0.0))]
    most = max(needed(each, 0.0) for each in steps)
    yield Share(NEWEST, "between_share", most, BETWEEN, pd.concat(steps))
    for runtime in OTHERS:
        yield Share(runtime, "between_share", 0.0, NEAR, pd.concat(steps))
    for term, looks_up in (("gain_share", False), ("lookup_gain_share", True)):
        dense = speedups[speedups.drafter.isin(lookups()) == looks_up]
        for version in sorted(set(dense.runtime)):
            yield Share(version, term, *asked_by(dense, version))
        seen = as_newest[as_newest.drafter.isin(lookups()) == looks_up]
        yield Share(NEWEST, term, needed(seen, 0.0), GAIN_NEWEST, seen)
        for runtime in OTHERS:
            yield Share(runtime, term, needed(dense, 0.0), EVERY, dense)


def shares_table(found: list[Share]) -> str:
    """What each needs and holds."""
    lines = []
    for runtime, term, share, _, cells in found:
        before, after = held(cells, 0.0), held(cells, share)
        worst = f"{after.min():.0%} ({after.idxmin()})"
        lines.append((runtime, term, len(cells), len(after), f"{before.mean():.0%}", f"{share:.3f}",
                      f"{after.mean():.0%}", worst))  # fmt: skip
    words = "runtime | term | cells | sources | held without % | share | held % | least"
    return table(words, 2, lines)


def write(found: list[Share]) -> None:
    """The shares into runtimes.toml."""
    path = ROOT / "medusa_sim/engines/runtimes.toml"
    text = path.read_text(encoding="utf-8")
    for runtime, term, share, source, _ in found:
        line = f'{term} = {{ value = {share:g}, band = 0, source = "{source}" }}'
        text = with_term_line(text, runtime, line)
    write_text(path, text.rstrip("\n") + "\n")


def main() -> None:
    """Print, and write where asked."""
    asked = command_line(__doc__, writes="the shares into runtimes.toml").parse_args()
    own, newest = found_rows()
    found = list(shares(own, newest))
    print(shares_table(found))
    print(nested_table(own))
    if asked.write:
        write(found)


if __name__ == "__main__":
    main()
