"""Every door opens: each script under benchmarks/ and each target of the Makefile, at its smallest size.

Scripts run to their end in a copy of the tree, which they may write into. What needs measured rows, which are
not part of the project, says so in one line without them; those that are quick run on them where they are.
"""

import os
import re
import runpy
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import mutations
import pytest
from common.index import GROUPS, PAGE, index_text

ROOT = Path(__file__).resolve().parents[1]
DATA = Path(os.environ.get("MEDUSA_SIM_DATA") or ROOT.parent / "shared" / "data")
TREES = ("app", "benchmarks", "docs", "hardware", "medusa_sim", "profiles")
PAIR = "profiles/checkpoints/python-stdlib-medusa-1"

ALONE = {
    "gpus_left_out.py": "rtx-pro-6000",
    "build_site.py": "--pages out/pages",
    "decoder.py": f"{PAIR} --prompts 2 --sizes 1 4",
    "decoder_speed.py": f"{PAIR} --rounds 1 --new-tokens 3 --sizes 1",
    "engine_page.py": "profiles/engines/epyc-genoa-1t --write",
    "every_setup.py": "--sample 1",
    "gpu_ground_truth.py": "out --dry-run",
    "hybrid_break_even.py": "--write",
    "kernels.py": "stored mixers h100-sxm",
    "lookup_runs.py": "--texts 1",
    "own_pair.py": "--prompts 1 --new-tokens 4 --temperatures 1.0",
    "peers.py": "benchmarks/models/llama-2m --rounds 1 --new-tokens 3",
    "recorded_answers.py": "record out/answers.json --first 2",
    "readme_errors.py": "--write",
    "refresh_docs.py": "--cli",
    "roads.py": "--count 1",
    "scan.py": "--sample 200",
    "validation.py": "--write",
    "widened.py": f"{PAIR} out/python-stdlib-medusa-1 --times 2",
    "worked_example.py": "--write",
}
"""Scripts that need nothing beside the tree, and the arguments of their smallest run."""
QUICK = {
    "acceptance_by_output.py": "",
    "deeper_rates.py": "",
    "depth_profiles.py": "",
    "expert_union.py": "",
    "operator_rows.py": "",
    "verify_attention.py": "",
}
"""Scripts that need rows and take seconds on them."""
LONG = {
    "acceptance.py": "", "accuracy.py": "",
    "compare_validation.py": "", "deepseek_rows.py": "", "engine_bands.py": "",
    "engine_fit.py": "", "first_tokens.py": "",
    "hierarchy.py": "", "local_speed.py": "", "served_rows.py": "",
    "load_validation.py": "", "moe_speculation.py": "", "power_fit.py": "", "published.py": "",
    "round_bands.py": "", "serving_validation.py": "",
}  # fmt: skip
"""Scripts that need all of their rows, a quarter of a minute to ten; `test_docs` runs them without any."""
LACKING = {
    "app_feel.py": ("1", "make test-browser"),
    "engine_load.py": ("out --engine-python none", "make validate-engine"),
    "validate_engine.py": ("out --engine-python none", "make validate-engine"),
    "validate_local.py": ("out --engine none", "make validate-local"),
}
"""Scripts that need a browser or an engine, and what they say where it is not there."""
ELSEWHERE = {"build_release.py", "evidence.py", "evidence_rule.py", "guards.py", "mutations.py"}
"""Need the history, the tests or the network; tests of their own."""


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what scripts read and write."""
    copy = tmp_path_factory.mktemp("doors") / "tree"
    for name in TREES:
        # with what is compiled, but for what another process is about to rename
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("*.pyc.*"))
    copied = [
        "README.md",
        "CHANGELOG.md",
        "CONTRIBUTING.md",
        "CITATION.cff",
        "LICENSE",
        "pyproject.toml",
        "Makefile",
    ]
    for name in copied:
        shutil.copy(ROOT / name, copy / name)
    return copy


SERVER = """
import importlib, os, runpy, shlex, signal, sys

folder = sys.path[0] = sys.argv[1]
for name in sys.argv[2:]:
    importlib.import_module(name)
for line in sys.stdin:
    errors, script, *words = shlex.split(line)
    if (child := os.fork()) == 0:
        told = os.open(errors, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        nothing = os.open(os.devnull, os.O_RDWR)
        for own, place in ((nothing, 0), (nothing, 1), (told, 2)):
            os.dup2(own, place)
        signal.alarm(300)
        sys.argv = [script, *words]
        runpy.run_path(os.path.join(folder, script), run_name="__main__")
        sys.exit()
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""
IMPORTED = (
    "torch", "scipy.optimize", "scipy.stats", "pandas", "matplotlib.figure", "medusa_sim.cli",
    "medusa_sim.api", "medusa_sim.lab.decoder.checkpoint", "medusa_sim.lab.validate",
    "medusa_sim.lab.reproduce",
)  # fmt: skip
"""What most scripts import."""


class Ran(NamedTuple):
    """How a script ended."""

    returncode: int
    stderr: str


Run = Callable[[str, str], Ran]


def variables(tree: Path) -> dict[str, str]:
    """Of a script's process, without measured rows."""
    return {"PYTHONPATH": str(tree), "MEDUSA_SIM_DATA": str(tree / "nothing"), "OMP_NUM_THREADS": "1"}


@pytest.fixture(scope="module")
def run(tree: Path) -> Iterator[Run]:
    """Runs a script of the copy in a process of its own, a child of one that has imported what most need."""
    env = {**os.environ, **variables(tree)}
    words = [sys.executable, "-c", SERVER, str(tree / "benchmarks"), *IMPORTED]
    pipe = subprocess.PIPE
    with subprocess.Popen(words, env=env, cwd=tree, stdin=pipe, stdout=pipe, text=True) as server:

        def run_one(script: str, words: str) -> Ran:
            assert server.stdin is not None
            assert server.stdout is not None
            errors = tree / f"{script}.errors"
            print(shlex.join([str(errors), script, *shlex.split(words)]), file=server.stdin, flush=True)
            code, told = int(server.stdout.readline()), errors.read_text(encoding="utf-8")
            assert "Traceback" not in told, told[-3000:]
            return Ran(code, told)

        yield run_one
        assert server.stdin is not None
        server.stdin.close()


def doors() -> dict[str, str]:
    """Scripts of benchmarks/ that can be run, by name, with their text."""
    texts = {path.name: path.read_text(encoding="utf-8") for path in (ROOT / "benchmarks").glob("*.py")}
    return {name: text for name, text in texts.items() if 'if __name__ == "__main__"' in text}


def test_the_list_of_doors_is_complete():
    assert doors().keys() == ALONE.keys() | QUICK.keys() | LONG.keys() | LACKING.keys() | ELSEWHERE


def test_every_module_of_benchmarks_stands_once_in_their_list():
    listed = [name for group in GROUPS for name in group.names]
    folders = (ROOT / "benchmarks", ROOT / "benchmarks" / "common")
    modules = [path.stem for folder in folders for path in folder.glob("*.py") if path.stem != "__init__"]
    assert sorted(listed) == sorted(modules)
    assert PAGE.read_text(encoding="utf-8") == index_text(), "run `make docs`"


def test_mutations_that_change_nothing_are_of_lines_that_are_there():
    """Ends with those of lines that were moved or changed."""
    assert mutations.equivalent()


def test_every_door_has_a_help_page():
    """A script that reads no arguments would take --help for a run, and write."""
    assert [name for name, text in doors().items() if ".parse_args(" not in text] == []


@pytest.mark.slow
@pytest.mark.parametrize("script", ALONE)
def test_a_script_runs_to_its_end(script, run):
    done = run(script, ALONE[script])
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.slow
@pytest.mark.parametrize("script", ["acceptance_by_output.py", "engine_fit.py"])
def test_a_script_without_its_rows_says_so_in_one_line(script, run):
    """As processes; every other script that reads rows is run so by `test_docs`."""
    done = run(script, {**QUICK, **LONG}[script])
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("no rows at "), done.stderr[-500:]
    assert "give the folder that holds them in MEDUSA_SIM_DATA" in done.stderr


@pytest.mark.nightly
@pytest.mark.skipif(not DATA.exists(), reason="measured rows are not part of this project")
@pytest.mark.parametrize("script", QUICK)
def test_a_script_runs_to_its_end_on_rows(script, tree):
    done = subprocess.run(
        [sys.executable, str(tree / "benchmarks" / script), *shlex.split(QUICK[script])],
        env={**os.environ, **variables(tree), "MEDUSA_SIM_DATA": str(DATA)}, cwd=tree,
        capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert "Traceback" not in done.stderr, done.stderr[-3000:]
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.slow
@pytest.mark.parametrize("script", LACKING)
def test_what_needs_a_browser_or_an_engine_says_what_installs_it(script, tmp_path, monkeypatch):
    words, told = LACKING[script]
    path = ROOT / "benchmarks" / script
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "argv", [script, *words.split()])
    with pytest.raises(SystemExit, match=told):
        runpy.run_path(str(path), run_name="__main__")


@pytest.mark.slow
def test_a_mutation_is_noticed_by_the_tests_of_its_room():
    script, path = ROOT / "benchmarks" / "mutations.py", ROOT / "medusa_sim" / "outside" / "escaping.py"
    line = path.read_text(encoding="utf-8").partition("fence = ")[0].count("\n") + 1
    words = ["--place", f"medusa_sim/outside/escaping.py:{line}"]
    listed, done = (
        subprocess.run([sys.executable, script, *words, *more], capture_output=True, text=True, check=False)
        for more in (["--list"], ["--count", "1"])
    )
    assert "escaping.py" in listed.stdout
    assert "1 of 1 caught" in done.stdout, done.stdout + done.stderr
    assert path.read_text(encoding="utf-8").count("fence = ") == 1


@pytest.mark.slow
@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="no history here")
def test_guards_ask_both_sides_and_leave_nothing(tmp_path):
    """The row that its own reference could not be asked; git learns of no other tree, the folder is gone."""
    words = [sys.executable, str(ROOT / "benchmarks" / "guards.py"), "20,000", "--pairs", "1"]
    own = {**os.environ, "TMPDIR": str(tmp_path)}
    done = subprocess.run(words, env=own, capture_output=True, text=True, check=False, timeout=300)
    assert "20,000 requests, CPU s" in done.stdout, done.stderr[-2000:]
    assert done.returncode in (0, 1, 3)
    assert "failed in" not in done.stderr
    trees = ["git", "-C", str(ROOT), "worktree", "list"]
    assert str(tmp_path) not in subprocess.run(trees, capture_output=True, text=True, check=True).stdout
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="no history here")
def test_guards_that_are_ended_leave_nothing(tmp_path):
    words = [sys.executable, str(ROOT / "benchmarks" / "guards.py"), "rows", "--pairs", "1"]
    own = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(words, env=own, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as running:
        deadline = time.monotonic() + 60
        while not list(tmp_path.glob("*/reference/medusa_sim")):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        running.terminate()
        running.communicate(timeout=60)
    assert running.returncode == 128 + signal.SIGTERM
    assert not list(tmp_path.iterdir())


def targets() -> list[str]:
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    return re.findall(r"^([a-z-]+):.*##", text, re.MULTILINE)


@pytest.mark.parametrize("target", targets())
def test_a_target_names_what_is_there(target):
    """`make -n`: every script and test that a target would start, and no variable that is empty."""
    done = subprocess.run(
        ["make", "-n", "--always-make", target], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if target == "help":
        return
    assert done.returncode == 0, done.stderr
    for path in re.findall(r"(?<![\w/.-])((?:benchmarks|tests|app)/[\w./-]+)", done.stdout):
        assert (ROOT / path).exists(), path


def test_every_target_is_on_the_list_of_make_help():
    own = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    done = subprocess.run(["make", "help"], cwd=ROOT, env=own, capture_output=True, text=True, check=True)
    assert [line.split()[0] for line in done.stdout.splitlines()] == targets()


@pytest.mark.slow
def test_make_demo_writes_its_report(tmp_path):
    code = "from medusa_sim.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code, "sweep", "--batch", "1..64", "--report", "out"], cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out" / "report.html").is_file()


def test_the_ground_truth_of_this_cpu_asks_for_its_folder():
    script = ROOT / "benchmarks" / "cpu_ground_truth.sh"
    done = subprocess.run(["sh", script], capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "give a folder for the results" in done.stderr


def test_a_budget_too_short_for_the_ground_truth_is_stated_before_any_score(tmp_path):
    """Where a kernel could not be fitted, the run ends in one line that names BUDGET."""
    fake = tmp_path / "python"
    fake.write_text(
        "#!/bin/sh\n"
        'case "$*" in\n'
        f'*"measure steps"*) mkdir -p "{tmp_path}/out/data/profiles/decoder/cpu-3m"\n'
        f'    touch "{tmp_path}/out/data/profiles/decoder/cpu-3m/steps.csv" ;;\n'
        "*calibrate\\ rows*) echo 'left out: 4 rows of embedding; a fit needs 20 or more' >&2 ;;\n"
        "*--latency\\ calibrated*) echo \"Error: no elementwise kernel for 'embedding'\" >&2; exit 1 ;;\n"
        "*) echo score; echo score >&2 ;;\n"
        "esac\n"
    )
    fake.chmod(0o755)
    done = subprocess.run(
        ["sh", ROOT / "benchmarks" / "cpu_ground_truth.sh", tmp_path / "out"],
        env={**os.environ, "PYTHON": str(fake), "SIZES": "3m", "BUDGET": "0.5"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert "score" not in done.stdout
    assert done.stderr.count("\n") == 1
    assert "BUDGET (now 0.5)" in done.stderr
    assert "give a larger one" in done.stderr
