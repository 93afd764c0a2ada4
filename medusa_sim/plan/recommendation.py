"""What a recommendation answers: a schedule, where speculation stops paying, what it gains and costs.

Among it: one request from its prompt to its last token, with the context growing as it decodes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from medusa_sim.acceptance.profile import AcceptanceProfile
from medusa_sim.arrays import FloatArray
from medusa_sim.errors import UsageError
from medusa_sim.plan.break_even import BreakEven
from medusa_sim.plan.capacity import Capacity, Shortfall, shortfall
from medusa_sim.plan.cell import Cell
from medusa_sim.plan.cells import Cells
from medusa_sim.plan.draft_options import Drafting, DraftOption
from medusa_sim.plan.question import Question
from medusa_sim.plan.scenario import Scenario
from medusa_sim.plan.schedule import BatchRange
from medusa_sim.plan.schedule_row import ScheduleRow
from medusa_sim.specs.gpu import Gpu
from medusa_sim.step.step import Setting, decode_step, prefill_step, verify_step, work_time
from medusa_sim.step.workload import prefill

_CONTEXTS = 33
"""Contexts between prompt and last token at which steps are timed; between them the time is linear."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestLatency:
    """Times of one of `batch` requests that run side by side, microseconds.

    first_token_us: reading the prompt, which emits the first token. total_us: until the last token.
    per_token_us: mean time between output tokens after the first. `plain_`: without speculation.
    """

    batch: int
    prompt_tokens: int
    output_tokens: int
    candidates: int
    depth: int
    tokens_per_step: float
    first_token_us: float
    plain_first_token_us: float
    total_us: float
    plain_total_us: float
    per_token_us: float
    plain_per_token_us: float

    @property
    def speedup(self) -> float:
        """End to end."""
        return self.plain_total_us / self.total_us

    @property
    def decode_speedup(self) -> float:
        """Of the tokens after the first alone."""
        return self.plain_per_token_us / self.per_token_us


def request_latency(
    setting: Setting,
    option: DraftOption | None,
    candidates: int,
    *,
    batch: int,
    prompt_tokens: int,
    output_tokens: int,
) -> RequestLatency:
    """Latency of a request of P prompt and N output tokens.

    total = T_prompt + (N - 1) / tau x mean over contexts P..P + N of the step, tau tokens a step (1
    without speculation). The last step's surplus tokens are not charged, and requests run in lockstep.
    Raises UsageError for counts below 1.
    """
    for name, value in (("batch", batch), ("prompt", prompt_tokens), ("output", output_tokens)):
        if value < 1:
            raise UsageError(f"{name} {value}: whole numbers from 1 are allowed")
    contexts = np.linspace(prompt_tokens, prompt_tokens + output_tokens, _CONTEXTS)
    plain_prompt = prefill_step(setting, batch, prompt_tokens)
    plain_step = _mean(decode_step(setting, batch, contexts).time_us)
    prompt, step, tokens = plain_prompt, plain_step, 1.0
    if option is not None:
        drafting = replace(setting, drafter=option.drafter)
        tokens = option.tokens(candidates)
        step = _mean(verify_step(drafting, batch, contexts, candidates).time_us)
        works = option.drafter.prompt_work(setting.shard, prefill(batch, prompt_tokens), setting.runtime)
        for work in works:
            prompt = prompt + work_time(setting.latency, work)
    per_token, plain_per_token = step / tokens, plain_step
    first, plain_first = float(prompt.time_us), float(plain_prompt.time_us)
    return RequestLatency(
        batch=batch,
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
        candidates=1 if option is None else candidates,
        depth=0 if option is None else option.depth,
        tokens_per_step=tokens,
        first_token_us=first,
        plain_first_token_us=plain_first,
        total_us=first + (output_tokens - 1) * per_token,
        plain_total_us=plain_first + (output_tokens - 1) * plain_per_token,
        per_token_us=per_token,
        plain_per_token_us=plain_per_token,
    )


def _mean(step_us: FloatArray) -> float:
    """Mean over evenly spaced contexts by the trapezoid rule."""
    values = np.broadcast_to(step_us, (_CONTEXTS,))
    return float((values.sum() - (values[0] + values[-1]) / 2.0) / (_CONTEXTS - 1))


@dataclass(frozen=True, kw_only=True, eq=False)
class Recommendation:
    """The answer to a `Question`.

    enable: under objective `latency` whether any row of the schedule speculates (and keeps the limit of
    latency), under `throughput` whether the best operating point with speculation beats the best without.
    break_even_batches: one per length; break_even_context: at batch_max. required_tokens_per_step: at the
    row that speculation helps least. free_candidates: (batch, seq_len, count) of the options scheduled.
    ranges: of the schedule, by length.
    best_with, best_without: largest throughput among the question's batches that fit and keep the latency.
    by_drafts: at batch_min and the first length. schedule_all_lengths: one schedule for all lengths, as
    engines that do not look at the context take it, each row at the length it helps least. where_it_fits: for
    each length at which speculation would pay but some batch leaves no room, the largest batch that does.
    """

    question: Question
    scenario: Scenario
    cells: Cells
    enable: bool
    break_even_batches: tuple[BreakEven, ...]
    break_even_context: BreakEven
    free_candidates: tuple[tuple[int, int, int], ...]
    schedule: tuple[ScheduleRow, ...]
    ranges: tuple[tuple[BatchRange, ...], ...]
    schedule_all_lengths: tuple[ScheduleRow, ...]
    by_drafts: tuple[Cell, ...]
    best_with: Cell | None
    best_without: Cell | None
    capacities: tuple[Capacity, ...]
    requests: tuple[RequestLatency, ...]
    where_it_fits: tuple[ScheduleRow, ...]

    @cached_property
    def shortfall(self) -> Shortfall | None:
        """What is missing where a row does not fit even without speculation, and what would do.

        At the smallest batch where nothing fits at all, else at the fullest of the first row that does not.
        """
        missing = [row for row in self.schedule if not row.fits_memory]
        if not missing:
            return None
        batch = missing[0].batch_max if self.fits else self.question.batch_min
        return shortfall(self.scenario, batch, missing[0].seq_len)

    @property
    def fits(self) -> bool:
        """Whether anything that was asked fits in memory."""
        return any(row.fits_memory for row in self.schedule)

    @property
    def gpu(self) -> Gpu:
        """The card."""
        return self.scenario.gpu

    @property
    def setting(self) -> Setting:
        """What every step shares."""
        return self.cells.surface.setting

    @property
    def drafting(self) -> Drafting:
        """What drafts."""
        return self.scenario.drafting

    @property
    def profile(self) -> AcceptanceProfile:
        """How often drafts are accepted."""
        return self.scenario.profile

    @property
    def chains(self) -> bool:
        """Whether all that was searched are chains: drafts (num_speculative_tokens) then name a count."""
        return self.cells.configurations.are_chains

    @property
    def hardest(self) -> ScheduleRow:
        """The row at which the best speculative configuration gains least."""
        return min(self.schedule, key=lambda row: row.speculative_speedup)

    @property
    def break_even_batch(self) -> int | None:
        """Smallest batch from which speculation stays a loss at any of the lengths; None if at none."""
        ends = [crossing.loses_from for crossing in self.break_even_batches]
        return min((batch for batch in ends if batch is not None), default=None)

    @property
    def free_candidates_by_batch(self) -> dict[int, int]:
        """For each batch the count that is free at every length."""
        free: dict[int, int] = {}
        for batch, _, count in self.free_candidates:
            free[batch] = min(count, free.get(batch, count))
        return free
