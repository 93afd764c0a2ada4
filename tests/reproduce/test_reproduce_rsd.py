"""Figures of the recursive speculative decoding paper, through the registry that the command line uses."""

import pytest

from medusa_sim.report.charts.reproduced import reproduction_charts
from medusa_sim.report.figures import render
from medusa_sim.report.figures.draw import lines_figure
from medusa_sim.reproduce import reproduction
from medusa_sim.specs.gpu import load_gpu

GOAL = 0.03
"""Mean error of block efficiency that the project aims at, on pairs given only as short chains."""


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
    assert trees["error"].abs().mean() < GOAL
    assert (frame["predicted_mbsu"] < frame["predicted_block_efficiency"]).all()  # drafting is not free


@pytest.mark.parametrize("name", ["rsd-figure1", "rsd-figure4", "rsd-figure5"])
def test_each_has_a_plot(name):
    figure = lines_figure(*reproduction_charts(reproduction(name), load_gpu("a100-80gb-pcie")), columns=2)
    assert render(figure, ".svg").startswith(b"<?xml")
