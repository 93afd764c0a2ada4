"""Colours and text of charts and tables: told apart, read on both themes."""

import re
from html import unescape
from typing import Any

import answers
import downloads
import numpy as np
import pytest
import show
from charts import style as charts_style
from charts.answer import batch_chart
from charts.draw import lines_spec, map_spec
from charts.style import TEXT
from pages_read import (
    APP,
    Opened,
    set_up,
    table_of,
    unfolded,
)
from pages_read import charts as drawn
from views.evidence import EVERY_KERNEL

from medusa_sim.report.charts.chart import Axis, LineChart, Series, line_series, map_colour
from medusa_sim.report.charts.sweep import heat_map
from medusa_sim.report.length_view import view_of
from medusa_sim.report.palette import LINES, PARTS, SHADES, contrast, ink_on
from medusa_sim.scenario.question import Question
from medusa_sim.step.launch import PARTS as OF_A_STEP


def test_lines_are_told_apart_without_colour() -> None:
    """By dashes, and by a marker where dashes repeat: in the chart, and in one legend."""
    x = np.arange(1, 41)
    lines = [line_series(f"line {place}", place, x, x * 1.0) for place in range(2 * len(LINES))]
    assert len({(each.line, each.marker) for each in lines}) == len(lines)
    assert [each.every for each in lines] == [1] * len(LINES) + [5] * len(LINES)
    rows = [{"told": 1, "more": 2}] * x.size
    told = Series(name="told", x=x, y=x * 1.0, line="-", marker="o", rows=rows)
    axis = Axis(title="x")
    spec = lines_spec(LineChart(title="", x=axis, y=axis, series=[*lines, told], tips=[("told", "told", "")]))
    legends = [
        channel["legend"]
        for layer in spec["layer"]
        for channel in layer["encoding"].values()
        if isinstance(channel, dict) and channel.get("legend")
    ]
    assert len(legends) == 1
    assert legends[0]["values"] == [each.name for each in (*lines, told)]
    symbols = spec["layer"][0]["encoding"]["shape"]["scale"]["range"]
    assert len(set(symbols[: len(LINES)])) == 1, "lines alone"
    assert len(set(symbols[len(LINES) - 1 : -1])) == len(LINES) + 1
    points = [value for layer in spec["layer"] for value in layer["data"]["values"]]
    assert any("told" in value for value in points)
    assert not any("more" in value for value in points), "what no tooltip tells is not sent"


def test_many_counts_are_shaded_by_how_many() -> None:
    rows = [
        {"batch": batch, "candidates": 66 - 8 * batch, "drafts": 3, "fits_memory": True, "speedup": 2.0,
         "speedup_low": 1.9, "speedup_high": 2.1, "no_room_to_draft": False}
        for batch in range(1, 9)
    ]  # fmt: skip

    def shade(count: int) -> dict[str, Any]:
        spec = batch_chart(rows[:count], 1, chains=False)
        rule = next(layer for layer in spec["layer"] if layer["mark"].get("strokeWidth") == 7)
        found: dict[str, Any] = rule["encoding"]["color"]
        return found

    assert shade(4)["type"] == "nominal"
    assert shade(8)["type"] == "quantitative"
    assert shade(8)["scale"]["domain"] == [2, 58]


LIGHT, DARK = "#ffffff", "#171614"


def test_a_part_has_one_colour_of_its_own() -> None:
    assert set(OF_A_STEP) < set(PARTS)
    assert (
        len({look.colour for look in PARTS.values()})
        == len({look.title for look in PARTS.values()})
        == len(PARTS)
    )


@pytest.mark.parametrize("colour", [look.colour for look in PARTS.values()] + list(SHADES))
def test_colours_stand_out_on_both_themes_and_their_text_reads(colour: str) -> None:
    assert contrast(colour, LIGHT) >= 3.0
    assert contrast(colour, DARK) >= 3.0
    assert contrast(ink_on(colour), colour) >= 4.5


def test_points_are_not_faded_towards_the_page() -> None:
    faded = charts_style.base()["config"]
    assert {faded[mark]["opacity"] for mark in ("point", "circle", "square", "tick")} == {1.0}


def test_contrast_is_that_of_the_standard() -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21.0)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)


def test_cells_of_the_map_can_be_read() -> None:
    for speedup in np.geomspace(0.1, 6.0, 200):
        colour = map_colour(speedup)
        assert contrast(ink_on(colour), colour) >= 4.5
    view = view_of(
        answers.recommendation(set_up(), Question(batch_max=8)).cells.by_count, 1024, [1, 2, 8], {1: 2, 8: 2}
    )
    values = map_spec(heat_map(view, "", chains=True))["data"]["values"]
    assert {cell["ink"] for cell in values} <= {"#000000", "#ffffff"}


def test_text_of_charts_follows_the_page() -> None:
    assert contrast(TEXT, LIGHT) >= 4.5
    assert f'fill="{TEXT}"' in (APP / "look.css").read_text(encoding="utf-8")


@pytest.mark.parametrize(("names", "on_phones"), [(3, True), (20, False)])
def test_names_of_points_lie_over_lines_and_leave_a_phone_where_they_are_many(
    names: int, on_phones: bool
) -> None:
    x = np.arange(1, names + 1)
    named = Series(name="a", x=x, y=x * 1.0, line="-", marker="o", texts=[f"{each}/3" for each in x])
    spec = lines_spec(LineChart(title="", x=Axis(title="x"), y=Axis(title="y"), series=[named]))
    (mark,) = (layer["mark"] for layer in spec["layer"] if layer["mark"]["type"] == "text")
    assert ("opacity" not in mark) == on_phones
    picture = downloads.picture(spec, "svg")
    texts = re.findall(r"<text[^>]*stroke=[^>]*>", str(picture))
    assert len(texts) == names
    assert all('paint-order="stroke"' in text for text in texts)


@pytest.mark.parametrize(
    "url", [{}, {"model": "qwen3-30b-a3b", "drafter": "eagle3", "tp": 2, "gpu": "h100-sxm"}]
)
def test_the_breakdown_wears_the_parts_colours(opened: Opened, url: dict[str, object]) -> None:
    spec = next(each for each in drawn(opened("answer", batch_max=8, **url)) if "'part'" in str(each))
    scale = spec["layer"][0]["encoding"]["color"]["scale"]
    known = {look.title: look.colour for look in PARTS.values()}
    assert dict(zip(scale["domain"], scale["range"], strict=True)).items() <= known.items()
    assert len(set(scale["range"])) == len(scale["range"])


def test_tables_keep_their_text_and_name_what_a_phone_shows(opened: Opened) -> None:
    page = unfolded(opened("evidence", gpu="a100-80gb-pcie"), EVERY_KERNEL)
    assert "10,360" in set(table_of(page, "kernel", "rows")["rows"])
    page = opened("answer", batch_max=8)
    body = next(each.proto.body for each in page.get("html") if "<table>" in each.proto.body)
    assert '<th class="number">speedup</th>' in body
    assert "wide" in body
    assert "<script>" not in body


def test_cells_are_text() -> None:
    lines: list[str] = []
    original = show.st.html
    show.st.html = lines.append  # type: ignore[assignment]
    try:
        show.table([{"a": "<b>&"}])
    finally:
        show.st.html = original  # type: ignore[method-assign]
    assert "&lt;b&gt;&amp;" in lines[0]


def test_numbers_are_text_and_no_formula(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two dollar signs would have the page wait for the fonts of formulas."""
    told: list[str] = []
    monkeypatch.setattr(show.st, "markdown", lambda text, **_: told.append(text))
    show.figures(show.Figure("a <b>", "$0.21", "$0.30 without", "& more"))
    assert "$" not in told[0]
    assert "a &lt;b&gt;" in told[0]
    assert "&amp; more" in told[0]


def test_an_option_is_not_broken_between_its_dashes(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    monkeypatch.setattr(show.st, "html", told.append)
    command = (
        'vllm serve x \\\n  --max-num-seqs 64 --speculative-config \'{"method":"eagle3","a<b":"' + "y" * 40
    )
    show.code(command)
    assert "<span>--max-num-seqs</span> <span>64</span>" in told[0]
    assert unescape(re.sub("<[^>]*>", "", told[0])) == command
    assert show.in_words("keep it with --max-num-seqs 64") == "keep it with `--max-num-seqs` 64"
    assert "`" not in show.in_words("give --runtime another"), "inputs of the page have labels"
    assert "Prompt" in show.in_words("give shorter --prompt-tokens")
