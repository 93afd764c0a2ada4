"""Errors, floors and choices by hand: of passes, ranges of sizes, generations and runs of a server."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from medusa_sim.acceptance.profile import load_acceptance
from medusa_sim.errors import CoverageError, DataError
from medusa_sim.gpus.gpu import load_gpu
from medusa_sim.lab.measure.cells import RunRow, StepRow
from medusa_sim.lab.measure.disagreement import halves_differ, speedups_differ
from medusa_sim.lab.measure.predicted_step import Gaps, Place, decoder_step, predicted_steps
from medusa_sim.lab.validate.comparison import ALLOWANCE, choice_of, comparison, disagreement
from medusa_sim.lab.validate.generations import _cells as run_cells
from medusa_sim.lab.validate.generations import _comparisons as run_comparisons
from medusa_sim.lab.validate.operators import Score, _kv_ranges, _m_ranges, _score, _token_ranges
from medusa_sim.lab.validate.regrets import regrets
from medusa_sim.lab.validate.score_tables import score_table, served_table
from medusa_sim.lab.validate.served import _setup, scenario_of
from medusa_sim.lab.validate.step_scores import (
    StepCell,
    _baseline,
    _floor,
    step_choices,
    step_comparisons,
)
from medusa_sim.latency.roofline import RooflineLatency
from medusa_sim.models.named import load_model
from medusa_sim.operators.attention import Attention
from medusa_sim.operators.gemm import Gemm
from medusa_sim.scenario.acceptance import constant_rate

GPU = load_gpu("h100-sxm")


def test_deviations_are_shares_of_what_was_measured():
    """Ratios of 1.2, 0.9 and 1.0: 10 % on average, 3.3 % too long, two of three within 2 + 10 %."""
    found = comparison("step", np.array([1.2, 0.9, 1.0]), [0.01, 0.03, math.nan], ["a", "b", "c"])
    assert (found.cells, found.worst_at) == (3, "a")
    assert [found.mean, found.worst, found.bias] == pytest.approx([0.1, 0.2, 0.1 / 3])
    assert (found.floor, found.within) == (pytest.approx(0.02), pytest.approx(2 / 3))
    assert comparison("step", np.array([1.05]), [math.nan], ["a"]).floor == 0.0


def test_passes_disagree_by_their_spread_and_halves_by_their_difference():
    assert disagreement((9.0, 11.0)) == pytest.approx(0.2)
    assert disagreement((9.0,)) == 0.0
    assert halves_differ([9.0, 11.0, 9.0, 11.0], np.mean) == pytest.approx(0.2)
    assert math.isnan(halves_differ([9.0], np.mean))


def test_a_choice_gives_away_what_the_best_would_have_gained():
    """Chosen by prediction 4, best 16: 1.5 of 2.0 is kept, two places further on the grid."""
    found = choice_of("m", 2, (1, 4, 8, 16), np.array([1.0, 1.5, 1.8, 2.0]), np.array([1.0, 3.0, 2.0, 1.0]))
    assert (found.predicted, found.measured, found.grid_steps) == (4, 16, 2)
    assert found.regret == pytest.approx(0.25)


# Steps of the decoder.


def cell(count: int, passes: tuple[float, ...], predicted: float, tokens: float = 1.0, **more: Any) -> Any:
    """A step of length 64; measured is the lower quartile of its passes."""
    given = {"model": "m", "batch": 1, "seq_len": 64, "is_fitted": False, **more}
    return StepCell(
        **given, candidates=count, tokens_per_step=tokens, measured_us=float(np.quantile(passes, 0.25)),
        passes_us=passes, predicted_us=predicted,
    )  # fmt: skip


PLAIN = cell(1, (100.0, 100.0), 110.0)
TREE = cell(8, (150.0, 150.0), 120.0, tokens=3.0)
WIDE = cell(16, (200.0, 200.0), 220.0, tokens=3.2)


def test_steps_and_speedups_are_scored_by_hand():
    """Decoding 10 % too long, verification 20 % too short and 10 % too long."""
    plain, verify, speedup = step_comparisons([PLAIN, TREE, WIDE])
    assert (plain.mean, verify.mean) == (pytest.approx(0.1), pytest.approx(0.15))
    assert (verify.worst, verify.bias) == (pytest.approx(0.2), pytest.approx(-0.05))
    ratios = [110 / 120 / (100 / 150), 110 / 220 / (100 / 200)]
    assert speedup.mean == pytest.approx(np.mean(np.abs(np.array(ratios) - 1.0)))
    assert [each.quantity for each in step_comparisons([PLAIN])] == ["decode step"]
    fitted = cell(1, (100.0, 100.0), 110.0, is_fitted=True)
    assert [each.quantity for each in step_comparisons([fitted, TREE])] == ["verify step", "speedup"]


def test_the_best_count_is_that_of_tokens_over_time():
    """3 tokens in 150 us gain 2.0 over one in 100, 3.2 in 200 gain 1.6."""
    (found,) = step_choices([WIDE, PLAIN, TREE])
    assert (found.measured, found.predicted) == (8, 8)
    assert found.gain == pytest.approx(2.0)
    assert (found.regret, found.floor) == (0.0, 0.0)
    assert step_choices([PLAIN]) == []
    with pytest.raises(CoverageError, match="no decoding step"):
        _baseline([cell(1, (1.0,), 1.0, batch=2), cell(1, (1.0,), 1.0, seq_len=8)], TREE)


def test_gains_are_known_as_far_as_halves_of_the_passes_agree():
    """Plain steps of 100 in one half and 110 in the other: gains differ by a tenth of their mean."""
    plain = cell(1, (100.0, 110.0), 100.0)
    floor = 2.0 * (110 - 100) / (110 + 100)
    assert _floor([plain, TREE], plain, TREE) == pytest.approx(floor)
    # of all trees on average, if that is more
    odd = cell(16, (200.0, 110.0), 200.0)
    other = 2.0 * abs(100 / 200 - 110 / 110) / (100 / 200 + 110 / 110)
    assert _floor([plain, TREE, odd], plain, TREE) == pytest.approx((floor + other) / 2)
    assert _floor([plain, TREE], plain, cell(8, (150.0,), 120.0)) is None
    rows = [
        StepRow(model="m", dtype="fp32", batch=1, seq_len=64, candidates=count, depth=0, repetition=place,
                tokens_per_step=1.0, time_us=us, p10_us=us, p90_us=us, repeats=1)
        for count, passes in ((1, (100.0, 110.0)), (8, (150.0, 150.0)), (16, (200.0, 110.0)))
        for place, us in enumerate(passes)
    ]  # fmt: skip
    assert speedups_differ(rows) == pytest.approx((floor + other) / 2)


def test_gaps_are_what_the_first_steps_take_beside_their_kernels():
    """60 us of a plain step, 90 of a tree's; none where kernels alone take longer."""
    plain, tree, wide = (Place(1, 64, count, 2) for count in (1, 8, 16))
    kernels_us = {plain: 100.0, tree: 200.0, wide: 300.0}
    found = predicted_steps(kernels_us, {plain: 160.0, tree: 290.0, wide: 1.0})
    assert (found.gaps.step_us(1), found.gaps.step_us(8)) == (60.0, 90.0)
    assert found.step_us == {plain: 160.0, tree: 290.0, wide: 390.0}
    assert found.fitted_to == [plain, tree]
    assert predicted_steps(kernels_us, dict.fromkeys(kernels_us, 95.0)).gaps == Gaps()
    assert predicted_steps({plain: 100.0}, {plain: 160.0}).gaps.speculative_us == 60.0


def test_a_verification_step_makes_its_mask_in_three_passes_over_all_keys():
    """Batch x candidates x (length + candidates) of them, in rows of the width of the model; else none."""
    model, asked = load_model("llama-160m"), []
    latency = RooflineLatency(GPU)

    class Asked:
        gpu, name = latency.gpu, latency.name

        def time(self, operator: object) -> object:
            asked.append(operator)
            return latency.time(operator)

    decoder_step(model, Asked(), 2, 100, 8, 3)
    (mask,) = [each for each in asked if each.name == "mask"]
    assert (int(mask.m), int(mask.n)) == (-(-2 * 8 * 108 // model.hidden), model.hidden)
    asked.clear()
    decoder_step(model, Asked(), 2, 100, 1, 0)
    assert not [each for each in asked if each.name == "mask"]


# Whole generations.


def run(candidates: int, step_us: float, tokens: float = 1.0, batch: int = 1, repetition: int = 0) -> RunRow:
    return RunRow(
        model="m", dtype="fp32", acceptance="made", batch=batch, candidates=candidates, depth=1, seq_len=64,
        repetition=repetition, steps=10, tokens_per_step=tokens, step_us=step_us,
    )  # fmt: skip


def test_a_generations_speedup_is_tokens_times_the_plain_step_over_its_own():
    """Kernels of 80 and 100 us beside fastest steps of 100 and 150 leave 20 and 50 us for the others."""
    rows = [run(1, 100.0), run(2, 150.0, 1.5), run(4, 190.0, 2.0)]
    rows += [run(1, 110.0, repetition=1), run(2, 165.0, 1.7, repetition=1), run(4, 200.0, 2.2, repetition=1)]
    heads = constant_rate(0.5, 3).heads
    kernels = {Place(1, 64, count, 1): us for count, us in ((1, 80.0), (2, 100.0), (4, 130.0))}
    plain, two, four = run_cells(rows, kernels, heads)
    assert (plain.is_fitted, two.is_fitted, four.is_fitted) == (True, True, False)
    assert [each.predicted_step_us for each in (plain, two, four)] == [100.0, 150.0, 180.0]
    assert [each.predicted_tokens_per_step for each in (plain, two, four)] == [1.0, 1.5, 1.875]
    assert (four.step_us, four.tokens_per_step) == (190.0, pytest.approx(2.1))
    assert four.speedup == pytest.approx(2.1 * 100 / 190)
    assert four.speedups == pytest.approx((2.0 * 100 / 190, 2.2 * 110 / 200))
    assert four.predicted_speedup == pytest.approx(1.875 * 100 / 180)
    tokens, speedup = run_comparisons([plain, two, four])
    assert tokens.mean == pytest.approx((abs(1.5 / 1.6 - 1) + abs(1.875 / 2.1 - 1)) / 2)
    assert (tokens.cells, tokens.floor) == (2, 0.0)
    assert tokens.within == (abs(1.5 / 1.6 - 1) < ALLOWANCE) / 2 + (abs(1.875 / 2.1 - 1) < ALLOWANCE) / 2
    again = replace(two, batch=two.batch + 1, tokens_per_step=9.0)
    assert run_comparisons([plain, two, four, again])[0] == tokens  # at the smallest batch alone
    first, second = four.speedups
    assert speedup.floor == pytest.approx(
        (max(first, second) - min(first, second)) / np.mean([first, second])
    )
    assert speedup.cells == 1
    assert speedup.mean == pytest.approx(abs(1.875 * 100 / 180 / (2.1 * 100 / 190) - 1))
    with pytest.raises(DataError, match="plain ones"):
        run_cells([run(1, 1.0)], kernels, heads)
    with pytest.raises(DataError, match="plain ones"):
        run_cells([run(1, 1.0), run(2, 1.0, batch=2)], kernels, heads)
    (faster, *_) = run_cells([run(1, 70.0), run(2, 90.0)], kernels, heads)
    assert faster.predicted_step_us == 80.0  # kernels that take longer than the step leave nothing beside


# Rows of operators.


def kept(ranges: list[tuple[str, np.ndarray]], sizes: np.ndarray) -> dict[str, list[int]]:
    return {label: sizes[mask].tolist() for label, mask in ranges}


def test_ranges_of_sizes_hold_their_ends():
    m = np.array([1, 16, 17, 128, 129, 512, 513, 1024, 2000])
    operator = Gemm(name="rows", m=m, n=np.full(9, 64), k=np.full(9, 64), dtype="fp16")
    found = kept(_m_ranges(operator, GPU), m)
    apart = [size for label, sizes in found.items() if ".." in label or ">" in label for size in sizes]
    assert sorted(apart) == m.tolist()  # each once
    assert found["m <= 512"] == [1, 16, 17, 128, 129, 512]
    for label, sizes in found.items():
        if ".." in label:
            low, high = map(int, label.removeprefix("m ").split(".."))
            assert sizes == [size for size in m if low <= size <= high]
    labels = [label for label, _ in _token_ranges(operator, GPU)]
    assert labels[-1] == "tokens <= 512"
    kv = GPU.l2_bytes / (2 * 2 * 128)  # tokens of one head in 16 bits, K and V, that fill the cache
    lengths = np.array([kv, kv + 8, 2 * kv, 2 * kv + 8])
    one = np.ones(4)
    attention = Attention(
        name="a", kind="decode_attention", dtype="bf16", batch=one, q_len=one, kv_len=lengths, heads=one,
        kv_heads=one, head_dim=np.full(4, 128),
    )  # fmt: skip
    assert [mask.tolist() for _, mask in _kv_ranges(attention, GPU)] == [
        [True, False, False, False], [False, True, True, False], [False, False, False, True],
    ]  # fmt: skip


def test_a_score_is_mean_median_ninth_decile_and_share_in_the_band():
    """Errors of 0 to 10 % over eleven rows: 5 % in mean and median, 9 % at nine tenths."""
    predicted = 100.0 * (1.0 + np.arange(11) / 100)
    sizes = {"m": 1, "n": 8, "k": 8}
    times = {"time_us": 100.0, "predicted_us": predicted, "low_us": predicted - 4, "high_us": 200.0}
    frame = pd.DataFrame({**times, **sizes})
    found = _score(frame, "linear", "fp16", "all")
    assert [found.mean, found.median, found.p90, found.worst, found.bias] == pytest.approx(
        [0.05, 0.05, 0.09, 0.1, 0.05]
    )
    assert found.within_band == pytest.approx(5 / 11)  # to 4 % of error the lower end lies below
    assert found.rows == 11


def test_regret_of_linear_layers_is_what_the_chosen_count_gives_away():
    """A layer of two products. Measured 64 rows cost twice as much as one, predicted they are free."""
    sizes = [1, 2, *range(16, 257, 8)]
    rows = [
        {"model": "made", "op": op, "m": m, "n": 64, "k": 64, "time_us": 5.0 if m < 64 else 10.0,
         "predicted_us": 5.0}
        for op in ("up", "down") for m in sizes
    ]  # fmt: skip
    curve = load_acceptance("paper-fig4-sparse")
    (found,) = regrets(pd.DataFrame(rows), curve)
    tokens = {count: float(curve.tokens_per_step(count)) for count in (24, 56, 64, 128)}
    given_away = [  # the largest counts that are still free for one and for two requests, and 128
        {count: 1.0 - tokens[count] / 20.0 / (tokens[best] / 10.0) for count in (64, 128)}
        for best in (56, 24)
    ]
    one, two = given_away
    assert one[128] > two[128] + 0.05
    assert (found.cases, found.worst_at) == (2, "batch 1: 128 for 56")
    assert [found.mean, found.worst] == pytest.approx([(one[128] + two[128]) / 2, one[128]])
    assert found.always_64 == pytest.approx((one[64] + two[64]) / 2)
    assert regrets(pd.DataFrame(rows[:4]), curve) == []  # one product is no layer
    four = [1, 16, 24, 32]
    assert [each.cases for each in regrets(pd.DataFrame([r for r in rows if r["m"] in four]), curve)] == [1]
    few = pd.DataFrame([row for row in rows if row["m"] in (1, 16, 24)])
    assert regrets(few, curve) == []


# Runs of one's own server.


def test_a_set_up_is_read_cell_by_cell():
    assert _setup("tp", "8", "x") == _setup("tp", "8.0", "x") == 8
    assert [_setup("tp", text, "x") for text in ("1", "1024", "")] == [1, 1024, None]
    assert [_setup("dp_attention", text, "x") for text in ("true", "")] == [True, False]
    for name, text in (("tp", "0"), ("tp", "1025"), ("tp", "1.5"), ("dp_attention", "perhaps"), ("gpu", "")):
        with pytest.raises(DataError):
            _setup(name, text, "x")


def test_a_run_with_drafts_is_priced_at_the_acceptance_that_it_had():
    given = {"gpu": "h100-sxm", "model": "llama-3.1-8b", "runtime": "vllm-0.15"}
    run_ = {**given, "prompt": 512.0, "output": 256.0}
    drafted = scenario_of({**run_, "drafter": "eagle3", "drafts": 3, "acceptance_length": 2.5})
    assert (drafted.profile.name, drafted.depth) == ("2.5@3", 3)
    assert (drafted.traffic.prompt_tokens, drafted.traffic.output_tokens) == (512.0, 256.0)
    always = scenario_of({**run_, "drafter": "eagle3", "drafts": 3, "acceptance_length": 4.0})
    assert always.profile.name == "4@3"
    mean = scenario_of({**run_, "drafter": "eagle3", "drafts": 2.98, "acceptance_length": 3.2})
    assert (mean.profile.name, mean.depth) == ("3.2@3", 3)
    # 3.2 tokens a step are of three drafts at least, though 2.4 were drafted on average
    fewer = scenario_of({**run_, "drafter": "eagle3", "drafts": 2.4, "acceptance_length": 3.2})
    assert (fewer.profile.name, fewer.depth) == ("3.2@3", 3)
    assert scenario_of(run_).drafting.method == "ngram"


def test_errors_of_operators_are_shown_in_per_cent():
    score = Score(
        op="gemm", dtype="bf16", size="all", rows=7, mean=0.011, median=0.0204, p90=0.05, worst=0.271,
        worst_at="m 3", bias=-0.0031, ratio=0.0456, within_band=0.762,
    )  # fmt: skip
    (row,) = score_table([score], "x").rows
    assert row == (
        "gemm", "bf16", "all", "7", "1.1 %", "2.0 %", "5.0 %", "27 %", "-0.3 %", "4.6 %", "76 %", "m 3",
    )  # fmt: skip


def test_counts_are_chosen_where_two_or_more_were_measured():
    """Of four tokens for twice the time a choice; a batch with a plain step alone has none."""
    given = {"model": "m", "seq_len": 64, "passes_us": (9.0, 9.0), "is_fitted": False}
    cells = [
        StepCell(batch=1, candidates=1, tokens_per_step=1.0, measured_us=10.0, predicted_us=10.0, **given),
        StepCell(batch=1, candidates=4, tokens_per_step=3.0, measured_us=20.0, predicted_us=40.0, **given),
        StepCell(batch=2, candidates=1, tokens_per_step=1.0, measured_us=12.0, predicted_us=12.0, **given),
    ]
    (choice,) = step_choices(cells)
    assert (choice.batch, choice.measured, choice.predicted, choice.gain) == (1, 4, 1, 1.5)
    assert choice.regret == pytest.approx(1.0 - 1.0 / 1.5)


def test_a_run_of_a_server_that_names_no_split_is_of_one_gpu():
    given = {
        "gpu": "a", "model": "m", "weights": "bf16", "runtime": "vllm", "concurrency": 8.0, "prompt": 512.0,
        "output": 128.0, "measured_ms": 10.0, "predicted_ms": 11.0, "low_ms": 9.0, "high_ms": 13.0,
        "error": 0.1, "held": True, "class": "as fitted", "expected_error": 0.05,
    }  # fmt: skip
    table = served_table(pd.DataFrame([{**given, "tp": None}, {**given, "tp": 4.0}]))
    assert [row[table.headers.index("GPUs")] for row in table.rows] == ["1", "4"]
    assert [row[table.headers.index("error")] for row in table.rows] == ["+10.0 %"] * 2
