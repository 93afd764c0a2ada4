"""Medusa: K small networks on the target's last hidden state (arXiv 2401.10774, 2.1.1)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Self

from medusa_sim.engines.runtime import Runtime
from medusa_sim.models.model import Model
from medusa_sim.operators.operator import Size
from medusa_sim.step.drafter import DrafterName
from medusa_sim.step.drafter.base import Drafter, DrafterParts, as_drafting
from medusa_sim.step.exchange import logit_exchange
from medusa_sim.step.launch import elementwise_launch, head_launch
from medusa_sim.step.pass_work import PassWork
from medusa_sim.step.workload import Workload
from medusa_sim.units import BYTES_PER_ELEMENT


@dataclass(frozen=True, slots=True, kw_only=True)
class Medusa(Drafter):
    """K Medusa heads: each a residual layer x + SiLU(Wx + b) and an output layer (Medusa 2.1.1).

    Each head keeps a vocab x hidden matrix of its own, as in the public checkpoints.
    """

    name: ClassVar[DrafterName] = "medusa"
    title = "Medusa heads"
    unit = "head"
    default_runtime = "cuda-graph"
    pays_per_draft = False
    falls_as = ""
    profiles = ("medusa1-",)
    lender = "medusa1-vicuna-7b"

    heads: int = 5

    @classmethod
    def sized(cls, parts: DrafterParts, depth: int, width: int = 1) -> Self:
        """As many heads as the tree is deep: the others need not run."""
        del parts, width
        return cls(heads=depth)

    def work(self, model: Model, workload: Workload, runtime: Runtime) -> tuple[PassWork, ...]:
        """Heads run on every candidate, as public code does, or on the accepted row alone.

        With all rows the drafts of the next step are ready whichever candidate is accepted.
        """
        rows: Size = workload.tokens if runtime.head_rows == "all" else workload.batch
        return self._heads_on(model, workload, rows, runtime)

    def prompt_work(self, model: Model, workload: Workload, runtime: Runtime) -> tuple[PassWork, ...]:
        """The heads on the prompt's last row, so that the first step has drafts."""
        return self._heads_on(model, workload, workload.batch, runtime)

    def _heads_on(
        self, model: Model, workload: Workload, rows: Size, runtime: Runtime
    ) -> tuple[PassWork, ...]:
        hidden, heads, batch = model.hidden, self.heads, workload.batch
        gathered = as_drafting(logit_exchange(model, rows))  # each GPU has a part of a head's logits
        launches = (
            head_launch(model, "medusa_residual", "drafter", rows, hidden, hidden, heads),
            elementwise_launch(model, "medusa_silu", "residual", "drafter", rows, hidden, heads),
            head_launch(model, "medusa_output", "drafter", rows, model.vocab, hidden, heads),
            *(replace(gather, count=heads) for gather in gathered),
            # public code chooses children of the accepted token alone, whatever rows the heads ran on
            elementwise_launch(
                model, "medusa_topk", "next_token", "drafter", batch, model.whole_vocab, heads
            ),
        )
        return (PassWork(launches=launches, runtime=runtime, workload=workload, name="continued"),)

    def weight_bytes(self, model: Model) -> float:
        """K (h^2 + h + h vocab)."""
        element = BYTES_PER_ELEMENT[model.activation_dtype]
        residual = self.heads * model.hidden * (model.hidden + 1)
        output = self.heads * model.hidden * model.vocab
        return element * (residual + output)
