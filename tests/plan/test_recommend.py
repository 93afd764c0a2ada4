"""The joint search and its answer, on the roofline so that nothing depends on fitted numbers."""

import re
from dataclasses import replace
from functools import partial
from itertools import product

import numpy as np
import pytest
from hypothesis import given as for_all
from hypothesis import settings
from hypothesis import strategies as st

from medusa_sim.acceptance.heads import HeadAccuracy, expected_tokens_per_step
from medusa_sim.acceptance.profile import AcceptanceProfile, load_acceptance
from medusa_sim.acceptance.shaped import ShapedAcceptance
from medusa_sim.errors import UsageError
from medusa_sim.grid.cells import price
from medusa_sim.grid.configurations import PLAIN
from medusa_sim.plan.break_even import BreakEven, find_break_even
from medusa_sim.plan.recommend import recommend
from medusa_sim.plan.recommendation import Recommendation
from medusa_sim.plan.sensitivity import factor_to_break_even
from medusa_sim.plan.verdict import LOSES, PAYS, KnownOdds, Stretch
from medusa_sim.scenario.question import EVERY_BATCH_TO, Question
from medusa_sim.scenario.scenario import Scenario
from medusa_sim.step.memory import step_memory_bytes, usable_memory_bytes

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
SCENARIO = Scenario(runtime="cuda-graph", latency="roofline", acceptance=HEADS)
GPU, SETTING = SCENARIO.gpu, SCENARIO.setting
SERVED = Scenario(
    gpu="h100-sxm", model="llama-3.1-8b", runtime="vllm", latency="roofline", drafter="eagle3",
    prompt_tokens=512, output_tokens=256,
)  # fmt: skip


def certainly(pays: np.ndarray) -> np.ndarray:
    """Codes of values of which it is known whether speculation pays."""
    return np.where(pays, PAYS, LOSES)


@pytest.fixture(scope="module")
def answer() -> Recommendation:
    """With prompts: speedups are the server's."""
    return recommend(SCENARIO, Question(seq_len=(1024, 4096), request=(256, 128)))


def test_options_run_one_to_all_trained_heads_and_every_chain():
    options = SCENARIO.options(40)
    assert [(o.depth, o.chain) for o in options] == [(k, c) for c in (False, True) for k in (1, 2, 3, 4)]
    for option in options:
        largest = int(option.candidates[-1])
        tree = option.tree(largest)
        assert tree.candidates == largest
        assert tree.depth <= option.depth
        assert option.tokens(largest) == pytest.approx(
            expected_tokens_per_step(tree, HEADS.heads.first(option.depth))
        )
    assert max(o.depth for o in SCENARIO.but(heads=2).options()) == 2


def test_the_choice_is_the_best_of_all_configurations_up_to_the_switching_gain(answer):
    cells = answer.cells
    for row in answer.schedule:
        s = answer.question.seq_len.index(row.seq_len)
        for at in range(row.batch_min - 1, row.batch_max):
            best = cells.speedup[at, s][cells.fits[at, s]].max(initial=1.0)
            chosen = cells.speedup[at, s, :][
                (cells.candidates[0, 0] == row.candidates)
                & np.isclose(cells.tokens_per_step[0, 0], row.tokens_per_step)
            ].max()
            assert chosen > best * (1.0 - answer.question.switching_gain) - 1e-12


def test_rows_cover_every_batch_once_and_are_consistent(answer):
    for seq_len in answer.question.seq_len:
        rows = [row for row in answer.schedule if row.seq_len == seq_len]
        assert [row.batch_min for row in rows] == [1, *(row.batch_max + 1 for row in rows[:-1])]
        assert rows[-1].batch_max == 64
    for row in answer.schedule:
        assert row.speedup_low <= row.speedup <= row.speedup_high
        of_streams = (
            row.batch_max * row.tokens_per_s_per_user
        )  # from a first token on; the rate reads prompts
        assert 0.9 * of_streams < row.tokens_per_s <= of_streams * (1.0 + 1e-12)
        assert row.tokens_per_s == pytest.approx(row.plain_tokens_per_s * row.speedup)
        if row.candidates > 1:
            assert row.paths is not None
            assert len(row.paths) == row.candidates - 1
            assert row.step_speedup == pytest.approx(row.tokens_per_step / row.overhead)
            # prompts ride on the steps of either, so that a server gains less and asks for more
            assert 1.0 < row.speedup < row.step_speedup
            assert row.overhead < row.required_tokens_per_step < row.tokens_per_step
            assert (
                row.speedup_acceptance_minus_10_percent < row.speedup < row.speedup_acceptance_plus_10_percent
            )
            if row.next_count is None:
                assert row.memory_bytes > 0.99 * usable_memory_bytes(GPU)
            else:
                assert row.next_count.candidates == row.candidates + 1
                assert row.next_count.tokens_gain > 0.0
            assert row.chain_speedup is not None
            assert row.batch_max <= row.max_batch_with <= row.max_batch_without
            assert row.speedup_heads_on_accepted_row > row.speedup
    counts = [row.candidates for row in answer.schedule if row.seq_len == 1024]
    assert counts == sorted(counts, reverse=True)
    rows = [row for row in answer.schedule if row.seq_len == 4096]
    assert not rows[-1].fits_memory
    assert rows[-1].candidates == 1
    assert all(row.fits_memory for row in rows[:-1])
    assert rows[-1].batch_min == rows[-1].max_batch_without + 1


def test_memory_capacity_and_requests_are_exact_at_both_ends(answer):
    for row in answer.schedule[:2]:
        option = next(o for o in answer.cells.configurations.options if o.depth == row.drafts and not o.chain)
        sizes = [
            float(step_memory_bytes(SETTING.model, option.drafter, batch, row.seq_len, row.candidates))
            for batch in (row.max_batch_with, row.max_batch_with + 1)
        ]
        assert sizes[0] <= usable_memory_bytes(GPU) < sizes[1]
    for capacity in answer.capacities:
        assert capacity.max_batch_with <= capacity.max_batch_without
        assert capacity.without_speculation.batch <= capacity.max_batch_without
        assert capacity.gain is not None
    assert [r.batch for r in answer.request_latencies] == [1, 64]
    assert answer.request_latencies[0].request_speedup > 1.0
    assert answer.cells.configurations.option_of(PLAIN) is None
    assert np.array_equal(answer.cells.speedup[..., PLAIN], np.ones((64, 2)))


def test_the_acceptance_that_is_needed_breaks_even(answer):
    row = answer.schedule[0]
    option = next(o for o in answer.cells.configurations.options if o.depth == row.drafts and not o.chain)
    assert row.required_acceptance_factor is not None
    tokens = option.scaled_tokens(row.candidates, row.required_acceptance_factor)
    assert tokens == pytest.approx(row.required_tokens_per_step)


ASKED = st.one_of(
    st.floats(1e-5, 1.0).map(lambda rate: {"drafter": "eagle3", "acceptance": rate}),
    st.lists(st.floats(1e-3, 1.0), min_size=1, max_size=6).map(
        lambda rates: {"drafter": "mtp", "model": "deepseek-r1", "tp": 8,
                       "acceptance": ",".join(map(repr, sorted(rates, reverse=True)))}
    ),
    st.sampled_from([{"acceptance": "medusa1-vicuna-7b"}, {"acceptance": "paper-fig21"}]),
    st.floats(0.001, 0.5).map(lambda rate: {"drafter": "ngram", "acceptance": f"{rate},{rate * rate}"}),
)  # fmt: skip


@settings(max_examples=40, deadline=None)
@for_all(asked=ASKED, share=st.floats(0.01, 0.999), place=st.integers(0, 10**6))
def test_the_factor_that_is_needed_is_found_however_large(asked, share, place):
    """The search ended at 16 times: at 0.01 "no acceptance" broke even where 0.3 gains."""
    options = Scenario(latency="roofline", **asked).options(64)
    option = options[place % len(options)]
    count = int(option.candidates[place % option.candidates.size])
    largest = option.most_factor(count)
    least, most = option.scaled_tokens(count, 0.0), option.scaled_tokens(count, largest)
    assert least == pytest.approx(1.0)
    assert 1.0 < most <= count * (1.0 + 1e-5)  # a gain of 1e-12 is rounded, and scaled up
    assert option.scaled_tokens(count, 2.0 * largest) == pytest.approx(most)
    required = 1.0 + share * (most - 1.0)

    def speedup_if(factors, step):
        return option.emission_chances_if(count, factors).sum(axis=-1) / step

    factor = factor_to_break_even(partial(speedup_if, step=required), largest)
    assert factor is not None
    assert option.scaled_tokens(count, factor) == pytest.approx(required, rel=1e-6)
    assert factor_to_break_even(partial(speedup_if, step=1.001 * most), largest) is None
    assert factor_to_break_even(partial(speedup_if, step=1.0), largest) == 0.0


@pytest.mark.parametrize(("drafts", "output"), [*product((1, 3), (2, 8, 256))])
def test_another_acceptance_gains_as_much_as_if_it_had_been_asked_for(drafts, output):
    """A request of few tokens ends in whole steps: a tenth more drafts are no tenth fewer steps."""
    rates = 0.75 * np.arange(1.0, 1.0 + drafts) ** -0.2
    scenario = SERVED.but(acceptance=given(rates), max_drafts=drafts, output_tokens=output)
    found = recommend(scenario, Question(batch_min=8, batch_max=8))
    row = found.schedule[0]
    count = row.speculative_candidates

    def priced(factor):
        other = scenario.but(acceptance=given(np.minimum(factor * rates, 1.0)))
        return price(other, [8], [row.seq_len]).by_count.speedup[0, 0, count - 1]

    if row.candidates > 1:
        assert row.speedup_acceptance_minus_10_percent == pytest.approx(priced(0.9), rel=1e-9)
        assert row.speedup_acceptance_plus_10_percent == pytest.approx(priced(1.1), rel=1e-9)
    factor = row.required_acceptance_factor
    if output == 2:
        assert factor is None  # one step is needed, whatever it emits
    else:
        assert factor is not None
        assert priced(factor) == pytest.approx(1.0, rel=1e-7)


def given(rates):
    """Rates of drafts of which each follows the one before, as an argument."""
    return "conditional:" + ",".join(map(repr, rates.tolist()))


def test_an_acceptance_too_low_says_by_how_much():
    scenario = Scenario(gpu="h100-sxm", model="llama-3.1-8b", drafter="eagle3", acceptance=0.01)
    row = recommend(scenario, Question(batch_max=64)).hardest
    assert row.required_acceptance_factor is not None
    enough = scenario.but(acceptance=1.01 * 0.01 * row.required_acceptance_factor)
    assert (
        recommend(
            enough, Question(batch_min=row.batch_max, batch_max=row.batch_max)
        ).hardest.speculative_speedup
        > 1
    )


def test_scaled_accuracies_scale_the_tree_and_stop_at_certainty():
    (option,) = (o for o in SCENARIO.options() if o.depth == 2 and not o.chain)
    tree = option.tree(12)
    assert tree is not None
    scaled = HeadAccuracy.checked(ACCURACY[:2] * 0.9)
    assert option.scaled_tokens(12, 0.9) == pytest.approx(expected_tokens_per_step(tree, scaled))
    assert option.scaled_tokens(12, 1.0) == pytest.approx(option.tokens(12))
    assert option.scaled_tokens(12, 100.0) <= 3.0  # two drafts and the root's own token


def test_a_rows_speedup_and_its_band_are_of_the_count_that_it_runs():
    scenario = Scenario(gpu="h100-sxm", model="llama-3.1-8b", drafter="eagle", latency="roofline")
    found = recommend(scenario, Question(batch_max=64))
    assert any(row.candidates != 1 + np.argmax(row.every.speedup[row.b, row.s]) for row in found.schedule)
    for row in found.schedule:
        assert row.candidates == row.speculative_candidates > 1
        assert row.speculative_speedup == row.speedup
        low, high = (row.cells.spread(end)[row.b, row.s, row.k] for end in row.cells.speedup_band)
        assert (row.speculative_speedup_low, row.speculative_speedup_high) == (low, high)


def test_useless_and_certain_drafters_and_models_too_large_are_answered():
    bad = profile_of(np.full((3, 1), 0.02))
    answer = recommend(SCENARIO.but(acceptance=bad), Question(batch_max=8))
    assert not answer.enable
    assert answer.break_even_batch == 1
    assert {row.candidates for row in answer.schedule} == {1}
    assert answer.hardest.speculative_speedup < 1.0
    assert answer.hardest.required_tokens_per_step > 1.02
    answer = recommend(SCENARIO.but(drafter="ngram", acceptance=1.0), Question(batch_max=16))
    assert answer.enable
    assert all(row.candidates > 1 for row in answer.schedule)
    answer = recommend(SCENARIO.but(gpu="l4", model="vicuna-33b"), Question(batch_max=2))
    assert not answer.enable
    assert not any(row.fits_memory for row in answer.schedule)
    assert answer.capacities[0].max_batch_without == 0


def test_chain_drafters_pay_for_depth():
    scenario = SCENARIO.but(drafter="draft-model", draft_model="llama-68m", acceptance=0.8)
    answer = recommend(scenario, Question(batch_max=4))
    row = answer.schedule[0]
    assert row.chain
    assert row.candidates == row.drafts + 1
    gains = [entry.speedup for entry in answer.by_drafts]
    assert gains[-1] < max(gains)  # sixteen drafts are too many


def test_other_counts_and_chains_are_those_that_fit():
    """On 24 GB five heads of a 7B leave room for 14 requests, one and two for 15, and none for 16."""
    scenario = SCENARIO.but(gpu="rtx-4090", model="vicuna-7b")
    for batch in (14, 15, 16):
        answer = recommend(scenario, Question(batch_min=batch, batch_max=batch))
        cells = answer.cells
        fitting = np.unique(cells.configurations.depth[1:][cells.fits[0, 0, 1:]]).tolist()
        assert [entry.drafts for entry in answer.by_drafts] == fitting
        assert all(entry.fits_memory for entry in answer.by_drafts)
        assert (answer.schedule[0].chain_speedup is None) == (not fitting)
    assert not fitting


def test_a_batch_between_two_searched_ones_is_answered_with_both():
    answer = recommend(SCENARIO, Question(batch_min=EVERY_BATCH_TO, batch_max=300))
    length, searched = answer.question.seq_len[0], set(answer.cells.surface.batch.tolist())
    missing = next(batch for batch in range(EVERY_BATCH_TO, 300) if batch not in searched)
    with pytest.raises(UsageError) as refused:
        answer.scheduled_row_at(missing, length)
    named = {int(each) for each in re.findall(r"\d+", str(refused.value).split("(")[0])}
    below, above = max(each for each in searched if each < missing), min(searched - set(range(missing)))
    assert named == {missing, length, below, above}
    with pytest.raises(UsageError, match=r"256\.\.300"):
        answer.scheduled_row_at(301, length)


def test_width_options_of_layer_drafters_keep_that_many_children():
    options = SCENARIO.but(drafter="eagle").options(30)
    widths = {o.width for o in options}
    assert widths == {1, 2, 4}
    for option in options:
        tree = option.tree(int(option.candidates[-1]))
        assert tree.ranks_used <= option.width
        for level in range(1, tree.depth + 1):
            expanded = {path[: level - 1] for path in tree.paths if len(path) == level}
            assert len(expanded) <= option.width


def test_break_even_is_where_the_best_speedup_stays_at_or_below_one():
    weak = profile_of(np.array([[0.25, 0.05], [0.08, 0.02]]))
    scenario = SCENARIO.but(acceptance=weak)
    answer = recommend(scenario, Question(batch_max=64, seq_len=(128,)))
    batch = answer.break_even_batch
    assert batch > 1
    cells = price(scenario, [batch - 1, batch, *range(batch + 1, batch + 40)], [128])
    best = cells.speedup[:, 0, 1:].max(axis=-1)
    assert best[0] > 1.0
    assert (best[1:] <= 1.0).all()
    assert answer.break_even_batches[0].spans == ((1, batch - 1),)


@pytest.mark.parametrize(
    ("pays", "at", "direction", "spans"),
    [
        ([True, True, False], 3, "loses from", ((1, 2),)),
        ([True, False, True], 3, "pays from", ((1, 1), (3, 3))),
        ([True, True, True], None, "pays throughout", ((1, 3),)),
        ([False, False], None, "loses throughout", ()),
        ([False, True, False, False], 3, "loses from", ((2, 2),)),
    ],
)
def test_the_last_crossing_leads(pays, at, direction, spans):
    values = np.arange(1, len(pays) + 1)
    found = find_break_even(KnownOdds(values, certainly(np.array(pays))), pytest.fail)
    assert (found.at, found.direction, found.spans) == (at, direction, spans)


@pytest.mark.parametrize("edge", [2, 97, 640, 999])
def test_crossings_are_found_to_the_whole_number(edge):
    values = np.array([1, 10, 100, 1000])
    found = find_break_even(KnownOdds(values, certainly(values < edge)), lambda at: certainly(at < edge))
    known = Stretch(1, edge - 1, "pays"), Stretch(edge, 1000, "loses")
    assert found == BreakEven(known=known, spans=((1, edge - 1),))
    assert (found.searched_from, found.searched_to) == (1, 1000)
    assert (found.direction, found.at, found.loses_from) == ("loses from", edge, edge)
    pays_beyond = KnownOdds(values, certainly(values >= edge))
    assert find_break_even(pays_beyond, lambda at: certainly(at >= edge)).loses_from is None


@pytest.mark.parametrize(("own", "other"), [([1, 4, 9], [2, 4]), ([], [3]), ([3, 5], []), ([1, 2], [1, 2])])
def test_of_two_odds_of_one_number_the_others_are_taken(own, other):
    first = KnownOdds(np.array(own, dtype=np.int64), np.full(len(own), PAYS))
    second = KnownOdds(np.array(other, dtype=np.int64), np.full(len(other), LOSES))
    merged = first.merged(second)
    assert merged.values.tolist() == sorted({*own, *other})
    assert merged.odds.tolist() == [LOSES if each in other else PAYS for each in merged.values]
    assert merged.within(2, 4).values.tolist() == [each for each in merged.values if 2 <= each <= 4]


def test_throughput_objective_compares_operating_points():
    question = Question(objective="throughput", batch_max=48)
    answer = recommend(SCENARIO, question)
    assert answer.enable == (answer.best_with.tokens_per_s > answer.best_without.tokens_per_s)
    limited = recommend(SCENARIO, replace(question, max_latency_ms=8.0))
    assert limited.best_with.time_per_token_ms <= 8.0
    assert limited.best_with.tokens_per_s < answer.best_with.tokens_per_s
    assert {row.meets_latency for row in limited.schedule} == {True, False}


def test_a_missed_limit_names_the_shortest_time_per_token_of_any_batch(answer):
    fastest = answer.fastest_stream
    alone = recommend(SCENARIO, replace(answer.question, batch_max=1)).fastest_stream
    assert (fastest.batch, fastest.seq_len) == (1, 1024)  # of more or longer requests a step takes longer
    shortest_us = answer.cells.server.tpot_us[answer.cells.fits].min()
    # cells that were priced together differ in the last digit
    assert [fastest.tpot_us, alone.tpot_us] == pytest.approx([shortest_us] * 2, rel=1e-12)
    assert answer.schedule[0].batch_max > 1  # whose figures are those of a fuller batch
    assert answer.schedule[0].tpot_us > fastest.tpot_us


def test_lossless_lowers_a_curve_and_leaves_accuracies():
    curve, greedy, coding = (
        SCENARIO.but(acceptance="paper-fig4-sparse", **other).profile
        for other in ({}, {"lossless": True}, {"workload": "coding"})
    )
    assert float(greedy.tokens_per_step(64)) < float(curve.tokens_per_step(64))
    name = "medusa1-vicuna-7b"
    assert SCENARIO.but(acceptance=name, lossless=True).profile.ratio == load_acceptance(name).ratio == 1.0
    assert float(coding.tokens_per_step(64)) > float(curve.tokens_per_step(64))


@pytest.mark.parametrize(
    ("question", "told"),
    [
        ({"batch_min": 5, "batch_max": 4}, "smallest first"),
        ({"seq_len": (0,)}, "seq_len"),
        ({"objective": "speed"}, "unknown objective"),
        ({"max_latency_ms": 0.0}, "above 0"),
        ({"max_latency_ms": float("nan")}, "above 0"),
        ({"free_within": 0.5}, "from 1"),
    ],
)
def test_senseless_questions_are_refused(question, told):
    with pytest.raises(UsageError, match=told):
        Question(**question)


@pytest.mark.parametrize("drafter", ["eagle", "eagle3", "draft-model"])
@pytest.mark.parametrize("acceptance", ["paper-fig4-sparse", "paper-fig21"])
def test_a_curve_describes_no_drafter_that_pays_for_each_draft(drafter, acceptance):
    draft = "llama-68m" if drafter == "draft-model" else None
    scenario = SCENARIO.but(drafter=drafter, acceptance=acceptance, draft_model=draft)
    with pytest.raises(UsageError, match="rate per position"):
        scenario.options()


def test_other_refusals():
    with pytest.raises(UsageError, match="knows no chains"):
        SCENARIO.but(acceptance="paper-fig21", chain_only=True).options()
    with pytest.raises(UsageError, match="at least 2"):
        SCENARIO.options(1)
    with pytest.raises(UsageError, match="too many"):
        price(SCENARIO, np.arange(1, 4000), np.arange(1, 400))
