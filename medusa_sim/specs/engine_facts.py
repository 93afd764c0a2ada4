"""What engines do with attention and with recurrent states when they speculate: `engine_facts.toml`.

FACTS: which attention kernel an engine calls when a step has several queries a sequence. A plain decoding
kernel splits the keys of a sequence over the chip. With two queries or more an engine may call another one
that does not, and then a round grows with context as if the chip had a block for each head. Which one follows
from the engine, the card's architecture, the format of K and V, the width of a head and whether attention is
latent. The first entry that fits is the answer.

RULES: which drafts of a hybrid an engine takes, and what they cost.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import msgspec
from msgspec.structs import replace

from medusa_sim.errors import SpecError, unknown_name
from medusa_sim.reading import read_toml
from medusa_sim.specs.gpu import Gpu
from medusa_sim.specs.mixers import Latent
from medusa_sim.specs.model import Model
from medusa_sim.specs.place import sizes_of
from medusa_sim.specs.ranges import Case, form_of
from medusa_sim.specs.recurrent import GatedDelta
from medusa_sim.specs.strict import convert
from medusa_sim.units import BYTES_PER_ELEMENT, FORMATS


class Backend(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A kernel for several queries; `engine_facts.toml` says what each key means."""

    name: str
    splits: bool
    source: str
    plans: bool = True
    key: str = ""
    full_graph: bool = True
    draft_graph: bool = True
    timed_as: str = ""


class _Fact(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Which kernel some engines call on cards of some architectures; None asks nothing."""

    engines: tuple[str, ...]
    cards: tuple[str, ...]
    backend: Backend
    latent: bool = False
    sparse: bool = False
    bytes_of_kv: float | None = None
    widest: int | None = None


class _Cache(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """In which format engines keep K and V of weights in some formats; empty lists ask nothing."""

    engines: tuple[str, ...]
    cards: tuple[str, ...]
    weights: tuple[str, ...]
    kv: str
    source: str
    latent: bool = False


class _Linear(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Whose rows stand for engines' linear layers in a format."""

    engines: tuple[str, ...]
    form: str
    rows_of: str
    source: str
    cards: tuple[str, ...] = ()


class _Experts(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Whose products stand in engines' layers of experts of a format."""

    engines: tuple[str, ...]
    cards: tuple[str, ...]
    form: str
    products_of: str
    source: str


class _Words(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    any: tuple[str, ...]
    backend: Backend


class StateRules(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One engine's, of hybrids that draft."""

    engine: str
    drafts: str
    states: str
    prefixes: str
    source: str
    gated_delta: str = ""


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    backends: dict[str, Backend]
    facts: tuple[_Fact, ...]
    caches: tuple[_Cache, ...]
    linear: tuple[_Linear, ...]
    experts: tuple[_Experts, ...]
    words: tuple[_Words, ...]
    rules: dict[str, StateRules]


def _read() -> _File:
    path = Path(__file__).with_suffix(".toml")
    content = read_toml(path)
    for key, backend in content["backends"].items():
        backend["key"] = key
    for entry in (*content["facts"], *content["words"]):
        entry["backend"] = content["backends"][entry["backend"]]
    return convert(content, _File, path)


_KNOWN = _read()
FACTS, RULES = _KNOWN.facts, _KNOWN.rules
_ALONE = _KNOWN.backends["ALONE"]


def backend_of(
    engine: str,
    architecture: str,
    *,
    latent: bool,
    bytes_of_kv: float,
    head_dim: float,
    sparse: bool = False,
    chosen: str = "",
) -> Backend:
    """The kernel for several queries. engine: empty for kernels alone, which are taken to split keys.

    chosen: key of the one that the engine was told to take. Raises SpecError where there is none of that key.
    """
    if chosen:
        if chosen not in _KNOWN.backends:
            raise SpecError(unknown_name("attention backend", chosen, _KNOWN.backends))
        return _KNOWN.backends[chosen]
    for fact in FACTS:
        if engine.lower() not in fact.engines or architecture not in fact.cards:
            continue
        if (fact.sparse or fact.latent, fact.sparse) != (sparse or latent, sparse):
            continue
        if fact.bytes_of_kv not in (None, bytes_of_kv) or (
            fact.widest is not None and head_dim > fact.widest
        ):
            continue
        return fact.backend
    return _ALONE


def backend_of_model(model: Model, engine: str, architecture: str, chosen: str = "") -> Backend:
    """The same of a model (what one GPU holds of it)."""
    return backend_of(
        engine,
        architecture,
        latent=bool(model.blocks(Latent)),
        sparse=form_of(model) == "sparse",
        bytes_of_kv=BYTES_PER_ELEMENT[model.kv_dtype or model.dtype],
        head_dim=model.attention.head_dim,
        chosen=chosen,
    )


def case_of(model: Model, engine: str, card: Gpu, gpus: int, chosen: str = "") -> Case:
    """A set-up as the ranges of an engine's terms see it. model: what one of its GPUs holds."""
    return Case(
        form=form_of(model),
        experts=model.experts is not None,
        gpus=gpus,
        card=card.architecture,
        backend=backend_of_model(model, engine, card.architecture, chosen).key,
        formats=weight_formats(model),
        gpu=card.name,
        sizes=sizes_of(model),
        splits=model.parallel.dp_attention,
    )


def backend_of_row(kernel: str) -> Backend | None:
    """The kernel that a row of a table names in words of its library; None where they say none of these."""
    name = kernel.lower()
    return next((each.backend for each in _KNOWN.words if any(word in name for word in each.any)), None)


NGRAM_CORRUPTS = "vllm #39273, fix #52942 open"


def weight_formats(model: Model) -> tuple[str, ...]:
    """Formats of the weights of a model, those of its linear layers first."""
    parts = [part for group in model.groups for part in group.parts]
    forms = [model.form, *(part.form for part in parts if part.form is not None)]
    return tuple(dict.fromkeys(FORMATS[form].weight_dtype for form in forms))


def cache_format(model: Model, library: str, architecture: str) -> str | None:
    """In which format an engine keeps K and V of a model unless it is told; None: as the model says."""
    weights = set(weight_formats(model))
    for entry in _KNOWN.caches:
        if library not in entry.engines or architecture not in entry.cards:
            continue
        if entry.latent and not model.blocks(Latent):
            continue
        if not weights.isdisjoint(entry.weights):
            return entry.kv
    return None


def linear_rows(library: str, architecture: str, form: str) -> str:
    """The format whose rows stand for linear layers of an engine in a format; empty: its own."""
    for entry in _KNOWN.linear:
        of_card = not entry.cards or architecture in entry.cards
        if of_card and library in entry.engines and form == entry.form:
            return entry.rows_of
    return ""


def expert_products(library: str, architecture: str, form: str) -> str:
    """The library's name of the kernel whose products an engine's layers of experts run; empty: their own."""
    for entry in _KNOWN.experts:
        if library in entry.engines and architecture in entry.cards and form == entry.form:
            return entry.products_of
    return ""


def as_served(model: Model, library: str) -> Model:
    """The model with its states as an engine keeps them."""
    rules = RULES.get(library)
    if rules is None or not rules.gated_delta or not model.keeps_states:
        return model
    groups = []
    for group in model.groups:
        mixers = (
            replace(mixer, state_dtype=rules.gated_delta) if isinstance(mixer, GatedDelta) else mixer
            for mixer in group.mixers
        )
        groups.append(dataclasses.replace(group, mixers=tuple(mixers)))
    return dataclasses.replace(model, groups=tuple(groups))


def state_notes(library: str, model: Model, drafter: str) -> tuple[str, ...]:
    """What an answer says of an engine's states; nothing of models without them, or of unknown engines."""
    rules = RULES.get(library)
    if rules is None or not model.keeps_states:
        return ()
    lines = [f"{rules.engine} with states: {rules.drafts}; {rules.states}; {rules.prefixes} ({rules.source})"]
    if library == "vllm" and drafter == "ngram" and model.blocks(GatedDelta):
        lines.append(
            f"n-gram drafts corrupted outputs of gated delta layers in vLLM ({NGRAM_CORRUPTS}): "
            "a step without drafts reads another state; MTP and EAGLE draft in every step"
        )
    return tuple(lines)
