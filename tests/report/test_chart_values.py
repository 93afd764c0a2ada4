"""What charts hold, by hand: places of points, bands and bars, which names and bars there are."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from medusa_sim.arrays import evenly
from medusa_sim.load.slos import Slos
from medusa_sim.report.charts.chart import (
    MAP_STOPS,
    Bar,
    HeatMap,
    MapCell,
    bar_chart,
    line_series,
    map_colour,
    marker_of,
)
from medusa_sim.report.charts.load import metric_title, rate_chart, time_chart
from medusa_sim.report.charts.setups import GPUS_BY_LOOK, _curve, _kept, _label, _named, _tip, look_of
from medusa_sim.report.charts.sweep import speedup_chart, step_bars
from medusa_sim.report.length_view import LengthView
from medusa_sim.report.palette import OTHER, PARTS, SHADES, SMALLEST_SHARE, luminance

# ---- a load against its rate


def point(policy: str, rate: float, half: float, **mean: float) -> Any:
    told = {"tokens_per_s": 100.0 * rate, "goodput_share": 0.5, **mean}
    return SimpleNamespace(policy=policy, arrivals_per_s=rate, mean=told, half_width=lambda metric: half)


def load_answer(points: list[Any], slos: Slos | None = None) -> Any:
    policy = points[0].policy
    carried = (
        SimpleNamespace(policy=policy, largest_per_s=3.0, saturated_per_s=5.0),
        SimpleNamespace(policy=policy, largest_per_s=None, saturated_per_s=6.0),
    )
    return SimpleNamespace(test=SimpleNamespace(slos=slos or Slos()), points=points, carried=carried)


def test_times_are_milliseconds_with_their_interval_and_medians_beside():
    """20 and 30 ms within 25 ms of each end: no time is below 0."""
    points = [
        point("none", rate, 0.025, tpot_at_share_s=time_s, tpot_p50_s=time_s / 2)
        for rate, time_s in ((1.0, 0.020), (2.0, 0.030))
    ]
    chart = rate_chart(load_answer(points, Slos(tpot_s=0.04, ttft_s=2.0)), "tpot_at_share_s")
    line, medians = chart.series
    assert line.x.tolist() == [1.0, 2.0]
    assert line.y == pytest.approx([20.0, 30.0])
    assert line.low == pytest.approx([0.0, 5.0])
    assert line.high == pytest.approx([45.0, 55.0])
    assert medians.y == pytest.approx([10.0, 15.0])
    assert line.rows[1] == {
        "policy": "none", "rate": 2.0, "value": 30.0, "tokens": 200.0, "share": 0.5,
    }  # fmt: skip
    assert [(limit.x, limit.y, limit.line) for limit in chart.limits] == [
        (None, 40.0, "-"), (3.0, None, "--"), (5.0, None, ":"), (6.0, None, ":"),
    ]  # fmt: skip
    assert rate_chart(load_answer(points, Slos(ttft_s=2.0)), "tpot_at_share_s").limits[0].y is None


def test_goodput_is_no_more_than_what_comes_which_is_a_line_of_its_own():
    points = [point("none", 1.0, 0.2, goodput_per_s=0.9), point("none", 4.0, 0.2, goodput_per_s=3.0)]
    line, arrivals = rate_chart(load_answer(points), "goodput_per_s").series
    assert line.low == pytest.approx([0.7, 2.8])
    assert line.high == pytest.approx([1.0, 3.2])
    assert (arrivals.x.tolist(), arrivals.y.tolist()) == ([0.0, 4.0], [0.0, 4.0])


@pytest.mark.parametrize("half", [0.0, math.nan])
def test_one_seed_has_no_band(half):
    (line, *_) = rate_chart(load_answer([point("K=2", 1.0, half, goodput_per_s=0.9)]), "goodput_per_s").series
    assert line.low is None
    assert line.high is None


def test_a_share_is_shown_in_per_cent():
    assert "99 %" in metric_title("tpot_at_share_s", 0.99)
    assert "90 %" in metric_title("tpot_at_share_s")


@pytest.mark.parametrize(("count", "every"), [(1, 1), (400, 1), (799, 1), (800, 2), (2000, 5)])
def test_a_run_over_time_has_some_four_hundred_points(count, every):
    run = SimpleNamespace(time_s=np.arange(count) / 10.0, requests=np.arange(count) * 2)
    one = SimpleNamespace(policy="none", first_result=SimpleNamespace(timeline=run))
    (line,) = time_chart([one], "requests").series
    assert line.x.tolist() == (np.arange(count) / 10.0)[::every].tolist()
    assert line.rows[-1]["value"] == line.y[-1] == 2 * ((count - 1) // every * every)


# ---- set-ups


def set_up(speed: float, cost: float, **more: Any) -> dict[str, Any]:
    return {
        "tokens_per_s_per_user": speed, "usd_per_million_tokens": cost, "batch": 8, "drafts": 2,
        "chosen": False, "on_frontier": True, **more,
    }  # fmt: skip


def test_names_stand_a_twentieth_of_the_height_or_an_eighth_of_the_width_apart():
    """Over the logarithms of both axes, which go from 10 to 1,000 and from 1 to 100.

    0.12 of the width is a factor of 100 ** 0.12 = 1.738, 0.05 of the height 100 ** 0.05 = 1.259.
    """
    rows = [
        set_up(10.0, 1.0), set_up(17.0, 1.25), set_up(17.5, 1.25), set_up(17.5, 1.26), set_up(10.0, 1.27),
        set_up(1000.0, 100.0), set_up(100.0, 10.0, on_frontier=False),
    ]  # fmt: skip
    kept = _named(rows, "usd_per_million_tokens")
    assert [rows.index(row) for row in kept] == [0, 2, 4, 5]
    chosen = [*rows[:1], set_up(10.5, 1.0, chosen=True, on_frontier=False), rows[5]]
    assert [chosen.index(row) for row in _named(chosen, "usd_per_million_tokens")] == [1, 2]
    assert _named([], "usd_per_million_tokens") == []
    assert len(_named([rows[0], rows[0]], "usd_per_million_tokens")) == 1


@pytest.mark.parametrize(
    ("column", "slow", "fast"),
    [
        ("usd_per_million_tokens", (80.0, 5.0), (125.0, 3.2)),
        ("tokens_per_s_per_gpu", (80.0, 3.2), (125.0, 5.0)),
    ],
)
def test_the_ends_of_a_point_follow_its_time_per_token(column, slow, fast):
    """A fifth slower costs a quarter more and gives a fifth less."""
    row = {
        **set_up(100.0, 4.0), "tokens_per_s_per_gpu": 4.0, "tokens_per_s_per_user_low": 80.0,
        "tokens_per_s_per_user_high": 125.0, "interval": "", "joule_per_token": 1.0, "rests_on": "",
        "gpus": 1, "gpu": "l4", "tp": 1, "pp": 1, "ep": 1, "replicas": 1, "engine": "vllm",
        "runtime": "vllm", "drafter": "eagle3",
        "dp_attention": False, "precision": "bf16", "kv_precision": None,
    }  # fmt: skip
    curve = _curve("l4", [row, row], column, [], speculative=True, in_legend=True, banded=True)
    assert list(curve.outline[0]) == pytest.approx(slow)
    assert list(curve.outline[-1]) == pytest.approx(fast)
    assert not _curve("l4", [row], column, [], speculative=True, in_legend=True, banded=True).outline
    assert (_tip(row)["interval"], _tip({**row, "drafts": 0})["drafts"]) == ("80.0 to 125", "none")


def test_what_nothing_beats_is_kept_from_the_slowest_stream_on():
    speed, worth = np.array([30.0, 10.0, 20.0, 5.0]), np.array([3.0, 1.0, 4.0, 2.0])
    assert _kept(speed, worth, "usd_per_million_tokens").tolist() == [1, 0]  # 20 costs more than 30
    assert _kept(speed, worth, "tokens_per_s_per_gpu").tolist() == [2, 0]
    assert _label({"batch": 64, "drafts": 3}) == "64/3"
    assert _label({"batch": 64, "drafts": 0}) == "64"


def test_a_card_of_ones_own_looks_as_the_sum_of_its_letters_says():
    """`ab` is 97 + 98 = 195: the fourth of 12 colours, the sixth of 10 markers."""
    assert look_of("ab") == (SHADES[3], marker_of(5))
    assert look_of(GPUS_BY_LOOK[1]) == (SHADES[1], marker_of(1))


# ---- one length of a sweep


def view(best: list[int], speedup: list[list[float]], step_us: list[list[float]]) -> LengthView:
    """Plain decoding, 2, 3, ... candidates; an eighth of a step is beside its kernels."""
    gain, whole = np.array(speedup), np.array(step_us)
    counts = np.arange(1, gain.shape[1] + 1)
    return LengthView(
        seq_len=512, batch=2 ** np.arange(gain.shape[0]), counts=counts, grid_counts=counts,
        best=np.array(best), marked="the best count", speedup=gain, speedup_low=gain - 0.1,
        speedup_high=gain + 0.1, tokens_per_step=np.ones_like(gain) * 2.0,
        fits=np.ones_like(gain, dtype=np.bool_), step_us=whole, decode_us=whole[:, 0],
        parts_us={"mlp": whole * 0.875, "beside": whole * 0.125},
    )  # fmt: skip


def test_bars_are_in_plain_steps_and_only_what_is_drafted_has_a_second_one():
    chart = step_bars(
        view([2, 0], [[1.0, 1.2, 1.5], [1.0, 0.9, 0.8]], [[4e3, 5e3, 6e3], [8e3, 9e3, 9e3]]), ""
    )
    assert [(bar.group, bar.name, bar.text) for bar in chart.bars] == [
        ("batch 1", "1", "4.00"), ("batch 1", "3", "6.00"), ("batch 2", "1", "8.00"),
    ]  # fmt: skip
    assert [bar.total for bar in chart.bars] == pytest.approx([1.0, 1.5, 1.0])
    assert dict(chart.bars[1].parts) == pytest.approx({"mlp": 1.3125, "beside": 0.1875})


def test_lines_of_a_sweep_say_what_is_marked_and_what_a_count_costs():
    given = view([2, 0], [[1.0, 1.2, 1.5], [1.0, 0.9, 0.8]], [[4e3, 5e3, 6e3], [8e3, 9e3, 9e3]])
    chart = speedup_chart(given, "", chains=True)
    line, cliff, ring, plain, *_ = chart.series
    assert (line.name, plain.name) == ("batch 1: 2 (1.50x)", "batch 2: off")
    assert line.low == pytest.approx([0.9, 1.1, 1.4])
    assert line.high == pytest.approx([1.1, 1.3, 1.6])
    assert line.rows[2] == {
        "name": line.name, "count": 2, "speedup": 1.5, "tokens_per_step": 2.0, "overhead": 1.5,
    }  # fmt: skip
    assert ring.rows == [line.rows[2]]
    assert not cliff.x.size
    assert (chart.x.base, list(chart.x.ticks)) == (0, [0, 1, 2])
    assert speedup_chart(given, "").series[0].x.tolist() == [1, 2, 3]
    assert [limit.y for limit in chart.limits] == [1.0]


@pytest.mark.parametrize(("batches", "banded"), [(1, [0]), (2, [0, 1]), (3, [0, 2]), (4, [0, 3])])
def test_the_first_and_the_last_batch_have_a_band(batches, banded):
    lines = speedup_chart(view([0] * batches, [[1.0, 1.2]] * batches, [[1e3, 2e3]] * batches), "").series[::3]
    assert [place for place, line in enumerate(lines) if line.low is not None] == banded


def test_cliffs_are_marked_where_somebody_would_go():
    """16 candidates cost as 1; the 17th costs a second row of tiles. Drawn from 0.95 on."""
    step_us = [[1e3] * 16 + [2e3] * 16] * 2
    gains = [[1.0] * 32, [0.94] * 32]
    lines = speedup_chart(view([0, 0], gains, step_us), "").series
    assert [series.x.tolist() for series in lines[1::3]] == [[16], []]
    wide = speedup_chart(view([0], [[1.0] * 19], [[1e3] * 19]), "")
    assert (wide.x.base, list(wide.x.ticks)) == (2, [1, 2, 4, 8, 16])
    assert speedup_chart(view([0], [[1.0] * 18], [[1e3] * 18]), "").x.base == 0


@pytest.mark.parametrize(
    ("values", "most", "kept"), [(3, 3, [0, 1, 2]), (5, 3, [0, 2, 4]), (4, 3, [0, 2, 3])]
)
def test_an_even_choice(values, most, kept):
    assert evenly(np.arange(values), most).tolist() == kept


# ---- parts, looks, colours


def test_parts_that_are_small_in_every_bar_are_one():
    """1 of 100 is below the least share in both bars; 2 in one of them is not."""
    assert SMALLEST_SHARE == 0.015
    bars = [
        Bar(group="a", name="1", parts={"mlp": 96.0, "qkv": 2.0, "norm_rope": 1.0, "embedding": 1.0}),
        Bar(group="a", name="2", parts={"mlp": 98.5, "qkv": 1.5}),
    ]
    first, second = bar_chart("", "", "", bars).bars
    assert dict(first.parts) == pytest.approx({"qkv": 2.0, "mlp": 96.0, OTHER: 2.0})
    assert dict(second.parts) == pytest.approx({"qkv": 1.5, "mlp": 98.5})
    assert bar_chart("", "", "", bars).drawn == [name for name in PARTS if name in ("qkv", "mlp", OTHER)]


@pytest.mark.parametrize(("place", "points", "every"), [(3, 80, 1), (4, 80, 10), (4, 81, 11), (4, 3, 1)])
def test_a_line_has_markers_where_its_dashes_are_anothers(place, points, every):
    line = line_series("a", place, np.arange(points), np.arange(points) * 1.0)
    assert (bool(line.marker), line.every) == (place >= 4, every)


def test_a_cell_tells_hundredths_and_where_it_loses_as_it_is_printed():
    """0.995 does not lose, 0.994 does."""
    gains = {(1, 2): 1.2, (1, 4): 0.994, (2, 2): 0.995, (2, 4): 0.9, (4, 2): 0.9, (4, 4): 0.9}
    cells = [
        MapCell(batch=batch, count=count, speedup=gain, is_best=False, fits=(batch, count) != (4, 2))
        for (batch, count), gain in gains.items()
    ]
    assert [cell.text for cell in cells] == ["1.20", "0.99", "0.99", "0.90", "-", "0.90"]
    map_ = HeatMap(title="", value="", counted="", batches=(1, 2, 4), counts=(2, 4), cells=cells)
    below, beside = map_.crossings
    assert below == [(1, 2), (2, 2)]
    assert beside == []  # what does not fit crosses nothing
    assert MAP_STOPS == (0.3, 0.97, 1.03, 3.0)
    # half way between 0.3 and 0.97 by the logarithm: between 9a 4a 12 and ef e3 d8
    assert map_colour(math.sqrt(0.3 * 0.97)) == "#c49675"


@pytest.mark.parametrize(
    ("colour", "linear"),
    [
        ("#ffffff", 1.0), ("#000000", 0.0), ("#ff0000", 0.2126), ("#00ff00", 0.7152), ("#0000ff", 0.0722),
        ("#808080", ((128 / 255 + 0.055) / 1.055) ** 2.4), ("#0a0a0a", 10 / 255 / 12.92),
        ("#0b0b0b", ((11 / 255 + 0.055) / 1.055) ** 2.4),
    ],
)  # fmt: skip
def test_luminance_is_that_of_srgb(colour, linear):
    """10 of 255 is 0.0392, below 0.04045; 11 is 0.0431."""
    assert luminance(colour) == pytest.approx(linear, rel=1e-12)
