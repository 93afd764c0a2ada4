"""The joint search and its answer, on the roofline so that nothing depends on fitted numbers."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import pytest

from medusa_sim.acceptance.heads import HeadAccuracy, expected_tokens_per_step
from medusa_sim.acceptance.profile import AcceptanceProfile, load_acceptance
from medusa_sim.acceptance.shaped import ShapedAcceptance
from medusa_sim.errors import UsageError
from medusa_sim.latency.cached import CachedLatency
from medusa_sim.latency.roofline import RooflineLatency
from medusa_sim.operators.operator import Gemm
from medusa_sim.plan.acceptance import acceptance_of, constant_rate
from medusa_sim.plan.break_even import BreakEven, crossing, last_crossing
from medusa_sim.plan.draft_options import Drafting, draft_options
from medusa_sim.plan.recommend import Question, Recommendation, recommend
from medusa_sim.plan.scenario import sweep_settings
from medusa_sim.plan.surface import PLAIN, searched
from medusa_sim.specs.models import load_model
from medusa_sim.specs.runtime import load_runtime, runtime_names
from medusa_sim.step.memory import step_memory_bytes, usable_memory_bytes
from medusa_sim.step.step import decode_step, verify_step

BASE = sweep_settings(latency="roofline", drafter="ngram")[0]
GPU, SETTING = BASE.gpu, BASE.setting
ACCURACY = np.array(
    [
        [0.58, 0.11, 0.06, 0.04, 0.03],
        [0.36, 0.11, 0.06, 0.04, 0.03],
        [0.24, 0.09, 0.06, 0.04, 0.03],
        [0.17, 0.08, 0.05, 0.04, 0.03],
    ]
)


def profile_of(accuracy: np.ndarray, labels: list[int] | None = None) -> AcceptanceProfile:
    heads = HeadAccuracy.checked(accuracy, labels)
    return AcceptanceProfile("made", "head-topk", "made", "made for a test", ShapedAcceptance("made", heads))


HEADS = profile_of(ACCURACY, [5000] * 4)


@pytest.fixture(scope="module")
def answer() -> Recommendation:
    return recommend(
        GPU, SETTING, Drafting(heads=4), HEADS, Question(seq_len=(1024, 4096), request=(256, 128))
    )


def test_options_run_one_to_all_heads_and_every_chain() -> None:
    options = draft_options(Drafting(heads=4), HEADS, candidates_max=40)
    assert [(o.depth, o.chain) for o in options] == [(k, c) for c in (False, True) for k in (1, 2, 3, 4)]
    for option in options:
        largest = int(option.candidates[-1])
        tree = option.tree(largest)
        assert tree is not None
        assert tree.candidates == largest
        assert tree.depth <= option.depth
        assert option.tokens(largest) == pytest.approx(
            expected_tokens_per_step(tree, HEADS.heads.first(option.depth))
        )


def test_fewer_trained_heads_are_respected() -> None:
    assert max(o.depth for o in draft_options(Drafting(heads=2), HEADS)) == 2


@pytest.mark.parametrize("runtime", runtime_names())
def test_the_search_agrees_with_pricing_one_step_at_a_time(runtime: str) -> None:
    setting = replace(SETTING, runtime=load_runtime(runtime))
    options = draft_options(Drafting(heads=4), HEADS, candidates_max=24)
    surface = searched(GPU, setting, options, [1, 7, 33], [512, 3000])
    for j in range(0, surface.candidates.size, 5):
        option = surface.option_of(j)
        for i, batch in enumerate((1, 7, 33)):
            if option is None:
                expected = decode_step(setting, batch, 3000)
            else:
                drafting = replace(setting, drafter=option.drafter)
                expected = verify_step(drafting, batch, 3000, int(surface.candidates[j]))
            assert surface.step_us[i, 1, j] == pytest.approx(float(expected.time_us), rel=1e-9)
            assert surface.low_us[i, 1, j] == pytest.approx(float(expected.low_us), rel=1e-9)
            assert surface.high_us[i, 1, j] == pytest.approx(float(expected.high_us), rel=1e-9)
    assert (surface.step_us >= surface.decode_us[..., None]).all()


def test_the_choice_is_the_best_of_all_configurations_up_to_the_switching_gain(
    answer: Recommendation,
) -> None:
    surface = answer.surface
    for row in answer.schedule:
        s = answer.question.seq_len.index(row.seq_len)
        for at in range(row.batch_min - 1, row.batch_max):
            best = surface.speedup[at, s][surface.fits[at, s]].max(initial=1.0)
            chosen = surface.speedup[at, s, :][
                (surface.candidates == row.candidates)
                & np.isclose(surface.tokens_per_step, row.tokens_per_step)
            ].max()
            assert chosen > best * (1.0 - answer.question.switching_gain) - 1e-12


def test_rows_cover_every_batch_of_every_length_once(answer: Recommendation) -> None:
    for seq_len in answer.question.seq_len:
        rows = [row for row in answer.schedule if row.seq_len == seq_len]
        assert [row.batch_min for row in rows] == [1, *(row.batch_max + 1 for row in rows[:-1])]
        assert rows[-1].batch_max == 64


def test_rows_are_consistent(answer: Recommendation) -> None:
    for row in answer.schedule:
        assert row.speedup == pytest.approx(row.tokens_per_step / row.overhead)
        assert row.speedup_low <= row.speedup <= row.speedup_high
        assert row.tokens_per_s == pytest.approx(row.batch_max * row.tokens_per_s_per_user)
        assert row.tokens_per_s == pytest.approx(row.plain_tokens_per_s * row.speedup)
        if row.candidates > 1:
            assert row.paths is not None
            assert len(row.paths) == row.candidates - 1
            assert row.required_tokens_per_step == pytest.approx(row.overhead)
            assert (
                row.speedup_acceptance_minus_10_percent < row.speedup < row.speedup_acceptance_plus_10_percent
            )
            assert row.next_count is not None
            assert row.next_count.candidates == row.candidates + 1
            assert row.next_count.tokens_gain > 0.0
            assert row.chain_speedup is not None
            assert row.batch_max <= row.max_batch_with <= row.max_batch_without
            assert row.speedup_heads_on_accepted_row is not None
            assert row.speedup_heads_on_accepted_row > row.speedup


def test_larger_batches_never_get_more_candidates_on_the_roofline(answer: Recommendation) -> None:
    counts = [row.candidates for row in answer.schedule if row.seq_len == 1024]
    assert counts == sorted(counts, reverse=True)


def test_memory_at_width_is_exact(answer: Recommendation) -> None:
    for row in answer.schedule[:2]:
        option = next(o for o in answer.surface.options if o.depth == row.drafts and not o.chain)
        sizes = [
            float(step_memory_bytes(SETTING.model, option.drafter, batch, row.seq_len, row.candidates))
            for batch in (row.max_batch_with, row.max_batch_with + 1)
        ]
        assert sizes[0] <= usable_memory_bytes(GPU) < sizes[1]


def test_batches_without_room_stand_apart(answer: Recommendation) -> None:
    rows = [row for row in answer.schedule if row.seq_len == 4096]
    assert not rows[-1].fits_memory
    assert rows[-1].candidates == 1
    assert all(row.fits_memory for row in rows[:-1])
    assert rows[-1].batch_min == rows[-1].max_batch_without + 1


def test_the_acceptance_that_is_needed_breaks_even(answer: Recommendation) -> None:
    row = answer.schedule[0]
    option = next(o for o in answer.surface.options if o.depth == row.drafts and not o.chain)
    assert row.required_acceptance_factor is not None
    tokens = option.scaled_tokens(row.candidates, row.required_acceptance_factor)
    assert tokens == pytest.approx(row.required_tokens_per_step)


def test_scaled_accuracies_scale_the_tree_and_stop_at_certainty() -> None:
    (option,) = (o for o in draft_options(Drafting(heads=4), HEADS) if o.depth == 2 and not o.chain)
    tree = option.tree(12)
    assert tree is not None
    scaled = HeadAccuracy.checked(ACCURACY[:2] * 0.9)
    assert option.scaled_tokens(12, 0.9) == pytest.approx(expected_tokens_per_step(tree, scaled))
    assert option.scaled_tokens(12, 1.0) == pytest.approx(option.tokens(12))
    assert option.scaled_tokens(12, 100.0) <= 3.0  # two drafts and the root's own token


def test_a_useless_drafter_is_refused_with_what_it_would_need() -> None:
    bad = profile_of(np.full((3, 1), 0.02))
    answer = recommend(GPU, SETTING, Drafting(heads=3), bad, Question(batch_max=8))
    assert not answer.enable
    assert answer.break_even_batch == 1
    assert {row.candidates for row in answer.schedule} == {1}
    assert answer.hardest.speculative_speedup < 1.0
    assert answer.hardest.required_tokens_per_step > 1.02


def test_a_free_and_certain_drafter_pays_everywhere_it_fits() -> None:
    answer = recommend(GPU, SETTING, Drafting(method="ngram"), constant_rate(1.0), Question(batch_max=16))
    assert answer.enable
    assert all(row.candidates > 1 for row in answer.schedule)


def test_chain_drafters_pay_for_depth() -> None:
    drafting = Drafting(method="draft-model", draft=load_model("llama-68m"))
    answer = recommend(GPU, SETTING, drafting, constant_rate(0.8), Question(batch_max=4))
    row = answer.schedule[0]
    assert row.chain
    assert row.candidates == row.drafts + 1
    gains = [entry.speedup for entry in answer.by_drafts]
    assert gains[-1] < max(gains)  # sixteen drafts are too many


def test_width_options_of_layer_drafters_keep_that_many_children() -> None:
    options = draft_options(Drafting(method="eagle"), HEADS, candidates_max=30)
    widths = {o.width for o in options}
    assert widths == {1, 2, 4}
    for option in options:
        tree = option.tree(int(option.candidates[-1]))
        assert tree is not None
        assert tree.ranks_used <= option.width
        for level in range(1, tree.depth + 1):
            expanded = {path[: level - 1] for path in tree.paths if len(path) == level}
            assert len(expanded) <= option.width


def test_free_budget_is_the_largest_count_within_ten_percent(answer: Recommendation) -> None:
    surface = answer.surface
    row = answer.schedule[0]
    at = row.batch_max - 1
    index = next(i for i, o in enumerate(surface.options) if o.depth == row.drafts and not o.chain)
    overhead = surface.step_us[at, 0, surface.option == index] / surface.decode_us[at, 0]
    assert (overhead[: row.free_candidates - 1] <= 1.10 + 1e-9).all()
    assert overhead[row.free_candidates - 1] > 1.10
    assert answer.free_candidates_by_batch[row.batch_max] <= row.free_candidates


def test_break_even_is_where_the_best_speedup_stays_at_or_below_one() -> None:
    weak = profile_of(np.array([[0.25, 0.05], [0.08, 0.02]]))
    setting = replace(SETTING, depth=2)
    answer = recommend(GPU, setting, Drafting(heads=2), weak, Question(batch_max=64, seq_len=(128,)))
    batch = answer.break_even_batch
    assert batch is not None
    assert batch > 1
    options = draft_options(Drafting(heads=2), weak)
    surface = searched(GPU, setting, options, [batch - 1, batch, *range(batch + 1, batch + 40)], [128])
    best = surface.speedup[:, 0, 1:].max(axis=-1)
    assert best[0] > 1.0
    assert (best[1:] <= 1.0).all()


@pytest.mark.parametrize(
    ("pays", "expected"),
    [
        ([True, True, False], (2, "loses from")),
        ([True, False, True], (2, "pays from")),
        ([True, True, True], (0, "pays throughout")),
        ([False, False], (0, "loses throughout")),
        ([False, True, False, False], (2, "loses from")),
    ],
)
def test_the_last_crossing_counts(pays: list[bool], expected: tuple[int, str]) -> None:
    assert last_crossing(np.array(pays)) == expected


@pytest.mark.parametrize("edge", [2, 97, 640, 999])
def test_crossings_are_found_to_the_whole_number(edge: int) -> None:
    values = np.array([1, 10, 100, 1000])
    found = crossing(values, lambda at: np.asarray(at) < edge)
    assert found == BreakEven(at=edge, direction="loses from", searched_from=1, searched_to=1000)
    assert found.loses_from == edge
    assert crossing(values, lambda at: np.asarray(at) >= edge).loses_from is None


def test_throughput_objective_compares_operating_points() -> None:
    question = Question(objective="throughput", batch_max=48)
    answer = recommend(GPU, SETTING, Drafting(heads=4), HEADS, question)
    assert answer.best_with is not None
    assert answer.best_without is not None
    assert answer.enable == (answer.best_with.tokens_per_s > 1.03 * answer.best_without.tokens_per_s)
    limited = recommend(GPU, SETTING, Drafting(heads=4), HEADS, replace(question, max_latency_ms=8.0))
    assert limited.best_with is not None
    assert limited.best_with.time_per_token_ms <= 8.0
    assert limited.best_with.tokens_per_s < answer.best_with.tokens_per_s
    assert {row.meets_latency for row in limited.schedule} == {True, False}


def test_capacity_names_the_batch_that_memory_takes(answer: Recommendation) -> None:
    for capacity in answer.capacities:
        assert capacity.max_batch_with <= capacity.max_batch_without
        assert capacity.without_speculation is not None
        assert capacity.without_speculation.batch <= capacity.max_batch_without
        assert capacity.gain is not None


def test_a_model_too_large_for_the_card_is_said() -> None:
    large = sweep_settings(("l4",), ("vicuna-33b",), latency="roofline", drafter="ngram")[0]
    answer = recommend(large.gpu, large.setting, Drafting(heads=4), HEADS, Question(batch_max=2))
    assert not answer.enable
    assert not any(row.fits_memory for row in answer.schedule)
    assert answer.capacities[0].max_batch_without == 0


def test_requests_are_answered_at_both_ends(answer: Recommendation) -> None:
    assert [r.batch for r in answer.requests] == [1, 64]
    assert answer.requests[0].speedup > 1.0


def test_lossless_lowers_a_curve_and_leaves_accuracies() -> None:
    curve, greedy = (acceptance_of("paper-fig4-sparse", "medusa", lossless=flag) for flag in (False, True))
    assert float(greedy.tokens_per_step(64)) < float(curve.tokens_per_step(64))
    name = "medusa1-vicuna-7b"
    assert acceptance_of(name, "medusa", lossless=True).ratio == load_acceptance(name).ratio == 1.0
    coding = acceptance_of("paper-fig4-sparse", "medusa", workload="coding")
    assert float(coding.tokens_per_step(64)) > float(curve.tokens_per_step(64))


def test_one_rate_is_a_chain() -> None:
    profile = acceptance_of("0.5", "eagle")
    assert float(profile.tokens_per_step(3)) == pytest.approx(1.75)


def test_what_was_computed_is_remembered_and_equal() -> None:
    roofline = RooflineLatency(GPU)
    known = CachedLatency(roofline)
    m = np.arange(1, 9)[:, None] * np.arange(1, 65)[None, :]
    gemm = Gemm(name="up", m=m, n=4096, k=4096, dtype="fp16")
    first = known.time(gemm)
    assert np.array_equal(first.time_us, roofline.time(gemm).time_us)
    assert known.time(replace(gemm, name="other")) is first
    assert known.time(replace(gemm, n=4097)) is not first
    assert known.time(replace(gemm, m=m + 1)) is not first


def test_plain_decoding_is_configuration_zero(answer: Recommendation) -> None:
    assert answer.surface.option_of(PLAIN) is None
    assert np.array_equal(answer.surface.speedup[..., PLAIN], np.ones((64, 2)))


@pytest.mark.parametrize(
    ("question", "told"),
    [
        ({"batch_min": 5, "batch_max": 4}, "smallest first"),
        ({"seq_len": ()}, "seq_len"),
        ({"objective": "speed"}, "unknown objective"),
        ({"max_latency_ms": 0.0}, "above 0"),
        ({"max_latency_ms": float("nan")}, "above 0"),
        ({"free_within": 0.5}, "from 1"),
    ],
)
def test_senseless_questions_are_refused(question: dict, told: str) -> None:
    with pytest.raises(UsageError, match=told):
        Question(**question)


@pytest.mark.parametrize(
    ("drafting", "acceptance", "told"),
    [
        ({"method": "eagle"}, "paper-fig4-sparse", "rate per position"),
        ({"method": "draft-model", "draft": load_model("llama-68m")}, "paper-fig21", "rate per position"),
    ],
)
def test_a_curve_describes_no_chain_drafter(drafting: dict, acceptance: str, told: str) -> None:
    with pytest.raises(UsageError, match=told):
        draft_options(Drafting(**drafting), load_acceptance(acceptance))


def test_other_refusals() -> None:
    with pytest.raises(UsageError, match="knows no chains"):
        draft_options(Drafting(), load_acceptance("paper-fig21"), chain_only=True)
    with pytest.raises(UsageError, match="needs --draft-model"):
        Drafting(method="draft-model")
    with pytest.raises(UsageError, match="takes no --draft-model"):
        Drafting(method="medusa", draft=load_model("llama-68m"))
    with pytest.raises(UsageError, match="unknown drafter"):
        Drafting(method="oracle")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="needs --acceptance"):
        acceptance_of(None, "mtp")
    for rate in (0.0, 1.5, float("nan")):
        with pytest.raises(UsageError, match="acceptance rate"):
            constant_rate(rate)
    with pytest.raises(UsageError, match="at least 2"):
        draft_options(Drafting(), HEADS, candidates_max=1)
    with pytest.raises(UsageError, match="too many"):
        searched(GPU, SETTING, draft_options(Drafting(), HEADS), np.arange(1, 4000), np.arange(1, 400))


def test_the_whole_search_takes_at_most_a_second() -> None:
    question = Question(batch_max=64, seq_len=(512, 1024, 2048, 4096), candidates_max=256)
    wide = profile_of(np.hstack([ACCURACY, np.full((4, 15), 0.01)]))
    taken = []
    for _ in range(3):
        start = time.process_time()
        recommend(GPU, SETTING, Drafting(heads=4), wide, question)
        taken.append(time.process_time() - start)
    assert min(taken) < 1.0
