"""Colours and text of pages: one colour a part, everything readable on light and dark, nothing cut."""

from __future__ import annotations

import re
from html import unescape

import pytest

pytest.importorskip("streamlit")

import answers
import numpy as np
import show
from charts import style as charts_style
from charts.draw import map_spec
from charts.style import TEXT
from pages_read import APP, Opened, set_up, tables, unfolded
from pages_read import charts as drawn
from views.evidence import EVERY_KERNEL

from medusa_sim.report.charts.chart import map_colour
from medusa_sim.report.charts.sweep import heat_map
from medusa_sim.report.figures.style import PARTS, SHADES, contrast, ink_on
from medusa_sim.report.sweep_views import view_of
from medusa_sim.step.workload import PARTS as OF_A_STEP

LIGHT, DARK = "#ffffff", "#171614"
"""Pages of Streamlit's themes."""


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
    view = view_of(answers.recommendation(set_up(), 8).surface, 1024, [1, 2, 8], {1: 2, 8: 2})
    values = map_spec(heat_map(view, "", chains=True))["data"]["values"]
    assert {cell["ink"] for cell in values} <= {"#000000", "#ffffff"}


def test_text_of_charts_follows_the_page() -> None:
    assert contrast(TEXT, LIGHT) >= 4.5
    assert f'fill="{TEXT}"' in (APP / "look.css").read_text(encoding="utf-8")


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
    table = tables(unfolded(opened("evidence", gpu="a100-80gb-pcie"), EVERY_KERNEL))[0]
    assert "10,360" in set(table["rows"])
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
