"""How far steps lie from fits that did not see their group: widths of bands by what is new."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
import pandas as pd
from hierarchy_fit import GROUP, HELD_OUT, Fit, LeftOut
from scipy.optimize import brentq
from study import PROMISED, table

from medusa_sim.arrays import FloatArray
from medusa_sim.specs.nearness import nearest, spread_of
from medusa_sim.specs.place import KINDS, Kind, difference
from medusa_sim.specs.served_groups import Spread

LEAST_HELD, MOST_HELD, LARGE_GROUP, WIDER = 0.6, 0.85, 20, 0.002
NIGHTS = 0.018
"""80 % half-width of one cell that was measured again on another night (standard deviation 1.4 %)."""
SMALL = 5
"""Cells from which a group is counted among those whose bands are to hold."""


def errors_by_kind(fit: Fit, outs: dict[str, LeftOut]) -> pd.DataFrame:
    """A line of every cell and way of holding out: what was new about it for the fit, and its error.

    outs: by way; the fit to all is the way of no keys. The kind is that by which a set-up's band is
    chosen (`specs/nearness.py`), from the groups that the fit saw. faster, slower: of the band of kernels and
    terms. spread, experts_spread: of the cell's engine (`spreads_of`).
    """
    cells, found = fit.cells, []
    group = cells[GROUP].agg(", ".join, axis=1)
    for title, out in outs.items():
        keys = dict(HELD_OUT).get(title, ())
        held = cells[list(keys)].agg("|".join, axis=1) if keys else pd.Series("", index=cells.index)
        near: Any = pd.Series(None, index=cells.index, dtype=object)
        for own in set(held):
            rest = sorted(set(cells.place[held != own] if keys else cells.place))
            at = {place: difference(place, nearest(place, rest)) for place in set(cells.place[held == own])}
            near[held == own] = cells.place[held == own].map(at.__getitem__)
        found.append(
            pd.DataFrame(
                {
                    "way": title,
                    "group": group,
                    "library": [place.library for place in cells.place],
                    "kind": [each.kind for each in near],
                    "is_other_version": [each.is_other_version for each in near],
                    "short": -np.log1p(out.errors),
                    "experts": out.experts,
                    "faster": cells.faster,
                    "slower": cells.slower,
                }
            )
        )
    lines = pd.concat(found, ignore_index=True)
    engines, spreads = zip(lines.library, lines.kind, strict=True), spreads_of(lines)
    of_cell = [spread_of(library, kind, spreads) for library, kind in engines]
    return lines.assign(
        spread=[each.steps for each in of_cell], experts_spread=[each.experts for each in of_cell]
    )


def spreads_of(lines: pd.DataFrame) -> dict[str, Spread]:
    """Engine -> how far groups left out of it lie from their fit, beside the (geometric) mean engine.

    By mean errors of groups of SMALL cells or more, of the engine's own where something else of it was seen.
    Experts of an engine with mixtures of one network alone (R1 is V3's) are known no better than the mean's.
    """
    out = lines[~lines.kind.isin(["measured", "engine"])].assign(short=lines.short.abs())
    groups = out.groupby(["library", "way", "group"]).short.agg(["mean", "size"])
    errors = groups[groups["size"] >= SMALL]["mean"].groupby("library").mean()
    relative = (errors / np.exp(np.log(errors).mean())).round(2)
    mixtures = lines[lines.experts > 0.0]
    networks = mixtures.group.str.split(", ").str[-1].str.replace("-r1", "-v3")
    known = networks.groupby(mixtures.library).nunique()
    return {
        str(library): Spread(steps=value, experts=value if known.get(library, 0) > 1 else max(value, 1.0))
        for library, value in relative.items()
    }


Half: TypeAlias = float | FloatArray


def held(lines: pd.DataFrame, share: Half) -> pd.Series:
    """Which cells lie in bands that hold so much more, in quadrature."""
    return (lines.short <= np.hypot(lines.slower, share)) & (lines.short >= -np.hypot(lines.faster, share))


def by_group(lines: pd.DataFrame, share: Half) -> pd.Series:
    """Share of the cells of each group and way that their bands hold; small groups left out."""
    places = [lines.way, lines.group]
    means = held(lines, share).groupby(places).mean()
    return means[lines.groupby(places).size() >= SMALL]


def large_below(lines: pd.DataFrame, share: Half) -> bool:
    """Whether any group of LARGE_GROUP cells or more holds less than LEAST_HELD."""
    groups = by_group(lines, share)
    sizes = lines.groupby(["way", "group"]).size()[groups.index]
    return bool((groups[sizes >= LARGE_GROUP] < LEAST_HELD).any())


def band_of(lines: pd.DataFrame, whole: float, of_experts: float, of_version: float = 0.0) -> FloatArray:
    """By how much bands of cells are wider (`nearness.widening_by`). of_version: the least of another one."""
    of_step, experts = lines.spread.to_numpy(), lines.experts_spread.to_numpy()
    at_least = np.maximum(whole * of_step, of_version * lines.is_other_version.to_numpy())
    return np.asarray(np.hypot(at_least, of_experts * experts * lines.experts.to_numpy()))


def needed(lines: pd.DataFrame, half: Callable[[float], Half], least: float) -> float:
    """The least share from which bands of such half-widths hold PROMISED in the mean over groups.

    More where no large group then holds less than LEAST_HELD, and all in the mean no more than MOST_HELD.
    """

    def mean(share: float) -> float:
        return float(by_group(lines, half(share)).mean())

    if not len(by_group(lines, half(least))):
        return least
    enough = least
    if mean(least) < PROMISED:
        enough = float(brentq(lambda share: mean(share) - PROMISED, least, 2.0, xtol=1e-4))
    enough = further = float(np.ceil(1e3 * enough) / 1e3)
    while large_below(lines, half(further)) and mean(further + WIDER) <= MOST_HELD:
        further = round(further + WIDER, 3)
    return enough if large_below(lines, half(further)) else further


def kinds_of(lines: pd.DataFrame) -> dict[Kind, dict[str, Any]]:
    """What `specs/nearness.toml` says of each kind: none narrower than one before it, a version's apart.

    Steps of dense models tell what all steps differ by, at least a server's own nights (NIGHTS); mixtures
    what layers of experts differ by besides. Versions are of mixtures alone: of whole steps. What one engine
    alone shows is not another's: such a kind has what the next one has.
    """
    found: dict[Kind, dict[str, Any]] = {}
    least, of_experts, of_version = NIGHTS, 0.0, 0.0
    for kind in KINDS:
        own = lines[lines.kind == kind]
        dense, mixed = own[own.experts == 0.0], own[own.experts > 0.0]
        if kind == "version":
            of_version = needed(own, partial(band_of, own, of_experts=0.0), NIGHTS)
            found[kind] = {"step_share": of_version, "experts_share": 0.0}
            continue
        least = needed(dense, partial(band_of, dense, of_experts=0.0), least)
        of_experts = needed(mixed, partial(band_of, mixed, least), of_experts)
        found[kind] = {"step_share": least, "experts_share": of_experts}
    for kind, following in reversed(
        list(pairwise(kind for kind in KINDS if kind not in ("measured", "version")))
    ):
        own = lines[lines.kind == kind]
        for share, part in (("step_share", own.experts == 0.0), ("experts_share", own.experts > 0.0)):
            if len({group.partition(",")[0] for group in own.group[part]}) < 2:
                found[kind][share] = found[following][share]
    for kind, known in found.items():
        own = lines[lines.kind == kind]
        shares = known["step_share"], known["experts_share"], of_version
        groups = by_group(own, band_of(own, *shares))
        known |= {
            "error": round(float(np.expm1(own.short.abs()).mean()), 3) if len(own) else 0.0,
            "cells": len(own),
            "groups": len(groups),
            "held": round(float(groups.mean()), 2) if len(groups) else 0.0,
        }
    return found


def kinds_table(lines: pd.DataFrame, kinds: dict[Kind, dict[str, Any]]) -> str:
    """What was new, how far steps erred, what their bands hold."""
    rows = []
    for kind, own in kinds.items():
        cells = lines[lines.kind == kind]
        shares = own["step_share"], own["experts_share"]
        groups = by_group(cells, band_of(cells, *shares, kinds["version"]["step_share"]))
        least: Any = None if groups.empty else groups.idxmin()
        words = "" if least is None else f"{groups.min():.0%} ({least[1]})"
        below = f"{(groups < LEAST_HELD).sum()} of {len(groups)}"
        rows.append((kind, own["cells"], own["error"], *shares, own["held"], below, words))
    return table("new | cells | error | between | of experts | held | groups below 60 % | least", 1, rows)


def ends_table(lines: pd.DataFrame, kinds: dict[Kind, dict[str, Any]]) -> str:
    """Cells left out that took longer than the slow end of their band, by engine: `--sure 0.9` rests on it.

    In the mean over groups, those that were not left out apart.
    """
    share = np.zeros(len(lines))
    for kind, own in kinds.items():
        new = (lines.kind == kind).to_numpy()
        shares = own["step_share"], own["experts_share"], kinds["version"]["step_share"]
        share[new] = band_of(lines[new], *shares)
    late = lines.short > np.hypot(lines.slower, share)
    beyond = lines.assign(beyond=late, is_out=lines.kind != "measured")
    means = beyond.groupby(["is_out", "way", "group"]).beyond.mean().reset_index()
    means["engine"] = means.group.str.partition(",")[0]
    found = means.pivot_table(index="engine", columns="is_out", values="beyond")
    rows = [
        (engine, *(f"{value:.0%}" for value in row))
        for engine, row in zip(found.index, found.to_numpy(), strict=True)
    ]
    return table("engine | slower than the slow end: seen | left out", 1, rows)
