"""A method beside plain decoding on the same prompts, in turns: what was gained, and why."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor

from medusa_sim.decoder.cache import KVCache
from medusa_sim.decoder.generate import Drafter, GenerationRun, GenerationSettings, MadeForward, generate
from medusa_sim.decoder.model import Llama

ROUNDS, ENOUGH_S = 3, 2.0
"""Runs of each, and the time after which one is enough."""


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
    make_forward: Callable[[Llama, KVCache], MadeForward] | None = None,
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
