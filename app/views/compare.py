"""Which GPU?: the set-up that meets a target at the least cost, what nothing beats, and what was refused."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import answers
import bar
import compared
import downloads
import inputs
import link
import show
import streamlit as st
from charts.draw import lines_spec
from chosen import MORE, PageArguments, set_up_of
from inputs import Input

from medusa_sim.engines.runtime import load_runtime
from medusa_sim.errors import UsageError
from medusa_sim.gpus.prices import LARGEST_USD
from medusa_sim.gpus.prices import prices as offers
from medusa_sim.grid.quantity import BY_NAME
from medusa_sim.report.charts.setups import banded, left_out, setups_chart
from medusa_sim.report.compare.python import compare_values
from medusa_sim.report.compare.screen import (
    decision_table,
    frontier_table,
    frontier_title,
    refused_lines,
    warnings,
)
from medusa_sim.report.compare.sentences import (
    WORDS,
    line_text,
    measure_text,
    sentence,
    speed_texts,
    workload,
)
from medusa_sim.report.quantity_table import titles
from medusa_sim.report.words.basis import how_sure, rests_text
from medusa_sim.report.words.caveats import as_sentence
from medusa_sim.report.words.measured import measured_text
from medusa_sim.report.words.numbers import percent, significant
from medusa_sim.scenario.defaults import LOAD_OUTPUT_TOKENS, LOAD_PROMPT_TOKENS
from medusa_sim.setups.question import AUTO, COLUMN, FP8, GPUS, SURE, Measure, SetupChoices, SetupQuestion
from medusa_sim.setups.setup import ENGINES, NO_DRAFTER, name_of
from medusa_sim.units import format_text
from views.nearest import nearest

if TYPE_CHECKING:
    from medusa_sim.gpus.prices import Price
    from medusa_sim.setups.comparison import Comparison

_GPUS = ("h100-sxm", "h200-sxm", "b200", "b300", "a100-80gb-sxm", "l40s")
"""Those often rented: the first answer comes soon."""
_TARGET, _MOST = 50, 100_000
_LEAST_USD = 0.01
_PROMPT, _OUTPUT = int(LOAD_PROMPT_TOKENS), int(LOAD_OUTPUT_TOKENS)
_AXES = {
    "cost": "usd_per_million_tokens",
    "tokens/s a GPU": "tokens_per_s_per_gpu",
    "energy": "joule_per_token",
    "tokens/s a megawatt": "tokens_per_s_per_mw",
}
"""What the chart may show, and the column that has it."""
_CERTAINTIES = ("50%", f"{SURE:.0%}", "80%", "90%", "95%")
_SPEED = BY_NAME["tokens_per_s_per_user"].on_axis
_PHONE = titles("chosen", "set_up", "batch", "tokens_per_s_per_user", "usd_per_million_tokens")
_REDRAWN_S = 1.5
"""Between two pictures of what is known while GPUs are searched."""


def page(set_up: PageArguments) -> None:
    """The decision in three lines; the target and every GPU below it."""
    st.title("Which GPU?", anchor=False)
    note, asking, headline, choosing = (st.container() for _ in range(4))
    asked, choices, prices, places = _asked(set_up, asking, choosing)
    with headline:
        try:
            with show.progress("set-ups") as watch:
                partly = st.empty()
                answer = compared.set_ups_for(set_up, asked, choices, prices, watch, _drawn_in(partly))
                partly.empty()
        finally:  # where nothing can run, too
            st.caption(f"{_target(asked)} {_searched(choices)}")
        _answer(answer)
    for gpu, place in places.items():
        place.markdown(card_text(answer, gpu), unsafe_allow_html=True)
    _chart(
        answer,
        show.command(["compare", *compared.options(set_up, asked, choices, prices), "--format", "csv"]),
    )
    if answer.chosen is not None:
        nearest(set_up_of(_words(answer, answer.chosen)))
    _launch(answer, lambda: compared.launch_of(set_up, asked, choices, prices))
    st.subheader(frontier_title(answer), anchor=False)
    show.text_table(frontier_table(answer), phone=_PHONE)
    if answer.refused:
        with st.expander(f"Refused: {len(answer.refused)}"):
            st.markdown("\n".join(f"- {show.in_words(line)}" for line in refused_lines(answer)))
    with st.expander("What the others rest on"):
        st.markdown("\n".join(f"- {show.in_words(line)}" for line in warnings(answer)))
    with note:
        show.ignored_note()


def _drawn_in(place: Any) -> Callable[[Comparison], None]:
    """Draws what is known so far: the first GPU at once."""
    drawn = -_REDRAWN_S

    def draw(part: Comparison) -> None:
        nonlocal drawn
        if time.monotonic() - drawn >= _REDRAWN_S:
            place.vega_lite_chart(
                lines_spec(setups_chart(part, with_basis=False), 260),
                width="stretch",
                alt="The GPUs searched so far",
            )
            drawn = time.monotonic()

    return draw


def _asked(
    set_up: PageArguments, above: Any, below: Any
) -> tuple[SetupQuestion, SetupChoices, str, dict[str, Any]]:
    """Target and traffic, then what may be chosen; prices, and a place for what is said of each GPU.

    above, below: where the target and the rest are asked.
    """
    row = above.container(key="of_which")
    of_target = Input("target", "Tokens/s a user", "The slowest stream allowed.")
    target = inputs.number(row, of_target, 1, _MOST, _TARGET)
    meaning = "That a stream is so fast: the set-up's own interval is counted."
    sure = inputs.choice(row, Input("sure", "Certainty", meaning), _CERTAINTIES, f"{SURE:.0%}")
    meaning = "Shared out among copies, all of which are counted. Empty: what one copy carries."
    of_users = Input("users", "Requests at once", meaning)
    users = inputs.number(row, of_users, 1, _MOST, empty="one full copy")
    meaning = "Cost leaves out GPUs without a price; where none has one, it is tokens/s a GPU."
    measure = inputs.choice(row, Input("measure", "Save", meaning), tuple(COLUMN), "cost")
    prompt, output = set_up.request or (_PROMPT, _OUTPUT)
    with below.expander("What may be chosen"):
        of_gpus = Input("gpu_choices", "GPUs", "More take longer.")
        gpus = inputs.several(st, of_gpus, bar.offered_gpus(), _GPUS)
        left, middle, right, last = st.columns(4)
        sizes = tuple(map(str, GPUS))
        of_counts = Input("copies", "GPUs of a copy", "Of one copy of the model.")
        counts = inputs.several(left, of_counts, sizes, sizes)
        engine = next((name for name in ENGINES if set_up.engine.startswith(name)), ENGINES[0])
        engines = inputs.several(middle, Input("engines", "Engines", "Serving engines."), ENGINES, (engine,))
        dtypes = tuple(dict.fromkeys((answers.published_model(set_up).form, "fp8", "nvfp4")))
        of_weights = Input("weights", "Weights", "Other weights may answer worse.")
        weights = inputs.several(right, of_weights, dtypes, dtypes[:2], inputs.format_words)
        meaning = "As published, 8 bits for batches beyond what that holds; both: at every batch."
        of_caches = Input("caches", "KV cache", meaning)
        caches = inputs.several(last, of_caches, (AUTO, FP8), (AUTO,), _cache_words)
        st.caption("Memory and bandwidth: " + "; ".join(f"{gpu} {bar.card_text(gpu)}" for gpu in gpus) + ".")
    with below:
        prices, places = _prices(gpus)
    asked = SetupQuestion(
        tokens_per_s_per_user=target, prompt_tokens=prompt, output_tokens=output, users=users,
        measure=None if measure == "cost" and not prices else cast(Measure, measure),
        sure=float(sure.rstrip("%")) / 100.0,
    )  # fmt: skip
    choices = SetupChoices(
        gpus=gpus, counts=tuple(map(int, counts)), engines=engines, weight_dtypes=weights,
        kv_dtypes=None if caches == (AUTO,) else caches, drafters=(NO_DRAFTER, set_up.drafter),
    )  # fmt: skip
    return asked, choices, prices, places


def _cache_words(name: str) -> str:
    return "as published" if name == AUTO else inputs.format_words(name)


def _prices(gpus: Sequence[str]) -> tuple[str, dict[str, Any]]:
    """What an hour of each GPU costs, as `--price` takes it, and the place beside it.

    Set in from the lowest offer of each that is listed: one kind of provider for all. What is listed first,
    as commands take it, is one provider's for one GPU and another's for the next.
    """
    listed: dict[str, list[Price]] = {}
    for offer in sorted(offers(), key=lambda each: each.usd_per_gpu_hour):
        listed.setdefault(offer.gpu, []).append(offer)
    given: dict[str, float] = {}
    places: dict[str, Any] = {}
    st.subheader("Every GPU", anchor=False)
    for gpu in gpus:
        row = st.container(key=f"card_{gpu}")
        places[gpu] = row.empty()
        places[gpu].markdown(f"**{show.escaped(gpu)}**")
        known = listed.get(gpu, [])
        told = "; ".join(f"${each.usd_per_gpu_hour:g} {each.offer}, {each.date}" for each in known)
        lowest = known[0].usd_per_gpu_hour if known else None
        meaning = f"Dollars of a GPU-hour; yours in its place. Listed: {told or 'none'}.".replace("$", "\\$")
        of_price = Input(f"{link.USD}{gpu}", "\\$ an hour", meaning)
        usd = inputs.number(row, of_price, _LEAST_USD, LARGEST_USD, lowest)
        given |= {} if usd is None else {gpu: usd}
    st.caption(
        "Prices: the lowest offer listed of each GPU, all on demand; type yours, a reserved GPU's its "
        "reserved price."
    )
    return ",".join(f"{gpu}={usd:g}" for gpu, usd in given.items()), places


def _target(asked: SetupQuestion) -> str:
    """What is asked of each set-up, in a sentence."""
    saved = WORDS[asked.measure or "throughput"].aim
    return f"Asked: {saved} at {asked.tokens_per_s_per_user:g} {_SPEED} ({workload(asked)})."


def _searched(choices: SetupChoices) -> str:
    """What was looked at, in a sentence."""
    counts, dtypes = (list(map(str, each or ())) for each in (choices.counts, choices.weight_dtypes))
    gpus = choices.gpus or ()
    kinds = f"{len(gpus)} kinds" if len(gpus) > 1 else gpus[0]
    return (
        f"Searched: copies of {_either(counts)} GPU{'' if counts == ['1'] else 's'} of {kinds}, weights in "
        f"{_either([*map(format_text, dtypes)])}, under {_either(list(choices.engines or ()))}."
    )


def _either(names: Sequence[str]) -> str:
    *most, last = names
    return f"{', '.join(most)} and {last}" if most else last


def card_text(answer: Comparison, gpu: str) -> str:
    """The best of a GPU and what it rests on, or why it has none, as Markdown."""
    best = answer.best[answer.best.gpu == gpu].head(1).to_dict("records")
    name = f"**{show.escaped(gpu)}**"
    if best:
        row = best[0]
        star = " (the choice)" if row["chosen"] else ""
        _, low, high = speed_texts(row)
        text = show.in_words(f"{line_text(answer, row)} (80 %: {low} to {high})")
        return f"{name}{star}: {text}\\\n*{_rests(answer, row)}*"
    rows = answer.table[answer.table.gpu == gpu]
    if rows.empty:
        last = next((each for each in reversed(answer.refused) if f" x {gpu}," in each.setup), None)
        last = last or next((each for each in answer.refused if gpu in each.setup), None)
        why = "" if last is None else f"; {last.setup}: {last.reason}"
        return f"{name}: {show.in_words(f'nothing can run{why}')}"
    if rows[answer.column].isna().all():
        lacks = "price" if answer.measure == "cost" else "known power"
        return f"{name}: no {lacks}, so it is not chosen"
    fastest = rows.sort_values("tokens_per_s_per_user").to_dict("records")[-1]
    why = (
        f"no set-up keeps the limits; the fastest stream, "
        f"{speed_texts(fastest)[0]} tokens/s "
        f"({percent(fastest['sure'], 0)} sure of the target), is of {name_of(fastest)}"
    )
    return f"{name}: {show.in_words(why)}"


def _rests(answer: Comparison, row: Mapping[Any, Any]) -> str:
    """What a set-up rests on, in a few words."""
    return show.escaped(rests_text(answer.scenario(row), plain=row["drafter"] == NO_DRAFTER))


def _answer(answer: Comparison) -> None:
    chosen, plain = answer.chosen, answer.chosen_plain
    if chosen is None:
        st.error(show.in_words(sentence(answer)), icon=":material/do_not_disturb_on:")
        return
    gpus = name_of(chosen).partition(", ")[0]
    drafts = int(chosen["drafts"])
    drafting = "no drafts" if chosen["drafter"] == NO_DRAFTER else (
        f"{chosen['drafter']} with {drafts} draft{'s' if drafts > 1 else ''}"
    )  # fmt: skip
    number, low, high = speed_texts(chosen)
    speed = f"{number} {_SPEED}"
    st.success(
        f"**{show.in_words(name_of(chosen))}, {show.in_words(drafting)}: "
        f"{show.in_words(measure_text(answer, chosen))}, {speed}.**",
        icon=":material/memory:",
    )
    others = answer.runners_up[answer.runners_up.gpu != chosen["gpu"]].drop_duplicates("gpu")
    if near := "; ".join(f"{row['gpu']}, {measure_text(answer, row)}" for _, row in others.iterrows()):
        st.markdown(show.in_words(f"Intervals of these reach it: {near}."))
    decided = decision_table(answer)
    show.text_table(decided, phone=decided.headers[:3])

    def figure_text(row: Mapping[str, Any], column: str, form: str) -> str:
        return form.format(significant(float(row[column]), 3))

    def figure(label: str, column: str, form: str, meaning: str) -> show.Figure:
        beside = None if plain is None else f"{figure_text(plain, column, form)} without drafts"
        return show.Figure(label, figure_text(chosen, column, form), beside, meaning)

    hour = float(answer.scenario(chosen).usd_per_gpu_hour or math.nan) * int(chosen["gpus"])
    hours = [show.Figure("An hour", f"${significant(hour, 3)}", gpus, "All GPUs, at the prices below.")]
    show.figures(
        *(hours if math.isfinite(hour) else ()),
        *(
            figure(label, column, form, meaning)
            for label, column, form, meaning in (
                ("A million tokens", "usd_per_million_tokens", "${}", "Output tokens, at the prices below."),
                ("Tokens/s a user", "tokens_per_s_per_user", "{}", "Of one stream, at the batch chosen."),
                ("Tokens/s a GPU", "tokens_per_s_per_gpu", "{}", "Output tokens of all requests."),
                ("First token", "ttft_ms", "{} ms", "The prompt alone, without queueing."),
                ("Joules a token", "joule_per_token", "{}", "All GPUs together."),
            )
            if float(chosen[column]) == float(chosen[column])  # nan: no price, or no known power
        ),
        width=140,
    )
    scenario = answer.scenario(chosen)
    is_plain = chosen["drafter"] == NO_DRAFTER
    warnings = answer.warnings_of(answer.key(chosen))
    show.how_sure(how_sure(scenario, speed, f"{low} to {high}", plain=is_plain), *warnings)


def _chart(answer: Comparison, command: str) -> None:
    known = [name for name, column in _AXES.items() if answer.table[column].notna().any()]
    first = next((name for name in known if _AXES[name] == answer.column), known[0])
    what = inputs.one_of(st, Input("axis", "Against tokens/s a user"), tuple(known), first)
    show.chart(
        lines_spec(setups_chart(answer, _AXES[what]), 380),
        name="setups",
        caption=f"What nothing beats of each GPU: solid with drafts, dotted without; {banded(answer)}. "
        "Points: requests at once/drafts; dashed: the target; ringed: the answer."
        f"{left_out(answer, _AXES[what])} {show.in_words(as_sentence(measured_text(answer)))}",
        command=command,
        rows=lambda: answer.table,
        values=lambda: compare_values(answer),
        alt="Curves of the GPUs: worth against tokens per second of a user",
    )


def _launch(answer: Comparison, launched: Callable[[], str]) -> None:
    """The command that starts the chosen set-up, and a way to take it to the other pages."""
    row = answer.chosen
    if row is None:
        return
    st.subheader("Launch it", anchor=False)
    try:
        with st.spinner("Writing the command"):
            command = launched()
        show.code(command)
        downloads.hand_out("launch", [("sh", "text/x-shellscript", lambda: command)], shown=command)
    except UsageError as error:  # what an engine cannot be told is an answer here
        st.info(show.in_words(str(error)))
    taken = _words(answer, row)
    st.button("Use this set-up on the other pages", on_click=bar.take, args=(taken,), type="tertiary",
              icon=":material/input:", help="The bar above takes it.")  # fmt: skip


def _words(answer: Comparison, row: Mapping[Any, Any]) -> dict[str, Any]:
    """A row's set-up as parameters of the other pages."""
    given = answer.scenario(row).arguments
    words = {
        "gpu": row["gpu"], "model": str(answer.model.name), "runtime": load_runtime(row["engine"]).name,
        "tp": int(row["tp"]), "ep": bool(row["ep"] > 1),
        **{each.name: getattr(given, each.name) for each in MORE},
    }  # fmt: skip
    return words if row["drafter"] == NO_DRAFTER else {**words, "drafter": row["drafter"]}
