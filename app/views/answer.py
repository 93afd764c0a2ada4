"""Answer: whether speculation pays, with how many drafts, what it gains and costs, and why."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, cast, get_args

import answers
import downloads
import inputs
import kept_answers
import notes
import show
import streamlit as st
from charts.answer import batch_chart, tornado_chart
from charts.draw import bars_spec, lines_spec, map_spec
from chosen import PageArguments
from inputs import Input

from medusa_sim.errors import UsageError
from medusa_sim.grid.quantity import BY_NAME
from medusa_sim.grid.sweep import count_table
from medusa_sim.models.checkpoints import drafter_id
from medusa_sim.plan.schedule import gains_by_batch, scheduled_counts
from medusa_sim.report.charts.roofline import roofline_chart
from medusa_sim.report.charts.sweep import count_word, heat_map, speedup_chart, step_rows, two_steps
from medusa_sim.report.length_view import view_of
from medusa_sim.report.quantity_table import titles
from medusa_sim.report.recommend.screen import facts, schedule_table
from medusa_sim.report.recommend.sentences import sentence
from medusa_sim.report.screen import fact_sentences
from medusa_sim.report.words.caveats import as_sentence
from medusa_sim.report.words.numbers import counted, duration, percent, significant, times, with_prefix
from medusa_sim.scenario.defaults import FREE_WITHIN, SWITCHING_GAIN
from medusa_sim.scenario.question import Objective, Question
from views.nearest import nearest
from views.verdict import AS_GOOD, as_good, certainty, verdict_of

if TYPE_CHECKING:
    from medusa_sim.grid.request_latency import RequestLatency
    from medusa_sim.plan.recommendation import Recommendation
    from medusa_sim.plan.schedule_row import ScheduleRow
    from medusa_sim.step.pass_times import PassTimes

_COLUMNS = titles(
    "batch", "candidates", "drafts", "heads", "tokens_per_step", "speedup", "interval", "verify_step_us",
    "tokens_per_s_per_user", "plain_tokens_per_s_per_user", "tokens_per_s", "plain_tokens_per_s",
)  # fmt: skip
_PHONE = titles("batch", "candidates", "drafts", "speedup", "interval")
_SHOWN = (1, 4, 16, 64)
"""Batches that have a line, besides the one looked at."""
_MAP_BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_MAP_COUNTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 65, 96, 128)
_LOOKS = ("by count", "map", "operators", "roofline", "what would change it")
_OPERATOR_PHONE = ("operator", "speculative", "share")


def page(set_up: PageArguments) -> None:
    """The answer first, what it rests on below; what a batch changes is a part that runs alone."""
    if show.embedded():
        question = answers.every_batch(set_up)
        _at_a_batch(set_up, question, ["recommend", *set_up.options, *answers.options(question)])
        return
    st.title("Does speculation pay?", anchor=False)
    note, place, launch, below = (st.container() for _ in range(4))
    with below:
        st.subheader("Schedule by batch", anchor=False)
        question = _question(set_up)
    answer = answers.recommendation(set_up, question)
    words = ["recommend", *set_up.options, *answers.options(question)]
    with place:
        _at_a_batch(set_up, question, words)
    if answer.fits:
        with launch:
            _launch(set_up, answer, question, words)
        with below:
            _schedule(answer, words, set_up)
    with note:  # every input of the page has read its own by now
        show.ignored_note()


def _question(set_up: PageArguments) -> Question:
    first, second = st.columns(2)
    usual, meaning = (
        answers.every_batch(set_up),
        "Where nothing is typed, as many as memory holds without drafts.",
    )
    of_most = Input("batch_max", "Plan for requests at once, 1 to", meaning)
    most = inputs.number(first, of_most, 1, answers.MOST_AT_ONCE, empty=f"{usual.batch_max}")
    meaning = "latency: the best at every batch. throughput: the most tokens/s of any batch that fits."
    of_objective = Input("objective", "Objective", meaning)
    objective = inputs.choice(second, of_objective, get_args(Objective), Question.objective)
    return replace(usual, batch_max=most or usual.batch_max, objective=cast(Objective, objective))


@st.fragment
def _at_a_batch(set_up: PageArguments, question: Question, words: list[str]) -> None:
    """The answer at the batch looked at: moving it runs this part alone."""
    with show.errors():
        headline = st.container()  # the answer stands above its inputs, and is filled once they are known
        of_batch = Input("batch", "Requests at once (batch)", "Decoded together in one step.")
        batch = inputs.at_once(st, of_batch, question.batch_max)
        answer = answers.recommendation(set_up, question)
        row = answer.scheduled_row_at(batch, set_up.seq_len)
        whole = answer.request_at(batch, set_up.seq_len)
        with headline:
            verdict_of(set_up, answer, row)
            if row.fits_memory:
                _figures(answer, row, whole)
                _as_launched(set_up, question, row)
            show.how_sure(
                certainty(answer, row), *answers.warnings(set_up, question), answers.how_near(set_up)
            )
        if show.embedded():
            if row.fits_memory:
                _gains(answer, row, words)
            st.markdown(f"[medusa-sim: the whole answer]({show.address()})")
            return
        _share(set_up, answer, row, [*set_up.options, *answers.options(question)])
        if row.fits_memory:  # else nothing runs there: no curve, no step, no settings
            _gains(answer, row, words)
            nearest(set_up)
            _breakdown(answer, row, set_up)
            _detail(answer, row, set_up, words)


def _share(set_up: PageArguments, answer: Recommendation, row: ScheduleRow, options: list[str]) -> None:
    """The answer to keep, and to send as a link, a picture or a frame of another page."""

    def picture(suffix: str, *, dark: bool = False) -> bytes:
        from medusa_sim.report.card import card_figure
        from medusa_sim.report.figures.files import render

        return render(card_figure(answer, row.batch_max, dark=dark), suffix)

    command = show.command(["card", *options, "--at", str(row.batch_max), "-o", "card.png"])
    files: list[downloads.Download] = [
        ("png", "image/png", lambda: picture(".png")),
        ("svg", "image/svg+xml", lambda: picture(".svg")),
        ("dark.png", "image/png", lambda: picture(".png", dark=True)),
    ]
    with st.container(horizontal=True, gap="small", vertical_alignment="center"):
        st.button(
            "Keep this answer", on_click=kept_answers.keep, args=(kept_answers.this(),), type="tertiary",
            icon=":material/bookmark_add:", help="To compare it with another on the page Side by side.",
        )  # fmt: skip
        link = show.address()
        frame = f'<iframe src="{link}&embed=true" width="100%" height="900"></iframe>'
        downloads.hand_out(downloads.SHARE, files, command, f"{link}\n\n{frame}", "Share")


def _figures(answer: Recommendation, row: ScheduleRow, request: RequestLatency | None) -> None:
    plain, loses = row.candidates == 1, answer.break_even_batch
    full = f"memory is full at {row.max_batch_with}"
    usd, plain_usd = row.usd_per_million_tokens, row.plain_usd_per_million_tokens
    shown = [
        show.Figure(
            "Drafts" if answer.chains else "Candidates",
            "off" if plain else str(row.drafts if answer.chains else row.candidates),
            None if plain else as_good(answer, row) if answer.chains else notes.drafts(row),
            f"Draft tokens in a row: num_speculative_tokens of engines. {AS_GOOD}"
            if answer.chains
            else "Tokens that one verification step processes for each sequence, the root included.",
        ),
        show.Figure(
            "Speedup",
            times(row.speedup) if row.fits_memory else "-",
            None if plain else f"80 %: {row.speedup_low:.2f} to {row.speedup_high:.2f}",
            "Tokens/s over decoding without drafts at the same batch and length, with an 80 % interval given "
            "this acceptance."
            + ("" if request is None or plain else f" Of the step alone: {times(row.step_speedup)}."),
        ),
        None
        if request is None
        else show.Figure(
            "End to end",
            times(request.request_speedup),
            f"{duration(request.total_us)}, plain {duration(request.plain_total_us)}",
            "A whole request: reading the prompt and writing the output, at this batch.",
        ),
        show.Figure(
            "Loses from",
            "-" if not answer.enable else "never" if loses is None else str(loses),
            None if not answer.enable else full if loses is None else "requests at once",
            "The fewest requests at once from which no number of drafts pays any more, memory apart.",
        ),
        None
        if usd is None or plain_usd is None
        else show.Figure(
            "A million tokens",
            f"${significant(usd, 3)}",
            f"${significant(plain_usd, 3)} without drafts",
            f"At {answer.scenario.price.text() if answer.scenario.price else ''}, so many requests always at "
            "once.",
        ),
        show.Figure(
            "Free drafts" if answer.chains else "Free candidates",
            str(row.free_candidates - answer.chains),
            None,
            f"Every number up to it costs at most {percent(FREE_WITHIN - 1.0, 0)} more than a plain step, "
            "drafting included.",
        ),
        show.Figure(
            "Most at once",
            str(row.max_batch_with),
            f"{row.max_batch_without} without drafts",
            "Requests that fit in memory at this length; those looked at need "
            f"{with_prefix(row.memory_bytes, 'B')}.",
        ),
    ]
    show.figures(*(figure for figure in shown if figure is not None), width=116)


def _schedule(answer: Recommendation, words: list[str], set_up: PageArguments) -> None:
    show.text_table(schedule_table(answer), _COLUMNS, _PHONE)
    st.caption(
        "Step and tokens/s: at a row's largest batch. A schedule shares one count between neighbouring "
        f"batches where that costs less than {percent(SWITCHING_GAIN, 0)}."
    )
    command = show.command(words)
    downloads.hand_out("schedule", notes.schedule_files(set_up, answer, command), command)
    with st.expander("What follows from it"):
        lines = (sentence(answer), *map(as_sentence, fact_sentences(facts(answer))))
        st.markdown("\n".join(f"- {show.in_words(line)}" for line in lines))


def _gains(answer: Recommendation, row: ScheduleRow, words: list[str]) -> None:
    rows = gains_by_batch(answer.rows_at(row.seq_len))
    show.chart(
        batch_chart(rows, row.batch_max, chains=answer.chains),
        name="batches",
        caption=f"Band: 80 %. Below: {count_word(answer.chains)} by batch. Ringed: the slider's. "
        + notes.accuracy(answer.scenario),
        command=show.command([*words, "--by-count", "--format", "csv"]),
        rows=lambda: rows,
        alt="Speedup against the batch with its interval",
    )


def _detail(answer: Recommendation, row: ScheduleRow, set_up: PageArguments, words: list[str]) -> None:
    """One of the closer looks: only what is looked at is computed and sent."""
    look = inputs.one_of(st, Input("look", "A closer look"), _LOOKS, _LOOKS[0])
    drawn = {"operators": _operators, "roofline": _roofline, "what would change it": _tornado}.get(look)
    if drawn is not None:
        drawn(answer, row, set_up)
    else:
        _counts(answer, row, words, is_map=look == "map")


def _counts(answer: Recommendation, row: ScheduleRow, words: list[str], *, is_map: bool) -> None:
    recommended = scheduled_counts(answer.rows_at(row.seq_len))
    word, command = count_word(answer.chains), show.command([*words, "--by-count", "--format", "csv"])
    named = _MAP_BATCHES if is_map else _SHOWN
    batches = sorted({row.batch_max if not is_map else max(recommended), *named} & recommended.keys())
    shown = {batch: recommended[batch] for batch in batches}
    view = view_of(answer.cells.by_count, row.seq_len, [*_MAP_COUNTS, *shown.values()], shown)
    if is_map:
        show.chart(
            map_spec(heat_map(view, "", chains=answer.chains)),
            name="map",
            caption="Speedup over plain decoding at the same batch. Framed: what is recommended. Red line: "
            "beyond it speculation loses. A dash: no room in memory.",
            command=command,
            rows=lambda: count_table(answer.cells.by_count),
            alt=f"A map of speedups over batch and number of {word}",
        )
        return
    show.chart(
        lines_spec(speedup_chart(view, "", chains=answer.chains), 360),
        name="speedup",
        caption="Rings: what is recommended. Ticks: the step jumps after this count. Bands: 80 %, "
        "of the first and the last batch.",
        command=command,
        rows=lambda: count_table(answer.cells.by_count),
        alt=f"Lines of speedup against the number of {word}, one for each batch",
    )


def _operators(answer: Recommendation, row: ScheduleRow, set_up: PageArguments) -> None:
    """Every operator of both steps by name."""
    count, operators = answers.operators(set_up, answer, row.batch_max)
    whole = sum(each["speculative_us"] for each in operators)
    show.table(
        [
            {
                "operator": each["op"],
                "launches": each["launches"],
                "plain": duration(each["plain_us"]) if each["plain_us"] else "-",
                "speculative": duration(each["speculative_us"]) if each["speculative_us"] else "-",
                "share": percent(each["speculative_us"] / whole),
                BY_NAME["bound"].title: each["bound"],
                "source": each["source"] or "-",
            }
            for each in operators
        ],
        _OPERATOR_PHONE,
    )
    st.caption(f"Batch {row.batch_max}, all launches of a step together; {counted(count, answer.chains)}.")
    downloads.hand_out("operators", [("csv", "text/csv", lambda: downloads.csv_bytes(operators))])


def _roofline(answer: Recommendation, row: ScheduleRow, set_up: PageArguments) -> None:
    batch, count = row.batch_max, row.speculative_candidates if row.candidates == 1 else row.candidates
    points, model = answers.roofline(set_up, batch, count), answer.scenario.model
    words = [*set_up.kernel_options, "--batch", str(batch), "--candidates", str(count)]
    show.chart(
        lines_spec(roofline_chart(points, answer.scenario.gpu, model.dtype), 380),
        name="roofline",
        caption=f"Line: what the datasheet allows ({model.dtype}, dense). Points: predicted, one layer at "
        f"batch {batch}; the gap below the roof is what tiles, waves and launches of real kernels cost.",
        command=show.command(["roofline", "--gpu", set_up.gpu, *words, "--format", "csv"]),
        rows=lambda: points,
        alt="Operators by operational intensity and speed under the roof of the GPU",
    )


def _tornado(answer: Recommendation, row: ScheduleRow, set_up: PageArguments) -> None:
    """What the answer rests on: one thing changed, all else as it is."""
    with show.progress("searches") as advance:
        changes = answers.changes(set_up, row.batch_max, answer.question.request, advance)
    show.chart(
        tornado_chart(changes, row.speedup),
        name="tornado",
        caption=f"Speedup at batch {row.batch_max} with one thing changed and the drafts chosen again; "
        f"line: {times(row.speedup)} as it is; dashed, where in sight: below 1.0x speculation loses.",
        rows=lambda: changes,
        alt="Bars of the speedup with one input changed at a time",
    )


def _breakdown(answer: Recommendation, row: ScheduleRow, set_up: PageArguments) -> None:
    st.subheader("Where the time of a step goes", anchor=False)
    both = answer.steps_at(row.batch_max, set_up.seq_len, scheduled=True)
    plain, speculative, count = both.plain, both.speculative, both.candidates
    steps = [("plain", plain), ("speculative", speculative)]
    words = ["sweep", *set_up.options, "--batch", str(row.batch_max), "--candidates", str(count)]
    waits = [f"{name} {_waits(step)}" for name, step in steps]
    show.chart(
        bars_spec(two_steps(steps)),
        name="breakdown",
        caption=f"Batch {row.batch_max}, length {set_up.seq_len:,}: {duration(float(plain.time_us))} plain, "
        f"{duration(float(speculative.time_us))} with {counted(count, answer.chains)}. "
        f"Waiting for: {'; '.join(waits)}.",
        command=show.command([*words, "--format", "csv"]),
        rows=lambda: step_rows(steps),
        alt="Stacked bars of the parts of a plain and a speculative step",
    )


def _waits(step: PassTimes) -> str:
    """Shares of the step by what bounds it, those above 5 %."""
    whole = float(step.time_us)
    shares = {code.name.lower(): float(us) / whole for code, us in step.waits_us.items()}
    shares["latency"] = float(step.device_us) / whole - sum(shares.values())
    return ", ".join(f"{percent(share, 0)} {name}" for name, share in shares.items() if share > 0.05)


def _as_launched(set_up: PageArguments, question: Question, row: ScheduleRow) -> None:
    """Where the engine's settings cannot say what is recommended at this batch."""
    try:
        plan = answers.launch_plan(set_up, question)
    except UsageError:  # said where the settings would stand
        return
    if plan is not None and row.candidates > 1 and plan.drafts_at(row.batch_max) != row.candidates - 1:
        drafts = plan.drafts_at(row.batch_max)
        st.markdown(
            f"The settings run **{drafts} drafts at batch {row.batch_max}, "
            f"{times(plan.grid.speedup(row.batch_max, drafts))}**: "
            f"{'they switch at captured sizes only' if plan.dynamic else 'one number serves every batch'}."
        )


def _launch(
    set_up: PageArguments, answer: Recommendation, question: Question, command_words: list[str]
) -> None:
    st.subheader("Launch settings", anchor=False)
    if set_up.without_engine:
        st.caption("Choose an engine above: what it can run is recommended, and its settings are here.")
    draft_path = ""
    if notes.needs_checkpoint(set_up):
        known = drafter_id(set_up.drafter, answer.scenario.model.name, set_up.export) or "PATH_OF_THE_DRAFT"
        of_path = Input("draft_path", "Draft checkpoint", "Folder or id, to be named in the settings.")
        draft_path = inputs.text(st, of_path, empty=known) or known
    try:
        settings = answers.launch_settings(set_up, question, draft_path or None)
    except UsageError as error:  # what an engine cannot do is an answer here, and the rest of the page stands
        st.info(show.in_words(str(error)))
        return
    folded = (
        st.expander("The schedule with its trees, for code of your own")
        if set_up.without_engine
        else nullcontext()
    )
    with folded:
        show.code(settings.text)
    for note in settings.notes:
        st.caption(show.in_words(as_sentence(note)))
    words = [*command_words, "--export", set_up.export, *(["--draft-path", draft_path] if draft_path else [])]
    files: list[downloads.Download] = [("txt", "text/plain", lambda: settings.text)]
    downloads.hand_out("launch", files, show.command(words), settings.text)
