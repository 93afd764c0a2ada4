"""What the papers print, and how predictions are counted beside it, by hand."""

import re
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from medusa_sim.acceptance.heads import chain_tokens_per_step
from medusa_sim.acceptance.profile import load_acceptance
from medusa_sim.gpus.gpu import load_gpu
from medusa_sim.lab.reproduce import recursive, reproduction
from medusa_sim.lab.reproduce.charts import _both, _speeds, reproduction_charts
from medusa_sim.lab.reproduce.decoding import _setting, overhead, table1, table3
from medusa_sim.lab.reproduce.published import BATCHES, CANDIDATES, SEQ_LENS, paper_latency
from medusa_sim.lab.reproduce.recursive import mbsu
from medusa_sim.lab.reproduce.screens import compared, score_screen, target_screen
from medusa_sim.lab.reproduce.targets import PREDICTED, TARGETS
from medusa_sim.lab.reproduce.token_rates import CONTEXT, PAPER_GPU, plain_step
from medusa_sim.scenario.scenario import Scenario
from medusa_sim.step.step import decode_step, prefill_step, speculative_step


def test_the_grids_are_the_papers():
    """Tables 6 to 8: powers of two from 1 to 64 sequences and 128 to 8,192 keys, 1 and 16 to 112 by 16."""
    assert tuple(2**power for power in range(7)) == BATCHES
    assert tuple(2**power for power in range(7, 14)) == SEQ_LENS
    assert (1, *range(16, 113, 16)) == CANDIDATES
    table7 = reproduction("table7").frame
    # one attention product of the paper's 52 heads of 128: 2 x 52 x 128 x 1024 x rows FLOP
    flops = table7.predicted_flops_per_s * table7.predicted_us / 1e6
    assert flops.to_numpy() == pytest.approx(
        2.0 * 52 * 128 * 1024 * (table7.batch * table7.candidates).to_numpy()
    )
    assert table7.seq_len.unique().tolist() == [1024]


@pytest.mark.parametrize("name", ["table6", "table8"])
def test_ratios_are_to_one_candidate_and_errors_to_what_is_printed(name):
    frame = reproduction(name).frame
    axis = "seq_len" if name == "table6" else "batch"
    first = frame[frame.candidates == 1].set_index(axis)
    for kind in ("published", "predicted"):
        ratio = frame[f"{kind}_us"].to_numpy() / first.loc[frame[axis], f"{kind}_us"].to_numpy()
        assert frame[f"{kind}_ratio"].to_numpy() == pytest.approx(ratio)
    assert frame.error.to_numpy() == pytest.approx((frame.predicted_us / frame.published_us - 1).to_numpy())
    ratio_error = frame.predicted_ratio / frame.published_ratio - 1
    assert frame.ratio_error.to_numpy() == pytest.approx(ratio_error.to_numpy())
    # what is printed are TFLOP/s: times and speeds of a row make the same FLOP
    printed, own = (frame[f"{kind}_flops_per_s"] * frame[f"{kind}_us"] for kind in ("published", "predicted"))
    assert (printed / own).to_numpy() == pytest.approx(1.0, rel=1e-5)


def test_differences_and_errors_of_speedups_are_signed():
    frame = reproduction("figure21").frame
    for name in ("fixed", "same"):
        speedup = frame[f"speedup_{name}"]
        assert frame[f"difference_{name}"].equals(speedup - frame.published_speedup)
        assert frame[f"error_{name}"].equals(speedup / frame.published_speedup - 1.0)
    assert (frame.batch.unique().tolist(), frame.seq_len.unique().tolist()) == ([1], [1024])
    figure23 = reproduction("figure23").frame
    assert figure23.batch.unique().tolist() == [4]
    plain = figure23.predicted_tokens_per_step * figure23.decode_step_us / figure23.verify_step_us
    assert plain.to_numpy() == pytest.approx(figure23.speedup_same.to_numpy())


def test_an_overhead_is_counted_as_the_paper_counts_it():
    """300 tokens behind a prompt of 200: 300 plain steps, or 300 / 3 and one more of 64 candidates."""
    setting = _setting("vicuna-7b", None)
    found = overhead(setting, 3.0)
    plain, whole = decode_step(setting, 1, 512), speculative_step(setting, 1, 512, 64)
    prompt_us = float(prefill_step(setting, 1, 200).time_us)
    decode_us, step_us = float(plain.time_us), float(whole.time_us)
    speedup = (prompt_us + 300 * decode_us) / (prompt_us + (300 / 3 + 1) * step_us)
    assert found["predicted_overhead"] == pytest.approx(3.0 / speedup)
    assert found["step_overhead"] == pytest.approx(step_us / decode_us)
    assert found["device_overhead"] == pytest.approx(float(whole.device_us / plain.device_us))
    assert found["decode_step_us"] == decode_us


def test_table_1_and_3_are_as_printed():
    frame = table1()
    assert _setting("vicuna-7b", None).compacted_drafts == 4
    assert list(frame.columns) == [
        "model", "published_overhead", "predicted_overhead", "difference", "device_overhead", "step_overhead",
        "decode_step_us", "published_tokens_per_s", "host_bound",
    ]  # fmt: skip
    assert frame.difference.equals(frame.predicted_overhead - frame.published_overhead)
    found = table3()
    assert found.published_speedup.tolist() == [1.5, 1.9, 2.2, 2.8]
    assert found.candidates.tolist()[0] == 6  # a chain of five heads
    assert found.candidates.tolist()[2:] == [64, 64]
    assert found.candidates[1] <= 64
    heads = load_acceptance("medusa1-vicuna-7b").heads
    assert found.tokens_per_step[0] == pytest.approx(float(chain_tokens_per_step(heads)[-1]))
    assert found.predicted_speedup.to_numpy() == pytest.approx(
        (found.tokens_per_step / found.predicted_overhead).to_numpy()
    )


def test_rates_of_one_table_follow_from_their_steps():
    """Draft lengths: (1 - a^(g + 1)) / (1 - a) tokens over the target's step and g draft steps."""
    frame = reproduction("figure7b").frame
    assert sorted(frame[frame.is_fitted].gamma.unique()) == [1, 3, 8]
    alpha, gamma = frame.acceptance_rate, frame.gamma
    tokens = (1 - alpha ** (gamma + 1)) / (1 - alpha)
    step_us = tokens / frame.predicted_tokens_per_s * 1e6
    for _, of_draft in frame.assign(step_us=step_us).groupby("draft"):
        draft_us, target_us = np.polyfit(of_draft.gamma, of_draft.step_us, 1)
        assert of_draft.step_us.to_numpy() == pytest.approx(
            (target_us + of_draft.gamma * draft_us).to_numpy()
        )
        assert 0.0 < draft_us < target_us
    assert frame.error.to_numpy() == pytest.approx(
        (frame.predicted_tokens_per_s / frame.published_tokens_per_s - 1).to_numpy()
    )
    plain = reproduction("table4").frame
    assert plain.error.to_numpy() == pytest.approx(
        (plain.predicted_tokens_per_s / plain.published_tokens_per_s - 1).to_numpy()
    )
    assert plain[plain.is_fitted].model.tolist() == ["vicuna-7b", "vicuna-13b"]


def test_rates_of_recursive_decoding_follow_from_two_times_a_target():
    frame = reproduction("rsd-token-rates").frame
    step_us = frame.target_step_us + frame.depth * frame.draft_step_us
    published = frame.published_tokens_per_s
    assert frame.error.to_numpy() == pytest.approx((frame.predicted_tokens_per_s / published - 1).to_numpy())
    # block efficiency over the step: the same in the prediction and in what was printed
    efficiency = frame.predicted_tokens_per_s * step_us / 1e6
    assert efficiency[frame.decoder == "AR"].to_numpy() == pytest.approx(1.0, rel=0.01)
    fitted = frame[frame.is_fitted]
    assert set(fitted.decoder) == {"SD"}
    assert set(fitted.depth) == {2, 4}
    assert mbsu(3.0, 4.0, 0.05) == pytest.approx(3.0 / 1.2)


def test_other_gpus_have_their_own_layers_and_the_a100s_cost_of_a_launch():
    a100, gpu = load_gpu("a100-80gb-pcie"), load_gpu("a40")
    launch_us = a100.kernel_set("paper").gemm["fp16"].ramp_us - a100.kernel_set("torch").gemm["fp16"].ramp_us
    found = paper_latency(gpu).gpu.kernel_set("paper").gemm["fp16"]
    own = gpu.kernel_set("torch").gemm["fp16"]
    assert launch_us > 0.0
    assert found.ramp_us == pytest.approx(own.ramp_us + launch_us)
    assert found.bandwidth_fraction == own.bandwidth_fraction


@pytest.mark.parametrize(
    ("target", "panels"),
    [("figure21", 1), ("figure22", 2), ("figure23", 2), ("table6", 2), ("table7", 2), ("rsd-figure1", 5)],
)
def test_panels_of_a_figure(target, panels):
    """Figures 22 and 23 over both baselines; tables as times and on the roofline."""
    charts = reproduction_charts(reproduction(target), load_gpu("a100-80gb-pcie"))
    assert len(charts) == panels
    assert target in TARGETS


def test_every_target_is_predicted():
    assert list(PREDICTED) == list(TARGETS)


def test_two_batches_have_a_panel_each_baseline():
    whole = reproduction("figure22")
    two = whole.frame[whole.frame["batch"].isin(sorted(set(whole.frame["batch"]))[:2])]
    assert len(set(two["batch"])) == 2
    assert len(reproduction_charts(replace(whole, frame=two), load_gpu(PAPER_GPU))) == 2


def test_open_marks_stand_where_values_are_published():
    import pandas as pd

    rows = pd.DataFrame({"candidates": [1, 2, 4], "own": [1.0, 2.0, 3.0], "printed": [1.1, np.nan, 3.3]})
    chart = _both("t", "y", [("one", rows, "own", "printed")])
    line, marks = chart.series
    assert line.y.tolist() == [1.0, 2.0, 3.0]
    assert (marks.x.tolist(), marks.y.tolist()) == ([1, 4], [1.1, 3.3])
    assert [row.get("published") for row in line.rows] == [1.1, None, 3.3]
    scales = [_both("t", "y", [("one", rows, "own", "printed")], base=base).y for base in (0, 10)]
    assert [(scale.base, scale.zero) for scale in scales] == [(0, True), (10, False)]


def test_speeds_are_drawn_in_teraflops_over_their_intensity():
    rows = pd.DataFrame({"operational_intensity": [2.0, 8.0], "speed": [5e12, 1.5e13]})
    drawn = _speeds("measured", 0, rows, "speed")
    assert (drawn.x.tolist(), drawn.y.tolist()) == ([2.0, 8.0], [5.0, 15.0])


@pytest.mark.parametrize(
    ("target", "columns"),
    [
        ("table6", ("published_us", "predicted_us")),
        ("figure18", ("published_flops_per_s", "predicted_flops_per_s")),
        ("figure22", ("published_speedup", "speedup_fixed")),
        ("rsd-figure4", ("published_block_efficiency", "predicted_block_efficiency")),
    ],
)
def test_every_printed_cell_stands_beside_its_prediction(target, columns):
    result = reproduction(target)
    assert compared(result.frame) == columns
    screen = target_screen(result)
    assert screen is not None
    (shown,) = screen.tables
    printed = result.frame.dropna(subset=columns[0])
    assert shown.headers[-3:] == ("published", "predicted", "error")
    errors = 100.0 * (printed[columns[1]] / printed[columns[0]] - 1.0)
    assert [row[-1] for row in shown.rows] == [f"{error:+.1f} %" for error in errors]
    assert f"{errors.abs().max():.1f} %" in screen.answer[0]


@pytest.mark.parametrize("target", ["table7", "figure9", "figure23", "rsd-figure1"])
def test_what_is_kept_out_has_nothing_to_stand_beside(target):
    assert target_screen(reproduction(target)) is None


def test_a_pair_is_predicted_from_its_chains_of_two_to_five(monkeypatch, tmp_path):
    """Chains of one and six, and trees but one that is asked for, are predicted from those."""
    seen: list[int] = []

    def efficiencies(known: list[object], shapes: list[object]) -> list[float]:
        seen.append(len(known))
        return [1.5] * len(shapes)

    monkeypatch.setattr(recursive, "predicted_efficiencies", efficiencies)
    rows = [*(("SD", str(length)) for length in range(1, 7)), ("RSD-C", "2-2"), ("RSD-C", "3-1")]
    common: dict[str, object] = dict.fromkeys(("target", "draft", "task", "experiment"), "x")
    common |= {"block_efficiency": 2.0, "draft_ratio": 0.1}
    path = tmp_path / "pairs.csv"
    pd.DataFrame([{**common, "decoder": name, "spec": spec} for name, spec in rows]).to_csv(path, index=False)
    table = recursive.pair_comparison(path, ("RSD-C", "3-1")).set_index(["decoder", "spec"])
    assert seen == [5]  # with the tree
    assert table.group.to_dict() == {
        ("SD", "1"): "long chain", **{("SD", str(length)): "observed" for length in (2, 3, 4, 5)},
        ("SD", "6"): "long chain", ("RSD-C", "2-2"): "RSD-C", ("RSD-C", "3-1"): "observed",
    }  # fmt: skip
    one = table.loc[("SD", "4")]
    assert (one.length, one.budget, one.error) == (4, 4, -0.25)
    assert (one.published_mbsu, one.predicted_mbsu) == pytest.approx((2.0 / 1.4, 1.5 / 1.4))


def test_the_worst_cell_is_named_by_what_tells_it_from_others():
    frame = pd.DataFrame({
        "model": ["a", "a", "a"], "batch": [1, 2, 4], "tokens": [8, 8, 16],
        "published_us": [10.0, 10.0, 10.0], "predicted_us": [11.0, 7.0, 12.0],
    })  # fmt: skip
    screen = target_screen(SimpleNamespace(frame=frame, title="", source="", caveat=""))
    assert screen is not None
    assert "30.0 % (batch 2, tokens 8)" in screen.answer[0]
    assert [row[-1] for row in screen.tables[0].rows] == ["+10.0 %", "-30.0 %", "+20.0 %"]


def test_a_plain_step_is_its_device_and_as_many_launches_as_its_host_takes():
    scenario = Scenario(gpu=PAPER_GPU, model="vicuna-7b", runtime="hf-eager")
    found = plain_step("vicuna-7b")
    step = decode_step(scenario.setting, 1, CONTEXT)
    assert found.device_us == float(step.device_us)
    assert found.launches * scenario.setting.runtime.host_us_per_launch == pytest.approx(float(step.host_us))
    assert 5 * 32 < found.launches < 100 * 32  # some tens a layer


def test_errors_of_targets_lie_between_the_least_and_the_most_differences_left_out():
    rows = [("a", "time", 0.02, 0.3), ("b", "time", 0.01, 0.1), ("c", "speedup difference", 0.5, 0.9)]
    scores = pd.DataFrame(
        [{"target": target, "quantity": quantity, "baseline": "", "cells": 2, "mean_error": mean,
          "worst_error": worst, "worst_cell": "x"} for target, quantity, mean, worst in rows]
    )  # fmt: skip
    screen = score_screen(scores, ["a", "b", "c"])
    assert re.findall(r"[\d.]+ %", screen.answer[0]) == ["1.0 %", "2.0 %", "30 %"]
    assert "(a, time)" in screen.answer[0]
    assert [row[4:6] for row in screen.tables[0].rows] == [
        ("2.0 %", "30.0 %"), ("1.0 %", "10.0 %"), ("0.500", "0.900"),
    ]  # fmt: skip


@pytest.mark.parametrize(("figure", "axis", "places"), [(4, "draft_length", [2, 3]), (5, "budget", [6, 14])])
def test_of_every_method_a_figure_of_recursive_decoding_shows_the_best_tree(figure, axis, places):
    """Each column by itself: the tree of the most published tokens need not be that of the most predicted."""
    each = {"pair": "p", "decoder": "d", "length": 2, "budget": 6, "experiments": "length and budget"}
    first, second, third = (2.0, 2.2, 1.4, 1.5), (2.1, 2.0, 1.3, 1.6), (2.5, 2.6, 1.1, 1.2)
    values = ("published", "predicted", "published_mbsu", "predicted_mbsu")
    rows = [
        each | dict(zip(values, first, strict=True)),
        each | dict(zip(values, second, strict=True)),
        each | {"length": 3, "budget": 14} | dict(zip(values, third, strict=True)),
        each | {"experiments": "neither"} | dict.fromkeys(values, 9.0),
    ]
    best = recursive.figure_rows(pd.DataFrame(rows), figure)
    assert best[axis].tolist() == places
    assert best[[*values]].to_numpy().tolist() == [[2.1, 2.2, 1.4, 1.6], list(third)]


@pytest.mark.parametrize(
    ("target", "charts"),
    [
        ("table8", [(14, 112, 56.125, 1084.6365), (3, 115, 678.0119, 161.15726)]),
        ("figure9", [(7, 787, 653.42779, 101.64886)]), ("figure18", [(3, 115, 38.567128, 44.308789)]),
        ("figure21", [(6, 48, 56.125, 2.0949743)]),
        ("figure22", [(14, 79, 58.417722, 1.3674001), (14, 79, 58.417722, 1.489201)]),
    ],
)  # fmt: skip
def test_curves_of_a_figure_have_the_points_of_their_rows(target, charts):
    """How many series and points, and the means of both axes: candidates and us, or intensity and TFLOP/s."""
    for chart, (series, points, x, y) in zip(
        reproduction_charts(reproduction(target), load_gpu("a100-80gb-pcie")), charts, strict=True
    ):
        every = np.concatenate([np.stack((each.x, each.y)) for each in chart.series], axis=1)
        assert (len(chart.series), every.shape[1]) == (series, points)
        assert np.mean(every, axis=1) == pytest.approx([x, y], rel=1e-6)


def test_two_distinct_tokens_are_the_whole_of_a_vocabulary_of_two():
    """Recursive rejection accepts one of them always; the optimum with replacement where draft is target."""
    draft, target = np.array([[0.3, 0.8], [0.0, 1.0]]), np.array([[0.6, 0.8], [0.5, 0.5]])
    found = recursive.bernoulli_acceptance(draft, target)
    assert found["Recur. Rej. Samp."] == pytest.approx(np.ones((2, 2)))
    assert found["OTM"][0, 1] == pytest.approx(1.0)
    assert found["OTM"][1] == pytest.approx([0.5, 0.5])
