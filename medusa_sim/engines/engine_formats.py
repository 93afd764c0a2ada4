"""Which formats and kernels an engine uses for K and V, linear layers and experts: `engine_formats.toml`."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

import msgspec

from medusa_sim.engines.case import weight_formats
from medusa_sim.gpus.kernels import GemmTile
from medusa_sim.models.mixers import Latent
from medusa_sim.models.model import Model
from medusa_sim.reading.documents import read_toml
from medusa_sim.reading.strict import convert

_FILE = Path(__file__).with_suffix(".toml")


class _Rule(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A rule of some engines."""

    engines: tuple[str, ...]
    """Names of their kernel sets (`Runtime.library`)."""
    generations: tuple[str, ...] = ()
    """Of the GPUs that it holds on; empty: all."""
    source: str

    def holds(self, library: str, architecture: str) -> bool:
        """Whether it holds for an engine on GPUs of a generation."""
        return library in self.engines and architecture in (self.generations or (architecture,))


class _Cache(_Rule, frozen=True, kw_only=True):
    """The format of K and V where weights have one of some formats."""

    weights: tuple[str, ...]
    kv: str
    latent: bool = False


class _OfForm(_Rule, frozen=True, kw_only=True):
    """A rule about what is stored in one format."""

    form: str


class _Linear(_OfForm, frozen=True, kw_only=True):
    """The format whose rows price linear layers."""

    rows_of: str


class _Arithmetic(_OfForm, frozen=True, kw_only=True):
    """The format in which it is computed."""

    computes: str
    states: bool = False


class _Experts(_OfForm, frozen=True, kw_only=True):
    """The kernel whose products layers of experts run."""

    products_of: str


class _Tiles(_OfForm, frozen=True, kw_only=True):
    """The tiles by which linear layers are computed."""

    tiles: tuple[GemmTile, ...]


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    caches: tuple[_Cache, ...]
    linear: tuple[_Linear, ...]
    arithmetic: tuple[_Arithmetic, ...]
    experts: tuple[_Experts, ...]
    tiles: tuple[_Tiles, ...]


_KNOWN = convert(read_toml(_FILE), _File, _FILE)
_OfFormT = TypeVar("_OfFormT", bound=_OfForm)


def _rule(rules: tuple[_OfFormT, ...], library: str, architecture: str, form: str) -> _OfFormT | None:
    """The first rule that holds for a format; None where there is none."""
    held = (rule for rule in rules if rule.form == form and rule.holds(library, architecture))
    return next(held, None)


def cache_format(model: Model, library: str, architecture: str) -> str | None:
    """The format in which an engine keeps a model's K and V by default; None: as the model says."""
    weights, is_latent = set(weight_formats(model)), bool(model.blocks(Latent))
    for rule in _KNOWN.caches:
        is_of_model = not weights.isdisjoint(rule.weights) and (is_latent or not rule.latent)
        if is_of_model and rule.holds(library, architecture):
            return rule.kv
    return None


def computed_formats(model: Model, library: str, architecture: str) -> dict[str, str]:
    """Formats of a model's parts -> those that an engine computes them in, where it quantises activations."""
    return {
        rule.form: rule.computes
        for rule in _KNOWN.arithmetic
        if rule.holds(library, architecture) and (model.keeps_states or not rule.states)
    }


def linear_rows(library: str, architecture: str, form: str) -> str:
    """The format whose rows price an engine's linear layers in `form`; empty: its own rows."""
    rule = _rule(_KNOWN.linear, library, architecture, form)
    return "" if rule is None else rule.rows_of


def linear_tiles(library: str, architecture: str, form: str) -> tuple[GemmTile, ...]:
    """The tiles by which an engine computes linear layers in `form`; empty: those of the rows' library."""
    rule = _rule(_KNOWN.tiles, library, architecture, form)
    return () if rule is None else rule.tiles


def expert_products(library: str, architecture: str, form: str) -> str:
    """The library's name of the kernel whose products an engine's experts in `form` run; empty: their own."""
    rule = _rule(_KNOWN.experts, library, architecture, form)
    return "" if rule is None else rule.products_of
