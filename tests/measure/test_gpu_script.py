"""The script for a GPU: its plan, going on after a stop, what it says of a failure, and its CPU path."""

import json
import sys
from collections.abc import Sequence

import gpu_ground_truth as script
import pytest

pytest.importorskip("torch")


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
    assert "medusa-sim measure --device cuda --dtype fp16" in plan
    assert "-m pytest -q -m cuda" in plan
    assert "profiles/decoder/h100-sxm-llama-7b-1024-split-1-4-16" in plan
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
    assert json.loads((tmp_path / "gpu" / "state.json").read_text()) == dict.fromkeys("abc", "done")


def test_a_failure_is_told_and_passed_over(tmp_path, monkeypatch, capsys):
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


def test_missing_packages_are_named_before_anything_starts(tmp_path, monkeypatch, capsys):
    assert script.missing_packages() == []
    monkeypatch.setattr(script, "NEEDED", ("torch>=99.1", "no-such-package"))
    assert called(monkeypatch, tmp_path / "gpu") == 1
    told = capsys.readouterr().err
    assert "pip install 'torch>=99.1' 'no-such-package'" in told
    assert not (tmp_path / "gpu").exists()


@pytest.mark.slow
def test_a_rehearsal_without_a_gpu(tmp_path, monkeypatch, capsys):
    """Steps and operators of a tiny model under the device's name."""
    from decoder_models import tiny_config

    config = tmp_path / "tiny" / "config.json"
    config.parent.mkdir()
    config.write_text(json.dumps(tiny_config(101, max_position_embeddings=9000).to_hf()), encoding="utf-8")
    out = tmp_path / "gpu"
    out.mkdir()
    seen = dict.fromkeys(("steps-tiny-1024-split-1", "steps-tiny-256-split-1"), "done")
    (out / "state.json").write_text(json.dumps(seen), encoding="utf-8")
    words = ("--device", "cpu", "--models", config, "--name", "tiny-cpu", "--only", "steps,operators")
    status = called(monkeypatch, out, *words, "--scale", "0.03", "--call-s", "600")
    assert status == 0, capsys.readouterr().out
    state = json.loads((out / "state.json").read_text())
    assert set(state.values()) == {"done"}
    assert len(state) == 4
    (steps,) = (out / "data/profiles/decoder").glob("*/steps.csv")
    assert steps.parent.name == "tiny-cpu-tiny-1024-masked-1"
    assert (out / "data/profiles/operators/tiny-cpu/gemm_fp32.csv").is_file()
    assert (out / "data/hardware/tiny-cpu.toml").is_file()
