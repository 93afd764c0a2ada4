"""A small autoregressive model that drafts for a large one (arXiv 2211.17192)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from medusa_sim.errors import UsageError
from medusa_sim.specs.model import Model
from medusa_sim.specs.parallel import Parallel
from medusa_sim.specs.runtime import Runtime
from medusa_sim.specs.variants import on_one_gpu
from medusa_sim.step.drafter.base import Drafter, Knowledge, Parts, PassWork, as_drafting, level_passes
from medusa_sim.step.network import model_launches
from medusa_sim.step.workload import Workload

PADDED_VOCAB = 0.01
"""Share by which vocabularies of one family differ, since they are padded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftModel(Drafter):
    """A small autoregressive model that drafts `depth` levels, `width` tokens of each sequence a level.

    It has its own runtime: the draft of a Hugging Face script is bound by its launches, the draft of
    a serving engine by its kernels. The first pass reads one token a sequence (two when every draft was
    accepted, which is taken as one).
    """

    draft: Model
    depth: int
    width: int = 1
    runtime: Runtime | None = None

    name: ClassVar[str] = "draft-model"
    title: ClassVar[str] = "draft model"
    needs: ClassVar[Knowledge] = "ranks"
    has_levels: ClassVar[bool] = True
    takes_draft_model: ClassVar[bool] = True
    profiles: ClassVar[tuple[str, ...]] = ("draft-model-",)
    lender: ClassVar[str] = "typical-draft-model"

    @classmethod
    def of(cls, parts: Parts, depth: int, width: int = 1) -> DraftModel:
        """`depth` passes of the draft model."""
        assert parts.draft is not None  # noqa: S101  # `check` has refused it
        return cls(draft=parts.draft, depth=depth, width=width, runtime=parts.draft_runtime)

    @classmethod
    def check(cls, parts: Parts, target: Model) -> None:
        """Raise UsageError without a draft model, or with one of another vocabulary."""
        cls.check_parts(parts)
        draft = parts.draft
        assert draft is not None  # noqa: S101  # refused above
        if abs(draft.vocab / target.vocab - 1.0) > PADDED_VOCAB:
            raise UsageError(
                f"draft model {draft.name} has a vocabulary of {draft.vocab:,} tokens, {target.name} one of "
                f"{target.vocab:,}: such a pair cannot speculate; take a draft model of its family"
            )

    def work(self, model: Model, workload: Workload, runtime: Runtime) -> tuple[PassWork, ...]:
        """`depth` forward passes one after another; the i-th sees i - 1 levels of its own drafts."""
        own = self.runtime or runtime
        return level_passes(
            workload, range(self.depth), self.width, lambda level: self._pass(model, level, own)
        )

    def prompt_work(self, model: Model, workload: Workload, runtime: Runtime) -> tuple[PassWork, ...]:
        """The draft model reads the prompt as well."""
        own = self.runtime or runtime
        return (self._pass(model, workload, own),)

    def _shard(self, model: Model) -> Model:
        """What one GPU holds of the draft: it is split as the target is, as engines do."""
        return on_one_gpu(self.draft, Parallel(tp=model.parallel.tp))

    def _pass(self, model: Model, workload: Workload, runtime: Runtime) -> PassWork:
        launches = as_drafting(model_launches(self._shard(model), workload, runtime))
        return PassWork(
            launches=launches, runtime=runtime, workload=workload, of="draft", layers=self.draft.layers
        )

    def weight_bytes(self, model: Model) -> float:
        """All weights of the draft model."""
        return self._shard(model).weight_bytes

    def kv_bytes_per_token(self, model: Model) -> float:
        """The draft model keeps a cache of its own."""
        return self._shard(model).kv_bytes_per_token

    def kv_slots(self) -> int:
        """The target's own token, which a model of its own has not seen."""
        return 1
