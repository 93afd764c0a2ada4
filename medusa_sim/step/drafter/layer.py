"""Drafters of decoder layers of the target's width, run once a draft: EAGLE, EAGLE-3, MTP."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import ClassVar, Self

import msgspec

from medusa_sim.engines.runtime import Runtime
from medusa_sim.errors import UsageError
from medusa_sim.models.feed_forwards import Mlp
from medusa_sim.models.layer_group import grouped
from medusa_sim.models.model import Model
from medusa_sim.operators.operator import Size
from medusa_sim.step.drafter import DrafterName
from medusa_sim.step.drafter.base import (
    DrafterParts,
    PassDrafter,
    as_drafting,
    tokens_of_level,
    verified_tokens,
)
from medusa_sim.step.exchange import logit_exchange
from medusa_sim.step.launch import Launch, elementwise_launch, head_launch
from medusa_sim.step.network import LOGIT_OPERATORS, model_launches
from medusa_sim.step.pass_work import PassWork
from medusa_sim.step.workload import Workload
from medusa_sim.units import BYTES_PER_ELEMENT

WIDTHS_OF_MLP = 3
"""Hidden widths that the MLP of a draft layer is wide at least, where the target has no dense layer.

As in config.json of Qwen3-30B-A3B, whose EAGLE-3 and DFlash drafters take its intermediate_size.
"""


@lru_cache(maxsize=64)
def _dense(model: Model, layers: int, width: int, vocab: int | None, inputs: int) -> Model:
    """Draft layers of a model, the same in all passes. inputs: rows that the first reads side by side."""
    draft = model.dense(layers, width).resized(vocab=vocab)
    (draft_layers,) = draft.groups
    first = tuple(msgspec.structs.replace(mixer, inputs=inputs) for mixer in draft_layers.mixers)
    groups = (replace(draft_layers, count=1, mixers=first), replace(draft_layers, count=layers - 1))
    return replace(draft, groups=grouped(group for group in groups if group.count))


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerDrafter(PassDrafter):
    """A drafter of `layers` decoder layers of the target's width, run `depth` times.

    The first pass of a step reads the depth + 1 rows that the last verification may have accepted, since it
    needs their features; the LM head looks at the last of them.
    """

    depth: int
    width: int = 1
    layers: int = 1
    draft_vocab: int | None = None
    """Tokens of an LM head of its own; None: `own_vocab`, or where that is None too the target's LM head."""

    passes_features = True
    own_vocab: ClassVar[int | None] = None
    """Tokens of the LM head that its released checkpoints have; None: they have none."""
    fused_inputs: ClassVar[int] = 2
    """Rows of width h that a linear layer fuses to one."""
    fuses_drafts: ClassVar[bool] = True
    """Whether every pass fuses what it reads, a token and a feature; else the target's features are fused,
    in the pass that reads them."""
    layer_inputs: ClassVar[int] = 1
    """Rows of width h that the first layer's Q, K and V read side by side."""

    @classmethod
    def sized(cls, parts: DrafterParts, depth: int, width: int = 1) -> Self:
        """Its layers, run so often."""
        return cls(depth=depth, width=width, draft_vocab=parts.draft_vocab)

    def _network(self, model: Model) -> Model:
        """The draft layers as a model: dense, in the dtype of the activations, as their checkpoints are."""
        width = model.mlp.width
        if not model.blocks(Mlp):
            width = max(width, -(-WIDTHS_OF_MLP * model.hidden // model.parallel.tp))
        return _dense(model, self.layers, width, self._own_head(model), self.layer_inputs)

    def _own_head(self, model: Model) -> int | None:
        """Tokens of its own LM head; None where it uses the target's."""
        chosen = self.draft_vocab or self.own_vocab
        if chosen is None:
            return None
        return min(-(-chosen // model.parallel.tp), model.vocab)  # each GPU has a part of it

    def _fusion(self, model: Model, read: Workload) -> Launch:
        """The linear layer that fuses the inputs of what is read. model: the target or the draft layers."""
        rows = read.on_one_gpu(model.parallel).tokens
        return head_launch(
            model, "draft_fusion", "drafter", rows, model.hidden, self.fused_inputs * model.hidden
        )

    def _layers(self, network: Model, read: Workload, runtime: Runtime) -> tuple[Launch, ...]:
        """The kernels of the draft layers up to their last hidden state. network: `_network`."""
        launches = model_launches(network, read, runtime)
        return as_drafting(launch for launch in launches if launch.operator.name not in LOGIT_OPERATORS)

    def _logits(self, network: Model, rows: Size) -> tuple[Launch, ...]:
        """The LM head and sampling on so many rows. network: `_network`."""
        return (
            head_launch(network, "lm_head", "drafter", rows, network.vocab, network.hidden),
            *as_drafting(logit_exchange(network, rows)),
            elementwise_launch(network, "next_token", "next_token", "drafter", rows, network.whole_vocab),
        )

    def _pass(
        self,
        network: Model,
        read: Workload,
        runtime: Runtime,
        *,
        fused: Workload | None,
        logit_rows: Size | None,
    ) -> PassWork:
        """The draft layers on what is read, of which `fused` is fused (None: nothing).

        logit_rows: rows that propose drafts; None: none does.
        """
        launches = (
            *self._layers(network, read, runtime),
            *(() if logit_rows is None else self._logits(network, logit_rows)),
            *(() if fused is None else (self._fusion(network, fused),)),
        )
        return PassWork(launches=launches, runtime=runtime, workload=read, name="draft", layers=self.layers)

    def own_work(
        self, model: Model, workload: Workload, runtime: Runtime, depth: Size
    ) -> tuple[PassWork, ...]:
        """The pass that reads what was verified, and proposes the first draft.

        Where the engine has a drafter read back it proposes nothing, and one more pass does.
        """
        verified = verified_tokens(workload, depth)
        logit_rows = None if runtime.draft_reads_back else workload.batch
        reading = self._pass(self._network(model), verified, runtime, fused=verified, logit_rows=logit_rows)
        return (replace(reading, reads_accepted=True),)

    def levels(self, runtime: Runtime) -> range:
        """Those of drafts that the reading pass does not propose; none of a drafter of one pass."""
        return range(0 if runtime.draft_reads_back else 1, self.depth if self.has_levels else 0)

    def level_work(self, model: Model, workload: Workload, runtime: Runtime, level: Size) -> PassWork:
        """The draft layers' forward pass, fed by the one before."""
        read = tokens_of_level(workload, level, self.width)
        fused = read if self.fuses_drafts else None
        return self._pass(self._network(model), read, runtime, fused=fused, logit_rows=read.tokens)

    def prompt_work(self, model: Model, workload: Workload, runtime: Runtime) -> tuple[PassWork, ...]:
        """The layers read the features of the prompt."""
        network = self._network(model)
        return (self._pass(network, workload, runtime, fused=workload, logit_rows=workload.batch),)

    def _fusion_weights(self, model: Model) -> int:
        """Weights of the fusion, which every GPU holds whole."""
        return self.fused_inputs * model.hidden**2

    def weight_bytes(self, model: Model) -> float:
        """The layers and the fusion; embedding and LM head are the target's unless pruned."""
        own_head = (self._own_head(model) or 0) * model.hidden
        weights = self._network(model).layers_parameter_count + self._fusion_weights(model) + own_head
        return BYTES_PER_ELEMENT[model.activation_dtype] * weights

    def kv_bytes_per_token(self, model: Model) -> float:
        """K and V of the draft layers."""
        return self._network(model).kv_bytes_per_token

    def kv_slots(self) -> int:
        """Look-ahead slots of the passes (vLLM's scheduler.py: `num_lookahead_tokens` with `use_eagle`)."""
        return self.depth


@dataclass(frozen=True, slots=True, kw_only=True)
class Eagle(LayerDrafter):
    """One layer fed by a fusion of token and feature, 2h -> h (EAGLE, arXiv 2401.15077, section 3)."""

    name: ClassVar[DrafterName] = "eagle"
    title = "EAGLE layer"
    falls_as = "eagle"
    has_levels = True
    takes_draft_vocab = True
    profiles = ("eagle1-", "eagle3-")
    lender = "eagle1-vicuna-7b"


@dataclass(frozen=True, slots=True, kw_only=True)
class Eagle3(LayerDrafter):
    """One layer that reads token and feature side by side (EAGLE-3, arXiv 2503.01840, section 3.1).

    Features of three layers of the target are fused, 3h -> h, once a step; a draft's feature is the layer's
    own hidden state. Its Q, K and V read 2h (`midlayer` and `fc` of huggingface.co/yuhuili/
    EAGLE3-LLaMA3.1-Instruct-8B). Its released heads know the 32,000 most frequent tokens (draft_vocab_size of
    their config.json).
    """

    name: ClassVar[DrafterName] = "eagle3"
    title = "EAGLE-3 layer"
    falls_as = "eagle"
    has_levels = True
    takes_draft_vocab = True
    profiles = ("eagle3-",)
    lender = "eagle3-llama-3.1-8b"
    own_vocab = 32_000
    fused_inputs = 3
    fuses_drafts = False
    layer_inputs = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Mtp(LayerDrafter):
    """The multi-token-prediction module of DeepSeek-V3 (arXiv 2412.19437, section 2.2).

    A whole layer of the target in its dtypes, with experts where the target has any: a pass of b sequences
    wakes the union of their experts. Embedding and LM head are the target's. With one module it is run again
    for each further draft; with several they take turns, so that a draft longer than their number is a
    multiple of it (n_predict in vllm/config/speculative.py). Only a model that was trained with one has it.
    """

    name: ClassVar[DrafterName] = "mtp"
    title = "MTP module"
    falls_as = "mtp"
    has_levels = True
    profiles = ("mtp-",)
    lender = "mtp-deepseek-r1"

    modules: int = 1

    @classmethod
    def sized(cls, parts: DrafterParts, depth: int, width: int = 1) -> Self:
        """As many modules as the target has, which take turns."""
        return cls(depth=depth, width=width, modules=parts.modules)

    @classmethod
    def lengths(cls, parts: DrafterParts, longest: int) -> tuple[int, ...]:
        """Up to the number of modules, then its multiples."""
        return tuple(k for k in range(1, longest + 1) if k <= parts.modules or k % parts.modules == 0)

    @classmethod
    def check(cls, parts: DrafterParts, target: Model) -> None:
        """Raise UsageError for a target without such a module."""
        cls.check_parts(parts)
        if target.mtp_layers < 1:
            raise UsageError(
                f"{target.name} has no MTP module (num_nextn_predict_layers is 0 or missing in its config); "
                "choose --drafter eagle3, dflash, p-eagle, draft-model or ngram"
            )

    def _network(self, model: Model) -> Model:
        return model.mtp_module

    def weight_bytes(self, model: Model) -> float:
        """The modules: a layer as the target stores it and a fusion matrix each."""
        layer, element = self._network(model), BYTES_PER_ELEMENT[model.activation_dtype]
        norm = layer.parameter_count - layer.layers_parameter_count - layer.embedding_parameter_count
        return self.modules * (layer.layers_weight_bytes + element * (self._fusion_weights(model) + norm))

    def kv_bytes_per_token(self, model: Model) -> float:
        """A layer's share of the cache, per module."""
        return self.modules * self._network(model).kv_bytes_per_token
