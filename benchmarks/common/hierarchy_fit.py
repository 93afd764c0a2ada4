"""The fit of `hierarchy.py`: terms to cells by least squares, whole, and with groups held out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from common.hierarchy_terms import EFFECTS, REFERENCE, Effect
from medusa_sim.arrays import BoolArray, FloatArray

SIGMA, FIRST_SIGMA, ROBUST, LARGEST = 0.04, 0.2, 2.0, 30.0
"""Error of a cell and of its first token, errors (in these) from which one counts less, cells that a group
counts as at most."""
HELD_OUT = (
    ("a GPU", ("engine", "gpu")),
    ("a GPU in every engine", ("gpu",)),
    ("a format", ("engine", "weights")),
    ("GPU and format", ("engine", "gpu", "weights")),
    ("a model", ("family",)),
    ("an engine", ("engine",)),
    ("a version", ("engine", "version")),
    ("GPU and model", ("engine", "gpu", "family")),
)
GROUP = ["engine", "gpu", "weights", "model"]
STEPS = 60
Name = tuple[str, ...]


class Found(NamedTuple):
    """x: values. jac: slopes of the residuals there."""

    x: FloatArray
    jac: FloatArray


def least_squares_above(
    residuals: Callable[[FloatArray], tuple[FloatArray, FloatArray]], start: FloatArray, low: FloatArray
) -> Found:
    """Gauss-Newton with bounds from below, by residuals with their slopes; a hundred values in 0.1 s.

    Values at their bound that would fall stay there; steps are damped until they lower the sum of squares.
    """
    values, damping = np.maximum(start, low), 1e-6
    own, jacobian = residuals(values)
    for _ in range(STEPS):
        downhill = jacobian.T @ own
        free = ~((values <= low) & (downhill > 0.0))
        curvature = jacobian[:, free].T @ jacobian[:, free]
        while damping < 1e6:
            damped = curvature + damping * np.diag(np.diag(curvature))
            further = values.copy()
            further[free] -= np.linalg.solve(damped, downhill[free])
            further = np.maximum(further, low)
            then, further_jacobian = residuals(further)
            if then @ then <= own @ own:
                break
            damping *= 10.0
        gained = own @ own - then @ then
        values, own, jacobian, damping = further, then, further_jacobian, max(damping / 10.0, 1e-9)
        if gained < 1e-7 * (own @ own):
            break
    return Found(values, jacobian)


class Fit:
    """All effects with their levels over some cells."""

    def __init__(self, cells: pd.DataFrame) -> None:
        self.cells = cells
        self.names: list[tuple[Effect, tuple[str, ...], Name]] = []
        spreads: list[float] = []
        places: list[Any] = []
        self.columns: dict[str, slice] = {}
        for effect in EFFECTS:
            first = len(spreads)
            for keys, spread in effect.levels:
                values = cells[list(keys)].agg("|".join, axis=1)
                active = cells[effect.part].to_numpy() != 0.0
                known: dict[str, int] = {}
                for value in sorted(set(values[active])):
                    name = tuple(value.split("|"))
                    if self._deviates(effect, keys, name):
                        known[value] = len(spreads)
                        self.names.append((effect, keys, name))
                        spreads.append(spread)
                places.append(values.map(known).fillna(-1).astype(int).to_numpy())
            self.columns[effect.term] = slice(first, len(spreads))
        self.spreads = np.array(spreads)
        self.levels = np.zeros((len(cells), len(spreads)))
        for place in places:
            has = np.nonzero(place >= 0)[0]
            self.levels[has, place[has]] = 1.0
        self.low = np.array([0.0 if self._is_positive(*each) else -np.inf for each in self.names])

    @staticmethod
    def _deviates(effect: Effect, keys: tuple[str, ...], name: Name) -> bool:
        if keys == ("engine",):
            return name[0] not in effect.but
        asked = [key for key in keys if key != "engine"]
        return not any(value in REFERENCE for key, value in zip(keys, name, strict=True) if key in asked)

    @staticmethod
    def _is_positive(effect: Effect, keys: tuple[str, ...], name: Name) -> bool:
        """Times that cannot be negative: only a generation of GPUs may take from what an engine has."""
        del name
        return effect.plus and "host" not in effect.term and "generation" not in keys

    def only_model(self, place: int) -> str:
        """The model whose cells alone tell a value; empty where models of several shapes do."""
        effect = self.names[place][0]
        told = (self.levels[:, place] > 0.0) & (self.cells[effect.part].to_numpy() != 0.0)
        cells = self.cells[told]
        return str(cells.model.mode()[0]) if len({each.sizes for each in cells.place}) == 1 else ""

    def level_sum(self, term: str, values: FloatArray) -> FloatArray:
        """What all levels of a term say of every cell."""
        own = self.columns[term]
        return np.asarray(self.levels[:, own] @ values[own])

    def predicted(self, values: FloatArray) -> FloatArray:
        """Microseconds per token of every cell."""
        return self._with_slopes(values)[0]

    def _with_slopes(self, values: FloatArray) -> tuple[FloatArray, FloatArray]:
        """(microseconds per token of every cell, their derivatives by every value: cells x values)."""
        time, slopes = self.cells.rest.to_numpy(), dict[str, FloatArray]()
        beside = np.zeros(time.size)
        effects = [effect for effect in EFFECTS if not effect.of_first]
        sums = {effect.term: self.level_sum(effect.term, values) for effect in effects}
        for effect in effects:
            part, value = self.cells[effect.part].to_numpy(dtype=np.float64), sums[effect.term]
            if effect.plus:
                counts = part if "host" in effect.term else np.where(value >= 0.0, part, 0.0)
                beside, slopes[effect.term] = beside + counts * value, counts
            elif effect.part != "kernels":
                slopes[effect.term] = np.exp(value) * part
                time = time + slopes[effect.term]
        slower = np.exp(sums["kernels_share"])
        slopes["kernels_share"] = time
        shares = {effect.term for effect in effects if not effect.plus}
        jacobian = np.zeros(self.levels.shape)
        for term in sums:
            slope, own = slopes[term] * (slower if term in shares else 1.0), self.columns[term]
            jacobian[:, own] = slope[:, None] * self.levels[:, own]
        return np.asarray(time * slower + beside), jacobian

    def first(self, values: FloatArray, step_us: FloatArray) -> tuple[FloatArray, FloatArray]:
        """(microseconds to the first token of every cell, their derivatives by every value).

        step_us: what the steps take that a prompt waits for; nothing is derived by them.
        """
        cells, jacobian = self.cells, np.zeros(self.levels.shape)
        prompts_us = cells.first_prompts.to_numpy() * np.exp(self.level_sum("prompt_share", values))
        time_us = cells.first_steps.to_numpy() * step_us + prompts_us
        slopes = {"prompt_share": prompts_us}
        for term, part in (("prompt_us_per_layer", "first_layers"), ("load_test_us", "tests")):
            added_us, counts = self.level_sum(term, values), cells[part].to_numpy()
            time_us = time_us + counts * np.maximum(added_us, 0.0)
            slopes[term] = counts * (added_us >= 0.0)
        for term, slope in slopes.items():
            own = self.columns[term]
            jacobian[:, own] = slope[:, None] * self.levels[:, own]
        return np.asarray(time_us), jacobian

    def solve(self, keep: BoolArray) -> Found:
        """Least squares of robust log errors with what draws levels to nothing."""
        cells = self.cells
        size = cells.groupby(["engine", "gpu", "weights", "family"]).rest.transform("size").to_numpy()
        measured, first_measured = cells.measured.to_numpy(), cells.first_measured.to_numpy()
        seen = keep & np.isfinite(first_measured)
        weight = np.sqrt(np.minimum(1.0, LARGEST / np.concatenate([size[keep], size[seen]])))

        def residuals(values: FloatArray) -> tuple[FloatArray, FloatArray]:
            errors, slopes = [], []
            for time, jacobian, found, here, sigma in (
                (*self._with_slopes(values), measured, keep, SIGMA),
                (*self.first(values, measured), first_measured, seen, FIRST_SIGMA),
            ):
                kept = np.maximum(time[here], 1.0)
                errors.append(np.log(kept / found[here]) / sigma)
                slopes.append(jacobian[here] / kept[:, None] / sigma)
            own, jacobian = np.concatenate(errors), np.concatenate(slopes)
            inside = 1.0 + np.abs(own) / ROBUST**2
            by_own = weight * (inside**-0.5 - 0.5 * np.abs(own) / ROBUST**2 * inside**-1.5)
            return (
                np.concatenate([weight * own * inside**-0.5, values / self.spreads]),
                np.concatenate([by_own[:, None] * jacobian, np.diag(1.0 / self.spreads)]),
            )

        return least_squares_above(residuals, np.zeros(self.spreads.size), self.low)

    def errors(self, values: FloatArray) -> FloatArray:
        """Relative errors of every cell."""
        return np.asarray(self.predicted(values) / self.cells.measured.to_numpy() - 1.0)

    def first_errors(self, values: FloatArray) -> FloatArray:
        """The same of times to the first token; NaN where none is fitted."""
        time_us, _ = self.first(values, self.predicted(values))
        return np.asarray(time_us / self.cells.first_measured.to_numpy() - 1.0)

    def experts_of_step(self, values: FloatArray) -> FloatArray:
        """Which part of the step of every cell layers of experts take, without what prompts add to it."""
        cells, sums = self.cells, {term: self.level_sum(term, values) for term in self.columns}
        slower = np.exp(sums["kernels_share"])
        experts = slower * cells.experts * np.exp(sums["experts_share"])
        for term, part in (
            ("experts_us_per_layer", "expert_layers"), ("expert_parallel_us_per_layer", "spread_layers"),
        ):  # fmt: skip
            experts = experts + np.maximum(sums[term], 0.0) * cells[part]
        prompts = slower * cells.prompt * np.exp(sums["prompt_share"])
        return np.asarray(experts / (self.predicted(values) - prompts))


class LeftOut(NamedTuple):
    """Of every cell by a fit without its group: relative errors, those of first tokens, experts' part."""

    errors: FloatArray
    firsts: FloatArray
    experts: FloatArray

    @classmethod
    def of(cls, fit: Fit, values: FloatArray) -> LeftOut:
        """By these values."""
        return cls(fit.errors(values), fit.first_errors(values), fit.experts_of_step(values))


def held_out(fit: Fit) -> dict[str, LeftOut]:
    """What each way of grouping says of every cell."""
    outs = {}
    for title, keys in HELD_OUT:
        groups = fit.cells[list(keys)].agg("|".join, axis=1).to_numpy()
        outs[title] = LeftOut(*np.zeros((3, groups.size)))
        for group in dict.fromkeys(groups.tolist()):
            own = groups == group
            values = fit.solve(~own).x  # not from the whole fit's values: it would stay where those bend
            for every, found in zip(outs[title], LeftOut.of(fit, values), strict=True):
                every[own] = found[own]
    return outs


def covariance(found: Found) -> FloatArray:
    """What cells and spreads leave open of the values."""
    return np.asarray(np.linalg.pinv(found.jac.T @ found.jac))
