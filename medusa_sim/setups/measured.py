"""Prediction for a public measurement, and the measurement nearest to a comparison.

The error is that of the set-up as it was measured: priced at the measurement's own lengths, requests and
drafts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from medusa_sim.grid.configurations import PLAIN
from medusa_sim.models.named import load_model
from medusa_sim.reading.files import FileState
from medusa_sim.scenario.scenario import Scenario
from medusa_sim.setups.pricing import any_drafter, surface_of
from medusa_sim.setups.question import SetupQuestion
from medusa_sim.setups.served_figures import Figure, by_nearness, differences, figures, figures_state
from medusa_sim.setups.set_up_cells import SetUpCells
from medusa_sim.setups.setup import NO_DRAFTER, SET_UP, SetUp

if TYPE_CHECKING:
    from medusa_sim.setups.comparison import Comparison

NEAR = 1.5
"""Largest ratio of lengths at which a measurement is drawn beside a curve."""
_NAMED = tuple(name for name in SET_UP if name != "kv_precision")
"""Fields of a set-up that sources give."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PricedFigure:
    """A public figure and its prediction. row: predicted, as measured; near: lengths and version as asked."""

    figure: Figure
    row: dict[str, Any]
    near: bool

    @property
    def error(self) -> float:
        """Predicted over measured tokens/s a user, less 1."""
        return float(self.row["tokens_per_s_per_user"] / self.figure.tokens_per_s_per_user - 1.0)

    def value(self, column: str) -> float:
        """Measured value in a column of the comparison; rate and cost follow from the speed."""
        share = {"tokens_per_s_per_gpu": 1.0 / (1.0 + self.error), "usd_per_million_tokens": 1.0 + self.error}
        return float(self.row[column]) * share[column] if column in share else math.nan


def nearest(answer: Comparison) -> PricedFigure | None:
    """The figure of a set-up that was compared that is nearest to the answer; None where there is none."""
    places = [SET_UP.index(name) for name in _NAMED]
    keys = {tuple(key[place] for place in places): key for key in reversed(answer.scenarios)}
    best = answer.chosen or {}
    near = math.log(NEAR)
    data_dir = next((scenario.arguments.data_dir for scenario in answer.scenarios.values()), None)

    def away(figure: Figure) -> tuple[bool, bool, bool, float]:
        """Sort key, nearest first: lengths and version that can be drawn, the chosen GPU, its drafter."""
        asked = answer.question
        ratio = max(
            abs(math.log(figure.prompt_tokens / asked.prompt_tokens)),
            abs(math.log(figure.output_tokens / asked.output_tokens)),
        )
        gpu, drafter = (figure.set_up[name] != best.get(name) for name in ("gpu", "drafter"))
        return ratio > near or bool(figure.runtime), gpu, drafter, ratio

    known = [
        (figure, key)
        for figure in figures(data_dir)
        if figure.model == answer.model.name
        and (key := keys.get(tuple(figure.set_up.get(name) for name in _NAMED)))
    ]
    if not known:
        return None
    figure, key = min(known, key=lambda pair: away(pair[0]))
    version = {"runtime": figure.runtime, "latency": "calibrated"} if figure.runtime else {}
    rows = _curve(figure, answer.scenarios[key].but(**figure.request, **version), (figure.batch,))
    row = {**{name: values[0] for name, values in rows.items()}, "engine": figure.set_up["engine"]}
    return PricedFigure(figure=figure, row=row, near=not away(figure)[0])


def _curve(figure: Figure, served: Scenario, batches: tuple[int, ...]) -> dict[str, Any]:
    """Columns by batch of a scenario with the figure's requests."""
    asked = _question(figure, batches)
    return _cells(figure, served, asked).rows(asked)


def _cells(figure: Figure, served: Scenario, asked: SetupQuestion) -> SetUpCells:
    """A scenario with the figure's drafts."""
    plain = figure.set_up["drafter"] == NO_DRAFTER
    return SetUpCells.every(surface_of(served, asked, plain=plain), plain=plain)


def _question(figure: Figure, batches: tuple[int, ...]) -> SetupQuestion:
    """A figure's requests and drafts at some batches."""
    return SetupQuestion(batches=batches, drafts=(figure.drafts or 1,), **figure.request)


@dataclass(frozen=True, slots=True, kw_only=True)
class NearestFigure:
    """The figure nearest to a scenario.

    differs: what is another; tokens_per_s_per_user: predicted for the figure's set-up as it was measured.
    """

    figure: Figure
    differs: tuple[str, ...]
    tokens_per_s_per_user: float

    @property
    def error(self) -> float:
        """Predicted over measured tokens/s a user, less 1."""
        return self.tokens_per_s_per_user / self.figure.tokens_per_s_per_user - 1.0


def nearest_figure(scenario: Scenario) -> NearestFigure | None:
    """The public figure nearest to a scenario, priced at its own batch; None where none is near.

    Kept while the file of figures is the same, since pages and answers show it whenever they are drawn.
    """
    return _nearest(scenario, figures_state(scenario.arguments.data_dir))


@lru_cache(maxsize=32)
def _nearest(scenario: Scenario, state: FileState | None) -> NearestFigure | None:
    """The same; state: of the file of figures, of which another makes another answer."""
    del state
    figure = next(iter(by_nearness(scenario)), None)
    if figure is None:
        return None
    return NearestFigure(
        figure=figure, differs=differences(figure, scenario), tokens_per_s_per_user=predicted_speed(figure)
    )


def predicted_speed(figure: Figure) -> float:
    """Prediction for a figure's set-up as it was measured, tokens/s a user."""
    priced = _cells(figure, _as_served(figure), _question(figure, (figure.batch,)))
    speeds = priced.cells.spread(priced.cells.tokens_per_s_per_user)[0, 0]
    return float(speeds[PLAIN if priced.plain else -1])


def predicted_curve(figure: Figure, batches: tuple[int, ...]) -> dict[str, Any]:
    """The same set-up at other batches too: columns by batch, its own batch among them."""
    return _curve(figure, _as_served(figure), tuple(sorted({figure.batch, *batches})))


def _as_served(figure: Figure) -> Scenario:
    """A figure's set-up with its requests; without a drafter, with any."""
    set_up, plain = figure.set_up, figure.set_up["drafter"] == NO_DRAFTER
    model = load_model(figure.model)
    launched = SetUp(
        **{name: set_up[name] for name in _NAMED if name != "drafter"}, kv_precision=None, drafters=()
    )
    drafter = any_drafter(set_up["engine"]) if plain else set_up["drafter"]
    version = {"runtime": figure.runtime} if figure.runtime else {}
    launch = {**launched.arguments(model), **version, **figure.request}
    return Scenario(model=model, drafter=drafter, chain_only=True, **launch)
