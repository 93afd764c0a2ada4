"""A decoder-only language model as a list of sizes: what decides how much a step computes and moves.

Where models come from: `models.py` (by name), `hf_config.py` (a Hugging Face `config.json`).
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Annotated, Literal

import msgspec
import numpy as np
from msgspec import Meta

from medusa_sim.arrays import FloatArray
from medusa_sim.errors import SpecError
from medusa_sim.specs.experts import MoE
from medusa_sim.specs.formats import HALVES, Format
from medusa_sim.specs.latent import Latent
from medusa_sim.specs.parallel import ONE, Parallel
from medusa_sim.specs.windows import Windows
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
    "mixtral": Architecture(True, "rms", "rope", False, False, False, False),
    "qwen2_moe": Architecture(True, "rms", "rope", True, False, False, False, samples_top_k=True),
    "qwen3_moe": Architecture(True, "rms", "rope", False, False, False, True, samples_top_k=True),
    "deepseek_v2": Architecture(True, "rms", "rope", False, False, False, False),
    "deepseek_v3": Architecture(True, "rms", "rope", False, False, False, False),
    "kimi_k2": Architecture(True, "rms", "rope", False, False, False, False),
    "gpt_oss": Architecture(True, "rms", "rope", True, True, False, False),
    "llama4_text": Architecture(True, "rms", "rope", False, False, False, False),
    "glm4_moe": Architecture(True, "rms", "rope", True, False, False, False),
    "minimax_m2": Architecture(True, "rms", "rope", False, False, False, True, samples_top_k=True),
}

_LEARNED_OFFSET = 2  # OPT's position table keeps two rows for padding (arXiv 2205.01068, released code)

# dtype of the arithmetic -> dtypes in which its weights may be stored
_WEIGHT_DTYPES: dict[str, tuple[str, ...]] = {
    "fp16": ("fp16", "int4", "int8", "mxfp4"),
    "bf16": ("bf16", "int4", "int8", "mxfp4"),
    "fp32": ("fp32",),
    "fp8": ("fp8", "fp8_block"),
    "int8": ("int8",),
    "nvfp4": ("nvfp4",),
}
ACTIVATION_DTYPES = ("fp16", "bf16", "fp32")
INT4_SCALE_BYTES = 2.5 / 128
"""Bytes beside each int4 weight: 128 of them share a 16-bit scale and a 4-bit zero point (AWQ's default)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """Sizes and dtypes of a decoder; under tensor parallelism of what one GPU holds of it.

    hidden h, intermediate i, heads, kv_heads (fewer under grouped-query attention), head_dim, vocab.
    gated: the MLP has gate, up and down (else up and down). norms_per_layer: those over the whole width.
    samples_top_k: its generation_config names a top-k, which servers follow. positions: `rope`, or a learned
    table. dtype: of the linear layers' arithmetic; weight_dtype: of their stored weights; kv_dtype: of the
    KV cache; activation_dtype: of everything between them (norms, attention, residuals). scale_bytes: of the
    scales and zero points beside each int4 or int8 weight under 16-bit arithmetic (None: INT4_SCALE_BYTES,
    and none of int8).
    mtp_layers: multi-token-prediction modules that it was trained with.
    experts: of the layers that have any (intermediate is the width of the others); latent: where K and V are
    compressed; windows: of the layers that do not see the whole context. parallel: the GPUs that share it
    (`specs.shard.on_one_gpu` makes heads, widths and vocabulary those of one of them).
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
    scale_bytes: float | None = None
    experts: MoE | None = None
    latent: Latent | None = None
    windows: Windows | None = None
    parallel: Parallel = ONE
    source: str
    notes: tuple[str, ...] = ()

    @property
    def rope(self) -> bool:
        """Whether queries and keys are rotated (else positions are learned and added once)."""
        return self.positions == "rope"

    @property
    def dense_layers(self) -> int:
        """Layers without experts."""
        return self.layers if self.experts is None else self.layers - self.experts.layers

    @property
    def whole_vocab(self) -> int:
        """Rows of logits that are chosen from: those of all GPUs."""
        return self.vocab * self.parallel.tp

    @property
    def numbers(self) -> str:
        """Arithmetic and what is stored otherwise, as in a headline: `bf16, int4 weights, fp8 KV cache`."""
        form = Format(self.dtype, self.weight_dtype)
        weights = f", {self.weight_dtype} weights" if self.dtype in HALVES and form.key != self.dtype else ""
        cache = f", {self.kv_dtype} KV cache" if self.kv_dtype != self.activation_dtype else ""
        return f"{self.dtype if weights else form.key}{weights}{cache}"

    @property
    def attention_parameter_count(self) -> int:
        """Weights of the linear layers around the attention of one layer, without biases."""
        if self.latent is not None:
            return self.latent.weights(self.hidden, self.heads)
        query, kv = self.heads * self.head_dim, self.kv_heads * self.head_dim
        return self.hidden * (2 * query + 2 * kv)

    @property
    def linear_parameter_count(self) -> int:
        """Weights of the linear layers of one dense layer: attention and MLP, without biases."""
        return self.attention_parameter_count + (3 if self.gated else 2) * self.hidden * self.intermediate

    @property
    def expert_parameter_count(self) -> int:
        """Weights of the routed experts of one layer that one GPU holds, without biases."""
        if self.experts is None:
            return 0
        return self.experts.held * self.experts.expert_weights(self.hidden, gated=self.gated)

    @property
    def layer_parameter_count(self) -> int:
        """All parameters of one layer: linear layers, biases, norms; with experts where the model has any."""
        return self._dense_layer if self.experts is None else self._expert_layer

    @property
    def embedding_parameter_count(self) -> int:
        """Token embedding, LM head (none of its own where tied) and the learned position table."""
        tables = 1 if self.tied_embeddings else 2
        learned = 0 if self.rope else self.max_seq_len + _LEARNED_OFFSET
        return (tables * self.vocab + learned) * self.hidden

    @property
    def layers_parameter_count(self) -> int:
        """Parameters of all decoder layers."""
        with_experts = self.layers - self.dense_layers
        return self.dense_layers * self._dense_layer + with_experts * self.layer_parameter_count

    @property
    def parameter_count(self) -> int:
        """Parameters of the whole model, as a checkpoint holds them."""
        return self.layers_parameter_count + self.embedding_parameter_count + self._norm_size

    @property
    def active_parameter_count(self) -> int:
        """Parameters without the experts that a token does not take, as most publishers count."""
        if self.experts is None:
            return self.parameter_count
        experts = self.experts
        idle = experts.held - experts.topk
        return self.parameter_count - experts.layers * idle * experts.expert_weights(
            self.hidden, gated=self.gated
        )

    @property
    def layers_weight_bytes(self) -> float:
        """Bytes of the weights of all decoder layers."""
        routed = shared = linear = 0
        routed_dtype = self.weight_dtype
        if (experts := self.experts) is not None:
            routed = experts.layers * self.expert_parameter_count
            shared = experts.layers * experts.shared_weights(self.hidden, gated=self.gated)
            linear = experts.layers * self.attention_parameter_count
            routed_dtype = experts.weight_dtype or self.weight_dtype
        linear += shared + self.dense_layers * self.linear_parameter_count
        rest = self.layers_parameter_count - linear - routed
        return (
            self._stored_bytes(self.weight_dtype) * linear
            + self._stored_bytes(routed_dtype) * routed
            + BYTES_PER_ELEMENT[self.activation_dtype] * rest
        )

    def _stored_bytes(self, dtype: str) -> float:
        """Bytes of one stored weight with its share of scales and zero points."""
        if self.dtype not in HALVES or dtype not in ("int4", "int8"):
            return BYTES_PER_ELEMENT[dtype]
        default = INT4_SCALE_BYTES if dtype == "int4" else 0.0
        return BYTES_PER_ELEMENT[dtype] + (default if self.scale_bytes is None else self.scale_bytes)

    @property
    def weight_bytes(self) -> float:
        """Bytes of all weights, with their scales."""
        rest = self.parameter_count - self.layers_parameter_count
        return self.layers_weight_bytes + BYTES_PER_ELEMENT[self.activation_dtype] * rest

    @property
    def kv_bytes_per_token(self) -> float:
        """Bytes of K and V of one token in all layers: 2 layers kv_heads head_dim, or what is compressed."""
        element = BYTES_PER_ELEMENT[self.kv_dtype]
        if self.latent is not None:
            return 1.0 * self.layers * self.latent.cached * element
        return 2.0 * self.layers * self.kv_heads * self.head_dim * element

    def kv_bytes(self, tokens: FloatArray) -> FloatArray:
        """Bytes of K and V of one sequence of so many tokens; windowed layers keep their window alone."""
        whole = np.asarray(tokens * self.kv_bytes_per_token)
        if self.windows is None:
            return whole
        share = self.windows.layers / self.layers
        return np.asarray(
            whole * (1.0 - share) + self.windows.cached(tokens) * share * self.kv_bytes_per_token
        )

    @property
    def _dense_layer(self) -> int:
        """All parameters of one layer without experts."""
        mlp_biases = self.mlp_bias * ((2 if self.gated else 1) * self.intermediate + self.hidden)
        return self.linear_parameter_count + mlp_biases + self._beside_linear

    @property
    def _expert_layer(self) -> int:
        """All parameters of one layer with experts."""
        assert self.experts is not None  # noqa: S101  # asked of models with experts alone
        experts, hidden, gated = self.experts, self.hidden, self.gated
        return (
            self.attention_parameter_count
            + self.expert_parameter_count
            + experts.shared_weights(hidden, gated=gated)
            + experts.router_weights(hidden)
            + experts.bias_count(hidden, gated=gated)
            + self._beside_linear
        )

    @property
    def _beside_linear(self) -> int:
        """Norms, and biases of the attention, of one layer."""
        query, kv = self.heads * self.head_dim, self.kv_heads * self.head_dim
        biases = self.qkv_bias * (query + 2 * kv) + self.output_bias * self.hidden
        norms = self.norms_per_layer * self._norm_size + self.qk_norm * 2 * self.head_dim
        return biases + norms + (0 if self.latent is None else self.latent.norm_count)

    @property
    def _norm_size(self) -> int:
        return self.hidden if self.norm == "rms" else 2 * self.hidden

    def dense(self) -> Model:
        """A dense model of this width: without experts, its MLPs and heads those of the others' layers.

        Heads of latent attention become plain ones of their values' width.
        """
        head_dim = self.head_dim if self.latent is None else self.latent.v_dim
        return dataclasses.replace(self, experts=None, latent=None, head_dim=head_dim)

    def resized(self, *, layers: int | None = None, vocab: int | None = None) -> Model:
        """The same model with another number of layers or another vocabulary (a draft layer of EAGLE, MTP).

        Fewer layers are the last ones: with experts where the model has any, and without windows.
        """
        if layers is None or layers == self.layers:
            return dataclasses.replace(self, vocab=vocab or self.vocab)
        experts = self.experts and msgspec.structs.replace(
            self.experts, layers=min(layers, self.experts.layers)
        )
        return dataclasses.replace(
            self, layers=layers, vocab=vocab or self.vocab, experts=experts, windows=None
        )


def with_dtypes(
    model: Model,
    dtype: str | None = None,
    weight_dtype: str | None = None,
    kv_dtype: str | None = None,
) -> Model:
    """The model in other dtypes; None keeps what it has, except that weights follow a new `dtype`.

    Allowed: dtype fp16 or bf16 with weights of the same dtype, or weight-only int4 (as AWQ and GPTQ store
    them), int8 or mxfp4; fp32, fp8, int8 or nvfp4 arithmetic with weights of that dtype, fp8 with fp8_block
    too (a scale for each 128 x 128 weights). dtype fp8_block stands for both. Experts that are stored in a
    dtype of their own (mxfp4) take a `dtype` or `weight_dtype` that is given. The KV cache takes the
    activation dtype or fp8. Raises SpecError for any other combination.
    """
    if dtype == "fp8_block":
        dtype, weight_dtype = "fp8", weight_dtype or "fp8_block"
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
    experts = model.experts
    if experts is not None and (dtype is not None or weight_dtype is not None):
        experts = msgspec.structs.replace(experts, weight_dtype=None)
    return dataclasses.replace(
        model,
        dtype=chosen,
        weight_dtype=weights,
        kv_dtype=cache,
        activation_dtype=activations,
        scale_bytes=model.scale_bytes if weights == model.weight_dtype else None,
        experts=experts,
    )
