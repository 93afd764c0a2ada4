"""Mixed steps of a full server: what a step takes that carries prefill tokens and decode tokens.

`request_cycle` says what each letter is. Of the b requests of a cell n begin their prompts on a step
(`begun_prompts`), which bring S prefill tokens, while d requests decode:

    S       log-normal with mean n P and variance n (cv P)^2
    d(n)    = running (1 - n / b) (D - apart) / (D - apart + I + H)      requests that decode all the
                                        while, on average: more are away on steps without prompts
    absent  = (I + H) / (D + I + H)     share of requests that do not, while no prompt rides or queues

    (N8)  t(0)    = step(b) - b absent attend - decode(b) + mean of decode over how many are absent
          t(n, S) = |device, launches|_3 + extra              where prompts ride on steps, with
                    device = step(b) - (b - d) attend + g more(S) + g read(S)
                  = t(0) + |device, launches|_3 + extra       where they have passes of their own, with
                    device = g (linear(S) + logits) + g read(S)
          more(S) = linear(d c + S) - inactive(S) sharing(b c) d / b - decode(b)
          read(S) = attention of n prompts + that of the drafter + drafter(S) + imbalance(S)

attend is the attention of one request that decodes. The other pieces are those of `step.prompt_kernels`; g,
launches, extra and how they are put together those of `PromptTerms.mixed_us` (`step.prompts`). decode(b) has
the rows of the step as an engine pads it, and is at most what attention leaves of the step; where fewer than
b run it is interpolated as their step is. A mixed step is not padded. GPUs that attend to their own requests
share n prompts; where these are fewer than GPUs, one GPU has a whole one and the layers around its attention
too: imbalance(S).

Prompts longer together than the room of a step are read in chunks: full(S) = ceil((S - room) / full) steps
that they fill, then the last one (`running` has room and full). Full ones take the place of steps that
would carry nothing (`step_means`). One is read after the other, the j-th of n behind full(j S / n) of
them; where they have passes of their own, which may be several in a row, it waits for the rest of these
before it decodes.

A step's time is convex in what it carries, with cliffs: it is averaged over n and S, never taken at their
means. In order: what is priced once for all steps (`mixed_step_law`), then each step from it
(`MixedStepLaw.steps`).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, partial
from typing import NamedTuple

import numpy as np

from medusa_sim.arrays import FloatArray, IntArray, as_float
from medusa_sim.serving.begun_prompts import Begun, begun_prompts
from medusa_sim.serving.chance import binomial, log_normal, place_between, sums_by_place
from medusa_sim.serving.request_cycle import RequestCycle, StepTimes
from medusa_sim.serving.traffic import Traffic
from medusa_sim.step.drafter.base import Drafter
from medusa_sim.step.host import Added
from medusa_sim.step.prompt_kernels import (
    decode_kernels,
    drafter_attention_us,
    drafter_linear_us,
    imbalance_us,
    inactive_share,
    linear_times,
    linear_us,
    logits_us,
    prompt_attention_us,
    timed_rows,
)
from medusa_sim.step.prompts import (
    LEAST_PROMPTS,
    PromptHost,
    PromptTerms,
    prompt_hosts,
    prompt_terms,
    read_us,
)
from medusa_sim.step.setting import Setting

_TURNS = (np.arange(16) + 0.5) / 16
"""Of prompts that are read one after the other, equally likely ones."""
_NONE = np.zeros(())


def mixed_step_law(
    setting: Setting,
    traffic: Traffic,
    drafter: Drafter | None,
    cycle: RequestCycle,
    cached_tokens: FloatArray | float = 0.0,
    sizes: FloatArray | None = None,
) -> MixedStepLaw:
    """(N8) of the cells of a cycle. drafter: what reads prompts too, where a cell drafts.

    cached_tokens: (cells,) of a prefix before each prompt, which it attends to. sizes: rising numbers of
    requests between which the steps of a cycle in which some queue were interpolated; None: none were.
    """
    requests, candidates = cycle.running, cycle.candidates
    # steps that only decode, of all requests and of those that are present: averaged over how many are
    # absent, so that no edge of a tile falls on one number of requests
    absent = binomial(requests, cycle.absent_share)
    present = np.maximum(requests[absent.place] - absent.number, 1.0)
    linear_at = partial(linear_us, setting)
    full = decode_kernels(setting, requests, candidates, linear_at)
    present_us = decode_kernels(setting, present, candidates[absent.place], linear_at).linear_us
    full_us = full.linear_us
    if sizes is not None and (requests < cycle.requests).any():
        full_us = _interpolated_decode_us(setting, cycle, sizes)

    rows = timed_rows(float((requests * cycle.verified_tokens).max() + cycle.room_tokens.max()))
    prompts = np.stack(np.broadcast_arrays(cycle.prompt_tokens, as_float(cached_tokens)))
    (different, cached), place = np.unique(prompts, axis=1, return_inverse=True)
    place = place.ravel()
    lengths = np.maximum(different[:, None] * log_normal(np.full(1, traffic.prompt_cv)), 1.0)
    ends = lengths + cached[:, None]
    return MixedStepLaw(
        setting=setting,
        traffic=traffic,
        cycle=cycle,
        full_decode_us=full_us,
        mean_decode_us=sums_by_place(absent.weight * present_us, absent.place, requests.size),
        sharing_us=full.sharing_us,
        rows=rows,
        linear_us=linear_us(setting, rows),
        drafter_us=drafter_linear_us(setting, drafter, rows),
        imbalance_us=imbalance_us(setting, rows),
        prompt_attention_us=prompt_attention_us(setting, lengths, ends).mean(axis=1)[place],
        drafter_attention_us=drafter_attention_us(setting, drafter, lengths, ends).mean(axis=1)[place],
        host=prompt_hosts(setting, cycle.candidates),
    )


def _interpolated_decode_us(setting: Setting, cycle: RequestCycle, sizes: FloatArray) -> FloatArray:
    """(cells,) decode(b) of those that run: of all, as much less as it is between these numbers of requests.

    Their step was interpolated so. decode(b) is taken from it and has to lie on the same side of an edge of a
    tile, which may be between all requests and those that run.
    """
    some = np.stack([cycle.running, cycle.requests])
    above, part = place_between(sizes, some)
    asked = np.stack([sizes[above - 1], sizes[above], np.broadcast_to(cycle.requests, some.shape)])
    low_us, high_us, all_us = decode_kernels(
        setting, asked, cycle.candidates, partial(linear_us, setting)
    ).linear_us
    running_us, requests_us = low_us + part * (high_us - low_us)
    return np.asarray(all_us[0] * running_us / requests_us)


class MixedSteps(NamedTuple):
    """Steps and the prompts that begin on each, over equally likely lengths of these prompts."""

    decoding: FloatArray
    """(steps,) d, requests that decode all the while."""
    first_decoding: FloatArray
    """(steps,) those that decode in what is left of the step after their own pass, for `first_us`."""
    absent: FloatArray
    """(steps,) requests that are away or held."""
    decode_only_us: FloatArray
    """(steps,) t(0) of the same cells."""
    time_us: FloatArray
    """(steps, lengths) of the step with the last of these prompts' tokens."""
    full_steps: FloatArray
    """(steps, lengths) full(S): steps before it that chunks of them fill."""
    full_step_us: FloatArray
    """Time of each of these; broadcasts with `full_steps`."""
    reading_us: FloatArray
    """(steps,) mean time until one of these prompts is read, in its turn: of steps, or of passes alone."""
    first_us: FloatArray
    """(steps,) mean time that the first step of one takes: t(0), behind the passes of others."""
    launching_half_us: FloatArray
    """(steps,) mean half-width of these steps' time, of the host that launches them: one error of all."""

    @property
    def mean_us(self) -> FloatArray:
        """(steps,) of the step, and what the full ones take longer than those whose place they take."""
        with_full_us = (self.time_us + self.full_steps * self.full_step_us).mean(axis=1)
        return np.asarray(with_full_us - self.full_steps.mean(axis=1) * self.decode_only_us)


@dataclass(frozen=True, kw_only=True, eq=False)
class MixedStepLaw:
    """(N8) of some cells, with what is priced once for all of their steps; microseconds."""

    setting: Setting
    traffic: Traffic
    cycle: RequestCycle
    full_decode_us: FloatArray
    """(cells,) decode(b), with all requests decoding."""
    mean_decode_us: FloatArray
    """(cells,) the same, averaged over how many are absent."""
    sharing_us: FloatArray
    """(cells,) sharing(b c): what experts save in a step without prompts."""
    rows: FloatArray
    """(rows,) between which the next three are linear."""
    linear_us: FloatArray
    """(rows,) linear."""
    drafter_us: FloatArray
    """(rows,) what a drafter adds for prefill tokens, but for its attention."""
    imbalance_us: FloatArray
    """(rows,) what linear takes longer where one GPU attends to all of these tokens."""
    prompt_attention_us: FloatArray
    """(cells,) attention of one prompt, averaged over its length."""
    drafter_attention_us: FloatArray
    """(cells,) that of a drafter which reads the prompt, too."""
    host: PromptHost
    """(cells,) what launches a step or pass with prompts."""

    @cached_property
    def logits_us(self) -> float:
        """Of sampling first tokens, in passes of prompts."""
        return logits_us(self.setting)

    @cached_property
    def step_times(self) -> StepTimes:
        """Of (N8), as many prompts beginning as do on average where any do; averaged over their lengths."""
        cycle = self.cycle
        none = 1.0 - cycle.begin_chance
        begins = np.maximum(1.0 - none**cycle.running, LEAST_PROMPTS)
        steps = self.steps(np.arange(cycle.running.size), cycle.running * cycle.begin_chance / begins)
        carrying_us = steps.mean_us - self._terms.are_apart * self.decode_only_us
        return StepTimes(self.decode_only_us, carrying_us, 1.0 - none ** np.maximum(cycle.running - 1.0, 0.0))

    @cached_property
    def prompt_half(self) -> FloatArray:
        """(cells,) upper half-width of the band of linear(P), on the logarithm."""
        rows, place = np.unique(np.rint(np.maximum(self.cycle.prompt_tokens, 1.0)), return_inverse=True)
        prompt = linear_times(self.setting, rows)
        return np.asarray(np.log(prompt.high_us / prompt.time_us)[place])

    @cached_property
    def _terms(self) -> PromptTerms:
        return prompt_terms(self.setting)

    def begun_prompts(self, block: IntArray) -> Begun:
        """n: how many prompts begin on a step of the cells at these places."""
        # GPUs whose mixed steps are launched by their hosts wait for each other's prompts
        wait = np.any(self.host.always_us) and not self._terms.are_apart
        return begun_prompts(self.cycle, block, self.setting.parallel.schedulers if wait else 1)

    def steps(self, cell: IntArray, prompts: FloatArray, passes: FloatArray | float = 1.0) -> MixedSteps:
        """Steps on which so many prompts begin. cell: (steps,) place of each one's cell.

        passes: of their own, one after the other between two steps, in which they are read.
        """
        cycle, each_prompts = self.cycle, prompts / passes
        spread = log_normal(self.traffic.prompt_cv / np.sqrt(np.maximum(each_prompts, LEAST_PROMPTS)))
        tokens = (each_prompts * cycle.prompt_tokens[cell])[:, None] * spread  # S
        room_tokens, full_tokens = cycle.room_tokens[cell][:, None], cycle.full_tokens[cell][:, None]
        full_steps = _full_steps(tokens, room_tokens, full_tokens)

        # the step, or pass, with the last of these tokens, and those that chunks fill before it
        are_apart, t0_us = self._terms.are_apart, self.decode_only_us[cell][:, None]
        carrying, none_us = (self._pass, _NONE) if are_apart else (self._mixed, t0_us)
        last = carrying(cell, each_prompts, tokens - full_steps * full_tokens)
        full = carrying(cell, each_prompts, full_tokens) if full_steps.any() else Added(none_us, _NONE)
        begins = prompts[:, None] > 0.0
        time_us = np.where(begins, last.time_us, none_us)
        launching_half_us = begins * last.half_us + full_steps * full.half_us
        full_before, ends_last = _in_turn(each_prompts, tokens, room_tokens, full_tokens)
        reading_us = ends_last * time_us + (1.0 - ends_last + full_before) * full.time_us
        behind_us = np.zeros_like(time_us)
        if are_apart:  # a step behind all passes; half of the others are before a prompt's own, half behind
            several = np.broadcast_to(passes, prompts.shape)[:, None]
            pass_us = time_us + full_steps * full.time_us
            others_us = (several - 1.0) / 2.0 * pass_us
            behind_us = np.maximum(pass_us - reading_us, 0.0) + others_us
            reading_us, time_us = reading_us + others_us, t0_us + several * pass_us
            launching_half_us, full_steps = several * launching_half_us, np.zeros_like(full_steps)
        decoding, absent = self._decoding_and_absent(cell, prompts)
        return MixedSteps(
            decoding=decoding,
            first_decoding=prompts * cycle.after_prefill_steps[cell],
            absent=absent,
            decode_only_us=t0_us[:, 0],
            time_us=time_us,
            full_steps=full_steps,
            full_step_us=full.time_us,
            reading_us=reading_us.mean(axis=1),
            first_us=t0_us[:, 0] + behind_us.mean(axis=1),
            launching_half_us=launching_half_us.mean(axis=1),
        )

    def _decoding_and_absent(self, cell: IntArray, prompts: FloatArray) -> tuple[FloatArray, FloatArray]:
        """(steps,) d(n), and how many are absent: all that neither queue nor begin."""
        cycle = self.cycle
        others = cycle.running[cell] * np.maximum(1.0 - prompts / cycle.requests[cell], 0.0)
        decoding = others * cycle.decoding_shares[cell, 1 * (prompts > 0.0)]
        return decoding, others - decoding

    @cached_property
    def decode_only_us(self) -> FloatArray:
        """(cells,) t(0)."""
        cycle = self.cycle
        absent_us = cycle.running * cycle.absent_share * cycle.request_attention_us
        return cycle.step_us - absent_us - (self.full_decode_us - self.mean_decode_us)

    # t(n, S) of (steps, lengths) steps; cell and prompts are (steps,), tokens are S.

    def _mixed(self, cell: IntArray, prompts: FloatArray, tokens: FloatArray) -> Added:
        """Where prompts ride on the step."""
        cycle, host = self.cycle, self.host.at(cell[:, None])
        decoding, _ = self._decoding_and_absent(cell, prompts)
        not_decoding = cycle.running[cell] - decoding
        step_us = (cycle.step_us[cell] - not_decoding * cycle.request_attention_us[cell])[:, None]
        rows = (decoding * cycle.verified_tokens[cell])[:, None] + tokens  # d c + S
        linear_us, saved_us = np.interp(rows, self.rows, self.linear_us), _NONE
        if self.sharing_us.any():
            sharing_us = decoding / cycle.running[cell] * self.sharing_us[cell]
            saved_us = inactive_share(self.setting, tokens) * sharing_us[:, None]
        # both may lie between two that were priced, each for itself: decode(b) is no more than its step
        decode_us = np.minimum(self.full_decode_us[cell][:, None], step_us)
        more_us = self._terms.more_us(linear_us, decode_us, saved_us)
        decode_rows = (cycle.running * cycle.verified_tokens)[cell][:, None]  # b c
        launches_us = host.launches_us(decode_rows, rows)
        read_us = self._read_us(cell, prompts, tokens)
        return self._terms.mixed(step_us, more_us, read_us, launches_us, host.band)

    def _pass(self, cell: IntArray, prompts: FloatArray, tokens: FloatArray) -> Added:
        """Where prompts have passes of their own, without the step behind; without tokens there is none."""
        has_tokens, host = tokens > 0.0, self.host.at(cell[:, None])
        linear_us = np.interp(tokens, self.rows, self.linear_us)
        more_us = np.where(has_tokens, self._terms.more_us(linear_us, 0.0, 0.0, self.logits_us), 0.0)
        launches_us = np.where(has_tokens, host.launches_us(0.0, tokens), 0.0)
        return self._terms.mixed(_NONE, more_us, self._read_us(cell, prompts, tokens), launches_us, host.band)

    def _read_us(self, cell: IntArray, prompts: FloatArray, tokens: FloatArray) -> FloatArray:
        """read(S)."""
        is_drafting, has_tokens = self.cycle.verified_tokens[cell] > 1.0, tokens > 0.0
        prompt_us = self.prompt_attention_us[cell] + is_drafting * self.drafter_attention_us[cell]
        attention_us = (prompt_us / self.cycle.prompt_tokens[cell])[:, None] * tokens
        drafter_us = is_drafting[:, None] * np.interp(tokens, self.rows, self.drafter_us) * has_tokens
        gpus, imbalance_us = self.setting.parallel.schedulers, _NONE
        if gpus > 1:
            imbalance_us = np.interp(tokens, self.rows, self.imbalance_us) * has_tokens
        return np.asarray(read_us(gpus, prompts[:, None], attention_us, drafter_us, imbalance_us))


def _in_turn(
    prompts: FloatArray, prompt_tokens: FloatArray, room_tokens: FloatArray, full_tokens: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """(steps, lengths) means over prompts that are read one after the other: (full steps before the one with
    a prompt's last tokens, share of prompts that end in the last step, which is not full).

    prompts: (steps,), which have (steps, lengths) tokens together.
    """
    most = _full_steps(prompt_tokens, room_tokens, full_tokens)
    before, ends_last = np.zeros_like(most), np.ones_like(most)
    several = np.flatnonzero(most.any(axis=1))
    if several.size:
        whole = np.maximum(prompts[several], 1.0)[:, None]
        columns = (prompt_tokens, room_tokens, full_tokens, most)
        tokens, room, each, last = (of_steps[several] for of_steps in columns)
        filled, ending = np.zeros_like(last), np.zeros_like(last)
        # one after the other: all turns together do not fit the processor's cache
        for turn in (np.ceil(whole * _TURNS) / whole).T[..., None]:
            full_steps = np.minimum(_full_steps(tokens * turn, room, each), last)
            filled += full_steps
            ending += full_steps >= last
        before[several], ends_last[several] = filled / _TURNS.size, ending / _TURNS.size
    return before, ends_last


def _full_steps(tokens: FloatArray, room_tokens: FloatArray, full_tokens: FloatArray) -> FloatArray:
    """Full steps before the one in which the last of so many tokens are read."""
    return np.maximum(np.ceil((tokens - room_tokens) / full_tokens), 0.0)
