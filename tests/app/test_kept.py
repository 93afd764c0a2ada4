"""Answers that are kept between runs: once each, no more bytes than allowed."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("streamlit")

import answers
from kept import KEPT_BYTES, Kept, array_bytes
from pages_read import set_up


def test_an_answer_is_made_once() -> None:
    made: list[int] = []
    kept = Kept()

    @kept
    def squared(value: int) -> int:
        made.append(value)
        return value * value

    assert [squared(3), squared(4), squared(3)] == [9, 16, 9]
    assert made == [3, 4]


def test_the_least_lately_used_go_first() -> None:
    made: list[int] = []
    kept = Kept(most_bytes=25_000)

    @kept
    def row(value: int) -> np.ndarray:
        made.append(value)
        return np.full(1_000, float(value))

    for value in (1, 2, 3, 1, 4, 1, 2):
        assert row(value)[0] == value
    assert made == [1, 2, 3, 4, 2]
    assert kept.held_bytes <= 25_000
    huge = Kept(most_bytes=10)(lambda: np.zeros(1_000))
    assert huge() is huge()  # the last one stays, however large


def test_a_failure_is_not_kept() -> None:
    asked: list[int] = []

    @Kept()
    def fails() -> None:
        asked.append(1)
        raise ValueError("no")

    for _ in range(2):
        with pytest.raises(ValueError, match="no"):
            fails()
    assert len(asked) == 2


def test_arrays_are_counted_once_views_included() -> None:
    whole = np.zeros((100, 100))
    assert whole.nbytes <= array_bytes([whole[::2], whole, {"a": whole[0]}]) < 1.1 * whole.nbytes


def test_a_search_of_trees_holds_more_than_one_of_chains() -> None:
    chains = array_bytes(
        answers.recommendation(set_up(gpu="h100-sxm", model="llama-3.1-8b", drafter="eagle3"), 64)
    )
    trees = array_bytes(answers.recommendation(set_up(engine="cuda-graph"), 64))
    assert 1e5 < chains < trees / 4
    assert chains < KEPT_BYTES / 20
