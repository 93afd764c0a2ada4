"""Generate - verify - accept, for every method: a drafter proposes a tree, the target runs it in one
forward, an acceptance rule keeps a path, the cache keeps its rows.

The root of a tree is the last emitted token: its keys and values are not in the cache yet. Plain
autoregressive decoding is the tree that is only a root. The token that prefill yields belongs to no
step, so a sequence of t tokens in s steps has t = 1 + s + (accepted draft tokens).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from medusa_sim.lab.decoder.accept import (
    Accepted,
    accept_by_rejection,
    accept_greedy,
    accept_typical,
    typical_token,
)
from medusa_sim.lab.decoder.cache import KVCache
from medusa_sim.lab.decoder.candidates import Draft
from medusa_sim.lab.decoder.distributions import Draws, distribution
from medusa_sim.lab.decoder.drafter import Drafter, NoDrafter
from medusa_sim.lab.decoder.fixed_shapes import FixedForward, Forward
from medusa_sim.lab.decoder.generation import Generation, GenerationRun, GenerationSettings, check_request
from medusa_sim.lab.decoder.model import Llama


def prefill(model: Llama, cache: KVCache, prompts: Sequence[Sequence[int]]) -> Tensor:
    """Fills an empty cache with prompts of any lengths; returns the last hidden states (batch, hidden).

    Short prompts are padded on the right: what lies after a prompt's end is never attended and is
    overwritten later.
    """
    device = cache.lengths.device
    lengths = torch.tensor([len(prompt) for prompt in prompts], device=device)
    longest = max(len(prompt) for prompt in prompts)
    tokens = torch.tensor([[*prompt, *([0] * (longest - len(prompt)))] for prompt in prompts], device=device)
    hidden = model(tokens, cache=cache)
    cache.lengths = lengths
    last: Tensor = hidden[torch.arange(len(prompts), device=device), lengths - 1]
    return last


@dataclass(slots=True, kw_only=True)
class BatchDecoder:
    """A batch under way. `step` is the one step of every method."""

    model: Llama
    cache: KVCache
    drafter: Drafter
    forward: Forward
    judge: Callable[[Draft, Tensor], list[Accepted]]
    """The acceptance rule, given a draft and its logits (batch, n, vocab)."""
    sequences: list[Generation]
    """Each with its first new token."""
    roots: Tensor
    """(batch,): the last emitted tokens."""
    hidden: Tensor
    """(batch, hidden): the states that yielded them."""
    ends: Collection[int]
    """Tokens that end a text."""
    max_new_tokens: int

    @property
    def is_active(self) -> bool:
        """Whether a sequence goes on."""
        return not all(self._is_finished(sequence) for sequence in self.sequences)

    def step(self) -> list[list[int]]:
        """Propose, verify, accept, keep. Returns the nodes of each tree that were kept, root first."""
        draft = self.drafter.propose(self.roots, self.hidden, self.sequences)
        states = self.forward(draft.tokens, draft.mask, draft.depths)
        accepted = self.judge(draft, self.model.logits(states))
        kept = [self._emit(*each) for each in zip(self.sequences, accepted, strict=True)]
        self.cache.keep(kept)
        self.drafter.commit(kept)
        last = [each.path[-1] if each.path else 0 for each in accepted]
        self.hidden = states.select(1, last[0]) if len(last) == 1 else states[torch.arange(len(last)), last]
        self.roots = torch.tensor([each.text[-1] for each in accepted]).to(self.roots.device)
        return kept

    def _emit(self, sequence: Generation, accepted: Accepted) -> list[int]:
        """Appends the new tokens of a sequence that goes on, cut at its end; the nodes to keep."""
        if self._is_finished(sequence):
            return []
        path, emitted = accepted
        for i, token in enumerate(emitted):
            if token in self.ends:
                emitted = emitted[: i + 1]
                break
        emitted = emitted[: self.max_new_tokens - len(sequence.token_ids)]
        sequence.token_ids += emitted
        sequence.accepted_lengths.append(len(emitted) - 1)
        return [0, *path[: len(emitted) - 1]]

    def _is_finished(self, sequence: Generation) -> bool:
        return len(sequence.token_ids) >= self.max_new_tokens or sequence.token_ids[-1] in self.ends


@torch.inference_mode()
def generate(
    model: Llama,
    prompts: Sequence[Sequence[int]],
    settings: GenerationSettings,
    drafter: Drafter | None = None,
    *,
    make_forward: Callable[[Llama, KVCache], FixedForward] | None = None,
    first_allowed: Tensor | None = None,
    clock: Callable[[], float] | None = None,
) -> GenerationRun:
    """Continues every prompt, in one batch of ragged lengths.

    Each sequence ends right after an end-of-text token or at exactly `max_new_tokens`. The text of a
    sequence does not depend on the others but for rounding. `make_forward` replaces the eager
    verification forward (see `fixed_shapes`). `first_allowed` (batch, vocab) bool limits the first new
    token. clock: gives the seconds that are reported [default: `time.perf_counter`]. Raises UsageError before
    any work.
    """
    check_request(model, prompts, settings)
    drafter = drafter if drafter is not None else NoDrafter()
    draws = [Draws(settings.seed * 1_000_003 + i) for i in range(len(prompts))]
    longest = max(len(prompt) for prompt in prompts)
    capacity = longest + settings.max_new_tokens + drafter.nodes
    drafter.begin(prompts, capacity, draws)
    sequences = [Generation(list(prompt)) for prompt in prompts]
    clock = clock if clock is not None else time.perf_counter
    started = clock()
    cache = model.new_cache(batch=len(prompts), capacity=capacity)
    hidden = prefill(model, cache, prompts)
    logits = model.logits(hidden)
    if first_allowed is not None:
        logits = logits.masked_fill(~first_allowed.to(logits.device), -torch.inf)
    roots = first_tokens(logits, settings, draws)
    for sequence, token in zip(sequences, roots.tolist(), strict=True):
        sequence.token_ids.append(token)
    prefill_s = clock() - started
    made = make_forward(model, cache) if make_forward is not None else None
    forward = made if made is not None else eager_forward(model, cache)
    decoding = BatchDecoder(
        model=model,
        cache=cache,
        drafter=drafter,
        forward=forward,
        judge=partial(verify, settings=settings, draws=draws),
        sequences=sequences,
        roots=roots,
        hidden=hidden,
        ends=frozenset(model.config.eos_token_ids if settings.stop_at_end_of_text else ()),
        max_new_tokens=settings.max_new_tokens,
    )
    started = clock()
    while decoding.is_active:
        decoding.step()
    setup_s = made.setup_s if made is not None else 0.0
    return GenerationRun(sequences, prefill_s, setup_s, clock() - started - setup_s)


def eager_forward(model: Llama, cache: KVCache) -> Forward:
    """Verification as it stands, over as many slots as are in use."""

    def forward(tokens: Tensor, mask: Tensor, depths: Tensor) -> Tensor:
        hidden: Tensor = model(tokens, cache=cache, tree_mask=mask, depths=depths)
        return hidden

    return forward


def verify(
    draft: Draft, logits: Tensor, settings: GenerationSettings, draws: Sequence[Draws]
) -> list[Accepted]:
    """The acceptance rule of `settings` on a verified draft. logits: (batch, n, vocab)."""
    match settings.applied_rule:
        case "greedy":
            return accept_greedy(draft, logits)
        case "typical":
            return accept_typical(
                draft,
                logits,
                temperature=settings.temperature,
                epsilon=settings.epsilon,
                delta=settings.delta,
                draws=draws if settings.draw_typical else None,
            )
        case "rejection":
            return accept_by_rejection(draft, logits, temperature=settings.temperature, draws=draws)


def first_tokens(logits: Tensor, settings: GenerationSettings, draws: Sequence[Draws]) -> Tensor:
    """(batch,) tokens after prefill: the argmax, or a draw as the rule has it. logits: (batch, vocab)."""
    if settings.applied_rule == "rejection":
        distributions = distribution(logits, settings.temperature)
        tokens = [draw.token(p) for draw, p in zip(draws, distributions, strict=True)]
    elif settings.applied_rule == "typical" and settings.draw_typical:
        limits = {"epsilon": settings.epsilon, "delta": settings.delta}
        tokens = [
            typical_token(row, settings.temperature, draw, **limits)
            for draw, row in zip(draws, logits, strict=True)
        ]
    else:
        return logits.argmax(-1)
    return torch.tensor(tokens, device=logits.device)
