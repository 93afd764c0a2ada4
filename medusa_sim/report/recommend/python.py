"""A recommendation for programs: frames and sentences for Python and notebooks, plain values."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from medusa_sim import __version__
from medusa_sim.errors import check_kind
from medusa_sim.export.engines import engine_settings
from medusa_sim.export.settings import EngineSettings
from medusa_sim.grid.quantities import scenario_values
from medusa_sim.grid.quantity import with_unlisted
from medusa_sim.grid.request_latency import REQUEST
from medusa_sim.grid.sweep import count_table
from medusa_sim.plan.capacity import Capacity
from medusa_sim.plan.quantities import BY_DRAFTS, POINT, ROW, STREAM
from medusa_sim.plan.recommendation import Recommendation, schedule_all_lengths
from medusa_sim.plan.schedule_row import ScheduleRow
from medusa_sim.report.formats import json_value
from medusa_sim.report.recommend.sentences import sentence
from medusa_sim.report.recommend.warnings import warnings
from medusa_sim.report.words.break_even import break_even_values
from medusa_sim.scenario.declare import WORD

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa


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
        return sentence(self.answer)

    @property
    def schedule(self) -> pd.DataFrame:
        """One row a range of batches that share a configuration: the fields of `ScheduleRow`."""
        import pandas as pd

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
        return warnings(self.answer)

    def to_dict(self) -> dict[str, Any]:
        """Everything, as `--format json` writes it."""
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


_OF_THE_SCENARIO = (
    "gpu", "model", "tp", "ep", "dp_attention", "runtime", "latency_model", "kernels", "drafter", "acceptance"
)  # fmt: skip


def recommendation_json(answer: Recommendation, command: str) -> str:
    """The file of `--format json`; command: the one that writes it."""
    head = {"schema": "medusa-sim/recommend/1", "version": __version__, "command": command}
    return json.dumps({**head, **recommendation_values(answer)}, indent=1, allow_nan=False) + "\n"


def recommendation_values(answer: Recommendation) -> dict[str, Any]:
    """The answer as JSON holds it: rows have the quantities of `ScheduleRow`, points those of `POINT`."""
    context, usd = answer.break_even_context, answer.scenario.price
    best, plain = answer.best_with, answer.best_without
    fastest = None if answer.question.max_latency_ms is None else answer.fastest_stream
    batches, lengths = answer.cells.surface.batch.tolist(), answer.cells.surface.seq_len.tolist()
    return {
        **scenario_values(answer.scenario, *_OF_THE_SCENARIO),
        "verified_by": None if answer.scenario.backend is None else answer.scenario.backend.name,
        "acceptance_agreement": answer.scenario.profile.agreement,
        "acceptance_guessed_from_draft": answer.scenario.guessed_from,
        "workload": answer.scenario.profile.workload,
        "price": usd and {**msgspec.structs.asdict(usd), "date": usd.date.isoformat()},
        "objective": answer.question.objective,
        "counted_in": "drafts" if answer.chains else "candidates",
        "enable": answer.enable,
        "reason": sentence(answer),
        "break_even_batch": answer.break_even_batch,
        "break_even_seq_len": context.at,
        "break_even_seq_len_direction": context.direction,
        "break_even_seq_len_at_batch": answer.question.batch_max,
        "break_even_batch_by_seq_len": [
            {"seq_len": length, **break_even_values(break_even)}
            for length, break_even in zip(answer.question.seq_len, answer.break_even_batches, strict=True)
        ],
        "break_even_seq_len_searched": [context.searched_from, context.searched_to],
        "required_tokens_per_step": answer.hardest.required_tokens_per_step,
        "required_acceptance_factor": answer.hardest.required_acceptance_factor,
        "required_at": {"batch": answer.hardest.batch_max, "seq_len": answer.hardest.seq_len},
        "free_within_overhead": answer.question.free_within,
        "free_candidates_by_batch": dict(
            zip(map(str, batches), answer.free_candidates.min(axis=1).tolist(), strict=True)
        ),
        "free_candidates": [
            {"batch": batch, "seq_len": length, "candidates": count}
            for length, free in zip(lengths, answer.free_candidates.T.tolist(), strict=True)
            for batch, count in zip(batches, free, strict=True)
        ],
        "schedule": [row_values(row) for row in answer.schedule],
        "schedule_all_lengths": [row_values(row) for row in schedule_all_lengths(answer)],
        "by_drafts": [entry.quantities(BY_DRAFTS) for entry in answer.by_drafts],
        "steps": _steps_values(answer),
        "fastest_stream": fastest and fastest.quantities(STREAM),
        "best_with_speculation": best and best.quantities(POINT),
        "best_without_speculation": plain and plain.quantities(POINT),
        "memory": [_capacity_values(capacity) for capacity in answer.capacities],
        "requests": [
            {name: getattr(request, name) for name in REQUEST} for request in answer.request_latencies
        ],
        "does_not_fit": _shortfall_values(answer),
        "where_it_fits": [row_values(row) for row in answer.where_it_fits],
        "warnings": warnings(answer),
    }


def _capacity_values(capacity: Capacity) -> dict[str, Any]:
    without, best = capacity.without_speculation, capacity.with_speculation
    return {
        "seq_len": capacity.seq_len,
        "max_batch_without": capacity.max_batch_without,
        "max_batch_with": capacity.max_batch_with,
        "without_speculation": without and without.quantities(POINT),
        "with_speculation": best and best.quantities(POINT),
        "throughput_gain": capacity.gain,
    }


def _steps_values(answer: Recommendation) -> dict[str, Any]:
    """Times of both steps at the smallest batch and the first length: microseconds by part of both steps."""
    batch, seq_len = answer.question.batch_min, answer.question.seq_len[0]
    both = answer.steps_at(batch, seq_len)
    return {
        "batch": batch,
        "seq_len": seq_len,
        "candidates": both.candidates,
        **{
            f"{name}_us": {
                "step": float(step.time_us),
                **{part: float(us) for part, us in step.parts_us.items()},
            }
            for name, step in (("plain", both.plain), ("speculative", both.speculative))
        },
    }


def schedule_arrow(answer: Recommendation) -> pa.Table:
    """The schedule as an Arrow table: nested values as JSON text."""
    import pyarrow as pa

    rows = []
    for row in answer.schedule:
        fields = row_values(row)
        for key in ("paths", "quicker_larger", "next_count", "near_best"):
            fields[key] = None if fields[key] is None else json.dumps(fields[key])
        rows.append(fields)
    return pa.Table.from_pylist(rows)


def row_values(row: ScheduleRow) -> dict[str, Any]:
    """One row of a schedule; paths as lists, pairs as objects, nothing infinite.

    speedup_low, speedup_high span the row's batches, as `speedup_lowest` and `speedup_highest` do.
    """
    fields = row.quantities(with_unlisted(ROW))
    fields |= {"speedup_low": row.interval_low, "speedup_high": row.interval_high}
    fields["paths"] = None if row.paths is None else [list(path) for path in row.paths]
    fields["next_count"] = row.next_count and dataclasses.asdict(row.next_count)
    fields["quicker_larger"] = [
        {"candidates": less, "quicker_candidates": more} for less, more in row.quicker_larger
    ]
    return {key: json_value(value) for key, value in fields.items()}


def _shortfall_values(answer: Recommendation) -> dict[str, Any] | None:
    shortfall = answer.shortfall
    if shortfall is None:
        return None
    return {
        "batch": shortfall.batch,
        "seq_len": shortfall.seq_len,
        **{f"{name}_bytes": float(value) for name, value in shortfall.parts._asdict().items()},
        "needed_bytes": shortfall.needed_bytes,
        "usable_bytes": shortfall.usable_bytes,
        "what_would_fit": [dataclasses.asdict(change) for change in shortfall.changes],
    }
