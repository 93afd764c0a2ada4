"""A value of each unit as people read it."""

import math
from typing import get_args

import pytest

from medusa_sim.grid.quantity import Unit
from medusa_sim.report.quantity_table import _WAYS, quantity_text


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("sure", 0.98347, "98 %"), ("goodput_share", 0.98347, "98.3 %"), ("tokens_per_step", 2.347, "2.35"),
        ("speedup", 1.347, "1.35x"), ("decode_step_us", 12345.678, "12.3 ms"), ("ttft_p50_s", 0.98347, "983"),
        ("tokens_per_s_per_user", 12345.678, "12,346"), ("memory_bytes", 12345.678, "12.3 kB"),
        ("fits_memory", True, "yes"), ("fits_memory", False, "NO"), ("speedup", math.nan, "-"),
        ("speedup", None, "-"), ("gpu", "a40", "a40"),
    ],
)  # fmt: skip
def test_a_value_by_its_unit(name, value, text):
    assert quantity_text(name, value) == text


def test_every_unit_is_shown():
    assert set(get_args(Unit)) == set(_WAYS)
