"""Nothing slides: figures of speed and memory as ratios to a reference commit, in alternating pairs.

    python benchmarks/guards.py [--against COMMIT] [--pairs 5] [ROW ...]
    python benchmarks/guards.py --alone [--repeats 3] [ROW ...]      this tree's own times, without imports

Both sides answer the same questions in fresh processes, in turns of who begins; what counts is the median of
the pairs' ratios of CPU seconds (or of the most memory), which a machine that others use disturbs least. The
reference is checked out to a temporary folder: the last tag, or REFERENCE where there is none. Rows that it
cannot answer are passed over.

Five pairs of every row take some five minutes of an idle core, `make bench` with the rows alone ten; after
each row the minutes that are left are said. Exit code 3 where a row slides by more than ALLOWED, 1 where
pairs differ too much to tell. The decoder has a ratio of its own (`benchmarks/decoder_speed.py`), the app in
a browser its times (`benchmarks/app_feel.py`).
"""

# ruff: noqa: PLC0415  # each question imports what it asks alone: imports are part of what it costs

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, NamedTuple

from common.script import ROOT, command_line

REFERENCE = "4955e346"
ALLOWED = 1.15
DISTURBED = 1.3
"""Wall time over CPU time of a process that waits for nothing, above which the machine is called busy."""
Act = Callable[[], str]
"""The work of a question; says how much it was."""


class Cost(NamedTuple):
    """Of one question: seconds of CPU, of the wall, the most bytes that the process held; of its act alone:
    seconds of CPU, and how much it was.
    """

    cpu_s: float
    wall_s: float
    peak_bytes: float
    act_s: float
    said: str


def rows(models: str, latency: Literal["calibrated", "roofline"] = "calibrated") -> Act:
    """Every column of 2 GPUs x the models x 64 batches x 64 lengths x 128 counts."""
    from medusa_sim.scenario.scenario import Scenario

    room = import_module("medusa_sim.grid.sweep")  # with Grid, which lies elsewhere in the reference
    grid = room.Grid.of(range(1, 65), range(128, 128 * 64 + 1, 128), range(1, 129))
    scenarios = [
        Scenario(gpu=gpu, model=model, runtime="cuda-graph", latency=latency)
        for gpu in ("a100-80gb-pcie", "h100-sxm")
        for model in models.split(",")
    ]

    def complete(table: Any) -> int:
        columns = {**table.text, **table.numbers, **table.codes}
        assert {"gpu", "speedup", "bound"} <= set(columns)
        assert all(each.size == table.rows for each in (*table.numbers.values(), *table.codes.values()))
        return int(table.rows)

    return lambda: f"{sum(complete(table) for table in room.sweep(scenarios, grid)):,} rows"


def search(model: str = "vicuna-7b") -> Act:
    """A recommendation over 64 batches x 4 lengths x 256 counts, ten times."""
    from medusa_sim.plan.recommend import recommend
    from medusa_sim.scenario.question import Question
    from medusa_sim.scenario.scenario import Scenario

    question = Question(batch_max=64, seq_len=(512, 1024, 2048, 4096), candidates_max=256)

    def act() -> str:
        for _ in range(10):
            asked = Scenario(gpu="a100-80gb-pcie", model=model, acceptance="medusa1-vicuna-7b")
            recommend(asked, question)
        return "10 recommendations"

    return act


def requests(count: int = 20_000, policy: str = "3", trace: str = "") -> Act:
    """Drawn requests under load, or those of a trace ($MEDUSA_SIM_DATA)."""
    from medusa_sim.load.load_test import load_test
    from medusa_sim.scenario.scenario import Scenario

    requests = (
        {"trace": import_module("common.study").measured(trace)}
        if trace
        else {"prompt_tokens": 1155, "output_tokens": 211, "requests": count}
    )
    served = Scenario(gpu="h100-sxm", model="llama-3.1-8b", drafter="eagle3")
    test = load_test(served, **requests, policies=(policy,), seeds=1)
    drawn, _ = test.requests(None if trace else 5.5, 0)
    server, *_ = test.servers

    def act() -> str:
        server.run(drawn, 0)
        return f"{drawn.count:,} requests"

    return act


def page(moves: int) -> Act:
    """The app's first page after another session had it, and so many moves of its slider."""
    from streamlit.testing.v1 import AppTest

    script = str(Path.cwd() / "app" / "main.py")

    def act() -> str:
        AppTest.from_file(script, default_timeout=600).run()
        opened = AppTest.from_file(script, default_timeout=600).run()
        for batch in range(2, 2 + moves):
            slider = (*opened.slider, *opened.select_slider)[0]
            slider.set_value(batch).run()
        return f"2 pages, {moves} moves"

    return act


def picture() -> Act:
    """The first chart of the app as PNG, with the start of what draws it."""
    sys.path.insert(0, str(Path.cwd() / "app"))
    drawn = import_module("show").picture
    line = {"mark": "line", "data": {"values": [{"x": x, "y": x * x} for x in range(200)]}}
    encoding = {name: {"field": name, "type": "quantitative"} for name in ("x", "y")}
    return lambda: f"{len(drawn({**line, 'encoding': encoding}, 'png')):,} bytes"


def told(*words: str) -> Act:
    """A command line in this process."""
    from medusa_sim.cli import main

    def act() -> str:
        sys.argv = ["medusa-sim", *words]
        with Path(os.devnull).open("w", encoding="utf-8") as nowhere, redirect_stdout(nowhere):
            try:
                main()
            except SystemExit as end:
                if end.code:
                    raise
        return "1 command"

    return act


_EAGLE3 = "--drafter eagle3 --acceptance eagle3-llama-3.1-8b"
_README = f"recommend --gpu h100-sxm --model llama-3.1-8b {_EAGLE3} --batch 1..256"
_HOUR = "traces/azure_2023_conv.parquet"
QUESTIONS: dict[str, Callable[[], Act]] = {
    "rows, dense": partial(rows, "vicuna-7b,llama-2-70b"),
    "rows, mixture of experts": partial(rows, "qwen3-30b-a3b"),
    "joint search x 10": search,
    "--help": partial(told, "--help"),
    "sweep --batch 1..64": partial(told, "sweep", "--batch", "1..64"),
    "recommend, README": partial(told, *_README.split()),
    "compare, three cards": partial(told, "compare", "--gpu", "h100-sxm,b200,l40s"),
    "report in HTML": lambda: told("sweep", "--batch", "1..64", "--report", tempfile.mkdtemp()),
    "chart in PNG": picture,
    "app, opened twice": partial(page, 0),
    "app, opened and 10 moves": partial(page, 10),
    "20,000 requests": requests,
}
MEMORY = ("rows, dense", "rows, mixture of experts", "app, opened and 10 moves")
"""Those whose memory is guarded too."""
POLICIES = ("none", "3", "schedule", "adaptive", "throughput_aware", "budget")
ALONE: dict[str, Callable[[], Act]] = {
    "rows, roofline": partial(rows, "vicuna-7b,llama-2-70b", "roofline"),
    **{f"load, Azure's hour, {name}": partial(requests, policy=name, trace=_HOUR) for name in POLICIES},
    **{f"load, 200,000 drawn, {name}": partial(requests, 200_000, name) for name in POLICIES},
}
"""Further questions of --alone, which the reference release may not know."""


@contextmanager
def checked_out(commit: str) -> Iterator[Path]:
    """A temporary folder with the files of a commit, of which git knows nothing; gone however this ends."""
    for name in ("SIGTERM", "SIGHUP"):
        signal.signal(getattr(signal, name), lambda number, _: sys.exit(128 + number))
    with tempfile.TemporaryDirectory() as folder:
        packed = Path(folder) / "reference.tar"
        subprocess.run(["git", "-C", str(ROOT), "archive", "--output", str(packed), commit], check=True)
        place = Path(folder) / "reference"
        shutil.unpack_archive(packed, place)
        packed.unlink()
        yield place


def last_release() -> str:
    """The last tag, REFERENCE without one."""
    command = ["git", "-C", str(ROOT), "describe", "--tags", "--abbrev=0"]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    return found.stdout.strip() or REFERENCE


class UnansweredError(Exception):
    """A tree that does not know a question."""


def asked(tree: Path, name: str) -> Cost:
    """What a question costs the package of a tree, in a process of its own. Raises UnansweredError."""
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    # As where it is installed: a start that compiles every module says little of the next ones.
    own = {**os.environ, "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "", **threads}
    began, command = time.perf_counter(), [sys.executable, __file__, f"--question={name}"]
    done = subprocess.run(command, env=own, cwd=tree, capture_output=True, text=True, check=False)
    wall_s = time.perf_counter() - began
    if done.returncode:
        raise UnansweredError(f"{name} failed in {tree}: {' '.join(done.stderr.strip().splitlines()[-1:])}")
    cpu_s, peak_bytes, act_s, said = json.loads(done.stderr.strip().splitlines()[-1])
    return Cost(cpu_s, wall_s, peak_bytes, act_s, said)


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
        """Between which half of the pairs lie; of one pair its ratio."""
        if len(self.ratios) == 1:
            return self.ratio, self.ratio
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


def answered(name: str) -> None:
    """Ask one question in this process; what it cost goes to standard error."""
    act = {**QUESTIONS, **ALONE}[name]()
    began = time.process_time()
    said = act()
    act_s, used = time.process_time() - began, resource.getrusage(resource.RUSAGE_SELF)
    cost = [used.ru_utime + used.ru_stime, used.ru_maxrss * 1024, act_s, said]
    print(json.dumps(cost), file=sys.stderr)


def timed_alone(names: list[str], repeats: int) -> None:
    """A line a question of this tree: CPU seconds of what it does, the most memory, how much it was."""
    for name in names:
        costs = [asked(ROOT, name) for _ in range(repeats)]
        best, middle = min(cost.act_s for cost in costs), _middle(costs, "act_s")
        memory = f"{_middle(costs, 'peak_bytes') / 1e6:,.0f} MB"
        print(f"{name:36s} {best:8.3g} s, median {middle:.3g}, {memory}, {costs[0].said}", flush=True)


def main() -> None:
    """Print a row a question; fail where one slides."""
    parser = command_line(__doc__)
    told_rows = f"beginnings of rows; all: {', '.join(QUESTIONS)}; with --alone also {', '.join(ALONE)}"
    parser.add_argument("rows", nargs="*", metavar="ROW", help=told_rows)
    parser.add_argument("--against", default=last_release(), help="commit, default the last release")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--alone", action="store_true", help="times of this tree, against nothing")
    parser.add_argument("--repeats", type=int, default=3, help="of each question with --alone")
    parser.add_argument("--question", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.question:
        answered(given.question)
        return
    every = [*QUESTIONS, *ALONE] if given.alone else list(QUESTIONS)
    names = [name for name in every if not given.rows or name.startswith(tuple(given.rows))]
    if not names:
        sys.exit(f"no row begins with {' or '.join(given.rows)}; rows: {', '.join(every)}")
    if given.alone:
        timed_alone(names, given.repeats)
        return
    print(f"{'row':36s} {'now':>8s} {'ratio to ' + given.against:>20s}   half of the pairs")
    found: list[Verdict] = []
    began = time.monotonic()
    with checked_out(given.against) as reference:
        for done, name in enumerate(names):
            if done:
                left_s = (time.monotonic() - began) / done * (len(names) - done)
                print(f"row {done + 1} of {len(names)}, {left_s / 60.0:.1f} minutes left", file=sys.stderr)
            asked(ROOT, name)  # fails here, where it fails in this tree
            try:
                rows_of_name = judged(name, reference, given.pairs)
            except UnansweredError as unknown:
                print(f"{name:36s} passed over: {unknown}", flush=True)
                continue
            for each in rows_of_name:
                low, high = each.quartiles
                note = "  SLIDES" if each.slides else "  disagree" if each.is_open else ""
                note += "  (busy machine)" if each.is_busy else ""
                row = f"{each.name:36s} {each.own:8.3g} {each.ratio:20.2f}   {low:.2f}-{high:.2f}{note}"
                print(row, flush=True)
                found.append(each)
    if slid := [f"{each.name} {each.ratio:.2f}" for each in found if each.slides]:
        told = f"slower than {given.against} by more than {ALLOWED - 1:.0%}: {'; '.join(slid)}"
        print(told, file=sys.stderr)
        sys.exit(3)
    if doubtful := [each.name for each in found if each.is_open]:
        names_told = "; ".join(doubtful)
        sys.exit(f"pairs disagree on {names_told}: the machine is disturbed, run these when it is idle")


if __name__ == "__main__":
    try:
        main()
    except UnansweredError as failed:
        sys.exit(str(failed))
