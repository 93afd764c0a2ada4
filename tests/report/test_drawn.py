"""What figures draw: the numbers of the chart, at their places and in their scales."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

import medusa_sim as ms
from medusa_sim.grid.axes import Grid
from medusa_sim.grid.roofline import roofline_points
from medusa_sim.report.charts.chart import Axis, LineChart, ReferenceLine, line_series
from medusa_sim.report.charts.load import rate_chart, time_chart
from medusa_sim.report.charts.roofline import PHASE_TITLES, roofline_chart
from medusa_sim.report.charts.sweep import heat_map, speedup_chart
from medusa_sim.report.figures.draw import lines_figure, map_figure
from medusa_sim.report.length_view import length_view
from medusa_sim.report.sweep.page import report_blocks
from medusa_sim.report.table import TextTable

SCENARIO = ms.Scenario(
    gpu="h100-sxm", model="llama-3.1-8b", drafter="eagle3", acceptance="0.7,0.5,0.3", runtime="vllm"
)


def test_a_line_is_drawn_at_its_points_with_its_band_and_limits():
    x, y = np.array([1.0, 2.0, 8.0]), np.array([2.0, 3.0, 1.5])
    series = line_series("one", 0, x, y, low=y - 0.5, high=y + 0.5)
    chart = LineChart(
        title="", x=Axis(title="x", base=2, ticks=[1, 2, 8]), y=Axis(title="y", zero=True), series=[series],
        limits=[ReferenceLine(y=1.25, text="limit"), ReferenceLine(x=4.0)],
    )  # fmt: skip
    for slim in (False, True):
        (axis,) = (axis for axis in lines_figure(chart, slim=slim).axes if axis.get_visible())
        drawn, limit, at = axis.get_lines()
        assert (drawn.get_xdata().tolist(), drawn.get_ydata().tolist()) == (x.tolist(), y.tolist())
        assert (set(limit.get_ydata()), set(at.get_xdata())) == ({1.25}, {4.0})
        assert (axis.get_xscale(), axis.get_yscale(), axis.get_ylim()[0]) == ("log", "linear", 0.0)
        assert [label.get_text() for label in axis.get_xticklabels()] == ["1", "2", "8"]
        corners = axis.collections[0].get_paths()[0].vertices
        assert (corners[:, 1].min(), corners[:, 1].max()) == (1.0, 3.5)


def test_charts_side_by_side_have_one_legend_where_their_names_are_the_same():
    x = np.array([1.0, 2.0])
    charts = [
        LineChart(title="", x=Axis(title=""), y=Axis(title=""), series=[line_series(name, 0, x, x)])
        for name in ("one", "one", "other")
    ]
    shown = [axis.get_legend() is not None for axis in lines_figure(*charts[:2], columns=2).axes]
    assert shown == [False, True]
    assert [axis.get_legend() is not None for axis in lines_figure(*charts[1:], columns=2).axes] == [True] * 2


def test_a_map_has_a_cell_for_each_batch_and_count_and_frames_the_best():
    grid = Grid.of([1, 8], [1024], [1, 2, 4])
    view = length_view(SCENARIO, grid, 1024)
    chart = heat_map(view, "")
    assert [(cell.batch, cell.count) for cell in chart.cells] == [
        (batch, count) for batch in (1, 8) for count in chart.counts
    ]
    best = {cell.batch: cell.speedup for cell in chart.cells if cell.is_best}
    for batch in (1, 8):
        assert best[batch] == max(cell.speedup for cell in chart.cells if cell.batch == batch)
    told = {text.get_text() for axis in map_figure(chart).axes for text in axis.texts}
    assert {f"{gain:.2f}" for gain in best.values()} <= told


def test_a_speedup_chart_rings_what_is_marked_and_counts_drafts_one_less():
    view = length_view(SCENARIO, Grid.of([1], [1024], [1, 2, 3, 4]), 1024, {1: 3})
    line, _, ring = speedup_chart(view, "", chains=True).series
    assert line.x.tolist() == list(range(view.counts.size))
    assert line.y.tolist() == view.speedup[0].tolist()
    assert (ring.x.tolist(), ring.y.tolist()) == ([2], [view.speedup[0, 2]])


def test_an_even_choice_of_batches_keeps_both_ends():
    view = length_view(SCENARIO, Grid.of(range(1, 66), [64], [1]), 64)  # of 65 batches 64 are drawn
    assert (len(view.batch), view.batch[0], view.batch[-1]) == (64, 1, 65)


def test_points_of_a_roofline_lie_at_their_intensity_and_below_the_roof():
    scenario = ms.Scenario(gpu="a100-80gb-pcie", model="vicuna-7b", runtime="paper", latency="roofline")
    grid = Grid.of([1], [512], [8])
    setting = scenario.setting
    points = roofline_points(setting.latency, scenario.gpu, scenario.model, scenario.runtime, grid)
    chart = roofline_chart(points, scenario.gpu, "fp16", "linear layers")
    roof, *phases = chart.series
    assert [series.name for series in phases] == list(PHASE_TITLES.values())
    rows = [row for row in points.to_pylist() if row["part"] != "attention"]
    assert sum(series.x.size for series in phases) == len(rows)
    top = roof.y.max()
    for series in phases:
        assert (series.y <= top * (1 + 1e-9)).all()
        assert series.y.tolist() == [row["tflops"] for row in series.rows]
        assert all(row["share"] <= 1.0 + 1e-9 for row in series.rows)


def test_a_point_of_an_operator_is_shown_in_thousands_and_millions():
    """3 GFLOP and 2 MB at 4 of 8 TFLOP/s; attention is drawn apart from the rest."""
    common = {"batch": 4, "seq_len": 512, "query_tokens": 1, "bound": "memory", "source": "made",
              "time_us": 750.0, "flops": 3e9, "bytes": 2e6, "flops_per_s": 4e12,
              "roofline_flops_per_s": 8e12, "operational_intensity": 1500.0, "model": "made"}  # fmt: skip
    rows = [
        {**common, "op": "mlp", "part": "mlp", "phase": "decode"},
        {**common, "op": "scores", "part": "attention", "phase": "verify", "operational_intensity": 0.01},
    ]
    points = SimpleNamespace(to_pylist=lambda: rows)
    gpu = SCENARIO.gpu
    roof, *phases = roofline_chart(points, gpu, "bf16").series  # type: ignore[arg-type]
    assert [series.x.tolist() for series in phases] == [[], [1500.0], [0.01]]
    (told,) = phases[1].rows
    assert {name: told[name] for name in ("gflop", "mb", "tflops", "share", "time_us", "phase")} == {
        "gflop": 3.0, "mb": 2.0, "tflops": 4.0, "share": 0.5, "time_us": 750.0, "phase": "decoding",
    }  # fmt: skip
    assert phases[1].y.tolist() == [4.0]
    # from half of the least intensity to four times where the roof bends, or twice the largest
    bend = gpu.peak("bf16") / gpu.bandwidth_bytes_per_s
    assert roof.x.tolist() == pytest.approx([0.005, bend, max(4.0 * bend, 3000.0)])
    assert roof.y[1:].tolist() == pytest.approx([gpu.peak("bf16") / 1e12] * 2)
    for group, places in (("linear layers", [1]), ("attention", [2])):
        _, *shown = roofline_chart(points, gpu, "bf16", group).series  # type: ignore[arg-type]
        assert [place for place, series in enumerate(shown) if series.x.size] == places


def test_a_load_is_drawn_in_milliseconds_against_the_rates_that_came():
    answer = SCENARIO.simulate([2], [2.0, 4.0], requests=40, seeds=1, search=False).answer
    line, medians = rate_chart(answer, "tpot_at_share_s").series
    assert line.x.tolist() == [2.0, 4.0]
    assert line.y.tolist() == pytest.approx([1e3 * point.mean["tpot_at_share_s"] for point in answer.points])
    assert medians.y.tolist() == pytest.approx([1e3 * point.mean["tpot_p50_s"] for point in answer.points])
    run = answer.points[0].first_result.timeline
    (over,) = time_chart(answer.points[:1], "requests").series
    assert (over.x[0], over.y[0]) == (run.time_s[0], run.requests[0])


def test_a_report_of_two_cards_compares_them_in_a_row_each():
    other = SCENARIO.but(gpu="l40s")
    grid = Grid.of([1, 16], [1024], [1, 2, 4])
    blocks = report_blocks([SCENARIO, other], grid, "medusa-sim sweep")
    table = next(block for block in blocks if isinstance(block, TextTable))
    assert table.headers == ("GPU", "model", "batch 1", "batch 16")
    assert [row[0] for row in table.rows] == ["h100-sxm", "l40s"]
    for row, scenario in zip(table.rows, (SCENARIO, other), strict=True):
        frame = scenario.sweep(batch=[1, 16], candidates=range(1, 17))
        for batch, cell in zip((1, 16), row[2:], strict=True):
            best = frame[frame.batch == batch].speedup.max()
            assert cell.endswith(f": {best:.2f}x")
