"""Grids: every form of the command line's contract, and what is refused."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from medusa_sim.cli.values import BATCH, CANDIDATES, MAX_VALUES, SEQ_LEN
from medusa_sim.errors import UsageError


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("8", (8,)), ("1,2,8", (1, 2, 8)), ("8,1,2,2", (1, 2, 8)), ("1..64", (1, 2, 4, 8, 16, 32, 64)),
        ("3..40", (4, 8, 16, 32)), ("1..64:x2", (1, 2, 4, 8, 16, 32, 64)), ("3..30:x3", (3, 9, 27)),
        ("1..5:1", (1, 2, 3, 4, 5)), ("16..112:16", (16, 32, 48, 64, 80, 96, 112)), ("1..10:4", (1, 5, 9)),
        (" 1 , 16..48:16 ", (1, 16, 32, 48)), ("7..7:1", (7,)), ("64..64", (64,)),
    ],
)  # fmt: skip
def test_forms_on_a_power_axis(text, values):
    assert BATCH.values(text) == values
    assert SEQ_LEN.values(text) == values


def test_a_plain_range_of_candidates_is_every_integer():
    assert CANDIDATES.values("1..64") == tuple(range(1, 65))
    assert CANDIDATES.values("1,16..112:16") == (1, *range(16, 113, 16))


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "empty entry"), ("1,,2", "empty entry"), ("64..1", "1..64"), ("0", "whole numbers from 1"),
        ("0..4", "whole numbers from 1"), ("1..8:0", "step"), ("1..8:x1", "x2 or more"),
        ("1..8:x0", "x2 or more"), ("-3", "no grid"), ("2.5", "no grid"), ("1e3", "no grid"),
        ("eight", "no grid"), ("1...8", "no grid"), ("1..8:2:2", "no grid"), ("٣", "no grid"),
        ("99999999", "out of range"), ("9" * 400, "out of range"), ("1.." + "9" * 30, "out of range"),
        ("5..7", "no power of two"),
    ],
)  # fmt: skip
def test_refused_in_one_line(text, told):
    with pytest.raises(UsageError) as refused:
        BATCH.values(text)
    message = str(refused.value)
    assert told in message
    assert "\n" not in message
    assert "allowed" in message
    assert len(message) < 300


def test_too_many_values_are_refused_before_they_are_made():
    with pytest.raises(UsageError, match=f"more than {MAX_VALUES}"):
        SEQ_LEN.values("1..16777216:1")


@given(st.integers(1, 500), st.integers(0, 500), st.integers(1, 50))
def test_steps_start_at_the_first_and_stay_inside(first, extra, step):
    values = CANDIDATES.values(f"{first}..{first + extra}:{step}")
    assert values[0] == first
    assert values[-1] <= first + extra < values[-1] + step
    assert all(b - a == step for a, b in pairwise(values))


@given(st.integers(1, 60_000), st.integers(2, 9))
def test_factors_multiply_from_the_first(first, factor):
    values = BATCH.values(f"{first}..65536:x{factor}")
    assert values[0] == first
    assert all(b == a * factor for a, b in pairwise(values))
    assert values[-1] * factor > 65_536
