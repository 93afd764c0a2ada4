"""What screens put beside their numbers, by hand."""

import re
from pathlib import Path
from types import SimpleNamespace

import msgspec
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from numbers_in_text import numbers

from medusa_sim import api
from medusa_sim.engines.accuracy_groups import Group, groups
from medusa_sim.grid.axes import Grid
from medusa_sim.grid.cells import price
from medusa_sim.load.carried_rates import CarriedRates
from medusa_sim.load.slos import Slos
from medusa_sim.plan.check import CheckedPart, EngineCheck, MeasuredRun
from medusa_sim.plan.recommend import recommend
from medusa_sim.plan.sweep_answer import sweep_answer
from medusa_sim.report.charts.chart import map_colour
from medusa_sim.report.charts.roofline import on_roof
from medusa_sim.report.charts.sweep import step_rows, two_steps
from medusa_sim.report.check.screen import _part_text, next_text
from medusa_sim.report.compare import screen as compare_tables
from medusa_sim.report.compare.sentences import queue_text
from medusa_sim.report.formats import markdown_parts
from medusa_sim.report.length_view import length_view
from medusa_sim.report.load.screen import sessions_text
from medusa_sim.report.load.sentences import _within_limits, carries_no_more
from medusa_sim.report.palette import contrast, ink_on
from medusa_sim.report.recommend.facts import _drafts, server_facts
from medusa_sim.report.recommend.screen import run_text
from medusa_sim.report.sweep import screen as sweep_screen
from medusa_sim.report.sweep.page import compared
from medusa_sim.report.table import TextTable
from medusa_sim.report.words.numbers import percent
from medusa_sim.report.words.standing import groups_table, overview_table
from medusa_sim.scenario.question import Question
from medusa_sim.scenario.scenario import Scenario
from medusa_sim.step.step import decode_step

SCENARIO = Scenario(
    gpu="h100-sxm", model="llama-3.1-8b", drafter="eagle3", acceptance=0.7, runtime="cuda-graph",
    latency="roofline",
)  # fmt: skip


@pytest.mark.parametrize(
    ("lengths", "places"),
    [((512,), ["batch 2"]), ((512, 1024), ["batch 2 of length 512", "batch 2 of length 1,024"])],
)
def test_costs_name_their_length_where_there_are_several(lengths, places):
    answer = recommend(SCENARIO, Question(batch_max=2, seq_len=lengths))
    first = next(fact for fact in server_facts(answer) if fact.label == "Cost")
    assert re.findall(r"at (batch \d+(?: of length [\d,]+)?)", first.text) == places
    memory = [fact.text for fact in server_facts(answer) if fact.label == "Memory"]
    assert [text.endswith("at length 1,024") for text in memory] == [length > 512 for length in lengths]


@pytest.mark.parametrize(
    ("name", "told"),
    [("round", ("10.0 ms", "25.0 ms", "15.0 ms")), ("plain", ("4.00 ms", "10.0 ms", "6.00 ms"))],
)
def test_a_round_is_shown_whole_and_a_plain_step_a_token(name, told):
    """10 ms a token measured for 6 predicted: of 2.5 tokens a round 25 ms for 15, 10 ms too slow."""
    band = {"predicted_us": 6_000.0, "low_us": 5_500.0, "high_us": 6_500.0}
    part = CheckedPart(name=name, measured_us=10_000.0, costs_us=4_000.0, **band)
    run = MeasuredRun(batch=1, seq_len=64, drafts=3, time_us=10_000.0, tokens_per_step=2.5)
    check = EngineCheck(scenario=SCENARIO, run=run, parts=(part,), **band)
    text = _part_text(check, part)
    assert tuple(re.findall(r"[\d.]+ ms", text)[:3]) == told
    assert "slow" in text


def test_where_acceptance_is_off_from_the_first_draft_the_drafter_itself_is_doubted():
    part = SimpleNamespace(is_slow=True, name="acceptance")

    def told(position: int | None) -> str:
        return next_text(SimpleNamespace(scenario=SCENARIO, position=position), part)

    first, later, unknown = told(0), told(2), told(None)
    assert "drafter (" in first
    assert "temperature" in later
    assert "by position" in unknown


def test_colours_of_a_map_lie_between_those_of_their_stops_by_the_logarithm():
    assert map_colour(0.1) == map_colour(0.3) == "#9a4a12"
    assert map_colour(0.97) == "#efe3d8"
    assert map_colour(3.0) == map_colour(9.0) == "#1d4fa8"
    assert map_colour(1.0) == "#e5e5e7"  # ln(1 / 0.97) / ln(1.03 / 0.97) = 0.51 of the way
    assert map_colour((1.03 * 3.0) ** 0.5) == "#7c9bcf"  # half way from db e7 f6 to 1d 4f a8


def test_ink_is_black_on_light_colours_and_white_on_dark_ones():
    assert [ink_on(colour) for colour in ("#ffffff", "#efe3d8", "#1d4fa8", "#000000")] == [
        "#000000", "#000000", "#ffffff", "#ffffff",
    ]  # fmt: skip
    assert contrast("#000000", "#ffffff") == pytest.approx(21.0)


def test_a_step_is_shown_part_by_part_in_milliseconds_and_shares_of_the_whole():
    step = decode_step(SCENARIO.setting, 8, 1024)
    (bar,) = two_steps([("plain", step)]).bars
    whole_ms = float(step.time_us) / 1000.0
    assert bar.total == pytest.approx(whole_ms)
    rows = step_rows([("plain", step)])
    assert sum(row["time_us"] for row in rows) == pytest.approx(float(step.time_us))
    assert sum(row["share"] for row in rows) == pytest.approx(1.0)
    assert all(row["time_us"] > 0.0 for row in rows)


def test_a_roof_is_drawn_from_below_the_least_intensity_to_above_the_ridge():
    gpu = SCENARIO.gpu
    peak, bandwidth = gpu.peak("bf16") / 1e12, gpu.bandwidth_bytes_per_s / 1e12
    ridge = peak / bandwidth
    for intensity, ends in (([1.0, 10.0], (0.25, 4 * ridge)), ([0.2, 5000.0], (0.1, 10_000.0))):
        chart = on_roof("made", gpu, "bf16", np.array(intensity), [])
        assert (chart.x.base, chart.y.base) == (10, 10)
        assert numbers(chart.x.title) == ["3.350", "989.4"]
        (roof,) = chart.series
        assert roof.x == pytest.approx([ends[0], ridge, ends[1]])
        assert roof.y == pytest.approx([ends[0] * bandwidth, peak, peak])


def test_an_overview_weighs_groups_by_their_rows():
    """10 rows err by 10 % and 30 by 2 %: 4 % on average; the furthest off is 30 % too fast."""
    same = {"kind": "step", "what": "", "engine": "vllm", "gpu": "h100-sxm", "model": "m", "family": "f",
            "weights": "bf16", "version": "", "gpus": "1", "requests": "1", "bias": 0.0, "fitted": "",
            "data": "", "source": ""}  # fmt: skip
    groups = [
        Group(**same, rows=10, error=0.10, worst=0.2, held=0.5, half_width=0.1, left_out=None),
        Group(**same, rows=30, error=0.02, worst=-0.3, held=0.9, half_width=0.1, left_out=None),
    ]
    other = msgspec.structs.replace(groups[0], gpu="b200")
    (one, two) = overview_table([*groups, other]).rows
    assert one[-4:] == ("40", percent(0.04), percent(0.8), "-30 %")
    assert two[-4:] == ("10", percent(0.1), percent(0.5), "+20 %")


@pytest.mark.parametrize(("largest", "no_more"), [(9.0, True), (10.0, True), (10.09, True), (10.11, False)])
def test_a_rate_within_what_a_search_tells_apart_is_no_more(largest, no_more):
    plain, drafting = (SimpleNamespace(largest_per_s=rate) for rate in (10.0, largest))
    assert carries_no_more(drafting, plain) is no_more
    assert carries_no_more(SimpleNamespace(largest_per_s=None), plain)


def test_other_counts_are_shown_by_what_they_gain_where_the_row_is_not_among_the_best():
    """1.5 for 1.2 is 25 % faster; 1.495 is as good as 1.5."""

    def told(drafts: int, speedup: float, unit: str = "draft", *, chains: bool = True) -> str:
        row = SimpleNamespace(
            drafts=drafts, speedup_at_batch_min=speedup, batch_min=1, batch_max=4, seq_len=512
        )
        gains = {1: 1.1, 2: 1.495, 3: 1.5, 4: 1.2}
        answer = SimpleNamespace(
            schedule=[row], question=SimpleNamespace(batch_min=1, seq_len=(512,)), chains=chains,
            by_drafts=[SimpleNamespace(drafts=each, speedup=gain) for each, gain in gains.items()],
            scenario=SimpleNamespace(drafting=SimpleNamespace(drafter_class=SimpleNamespace(unit=unit))),
        )  # fmt: skip
        return _drafts(answer)

    assert f"3 would be {percent(0.25)} faster" in told(4, 1.2)
    assert numbers(told(2, 1.495).partition(";")[2]) == ["2", "3", "1"]  # it takes 2, 3 is within 1 %
    assert numbers(told(3, 1.5).partition(";")[2]) == ["3", "2", "1"]
    assert f"3 would be {percent(1.5 / 1.1 - 1.0)} faster" in told(1, 1.1)
    assert "would be" not in told(0, 1.0)
    units = [
        "1 head" in told(2, 1.495, unit, chains=chains) for unit in ("head", "draft") for chains in (0, 1)
    ]
    assert units == [True, False, False, False]


def carried(policy: str, largest: float, **more: float) -> CarriedRates:
    return CarriedRates(
        policy=policy, saturated_per_s=40.0, saturated_tokens_per_s=1.0, largest_per_s=largest, off_from=None,
        **more,
    )  # fmt: skip


def within_limits(plain: float, *drafting: float) -> list[str]:
    """The numbers of the headline."""
    slos = Slos(tpot_s=0.02, share=0.9)
    every = [
        carried("none", plain, best_share=0.3),
        *(carried("3", each, best_share=0.7) for each in drafting),
    ]
    point = SimpleNamespace(mean={"e2e_mean_s": 0.5, "tpot_mean_s": 0.011})
    answer = SimpleNamespace(
        test=SimpleNamespace(slos=slos), points=[point], at_rate_of=lambda first: [first]
    )
    return re.findall(r"[\d.]*\d", " ".join(_within_limits(answer, every[0], every)))


def test_the_headline_of_limits_names_the_best_policy_with_its_rate_and_the_plain_one():
    """A limit of 20 ms, kept to 20.5 requests/s with drafts of 3 and to 12.5 without, saturated at 40."""
    assert within_limits(12.5, 15.5, 20.5) == ["3", "20.5", "20.0", "12.5", "40.0"]
    assert within_limits(20.5, 12.5) == ["3", "20.0", "12.5", "20.5", "500", "11.0"]
    assert within_limits(0.0, 0.0) == ["20.0", "90", "70.0", "3"]


@pytest.mark.parametrize(("half_s", "times_as_long"), [(0.29, None), (0.31, "3.1"), (1.2, "12")])
def test_a_first_token_that_waits_three_times_as_long_is_shown(half_s, times_as_long):
    loaded = SimpleNamespace(row={"ttft_ms": 100.0}, point=SimpleNamespace(mean={"ttft_p50_s": half_s}))
    found = re.findall(r"[\d.]*\d", queue_text(loaded))
    assert found == ([] if times_as_long is None else [times_as_long, "100"])


def cells_of(table: TextTable, row: tuple[str, ...]) -> dict[str, str]:
    return dict(zip(table.headers, row, strict=True))


def test_per_cent_is_written_in_one_place():
    """`93%` and `93 %` stood in one answer: Python's own format of shares has no blank."""
    sources = (Path(api.__file__).parent / "report").rglob("*.py")
    assert not [path.name for path in sources if re.search(r":[^{}\s]*%\}", path.read_text())]
    assert (percent(0.052, signed=True), percent(-0.31, 0, signed=True)) == ("+5.2 %", "-31 %")


def test_errors_of_groups_are_per_cent_with_their_sign():
    (first, *_) = groups()
    group = msgspec.structs.replace(first, error=0.052, bias=-0.031, worst=0.24, held=0.8, left_out=0.0712)
    told = cells_of(table := groups_table([group]), table.rows[0])
    names = ("mean error", "bias", "worst", "in band", "left out")
    assert [told[name] for name in names] == ["5.2 %", "-3.1 %", "+24 %", "80 %", "7.1 %"]
    bare = msgspec.structs.replace(group, held=None, left_out=None)
    assert not {"in band", "left out"} & set(groups_table([bare]).headers)
    both = groups_table([group, bare])
    assert [cells_of(both, row)["in band"] for row in both.rows] == ["80 %", "-"]


@pytest.fixture(scope="module")
def swept() -> tuple[list[Scenario], Grid]:
    both = [SCENARIO, SCENARIO.but(gpu="a100-80gb-sxm")]
    return both, Grid.of([1, 4, 16, 64], [512, 4096], range(1, 13))


def swept_rows(scenario: Scenario) -> pd.DataFrame:
    return api.Scenario(**scenario.arguments.values).sweep([1, 4, 16, 64], [512], range(1, 13))


def test_a_report_of_two_cards_has_their_best_counts_side_by_side(swept):
    scenarios, grid = swept
    table = compared([sweep_answer(each, grid) for each in scenarios])
    assert table.headers[2:] == ("batch 1", "batch 4", "batch 16", "batch 64")
    for scenario, row in zip(scenarios, table.rows, strict=True):
        rows = swept_rows(scenario)
        for batch, cell in zip((1, 4, 16, 64), row[2:], strict=True):
            best = rows[rows.batch == batch].sort_values("speedup").iloc[-1]
            count, gain = cell.split(": ")
            assert (int(count), float(gain.rstrip("x"))) == (
                best.candidates,
                pytest.approx(best.speedup, abs=0.006),
            )


def test_a_view_has_every_count_of_the_trees_up_to_the_best(swept):
    """Trees are searched to 256 candidates, whatever was asked, so that the best one is among them."""
    (scenario, _), _ = swept
    trees = Scenario(gpu="h100-sxm", runtime="cuda-graph", latency="roofline")
    view = length_view(trees, Grid.of([1], [512], [1, 2]), 512)
    best = price(trees, [1], [512], trees.options(256)).by_count
    counts = best.configurations.counts
    assert view.counts[-1] == counts[best.best_k()[0, 0]] > 2
    assert view.speedup[0, -1] == pytest.approx(best.speedup.max())
    assert length_view(scenario, Grid.of([1], [512], [1, 4]), 512).batch.tolist() == [1]


@pytest.mark.parametrize(
    ("candidates", "told"), [(4, (64, 60)), (32, (64, 60)), (40, (80, 65)), (200, (99, 90))]
)
def test_the_largest_count_that_is_quicker_is_shown_up_to_twice_the_rows_own(candidates, told):
    """And up to 64 in any case."""
    pairs = ((5, 6), (60, 64), (65, 80), (90, 99))
    row = SimpleNamespace(
        candidates=candidates, quicker_larger=pairs, batch_max=8, seq_len=512, meets_latency=None
    )
    question = SimpleNamespace(seq_len=(512,), max_latency_ms=None)
    answer = SimpleNamespace(question=question, schedule=[row], chains=False, capacities=())
    quicker = next(each for each in server_facts(answer) if each.label == "Quicker")
    more, less = map(int, re.findall(r"\d+", quicker.text)[:2])
    assert (more, less) == told


@pytest.mark.parametrize(("lengths", "numbers"), [([512], [64, 60, 4]), ([512, 900], [64, 60, 4, 900])])
def test_a_quicker_count_is_shown_with_its_length_where_there_are_several(monkeypatch, lengths, numbers):
    for name in ("by_batch", "acceptance_facts", "standing_fact", "memory_facts", "costs", "column_facts",
                 "kernel_facts"):  # fmt: skip
        monkeypatch.setattr(sweep_screen, name, lambda *_: ())
    monkeypatch.setattr(sweep_screen, "better_text", lambda answer: "")
    pair = SimpleNamespace(smaller=60, larger=64, batch=4, seq_len=lengths[-1])
    answer = SimpleNamespace(
        scenario=None,
        largest_count=64,
        in_engine=None,
        quicker=[pair],
        grid=SimpleNamespace(seq_len=np.array(lengths)),
    )
    (told,) = (fact.text for fact in sweep_screen.facts(answer) if fact.label == "Quicker")
    assert [int(each) for each in re.findall(r"\d+", told)] == numbers


@pytest.mark.parametrize(
    ("before", "told"), [([-1, 0, -1, 1], ["2", "4"]), ([-1, -1], []), ([-1, 0], ["1", "2"])]
)
def test_requests_that_follow_another_are_counted(before, told):
    """Those that name the place of one before them, the first of which is 0."""
    requests = SimpleNamespace(before=np.array(before), count=len(before), pause_s=None)
    test = SimpleNamespace(sample=requests)
    assert re.findall(r"\d+", " ".join(sessions_text(test))) == told


@pytest.mark.parametrize(
    ("candidates", "fits", "told"), [(1, True, "off"), (1, False, "no room"), (2, True, "1"), (4, True, "3")]
)
def test_a_row_of_a_schedule_tells_its_drafts_or_why_there_are_none(candidates, fits, told):
    late, kept, free = (
        run_text(
            SimpleNamespace(candidates=candidates, fits_memory=fits, meets_latency=meets), candidates - 1
        )
        for meets in (False, True, None)
    )
    assert kept == free == told
    assert (late != told) == fits  # a row without room has nothing that could be late


@pytest.mark.parametrize(
    ("rows", "most", "shown"),
    [
        (12, 12, range(12)), (13, 12, (0, 2, 4, 5, 6, 8, 10, 12)),
        (26, 12, (0, 3, 5, 6, 9, 12, 15, 18, 21, 24, 25)),
    ],
)  # fmt: skip
def test_a_long_frontier_is_thinned_and_keeps_what_is_chosen_and_its_ends(monkeypatch, rows, most, shown):
    """Every second of 13, every third of 26, the sixth because it is chosen."""
    frame = pd.DataFrame({"chosen": [place == 5 for place in range(rows)]})
    monkeypatch.setattr(compare_tables, "rows_table", lambda kept, title: kept.index.tolist())
    answer = SimpleNamespace(frontier=frame, measure="cost")
    assert compare_tables.frontier_table(answer, most) == list(shown)
    assert compare_tables.frontier_table(answer) == list(shown)  # as many as these in a page
    assert compare_tables.frontier_table(answer) == compare_tables.frontier_table(answer, 12)


def test_parts_of_a_table_in_markdown_have_one_header_and_every_row():
    parts = [pa.table({"batch": [first, first + 1, first + 2]}) for first in (1, 4)]
    lines = b"".join(markdown_parts(parts)).decode().splitlines()
    assert [line.strip("| ") for line in lines if re.search(r"\d", line)] == ["1", "2", "3", "4", "5", "6"]
    assert len(lines) == 2 + 6
