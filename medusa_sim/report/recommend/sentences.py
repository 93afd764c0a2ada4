"""A recommendation in sentences: whether speculation pays, with what, how far; in a few words for cards."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from medusa_sim.arrays import joined
from medusa_sim.plan.count_curves import NEAR_BEST
from medusa_sim.plan.recommendation import Recommendation
from medusa_sim.plan.schedule import drafting_rows, kept_rows
from medusa_sim.plan.schedule_row import ScheduleRow
from medusa_sim.plan.surprises import activated_experts
from medusa_sim.report.words.break_even import break_even_text
from medusa_sim.report.words.caveats import as_sentence, guessed_text
from medusa_sim.report.words.numbers import (
    batch_text,
    counted,
    duration,
    in_brackets,
    percent,
    span,
    spans_text,
    times,
    with_prefix,
)


def sentence(answer: Recommendation) -> str:
    """The answer in one paragraph: what to do, then at which batches and lengths it holds."""
    how_far = [f"It {text}." for text in by_batch(answer)]
    return " ".join([answer_text(answer), *how_far, *map(as_sentence, (by_length(answer), *experts(answer)))])


def answer_text(answer: Recommendation) -> str:
    """Whether to enable speculation, with what and for which gain; then what limits of latency leave."""
    lines = _decision(answer)
    if answer.enable:
        return " ".join(lines)
    if at := _batches(drafting_rows(answer.schedule)):
        lines.append(f"At batch {at} it still shortens the time per token.")
    elif not answer.where_it_fits and kept_rows(answer.schedule):
        lines.append(_need(answer))
    return " ".join(lines)


def place_text(answer: Recommendation, batch: int, seq_len: int) -> str:
    """`batch_text` of one batch and length of the question."""
    return batch_text(batch, seq_len, several=len(answer.question.seq_len) > 1)


def _decision(answer: Recommendation) -> list[str]:
    question = answer.question
    if not kept_rows(answer.schedule) and (fastest := answer.fastest_stream) is not None:
        how = counted(fastest.candidates, answer.chains) if fastest.candidates > 1 else "no drafts"
        at = place_text(answer, fastest.batch, fastest.seq_len)
        return [
            f"No batch stays within {question.max_latency_ms:g} ms a token, with or without speculation: the "
            f"least is {duration(fastest.tpot_us)}, at {at} with {how}."
        ]
    if question.objective == "throughput":
        return [_throughput_decision(answer), *([f"Gain: {_gain(answer)}."] if answer.enable else [])]
    gain = f": {_gain(answer)}" if answer.enable else ""
    return [f"{_where_to_enable(answer)}{gain}.", *_late(answer)]


def _late(answer: Recommendation) -> list[str]:
    """Batches that no way of running keeps within the limit, and those that plain decoding keeps."""
    limit = answer.question.max_latency_us
    if limit is None:
        return []
    cells, late = answer.cells, [row for row in answer.schedule if row.meets_latency is False]
    keeps = (cells.server.tpot_us[..., 0] <= limit).all(axis=1) & cells.fits[:, :, 0].all(axis=1)
    plain = cells.surface.batch[keeps]
    within = f"{answer.question.max_latency_ms:g} ms a token"
    alone = f"up to batch {plain[-1]}" if plain.size else "at no batch"
    lines = [f"Plain decoding keeps {within} {alone}."]
    if late:
        lines.append(f"Batch {_batches(late)} takes longer than {within} with or without speculation.")
    return lines


def _where_to_enable(answer: Recommendation) -> str:
    rows, lengths = drafting_rows(answer.schedule), answer.question.seq_len
    batches = span(answer.question.batch_min, answer.question.batch_max)
    if not rows:
        return f"Do not enable speculation at batch {batches}{_why_not(answer)}"
    parts = [
        f"batch {_batches(there)}{_remarks(seq_len if len(lengths) > 1 else None, there)}"
        for seq_len in lengths
        if (there := [row for row in rows if row.seq_len == seq_len])
    ]
    everywhere = all(row.candidates > 1 or not row.fits_memory for row in answer.schedule)
    if everywhere and len(lengths) > 1 and not any(row.uncertain for row in rows):
        parts = [f"batch {batches} wherever it fits"]
    return f"Enable speculation at {'; '.join(parts)}"


def _why_not(answer: Recommendation) -> str:
    """`: no gain is certain there`; empty where a loss is certain."""
    if answer.where_it_fits:
        several = len(answer.question.seq_len) > 1
        fits = (
            f"{row.batch_max} requests fit{f' at length {row.seq_len:,}' if several else ''}, which gives "
            f"{times(row.speedup)} ({counted(row.candidates, answer.chains)})"
            for row in answer.where_it_fits
        )
        return f": {'; '.join(fits)}"
    unsure = [row for row in kept_rows(answer.schedule) if row.fits_memory and row.verdict == "uncertain"]
    if not unsure:
        return ""
    is_loss = all(row.speculative_speedup <= 1.0 for row in unsure)
    return ": a loss is predicted there, though not certain" if is_loss else ": no gain is certain there"


def _remarks(length: int | None, rows: Sequence[ScheduleRow]) -> str:
    """` (length 512, gain uncertain at 161..256)`: what is to be known of rows of one length."""
    remarks = [] if length is None else [f"length {length:,}"]
    if doubtful := [row.uncertain for row in rows if row.uncertain is not None]:
        all_uncertain = all(row.uncertain == row.span for row in rows)
        remarks.append("gain uncertain" if all_uncertain else f"gain uncertain at {spans_text(doubtful)}")
    return in_brackets(", ".join(remarks))


def _throughput_decision(answer: Recommendation) -> str:
    best, plain = answer.best_with, answer.best_without
    limit = answer.question.max_latency_ms
    within = "memory" if limit is None else f"memory and {limit:g} ms a token"
    if best is None:
        return f"Do not enable speculation: with it no batch stays within {within}."
    if plain is None:
        return (
            f"Enable speculation: without it no batch stays within {within}, with it the largest "
            f"throughput is {best.tokens_per_s:,.0f} tokens/s ("
            f"{place_text(answer, best.batch, best.seq_len)}, {counted(best.candidates, answer.chains)})."
        )
    verb = "Enable speculation" if answer.enable else "Do not enable speculation"
    at = place_text(answer, best.batch, best.seq_len)
    return (
        f"{verb}: the largest throughput with it is {best.tokens_per_s:,.0f} tokens/s ({at}, "
        f"{counted(best.candidates, answer.chains)}), without it "
        f"{plain.tokens_per_s:,.0f} ({place_text(answer, plain.batch, plain.seq_len)})."
    )


def _batches(rows: Sequence[ScheduleRow]) -> str:
    """`1..40, 64..128`: batches of rows, neighbouring ones joined."""
    return spans_text(row.span for row in rows)


def _gain(answer: Recommendation) -> str:
    """`2.17x at batch 1 with 5 drafts, 1.03x (80 %: 1.00 to 1.07) at batch 256 with 3 drafts`."""
    rows = drafting_rows(answer.schedule)
    first, last = rows[0], max(rows, key=lambda row: (row.batch_max, -row.seq_len))
    begin, end = (
        answer.scheduled_row_at(batch, row.seq_len)
        for row, batch in ((first, int(first.batches[0])), (last, last.batch_max))
    )
    if last is first and last.batch_max == first.batch_min:
        return f"{times(end.speedup)} {_band_text(end)} with {_drafted_text(answer, last)}"
    parts = [f"{_gain_at(answer, begin, first.batch_min)} with {_drafted_text(answer, first)}"]
    least = min(rows, key=lambda row: row.speedup_lowest)
    if least.speedup_lowest < min(begin.speedup, end.speedup) * (1.0 - NEAR_BEST):
        lowest = answer.scheduled_row_at(least.batch_lowest, least.seq_len)
        parts.append(f"as little as {_gain_at(answer, lowest, lowest.batch_max)}")
    at = place_text(answer, last.batch_max, last.seq_len)
    parts.append(f"{times(end.speedup)} {_band_text(end)} at {at} with {_drafted_text(answer, last)}")
    return ", ".join(parts)


def _gain_at(answer: Recommendation, cell: ScheduleRow, batch: int) -> str:
    """`1.09x at batch 1`, with its interval where that holds no gain as well."""
    band = "" if cell.speedup_low > 1.0 else f" {_band_text(cell)}"
    return f"{times(cell.speedup)}{band} at {place_text(answer, batch, cell.seq_len)}"


def _band_text(cell: ScheduleRow) -> str:
    """`(80 %: 1.00 to 1.07)`: of the speedup at one batch."""
    return f"(80 %: {cell.speedup_low:.2f} to {cell.speedup_high:.2f})"


def step_text(answer: Recommendation, row: ScheduleRow) -> str:
    """The gain of decoding steps alone at a row's largest batch; empty where nothing lies around them."""
    parts = []
    if answer.scenario.traffic is not None:
        parts.append(f"{times(row.step_speedup)} without prompts between steps")
    if row.kernels_speedup is not None:
        parts.append(f"{times(row.kernels_speedup)} with the kernels alone")
    return f"{', '.join(parts)}, at {place_text(answer, row.batch_max, row.seq_len)}" if parts else ""


def shape_text(answer: Recommendation, row: ScheduleRow) -> str:
    """`5 drafts` of a chain that an engine runs, `a tree of 49 candidates`, `a chain of 3 candidates`."""
    shape = counted(row.candidates, answer.chains)
    if answer.chains or not (row.chain or row.paths is not None):
        return shape
    return f"a {'chain' if row.chain else 'tree'} of {shape}"


def _drafted_text(answer: Recommendation, row: ScheduleRow) -> str:
    """Its shape, and from which draft on its acceptance is a guess."""
    return f"{shape_text(answer, row)}{guessed_text(answer.scenario, row.drafts)}"


def _need(answer: Recommendation) -> str:
    row = max(answer.schedule, key=lambda row: row.speculative_speedup)
    at = place_text(answer, row.batch_max, row.seq_len)
    best = (
        f"The best it could do is {times(row.speculative_speedup)} at {at} "
        f"({counted(row.speculative_candidates, answer.chains)})"
    )
    if row.speculative_speedup > 1.0:
        return f"{best}, but that does not fit in memory."
    factor = row.required_acceptance_factor
    if factor is None:
        return f"{best}; no acceptance makes that break even."
    return (
        f"{best}; to break even it needs {row.required_tokens_per_step:.2f} tokens per step, "
        f"an acceptance {factor:.2f} times as high as assumed."
    )


def by_batch(answer: Recommendation) -> list[str]:
    """At which batches speculation pays, is uncertain or loses; a text a length where these differ.

    It is about the best count of each batch, and says so where a row, which runs one count at all of its
    batches, is uncertain at others.
    """
    texts = []
    for length, found in zip(answer.question.seq_len, answer.break_even_batches, strict=True):
        rows = [row for row in drafting_rows(answer.schedule) if row.seq_len == length and row.uncertain]
        unsure = [stretch.span for stretch in found.known if stretch.verdict == "uncertain"]
        best = [part for row in rows for span in unsure if (part := span.part_in(row.span))]
        of_rows = [row.uncertain for row in rows if row.uncertain]
        apart = ", with the best count of each batch" if joined(best) != joined(of_rows) else ""
        texts.append(f"{break_even_text(found, 'batch')}{apart}")
    if len(set(texts)) == 1:
        return texts[:1]
    return [f"{text} at length {n:,}" for n, text in zip(answer.question.seq_len, texts, strict=True)]


def by_length(answer: Recommendation) -> str:
    """At which lengths speculation pays, is uncertain or loses with the largest batch."""
    context = break_even_text(answer.break_even_context, "length")
    return f"at batch {answer.question.batch_max} it {context}"


def experts(answer: Recommendation) -> list[str]:
    """Batches at which drafts are costly because each activates more experts of a mixture, then how many."""
    found = activated_experts(answer.cells)
    if found is None:
        return []
    lengths = f" (length {found.seq_len:,})" if len(answer.question.seq_len) > 1 else ""
    above = "" if found.capped else f"; above {found.last} most are read anyway"
    return [
        f"from {found.first} to {found.last} requests each draft activates more experts{lengths}: one makes "
        f"a step up to {percent(found.cost, 0)} longer",
        f"at {found.worst} requests a step with one draft reads {found.activated:.0f} of the {found.experts} "
        f"experts of a layer, a plain one {found.plain:.0f}{above}",
    ]


Kind = Literal["pays", "uncertain", "off", "no room"]


@dataclass(frozen=True, slots=True)
class ShortAnswer:
    """An answer at one batch in a few words.

    kind: pays, uncertain (the interval holds a loss), off (plain decoding is better) or no room (in memory).
    figure: what is gained, `2.10x`; action: what to do, `with 3 drafts a step`; more: next to it.
    """

    kind: Kind
    figure: str
    action: str
    more: str


def short_answer(answer: Recommendation, row: ScheduleRow) -> ShortAnswer:
    """The answer of a row (`Recommendation.scheduled_row_at`) in a few words."""
    if not row.fits_memory:
        needed, room = (
            with_prefix(size, "B") for size in (row.memory_bytes, answer.scenario.usable_memory_bytes)
        )
        return ShortAnswer("no room", "no room", "does not fit in memory", f"{needed} a GPU, of {room}")
    if row.candidates == 1:
        best = times(row.speculative_speedup)
        return ShortAnswer("off", "off", "decode without drafts", f"drafts would give {best} at best")
    action = f"with {shape_text(answer, row)} a step"
    interval = f"80 %: {row.speedup_low:.2f} to {row.speedup_high:.2f}"
    return ShortAnswer("pays" if row.verdict == "pays" else "uncertain", times(row.speedup), action, interval)
