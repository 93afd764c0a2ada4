"""A step seen through a server that stays full: what its steps carry is a distribution.

A request decodes for D = (N - 1) / tau steps, reads its prompt in R steps and is away for I steps until the
next one is in: of b requests a share pi = 1 / (D + R + I) sends a prompt to a step.

    (N7)  n       ~ Bin(b, pi) prompts begin on a step, of S tokens: log-normal, mean n P, variance n (cv P)^2
    (N8)  t(n, S) = step(b) - (b - d) a - linear(rows) + linear(d c + S) + attention(S)
                  = step(b) + linear(S) + attention(S)       where prompts have passes of their own
          d       = (b - n) D / (D + I) requests decode; without a prompt linear(rows) is averaged over d
          and where no graph holds a pass with prompts |that, launches u|_3
          beyond the token budget C of a step: floor(S / C) further steps that carry C each
    (N9)  itl     = median of t over the steps of a request that decodes
    (N10) tpot    = mean of t over these / tau                         from a request's first token on
    (N11) tokens/s = b / token,  token = mean of t over all steps / (pi N)
    (N17) ttft    = (I + queued) steps + mean of t over the steps that a prompt rides on
    (N19) ttft of a load test whose b clients begin at once, k requests each:
          ((k - 1) ttft + start) / k + later
          start   = server + (t that reads b prompts + t that reads one) / 2
          later   = load_test_us + load_test_steps mean step

P and N are the mean tokens of a prompt and an output; a the attention of one request in the step, c its
candidates; linear(rows) is that of the step as it is padded: what carries prompts is not. A step's time is
convex in what it carries, with cliffs: it is averaged over the distribution, never taken at its mean. I is
what an engine schedules ahead, and the way of a response to the client and back. Without P and N nothing is
carried, and a step is its own kernels, host and engine alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from medusa_sim.arrays import FloatArray, IntArray, distinct
from medusa_sim.operators.operator import Size
from medusa_sim.step.chance import Hits, binomial, log_normal, quantile
from medusa_sim.step.drafter.base import Drafter
from medusa_sim.step.host import Added, host_share, overlapped_us
from medusa_sim.step.prompts import (
    drafter_prompt_us,
    graph_rows,
    launching_host_us,
    linear_step,
    prompt_attention_us,
    prompt_host_us,
    prompt_term,
    prompt_terms,
    prompts_apart,
    timed_rows,
)
from medusa_sim.step.sampling import sampled
from medusa_sim.step.server_cells import InFlight, ServerCells, in_flight, rows_of, sums_by_place
from medusa_sim.step.setting import Setting
from medusa_sim.step.step import processed_tokens
from medusa_sim.step.traffic import Traffic

REQUESTS_A_CLIENT = 10
"""Of load tests: k of (N19). InferenceX's recipes ask for ten times as many prompts as are in flight."""
_LEAST_US = 1e-9
_BLOCK = 1024
"""Cells whose steps are priced at once."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Served:
    """Steps that nothing rides on: time is the step's. step_us, tokens_per_step broadcast; microseconds."""

    step_us: FloatArray
    tokens_per_step: FloatArray
    server_us: float

    @property
    def itl_us(self) -> FloatArray:
        """Median time between two chunks of a request."""
        return self.step_us

    @property
    def tpot_us(self) -> FloatArray:
        """Mean time per token of a request from its first token on, as load generators count."""
        return np.asarray(self.step_us / self.tokens_per_step)

    @property
    def token_us(self) -> FloatArray:
        """The same with its own prompt: what the rate of all requests tells."""
        return self.tpot_us

    @property
    def first_token_us(self) -> FloatArray:
        """Mean time to the first token: half a running step, and the next one."""
        return np.asarray(self.server_us + 1.5 * self.step_us)

    @property
    def benchmark_first_token_us(self) -> FloatArray:
        """The same as load generators count, whose clients all begin at once."""
        return self.first_token_us

    def quantile_us(self, share: float) -> FloatArray:
        """Time between two chunks that this share of them keeps."""
        del share
        return self.step_us

    @property
    def step_share(self) -> FloatArray:
        """Of token_us, what the engine's step takes."""
        return np.ones(())

    @property
    def halves(self) -> tuple[FloatArray, ...]:
        """Half-widths of the 80 % band of token_us, on its logarithm, from each thing beside the step.

        Each is one error: that of plain decoding and of speculation have the same sign.
        """
        return ()


class _Steps(NamedTuple):
    """Steps on which so many prompts begin, at some cells; (m, K) over equally likely lengths.

    time_us: of the last step that these prompts ride on; further: how many carry a whole budget before it,
    each of further_us. decoding: (m,) requests that decode.
    """

    time_us: FloatArray
    further: FloatArray
    further_us: FloatArray
    decoding: FloatArray


class _Linear(NamedTuple):
    """What the tokens of a step share at (n,) rising numbers of rows.

    device_us: its time; upper_halves: of its 80 % band on the logarithm.
    """

    rows: IntArray
    device_us: FloatArray
    upper_halves: FloatArray

    def at(self, rows: IntArray) -> FloatArray:
        """Device time at some of the rows, microseconds."""
        return np.asarray(self.device_us[np.searchsorted(self.rows, rows)])

    def upper_half(self, rows: int) -> float:
        """Upper half-width of its band at one of them."""
        return float(self.upper_halves[np.searchsorted(self.rows, rows)])


@dataclass(frozen=True, kw_only=True, eq=False)
class FullServer(Served):
    """Steps of a server that stays full (N7) to (N19).

    step_us: with all requests decoding and what sampling adds (sampled), attention_us: their attention in it;
    requests, width (tokens of each in the step): all broadcast with step_us. drafter: of the configurations
    wider than one token.
    """

    setting: Setting
    traffic: Traffic
    requests: FloatArray
    width: FloatArray
    attention_us: FloatArray
    drafter: Drafter | None
    sampled: Added

    @property
    def token_us(self) -> FloatArray:
        """(N11): time of a whole request over its tokens."""
        return self._shaped(self._means.all_us / (self._cells.share * self.traffic.output_tokens))

    @property
    def tpot_us(self) -> FloatArray:
        """(N10)."""
        return self._shaped(self._means.decoding_us / self._cells.tokens)

    @property
    def first_token_us(self) -> FloatArray:
        """(N17)."""
        cells, means = self._cells, self._means
        waits_us = cells.away_us + (cells.away + cells.queued) * means.all_us
        if prompts_apart(self.setting):  # no step follows a pass where nobody decodes
            waits_us = waits_us - np.maximum(2.0 - cells.requests, 0.0) * cells.step_us
        return self._shaped(waits_us + means.prompts_us)

    @property
    def benchmark_first_token_us(self) -> FloatArray:
        """(N19)."""
        full_us, engine = self.first_token_us, self.setting.runtime.engine
        test_us = full_us + (self._start_us - full_us) / REQUESTS_A_CLIENT
        if engine is None:
            return np.asarray(test_us)
        waited_us = engine.load_test_steps.value * self._shaped(self._means.all_us)
        return np.asarray(test_us + engine.load_test_us.value + waited_us)

    @cached_property
    def _start_us(self) -> FloatArray:
        """Mean time to the first token of requests that all begin at once on an idle server."""
        cells = self._cells

        def reading_us(at: ServerCells, count: FloatArray) -> FloatArray:
            steps = self._steps(at, count)
            return np.asarray((steps.further * steps.further_us + steps.time_us).mean(axis=1))

        found = np.empty(cells.step_us.size)
        for block in _blocks(found.size):
            at = cells.at(block)
            found[block] = reading_us(at, at.requests) + reading_us(at, np.ones(block.size))
        return self._shaped(self.server_us + found / 2.0)

    @cached_property
    def itl_us(self) -> FloatArray:
        """(N9)."""
        return self.quantile_us(0.5)

    def quantile_us(self, share: float) -> FloatArray:
        """Time between two chunks that this share of them keeps."""
        cells, found = self._cells, np.empty(self._cells.step_us.size)
        for block in _blocks(found.size):
            found[block] = quantile(*self._gaps(cells.at(block)), share, block.size)
        return self._shaped(found)

    @cached_property
    def step_share(self) -> FloatArray:
        """Of token_us, what the engine's step takes: of as many steps as a request decodes."""
        return np.minimum(self._share_of(self.step_us - self.sampled.time_us), 1.0)

    @cached_property
    def halves(self) -> tuple[FloatArray, ...]:
        """Of sampling, of the kernels of prompts, and of the host that launches these."""
        prompts = np.maximum(1.0 - self._share_of(self.step_us), 0.0)
        kernels = self._linear.upper_half(self._prompt_rows)
        launching, drafts, engine = np.zeros(()), self.width > 1.0, self.setting.runtime.engine
        if engine is not None and any(self._host_us):
            host_us = np.where(drafts, self._host_us[1], self._host_us[0])
            rode_us = np.maximum(self._shaped(self._means.prompts_us), host_us)
            plain, drafting = (prompt_term(self.setting, engine, drafts=each).band for each in (False, True))
            launching = prompts * host_share(host_us, rode_us) * np.where(drafts, drafting, plain)
        return self._share_of(self.sampled.half_us), prompts * kernels, launching

    def _share_of(self, each_us: FloatArray) -> FloatArray:
        """Of a whole request, what takes so long in each step that it decodes."""
        cells = self._cells
        decodes, request_us = map(self._shaped, (cells.decodes, self._means.all_us / cells.share))
        return np.asarray(each_us * decodes / request_us)

    def _shaped(self, values: FloatArray) -> FloatArray:
        return values.reshape(np.broadcast_shapes(*map(np.shape, self._inputs)))

    @property
    def _inputs(self) -> tuple[FloatArray, ...]:
        return self.step_us, self.requests, self.width, self.tokens_per_step, self.attention_us

    @property
    def _cells(self) -> ServerCells:
        """Every cell in a row."""
        return self._priced[0]

    @property
    def _linear(self) -> _Linear:
        """What a step's tokens share, at all rows that are asked about."""
        return self._priced[1]

    @cached_property
    def _priced(self) -> tuple[ServerCells, _Linear]:
        """`_cells` and `_linear`; the rows of every number of requests are not kept."""
        step_us, requests, width, tokens, attention_us = (
            values.ravel() for values in np.broadcast_arrays(*self._inputs)
        )
        cells = in_flight(
            self.setting,
            self.traffic,
            step_us=step_us,
            requests=requests,
            width=width,
            tokens=tokens,
            attention_us=attention_us,
            server_us=self.server_us,
        )
        rows = rows_of(self.setting, cells)
        timed = distinct(rows.whole, rows.fewer, _ends_of_lines(cells), [self._prompt_rows])
        step = linear_step(self.setting, timed.astype(np.float64))
        linear = _Linear(timed, step.device_us, np.log(step.high_us / step.time_us))
        return cells.sharing(linear.at(rows.whole), rows.mean(linear.at(rows.fewer))), linear

    @property
    def _prompt_rows(self) -> int:
        """Those of a mean prompt alone."""
        return round(max(self.traffic.prompt_tokens, 1.0))

    @cached_property
    def _prompts_us(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        """(rows, linear_us, drafter_prompt_us): what a step's tokens share, between these rows linear."""
        ends = _ends_of_lines(self._cells)
        rows = ends.astype(np.float64)
        return rows, self._linear.at(ends), drafter_prompt_us(self.setting, self.drafter, rows)

    @cached_property
    def _prompt_attention_us(self) -> float:
        """Of one prompt, in the mean over its length."""
        lengths = self.traffic.prompt_tokens * log_normal(np.full(1, self.traffic.prompt_cv))[0]
        return float(prompt_attention_us(self.setting, lengths, lengths).mean())

    @cached_property
    def _host_us(self) -> tuple[float, float]:
        """(without a drafter, with one)."""
        plain_us, drafting_us = (prompt_host_us(self.setting, drafts=drafts) for drafts in (False, True))
        return plain_us, drafting_us

    @cached_property
    def _graph(self) -> tuple[float, float]:
        """(most rows that a graph holds, the host in a step of more)."""
        return graph_rows(self.setting), launching_host_us(self.setting)

    @cached_property
    def _together(self) -> int:
        """Prompts that wait for each other, one for each GPU.

        So where a step with a prompt is launched kernel by kernel on every GPU under data-parallel attention.
        """
        waits = not prompts_apart(self.setting) and any(self._host_us)
        return self.setting.parallel.schedulers if waits else 1

    @cached_property
    def _means(self) -> _Means:
        """Mean time of all steps, of those of a request that decodes, and of those that a prompt rides on."""
        cells = self._cells
        size, found = cells.step_us.size, []
        for block in _blocks(size):
            at = cells.at(block)
            hits = self._begin(at)
            here = at.at(hits.place)
            steps = self._steps(here, hits.number)
            own_us = steps.time_us.mean(axis=1)
            further_us = (steps.further * steps.further_us).mean(axis=1)
            # further steps are no steps more: they stand in place of some that carry nothing
            mean_us = own_us + further_us - steps.further.mean(axis=1) * here.empty_us
            decoding, riding = hits.weight * steps.decoding, hits.weight * hits.number
            sums = (
                sums_by_place(each, hits.place, block.size)
                for each in (
                    hits.weight * mean_us,
                    decoding * mean_us,
                    riding * (own_us + further_us),
                    decoding,
                    riding,
                )
            )
            found.append(tuple(sums))
        all_us, decoding_us, prompts_us, seen, rode = (
            np.concatenate(each) for each in zip(*found, strict=True)
        )
        return _Means(all_us, decoding_us / np.maximum(seen, 1e-300), prompts_us / np.maximum(rode, 1e-300))

    def _begin(self, cells: ServerCells) -> Hits:
        """(N7): how many prompts begin on a step of each cell."""
        together = np.minimum(float(self._together), cells.requests)
        hits = binomial(cells.requests / together, cells.share)
        return hits._replace(number=hits.number * together[hits.place])

    def _steps(self, cells: ServerCells, count: FloatArray) -> _Steps:
        """Of cells on which so many prompts begin: (N8)."""
        apart, traffic = prompts_apart(self.setting), self.traffic
        decoding = np.maximum(cells.requests - count, 0.0) * cells.stays
        attended = cells.requests * cells.stays if apart else decoding
        own_us = (cells.step_us - (cells.requests - attended) * cells.request_attention_us)[:, None]
        alone_us = own_us + (cells.mean_linear_us - cells.linear_us)[:, None]
        some = np.maximum(count, 1e-9)[:, None]
        read = count[:, None] * traffic.prompt_tokens * log_normal(traffic.prompt_cv / np.sqrt(some[:, 0]))
        room = cells.room[:, None]
        further = np.floor(read / room)
        rest = read - further * room
        gpus = float(self.setting.parallel.schedulers)  # each attends to its own prompts
        whole_us = self._prompt_attention_us * np.maximum(count / gpus, np.minimum(count, 1.0))[:, None]
        per_token_us = whole_us / (some * traffic.prompt_tokens)
        drafts = (cells.width > 1.0)[:, None]
        share, launching_us = prompt_terms(self.setting)

        def carrying_us(tokens: FloatArray) -> FloatArray:
            rows, linear, drafting = self._prompts_us
            added = per_token_us * tokens + drafts * np.interp(tokens, rows, drafting) * (tokens > 0.0)
            if apart:
                passes = share * (added + np.interp(tokens, rows, linear) * (tokens > 0.0))
                if not any(self._host_us):
                    return alone_us + passes
                launches_us = np.where(drafts, self._host_us[1], self._host_us[0])
                launched = overlapped_us(np.maximum(passes, _LEAST_US), launches_us)
                return alone_us + np.where(tokens > 0.0, launched, 0.0)
            own = (decoding * cells.width)[:, None]
            shared = np.interp(own + tokens, rows, linear) - cells.linear_us[:, None]
            whole = own_us + added * share + np.where(shared > 0.0, share * shared, shared)
            if any(self._host_us):
                return overlapped_us(whole, self._host_us[0])
            most, host_us = self._graph
            eager = (own + tokens > most) & (cells.requests * cells.width <= most)[:, None]
            return overlapped_us(whole, np.where(eager, host_us, 0.0)) if host_us else whole

        time_us = np.where(count[:, None] > 0.0, carrying_us(rest) + launching_us, alone_us)
        further_us = carrying_us(room) + launching_us if further.any() else alone_us
        return _Steps(time_us, further, further_us, decoding)

    def _gaps(self, cells: ServerCells) -> tuple[FloatArray, FloatArray, IntArray]:
        """(times, weights, places) of the steps in which a request decodes."""
        hits = self._begin(cells)
        steps = self._steps(cells.at(hits.place), hits.number)
        shape = steps.time_us.shape
        seen = np.broadcast_to((hits.weight * steps.decoding)[:, None] / shape[1], shape)
        place = np.broadcast_to(hits.place[:, None], shape)
        if not steps.further.any():
            return steps.time_us.ravel(), seen.ravel(), place.ravel()
        more = seen * steps.further
        # further steps stand in place of some that carry nothing
        taken = sums_by_place(more.sum(axis=1), hits.place, cells.step_us.size)[hits.place]
        nothing = hits.number == 0.0
        kept = np.where(nothing[:, None], np.maximum(seen - taken[:, None] / shape[1], 0.0), seen)
        further_us = np.broadcast_to(steps.further_us, shape)
        pairs = ((steps.time_us, further_us), (kept, more), (place, place))
        times, weights, places = (np.concatenate([np.ravel(each) for each in pair]) for pair in pairs)
        return times, weights, places


def _ends_of_lines(cells: InFlight) -> IntArray:
    """Rows between which what the tokens of their steps share is linear."""
    return timed_rows(float((cells.requests * cells.width).max() + cells.room.max())).astype(np.int64)


class _Means(NamedTuple):
    all_us: FloatArray
    decoding_us: FloatArray
    prompts_us: FloatArray


def served(
    setting: Setting,
    step_us: FloatArray,
    batch: Size,
    candidates: Size,
    tokens_per_step: FloatArray,
    traffic: Traffic | None,
    *,
    attention_us: FloatArray | float = 0.0,
    drafter: Drafter | None = None,
) -> Served:
    """A step of `batch` requests in a server. step_us: at `served_length`; all broadcast.

    attention_us: of step_us, the attention of all requests; drafter: what reads the prompts, too.
    """
    step, tokens = np.asarray(step_us, dtype=np.float64), np.asarray(tokens_per_step, dtype=np.float64)
    engine = setting.runtime.engine
    server_us = 0.0 if engine is None else engine.server_us.value
    if traffic is None or setting.scope == "block":
        return Served(step_us=step, tokens_per_step=tokens, server_us=server_us)
    requests = np.asarray(batch, dtype=np.float64)
    shape = np.broadcast_shapes(step.shape, requests.shape, np.shape(candidates), tokens.shape)
    if 0 in shape:  # no batch fits
        return Served(step_us=np.broadcast_to(step, shape), tokens_per_step=tokens, server_us=server_us)
    added = sampled(setting, requests, candidates, tokens)
    return FullServer(
        setting=setting,
        traffic=traffic,
        step_us=step + added.time_us,
        sampled=added,
        tokens_per_step=tokens,
        server_us=server_us,
        requests=requests,
        width=np.asarray(processed_tokens(setting, candidates), dtype=np.float64),
        attention_us=np.asarray(attention_us, dtype=np.float64),
        drafter=drafter,
    )


def _blocks(size: int) -> Iterator[IntArray]:
    """Places of cells that are priced together."""
    return (np.arange(first, min(first + _BLOCK, size)) for first in range(0, size, _BLOCK))
