"""The report of a load test: the answer, what each policy carries, facts, plots, sources."""

from __future__ import annotations

import math
from functools import partial

from medusa_sim.load.answer import LoadAnswer
from medusa_sim.load.quantities import OVER_TIME
from medusa_sim.report.blocks import Block, Folded, Heading, Picture
from medusa_sim.report.charts.load import rate_chart, time_chart
from medusa_sim.report.figures.draw import lines_figure
from medusa_sim.report.load.screen import load_screen
from medusa_sim.report.load.values import load_arrow
from medusa_sim.report.load.words import policy_text
from medusa_sim.report.screen_blocks import answer_page
from medusa_sim.report.sources import closing
from medusa_sim.report.table import TextTable
from medusa_sim.report.words.basis import how_sure
from medusa_sim.report.words.numbers import significant
from medusa_sim.report.words.scenario import model_name

_TRUST = (
    "Steps are those of `sweep` and `recommend` for the same scenario, with their errors "
    "(docs/validation-engines.md has them, those under load too).",
    "Drafts are accepted by position with the profile's rates; requests differ as far as the profile says.",
    "Routing between servers and priorities are not simulated; a cancelled request (--cancelled) takes the "
    "server's time until its client goes away, and counts in no latency and no goodput.",
)


def load_blocks(answer: LoadAnswer, command: str) -> list[Block]:
    """Every block of the report, in order."""
    scenario, plots = answer.test.scenario, _plots(answer)
    first = next(block for block in plots if isinstance(block, Picture))
    metrics = TextTable.rounded(load_arrow(answer).to_pydict())
    every = Folded("Every metric of every policy and rate", metrics)
    *sources, made = closing([scenario], _TRUST, command)
    return answer_page(
        _title(answer),
        load_screen(answer),
        numbers=_cards(answer),
        picture=first,
        sure=how_sure(scenario, ""),
        more=(*(block for block in plots if block is not first), every, *sources),
        foot=(made,),
    )


def _title(answer: LoadAnswer) -> str:
    scenario = answer.test.scenario
    return f"{model_name(scenario)} on {scenario.gpus_text} under load"


def _cards(answer: LoadAnswer) -> tuple[tuple[str, str, str], ...]:
    """Rate that each policy carries."""
    cards = []
    for rates in answer.carried:
        if rates.largest_per_s is None:
            carried, remark = rates.saturated_per_s, "with the server always full"
        else:
            carried, remark = rates.largest_per_s, f"saturates at {significant(rates.saturated_per_s, 3)}"
        cards.append((policy_text(rates.policy), f"{significant(carried, 3)} requests/s", remark))
    return tuple(cards)


def _plots(answer: LoadAnswer) -> list[Block]:
    title, points = _title(answer), answer.points
    blocks: list[Block] = []
    if all(math.isfinite(point.arrivals_per_s) for point in points) and len(points) > len(answer.last):
        blocks += [
            Heading("Latency against rate"),
            Picture(
                partial(
                    lines_figure,
                    rate_chart(answer, "ttft_at_share_s", title),
                    rate_chart(answer, "tpot_at_share_s"),
                    columns=2,
                ),
                "latency",
                "The share of the requests that must keep the limits is below the line, half of them below "
                "the thin one; grey: the limits; dashed: what is carried within them; dotted: full.",
            ),
        ]
        if answer.test.slos.given:
            blocks += [
                Heading("Goodput against rate"),
                Picture(
                    partial(lines_figure, rate_chart(answer, "goodput_per_s", title)),
                    "goodput",
                    "Requests a second that keep every limit; bands: 95 % intervals over the seeds.",
                ),
            ]
    last = answer.last
    rate = last[0].arrivals_per_s
    at = f" at {significant(rate, 3)} requests/s" if math.isfinite(rate) else ""
    blocks += [
        Heading(f"Over time{at}"),
        Picture(
            partial(
                lines_figure,
                *(time_chart(last, field, "" if i else f"{title}{at}") for i, field in enumerate(OVER_TIME)),
                height=7.4,
            ),
            "timeline",
            "The first seed's run: requests that decode and that wait, the KV cache, tokens a second.",
        ),
    ]
    return blocks
