"""Widths of bands of borrowed kernels are those that measured rows ask for."""

import pytest
from common.study import width_to_add
from kernels import STORED_WIDTHS, transferred


@pytest.mark.nightly
@pytest.mark.usefixtures("shared_data")
def test_what_is_stored_is_what_the_command_finds():
    found = transferred()
    for place, stored in STORED_WIDTHS.items():
        assert stored == pytest.approx(width_to_add(found[place]), abs=0.006), place
