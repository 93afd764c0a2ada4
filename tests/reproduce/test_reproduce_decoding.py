"""Decoding as published: tables 1, 3 and 4 of the Medusa paper, batch curves of EAGLE, recursive drafts."""

import numpy as np
import pytest

from medusa_sim.acceptance.heads import HeadAccuracy, expected_tokens_per_step
from medusa_sim.acceptance.tree import CandidateTree
from medusa_sim.errors import DataError
from medusa_sim.reproduce import reproduction
from medusa_sim.reproduce.decoding import best_cartesian, table1, table3
from medusa_sim.reproduce.token_rates import PlainStep, chain_tokens, host_us_per_launch
from medusa_sim.step import compose
from medusa_sim.validate.published import batch_curves

HEADER = "source,setup,method,batch_or_concurrency,throughput_ratio_vs_no_spec\n"
SETUP = "SGLang H100 Llama-3.1-8B chain3"
GOAL = 0.12
"""Runtime parameters fitted on some rows of one table are to predict its others so well."""


def test_table_1_in_its_parts():
    frame = table1()
    # Nothing is fitted to the overheads: the host's time of a drafted step comes from other runs of the code.
    assert (frame["step_overhead"] < frame["predicted_overhead"]).all()
    assert frame["difference"].abs().max() < 0.08
    assert frame["difference"].abs().mean() < 0.07
    assert frame["host_bound"].tolist() == [True, True, True, False]
    # 7B and 13B, read to two digits, are what hf-eager was fitted to; Zephyr's code copies K and V.
    rate = 1e6 / frame["decode_step_us"]
    assert rate.to_numpy() == pytest.approx(frame["published_tokens_per_s"].to_numpy(), rel=0.04)


def test_table_3_in_its_order():
    frame = table3()
    assert (np.diff(frame["predicted_speedup"]) > 0.0).all()
    assert (np.diff(frame["published_speedup"]) > 0.0).all()
    # printed as "about"; overheads are up to 0.1 too high, which makes speedups too small
    assert frame["predicted_speedup"].to_numpy() == pytest.approx(
        frame["published_speedup"].to_numpy(), rel=0.15
    )


def test_the_best_cartesian_tree_is_the_best_of_all_small_ones():
    heads = HeadAccuracy.checked([[0.5, 0.2, 0.1], [0.4, 0.2, 0.1]])
    best = best_cartesian(heads, 8)
    every = [CandidateTree.cartesian((s,)) for s in (1, 2, 3)] + [
        tree
        for a in (1, 2, 3)
        for b in (1, 2, 3)
        if (tree := CandidateTree.cartesian((a, b))).candidates <= 8
    ]
    assert best.candidates <= 8
    tokens = max(expected_tokens_per_step(tree, heads) for tree in every)
    assert expected_tokens_per_step(best, heads) == pytest.approx(tokens)


def test_batch_curves_say_what_the_engine_must_add(tmp_path):
    path = tmp_path / "curves.csv"
    path.write_text(HEADER + f"made,{SETUP},EAGLE-3,8,1.6\nmade,{SETUP},EAGLE-3,2,1.8\n")
    frame = batch_curves(path, latency="roofline")
    assert frame["batch"].tolist() == [2, 8]
    step_us = frame["verify_us"] + frame["draft_us"] + frame["engine_us"]
    assert (frame["tokens_per_step"] * frame["decode_step_us"] / step_us).tolist() == pytest.approx(
        [1.8, 1.6]
    )
    assert (frame["engine_us"] / step_us).tolist() == pytest.approx(frame["engine_share"].tolist())
    assert frame["relative_error"][0] == 0.0


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "cannot be read"),
        ("a,b\n1,2\n", "columns missing"),
        (HEADER, "no rows"),
        (HEADER + "x,H100 tree,EAGLE,1,1.0\n", "chainN"),
        (HEADER + f"x,{SETUP},HYDRA,1,1.0\n", "HYDRA"),
    ],
)
def test_bad_curves_are_one_line(text, told, tmp_path):
    path = tmp_path / "curves.csv"
    path.write_text(text)
    with pytest.raises(DataError, match=told):
        batch_curves(path)


def test_published_batch_curves(shared_data):
    frame = batch_curves(shared_data / "acceptance" / "batch_speedups_eagle.csv")
    eagle3 = frame[frame["method"] == "EAGLE-3"]
    # Without an engine's own time the model is too fast everywhere, and the share it must add is 10-40 %.
    assert (eagle3["predicted_speedup"] > eagle3["published_speedup"]).all()
    assert eagle3["engine_share"].between(0.05, 0.45).all()
    # The shape of the curve, acceptance cancelled, is met within about 13 % in the mean.
    assert eagle3["relative_error"].abs().mean() < 0.16


def test_recursive_rejection_accepts_always_and_beats_the_rest():
    frame = reproduction("rsd-figure1").frame
    by_method = frame.pivot(index=["draft_p", "target_q"], columns="method", values="predicted_acceptance")
    assert by_method["Recur. Rej. Samp."].to_numpy() == pytest.approx(1.0, abs=1e-9)
    # Optimal transport bounds what any method with replacement can reach.
    assert (by_method["OTM"] >= by_method["K-SEQ"] - 1e-9).all()
    assert (by_method["K-SEQ"] >= by_method["Multi-Round SD"] - 1e-9).all()
    assert by_method.loc[(0.5, 0.5)].to_numpy() == pytest.approx(1.0, abs=1e-9)


@pytest.mark.parametrize("name", ["rsd-figure4", "rsd-figure5"])
def test_trees_are_predicted_from_short_chains(name):
    frame = reproduction(name).frame
    trees = frame[frame["decoder"] != "SD"]
    assert trees["error"].abs().mean() < 0.03  # the goal on pairs given only as short chains
    assert (frame["predicted_mbsu"] < frame["predicted_block_efficiency"]).all()  # drafting is not free


def test_tables_predict_their_own_other_rows():
    for table in ("table4", "table1-rates"):
        frame = reproduction(table).frame
        left = frame[~frame["is_fitted"]]
        assert set(left["model"]) == {"vicuna-33b", "zephyr-7b"}
        assert left["error"].abs().max() < GOAL


@pytest.mark.parametrize(("table", "others"), [("table1-rates", 4.6), ("table4", 2.7)])
def test_the_overlap_that_one_table_asks_for_holds_in_the_other(monkeypatch, table, others):
    """`others` is the exponent with the least squared error over the rows of the other table."""
    other = {"table1-rates": "table4", "table4": "table1-rates"}[table]
    misses = {}
    for exponent in (others - 0.5, others, others + 0.5):
        monkeypatch.setattr(compose, "HOST_OVERLAP", exponent)
        misses[exponent] = float((reproduction(other).frame["error"] ** 2).sum())
    assert min(misses, key=lambda exponent: misses[exponent]) == others
    monkeypatch.setattr(compose, "HOST_OVERLAP", others)
    frame = reproduction(table).frame
    assert frame.loc[~frame["is_fitted"], "error"].abs().max() < GOAL


def test_figure_7b_from_three_lengths():
    frame = reproduction("figure7b").frame
    for _, found in frame.groupby("draft"):
        left = found[~found["is_fitted"]]
        assert len(left) == 12
        assert left["error"].abs().max() < GOAL
        best, chosen = (
            found.loc[found[f"{kind}_tokens_per_s"].idxmax(), "gamma"] for kind in ("published", "predicted")
        )
        assert best == chosen


def test_rsd_rates_of_methods_that_were_not_fitted():
    """8 % is the worst mean of a method and target (RSD-S, Chat-7B: 7.0 %) and a margin."""
    frame = reproduction("rsd-token-rates").frame
    left = frame[~frame["is_fitted"]]
    means = left["error"].abs().groupby([left["target"], left["decoder"]]).mean()
    trees = means[means.index.get_level_values("decoder") != "AR"]
    assert trees.max() < 0.08
    assert (left[left["decoder"] == "AR"]["error"] < 0).all()  # the speculative loop's own time


def test_the_host_is_found_again_and_a_chain_is_a_geometric_series():
    steps = [PlainStep(1.0, 400.0), PlainStep(2.0, 600.0)]
    assert host_us_per_launch(steps, [400.0 * 55.0, 600.0 * 55.0]) == pytest.approx(55.0, rel=1e-4)
    assert steps[0].time_us(0.0) == 1.0
    assert chain_tokens(np.asarray(0.5), np.asarray(2.0)) == pytest.approx(1 + 0.5 + 0.25)
