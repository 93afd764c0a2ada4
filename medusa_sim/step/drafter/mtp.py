"""Multi-token prediction: a layer of the target itself drafts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from medusa_sim.errors import UsageError
from medusa_sim.specs.model import Model
from medusa_sim.step.drafter.base import Parts
from medusa_sim.step.drafter.layer import LayerDrafter
from medusa_sim.units import BYTES_PER_ELEMENT


@dataclass(frozen=True, slots=True, kw_only=True)
class Mtp(LayerDrafter):
    """The multi-token-prediction module of DeepSeek-V3 (arXiv 2412.19437, section 2.2).

    A whole layer of the target in its dtypes, with experts where the target has any: a pass of b sequences
    wakes the union of their experts. Embedding and LM head are the target's. With one module it is run again
    for each further draft; with several they take turns, so that a draft longer than their number is a
    multiple of it (n_predict in vllm/config/speculative.py). Only a model that was trained with one has it.
    """

    modules: int = 1

    name: ClassVar[str] = "mtp"
    title: ClassVar[str] = "MTP module"
    takes_draft_vocab: ClassVar[bool] = False
    profiles: ClassVar[tuple[str, ...]] = ("mtp-",)
    lender: ClassVar[str] = "mtp-deepseek-r1"

    @classmethod
    def of(cls, parts: Parts, depth: int, width: int = 1) -> Mtp:
        """`depth` passes of the modules."""
        return cls(depth=depth, width=width, modules=parts.modules)

    @classmethod
    def lengths(cls, parts: Parts, longest: int) -> tuple[int, ...]:
        """Up to the number of modules, then its multiples."""
        return tuple(k for k in range(1, longest + 1) if k <= parts.modules or k % parts.modules == 0)

    @classmethod
    def check(cls, parts: Parts, target: Model) -> None:
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
        fusion = self.fused_inputs * model.hidden**2
        return self.modules * (layer.weight_bytes + element * (fusion - layer.embedding_parameter_count))

    def kv_bytes_per_token(self, model: Model) -> float:
        """A layer's share of the cache, per module."""
        return self.modules * self._network(model).kv_bytes_per_token
