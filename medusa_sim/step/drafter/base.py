"""What every drafter says of itself: its names, what it needs, and what it costs beside a verification step.

Every drafting method is one class of this kind, registered by its name (`step.drafter`). Acceptance is
another matter (`medusa_sim.acceptance`); the two do not know each other.

`Medusa`: K small networks on the target's last hidden state (arXiv 2401.10774, 2.1.1).
`FreeDrafter` and `Suffix` cost the GPU nothing: drafts are looked up in the text, or there are none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields, replace
from typing import ClassVar, Self

import numpy as np

from medusa_sim.errors import UsageError
from medusa_sim.operators.operator import Size
from medusa_sim.specs.model import Model
from medusa_sim.specs.runtime import Runtime
from medusa_sim.step.compose import PassWork
from medusa_sim.step.drafter import DrafterName
from medusa_sim.step.workload import Launch, Workload, elementwise_launch, head_launch
from medusa_sim.units import BYTES_PER_ELEMENT


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What a drafter is made of, before its depth is chosen.

    heads: trained Medusa heads. draft: the model of `draft-model` and `pard`, launched by `draft_runtime`
    (None: as the target). draft_vocab: output tokens of a layer drafter's own head (None: its default, the
    target's LM head where it has none). modules: MTP modules that the target was trained with.
    """

    heads: int = 5
    draft: Model | None = None
    draft_runtime: Runtime | None = None
    draft_vocab: int | None = None
    modules: int = 1


class Drafter:
    """Anything that proposes candidates: its cost at one depth and width.

    name: as the command line takes it. title: in a sentence. unit: what is run in a row (`head`, `draft`).
    default_runtime: the runtime that it is priced under where none is named.
    pays_per_draft: each further draft costs a pass or rows of one, so that a curve of tree sizes cannot
    describe it.
    has_levels: drafts level by level, so many nodes each. looks_up: finds drafts in the text or none.
    falls_as: whose rates tell how a chain's fall beyond what was measured (`acceptance.deeper`), empty where
    nothing does.
    takes_draft_model, takes_draft_vocab: which
    `Parts` it uses. profiles: prefixes of its shipped acceptance profiles, best first; lender: the profile
    that a model without one of its own borrows, or a typical one that nobody measured for it.
    """

    __slots__ = ()

    name: ClassVar[DrafterName]
    title: ClassVar[str]
    unit: ClassVar[str] = "draft"
    default_runtime: ClassVar[str] = "vllm"
    pays_per_draft: ClassVar[bool] = True
    has_levels: ClassVar[bool] = False
    looks_up: ClassVar[bool] = False
    falls_as: ClassVar[str] = "every"
    takes_draft_model: ClassVar[bool] = False
    takes_draft_vocab: ClassVar[bool] = False
    profiles: ClassVar[tuple[str, ...]]
    lender: ClassVar[str]

    @classmethod
    def of(cls, parts: Parts, depth: int, width: int = 1) -> Self:
        """The drafter for draft length `depth`, `width` children a level.

        Of Medusa as many heads as the tree is deep: the others need not run.
        """
        told = {
            "depth": depth,
            "width": width,
            "heads": depth,
            "draft": parts.draft,
            "runtime": parts.draft_runtime,
            "draft_vocab": parts.draft_vocab,
            "modules": parts.modules,
        }
        own = {entry.name for entry in fields(cls)}  # type: ignore[arg-type]  # every drafter is a dataclass
        return cls(**{name: value for name, value in told.items() if name in own})

    @classmethod
    def lengths(cls, parts: Parts, longest: int) -> tuple[int, ...]:
        """Draft lengths that it can run, up to `longest`."""
        del parts
        return tuple(range(1, longest + 1))

    @classmethod
    def check(cls, parts: Parts, target: Model) -> None:
        """Raise UsageError for parts that it lacks or does not take, or a target that it cannot draft for."""
        del target
        cls.check_parts(parts)

    @classmethod
    def check_parts(cls, parts: Parts) -> None:
        """Raise UsageError for parts that it lacks or does not take."""
        if cls.takes_draft_model != (parts.draft is not None):
            needed = "needs" if cls.takes_draft_model else "takes no"
            raise UsageError(
                f"drafter {cls.name} {needed} --draft-model NAME (as in --draft-model llama-68m)"
            )
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
        """Bytes of weights that drafting keeps in memory beside the model's own."""
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

    def kv_slots(self) -> int:
        """Tokens of KV cache that one request holds for drafting beside its committed tokens and candidates.

        As vLLM reserves them (config/speculative.py): rows that only the drafter reads, such as masks.
        """
        return 0


def level_passes(
    workload: Workload, levels: range, width: int, make: Callable[[Workload], PassWork]
) -> tuple[PassWork, ...]:
    """The forward passes of some levels: one token a sequence at level 0, then `width`.

    A level is the same at every depth of its drafter; `make` is asked once for each on a grid.
    """
    kept = {} if workload.kept is None else workload.kept
    for level in levels:
        if (width, level) not in kept:
            tokens = 1 if level == 0 else width
            of_level = Workload(
                phase="decode" if tokens == 1 else "verify",
                batch=workload.batch,
                seq_len=np.asarray(workload.seq_len) + level * width,
                query_tokens=tokens,
            )
            kept[width, level] = make(of_level)
    return tuple(kept[width, level] for level in levels)


def verified_tokens(workload: Workload, depth: int) -> Workload:
    """The depth + 1 tokens of each sequence that were verified, as a drafter reads them."""
    seq_len = np.asarray(workload.seq_len)
    return Workload(phase="verify", batch=workload.batch, seq_len=seq_len, query_tokens=depth + 1)


def as_drafting(launches: Iterable[Launch]) -> tuple[Launch, ...]:
    """The same launches as part of the drafting."""
    return tuple(replace(launch, part="drafter") for launch in launches)


@dataclass(frozen=True, slots=True, kw_only=True)
class FreeDrafter(Drafter):
    """Drafts that cost nothing on the GPU: n-gram look-up in the prompt, or a bare verification step."""

    name: ClassVar[DrafterName] = "ngram"
    title = "n-gram drafts"
    pays_per_draft = False
    looks_up = True
    falls_as = ""
    profiles = ("ngram-",)
    lender = "typical-ngram"


@dataclass(frozen=True, slots=True, kw_only=True)
class Suffix(FreeDrafter):
    """Suffix decoding (arXiv 2411.04975): a tree of suffixes of prompt and earlier outputs, on the host.

    Drafts are as long as the match promises, so their number varies by request: a count of candidates is the
    mean of the steps that find any, and their share is the match rate.
    """

    name: ClassVar[DrafterName] = "suffix"
    title = "suffix drafts"
    profiles = ("suffix-",)
    lender = "typical-suffix"


@dataclass(frozen=True, slots=True, kw_only=True)
class Medusa(Drafter):
    """K Medusa heads: each a residual layer x + SiLU(Wx + b) and an output layer (Medusa 2.1.1).

    own_output_layers: each head keeps a vocab x hidden matrix of its own (the public checkpoints);
    otherwise the base LM head is shared and only read again.
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
    own_output_layers: bool = True

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
