"""Parts of a question: every row once, whatever the shards; finished parts stay; nobody is overwritten."""

import itertools
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import psutil
import pyarrow as pa
import pytest
from asking import answered, frame, run
from hypothesis import given
from hypothesis import strategies as st
from one_line import one_line

from medusa_sim.api import Scenario
from medusa_sim.errors import OutputError, UsageError
from medusa_sim.grid.sweep import Slices, sweep
from medusa_sim.parts import processes
from medusa_sim.parts.cluster import run_on_cluster, write_part
from medusa_sim.parts.folder import MANIFEST, Description, Done, PartFolder, Shard, run_here
from medusa_sim.parts.processes import run_on_processes
from medusa_sim.parts.sweep_parts import SweepParts, work_of
from medusa_sim.step.axes import Grid

HARDWARE = Path(__file__).resolve().parents[2] / "hardware"
FAST = {"runtime": "cuda-graph", "latency": "roofline"}
GRID = Grid.of(range(1, 9), [512, 1024, 2048], [1, 2, 4, 8, 16])
SWEEP = (
    "sweep", "--latency", "roofline", "--runtime", "cuda-graph", "--batch", "1..8:1", "--candidates", "1..8",
)  # fmt: skip
CASES = (
    "--gpu", "a100-80gb-pcie,h100-sxm,a40,l4,l40s,rtx-4090",
    "--model", "llama-7b,llama-13b,llama-33b,llama-3-8b",
)  # fmt: skip
LONG = ("--seq", ",".join(map(str, range(16, 2048, 32))), "--batch", "1..64:1")
"""What makes a part of each case long enough to be disturbed."""


def scenarios() -> tuple[Scenario, ...]:
    return tuple(Scenario(gpu=gpu, **FAST) for gpu in ("a100-80gb-pcie", "l40s"))


def work(*, all_rows: bool = True, part_rows: int = 20) -> SweepParts:
    return SweepParts.of(scenarios(), GRID, all_rows=all_rows, part_rows=part_rows)


def read(folder: Path) -> pd.DataFrame:
    return pd.read_parquet(folder).astype({"gpu": str, "model": str})


def nothing(computed: int, rows: int) -> None:
    del computed, rows


@given(st.integers(1, 40), st.integers(1, 40), st.integers(1, 9), st.integers(1, 500))
def test_pieces_cover_a_grid_once(batches, lengths, counts, rows):
    grid = Grid.of(range(1, batches + 1), range(1, lengths + 1), [1])
    slices = Slices.of(grid, counts, rows)
    seen = np.zeros((batches, lengths), dtype=int)
    for number in range(slices.count):
        piece = seen[slices.at(number)]
        assert 0 < piece.size * counts <= max(rows, counts)
        seen[slices.at(number)] += 1
    assert (seen == 1).all()


@given(st.integers(1, 50), st.integers(1, 60))
def test_shards_share_the_parts(parts, count):
    class Numbered(SweepParts):
        @property
        def parts(self) -> int:
            return parts

    own = Numbered((), (), (1,), (1,), (1,), all_rows=True, part_rows=1)
    taken = [number for i in range(count) for number in Shard(i + 1, count).parts(own)]
    assert sorted(taken) == list(range(parts))


@pytest.mark.parametrize("text", ["", "3", "0/2", "3/2", "1/0", "a/b", "1/2/3", "-1/2", "1.0/2"])
def test_a_shard_is_one_of_n(text):
    with pytest.raises(UsageError, match="i from 1 to n"):
        Shard.read(text)


def test_all_parts_together_are_the_sweep():
    parts = work()
    tables = [table for number in range(parts.parts) for table in parts.tables(number)]
    expected = pa.concat_tables([table.arrow() for table in sweep(scenarios(), GRID)])
    assert pa.concat_tables(tables).to_pandas().equals(expected.to_pandas())
    assert sum(map(parts.computed, range(parts.parts))) == expected.num_rows


def test_the_best_row_of_each_batch_and_length_is_kept():
    rows = pd.concat([table.pandas() for table in sweep(scenarios(), GRID)]).astype({"gpu": str})
    best = pd.concat(
        [table.to_pandas() for number in range(work().parts) for table in work(all_rows=False).tables(number)]
    ).astype({"gpu": str})
    key = ["gpu", "batch", "seq_len"]
    assert len(best) == 2 * 8 * 3
    assert not best.duplicated(key).any()
    whole = rows[rows.fits_memory].groupby(key).speedup.max()
    np.testing.assert_array_equal(best[best.fits_memory].set_index(key).speedup.sort_index(), whole)


def test_a_worker_makes_the_same_work_from_its_description():
    parts = work()
    description: Description = json.loads(json.dumps(parts.description))
    again = work_of(description)
    assert again.description == parts.description
    assert next(again.tables(3)).equals(next(parts.tables(3)))
    with pytest.raises(UsageError, match="unknown kind of work"):
        work_of({"kind": "nonsense"})


def test_a_grid_of_half_a_million_million_rows_is_never_laid_out():
    grid = Grid.of(range(1, 65_537), range(1, 65_537), range(1, 129))
    parts = SweepParts.of(scenarios(), grid, all_rows=False)
    assert parts.parts * 4_000_000 > 2 * grid.rows * 0.9
    assert grid.rows == 2**39
    last = parts.parts - 1
    assert parts.computed(last) <= 1 << 22
    small = SweepParts.of(scenarios(), grid, all_rows=False, part_rows=512)
    row = next(small.tables(small.parts - 1)).to_pylist()[-1]
    assert (row["gpu"], row["batch"], row["seq_len"]) == ("l40s", 65_536, 65_536)


def test_any_number_of_shards_writes_the_same_data_set(tmp_path):
    parts = work()
    for count in (1, 3):
        folder = PartFolder.of(tmp_path / str(count), parts.description)
        for i in range(count):
            done = run_here(parts, folder, Shard(i + 1, count), nothing)
            assert done.there == 0
    assert read(tmp_path / "1").equals(read(tmp_path / "3"))
    assert len(list((tmp_path / "3").glob("part-*.parquet"))) == parts.parts


class Stopped(SweepParts):
    """Work that is killed in the middle of a part."""

    def tables(self, number: int) -> Iterator[pa.Table]:
        for table in super().tables(number):
            yield table
            if number == 2:
                raise KeyboardInterrupt


def test_a_stopped_run_leaves_whole_parts_and_goes_on(tmp_path):
    parts = work()
    stopped = Stopped(**{name: getattr(parts, name) for name in parts.__dataclass_fields__})
    folder = PartFolder.of(tmp_path, parts.description)
    with pytest.raises(KeyboardInterrupt):
        run_here(stopped, folder, Shard(), nothing)
    assert sorted(path.name for path in tmp_path.glob("*part*")) == [
        "part-000000.parquet",
        "part-000001.parquet",
    ]
    before = folder.part(0).stat().st_mtime_ns
    steps: list[tuple[int, int]] = []
    done = run_here(parts, folder, Shard(), lambda computed, rows: steps.append((computed, rows)))
    assert (done.there, done.parts) == (2, parts.parts - 2)
    assert steps[-1] == (done.computed, done.computed)
    assert folder.part(0).stat().st_mtime_ns == before


def test_a_folder_of_another_question_is_refused(tmp_path):
    args = (*SWEEP, "--out", tmp_path / "grid")
    assert run(*args).exit_code == 0
    other = run(*args, "--kv-dtype", "fp8")
    assert other.exit_code == 1
    assert "parts of another question (cases differ)" in other.stderr
    again = answered(*args)
    assert "0 parts" in again.stderr


@pytest.mark.parametrize("kept", [0, 3, 200])
def test_a_part_that_was_cut_off_is_computed_again(kept, tmp_path):
    parts = work()
    folder = PartFolder.of(tmp_path, parts.description)
    run_here(parts, folder, Shard(), nothing)
    whole = read(tmp_path)
    folder.part(1).write_bytes(folder.part(1).read_bytes()[:kept])
    done = run_here(parts, folder, Shard(), nothing)
    assert (done.parts, done.there) == (1, parts.parts - 1)
    assert read(tmp_path).equals(whole)


def test_files_that_rows_depend_on_are_part_of_the_question(tmp_path, monkeypatch):
    """A config beside the caller, without a folder in its name, and a card in the user's data folder."""
    own = tmp_path / "data"
    (own / "hardware").mkdir(parents=True)
    card = (HARDWARE / "l4.toml").read_text(encoding="utf-8").replace('"l4"', '"mine"')
    (own / "hardware" / "mine.toml").write_text(card, encoding="utf-8")
    config = tmp_path / "config.json"
    config.write_bytes((HARDWARE.parent / "docs" / "example_config.json").read_bytes())
    monkeypatch.chdir(tmp_path)
    args = (*SWEEP, "--model", "config.json", "--gpu", "mine", "--acceptance", "0.6", "--drafter", "ngram",
            "--data-dir", own, "--out", "grid")  # fmt: skip
    assert run(*args).exit_code == 0
    held = json.loads((tmp_path / "grid" / MANIFEST).read_text(encoding="utf-8"))
    assert set(held["files"]) == {str(config), str(own / "hardware" / "mine.toml")}
    assert held["cases"][0]["model"] == str(config)
    assert "0 parts" in run(*args).stderr
    (own / "hardware" / "mine.toml").write_text(card + "\n# changed\n", encoding="utf-8")
    assert "(files differ)" in run(*args).stderr


@pytest.mark.parametrize("content", ["", "[]", "{", '{"kind": "sweep"}'])
def test_a_manifest_that_is_none_is_refused(content, tmp_path):
    (tmp_path / MANIFEST).write_text(content)
    with one_line(OutputError):
        PartFolder.of(tmp_path, work().description)


def test_a_folder_of_other_parquet_files_is_refused(tmp_path):
    (tmp_path / "mine.parquet").write_bytes(b"")
    with pytest.raises(OutputError, match="choose another folder"):
        PartFolder.of(tmp_path, work().description)


def test_two_clients_of_one_shard_are_told_apart(tmp_path):
    parts = work()
    folder = PartFolder.of(tmp_path, parts.description)
    holder = rf": process {os.getpid()} on \S+ is writing shard-1-of-1"
    with folder.claimed(Shard().name), pytest.raises(OutputError, match=holder):
        run_here(parts, folder, Shard(), nothing)
    assert run_here(parts, folder, Shard(), nothing).parts == parts.parts


LOAD = (
    "load", "--model", "llama-3.1-8b", "--drafter", "eagle3", "--policy", "none,3", "--rate", "2,6",
    "--requests", 40, "--seeds", 1, "--no-search",
)  # fmt: skip


def test_a_load_test_of_many_scenarios_is_cut_into_parts(tmp_path):
    args = (*LOAD, "--gpu", "h100-sxm,l40s", "--out", tmp_path / "all")
    for shard in ("1/2", "2/2"):
        assert run(*args, "--shard", shard).exit_code == 0
    found = pd.read_parquet(tmp_path / "all")
    assert parts_in(tmp_path / "all") == 2 * 2
    assert list(found.groupby(["gpu", "rate_per_s"], sort=False).size()) == [2, 2, 2, 2]
    alone = frame(*LOAD, "--gpu", "l40s")
    own = found[found.gpu == "l40s"].reset_index(drop=True)
    for column in ("policy", "rate_per_s", "tokens_per_s", "watts", "tpot_mean_s"):
        assert own[column].tolist() == pytest.approx(alone[column].tolist())
    assert run(*LOAD, "--gpu", "h100-sxm,l40s").exit_code == 2
    other = run(*args, "--prompt-tokens", 99)
    assert "parts of another question (asked differ)" in other.stderr


def test_a_load_test_of_several_drafters_is_one_data_set(tmp_path):
    args = ("load", "--gpu", "h100-sxm", "--model", "llama-3.1-8b", "--policy", "none,3", "--rate", "2",
            "--requests", "30", "--seeds", "1", "--acceptance", "0.7", "--max-num-seqs", "8")  # fmt: skip
    assert run(*args, "--drafter", "eagle3,ngram", "--out", tmp_path / "all").exit_code == 0
    found = pd.read_parquet(tmp_path / "all")
    assert found["drafter"].tolist() == ["eagle3", "eagle3", "ngram", "ngram"]
    alone = frame(*args, "--no-search", "--drafter", "ngram")
    assert found["tpot_mean_s"].tolist()[2:] == pytest.approx(alone["tpot_mean_s"].tolist())
    assert "drafters: say where" in run(*args, "--drafter", "eagle3,ngram").stderr


@pytest.mark.parametrize(
    ("more", "told"),
    [
        (("--policy", "warp"), "policy 'warp'"),
        (("--policy", "none,9"), "drafts 9 tokens"),
        (("--gpu", "h100-sxm,l4", "--model", "llama-3.1-8b,llama-3-70b"), "KV cache"),
        (("--report", "report"), "--report is about one scenario"),
        (("--timeline",), "--timeline is about one scenario"),
        (("--target-rate", "9"), "--target-rate is about one scenario"),
    ],
)
def test_a_load_test_that_cannot_end_is_refused_before_it_begins(more, told, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = run(*LOAD, "--gpu", "h100-sxm", "--out", "grid", *more)
    assert result.exit_code == 2
    assert told in result.stderr
    assert not list(tmp_path.iterdir())


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
    parts = work()
    folder = PartFolder.of(tmp_path, parts.description)
    starts, start = itertools.count(), processes._started
    monkeypatch.setattr(processes, "_serve", ending)
    monkeypatch.setattr(processes, "_started", lambda path: (next(starts), start(path))[1])
    with pytest.raises(OutputError, match="ended every process that computed it"):
        run_on_processes(parts, folder, nothing, 2)
    assert 2 + 2 <= next(starts) <= 2 + 2 * 2  # two further tries of the part, and of the other one at most


def ending(folder: str, pipe: Connection) -> None:
    del folder
    pipe.recv()
    os._exit(9)


def test_an_error_of_a_part_is_told_by_the_client(tmp_path):
    parts = work()
    folder = PartFolder.of(tmp_path, parts.description)
    folder.manifest.write_text(json.dumps({**parts.description, "kind": "nonsense"}))
    with pytest.raises(UsageError, match="unknown kind of work"):
        run_on_processes(parts, folder, nothing, 2)


def test_a_question_of_few_cases_is_cut_for_many_processes():
    """Two cases of a million rows are more than two parts; what takes no time stays whole."""
    large = Grid.of(range(1, 129), range(128, 8193, 128), range(1, 65))
    assert SweepParts.of(scenarios(), large, all_rows=True).parts >= 8
    assert SweepParts.of(scenarios(), GRID, all_rows=True).parts == 2


def test_a_worker_writes_a_part_of_its_own_version_alone(tmp_path, monkeypatch):
    parts = work()
    folder = PartFolder.of(tmp_path / "parts", parts.description)
    rows = [write_part(str(folder.path), number) for number in range(parts.parts)]
    assert sum(rows) == 2 * GRID.batch.size * GRID.seq_len.size * GRID.candidates.size
    assert all(folder.is_done(number) for number in range(parts.parts))
    assert len(read(folder.path)) == sum(rows)
    monkeypatch.setattr("medusa_sim.parts.cluster.__version__", "0.0")
    with one_line(OutputError, match="a worker has medusa-sim 0.0"):
        write_part(str(folder.path), 0)
    with one_line(OutputError, match="does not see"):
        write_part(str(tmp_path / "elsewhere"), 0)


@dataclass
class Scheduler:
    """Stands in for dask's `Client` and `as_completed`: the oldest part is computed when one is awaited."""

    threads: int
    queue: deque[SimpleNamespace] = field(default_factory=deque)
    most: int = 0

    def __enter__(self) -> "Scheduler":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def wait_for_workers(self, count: int, timeout: float) -> None:
        assert (count, timeout) == (1, 10.0)

    def nthreads(self) -> dict[str, int]:
        return {"a": self.threads, "b": 0}

    def submit(self, made: Any, folder: str, number: int, *, pure: bool, retries: int) -> SimpleNamespace:
        assert (pure, retries) == (False, 2)
        return SimpleNamespace(key=number, result=partial(made, folder, number))

    def completed(self, first: list[SimpleNamespace]) -> "Scheduler":
        self.queue.extend(first)
        return self

    def add(self, future: SimpleNamespace) -> None:
        self.queue.append(future)

    def __iter__(self) -> Iterator[SimpleNamespace]:
        while self.queue:
            self.most = max(self.most, len(self.queue))
            yield self.queue.popleft()


@pytest.mark.parametrize(("threads", "in_flight"), [(2, 6), (0, 3), (100, 15)])
def test_a_scheduler_has_three_parts_a_thread_and_gets_the_missing_ones(
    tmp_path, monkeypatch, threads, in_flight
):
    """Of sixteen parts one is there: fifteen of 3 lengths and 5 counts are left."""
    parts, scheduler = work(), Scheduler(threads)
    told: list[tuple[int, int]] = []
    folder = PartFolder.of(tmp_path, parts.description)
    assert parts.parts == 16
    folder.write(parts, 3)
    given = SimpleNamespace(
        Client=lambda *_, **__: scheduler, as_completed=scheduler.completed, KilledWorker=KeyError
    )
    monkeypatch.setitem(sys.modules, "distributed", given)
    monkeypatch.setattr("medusa_sim.parts.cluster.require_cluster_extra", lambda: None)
    done = run_on_cluster(parts, folder, lambda *rows: told.append(rows), "tcp://made")
    assert told == [(15 * count, 225) for count in range(1, 16)]
    assert done == Done(parts=15, there=1, computed=225)
    assert scheduler.most == in_flight
    assert all(folder.is_done(number) for number in range(16))


@pytest.mark.parametrize(("workers", "missing", "started"), [(1, 16, 0), (9, 1, 0), (9, 2, 2)])
def test_processes_are_started_for_several_parts_alone(tmp_path, monkeypatch, workers, missing, started):
    parts, told = work(), list[tuple[int, int]]()
    folder = PartFolder.of(tmp_path, parts.description)
    for number in range(missing, 16):
        folder.part(number).write_bytes(b"PAR1PAR1")
    count = itertools.count()
    start = processes._started
    monkeypatch.setattr(processes, "_started", lambda path: (next(count), start(path))[1])
    done = run_on_processes(parts, folder, lambda *rows: told.append(rows), workers)
    assert next(count) == started
    assert told == [(15 * (number + 1), 15 * missing) for number in range(missing)]
    assert done == Done(parts=missing, there=16 - missing, computed=15 * missing)


def test_a_work_is_cut_into_64_parts_within_limits():
    """Two cases of five counts at 2000 batches of 1000 lengths; few rows are not cut, many are cut more."""
    for batches, rows in ((2000, 2000 * 1000 * 10 // 64), (200, 2**17), (20000, 2**20)):
        grid = Grid.of(range(1, batches + 1), range(1, 1001), [1, 2, 4, 8, 16])
        assert SweepParts.of(scenarios(), grid, all_rows=True).part_rows == rows


def test_who_writes_is_told_alone(tmp_path):
    """A claim leaves no letter of the one before it."""
    folder = PartFolder(tmp_path)
    (tmp_path / ".one.lock").write_text("somebody whose name is longer than any process of this machine" * 3)
    with folder.claimed("one"):
        told = (tmp_path / ".one.lock").read_text()
    assert re.fullmatch(rf"process {os.getpid()} on \S+", told)
