"""How often a look-up in the text finds drafts: as a profile says, else from the first rate."""

from __future__ import annotations

from pathlib import Path

import pytest

from medusa_sim.acceptance.profile import ACCEPTED_OF_MATCHES, load_acceptance
from medusa_sim.errors import SpecError

TEXT = """
schema = 1
kind = "position"
title = "n-grams"
source = "a test"
agreement = "target"
rates = "unconditional"
positions = [{ rate = 0.2 }, { rate = 0.1 }]
"""


def written(folder: Path, more: str = "") -> Path:
    path = folder / "own.toml"
    path.write_text(TEXT + more)
    return path


def test_a_measured_match_rate_is_taken_as_it_is(tmp_path: Path) -> None:
    assert load_acceptance(written(tmp_path, "match_rate = 0.31")).steps_matched == 0.31


def test_without_one_it_follows_from_the_first_draft(tmp_path: Path) -> None:
    profile = load_acceptance(written(tmp_path))
    assert profile.steps_matched == pytest.approx(0.2 / ACCEPTED_OF_MATCHES)
    assert profile.with_ratio(0.5).steps_matched == pytest.approx(0.1 / ACCEPTED_OF_MATCHES)
    assert profile.with_ratio(10.0).steps_matched == 1.0


def test_curves_of_trees_know_no_matches() -> None:
    assert load_acceptance("paper-fig21").steps_matched == 1.0


@pytest.mark.parametrize("rate", ["0.0", "1.5", "-0.2"])
def test_an_impossible_match_rate_is_refused(tmp_path: Path, rate: str) -> None:
    with pytest.raises(SpecError, match=r"own\.toml.*match_rate"):
        load_acceptance(written(tmp_path, f"match_rate = {rate}"))
