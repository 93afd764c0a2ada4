"""Choose: how many candidates one verification step should carry, and what it gains."""

from __future__ import annotations

from typing import TYPE_CHECKING

import answers
import inputs
import notes
import show
import streamlit as st
from charts import choose as charts
from chosen import SetUp

from medusa_sim.errors import UsageError
from medusa_sim.plan.at_batch import scheduled_at, scheduled_counts, steps_at
from medusa_sim.plan.by_count import count_table
from medusa_sim.report.numbers import duration, times, with_prefix
from medusa_sim.report.recommend_reason import counted, reason
from medusa_sim.report.recommend_text import findings, schedule_table
from views.verdict import verdict_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pyarrow as pa

    from medusa_sim.plan.recommendation import Recommendation
    from medusa_sim.plan.request import RequestLatency
    from medusa_sim.plan.schedule_row import ScheduleRow
    from medusa_sim.step.step import StepTime

_COLUMNS = (
    "batch", "candidates", "drafts", "heads", "tokens/step", "speedup", "80 %", "step", "tokens/s per user",
    "plain per user", "tokens/s", "plain tokens/s",
)  # fmt: skip
_PHONE = ("batch", "candidates", "drafts", "speedup", "80 %")
_SHOWN = (1, 4, 16, 64)
"""Batches that have a line, beside the one looked at."""
_BATCHES = (8, 16, 32, 64, 128, 256)
_LONGEST = 131_072


def page(set_up: SetUp) -> None:
    """The answer first, its inputs and what it rests on below."""
    st.title("Does speculation pay?", anchor=False)
    headline = st.container()  # the answer stands above its inputs, and is filled once they are known
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
    request = _request()
    note = st.container()
    answer = answers.recommendation(set_up, batch_max, objective)
    row = scheduled_at(answer, batch, set_up.seq_len)
    whole = None if request is None else answers.request(set_up, batch, *request)
    with headline:
        verdict_of(set_up, answer, row, whole)
    if row.fits_memory:
        _figures(answer, row, whole)
    _reasons(answer)
    told = ["recommend", *set_up.options]
    if objective != "latency":
        told += ["--objective", objective]
    if request is not None:
        told += ["--prompt-tokens", str(request[0]), "--output-tokens", str(request[1])]
    searched = [*told, "--batch", f"1..{batch_max}"]
    if any(each.fits_memory for each in answer.schedule):
        _schedule(answer, searched, set_up)
    if row.fits_memory:  # else nothing runs there: no curve, no step, no settings
        counts, recommended = count_table(answer.surface), scheduled_counts(answer, set_up.seq_len)
        marked = {each: recommended[each] for each in sorted({batch, *_SHOWN}) if each <= batch_max}
        _curves(answer, counts, marked, searched)
        _map(answer, counts, recommended, searched)
        _breakdown(answer, row, set_up)
        _launch(set_up, answer, row, searched)
    with note:  # every input of the page has read its own by now
        show.ignored_note()


def _request() -> tuple[int, int] | None:
    """Prompt and output tokens of a request, where both are given."""
    with st.expander("A request from prompt to last token"):
        left, right = st.columns(2)
        told = "Tokens to read before the first one is written; speculation does not shorten that."
        prompt = inputs.perhaps(left, "prompt", "Prompt tokens", 1, _LONGEST, told)
        output = inputs.perhaps(right, "output_tokens", "Output tokens", 1, _LONGEST, "Tokens to write.")
    return None if prompt is None or output is None else (prompt, output)


def _figures(answer: Recommendation, row: ScheduleRow, request: RequestLatency | None) -> None:
    """The numbers of the answer."""
    plain, loses = row.candidates == 1, answer.break_even_batch
    whole = (
        show.Figure(
            "End to end",
            times(request.speedup),
            f"{duration(request.total_us)}, plain {duration(request.plain_total_us)}",
            "A whole request: reading the prompt and writing the output, at this batch.",
        )
        if request is not None
        else None
    )
    shown = [
        show.Figure(
            "Drafts" if answer.chains else "Candidates",
            "off" if plain else str(row.drafts if answer.chains else row.candidates),
            None if plain or answer.chains else notes.drafts(row),
            "Draft tokens in a row: num_speculative_tokens of engines."
            if answer.chains
            else "Tokens that one verification step processes for each sequence, the root included.",
        ),
        show.Figure(
            "Speedup",
            times(row.speedup) if row.fits_memory else "-",
            None if plain else f"80 %: {row.speedup_low:.2f} to {row.speedup_high:.2f}",
            "Tokens/s over plain decoding at the same batch and length, with an 80 % interval.",
        ),
        whole,
        show.Figure(
            "Loses from batch",
            "-" if not answer.enable else str(loses) if loses is not None else "none",
            None,
            "The smallest batch from which no count pays any more, memory apart; none: it always pays.",
        ),
        show.Figure(
            "Free drafts" if answer.chains else "Free candidates",
            str(row.free_candidates - answer.chains),
            None,
            "Every number up to it costs at most 10 % more than a plain step, drafting included.",
        ),
        show.Figure(
            "Largest batch",
            str(row.max_batch_with),
            f"{row.max_batch_without} without",
            f"What fits in memory at this length; this batch needs {with_prefix(row.memory_bytes, 'B')}.",
        ),
    ]
    show.figures(*(figure for figure in shown if figure is not None), width=150 if whole is None else 132)


def _reasons(answer: Recommendation) -> None:
    """The paragraph of the whole schedule, and what to know before trusting it."""
    st.markdown(show.in_words(reason(answer)))
    show.warn(*notes.warnings(answer)[1])


def _schedule(answer: Recommendation, told: list[str], set_up: SetUp) -> None:
    st.subheader("Schedule by batch", anchor=False)
    show.text_table(schedule_table(answer), _COLUMNS, _PHONE)
    st.caption("A schedule shares one count between neighbouring batches where that costs less than 3 %.")
    show.hand_out(
        "schedule",
        [
            ("csv", "text/csv", lambda: show.csv_bytes(notes.schedule(answer))),
            ("json", "application/json", lambda: notes.whole_json(answer, show.command(told))),
            *notes.report_file(set_up, answer, show.command(told)),
        ],
        show.command(told),
    )
    with st.expander("What follows from it"):
        st.markdown("\n".join(f"- {show.in_words(line)}" for line in findings(answer)))


def _curves(
    answer: Recommendation, counts: pa.Table, recommended: Mapping[int, int], told: list[str]
) -> None:
    word = charts.counted(answer.chains)
    st.subheader(f"Speedup by number of {word}", anchor=False)
    show.chart(
        charts.speedup_chart(counts, recommended, chains=answer.chains),
        name="speedup",
        caption="Rings: what is recommended. Ticks: the step jumps behind this count. "
        + notes.accuracy(answer.gpu, answer.scenario.kernels, answer.scenario.model),
        told=show.command([*told, "--by-count", "--format", "csv"]),
        rows=counts,
        alt=f"Lines of speedup against the number of {word}, one for each batch",
    )


def _map(answer: Recommendation, counts: pa.Table, recommended: Mapping[int, int], told: list[str]) -> None:
    st.subheader(f"Every batch and number of {charts.counted(answer.chains)}", anchor=False)
    show.chart(
        charts.speedup_map(counts, recommended, chains=answer.chains),
        name="map",
        caption="Speedup over plain decoding at the same batch. Framed: what is recommended. Red line: "
        "beyond it speculation loses. A dash: no room in memory.",
        told=show.command([*told, "--by-count", "--format", "csv"]),
        alt="A map of speedups over batch and number of drafts",
    )


def _breakdown(answer: Recommendation, row: ScheduleRow, set_up: SetUp) -> None:
    st.subheader("Where the time of a step goes", anchor=False)
    both = steps_at(answer, row.batch_max, set_up.seq_len, scheduled=True)
    plain, speculative, count = both.plain, both.speculative, both.candidates
    rows = charts.breakdown_rows(plain, speculative)
    words = ["sweep", *set_up.options, "--batch", str(row.batch_max), "--candidates", str(count)]
    waits = [f"{name} {_waits(step)}" for name, step in (("plain", plain), ("speculative", speculative))]
    show.chart(
        charts.breakdown_chart(rows),
        name="breakdown",
        caption=f"Batch {row.batch_max}, length {set_up.seq_len}: {duration(float(plain.time_us))} plain, "
        f"{duration(float(speculative.time_us))} with {counted(answer, count)}. "
        f"Waiting for: {'; '.join(waits)}.",
        told=show.command([*words, "--format", "csv"]),
        rows=rows,
        alt="Stacked bars of the parts of a plain and a speculative step",
    )


def _waits(step: StepTime) -> str:
    """Shares of the step by what bounds it, those above 5 %."""
    whole = float(step.time_us)
    shares = {code.name.lower(): float(us) / whole for code, us in step.waits_us.items()}
    return ", ".join(f"{share:.0%} {name}" for name, share in shares.items() if share > 0.05)


def _launch(set_up: SetUp, answer: Recommendation, row: ScheduleRow, told: list[str]) -> None:
    st.subheader("Launch settings", anchor=False)
    if set_up.own_code:
        st.caption(
            "Choose an engine in the sidebar: what it can run is recommended, and its settings are here."
        )
    needed = notes.needs_checkpoint(set_up)
    draft_path = (
        inputs.text(
            st,
            "draft_path",
            "Draft checkpoint",
            "PATH_OF_THE_DRAFT",
            "Folder or id, to be named in the settings.",
        )
        if needed
        else ""
    )
    try:
        settings = answers.launch_settings(
            set_up, answer.question.batch_max, answer.question.objective, draft_path or None
        )
    except UsageError as error:  # what an engine cannot do is an answer here, and the rest of the page stands
        st.info(show.in_words(str(error)))
        return
    plan = settings.plan
    if plan is not None and row.candidates > 1 and plan.drafts_at(row.batch_max) != row.candidates - 1:
        drafts = plan.drafts_at(row.batch_max)
        st.markdown(
            f"The settings run **{drafts} drafts at batch {row.batch_max}, "
            f"{times(plan.grid.speedup(row.batch_max, drafts))}**, since the engine "
            f"{'switches at captured sizes only' if plan.dynamic else 'runs one number for every batch'}."
        )
    if set_up.own_code:
        with st.expander("The schedule with its trees, for code of your own"):
            st.code(settings.text, language="json", wrap_lines=True)
    else:
        language = "yaml" if set_up.export == "tensorrt-llm" else "sh"
        st.code(settings.text, language=language, wrap_lines=True)
    for note in settings.notes:
        if note:
            st.caption(f"{settings.engine} {settings.version}: {show.in_words(note)}")
    words = [*told, "--export", set_up.export, *(["--draft-path", draft_path] if draft_path else [])]
    show.hand_out("launch", [("txt", "text/plain", lambda: settings.text)], show.command(words))
