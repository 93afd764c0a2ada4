"""Recorder of a run: adds up spans of steps while it goes on, so that memory does not grow with it."""

from __future__ import annotations

from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import numpy as np

from medusa_sim.arrays import FloatArray
from medusa_sim.load.requests import Requests
from medusa_sim.load.run_result import GAP_CLASSES, RunResult, Sums, Timeline, class_of_gap

_ROWS = 8192
"""Spans that are held before they are added up."""
_BINS = 512
_FIRST_BIN_S = 0.02
"""Width of the bins of the timeline at first; it doubles where a run goes on beyond them."""
_LEAST_SPAN_S = 1e-12
"""Of a pass of prompts that takes no time."""


@dataclass(slots=True, eq=False)
class Span:
    """Equal steps in a row. A pass of prompts alone is a span without steps."""

    start_s: float
    requests: int
    """Requests that decode."""
    drafts: int
    """Drafts of a request in a step."""
    not_decoding: int
    """Requests in the queue or reading their prompt."""
    kv_tokens: float
    """Tokens in the KV cache, on average."""
    prompt_tokens: int
    """Tokens of prompts that are computed in it."""
    span_s: float = 0.0
    """Its time, that of its prompts with it."""
    prompts_s: float = 0.0
    """Time of its prompts."""
    steps: int = 0
    emitted: int = 0
    """Tokens, by all requests in all steps."""
    accepted: int = 0
    """Drafts that were accepted."""
    stalled_s: float = 0.0
    """Time of passes of prompts before it, for which requests waited."""
    joined: int = 0
    """Requests that did not wait for these: they read their prompts."""


_row_of = attrgetter(*Span.__slots__)
"""Its fields, in their order."""


class Recorder:
    """Adds up spans as they come, some thousands at a time.

    first_token_s, finish_s: as of a `RunResult`, filled in by the engine. in_system_s: as of a `RunResult`,
    of spans; the engine adds what requests that come between two spans were there for.
    """

    def __init__(self, requests: Requests, drafts_max: int, requests_max: int) -> None:
        self.first_token_s: FloatArray = np.full(requests.count, np.nan)
        self.finish_s: FloatArray = np.full(requests.count, np.nan)
        self.in_system_s = 0.0
        self._requests = requests
        self._steps_s = np.zeros((drafts_max + 1, requests_max + 1))
        self._prompts_s = np.zeros_like(self._steps_s)
        self._steps = self._emitted = self._prompt_tokens = self._speculated = 0
        self._accepted = 0.0
        self._gaps = np.zeros(GAP_CLASSES)
        self._gap_sum_s = 0.0
        self._rows: list[tuple[float, ...]] = []
        self._bin_s = _FIRST_BIN_S
        self._bins = np.zeros((6, _BINS))
        self._marks: list[Sums] = []

    def add(self, span: Span) -> None:
        """One span of equal steps."""
        self._rows.append(_row_of(span))
        self.in_system_s += (span.requests + span.not_decoding) * span.span_s
        if len(self._rows) >= _ROWS:
            self._flush()

    def mark(self, now_s: float, served: float) -> None:
        """Begin the window now, or end it, with so many requests served."""
        self._marks.append(self._sums(now_s, served))

    def _sums(self, now_s: float, served: float) -> Sums:
        """Sums from the beginning of the run up to now."""
        self._flush()
        return Sums(
            span_s=now_s,
            served=served,
            steps=self._steps,
            steps_s=self._steps_s.copy(),
            prompts_s=self._prompts_s.copy(),
            emitted=self._emitted,
            prompt_tokens=self._prompt_tokens,
            speculated=self._speculated,
            accepted=self._accepted,
            gaps=self._gaps.copy(),
            gap_sum_s=self._gap_sum_s,
        )

    def add_gap(self, gap_s: float) -> None:
        """Count a gap that is no step: of a request that was preempted."""
        self._gaps[class_of_gap(np.asarray(gap_s))] += 1
        self._gap_sum_s += gap_s

    def _flush(self) -> None:
        """Add up the spans that are held."""
        if not self._rows:
            return
        spans: Any = Span(*np.array(self._rows).T)  # columns
        self._rows.clear()
        cells = (spans.drafts.astype(np.int64), spans.requests.astype(np.int64))
        np.add.at(self._steps_s, cells, spans.span_s - spans.prompts_s)
        np.add.at(self._prompts_s, cells, spans.prompts_s)
        self._steps += int(spans.steps.sum())
        self._emitted += int(spans.emitted.sum())
        self._prompt_tokens += int(spans.prompt_tokens.sum())
        chunks = spans.steps * spans.requests  # that requests receive
        self._speculated += int(chunks[spans.drafts > 0].sum())
        self._accepted += float(spans.accepted.sum())
        gap_s = spans.span_s / np.maximum(spans.steps, 1.0)
        for seen_s, weights in ((gap_s + spans.stalled_s, chunks - spans.joined), (gap_s, spans.joined)):
            self._gaps += np.bincount(class_of_gap(seen_s), weights=weights, minlength=GAP_CLASSES)
            self._gap_sum_s += float((seen_s * weights).sum())
        lasting_s = np.maximum(spans.span_s, _LEAST_SPAN_S)
        rates = spans.emitted / lasting_s, spans.prompt_tokens / lasting_s
        values = [spans.requests, spans.not_decoding, spans.kv_tokens, spans.drafts, *rates]
        self._add_to_bins(spans.start_s, spans.span_s, np.stack(values))

    def _add_to_bins(self, start: FloatArray, span: FloatArray, values: FloatArray) -> None:
        """values: (quantities, spans) at each moment of spans in the order of time."""
        end = float((start + span).max())
        while end > _BINS * self._bin_s:
            half = self._bins[:, 0::2] + self._bins[:, 1::2]
            self._bins = np.concatenate([half, np.zeros_like(half)], axis=1)
            self._bin_s *= 2.0
        edges = np.arange(_BINS + 1) * self._bin_s
        moments = np.stack([start, start + span], axis=1).ravel()
        for place, value in enumerate(values):
            summed = np.cumsum(np.stack([np.zeros_like(span), value * span], axis=1).ravel())
            self._bins[place] += np.diff(np.interp(edges, moments, summed))

    def _timeline(self, end_s: float) -> Timeline:
        """Means over the bins up to the end."""
        used = max(int(np.ceil(end_s / self._bin_s)), 1)
        width = np.full(used, self._bin_s)
        width[-1] = max(end_s - (used - 1) * self._bin_s, 1e-12)
        time_s = np.asarray((np.arange(used) + 0.5) * self._bin_s, dtype=np.float64)
        return Timeline(time_s, *(self._bins[:, :used] / width))

    def result(
        self,
        *,
        sent_s: FloatArray,
        end_s: float,
        window_s: tuple[float, float],
        preemptions: int,
        kv_blocks_most: int,
    ) -> RunResult:
        """The run from its beginning to its end. sent_s: (requests,) when each came."""
        whole = self._sums(end_s, self._requests.count)
        return RunResult(
            requests=self._requests,
            arrival_s=sent_s,
            first_token_s=self.first_token_s,
            finish_s=self.finish_s,
            whole=whole,
            inside=self._marks[1].since(self._marks[0]) if self._marks else whole,
            preemptions=preemptions,
            in_system_s=self.in_system_s,
            window_s=window_s,
            kv_blocks_most=kv_blocks_most,
            timeline=self._timeline(end_s),
        )
