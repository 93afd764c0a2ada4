"""Step times of a scenario as a table that a scheduler looks up: drafts x requests x length, and prompts.

Decoding and verification steps are those of `grid.cells.price` seen through the server (`step.sampling`, N6),
at every number of requests; between two lengths time is linear. A step that carries prompts takes longer by
(L1), which `load.prompt_table` has; a step of prompts alone is the step of one request with the prompts'
tokens in place of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from operator import attrgetter
from typing import NamedTuple

import numpy as np

from medusa_sim.acceptance.profile import MATCHES_RUN
from medusa_sim.arrays import FloatArray, Halves, as_float
from medusa_sim.errors import UsageError
from medusa_sim.grid.cells import Cells, price
from medusa_sim.load.accepted import Accepted
from medusa_sim.load.limits import SchedulerLimits
from medusa_sim.load.prompt_table import PromptTable, between, geometric, prompt_table
from medusa_sim.load.server_host import ServerHost, server_host
from medusa_sim.scenario.draft_options import DraftOption
from medusa_sim.scenario.scenario import Scenario
from medusa_sim.step.prompt_kernels import decode_kernels
from medusa_sim.step.sampling import sampled
from medusa_sim.step.setting import Setting
from medusa_sim.units import US_PER_S

_LENGTH_RATIO = 1.5
_TOGETHER = 256
"""Numbers of requests that are priced at once."""
_ROUNDING = 1e-9


@dataclass(frozen=True, kw_only=True, eq=False)
class StepTable:
    """Seconds of steps: of none to `drafts_max` drafts, none to `requests_max` requests, some lengths."""

    lengths: FloatArray
    """(lengths,) mean committed tokens of the requests."""
    step_s: FloatArray
    """(1 + drafts, 1 + requests, lengths); of no requests: what a step of prompts alone takes besides its
    tokens, with the drafting that follows for a request."""
    prompts: PromptTable
    """Time that prompts add."""
    decode_linear_s: FloatArray
    """(1 + drafts, 1 + requests) linear layers of a step without prompts, with rows that fill its graph."""
    sharing_s: FloatArray
    """(1 + drafts, 1 + requests) by which they are shorter as tokens of a request share experts."""
    halves: Halves
    """(1 + drafts, 1 + requests) half-widths of the 80 % band of a step, at the middle length."""
    accepted: Accepted
    """How many drafts requests accept."""
    drafting_share: FloatArray
    """(1 + drafts, 1 + requests) share of a step's time that drafting takes."""
    idle_share: FloatArray
    """(1 + requests,) by which a plain step is longer where a drafter is loaded."""
    host: ServerHost
    """What the host does beside the steps."""
    plain_host: ServerHost
    """The same where no drafter is loaded."""

    @property
    def drafts_max(self) -> int:
        """Longest draft in the table."""
        return int(self.step_s.shape[0]) - 1

    @property
    def requests_max(self) -> int:
        """Most requests of a step in the table."""
        return int(self.step_s.shape[1]) - 1

    def for_drafts(self, drafts: int) -> StepTable:
        """The table of a server whose drafter runs at most so many drafts; 0: none is loaded."""
        if 0 < drafts == self.drafts_max:
            return self
        return replace(
            self,
            step_s=self.step_s[: drafts + 1],
            accepted=self.accepted.up_to(drafts),
            drafting_share=self.drafting_share[: drafts + 1],
            host=self.host if drafts else self.plain_host,
            decode_linear_s=self.decode_linear_s[: drafts + 1],
            sharing_s=self.sharing_s[: drafts + 1],
            halves=Halves(*(half[: drafts + 1] for half in self.halves)),
            prompts=self.prompts if drafts else self.prompts.without_drafter(),
        )

    @cached_property
    def _lists(self) -> tuple[list[float], list[list[list[float]]]]:
        """Lengths and steps as lists, which are faster to read number by number."""
        return self.lengths.tolist(), self.step_s.tolist()

    def decoding_s(self, drafts: int, requests: int, length: float) -> float:
        """Seconds of a step of `requests` requests of a mean length, without prompts."""
        lengths, steps_s = self._lists
        row, (j, part) = steps_s[drafts][requests], between(lengths, length)
        return row[j] + (row[j + 1] - row[j]) * part

    def with_found_share_s(
        self, whole_s: float, drafts: int, requests: int, length: float, share: float
    ) -> float:
        """Seconds of a step in which this share of the requests found drafts; whole_s: where match_rate did.

        Linear in the share, so that the mean stays. A step in which nobody found any is shorter by what the
        last drafts made it longer, but never shorter than a plain one.
        """
        one_s, plain_s = self.decoding_s(1, requests, length), self.decoding_s(0, requests, length)
        none_s = plain_s if drafts < 2 else one_s - (whole_s - one_s) / (drafts - 1)  # two points of a line
        none_s = min(max(none_s, plain_s), whole_s)
        return none_s + (whole_s - none_s) * share / self.accepted.match_rate

    def decoded_tokens(self, drafts: int, requests: int) -> int:
        """Tokens that a step verifies of so many requests, on average."""
        return requests + round(drafts * requests * self.accepted.match_rate)

    def drafts_within(self, tokens: int, requests: int) -> int:
        """Most drafts of each request with which a step of so many verifies at most so many tokens."""
        if self.prompts.terms.are_apart:  # the budget is that of a pass of prompts
            return self.drafts_max
        return int((tokens / requests - 1.0) / self.accepted.match_rate + _ROUNDING)

    def nearest(self, length: float) -> int:
        """The index in `lengths` of the nearest one."""
        j, part = between(self._lists[0], length)
        return j + int(part > 0.5)

    def prompts_s(
        self, drafts: int, requests: int, chunks: Sequence[tuple[int, int]], step_s: float = 0.0
    ) -> float:
        """Seconds that chunks (tokens, end) of prompts add to a step of step_s."""
        linear_s = self.decode_linear_s.item(drafts, requests)
        sharing_s = self.sharing_s.item(drafts, requests)
        tokens = self.decoded_tokens(drafts, requests)
        return self.prompts.added_s(tokens, chunks, step_s, linear_s, sharing_s)

    @cached_property
    def rate_per_s(self) -> FloatArray:
        """(1 + drafts, 1 + requests, lengths) tokens a second in steps without prompts; 0 for no requests."""
        requests = np.arange(self.requests_max + 1)[None, :, None]
        tokens = requests * self.accepted.tokens_per_step[:, None, None]
        return np.divide(tokens, self.step_s, out=np.zeros_like(self.step_s), where=requests > 0)


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


def step_table(
    scenario: Scenario, options: Sequence[DraftOption], limits: SchedulerLimits, longest: int
) -> StepTable:
    """The table of a scenario for requests of at most `longest` committed tokens.

    options: chains of 1, 2, ... drafts (none: plain decoding alone).
    Raises SpecError or CoverageError where a kernel is missing.
    """
    lengths = geometric(1, max(longest, 2), _LENGTH_RATIO, first=16)
    starts = range(_TOGETHER, limits.max_requests, _TOGETHER)
    batches = np.split(np.arange(1, limits.max_requests + 1), starts)
    pieces = [_piece(price(scenario, batch, lengths, options), options) for batch in batches]
    joined = _Piece(*(np.concatenate(parts, axis=1) for parts in zip(*pieces, strict=True)))
    setting = scenario.setting
    drafter, drafts = (options[-1].drafter, options[-1].depth) if options else (None, 0)
    prompts = prompt_table(setting, drafter, drafts, limits, longest)
    decode_linear_s, sharing_s = _decode_linear_s(setting, prompts, len(options), limits.max_requests)
    # a step of prompts alone is a plain one of one request, less its token's linear layers and attention
    token_s = float(decode_linear_s[0, 1] + prompts.attention_of_s(1, 1))
    prompts_alone = np.full(
        (len(options) + 1, 1, lengths.size), max(joined.step_s.item(0, 0, 0) - token_s, 0.0)
    )
    if not prompts.terms.are_apart:  # drafting follows at once
        prompts_alone[:, 0] += (joined.drafting_share[:, 0] * joined.step_s[:, 0, 0])[:, None]
    engine, rates = setting.runtime.engine, acceptance_rates(options)
    match_runs = scenario.profile.match_runs or MATCHES_RUN
    return StepTable(
        lengths=lengths.astype(np.float64),
        step_s=np.concatenate([prompts_alone, joined.step_s], axis=1),
        prompts=prompts,
        accepted=Accepted(rates, setting.verified.match_rate, match_runs) if options else Accepted(rates),
        drafting_share=_with_none(joined.drafting_share, 0.0),
        idle_share=_with_none(joined.idle_share, 0.0)[0],
        host=server_host(engine, scenario.drafting.method if options else ""),
        plain_host=server_host(engine),
        decode_linear_s=decode_linear_s,
        sharing_s=sharing_s,
        halves=Halves(_with_none(joined.down), _with_none(joined.up)),
    )


def _decode_linear_s(
    setting: Setting, prompts: PromptTable, drafts: int, most_requests: int
) -> tuple[FloatArray, FloatArray]:
    """(1 + drafts, 1 + requests) seconds of linear layers without prompts, and what shared experts save."""
    requests, candidates = as_float(np.arange(most_requests + 1))[None, :], 1 + np.arange(drafts + 1)[:, None]

    def linear_us(rows: FloatArray) -> FloatArray:
        return np.interp(rows, np.arange(prompts.linear_s.size), prompts.linear_s) * US_PER_S

    decode = decode_kernels(setting, requests, candidates, linear_us)
    some = requests > 0
    return np.where(some, decode.linear_us, 0.0) / US_PER_S, np.where(some, decode.sharing_us, 0.0) / US_PER_S


def _with_none(values: FloatArray, none: float | None = None) -> FloatArray:
    """(1 + drafts, requests) -> (1 + drafts, 1 + requests): of no requests `none`, or the value of one."""
    first = values[:, :1] if none is None else np.full((len(values), 1), none)
    return np.concatenate([first, values], axis=1)


class _Piece(NamedTuple):
    """Parts of a `StepTable` at some numbers of requests, from one on; idle_share: (1, requests)."""

    step_s: FloatArray
    down: FloatArray
    up: FloatArray
    drafting_share: FloatArray
    idle_share: FloatArray


def _piece(cells: Cells, options: Sequence[DraftOption]) -> _Piece:
    """The step times of cells, all of whose batches stand in a table. options: of the cells, chains."""
    by_count, setting = cells.by_count, cells.surface.setting
    added = sampled(setting, by_count.batch, by_count.candidates, by_count.tokens_per_step)
    step_us, halves = by_count.steps.time_us, by_count.bands.step
    middle = cells.shape[1] // 2
    return _Piece(
        step_s=np.moveaxis(by_count.spread(step_us + added.time_us), -1, 0) / US_PER_S,
        down=by_count.spread(halves.down)[:, middle].T,
        up=by_count.spread(halves.up)[:, middle].T,
        drafting_share=_drafting_share(cells, options),
        idle_share=cells.surface.idle_share[None, :, middle],
    )


def acceptance_rates(options: Sequence[DraftOption]) -> FloatArray:
    """(drafts,) probability that at least so many drafts of a step are accepted."""
    tokens = [1.0, *(option.tokens(option.depth + 1) for option in options)]
    return np.minimum.accumulate(np.clip(np.diff(tokens), 0.0, 1.0)) if options else np.empty(0)


def _drafting_share(cells: Cells, options: Sequence[DraftOption]) -> FloatArray:
    """(1 + drafts, requests) of a step that drafts, at the middle length. options: of the cells, chains."""
    middle, steps = cells.shape[1] // 2, cells.steps
    drafting_us, whole_us = steps.spread(steps.drafting(attrgetter("time_us"))), steps.time_us
    share = np.zeros((len(options) + 1, cells.shape[0]))
    for option, columns in zip(options, cells.configurations.option_slices, strict=True):
        own_us = drafting_us[:, middle, columns.start]
        share[option.depth] = np.minimum(own_us / whole_us[:, middle, columns.start], 1.0)
    return share
