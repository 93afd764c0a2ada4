"""The fast reader of TOML says what tomllib says, or nothing."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from medusa_sim.reading.plain_toml import plain_toml

ROOT = Path(__file__).resolve().parents[1]
SHIPPED = [
    path for place in ("hardware", "profiles", "medusa_sim/specs") for path in (ROOT / place).rglob("*.toml")
]
MIXED = """# A comment = none
top = 1
text = "[not] = 'a header', # nor a comment"  # but this = one

[a.b]
flat = [1, 2.5e-3, -0, "x", 'y"\\', true]
rows = [
    {m = 64, list = [1, [2, 3]], inner = { deep = {} }},
    [4, 5],
]

[a]
other = { one = 1, two = [{ three = 3 }] }

[a."quoted.name@1".c]
[[list]]
n = 1
[[list]]
"""


def told(text: str) -> object:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return None


def ordered(value: object) -> object:
    """With the types and the order of keys, which equality of dicts leaves out."""
    if isinstance(value, dict):
        return [(name, ordered(child)) for name, child in value.items()]
    if isinstance(value, list):
        return (list, [ordered(child) for child in value])
    return type(value), value


def test_it_reads_what_the_project_writes() -> None:
    read = 0
    for path in SHIPPED:
        text = path.read_text(encoding="utf-8")
        found = plain_toml(text)
        assert found is None or ordered(found) == ordered(tomllib.loads(text)), path
        read += found is not None
    assert read >= len(SHIPPED) - 2  # dates are no JSON


def test_it_reads_every_form_that_it_knows() -> None:
    assert ordered(plain_toml(MIXED)) == ordered(tomllib.loads(MIXED))


@pytest.mark.parametrize(
    "text",
    [
        "a = 1\na = 2", "[a]\n[a]", "a = 1\n[a]\nb = 2", "[a.b]\nc = 1\n[a]\nb = 2", "a = {b = 1}\n[a.c]",
        "[[a]]\n[a.b]", "[a]\n[[a]]", "a = [1], b = 2", "a = {x = 1}, b = 2", "a = 1, b = 2",
        "a = [\n  {b = 1,\n  c = 2},\n]", "a = {b = 1,}", "a = 01", "a = 1 2", "a = [1 2]", "a = null",
        "a = NaN", "a = [", "a = ]", "a = {b}", "a = {1, 2}", "a = 1_000", "a = nan", "a = 2026-11-09",
        'a = """x"""', 'a = "\\t"', "a.b = 1", "a = 1\r\n", '"a" = 1', '[a]\n["a"]',
        'a = [{b = 1}, c = 2]', "a = {b = 1, b = 2}", "a = 1 = 2", 'a = {"b" = 1}', "= 1", "a", "a =",
        "a = {b = 1\n}", "a = [\n  1\n]", "a = [\n  1, b = 2,\n]", "a = [\n  [1], b = 2,\n]", "# \x07",
        'a = "\x7f"',
    ],
)  # fmt: skip
def test_anything_else_is_left_to_tomllib(text: str) -> None:
    found = plain_toml(text)
    assert found is None or ordered(found) == ordered(told(text))


@given(
    place=st.integers(0, len(MIXED)),
    length=st.integers(0, 6),
    instead=st.one_of(
        st.text("abc\"'[]{}=,.#-e0123 \n", max_size=6),
        st.builds(
            lambda start, size: MIXED[start : start + size], st.integers(0, len(MIXED)), st.integers(0, 40)
        ),
    ),
)
def test_a_text_with_a_slip_is_read_right_or_not_at_all(place: int, length: int, instead: str) -> None:
    text = MIXED[:place] + instead + MIXED[place + length :]
    found = plain_toml(text)
    assert found is None or ordered(found) == ordered(told(text))
