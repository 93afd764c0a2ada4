"""`medusa-sim reproduce`: every target runs, is drawn, and says where it comes from."""

import json

import pytest
from asking import answered, document

from medusa_sim.reproduce import TARGETS

DRAWN = ("table6", "table8", "figure9", "figure18", "figure21", "figure22", "figure23")


@pytest.mark.parametrize("target", sorted(TARGETS))
def test_every_target_has_rows_a_source_and_a_plot(target, tmp_path):
    path = tmp_path / f"{target}.png"
    found = document("reproduce", target, *(("--plot", path) if target in DRAWN else ()))
    assert target not in DRAWN or path.read_bytes().startswith(b"\x89PNG")
    assert found["target"] == target
    assert found["rows"]
    assert "arXiv" in found["source"]
    if target != "rsd-figure1":  # exact numbers of a toy; the paper prints no table of it
        assert any(key.startswith("published_") for key in found["rows"][0])


def test_without_a_target_the_errors_are_listed():
    result = answered("reproduce", "--format", "json")
    rows = json.loads(result.stdout)["rows"]
    assert {"table6", "table8", "figure21", "figure22"} <= {row["target"] for row in rows}
    assert "targets: table6" in result.stderr
