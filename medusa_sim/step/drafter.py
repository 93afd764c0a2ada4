"""What drafting costs, apart from what it gains: kernels launched once for each verification step.

Every drafting method is one of these beside the same verification step. Acceptance is another
matter (`medusa_sim.acceptance`); the two do not know each other.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from medusa_sim.operators.operator import Size
from medusa_sim.specs.model import Model
from medusa_sim.specs.runtime import Runtime
from medusa_sim.step.compose import Pass
from medusa_sim.step.workload import Launch, Workload, elementwise_launch, head_launch, model_launches
from medusa_sim.units import BYTES_PER_ELEMENT


@dataclass(frozen=True, slots=True, kw_only=True)
class PassWork:
    """Kernels launched one after another, the runtime that launches them, and what they are for.

    of: a forward pass of the target or of a drafter, or heads that continue the pass before them. workload:
    the tokens that pass through, by which engines charge. layers: of the network that passes.
    """

    launches: tuple[Launch, ...]
    runtime: Runtime
    workload: Workload
    of: Pass
    layers: int = 0


class Drafter(Protocol):
    """Anything that proposes candidates."""

    @property
    def name(self) -> str:
        """Short name, as the command line takes it."""
        ...

    def work(self, model: Model, workload: Workload, runtime: Runtime) -> tuple[PassWork, ...]:
        """Kernels that one verification step of `workload` adds for drafting."""
        ...

    def prompt_work(self, model: Model, workload: Workload, runtime: Runtime) -> tuple[PassWork, ...]:
        """Kernels that reading the prompt of `workload` (phase prefill) adds before the first step."""
        ...

    def weight_bytes(self, model: Model) -> float:
        """Bytes of weights that drafting keeps in memory beside the model's own."""
        ...

    def kv_bytes_per_token(self, model: Model) -> float:
        """Bytes of KV cache that drafting keeps for each committed token."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class MedusaHeads:
    """K Medusa heads: each a residual layer x + SiLU(Wx + b) and an output layer (Medusa 2.1.1).

    own_output_layers: each head keeps a vocab x hidden matrix of its own (the public checkpoints);
    otherwise the base LM head is shared and only read again.
    """

    heads: int = 5
    own_output_layers: bool = True
    name: str = "medusa"

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
        hidden, vocab = model.hidden, model.vocab
        launches = (
            head_launch(model, "medusa_residual", "drafter", rows, hidden, hidden, self.heads),
            elementwise_launch(model, "medusa_silu", "residual", "drafter", rows, hidden, self.heads),
            head_launch(model, "medusa_output", "drafter", rows, vocab, hidden, self.heads),
            elementwise_launch(
                model, "medusa_topk", "next_token", "drafter", workload.batch, vocab, self.heads
            ),
        )
        return (PassWork(launches=launches, runtime=runtime, workload=workload, of="continued"),)

    def weight_bytes(self, model: Model) -> float:
        """K (h^2 + h), and K h vocab where the output layers are the heads' own."""
        element = BYTES_PER_ELEMENT[model.activation_dtype]
        residual = self.heads * model.hidden * (model.hidden + 1)
        output = self.heads * model.hidden * model.vocab if self.own_output_layers else 0
        return element * (residual + output)

    def kv_bytes_per_token(self, model: Model) -> float:
        """Heads read the last hidden state only."""
        del model
        return 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class NoDrafter:
    """Drafts that cost nothing on the GPU: n-gram look-up in the prompt, or a bare verification step."""

    name: str = "ngram"

    def work(self, model: Model, workload: Workload, runtime: Runtime) -> tuple[PassWork, ...]:
        """Nothing."""
        del model, workload, runtime
        return ()

    def prompt_work(self, model: Model, workload: Workload, runtime: Runtime) -> tuple[PassWork, ...]:
        """Nothing."""
        del model, workload, runtime
        return ()

    def weight_bytes(self, model: Model) -> float:
        """Nothing."""
        del model
        return 0.0

    def kv_bytes_per_token(self, model: Model) -> float:
        """Nothing."""
        del model
        return 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftModel:
    """A small autoregressive model that drafts `depth` levels, `width` tokens of each sequence a level.

    It has its own runtime: the draft of a Hugging Face script is bound by its launches, the draft of
    a serving engine by its kernels. The first pass reads one token a sequence (two when every draft was
    accepted, which is taken as one).
    """

    draft: Model
    depth: int
    width: int = 1
    runtime: Runtime | None = None
    name: str = "draft-model"

    def work(self, model: Model, workload: Workload, runtime: Runtime) -> tuple[PassWork, ...]:
        """`depth` forward passes one after another; the i-th sees i - 1 levels of its own drafts."""
        del model
        own = self.runtime or runtime
        return tuple(self._pass(level, own) for level in _levels(workload, self.depth, self.width))

    def prompt_work(self, model: Model, workload: Workload, runtime: Runtime) -> tuple[PassWork, ...]:
        """The draft model reads the prompt as well."""
        del model
        own = self.runtime or runtime
        return (self._pass(workload, own),)

    def _pass(self, workload: Workload, runtime: Runtime) -> PassWork:
        launches = _as_drafting(model_launches(self.draft, workload, runtime))
        return PassWork(
            launches=launches, runtime=runtime, workload=workload, of="draft", layers=self.draft.layers
        )

    def weight_bytes(self, model: Model) -> float:
        """All weights of the draft model."""
        del model
        return self.draft.weight_bytes

    def kv_bytes_per_token(self, model: Model) -> float:
        """The draft model keeps a cache of its own."""
        del model
        return self.draft.kv_bytes_per_token


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerDrafter:
    """A drafter of `layers` decoder layers of the target's width, run `depth` times.

    `eagle`: one layer fed by a fusion of token and feature, 2h -> h (EAGLE, arXiv 2401.15077, section
    3; EAGLE-3 fuses three features, arXiv 2503.01840, section 3.1: `fused_inputs` 3), with the target's
    LM head or one of its own over `draft_vocab` tokens. `mtp`: the multi-token-prediction module of
    DeepSeek-V3 (arXiv 2412.19437, section 2.2): the same shape, the module repeated for each further token.

    The first pass reads the depth + 1 rows that the last verification may have accepted, since it
    needs their features; the LM head looks at the last of them.
    """

    depth: int
    width: int = 1
    layers: int = 1
    draft_vocab: int | None = None
    fused_inputs: int = 2
    name: str = "eagle"

    def _layer(self, model: Model) -> Model:
        return model.resized(layers=self.layers, vocab=self.draft_vocab or model.vocab)

    def _pass(self, model: Model, workload: Workload, runtime: Runtime, *, last_row: bool) -> PassWork:
        layer = self._layer(model)
        launches = _as_drafting(model_launches(layer, workload, runtime))
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
        first, *later = _levels(workload, self.depth, self.width)
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
        own_head = self.draft_vocab * model.hidden if self.draft_vocab else 0
        return element * (self.layers * model.layer_parameter_count + fusion + own_head)

    def kv_bytes_per_token(self, model: Model) -> float:
        """One layer's share of the target's cache, per draft layer."""
        return model.kv_bytes_per_token * self.layers / model.layers


_LOGIT_OPERATORS = ("lm_head", "next_token")


def _levels(workload: Workload, depth: int, width: int) -> tuple[Workload, ...]:
    """The forward passes of `depth` levels: one token a sequence first, then `width`."""
    return tuple(
        Workload(
            phase="decode" if width == 1 or level == 0 else "verify",
            batch=workload.batch,
            seq_len=np.asarray(workload.seq_len) + level * width,
            query_tokens=1 if level == 0 else width,
        )
        for level in range(depth)
    )


def _as_drafting(launches: tuple[Launch, ...]) -> tuple[Launch, ...]:
    return tuple(replace(launch, part="drafter") for launch in launches)


def acceptance_launches(model: Model, workload: Workload, depth: int) -> tuple[Launch, ...]:
    """Tree bookkeeping, acceptance and cache compaction after the LM head.

    Gathering the candidates, comparing them with the target's choice, the running product along the
    paths and the best path are four kernels over the candidates; compaction copies the KV rows of at
    most depth + 1 accepted tokens of every layer.
    """
    kv_width = 2 * model.kv_heads * model.head_dim
    moved = np.asarray(workload.batch) * ((depth + 1) * model.layers)
    return (
        elementwise_launch(model, "tree_bookkeeping", "residual", "accept", workload.tokens, depth + 1, 4),
        elementwise_launch(model, "cache_compaction", "embedding", "accept", moved, kv_width),
    )
