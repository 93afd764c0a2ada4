"""Operators and steps in turns: order, budget, the machine's state divided out, and what a stop leaves."""

import itertools
import json
import math
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import gpu_ground_truth as script
import pytest
from asking import answered
from asking import run as invoke
from click.testing import Result
from decoder_models import tiny_config

from medusa_sim.lab.measure import together
from medusa_sim.lab.measure.cells import read_steps
from medusa_sim.lab.measure.disagreement import halves_differ
from medusa_sim.lab.measure.shapes import TimedShape, fill_up
from medusa_sim.lab.measure.spread import lower_quartile, settled_timing
from medusa_sim.lab.measure.turns import ReferenceKernel, Turns, Visit, take_turns
from medusa_sim.lab.validate.comparison import CountChoice
from medusa_sim.operators.kinds import operator_of


class Machine:
    """A clock that the visits move, and a speed that wanders."""

    def __init__(self, speed: Callable[[float], float] = lambda _: 1.0) -> None:
        self.now_s, self.speed, self.order = 0.0, speed, []

    def visit(self, key: str, time_us: float, often: int = 1) -> Visit:
        def once() -> float:
            self.now_s += 1.0
            return time_us * self.speed(self.now_s)

        def ready() -> Callable[[], float]:
            self.order.append(key)
            return once

        return Visit(key, ready, often)

    def turns(self) -> Turns:
        return Turns(lambda: 10.0 * self.speed(self.now_s))


def test_everything_is_measured_once_whatever_the_budget():
    machine = Machine()
    first = [machine.visit(name, 4e4) for name in "abc"]
    more = [machine.visit(name, 4e4) for name in "de"]
    assert list(take_turns(machine.turns(), first, more, budget_s=1.0, clock=lambda: machine.now_s)) == [1, 2]
    assert machine.order == ["a", "b", "c"] * 2  # twice, so that there are passes to compare


def test_nothing_is_measured_twice_before_all_are_measured_once():
    """A sixth of the budget for the first round, whole rounds after it, none that would not fit."""
    machine = Machine()
    turns = machine.turns()
    first = [machine.visit(name, 4e4) for name in "abc"]  # two samples of a second each
    more = [machine.visit(name, 4e4) for name in "defgh"]
    rounds = list(take_turns(turns, first, more, budget_s=54.0, clock=lambda: machine.now_s))
    assert machine.order[:5] == list("abcde")  # 6 s, 8 s, and 10 s are more than a sixth of 54
    assert rounds == [1, 2, 3, 4, 5]
    assert machine.now_s == 50.0
    assert set(Counter(machine.order).values()) == {5}


def test_rounds_end_when_nothing_moves():
    machine = Machine()
    turns = machine.turns()
    done = take_turns(
        turns, [machine.visit("a", 4e4)], [], budget_s=math.inf, is_steady=lambda: turns.rounds >= 4,
        clock=lambda: machine.now_s,
    )  # fmt: skip
    assert list(done) == [1, 2, 3, 4]


def test_the_state_of_the_machine_is_divided_out():
    """A machine that is slower by half every other minute gives the times of its usual state."""
    machine = Machine(lambda now: 1.5 if math.sin(now / 10.0) > 0.3 else 1.0)
    turns = machine.turns()
    visits = [machine.visit("short", 100.0), machine.visit("long", 5e4)]
    for _ in take_turns(turns, visits, [], budget_s=600.0, clock=lambda: machine.now_s):
        pass
    usual = turns.typical_us / 10.0
    assert lower_quartile(turns.times_us("short")) == pytest.approx(100.0 * usual, rel=0.02)
    assert lower_quartile(turns.times_us("long")) == pytest.approx(5e4 * usual, rel=0.02)


def test_a_round_may_come_by_oftener():
    machine = Machine()
    turns = machine.turns()
    visits = together._mixed(
        [machine.visit(f"operator {i}", 4e4) for i in range(6)],
        [machine.visit("plain", 4e4, often=3), machine.visit("tree", 4e4)],
    )
    assert Counter(visit.key for visit in visits)["plain"] == 3
    assert [visit.key for visit in visits if "operator" not in str(visit.key)].index("plain") == 0
    for _ in take_turns(turns, visits, [], budget_s=1.0, clock=lambda: machine.now_s):
        pass
    assert [len(times) for times in turns.found["plain"]] == [3, 3]
    assert len(turns.times_us("plain")) == 2


def test_lower_quartiles_halves_and_the_reference():
    assert lower_quartile([7.0]) == 7.0
    assert lower_quartile([1.0, 2.0]) == 1.25
    assert settled_timing([4.0, 1.0, 2.0, 3.0, 100.0]).time_us == 2.0
    assert math.isnan(halves_differ([3.0], lower_quartile))
    assert halves_differ([1.0, 3.0, 1.0, 3.0], lower_quartile) == pytest.approx(1.0)
    assert halves_differ([1.0, 1.0, 3.0, 3.0], lower_quartile) == 0.0  # a drift hits both halves alike
    ticks = itertools.count()
    reference = ReferenceKernel(lambda: float(next(ticks)))
    assert reference() == 1e6
    assert reference.seen_us == [1e6]


@pytest.mark.parametrize(
    ("gain", "floor", "predicted", "regret", "verdict"),
    [
        (1.05, 0.06, 4, 0.0, "cannot be judged here"), (0.97, 0.06, 4, 0.0, "cannot be judged here"),
        (1.20, 0.06, 4, 0.0, "right"), (1.20, 0.06, 8, 0.04, "within 5 %"), (1.20, 0.06, 1, 0.17, "wrong"),
        (1.30, 0.24, 1, 0.23, "cannot be judged here"), (1.20, None, 4, 0.0, "right"),
    ],
)  # fmt: skip
def test_a_choice_is_judged_where_the_effect_is_above_the_floor(gain, floor, predicted, regret, verdict):
    choice = CountChoice(
        model="m", batch=1, predicted=predicted, measured=4, grid_steps=0, regret=regret, gain=gain,
        floor=floor,
    )  # fmt: skip
    assert choice.verdict == verdict


def test_kinds_are_filled_up_to_what_a_fit_needs():
    def case(kind: str, m: int) -> TimedShape:
        return TimedShape(operator=operator_of(kind, "fp32", {"m": m, "n": 8}), level=0, between_bytes=0.0)

    needed = [case("rms_norm", m) for m in (1, 4)]
    more = [case(kind, m) for m in range(1, 9) for kind in ("rms_norm", "residual")]
    first, rest = fill_up(needed, more, 5)
    assert [each.sizes["m"] for each in first if each.operator.kind == "rms_norm"] == [1, 4, 2, 3, 5]
    assert all(each.operator.kind == "rms_norm" for each in first)  # no step has a residual here
    assert {each.key for each in first}.isdisjoint(each.key for each in rest)
    assert len(first) + len(rest) == 16


def measured(tmp_path: Path, *more: str) -> tuple[Result, Path, Path]:
    """Ten operators and steps of a tiny model, timed for real in a second."""
    config = tiny_config(101, max_position_embeddings=9000)
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny" / "config.json").write_text(json.dumps(config.to_hf()), encoding="utf-8")
    steps, data = tmp_path / "steps", tmp_path / "data"
    words = ("--models", tmp_path / "tiny" / "config.json", "--batch", "1,2", "--candidates", "4,8")
    words += ("--seq-len", 16, "--name", "here", "--threads", 1, "--data-dir", data, "--budget", 1)
    return invoke("measure", "steps", steps, "--with-operators", *words, *more), steps, data


@pytest.mark.usefixtures("small_grid")
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_measured_together_fitted_and_compared(tmp_path, monkeypatch, dtype):
    """The whole claim on a tiny model: rows and steps; in one dtype a fit, and a comparison."""
    monkeypatch.setattr(together, "_SETTLE_S", 0.0)
    found, steps, data = measured(tmp_path, "--dtype", dtype)
    assert found.exit_code == 0, found.output
    meta, rows = read_steps(steps)
    assert {(row.batch, row.candidates) for row in rows} == {(b, c) for b in (1, 2) for c in (1, 4, 8)}
    assert {row.dtype for row in rows} == {dtype}
    assert meta.reference["p10"] <= meta.reference["median"] <= meta.reference["p90"]
    assert set(meta.attention["tiny"]) == {"plain", "tree"}
    if dtype == "bf16":
        return
    files = sorted((data / "profiles" / "operators" / "here").glob("*.csv"))
    answered("calibrate", "rows", "--gpu", "here", "--kernels", "torch", "--data-dir", data, *files)
    for latency, fallback in (("measured", "calibrated"), ("calibrated", "refuse")):
        words = ("--gpu", "here", "--kernels", "torch", "--latency", latency, "--fallback", fallback)
        compared = answered("validate", "decoder", *words, steps, "--data-dir", data)
        assert "pass" in compared.stderr.splitlines()[0]


@pytest.mark.usefixtures("small_grid")
def test_a_stop_keeps_what_is_there(tmp_path, monkeypatch):
    """Ctrl-C in the middle of the second round: the first is whole on disk, and the comparison reads it."""
    monkeypatch.setattr(together, "_SETTLE_S", 0.0)
    take, count = Turns.take, itertools.count()

    def stopped(self: Turns, given: Visit) -> None:
        if self.rounds == 1 and next(count) == 3:
            raise KeyboardInterrupt
        take(self, given)

    monkeypatch.setattr(Turns, "take", stopped)
    found, steps, data = measured(tmp_path, "--budget", "1000")
    assert found.exit_code == 130, found.output
    meta, rows = read_steps(steps)
    assert {row.repetition for row in rows} == {0}
    assert len(rows) == 6
    assert meta.environment.name == "here"
    assert (data / "hardware" / "here.toml").is_file()


def called(monkeypatch: pytest.MonkeyPatch, *words: object) -> int:
    monkeypatch.setattr(sys, "argv", ["gpu_ground_truth.py", *map(str, words)])
    return script.main()


def fake_stages(monkeypatch: pytest.MonkeyPatch, commands: Sequence[tuple[str, str, float]]) -> None:
    made = [script.Stage(name, "steps", s, (sys.executable, "-c", code)) for name, code, s in commands]
    monkeypatch.setattr(script, "stages", lambda given, name: iter(made))


def test_the_plan_is_shown_by_call(tmp_path, monkeypatch, capsys):
    assert called(monkeypatch, tmp_path / "gpu", "--dry-run", "--name", "h100-sxm") == 0
    plan = capsys.readouterr().out
    assert not (tmp_path / "gpu").exists()
    assert "medusa-sim measure operators --device cuda --dtype fp16" in plan
    assert "-m pytest -q -m cuda" in plan
    assert "profiles/decoder/h100-sxm-llama-7b-1024-1-4-16" in plan
    calls = plan.split("call ")[1:]
    assert len(calls) > 1
    for call in calls:
        words = [line.split() for line in call.splitlines() if " s  " in line]
        seconds = [float(first) for first, *_ in words if first.isdigit()]
        assert 0.0 < sum(seconds) <= script.CALL_S


def test_a_call_goes_on_where_the_last_one_stopped(tmp_path, monkeypatch, capsys):
    write = "import sys, pathlib, time; time.sleep(0.1); pathlib.Path(sys.argv[1]).write_text('x')"
    stages = [
        script.Stage(name, "steps", 30.0, (sys.executable, "-c", write, str(tmp_path / name)))
        for name in "abc"
    ]
    monkeypatch.setattr(script, "stages", lambda given, name: iter(stages))
    words = (tmp_path / "gpu", "--name", "x", "--device", "cpu", "--call-s", "30.05")
    for done in ("a", "ab", "abc"):
        assert called(monkeypatch, *words) == 0
        assert "".join(name for name in "abc" if (tmp_path / name).exists()) == done
    assert "2 stages are left, the next is b; call again" in capsys.readouterr().out
    assert json.loads((tmp_path / "gpu" / "state.json").read_text()) == {
        "device": "x",
        **dict.fromkeys("abc", "done"),
    }


def test_a_failure_is_shown_and_passed_over(tmp_path, monkeypatch, capsys):
    fake_stages(monkeypatch, [("bad", "raise SystemExit('no such kernel')", 5), ("good", "print('fine')", 5)])
    words = (tmp_path / "gpu", "--name", "x", "--device", "cpu")
    assert called(monkeypatch, *words) == 1
    told = capsys.readouterr().out
    assert "FAILED (1)" in told
    assert "no such kernel" in told
    assert "fine" in told
    assert called(monkeypatch, *words) == 0  # nothing is left without --retry
    fake_stages(monkeypatch, [("bad", "print('now')", 5), ("good", "print('fine')", 5)])
    assert called(monkeypatch, *words, "--retry") == 0
    assert "now" in capsys.readouterr().out


def test_what_takes_far_too_long_is_ended(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(script, "GRACE_S", 1.0)
    fake_stages(monkeypatch, [("long", "import time; time.sleep(60)", 0.5)])
    assert called(monkeypatch, tmp_path / "gpu", "--name", "x", "--device", "cpu", "--call-s", "1") == 1
    assert "FAILED" in capsys.readouterr().out


def test_an_archive_brings_a_folder_back(tmp_path, monkeypatch):
    fake_stages(monkeypatch, [("a", "print(1)", 5)])
    words = ("--name", "x", "--device", "cpu", "--archive", tmp_path / "all.tar.gz")
    assert called(monkeypatch, tmp_path / "one", *words) == 0
    fake_stages(monkeypatch, [("a", "raise SystemExit('again')", 5)])
    assert called(monkeypatch, tmp_path / "two", *words) == 0  # done already
    assert (tmp_path / "two" / "logs" / "a.log").read_text() == "1\n"


def test_an_archive_is_there_after_every_stage(tmp_path, monkeypatch):
    """A machine that kills a call must not take what was measured with it."""
    packed = tmp_path / "all.tar.gz"
    look = f"import pathlib; assert pathlib.Path({str(packed)!r}).is_file()"
    fake_stages(monkeypatch, [("a", "print(1)", 5), ("b", look, 5)])
    assert called(monkeypatch, tmp_path / "gpu", "--name", "x", "--device", "cpu", "--archive", packed) == 0


def test_no_stage_outlasts_its_call(tmp_path, monkeypatch):
    """One that begins late may take its expected time, but not the slack behind it."""
    monkeypatch.setattr(script, "OVER_S", 0.1)
    fake_stages(monkeypatch, [("long", "import time; time.sleep(60)", 0.3)])
    began = time.monotonic()
    assert called(monkeypatch, tmp_path / "gpu", "--name", "x", "--device", "cpu", "--call-s", "0.4") == 1
    assert time.monotonic() - began < 5.0


def test_a_fit_needs_no_gpu(tmp_path, monkeypatch):
    (tmp_path / "state.json").write_text(json.dumps({"device": "h200-sxm"}), encoding="utf-8")
    made = [script.Stage("fit", "fit", 5, (sys.executable, "-c", "print(1)"))]
    asked: set[str] = set()

    def stages(given: object, name: str) -> Iterator[script.Stage]:
        asked.add(name)
        return iter(made)

    monkeypatch.setattr(script, "stages", stages)
    assert called(monkeypatch, tmp_path, "--only", "fit,compare") == 0
    assert asked == {"h200-sxm"}


def test_missing_packages_are_named_before_anything_starts(tmp_path, monkeypatch, capsys):
    assert not any(map(script.missing_packages, script.KINDS))
    monkeypatch.setattr(
        script, "NEEDED", dict.fromkeys(script.KINDS, ("torch", "no-such-package", "other>=2"))
    )
    assert called(monkeypatch, tmp_path / "gpu") == 1
    told = capsys.readouterr().err
    assert "pip install 'no-such-package' 'other>=2'" in told
    assert not (tmp_path / "gpu").exists()


def test_kinds_of_stages_without_their_packages_are_passed_over(tmp_path, monkeypatch, capsys):
    """A fit needs more than a measurement, and may be made elsewhere."""
    monkeypatch.setattr(script, "NEEDED", dict.fromkeys(script.KINDS, ("torch",)) | {"fit": ("no-such",)})
    made = [
        script.Stage(kind, kind, 5, (sys.executable, "-c", f"print({kind!r})")) for kind in ("steps", "fit")
    ]
    monkeypatch.setattr(script, "stages", lambda given, name: iter(made))
    assert called(monkeypatch, tmp_path / "gpu", "--name", "x", "--device", "cpu") == 0
    assert "passed over: fit" in capsys.readouterr().err
    state = json.loads((tmp_path / "gpu" / "state.json").read_text())
    assert state == {"device": "x", "steps": "done"}


def test_the_script_needs_no_installed_package(tmp_path):
    """The Python of a GPU machine has a CUDA torch, and nothing of this project."""
    words = (sys.executable, "-S", "-E", script.__file__, tmp_path / "gpu", "--dry-run", "--name", "x")
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "missing: torch" in done.stderr  # -S: none of the packages of this one


def test_a_fit_without_enough_rows_says_so_and_the_run_goes_on(tmp_path, monkeypatch, capsys):
    few = "raise SystemExit('Error: 4 rows of rope; a fit needs 20 or more')"
    made = [
        script.Stage("fit", "fit", 5, (sys.executable, "-c", few)),
        script.Stage("compare", "compare", 5, (sys.executable, "-c", "raise SystemExit('not asked')")),
        script.Stage("steps", "steps", 5, (sys.executable, "-c", "print('fine')")),
    ]
    monkeypatch.setattr(script, "stages", lambda given, name: iter(made))
    assert called(monkeypatch, tmp_path / "gpu", "--name", "x", "--device", "cpu") == 0
    told = capsys.readouterr().out
    assert "too few rows" in told
    assert "4 rows of rope" in told
    state = json.loads((tmp_path / "gpu" / "state.json").read_text())
    assert state == {"device": "x", "fit": "too few rows", "steps": "done"}


@pytest.mark.nightly
def test_a_rehearsal_without_a_gpu(tmp_path, monkeypatch, capsys):
    """Every stage but the GPU's own, of a tiny model, at the least that each needs."""
    config = tmp_path / "tiny" / "config.json"
    config.parent.mkdir()
    config.write_text(json.dumps(tiny_config(101, max_position_embeddings=9000).to_hf()), encoding="utf-8")
    out = tmp_path / "gpu"
    words = ("--device", "cpu", "--models", config, "--name", "tiny-cpu", "--scale", "0.01")
    status = called(monkeypatch, out, *words, "--call-s", "600", "--archive", tmp_path / "all.tar.gz")
    assert status == 0, capsys.readouterr().out
    state = json.loads((out / "state.json").read_text())
    assert state.pop("device") == "tiny-cpu"
    ended = {kind: {state[name] for name in state if name.startswith(kind)} for kind in script.KINDS}
    assert all(ended[kind] == {"done"} for kind in script.NEED_GPU)
    assert ended["fit"] | ended["compare"] <= {"done", "too few rows"}
    assert {path.parent.name for path in (out / "data/profiles/decoder").glob("*/steps.csv")} == {
        f"tiny-cpu-tiny-{run}-1" for run in ("1024", "256")
    }
    assert (out / "data/profiles/operators/tiny-cpu/gemm_fp32.csv").is_file()
    assert (out / "data/hardware/tiny-cpu.toml").is_file()
