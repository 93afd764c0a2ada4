"""Which formats and kernels an engine uses for K and V, linear layers and experts: `engine_formats.toml`."""

from __future__ import annotations

from pathlib import Path

import msgspec

from medusa_sim.engines.case import weight_formats
from medusa_sim.gpus.kernels import GemmTile
from medusa_sim.models.mixers import Latent
from medusa_sim.models.model import Model
from medusa_sim.reading.documents import read_toml
from medusa_sim.reading.strict import convert

_FILE = Path(__file__).with_suffix(".toml")


class _Cache(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The format in which engines keep K and V where weights have one of some formats."""

    engines: tuple[str, ...]
    generations: tuple[str, ...]
    weights: tuple[str, ...]
    kv: str
    source: str
    latent: bool = False


class _Linear(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The format whose rows price engines' linear layers in another format."""

    engines: tuple[str, ...]
    form: str
    rows_of: str
    source: str
    generations: tuple[str, ...] = ()


class _Arithmetic(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The format in which engines compute what is stored in another one."""

    engines: tuple[str, ...]
    generations: tuple[str, ...]
    form: str
    computes: str
    source: str
    states: bool = False


class _Experts(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The kernel whose products engines' layers of experts in a format run."""

    engines: tuple[str, ...]
    generations: tuple[str, ...]
    form: str
    products_of: str
    source: str


class _Tiles(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The tiles by which engines compute linear layers in a format."""

    engines: tuple[str, ...]
    generations: tuple[str, ...]
    form: str
    tiles: tuple[GemmTile, ...]
    source: str


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    caches: tuple[_Cache, ...]
    linear: tuple[_Linear, ...]
    arithmetic: tuple[_Arithmetic, ...]
    experts: tuple[_Experts, ...]
    tiles: tuple[_Tiles, ...]


_KNOWN = convert(read_toml(_FILE), _File, _FILE)


def cache_format(model: Model, library: str, architecture: str) -> str | None:
    """The format in which an engine keeps a model's K and V by default; None: as the model says."""
    weights = set(weight_formats(model))
    for entry in _KNOWN.caches:
        if library not in entry.engines or architecture not in entry.generations:
            continue
        if entry.latent and not model.blocks(Latent):
            continue
        if not weights.isdisjoint(entry.weights):
            return entry.kv
    return None


def computed_formats(model: Model, library: str, architecture: str) -> dict[str, str]:
    """Formats of a model's parts -> those that an engine computes them in, where it quantises activations."""
    return {
        entry.form: entry.computes
        for entry in _KNOWN.arithmetic
        if library in entry.engines
        and architecture in entry.generations
        and (model.keeps_states or not entry.states)
    }


def linear_rows(library: str, architecture: str, form: str) -> str:
    """The format whose rows price an engine's linear layers in `form`; empty: its own rows."""
    for entry in _KNOWN.linear:
        of_generation = not entry.generations or architecture in entry.generations
        if of_generation and library in entry.engines and form == entry.form:
            return entry.rows_of
    return ""


def linear_tiles(library: str, architecture: str, form: str) -> tuple[GemmTile, ...]:
    """The tiles by which an engine computes linear layers in `form`; empty: those of the rows' library."""
    for entry in _KNOWN.tiles:
        if library in entry.engines and architecture in entry.generations and form == entry.form:
            return entry.tiles
    return ()


def expert_products(library: str, architecture: str, form: str) -> str:
    """The library's name of the kernel whose products an engine's experts in `form` run; empty: their own."""
    for entry in _KNOWN.experts:
        if library in entry.engines and architecture in entry.generations and form == entry.form:
            return entry.products_of
    return ""
