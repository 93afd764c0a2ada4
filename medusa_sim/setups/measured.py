"""Single public measurements of served set-ups; the one nearest to a comparison, and the error there.

`profiles/served.toml` holds them, each with its source. The error is that of the set-up as it was measured:
priced at the measurement's own lengths, requests and drafts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from medusa_sim import data
from medusa_sim.data import DataDir
from medusa_sim.plan.surface import all_priced
from medusa_sim.reading import FileState, file_state, read_toml
from medusa_sim.setups.comparison import Comparison
from medusa_sim.setups.pricing import rows_of, surface_of
from medusa_sim.setups.question import Question
from medusa_sim.setups.setup import PLAIN, SET_UP
from medusa_sim.specs.strict import Schema, Text, convert

SERVED = "served.toml"
NEAR = 1.5
"""Largest ratio of lengths at which a measurement stands beside a curve."""
_NAMED = tuple(name for name in SET_UP if name != "kv_precision")
"""What sources say of a set-up."""

Positive = Annotated[float, Meta(gt=0.0)]


class Figure(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One measurement. set_up: columns of SET_UP that sources name.

    runtime: of the version that was measured; empty where it is the engine's present one.
    """

    model: Text
    set_up: dict[str, Any]
    drafts: Annotated[int, Meta(ge=0)]
    batch: Annotated[int, Meta(ge=1)]
    prompt_tokens: Positive
    output_tokens: Positive
    tokens_per_s_per_user: Positive
    source: Text
    runtime: str = ""

    @property
    def tokens_per_s_per_gpu(self) -> float:
        """Of all its requests."""
        return self.batch * self.tokens_per_s_per_user / float(self.set_up["tp"])


class _ServedToml(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`profiles/served.toml` as it stands there."""

    schema: Schema
    figure: tuple[Figure, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """The nearest figure. row: of its set-up as measured, predicted; near: lengths and version as asked."""

    figure: Figure
    row: dict[str, Any]
    near: bool

    @property
    def error(self) -> float:
        """Predicted over measured tokens/s a user, less 1."""
        return float(self.row["tokens_per_s_per_user"] / self.figure.tokens_per_s_per_user - 1.0)

    def value(self, column: str) -> float:
        """What a column of the comparison would hold, as measured: cost follows the time per token."""
        share = 1.0 + self.error
        if column == "tokens_per_s_per_gpu":
            return self.figure.tokens_per_s_per_gpu
        return float(self.row[column]) * share if column == "usd_per_million_tokens" else math.nan


def figures(data_dir: DataDir = None) -> tuple[Figure, ...]:
    """Every figure. Raises SpecError for a malformed file."""
    path = data.find("profiles", SERVED, data_dir)
    return () if path is None else _read(file_state(path))


@lru_cache(maxsize=8)
def _read(state: FileState) -> tuple[Figure, ...]:
    return convert(read_toml(state.path, "a table of figures"), _ServedToml, state.path).figure


def nearest(answer: Comparison) -> Measured | None:
    """The figure of a set-up that was compared that is nearest to the answer; None where there is none."""
    places = [SET_UP.index(name) for name in _NAMED]
    keys = {tuple(key[place] for place in places): key for key in reversed(answer.scenarios)}
    best = answer.chosen or {}
    near = math.log(NEAR)

    def away(figure: Figure) -> tuple[bool, bool, bool, float]:
        """What counts first: lengths and version that can be drawn, the chosen card, its drafter."""
        asked = answer.question
        ratio = max(
            abs(math.log(figure.prompt_tokens / asked.prompt_tokens)),
            abs(math.log(figure.output_tokens / asked.output_tokens)),
        )
        gpu, drafter = (figure.set_up[name] != best.get(name) for name in ("gpu", "drafter"))
        return ratio > near or bool(figure.runtime), gpu, drafter, ratio

    known = [
        (figure, key)
        for figure in figures()
        if figure.model == answer.model.name
        and (key := keys.get(tuple(figure.set_up.get(name) for name in _NAMED)))
    ]
    if not known:
        return None
    figure, key = min(known, key=lambda pair: away(pair[0]))
    return Measured(figure=figure, row=_as_measured(answer, figure, key), near=not away(figure)[0])


def _as_measured(answer: Comparison, figure: Figure, key: tuple[Any, ...]) -> dict[str, Any]:
    prompt, output = figure.prompt_tokens, figure.output_tokens
    asked = Question(
        batches=(figure.batch,), drafts=(figure.drafts or 1,), prompt_tokens=prompt, output_tokens=output
    )
    version = {"runtime": figure.runtime, "latency": "calibrated"} if figure.runtime else {}
    scenario = answer.scenarios[key].but(prompt_tokens=prompt, output_tokens=output, **version)
    plain = figure.set_up["drafter"] == PLAIN
    rows = rows_of(all_priced(surface_of(scenario, asked, plain=plain)), key, asked).rows
    return {name: values[0] for name, values in rows.items()}
