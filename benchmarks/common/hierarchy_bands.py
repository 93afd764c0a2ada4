"""How far steps lie from fits that did not see their group: widths of bands by what is new."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pandas as pd
from scipy.optimize import brentq

from common.hierarchy_fit import GROUP, HELD_OUT, Fit, LeftOut
from common.study import PROMISED, table
from medusa_sim.arrays import FloatArray
from medusa_sim.engines.nearness import nearest, spread_of
from medusa_sim.engines.place import KINDS, Kind, difference
from medusa_sim.engines.served_groups import Spread

LEAST_HELD, MOST_HELD, LARGE_GROUP, WIDER = 0.6, 0.85, 20, 0.002
NIGHTS = 0.018
"""80 % half-width of one cell that was measured again on another night (standard deviation 1.4 %)."""
SMALL = 5
"""Cells from which a group is counted among those whose bands are to hold."""


def errors_by_kind(fit: Fit, outs: dict[str, LeftOut]) -> pd.DataFrame:
    """A line of every cell and way of holding out: what was new about it for the fit, and its error.

    outs: by way; the fit to all is the way of no keys. The kind is that by which a set-up's band is
    chosen (`engines/nearness.py`), from the groups that the fit saw. short: of what was measured, in the log,
    at the lengths that a test's command names, since users give those. faster, slower: of the band of kernels
    and terms. spread, experts_spread: of the cell's engine (`spreads_of`).
    """
    cells, found = fit.cells, []
    group = cells[GROUP].agg(", ".join, axis=1)
    for title, out in outs.items():
        keys = dict(HELD_OUT).get(title, ())
        held = cells[list(keys)].agg("|".join, axis=1) if keys else pd.Series("", index=cells.index)
        near: Any = pd.Series(None, index=cells.index, dtype=object)
        for own in set(held):
            rest = sorted(set(cells.place[held != own] if keys else cells.place))
            new = {place: difference(place, nearest(place, rest)) for place in set(cells.place[held == own])}
            near[held == own] = cells.place[held == own].map(new.__getitem__)
        found.append(
            pd.DataFrame(
                {
                    "way": title,
                    "group": group,
                    "library": [place.library for place in cells.place],
                    "kind": [each.kind for each in near],
                    "is_other_version": [each.is_other_version for each in near],
                    "short": -np.log1p(out.errors) - cells.as_named,
                    "experts": out.experts,
                    "faster": cells.faster,
                    "slower": cells.slower,
                    "kernels_faster": cells.kernels_faster,
                    "kernels_slower": cells.kernels_slower,
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


class Least(NamedTuple):
    """Least shares of cells: experts' of a measured set-up, and both where the version is another."""

    measured_experts: float = 0.0
    version: float = 0.0
    version_experts: float = 0.0


NOTHING = Least()


def held(lines: pd.DataFrame, share: Half) -> pd.Series:
    """Which cells lie in bands that hold so much more, in quadrature."""
    return (lines.short <= np.hypot(lines.slower, share)) & (lines.short >= -np.hypot(lines.faster, share))


def by_group(lines: pd.DataFrame, share: Half) -> pd.Series:
    """Share of the cells of each group and way that their bands hold; small groups left out."""
    places = [lines.way, lines.group]
    means = held(lines, share).groupby(places).mean()
    return means[lines.groupby(places).size() >= SMALL]


def large_below(lines: pd.DataFrame, share: Half) -> int:
    """How many groups of LARGE_GROUP cells or more hold less than LEAST_HELD."""
    groups = by_group(lines, share)
    sizes = lines.groupby(["way", "group"]).size()[groups.index]
    return int((groups[sizes >= LARGE_GROUP] < LEAST_HELD).sum())


def band_of(lines: pd.DataFrame, whole: Half, of_experts: float, least: Least = NOTHING) -> FloatArray:
    """By how much bands of cells are wider (`nearness.widening_by`)."""
    of_step = np.where(lines.is_other_version, least.version, NIGHTS)
    experts = np.where(lines.is_other_version, least.version_experts, least.measured_experts)
    return np.asarray(
        np.hypot(
            np.maximum(whole * lines.spread, of_step),
            np.maximum(of_experts * lines.experts_spread, experts) * lines.experts,
        )
    )


Trial: TypeAlias = Callable[[float], tuple[pd.DataFrame, Half]]
"""A share -> cells, and what their bands have beside that of kernels and terms."""


def needed(trial: Trial, least: float, most: float = 2.0) -> float:
    """The least share from which such bands hold PROMISED in the mean over groups.

    More where fewer large groups hold less than LEAST_HELD then, as little as that takes, and all in the mean
    no more than MOST_HELD.
    """

    def mean(share: float) -> float:
        return float(by_group(*trial(share)).mean())

    if not len(by_group(*trial(least))):
        return least
    if mean(most) < PROMISED:
        return most
    enough = least
    if mean(least) < PROMISED:
        enough = float(brentq(lambda share: mean(share) - PROMISED, least, most, xtol=1e-4))
    found = further = float(np.ceil(1e3 * enough) / 1e3)
    below = large_below(*trial(found))
    while below and further < most and mean(further := round(further + WIDER, 3)) <= MOST_HELD:
        if (fewer := large_below(*trial(further))) < below:
            found, below = further, fewer
    return found


def told(lines: pd.DataFrame, share: float) -> pd.DataFrame:
    """The lines with so much of the half-widths of their kernels; that of engines' terms stays whole."""
    less = 1.0 - share**2
    return lines.assign(
        faster=lines.faster * np.sqrt(1.0 - less * lines.kernels_faster),
        slower=lines.slower * np.sqrt(1.0 - less * lines.kernels_slower),
    )


def rising(kinds: list[list[Kind]], ask: Callable[[list[Kind]], float]) -> dict[Kind, float]:
    """What groups of kinds need, from the nearest on; where a farther one needs less, both need the same.

    Their cells tell it together then: no kind is known better than a nearer one, and one whose few groups ask
    for much does not widen all that are farther.
    """
    blocks: list[tuple[list[Kind], float]] = []
    for own in kinds:
        blocks.append((own, ask(own)))
        while len(blocks) > 1 and blocks[-2][1] > blocks[-1][1]:
            (nearer, _), (farther, _) = blocks[-2:]
            blocks[-2:] = [(nearer + farther, ask(nearer + farther))]
    return {kind: share for own, share in blocks for kind in own}


def told_by_several(lines: pd.DataFrame) -> list[list[Kind]]:
    """The kinds beyond a version's; one that a single engine shows, which is not another's, with the next."""
    engines = lines.groupby("kind").library.nunique()
    found: list[list[Kind]] = []
    waiting: list[Kind] = []
    for kind in KINDS[KINDS.index("version") + 1 :]:
        waiting.append(kind)
        if engines.get(kind, 0) > 1 or kind == KINDS[-1]:
            found.append(waiting)
            waiting = []
    return found


def measured_of(lines: pd.DataFrame) -> dict[str, Any]:
    """What is known of set-ups that were measured: their plain steps told what kernels take together.

    Beside a server's own nights (NIGHTS) so much of the half-widths of kernels counts as dense models need;
    mixtures have of their experts what they need besides.
    """
    dense, mixed = lines[lines.experts == 0.0], lines[lines.experts > 0.0]
    of_kernels = needed(lambda share: (told(dense, share), band_of(dense, 0.0, 0.0)), 0.0, 1.0)
    seen = told(mixed, of_kernels)
    of_experts = needed(lambda share: (seen, band_of(seen, 0.0, share)), 0.0)
    return {"step_share": NIGHTS, "experts_share": of_experts, "kernels_half_share": of_kernels}


def kinds_of(lines: pd.DataFrame) -> dict[Kind, dict[str, Any]]:
    """What `engines/nearness.toml` says of each kind: none narrower than one before it, a version's apart.

    Steps of dense models tell what all steps differ by; mixtures what layers of experts differ by besides.
    """
    of_kind = {kind: lines[lines.kind == kind] for kind in KINDS}
    measured = measured_of(of_kind["measured"])
    dense, mixed = lines[lines.experts == 0.0], lines[lines.experts > 0.0]
    least = version_of(dense, mixed, measured["experts_share"])

    def of_dense(kinds: list[Kind]) -> float:
        own = dense[dense.kind.isin(kinds)]
        return needed(lambda share: (own, band_of(own, share, 0.0, least)), NIGHTS)

    step_shares = rising(told_by_several(dense), of_dense)

    def of_mixed(kinds: list[Kind]) -> float:
        own = mixed[mixed.kind.isin(kinds)]
        whole = np.array([step_shares[kind] for kind in own.kind])
        return needed(lambda share: (own, band_of(own, whole, share, least)), least.measured_experts)

    experts_shares = rising(told_by_several(mixed), of_mixed)
    found: dict[Kind, dict[str, Any]] = {
        kind: {
            "step_share": step_shares.get(kind, least.version),
            "experts_share": experts_shares.get(kind, least.version_experts),
            "kernels_half_share": 1.0,
        }
        for kind in KINDS
    }
    found["measured"] = measured
    error = share_held = 0.0
    for kind, known in found.items():
        own = told(of_kind[kind], known["kernels_half_share"])
        groups = by_group(own, kinds_band(own, known, found))
        if len(own):  # else as of the kind before, which is nearer
            error = round(float(np.expm1(own.short.abs()).mean()), 3)
            share_held = round(float(groups.mean()), 2)
        known |= {"error": error, "cells": len(own), "groups": len(groups), "held": share_held}
    return found


def version_of(dense: pd.DataFrame, mixed: pd.DataFrame, measured_experts: float) -> Least:
    """What another version of a measured engine has at least.

    Of dense models by set-ups that are new in something else besides, as none was measured in two versions;
    of mixtures by those that are new in nothing else.
    """
    later = dense[((dense.kind == "version") | dense.is_other_version) & (dense.kind != "engine")]
    version = needed(lambda share: (later, band_of(later, share, 0.0)), NIGHTS)
    own = mixed[mixed.kind == "version"]
    least = Least(measured_experts)
    experts = needed(lambda share: (own, band_of(own, version, share, least)), measured_experts)
    return Least(measured_experts, version, experts)


def kinds_band(lines: pd.DataFrame, known: dict[str, Any], kinds: dict[Kind, dict[str, Any]]) -> FloatArray:
    """By how much bands of cells of one kind are wider."""
    version = kinds["version"]
    least = Least(kinds["measured"]["experts_share"], version["step_share"], version["experts_share"])
    return band_of(lines, known["step_share"], known["experts_share"], least)


def banded(
    lines: pd.DataFrame, kinds: dict[Kind, dict[str, Any]]
) -> Iterator[tuple[Kind, pd.DataFrame, FloatArray]]:
    """Each kind with its cells, told what is known of it, and by how much their bands are wider."""
    for kind, known in kinds.items():
        cells = told(lines[lines.kind == kind], known["kernels_half_share"])
        yield kind, cells, kinds_band(cells, known, kinds)


def kinds_table(lines: pd.DataFrame, kinds: dict[Kind, dict[str, Any]]) -> str:
    """What was new, how far steps erred, what their bands hold."""
    rows = []
    for kind, cells, share in banded(lines, kinds):
        own, groups = kinds[kind], by_group(cells, share)
        shares = own["step_share"], own["experts_share"], own["kernels_half_share"]
        least: Any = None if groups.empty else groups.idxmin()
        words = "" if least is None else f"{groups.min():.0%} ({least[1]})"
        below = f"{(groups < LEAST_HELD).sum()} of {len(groups)}"
        rows.append((kind, own["cells"], own["error"], *shares, own["held"], below, words))
    words = "new | cells | error | between | of experts | of kernels | held | groups below 60 % | least"
    return table(words, 1, rows)


def ways_table(lines: pd.DataFrame, kinds: dict[Kind, dict[str, Any]]) -> str:
    """What the bands hold in the mean over groups by what was left out, small groups too."""
    inside = pd.Series(False, index=lines.index)
    for _, cells, share in banded(lines, kinds):
        inside[cells.index] = held(cells, share)
    groups = inside.groupby([lines.way, lines.group]).agg(["mean", "size"])
    rows = []
    for way, part in groups.groupby(level=0, sort=False):
        large = part[part["size"] >= LARGE_GROUP]["mean"]
        below = f"{(large < LEAST_HELD).sum()} of {len(large)}"
        rows.append((way, len(part), f"{part['mean'].mean():.0%}", below))
    return table(f"left out | groups | held | of {LARGE_GROUP} cells and more below 60 %", 1, rows)


def ends_table(lines: pd.DataFrame, kinds: dict[Kind, dict[str, Any]]) -> str:
    """Cells left out that took longer than the slow end of their band, by engine: `--sure 0.9` rests on it.

    In the mean over groups, those that were not left out apart.
    """
    late = pd.Series(False, index=lines.index)
    for _, cells, share in banded(lines, kinds):
        late[cells.index] = cells.short > np.hypot(cells.slower, share)
    beyond = lines.assign(beyond=late, is_out=lines.kind != "measured")
    means = beyond.groupby(["is_out", "way", "group"]).beyond.mean().reset_index()
    means["engine"] = means.group.str.partition(",")[0]
    found = means.pivot_table(index="engine", columns="is_out", values="beyond")
    rows = [
        (engine, *(f"{value:.0%}" for value in row))
        for engine, row in zip(found.index, found.to_numpy(), strict=True)
    ]
    return table("engine | slower than the slow end: seen | left out", 1, rows)
