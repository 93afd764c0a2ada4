"""A load test for Python and notebooks: pandas frames and sentences."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from medusa_sim.load.answer import LoadAnswer
from medusa_sim.report.load.sentences import answer_text
from medusa_sim.report.load.values import carried_values, context_values, load_arrow, timeline_arrow
from medusa_sim.report.load.warnings import warnings
from medusa_sim.report.notebook import notebook_html

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class LoadResult:
    """A scenario under load: prints as its sentence, shows what each policy carries in a notebook.

    answer: everything that was simulated (`medusa_sim.load.answer.LoadAnswer`).
    """

    answer: LoadAnswer

    @property
    def sentence(self) -> str:
        """Gain of speculation under this load, as a sentence."""
        return answer_text(self.answer)

    @property
    def frame(self) -> pd.DataFrame:
        """A row a policy and rate: the columns of `medusa-sim load --format csv`."""
        frame: pd.DataFrame = load_arrow(self.answer).to_pandas()
        return frame

    @property
    def carried(self) -> pd.DataFrame:
        """A row a policy: what it carries, and from where it loses; empty where that was not searched."""
        import pandas as pd

        return pd.DataFrame(carried_values(self.answer))

    @property
    def timeline(self) -> pd.DataFrame:
        """The first seed over time: a row a policy, rate and bin."""
        timeline: pd.DataFrame = timeline_arrow(self.answer).to_pandas()
        return timeline

    @property
    def warnings(self) -> list[str]:
        """Warnings, a line each."""
        return warnings(self.answer)

    @property
    def values(self) -> dict[str, Any]:
        """What JSON says besides the rows: the sentence, what each policy carries, the warnings."""
        return {
            "answer": self.sentence,
            "carried": carried_values(self.answer),
            "context": context_values(self.answer),
            "warnings": self.warnings,
        }

    def to_dict(self) -> dict[str, Any]:
        """All of it with the rows, as `--format json` has them."""
        return {**self.values, "rows": load_arrow(self.answer).to_pylist()}

    def report(self, folder: str | Path) -> tuple[Path, ...]:
        """Write report.html and report.md with plots, as `medusa-sim load --report`; the paths written."""
        from medusa_sim.report.document import write_pages
        from medusa_sim.report.load.page import load_blocks

        return write_pages(Path(folder), load_blocks(self.answer, "medusa_sim.simulate(...)"))

    def __repr__(self) -> str:
        """The sentence."""
        return self.sentence

    def _repr_html_(self) -> str:
        shown = ["policy", "rate_per_s", "ttft_p50_s", "tpot_mean_s", "tokens_per_s", "goodput_share"]
        return notebook_html(self.sentence, self.frame[shown], self.warnings)
