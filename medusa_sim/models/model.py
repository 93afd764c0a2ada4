"""A decoder-only language model as a list of sizes: what decides how much a step computes and moves.

Where models come from: `named.py` (by name), `hf_config.py` (a Hugging Face `config.json`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

import msgspec
import numpy as np
from msgspec import Meta

from medusa_sim.arrays import FloatArray
from medusa_sim.file_types import FILES, Role, bytes_per_weight
from medusa_sim.models.feed_forwards import Mlp, MoE
from medusa_sim.models.layer_group import LayerGroup
from medusa_sim.models.mixers import Grouped, Mixer
from medusa_sim.models.parallel import ONE, Parallel
from medusa_sim.outside.limits import LAYERS, LENGTH, SIZE, VOCABULARY
from medusa_sim.units import BYTES_PER_ELEMENT, FORMATS, HALVES, Format, format_text

Norm = Literal["rms", "layer"]
Positions = Literal["rope", "learned"]

Layers = Annotated[int, Meta(ge=1, le=LAYERS)]
Width = Annotated[int, Meta(ge=1, le=SIZE)]
Vocab = Annotated[int, Meta(ge=1, le=VOCABULARY)]
Length = Annotated[int, Meta(ge=1, le=LENGTH)]


_LEARNED_OFFSET = 2  # OPT's position table keeps two rows for padding (arXiv 2205.01068, released code)

INT4_SCALE_BYTES = 2.5 / 128
"""Bytes beside each int4 weight: 128 of them share a 16-bit scale and a 4-bit zero point (AWQ's default)."""


UNCHECKED = "not checked against the release"
"""How a note ends of sizes that nobody compared with their publisher's; answers repeat it."""
NOT_PRICED = "not priced"
"""How a note ends of what a checkpoint makes an engine do beside what is modelled; answers repeat it."""
RUN_IN_FP16 = "run in fp16"
"""How a note ends of a dtype that no engine runs as it stands; answers repeat it."""


def of_dtype(dtype: str) -> dict[str, Any]:
    """Fields of a `Model` in which nothing is quantised."""
    return dict.fromkeys(("dtype", "weight_dtype", "kv_dtype", "activation_dtype"), dtype)


BlockT = TypeVar("BlockT", bound=Mixer | Mlp | MoE)


class _Matrices(NamedTuple):
    """Matrices of a layer that are stored alike."""

    form: str | None
    """Their format; None: the model's."""
    role: Role
    weights: int


@dataclass(frozen=True, kw_only=True)
class Model:
    """Sizes and dtypes of a decoder; under tensor parallelism of what one GPU holds of it.

    Embeddings, LM head and norms of a quantised model stay in activation_dtype, as checkpoints store them.
    """

    name: str
    architecture: str
    hidden: int
    vocab: int
    max_seq_len: int
    groups: tuple[LayerGroup, ...]
    """Its layers, by kind."""
    mlp_width: int = 0
    """Width of the MLP that its config names where no layer has one (drafters may)."""
    norm: Norm = "rms"
    positions: Positions = "rope"
    """Queries and keys are rotated, or a learned table is added once."""
    norms_per_layer: int = 2
    """Norms over the whole width in a layer of mixer and feed-forward part."""
    samples_top_k: bool = False
    """Whether its generation_config names a top-k, which servers follow."""
    samples_top_p: bool = True
    """The same of a top-p."""
    tied_embeddings: bool = False
    streams: int = 1
    """Residual streams that hyper-connections mix around every mixer and feed-forward part (DeepSeek-V4)."""
    mtp_layers: int = 0
    """Multi-token-prediction modules that it was trained with."""
    mtp: LayerGroup | None = None
    """The layer of such a module, where it is not like `last_layer`."""
    dtype: str = "fp16"
    """Of the linear layers' arithmetic."""
    weight_dtype: str = "fp16"
    """Of their stored weights."""
    kv_dtype: str = "fp16"
    activation_dtype: str = "fp16"
    """Of everything between the linear layers: norms, attention, residuals."""
    scale_bytes: float | None = None
    """Of the scales and zero points beside each int4 or int8 weight under 16-bit arithmetic (None:
    INT4_SCALE_BYTES, and none of int8)."""
    parallel: Parallel = ONE
    """The GPUs that share it (`models.variants.on_one_gpu` makes sizes those of one of them)."""
    source: str
    notes: tuple[str, ...] = ()
    checkpoint: str = ""
    """The id that it was named by; empty where it was named otherwise."""

    @property
    def layers(self) -> int:
        """All of them."""
        return sum(group.count for group in self.groups)

    def blocks(self, kind: type[BlockT]) -> tuple[tuple[int, BlockT], ...]:
        """(layers, mixer or feed-forward part) of every different one of that kind."""
        counts: dict[BlockT, int] = {}
        for group in self.groups:
            for block in group.parts:
                if isinstance(block, kind):
                    counts[block] = counts.get(block, 0) + group.count
        return tuple((count, block) for block, count in counts.items())

    @property
    def has_more_kinds(self) -> bool:
        """Whether its layers need kernels that a dense model lacks."""
        plain = all(type(mixer) is Grouped for _, mixer in self.blocks(Mixer))
        return not plain or self.streams > 1 or self.experts is not None

    @property
    def block_count(self) -> int:
        """Normed parts of all layers: mixers that stand side by side are one."""
        return sum(group.count * group.blocks for group in self.groups)

    @property
    def part_count(self) -> int:
        """Mixers and feed-forward parts of all layers, each with an output of its own."""
        return sum(group.count * len(group.parts) for group in self.groups)

    @property
    def experts(self) -> MoE | None:
        """The first mixture of experts; None of a dense model."""
        return next((block for _, block in self.blocks(MoE)), None)

    @property
    def last_layer(self) -> LayerGroup:
        """Layer that modules for drafting repeat: attention to all tokens, with experts if there are any."""
        mixers = [group.mixers for group in self.groups if group.mixers]
        parts = [group.feed_forward for group in self.groups if group.feed_forward is not None]
        parts = [part for part in parts if isinstance(part, MoE)] or parts
        last = tuple(mixer.unwindowed() for mixer in mixers[-1]) if mixers else ()
        return LayerGroup(1, last, parts[-1] if parts else None)

    @property
    def attention(self) -> Grouped:
        """The heads of `last_layer`, as plain attention."""
        return self.last_layer.mixers[0].as_grouped()

    @property
    def mlp(self) -> Mlp:
        """The MLP of its dense layers; without dense layers, one of the width that its config names."""
        dense = next((block for _, block in self.blocks(Mlp)), None)
        if dense is not None:
            return dense
        experts = self.experts
        return Mlp(width=max(self.mlp_width, 1), gated=experts is None or experts.gated)

    @property
    def rope(self) -> bool:
        """Whether queries and keys are rotated (else positions are learned and added once)."""
        return self.positions == "rope"

    @property
    def filtered_vocab(self) -> int:
        """Logits of a row that a server's requests filter: none where generation_config asks for nothing."""
        return self.vocab if self.samples_top_p or self.samples_top_k else 0

    @property
    def whole_vocab(self) -> int:
        """Width of the logits that tokens are chosen from: all GPUs' parts together."""
        return self.vocab * self.parallel.tp

    @property
    def windows(self) -> tuple[int, ...]:
        """Lengths beyond which the caches of some layers stop growing, ascending."""
        return tuple(sorted({mixer.window for _, mixer in self.blocks(Mixer) if mixer.window is not None}))

    @property
    def numbers(self) -> str:
        """Formats as in a headline, arithmetic first: `bf16, mxfp4 experts, fp8 KV cache`."""
        form = Format(self.dtype, self.weight_dtype)
        weights = (
            f", {format_text(self.weight_dtype)} weights"
            if self.dtype in HALVES and form.key != self.dtype
            else ""
        )
        cache = f", {self.kv_dtype} KV cache" if self.kv_dtype != self.activation_dtype else ""
        others = {block.form for _, block in self.blocks(MoE)} - {None, form.key}
        experts = "".join(f", {format_text(str(each))} experts" for each in sorted(others, key=str))
        return f"{self.dtype if weights else format_text(form.key)}{weights}{experts}{cache}"

    def in_form(self, form: str | None) -> Model:
        """The same sizes with linear layers in that format (None: its own): what a part that differs sees."""
        if form is None:
            return self
        dtype, weight_dtype = FORMATS[form]
        if dtype in HALVES:
            weight_dtype = self.activation_dtype if weight_dtype in HALVES else weight_dtype
            dtype = self.activation_dtype
        return dataclasses.replace(self, dtype=dtype, weight_dtype=weight_dtype)

    @property
    def embedding_parameter_count(self) -> int:
        """Token embedding, LM head (none of its own where tied) and the learned position table."""
        tables = 1 if self.tied_embeddings else 2
        learned = 0 if self.rope else self.max_seq_len + _LEARNED_OFFSET
        return (tables * self.vocab + learned) * self.hidden

    @cached_property
    def layers_parameter_count(self) -> int:
        """Parameters of all decoder layers."""
        return sum(
            group.count * (self._unquantised(group) + sum(each.weights for each in self._matrices(group)))
            for group in self.groups
        )

    @property
    def parameter_count(self) -> int:
        """Parameters of the whole model, as a checkpoint holds them."""
        return self.layers_parameter_count + self.embedding_parameter_count + self._norm_size

    @property
    def active_parameter_count(self) -> int:
        """Parameters without the experts that a token does not take, as most publishers count."""
        idle = sum(
            count * (experts.held - experts.topk) * experts.expert_weights(self.hidden)
            for count, experts in self.blocks(MoE)
        )
        return self.parameter_count - idle

    @cached_property
    def layers_weight_bytes(self) -> float:
        """Bytes of the weights of all decoder layers."""
        element = BYTES_PER_ELEMENT[self.activation_dtype]
        total = 0.0
        for group in self.groups:
            layer = element * self._unquantised(group)
            for form, role, weights in self._matrices(group):
                layer += self.in_form(form)._stored_bytes(role) * weights
            total += group.count * layer
        return total

    @cached_property
    def weight_bytes(self) -> float:
        """Bytes of all weights, with their scales."""
        rest = self.parameter_count - self.layers_parameter_count
        element = BYTES_PER_ELEMENT[self.activation_dtype]
        if self.weight_dtype not in FILES:
            return self.layers_weight_bytes + element * rest
        head = max(*(bytes_per_weight(self.weight_dtype, role) for role in ("head", "embedding")))
        table = self.vocab * self.hidden
        if self.tied_embeddings:
            return self.layers_weight_bytes + head * table + element * (rest - table)
        both = sum(bytes_per_weight(self.weight_dtype, role) for role in ("head", "embedding"))
        return self.layers_weight_bytes + both * table + element * (rest - 2 * table)

    @property
    def kv_bytes_per_token(self) -> float:
        """Bytes that one more token adds to the caches of all layers, while none has left its window."""
        return sum(count * mixer.token_bytes(self.kv_dtype) for count, mixer in self.blocks(Mixer))

    @property
    def late_kv_bytes_per_token(self) -> float:
        """Bytes that one more token adds once every window is full."""
        full = float(max(self.windows, default=0))
        return float(self.kv_bytes(np.asarray(full + 1.0)) - self.kv_bytes(np.asarray(full)))

    def kv_bytes(self, tokens: FloatArray) -> FloatArray:
        """Bytes of the caches of one request by its tokens; windowed layers keep their window alone."""
        kept = np.zeros(())
        for count, mixer in self.blocks(Mixer):
            kept = kept + count * mixer.cache_bytes(tokens, self.kv_dtype)
        return np.asarray(kept)

    @cached_property
    def state_bytes(self) -> float:
        """Bytes of the states of one request in all layers, whatever its length; 0 without such layers."""
        return sum(count * mixer.state_bytes(self.activation_dtype) for count, mixer in self.blocks(Mixer))

    @cached_property
    def draft_state_bytes(self) -> float:
        """Part of `state_bytes` that a verification step keeps for each of its tokens."""
        dtype = self.activation_dtype
        return sum(count * mixer.draft_state_bytes(dtype) for count, mixer in self.blocks(Mixer))

    @property
    def keeps_states(self) -> bool:
        """Whether some layers keep a state that a rejected draft would spoil."""
        return self.draft_state_bytes > 0.0

    @property
    def form(self) -> str:
        """Format of its linear layers, where parts say none."""
        key = Format(self.dtype, self.weight_dtype).key
        return "bf16" if key in HALVES else key

    @property
    def precision(self) -> str:
        """Format that it is named by: of its experts where these have one of their own, else `form`."""
        own = (experts.form for _, experts in self.blocks(MoE) if experts.form is not None)
        return next(own, self.form)

    def _stored_bytes(self, role: Role) -> float:
        """Bytes of one stored weight with its share of scales and zero points; files have types by role."""
        if self.weight_dtype in FILES:
            return bytes_per_weight(self.weight_dtype, role)
        stored = BYTES_PER_ELEMENT[self.weight_dtype]
        if self.dtype not in HALVES or self.weight_dtype not in ("int4", "int8"):
            return stored
        default = INT4_SCALE_BYTES if self.weight_dtype == "int4" else 0.0
        return stored + (default if self.scale_bytes is None else self.scale_bytes)

    def _matrices(self, group: LayerGroup) -> Iterator[_Matrices]:
        """The matrices of one layer."""
        hidden = self.hidden
        for mixer in group.mixers:
            values, output = mixer.value_weights(hidden), mixer.output_weights(hidden)
            yield _Matrices(mixer.form, "linear", mixer.weights(hidden) - values - output)
            yield _Matrices(mixer.form, "values", values)
            yield _Matrices(mixer.out_form or mixer.form, "output", output)
        match group.feed_forward:
            case Mlp() as mlp:
                yield _Matrices(mlp.form, "linear", mlp.weights(hidden) - mlp.width * hidden)
                yield _Matrices(mlp.form, "down", mlp.width * hidden)
            case MoE() as experts:
                shared = experts.shared * hidden
                yield _Matrices(experts.form, "experts", experts.held * experts.expert_weights(hidden))
                yield _Matrices(experts.shared_form, "linear", experts.shared_mlp.weights(hidden) - shared)
                yield _Matrices(experts.shared_form, "down", shared)

    def _unquantised(self, group: LayerGroup) -> int:
        """Parameters of one layer outside its matrices: norms over the whole width, hyper-connections, and
        what its parts have of their own.

        A hyper-connection makes n (n + 2) weights of n streams, by a matrix, biases and three scales.
        """
        mixed = self.streams * (self.streams + 2)
        connection = mixed * (self.streams * self.hidden + 1) + 3 if self.streams > 1 else 0
        norms = self.norms_per_layer * group.blocks // 2 * self._norm_size
        own = sum(part.other_parameters(self.hidden) for part in group.parts)
        return norms + group.blocks * connection + own

    @property
    def _norm_size(self) -> int:
        return self.hidden if self.norm == "rms" else 2 * self.hidden

    def dense(self, layers: int, width: int) -> Model:
        """A model of so many dense layers with the heads of the others, MLPs of that width, in 16 bits.

        Files of local engines hold their drafters in the types of the target.
        """
        mlp = msgspec.structs.replace(self.mlp, width=width, form=None)
        layer = LayerGroup(layers, (self.attention,), mlp)
        dtype = self.activation_dtype
        stored = self.weight_dtype if self.weight_dtype in FILES else dtype
        return dataclasses.replace(self, groups=(layer,), dtype=dtype, weight_dtype=stored)

    @property
    def mtp_module(self) -> Model:
        """One of its modules for multi-token prediction, as a model of one layer."""
        layer = self.last_layer if self.mtp is None else self.mtp
        return dataclasses.replace(self, groups=(dataclasses.replace(layer, count=1),))

    def resized(self, *, layers: int | None = None, vocab: int | None = None) -> Model:
        """The same model with another number of layers like `last_layer`, or another vocabulary."""
        groups = self.groups
        if layers is not None and layers != self.layers:
            groups = (dataclasses.replace(self.last_layer, count=layers),)
        return dataclasses.replace(self, groups=groups, vocab=vocab or self.vocab)
