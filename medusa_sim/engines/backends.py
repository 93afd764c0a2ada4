"""Which attention kernel an engine calls when a step has several queries a sequence: `backends.toml`.

A plain decoding kernel splits the keys of a sequence over the chip. With two queries or more an engine may
call another kernel that does not; a round then grows with context as if each head had one thread block. Which
kernel it is follows from the engine, the GPU's architecture, the format of K and V, the width of a head and
the kind of attention: the first fact that fits decides.
"""

from __future__ import annotations

from math import inf
from pathlib import Path
from typing import Literal, TypeAlias

import msgspec

from medusa_sim.engines.case import form_of
from medusa_sim.errors import SpecError, unknown_name
from medusa_sim.models.mixers import Latent
from medusa_sim.models.model import Model
from medusa_sim.reading.documents import read_toml
from medusa_sim.reading.strict import convert
from medusa_sim.units import BYTES_PER_ELEMENT

AttentionKind: TypeAlias = Literal["grouped", "latent", "sparse"]


class Backend(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """An attention kernel for several queries a sequence."""

    name: str
    """Name in answers."""
    splits: bool
    """Whether the keys of a sequence are spread over several thread blocks."""
    source: str
    """Where that is said."""
    plans: bool = True
    """Whether it spreads a batch of unequal lengths evenly over the SMs; else sequences run as they come."""
    key: str = ""
    """Its key in `backends.toml`."""
    full_graph: bool = True
    """Whether a CUDA graph of the whole step can hold it; else the step runs in pieces, and the host plans
    each pass while the device waits (`Engine.plan_us_per_pass`)."""
    draft_graph: bool = True
    """The same for the drafter's pass over the tokens that were just accepted."""
    timed_as: str = ""
    """Law in place of rows of verification, decoding and prompts: `call` (from Python), or `walk`
    (thread blocks like FlashAttention-2's over whole keys or splits); empty: those rows."""


class _Fact(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The kernel that some engines call on GPUs of some architectures; None is no condition."""

    engines: tuple[str, ...]
    generations: tuple[str, ...]
    backend: Backend
    attention: AttentionKind = "grouped"
    bytes_of_kv: float | None = None
    widest: int | None = None


class _Words(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Words for the kernel in rows of a table."""

    any: tuple[str, ...]
    backend: Backend


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    backends: dict[str, Backend]
    facts: tuple[_Fact, ...]
    words: tuple[_Words, ...]


def _read() -> _File:
    path = Path(__file__).with_suffix(".toml")
    content = read_toml(path)
    for key, backend in content["backends"].items():
        backend["key"] = key
    for entry in (*content["facts"], *content["words"]):
        entry["backend"] = content["backends"][entry["backend"]]
    return convert(content, _File, path)


_KNOWN = _read()
FACTS = _KNOWN.facts
_KERNELS_ALONE = _KNOWN.backends["ALONE"]


def backend_of(
    engine: str,
    architecture: str,
    *,
    attention: AttentionKind,
    bytes_of_kv: float,
    head_dim: float,
    chosen: str = "",
) -> Backend:
    """The kernel for several queries. engine: empty for kernels alone, which are assumed to split keys.

    chosen: key of the kernel that the engine was told to use. Raises SpecError for an unknown key.
    """
    if chosen:
        if chosen not in _KNOWN.backends:
            raise SpecError(unknown_name("attention backend", chosen, _KNOWN.backends))
        return _KNOWN.backends[chosen]
    for fact in FACTS:
        is_there = engine.lower() in fact.engines and architecture in fact.generations
        fits = fact.bytes_of_kv in (None, bytes_of_kv) and head_dim <= (fact.widest or inf)
        if is_there and fits and attention == fact.attention:
            return fact.backend
    return _KERNELS_ALONE


def backend_of_model(model: Model, engine: str, architecture: str, chosen: str = "") -> Backend:
    """The kernel for several queries of a model (whole, or what one GPU holds). Raises as `backend_of`."""
    attention: AttentionKind = "latent" if model.blocks(Latent) else "grouped"
    return backend_of(
        engine,
        architecture,
        attention="sparse" if form_of(model) == "sparse" else attention,
        bytes_of_kv=BYTES_PER_ELEMENT[model.kv_dtype or model.dtype],
        head_dim=model.attention.head_dim,
        chosen=chosen,
    )


def backend_of_row(kernel: str) -> Backend | None:
    """The kernel that a row of a table names in its library's words; None: none is recognised."""
    name = kernel.lower()
    return next((each.backend for each in _KNOWN.words if any(word in name for word in each.any)), None)
