"""Thresholds of the command line: the last value on one side and the first on the other."""

import dataclasses
import io
import os
import re
import sys
from contextlib import contextmanager
from types import SimpleNamespace

import click
import pytest
from asking import HEADS, answered, document, frame, run
from click.testing import CliRunner

from medusa_sim.cli import acceptance, calibrate, help_page, train, validate
from medusa_sim.cli import app as app_command
from medusa_sim.cli import progress as progress_of
from medusa_sim.cli.options import PositiveFloat, _number, option_of
from medusa_sim.cli.values import Threads, _listed
from medusa_sim.engine_runs.bench_row import BenchRow
from medusa_sim.engines.runtime import load_runtime
from medusa_sim.errors import DataError, ThresholdError
from medusa_sim.lab.calibrate.engine_fit import FittedRow, FittedRuntime
from medusa_sim.lab.validate.operators import Score
from medusa_sim.load.arguments import LOAD
from medusa_sim.scenario.arguments import ARGUMENTS
from medusa_sim.scenario.question import QUESTION
from medusa_sim.step.rows import predicted_rows


@pytest.mark.parametrize(("cores", "most"), [(None, 64), (4, 64), (16, 64), (17, 68), (100, 400)])
def test_threads_are_at_most_four_for_each_core_and_64(monkeypatch, cores, most):
    monkeypatch.setattr(os, "cpu_count", lambda: cores)
    assert Threads().convert(str(most), None, None) == most
    with pytest.raises(click.BadParameter):
        Threads().convert(str(most + 1), None, None)
    for outside in ("0", "1025"):
        with pytest.raises(click.BadParameter):
            Threads().convert(outside, None, None)


def test_many_values_of_equal_steps_are_shown_as_a_grid():
    assert _listed(range(2, 18, 2)) == "2 4 6 8 10 12 14 16"
    assert _listed(range(2, 20, 2)) == "2..18:2"
    uneven = [*range(1, 160), 161]
    assert _listed(uneven) == " ".join(map(str, uneven))
    assert _listed([*uneven, 163]) == f"{' '.join(map(str, range(1, 81)))} ... 163 (161 values)"


@pytest.mark.parametrize(
    ("rows", "told"),
    [
        ("SD,2,1.9\n,4,2.4\nSD,8,2.6\n", "line 3: decoder"),
        ("SD,2,1.9\nSD,,2.4\n,8,2.6\n", "line 4: decoder"),
        ("SD,2,1.0\nSD,4,0.99\nSD,8,0.9\n", "line 3: block_efficiency '0.99'"),
        ("SD,2,1.0\nSD,4,2.0\nSD,8,inf\n", "line 4: block_efficiency 'inf'"),
        ("# ours\nSD,2,1.0\n\nSD,8,inf\n", "line 5: block_efficiency 'inf'"),
    ],
)
def test_the_first_wrong_line_of_acceptances_is_named(tmp_path, rows, told):
    path = tmp_path / "seen.csv"
    path.write_text("decoder,spec,block_efficiency\n" + rows)
    with pytest.raises(DataError, match=re.escape(told)):
        acceptance._rows(path, ("decoder", "spec", "block_efficiency"))


def sectioned(options: int) -> str:
    """The help page of a command with so many options, its --help among them."""
    made = [click.Option([f"--own{place}"]) for place in range(options - 1)]
    return CliRunner().invoke(help_page.Sectioned("made", params=made), ["--help"]).stdout


def test_fifteen_options_are_put_in_sections():
    # --help alone has a place among the sections
    titles = [
        [line.removesuffix(":") for line in sectioned(count).splitlines() if re.fullmatch(r"\w.*:", line)]
        for count in (14, 15)
    ]
    assert titles[0][-1:] == ["Options"]
    assert titles[1][-1:] == ["Output"]


def test_the_first_six_that_a_command_has_lead_its_page():
    names = help_page.FIRST[:8]
    made = [click.Option([name]) for name in names] + [click.Option([f"--own{at}"]) for at in range(9)]
    page = CliRunner().invoke(help_page.Sectioned("made", params=made), ["--help"]).stdout
    first = page.partition("First:\n")[2].partition("\n\n")[0]
    assert re.findall(r"--[\w-]+", first) == list(names[:6])


@pytest.mark.parametrize(("length", "stays"), [(24, True), (25, False)])
def test_a_list_of_names_stands_behind_its_option_up_to_24_characters(length, stays):
    names = ["a" * 10, "b" * (length - 12)]  # with a bar between them and the bracket that ends them
    option = click.Option(["--which"], type=click.Choice(names), help="Chooses.")
    told = help_page.help_line(option, click.Context(click.Command("made")))
    assert told is not None
    assert (names[0] in told[0], names[0] in told[1]) == (stays, not stays)


@pytest.mark.parametrize(
    ("kind", "short"),
    [(click.INT, "N"), (click.IntRange(1, 9), "N"), (click.FLOAT, "X"), (PositiveFloat(), "X")],
)
def test_a_number_is_a_letter_on_a_help_page(kind, short):
    told = help_page.help_line(click.Option(["--many"], type=kind), click.Context(click.Command("made")))
    assert told is not None
    assert told[0] == f"--many {short}"


@pytest.mark.parametrize(
    ("least", "above", "most", "taken", "refused"),
    [
        (None, 0, None, (1e-9, 5.0), (0.0, -1.0)),
        (0, None, None, (0.0, 5.0), (-0.1,)),
        (None, 0, 1, (0.5, 1.0), (0.0, 1.1)),
        (0, None, 1, (0.0, 1.0), (1.1,)),
        (None, None, None, (-1e9,), ()),
    ],
)
def test_a_number_is_taken_within_its_range(least, above, most, taken, refused):
    kind = _number(SimpleNamespace(least=least, above=above, most=most))
    assert [kind.convert(str(value), None, None) for value in taken] == list(taken)
    for value in refused:
        with pytest.raises(click.BadParameter):
            kind.convert(str(value), None, None)
    if most is None and above == 0:
        with pytest.raises(click.BadParameter):
            kind.convert("inf", None, None)


def test_the_runtime_is_read_before_what_depends_on_it():
    def eager(name: str) -> bool:
        @option_of(ARGUMENTS[name])
        def made() -> None: ...

        return made.__click_params__[0].is_eager

    assert {name: eager(name) for name in ("runtime", "model", "gpu")} == {
        "runtime": True, "model": False, "gpu": False,
    }  # fmt: skip


def test_a_run_a_tenth_off_is_no_word_worth(capsys):
    """Runs of 10 ms given as 9.001 or 10.999 ms, and as 8.95 or 11.05: more than a tenth off."""
    run_of = BenchRow(source="own", tool="csv", concurrency=1.0, itl_us=10_000.0)
    for fitted_us, lines in ((9_001.0, 1), (10_999.0, 1), (8_950.0, 2), (11_050.0, 2)):
        row = FittedRow(row=run_of, fitted_us=fitted_us, leave_one_out_us=None)
        calibrate._tell(FittedRuntime(runtime=load_runtime("vllm"), terms={}, rows=(row,)))
        assert len(capsys.readouterr().err.splitlines()) == lines


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_line_begins_after_a_second_and_goes_with_the_work(monkeypatch):
    """Told of at 0.9 s and at 1.1 s after it began at 5 s."""
    now = iter([5.0, 5.9, 6.1])
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    monkeypatch.setattr(progress_of.time, "monotonic", lambda: next(now))
    with progress_of.progress("rows") as advance:
        advance(1, 101, None)
        assert terminal.getvalue() == ""
        advance(2, 4, None)
    *_, line, end = terminal.getvalue().split("\r")
    assert "2 of 4 rows, 0:01 left" in line
    assert not end.strip("\x1b[K")


def test_rows_are_counted_from_nothing(monkeypatch):
    told: list[tuple[int, int]] = []

    @contextmanager
    def progress(unit: str):
        yield lambda done, total: told.append((done, total))

    monkeypatch.setattr(progress_of, "progress", progress)
    tables = [SimpleNamespace(num_rows=rows) for rows in (3, 4)]
    assert list(progress_of.count_rows(tables, 7, "rows")) == tables
    assert told == [(3, 7), (7, 7)]


def test_training_on_a_terminal_keeps_to_one_line(monkeypatch):
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    told = train._Progress(2)
    for step in (1, 2):
        told(step, {"loss": 1.0})
    assert stream.getvalue().count("\n") == 1
    assert stream.getvalue().endswith("\n")


@pytest.mark.parametrize(("charts", "columns"), [(1, 1), (2, 2), (3, 3), (5, 3)])
def test_charts_of_a_reproduction_stand_three_in_a_row(monkeypatch, tmp_path, charts, columns):
    """One chart says itself what it shows, several share a title."""
    drawn: list[tuple[int, int, bool]] = []
    monkeypatch.setattr(
        "medusa_sim.lab.reproduce.charts.reproduction_charts", lambda *given: [object()] * charts
    )
    monkeypatch.setattr(
        "medusa_sim.report.figures.draw.lines_figure",
        lambda *given, columns, title: drawn.append((len(given), columns, bool(title))),
    )
    monkeypatch.setattr("medusa_sim.report.figures.files.save", lambda figure, path: None)
    answered("reproduce", "table7", "--plot", tmp_path / "x.png")
    assert drawn == [(charts, columns, charts > 1)]


def test_coverage_is_listed_of_a_card_a_model_or_an_engine():
    every = frame("specs", "coverage")
    assert every.equals(frame("specs", "--kind", "coverage"))
    engine = str(every.engine[0])
    named = every.dropna(subset=["gpu", "model"])
    for option, column in (("--gpu", "gpu"), ("--model", "model")):
        value = named[column].iloc[0]
        found = frame("specs", "--kind", "coverage", option, value)
        assert len(found) == (every[column] == value).sum()
        assert set(found[column]) == {value}
    found = frame("specs", "--kind", "coverage", "--runtime", engine)
    assert set(found.engine) == {engine}
    assert len(found) == (every.engine == engine).sum()


def test_a_set_up_says_how_far_it_lies_from_what_was_measured():
    said = document("specs", "--kind", "coverage", "--gpu", "h100-sxm", "--model", "llama-3.1-8b")
    assert {"class", "nearest", "expected_error", "half_width"} <= said.keys()
    assert run("specs", "--kind", "coverage", "--gpu", "h100-sxm", "--drafter", "eagle3").exit_code == 2


def test_one_tree_and_its_tokens_give_the_correlation(tmp_path):
    """A chain of two whose heads are right in 1/2 and 1/4 gives 1 + 1/2 + 1/8 tokens as a product."""
    heads, shape = tmp_path / "heads.csv", tmp_path / "tree.json"
    heads.write_text(HEADS)
    shape.write_text("[[0], [0, 0]]")
    words = ("acceptance", "fit", "--source", "own", "--head-accuracy", heads, "--tree", shape)

    def made(tokens: str) -> object:
        return run(*words, "--tokens-per-step", tokens, "-o", tmp_path / f"{tokens}.toml")

    for tokens, code in (("0.99", 2), ("3.01", 2)):
        assert made(tokens).exit_code == code, tokens
    # the later heads stay probabilities to a correlation of 0.575: 1 + 1/2 + e^0.575 / 8
    for tokens, nearest in (("1.0", "1.62 (+62 %)"), ("1.7", ""), ("3.0", "1.72 (-43 %)")):
        done = made(tokens)
        assert (done.exit_code, "nearest" in done.stderr) == (0, bool(nearest)), tokens
        assert nearest in done.stderr
    # as many as the product gives, or fewer, correlate by nothing
    text = (tmp_path / "1.0.toml").read_text()
    assert "correlation" not in text or re.search(r"correlation = 0(\.0)?\n", text)
    assert float(re.search(r"correlation = ([\d.]+)", (tmp_path / "1.7.toml").read_text())[1]) > 0.0


def test_the_apps_folder_is_looked_in_first(monkeypatch, tmp_path):
    (tmp_path / "warm.py").write_text("asked = []\ndef first_page(): asked.append(1)\n")
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "warm", raising=False)
    app_command._warm_up(tmp_path)
    assert (sys.path[0], sys.modules["warm"].asked) == (str(tmp_path), [1])
    monkeypatch.delitem(sys.modules, "warm")


def test_the_worst_operator_over_all_sizes_is_held_to_the_threshold(monkeypatch, tmp_path):
    """12 % of all sizes, not the 40 % of small ones and not the 3 % of another operator."""
    scores = [("gemm", "all", 0.12), ("gemm", "small", 0.4), ("norm", "all", 0.03)]
    made = [
        Score(
            **{field.name: 0.0 for field in dataclasses.fields(Score)}
            | {"op": op, "dtype": "bf16", "size": size, "mean": mean, "worst_at": "here"}
        )
        for op, size, mean in scores
    ]
    monkeypatch.setattr("medusa_sim.lab.validate.operators.scores", lambda rows, card: made)
    monkeypatch.setattr("medusa_sim.lab.validate.regrets.regrets", lambda rows, profile: [])
    rows = tmp_path / "rows.csv"
    rows.write_text("op,m,n,k,dtype,time_us\nup_proj,1,4096,4096,fp16,20.0\n")
    words = ("validate", "rows", "--gpu", "a100-80gb-pcie", rows, "--format", "csv", "--fail-above")
    assert run(*words, "12.1").exit_code == 0
    refusal = run(*words, "11.9")
    assert refusal.exit_code == ThresholdError("").exit_code
    assert "gemm bf16" in refusal.stderr


@pytest.mark.parametrize("cache", ["cold", "as-measured"])
def test_operators_are_timed_with_the_cache_that_is_stated(monkeypatch, tmp_path, cache):
    rows, asked = tmp_path / "rows.csv", list[bool]()
    rows.write_text("op,m,n,k,dtype\nup_proj,1,4096,4096,fp16\n")

    def predicted(*given: object, **more: object) -> object:
        asked.append(more["cold"])
        return predicted_rows(*given, **more)

    monkeypatch.setattr("medusa_sim.step.rows.predicted_rows", predicted)
    answered("time", "--gpu", "a100-80gb-pcie", "--cache", cache, "--ops", rows)
    assert asked == [cache == "cold"]


def test_an_option_is_listed_by_its_long_name():
    made = [click.Option(["-o", "--output"])] + [click.Option([f"--own{at}"]) for at in range(15)]
    page = CliRunner().invoke(help_page.Sectioned("made", params=made), ["--help"]).stdout
    assert "--output" in page.partition("Output:")[2]


def test_declared_options_stand_in_the_section_that_they_name():
    sections = help_page.sections()
    for known in (ARGUMENTS, QUESTION, LOAD):
        for each in known.values():
            if each.section in sections:
                assert each.option.partition("/")[0] in sections[each.section]
    listed = [name for names in sections.values() for name in names]
    assert len(listed) == len(set(listed))


@pytest.mark.parametrize(
    ("mean", "floor", "limit", "passes"),
    [(0.10, 0.04, 6.1, True), (0.10, 0.04, 5.9, False), (0.05, 0.0, None, True)],
)
def test_only_an_error_beyond_what_passes_differ_by_counts(monkeypatch, tmp_path, mean, floor, limit, passes):
    """10 % where passes differ by 4: 6 % count."""
    compared = [SimpleNamespace(quantity="step", mean=mean, floor=floor, worst_at="here")]
    monkeypatch.setattr(validate, "_steps", lambda *given, **more: compared)
    limits = [] if limit is None else ["--fail-above", limit]
    done = run("validate", "decoder", "--gpu", "a100-80gb-pcie", tmp_path, *limits)
    assert done.exit_code == (0 if passes else ThresholdError("").exit_code), done.stderr
