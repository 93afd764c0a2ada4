"""A recommendation for Python and notebooks: pandas frames and sentences."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from medusa_sim.errors import check_kind
from medusa_sim.export.engines import engine_settings
from medusa_sim.export.settings import EngineSettings
from medusa_sim.grid.sweep import count_table
from medusa_sim.plan.recommendation import Recommendation
from medusa_sim.scenario.declare import WORD

if TYPE_CHECKING:
    import pandas as pd

    from medusa_sim.plan.schedule_row import ScheduleRow


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class RecommendResult:
    """A recommendation: prints as its sentence, shows its schedule in a notebook.

    answer: everything that was computed (`medusa_sim.plan.recommendation.Recommendation`).
    """

    answer: Recommendation

    @property
    def enable(self) -> bool:
        """`Recommendation.enable`: whether to speculate for the objective that was asked for.

        Under `throughput` it can be False while rows of the schedule draft: no batch with them beats the best
        without.
        """
        return self.answer.enable

    @property
    def sentence(self) -> str:
        """Whether, with what and how far, in two or three sentences."""
        from medusa_sim.report.recommend.sentences import sentence

        return sentence(self.answer)

    @property
    def schedule(self) -> pd.DataFrame:
        """One row a range of batches that share a configuration: the fields of `ScheduleRow`."""
        import pandas as pd

        from medusa_sim.report.recommend.values import row_values

        return pd.DataFrame([row_values(row) for row in self.answer.schedule])

    @property
    def schedule_row(self) -> ScheduleRow:
        """The first row of the schedule (`medusa_sim.plan.schedule_row.ScheduleRow`)."""
        return self.answer.schedule[0]

    def at(self, batch: int, seq_len: int | None = None) -> ScheduleRow:
        """The recommendation at one batch (and length; None: the first), with its figures there.

        `candidates`, `drafts`: what to run, the number that every page and export shows; `near_best`: which
        counts are as good at that batch alone. Raises UsageError for a batch or length that was not searched.
        """
        answer = self.answer
        return answer.scheduled_row_at(batch, answer.question.seq_len[0] if seq_len is None else seq_len)

    @property
    def by_count(self) -> pd.DataFrame:
        """Every count at every batch and length: `medusa-sim recommend --by-count`."""
        frame: pd.DataFrame = count_table(self.answer.cells.by_count).to_pandas()
        return frame

    @property
    def warnings(self) -> list[str]:
        """Warnings, a line each."""
        from medusa_sim.report.recommend.warnings import warnings

        return warnings(self.answer)

    def to_dict(self) -> dict[str, Any]:
        """Everything, as `--format json` writes it."""
        from medusa_sim.report.recommend.values import recommendation_values

        return recommendation_values(self.answer)

    def export(
        self, engine: str, *, version: str | None = None, draft_path: str | None = None
    ) -> EngineSettings:
        """Launch settings of an engine: `text` and `notes`.

        draft_path: the draft's checkpoint. Raises UsageError where the engine needs one and none is given,
        and for what the engine cannot do.
        """
        given = {"engine": engine, "version": version, "draft_path": draft_path}
        for name, value in given.items():
            if value is not None or name == "engine":
                check_kind(name, value, WORD.wanted, WORD.allowed)
        return engine_settings(self.answer, engine, version=version, draft_path=draft_path)

    def __repr__(self) -> str:
        """The sentence."""
        return self.sentence

    def _repr_html_(self) -> str:
        from medusa_sim.report.notebook import notebook_html

        shown = ["batch_min", "batch_max", "seq_len", "candidates", "drafts", "tokens_per_step", "speedup",
                 "speedup_low", "speedup_high", "tokens_per_s", "plain_tokens_per_s"]  # fmt: skip
        return notebook_html(self.sentence, self.schedule[shown], self.warnings)
