"""The chart of set-ups: one description, drawn alike in reports and in the app."""

import itertools
import json
from dataclasses import replace

import numpy as np
import pytest

import medusa_sim as ms
from medusa_sim.errors import UsageError
from medusa_sim.report.blocks import pictures_of
from medusa_sim.report.charts.setups import (
    ANSWER,
    GPUS_BY_LOOK,
    MEASURED,
    Y_TITLES,
    left_out,
    look_of,
    measured_chart,
)
from medusa_sim.report.compare.page import compare_blocks
from medusa_sim.report.document import html_page
from medusa_sim.report.figures.draw import lines_figure
from medusa_sim.report.figures.files import render
from medusa_sim.report.words.measured import measured_facts, measured_text, nearest_text
from medusa_sim.setups.measured import NearestFigure, PricedFigure, nearest, predicted_curve, predicted_speed
from medusa_sim.setups.served_figures import by_nearness, differences


@pytest.fixture(scope="module")
def found() -> ms.CompareResult:
    return ms.compare(
        "llama-3.1-8b", gpus=("h100-sxm", "l40s"), counts=1, engines="vllm", drafters=("none", "eagle3"),
        weight_dtypes=("bf16", "fp8"), batches=(1, 4, 16, 64), tokens_per_s_per_user=50,
    )  # fmt: skip


@pytest.mark.parametrize("column", Y_TITLES)
def test_curves_fall_apart_from_nothing(found, column):
    chart = found.chart(column)
    *curves, ring = chart.series
    assert [curve.name for curve in curves] == [
        "h100-sxm, no speculation", "h100-sxm", "l40s, no speculation", "l40s",
    ]  # fmt: skip
    falls = column in ("usd_per_million_tokens", "joule_per_token")
    for curve in curves:
        for slow, fast in itertools.pairwise(range(len(curve.x))):
            assert curve.x[slow] < curve.x[fast]
            assert (curve.y[slow] < curve.y[fast]) == falls
        of_chosen = curve.name.startswith(found.chosen["gpu"])  # the others' would lie over its own
        assert bool(len(curve.outline)) == of_chosen
        ends = np.array(curve.outline) if of_chosen else np.empty((0, 2))
        for x, y, low, high in zip(curve.x, curve.y, ends, ends[::-1], strict=False):
            assert low[0] < x < high[0]
            assert min(low[1], high[1]) < y < max(low[1], high[1])
        for text, row in zip(curve.texts, curve.rows, strict=True):
            assert text in ("", f"{row['batch']}/{row['drafts']}" if row["drafts"] else str(row["batch"]))
    assert any(text for curve in curves for text in curve.texts)
    assert [limit.x for limit in chart.limits] == [50]
    assert (chart.x.base, chart.y.base) == (10, 10)
    assert ring.name == ANSWER
    assert chart.legend_names == ["h100-sxm", "l40s"]
    assert ring.x[0] == found.chosen["tokens_per_s_per_user"]


def test_matplotlib_draws_the_description(found):
    chart = found.chart()
    axis = lines_figure(chart).axes[0]
    assert axis.get_xscale() == axis.get_yscale() == "log"
    for curve, drawn in zip(chart.series, axis.lines, strict=False):
        assert list(drawn.get_xdata()) == list(curve.x)
        assert drawn.get_linestyle() == {"-": "-", ":": ":", "": "None"}[curve.line]
        assert drawn.get_color() == curve.colour
    bands = [patch for patch in axis.patches if patch.get_alpha() == 0.10]
    assert len(bands) == sum(bool(curve.outline) for curve in chart.series) == 2


@pytest.mark.parametrize("slim", [False, True])
def test_ticks_are_spoken_numbers_and_a_telephone_shows_the_whole_picture(found, slim):
    for column in Y_TITLES:
        figure = lines_figure(found.chart(column), slim=slim)
        render(figure, ".svg")
        axis = figure.axes[0]
        ticks = [each.get_text() for each in (*axis.get_xticklabels(), *axis.get_yticklabels())]
        assert not [text for text in ticks if "e" in text or "$" in text]
        assert [text for text in ticks if text]
        box, across = figure.get_tightbbox(), figure.get_size_inches()[0]
        assert box.x0 > -0.1
        assert box.x1 < across + 0.1
        assert (across < 5) == slim


def test_a_card_without_a_value_is_named_and_not_drawn_and_another_axis_is_one_error(found):
    unpriced = found.answer.table.copy()
    unpriced.loc[unpriced.gpu == "l40s", "usd_per_million_tokens"] = np.nan
    partly = replace(found.answer, table=unpriced)
    assert left_out(found.answer, "usd_per_million_tokens") == ""
    assert left_out(partly, "usd_per_million_tokens") == " Not drawn, as no price is known: l40s."
    assert left_out(partly, "joule_per_token") == ""
    with pytest.raises(UsageError, match="vertical axis"):
        found.chart("watts")


def test_a_card_keeps_its_colour_and_neighbours_differ():
    looks = [look_of(gpu) for gpu in GPUS_BY_LOOK]
    assert len(set(looks)) == len(looks)
    assert len({colour for colour, _ in looks[:8]}) == 8
    assert look_of("mine") == look_of("mine")


def test_a_page_has_the_answer_first(found):
    blocks = compare_blocks(found.answer, "medusa-sim compare")
    html = html_page("t", blocks)
    assert html.index("No drafts") < html.index("<svg")
    assert len(list(pictures_of(blocks))) == len(Y_TITLES)
    assert found.sentence.split(",")[0] in html
    assert "<svg" in found._repr_html_()
    json.dumps(found.to_dict(), allow_nan=False)


def test_the_nearest_measurement_is_drawn_where_it_was_measured(tmp_path):
    asked = {
        "gpus": "h200-sxm", "counts": 8, "engines": "sglang", "drafters": "none",
        "weight_dtypes": "fp8_block", "eps": 1, "batches": (8, 16, 32),
    }  # fmt: skip
    near = ms.compare("deepseek-r1", **asked, prompt_tokens=900, output_tokens=900)
    found = nearest(near.answer)
    assert found.near
    assert abs(found.error) < 0.2
    for column in ("tokens_per_s_per_gpu", "usd_per_million_tokens"):
        dot = near.chart(column).series[-1]
        assert dot.name == MEASURED
        assert dot.x[0] == found.figure.tokens_per_s_per_user
        # the error is that of the time after a request's first token, of which a rate has a little more
        assert dot.y[0] == pytest.approx(
            found.row[column] * (1 + found.error) ** (1 if "usd" in column else -1), rel=0.01
        )
    far = ms.compare("deepseek-r1", **asked, prompt_tokens=8000, output_tokens=900)
    assert not any(series.name == MEASURED for series in far.chart().series)
    assert "is not drawn" in measured_text(far.answer)
    own = tmp_path / "profiles" / "served.toml"
    own.parent.mkdir()
    own.write_text("schema = 1\nfigure = []\n")
    assert nearest(ms.compare("deepseek-r1", **asked, data_dir=tmp_path).answer) is None
    priced = near.table[near.table.batch == 16].iloc[0]
    assert found.row["tokens_per_s_per_user"] == pytest.approx(priced.tokens_per_s_per_user, rel=0.03)


@pytest.mark.parametrize(
    ("given", "differs"),
    [
        ({"gpu": "h100-sxm", "model": "llama-3.1-8b", "drafter": "eagle3", "runtime": "vllm"}, ()),
        ({"gpu": "h200-sxm", "tp": 8, "model": "deepseek-r1", "drafter": "mtp", "runtime": "sglang"}, ()),
        ({"gpu": "h100-sxm", "model": "llama-3.1-8b", "drafter": "eagle3", "runtime": "sglang"}, ("engine",)),
        (
            {"gpu": "a100-80gb-sxm", "model": "llama-3.1-8b", "drafter": "eagle3", "runtime": "vllm"},
            ("GPU",),
        ),
        ({"gpu": "h100-sxm", "model": "qwen3-32b", "drafter": "eagle3", "runtime": "vllm"}, ("model",)),
    ],
)
def test_a_measurement_lies_on_the_curve_of_its_own_set_up(given, differs):
    of = ms.Scenario(**given)
    nearest_one, *_ = by_nearness(of)
    found = NearestFigure(
        figure=nearest_one, differs=differences(nearest_one, of),
        tokens_per_s_per_user=predicted_speed(nearest_one),
    )  # fmt: skip
    assert found.differs == differs
    engines = ["engine" in differences(figure, of) for figure in by_nearness(of, every=True)]
    assert engines == sorted(engines), "those of the engine first"
    figure, curve = found.figure, predicted_curve(nearest_one, (1, 16, 64))
    assert sorted({1, 16, 64, figure.batch}) == curve["batch"].tolist()
    at = curve["batch"].tolist().index(figure.batch)
    own = PricedFigure(figure=figure, row={name: values[at] for name, values in curve.items()}, near=True)
    assert found.error == pytest.approx(own.error, rel=1e-12)
    chart = measured_chart(figure, curve)
    assert chart.x.base == 2  # batches double
    dot = chart.series[-1]
    assert (dot.x[0], dot.y[0]) == (figure.batch, figure.tokens_per_s_per_user)
    text = nearest_text(found)
    assert figure.source in text
    assert ("not this set-up" in text) == bool(differs)
    assert all(word in text for word in differs)


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"gpu": "h200-sxm", "tp": 4, "model": "llama-3.1-70b", "dtype": "fp8", "runtime": "vllm"}, []),
        ({"gpu": "b200", "tp": 8, "model": "llama-3.1-70b", "runtime": "tensorrt-llm"}, []),
        ({"gpu": "a100-80gb-pcie", "model": "vicuna-7b", "runtime": "cuda-graph"}, []),
        ({"gpu": "b200", "tp": 8, "model": "llama-3.1-8b", "runtime": "cuda-graph"}, ["llama-3.1-8b"]),
        ({"gpu": "b200", "tp": 8, "model": "llama-3.1-8b", "runtime": "sglang"}, ["llama-3.1-8b"]),
        ({"gpu": "h100-sxm", "tp": 2, "model": "qwen3-8b", "runtime": "vllm"}, ["llama-3.1-8b", "qwen3-14b"]),
        ({"gpu": "h200-sxm", "tp": 8, "model": "deepseek-v3", "runtime": "vllm"}, ["deepseek-r1"] * 3),
    ],
)
def test_no_far_measurement_stands_beside_an_answer(given, named):
    """Another model in another engine or another format, which the bands take for far."""
    of = ms.Scenario(**given, drafter="ngram", acceptance=0.5)
    assert [figure.model for figure in by_nearness(of)] == named
    assert [fact.label for fact in measured_facts(of)].count("Measured") == bool(named)
