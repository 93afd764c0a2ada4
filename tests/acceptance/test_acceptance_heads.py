"""Head accuracies and optimal trees: brute force, bounds, label errors, tables and profiles."""

import os
import timeit
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from one_line import one_line

from medusa_sim.acceptance.adjustments import (
    GREEDY_RATIO,
    GREEDY_TOKENS_PER_STEP,
    TYPICAL_TOKENS_PER_STEP,
    workload_ratio,
)
from medusa_sim.acceptance.correlation import fitted_correlation
from medusa_sim.acceptance.head_table import read_accuracies
from medusa_sim.acceptance.heads import (
    HeadAccuracy,
    best_chain,
    chain_tokens_per_step,
    expected_tokens_per_step,
    heads_worth_running,
    node_probabilities,
    optimal_order,
    tokens_per_step_by_heads,
    tokens_per_step_error,
)
from medusa_sim.acceptance.profile import CURVE_HEADS, _draft_accuracy, load_acceptance
from medusa_sim.acceptance.tree import CandidateTree
from medusa_sim.errors import CoverageError, DataError, MedusaSimError, SpecError, UsageError

DATA = Path(os.environ.get("MEDUSA_SIM_DATA", Path(__file__).parents[3] / "shared" / "data"))
SMALL = HeadAccuracy.checked([[0.5, 0.2, 0.1], [0.4, 0.2, 0.05]], [1000, 950])


@st.composite
def accuracies(draw: st.DrawFn, heads: int = 3, ranks: int = 3) -> HeadAccuracy:
    """Random heads; ranks are not sorted, a measured later rank may be the better one."""
    rows = []
    for _ in range(heads):
        parts = np.array(draw(st.lists(st.floats(0.0, 1.0), min_size=ranks + 1, max_size=ranks + 1))) + 1e-3
        rows.append((parts / parts.sum())[:ranks])
    return HeadAccuracy.checked(rows)


def best_by_brute_force(heads: HeadAccuracy, nodes: int, width: int = 99) -> float:
    """Largest expected tokens over every prefix-closed tree of that many nodes.

    width: nodes of a level that have children, at most.
    """

    def is_allowed(tree: frozenset[tuple[int, ...]]) -> bool:
        parents = Counter(len(parent) for parent in {path[:-1] for path in tree})
        return max(parents.values()) <= width

    frontier = {frozenset[tuple[int, ...]]()}
    for _ in range(nodes):
        frontier = {
            tree | {(*parent, rank)}
            for tree in frontier
            for parent in [(), *tree]
            if len(parent) < heads.depth
            for rank in range(heads.ranks)
            if (*parent, rank) not in tree and is_allowed(tree | {(*parent, rank)})
        }
    return max(
        1.0 + sum(np.prod([heads.accuracy[k, i] for k, i in enumerate(path)]) for path in tree)
        for tree in frontier
    )


def test_expected_tokens_by_hand_and_of_heads_that_are_never_right():
    tree = CandidateTree.from_paths([[0], [1], [0, 0], [1, 2]])
    # 1 + 0.5 + 0.2 + 0.5 * 0.4 + 0.2 * 0.05 (2.3.3)
    assert expected_tokens_per_step(tree, SMALL) == pytest.approx(1.91, rel=1e-12)
    assert node_probabilities(tree, SMALL).tolist() == pytest.approx([1.0, 0.5, 0.2, 0.2, 0.01])
    heads = HeadAccuracy.checked(np.zeros((3, 4)))
    order = optimal_order(heads, 64)
    assert order.candidates_max == 1
    assert order.tokens_per_step.tolist() == [1.0]


@settings(max_examples=15, deadline=None)
@given(heads=accuracies(), nodes=st.integers(1, 4))
def test_greedy_tree_equals_brute_force(heads, nodes):
    order = optimal_order(heads, nodes + 1)
    assert order.tokens_per_step[nodes] == pytest.approx(best_by_brute_force(heads, nodes), rel=1e-12)


@settings(max_examples=10, deadline=None)
@given(heads=accuracies(), nodes=st.integers(2, 5), width=st.integers(1, 2))
def test_the_tree_of_a_width_equals_brute_force(heads, nodes, width):
    order = optimal_order(heads, nodes + 1, width)
    assert order.tokens_per_step[nodes] == pytest.approx(best_by_brute_force(heads, nodes, width), rel=1e-12)


def tokens_grown_by_level(heads: HeadAccuracy, topk: int, tokens: int) -> float:
    """What SGLang keeps: topk children of the topk best of each level, and of all these the best ones."""
    best = -np.sort(-heads.accuracy, axis=1)[:, :topk]
    scores, seen = best[0], [best[0]]
    for children in best[1:]:
        grown = np.outer(scores, children).ravel()
        scores = -np.sort(-grown)[:topk]
        seen.append(grown)
    return 1.0 + float(-np.sort(-np.concatenate(seen))[: tokens - 1].sum())


@settings(max_examples=30, deadline=None)
@given(heads=accuracies(heads=5, ranks=4), topk=st.integers(1, 4), size=st.floats(0.0, 1.0))
def test_the_tree_of_a_width_is_the_one_that_sglang_grows(heads, topk, size):
    """At every size to 1 + topk + (steps - 1) topk^2: 69 of topk 4 and 5 steps, 64 among them."""
    narrow = replace(heads, accuracy=-np.sort(-heads.accuracy, axis=1)[:, :topk])
    order, most = optimal_order(narrow, 256, topk), 1 + topk + 4 * topk**2
    assert order.candidates_max == (most if (narrow.accuracy > 0.0).all() else order.candidates_max)
    tokens = min(2 + round(size * (most - 2)), order.candidates_max)
    assert order.tokens_per_step[tokens - 1] == pytest.approx(
        tokens_grown_by_level(heads, topk, tokens), rel=1e-12
    )


@settings(deadline=None)
@given(heads=accuracies(heads=4, ranks=4))
def test_one_pass_gives_every_size(heads):
    order = optimal_order(heads, 40)
    assert np.all(np.diff(order.gains) <= 1e-15)
    for candidates in (1, 2, 7, 40):
        tree = order.tree(candidates)
        assert CandidateTree.from_paths(tree.paths) == tree  # prefix-closed
        assert expected_tokens_per_step(tree, heads) == pytest.approx(
            order.tokens_per_step[candidates - 1], rel=1e-12
        )
    chain = chain_tokens_per_step(heads)
    for length in range(heads.depth + 1):
        assert chain[length] == pytest.approx(expected_tokens_per_step(best_chain(heads, length), heads))
        assert chain[length] <= order.tokens_per_step[length] + 1e-12


def test_the_search_of_sizes_is_not_quadratic():
    rank = np.arange(1, 11)
    heads = HeadAccuracy.checked([0.4 / (k + 1) * rank**-1.6 / (1 + 0.2 * k) for k in range(5)])

    def best_s(size: int) -> float:
        return min(timeit.repeat(lambda: optimal_order(heads, size), number=1, repeat=7))

    assert best_s(1024) < 24 * best_s(128)  # 64 times as long, were it quadratic


@given(heads=accuracies(heads=4), share=st.floats(0.0, 1.0))
def test_correlation_lifts_and_stays_a_probability(heads, share):
    rho = share * min(heads.correlation_max, 1.0)
    lifted = heads.with_correlation(rho)
    assert np.all(lifted.conditional().sum(axis=1) <= 1.0 + 1e-6)
    tree = CandidateTree.cartesian([2, 2, 1, 1])
    assert expected_tokens_per_step(tree, lifted) >= expected_tokens_per_step(tree, heads) - 1e-12
    # depth d is lifted by exp(rho d (d - 1) / 2)
    ratio = node_probabilities(tree, lifted) / np.maximum(node_probabilities(tree, heads), 1e-300)
    expected = np.exp(rho * tree.depths * (tree.depths - 1) / 2)
    seen = node_probabilities(tree, heads) > 1e-12
    assert ratio[seen] == pytest.approx(expected[seen], rel=1e-9)


def test_correlation_is_the_log_variance_of_a_common_difficulty_within_its_range():
    rng = np.random.default_rng(1)
    rho = 0.1
    m = np.exp(rng.normal(-rho / 2, np.sqrt(rho), 200_000))
    lifted = SMALL.with_correlation(rho).conditional()
    # P(both right) = a0 a1 E[m^2]; Monte Carlo error of E[m^2] about 0.2 %
    assert lifted[0, 0] * lifted[1, 0] == pytest.approx(0.5 * 0.4 * np.mean(m**2), rel=0.01)
    with pytest.raises(SpecError, match="outside 0"):
        SMALL.with_correlation(SMALL.correlation_max * 1.1)


def test_a_correlation_is_found_again_from_the_tokens_that_it_gives():
    tree = CandidateTree.from_paths([(0,), (0, 0), (1,)])
    other = HeadAccuracy.checked([[0.9, 0.05], [0.8, 0.05]])

    def measured(heads: HeadAccuracy, rho: float) -> tuple[HeadAccuracy, CandidateTree, float]:
        return heads, tree, expected_tokens_per_step(tree, heads.with_correlation(rho))

    most = min(SMALL.correlation_max, other.correlation_max)
    for rho in (0.0, 0.4 * most, most):
        assert fitted_correlation([measured(SMALL, rho), measured(other, rho)]) == pytest.approx(rho)
    plain = expected_tokens_per_step(tree, SMALL)
    assert fitted_correlation([(SMALL, tree, 0.9 * plain)]) == 0.0
    assert fitted_correlation([(SMALL, tree, 3.0)]) == SMALL.correlation_max
    assert fitted_correlation([(SMALL, tree, 3.0), (other, tree, 4.0)]) == most
    one = HeadAccuracy.checked([[0.6, 0.2]])
    with one_line(DataError, "two heads"):
        fitted_correlation([(one, CandidateTree.from_paths([(0,)]), 1.7)])


def test_a_head_that_is_hardly_ever_right_is_not_worth_running():
    """A chain of 0.8, 0.5 and 0.01: 1.8, 2.2 and 2.204 tokens."""
    heads = HeadAccuracy.checked([[0.8], [0.5], [0.01]])
    assert tokens_per_step_by_heads(heads, 4) == pytest.approx([1.8, 2.2, 2.204])
    assert heads_worth_running(heads, 4) == 2
    assert heads_worth_running(HeadAccuracy.checked([[0.8], [0.5], [0.06]]), 4) == 3


def test_a_tail_recovers_a_power_law_and_never_makes_a_head_right_more_than_always():
    rank = np.arange(1.0, 11.0)
    full = np.array([0.5 * rank**-1.7 * 0.6, 0.3 * rank**-1.3 * 0.7])
    measured = HeadAccuracy.checked(full[:, :5])
    extended = measured.with_tail(10)
    assert extended.accuracy == pytest.approx(full, rel=1e-9)
    tree = CandidateTree.cartesian([10, 10])
    low = expected_tokens_per_step(tree, measured.with_zeros(10))
    assert low < expected_tokens_per_step(tree, extended)
    assert measured.with_tail(3) is measured
    heads = HeadAccuracy.checked([[0.3, 0.23, 0.22, 0.22]]).with_tail(50)
    assert heads.accuracy.sum() <= 1.0 + 1e-12


def test_label_error_matches_resampling():
    rng = np.random.default_rng(0)
    tree = CandidateTree.from_paths([[0], [1], [0, 0], [0, 1], [1, 0]])
    totals = []
    for _ in range(4000):
        rows = []
        for k in range(2):
            counts = rng.multinomial(int(SMALL.labels[k]), [*SMALL.accuracy[k], 1 - SMALL.accuracy[k].sum()])
            rows.append(counts[:3] / SMALL.labels[k])
        totals.append(expected_tokens_per_step(tree, HeadAccuracy.checked(rows)))
    # 80 % half width = 1.2816 sigma; sigma of 4000 resamples is known to 1.1 %
    assert tokens_per_step_error(tree, SMALL) == pytest.approx(1.2816 * np.std(totals), rel=0.05)


def test_tree_outside_the_accuracies_is_refused():
    with pytest.raises(CoverageError, match="depth 3"):
        node_probabilities(CandidateTree.chain(3), SMALL)
    with pytest.raises(CoverageError, match="rank 4"):
        node_probabilities(CandidateTree.cartesian([5]), SMALL)
    with pytest.raises(CoverageError, match="3 candidates"):
        optimal_order(HeadAccuracy.checked([[0.5]]), 9).tree(3)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ([[0.5, float("nan")]], "head 0 rank 1"),
        ([[1.2]], "lies in 0..1"),
        ([[-0.1]], "lies in 0..1"),
        ([[0.6, 0.6]], "head 0 sums to 1.2"),
        ([], "heads x ranks"),
    ],
)
def test_what_is_no_accuracy_is_refused(table, message):
    with pytest.raises(SpecError, match=message):
        HeadAccuracy.checked(table)


def test_tables_of_every_form_are_the_same_accuracies(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("# mine\nhead,rank,accuracy,labels\n1,0,0.3,900\n0,0,0.6,1000\n0,1,0.1,1000\n")
    heads = read_accuracies(path)
    assert heads.accuracy.tolist() == [[0.6, 0.1], [0.3, 0.0]]
    assert heads.labels.tolist() == [1000.0, 900.0]
    long, wide = tmp_path / "long.csv", tmp_path / "wide.csv"
    long.write_text("head,rank,accuracy\n0,0,0.6\n0,1,0.1\n1,0,0.3\n1,1,0.2\n")
    wide.write_text("model,head,cum_top1,cum_top2\nx,0,0.6,0.7\nx,1,0.3,0.5\ny,0,0.1,0.2\n")
    expected = read_accuracies(long).accuracy
    assert read_accuracies(wide, model="x").accuracy == pytest.approx(expected)
    with pytest.raises(DataError, match="one model"):
        read_accuracies(wide)
    conditional, unconditional = tmp_path / "c.csv", tmp_path / "u.csv"
    conditional.write_text("position,conditional_rate,trials\n0,0.8,1000\n1,0.5,800\n")
    unconditional.write_text("position,unconditional_rate,trials\n0,0.8,1000\n1,0.4,1000\n")
    first, second = read_accuracies(conditional), read_accuracies(unconditional)
    assert first.accuracy == pytest.approx(second.accuracy)
    assert first.labels == pytest.approx(second.labels)
    unconditional.write_text("position,unconditional_rate,trials\n0,0.01,20\n1,0.005,20\n")
    assert read_accuracies(unconditional).labels.tolist() == [20.0, 1.0]  # a fifth of one is one
    assert load_acceptance(conditional).tokens_per_step([1, 2, 3]).tolist() == pytest.approx([1.0, 1.8, 2.2])


@pytest.mark.parametrize(
    "text",
    [
        "", "head,rank,accuracy\n", "head,rank,accuracy\n0,0,zero\n", "head,rank,accuracy\n0,0,nan\n",
        "head,rank,accuracy\n0,0,0.5\n0,0,0.5\n", "head,rank,accuracy\n0,1,0.5\n",
        "head,rank,accuracy\n1,0,0.5\n", "head,rank,accuracy\n0,0.5,0.5\n", "head,rank,accuracy\n0,0,0.5,9\n",
        "head,rank,accuracy,labels\n0,0,0.5,9\n0,1,0.1,8\n", "head,rank,accuracy,labels\n0,0,0.5,0\n",
        "head,rank,accuracy\n0,0,1.5\n", "head,top1,top3\n0,0.5,0.6\n", "head,top1,top2\n0,0.5,0.4\n",
        "position,unconditional_rate\n0,0.5\n1,0.6\n", "position,conditional_rate\n0,0.5\n0,0.6\n",
        "a,b\n1,2\n", "head,rank,accuracy\n0,0,1e999\n",
    ],
)  # fmt: skip
def test_bad_tables_give_one_clear_line(tmp_path, text):
    path = tmp_path / "bad.csv"
    path.write_text(text)
    with one_line(MedusaSimError, str(path)):
        read_accuracies(path)


@pytest.mark.parametrize("header", ["head,rank,accuracy,labels", "position,conditional_rate,trials"])
def test_a_sample_size_of_none_is_named(tmp_path, header):
    *places, counted = header.split(",")
    path = tmp_path / "unscored.csv"
    path.write_text(f"{header}\n{'0,' * (len(places) - 1)}0.5,0\n")
    with one_line(DataError, match=f"line 2: {counted} '0'"):
        read_accuracies(path)


def test_a_workload_takes_the_place_of_the_one_before():
    eagle = load_acceptance("eagle3-llama-3.1-8b").with_ratio(1.1)
    maths = eagle.of_workload("math")
    assert eagle.of_workload("coding").of_workload("math").ratio == pytest.approx(maths.ratio, rel=1e-12)
    assert maths.ratio == pytest.approx(1.1 * workload_ratio("math"), rel=1e-12)


def write(path: Path, text: str) -> Path:
    path.write_text("schema = 1\ntitle = 't'\nsource = 'measured here'\n" + text)
    return path


def test_every_shaped_kind_answers_alike(tmp_path):
    topk = "kind = 'head-topk'\nagreement = 'target'\n"
    topk += "[[heads]]\naccuracy = [0.6, 0.1]\nlabels = 500\n[[heads]]\naccuracy = [0.3]\nlabels = 400\n"
    chain = "kind = 'position'\nagreement = 'target'\nrates = 'unconditional'\n"
    chain += "positions = [{rate = 0.73, trials = 900}, {rate = 0.52, trials = 900}]\n"
    vector = "kind = 'draft-vector'\nagreement = 'target'\ndepth_max = 3\ntrials = 900\n"
    vector += "children = [0.7, 0.1, 0.12]\n"
    for name, text, top in (("h", topk, 5), ("p", chain, 3), ("v", vector, 40)):
        profile = load_acceptance(write(tmp_path / f"{name}.toml", text))
        counts = np.arange(1, profile.candidates_max + 1)
        assert profile.candidates_max == top
        tau, (low, high) = profile.tokens_per_step(counts), profile.band(counts)
        assert tau[0] == low[0] == high[0] == 1.0
        assert np.all(low <= tau)
        assert np.all(tau <= high)
        assert np.all(high[1:] > low[1:])
        with pytest.raises(CoverageError):
            profile.tokens_per_step(top + 1)
        tree = profile.tree(3)
        assert tree.candidates == 3
    assert load_acceptance(tmp_path / "p.toml").tokens_per_step(3) == pytest.approx(1 + 0.73 + 0.52)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("kind = 'head-topk'\nagreement = 'target'\n", "either heads"),
        ("kind = 'head-topk'\n", "agreement: missing; allowed: target, teacher-forced"),
        ("kind = 'head-topk'\nagreement = 'target'\nheads = [{accuracy = [2.0]}]\n", "<= 1"),
        ("kind = 'head-topk'\nagreement = 'maybe'\nheads = [{accuracy = [0.5]}]\n", "agreement"),
        ("kind = 'position'\nagreement = 'target'\nrates = 'conditional'\npositions = []\n", "rate in 0..1"),
        ("kind = 'draft-vector'\nagreement = 'target'\nchildren = [0.5]\ndepth_max = 0\n", "depth_max"),
        ("kind = 'log-curve'\nslope = nan\ncandidates_max = 9\n", "slope: given nan or infinity"),
        ("kind = 'log-curve'\nslope = -1.0\ncandidates_max = 9\n", "slope"),
        ("kind = 'curve'\npoints = [[2, 1.5]]\nextra = 1\n", "extra"),
        ("kind = 'magic'\n", "magic"),
        ("kind = 'curve'\npoints = [[2, 'x']]\n", "points"),
    ],
)
def test_bad_profiles_give_one_clear_line(tmp_path, text, message):
    with one_line(MedusaSimError, match=message):
        load_acceptance(write(tmp_path / "bad.toml", text))


def test_profile_without_source_or_of_another_schema_is_refused(tmp_path):
    path = tmp_path / "x.toml"
    path.write_text("schema = 1\ntitle = 't'\nsource = ' '\nkind = 'curve'\npoints = [[2, 1.5]]\n")
    with pytest.raises(SpecError, match="source: given ' '; allowed: text on one line"):
        load_acceptance(path)
    path.write_text("schema = 2\ntitle = 't'\nsource = 's'\nkind = 'curve'\npoints = [[2, 1.5]]\n")
    with pytest.raises(SpecError, match="schema: given 2; allowed: 1"):
        load_acceptance(path)


def test_schemes_and_workloads_are_ratios_of_accepted_drafts_in_the_papers_figures():
    """Figure 5: 3.24 tokens at 0.06 and 3.26 at 0.25, on a line between; 3.05 if greedy."""
    assert (
        pytest.approx(TYPICAL_TOKENS_PER_STEP), GREEDY_TOKENS_PER_STEP
    ) == (3.24 + 0.02 * (0.09 - 0.06) / (0.25 - 0.06), 3.05)  # fmt: skip
    assert pytest.approx(2.05 / (3.24 + 0.02 * 3 / 19 - 1)) == GREEDY_RATIO
    # Figure 3(b): eight categories of 2.91 on average; 3.47 tokens over all of them
    mean = (2.58 + 2.58 + 2.7 + 2.72 + 2.77 + 3.01 + 3.29 + 3.62) / 8
    assert workload_ratio("coding") == pytest.approx((3.29 / mean * 3.47 - 1) / 2.47)


def test_a_profile_of_heads_takes_its_first_and_a_curve_all_that_it_was_measured_with():
    heads = load_acceptance("medusa1-vicuna-7b")
    known = heads.model.heads.depth
    assert heads.of_heads(known) is heads
    assert heads.of_heads(known - 1).model.heads.depth == known - 1
    curve = load_acceptance("paper-fig21")
    assert curve.of_heads(CURVE_HEADS) is curve
    with pytest.raises(UsageError):
        curve.of_heads(CURVE_HEADS - 1)


def test_three_ranks_make_a_tail_of_their_power_law():
    """Ranks 1 and 2 fall by (2/3)^s = 1/2."""
    power = np.log(0.5) / np.log(1.5)
    extended = HeadAccuracy.checked([[0.5, 0.2, 0.1]]).with_tail(5).accuracy[0]
    assert extended == pytest.approx([0.5, 0.2, 0.1, 0.1 * (4 / 3) ** power, 0.1 * (5 / 3) ** power])
    with pytest.raises(CoverageError):
        HeadAccuracy.checked([[0.5, 0.2]]).with_tail(5)


@pytest.mark.parametrize("depth", [1, 3])
def test_children_of_a_draft_vector_are_the_same_at_every_depth(depth):
    file = SimpleNamespace(depth_max=depth, children=[0.6, 0.3], trials=50)
    heads = _draft_accuracy(file, "made up")
    assert heads.accuracy.tolist() == [[0.6, 0.3]] * depth
    with pytest.raises(SpecError):
        _draft_accuracy(SimpleNamespace(depth_max=0, children=[0.6], trials=0), "made up")
