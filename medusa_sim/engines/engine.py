"""A serving engine: its terms on top of the kernels of a step, its graphs, its settings and limits.

A term is a number with its source, its band and where it was measured (`engines/term.py`). `engine_table.py`
reads an engine from a file. `step/host.py`, `step/kernels.py` and `serving/server.py` compute the equations
(N1 to N19) of docs/method-engines.md.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeAlias, get_type_hints

import msgspec
from msgspec import Meta

from medusa_sim.engines.case import Case, Form
from medusa_sim.engines.ranges import MeasuredRange
from medusa_sim.engines.term import Term
from medusa_sim.reading.strict import Text

_BESIDE_KERNELS = (
    "host_us", "hidden_us", "draft_us", "tree_us", "lookup_us", "plan_us", "pieces_us", "eager_us",
    "prompt_us", "expert_parallel_us", "experts_us", "layer_us", "load_test_",
)  # fmt: skip
"""How the names of terms begin that are not the time of a kernel."""
_OF_DECODING = (
    "linear_share", "attention_share", "experts_share", "exchange_share",
    "experts_us_per_layer", "expert_parallel_us_per_layer",
)  # fmt: skip
"""Terms of kernels that steps which decode have told."""
DRAFTING = "draft_"
"""How the names of terms begin that belong to drafting."""
VERSIONED = re.compile(r"(.+)-v?(\d+(?:\.\d+)*)(?:\.?(?:post|rc|dev|a|b)\d*)*")
"""`sglang-0.5.3.post3`: the engine, and the numbers of its version."""
GraphUnit = Literal["tokens", "multiples", "requests"]
_MANY_GPUS = 4
"""GPUs that share a model from which SGLang captures larger batches."""
_Us: TypeAlias = Annotated[Term, "us"]
_Bytes: TypeAlias = Annotated[Term, "bytes"]
_Steps: TypeAlias = Annotated[Term, "steps"]
_Share: TypeAlias = Annotated[Term, ""]
_Names: TypeAlias = Annotated[tuple[Text, ...], Meta(description="a list of names")]


def unversioned(name: str) -> str:
    """An engine's name without its version: `vllm` for `vllm-0.11`; a name without a version is unchanged."""
    found = VERSIONED.fullmatch(name)
    return name if found is None else found[1]


class Fusion(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Kernels of one family's models that an engine launches otherwise than one after the other."""

    families: tuple[Text, ...]
    needs: Text
    """A kernel that the models it holds for have."""
    generations: tuple[Text, ...] = ()
    """Of GPUs; empty: all."""
    merged: tuple[Text, ...] = ()
    """Linear layers of one input that run as one product."""
    beside: tuple[Text, ...] = ()
    """Kernels that take no time of their own in a captured graph: on a second stream beside a longer one, or
    part of another."""
    source: Text


class StepLimit(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The default limits of one step on some GPUs."""

    tokens: Annotated[int, Meta(ge=1)]
    requests: Annotated[int, Meta(ge=1)]
    memory_gib: Annotated[float, Meta(ge=0.0)] = 0.0
    """It applies to GPUs with at least this much memory ..."""
    but: tuple[str, ...] = ()
    """... whose name contains none of these."""
    captured: Annotated[int, Meta(ge=0)] = 0
    """Largest captured size; 0: all of the engine's list."""
    captured_by_four: Annotated[int, Meta(ge=0)] = 0
    """The same where four GPUs and more share a model; 0: as `captured`."""

    def holds_for(self, gpu: str, memory_bytes: float) -> bool:
        """Whether it applies to a GPU of that name and memory."""
        is_large = memory_bytes >= self.memory_gib * (1 << 30)
        return is_large and not any(name in gpu for name in self.but)

    def captures(self, size: int, gpus: int) -> bool:
        """Whether graphs of so large a size are captured where so many GPUs share a model."""
        most = (gpus >= _MANY_GPUS and self.captured_by_four) or self.captured
        return not most or size <= most


class Engine(msgspec.Struct, frozen=True, kw_only=True):
    """The terms of an engine, and what it can run.

    The name of a term says how often it is charged: "us_per_step" once a step, "us_per_request" for each
    request in it, "us_per_layer" for each layer. A "share" is a factor.
    """

    # the host, in every step
    host_us_per_step: _Us
    """Host work of a step (N1, a)."""
    host_us_per_request: _Us
    """The same for each request of the step (N1, h)."""
    host_us_per_token: _Us
    """The same for each token that the server sends."""
    hidden_us_per_step: _Us
    """Host work that runs while the device works; a step is never shorter than it (N1, hidden)."""
    layer_us: _Us
    """Time of each layer that no measured kernel accounts for (N1, l)."""
    eager_us_per_layer: _Us
    """Host launches of each layer in a step beyond the captured graphs, ahead of the device (N3, u_e)."""

    # drafting
    draft_us_per_step: _Us
    """Time that drafting adds to a step besides the drafter's passes (N2, e)."""
    draft_us_per_request: _Us
    """The same for each request (N2, h_s)."""
    tree_us_per_step: _Us
    """Further time where a level of drafts has several nodes (N2, tree)."""
    draft_us_per_pass: _Us
    """Host time of one pass of a drafter, while its kernels run (N2, u)."""
    draft_us_per_layer: _Us
    """The same for each layer of a draft model; the longer of the two counts (N3)."""
    lookup_us_per_request: _Us
    """Looking drafts up in the text (N2, n)."""

    # passes that no whole graph holds
    plan_us_per_pass: _Us
    """Host time to plan a pass whose attention no graph holds (N16; `Backend.full_graph`)."""
    pieces_us_per_layer: _Us
    """Host time between the layers of such a pass, where it has several queries a request (N16)."""
    prompt_us_per_launch: _Us
    """Host time for each kernel of a step with prompts, or of their pass in a drafting server (N8)."""
    prefill_us_per_launch: _Us
    """The same for a pass of prompts alone, in a server that does not draft."""
    prompt_us_per_layer: _Us
    """Host time for each layer of a step that carries prompts."""

    # the choice of tokens
    sampling_us: _Us
    """Time to choose a token, whatever the vocabulary (N4)."""
    sampling_bytes_per_logit: _Bytes
    """Bytes that choosing a token moves (N4)."""
    filter_us: _Us
    """Time of top-p and top-k for a server's requests, once a step (N6)."""
    filter_bytes_per_logit: _Bytes
    """Bytes that filtering moves (N6)."""
    filter_us_per_million: _Us
    """Further time to filter a million logits (N6)."""
    filter_top_k_share: _Share
    """Cost of top-k on top of top-p, as a share of filtering by top-p (N6, 0.2)."""
    filter_full_rows: _Share
    """Rows of logits up to which each costs as much as the first (N6, 128)."""
    filter_share_beyond: _Share
    """Cost of each further row, as a share of the first's (N6, 0.7)."""
    profiled_bytes_per_logit: _Bytes
    """Memory to choose a token for every request of a full step, which the server reserves when it starts."""

    # kernels of its own, compared with those that were fitted
    quantise_us: _Us
    """Time to launch the kernel that quantises a linear layer's activations to fp8."""
    elementwise_share: _Share
    """Time of merged norms, rope and activations, as a share of the time of separate kernels."""
    kernels_share: _Share
    """Time of this version's kernels over that of the fitted kernels."""
    experts_share: _Share
    """The same for layers of experts (N18)."""
    linear_share: _Share
    """The same for linear layers of tokens that are decoded or verified (N18); so are the next two."""
    attention_share: _Share
    """For attention (N18)."""
    exchange_share: _Share
    """For what GPUs send each other (N18)."""
    prompt_share: _Share
    """The same for what prompts add to a step, instead of those of their parts (N18)."""
    experts_us_per_layer: _Us
    """Time that each layer of experts takes beyond its kernels."""
    expert_parallel_us_per_layer: _Us
    """The same where experts are spread over GPUs."""

    # how far off steps and speedups are, as 80 % half-widths
    between_share: _Share
    """Of a step in this engine, beyond the half-width that `engines/nearness.py` gives."""
    gain_share: _Share
    """Of a speedup by drafting passes, beyond the bands of its steps, from published speedups."""
    lookup_gain_share: _Share
    """The same for a speedup by look-ups."""
    far_gain_share: _Share
    """The least of both where no round of such models or on such GPUs was measured."""

    # the server and its clients
    steps_ahead: _Steps
    """Steps that are scheduled before the running one ends."""
    server_us: _Us
    """Time from the client to the queue and back (N17)."""
    server_us_per_request: _Us
    """Further time for each request whose token is sent with the first one."""
    load_test_us: _Us
    """Delay of first tokens in published load tests that prompts and queue do not explain: first use of
    kernels (N19)."""
    load_test_steps: _Steps
    """The same in steps: tokens are sent several at once, new requests are looked for seldom (N19)."""

    # captured graphs
    graph_sizes: tuple[int, ...]
    """Sizes of the captured graphs, rising; empty: nothing is padded."""
    plain_graph_sizes: tuple[int, ...] = ()
    """Sizes captured by a server without a drafter; empty: the same."""
    graph_unit: GraphUnit
    """Unit of a size: `requests`, `tokens`, or tokens in `multiples` of one request's tokens."""
    graph_holds_asked: bool
    """Whether a server also captures the largest batch it is configured for."""
    graph_source: Text

    # settings
    prompts_apart: bool
    """Whether prompts run in separate passes between two steps."""
    fused_residual: bool
    """Whether norms do the residual additions."""
    chain_only: bool
    """Whether it verifies chains only, for lack of tree attention."""
    draft_reads_back: bool = False
    """Whether a drafter reads the verified tokens in a pass of its own, and then its last token again."""
    drafters: _Names
    """Drafters that it supports."""
    synchronous_drafters: _Names
    """Drafters whose steps hide no host work."""
    fills_lookups: bool = False
    """Whether a request whose look-up found fewer drafts is filled up to as many as every other has."""
    nvidia_only: bool = False
    fuses_shared: tuple[Text, ...] = ()
    """GPU generations on which the kernel of routed experts also runs a shared expert of their width and
    format (`at` keeps only the set-up's own)."""
    fusions: tuple[Fusion, ...] = ()
    """What it merges or runs side by side (`at` keeps those of the set-up's GPUs)."""
    one_shot_rows: Annotated[int, Meta(ge=0)] = 0
    """Rows of a step up to which GPUs add up in one shot, whatever their width; 0: the library decides."""
    gathers_tokens: bool = False
    """Whether every GPU gets all tokens where attention is split over requests; else tokens go to the GPUs of
    their experts (Z4)."""
    sends_tokens: tuple[Text, ...] = ()
    """GPUs on which such an engine sends tokens to their experts after all if a token has fewer experts than
    there are GPUs (`at` keeps only the set-up's own)."""
    unpacks_fp8: bool = False
    """Whether it unpacks fp8 weights to 16 bits on a GPU without fp8 arithmetic (Marlin)."""
    settings_source: Text

    # limits
    step_limits: Annotated[tuple[StepLimit, ...], Meta(min_length=1)]
    """Default limits of a step: the first entry that applies to the GPU."""
    limits_each: bool = False
    """Whether each GPU has these limits where attention is split over requests; else the server has."""
    whole_prompts: bool = False
    """Whether a step reads whole prompts by default: one that is longer than a step is refused."""
    prompt_wait_steps: Annotated[int, Meta(ge=0)] = 0
    """Most steps that a prompt waits for other prompts to join its step while requests decode (N17)."""
    drafting_requests: Annotated[int, Meta(ge=0)]
    """Most requests of a step with a drafter loaded; 0: as many as without."""
    limits_source: Text
    free_memory_share: Annotated[float, Meta(ge=0.0, le=1.0)] = 0.0
    """Share of the memory left by the weights that it fills; 0: a share of the whole GPU (`step.memory`)."""
    memory_source: str = ""

    # where it was measured
    measured: MeasuredRange = MeasuredRange()
    """Range of all terms that give none themselves."""
    several_gpus: str = ""
    """Measurements on several GPUs, in words; empty: none."""
    measured_drafters: tuple[Text, ...] = ()
    """The only drafters with which drafting was measured; empty: all."""

    def step_limit(self, gpu: str, memory_bytes: float) -> StepLimit:
        """Default limits of one step on a GPU of that name and memory."""
        return next(limit for limit in self.step_limits if limit.holds_for(gpu, memory_bytes))

    def drafting(self, drafter: str) -> Engine:
        """The engine in a step with this drafter: synchronous drafters hide no host work."""
        if drafter not in self.synchronous_drafters or not self.hidden_us_per_step.value:
            return self
        waits = Term(value=0.0, source=f"{drafter} is scheduled synchronously: {self.settings_source}")
        return self.with_terms({"hidden_us_per_step": waits})

    @property
    def terms(self) -> dict[str, Term]:
        """Every term by name."""
        return {name: getattr(self, name) for name in UNITS}

    def is_measured(self, engine: str, start: str = "") -> bool:
        """Whether any term was measured on some version of an engine (`vllm`).

        start: of the names of the terms to look at (`DRAFTING`); empty: all.
        """
        terms = (term for name, term in self.terms.items() if name.startswith(start))
        lenders = (term.inherited_from for term in terms if term.measured and not term.measured.assumed)
        return any(unversioned(lender) in ("", engine) for lender in lenders)

    @property
    def kernels_alone(self) -> Engine:
        """The engine with only its kernels, merged and padded as it runs them.

        The times of the host, of drafting and of passes outside graphs are 0. Kernels are the same, so no
        step takes longer than in the engine.
        """
        beside = (name for name in UNITS if name.startswith(_BESIDE_KERNELS))
        return self._with_values(dict.fromkeys(beside, 0.0))

    @property
    def reading(self) -> Engine:
        """The engine as it reads prompts: what its own kernels take of the fitted ones is `prompt_share`.

        The other shares, and times of layers beside, were told by steps that decode: products of few rows,
        bound by memory. Those of a prompt have many, bound by arithmetic.
        """
        return self._with_values({name: float(name.endswith("_share")) for name in _OF_DECODING})

    def widen_bands(self, factor: float) -> Engine:
        """The engine with every band `factor` times as wide, for what it was not measured on."""
        return self.with_terms(
            {
                name: msgspec.structs.replace(term, band=factor * term.band)
                for name, term in self.terms.items()
            }
        )

    def at(self, case: Case) -> Engine:
        """The engine in a set-up, with every term as it is there (`Term.at`)."""
        fused = tuple(each for each in self.fuses_shared if each == case.generation)
        sends = tuple(gpu for gpu in self.sends_tokens if gpu == case.gpu)
        fusions = tuple(
            each for each in self.fusions if case.generation in (each.generations or (case.generation,))
        )
        own = msgspec.structs.replace(
            self, fuses_shared=fused, sends_tokens=sends, fusions=fusions, **self._captured_at(case)
        )
        return own.with_terms({name: term.at(case) for name, term in self.terms.items()})

    def _captured_at(self, case: Case) -> dict[str, tuple[int, ...]]:
        """The sizes of graphs that are captured on the GPUs of a case."""
        if not case.gpu:
            return {}
        limit = self.step_limit(case.gpu, case.memory_bytes)
        return {
            name: tuple(size for size in getattr(self, name) if limit.captures(size, case.gpus))
            for name in ("graph_sizes", "plain_graph_sizes")
        }

    def limited(self, schedulers: int) -> int:
        """How many times the limits of a step apply: once for each scheduler, or once for the server."""
        return schedulers if self.limits_each else 1

    @property
    def measured_requests(self) -> int:
        """Most requests of a step in which any of its times was measured with models of the form asked for.

        Of a form that was not measured at all, the fewest that any form was measured with.
        """
        times = [
            term for name, term in self.terms.items() if UNITS[name] == "us" and not name.startswith("server")
        ]
        known = [(term.measured.requests or 0, term) for term in times if term.measured is not None]
        if of_form := [requests for requests, term in known if requests and "forms" not in term.outside]:
            return max(of_form)
        most: dict[Form, int] = {}
        for requests, term in known:
            if requests and term.measured is not None:
                most |= {form: max(requests, most.get(form, 0)) for form in term.measured.forms}
        return min(most.values(), default=0)

    def _with_values(self, values: Mapping[str, float]) -> Engine:
        """The engine with other values of some terms."""
        return self.with_terms(
            {
                name: msgspec.structs.replace(getattr(self, name), value=value)
                for name, value in values.items()
            }
        )

    def with_terms(self, terms: Mapping[str, Term]) -> Engine:
        """The engine with some terms replaced, such as by a fit to a user's own measurements."""
        given: dict[str, Any] = dict(terms)
        return msgspec.structs.replace(self, **given)


UNITS: dict[str, str] = {
    name: hint.__metadata__[0]
    for name, hint in get_type_hints(Engine, include_extras=True).items()
    if getattr(hint, "__origin__", None) is Term
}
"""Unit of every term, in the order of the class."""
