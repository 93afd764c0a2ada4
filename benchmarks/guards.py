"""Nothing slides: figures of speed and memory as ratios to a reference commit, in alternating pairs.

    python benchmarks/guards.py [--against COMMIT] [--pairs 5] [ROW ...]

Both sides answer the same questions in fresh processes, in turns of who begins; what counts is the median of
the pairs' ratios of CPU seconds (or of the most memory), which a machine that others use disturbs least. The
reference is checked out to a temporary folder: the last tag, or REFERENCE where there is none.

Exit code 3 where a row slides by more than ALLOWED, 1 where pairs differ too much to tell. The decoder has
a ratio of its own (`benchmarks/decoder_speed.py`), the app in a browser its times (`benchmarks/app_feel.py`).
"""

# ruff: noqa: PLC0415  # each question imports what it asks alone: imports are part of what it costs

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
REFERENCE = "9adb5d5"
ALLOWED = 1.15
DISTURBED = 1.3
"""Wall time over CPU time of a process that waits for nothing, above which the machine is called busy."""


class Cost(NamedTuple):
    """Of one question: seconds of CPU, of the wall, and the most bytes that the process held."""

    cpu_s: float
    wall_s: float
    peak_bytes: float


def rows(models: str) -> None:
    """Every column of 2 GPUs x the models x 64 batches x 64 lengths x 128 counts."""
    from sweep_rows import measured

    measured("calibrated", 1, models.split(","))


def search() -> None:
    """A recommendation over 64 batches x 4 lengths x 256 counts, ten times."""
    from medusa_sim.plan.question import Question
    from medusa_sim.plan.recommend import recommend
    from medusa_sim.plan.scenario import Scenario

    question = Question(batch_max=64, seq_len=(512, 1024, 2048, 4096), candidates_max=256)
    for _ in range(10):
        recommend(Scenario(gpu="a100-80gb-pcie", model="vicuna-7b", acceptance="medusa1-vicuna-7b"), question)


def requests(count: int = 20_000) -> None:
    """Requests under load, with three drafts."""
    from medusa_sim.load.arrivals import Drawn, Lengths
    from medusa_sim.load.simulate import LoadTest
    from medusa_sim.plan.scenario import Scenario

    source = Drawn(lengths=Lengths(prompt_tokens=1155, output_tokens=211), count=count)
    scenario = Scenario(gpu="h100-sxm", model="llama-3.1-8b", drafter="eagle3")
    test = LoadTest(scenario=scenario, source=source, policies=("3",), seeds=1)
    drawn, _ = test.requests(5.5, 0)
    test.served[0].run(drawn, 0)


def page(moves: int) -> None:
    """The app's first page after another session had it, and so many moves of its slider."""
    from streamlit.testing.v1 import AppTest

    script = str(Path.cwd() / "app" / "main.py")
    AppTest.from_file(script, default_timeout=600).run()
    opened = AppTest.from_file(script, default_timeout=600).run()
    for batch in range(2, 2 + moves):
        opened.slider[0].set_value(batch).run()


def told(*words: str) -> None:
    """A command line in this process."""
    from medusa_sim.cli import main

    sys.argv = ["medusa-sim", *words]
    with Path(os.devnull).open("w", encoding="utf-8") as nowhere:
        sys.stdout = nowhere
        try:
            main()
        except SystemExit as end:
            if end.code:
                raise


_EAGLE3 = "--drafter eagle3 --acceptance eagle3-llama-3.1-8b"
_README = f"recommend --gpu h100-sxm --model llama-3.1-8b {_EAGLE3} --batch 1..256"
QUESTIONS: dict[str, Callable[[], None]] = {
    "rows, dense": lambda: rows("vicuna-7b,llama-2-70b"),
    "rows, mixture of experts": lambda: rows("qwen3-30b-a3b"),
    "joint search x 10": search,
    "--help": lambda: told("--help"),
    "sweep --batch 1..64": lambda: told("sweep", "--batch", "1..64"),
    "recommend, README": lambda: told(*_README.split()),
    "report in HTML": lambda: told("sweep", "--batch", "1..64", "--report", tempfile.mkdtemp()),
    "app, opened twice": lambda: page(0),
    "app, opened and 10 moves": lambda: page(10),
    "20,000 requests": requests,
}
MEMORY = ("rows, dense", "rows, mixture of experts", "app, opened and 10 moves")
"""Those whose memory is guarded too."""


@contextmanager
def checked_out(commit: str) -> Iterator[Path]:
    """A temporary folder with the files of a commit."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "reference"
        subprocess.run(
            ["git", "-C", str(ROOT), "worktree", "add", "--quiet", "--detach", str(place), commit], check=True
        )
        try:
            yield place
        finally:
            subprocess.run(["git", "-C", str(ROOT), "worktree", "remove", "--force", str(place)], check=True)


def last_release() -> str:
    """The last tag, REFERENCE without one."""
    found = subprocess.run(
        ["git", "-C", str(ROOT), "describe", "--tags", "--abbrev=0"],
        capture_output=True,
        text=True,
        check=False,
    )
    return found.stdout.strip() or REFERENCE


def asked(tree: Path, name: str) -> Cost:
    """What a question costs the package of a tree, in a process of its own."""
    environment = {**os.environ, "PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    began = time.perf_counter()
    done = subprocess.run(
        [sys.executable, __file__, f"--question={name}"],
        env=environment,
        cwd=tree,
        capture_output=True,
        text=True,
        check=False,
    )
    wall_s = time.perf_counter() - began
    if done.returncode:
        sys.exit(f"{name} failed in {tree}: {done.stderr.strip().splitlines()[-1:]}")
    cpu_s, peak_bytes = json.loads(done.stderr.strip().splitlines()[-1])
    return Cost(cpu_s, wall_s, peak_bytes)


class Verdict(NamedTuple):
    """Of one row: the ratios of its pairs, and how much the machine waited."""

    name: str
    ratios: list[float]
    own: float
    is_busy: bool

    @property
    def ratio(self) -> float:
        """Median of the pairs."""
        return statistics.median(self.ratios)

    @property
    def quartiles(self) -> tuple[float, float]:
        """Between which half of the pairs lie."""
        low, _, high = statistics.quantiles(self.ratios, n=4, method="inclusive")
        return low, high

    @property
    def slides(self) -> bool:
        """Whether three of four pairs are slower than is allowed."""
        return self.quartiles[0] > ALLOWED

    @property
    def is_open(self) -> bool:
        """Whether the pairs disagree about it."""
        return not self.slides and self.quartiles[1] > ALLOWED


def judged(name: str, reference: Path, pairs: int) -> list[Verdict]:
    """The rows of one question; where the pairs disagree, twice as many are run."""
    own: list[Cost] = []
    other: list[Cost] = []
    while True:
        for _ in range(pairs):
            sides = [(ROOT, own), (reference, other)]
            for tree, held in sides if len(own) % 2 else reversed(sides):
                held.append(asked(tree, name))
        busy = statistics.median(cost.wall_s / cost.cpu_s for cost in own + other) > DISTURBED
        found = [Verdict(f"{name}, CPU s", _ratios(own, other, "cpu_s"), _middle(own, "cpu_s"), busy)]
        if name in MEMORY:
            told_mb = _middle(own, "peak_bytes") / 1e6
            found.append(Verdict(f"{name}, MB", _ratios(own, other, "peak_bytes"), told_mb, is_busy=False))
        if len(own) > pairs or not any(each.is_open for each in found):
            return found


def _ratios(own: list[Cost], other: list[Cost], field: str) -> list[float]:
    return [getattr(one, field) / getattr(two, field) for one, two in zip(own, other, strict=True)]


def _middle(costs: list[Cost], field: str) -> float:
    return float(statistics.median(getattr(cost, field) for cost in costs))


def main() -> None:
    """Print a row a question; fail where one slides."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "rows", nargs="*", metavar="ROW", help=f"beginnings of rows; all: {', '.join(QUESTIONS)}"
    )
    parser.add_argument("--against", default=last_release(), help="commit, default the last release")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--question", choices=QUESTIONS, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.question:
        QUESTIONS[given.question]()
        used = resource.getrusage(resource.RUSAGE_SELF)
        print(json.dumps([used.ru_utime + used.ru_stime, used.ru_maxrss * 1024]), file=sys.stderr)
        return
    names = [name for name in QUESTIONS if not given.rows or name.startswith(tuple(given.rows))]
    if not names:
        sys.exit(f"no row begins with {' or '.join(given.rows)}; rows: {', '.join(QUESTIONS)}")
    print(f"{'row':36s} {'now':>8s} {'ratio to ' + given.against:>20s}   half of the pairs")
    found: list[Verdict] = []
    with checked_out(given.against) as reference:
        for name in names:
            for each in judged(name, reference, given.pairs):
                low, high = each.quartiles
                note = "  SLIDES" if each.slides else "  disagree" if each.is_open else ""
                note += "  (busy machine)" if each.is_busy else ""
                print(
                    f"{each.name:36s} {each.own:8.3g} {each.ratio:20.2f}   {low:.2f}-{high:.2f}{note}",
                    flush=True,
                )
                found.append(each)
    if slid := [f"{each.name} {each.ratio:.2f}" for each in found if each.slides]:
        print(
            f"slower than {given.against} by more than {ALLOWED - 1:.0%}: {'; '.join(slid)}", file=sys.stderr
        )
        sys.exit(3)
    if doubtful := [each.name for each in found if each.is_open]:
        sys.exit(
            f"pairs disagree on {'; '.join(doubtful)}: the machine is disturbed, run these when it is idle"
        )


if __name__ == "__main__":
    main()
