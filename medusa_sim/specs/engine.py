"""What a serving engine adds to the kernels of a step: its terms, its graphs, and what it can run.

A term is a number with its source, its band and where it was measured (`specs/term.py`);
`engine_table.py` reads an engine from a file. The equations (N1 to N19) are those of docs/method-engines.md,
computed by `step/host.py`, `step/kernels.py` and `step/server.py`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeAlias, get_type_hints

import msgspec
from msgspec import Meta

from medusa_sim.specs.gpu import Gpu
from medusa_sim.specs.ranges import Case, Measured
from medusa_sim.specs.strict import Text
from medusa_sim.specs.term import Term

_BESIDE_KERNELS = (
    "host_us", "hidden_us", "draft_us", "tree_us", "lookup_us", "plan_us", "pieces_us", "eager_us",
    "prompt_us", "expert_parallel_us", "experts_us", "layer_us", "load_test_",
)  # fmt: skip
"""How terms begin that are not the time of a kernel."""
DRAFTING = "draft_"
"""How the terms of passes that draft begin."""
VERSIONED = re.compile(r"(.+)-v?(\d+(?:\.\d+)*)(?:\.?(?:post|rc|dev|a|b)\d*)*")
"""`sglang-0.5.3.post3`: the engine, and the numbers of its version."""
GraphUnit = Literal["tokens", "multiples", "requests"]
_Us: TypeAlias = Annotated[Term, "us"]
_Bytes: TypeAlias = Annotated[Term, "bytes"]
_Steps: TypeAlias = Annotated[Term, "steps"]
_Share: TypeAlias = Annotated[Term, ""]
_Names: TypeAlias = Annotated[tuple[Text, ...], Meta(description="a list of names")]


def unversioned(name: str) -> str:
    """An engine's name without its version: `vllm` of `vllm-0.11`; what has none as it is."""
    found = VERSIONED.fullmatch(name)
    return name if found is None else found[1]


class StepLimit(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The most that one step may hold by default, on some cards."""

    tokens: Annotated[int, Meta(ge=1)]
    requests: Annotated[int, Meta(ge=1)]
    memory_gib: Annotated[float, Meta(ge=0.0)] = 0.0
    """It holds for cards with this memory and more ..."""
    but: tuple[str, ...] = ()
    """... whose name contains none of these."""

    def holds_for(self, gpu: Gpu) -> bool:
        """Whether a card is one of them."""
        is_large = gpu.memory_bytes >= self.memory_gib * (1 << 30)
        return is_large and not any(name in gpu.name for name in self.but)


class Engine(msgspec.Struct, frozen=True, kw_only=True):
    """The terms of an engine, and what it can run.

    The name of a term says what it is charged for: "us_per_step" once a step, "us_per_request" for each
    request in it, "us_per_layer" for each layer. A share multiplies.
    """

    # the host, in every step
    host_us_per_step: _Us
    """Work of the host (N1, a)."""
    host_us_per_request: _Us
    """The same for each request of the step (N1, h)."""
    host_us_per_token: _Us
    """The same for each token that the server sends."""
    hidden_us_per_step: _Us
    """What of the host's work runs while the device works, so that no step is shorter (N1, hidden)."""
    layer_us: _Us
    """For each layer of the model, beside its kernels: what no row of kernels holds (N1, l)."""
    eager_us_per_layer: _Us
    """The host's launches in a step beyond the captured graphs, ahead of the device (N3, u_e)."""

    # drafting
    draft_us_per_step: _Us
    """What drafting adds to a step beside the drafter's passes (N2, e)."""
    draft_us_per_request: _Us
    """The same for each request (N2, h_s)."""
    tree_us_per_step: _Us
    """More of it where a level of drafts has several nodes (N2, tree)."""
    draft_us_per_pass: _Us
    """The host in one pass of a drafter, while its kernels run (N2, u)."""
    draft_us_per_layer: _Us
    """The same for each layer of a draft model; the longer of the two counts (N3)."""
    lookup_us_per_request: _Us
    """Looking drafts up in the text (N2, n)."""

    # passes that no whole graph holds
    plan_us_per_pass: _Us
    """The host's plan before a pass whose attention is in no graph (N16; `Backend.full_graph`)."""
    pieces_us_per_layer: _Us
    """Its pieces between the layers, where such a pass has several queries a request (N16)."""
    prompt_us_per_launch: _Us
    """The host for each kernel of a step that prompts ride on, or of their pass in a drafting server (N8)."""
    prefill_us_per_launch: _Us
    """The same of a pass of prompts alone, in a server that does not draft."""
    prompt_us_per_layer: _Us
    """The host for each layer of a step that carries prompts."""

    # the choice of tokens
    sampling_us: _Us
    """Choosing a token, whatever the vocabulary (N4)."""
    sampling_bytes_per_logit: _Bytes
    """Bytes that choosing a token moves (N4)."""
    filter_us: _Us
    """Top-p and top-k of a server's requests, once a step (N6)."""
    filter_bytes_per_logit: _Bytes
    """Bytes that filtering moves (N6)."""
    filter_us_per_million: _Us
    """Time of filtering a million logits beside that (N6)."""
    filter_top_k_share: _Share
    """What top-k beside top-p adds to filtering, as a share of it (N6, 0.2)."""
    filter_full_rows: _Share
    """Rows of logits up to which each costs as much as the first (N6, 128)."""
    filter_share_beyond: _Share
    """What a further row costs, as a share (N6, 0.7)."""
    profiled_bytes_per_logit: _Bytes
    """Memory that choosing a token of every request of a full step takes, measured when the server starts."""

    # kernels of its own, beside those that were fitted
    quantise_us: _Us
    """A launch that quantises the activations of a linear layer in fp8."""
    elementwise_share: _Share
    """Of the time that norms, rope and activation take as kernels of their own, where they are merged."""
    kernels_share: _Share
    """Of the time of fitted kernels, what those of an older version take."""
    experts_share: _Share
    """The same of layers of experts (N18)."""
    linear_share: _Share
    """The same of linear layers (N18)."""
    attention_share: _Share
    """The same of attention (N18)."""
    exchange_share: _Share
    """The same of what GPUs send each other (N18)."""
    prompt_share: _Share
    """The same of what prompts add to a step (N18)."""
    experts_us_per_layer: _Us
    """Beside each layer of experts."""
    expert_parallel_us_per_layer: _Us
    """The same where experts are spread over GPUs."""

    # how far off steps and speedups are, as 80 % half-widths
    between_share: _Share
    """Of a step beside those served elsewhere, beyond what `specs/nearness.py` knows of the set-up."""
    gain_share: _Share
    """Of a speedup by drafting passes, beside the bands of its steps: what published speedups miss by."""
    lookup_gain_share: _Share
    """The same of a speedup by look-ups."""

    # the server and its clients
    steps_ahead: _Steps
    """Steps that are scheduled before the running one ends."""
    server_us: _Us
    """From the client to the queue and back (N17)."""
    server_us_per_request: _Us
    """The same for each request whose token is sent with the first one."""
    load_test_us: _Us
    """How much later first tokens of published load tests came than prompts and queue explain: kernels that
    are first used (N19)."""
    load_test_steps: _Steps
    """The same in steps: tokens that are sent several at once, requests that are looked for seldom (N19)."""

    # captured graphs
    graph_sizes: tuple[int, ...]
    """Sizes of the captured graphs, rising; empty: nothing is padded."""
    plain_graph_sizes: tuple[int, ...] = ()
    """Sizes of a server without a drafter, where it captures others; empty: the same."""
    graph_unit: GraphUnit
    """What a size counts: `requests`, `tokens`, or tokens rounded up to `multiples` of a request's."""
    graph_holds_asked: bool
    """Whether a server captures the largest batch that it is set up for, whatever it is."""
    graph_source: Text

    # settings
    prompts_apart: bool
    """Whether prompts have passes of their own, between two steps."""
    fused_residual: bool
    """Whether residual adds are part of the norms."""
    chain_only: bool
    """Whether it has no tree attention."""
    draft_reads_back: bool = False
    """Whether a drafter reads the verified tokens in a pass of its own, and then its last token again."""
    drafters: _Names
    """Drafters that it runs."""
    synchronous_drafters: _Names
    """Those of them whose steps hide nothing of the host."""
    nvidia_only: bool = False
    fuses_shared: tuple[Text, ...] = ()
    """Generations of cards on which its kernel of routed experts runs a shared one of their width and format
    as one more (`at` keeps that of the set-up)."""
    one_shot_rows: Annotated[int, Meta(ge=0)] = 0
    """Rows of a step up to which GPUs add up in one shot, however wide they are; 0: as its library does."""
    gathers_tokens: bool = False
    """Whether with attention split over requests every GPU gets the tokens of all; else tokens go to the GPUs
    of their experts (Z4)."""
    sends_tokens: tuple[Text, ...] = ()
    """Cards on which an engine that gathers tokens sends them all the same where a token has fewer experts
    than there are GPUs (`at` keeps that of the set-up)."""
    unpacks_fp8: bool = False
    """Whether it unpacks fp8 weights to 16 bits on a card without fp8 arithmetic (Marlin)."""
    settings_source: Text

    # limits
    step_limits: Annotated[tuple[StepLimit, ...], Meta(min_length=1)]
    """What a step may hold by default: the first that holds for the card."""
    limits_each: bool = False
    """Whether they are those of each GPU where attention is split over requests; else the server's."""
    prompt_wait_steps: Annotated[int, Meta(ge=0)] = 0
    """Steps that a prompt waits for others to ride with it while requests decode, at most (N17)."""
    drafting_requests: Annotated[int, Meta(ge=0)]
    """Requests of a step at most where a drafter is loaded; 0: as many as without."""
    limits_source: Text
    free_memory_share: Annotated[float, Meta(ge=0.0, le=1.0)] = 0.0
    """Share that it fills of what weights leave free; 0: a share of the whole card (`step.memory`)."""
    memory_source: str = ""

    # where it was measured
    measured: Measured = Measured()
    """Holds for all terms that say nothing else."""
    several_gpus: str = ""
    """What was measured on several GPUs; empty: nothing."""
    measured_drafters: tuple[Text, ...] = ()
    """The only drafters with which drafting was measured; empty: no such bound."""

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

    def is_measured(self, engine: str, of: str = "") -> bool:
        """Whether any term was measured on this version or another of the same engine (`vllm`).

        of: how the names of the terms begin that are meant (`DRAFTING`); empty: all.
        """
        terms = (term for name, term in self.terms.items() if name.startswith(of))
        lenders = (term.inherited_from for term in terms if term.measured and not term.measured.assumed)
        return any(unversioned(lender) in ("", engine) for lender in lenders)

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
        fused = tuple(card for card in self.fuses_shared if card == case.card)
        sends = tuple(gpu for gpu in self.sends_tokens if gpu == case.gpu)
        own = msgspec.structs.replace(self, fuses_shared=fused, sends_tokens=sends)
        return own.with_terms({name: term.at(case) for name, term in self.terms.items()})

    def limited(self, schedulers: int) -> int:
        """How many have the limits of a step each: GPUs that schedule for themselves, or one server."""
        return schedulers if self.limits_each else 1

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
