"""What every drafter says of itself: its names, what it needs, and what it adds to a verification step.

Every drafting method is one class of this kind, registered by its name (`step.drafter`). Acceptance is
another matter (`medusa_sim.acceptance`); the two do not know each other.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import numpy as np

from medusa_sim.engines.runtime import Runtime
from medusa_sim.errors import UsageError
from medusa_sim.models.model import Model
from medusa_sim.operators.operator import Size
from medusa_sim.step.drafter import DrafterName
from medusa_sim.step.launch import Launch
from medusa_sim.step.pass_work import PassWork
from medusa_sim.step.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class DrafterParts:
    """What a drafter is made of, before its depth is chosen."""

    heads: int = 5
    """Trained Medusa heads."""
    draft: Model | None = None
    """The model of `draft-model` and `pard`."""
    draft_runtime: Runtime | None = None
    """What launches that model; None: as the target."""
    draft_vocab: int | None = None
    """Output tokens of a layer drafter's own head; None: its default, the target's LM head where it has none.
    """
    modules: int = 1
    """MTP modules that the target was trained with."""


class Drafter:
    """Anything that proposes candidates: its cost at one depth and width."""

    __slots__ = ()

    name: ClassVar[DrafterName]
    """As the command line takes it."""
    title: ClassVar[str]
    """In a sentence."""
    unit: ClassVar[str] = "draft"
    """What is run in a row: `head` or `draft`."""
    default_runtime: ClassVar[str] = "vllm"
    """The runtime that it is priced under where none is named."""
    pays_per_draft: ClassVar[bool] = True
    """Whether each further draft costs a pass or rows of one, so that a curve of tree sizes cannot describe
    it."""
    passes_features: ClassVar[bool] = False
    """Whether its passes read features of the target's width, not tokens alone."""
    has_levels: ClassVar[bool] = False
    """Whether it drafts level by level, so many nodes each."""
    looks_up: ClassVar[bool] = False
    """Whether it finds its drafts in the text, on the host."""
    falls_as: ClassVar[str] = "every"
    """Whose rates tell how a chain's fall beyond what was measured (`acceptance.deeper`); empty: nothing
    does."""
    takes_draft_model: ClassVar[bool] = False
    """Whether it uses `DrafterParts.draft`."""
    takes_draft_vocab: ClassVar[bool] = False
    """Whether it uses `DrafterParts.draft_vocab`."""
    profiles: ClassVar[tuple[str, ...]]
    """Prefixes of its shipped acceptance profiles, best first."""
    lender: ClassVar[str]
    """The profile that a model without one of its own borrows, or a typical one that nobody measured for it.
    """

    @classmethod
    def sized(cls, parts: DrafterParts, depth: int, width: int = 1) -> Self:
        """The drafter for draft length `depth`, `width` children a level; of some neither is a size."""
        del parts, depth, width
        return cls()

    @classmethod
    def lengths(cls, parts: DrafterParts, longest: int) -> tuple[int, ...]:
        """Draft lengths that it can run, up to `longest`."""
        del parts
        return tuple(range(1, longest + 1))

    @classmethod
    def check(cls, parts: DrafterParts, target: Model) -> None:
        """Raise UsageError for parts that it lacks or does not take, or a target that it cannot draft for."""
        del target
        cls.check_parts(parts)

    @classmethod
    def check_parts(cls, parts: DrafterParts) -> None:
        """Raise UsageError for parts that it lacks or does not take."""
        if cls.takes_draft_model != (parts.draft is not None):
            needed = "needs --draft-model NAME (as in --draft-model llama-68m)"
            other = "takes no --draft-model; leave it out, or choose --drafter draft-model"
            raise UsageError(f"drafter {cls.name} {needed if cls.takes_draft_model else other}")
        if parts.draft_runtime is not None and not cls.takes_draft_model:
            raise UsageError(f"drafter {cls.name} takes no --draft-runtime: it has no model of its own")
        if parts.draft_vocab is not None and not cls.takes_draft_vocab:
            raise UsageError(f"drafter {cls.name} takes no --draft-vocab: it has no LM head of its own")

    # a drafter says what it costs: a look-up nothing, heads no cache
    def work(self, model: Model, workload: Workload, runtime: Runtime) -> tuple[PassWork, ...]:
        """Kernels that one verification step of `workload` adds for drafting."""
        del model, workload, runtime
        return ()

    def prompt_work(self, model: Model, workload: Workload, runtime: Runtime) -> tuple[PassWork, ...]:
        """Kernels that reading the prompt of `workload` (phase prefill) adds before the first step."""
        del model, workload, runtime
        return ()

    def weight_bytes(self, model: Model) -> float:
        """Bytes of weights that drafting keeps in memory besides the model's own."""
        del model
        return 0.0

    def kv_bytes_per_token(self, model: Model) -> float:
        """Bytes of KV cache that drafting keeps for each committed token."""
        del model
        return 0.0

    @property
    def nodes_per_level(self) -> int:
        """Drafts that a pass adds to each node of a tree; 1: a chain."""
        return 1

    @property
    def tree_levels(self) -> int:
        """Levels of a tree that it drafts pass by pass; 0 of a chain."""
        return 0

    def kv_slots(self) -> int:
        """Tokens of KV cache that one request holds for drafting besides its committed tokens and candidates.

        As vLLM reserves them (config/speculative.py): rows that only the drafter reads, such as masks.
        """
        return 0


class PassDrafter(Drafter):
    """A drafter of forward passes: some of its own depth, then level after level the same at every depth."""

    __slots__ = ()

    differs_in_rows: ClassVar[bool] = True
    """Whether depths differ in rows alone, so that `own_work` takes several; else in numbers of kernels."""

    depth: int
    """Drafts in a row."""
    width: int
    """Tokens of each sequence that a level drafts."""

    @property
    def nodes_per_level(self) -> int:
        """Its width; SGLang grows trees of draft models (STANDALONE) too, with the code of EAGLE's."""
        return self.width

    @property
    def tree_levels(self) -> int:
        """Its depth, of a tree."""
        return self.depth if self.has_levels and self.nodes_per_level > 1 else 0

    def work(self, model: Model, workload: Workload, runtime: Runtime) -> tuple[PassWork, ...]:
        """Its own passes, then a pass for each level."""
        levels = (self.level_work(model, workload, runtime, level) for level in self.levels(runtime))
        return (*self.own_work(model, workload, runtime, self.depth), *levels)

    def own_work(
        self, model: Model, workload: Workload, runtime: Runtime, depth: Size
    ) -> tuple[PassWork, ...]:
        """The passes before its levels. depth: one, or several along the last axis of the workload."""
        raise NotImplementedError

    def levels(self, runtime: Runtime) -> range:
        """Levels that it drafts one after another; none where all drafts come out of one pass.

        The i-th sees i - 1 levels of its own drafts.
        """
        del runtime
        return range(self.depth if self.has_levels else 0)

    def level_work(self, model: Model, workload: Workload, runtime: Runtime, level: Size) -> PassWork:
        """The pass of a level. level: 0, or some beyond it, several along the last axis of the workload."""
        raise NotImplementedError


def tokens_of_level(workload: Workload, level: Size, width: int) -> Workload:
    """What the pass of a level reads (`PassDrafter.level_work`): one token of each sequence, then `width`."""
    tokens = 1 if np.max(level) == 0 else width
    return Workload(
        phase="decode" if tokens == 1 else "verify",
        batch=workload.batch,
        seq_len=np.asarray(workload.seq_len) + np.asarray(level) * width,
        query_tokens=tokens,
    )


def verified_tokens(workload: Workload, depth: Size) -> Workload:
    """The depth + 1 tokens of each sequence that were verified, as a drafter reads them."""
    seq_len = np.asarray(workload.seq_len)
    return Workload(phase="verify", batch=workload.batch, seq_len=seq_len, query_tokens=np.asarray(depth) + 1)


def as_drafting(launches: Iterable[Launch]) -> tuple[Launch, ...]:
    """The same launches as part of the drafting."""
    return tuple(replace(launch, part="drafter", role=launch.part) for launch in launches)
