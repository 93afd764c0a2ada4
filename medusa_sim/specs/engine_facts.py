"""What engines are known to do with attention and with recurrent states when they speculate: tables of facts.

FACTS: which attention kernel an engine calls when a step has several queries a sequence. A plain decoding
kernel splits the keys of a sequence over the chip. With two queries or more an engine may call another one
that does not, and then a round grows with context as if the chip had a block for each head. Which one follows
from the engine, the card's architecture, the format of K and V, the width of a head and whether attention is
latent. The first entry that fits is the answer.

RULES: which drafts of a hybrid an engine takes, and what they cost. Facts of mid 2026 with the pull requests
and issues (#) that say them; versions after those may differ.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from msgspec.structs import replace

from medusa_sim.specs.model import Model


class Backend(NamedTuple):
    """A kernel for several queries.

    name: as answers print it. splits: whether the keys of a sequence are spread over several blocks.
    full_graph: whether a graph of the whole step holds it; else the step runs in pieces, and its host work
    before every pass is in the open (`Engine.plan_us_per_pass`). draft_graph: the same of the drafter's pass
    over the tokens that were just accepted. source: where that is said.
    """

    name: str
    splits: bool
    full_graph: bool
    source: str
    draft_graph: bool = True


FA2 = Backend(
    "FlashAttention-2 without split keys",
    splits=False,
    full_graph=True,
    source="vllm-project/flash-attention pull requests 176, 190, 193: num_splits is 1 where max_seqlen_q > 1",
)
FA2_SPLIT = Backend(
    "FlashAttention-2 with split keys",
    splits=True,
    full_graph=True,
    source="vllm-project/flash-attention pull request 193, as patched there",
)
FA3 = Backend(
    "FlashAttention-3",
    splits=True,
    full_graph=True,
    source="flash-attention, hopper/flash_api.cpp: its scheduler splits keys for any number of queries",
)
TRITON = Backend(
    "Triton attention without split keys",
    splits=False,
    full_graph=True,
    source="vLLM pull request 20401: q = 4, 13 and 40 cost 2 to 3 times q = 1",
)
FLASHINFER = Backend(
    "FlashInfer's prefill kernel",
    splits=True,
    full_graph=False,
    source="vLLM, v1/attention/backends/flashinfer.py: graphs hold one query a sequence without trtllm-gen; "
    "flashinfer issue 3420",
)
FLASHINFER_GRAPH = FLASHINFER._replace(
    full_graph=True, source="SGLang, flashinfer_backend.py: prefill wrappers in the graphs of verification"
)
TRTLLM_GEN = Backend(
    "trtllm-gen",
    splits=True,
    full_graph=True,
    source="flashinfer pull request 2265: q = 2 and 4 cost the same",
)
TRTLLM_CALL = TRTLLM_GEN._replace(
    name="trtllm-gen of October 2025, called from Python",
    source="vLLM's benchmark of trtllm-gen: each query reads the keys for itself, which flashinfer pull "
    "request 2265 mended",
)
TRTLLM_PREFILL_CALL = TRTLLM_CALL._replace(
    name="trtllm-gen's prefill kernel, called from Python",
    splits=False,
    source="vLLM's benchmark of trtllm-gen: a block for each head of a request, whole keys",
)
XQA = Backend("XQA", splits=True, full_graph=True, source="TensorRT-LLM, cpp/kernels/xqa: speculative masks")
FLASHMLA = Backend(
    "FlashMLA", splits=True, full_graph=True, source="FlashMLA issue 30: tiles of 64 rows of queries x heads"
)
FA3_MLA = Backend("FlashAttention-3 MLA", splits=True, full_graph=True, source="vLLM pull request 27363")
FA3_MLA_SGLANG = FA3_MLA._replace(
    draft_graph=False,
    source="SGLang 0.5.12, eagle_worker_v2.py: the drafter's extend pass is captured for Triton and for "
    "trtllm-gen MLA alone",
)
TRITON_MLA = Backend(
    "Triton MLA", splits=True, full_graph=True, source="vLLM, platforms/cuda.py: order of MLA backends"
)
TRTLLM_MLA = Backend(
    "trtllm-gen MLA", splits=True, full_graph=True, source="vLLM, platforms/cuda.py: order of MLA backends"
)
ALONE = Backend(
    "kernels that split keys",
    splits=True,
    full_graph=True,
    source="kernels alone: the limit, no engine's choice",
)


class _Fact(NamedTuple):
    """What an entry asks for: any of several engines and architectures; None asks nothing."""

    engines: tuple[str, ...]
    cards: tuple[str, ...]
    backend: Backend
    latent: bool = False
    bytes_of_kv: float | None = None
    widest: int | None = None


_BEFORE_HOPPER = ("ampere", "ada", "rtxblackwell")
FACTS: tuple[_Fact, ...] = (
    _Fact(("vllm",), ("hopper",), FLASHMLA, latent=True, bytes_of_kv=1.0),
    _Fact(("vllm",), ("hopper",), FA3_MLA, latent=True),
    _Fact(("sglang",), ("hopper",), FA3_MLA_SGLANG, latent=True),
    _Fact(("trtllm",), ("hopper",), FLASHMLA, latent=True),
    _Fact(("vllm", "sglang", "trtllm"), ("blackwell",), TRTLLM_MLA, latent=True),
    _Fact(("vllm", "sglang"), _BEFORE_HOPPER, TRITON_MLA, latent=True),
    _Fact(("vllm",), ("hopper",), FA3, widest=256),
    _Fact(("vllm",), _BEFORE_HOPPER, FLASHINFER, bytes_of_kv=1.0, widest=256),
    _Fact(("vllm",), _BEFORE_HOPPER, FA2, widest=256),
    _Fact(("sglang",), ("hopper",), FA3),
    _Fact(("sglang",), _BEFORE_HOPPER, FLASHINFER_GRAPH),
    _Fact(("trtllm",), ("hopper", *_BEFORE_HOPPER), XQA),
    _Fact(("vllm", "sglang", "trtllm"), ("blackwell",), TRTLLM_GEN),
    _Fact(("vllm",), ("hopper", *_BEFORE_HOPPER, "cdna"), TRITON),
)
"""Engines by the name of their kernel set (`Runtime.library`), cards by architecture."""


def backend_of(
    engine: str, architecture: str, *, latent: bool, bytes_of_kv: float, head_dim: float
) -> Backend:
    """The kernel for several queries. engine: empty for kernels alone, which are taken to split keys."""
    for fact in FACTS:
        if engine.lower() not in fact.engines or architecture not in fact.cards or fact.latent != latent:
            continue
        if fact.bytes_of_kv not in (None, bytes_of_kv) or (
            fact.widest is not None and head_dim > fact.widest
        ):
            continue
        return fact.backend
    return ALONE


_WORDS: Sequence[tuple[tuple[str, ...], Backend]] = (
    (("split-kv restored",), FA2_SPLIT),
    (("num_splits forced to 1", "num_splits 1", "single kv split"), FA2),
    (("triton", "tree"), TRITON),
    (("trtllm-gen prefill",), TRTLLM_PREFILL_CALL),
    (("trtllm-gen decode optimised", "trtllm-gen decode before"), TRTLLM_GEN),
    (("trtllm-gen decode",), TRTLLM_CALL),
    (("trtllm-gen",), TRTLLM_GEN),
    (("flashinfer",), FLASHINFER),
    (("fa2",), FA2),
    (("fa3", "flash_attn"), FA3),
)


def backend_of_row(kernel: str) -> Backend | None:
    """The kernel that a row of a table names in words of its library; None where they say none of these."""
    name = kernel.lower()
    return next((backend for words, backend in _WORDS if any(word in name for word in words)), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class StateRules:
    """One engine's. drafts: shapes and drafters; states: what a round keeps; prefixes: what of a prompt is
    found again; source: where each is said. gated_delta: dtype of gated delta states whatever a model's
    config says; empty: as that says.
    """

    engine: str
    drafts: str
    states: str
    prefixes: str
    source: str
    gated_delta: str = ""


RULES: dict[str, StateRules] = {
    "vllm": StateRules(
        engine="vLLM",
        drafts="chains of MTP, EAGLE-3, DFlash, suffix; no trees",
        states="a state for each draft and one more a request, the next step starts from the accepted one",
        prefixes="prefix cache by whole state blocks: --mamba-cache-mode align with MTP, all is experimental",
        source="vllm #42121, #54080, #39809, #50172, #40696",
    ),
    "sglang": StateRules(
        engine="SGLang",
        drafts="chains; trees only with page size 1 and without SpecV2",
        states="a state for each verified token beside the slots, sized by --max-running-requests; "
        "--enable-linear-replayssm-spec replays them instead",
        prefixes="radix cache with no_buffer (no overlapped schedule) or extra_buffer (two more slots)",
        source="sglang #14792, #14077, #37066, #35064, #36889",
    ),
    "trtllm": StateRules(
        engine="TensorRT-LLM",
        drafts="chains of MTP, suffix automaton, DFlash; no trees",
        states="KV and states under one manager with rollback; Mamba-2 replays from the state two steps "
        "back; gated delta states in 16 bits unless mamba_ssm_cache_dtype asks for more",
        prefixes="block reuse through MambaHybridCacheManagerV2",
        source="TensorRT-LLM #12896, #11533, #13453, #14203, #17327, resolve_ssm_cache_dtype",
        gated_delta="bf16",
    ),
}
"""By the name of an engine's kernel set."""
NGRAM_CORRUPTS = "vllm #39273, fix #52942 open"


def as_served(model: Model, library: str) -> Model:
    """The model with its states as an engine keeps them."""
    rules = RULES.get(library)
    if rules is None or not rules.gated_delta or not model.keeps_states:
        return model
    from medusa_sim.specs.recurrent import GatedDelta

    groups = (
        dataclasses.replace(group, mixer=replace(group.mixer, state_dtype=rules.gated_delta))
        if isinstance(group.mixer, GatedDelta)
        else group
        for group in model.groups
    )
    return dataclasses.replace(model, groups=tuple(groups))


def state_notes(library: str, model: Model, drafter: str) -> tuple[str, ...]:
    """What an answer says of an engine's states; nothing of models without them, or of unknown engines."""
    rules = RULES.get(library)
    if rules is None or not model.keeps_states:
        return ()
    from medusa_sim.specs.recurrent import GatedDelta  # no other model needs it

    lines = [f"{rules.engine} with states: {rules.drafts}; {rules.states}; {rules.prefixes} ({rules.source})"]
    if library == "vllm" and drafter == "ngram" and model.blocks(GatedDelta):
        lines.append(
            f"n-gram drafts corrupted outputs of gated delta layers in vLLM ({NGRAM_CORRUPTS}): "
            "a step without drafts reads another state; MTP and EAGLE draft in every step"
        )
    return tuple(lines)
