"""Reads an `engine` table of a file as an `Engine`, with the terms it inherits from another.

["vllm-0.11"]
inherits = "vllm-0.10"            # terms that are not given here come from there ...
title = "vLLM 0.11 through its server"
versions = ["0.11", "0.13"]
engine.widen = 1.0                # ... with bands this many times as wide
engine.measured = { forms = ["dense"], gpus = [1, 1], generations = ["hopper"], requests = 256 }
engine.host_us_per_step = { value = 391, band = 0.6, source = "...", measured = { ... }, note = "..." }
"""

from __future__ import annotations

from typing import Annotated, Any, TypeAlias

import msgspec
from msgspec import Meta

from medusa_sim.engines.engine import DRAFTING, UNITS, Engine
from medusa_sim.engines.ranges import MeasuredRange
from medusa_sim.engines.term import GivenTerm, Term
from medusa_sim.errors import SpecError, shown
from medusa_sim.reading.strict import convert

_MAX_GRAPH_SIZE = 1 << 20
_LISTS = ("graph_sizes", "plain_graph_sizes")
_SIZES = "a rising list of sizes and of [first, last, step]"
_FORMS: dict[str, Any] = {
    "widen": Annotated[float, Meta(ge=1.0, le=10.0)],
    **{field.name: field.type for field in msgspec.structs.fields(Engine)},
    **dict.fromkeys(UNITS, GivenTerm),
    **dict.fromkeys(_LISTS, Annotated[list[int | list[int]], Meta(description=_SIZES)]),
}
"""Type of every key that an `engine` table may have."""
_DEFAULTS = {field.name: field.default for field in msgspec.structs.fields(Engine) if not field.required}
_OWN = ("measured", "measured_drafters", "free_memory_share", "memory_source")
"""Settings that are never inherited."""
EngineToml: TypeAlias = dict[str, Any]
"""An `engine` table as it stands in a file."""


def engine_of(given: EngineToml, relative: tuple[str, Engine] | None, where: str, key: str) -> Engine:
    """The engine of an `engine` table. relative: name and terms of the engine that it inherits from.

    Where no term of an engine was measured, the half-widths of its given terms and of the relative's are
    added; the same goes for its terms of drafting alone.
    Raises SpecError naming file (`where`) and key: a term that neither gives, a value without a source, an
    unknown key.
    """
    if unknown := sorted(given.keys() - _FORMS.keys()):
        raise SpecError(
            f"{where}: {key}.{unknown[0]}: unknown key; allowed here: {', '.join(sorted(_FORMS))}"
        )
    said = {name: convert(value, _FORMS[name], where, key=f"{key}.{name}") for name, value in given.items()}
    widen = said.pop("widen", 1.0)
    measured = msgspec.structs.replace(said.get("measured", MeasuredRange()), assumed=True)
    values: dict[str, Any] = dict(_DEFAULTS)
    for name in Engine.__struct_fields__:
        if name in said:
            value = said[name]
            values[name] = _own(value, measured) if name in UNITS else value
        elif relative is not None and name not in _OWN:
            lent = getattr(relative[1], name)
            values[name] = _inherited(lent, relative[0], widen) if name in UNITS else lent
        elif name not in _DEFAULTS:
            words = "an engine that inherits from none must give it"
            if name in UNITS:
                words = f"a table with value ({UNITS[name] or 'a ratio'}) and source is needed"
            raise SpecError(f"{where}: {key}.{name}: missing; {words}")
    for name in said.keys() & set(_LISTS):
        values[name] = _sizes(said[name], f"{where}: {key}.{name}")
    last = values["step_limits"][-1]
    if last.memory_gib or last.but:
        raise SpecError(
            f"{where}: {key}.step_limits: the last entry must apply to every GPU: no memory_gib, no but"
        )
    engine = Engine(**values)
    if relative is None:
        return engine
    known = {start: engine.is_measured("", start) for start in ("", DRAFTING)}
    lent = relative[1].terms
    return engine.with_terms(
        {
            name: _guessed(engine.terms[name], lent[name])
            for name in UNITS
            if name in given and not known[DRAFTING if name.startswith(DRAFTING) else ""]
        }
    )


def _own(given: GivenTerm, measured: MeasuredRange) -> Term:
    """A term as its file gives it; measured: the range of terms that give none."""
    values = {**msgspec.structs.asdict(given), "measured": given.measured or measured}
    return Term(**values)


def _guessed(term: Term, lent: Term) -> Term:
    """A guessed term of an engine that nobody measured: never surer than the measured term it replaces.

    The half-widths of both add up. A guess without a range takes the measured term's range.
    """
    if not term.value:
        return term
    band, measured = (term.half_width + lent.half_width) / term.value, lent.measured
    if measured is not None and term.measured is not None and term.measured.assumed:
        return msgspec.structs.replace(
            term, band=band, measured=msgspec.structs.replace(measured, assumed=True)
        )
    return msgspec.structs.replace(term, band=band)


def _inherited(term: Term, lender: str, widen: float) -> Term:
    return msgspec.structs.replace(
        term, band=term.band * widen, heldout_error=None, inherited_from=term.inherited_from or lender
    )


def _sizes(given: list[int | list[int]], where: str) -> tuple[int, ...]:
    """`[1, 2, 4, [8, 256, 8]]`: single sizes, and [first, last, step]."""
    parts = [part if isinstance(part, list) else [part, part, 1] for part in given]
    valid = all(len(part) == 3 and all(1 <= n <= _MAX_GRAPH_SIZE for n in part) for part in parts)
    sizes = [n for first, last, step in parts for n in range(first, last + 1, step)] if valid else []
    if not valid or sizes != sorted(set(sizes)):
        raise SpecError(f"{where}: given {shown(given)}; allowed: {_SIZES}")
    return tuple(sizes)
