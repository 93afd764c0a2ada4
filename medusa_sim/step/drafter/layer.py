"""Drafters of one decoder layer of the target's width: EAGLE, EAGLE-3, multi-token prediction."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from medusa_sim.errors import UsageError
from medusa_sim.specs.model import Model
from medusa_sim.specs.runtime import Runtime
from medusa_sim.step.drafter.base import Drafter, Knowledge, Parts, PassWork, as_drafting, levels
from medusa_sim.step.workload import Workload, elementwise_launch, head_launch, model_launches
from medusa_sim.units import BYTES_PER_ELEMENT

_LOGIT_OPERATORS = ("lm_head", "next_token")


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerDrafter(Drafter):
    """A drafter of `layers` decoder layers of the target's width, run `depth` times.

    fused_inputs: features of width h that a linear layer fuses to one. draft_vocab: tokens of an LM head of
    its own; None takes `own_vocab`, or where that is None too the target's LM head.

    The first pass reads the depth + 1 rows that the last verification may have accepted, since it
    needs their features; the LM head looks at the last of them.
    """

    depth: int
    width: int = 1
    layers: int = 1
    draft_vocab: int | None = None
    fused_inputs: int = 2

    own_vocab: ClassVar[int | None] = None
    has_levels: ClassVar[bool] = True
    needs: ClassVar[Knowledge] = "ranks"
    takes_draft_vocab: ClassVar[bool] = True

    @classmethod
    def of(cls, parts: Parts, depth: int, width: int = 1) -> LayerDrafter:
        """`depth` passes of the layer."""
        return cls(depth=depth, width=width, draft_vocab=parts.draft_vocab)

    def _layer(self, model: Model) -> Model:
        return model.resized(layers=self.layers, vocab=self._own_head(model) or model.vocab)

    def _own_head(self, model: Model) -> int | None:
        """Tokens of its own LM head; None where it uses the target's."""
        chosen = self.draft_vocab or self.own_vocab
        return None if chosen is None else min(chosen, model.vocab)

    def _pass(self, model: Model, workload: Workload, runtime: Runtime, *, last_row: bool) -> PassWork:
        layer = self._layer(model)
        launches = as_drafting(model_launches(layer, workload, runtime))
        if last_row:
            launches = tuple(launch for launch in launches if launch.operator.name not in _LOGIT_OPERATORS)
            launches += (
                head_launch(layer, "lm_head", "drafter", workload.batch, layer.vocab, layer.hidden),
                elementwise_launch(layer, "next_token", "next_token", "drafter", workload.batch, layer.vocab),
            )
        inputs = self.fused_inputs * model.hidden
        fusion = head_launch(model, "draft_fusion", "drafter", workload.tokens, model.hidden, inputs)
        return PassWork(
            launches=(*launches, fusion), runtime=runtime, workload=workload, of="draft", layers=self.layers
        )

    def work(self, model: Model, workload: Workload, runtime: Runtime) -> tuple[PassWork, ...]:
        """The draft layer's forward pass and the fusion layer, `depth` times in a row."""
        first, *later = levels(workload, self.depth, self.width)
        seen = Workload(phase="verify", batch=first.batch, seq_len=first.seq_len, query_tokens=self.depth + 1)
        return (
            self._pass(model, seen, runtime, last_row=True),
            *(self._pass(model, level, runtime, last_row=False) for level in later),
        )

    def prompt_work(self, model: Model, workload: Workload, runtime: Runtime) -> tuple[PassWork, ...]:
        """The layer reads the features of the prompt."""
        return (self._pass(model, workload, runtime, last_row=False),)

    def weight_bytes(self, model: Model) -> float:
        """The layers and the fusion matrix; embedding and LM head are the target's unless pruned."""
        element = BYTES_PER_ELEMENT[model.activation_dtype]
        fusion = self.fused_inputs * model.hidden * model.hidden
        own_head = (self._own_head(model) or 0) * model.hidden
        return element * (self.layers * model.layer_parameter_count + fusion + own_head)

    def kv_bytes_per_token(self, model: Model) -> float:
        """One layer's share of the target's cache, per draft layer."""
        return model.kv_bytes_per_token * self.layers / model.layers


@dataclass(frozen=True, slots=True, kw_only=True)
class Eagle(LayerDrafter):
    """One layer fed by a fusion of token and feature, 2h -> h (EAGLE, arXiv 2401.15077, section 3)."""

    name: ClassVar[str] = "eagle"
    title: ClassVar[str] = "EAGLE layer"
    profiles: ClassVar[tuple[str, ...]] = ("eagle1-", "eagle3-")
    lender: ClassVar[str | None] = "eagle1-vicuna-7b"


@dataclass(frozen=True, slots=True, kw_only=True)
class Eagle3(LayerDrafter):
    """EAGLE with three fused features, 3h -> h (EAGLE-3, arXiv 2503.01840, section 3.1).

    Its released heads know the 32,000 most frequent tokens (draft_vocab_size of their config.json).
    """

    fused_inputs: int = 3

    own_vocab: ClassVar[int | None] = 32_000

    name: ClassVar[str] = "eagle3"
    title: ClassVar[str] = "EAGLE-3 layer"
    profiles: ClassVar[tuple[str, ...]] = ("eagle3-",)
    lender: ClassVar[str | None] = "eagle3-llama-3.1-8b"


@dataclass(frozen=True, slots=True, kw_only=True)
class Mtp(LayerDrafter):
    """The multi-token-prediction module of DeepSeek-V3 (arXiv 2412.19437, section 2.2).

    The shape of an EAGLE layer; the module is repeated for each further token. Only a model that was
    trained with one has it.
    """

    name: ClassVar[str] = "mtp"
    title: ClassVar[str] = "MTP module"
    takes_draft_vocab: ClassVar[bool] = False

    @classmethod
    def check(cls, parts: Parts, target: Model) -> None:
        """Raise UsageError for a target without such a module."""
        cls.check_parts(parts)
        if target.mtp_layers < 1:
            raise UsageError(
                f"{target.name} has no MTP module (num_nextn_predict_layers is 0 or missing in its config); "
                "choose --drafter eagle, eagle3, medusa, draft-model or ngram"
            )
