"""Which formats and kernels an engine uses for K and V, linear layers and experts: `engine_formats.toml`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec

from medusa_sim.engines.case import weight_formats
from medusa_sim.gpus.kernels import GemmTile
from medusa_sim.models.mixers import Latent
from medusa_sim.models.model import Model
from medusa_sim.reading.documents import read_toml
from medusa_sim.reading.strict import convert

_FILE = Path(__file__).with_suffix(".toml")


class _Rule(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What some engines take for what is stored in some formats."""

    engines: tuple[str, ...]
    """Names of their kernel sets (`Runtime.library`)."""
    generations: tuple[str, ...] = ()
    """Of the GPUs that it holds on; empty: all."""
    forms: tuple[str, ...]
    takes: str = ""
    """A format, or the library's name of a kernel."""
    tiles: tuple[GemmTile, ...] = ()
    latent: bool = False
    """Whether it is for models with latent attention alone."""
    states: bool = False
    """The same of models with states."""
    source: str


_KNOWN: dict[str, tuple[_Rule, ...]] = convert(read_toml(_FILE), dict[str, tuple[_Rule, ...]], _FILE)


def _rules(what: str, library: str, architecture: str) -> Iterator[_Rule]:
    """The rules that hold for an engine on GPUs of a generation."""
    for rule in _KNOWN[what]:
        if library in rule.engines and architecture in (rule.generations or (architecture,)):
            yield rule


def _rule(what: str, library: str, architecture: str, form: str) -> _Rule | None:
    """The first rule that holds for a format; None where there is none."""
    return next((rule for rule in _rules(what, library, architecture) if form in rule.forms), None)


def cache_format(model: Model, library: str, architecture: str) -> str | None:
    """The format in which an engine keeps a model's K and V by default; None: as the model says."""
    weights, is_latent = set(weight_formats(model)), bool(model.blocks(Latent))
    for rule in _rules("caches", library, architecture):
        if not weights.isdisjoint(rule.forms) and (is_latent or not rule.latent):
            return rule.takes
    return None


def computed_formats(model: Model, library: str, architecture: str) -> dict[str, str]:
    """Formats of a model's parts -> those that an engine computes them in, where it quantises activations."""
    return {
        form: rule.takes
        for rule in _rules("arithmetic", library, architecture)
        if model.keeps_states or not rule.states
        for form in rule.forms
    }


def linear_rows(library: str, architecture: str, form: str) -> str:
    """The format whose rows price an engine's linear layers in `form`; empty: its own rows."""
    rule = _rule("linear", library, architecture, form)
    return "" if rule is None else rule.takes


def linear_tiles(library: str, architecture: str, form: str) -> tuple[GemmTile, ...]:
    """The tiles by which an engine computes linear layers in `form`; empty: those of the rows' library."""
    rule = _rule("tiles", library, architecture, form)
    return () if rule is None else rule.tiles


def expert_products(library: str, architecture: str, form: str) -> str:
    """The library's name of the kernel whose products an engine's experts in `form` run; empty: their own."""
    rule = _rule("experts", library, architecture, form)
    return "" if rule is None else rule.takes
