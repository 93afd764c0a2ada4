"""Grids, numbers and profiles as they are typed, at the edges of what is taken."""

import tomllib

import click
import numpy as np
import pytest
from asking import HEADS, answered

from medusa_sim.acceptance.profile import load_acceptance
from medusa_sim.cli import train, values
from medusa_sim.cli.values import BATCH, CANDIDATES, DRAFTS, MAX_VALUES, SEQ_LEN, TP, Axis, Threads, _listed
from medusa_sim.errors import UsageError

WIDE = Axis(powers_of_two=False, largest=10**9)


@pytest.mark.parametrize(
    ("axis", "text", "made"),
    [
        (BATCH, "3..9", (4, 8)), (BATCH, "1..1", (1,)), (BATCH, "8..8", (8,)), (BATCH, "65536", (65_536,)),
        (BATCH, "32768..65536", (32_768, 65_536)), (BATCH, "3..9:3", (3, 6, 9)),
        (BATCH, "3..10:3", (3, 6, 9)),
        (BATCH, "3..12:x2", (3, 6, 12)), (BATCH, "3..11:x2", (3, 6)), (BATCH, "5..5:x2", (5,)),
        (BATCH, "1..100:x10", (1, 10, 100)), (SEQ_LEN, "4k,1", (1, 4096)),
        (SEQ_LEN, "1k..4k", (1024, 2048, 4096)),
        (SEQ_LEN, "16777216", (16_777_216,)), (CANDIDATES, "2..4", (2, 3, 4)),
        (TP, "1..1024", tuple(2**p for p in range(11))),
        (DRAFTS, "64, 1,1", (1, 64)), (WIDE, f"1..{MAX_VALUES}", tuple(range(1, MAX_VALUES + 1))),
    ],
)  # fmt: skip
def test_a_grid_is_the_numbers_that_it_names(axis, text, made):
    assert axis.values(text) == made


@pytest.mark.parametrize(
    ("axis", "text"),
    [
        (BATCH, "0"), (BATCH, "65537"), (BATCH, "5..7"), (BATCH, "2..1"), (BATCH, "1..9:x1"),
        (BATCH, "1..9:0"),
        (BATCH, "4k"), (BATCH, "9" * 20), (TP, "1025"), (DRAFTS, "65"), (SEQ_LEN, "16777217"),
        (BATCH, "1,,2"),
        (WIDE, f"1..{MAX_VALUES + 1}"), (WIDE, f"1..{MAX_VALUES},{MAX_VALUES + 1}"),
    ],
)  # fmt: skip
def test_what_is_beyond_an_axis_is_refused(axis, text):
    with pytest.raises(UsageError):
        axis.values(text)


def test_a_long_text_is_shown_by_its_beginning():
    with pytest.raises(UsageError) as whole:
        BATCH.values("x" * 40)
    with pytest.raises(UsageError) as cut:
        BATCH.values("x" * 41)
    assert f"'{'x' * 40}' is not a grid" in str(whole.value)
    assert f"'{'x' * 37}...': " in str(cut.value)
    with pytest.raises(UsageError, match=f"{'9' * 12}\\.\\.\\. is out of range"):
        BATCH.values("9" * 20)
    with pytest.raises(UsageError, match=f"{'9' * 19} is out of range"):
        BATCH.values("9" * 19)
    assert BATCH.one("8") == 8
    with pytest.raises(UsageError, match="1,2: one value"):
        BATCH.one("1,2")


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (range(1, 9), "1 2 3 4 5 6 7 8"), (range(1, 10), "1..9:1"), (range(2, 20, 2), "2..18:2"),
        ([1, 2, 4, 8, 16, 32, 64, 128, 256], "1 2 4 8 16 32 64 128 256"), ([5], "5"),
        ([*range(1, 160), 500], " ".join(map(str, [*range(1, 160), 500]))),
        ([*range(1, 161), 500], " ".join(map(str, range(1, 81))) + " ... 500 (161 values)"),
    ],
)  # fmt: skip
def test_values_of_an_axis_are_listed_or_shown_as_a_grid(given, told):
    assert _listed(given) == told


@pytest.mark.parametrize(("cores", "most"), [(1, 64), (16, 64), (17, 68), (None, 64)])
def test_threads_are_four_a_core_and_sixty_four_anywhere(monkeypatch, cores, most):
    monkeypatch.setattr(values.os, "cpu_count", lambda: cores)
    assert Threads().convert(str(most), None, None) == most
    with pytest.raises(click.BadParameter, match=f"at most {most} here"):
        Threads().convert(str(most + 1), None, None)
    assert Threads().convert("1", None, None) == 1
    for wrong in ("0", "1025"):
        with pytest.raises(click.BadParameter):
            Threads().convert(wrong, None, None)


@pytest.mark.parametrize(
    ("of", "told"),
    [
        (click.IntRange(1, 64), "whole numbers from 1 to 64 are allowed"),
        (click.FloatRange(0.0, min_open=True), "finite numbers above 0 are allowed"),
        (click.FloatRange(max=1.5), "finite numbers to 1.5 are allowed"),
    ],
)
def test_what_is_allowed_is_shown_by_its_ends(of, told):
    assert values._allowed(of) == told


@pytest.mark.parametrize("labelled", [False, True])
def test_accuracies_of_ones_own_are_written_without_what_nobody_measured(tmp_path, labelled):
    rows = HEADS if labelled else "\n".join(line.rpartition(",")[0] for line in HEADS.split())
    (tmp_path / "heads.csv").write_text(rows + "\n")
    path = tmp_path / "own.toml"
    answered("acceptance", "fit", "--head-accuracy", tmp_path / "heads.csv", "--source", "made", "-o", path)
    written = tomllib.loads(path.read_text())
    assert written.get("correlation", 0.0) == 0.0
    assert [head.get("labels", 0) for head in written["heads"]] == [1000 * labelled] * 4
    assert [head["accuracy"][0] for head in written["heads"]] == pytest.approx([0.5, 0.25, 0.5 / 3, 0.125])


def test_an_acceptance_shows_its_depths_heads_and_band_by_count():
    result = answered("acceptance", "show", "medusa1-vicuna-7b", "--candidates", "1,2,4", "--format", "csv")
    lines = [line.split(",") for line in result.stdout.strip().splitlines() if not line.startswith("#")]
    table = {name: [row[place] for row in lines[1:]] for place, name in enumerate(lines[0])}
    loaded = load_acceptance("medusa1-vicuna-7b")
    counts = np.array([1, 2, 4])
    trees = [loaded.tree(count) for count in (2, 4)]
    assert [int(value) for value in table["depth"]] == [0, *(tree.depth for tree in trees)]
    assert int(table["heads_worth_running"][0]) == 0
    low, high = loaded.band(counts)
    for name, expected in (
        ("tokens_per_step", loaded.tokens_per_step(counts)), ("tokens_per_step_low", low),
        ("tokens_per_step_high", high),
    ):  # fmt: skip
        assert [float(value) for value in table[name]] == pytest.approx(expected.tolist())


def test_a_training_that_goes_on_takes_its_first_step_for_one(monkeypatch, capsys):
    now = iter([0.0, 6.0])
    monkeypatch.setattr(train.time, "monotonic", lambda: next(now))
    train._Progress(110)(100, {"loss": 1.0})
    assert "1.0 min left" in capsys.readouterr().err  # ten steps of 6 s
