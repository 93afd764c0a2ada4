"""Predictions of draft-model methods from what a pair was seen to accept: shapes, contexts, fits, bands."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from one_line import one_line
from scipy import stats

from medusa_sim.errors import DataError
from medusa_sim.lab.block_efficiency import prediction
from medusa_sim.lab.block_efficiency.chains import chain_through, possible
from medusa_sim.lab.block_efficiency.contexts import ContextModel, Contexts, contexts_of
from medusa_sim.lab.block_efficiency.methods import branch_block_efficiency
from medusa_sim.lab.block_efficiency.prediction import (
    Observations,
    block_efficiency,
    fitted_process,
    has_tree,
    predicted_efficiencies,
)
from medusa_sim.lab.block_efficiency.shape import DraftShape, parsed_shape
from medusa_sim.lab.block_efficiency.sharpness import BLOCK_NODES, SharpnessProcess
from medusa_sim.lab.reproduce.recursive import (
    MISREAD_SPECS,
    figure_rows,
    own_pair_table,
    pair_comparison,
    published_table,
)

QUICK = ContextModel(contexts=80, vocabulary=60)
PROCESS = SharpnessProcess(QUICK, 2.3, 1.0)


def observed(rows: Sequence[tuple[str, str, float]]) -> Observations:
    return [(parsed_shape(method, spec), value) for method, spec, value in rows]


def predict_block_efficiency(
    rows: Sequence[tuple[str, str, float]],
    wanted: Sequence[tuple[str, str]],
    model: ContextModel | None = None,
) -> np.ndarray:
    return predicted_efficiencies(observed(rows), [parsed_shape(*name) for name in wanted], model)


def prediction_band(
    wanted: Sequence[tuple[str, str]],
    predicted: np.ndarray,
    rows: Sequence[tuple[str, str, float]] = (),
    *,
    tree: bool = False,
) -> tuple[np.ndarray, np.ndarray]:
    shapes, seen = [parsed_shape(*name) for name in wanted], observed(rows)
    with_tree = tree or has_tree(shape for shape, _ in seen)
    return prediction.prediction_band(shapes, predicted, seen, with_tree=with_tree)


def efficiency(method: str, spec: str, process: SharpnessProcess = PROCESS) -> float:
    return block_efficiency(parsed_shape(method, spec), process)


def test_shapes_are_read_as_the_paper_writes_them():
    assert parsed_shape("SD", "4").branches == (1, 1, 1, 1)
    assert parsed_shape("RSD-C", "2-2-1").candidates == 1 + 2 + 4 + 4
    assert parsed_shape("SpecTr", "5x4") == DraftShape("SpecTr", (1, 1, 1, 1), 5)
    assert parsed_shape("RSD-S", "5x4") == DraftShape("RSD-S", (1, 1, 1, 1), 5)


@pytest.mark.parametrize(
    ("method", "spec"),
    [("SD", "2-1"), ("SD", "0"), ("SD", "-3"), ("RSD-C", "2x2"), ("RSD-S", "5"), ("RSD-S", "0x3"),
     ("Beam", "3"), ("SD", ""), ("SD", "99999999999"), ("RSD-C", "2-0"), ("SpecTr", "500x2"), ("SD", "4.0")],
)  # fmt: skip
def test_malformed_shapes_are_refused(method, spec):
    with one_line(DataError):
        parsed_shape(method, spec)


@pytest.mark.parametrize("value", [0.9, 4.01, float("nan"), float("inf")])
def test_impossible_observations_are_refused(value):
    with pytest.raises(DataError, match="a step emits"):
        predict_block_efficiency([("SD", "3", value)], [("SD", "4")])


def test_no_observation_is_refused():
    with pytest.raises(DataError, match="no observations"):
        predict_block_efficiency([], [("SD", "4")])


def test_contexts_agree_with_the_exact_calculator_on_its_own_laws():
    contexts = contexts_of(QUICK, 12)
    # acceptance is a probability, rises with every child and starts at the exact single acceptance
    assert np.all((contexts.acceptance >= 0.0) & (contexts.acceptance <= 1.0))
    assert np.all(np.diff(contexts.acceptance, axis=1) >= -1e-12)
    assert contexts.acceptance[:, 0] == pytest.approx(contexts.alpha ** (1.0 + QUICK.support_exponent))
    assert np.all(np.diff(contexts.alpha) > -0.01)  # sharper contexts agree more
    for n in (1, 2, 5):
        accepted = contexts.followers(n).sum(axis=1)
        assert np.all(accepted >= contexts.acceptance[:, 0] - 1e-9)
        assert np.all(accepted <= contexts.support + 1e-9)


def test_one_of_each_method_is_a_chain_and_more_never_accepts_less():
    chain = efficiency("SD", "4")
    assert efficiency("RSD-C", "1-1-1-1") == pytest.approx(chain, rel=1e-12)
    assert efficiency("SpecTr", "1x4") == pytest.approx(chain, rel=1e-9)
    # the beam is simulated over levels without interpolation: within its own 2 %
    assert efficiency("RSD-S", "1x4") == pytest.approx(chain, rel=0.02)
    chains = [efficiency("SD", str(length)) for length in (1, 2, 3, 5, 10, 30)]
    assert np.all(np.diff(chains) > 0.0)
    for method, specs in (
        ("RSD-C", ["1-1-1", "2-1-1", "2-2-1", "2-2-2", "3-2-2"]),
        ("SpecTr", ["1x3", "2x3", "4x3"]),
    ):
        values = [efficiency(method, spec) for spec in specs]
        assert np.all(np.diff(values) > 0.0)
    assert efficiency("RSD-S", "2x3") < efficiency("RSD-S", "4x3") < efficiency("RSD-S", "7x3")
    assert efficiency("SpecTr", "4x3") < efficiency("RSD-S", "4x3")  # distinct beats independent draws
    hopeless = SharpnessProcess(QUICK, -20.0, 0.3)
    assert efficiency("SD", "5", hopeless) < 1.1  # flat laws over 60 tokens still agree now and then


@pytest.mark.parametrize(
    ("method", "spec", "tokens"),
    [
        ("SD", "1", 1.694753693), ("SD", "4", 2.966253397), ("RSD-C", "2-2-1", 2.900238543),
        ("RSD-C", "4-1", 2.414931988), ("SpecTr", "5x4", 3.167404626), ("SpecTr", "3x3", 2.748132909),
        ("RSD-S", "5x4", 3.431919317), ("RSD-S", "3x2", 2.447256074),
    ],
)  # fmt: skip
def test_tokens_of_every_method_in_one_process(method, spec, tokens):
    """Of 80 contexts of 60 tokens, whose draws are seeded."""
    assert efficiency(method, spec) == pytest.approx(tokens, rel=1e-7)


@pytest.mark.parametrize(
    ("seen", "tokens", "low", "high"),
    [
        (2, (2.134677, 2.698008, 2.738521, 2.242154, 2.143614), (2.1, 2.560410, 2.593379, 2.087445, 2.036433),
         (2.243545, 2.835607, 2.883662, 2.396863, 2.250795)),
        (3, (2.131173, 2.5874, 2.846989, 2.414476, 2.311137), (2.1, 2.455443, 2.693252, 2.313068, 2.227936),
         (2.239863, 2.719358, 3.000727, 2.515884, 2.394338)),
    ],
)  # fmt: skip
def test_a_pair_of_two_chains_is_predicted_with_and_without_a_tree(seen, tokens, low, high):
    rates = [("SD", "2", 1.9), ("SD", "4", 2.3), ("RSD-C", "2-2-1", 2.6)][:seen]
    wanted = [("SD", "3"), ("SD", "8"), ("RSD-S", "5x4"), ("SpecTr", "3x3"), ("RSD-C", "3-2")]
    predicted = predict_block_efficiency(rates, wanted, QUICK)
    assert predicted == pytest.approx(tokens, rel=1e-5)
    ends = prediction_band(wanted, predicted, rates)
    assert ends[0] == pytest.approx(low, rel=1e-5)
    assert ends[1] == pytest.approx(high, rel=1e-5)


def test_fit_recovers_the_process_it_was_made_from():
    shapes = [parsed_shape("SD", str(length)) for length in (2, 3, 4, 5, 10, 30)]
    again = fitted_process([(shape, block_efficiency(shape, PROCESS)) for shape in shapes], QUICK)
    for method, spec in (("SD", "20"), ("RSD-C", "3-2-1"), ("SpecTr", "3x3")):
        assert efficiency(method, spec, again) == pytest.approx(efficiency(method, spec), rel=0.01)


def test_a_prediction_is_deterministic_and_narrower_with_a_tree_among_the_observations():
    seen = [("SD", "2", 1.9), ("SD", "4", 2.3)]
    wanted = [("RSD-S", "5x4"), ("SpecTr", "3x3")]
    first = predict_block_efficiency(seen, wanted, QUICK)
    assert predict_block_efficiency(seen, wanted, QUICK).tolist() == first.tolist()
    value, wanted = np.array([2.0]), [("SpecTr", "5x4")]
    wide = prediction_band(wanted, value)
    narrow = prediction_band(wanted, value, tree=True)
    assert wide[0] < narrow[0] < 2.0 < narrow[1] < wide[1]


@pytest.mark.slow
def test_published_pairs_from_short_chains_alone():
    comparison = pair_comparison(published_table())
    unseen = comparison[comparison["group"] != "observed"]
    size = unseen["error"].abs()
    # reached 2.3 % over all and 3.0 % for chains of 6..30; the bounds leave room for other BLAS and numpy
    assert size.mean() < 0.03
    assert size[unseen["group"] == "long chain"].mean() < 0.04
    assert size.max() < 0.15
    assert abs(unseen["error"].mean()) < 0.015
    assert not set(comparison["spec"]) & set(MISREAD_SPECS)
    by_length, by_budget = figure_rows(comparison, 4), figure_rows(comparison, 5)
    assert set(by_length["draft_length"]) == {2, 3, 4, 5}
    assert set(by_budget["budget"]) == {6, 10, 14, 21, 30}  # appendix C.3.2
    beam = by_length[by_length["decoder"] == "RSD-S"].set_index(["pair", "draft_length"])
    chain = by_length[by_length["decoder"] == "SD"].set_index(["pair", "draft_length"])
    # the paper's finding: the beam beats the chain at every length of every pair; so must the prediction
    assert (beam["published"] > chain["published"].reindex(beam.index)).all()
    assert (beam["predicted"] > chain["predicted"].reindex(beam.index)).all()
    targets = list(zip(unseen["decoder"], unseen["spec"], strict=True))
    low, high = prediction_band(targets, unseen["predicted"].to_numpy())
    # an 80 % band over these seven pairs and the shipped one, which errs more: 350 rows that err together
    assert 0.75 < np.mean((unseen["published"] >= low) & (unseen["published"] <= high)) < 0.95


@pytest.mark.slow
def test_the_shipped_pair_from_chains_and_one_tree():
    chains_alone = pair_comparison(own_pair_table())
    with_tree = pair_comparison(own_pair_table(), also=("SpecTr", "4x3"))
    for found, reached in ((chains_alone, 0.085), (with_tree, 0.05)):
        trees = found[~found["group"].isin(["observed", "long chain"]) & (found["decoder"] != "SD")]
        assert trees["error"].abs().mean() < reached
    assert with_tree["error"].abs().max() < 0.13  # rates of 96 texts are themselves uncertain by 1 to 2 %


def test_a_tree_shows_how_softly_a_pair_parts():
    soft = SharpnessProcess(QUICK.softened(2.0), 0.5, 1.0)
    seen = [("SD", "2"), ("SD", "4"), ("SpecTr", "4x3")]
    rates = [(parsed_shape(*name), efficiency(*name, soft)) for name in seen]
    chains = fitted_process(rates[:2], QUICK)
    both = fitted_process(rates, QUICK)
    assert chains.model == QUICK
    assert both.model.noise < QUICK.noise
    wanted = efficiency("SpecTr", "8x4", soft)
    assert abs(efficiency("SpecTr", "8x4", both) / wanted - 1) < 0.03
    assert abs(efficiency("SpecTr", "8x4", both) / wanted - 1) < abs(
        efficiency("SpecTr", "8x4", chains) / wanted - 1
    )


@st.composite
def measured_courses(draw: st.DrawFn) -> dict[int, float]:
    """Chains of falling gains, some lengths of them measured."""
    rates = draw(st.lists(st.floats(0.1, 0.98), min_size=3, max_size=6))
    tokens = 1.0 + np.cumsum(np.cumprod(rates))
    lengths = draw(st.sets(st.integers(1, len(rates)), min_size=1))
    return {length: float(tokens[length - 1]) for length in sorted(lengths)}


@settings(max_examples=12, deadline=None)
@given(measured=measured_courses())
def test_a_prediction_goes_through_what_was_measured_and_no_draft_adds_more_than_the_one_before(measured):
    """Measured chains 1.71, 2.18, 2.48 gave 2.523 for the third and 2.805 for a fourth, at most 2.78."""
    seen = [("SD", str(length), tokens) for length, tokens in measured.items()]
    wanted = [("SD", str(length)) for length in range(1, 13)]
    predicted = predict_block_efficiency(seen, wanted, QUICK)
    for length, tokens in measured.items():
        assert predicted[length - 1] == pytest.approx(tokens, rel=1e-6)
    gains = np.diff(np.concatenate([[0.0, 1.0], predicted]))
    assert (gains >= 0.0).all()
    assert (np.diff(gains) <= 1e-6).all()
    low, high = prediction_band(wanted, predicted, seen)
    assert ((low <= predicted) & (predicted <= high)).all()
    last = max(measured)
    before = max((length for length in measured if length < last), default=0)
    slope = (measured[last] - measured.get(before, 1.0)) / (last - before)
    further = np.arange(last + 1, 13)
    assert (high[last:] <= measured[last] + slope * (further - last) + 1e-9).all()
    assert (low[last:] >= measured[last] - 1e-9).all()


def test_published_chains_that_rise_by_noise_are_predicted_as_measured():
    seen = [("SD", "2", 1.5), ("SD", "3", 1.49), ("SD", "4", 1.8), ("SD", "4", 1.9)]
    wanted = [("SD", "2"), ("SD", "3"), ("SD", "4"), ("RSD-C", "1-1-1-1"), ("SD", "6")]
    predicted = predict_block_efficiency(seen, wanted, QUICK)
    assert predicted[:4].tolist() == pytest.approx([1.5, 1.49, 1.85, 1.85])
    assert 1.85 <= predicted[4] <= 1.85 + 2 * 0.36
    low, high = prediction_band(wanted, predicted, seen)
    assert ((low <= predicted) & (predicted <= high)).all()


def test_a_chain_goes_through_what_was_measured_as_the_fit_falls():
    fitted = np.array([1.6, 2.0, 2.25, 2.4])
    assert chain_through({3: 2.25}, fitted) == pytest.approx(fitted)
    # More than the draft before can add in each: alike.
    assert chain_through({1: 1.2, 3: 2.0}, fitted)[:3] == pytest.approx([1.2, 1.6, 2.0])
    # Higher than fitted: gains are powers of how the fitted ones fall, and what follows is behind them.
    higher = chain_through({1: 1.6, 3: 2.4}, fitted)
    assert higher[[0, 2]] == pytest.approx([1.6, 2.4])
    gains = np.diff(higher)
    power = np.log(gains[0] / 0.6) / np.log(2.0 / 3.0)
    assert gains[1] / gains[0] == pytest.approx(0.625**power)
    assert gains[2] == pytest.approx(0.15 * np.sqrt(gains[1] / 0.25))


@pytest.mark.parametrize("branches", [(1, 1), (3, 1), (2, 3)])
def test_trees_of_children_are_sums_over_every_path_of_sharpness(branches):
    """Each path from level to level, its children accepted or rescued, with densities of scipy."""
    model = replace(QUICK, levels=5, contexts=20)
    contexts, process = Contexts(model, 3), SharpnessProcess(model, 1.0, 1.5)
    x, (first, later) = contexts.sharpness, contexts.surprisal
    variance = process.spread**2 * model.block_share
    nodes, weights = np.polynomial.hermite_e.hermegauss(BLOCK_NODES)

    def chances(mean, spread):
        density = stats.norm.pdf(x, mean, spread)
        return density / density.sum()

    def emitted(centre, chance, place, left):
        """Of one path: the token of this node, and those behind it."""
        if not left:
            return 0.0
        parts = [(contexts.acceptance[place, 0], first[place])]
        if left[0] > 1:
            rescued = contexts.acceptance[place, left[0] - 1] - contexts.acceptance[place, 0]
            parts.append((rescued, later[place, left[0] - 1]))
        total = 0.0
        for accepted, surprisal in parts:
            mean = centre + model.correlation * (x[place] - centre) - model.surprisal_cost * surprisal
            after = chances(mean, np.sqrt(process.spread**2 - variance) * np.sqrt(1 - model.correlation**2))
            behind = sum(emitted(centre, each, to, left[1:]) for to, each in enumerate(after))
            total += chance * accepted * (1.0 + behind)
        return total

    expected = 1.0
    for node, weight in zip(nodes, weights / weights.sum(), strict=True):
        centre = 1.0 + np.sqrt(variance) * node
        begin = chances(centre, np.sqrt(process.spread**2 - variance))
        expected += weight * sum(emitted(centre, each, place, branches) for place, each in enumerate(begin))
    assert branch_block_efficiency(contexts, process, branches) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(
    ("length", "least", "most"),
    [
        (1, 1.0 + 0.8 / 2, 2.0),  # below: a first token at most; above the line from none to two
        (3, 1.8 + 0.4 / 2, 1.8 + 0.8 / 2),
        (6, 2.2, 2.2 + 2 * 0.4 / 2),
    ],
)
def test_a_chain_lies_between_the_lines_through_what_was_measured(length, least, most):
    assert possible({2: 1.8, 4: 2.2}, length) == pytest.approx((least, most))


def test_between_distant_lengths_a_chain_has_its_share_of_the_way():
    assert possible({2: 1.8, 6: 2.6}, 4) == pytest.approx((1.8 + 2 * 0.2, 1.8 + 2 * 0.4))


@pytest.mark.parametrize(
    ("method", "spec", "length", "children", "candidates"),
    [
        ("SD", "4", 4, 1, 5), ("SpecTr", "5x4", 4, 5, 21), ("RSD-S", "3x2", 2, 3, 7),
        ("RSD-C", "2-2-1", 3, 2, 11),  # 1 + 2 + 4 + 4
    ],
)  # fmt: skip
def test_a_step_carries_the_root_and_every_draft(method, spec, length, children, candidates):
    shape = parsed_shape(method, spec)
    assert (shape.length, shape.children, shape.candidates) == (length, children, candidates)
    assert shape.as_chain.method == ("SD" if children == 1 else method)


def test_bands_are_those_of_what_was_seen_and_within_what_is_possible():
    """5.1 % for a chain and 6.9 for SpecTr, 4.2 where a tree was seen; never above the drafts and one."""
    low, high = prediction_band([("SD", "9"), ("SpecTr", "5x4")], np.array([2.0, 2.0]))
    assert low == pytest.approx([2.0 * 0.949, 2.0 * 0.931])
    assert high == pytest.approx([2.0 * 1.051, 2.0 * 1.069])
    low, high = prediction_band([("SpecTr", "5x4")], np.array([2.0]), tree=True)
    assert (low[0], high[0]) == pytest.approx((2.0 * 0.958, 2.0 * 1.042))
    _, high = prediction_band([("SD", "1")], np.array([1.99]))
    assert high[0] == 2.0
    low, _ = prediction_band([("SD", "9")], np.array([1.01]))
    assert low[0] == 1.0
