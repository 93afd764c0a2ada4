"""Trials on this device: which tree pays, what a method gains over plain decoding, how texts differ.

A tree is sized by real steps: the expected tokens per step over the time of a step of that size. A method
and plain decoding take turns on the same prompts.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from medusa_sim.acceptance.engine_counters import AcceptanceCounts, combined, counts_of_listed
from medusa_sim.acceptance.heads import HeadAccuracy, expected_tokens_per_step, optimal_order
from medusa_sim.errors import UsageError
from medusa_sim.lab.decoder.cache import KVCache
from medusa_sim.lab.decoder.checkpoint import Checkpoint
from medusa_sim.lab.decoder.drafter import Drafter, NoDrafter
from medusa_sim.lab.decoder.fixed_shapes import FixedForward
from medusa_sim.lab.decoder.generate import generate
from medusa_sim.lab.decoder.generation import GenerationRun, GenerationSettings
from medusa_sim.lab.decoder.medusa_drafter import MedusaDrafter
from medusa_sim.lab.decoder.model import Llama

SIZES = (1, 4, 8, 2, 16, 3, 6)
"""Candidates that are timed, the most telling first: a slow model has its budget used up by the first."""
_ON_CUDA = (1, 16, 64, 8, 32, 4, 48)
_TOKENS = 12
"""New tokens of one timed run."""
LEAST_GAIN = 1.03
"""Below this a tree is not worth its trouble, and timing does not tell it from 1."""
BATCH = 16
"""Texts that are counted together."""
ROUNDS, ENOUGH_S = 3, 2.0
"""Runs of each, and the time after which one is enough."""


@dataclass(frozen=True, slots=True)
class Sizing:
    """Seconds of a step and expected tokens per step by candidates, 1 being plain decoding."""

    step_s: dict[int, float]
    tokens_per_step: dict[int, float]

    def gain(self, candidates: int) -> float:
        """Expected speedup over plain decoding."""
        return self.tokens_per_step[candidates] * self.step_s[1] / self.step_s[candidates]

    @property
    def best(self) -> int:
        """Candidates with the largest gain; 1 where no tree gains enough to tell."""
        best = max(self.step_s, key=self.gain)
        return best if self.gain(best) >= LEAST_GAIN else 1

    @property
    def best_tree(self) -> int:
        """The same among trees alone, whether or not it gains."""
        return max((size for size in self.step_s if size > 1), key=self.gain)


def sizing(
    target: Checkpoint,
    accuracy: HeadAccuracy,
    prompts: Sequence[Sequence[int]],
    settings: GenerationSettings,
    *,
    budget_s: float = 0.3,
    make_forward: Callable[[Llama, KVCache], FixedForward] | None = None,
) -> Sizing:
    """Times short generations of the prompts by tree size, in turns, for about `budget_s`.

    Plain decoding and one tree are always timed. The fastest run of a size counts: other work on the
    machine only adds. Raises UsageError where the checkpoint has no heads, and where one new token is asked
    for: prefill gives that, so that there is no step to time.
    """
    if target.heads is None:
        raise UsageError(f"{target.path} has no Medusa heads; there is no tree to choose")
    if settings.max_new_tokens < 2:
        raise UsageError(
            f"max_new_tokens is {settings.max_new_tokens}: prefill gives the first token and no step "
            "is left to time; ask for 2 or more"
        )
    wanted = _ON_CUDA if target.model.device.type == "cuda" else SIZES
    sizes = [size for size in wanted if size <= target.model.config.vocab_size]
    order = optimal_order(accuracy, max(sizes))
    drafters: dict[int, Drafter] = {
        size: MedusaDrafter(target.model, target.heads, order.tree(size)) if size > 1 else NoDrafter()
        for size in sizes
    }
    short = replace(settings, max_new_tokens=min(_TOKENS, settings.max_new_tokens), stop_at_end_of_text=False)
    step_s: dict[int, float] = {}
    began = time.perf_counter()
    while True:
        for size, drafter in drafters.items():
            if time.perf_counter() - began > budget_s and len(step_s) >= min(2, len(sizes)):
                tokens = {n: expected_tokens_per_step(order.tree(n), accuracy) for n in step_s}
                return Sizing(step_s, tokens)
            run = generate(target.model, prompts, short, drafter, make_forward=make_forward)
            if run.steps:
                seconds = run.decode_s / run.steps
                step_s[size] = min(step_s.get(size, seconds), seconds)


@dataclass(frozen=True, slots=True)
class BesidePlain:
    """The fastest run of a method and, if it was asked for, of plain decoding."""

    run: GenerationRun
    plain: GenerationRun | None

    @property
    def tokens_per_step(self) -> float:
        """Mean tokens that a step emits, over the steps of all sequences."""
        return _emitted(self.run) / max(sum(s.steps for s in self.run.sequences), 1)

    @property
    def gain(self) -> float | None:
        """Tokens per second of steps, over those of plain decoding."""
        if self.plain is None or not self.run.steps or not self.plain.steps:
            return None
        return _emitted(self.run) / self.run.decode_s * self.plain.decode_s / _emitted(self.plain)

    @property
    def cost(self) -> float | None:
        """Seconds of a step, over those of a plain step."""
        if self.plain is None or not self.run.steps or not self.plain.steps:
            return None
        return self.run.decode_s / self.run.steps * self.plain.steps / self.plain.decode_s


def _emitted(run: GenerationRun) -> int:
    return sum(len(sequence.token_ids) - 1 for sequence in run.sequences)


def compare(
    model: Llama,
    prompts: Sequence[Sequence[int]],
    settings: GenerationSettings,
    plain_settings: GenerationSettings,
    drafter: Drafter,
    *,
    baseline: bool,
    make_forward: Callable[[Llama, KVCache], FixedForward] | None = None,
    first_allowed: Tensor | None = None,
) -> BesidePlain:
    """Runs the method, and plain decoding if `baseline`, in turns; seeds are the same, so are the texts.

    A first run of each pays for allocations and counts only where the time is up after it.
    """
    turns: dict[str, tuple[GenerationSettings, Drafter | None]] = {"method": (settings, drafter)}
    if baseline:
        turns["plain"] = (plain_settings, None)
    fastest: dict[str, GenerationRun] = {}
    began = time.perf_counter()
    for _ in range(1 + ROUNDS):
        for name, (given, with_drafter) in turns.items():
            run = generate(
                model, prompts, given, with_drafter, make_forward=make_forward, first_allowed=first_allowed
            )
            if name not in fastest or run.decode_s < fastest[name].decode_s:
                fastest[name] = run
        if time.perf_counter() - began > ENOUGH_S:
            break
    return BesidePlain(fastest["method"], fastest.get("plain"))


def acceptance_counts(
    model: Llama, prompts: Sequence[Sequence[int]], settings: GenerationSettings, drafter: Drafter, depth: int
) -> AcceptanceCounts:
    """What a method accepts at each position of its drafts, and how far texts differ in it (`spread`).

    depth: drafts of a step, of which a look-up may find fewer, or none. The last step of a text, which its
    end cuts off, is left out. Raises DataError where nothing was drafted.
    """
    parts = []
    for i in range(0, len(prompts), BATCH):
        for text in generate(model, prompts[i : i + BATCH], settings, drafter).sequences:
            accepted = text.accepted_lengths[:-1]
            drafted = (text.found_lengths or [depth] * len(accepted))[: len(accepted)]
            parts.append(counts_of_listed(drafted, accepted, engine="medusa-sim decode"))
    return combined(parts)
