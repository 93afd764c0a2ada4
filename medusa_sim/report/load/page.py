"""The report of a load test: the answer, what each policy carries, facts, plots, sources."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial

from medusa_sim.load.answer import LoadAnswer
from medusa_sim.load.quantities import OVER_TIME
from medusa_sim.report.blocks import Block, Folded, Heading, Picture
from medusa_sim.report.charts.load import rate_chart, time_chart
from medusa_sim.report.figures.draw import lines_figure
from medusa_sim.report.load.screen import load_screen
from medusa_sim.report.load.sentences import at_rate
from medusa_sim.report.load.values import load_arrow
from medusa_sim.report.screen_blocks import answer_page
from medusa_sim.report.sources import closing
from medusa_sim.report.table import TextTable
from medusa_sim.report.words.basis import how_sure
from medusa_sim.report.words.scenario import model_name

_TRUST = (
    "Steps are those of `sweep` and `recommend` for the same scenario, with their errors "
    "(docs/validation-engines.md has them, those under load too).",
    "Drafts are accepted by position with the profile's rates; requests differ as far as the profile says.",
    "Routing between servers and priorities are not simulated; a cancelled request (--cancelled) takes the "
    "server's time until its client goes away, and counts in no latency and no goodput.",
)
_HEADINGS = {"goodput": "Goodput against rate", "timeline": "Over time"}
"""Of plots below the first page, by their names."""


def load_blocks(answer: LoadAnswer, command: str) -> list[Block]:
    """Every block of the report, in order."""
    scenario = answer.test.scenario
    title = f"{model_name(scenario)} on {scenario.gpus_text} under load"
    first, *others = _plots(answer, title)
    return answer_page(
        title,
        load_screen(answer),
        picture=first,
        sure=how_sure(scenario, ""),
        more=(
            *(block for picture in others for block in (Heading(_HEADINGS[picture.name]), picture)),
            Folded(
                "Every metric of every policy and rate", TextTable.rounded(load_arrow(answer).to_pydict())
            ),
        ),
        end=closing([scenario], _TRUST, command),
    )


def _plots(answer: LoadAnswer, title: str) -> Iterator[Picture]:
    """Metrics against the rate, where there are several, then the first run over time."""
    points, last = answer.points, answer.last
    if all(math.isfinite(point.arrivals_per_s) for point in points) and len(points) > len(last):
        latencies = rate_chart(answer, "ttft_at_share_s", title), rate_chart(answer, "tpot_at_share_s")
        yield Picture(
            partial(lines_figure, *latencies, columns=2),
            "latency",
            "The share of the requests that must keep the limits is below the line, half of them below "
            "the thin one; grey: the limits; dashed: what is carried within them; dotted: full.",
        )
        if answer.test.slos.given:
            yield Picture(
                partial(lines_figure, rate_chart(answer, "goodput_per_s", title)),
                "goodput",
                "Requests a second that keep every limit; bands: 95 % intervals over the seeds.",
            )
    first, *others = OVER_TIME
    over_time = [
        time_chart(last, first, f"{title}{at_rate(last[0])}"),
        *(time_chart(last, name) for name in others),
    ]
    yield Picture(
        partial(lines_figure, *over_time, height=7.4),
        "timeline",
        "The first seed's run: requests that decode and that wait, the KV cache, tokens a second.",
    )
