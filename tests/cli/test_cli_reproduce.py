"""`medusa-sim reproduce`: every target runs, is drawn, and says where it comes from."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from medusa_sim.cli import cli
from medusa_sim.reproduce import TARGETS


def run(*args: str) -> Result:
    return CliRunner().invoke(cli, ["reproduce", *args], catch_exceptions=False)


@pytest.mark.parametrize("target", sorted(TARGETS))
def test_every_target_has_rows_and_a_source(target: str) -> None:
    result = run(target, "--format", "json")
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    assert found["target"] == target
    assert found["rows"]
    assert "arXiv" in found["source"]
    if target != "rsd-figure1":  # exact numbers of a toy; the paper prints no table of it
        assert any(key.startswith("published_") for key in found["rows"][0])


@pytest.mark.parametrize(
    "target", ["table6", "table8", "figure9", "figure18", "figure21", "figure22", "figure23"]
)
def test_plots_are_drawn(target: str, tmp_path: Path) -> None:
    path = tmp_path / f"{target}.png"
    result = run(target, "--plot", str(path), "--format", "csv")
    assert result.exit_code == 0, result.stderr
    assert path.read_bytes().startswith(b"\x89PNG")


def test_without_a_target_the_errors_are_listed() -> None:
    result = run("--format", "json")
    assert result.exit_code == 0
    rows = json.loads(result.stdout)["rows"]
    assert {"table6", "table8", "figure21", "figure22"} <= {row["target"] for row in rows}
    assert "targets: table6" in result.stderr


def test_an_unknown_target_names_the_nearest() -> None:
    result = run("figur22")
    assert result.exit_code == 2
    assert "did you mean 'figure22'" in result.stderr
    assert result.stderr.count("\n") == 1


def test_a_plot_needs_a_target(tmp_path: Path) -> None:
    assert run("--plot", str(tmp_path / "x.png")).exit_code == 2
