"""What a serving engine adds to the kernels of a step: terms, each with its source, range and band.

    ["vllm-0.11"]
    inherits = "vllm-0.10"            # what is not given here comes from there ...
    title = "vLLM 0.11 through its server"
    engine.widen = 1.0                # ... with bands that many times as wide
    engine.host_us_per_step = { value = 391, band = 0.6, source = "...", valid = "...", note = "..." }

The equations are those of `step/engine.py` and `step/server.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, cast, get_args

import msgspec

from medusa_sim.specs.sourced import Table

UNITS: dict[str, str] = {
    "host_us_per_step": "us",
    "host_us_per_request": "us",
    "host_us_per_token": "us",
    "hidden_us_per_step": "us",
    "draft_us_per_step": "us",
    "draft_us_per_request": "us",
    "draft_us_per_pass": "us",
    "draft_us_per_eagle3_pass": "us",
    "draft_us_per_layer": "us",
    "lookup_us_per_request": "us",
    "idle_draft_share": "",
    "idle_draft_share_per_request": "",
    "sampling_us": "us",
    "sampling_bytes_per_logit": "bytes",
    "filter_us": "us",
    "filter_bytes_per_logit": "bytes",
    "filter_top_k_share": "",
    "filter_full_rows": "",
    "filter_share_beyond": "",
    "elementwise_share": "",
    "eager_us_per_layer": "us",
    "length_spread_share": "",
}
"""Unit of every term, in the order in which they are listed."""

GraphUnit = Literal["tokens", "multiples", "requests"]

_MAX_VALUE = 1e6
_MAX_BAND = 100.0
_MAX_WIDEN = 10.0
_MAX_GRAPH_SIZE = 1 << 20


class Term(msgspec.Struct, frozen=True, kw_only=True):
    """One number of an engine.

    band: relative half-width of its 80 % interval. valid: on what it was measured. heldout_error: mean
    relative error of the step times that it predicts where they were left out of the fit; None where none
    was. inherited_from: the engine that was measured instead.
    """

    value: float
    source: str
    band: float = 0.0
    valid: str = ""
    heldout_error: float | None = None
    note: str = ""
    inherited_from: str = ""

    @property
    def half_width(self) -> float:
        """Half of the 80 % interval, in the unit of the term."""
        return self.value * self.band


class Engine(msgspec.Struct, frozen=True, kw_only=True):
    """The terms of an engine, by name, and what it can run.

    host_us_per_step, _request, _token: work of the host in every step, for each request in it and for each
    token that the server sends; hidden_us_per_step: what of it runs while the device works.
    draft_us_per_step, _request, _pass, _eagle3_pass: what drafting adds beside its kernels;
    draft_us_per_layer: the shortest pass of a draft model, per layer of it; lookup_us_per_request: a draft
    looked up in the text. idle_draft_share (+ _per_request): longer plain steps with a drafter loaded.
    sampling_*: the choice of a token; filter_*: top-p and top-k of the server's requests.
    elementwise_share: of the time that norms, rope and activation take as kernels of their own.
    eager_us_per_layer: shortest step beyond the captured graphs. length_spread_share: of the output length,
    by which requests in flight are longer than their mean.

    graph_sizes: captured sizes, rising; empty: nothing is padded. graph_unit: what they count: `tokens`,
    `multiples` (tokens, rounded up to multiples of the tokens of a request) or `requests`. fused_residual:
    residual adds are part of the norms. chain_only: no tree attention. drafters: names of those it runs.
    """

    host_us_per_step: Term
    host_us_per_request: Term
    host_us_per_token: Term
    hidden_us_per_step: Term
    draft_us_per_step: Term
    draft_us_per_request: Term
    draft_us_per_pass: Term
    draft_us_per_eagle3_pass: Term
    draft_us_per_layer: Term
    lookup_us_per_request: Term
    idle_draft_share: Term
    idle_draft_share_per_request: Term
    sampling_us: Term
    sampling_bytes_per_logit: Term
    filter_us: Term
    filter_bytes_per_logit: Term
    filter_top_k_share: Term
    filter_full_rows: Term
    filter_share_beyond: Term
    elementwise_share: Term
    eager_us_per_layer: Term
    length_spread_share: Term
    graph_sizes: tuple[int, ...]
    graph_unit: GraphUnit
    graph_source: str
    fused_residual: bool
    chain_only: bool
    drafters: tuple[str, ...]
    settings_source: str

    @property
    def terms(self) -> dict[str, Term]:
        """Every term by name."""
        return {name: getattr(self, name) for name in UNITS}

    def with_terms(self, terms: Mapping[str, Term]) -> Engine:
        """The engine with some terms replaced (fitted to somebody's own measurements)."""
        given: dict[str, Any] = dict(terms)
        return msgspec.structs.replace(self, **given)


def read_engine(table: Table, relative: tuple[str, Engine] | None) -> Engine:
    """An `engine` table. relative: name and terms of the engine that it inherits from.

    Raises SpecError naming file and key: a term that neither gives, a value without a source, an unknown key.
    """
    widen = table.plain_number("widen", 1.0, _MAX_WIDEN) if "widen" in table else 1.0
    given: dict[str, Any] = {}
    for name, unit in UNITS.items():
        if name in table or relative is None:
            given[name] = _term(table, name, unit)
        else:
            given[name] = _inherited(relative[1].terms[name], relative[0], widen)
    given |= _settings(table, None if relative is None else relative[1])
    table.finish()
    return Engine(**given)


def _term(table: Table, name: str, unit: str) -> Term:
    given = table.raw(name, f"a table with value ({unit or 'a ratio'}), band and source")
    if not isinstance(given, dict):
        table.fail(name, f"given {given!r}; allowed: a table with value ({unit or 'a ratio'}) and source")
    entry = Table(table.where, given, table.dotted(name))
    term = Term(
        value=entry.plain_number("value", 0.0, _MAX_VALUE),
        band=entry.plain_number("band", 0.0, _MAX_BAND) if "band" in entry else 0.0,
        source=entry.text("source", what="the document that gives the number"),
        valid=_optional_text(entry, "valid"),
        heldout_error=entry.plain_number("heldout_error", 0.0, 10.0) if "heldout_error" in entry else None,
        note=_optional_text(entry, "note"),
    )
    entry.finish()
    return term


def _optional_text(table: Table, key: str) -> str:
    return table.text(key, what="a remark") if key in table else ""


def _inherited(term: Term, lender: str, widen: float) -> Term:
    return msgspec.structs.replace(
        term, band=term.band * widen, heldout_error=None, inherited_from=term.inherited_from or lender
    )


def _settings(table: Table, relative: Engine | None) -> dict[str, object]:
    """What is no number: graphs, fusion, drafters; from the relative where not given."""

    def given(key: str) -> bool:
        return key in table or relative is None

    found: dict[str, object] = {}
    for key in ("fused_residual", "chain_only"):
        found[key] = table.flag(key) if given(key) else getattr(relative, key)
    for key in ("graph_source", "settings_source"):
        found[key] = table.text(key, what="a document") if given(key) else getattr(relative, key)
    for key, read in (("graph_sizes", _sizes), ("drafters", _words)):
        found[key] = read(table, key) if given(key) else getattr(relative, key)
    found["graph_unit"] = (
        cast("GraphUnit", table.choice("graph_unit", get_args(GraphUnit)))
        if given("graph_unit")
        else cast("Engine", relative).graph_unit
    )
    return found


def _sizes(table: Table, key: str) -> tuple[int, ...]:
    """`[1, 2, 4, [8, 256, 8]]`: single sizes, and [first, last, step]."""
    found: list[int] = []
    what = "a rising list of sizes and of [first, last, step]"
    given = table.raw(key, what)
    for part in given if isinstance(given, list) else [given]:
        given_range = part if isinstance(part, list) and len(part) == 3 else [part, part, 1]
        numbers = [int(n) for n in given_range if type(n) is int and 1 <= n <= _MAX_GRAPH_SIZE]
        if len(numbers) != 3:
            table.fail(key, f"given {part!r}; allowed: {what}")
        first, last, step = numbers
        found += range(first, last + 1, step)
    if found != sorted(set(found)):
        table.fail(key, f"given {given!r}; allowed: {what}")
    return tuple(found)


def _words(table: Table, key: str) -> tuple[str, ...]:
    given = table.raw(key, "a list of names")
    if not isinstance(given, list) or not all(isinstance(word, str) and word for word in given):
        table.fail(key, f"given {given!r}; allowed: a list of names")
    return tuple(given)
