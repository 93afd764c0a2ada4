"""A decoder-only language model as a list of sizes: what decides how much a step computes and moves.

Where models come from: `models.py` (by name), `hf_config.py` (a Hugging Face `config.json`).
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Annotated, Literal

from msgspec import Meta

from medusa_sim.errors import SpecError
from medusa_sim.units import BYTES_PER_ELEMENT

Norm = Literal["rms", "layer"]
Positions = Literal["rope", "learned"]

Layers = Annotated[int, Meta(ge=1, le=1_000)]
Width = Annotated[int, Meta(ge=1, le=1_000_000)]
Vocab = Annotated[int, Meta(ge=1, le=10_000_000)]
Length = Annotated[int, Meta(ge=1, le=100_000_000)]


@dataclass(frozen=True, slots=True)
class Architecture:
    """What every model of a family shares."""

    gated: bool
    norm: Norm
    positions: Positions
    qkv_bias: bool
    output_bias: bool
    mlp_bias: bool
    qk_norm: bool
    norms_per_layer: int = 2
    samples_top_k: bool = False


ARCHITECTURES: dict[str, Architecture] = {
    "llama": Architecture(True, "rms", "rope", False, False, False, False),
    "mistral": Architecture(True, "rms", "rope", False, False, False, False),
    "qwen2": Architecture(True, "rms", "rope", True, False, False, False, samples_top_k=True),
    "qwen3": Architecture(True, "rms", "rope", False, False, False, True, samples_top_k=True),
    "gemma3_text": Architecture(
        True, "rms", "rope", False, False, False, True, norms_per_layer=4, samples_top_k=True
    ),
    "opt": Architecture(False, "layer", "learned", True, True, True, False),
}

_LEARNED_OFFSET = 2  # OPT's position table keeps two rows for padding (arXiv 2205.01068, released code)

# dtype of the arithmetic -> dtypes in which its weights may be stored
_WEIGHT_DTYPES: dict[str, tuple[str, ...]] = {
    "fp16": ("fp16", "int4"),
    "bf16": ("bf16", "int4"),
    "fp32": ("fp32",),
    "fp8": ("fp8",),
    "int8": ("int8",),
}
ACTIVATION_DTYPES = ("fp16", "bf16", "fp32")


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """Sizes and dtypes of a dense decoder.

    hidden h, intermediate i, heads, kv_heads (fewer under grouped-query attention), head_dim, vocab.
    gated: the MLP has gate, up and down (else up and down). norms_per_layer: those over the whole width.
    samples_top_k: its generation_config names a top-k, which servers follow. positions: `rope`, or a learned
    table. dtype: of the linear layers' arithmetic; weight_dtype: of their stored weights; kv_dtype: of the
    KV cache; activation_dtype: of everything between them (norms, attention, residuals).
    mtp_layers: multi-token-prediction modules that it was trained with.
    Embeddings, LM head and norms of a quantised model stay in activation_dtype, as checkpoints store them.
    """

    name: str
    architecture: str
    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    max_seq_len: int
    gated: bool = True
    norm: Norm = "rms"
    positions: Positions = "rope"
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    norms_per_layer: int = 2
    samples_top_k: bool = False
    tied_embeddings: bool = False
    mtp_layers: int = 0
    dtype: str = "fp16"
    weight_dtype: str = "fp16"
    kv_dtype: str = "fp16"
    activation_dtype: str = "fp16"
    source: str
    notes: tuple[str, ...] = ()

    @property
    def rope(self) -> bool:
        """Whether queries and keys are rotated (else positions are learned and added once)."""
        return self.positions == "rope"

    @property
    def linear_parameter_count(self) -> int:
        """Weights of the linear layers of one decoder layer: Q, K, V, O and the MLP, without biases."""
        query, kv = self.heads * self.head_dim, self.kv_heads * self.head_dim
        mlp = (3 if self.gated else 2) * self.hidden * self.intermediate
        return self.hidden * (2 * query + 2 * kv) + mlp

    @property
    def layer_parameter_count(self) -> int:
        """All parameters of one decoder layer: linear layers, biases, norms, norms of Q and K."""
        query, kv = self.heads * self.head_dim, self.kv_heads * self.head_dim
        biases = (
            self.qkv_bias * (query + 2 * kv)
            + self.output_bias * self.hidden
            + self.mlp_bias * ((2 if self.gated else 1) * self.intermediate + self.hidden)
        )
        norms = self.norms_per_layer * self._norm_size + self.qk_norm * 2 * self.head_dim
        return self.linear_parameter_count + biases + norms

    @property
    def embedding_parameter_count(self) -> int:
        """Token embedding, LM head (none of its own where tied) and the learned position table."""
        tables = 1 if self.tied_embeddings else 2
        learned = 0 if self.rope else self.max_seq_len + _LEARNED_OFFSET
        return (tables * self.vocab + learned) * self.hidden

    @property
    def parameter_count(self) -> int:
        """Parameters of the whole model, as a checkpoint holds them."""
        return self.layers * self.layer_parameter_count + self.embedding_parameter_count + self._norm_size

    @property
    def weight_bytes(self) -> float:
        """Bytes of all weights. The scales of quantised weights (int4: about 4 % more) are left out."""
        linear = self.layers * self.linear_parameter_count
        rest = self.parameter_count - linear
        return BYTES_PER_ELEMENT[self.weight_dtype] * linear + BYTES_PER_ELEMENT[self.activation_dtype] * rest

    @property
    def kv_bytes_per_token(self) -> float:
        """Bytes of K and V of one token in all layers: 2 layers kv_heads head_dim."""
        return 2.0 * self.layers * self.kv_heads * self.head_dim * BYTES_PER_ELEMENT[self.kv_dtype]

    @property
    def _norm_size(self) -> int:
        return self.hidden if self.norm == "rms" else 2 * self.hidden

    def resized(self, *, layers: int | None = None, vocab: int | None = None) -> Model:
        """The same model with another number of layers or another vocabulary (a draft layer of EAGLE)."""
        return dataclasses.replace(self, layers=layers or self.layers, vocab=vocab or self.vocab)


def with_dtypes(
    model: Model,
    dtype: str | None = None,
    weight_dtype: str | None = None,
    kv_dtype: str | None = None,
) -> Model:
    """The model in other dtypes; None keeps what it has, except that weights follow a new `dtype`.

    Allowed: dtype fp16 or bf16 with weights of the same dtype or int4 (weight-only, as AWQ and GPTQ
    store them); fp32, fp8 or int8 arithmetic with weights of that dtype. The KV cache takes the activation
    dtype or fp8. Raises SpecError for any other combination.
    """
    chosen = dtype or model.dtype
    if chosen not in _WEIGHT_DTYPES:
        raise SpecError(f"{model.name}: dtype {chosen!r}; allowed: {', '.join(_WEIGHT_DTYPES)}")
    weights = weight_dtype or (chosen if dtype is not None else model.weight_dtype)
    if weights not in _WEIGHT_DTYPES[chosen]:
        allowed = "; ".join(f"{key} with {' or '.join(of)}" for key, of in _WEIGHT_DTYPES.items())
        raise SpecError(f"{model.name}: dtype {chosen} with weight dtype {weights!r}; allowed: {allowed}")
    activations = chosen if chosen in ACTIVATION_DTYPES else model.activation_dtype
    cache = kv_dtype or ("fp8" if model.kv_dtype == "fp8" else activations)
    if cache not in (activations, "fp8"):
        raise SpecError(f"{model.name}: KV cache dtype {cache!r}; allowed: {activations} or fp8")
    return dataclasses.replace(
        model, dtype=chosen, weight_dtype=weights, kv_dtype=cache, activation_dtype=activations
    )
