"""docs/engine-loop.md: its commands run, in order, on recorded files, and print what the page shows."""

import re
from pathlib import Path

import pytest
import refresh_docs

ROOT = Path(__file__).resolve().parents[2]
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:e-?\d+)?")


def test_the_loop_runs_and_the_page_shows_what_it_prints():
    """Numbers may be a little older than the terms of engines: 5 %, and 0.02 of an error."""
    written = (ROOT / "docs" / "engine-loop.md").read_text(encoding="utf-8")
    now = refresh_docs.loop_page()
    assert _NUMBER.sub("#", now) == _NUMBER.sub("#", written), "run `make docs`"
    for new, old in zip(_NUMBER.findall(now), _NUMBER.findall(written), strict=True):
        assert float(new) == pytest.approx(float(old), rel=0.05, abs=0.02), "run `make docs`"
    assert written.count("```sh") >= 4
