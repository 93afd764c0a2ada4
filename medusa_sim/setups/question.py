"""What set-ups are compared for: lengths, limits, a rate or a number of users, and what is to be saved."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from numbers import Integral, Real
from typing import Literal, get_args

import numpy as np

from medusa_sim.errors import UsageError, check_kind, shown, unknown_name
from medusa_sim.plan.defaults import LOAD_OUTPUT_TOKENS, LOAD_PROMPT_TOKENS
from medusa_sim.units import KILO

Measure = Literal["cost", "throughput", "energy"]
MEASURES: tuple[Measure, ...] = get_args(Measure)
COLUMN: dict[Measure, str] = {
    "cost": "usd_per_million_tokens",
    "throughput": "tokens_per_s_per_gpu",
    "energy": "joule_per_token",
}
"""What a measure reads."""
LOWER_IS_BETTER: tuple[Measure, ...] = ("cost", "energy")
BATCHES = (
    1, 2, 3, 4, 6, 8, 12, 16, 20, 24, 32, 40, 48, 64, 80, 96, 128, 160, 192, 224, 256, 320, 384, 448, 512,
)  # fmt: skip
"""Requests in one copy of the model that are tried."""
DRAFTS = (1, 2, 3, 5)
"""Draft lengths that are tried: those that recipes of engines use."""
_MOST = 1e9
"""Of any number that is asked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What is asked.

    prompt_tokens, output_tokens: means of a request. ttft_ms, tpot_ms, e2e_ms: longest time to the first
    token, per further token and of a whole request; tokens_per_s_per_user: slowest stream; None: no limit.
    rate: requests a second, or users: requests at once, of all copies together (neither: one full copy).
    measure: what is to be saved; None: cost where every named card has a price, else throughput. batches:
    requests of one copy; drafts: draft lengths. Raises UsageError for what makes no sense.
    """

    prompt_tokens: float = LOAD_PROMPT_TOKENS
    output_tokens: float = LOAD_OUTPUT_TOKENS
    ttft_ms: float | None = None
    tpot_ms: float | None = None
    e2e_ms: float | None = None
    tokens_per_s_per_user: float | None = None
    rate: float | None = None
    users: int | None = None
    measure: Measure | None = None
    batches: tuple[int, ...] = BATCHES
    drafts: tuple[int, ...] = DRAFTS

    def __post_init__(self) -> None:
        for name in ("prompt_tokens", "output_tokens"):
            check_kind(name, getattr(self, name), "a number", (Real,))
            if not 1.0 <= getattr(self, name) <= _MOST:
                raise UsageError(
                    f"{name} {shown(getattr(self, name))}: a number from 1 to {_MOST:g} is needed"
                )
        for name in ("ttft_ms", "tpot_ms", "e2e_ms", "tokens_per_s_per_user", "rate", "users"):
            if (given := getattr(self, name)) is None:
                continue
            kind = ("a whole number", (Integral,)) if name == "users" else ("a number", (Real,))
            check_kind(name, given, *kind)
            if not 0.0 < given <= _MOST:
                raise UsageError(f"{name} {shown(given)}: a number above 0 and up to {_MOST:g} is needed")
        if self.rate is not None and self.users is not None:
            raise UsageError("a rate and a number of users each fix the traffic: give one of them")
        if self.measure is not None and self.measure not in MEASURES:
            raise UsageError(unknown_name("measure", self.measure, MEASURES))
        for name in ("batches", "drafts"):
            given = getattr(self, name)
            if not given or min(given) < 1:
                raise UsageError(f"{name} {given}: at least one whole number from 1 is needed")

    @property
    def tried(self) -> tuple[int, ...]:
        """Batches of a copy that are priced: users are shared out evenly among the copies that hold them."""
        if self.users is None:
            return self.batches
        return tuple(sorted({ceil(self.users / ceil(self.users / size)) for size in self.batches}))

    @property
    def seq_len(self) -> int:
        """Committed tokens of a request half way through its output."""
        return round(self.prompt_tokens + self.output_tokens / 2.0)

    @property
    def slowest_tpot_us(self) -> float:
        """The stricter of the two limits on the time per token; infinite without one."""
        by_time = np.inf if self.tpot_ms is None else self.tpot_ms * KILO
        by_rate = np.inf if self.tokens_per_s_per_user is None else 1e6 / self.tokens_per_s_per_user
        return float(min(by_time, by_rate))
