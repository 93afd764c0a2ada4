"""Public measurements of served set-ups, each with its source, and in what each differs from a scenario.

`profiles/served.toml` holds them.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from medusa_sim import data
from medusa_sim.data import DataDir
from medusa_sim.engines.case import form_of
from medusa_sim.engines.engine import unversioned
from medusa_sim.engines.place import KINDS, Place, difference, sizes_of
from medusa_sim.engines.runtime import load_runtime
from medusa_sim.gpus.gpu import architecture_of
from medusa_sim.models.named import load_model
from medusa_sim.reading.documents import read_toml
from medusa_sim.reading.files import FileState, file_state
from medusa_sim.reading.strict import Schema, Text, convert
from medusa_sim.scenario.scenario import Scenario
from medusa_sim.setups.setup import NO_DRAFTER

SERVED = "served.toml"
Positive = Annotated[float, Meta(gt=0.0)]
_WORDS = {
    "model": "model", "gpu": "GPU", "engine": "engine", "precision": "precision", "tp": "number of GPUs",
    "ep": "split of experts", "dp_attention": "data-parallel attention", "drafter": "drafter",
}  # fmt: skip
"""Printed names of the fields in which set-ups differ."""
_FAR = {"engine", "format", "generation"}
"""Differences that make a figure of other layers useless."""


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
    def request(self) -> dict[str, Any]:
        """Its tokens, as scenarios and questions take them."""
        return {"prompt_tokens": self.prompt_tokens, "output_tokens": self.output_tokens}


class _ServedToml(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`profiles/served.toml` as it stands there."""

    schema: Schema
    figure: tuple[Figure, ...]


def figures(data_dir: DataDir = None) -> tuple[Figure, ...]:
    """Every figure. Raises SpecError for a malformed file."""
    state = figures_state(data_dir)
    return () if state is None else _read(state)


def figures_state(data_dir: DataDir = None) -> FileState | None:
    """The state of the file of figures; None where there is none."""
    path = data.find("profiles", SERVED, data_dir)
    return None if path is None else file_state(path)


@lru_cache(maxsize=8)
def _read(state: FileState) -> tuple[Figure, ...]:
    return convert(read_toml(state.path, "a table of figures"), _ServedToml, state.path).figure


def by_nearness(scenario: Scenario, *, every: bool = False) -> list[Figure]:
    """Figures that say something of a scenario, the nearest first, by the distance that its bands go by.

    They are of its layers, or of others in its engine, format and generation; every: all of them. The worst
    of what is new counts first (`engines.place.KINDS`), then the next; then in how much they differ.
    """
    place = _place_of_scenario(scenario)
    found: list[tuple[list[int], int, Figure]] = []
    for figure in figures(scenario.arguments.data_dir):
        new = difference(place, _place_of_figure(figure, scenario.arguments.data_dir)).kinds
        of_its_layers = load_model(figure.model).groups == scenario.model.groups
        if every or of_its_layers or not _FAR & {*new}:
            found.append(([KINDS.index(kind) for kind in new], len(differences(figure, scenario)), figure))
    return [figure for *_, figure in sorted(found, key=lambda entry: entry[:2])]


def _place_of_scenario(scenario: Scenario) -> Place:
    case, formats = scenario.case, (scenario.model.precision,)
    return Place(
        unversioned(scenario.runtime.name),
        scenario.runtime.name,
        case.gpu,
        case.generation,
        formats,
        case.sizes,
        case.form,
    )


def _place_of_figure(figure: Figure, data_dir: DataDir) -> Place:
    """In the words of sources: engines without their version, one format for a checkpoint."""
    engine, gpu, precision = (figure.set_up[name] for name in ("engine", "gpu", "precision"))
    runtime = figure.runtime or load_runtime(engine, data_dir).name
    generation = architecture_of(gpu, data_dir)
    model = load_model(figure.model)
    return Place(engine, runtime, gpu, generation, (precision,), sizes_of(model), form_of(model))


def differences(figure: Figure, scenario: Scenario) -> tuple[str, ...]:
    """Differences between a figure's set-up and a scenario's, in words.

    Plain decoding counts as no other drafter, since it stands beside every drafter.
    """
    asked = {
        "model": scenario.model.name, "gpu": scenario.gpu.name, "tp": scenario.parallel.tp,
        "ep": scenario.parallel.ep, "dp_attention": scenario.parallel.dp_attention,
        "precision": scenario.model.precision, "engine": unversioned(scenario.runtime.name),
        "drafter": scenario.drafting.method,
    }  # fmt: skip
    said = {"model": figure.model, **figure.set_up}
    same = {**asked, "drafter": said["drafter"]} if said["drafter"] == NO_DRAFTER else asked
    return tuple(_WORDS[name] for name in _WORDS if said[name] != same[name])
