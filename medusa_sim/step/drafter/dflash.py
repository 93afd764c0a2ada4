"""DFlash: a block of drafts out of one pass that attends to features of the target.

DSpark is DFlash with a small head that runs draft by draft.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from medusa_sim.operators.operator import Size
from medusa_sim.specs.model import Model
from medusa_sim.specs.runtime import Runtime
from medusa_sim.step.compose import PassWork
from medusa_sim.step.drafter.layer import LayerDrafter
from medusa_sim.step.workload import Launch, Workload, elementwise_launch, head_launch
from medusa_sim.units import BYTES_PER_ELEMENT


@dataclass(frozen=True, slots=True, kw_only=True)
class DFlash(LayerDrafter):
    """DFlash (arXiv 2602.06036): five layers, one non-causal pass over a block, blocks of 8 or 16.

    Features of five target layers are fused, 5h -> h, and projected to the K and V of every draft layer: a
    cache that grows with the context. The block is the target's own token and a mask for each draft; LM head
    and embedding are the target's. Sizes: huggingface.co/z-lab/Qwen3-8B-DFlash-b16.
    """

    layers: int = 5
    fused_inputs: int = 5

    name: ClassVar[str] = "dflash"
    title: ClassVar[str] = "DFlash layers"
    has_levels: ClassVar[bool] = False
    profiles: ClassVar[tuple[str, ...]] = ("dflash-",)
    lender: ClassVar[str] = "dflash-qwen3-8b"

    def block_tokens(self) -> int:
        """Rows of the block: the target's token and the masks."""
        return self.depth + 1

    def _context(self, model: Model, rows: Size) -> tuple[Launch, ...]:
        """K and V of `rows` tokens for every draft layer, from the target's features."""
        layer = self._network(model)
        width = 2 * layer.attention.kv_width
        keys = head_launch(layer, "draft_context", "drafter", rows, width, layer.hidden, self.layers)
        return (self._fusion(model, rows), keys)

    def work(self, model: Model, workload: Workload, runtime: Runtime) -> tuple[PassWork, ...]:
        """The context of the rows that may have been accepted, the block, and logits of every draft."""
        block = Workload(
            phase="verify",
            batch=workload.batch,
            seq_len=workload.seq_len,
            query_tokens=self.block_tokens(),
        )
        return (
            PassWork(
                launches=(
                    *self._context(model, np.asarray(workload.batch) * (self.depth + 1)),
                    *self._layers(model, block, runtime),
                    *self._logits(model, self.depth * np.asarray(workload.batch)),
                ),
                runtime=runtime,
                workload=block,
                of="draft",
                layers=self.layers,
            ),
        )

    def prompt_work(self, model: Model, workload: Workload, runtime: Runtime) -> tuple[PassWork, ...]:
        """The context of the prompt alone: its tokens pass through no draft layer."""
        launches = self._context(model, workload.tokens)
        return (PassWork(launches=launches, runtime=runtime, workload=workload, of="continued"),)

    def kv_slots(self) -> int:
        """The masks of the block."""
        return self.depth


@dataclass(frozen=True, slots=True, kw_only=True)
class DSpark(DFlash):
    """DSpark (arXiv 2607.05147): the pass of DFlash, then a Markov head for each draft, and a confidence.

    The Markov head adds a bias of low rank to the logits of a position, from the token drafted before it
    (docs.vllm.ai/projects/speculators, algorithms/dspark): a row of an embedding of `rank` columns times a
    rank x vocabulary matrix. The block starts at the last accepted token, which proposes the first draft.
    A linear layer gives each draft a confidence, by which an engine may verify fewer of them: a budget of
    B <= N K drafts over N requests. Priced is the same number for each request, the least that it gives.
    """

    rank: int = 256

    name: ClassVar[str] = "dspark"
    title: ClassVar[str] = "DSpark layers"
    profiles: ClassVar[tuple[str, ...]] = ("dspark-",)
    lender: ClassVar[str] = "dspark-deepseek-v4-pro"

    def block_tokens(self) -> int:
        """Rows of the block: one for each draft."""
        return self.depth

    def _logits(self, model: Model, rows: Size) -> tuple[Launch, ...]:
        """The LM head; tokens are chosen draft by draft, with the bias of the token before."""
        return DFlash._logits(self, model, rows)[:-1]

    def work(self, model: Model, workload: Workload, runtime: Runtime) -> tuple[PassWork, ...]:
        """The parallel pass, then `depth` times the Markov head and the choice of a token."""
        layer = self._network(model)
        batch, vocab, times = workload.batch, layer.vocab, self.depth
        heads = (
            elementwise_launch(layer, "markov_embedding", "embedding", "drafter", batch, self.rank, times),
            head_launch(layer, "markov_head", "drafter", batch, vocab, self.rank, times),
            elementwise_launch(layer, "markov_bias", "residual", "drafter", batch, vocab, times),
            elementwise_launch(layer, "next_token", "next_token", "drafter", batch, layer.whole_vocab, times),
            head_launch(layer, "draft_confidence", "drafter", batch, 1, layer.hidden + self.rank, times),
        )
        steps = PassWork(launches=heads, runtime=runtime, workload=workload, of="continued")
        return (*DFlash.work(self, model, workload, runtime), steps)

    def weight_bytes(self, model: Model) -> float:
        """As DFlash, with both sides of the Markov head and the confidence's row."""
        own = self.rank * (model.whole_vocab + self._network(model).vocab) + model.hidden + self.rank
        return DFlash.weight_bytes(self, model) + BYTES_PER_ELEMENT[model.activation_dtype] * own

    def kv_slots(self) -> int:
        """The masks of the block, which starts at an accepted token."""
        return self.depth - 1
