"""The chart of set-ups: one description, drawn alike in reports and in the app."""

from __future__ import annotations

import itertools
import json

import pytest

import medusa_sim as ms
from medusa_sim.errors import UsageError
from medusa_sim.report.compare_chart import CARDS, Y_TITLES, look_of
from medusa_sim.report.compare_report import compare_blocks
from medusa_sim.report.document import Picture, html_page
from medusa_sim.report.figures.draw import compare_figure


@pytest.fixture(scope="module")
def answer() -> ms.Compared:
    return ms.compare(
        "llama-3.1-8b", gpus=("h100-sxm", "l40s"), counts=1, engines="vllm", drafters=("none", "eagle3"),
        weight_dtypes=("bf16", "fp8"), batches=(1, 4, 16, 64), tokens_per_s_per_user=50,
    )  # fmt: skip


@pytest.mark.parametrize("column", Y_TITLES)
def test_curves_fall_apart_from_nothing(answer: ms.Compared, column: str) -> None:
    chart = answer.chart(column)
    assert [(curve.gpu, curve.speculative) for curve in chart.curves] == [
        ("h100-sxm", False), ("h100-sxm", True), ("l40s", False), ("l40s", True),
    ]  # fmt: skip
    worse = 1 if column in ("usd_per_million_tokens", "joule_per_token") else -1
    for curve in chart.curves:
        for slow, fast in itertools.pairwise(curve.points):
            assert slow.x < fast.x
            assert worse * slow.y < worse * fast.y
        for point, low, high in zip(curve.points, curve.low, curve.high, strict=True):
            assert low[0] < point.x < high[0]
            assert min(low[1], high[1]) < point.y < max(low[1], high[1])
            drafts = f"/{point.row['drafts']}" if curve.speculative else ""
            assert point.label == f"{point.row['batch']}{drafts}"
    assert chart.target == 50
    assert chart.chosen is not None
    assert chart.chosen.x == answer.chosen["tokens_per_s_per_user"]  # type: ignore[index]


def test_matplotlib_draws_the_description(answer: ms.Compared) -> None:
    chart = answer.chart()
    axis = compare_figure(chart).axes[0]
    lines = {line.get_label(): line for line in axis.lines}
    for curve in chart.curves:
        drawn = lines[curve.name]
        assert list(drawn.get_xdata()) == [point.x for point in curve.points]
        assert drawn.get_linestyle() == ("-" if curve.speculative else ":")
        assert drawn.get_color() == look_of(curve.gpu)[0]


def test_a_card_keeps_its_colour_and_neighbours_differ() -> None:
    looks = [look_of(gpu) for gpu in CARDS]
    assert len(set(looks)) == len(looks)
    assert len({colour for colour, _ in looks[:8]}) == 8
    assert look_of("mine") == look_of("mine")


def test_another_axis_is_one_error(answer: ms.Compared) -> None:
    with pytest.raises(UsageError, match="vertical axis"):
        answer.chart("watts")


def test_a_page_has_the_answer_first(answer: ms.Compared) -> None:
    blocks = compare_blocks(answer.comparison, "medusa-sim compare")
    html = html_page("t", blocks)
    assert html.index("without speculation") < html.index("<svg")
    assert sum(isinstance(block, Picture) for block in blocks) == len(Y_TITLES)
    assert answer.sentence.split(",")[0] in html
    assert "<svg" in answer._repr_html_()
    json.dumps(answer.to_dict(), allow_nan=False)
