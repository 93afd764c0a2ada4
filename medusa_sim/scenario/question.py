"""Questions: batches, lengths and limits of a recommendation; measurements of an engine for a check."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from medusa_sim.errors import UsageError
from medusa_sim.scenario.declare import ANY, NUMBER, WHOLE, Declared, argument, declared
from medusa_sim.scenario.defaults import CANDIDATES_MAX, DEFAULT_BATCHES, FREE_WITHIN, SWITCHING_GAIN
from medusa_sim.units import US_PER_MS

if TYPE_CHECKING:
    from medusa_sim.arrays import IntArray

Objective = Literal["latency", "throughput"]

_ASKED = "What is asked for"
BATCH_MAX = 65_536
"""Largest batch of anything that is asked."""
EVERY_BATCH_TO = 256
"""Every batch is searched to here."""
_BATCH_RATIO = 1.02
"""Beyond it every 2 % is."""


@dataclass(frozen=True, kw_only=True)
class Question(Declared):
    """The question that a recommendation answers.

    batch_min, batch_max: every batch between them is searched (beyond 256 every 2 %). seq_len: committed
    tokens; none: as long as the request (`Scenario.length`). request: (prompt, output) tokens; None: the
    scenario's traffic, or without lengths what `Scenario.with_usual_requests` says.
    """

    batch_min: int = DEFAULT_BATCHES[0]
    batch_max: int = DEFAULT_BATCHES[1]
    seq_len: tuple[int, ...] = ()
    objective: Objective = argument(
        "latency",
        Objective,
        "latency: at each batch. throughput: the most tokens/s of any batch that fits.",
        _ASKED,
    )
    max_latency_ms: float | None = argument(
        None, NUMBER, "Longest time per output token of one user.", _ASKED, above=0
    )
    candidates_max: int = argument(
        CANDIDATES_MAX, WHOLE, "Largest tree searched.", "Drafts and acceptance", least=2, most=1024
    )
    free_within: float = argument(
        FREE_WITHIN, NUMBER, "With --wide: overhead up to which candidates count as free.", _ASKED, least=1
    )
    switching_gain: float = argument(
        SWITCHING_GAIN, NUMBER,
        "Least gain for which a batch has a row of its own, and for which --export writes a schedule.",
        _ASKED, option="--switch-gain",
    )  # fmt: skip
    request: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.batch_min <= self.batch_max:
            raise UsageError(f"batch {self.batch_min}..{self.batch_max}: from 1, smallest first")
        if self.seq_len and min(self.seq_len) < 1:
            raise UsageError(f"seq_len {self.seq_len}: whole numbers from 1 are allowed")

    @property
    def batches(self) -> IntArray:
        """Every batch that is searched."""
        from medusa_sim.arrays import every_to

        return every_to(EVERY_BATCH_TO, self.batch_min, self.batch_max, _BATCH_RATIO)

    @property
    def max_latency_us(self) -> float | None:
        """The latency limit in microseconds."""
        return None if self.max_latency_ms is None else self.max_latency_ms * US_PER_MS


QUESTION = declared(Question)
"""Arguments of a question beside batches, lengths and the request, by name."""


@dataclass(frozen=True, kw_only=True)
class Measured(Declared):
    """Measurements of a running engine: a speed, and with drafts how many were accepted.

    The time per token goes before the rate, and that before the gap between chunks; both times tell the
    tokens of a step, too.
    """

    batch: int | None = argument(None, WHOLE, "Requests in flight.", least=1, most=BATCH_MAX)
    seq_len: int | None = argument(
        None, WHOLE, "Mean committed tokens of a request [prompt and half the output, else 1024].",
        option="--seq", names="length", least=1, most=10**9,
    )  # fmt: skip
    drafts: int | None = argument(None, WHOLE, "Draft tokens of a step; 0: none.", least=0, most=64)
    tpot_ms: float | None = argument(
        None, NUMBER, "Time per token of a request.", option="--measured-tpot-ms", above=0
    )
    tokens_per_s: float | None = argument(
        None, NUMBER, "Of all requests together.", option="--measured-tokens-per-s", above=0
    )
    itl_ms: float | None = argument(
        None, NUMBER, "Median gap between two chunks: a round.", option="--measured-itl-ms", above=0
    )
    plain_tpot_ms: float | None = argument(None, NUMBER, "Time per token without speculation.", above=0)
    accepted_by_position: Sequence[float] | None = argument(
        None,
        ANY,
        "Share of the steps in which draft 1, 2, ... was accepted, as engines log it.",
        names="shares",
    )
    tokens_per_step: float | None = argument(
        None, NUMBER, "Mean acceptance length, the target's own token included.", least=1
    )
