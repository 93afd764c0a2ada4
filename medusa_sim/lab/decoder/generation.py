"""What is generated: settings, a sequence with its steps, a batch's sequences with their times."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from medusa_sim.errors import UsageError
from medusa_sim.lab.decoder.accept import DELTA, EPSILON
from medusa_sim.lab.decoder.arguments import ACCEPTANCE_RULE, SEED_MAX, AcceptanceRule
from medusa_sim.lab.decoder.model import Llama


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationSettings:
    """When to stop and how to choose."""

    max_new_tokens: int
    temperature: float = 0.0
    """0 is greedy, whatever the acceptance rule."""
    acceptance_rule: AcceptanceRule = ACCEPTANCE_RULE
    epsilon: float = EPSILON
    delta: float = DELTA
    seed: int = 0
    stop_at_end_of_text: bool = True
    draw_typical: bool = False
    """Under typical acceptance: draw the token after the kept path instead of taking the argmax."""

    @property
    def applied_rule(self) -> AcceptanceRule:
        """The acceptance rule at this temperature."""
        return "greedy" if self.temperature == 0.0 else self.acceptance_rule


@dataclass(slots=True)
class Generation:
    """One sequence and its steps."""

    prompt: list[int]
    token_ids: list[int] = field(default_factory=list)
    """New tokens."""
    accepted_lengths: list[int] = field(default_factory=list)
    """Draft tokens that each step kept."""
    found_lengths: list[int] = field(default_factory=list)
    """Draft tokens that a look-up found for each step, and for those of the batch after its end."""

    @property
    def steps(self) -> int:
        """Verification (or decoding) steps of the target."""
        return len(self.accepted_lengths)

    @property
    def tokens_per_step(self) -> float | None:
        """Mean tokens emitted per step; None where prefill alone ended the text."""
        return 1.0 + sum(self.accepted_lengths) / self.steps if self.steps else None


@dataclass(frozen=True, slots=True)
class GenerationRun:
    """A batch's sequences and wall times."""

    sequences: list[Generation]
    prefill_s: float
    setup_s: float
    """Making forwards ready (capture of graphs); 0 where nothing is made."""
    decode_s: float
    """All steps."""

    @property
    def steps(self) -> int:
        """Forwards of the whole batch."""
        return max(sequence.steps for sequence in self.sequences)


def check_request(model: Llama, prompts: Sequence[Sequence[int]], settings: GenerationSettings) -> None:
    """Raises UsageError for empty or too long prompts, unknown tokens and settings out of range."""
    config = model.config
    if not prompts:
        raise UsageError("no prompt was given")
    if settings.max_new_tokens < 1:
        raise UsageError(f"max_new_tokens is {settings.max_new_tokens}; it must be at least 1")
    if not 0 <= settings.seed <= SEED_MAX:
        raise UsageError(f"seed is {settings.seed}; whole numbers from 0 to {SEED_MAX} are allowed")
    if not settings.temperature >= 0.0 or settings.temperature == float("inf"):
        raise UsageError(f"temperature is {settings.temperature}; it must be a finite number from 0")
    for i, prompt in enumerate(prompts):
        if not prompt:
            raise UsageError(f"prompt {i} is empty; give at least one token")
        unknown = [token for token in prompt if not 0 <= token < config.vocab_size]
        if unknown:
            raise UsageError(
                f"prompt {i} holds token {unknown[0]}; the vocabulary has 0..{config.vocab_size - 1}"
            )
        if len(prompt) + settings.max_new_tokens > config.max_position_embeddings:
            raise UsageError(
                f"prompt {i} has {len(prompt)} tokens; with {settings.max_new_tokens} new ones it exceeds "
                f"the model's {config.max_position_embeddings} positions; shorten it or ask for less"
            )
