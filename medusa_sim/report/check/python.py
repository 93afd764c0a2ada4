"""A check of a running engine for Python: a pandas frame, plain values and the sentence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from medusa_sim.plan.check import EngineCheck
from medusa_sim.report.check.screen import next_text, sentence

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, kw_only=True, repr=False)
class CheckResult:
    """A running engine compared with its prediction: prints as its sentence.

    answer: everything that was computed (`medusa_sim.plan.check.EngineCheck`).
    """

    answer: EngineCheck

    @property
    def is_inside(self) -> bool:
        """Whether every part that was measured is inside its band."""
        return self.answer.is_inside

    @property
    def off(self) -> tuple[str, ...]:
        """Names of the parts outside their bands, slow ones first."""
        return tuple(part.name for part in self.answer.off)

    @property
    def sentence(self) -> str:
        """The answer, with the next step."""
        return sentence(self.answer)

    @property
    def frame(self) -> pd.DataFrame:
        """A row a part, microseconds per token of a request; costs_us: its share of the difference."""
        import pandas as pd

        names = ("name", "measured_us", "predicted_us", "low_us", "high_us", "costs_us", "is_off")
        rows = [[getattr(part, name) for name in names] for part in self.answer.parts]
        return pd.DataFrame(rows, columns=["part", *names[1:]])

    @property
    def values(self) -> dict[str, Any]:
        """Values besides the rows, in full precision: whether it is inside its band, tokens of a step."""
        check, run = self.answer, self.answer.run
        return {
            "inside": check.is_inside,
            "off": list(self.off),
            "sentence": self.sentence,
            "next": [next_text(check, part) for part in check.off],
            "warnings": list(check.warnings),
            "batch": run.batch,
            "seq_len": run.seq_len,
            "drafts": run.drafts,
            "measured_us": run.time_us,
            "predicted_us": check.predicted_us,
            "low_us": check.low_us,
            "high_us": check.high_us,
            "measured_tokens_per_step": run.tokens_per_step,
            "predicted_tokens_per_step": check.tokens_per_step,
            "tokens_per_step_low": check.tokens_low,
            "tokens_per_step_high": check.tokens_high,
            "measured_accepted": list(run.accepted),
            "predicted_accepted": list(check.accepted),
            "position": check.position,
        }

    def __repr__(self) -> str:
        """The sentence."""
        return self.sentence
