"""A recommendation in sentences: whether, with what, how far, and what must not be overlooked."""

from __future__ import annotations

from collections.abc import Sequence

from medusa_sim.plan.counts import NEAR_BEST
from medusa_sim.plan.doubts import doubts
from medusa_sim.plan.recommend import scheduled_row_at
from medusa_sim.plan.recommendation import Recommendation
from medusa_sim.plan.schedule_row import ScheduleRow
from medusa_sim.plan.terms import beyond_measured
from medusa_sim.plan.woken_experts import waking
from medusa_sim.report.caveats import guessed_text, more_may_pay, shortfall_text
from medusa_sim.report.sweep_text import slower_format, slower_with_more
from medusa_sim.report.text import drafts_text, duration, percent, span, times
from medusa_sim.report.verdict_text import crossing_text
from medusa_sim.units import US_PER_S


def reason(answer: Recommendation) -> str:
    """Two or three sentences: whether, with what, how far."""
    lines = [_decision(answer)]
    if answer.enable:
        lines.append(_gain(answer))
    elif at := _batches([row for row in _kept(answer) if row.candidates > 1]):
        lines.append(f"At batch {at} it still shortens the time per token.")
    elif not answer.where_it_fits and _kept(answer):
        lines.append(_need(answer))
    lines.append(_break_even(answer))
    lines += _experts(answer)
    return " ".join(lines)


def counted(answer: Recommendation, candidates: int) -> str:
    """A count in the engine's word: `3 drafts` (num_speculative_tokens) of chains, else `14 candidates`."""
    return drafts_text(candidates) if answer.chains else f"{candidates} candidates"


def _kept(answer: Recommendation) -> list[ScheduleRow]:
    """Rows that keep the limit of latency, all where there is none."""
    return [row for row in answer.schedule if row.meets_latency is not False]


def _decision(answer: Recommendation) -> str:
    question = answer.question
    if question.max_latency_ms is not None and not _kept(answer):
        fastest = max(answer.schedule, key=lambda row: row.tokens_per_s_per_user)
        per_token = duration(US_PER_S / fastest.tokens_per_s_per_user)
        how = counted(answer, fastest.candidates) if fastest.candidates > 1 else "no drafts"
        return (
            f"No batch stays within {question.max_latency_ms:g} ms a token, with or without speculation: at "
            f"batch {fastest.batch_max} it takes {per_token} with {how}."
        )
    if question.objective == "throughput":
        return _throughput_decision(answer)
    return f"{_verdict(answer)}{_late(answer)}."


def _late(answer: Recommendation) -> str:
    """Batches that no way of running keeps within the limit, and those that plain decoding keeps."""
    limit = answer.question.max_latency_us
    if limit is None:
        return ""
    cells, late = answer.cells, [row for row in answer.schedule if row.meets_latency is False]
    keeps = (cells.tpot_us[..., 0] <= limit).all(axis=1) & cells.fits[:, :, 0].all(axis=1)
    plain = cells.surface.batch[keeps]
    within = f"{answer.question.max_latency_ms:g} ms a token"
    alone = f"up to batch {plain[-1]}" if plain.size else "at no batch"
    text = f"; batch {_batches(late)} takes longer than {within} with or without it" if late else ""
    return f"{text}; plain decoding keeps {within} {alone}"


def _verdict(answer: Recommendation) -> str:
    rows = [row for row in _kept(answer) if row.candidates > 1]
    question = answer.question
    if not rows:
        said = f"Do not enable speculation at batch {span(question.batch_min, question.batch_max)}"
        if not answer.where_it_fits:
            unsure = any(row.verdict == "uncertain" for row in _kept(answer) if row.fits_memory)
            return f"{said}: no gain is certain there" if unsure else said
        fits = "; ".join(
            f"it fits up to {row.batch_max} sequences"
            + (f" at length {row.seq_len}" if len(question.seq_len) > 1 else "")
            + f" and gives {times(row.speedup)} there ({counted(answer, row.candidates)})"
            for row in answer.where_it_fits
        )
        return f"{said}: {fits}"
    parts = []
    for seq_len in question.seq_len:
        if spans := _batches([row for row in rows if row.seq_len == seq_len]):
            at = f" (length {seq_len})" if len(question.seq_len) > 1 else ""
            parts.append(f"batch {spans}{at}")
    whole = all(row.candidates > 1 or not row.fits_memory for row in answer.schedule)
    if whole and len(question.seq_len) > 1:
        parts = [f"batch {span(question.batch_min, question.batch_max)} wherever it fits"]
    return f"Enable speculation at {'; '.join(parts)}"


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
            f"{counted(answer, best.candidates)})."
        )
    verb = "Enable speculation" if answer.enable else "Do not enable speculation"
    return (
        f"{verb}: the largest throughput with it is {best.tokens_per_s:,.0f} tokens/s (batch {best.batch}, "
        f"length {best.seq_len}, {counted(answer, best.candidates)}), without it {plain.tokens_per_s:,.0f} "
        f"(batch {plain.batch}, length {plain.seq_len})."
    )


def _batches(rows: Sequence[ScheduleRow]) -> str:
    """`1..40, 64..128`: neighbouring rows joined."""
    spans: list[tuple[int, int]] = []
    for row in rows:
        if spans and spans[-1][1] + 1 >= row.batch_min:
            spans[-1] = (spans[-1][0], row.batch_max)
        else:
            spans.append((row.batch_min, row.batch_max))
    return ", ".join(span(first, last) for first, last in spans)


def _gain(answer: Recommendation) -> str:
    rows = [row for row in _kept(answer) if row.candidates > 1]
    first, last = rows[0], max(rows, key=lambda row: (row.batch_max, -row.seq_len))
    text = f"At batch {first.batch_min}: {_choice(answer, first, first.speedup_at_batch_min)}"
    if last is not first or last.batch_max > first.batch_min:
        text += f"; at batch {last.batch_max}: {_choice(answer, last, last.speedup)}"
    end = scheduled_row_at(answer, last.batch_max, last.seq_len)
    text += (
        f" (80 % given this acceptance: {end.speedup_low:.2f}-{end.speedup_high:.2f}{_limit(answer, last)})"
    )
    least = min(rows, key=lambda row: row.speedup_lowest)
    if least.speedup_lowest < min(first.speedup_at_batch_min, last.speedup) * (1.0 - NEAR_BEST):
        text += f"; least at batch {least.batch_lowest}: {times(least.speedup_lowest)}"
    return f"{text}."


def _limit(answer: Recommendation, row: ScheduleRow) -> str:
    """What kernels alone would give, beside the answer of an engine."""
    alone = row.kernels_speedup
    served = "" if answer.scenario.traffic is None else f"; of the step {times(row.step_speedup)}"
    if alone is None:
        return served
    return f", in {answer.setting.runtime.name}{served}; kernels alone {times(alone)}"


def _choice(answer: Recommendation, row: ScheduleRow, speedup: float) -> str:
    unit = "draft" if answer.chains else answer.drafting.kind.unit
    drafts = f"{row.drafts} {unit}{'' if row.drafts == 1 else 's'}"
    if answer.chains:
        shape = f"a chain of {drafts}"
    elif row.chain:
        shape = f"a chain of {drafts} ({row.candidates} candidates)"
    else:
        tree = "" if row.paths is None else "a tree of "
        shape = f"{tree}{row.candidates} candidates ({drafts})"
    guessed = guessed_text(answer.scenario, row.drafts)
    return f"{shape}, {row.tokens_per_step:.2f} tokens per step{guessed}, {times(speedup)}"


def _need(answer: Recommendation) -> str:
    row = max(answer.schedule, key=lambda row: row.speculative_speedup)
    best = (
        f"The best it could do is {times(row.speculative_speedup)} at batch {row.batch_max}, "
        f"length {row.seq_len} ({counted(answer, row.speculative_candidates)}{_limit(answer, row)})"
    )
    if row.speculative_speedup > 1.0:
        return f"{best}, but that does not fit in memory."
    factor = row.required_acceptance_factor
    if factor is None:
        return f"{best}; no acceptance makes that break even."
    return (
        f"{best}; to break even it needs {row.required_tokens_per_step:.2f} tokens per step, {factor:.2f} "
        "times the assumed accuracies."
    )


def _break_even(answer: Recommendation) -> str:
    question = answer.question
    told = [crossing_text(crossing, "batch") for crossing in answer.break_even_batches]
    if len(set(told)) == 1:
        told = told[:1]
    else:
        told = [f"{text} at length {n}" for n, text in zip(question.seq_len, told, strict=True)]
    context = crossing_text(answer.break_even_context, "length")
    return f"It {'; '.join(told)}. At batch {question.batch_max} it {context}."


def _experts(answer: Recommendation) -> list[str]:
    """Where drafts are dear because each wakes more experts of a mixture."""
    woken = waking(answer.cells)
    if woken is None:
        return []
    lengths = f" (length {woken.seq_len})" if len(answer.question.seq_len) > 1 else ""
    above = "" if woken.capped else "; above, most are read anyway"
    return [
        f"From {woken.first} to {woken.last} requests each draft wakes more experts{lengths}: at "
        f"{woken.worst} one draft makes them {woken.woken:.0f} of {woken.experts} a layer instead of "
        f"{woken.plain:.0f}, and the step {percent(woken.cost, 0)} longer{above}."
    ]


def warnings(answer: Recommendation) -> list[str]:
    """Places where speculation loses, does not fit or is uncertain, then what the answer rests on."""
    lines = []
    for row in answer.schedule:
        where = f"batch {span(row.batch_min, row.batch_max)}, length {row.seq_len}"
        if not row.fits_memory:
            if most := row.max_batch_without:  # where nothing fits, what is missing says so
                lines.append(f"{where}: does not fit even without speculation; at most batch {most} fits")
        elif row.candidates == 1 and row.verdict == "pays":
            lines.append(f"{where}: speculation would pay but its drafter leaves no room in memory")
        elif row.candidates == 1 and row.verdict == "loses":
            lines.append(
                f"{where}: speculation LOSES here ({times(row.speculative_speedup)} at best); switch it off"
            )
        elif row.candidates == 1:
            lines.append(
                f"{where}: no gain is certain ({times(row.speculative_speedup)} at batch {row.batch_max}, "
                f"80 %: {row.speculative_speedup_low:.2f}-{row.speculative_speedup_high:.2f}); it is left off"
            )
        elif row.uncertain is not None:
            lines.append(
                f"batch {span(*row.uncertain)}, length {row.seq_len}: the gain is not certain, the 80 % "
                f"interval includes a loss (down to {row.speedup_low:.2f})"
            )
        if row.meets_latency is False:
            limit = answer.question.max_latency_ms
            lines.append(f"{where}: a token takes longer than {limit:g} ms, with or without speculation")
    if answer.shortfall is not None:
        lines.append(shortfall_text(answer.shortfall))
    return [
        *lines,
        *slower_format(answer.cells),
        *slower_with_more(answer.cells),
        *_model_warnings(answer),
    ]


def _model_warnings(answer: Recommendation) -> list[str]:
    lines = [*doubts(answer.scenario)]
    if any(row.ends_profile for row in answer.schedule):
        lines.append(more_may_pay(answer.scenario))
    if answer.profile.heads is None:
        lines.append(
            f"acceptance {answer.profile.name} is a curve: the tree itself and the number of heads worth "
            "running are not known; give your heads' accuracies with --acceptance FILE"
        )
    if answer.setting.latency.name == "roofline":
        lines.append(
            "latency roofline: datasheet limits without any fitted kernel, optimistic at large counts"
        )
    if answer.setting.runtime.host_us_per_launch > 0.0:
        lines.append(
            f"runtime {answer.setting.runtime.name} is bound by its host, which hides what more "
            "candidates cost the device; code that waits for the device while accepting hides "
            "less (docs/validation.md, Table 1)"
        )
    return lines + beyond_measured(
        answer.scenario, max(answer.question.seq_len), (answer.question.batch_min, answer.question.batch_max)
    )
