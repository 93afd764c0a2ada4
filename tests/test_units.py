"""Prefixes are the SI's; an element of a format is as long as its bits and the scales beside them."""

import pytest
from scipy import constants

from medusa_sim import units


def test_prefixes_are_those_of_the_si():
    assert (
        constants.kilo, constants.mega, constants.giga, constants.tera,
    ) == (units.KILO, units.MEGA, units.GIGA, units.TERA)  # fmt: skip
    assert pytest.approx(1.0) == constants.micro * units.US_PER_S
    assert pytest.approx(constants.milli) == constants.micro * units.US_PER_MS
    assert constants.mebi == units.MIB


@pytest.mark.parametrize(
    ("name", "bits", "scale_bits", "shared_by"),
    [
        ("fp64", 64, 0, 1), ("fp32", 32, 0, 1), ("bf16", 16, 0, 1), ("fp16", 16, 0, 1), ("fp8", 8, 0, 1),
        ("int8", 8, 0, 1), ("int4", 4, 0, 1), ("fp8_block", 8, 32, 128 * 128), ("nvfp4", 4, 8, 16),
        ("mxfp4", 4, 8, 32),
    ],
)  # fmt: skip
def test_an_element_has_its_bits_and_its_part_of_a_scale(name, bits, scale_bits, shared_by):
    assert units.BYTES_PER_ELEMENT[name] * 8 == pytest.approx(bits + scale_bits / shared_by)
