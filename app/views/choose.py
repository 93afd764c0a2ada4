"""Choose: how many candidates one verification step should carry, and what it gains."""

from __future__ import annotations

from typing import TYPE_CHECKING

import answers
import inputs
import notes
import show
import streamlit as st
from charts import choose as charts

from medusa_sim.errors import UsageError
from medusa_sim.export import ENGINES
from medusa_sim.plan.by_count import count_table
from medusa_sim.plan.recommend import at_batch, steps_at
from medusa_sim.report.numbers import duration, span, times, with_prefix
from medusa_sim.report.recommend_reason import reason
from medusa_sim.report.recommend_text import findings
from medusa_sim.report.recommend_warnings import warnings

if TYPE_CHECKING:
    import pyarrow as pa

    from medusa_sim.plan.recommend import Recommendation
    from medusa_sim.plan.schedule_row import ScheduleRow
    from medusa_sim.step.step import StepTime

_WIDTHS = {
    "batch": 75,
    "candidates": 85,
    "drafts": 60,
    "tokens/step": 90,
    "speedup": 115,
    "80 %": 95,
    "step": 80,
    "tokens/s a user (plain)": 155,
    "tokens/s (plain)": 145,
}
_BATCHES = (8, 16, 32, 64, 128, 256)


def page(set_up: inputs.SetUp) -> None:
    """The answer first, what it rests on below."""
    st.title("How many candidates?", anchor=False)
    verdict = st.container()  # the answer stands above its inputs, and is filled once they are known
    left, middle, right = st.columns(3)
    batch_max = inputs.step_of(
        left,
        "batch_max",
        "Batches to plan for, 1 to",
        _BATCHES,
        64,
        "Every batch to this is searched.",
    )
    batch = inputs.whole(
        middle, "batch", "Batch to look at", 1, batch_max, 1, "Sequences that one step decodes side by side."
    )
    objective = inputs.choice(
        right,
        "objective",
        "Objective",
        ("latency", "throughput"),
        "latency",
        "latency: the best at every batch. throughput: the most tokens/s of any batch that fits.",
    )
    note = st.container()
    answer = answers.recommendation(set_up, batch_max, objective)
    row = at_batch(answer, batch, set_up.seq_len)
    with verdict:
        _verdict(set_up, answer, row)
    _figures(set_up, answer, row)
    told = ["recommend", *set_up.options]
    if objective != "latency":
        told += ["--objective", objective]
    searched = [*told, "--candidates-max", str(answers.CANDIDATES_MAX), "--batch", f"1..{batch_max}"]
    counts = count_table(answer.surface)
    _curves(answer, counts, row, searched, batch_max)
    _breakdown(answer, row, set_up, [*told, "--candidates-max", str(answers.CANDIDATES_MAX)])
    _map(answer, counts, searched, batch_max)
    _schedule(answer, searched, set_up)
    _launch(set_up, batch_max, objective, searched)
    with note:
        show.ignored_note()


def _verdict(set_up: inputs.SetUp, answer: Recommendation, row: ScheduleRow) -> None:
    """The answer in one sentence: for what, whether, with how many, what it gains."""
    where = f"{set_up.model} on {set_up.gpu}, batch {row.batch_max}"
    plain = row.candidates == 1
    if not row.fits_memory:
        st.error(f"**{where}: does not fit in memory**, with or without speculation.")
    elif plain:
        best = f"{times(row.speculative_speedup)} with {row.speculative_candidates} candidates"
        gain = answer.question.switching_gain
        why = f"The best of it would give {best}."
        if row.speculative_speedup > 1.0 + gain:
            why = f"It would give {best}, but its drafter leaves no room in memory."
        elif row.speculative_speedup > 1.0:
            why = f"The best of it would give {best}, less than the {gain:.0%} that count as a gain."
        st.error(
            f"**{where}: do not enable speculation.** {why}",
            icon=":material/do_not_disturb_on:",
        )
    else:
        st.success(
            f"**{where}: verify {row.candidates} candidates a step ({row.drafts} drafts deep), "
            f"{times(row.speedup)}.** It emits {row.tokens_per_step:.2f} tokens a step, and a step takes "
            f"{times(row.overhead)} as long.",
            icon=":material/check_circle:",
        )


def _figures(set_up: inputs.SetUp, answer: Recommendation, row: ScheduleRow) -> None:
    """Five figures, the paragraph, and what to know before trusting them."""
    plain, loses = row.candidates == 1, answer.break_even_batch
    show.figures(
        show.Figure(
            "Best candidate count",
            "off" if plain else str(row.candidates),
            None if plain else f"{row.drafts} drafts deep",
            "Tokens that one verification step processes for each sequence, the root included. Drafts in a "
            "row are what engines call num_speculative_tokens.",
        ),
        show.Figure(
            "Speedup",
            times(row.speedup) if row.fits_memory else "-",
            None if plain else f"80 %: {row.speedup_low:.2f} to {row.speedup_high:.2f}",
            "Tokens/s over plain decoding at the same batch and length, with an 80 % interval.",
        ),
        show.Figure(
            "Loses from batch",
            "-" if not answer.enable else str(loses) if loses is not None else "none",
            None,
            "The smallest batch from which no count pays any more, memory apart; none: it always pays.",
        ),
        show.Figure(
            "Free token budget",
            str(row.free_candidates),
            None,
            "Every count up to it costs at most 10 % more than a plain step, drafting included.",
        ),
        show.Figure(
            "Largest batch",
            str(row.max_batch_with),
            f"{row.max_batch_without} without",
            f"What fits in memory at this length; this batch needs {with_prefix(row.memory_bytes, 'B')}.",
        ),
    )
    st.markdown(reason(answer))
    st.caption("A schedule shares one count between neighbouring batches where that costs less than 3 %.")
    borrowed = answers.another_models_acceptance(set_up)
    for line in [*([borrowed] if borrowed else []), *warnings(answer)][:4]:
        st.warning(line, icon=":material/warning:")


def _curves(
    answer: Recommendation, counts: pa.Table, row: ScheduleRow, told: list[str], batch_max: int
) -> None:
    st.subheader("Speedup by candidate count", anchor=False)
    batches = sorted({row.batch_max, *(batch for batch in (1, 4, 16, 64) if batch <= batch_max)})
    show.chart(
        charts.speedup_chart(counts, batches),
        name="speedup",
        caption="Rings: the best count of a batch. Ticks: the step jumps behind this count. "
        + notes.accuracy(answer.gpu, answer.setting),
        told=show.command([*told, "--by-count", "--format", "csv"]),
        rows=counts,
        alt="Lines of speedup against the number of candidates, one for each batch",
    )


def _breakdown(answer: Recommendation, row: ScheduleRow, set_up: inputs.SetUp, told: list[str]) -> None:
    st.subheader("Where the time of a step goes", anchor=False)
    both = steps_at(answer, row.batch_max, set_up.seq_len)
    plain, speculative, count = both.plain, both.speculative, both.candidates
    rows = charts.breakdown_rows(plain, speculative)
    waits = [f"{name} {_waits(step)}" for name, step in (("plain", plain), ("speculative", speculative))]
    show.chart(
        charts.breakdown_chart(rows),
        name="breakdown",
        caption=f"Batch {row.batch_max}, length {set_up.seq_len}: {duration(float(plain.time_us))} plain, "
        f"{duration(float(speculative.time_us))} with {count} candidates. Waiting for: {'; '.join(waits)}.",
        told=show.command([*told, "--batch", str(row.batch_max), "--format", "json"]),
        rows=rows,
        alt="Stacked bars of the parts of a plain and a speculative step",
    )


def _waits(step: StepTime) -> str:
    """Shares of the step by what it waits for, those above 5 %."""
    whole = float(step.time_us)
    shares = {code.name.lower(): float(us) / whole for code, us in step.waits_us.items()}
    return ", ".join(f"{share:.0%} {name}" for name, share in shares.items() if share > 0.05)


def _map(answer: Recommendation, counts: pa.Table, told: list[str], batch_max: int) -> None:
    st.subheader("Every batch and count", anchor=False)
    show.chart(
        charts.speedup_map(counts, batch_max),
        name="map",
        caption="Speedup over plain decoding at the same batch; below 1 speculation loses. "
        + notes.accuracy(answer.gpu, answer.setting),
        told=show.command([*told, "--by-count", "--format", "csv"]),
        alt="A map of speedups over batch and candidates",
    )


def _schedule(answer: Recommendation, told: list[str], set_up: inputs.SetUp) -> None:
    st.subheader("Schedule by batch", anchor=False)
    show.table([_scheduled(row) for row in answer.schedule], "schedule", _WIDTHS)
    show.hand_out(
        "schedule",
        [
            ("csv", "text/csv", lambda: show.csv_bytes(notes.schedule(answer))),
            ("json", "application/json", lambda: notes.whole_json(answer, show.command(told))),
            *notes.report_file(set_up),
        ],
        show.command(told),
    )
    with st.expander("What follows from it"):
        st.markdown("\n".join(f"- {line}" for line in findings(answer)))


def _scheduled(row: ScheduleRow) -> dict[str, str]:
    """A row of the schedule as text; speedups from its smallest to its fullest batch."""
    batches = span(row.batch_min, row.batch_max)
    if not row.fits_memory:
        return dict.fromkeys(_WIDTHS, "-") | {"batch": batches, "candidates": "no room"}
    rates = {
        "step": duration(row.verify_step_us),
        "tokens/s a user (plain)": f"{row.tokens_per_s_per_user:,.0f} "
        f"({row.plain_tokens_per_s_per_user:,.0f})",
        "tokens/s (plain)": f"{row.tokens_per_s:,.0f} ({row.plain_tokens_per_s:,.0f})",
    }
    if row.candidates == 1:
        return dict.fromkeys(_WIDTHS, "-") | {"batch": batches, "candidates": "off"} | rates
    both = dict.fromkeys((times(row.speedup_at_batch_min), times(row.speedup)))
    return {
        "batch": batches,
        "candidates": str(row.candidates),
        "drafts": str(row.drafts),
        "tokens/step": f"{row.tokens_per_step:.2f}",
        "speedup": " to ".join(both),
        "80 %": f"{row.speedup_low:.2f}-{row.speedup_high:.2f}",
        **rates,
    }


def _launch(set_up: inputs.SetUp, batch_max: int, objective: str, told: list[str]) -> None:
    st.subheader("Launch settings", anchor=False)
    left, right = st.columns(2)
    engine = inputs.choice(
        left, "engine", "Engine", ENGINES, "vllm", "Settings to copy into your serving engine."
    )
    draft_path = inputs.text(
        right,
        "draft_path",
        "Draft checkpoint",
        "PATH_OF_THE_DRAFT",
        "Folder or id, to be named in the settings.",
    )
    try:
        settings = answers.launch_settings(set_up, batch_max, objective, engine, draft_path or None)
    except UsageError as error:  # what an engine cannot do is an answer here, and the rest of the page stands
        st.info(str(error))
        return
    st.code(settings.text, language="json" if engine == "json" else "sh", wrap_lines=True)
    for note in settings.notes:
        st.caption(f"{settings.engine} {settings.version}: {note}")
    words = [*told, "--export", engine, *(["--draft-path", draft_path] if draft_path else [])]
    show.hand_out("launch", [("txt", "text/plain", lambda: settings.text)], show.command(words))
