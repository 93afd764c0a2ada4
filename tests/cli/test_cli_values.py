"""Small decisions of the command line by hand: exit codes, time left, thresholds, what is left out."""

import errno
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from asking import answered, run
from click.testing import CliRunner

from medusa_sim import cli as frame_of_commands
from medusa_sim.acceptance import metrics_page
from medusa_sim.cli import LazyGroup, calibrate, cli, main, options, parsed, prepare_streams, train
from medusa_sim.cli import progress as progress_of
from medusa_sim.cli.options import Counters
from medusa_sim.cli.output import _whole
from medusa_sim.cli.progress import time_left
from medusa_sim.cli.sweep import left_out
from medusa_sim.cli.validate import _check_mean
from medusa_sim.engine_runs.bench_row import BenchRow
from medusa_sim.engines.runtime import load_runtime
from medusa_sim.errors import ThresholdError, UsageError
from medusa_sim.grid.axes import Grid
from medusa_sim.lab.calibrate.engine_fit import FittedRow, FittedRuntime
from medusa_sim.report.sweep.screen import sweep_screen
from medusa_sim.scenario.scenario import Scenario
from medusa_sim.step.rows import predicted_rows


@pytest.mark.parametrize(
    ("done", "elapsed_s", "left_s", "told"),
    [
        (1, 10.0, None, "0:30 left"), (4, 10.0, None, "0:00 left"), (0, 30.0, None, "2:00 left"),
        (1, 10.0, 59.4, "0:59 left"), (1, 10.0, 59.6, "1:00 left"), (1, 10.0, 3601.0, "60:01 left"),
    ],
)  # fmt: skip
def test_time_left_is_that_of_the_pace_so_far(done, elapsed_s, left_s, told):
    """Of four, one in 10 s: 30 s are left."""
    assert time_left(done, 4, elapsed_s, left_s) == told


def test_a_line_is_shown_every_half_minute(monkeypatch, capsys):
    now = iter([0.0, 29.0, 30.0, 59.0, 61.0])
    monkeypatch.setattr(progress_of.time, "monotonic", lambda: next(now))
    with progress_of.progress("rows") as advance:
        for done in (1, 2, 3, 4):
            advance(done, 4, None)
    # at 30 s two of four are done: as long again; at 61 s all are
    assert capsys.readouterr().err.splitlines() == ["2 of 4 rows, 0:30 left", "4 of 4 rows, 0:00 left"]


def test_training_tells_every_hundredth_step_and_what_is_left(monkeypatch, capsys):
    """From step 1 on: 99 steps in 600 s, so 100 more take 606 s, ten minutes."""
    now = iter([0.0, 1.0, 600.0, 1210.0])
    monkeypatch.setattr(train.time, "monotonic", lambda: next(now))
    told = train._Progress(200)
    for step in (1, 100, 200):
        told(step, {"loss": 1.23456})
    assert capsys.readouterr().err.splitlines() == [
        "step 100/200  loss 1.235  10.1 min left", "step 200/200  loss 1.235  0.0 min left",
    ]  # fmt: skip


def ending(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> tuple[int, str]:
    """(exit code, stderr) of a command that ends with an error."""

    @click.command
    def broken() -> None:
        raise error

    monkeypatch.setattr(frame_of_commands, "_forget_stdout", lambda: None)
    monkeypatch.setattr(LazyGroup, "list_commands", lambda self, ctx: ["broken"])
    monkeypatch.setattr(LazyGroup, "get_command", lambda self, ctx, name: broken)
    result = CliRunner().invoke(cli, ["broken"])
    return result.exit_code, result.stderr


@pytest.mark.parametrize(
    ("error", "code", "told"),
    [
        (OSError(errno.EACCES, "Permission denied", "/x/own.csv"), 1, "/x/own.csv': Permission denied"),
        (OSError(errno.ENOSPC, "No space left on device"), 1, "the output cannot be written"),
        (BrokenPipeError(), 141, ""), (KeyboardInterrupt(), 130, ""), (UsageError("odd"), 2, "odd"),
        (ThresholdError("too far off"), ThresholdError("").exit_code, "too far off"),
    ],
)  # fmt: skip
def test_a_command_that_fails_ends_with_its_code(monkeypatch, error, code, told):
    found, line = ending(monkeypatch, error)
    assert found == code
    assert told in line
    assert line.count("\n") <= 1


def test_a_failure_that_nobody_caused_keeps_its_traceback(monkeypatch):
    @click.command
    def broken() -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(LazyGroup, "list_commands", lambda self, ctx: ["broken"])
    monkeypatch.setattr(LazyGroup, "get_command", lambda self, ctx, name: broken)
    assert isinstance(CliRunner().invoke(cli, ["broken"]).exception, OSError)


def test_a_process_that_is_ended_has_the_code_of_its_signal(monkeypatch):
    """128 and the number of the signal, as shells have it; who ignores a signal goes on ignoring it."""
    handlers: dict[int, Any] = {}
    monkeypatch.setattr(signal, "getsignal", lambda number: signal.SIG_IGN if number == 1 else signal.SIG_DFL)
    monkeypatch.setattr(signal, "signal", handlers.__setitem__)
    monkeypatch.setattr(frame_of_commands, "prepare_streams", lambda: None)
    monkeypatch.setattr(cli, "main", lambda **_: None)
    monkeypatch.setenv("MPLBACKEND", "module://ipykernel")
    main()
    assert list(handlers) == [signal.SIGTERM]
    with pytest.raises(SystemExit) as ended:
        handlers[signal.SIGTERM](signal.SIGTERM, None)
    assert ended.value.code == 128 + 15
    assert os.environ["MPLBACKEND"] == "agg"


def test_a_stream_that_the_shell_closed_is_stood_for(tmp_path):
    """In a process whose streams are closed, the first file that is opened is none of them."""
    code = (
        "import os, sys\n"
        "from medusa_sim.cli import prepare_streams\n"
        "prepare_streams()\n"
        f"handle = os.open({str(tmp_path / 'file')!r}, os.O_CREAT | os.O_WRONLY)\n"
        "os.write(handle, f'{handle > 2} {sys.stdin.mode} {sys.stdout.mode} {sys.stderr.mode} '.encode())\n"
        "sys.stderr.write('lost')\n"
        "try:\n    sys.stdout.write('lost'); sys.stdout.flush()\n"
        "except OSError as error:\n    os.write(handle, str(error.errno).encode())\n"
        "os._exit(0)\n"
    )
    script = tmp_path / "code.py"
    script.write_text(code, encoding="utf-8")
    closed = f'exec "{sys.executable}" "{script}" <&- >&- 2>&-'
    subprocess.run(["/bin/sh", "-c", closed], check=True, cwd=Path(__file__).resolve().parents[2])
    assert (tmp_path / "file").read_text() == f"True r w w {errno.EBADF}"
    assert prepare_streams() is None  # here all are open


def test_a_line_of_words_is_read_as_a_scenarios_options():
    words = "recommend --gpu h100-sxm --model llama-3.1-8b --batch 1..4"
    assert parsed(words) == parsed(f"medusa-sim {words}")
    assert (parsed(words)["gpu"], parsed(words)["model"]) == ("h100-sxm", "llama-3.1-8b")
    for line, told in (
        ("sweep --gpu h100-sxm,l40s", "2 of gpu"), ("compare --model x", "recommend, sweep"),
        ("recommend --help", "--help"), ("recommend 'x", "quotation"), ("recommend --speed 1", "--speed"),
    ):  # fmt: skip
        with pytest.raises(UsageError, match=told):
            parsed(line)


@pytest.mark.parametrize(("last", "more"), [(15, ""), (16, ", ...")])
def test_eight_counts_that_are_left_out_are_listed(last, more):
    scenario = Scenario(gpu="h100-sxm", model="llama-3.1-8b", drafter="eagle3", acceptance="0.7,0.5,0.3")
    (line,) = left_out(scenario, Grid.of([1], [64], range(1, last + 1)))
    # seven drafts are described
    assert f"candidates 8, 9, 10, 11, 12, 13, 14, 15{more} left out" in line
    assert left_out(scenario, Grid.of([1], [64], [1, 2, 4])) == []


def test_a_mean_error_above_its_threshold_ends_the_command():
    """In per cent: an error of 0.05 is above 4.9 and not above 5."""
    _check_mean("time per token", 0.05, 5.0)
    _check_mean("time per token", 9.0, None)
    with pytest.raises(ThresholdError, match=r"5\.00 % is above 4\.9 %"):
        _check_mean("time per token", 0.05, 4.9)


def test_a_prediction_is_scored_where_the_measured_value_stands_beside_it(tmp_path):
    seen, wanted = tmp_path / "seen.csv", tmp_path / "wanted.csv"
    seen.write_text("decoder,spec,block_efficiency\nSD,2,1.9\nSD,4,2.4\n")
    wanted.write_text("decoder,spec,block_efficiency\nSD,2,1.0\nSD,4,2.4\n")
    result = answered("acceptance", "predict", "--observations", seen, "--targets", wanted, "--format", "csv")
    table = pd.read_csv(pd.io.common.StringIO(result.stdout))
    assert table["error"].tolist() == pytest.approx(
        (table.predicted_block_efficiency / [1.0, 2.4] - 1).tolist()
    )
    assert table["error"].tolist() == pytest.approx([0.9, 0.0], abs=1e-6)
    assert "mean error 45.00 %, worst 90.00 % over 2 rows" in result.stderr


def test_a_server_is_asked_once_for_all_and_twice_for_what_is_between(monkeypatch):
    asked: list[str] = []
    slept: list[float] = []
    monkeypatch.setattr(metrics_page, "fetched", lambda url, timeout_s: asked.append(url) or str(len(asked)))
    monkeypatch.setattr(metrics_page, "scrape", lambda text, source: text)
    monkeypatch.setattr(metrics_page, "counts_between", lambda before, after, source: [(before, after)])
    monkeypatch.setattr(options.time, "sleep", slept.append)
    assert Counters().read("http://x/metrics") == [(None, "1")]
    assert Counters(wait_s=0.5).read("http://x/metrics") == [("2", "3")]
    assert slept == [0.5]
    with pytest.raises(UsageError, match="--wait"):
        Counters(before=Path("x")).read("http://x/metrics")


def test_rows_of_a_comparison_tell_its_warnings_by_number():
    words = "--gpu b300 --gpus 1 --model llama-3.1-8b --engine vllm --drafter none --batch 8 --format csv"
    told = run("compare", *words.split()).stderr.splitlines()
    numbers = [int(found[1]) for line in told if (found := re.match(r"warning: \((\d+)\)", line))]
    assert numbers == list(range(1, len(numbers) + 1)) != []


@pytest.mark.parametrize(("rows", "fits"), [(200_000, True), (200_001, False)])
def test_a_table_for_people_has_at_most_two_hundred_thousand_rows(rows, fits):
    """Whatever chunks it comes in."""
    chunks = iter([pa.table({"x": np.zeros(count, dtype=np.int8)}) for count in (rows - 10, 10)])
    if fits:
        assert _whole(chunks).num_rows == rows
    else:
        with pytest.raises(UsageError, match="200,000 rows"):
            _whole(chunks)


@pytest.mark.parametrize(("cards", "several"), [("h100-sxm", [False]), ("h100-sxm,l40s", [True, True])])
def test_an_answer_is_named_where_there_are_several(monkeypatch, cards, several):
    told: list[bool] = []

    def shown(answer: Any, warned: Any, **given: bool) -> Any:
        told.append(given["several"])
        return sweep_screen(answer, warned, **given)

    monkeypatch.setattr("medusa_sim.report.sweep.screen.sweep_screen", shown)
    answered("sweep", "--gpu", cards, "--latency", "roofline", "--batch", "1")
    assert told == several


@pytest.mark.parametrize("cache", ["cold", "as-measured"])
def test_rows_are_predicted_with_the_cache_that_is_stated(monkeypatch, tmp_path, cache):
    rows = tmp_path / "rows.csv"
    rows.write_text("op,m,n,k,dtype,time_us\nup_proj,1,4096,4096,fp16,20.0\n")
    asked: list[bool] = []

    def predicted(*given: Any, **more: Any) -> Any:
        asked.append(more["cold"])
        return predicted_rows(*given, **more)

    monkeypatch.setattr("medusa_sim.step.rows.predicted_rows", predicted)
    answered("validate", "rows", "--gpu", "a100-80gb-pcie", "--cache", cache, rows)
    assert asked == [cache == "cold"]


def test_a_line_of_kilobytes_loses_its_middle(monkeypatch):
    """A thousand characters are told, of more the first half of a thousand and the last third."""
    whole = "x" * 1_000
    assert ending(monkeypatch, UsageError(whole))[1] == f"Error: {whole}\n"
    _, line = ending(monkeypatch, UsageError("a" * 900 + "b" * 101))
    assert line == f"Error: {'a' * 500} ... {'a' * 233 + 'b' * 101}\n"


def test_a_fit_tells_its_worst_run_and_those_that_it_left_out(capsys):
    """Runs of 10 ms given as 10.5 and 12.0: within 20 %; left out as 9.0 and 10.6: 10 and 6 %."""
    runs = [BenchRow(source=name, tool="csv", concurrency=1.0, itl_us=10_000.0) for name in ("one", "two")]
    rows = [
        FittedRow(row=run, fitted_us=us, leave_one_out_us=other)
        for run, us, other in zip(runs, (10_500.0, 12_000.0), (9_000.0, 10_600.0), strict=True)
    ]
    calibrate._tell(FittedRuntime(runtime=load_runtime("vllm"), terms={}, rows=tuple(rows)))
    first, *others = capsys.readouterr().err.splitlines()
    assert re.findall(r"[\d.]+ %", first) == ["20.0 %", "10.0 %", "8.0 %"]
    assert [line for line in others if "two" in line and "+20 %" in line]
