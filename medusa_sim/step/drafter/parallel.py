"""Drafters that propose all drafts in one pass over masked positions: P-EAGLE, PARD, DFlash, DSpark."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from medusa_sim.engines.runtime import Runtime
from medusa_sim.models.model import Model
from medusa_sim.operators.operator import Size
from medusa_sim.step.drafter import DrafterName
from medusa_sim.step.drafter.base import verified_tokens
from medusa_sim.step.drafter.draft_model import DraftModel
from medusa_sim.step.drafter.layer import Eagle3, LayerDrafter
from medusa_sim.step.launch import Launch, elementwise_launch, head_launch
from medusa_sim.step.pass_work import PassWork
from medusa_sim.step.workload import Workload
from medusa_sim.units import BYTES_PER_ELEMENT


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
        work = self._pass(
            self._network(model),
            masked(workload, depth),
            runtime,
            fused=verified_tokens(workload, depth),
            logit_rows=np.asarray(depth) * np.asarray(workload.batch),
        )
        return (replace(work, reads_accepted=True),)

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
        work = self._pass(model, masked(workload, depth), self.runtime or runtime)
        return (replace(work, reads_accepted=True),)

    def kv_slots(self) -> int:
        """The masks, and the target's own token, which a model of its own has not seen."""
        return self.depth


@dataclass(frozen=True, slots=True, kw_only=True)
class DFlash(LayerDrafter):
    """DFlash (arXiv 2602.06036): five layers, one non-causal pass over a block, blocks of 8 or 16.

    Features of five target layers are fused, 5h -> h, and projected to the K and V of every draft layer: a
    cache that grows with the context. The block is the target's own token and a mask for each draft; LM head
    and embedding are the target's. Sizes: huggingface.co/z-lab/Qwen3-8B-DFlash-b16.
    """

    name: ClassVar[DrafterName] = "dflash"
    title = "DFlash layers"
    takes_draft_vocab = True
    profiles = ("dflash-",)
    lender = "dflash-qwen3-8b"

    layers: int = 5
    fused_inputs = 5

    def block_tokens(self, depth: Size) -> Size:
        """Rows of the block: the target's token and the masks."""
        return np.asarray(depth) + 1

    def _context(self, model: Model, read: Workload) -> tuple[Launch, ...]:
        """K and V of the tokens read for every draft layer, from the target's features."""
        layer, rows = self._network(model), read.on_one_gpu(model.parallel).tokens
        width = 2 * layer.attention.kv_width
        keys = head_launch(layer, "draft_context", "drafter", rows, width, layer.hidden, self.layers)
        return (self._fusion(model, read), keys)

    def own_work(
        self, model: Model, workload: Workload, runtime: Runtime, depth: Size
    ) -> tuple[PassWork, ...]:
        """The context of the rows that may have been accepted, the block, and logits of every draft."""
        block = Workload(
            phase="verify",
            batch=workload.batch,
            seq_len=workload.seq_len,
            query_tokens=self.block_tokens(depth),
        )
        network = self._network(model)
        return (
            PassWork(
                launches=(
                    *self._context(model, verified_tokens(workload, depth)),
                    *self._layers(network, block, runtime),
                    *self._logits(network, depth * np.asarray(workload.batch)),
                ),
                runtime=runtime,
                workload=block,
                name="draft",
                layers=self.layers,
                reads_accepted=True,
            ),
        )

    def prompt_work(self, model: Model, workload: Workload, runtime: Runtime) -> tuple[PassWork, ...]:
        """The context of the prompt alone: its tokens pass through no draft layer."""
        launches = self._context(model, workload)
        return (PassWork(launches=launches, runtime=runtime, workload=workload, name="continued"),)

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

    name: ClassVar[DrafterName] = "dspark"
    title = "DSpark layers"
    profiles = ("dspark-",)
    lender = "dspark-deepseek-v4-pro"
    differs_in_rows = False

    rank: int = 256

    def block_tokens(self, depth: Size) -> Size:
        """Rows of the block: one for each draft."""
        return depth

    def _logits(self, network: Model, rows: Size) -> tuple[Launch, ...]:
        """The LM head; tokens are chosen draft by draft, with the bias of the token before."""
        return DFlash._logits(self, network, rows)[:-1]

    def own_work(
        self, model: Model, workload: Workload, runtime: Runtime, depth: Size
    ) -> tuple[PassWork, ...]:
        """The parallel pass, then `depth` times the Markov head and sampling."""
        layer = self._network(model)
        batch, vocab, times = workload.batch, layer.vocab, self.depth
        heads = (
            elementwise_launch(layer, "markov_embedding", "embedding", "drafter", batch, self.rank, times),
            head_launch(layer, "markov_head", "drafter", batch, vocab, self.rank, times),
            elementwise_launch(layer, "markov_bias", "residual", "drafter", batch, vocab, times),
            elementwise_launch(layer, "next_token", "next_token", "drafter", batch, layer.whole_vocab, times),
            head_launch(layer, "draft_confidence", "drafter", batch, 1, layer.hidden + self.rank, times),
        )
        steps = PassWork(launches=heads, runtime=runtime, workload=workload, name="continued")
        return (*DFlash.own_work(self, model, workload, runtime, depth), steps)

    def weight_bytes(self, model: Model) -> float:
        """As DFlash, with both sides of the Markov head and the confidence's row."""
        head_weights = self.rank * (model.whole_vocab + self._network(model).vocab) + model.hidden + self.rank
        return DFlash.weight_bytes(self, model) + BYTES_PER_ELEMENT[model.activation_dtype] * head_weights

    def kv_slots(self) -> int:
        """The masks of the block, which starts at an accepted token."""
        return self.depth - 1
