"""Warnings of a recommendation: losses, doubts, batches that do not fit."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from medusa_sim.arrays import Span
from medusa_sim.doubts.of_answer import answer_doubts
from medusa_sim.doubts.of_scenario import grave_doubts, scenario_doubts
from medusa_sim.plan.recommendation import Recommendation
from medusa_sim.plan.schedule import kept_rows
from medusa_sim.plan.schedule_row import ScheduleRow
from medusa_sim.report.words.caveats import more_may_pay, more_requests_text, slower_format_text
from medusa_sim.report.words.memory import shortfall_text
from medusa_sim.report.words.numbers import spans_text, times


def warnings(answer: Recommendation) -> list[str]:
    """Warnings, the most important first: losses, doubts, then what the table shows."""
    fits = [row for row in kept_rows(answer.schedule) if row.fits_memory]
    off = [row for row in fits if row.candidates == 1]
    limit, first = answer.question.max_latency_ms, grave_doubts(answer.scenario)
    return [
        *_of_rows(
            answer, [row for row in off if row.verdict == "loses"],
            lambda rows: "speculation LOSES here "
            f"({times(max(row.speculative_speedup for row in rows))} at best); switch it off",
        ),
        *_of_rows(
            answer, [row for row in off if row.verdict == "pays"],
            lambda _: "speculation would pay but its drafter leaves no room in memory",
        ),
        *first,
        *_of_rows(
            answer, [row for row in off if row.verdict not in ("pays", "loses")],
            lambda rows: _left_off(max(rows, key=lambda row: row.speculative_speedup)),
        ),
        *_of_rows(
            answer, [row for row in fits if row.candidates > 1 and row.uncertain is not None],
            _uncertain,
            lambda row: row.uncertain or row.span,
        ),
        *(line for line in _model_warnings(answer) if line not in first),
        *slower_format_text(answer.cells),
        *more_requests_text(answer.cells),
        *_of_rows(
            answer,  # where nothing fits, what is missing says so
            [row for row in answer.schedule if not row.fits_memory and row.max_batch_without],
            lambda rows: "does not fit even without speculation; at most batch "
            f"{rows[0].max_batch_without} fits",
        ),
        *([] if answer.shortfall is None else [shortfall_text(answer.shortfall)]),
        *_of_rows(
            answer, [row for row in answer.schedule if row.meets_latency is False],
            lambda _: f"a token takes longer than {limit:g} ms, with or without speculation",
        ),
    ]  # fmt: skip


def _uncertain(rows: Sequence[ScheduleRow]) -> str:
    """Says how low the drafts of some rows of one length may go."""
    return (
        "the gain of the row's drafts is not certain: its 80 % interval includes a loss "
        f"(down to {min(row.interval_low for row in rows):.2f})"
    )


def _left_off(row: ScheduleRow) -> str:
    return (
        f"no gain is certain ({times(row.speculative_speedup)} at batch {row.batch_max}, 80 %: "
        f"{row.speculative_speedup_low:.2f} to {row.speculative_speedup_high:.2f}); it is left off"
    )


def _of_rows(
    answer: Recommendation,
    rows: Sequence[ScheduleRow],
    text: Callable[[Sequence[ScheduleRow]], str],
    batches: Callable[[ScheduleRow], Span] = lambda row: row.span,
) -> Iterator[str]:
    """`batch 45..414, 422..439: ...` once for all such rows, or once for each length."""
    lengths = answer.question.seq_len
    for seq_len in lengths:
        if here := [row for row in rows if row.seq_len == seq_len]:
            at = f", length {seq_len:,}" if len(lengths) > 1 else ""
            yield f"batch {spans_text(map(batches, here))}{at}: {text(here)}"


def _model_warnings(answer: Recommendation) -> list[str]:
    lines = [*scenario_doubts(answer.scenario, answer.largest_count)]
    if any(row.best_ends_profile for row in answer.schedule):
        lines.append(more_may_pay(answer.scenario))
    if answer.scenario.profile.heads is None:
        lines.append(
            f"acceptance {answer.scenario.profile.name} is a curve: the tree itself and the number of heads "
            "worth running are not known; give your heads' accuracies with --acceptance FILE"
        )
    if answer.scenario.latency.name == "roofline":
        lines.append(
            "latency roofline: datasheet limits without any fitted kernel, optimistic at large counts"
        )
    if answer.scenario.runtime.host_us_per_launch > 0.0:
        lines.append(
            f"runtime {answer.scenario.runtime.name} is bound by its host, which hides what more "
            "candidates cost the device; code that waits for the device while accepting hides "
            "less (docs/validation.md, Table 1)"
        )
    requests = answer.question.batch_min, answer.question.batch_max
    return [*lines, *answer_doubts(answer.scenario, max(answer.question.seq_len), requests)]
