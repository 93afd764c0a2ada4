"""A comparison of set-ups for programs: frames and sentences for Python and notebooks, plain values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from medusa_sim.errors import UsageError
from medusa_sim.report.compare.screen import frontier_table, launch_text, price_notes, warnings
from medusa_sim.report.compare.sentences import sentence, surer_text
from medusa_sim.report.formats import json_row, json_value
from medusa_sim.report.words.caveats import as_sentence
from medusa_sim.report.words.measured import measured_text
from medusa_sim.setups.comparison import Comparison
from medusa_sim.setups.loaded import REQUESTS
from medusa_sim.setups.search import refined
from medusa_sim.setups.setup import SET_UP

if TYPE_CHECKING:
    import pandas as pd

    from medusa_sim.report.charts.chart import LineChart
    from medusa_sim.setups.loaded import Loaded, Router


@dataclass(frozen=True, kw_only=True, eq=False)
class CompareResult:
    """Result of `ms.compare`: the answer as a sentence, as frames and, in a notebook, as a page."""

    answer: Comparison

    @property
    def sentence(self) -> str:
        """The set-up for the target and what it costs, with the best that does not speculate."""
        return sentence(self.answer)

    @property
    def table(self) -> pd.DataFrame:
        """Every set-up at every batch, columns `medusa_sim.setups.quantities.COMPARE`."""
        return self.answer.table

    @property
    def frontier(self) -> pd.DataFrame:
        """Rows that nothing beats, the fastest stream first."""
        return self.answer.frontier

    @property
    def chosen(self) -> dict[str, Any] | None:
        """The row for the target; None where no set-up keeps the limits."""
        return self.answer.chosen

    @property
    def runners_up(self) -> pd.DataFrame:
        """The best row of every other set-up whose interval reaches the chosen one's."""
        return self.answer.runners_up

    def command(self, draft_path: str | None = None) -> str:
        """Lines of the shell that start one copy of the chosen set-up; draft_path: the drafter's checkpoint.

        Raises UsageError where no set-up keeps the limits, or where the engine cannot be told the set-up.
        """
        from medusa_sim.export.launch import chosen_command

        if self.chosen is None:
            raise UsageError(sentence(self.answer))
        return chosen_command(self.answer, self.chosen, draft_path)

    def for_target(self, **limits: Any) -> CompareResult:
        """The same set-ups under other limits or by another measure; batches near them alone are priced."""
        return CompareResult(answer=refined(self.answer.for_target(**limits)))

    def under_load(self, requests: int = REQUESTS, router: Router = "least-load") -> list[Loaded]:
        """The chosen set-up, the best without speculation and the frontier within the limits as fleets.

        requests: of each copy that is simulated. router: least-load or round-robin, with a rate.
        """
        from medusa_sim.setups.loaded import second_level, under_load

        return [
            under_load(self.answer, row, requests=requests, router=router)
            for row in second_level(self.answer)
        ]

    @property
    def refused(self) -> list[dict[str, str]]:
        """Set-ups that cannot run, each with the reason."""
        return [{"setup": item.setup, "reason": item.reason} for item in self.answer.refused]

    @property
    def warnings(self) -> list[str]:
        """Warnings about the set-ups shown, a line each."""
        return warnings(self.answer)

    def chart(self, column: str | None = None) -> LineChart:
        """Chart of the set-ups; column: of `report.charts.setups.Y_TITLES` (None: the measure)."""
        from medusa_sim.report.charts.setups import setups_chart

        return setups_chart(self.answer, column)

    def to_dict(self) -> dict[str, Any]:
        """Everything but the rows, as `--format json` writes it before them."""
        return compare_values(self.answer)

    def __repr__(self) -> str:
        """The sentence."""
        return self.sentence

    def _repr_html_(self) -> str:
        """Sentence, chart, frontier and warnings for notebooks."""
        from medusa_sim.report.figures.draw import lines_figure
        from medusa_sim.report.figures.files import render
        from medusa_sim.report.notebook import notebook_html

        drawn = render(lines_figure(self.chart(), height=5.0), ".svg").decode("utf-8")
        return notebook_html(self.sentence, frontier_table(self.answer), self.warnings, drawn)


def with_warnings(answer: Comparison) -> pd.DataFrame:
    """The table with a column `warnings`: numbers, from 1, of each row's own in `Comparison.warnings`."""
    number = {line: place for place, line in enumerate(answer.warnings, start=1)}
    warned = {
        key: " ".join(str(number[line]) for line in lines) for key, lines in answer.warnings_by_set_up.items()
    }
    keys = answer.table[list(SET_UP)].itertuples(index=False, name=None)
    return answer.table.assign(warnings=[warned[key] for key in keys])


def compare_values(
    answer: Comparison, fleets: Sequence[Loaded] = (), draft_path: str | None = None
) -> dict[str, Any]:
    """Values of the JSON besides its rows."""
    return {
        "answer": sentence(answer),
        "surer": as_sentence(surer_text(answer)) if surer_text(answer) else "",
        "launch": launch_text(answer, draft_path),
        "under_load": [
            {
                **{name: json_row(fleet.row)[name] for name in (*SET_UP, "drafts", "batch")},
                "gpus": fleet.gpus,
                "replicas": fleet.replicas,
                "goodput_share": fleet.share,
                "usd_per_million_tokens": json_value(fleet.usd_per_million_tokens),
                "metrics": {name: json_value(value) for name, value in fleet.point.mean.items()},
            }
            for fleet in fleets
        ],
        "measured": as_sentence(measured_text(answer)),
        "measure": answer.measure,
        "chosen": answer.chosen and json_row(answer.chosen),
        "chosen_without_speculation": answer.chosen_plain and json_row(answer.chosen_plain),
        "runners_up": [json_row(row) for row in answer.runners_up.to_dict("records")],
        "refused": [{"setup": item.setup, "reason": item.reason} for item in answer.refused],
        "warnings": [*answer.warnings, *price_notes(answer)],
    }
