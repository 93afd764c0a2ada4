"""The decision in two or three sentences: whether, with what, how far."""

from __future__ import annotations

from collections.abc import Sequence

from medusa_sim.plan.break_even import BreakEven
from medusa_sim.plan.recommendation import Recommendation
from medusa_sim.plan.schedule_row import ScheduleRow
from medusa_sim.plan.waking import waking
from medusa_sim.report.numbers import percent, span, times


def reason(answer: Recommendation) -> str:
    """Two or three sentences: whether, with what, how far."""
    told = [_decision(answer)]
    limit = answer.question.max_latency_ms
    if limit is not None and answer.best_with is None and answer.best_without is None:
        told.insert(0, f"No batch stays within {limit:g} ms a token, with or without speculation. Else:")
    if answer.enable:
        told.append(_gain(answer))
    elif not answer.where_it_fits:
        told.append(_need(answer))
    told += _end_to_end(answer)
    told.append(_break_even(answer))
    told += _experts(answer)
    return " ".join(told)


def _decision(answer: Recommendation) -> str:
    rows = [row for row in answer.schedule if row.candidates > 1]
    question = answer.question
    if question.objective == "throughput":
        return _throughput_decision(answer)
    if not rows:
        said = f"Do not enable speculation at batch {span(question.batch_min, question.batch_max)}"
        if not answer.where_it_fits:
            return f"{said}."
        fits = "; ".join(
            f"it fits up to {row.batch_max} sequences"
            + (f" at length {row.seq_len}" if len(question.seq_len) > 1 else "")
            + f" and gives {times(row.speedup)} there ({row.candidates} candidates)"
            for row in answer.where_it_fits
        )
        return f"{said}: {fits}."
    told = []
    for seq_len in question.seq_len:
        speculating = [row for row in rows if row.seq_len == seq_len]
        spans = ", ".join(span(first, last) for first, last in _joined(speculating))
        if spans:
            at = f" (length {seq_len})" if len(question.seq_len) > 1 else ""
            told.append(f"batch {spans}{at}")
    whole = all(row.candidates > 1 or not row.fits_memory for row in answer.schedule)
    if whole and len(question.seq_len) > 1:
        told = [f"batch {span(question.batch_min, question.batch_max)} wherever it fits"]
    return f"Enable speculation at {'; '.join(told)}."


def _throughput_decision(answer: Recommendation) -> str:
    best, plain = answer.best_with, answer.best_without
    limit = answer.question.max_latency_ms
    within = "memory" if limit is None else f"memory and {limit:g} ms a token"
    if best is None:
        return f"Do not enable speculation: with it no batch stays within {within}."
    if plain is None:
        return (
            f"Enable speculation: without it no batch stays within {within}, with it the largest "
            f"throughput is {best.tokens_per_s:,.0f} tokens/s (batch {best.batch}, length {best.seq_len}, "
            f"{best.candidates} candidates)."
        )
    verb = "Enable speculation" if answer.enable else "Do not enable speculation"
    return (
        f"{verb}: the largest throughput with it is {best.tokens_per_s:,.0f} tokens/s (batch {best.batch}, "
        f"length {best.seq_len}, {best.candidates} candidates), without it {plain.tokens_per_s:,.0f} "
        f"(batch {plain.batch}, length {plain.seq_len})."
    )


def _joined(rows: Sequence[ScheduleRow]) -> list[tuple[int, int]]:
    spans: list[tuple[int, int]] = []
    for row in rows:
        if spans and spans[-1][1] + 1 >= row.batch_min:
            spans[-1] = (spans[-1][0], row.batch_max)
        else:
            spans.append((row.batch_min, row.batch_max))
    return spans


def _gain(answer: Recommendation) -> str:
    rows = [row for row in answer.schedule if row.candidates > 1]
    if not rows:
        return "At a given batch it gains less than switching is worth."
    first, last = rows[0], max(rows, key=lambda row: (row.batch_max, -row.seq_len))
    told = f"At batch {first.batch_min}: {_choice(answer, first, first.speedup_at_batch_min)}"
    if last is not first or last.batch_max > first.batch_min:
        told += f"; at batch {last.batch_max}: {_choice(answer, last, last.speedup)}"
    return f"{told} (80 %: {last.speedup_low:.2f}-{last.speedup_high:.2f}{_limit(answer, last)})."


def _limit(answer: Recommendation, row: ScheduleRow) -> str:
    """What kernels alone would give, beside the answer of an engine."""
    alone = row.kernels_speedup
    return "" if alone is None else f", in {answer.setting.runtime.name}; kernels alone {times(alone)}"


def _end_to_end(answer: Recommendation) -> list[str]:
    """A request from its prompt to its last token, where one was given."""
    return [
        f"A request of {r.prompt_tokens:,} prompt and {r.output_tokens:,} output tokens at batch {r.batch}: "
        f"{times(r.speedup)} end to end, {times(r.decode_speedup)} while decoding "
        f"({r.candidates} candidates)."
        for r in answer.requests
        if r.candidates > 1
    ]


def _choice(answer: Recommendation, row: ScheduleRow, speedup: float) -> str:
    unit = answer.drafting.kind.unit
    drafts = f"{row.drafts} {unit}{'' if row.drafts == 1 else 's'}"
    if row.chain:
        shape = f"a chain of {drafts} ({row.candidates} candidates)"
    elif row.paths is not None:
        shape = f"a tree of {row.candidates} candidates ({drafts})"
    else:
        shape = f"{row.candidates} candidates ({drafts})"
    return f"{shape}, {row.tokens_per_step:.2f} tokens per step, {times(speedup)}"


def _need(answer: Recommendation) -> str:
    row = max(answer.schedule, key=lambda row: row.speculative_speedup)
    best = (
        f"The best it could do is {times(row.speculative_speedup)} at batch {row.batch_max}, "
        f"length {row.seq_len} ({row.speculative_candidates} candidates{_limit(answer, row)})"
    )
    if row.speculative_speedup > 1.0:
        return f"{best}, but that does not fit in memory."
    factor = row.required_acceptance_factor
    assumed = "which no accuracies give" if factor is None else f"{factor:.2f} times the assumed accuracies"
    return f"{best}; to break even it needs {row.required_tokens_per_step:.2f} tokens per step, {assumed}."


def _break_even(answer: Recommendation) -> str:
    told = []
    for seq_len, found in zip(answer.question.seq_len, answer.break_even_batches, strict=True):
        at = f" at length {seq_len}" if len(answer.question.seq_len) > 1 else ""
        told.append(f"{_crossing(found, 'batch')}{at}")
    distinct = list(dict.fromkeys(_crossing(f, "batch") for f in answer.break_even_batches))
    if len(distinct) == 1:
        told = distinct
    context = _crossing(answer.break_even_context, "length")
    return f"It {'; '.join(told)}. At batch {answer.question.batch_max} it {context}."


def _experts(answer: Recommendation) -> list[str]:
    """Where drafts are dear because each wakes more experts of a mixture."""
    found = waking(answer.surface)
    if found is None:
        return []
    lengths = f" (length {found.seq_len})" if len(answer.question.seq_len) > 1 else ""
    above = "" if found.capped else "; above, most are read anyway"
    return [
        f"From {found.first} to {found.last} requests each draft wakes more experts{lengths}: at "
        f"{found.worst} one draft makes them {found.woken:.0f} of {found.experts} a layer instead of "
        f"{found.plain:.0f}, and the step {percent(found.cost, 0)} longer{above}."
    ]


def _crossing(found: BreakEven, what: str) -> str:
    searched = f"{what} that fits, {found.searched_from} to {found.searched_to}"
    match found.direction:
        case "loses from":
            return f"loses from {what} {found.at} on"
        case "pays from":
            return f"pays from {what} {found.at} on (searched to {found.searched_to})"
        case "pays throughout":
            return f"pays at every {searched}"
        case "loses throughout":
            return f"loses at every {searched}"
        case "does not fit":
            return f"does not fit at any {what}"
