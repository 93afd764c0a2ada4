"""What prompts add to a step, as a table that a scheduler looks up: tokens of prompts, and their attention.

(L1)  t = |t(b, s, K) + g more + g read, launches|_3 + extra       prompts ride on the step (N8)
        = t(b, s, K) + |g (linear(S) + logits) + g read, launches|_3 + extra    they have passes of their own
      more = linear(b c + S) - inactive(S) sharing - decode,  c = 1 + match K tokens of each of b requests
      read = sum attention(q_i, e_i) [and the drafter's] + drafter(S) + imbalance(S)
      S = sum q_i tokens of prompts whose chunks end at e_i

decode, sharing, g, launches, extra and the law itself are those of `serving.mixed_steps`:
`PromptTerms.mixed_us`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from medusa_sim.arrays import FloatArray, IntArray, as_float
from medusa_sim.load.limits import SchedulerLimits
from medusa_sim.step.drafter.base import Drafter
from medusa_sim.step.prompt_kernels import (
    drafter_attention_us,
    drafter_linear_us,
    imbalance_us,
    inactive_share,
    linear_us,
    logits_us,
    prompt_attention_us,
    timed_rows,
)
from medusa_sim.step.prompts import GRAPHS, PromptHost, PromptTerms, prompt_host, prompt_terms, read_us
from medusa_sim.step.setting import Setting
from medusa_sim.units import US_PER_S

_CHUNK_RATIO = 1.4
"""Of sizes and ends of chunks, each to the next, between which attention is linear."""


@dataclass(frozen=True, kw_only=True, eq=False)
class PromptTable:
    """Seconds that prompts add to a step, by numbers of tokens from none on; `terms` put them together."""

    linear_s: FloatArray
    """(1 + tokens,) linear(T) of (L1): layers that all tokens of a step share."""
    chunk_tokens: FloatArray
    """(chunks,) sizes of chunks whose attention is priced."""
    chunk_ends: FloatArray
    """(ends,) tokens of the prompt up to the end of a chunk."""
    attention_s: FloatArray
    """(chunks, ends) attention of one chunk."""
    drafter_s: FloatArray
    """(1 + tokens,) linear layers of a drafter that reads prompts, too."""
    drafter_attention_s: FloatArray
    """(chunks, ends) attention of the drafter over one chunk."""
    inactive_share: FloatArray
    """(1 + tokens,) share of experts that none of so many tokens activates; 0 without experts."""
    logits_s: float = 0.0
    """Sampling of first tokens in a pass of prompts."""
    imbalance_s: FloatArray
    """(1 + tokens,) what linear_s is longer by where one of several GPUs attends to all these tokens."""
    gpus: int = 1
    """GPUs that attend to their own requests."""
    terms: PromptTerms = field(default_factory=PromptTerms)
    """Terms of the engine."""
    host: PromptHost = GRAPHS
    """What launches prompts."""
    plain_host: PromptHost = GRAPHS
    """What launches prompts in a server that loads no drafter."""

    def without_drafter(self) -> PromptTable:
        """The table of a server that loads no drafter."""
        return replace(
            self,
            drafter_s=np.zeros_like(self.drafter_s),
            drafter_attention_s=np.zeros_like(self.drafter_attention_s),
            host=self.plain_host,
        )

    def added_s(
        self,
        decoded_tokens: int,
        chunks: Sequence[tuple[int, int]],
        step_s: float,
        decode_linear_s: float,
        sharing_s: float,
    ) -> float:
        """(L1): what chunks (tokens, end) of prompts add to a step of step_s.

        decoded_tokens: of the requests that decode in it (b c). decode_linear_s: what its linear layers take
        without prompts, in a graph that further rows fill. sharing_s: what they save because tokens of a
        request share experts.
        """
        linear_s, drafter_s = self._by_tokens
        tokens = sum([chunk for chunk, _ in chunks])
        if not tokens:
            return 0.0
        rows = tokens if self.terms.are_apart else decoded_tokens + tokens
        saved_s = sharing_s * self.inactive_share.item(tokens)
        logits_s = self.logits_s if decoded_tokens > 0 else 0.0  # a step of prompts alone has them already
        more_s = self.terms.more_us(linear_s[rows], decode_linear_s, saved_s, logits_s)
        attention_s = sum([self.attention_of_s(chunk, end) for chunk, end in chunks])
        read_s = read_us(
            self.gpus, len(chunks), attention_s, drafter_s[tokens], self.imbalance_s.item(tokens)
        )
        launches_us = self.host.launches_us(decoded_tokens, rows)
        mixed_us = self.terms.mixed_us(US_PER_S * step_s, US_PER_S * more_s, US_PER_S * read_s, launches_us)
        return float(mixed_us) / US_PER_S - step_s

    def attention_of_s(self, tokens: int, end: int) -> float:
        """The attention of one chunk, bilinear between those of the table."""
        sizes, ends, attention_s = self._attention
        i, share = between(sizes, tokens)
        j, part = between(ends, end)
        a, b = attention_s[i], attention_s[i + 1]
        low = a[j] + (a[j + 1] - a[j]) * part
        high = b[j] + (b[j + 1] - b[j]) * part
        return low + (high - low) * share

    # lists, of which one number at a time is read

    @cached_property
    def _by_tokens(self) -> tuple[list[float], list[float]]:
        return self.linear_s.tolist(), self.drafter_s.tolist()

    @cached_property
    def _attention(self) -> tuple[list[float], list[float], list[list[float]]]:
        attention_s = self.attention_s + self.drafter_attention_s
        return self.chunk_tokens.tolist(), self.chunk_ends.tolist(), attention_s.tolist()


def prompt_table(
    setting: Setting, drafter: Drafter | None, drafts: int, limits: SchedulerLimits, longest: int
) -> PromptTable:
    """The table of prompts within the token budget of a step; no request is longer than `longest`.

    drafter: that of the longest draft, of so many `drafts`, which reads prompts too; None: none is loaded.
    """
    tokens, gpus = timed_rows(float(limits.token_budget)), setting.parallel.schedulers
    every = np.arange(limits.token_budget + 1)

    def by_tokens_s(priced_us: FloatArray) -> FloatArray:
        return np.where(every > 0, np.interp(every, tokens, priced_us), 0.0) / US_PER_S

    ends = geometric(1, max(longest, 2), _CHUNK_RATIO).astype(np.float64)
    chunks = geometric(1, max(min(limits.token_budget, longest), 2), _CHUNK_RATIO).astype(np.float64)
    read, until = chunks[:, None], ends[None, :]
    until = np.maximum(until, read)
    attention_us = prompt_attention_us(setting, read, until)
    drafter_us = drafter_attention_us(setting, drafter, read, until)
    return PromptTable(
        linear_s=by_tokens_s(linear_us(setting, tokens)),
        chunk_tokens=chunks,
        chunk_ends=ends,
        attention_s=np.broadcast_to(attention_us / US_PER_S, (chunks.size, ends.size)),
        inactive_share=inactive_share(setting, as_float(every)),
        gpus=gpus,
        logits_s=logits_us(setting) / US_PER_S,
        imbalance_s=by_tokens_s(imbalance_us(setting, tokens)),
        drafter_s=by_tokens_s(drafter_linear_us(setting, drafter, tokens)),
        drafter_attention_s=drafter_us / US_PER_S,
        terms=prompt_terms(setting),
        host=prompt_host(setting, 1.0 + drafts),
        plain_host=prompt_host(setting, 1.0),
    )


# Nodes of tables: at which sizes they are computed, and between which of them a size lies.


def geometric(low: int, high: int, ratio: float, first: int | None = None) -> IntArray:
    """Whole numbers from low to high, each about `ratio` times the one before; from `first` on after low."""
    start = low if first is None else min(first, high)
    count = 2 + int(np.ceil(np.log(high / start) / np.log(ratio))) if high > start else 2
    return np.union1d([low], np.rint(np.geomspace(start, high, count)).astype(np.int64))


def between(nodes: list[float], value: float) -> tuple[int, float]:
    """(the index of the node below, the share of the way to the next); beyond the ends along the last two."""
    place = bisect_right(nodes, value, 1, len(nodes) - 1) - 1
    return place, (value - nodes[place]) / (nodes[place + 1] - nodes[place])
