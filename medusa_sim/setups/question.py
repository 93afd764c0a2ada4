"""What set-ups are compared for: lengths, limits, a rate or a number of users, and what is to be saved."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, inf
from typing import Literal, get_args

from medusa_sim.errors import UsageError
from medusa_sim.plan import LOAD_OUTPUT_TOKENS, LOAD_PROMPT_TOKENS
from medusa_sim.plan.arguments import NUMBER, WHOLE, WORD, Declared, Type, argument
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
SURE, SURER = 0.7, 0.9
"""Probability with which the speed that is asked for is kept: at least, and by what is told beside it."""
_MOST = 10**9
"""Of any number that is asked."""
NAMES = Type("names", (tuple,))
SIZES = Type("whole numbers", (tuple,))
"""Lists, of which Python takes a single one too."""
_REQUESTS, _ASKED = "Requests", "What is asked for"


@dataclass(frozen=True, kw_only=True)
class Question(Declared):
    """What is asked.

    rate or users fix the traffic; without either a copy is full. measure: what is to be saved; None: cost
    where every named card has a price, else throughput. Raises UsageError for what makes no sense.
    """

    prompt_tokens: float = argument(
        LOAD_PROMPT_TOKENS, NUMBER, "Mean prompt.", _REQUESTS, least=1, most=_MOST
    )
    output_tokens: float = argument(
        LOAD_OUTPUT_TOKENS, NUMBER, "Mean output.", _REQUESTS, least=1, most=_MOST
    )
    ttft_ms: float | None = argument(
        None, NUMBER, "Limit of the time to the first token.", _ASKED, above=0, most=_MOST
    )
    tpot_ms: float | None = argument(
        None, NUMBER, "Limit of a request's mean time per token.", _ASKED, above=0, most=_MOST
    )
    e2e_ms: float | None = argument(
        None, NUMBER, "Limit of a request's whole time.", _ASKED, above=0, most=_MOST
    )
    tokens_per_s_per_user: float | None = argument(
        None, NUMBER, "Slowest stream [no limit].", _ASKED, above=0, most=_MOST
    )
    sure: float = argument(
        SURE, NUMBER, "Least probability that a stream is as fast as asked, by its interval.", _ASKED,
        least=0.01, most=0.99,
    )  # fmt: skip
    rate: float | None = argument(
        None, NUMBER, "Requests a second, of all copies together.", _REQUESTS, above=0, most=_MOST
    )
    users: int | None = argument(
        None, WHOLE, "Requests at once, of all copies.", _REQUESTS, least=1, most=_MOST
    )
    measure: Measure | None = argument(
        None, WORD,
        "What the best set-up saves [cost; throughput a GPU where a named card has no price].",
        _ASKED, choices=MEASURES,
    )  # fmt: skip
    batches: tuple[int, ...] = argument(
        BATCHES, SIZES, f"Requests of one copy that are tried [1 to {BATCHES[-1]}].", _ASKED,
        option="--batch", names="batch",
    )  # fmt: skip
    drafts: tuple[int, ...] = argument(
        DRAFTS, SIZES, f"Draft lengths [{','.join(map(str, DRAFTS))}].", _ASKED, names="drafts"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.rate is not None and self.users is not None:
            raise UsageError("a rate and a number of users each fix the traffic: give one of them")
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
        by_time = inf if self.tpot_ms is None else self.tpot_ms * KILO
        by_rate = inf if self.tokens_per_s_per_user is None else 1e6 / self.tokens_per_s_per_user
        return float(min(by_time, by_rate))
