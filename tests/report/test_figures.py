"""What a figure draws is what its chart describes: where lines, bars and cells are in units of their axes."""

import numpy as np
import pytest
from matplotlib.colors import to_rgb
from matplotlib.text import Text

from medusa_sim.report.charts.chart import (
    Axis,
    Bar,
    BarChart,
    HeatMap,
    LineChart,
    MapCell,
    ReferenceLine,
    Series,
    map_colour,
    round_ticks,
)
from medusa_sim.report.figures.draw import bars_figure, lines_figure, map_figure

X = np.array([1.0, 10.0, 100.0])


def line_chart(**more: object) -> LineChart:
    banded = Series(name="a", x=X, y=2 * X, line="-", low=X, high=3 * X, texts=("one", "ten", "hundred"))
    points = Series(name="b", x=X, y=5 / X, marker="o", outline=[(1, 1), (2, 1), (2, 3)])
    given = {"title": "made", "x": Axis(title="batch", base=10), "y": Axis(title="ms", zero=True)}
    return LineChart(**{**given, "series": (banded, points), **more})


def test_lines_bands_outlines_and_limits_are_where_the_chart_says():
    chart = line_chart(limits=(ReferenceLine(x=30.0, text="here"), ReferenceLine(y=7.0, text="at most")))
    (axis,) = lines_figure(chart).axes
    first, second, across, up = axis.lines
    assert (first.get_xydata() == np.column_stack([X, 2 * X])).all()
    assert (second.get_xydata() == np.column_stack([X, 5 / X])).all()
    assert (across.get_xdata()[0], up.get_ydata()[0]) == (30.0, 7.0)
    (band,), (outline,) = axis.collections, axis.patches
    low, high = (band.get_datalim(axis.transData).get_points()[place] for place in (0, 1))
    assert ([*low], [*high]) == ([1.0, 1.0], [100.0, 300.0])
    assert outline.get_xy()[:3].tolist() == [[1, 1], [2, 1], [2, 3]]
    assert [text.xy for text in axis.texts if text.get_text() in ("one", "ten", "hundred")] == [
        (1, 2), (10, 20), (100, 200),
    ]  # fmt: skip
    assert (axis.get_xscale(), axis.get_yscale(), axis.get_ylim()[0]) == ("log", "linear", 0.0)
    assert [text.get_text() for text in axis.get_legend().get_texts()] == ["a", "b"]


@pytest.mark.parametrize(("charts", "columns", "seen"), [(3, 2, 3), (2, 1, 2)])
def test_charts_of_the_same_names_have_one_legend_and_no_empty_axes(charts, columns, seen):
    figure = lines_figure(*[line_chart()] * charts, columns=columns)
    visible = [axis for axis in figure.axes if axis.get_visible()]
    assert len(visible) == seen
    assert [axis.get_legend() is not None for axis in visible].count(True) == 1
    assert visible[min(columns, charts) - 1].get_legend() is not None  # beside the first row
    other = line_chart(series=(Series(name="c", x=X, y=X, line="-"),))
    both = lines_figure(line_chart(), other, columns=2)
    assert all(axis.get_legend() is not None for axis in both.axes)


def box_of(figure, words):
    """Where the first text that begins so lies, in pixels."""
    figure.canvas.draw()
    return next(
        text for text in figure.findobj(Text) if text.get_text().startswith(words)
    ).get_window_extent()


@pytest.mark.parametrize("rows", [1, 4])
def test_titles_stand_above_each_other_and_within_the_figure(rows):
    figure = lines_figure(*[line_chart()] * rows, title="all of them")
    above, below = (box_of(figure, words) for words in ("all of them", "made"))
    assert below.y1 <= above.y0 < above.y1 <= figure.bbox.height
    long = lines_figure(line_chart(title="operators against intensity " * 6))
    assert box_of(long, "operators").x1 <= long.bbox.width


def test_a_legend_shows_open_marks_as_open():
    series = (
        Series(name="measured", x=X, y=X, marker="o", filled=False),
        Series(name="b", x=X, y=X, marker="o"),
    )
    shown = lines_figure(line_chart(series=series)).axes[0].get_legend().get_lines()
    assert [mark.get_markerfacecolor() == "none" for mark in shown] == [True, False]


def test_ticks_are_written_as_they_are_spoken():
    (axis,) = lines_figure(line_chart(x=Axis(title="tokens", base=10, ticks=(1.0, 20.0)))).axes
    assert [text.get_text() for text in axis.get_xticklabels()] == ["1", "20"]
    (axis,) = lines_figure(line_chart()).axes
    assert [text.get_text() for text in axis.get_xticklabels()] == ["1", "2", "5", "10", "20", "50", "100"]
    (axis,) = lines_figure(line_chart(x=Axis(title="tokens", base=2))).axes
    written = axis.xaxis.get_major_formatter()
    assert [written(tick, 0) for tick in (0.5, 100.0, 99_999.0, 1e5, 5e6)] == [
        "0.5", "100", "99,999", "100,000", "5M",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [
        (0.06, 60.0, [0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50]),
        (0.2, 3e5, [1, 10, 100, 1e3, 1e4, 1e5]),
        (55.0, 90.0, [60, 80]),
        (6.1, 7.9, []),
        (0.0, 5.0, []),
    ],
)
def test_logarithmic_ticks_are_powers_then_twos_and_fives_then_more(low, high, ticks):
    assert round_ticks(np.array([high, low]), np.array([])) == ticks


def test_a_figure_grows_with_its_columns_and_rows():
    one, beside, below, six = (
        lines_figure(*[line_chart()] * charts, columns=columns).get_size_inches().tolist()
        for charts, columns in ((1, 1), (2, 2), (2, 1), (6, 3))
    )
    assert one[0] < beside[0] < six[0]
    assert one[1] == beside[1] < six[1] == below[1] == pytest.approx(2 * one[1] - 1.0)


def test_bars_stack_their_parts_and_groups_stand_apart():
    """Of 1 + 2 and 3 and 1 ms: the second group's bar is half a place further down."""
    bars = (
        Bar(group="plain", name="1", parts={"mlp": 2.0, "qkv": 1.0}, text="x"),
        Bar(group="plain", name="8", parts={"mlp": 3.0}, text="y"),
        Bar(group="drafts", name="1", parts={"qkv": 1.0}, text="z"),
    )
    figure = bars_figure(BarChart(title="made", value="ms", names="batch", bars=bars))
    (axis,) = figure.axes
    assert axis.get_yticks().tolist() == [0.0, 1.0, 2.5]
    assert [text.get_text() for text in axis.get_yticklabels()] == ["plain:  1", "8", "drafts:  1"]
    assert [text.xy for text in axis.texts] == [(3.0, 0.0), (3.0, 1.0), (1.0, 2.5)]
    qkv, mlp = (patch.get_path().vertices for patch in axis.patches)
    assert {tuple(x) for x in mlp[:, :1]} == {(1.0,), (3.0,), (0.0,)}
    assert (qkv[:, 0].min(), qkv[:, 0].max()) == (0.0, 1.0)
    middles = {round(float(part[:4, 1].mean()), 9) for part in np.split(qkv, len(qkv) // 5)}
    assert middles == {0.0, 2.5}
    left, right = axis.get_xlim()
    assert left == 0.0
    assert right > 3.0
    bottom, top = axis.get_ylim()
    assert top < 0.0  # read from above
    assert bottom > 2.5


def test_cells_have_their_colours_frames_and_the_line_where_speculation_loses():
    """It pays at 2 and at 4 drafts of one request, at 2 of eight; 4 of eight do not fit."""
    speedups = {(1, 2): (1.5, True), (1, 4): (2.0, True), (8, 2): (1.2, True), (8, 4): (0.8, False)}
    cells = [
        MapCell(batch=batch, count=count, speedup=speedup, is_best=(batch, count) == (1, 4), fits=fits)
        for (batch, count), (speedup, fits) in speedups.items()
    ]
    lost = MapCell(batch=64, count=2, speedup=0.9, is_best=False, fits=True)
    map_ = HeatMap(
        title="made", value="speedup", counted="candidates", batches=(1, 8, 64), counts=(2, 4),
        cells=[*cells, lost, MapCell(batch=64, count=4, speedup=0.7, is_best=False, fits=True)],
    )  # fmt: skip
    axis, scale = map_figure(map_).axes
    drawn = axis.images[0].get_array()
    assert drawn.shape == (2, 3, 3)
    for cell in map_.cells:
        x, y = map_.batches.index(cell.batch), map_.counts.index(cell.count)
        expected = to_rgb(map_colour(cell.speedup)) if cell.fits else (1.0, 1.0, 1.0)
        assert tuple(drawn[y, x]) == pytest.approx(expected)
    assert {(text.get_position(), text.get_text()) for text in axis.texts} >= {
        ((0, 0), "1.50"), ((0, 1), "2.00"), ((1, 1), "-"), ((2, 0), "0.90"),
    }  # fmt: skip
    frames, lines = axis.collections
    (frame,) = frames.get_paths()
    assert frame.vertices[:4].mean(axis=0).tolist() == pytest.approx([0.0, 1.0])
    assert np.ptp(frame.vertices, axis=0) == pytest.approx([0.94, 0.94])
    assert [segment.tolist() for segment in lines.get_segments()] == [[[1.5, -0.5], [1.5, 0.5]]]
    assert [text.get_text() for text in axis.get_xticklabels()] == ["1", "8", "64"]
    assert [text.get_text() for text in axis.get_yticklabels()] == ["2", "4"]
    assert scale.get_ylim() == pytest.approx((0.3, 3.0))
    # the middle of the scale's colours is where the map's are: at 1.03 the third
    mapped = axis.figure.axes[1]._colorbar.cmap
    share = np.log(1.03 / 0.3) / np.log(3.0 / 0.3)
    assert mapped(share)[:3] == pytest.approx(to_rgb("#dbe7f6"), abs=0.02)


def test_a_line_between_counts_is_as_wide_as_its_batch():
    """At batch 8 two drafts pay and four do not."""
    speedups = {(1, 2): 1.5, (1, 4): 2.0, (8, 2): 1.2, (8, 4): 0.8}
    cells = [
        MapCell(batch=batch, count=count, speedup=speedup, is_best=False, fits=True)
        for (batch, count), speedup in speedups.items()
    ]
    map_ = HeatMap(title="", value="", counted="", batches=(1, 8), counts=(2, 4), cells=cells)
    _, lines = map_figure(map_).axes[0].collections
    found = sorted(segment.tolist() for segment in lines.get_segments())
    assert found == [[[0.5, 0.5], [0.5, 1.5]], [[0.5, 0.5], [1.5, 0.5]]]
