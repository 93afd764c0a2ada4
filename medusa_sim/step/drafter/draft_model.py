"""A small autoregressive model that drafts for a large one (arXiv 2211.17192)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Self

from medusa_sim.engines.runtime import Runtime
from medusa_sim.errors import UsageError
from medusa_sim.models.model import Model
from medusa_sim.models.parallel import Parallel
from medusa_sim.models.variants import on_one_gpu
from medusa_sim.operators.operator import Size
from medusa_sim.step.drafter import DrafterName
from medusa_sim.step.drafter.base import (
    DrafterParts,
    PassDrafter,
    as_drafting,
    tokens_of_level,
    verified_tokens,
)
from medusa_sim.step.last_logits import last_logits
from medusa_sim.step.network import model_launches
from medusa_sim.step.pass_work import PassWork
from medusa_sim.step.workload import Workload

PADDED_VOCAB = 0.01
"""Share by which vocabularies of one family differ, since they are padded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftModel(PassDrafter):
    """A small autoregressive model that drafts `depth` levels, `width` tokens of each sequence a level.

    It has its own runtime: the draft of a Hugging Face script is bound by its launches, the draft of
    a serving engine by its kernels. The first pass reads one token a sequence (two when every draft was
    accepted, which is taken as one).
    """

    name: ClassVar[DrafterName] = "draft-model"
    title = "draft model"
    has_levels = True
    takes_draft_model = True
    profiles = ("draft-model-",)
    lender = "typical-draft-model"

    draft: Model
    depth: int
    width: int = 1
    runtime: Runtime | None = None

    @classmethod
    def sized(cls, parts: DrafterParts, depth: int, width: int = 1) -> Self:
        """The model of the parts, run so often."""
        assert parts.draft is not None  # noqa: S101  # refused by `check`
        return cls(draft=parts.draft, runtime=parts.draft_runtime, depth=depth, width=width)

    @classmethod
    def check(cls, parts: DrafterParts, target: Model) -> None:
        """Raise UsageError without a draft model, or with one of another vocabulary."""
        cls.check_parts(parts)
        draft = parts.draft
        assert draft is not None  # noqa: S101  # refused above
        if abs(draft.vocab / target.vocab - 1.0) > PADDED_VOCAB:
            raise UsageError(
                f"draft model {draft.name} has a vocabulary of {draft.vocab:,} tokens, {target.name} one of "
                f"{target.vocab:,}: such a pair cannot speculate; take a draft model of its family"
            )

    def own_work(
        self, model: Model, workload: Workload, runtime: Runtime, depth: Size
    ) -> tuple[PassWork, ...]:
        """None; where the engine has it read back, a pass of the depth + 1 verified tokens."""
        runtime = self.runtime or runtime
        if not runtime.draft_reads_back:
            return ()
        verified = self._pass(model, verified_tokens(workload, depth), runtime)
        proposing = last_logits(verified.launches, workload.batch)
        return (replace(verified, launches=proposing, reads_accepted=True),)

    def level_work(self, model: Model, workload: Workload, runtime: Runtime, level: Size) -> PassWork:
        """A forward pass."""
        return self._pass(model, tokens_of_level(workload, level, self.width), self.runtime or runtime)

    def prompt_work(self, model: Model, workload: Workload, runtime: Runtime) -> tuple[PassWork, ...]:
        """The draft model reads the prompt as well."""
        return (self._pass(model, workload, self.runtime or runtime),)

    def _shard(self, model: Model) -> Model:
        """What one GPU holds of the draft: it is split as the target is, as engines do."""
        return on_one_gpu(self.draft, Parallel(tp=model.parallel.tp))

    def _pass(self, model: Model, workload: Workload, runtime: Runtime) -> PassWork:
        launches = as_drafting(model_launches(self._shard(model), workload, runtime))
        return PassWork(
            launches=launches, runtime=runtime, workload=workload, name="draft", layers=self.draft.layers
        )

    def weight_bytes(self, model: Model) -> float:
        """All weights of the draft model."""
        return self._shard(model).weight_bytes

    def kv_bytes_per_token(self, model: Model) -> float:
        """The draft model keeps a cache of its own.

        Where GPUs attend to their own requests, each keeps its part of the draft's cache of everybody's.
        """
        return self._shard(model).kv_bytes_per_token * model.parallel.schedulers

    def kv_slots(self) -> int:
        """The target's own token, which a model of its own has not seen."""
        return 1
