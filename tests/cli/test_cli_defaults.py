"""What is asked without options is answered without a warning, and with trees."""

import re
from pathlib import Path

import pytest
from asking import answered, frame
from click.testing import Result

ROOT = Path(__file__).parents[2]
# what expanded grids stand for, how many rows were written, where prices come from: no warnings
_PLAIN = re.compile(r"(batch|seq_len|candidates|usd_per_million_tokens): |the best of every count |wrote ")
_DEMO = re.search(r"medusa-sim (sweep .*) --report out", (ROOT / "Makefile").read_text(encoding="utf-8"))
_README = re.findall(r"^medusa-sim (.+)$", (ROOT / "README.md").read_text(encoding="utf-8"), re.MULTILINE)


def _asked(command: str) -> Result:
    return answered(*command.split())


@pytest.mark.parametrize(
    "command",
    [
        "sweep",
        _DEMO[1] if _DEMO else "",
        "recommend",
        "load --requests 60 --no-search --rate 2 --seeds 1",
        "roofline",
        # several GPUs are warned of, with reason
        *(line for line in _README if line.split()[0] in ("sweep", "recommend") and "--tp" not in line),
    ],
)
def test_a_default_is_no_reason_to_warn(command):
    result = _asked(command)
    assert [line for line in result.stderr.splitlines() if not _PLAIN.match(line)] == []
    warned = [line for line in result.stdout.splitlines() if line.startswith("warning")]
    # that a profile ends before the best count does is part of the answer
    assert [line for line in warned if "more may pay" not in line] == []


def test_the_default_sweep_shows_trees_their_knee_and_the_engines_chain():
    table = _asked("sweep --batch 1..64").stdout
    first = next(line for line in table.splitlines() if line.strip().startswith("1 "))
    assert first.split()[1] == "49"
    assert "2.15x" in first
    told = re.search(r"no tree attention: its chain gives ([0-9.]+)x", table)
    rows = frame("sweep", "--runtime", "vllm", "--candidates", "1..6")
    assert told
    assert told[1] == f"{rows['speedup'].max():.2f}"
    assert len(frame("sweep")) == 14


@pytest.mark.parametrize(("runtime", "unit"), [("cuda-graph", "heads"), ("vllm", "drafts")])
def test_sweep_and_recommend_name_a_thing_alike(runtime, unit):
    arguments = f"--runtime {runtime} --batch 1..2"
    tables = [_asked(f"{command} {arguments}").stdout for command in ("sweep", "recommend")]
    for table in tables:
        header = next(line for line in table.splitlines() if line.strip().startswith("batch "))
        assert {"heads", "drafts"} & set(header.split()) == {unit}
        assert ("candidates" in header) is (unit == "heads" or "as good" in header)


@pytest.mark.parametrize("drafter", ["medusa", "ngram --acceptance 0.6"])
def test_a_load_says_that_it_runs_no_trees_where_trees_could_run(drafter):
    for policy in ("none", "none,2"):
        asked = f"load --drafter {drafter} --policy {policy} --requests 40 --no-search --rate 2 --seeds 1"
        first = _asked(asked).stdout.splitlines()[0]
        assert ("trees are not simulated" in first) is (drafter == "medusa" and policy != "none")
