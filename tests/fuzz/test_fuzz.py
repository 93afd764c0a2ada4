"""A fast seed of the fuzzer; `python tests/fuzz --seed N --count 5000` is the long run."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import fuzzer


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_no_traceback_no_hang_no_nan_and_one_line():
    ran, failures = fuzzer.fuzz(0, range(200), seconds=20.0)
    assert not failures, failures[0]
    assert ran >= 20


def test_a_case_is_a_function_of_its_seed_and_number(tmp_path):
    for number in range(10):
        first, second = (tmp_path / f"{name}{number}" for name in "ab")
        first.mkdir()
        second.mkdir()
        one, other = fuzzer.Case(3, number, first).args, fuzzer.Case(3, number, second).args
        assert [arg.replace(str(second), str(first)) for arg in other] == one


@pytest.mark.parametrize(
    ("code", "stderr", "rule"),
    [
        (1, "Error: one line\n", None), (1, "note\nError: one line\n", None), (1, "", "one line"),
        (2, "Error: a\nError: b\n", "one line"), (1, "Error: a\nand more\n", "one line"),
        (1, "Error: " + "x" * 5_000, "long line"), (120, "", "exit code"),
    ],
)  # fmt: skip
def test_the_rules_see_what_they_are_for(code, stderr, rule):
    found = fuzzer._broken_errors(code, stderr)
    assert (found[0] if found else None) == rule


@pytest.mark.parametrize(
    ("text", "is_found"),
    [
        ("speedup nan", True), ("-inf us", True), ("NaN,", True), ("nanochat", False), ("info", False),
        ("inf", True),
    ],
)  # fmt: skip
def test_nan_is_found_and_words_are_not(text, is_found):
    assert bool(fuzzer.NOT_A_NUMBER.search(text)) is is_found
