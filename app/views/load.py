"""Under load: what a policy of speculation is worth where requests arrive at random."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import answers
import inputs
import show
import streamlit as st
import under_load
from charts.draw import lines_spec
from chosen import PageArguments
from inputs import Input

from medusa_sim.load.answer import LoadAnswer
from medusa_sim.load.arguments import LOAD, MOST_IN_STEP, NO_DRAFTS, LoadArguments
from medusa_sim.load.carried_rates import CarriedRates
from medusa_sim.load.quantities import AGAINST_RATE, OVER_TIME
from medusa_sim.report.charts.load import rate_chart, time_chart
from medusa_sim.report.load.screen import carried_table, context_text, only_chains, runs_text
from medusa_sim.report.load.sentences import answer_text, policy_text
from medusa_sim.report.load.values import load_arrow, timeline_arrow
from medusa_sim.report.load.warnings import warnings
from medusa_sim.report.quantity_table import titles
from medusa_sim.report.words.basis import how_sure
from medusa_sim.report.words.numbers import capitalised, percent, significant
from medusa_sim.scenario.arguments import words_of
from medusa_sim.scenario.defaults import LOAD_OUTPUT_TOKENS, LOAD_PROMPT_TOKENS
from medusa_sim.units import KILO
from views.nearest import nearest

_FIXED = "fixed"
_TPOT_MS, _MOST_MS = 50, 60_000
_PROMPT, _OUTPUT = int(LOAD_PROMPT_TOKENS), int(LOAD_OUTPUT_TOKENS)
_MOST_DRAFTS = 16
_COLUMNS = titles("policy", "saturated_per_s", "tokens_per_s", "largest_per_s", "loses", "off_from")
_PHONE = titles("policy", "saturated_per_s", "largest_per_s")


def page(set_up: PageArguments) -> None:
    """Requests, limits and a policy in; rates that are carried, latencies and one run over time out."""
    st.title("Under load", anchor=False)
    headline = st.container()  # the answer stands above its inputs
    asked = _asked(set_up, answers.drafts_at(set_up, 1))
    show.ignored_note()
    with headline:
        with show.progress("requests") as watch:
            answer = under_load.load(set_up, asked, watch)
            whole = under_load.beyond_full(set_up, asked, watch)
        _answer(set_up, answer)
        if chains_note := only_chains(answer.test):
            st.caption(f"{chains_note}.")
    command = show.command(["load", *set_up.load_options, *words_of(asked.changed, LOAD)])
    rows, rates = load_arrow(whole), dict.fromkeys(f"{point.arrivals_per_s:g}" for point in whole.points)
    what = inputs.choice(st, Input("shows", "Show", "Against the rate."), AGAINST_RATE, "tpot_at_share_s")
    show.chart(
        lines_spec(rate_chart(whole, what)),
        name="load",
        caption=f"The same requests for every policy, {runs_text(answer.test)}. Grey: the limit; "
        "thin: the median; dashed: what each carries; dotted: full, beyond which queues grow without end.",
        command=f"{command} --rate {','.join(rates)} --format csv",
        rows=lambda: rows,
        alt="Lines of the policies over the rate of requests",
    )
    last_per_s = significant(answer.last[0].arrivals_per_s, 3)
    over = inputs.choice(st, Input("over", "Over time", "At the last rate."), OVER_TIME, "requests")
    show.chart(
        lines_spec(time_chart(answer.last, over), 240),
        name="timeline",
        caption=f"The run at {last_per_s} requests/s, until all are served.",
        command=f"{command} --timeline --format csv",
        rows=lambda: timeline_arrow(LoadAnswer(test=answer.test, points=answer.last, carried=())),
        alt="Lines of the policies over time",
    )
    carried = carried_table(answer)
    called = tuple(
        (policy_text(each.policy), *row[1:]) for each, row in zip(answer.carried, carried.rows, strict=True)
    )
    show.text_table(replace(carried, rows=called), _COLUMNS, _PHONE)
    nearest(set_up)


def _asked(set_up: PageArguments, recommended: int) -> LoadArguments:
    """What the page asks besides the set-up and its request; recommended: drafts where none are typed."""
    prompt, output = set_up.request or (_PROMPT, _OUTPUT)
    row = st.container(key="of_load")
    of_tpot = Input("tpot", "Limit, ms a token", "Longest mean time per token of a request.")
    tpot = inputs.number(row, of_tpot, 1, _MOST_MS, _TPOT_MS)
    of_ttft = Input("ttft", "Limit, ms to first token", "Longest wait for it.")
    ttft = inputs.number(row, of_ttft, 1, _MOST_MS)
    of_policy = Input("policy", "Policy", "What chooses the drafts of a step.")
    policy = inputs.choice(row, of_policy, tuple(inputs.WORDS["policy"]), _FIXED)
    drafts = recommended
    if policy == _FIXED:
        meaning = f"In every step; where none are typed, {recommended}, as recommended at batch 1."
        of_drafts = Input("drafts", "Drafts", meaning)
        drafts = inputs.number(row, of_drafts, 1, _MOST_DRAFTS, empty=f"{recommended}") or recommended
    of_seqs = Input("seqs", "Requests in a step", "At most.")
    most = inputs.number(row, of_seqs, 1, MOST_IN_STEP, empty="engine's limit")
    of_bursts = Input("bursts", "Bursts", "1: Poisson; larger: in bursts (burstiness 1 / that).")
    bursts = inputs.step_of(row, of_bursts, (1, 2, 4, 8), 1)
    return LoadArguments(
        policies=(NO_DRAFTS, str(drafts) if policy == _FIXED else policy), prompt_tokens=float(prompt),
        output_tokens=float(output), tpot_ms=float(tpot), ttft_ms=None if ttft is None else float(ttft),
        max_num_seqs=most, burstiness=1.0 / bursts,
    )  # fmt: skip


def _answer(set_up: PageArguments, answer: LoadAnswer) -> None:
    told = f"**{set_up.title}:** {answer_text(answer)}"
    plain, drafting = answer.carried[0], answer.carried[-1]
    if (drafting.largest_per_s or 0.0) > (plain.largest_per_s or 0.0):
        st.success(told, icon=":material/speed:")
    elif plain.largest_per_s:  # no more is carried, whatever else is gained
        st.info(told, icon=":material/speed:")
    else:
        st.error(told, icon=":material/do_not_disturb_on:")
    last = {point.policy: point.mean for point in answer.last}
    rate = f"at {significant(answer.last[0].arrivals_per_s, 3)} requests/s"

    def both(
        label: str, read: Callable[[CarriedRates], float | None], unit: str, meaning: str
    ) -> show.Figure:
        with_drafts, without = (f"{significant(read(each) or 0.0, 3)}{unit}" for each in (drafting, plain))
        return show.Figure(label, with_drafts, f"{without} without drafts", meaning)

    off = "never" if drafting.off_from is None else f"{drafting.off_from}"
    full = "Requests a second with the server always full; above it queues grow without end."
    fewer = "From there every step with drafts emits fewer tokens a second than a plain one."
    within = f"Requests a second of which {percent(answer.test.slos.share, 0)} keep the limits."
    mean, median = f"Mean of the requests, {rate}.", f"Median of the requests, {rate}."
    show.figures(
        both("Carried within the limits", lambda each: each.largest_per_s, "/s", within),
        both("Always full", lambda each: each.saturated_per_s, "/s", full),
        both("Time per token", lambda each: KILO * last[each.policy]["tpot_mean_s"], " ms", mean),
        both("Time to first token", lambda each: KILO * last[each.policy]["ttft_p50_s"], " ms", median),
        show.Figure("Switch off from", off, None if off == "never" else "requests in flight", fewer),
        width=165,
    )
    for line in context_text(answer):
        st.markdown(f"{capitalised(line)}.")
    show.how_sure(how_sure(answer.test.scenario, ""), *warnings(answer))
