"""Largest trees, and tables of heads with gaps, by hand."""

import numpy as np
import pytest
from left_out import numbers_left_out

from medusa_sim.acceptance.head_table import read_accuracies
from medusa_sim.acceptance.heads import HeadAccuracy
from medusa_sim.acceptance.shaped import ShapedAcceptance
from medusa_sim.errors import CoverageError, DataError


def test_trees_grow_to_1024_candidates():
    """Four heads of eight ranks have 8 + 64 + 512 + 4,096 nodes and more than that."""
    accuracy = 0.4 * 0.6 ** np.arange(8) * np.ones((4, 1))
    shaped = ShapedAcceptance("wide", HeadAccuracy.checked(accuracy))
    assert shaped.candidates_max == shaped.tree(1024).candidates == 1024
    with pytest.raises(CoverageError):
        shaped.tree(1025)


LONG = "head,rank,accuracy\n"
WHOLE = [(0, 0, 0.6), (0, 1, 0.2), (1, 0, 0.5), (2, 0, 0.4), (2, 1, 0.1), (2, 2, 0.05)]


@pytest.mark.parametrize(("head", "rank"), [(0, 0), (1, 0), (2, 0), (2, 1)])
def test_a_row_that_is_missing_between_others_is_named(tmp_path, head, rank):
    rows = [row for row in WHOLE if row[:2] != (head, rank)]
    path = tmp_path / "table.csv"
    path.write_text(LONG + "".join(f"{','.join(map(str, row))}\n" for row in rows))
    with pytest.raises(DataError, match=f"{rank if head != 1 else head} is missing; count from 0"):
        read_accuracies(path)


def test_ranks_that_a_head_lacks_are_never_right(tmp_path):
    path = tmp_path / "table.csv"
    path.write_text(LONG + "".join(f"{','.join(map(str, row))}\n" for row in reversed(WHOLE)))
    assert read_accuracies(path).accuracy.tolist() == [[0.6, 0.2, 0.0], [0.5, 0.0, 0.0], [0.4, 0.1, 0.05]]


@pytest.mark.parametrize(("rank", "told"), [("999", "rank 1 is missing"), ("1000", "from 0 to 999"),
                                            ("-1", "from 0 to 999"), ("1.5", "from 0 to 999")])  # fmt: skip
def test_places_in_a_table_are_whole_numbers_to_999(tmp_path, rank, told):
    path = tmp_path / "table.csv"
    path.write_text(f"{LONG}0,0,0.5\n0,{rank},0.2\n")
    with pytest.raises(DataError, match=told):
        read_accuracies(path)


def test_what_is_left_out_is_nothing_but_for_these():
    """Factors and counts are one, sizes those that most have."""
    assert numbers_left_out("acceptance") == {
        "AcceptanceProfile.ratio": 1.0,
        "AcceptanceProfile.output_share": 1.0,
        "HeadTopkFile.design_effect": 1.0,
    }
