"""Who computes parts: processes, a cluster, and what is told when one of them ends."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import psutil
import pytest
from asking import run
from one_line import one_line
from small_sweep import GRID, SWEEP, nothing, read, work

from medusa_sim.errors import OutputError, UsageError
from medusa_sim.parts import processes
from medusa_sim.parts.cluster import compute_on_cluster
from medusa_sim.parts.folder import MANIFEST, PartFolder
from medusa_sim.parts.processes import compute_on_processes
from medusa_sim.parts.running import Advance, Done, run_parts, write_part
from medusa_sim.parts.works import SweepParts

CASES = (
    "--gpu", "a100-80gb-pcie,h100-sxm,a40,l4,l40s,rtx-4090",
    "--model", "llama-7b,llama-13b,llama-33b,llama-3-8b",
)  # fmt: skip
LONG = ("--seq", ",".join(map(str, range(16, 2048, 32))), "--batch", "1..64:1")
"""What makes a part of each case long enough to be disturbed."""


def shell(*args: object, before: str = "") -> list[str]:
    """A command in a process of its own."""
    code = f"{before}from medusa_sim.cli import main; main()"
    return [sys.executable, "-c", code, *map(str, args)]


@pytest.mark.parametrize("who", [(), ("--workers", "2")])
def test_shards_and_processes_need_no_dask(tmp_path, who):
    check = (
        "import atexit, sys; atexit.register(lambda: sys.stdout.write(str('distributed' in sys.modules)));"
    )
    done = subprocess.run(
        shell(*SWEEP, *who, "--out", tmp_path / "grid", before=check),
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "False"


def test_a_scheduler_that_does_not_answer_is_one_line(tmp_path):
    impatient = "import medusa_sim.parts.cluster as c; c.ANSWER_S = 0.3;"
    command = shell(*SWEEP, "--out", tmp_path / "grid", "--scheduler", "tcp://127.0.0.1:1", before=impatient)
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("Error: no dask scheduler answers at tcp://127.0.0.1:1")
    assert "Traceback" not in done.stderr


def parts_in(folder: Path) -> int:
    return len(list(folder.glob("part-*.parquet")))


def wait_for_parts(folder: Path, process: subprocess.Popen[str], wanted: int) -> None:
    deadline = time.monotonic() + 60
    while parts_in(folder) < wanted:
        assert process.poll() is None, process.stderr and process.stderr.read()
        assert time.monotonic() < deadline
        time.sleep(0.02)


def workers_of(client: subprocess.Popen[str]) -> list[psutil.Process]:
    children = psutil.Process(client.pid).children()
    return [child for child in children if "spawn_main" in " ".join(child.cmdline())]


@pytest.mark.slow
def test_neither_a_killed_worker_nor_a_killed_client_loses_what_is_finished(tmp_path):
    """Two processes: one is killed, then the client; the same command, a worker killed again, ends it."""
    grid = tmp_path / "grid"
    command = shell(*SWEEP, *CASES, *LONG, "--out", grid, "--workers", 2)
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as client:
        wait_for_parts(grid, client, 1)
        workers = workers_of(client)
        assert len(workers) == 2
        workers[0].kill()
        wait_for_parts(grid, client, parts_in(grid) + 3)  # the other goes on
        client.kill()
    psutil.wait_procs(workers, timeout=60)  # what is left of them writes the part it is at
    finished = {path: path.stat().st_mtime_ns for path in grid.glob("part-*.parquet")}
    assert len(finished) >= 4
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as client:
        wait_for_parts(grid, client, len(finished) + 1)
        for worker in workers_of(client)[:1]:  # none where a busy machine let them end first
            worker.kill()
        told = client.communicate(timeout=120)[1]
        assert client.returncode == 0, told
    assert "were there" in told
    assert all(path.stat().st_mtime_ns == written for path, written in finished.items())
    assert run(*SWEEP, *CASES, *LONG, "--out", tmp_path / "here").exit_code == 0
    assert parts_in(grid) == parts_in(tmp_path / "here") > len(finished)
    assert read(grid).equals(read(tmp_path / "here"))


@pytest.mark.slow
@pytest.mark.parametrize("wanted", [0, 3])
def test_ctrl_c_is_one_line_that_says_how_to_go_on(tmp_path, wanted):
    """While the processes start, and later: no traceback of theirs, whole parts alone, and it goes on."""
    grid = tmp_path / "grid"
    command = shell(*SWEEP, *CASES, *LONG, "--out", grid, "--workers", 2)
    heeds = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)  # a suite in the background hands on none
    with subprocess.Popen(
        command,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=heeds,  # noqa: PLW1509
    ) as client:
        deadline = time.monotonic() + 60
        while not workers_of(client):
            assert time.monotonic() < deadline
            time.sleep(0.005)
        wait_for_parts(grid, client, wanted)
        os.killpg(client.pid, signal.SIGINT)  # as a terminal does: the client and what it started
        told = client.communicate(timeout=60)[1]
    assert client.returncode == 130, told
    (line,) = [line for line in told.splitlines() if "interrupted" in line]
    assert line.endswith("the same command goes on")
    assert "Traceback" not in told
    assert "Exception" not in told
    assert {path.name for path in grid.iterdir()} == {
        MANIFEST, ".shard-1-of-1.lock", *(path.name for path in grid.glob("part-*.parquet"))
    }  # fmt: skip
    assert "were there" in run(*SWEEP, *CASES, *LONG, "--out", grid).stderr or not wanted


@pytest.mark.nightly  # it starts six processes, one after the other
def test_a_part_that_ends_its_processes_is_given_up_in_one_line(tmp_path, monkeypatch):
    pools, pool = list[int](), processes._pool
    monkeypatch.setattr(processes, "_begin", ending)
    monkeypatch.setattr(processes, "_pool", lambda count: (pools.append(count), pool(count))[1])
    with pytest.raises(OutputError, match="ended 3 times before a part was finished"):
        run_on_processes(work(), PartFolder.of(tmp_path, work().description), 2)
    assert pools == [2, 2, 2]  # two further tries


def ending() -> None:
    os._exit(9)


def run_on_processes(parts: SweepParts, folder: PartFolder, workers: int, advance: Advance = nothing) -> Done:
    return run_parts(parts, folder, partial(compute_on_processes, workers), advance)


def test_an_error_of_a_part_is_shown_by_the_client(tmp_path):
    parts = work()
    folder = PartFolder.of(tmp_path, parts.description)
    folder.manifest.write_text(json.dumps({**parts.description, "kind": "nonsense"}))
    with pytest.raises(UsageError, match="unknown kind of work"):
        run_on_processes(parts, folder, 2)


def test_a_worker_writes_a_part_of_its_own_version_alone(tmp_path, monkeypatch):
    parts = work()
    folder = PartFolder.of(tmp_path / "parts", parts.description)
    assert [write_part(folder.path, number) for number in range(parts.parts)] == [*range(parts.parts)]
    assert all(folder.is_done(number) for number in range(parts.parts))
    assert len(read(folder.path)) == 2 * GRID.batch.size * GRID.seq_len.size * GRID.candidates.size
    monkeypatch.setattr("medusa_sim.parts.running.__version__", "0.0")
    with one_line(OutputError, match="a worker has medusa-sim 0.0"):
        write_part(folder.path, 0)
    with one_line(OutputError, match="does not see"):
        write_part(tmp_path / "elsewhere", 0)


class Scheduler(ThreadPoolExecutor):
    """Stands in for dask's `Client` and its executor."""

    def __init__(self, threads: int) -> None:
        super().__init__(1)
        self.threads, self.submitted = threads, 0

    def wait_for_workers(self, count: int, timeout: float) -> None:
        assert (count, timeout) == (1, 10.0)

    def nthreads(self) -> dict[str, int]:
        return {"a": self.threads, "b": 0}

    def get_executor(self, *, pure: bool, retries: int) -> "Scheduler":
        assert (pure, retries) == (False, 2)
        return self

    def submit(self, *call: Any, **options: Any) -> Future[Any]:
        self.submitted += 1
        return super().submit(*call, **options)


@pytest.mark.parametrize(("threads", "in_flight"), [(2, 6), (0, 3), (100, 15)])
def test_a_scheduler_has_three_parts_a_thread_and_gets_the_missing_ones(
    tmp_path, monkeypatch, threads, in_flight
):
    """Of sixteen parts one is there: fifteen of 3 lengths and 5 counts are left."""
    parts, scheduler = work(), Scheduler(threads)
    told: list[tuple[int, int]] = []
    flying: list[int] = []
    folder = PartFolder.of(tmp_path, parts.description)
    assert parts.parts == 16
    write_part(folder.path, 3)
    monkeypatch.setitem(
        sys.modules, "distributed", SimpleNamespace(Client=lambda *_, **__: scheduler, KilledWorker=KeyError)
    )

    def advance(*rows: int) -> None:
        flying.append(scheduler.submitted - len(told))
        told.append(rows)

    done = run_parts(parts, folder, partial(compute_on_cluster, "tcp://made"), advance)
    assert told == [(15 * count, 225) for count in range(1, 16)]
    assert done == Done(written=15, kept=1, rows=225)
    assert scheduler.submitted == 15
    assert max(flying) == in_flight
    assert all(folder.is_done(number) for number in range(16))


@pytest.mark.parametrize(
    ("error", "told"), [(KeyError(), "ended every worker"), (CancelledError(), "went away")]
)
def test_what_a_scheduler_says_is_one_line(tmp_path, monkeypatch, error, told):
    scheduler = Scheduler(1)
    given = SimpleNamespace(Client=lambda *_, **__: scheduler, KilledWorker=KeyError)
    monkeypatch.setitem(sys.modules, "distributed", given)
    monkeypatch.setattr("medusa_sim.parts.running.work_of", Mock(side_effect=error))
    parts = work()
    with one_line(OutputError, match=told):
        run_parts(
            parts,
            PartFolder.of(tmp_path, parts.description),
            partial(compute_on_cluster, "tcp://made"),
            nothing,
        )


@pytest.mark.parametrize(("workers", "missing", "started"), [(1, 16, 0), (9, 1, 0), (9, 2, 2)])
def test_processes_are_started_for_several_parts_alone(tmp_path, monkeypatch, workers, missing, started):
    parts, told = work(), list[tuple[int, int]]()
    folder = PartFolder.of(tmp_path, parts.description)
    for number in range(missing, 16):
        folder.part(number).write_bytes(b"PAR1PAR1")
    counts, pool = list[int](), processes._pool
    monkeypatch.setattr(processes, "_pool", lambda count: (counts.append(count), pool(count))[1])
    done = run_on_processes(parts, folder, workers, lambda *rows: told.append(rows))
    assert sum(counts) == started
    assert told == [(15 * (number + 1), 15 * missing) for number in range(missing)]
    assert done == Done(written=missing, kept=16 - missing, rows=15 * missing)


def test_who_writes_is_shown_alone(tmp_path):
    """A claim leaves no letter of the one before it."""
    folder = PartFolder(tmp_path)
    (tmp_path / ".one.lock").write_text("somebody whose name is longer than any process of this machine" * 3)
    with folder.claimed("one"):
        told = (tmp_path / ".one.lock").read_text()
    assert re.fullmatch(rf"process {os.getpid()} on \S+", told)
