"""Step times of a scenario as a table that a scheduler looks up: drafts x requests x length, and prompts.

Decoding and verification steps are those of `grid.cells.price` seen through the server (`step.server`, N6),
at every number of requests; between two lengths time is linear. A step that carries prompts takes longer by
(N8): what its further tokens add to the linear layers, and the attention of each chunk:

    (L1)  t = t(b, s, K) + linear(m + c) - linear(m) + sum attention(q_i, e_i) + drafter(c)
          linear(c) in place of the difference where prompts have passes of their own
          m = b (1 + z K) tokens of b requests, c = sum q_i tokens of prompts whose chunks end at e_i

A step of prompts alone is the step of one request with the prompts' tokens in place of its own.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from medusa_sim.acceptance.profile import MATCHES_RUN
from medusa_sim.arrays import FloatArray, distinct
from medusa_sim.errors import UsageError
from medusa_sim.grid.cells import Cells, price
from medusa_sim.load.limits import Limits
from medusa_sim.scenario.draft_options import DraftOption
from medusa_sim.scenario.scenario import Scenario
from medusa_sim.step.prompts import (
    drafter_prompt_us,
    graph_rows,
    launching_host_us,
    linear_us,
    prompt_attention_us,
    prompt_host_us,
    prompt_pass_us,
    prompt_terms,
    prompts_apart,
)
from medusa_sim.step.sampling import sampled
from medusa_sim.step.step import Setting
from medusa_sim.units import US_PER_S

_LENGTH_RATIO = 1.5
_CHUNK_RATIO = 1.4
_TOGETHER = 256
"""Numbers of requests that are priced at once."""
_DENSE_TOKENS = 1024
"""Every number of tokens up to here; beyond, tiles are small beside the whole and every 16th is computed."""


class _Lists(NamedTuple):
    """Arrays of a table as lists, which are read one number at a time."""

    lengths: list[float]
    step_s: list[list[list[float]]]
    linear_s: list[float]
    drafter_prompt_s: list[float]


@dataclass(frozen=True, kw_only=True, eq=False)
class StepTable:
    """Seconds of steps; K drafts from 0 to `drafts_max`, b requests from 0 to `requests_max`.

    lengths: (S,) mean committed tokens of the requests. step_s: (K, b, S); b = 0: what a step of prompts
    alone takes beside its tokens. linear_s: (T,) everything that all tokens of a step share. attention_s:
    (Q, E) of a chunk of chunk_tokens (Q,) that ends at chunk_ends (E,). drafter_prompt_s: (T,) what the
    drafter adds for a prompt's tokens. rates: (K - 1,) probability that at least that many drafts are
    accepted. match_rate: share of the steps in which drafts are found, in runs so many times as long as of
    independent steps (`match_runs`). drafting_share: (K, b) of a step's time. idle_share: (b,) by which a
    plain step is longer where a drafter is loaded. steps_ahead (of a server that loads no drafter:
    plain_steps_ahead), server_s, server_s_per_request: of the engine (`Engine`); server_band: of its 80 %
    interval, relative. prompts_apart: prompts have passes of their own; prompt_host_s: of at least so long
    where a drafter is loaded; else of the whole step that they ride on. graph_rows: most rows of a step that
    a graph holds; eager_s: of the host in a step of more. prompt_share: of what prompts
    read that an engine's own kernels take; prompt_s_per_request: of each that begins. faster, slower: (K, b)
    half-widths of a step's 80 % band at the middle length, on its logarithm.
    """

    lengths: FloatArray
    step_s: FloatArray
    linear_s: FloatArray
    chunk_tokens: FloatArray
    chunk_ends: FloatArray
    attention_s: FloatArray
    drafter_prompt_s: FloatArray
    rates: FloatArray
    match_rate: float = 1.0
    match_runs: float = 1.0
    drafting_share: FloatArray
    idle_share: FloatArray
    steps_ahead: int = 0
    plain_steps_ahead: int = 0
    server_s: float = 0.0
    server_s_per_request: float = 0.0
    server_band: float = 0.0
    prompts_apart: bool = False
    prompt_host_s: float = 0.0
    graph_rows: float = np.inf
    eager_s: float = 0.0
    prompt_share: float = 1.0
    prompt_s_per_request: float = 0.0
    faster: FloatArray | None = None
    slower: FloatArray | None = None

    @property
    def drafts_max(self) -> int:
        """Longest draft in the table."""
        return int(self.step_s.shape[0]) - 1

    @property
    def requests_max(self) -> int:
        """Most requests of a step in the table."""
        return int(self.step_s.shape[1]) - 1

    def upto(self, drafts: int) -> StepTable:
        """The table of a server whose drafter runs at most so many drafts; 0: none is loaded."""
        if 0 < drafts == self.drafts_max:
            return self
        return replace(
            self,
            step_s=self.step_s[: drafts + 1],
            rates=self.rates[:drafts],
            drafting_share=self.drafting_share[: drafts + 1],
            steps_ahead=self.steps_ahead if drafts else self.plain_steps_ahead,
            faster=None if self.faster is None else self.faster[: drafts + 1],
            slower=None if self.slower is None else self.slower[: drafts + 1],
            drafter_prompt_s=self.drafter_prompt_s if drafts else np.zeros_like(self.drafter_prompt_s),
            prompt_host_s=self.prompt_host_s if drafts or not self.prompts_apart else 0.0,
        )

    @cached_property
    def tokens_per_step(self) -> FloatArray:
        """(K,) mean tokens that a step emits for each request."""
        return np.concatenate([[1.0], 1.0 + np.cumsum(self.rates)])

    @cached_property
    def _lists(self) -> _Lists:
        arrays = self.lengths, self.step_s, self.linear_s, self.drafter_prompt_s
        return _Lists(*(values.tolist() for values in arrays))

    def decoding_s(self, drafts: int, requests: int, length: float) -> float:
        """Seconds of a step of `requests` requests of a mean length, without prompts."""
        lists = self._lists
        lengths, row = lists.lengths, lists.step_s[drafts][requests]
        j = bisect_right(lengths, length, 1, len(lengths) - 1) - 1
        below, above = lengths[j], lengths[j + 1]
        return row[j] + (row[j + 1] - row[j]) * (length - below) / (above - below)

    def found_s(self, whole_s: float, drafts: int, requests: int, length: float, share: float) -> float:
        """A step of `whole_s` in the mean where this share of the requests found drafts, not match_rate.

        Linear in the share, so that the mean step stays; without any a step is as much shorter as the last
        drafts made it longer, and no shorter than a plain one.
        """
        one_s, plain_s = self.decoding_s(1, requests, length), self.decoding_s(0, requests, length)
        none_s = plain_s if drafts < 2 else one_s - (whole_s - one_s) / (drafts - 1)  # two points of a line
        none_s = min(max(none_s, plain_s), whole_s)
        return none_s + (whole_s - none_s) * share / self.match_rate

    def nearest(self, length: float) -> int:
        """The place in `lengths` of the one that is nearest."""
        j, part = _between(self._lists.lengths, length)
        return j + int(part > 0.5)

    def prompts_s(
        self, asked: int, requests: int, chunks: Sequence[tuple[int, int]], own_s: float = 0.0
    ) -> float:
        """(L1): seconds that chunks (tokens, end) of prompts add to a step of own_s with so many drafts."""
        rows = requests + round(asked * self.match_rate)
        tokens = sum([chunk for chunk, _ in chunks])
        rides = requests > 0 and not self.prompts_apart
        linear = self._lists.linear_s
        shared = linear[rows + tokens] - linear[rows] if rides else linear[tokens]
        read = max(shared, 0.0) + sum([self.chunk_attention_s(chunk, end) for chunk, end in chunks])
        read *= self.prompt_share
        host_s = self.prompt_host_s
        if not host_s and rides and rows <= self.graph_rows < rows + tokens:
            host_s = self.eager_s
        if host_s:
            decoding_s = 0.0 if self.prompts_apart else own_s
            read = float(prompt_pass_us(np.asarray(decoding_s + read), host_s)) - decoding_s
        began = sum([chunk == end for chunk, end in chunks])
        return read + self._lists.drafter_prompt_s[tokens] + began * self.prompt_s_per_request

    def chunk_attention_s(self, tokens: int, end: int) -> float:
        """Seconds of the attention of one chunk, bilinear between those of the table."""
        sizes, ends, attention_s = self._attention
        i, share = _between(sizes, tokens)
        j, part = _between(ends, end)
        a, b = attention_s[i], attention_s[i + 1]
        low = a[j] + (a[j + 1] - a[j]) * part
        high = b[j] + (b[j + 1] - b[j]) * part
        return low + (high - low) * share

    @cached_property
    def _attention(self) -> tuple[list[float], list[float], list[list[float]]]:
        return self.chunk_tokens.tolist(), self.chunk_ends.tolist(), self.attention_s.tolist()

    @cached_property
    def rate_per_s(self) -> FloatArray:
        """(K, b, S) tokens a second of the whole batch in steps without prompts; 0 for no requests."""
        requests = np.arange(self.requests_max + 1)[None, :, None]
        return requests * self.tokens_per_step[:, None, None] / self.step_s


def _between(nodes: list[float], value: float) -> tuple[int, float]:
    i = bisect_right(nodes, value, 1, len(nodes) - 1) - 1
    return i, (value - nodes[i]) / (nodes[i + 1] - nodes[i])


def chains(scenario: Scenario, drafts_max: int | None = None) -> tuple[DraftOption, ...]:
    """Chains of 1, 2, ... drafts that the scenario's profile describes.

    Raises UsageError for a profile that knows no positions.
    """
    if scenario.profile.heads is None:
        raise UsageError(
            f"acceptance {scenario.profile.name} is a curve of tree sizes; under load drafts are accepted by "
            "position: give rates by position (--acceptance 0.78,0.60,0.42), one rate or a profile of heads"
        )
    found = (option for option in scenario.options() if option.chain)
    by_depth = sorted(found, key=lambda option: option.depth)
    return tuple(option for option in by_depth if drafts_max is None or option.depth <= drafts_max)


def step_table(scenario: Scenario, options: Sequence[DraftOption], limits: Limits, longest: int) -> StepTable:
    """The table of a scenario for requests of at most `longest` committed tokens.

    options: chains of 1, 2, ... drafts (none: plain decoding alone).
    Raises SpecError or CoverageError where a kernel is missing.
    """
    lengths = _geometric(1, max(longest, 2), _LENGTH_RATIO, first=16)
    starts = range(_TOGETHER, limits.max_requests, _TOGETHER)
    batches = np.split(np.arange(1, limits.max_requests + 1), starts)
    pieces = [_piece(price(scenario, batch, lengths, options), options) for batch in batches]
    (setting, *_), *parts = zip(*pieces, strict=True)
    steps_s, faster, slower, drafting, idle = (np.concatenate(part, axis=1) for part in parts)
    tokens = distinct(
        np.arange(1, min(_DENSE_TOKENS, limits.token_budget) + 1),
        np.arange(_DENSE_TOKENS, limits.token_budget + 16, 16),
    )
    every = np.arange(limits.token_budget + 1)
    linear = np.interp(every, tokens, linear_us(setting, tokens.astype(np.float64))) / US_PER_S
    linear[0] = 0.0
    empty = np.zeros((len(options) + 1, 1, lengths.size))
    empty[:] = max(float(steps_s[0, 0, 0] - linear[1]), 0.0)
    ends = _geometric(1, max(longest, 2), _CHUNK_RATIO)
    chunks = _geometric(1, max(min(limits.token_budget, longest), 2), _CHUNK_RATIO)
    read, until = chunks[:, None].astype(np.float64), ends[None, :].astype(np.float64)
    attention = prompt_attention_us(setting, read, np.maximum(until, read))
    engine = setting.runtime.engine
    ahead = 0 if engine is None else round(engine.steps_ahead.value)
    method = scenario.drafting.method
    is_synchronous = engine is not None and bool(options) and method in engine.synchronous_drafters
    return StepTable(
        lengths=lengths.astype(np.float64),
        step_s=np.concatenate([empty, steps_s], axis=1),
        linear_s=linear,
        chunk_tokens=chunks.astype(np.float64),
        chunk_ends=ends.astype(np.float64),
        attention_s=np.broadcast_to(attention / US_PER_S, (chunks.size, ends.size)),
        drafter_prompt_s=_drafter_prompt_s(setting, options, tokens, every),
        rates=acceptance_rates(options),
        match_rate=setting.match_rate if options else 1.0,
        match_runs=(scenario.profile.match_runs or MATCHES_RUN) if options else 1.0,
        drafting_share=_with_none(drafting, 0.0),
        idle_share=_with_none(idle, 0.0)[0],
        steps_ahead=0 if is_synchronous else ahead,
        plain_steps_ahead=ahead,
        server_s=0.0 if engine is None else engine.server_us.value / US_PER_S,
        server_s_per_request=0.0 if engine is None else engine.server_us_per_request.value / US_PER_S,
        server_band=0.0 if engine is None else engine.server_us.band,
        prompts_apart=prompts_apart(setting),
        prompt_share=prompt_terms(setting)[0],
        prompt_s_per_request=prompt_terms(setting)[1] / US_PER_S,
        prompt_host_s=prompt_host_us(setting) / US_PER_S if options or not prompts_apart(setting) else 0.0,
        graph_rows=graph_rows(setting),
        eager_s=launching_host_us(setting) / US_PER_S,
        faster=_with_none(faster),
        slower=_with_none(slower),
    )


def _with_none(values: FloatArray, none: float | None = None) -> FloatArray:
    """(K, b) from one request on as (K, b) from none on, which has the value `none` or that of one."""
    first = values[:, :1] if none is None else np.full((len(values), 1), none)
    return np.concatenate([first, values], axis=1)


def _piece(cells: Cells, options: Sequence[DraftOption]) -> tuple[Any, ...]:
    """(setting, step_s (K, b, S), faster, slower, drafting_share (K, b), idle_share (1, b)) of a part."""
    steps, setting = cells.by_count, cells.surface.setting
    sampled_us = (
        steps.step_us + sampled(setting, steps.batch, steps.candidates, steps.tokens_per_step).time_us
    )
    middle = cells.shape[1] // 2
    bands = ((steps.low_us, steps.step_us), (steps.step_us, steps.high_us))
    return (
        setting,
        np.moveaxis(np.broadcast_to(sampled_us, steps.shape), -1, 0) / US_PER_S,
        *(np.log(high / low)[:, middle].T for low, high in bands),
        _drafting_share(cells, options),
        cells.surface.idle_share[None, :, middle],
    )


def acceptance_rates(options: Sequence[DraftOption]) -> FloatArray:
    """(drafts,) probability that at least so many drafts of a step are accepted."""
    tokens = [1.0, *(option.tokens(option.depth + 1) for option in options)]
    return np.minimum.accumulate(np.clip(np.diff(tokens), 0.0, 1.0)) if options else np.empty(0)


def _geometric(low: int, high: int, ratio: float, first: int | None = None) -> np.ndarray:
    """Whole numbers from low to high, each about `ratio` times the one before; from `first` on after low."""
    start = low if first is None else min(first, high)
    count = 2 + int(np.ceil(np.log(high / start) / np.log(ratio))) if high > start else 2
    return distinct([low], np.rint(np.geomspace(start, high, count)).astype(np.int64))


def _drafter_prompt_s(
    setting: Setting, options: Sequence[DraftOption], tokens: np.ndarray, every: np.ndarray
) -> FloatArray:
    """Seconds that the longest draft's drafter adds for reading so many tokens of prompts."""
    drafter = options[-1].drafter if options else None
    total = drafter_prompt_us(setting, drafter, tokens.astype(np.float64))
    return np.where(every > 0, np.interp(every, tokens, total), 0.0) / US_PER_S


def _drafting_share(cells: Cells, options: Sequence[DraftOption]) -> FloatArray:
    """(K, b) share of a step that drafts, at the middle length. options: of the cells, chains."""
    middle = cells.shape[1] // 2
    share = np.zeros((len(options) + 1, cells.shape[0]))
    for index, option in enumerate(options):
        drafting = cells.surface.drafting[index]
        if drafting is None:
            continue
        own_us = np.broadcast_to(drafting.time_us[..., -1:], (*cells.shape[:2], 1))[:, middle, 0]
        whole_us = cells.step_us[:, middle, cells.configurations.places[index].start]
        share[option.depth] = np.minimum(own_us / whole_us, 1.0)
    return share
