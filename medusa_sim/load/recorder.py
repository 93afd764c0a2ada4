"""Recorder of a run: keeps its spans of equal steps while it goes on, and adds them up at its end."""

from __future__ import annotations

from array import array
from typing import Generic, NamedTuple, TypeVar

import numpy as np

from medusa_sim.arrays import FloatArray, as_float
from medusa_sim.load.requests import Requests
from medusa_sim.load.run_result import GAP_CLASSES, RunResult, Sums, Timeline, class_of_gap

_BINS = 512
_FIRST_BIN_S = 0.02
"""Width of the bins of the timeline; it is doubled until they hold the run."""
_LEAST_SPAN_S = 1e-12
"""Of a pass of prompts that takes no time."""
Value = TypeVar("Value", float, FloatArray)


class Span(NamedTuple, Generic[Value]):
    """Equal steps in a row, or a pass of prompts alone (no steps); of many spans each field is (spans,)."""

    start_s: Value
    span_s: Value
    """Its time, that of its prompts with it."""
    prompts_s: Value
    """Time of its prompts."""
    steps: Value
    requests: Value
    """Requests that decode."""
    drafts: Value
    """Drafts of a request in a step."""
    not_decoding: Value
    """Requests in the queue or reading their prompt."""
    kv_tokens: Value
    """Tokens in the KV cache, on average."""
    prompt_tokens: Value
    """Tokens of prompts that are computed in it."""
    emitted: Value
    """Tokens, by all requests in all steps."""
    accepted: Value
    """Drafts that were accepted."""
    joined: Value
    """Requests that decode from its end on, their prompts being read."""
    sent: Value
    """Requests that have come by its start, since the run began."""
    finished: Value
    """Requests that have finished by its end, since the run began."""
    served: Value
    """Requests served by its end, since the run began, each by the share of its output."""


class Recorder:
    """Spans of a run, in their order. first_token_s, finish_s: as of a `RunResult`; the engine fills them."""

    def __init__(self, requests: Requests, drafts_max: int, requests_max: int) -> None:
        self.first_token_s: FloatArray = np.full(requests.count, np.nan)
        self.finish_s: FloatArray = np.full(requests.count, np.nan)
        self._requests, self._shape = requests, (drafts_max + 1, requests_max + 1)
        self._values = array("d")
        self._long_gaps: list[tuple[int, float]] = []

    def add(self, span: Span[float]) -> None:
        """One span."""
        self._values.extend(span)

    def add_gap(self, gap_s: float) -> None:
        """Count a gap that is no step: of a request that was preempted."""
        self._long_gaps.append((len(self._values) // len(Span._fields), gap_s))

    def result(self, sent_s: FloatArray, *, preemptions: int, kv_blocks_most: int) -> RunResult:
        """The run from its beginning to its end. sent_s: (requests,) when each came."""
        spans = Span(*np.frombuffer(self._values).reshape(-1, len(Span._fields)).T)
        end_s, all_spans = float(spans.start_s[-1] + spans.span_s[-1]), slice(0, spans.steps.size)
        come_s = np.sort(sent_s)
        seen_by = np.searchsorted(spans.sent, np.arange(come_s.size), side="right")  # the first that sees it
        unseen_s = spans.start_s[seen_by] - come_s
        in_system = spans.requests + spans.not_decoding
        part, span_s, window_s = _window(self._requests, spans, come_s)
        return RunResult(
            requests=self._requests,
            arrival_s=sent_s,
            first_token_s=self.first_token_s,
            finish_s=self.finish_s,
            whole=self._sums(spans, all_spans, end_s),
            inside=self._sums(spans, part, span_s),
            preemptions=preemptions,
            in_system_s=float((in_system * spans.span_s).sum() + unseen_s.sum()),
            window_s=window_s,
            kv_blocks_most=kv_blocks_most,
            timeline=_timeline(spans, end_s),
        )

    def _sums(self, spans: Span[FloatArray], part: slice, span_s: float) -> Sums:
        """Sums over a part of the spans, which lasts so long."""
        here = Span(*(column[part] for column in spans))
        stalled_s, joined = (of_all[part] for of_all in _stalls(spans))
        steps_s, prompts_s = np.zeros(self._shape), np.zeros(self._shape)
        cells = here.drafts.astype(np.int64), here.requests.astype(np.int64)
        np.add.at(steps_s, cells, here.span_s - here.prompts_s)
        np.add.at(prompts_s, cells, here.prompts_s)
        chunks = here.steps * here.requests  # that requests receive
        gap_s = here.span_s / np.maximum(here.steps, 1.0)
        long_s = [gap_s for place, gap_s in self._long_gaps if part.start <= place < part.stop]
        gaps_s = np.concatenate([gap_s + stalled_s, gap_s, long_s])
        often = np.concatenate([chunks - joined, joined, np.ones(len(long_s))])
        before = spans.served[part.start - 1] if part.start else 0.0
        return Sums(
            span_s=span_s,
            served=float(here.served[-1] - before),
            steps=int(here.steps.sum()),
            steps_s=steps_s,
            prompts_s=prompts_s,
            emitted=int(here.emitted.sum()),
            prompt_tokens=int(here.prompt_tokens.sum()),
            speculated=int(chunks[here.drafts > 0].sum()),
            accepted=float(here.accepted.sum()),
            gaps=as_float(np.bincount(class_of_gap(gaps_s), weights=often, minlength=GAP_CLASSES)),
            gap_sum_s=float((gaps_s * often).sum()),
        )


def _window(
    requests: Requests, spans: Span[FloatArray], come_s: FloatArray
) -> tuple[slice, float, tuple[float, float]]:
    """(spans of the window, the time that they take, the window itself), as of a `RunResult`.

    come_s: (requests,) when requests came, rising.
    """
    ends_s = spans.start_s + spans.span_s
    if requests.users is None and requests.warm:
        first, last = np.searchsorted(spans.sent, [requests.warm + 1, requests.count])
        window_s = float(come_s[requests.warm]), float(come_s[-1])
        return slice(first, last), float(spans.start_s[last] - spans.start_s[first]), window_s
    if requests.users is not None and requests.count > 2 * requests.users:
        ended = np.searchsorted(spans.finished, [requests.users, requests.count - requests.users])
        first, last = ended[0] + 1, max(ended[1] + 1, ended[0] + 2)  # one at least
        start_s, end_s = float(ends_s[first - 1]), float(ends_s[last - 1])
        return slice(first, last), end_s - start_s, (start_s, end_s)
    return slice(0, spans.steps.size), float(ends_s[-1]), (0.0, float(ends_s[-1]))


def _stalls(spans: Span[FloatArray]) -> tuple[FloatArray, FloatArray]:
    """(time of the passes of prompts just before each span, how many of its requests did not wait for them).

    Both (spans,), 0 of passes. Requests did not wait whose prompts these passes read.
    """
    takes_steps = spans.steps > 0
    stalled_s, joined = np.zeros((2, takes_steps.size))
    for found, column in ((stalled_s, spans.span_s), (joined, spans.joined)):
        of_passes = np.cumsum(np.where(takes_steps, 0.0, column))
        found[takes_steps] = np.diff(of_passes[takes_steps], prepend=0.0)
    return stalled_s, np.minimum(joined, spans.requests)


def _timeline(spans: Span[FloatArray], end_s: float) -> Timeline:
    """Means over bins of a width up to the end."""
    bin_s = _FIRST_BIN_S
    while end_s > _BINS * bin_s:
        bin_s *= 2.0
    used = max(int(np.ceil(end_s / bin_s)), 1)
    edges = np.minimum(np.arange(used + 1) * bin_s, end_s)
    moments = np.stack([spans.start_s, spans.start_s + spans.span_s], axis=1).ravel()
    lasting_s = np.maximum(spans.span_s, _LEAST_SPAN_S)
    rates = spans.emitted / lasting_s, spans.prompt_tokens / lasting_s
    lines = []
    for value in (spans.requests, spans.not_decoding, spans.kv_tokens, spans.drafts, *rates):
        summed = np.cumsum(np.stack([np.zeros_like(value), value * spans.span_s], axis=1).ravel())
        lines.append(np.diff(np.interp(edges, moments, summed)) / np.maximum(np.diff(edges), _LEAST_SPAN_S))
    return Timeline(as_float((np.arange(used) + 0.5) * bin_s), *lines)
