"""Drafters that propose all drafts in one pass over masked positions: P-EAGLE, PARD."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from medusa_sim.operators.operator import Size
from medusa_sim.specs.model import Model
from medusa_sim.specs.runtime import Runtime
from medusa_sim.step.drafter import DrafterName
from medusa_sim.step.drafter.draft_model import DraftModel
from medusa_sim.step.drafter.layer import Eagle3
from medusa_sim.step.pass_work import PassWork
from medusa_sim.step.workload import Workload


def masked(workload: Workload, depth: Size) -> Workload:
    """The rows of one parallel pass: depth + 1 that verification may have accepted and depth - 1 masks.

    The last accepted row proposes the first draft, each mask one more. TensorRT-LLM counts the same 2 K rows
    (pull request 12262).
    """
    return Workload(phase="verify", batch=workload.batch, seq_len=workload.seq_len, query_tokens=2 * depth)


@dataclass(frozen=True, slots=True, kw_only=True)
class PEagle(Eagle3):
    """P-EAGLE (arXiv 2602.01469): four layers fed as EAGLE-3 is, all drafts in one pass.

    `parallel_drafting` of vLLM's method eagle3 (pull request 32887); four layers as in the released
    checkpoints (huggingface.co/amazon/gpt-oss-120b-p-eagle).
    """

    name: ClassVar[DrafterName] = "p-eagle"
    title = "P-EAGLE layers"
    has_levels = False
    falls_as = "every"
    profiles = ("p-eagle-",)
    lender = "p-eagle-gpt-oss-120b"

    layers: int = 4

    def own_work(
        self, model: Model, workload: Workload, runtime: Runtime, depth: Size
    ) -> tuple[PassWork, ...]:
        """One pass; logits of the `depth` rows that propose."""
        network, rows = self._network(model), masked(workload, depth)
        proposing = np.asarray(depth) * np.asarray(workload.batch)
        whole = self._pass(network, rows, runtime, logit_rows=proposing)
        return (replace(whole, reads_accepted=True),)

    def kv_slots(self) -> int:
        """The masks."""
        return self.depth - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Pard(DraftModel):
    """PARD (arXiv 2504.18583): a small language model that was taught to fill masks, in one pass.

    One checkpoint drafts for a family of targets; it needs none of their features.
    """

    name: ClassVar[DrafterName] = "pard"
    title = "PARD model"
    has_levels = False

    def own_work(
        self, model: Model, workload: Workload, runtime: Runtime, depth: Size
    ) -> tuple[PassWork, ...]:
        """One pass of the draft model over the new tokens and the masks; its logits on all of them."""
        whole = self._pass(model, masked(workload, depth), self.runtime or runtime)
        return (replace(whole, reads_accepted=True),)

    def levels(self, runtime: Runtime) -> range:
        """None: all drafts come out of one pass."""
        del runtime
        return range(0)

    def kv_slots(self) -> int:
        """The masks, and the target's own token, which a model of its own has not seen."""
        return self.depth
