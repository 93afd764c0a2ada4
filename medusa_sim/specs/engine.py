"""What a serving engine adds to the kernels of a step: terms, each with its source, range and band.

    ["vllm-0.11"]
    inherits = "vllm-0.10"            # what is not given here comes from there ...
    title = "vLLM 0.11 through its server"
    versions = ["0.11", "0.13"]
    engine.widen = 1.0                # ... with bands that many times as wide
    engine.measured = { forms = ["dense"], gpus = [1, 1], cards = ["hopper"], requests = 256 }
    engine.host_us_per_step = { value = 391, band = 0.6, source = "...", measured = { ... }, note = "..." }

`measured` is where a term was measured (`specs/ranges.py`), that of the engine for all its terms that say no
more. The equations are those of `step/compose.py` and `step/server.py`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeAlias, get_type_hints

import msgspec
from msgspec import Meta

from medusa_sim.errors import SpecError, shown
from medusa_sim.specs.gpu import Gpu
from medusa_sim.specs.ranges import Case, Deviation, Elsewhere, Measured, Side, widening
from medusa_sim.specs.strict import Error, Text, convert

_BESIDE_KERNELS = (
    "host_us", "hidden_us", "draft_us", "tree_us", "lookup_us", "plan_us", "pieces_us", "eager_us",
    "prompt_us", "expert_parallel_us", "experts_us", "layer_us", "load_test_",
)  # fmt: skip
"""How terms begin that are not the time of a kernel."""
DRAFTING = "draft_"
"""How the terms of passes that draft begin."""
GraphUnit = Literal["tokens", "multiples", "requests"]


class _GivenTerm(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One number of an engine as a file has it.

    band: relative half-width of its 80 % interval. measured: where (None: as all terms of its engine).
    valid: what of it `measured` has no field for. elsewhere: what stands for it outside that range.
    deviations: by how much it differs in some set-ups, where nothing stands for it.
    heldout_error: mean relative error of the step times that it predicts where they were left out of the
    fit; None where none was.
    """

    value: Annotated[float, Meta(ge=0.0, le=1e6)]
    source: Text
    band: Annotated[float, Meta(ge=0.0, le=100.0)] = 0.0
    measured: Measured | None = None
    valid: str = ""
    elsewhere: tuple[Elsewhere, ...] = ()
    deviations: tuple[Deviation, ...] = ()
    heldout_error: Error | None = None
    note: str = ""


class Term(_GivenTerm, frozen=True, kw_only=True):
    """One number of an engine. inherited_from: the engine that was measured instead.

    outside: the ranges that the set-up is outside of which it was taken for (`at`). rule: what stands for it
    there.
    """

    inherited_from: str = ""
    outside: tuple[Side, ...] = ()
    rule: str = ""

    @property
    def half_width(self) -> float:
        """Half of the 80 % interval, in the unit of the term."""
        return self.value * self.band

    def at(self, case: Case) -> Term:
        """The term in a set-up; outside its range what stands for it, or with a wider band."""
        outside = () if self.measured is None else self.measured.outside(case)
        for other in self.elsewhere:
            if other.holds(case, outside):
                return msgspec.structs.replace(
                    self, value=other.value, band=other.band, source=other.source, rule=other.rule,
                    outside=outside if other.outside else (), heldout_error=None,
                )  # fmt: skip
        value = self.value
        for deviation in self.deviations:
            if deviation.holds(case):
                value = max(value * deviation.times + deviation.plus, 0.0)
        if not outside and value == self.value:
            return self
        band = widening(outside) * self.band if outside else self.band
        return msgspec.structs.replace(self, value=value, band=band, outside=outside)


_Us: TypeAlias = Annotated[Term, "us"]
_Bytes: TypeAlias = Annotated[Term, "bytes"]
_Steps: TypeAlias = Annotated[Term, "steps"]
_Share: TypeAlias = Annotated[Term, ""]
_Names: TypeAlias = Annotated[tuple[Text, ...], Meta(description="a list of names")]


class StepLimit(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Tokens and requests of one step on cards of `memory_gib` and more whose name holds none of `but`."""

    tokens: Annotated[int, Meta(ge=1)]
    requests: Annotated[int, Meta(ge=1)]
    memory_gib: Annotated[float, Meta(ge=0.0)] = 0.0
    but: tuple[str, ...] = ()

    def holds_for(self, gpu: Gpu) -> bool:
        """Whether a card is one of them."""
        is_large = gpu.memory_bytes >= self.memory_gib * (1 << 30)
        return is_large and not any(name in gpu.name for name in self.but)


class Engine(msgspec.Struct, frozen=True, kw_only=True):
    """The terms of an engine, by name, and what it can run.

    host_us_per_step, _request, _token: work of the host in every step, for each request in it and for each
    token that the server sends; hidden_us_per_step: what of it runs while the device works, so that no step
    is shorter. draft_us_per_step, _request: what drafting adds beside its passes; tree_us_per_step: more of
    it where a level has several nodes; draft_us_per_pass: of the host in a drafter's pass, while its kernels
    run; draft_us_per_layer: the same per layer of a draft model; lookup_us_per_request: a draft looked up in
    the text. plan_us_per_pass, pieces_us_per_layer: before a pass and between its layers where no whole graph
    holds its attention (`Backend.full_graph`); prompt_us_per_launch: of the host for each kernel of a prompt
    where a server that drafts has no graph for it, or of a step that prompts ride on; prefill_us_per_launch:
    of a pass of prompts alone in a server that does not.
    sampling_*: the choice of a token; filter_*: top-p and top-k of the server's requests;
    profiled_bytes_per_logit: of every request that a step may hold, what choosing its token takes when the
    server measures at its start how much memory is left.
    layer_us: of every step for each layer beside its kernels, which no row of kernels holds; quantise_us: of
    a launch that quantises the activations of a linear layer in fp8.
    elementwise_share: of the time that norms, rope and activation take as kernels of their own;
    kernels_share: of the time of fitted kernels that an older version's own take; experts_share: the same of
    layers of experts, linear_share of linear layers, attention_share, exchange_share (between GPUs), and
    prompt_share of what prompts add to a step; experts_us_per_layer: beside each layer of experts, and
    expert_parallel_us_per_layer where they are spread over GPUs. prompt_us_per_layer: of the host, for each
    layer in a step that carries prompts. between_share: 80 % half-width of a step beside those that were
    served elsewhere, beyond what `specs/nearness.py` knows of the set-up; experts_between: what it knows of
    layers of experts besides, as a share of what they take. gain_share: 80 % half-width of a speedup by
    drafting passes beside the bands of its steps, lookup_gain_share by look-ups: what published speedups miss
    by.
    eager_us_per_layer: of the host beyond the captured graphs. steps_ahead: steps that are scheduled before
    the running one ends. server_us, _per_request: from the client to the queue and back, and for each request
    whose token is sent with the first one. load_test_us, _steps: by how much first tokens of published load
    tests came later in the mean than prompts and queue explain: kernels that are first used, tokens that are
    sent several at once, requests that are looked for every so many steps.

    graph_sizes: captured sizes, rising; empty: nothing is padded. graph_unit: what they count: `tokens`,
    `multiples` (tokens, rounded up to multiples of the tokens of a request) or `requests`. graph_holds_asked:
    whether a server captures the largest batch that it is set up for, whatever it is. prompts_apart:
    prompts have passes of their own, between two steps. fused_residual: residual adds are part of the norms.
    chain_only: no tree attention. draft_reads_back: a drafter reads the verified tokens in a pass of its own,
    and then its last token again. drafters: names of those it runs; synchronous_drafters: those whose steps
    hide nothing of the host. step_limits: what a step may hold by default, the first that fits the card;
    drafting_requests: how many of them where a drafter is loaded (0: as many).
    free_memory_share: of what weights leave free on a GPU, that is handed out beside them; 0: a share of the
    whole card (`step.memory`). measured: of the terms that say no more. several_gpus: what was measured on
    more than one; empty: nothing. measured_drafters: the only ones with which drafting was measured; empty:
    no such bound. nvidia_only: it runs on NVIDIA's cards alone. unpacks_fp8: where a card has no fp8
    arithmetic, it unpacks fp8 weights to 16 bits (Marlin).
    """

    host_us_per_step: _Us
    host_us_per_request: _Us
    host_us_per_token: _Us
    hidden_us_per_step: _Us
    draft_us_per_step: _Us
    draft_us_per_request: _Us
    tree_us_per_step: _Us
    draft_us_per_pass: _Us
    draft_us_per_layer: _Us
    plan_us_per_pass: _Us
    pieces_us_per_layer: _Us
    prompt_us_per_launch: _Us
    prefill_us_per_launch: _Us
    lookup_us_per_request: _Us
    sampling_us: _Us
    sampling_bytes_per_logit: _Bytes
    filter_us: _Us
    filter_bytes_per_logit: _Bytes
    filter_us_per_million: _Us
    filter_top_k_share: _Share
    filter_full_rows: _Share
    filter_share_beyond: _Share
    profiled_bytes_per_logit: _Bytes
    layer_us: _Us
    quantise_us: _Us
    elementwise_share: _Share
    kernels_share: _Share
    experts_share: _Share
    linear_share: _Share
    attention_share: _Share
    exchange_share: _Share
    prompt_share: _Share
    prompt_us_per_layer: _Us
    between_share: _Share
    gain_share: _Share
    lookup_gain_share: _Share
    experts_us_per_layer: _Us
    expert_parallel_us_per_layer: _Us
    eager_us_per_layer: _Us
    steps_ahead: _Steps
    server_us: _Us
    server_us_per_request: _Us
    load_test_us: _Us
    load_test_steps: _Steps
    graph_sizes: tuple[int, ...]
    graph_unit: GraphUnit
    graph_holds_asked: bool
    graph_source: Text
    prompts_apart: bool
    fused_residual: bool
    chain_only: bool
    draft_reads_back: bool = False
    drafters: _Names
    synchronous_drafters: _Names
    settings_source: Text
    drafting_requests: Annotated[int, Meta(ge=0)]
    step_limits: Annotated[tuple[StepLimit, ...], Meta(min_length=1)]
    limits_source: Text
    measured: Measured = Measured()
    experts_between: Annotated[float, Meta(ge=0.0, le=10.0)] = 0.0
    free_memory_share: Annotated[float, Meta(ge=0.0, le=1.0)] = 0.0
    memory_source: str = ""
    several_gpus: str = ""
    measured_drafters: tuple[Text, ...] = ()
    nvidia_only: bool = False
    unpacks_fp8: bool = False

    def step_limit(self, gpu: Gpu) -> StepLimit:
        """What one step may hold on a card unless it is told otherwise."""
        return next(limit for limit in self.step_limits if limit.holds_for(gpu))

    def drafting(self, drafter: str) -> Engine:
        """The engine in a step that this drafter drafts for."""
        if drafter not in self.synchronous_drafters or not self.hidden_us_per_step.value:
            return self
        waits = Term(value=0.0, source=f"{drafter} is scheduled synchronously: {self.settings_source}")
        return self.with_terms({"hidden_us_per_step": waits})

    @property
    def terms(self) -> dict[str, Term]:
        """Every term by name."""
        return {name: getattr(self, name) for name in UNITS}

    def is_measured(self, family: str, of: str = "") -> bool:
        """Whether any term was measured on this engine itself or another version of its family (`vllm`).

        of: how the names of the terms begin that are meant (`DRAFTING`); empty: all.
        """
        terms = (term for name, term in self.terms.items() if name.startswith(of))
        lenders = (term.inherited_from for term in terms if term.measured and not term.measured.assumed)
        return any(lender.partition("-")[0] in ("", family) for lender in lenders)

    @property
    def kernels_alone(self) -> Engine:
        """The engine with its kernels, merged and padded as it runs them, and nothing beside them.

        The times of its host, of drafting and of what no graph holds are 0, so that no step takes longer in
        it; a kernel is the same kernel in both.
        """
        nothing = {name: term for name, term in self.terms.items() if name.startswith(_BESIDE_KERNELS)}
        return self.with_terms(
            {name: msgspec.structs.replace(term, value=0.0) for name, term in nothing.items()}
        )

    def widen_bands(self, factor: float) -> Engine:
        """The engine with bands so many times as wide: what it was not measured on."""
        return self.with_terms(
            {
                name: msgspec.structs.replace(term, band=factor * term.band)
                for name, term in self.terms.items()
            }
        )

    def at(self, case: Case) -> Engine:
        """The engine in a set-up: every term by where it was measured."""
        return self.with_terms({name: term.at(case) for name, term in self.terms.items()})

    def with_between(self, half: float, of_experts: float = 0.0) -> Engine:
        """The engine with steps that lie so far beside those of others as well, layers of experts besides."""
        own = self.between_share
        share = msgspec.structs.replace(own, value=math.hypot(own.value, half))
        return msgspec.structs.replace(self, between_share=share, experts_between=of_experts)

    @property
    def measured_requests(self) -> int:
        """Most requests of a step with which any of its times was measured."""
        times = (
            term for name, term in self.terms.items() if UNITS[name] == "us" and not name.startswith("server")
        )
        return max((term.measured.requests or 0 for term in times if term.measured is not None), default=0)

    def with_terms(self, terms: Mapping[str, Term]) -> Engine:
        """The engine with some terms replaced (fitted to somebody's own measurements)."""
        given: dict[str, Any] = dict(terms)
        return msgspec.structs.replace(self, **given)


UNITS: dict[str, str] = {
    name: hint.__metadata__[0]
    for name, hint in get_type_hints(Engine, include_extras=True).items()
    if getattr(hint, "__origin__", None) is Term
}
"""Unit of every term, in the order in which they are listed."""
_MAX_GRAPH_SIZE = 1 << 20
_SIZES = "a rising list of sizes and of [first, last, step]"
_FORMS: dict[str, Any] = {
    "widen": Annotated[float, Meta(ge=1.0, le=10.0)],
    **{field.name: field.type for field in msgspec.structs.fields(Engine)},
    **dict.fromkeys(UNITS, _GivenTerm),
    "graph_sizes": Annotated[list[int | list[int]], Meta(description=_SIZES)],
}
"""What an `engine` table may say."""
_DEFAULTS = {field.name: field.default for field in msgspec.structs.fields(Engine) if not field.required}
_OWN = ("measured", "measured_drafters", "experts_between", "free_memory_share", "memory_source")
"""Settings that are no other version's."""
EngineToml: TypeAlias = dict[str, Any]
"""An `engine` table as it stands in a file."""


def engine_of(given: EngineToml, relative: tuple[str, Engine] | None, where: str, key: str) -> Engine:
    """The engine of an `engine` table. relative: name and terms of the engine that it inherits from.

    The bands of an engine none of whose terms was measured are at least those of that engine and its own, and
    so are those of drafting where none of its terms was.
    Raises SpecError naming file (`where`) and key: a term that neither gives, a value without
    a source, an unknown key.
    """
    if unknown := sorted(given.keys() - _FORMS.keys()):
        raise SpecError(
            f"{where}: {key}.{unknown[0]}: unknown key; allowed here: {', '.join(sorted(_FORMS))}"
        )
    said = {name: convert(value, _FORMS[name], where, key=f"{key}.{name}") for name, value in given.items()}
    widen = said.pop("widen", 1.0)
    measured = msgspec.structs.replace(said.get("measured", Measured()), assumed=True)
    values: dict[str, Any] = dict(_DEFAULTS)
    for name in Engine.__struct_fields__:
        if name in said:
            value = said[name]
            values[name] = _own(value, measured) if name in UNITS else value
        elif relative is not None and name not in _OWN:
            lent = getattr(relative[1], name)
            values[name] = _inherited(lent, relative[0], widen) if name in UNITS else lent
        elif name not in _DEFAULTS:
            words = "an engine that inherits from none says it itself"
            if name in UNITS:
                words = f"a table with value ({UNITS[name] or 'a ratio'}) and source is needed"
            raise SpecError(f"{where}: {key}.{name}: missing; {words}")
    if "graph_sizes" in said:
        values["graph_sizes"] = _sizes(said["graph_sizes"], f"{where}: {key}.graph_sizes")
    last = values["step_limits"][-1]
    if last.memory_gib or last.but:
        raise SpecError(
            f"{where}: {key}.step_limits: the last entry holds for every card: no memory_gib, no but"
        )
    engine = Engine(**values)
    if relative is None:
        return engine
    known = {of: engine.is_measured("", of) for of in ("", DRAFTING)}
    lent = relative[1].terms
    return engine.with_terms(
        {
            name: _guessed(engine.terms[name], lent[name])
            for name in UNITS
            if name in given and not known[DRAFTING if name.startswith(DRAFTING) else ""]
        }
    )


def _own(given: _GivenTerm, measured: Measured) -> Term:
    """A term as its file gives it; measured: what holds of all terms of its engine."""
    values = {**msgspec.structs.asdict(given), "measured": given.measured or measured}
    return Term(**values)


def _guessed(term: Term, lent: Term) -> Term:
    """A term of an engine that nobody measured: no better known than the one that it stands for.

    The half-widths add up, what the measured engine leaves open and what the guess does; outside the range of
    that engine the guess is as far outside.
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
