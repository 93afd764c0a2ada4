"""Parts of a question: every row once, whatever the shards; finished parts stay; nobody is overwritten."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from asking import answered, frame, run
from hypothesis import given
from hypothesis import strategies as st
from left_out import numbers_left_out
from one_line import one_line
from small_sweep import GRID, SWEEP, read, run_here, scenarios, work

from medusa_sim.errors import OutputError, UsageError
from medusa_sim.grid.axes import Grid
from medusa_sim.grid.sweep import Slices, sweep
from medusa_sim.parts.folder import MANIFEST, Description, PartFolder
from medusa_sim.parts.running import Shard
from medusa_sim.parts.works import LoadParts, SweepParts, work_of
from medusa_sim.scenario.scenario import Scenario

HARDWARE = Path(__file__).resolve().parents[2] / "hardware"


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
    taken = [number for i in range(count) for number in Shard(i + 1, count).numbers(parts)]
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
            done = run_here(parts, folder, Shard(i + 1, count))
            assert done.kept == 0
    assert read(tmp_path / "1").equals(read(tmp_path / "3"))
    assert len(list((tmp_path / "3").glob("part-*.parquet"))) == parts.parts


def test_a_stopped_run_leaves_whole_parts_and_goes_on(tmp_path, monkeypatch):
    """It is killed in the middle of a part."""
    parts, tables = work(), SweepParts.tables

    def stopped(self: SweepParts, number: int) -> Iterator[pa.Table]:
        for table in tables(self, number):
            yield table
            if number == 2:
                raise KeyboardInterrupt

    folder = PartFolder.of(tmp_path, parts.description)
    with monkeypatch.context() as patch:
        patch.setattr(SweepParts, "tables", stopped)
        with pytest.raises(KeyboardInterrupt):
            run_here(parts, folder)
    assert sorted(path.name for path in tmp_path.glob("*part*")) == [
        "part-000000.parquet",
        "part-000001.parquet",
    ]
    before = folder.part(0).stat().st_mtime_ns
    steps: list[tuple[int, int]] = []
    done = run_here(parts, folder, advance=lambda *rows: steps.append(rows))
    assert (done.kept, done.written) == (2, parts.parts - 2)
    assert steps[-1] == (done.rows, done.rows)
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
    run_here(parts, folder)
    whole = read(tmp_path)
    folder.part(1).write_bytes(folder.part(1).read_bytes()[:kept])
    done = run_here(parts, folder)
    assert (done.written, done.kept) == (1, parts.parts - 1)
    assert read(tmp_path).equals(whole)


def test_files_that_rows_depend_on_are_part_of_the_question(tmp_path, monkeypatch):
    """A config beside the caller, without a folder in its name, and a GPU in the user's data folder."""
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
        run_here(parts, folder)
    assert run_here(parts, folder).written == parts.parts


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


def parts_in(folder: Path) -> int:
    return len(list(folder.glob("part-*.parquet")))


def test_a_question_of_few_cases_is_cut_for_many_processes():
    """Two cases of a million rows are more than two parts; what takes no time stays whole."""
    large = Grid.of(range(1, 129), range(128, 8193, 128), range(1, 65))
    assert SweepParts.of(scenarios(), large, all_rows=True).parts >= 8
    assert SweepParts.of(scenarios(), GRID, all_rows=True).parts == 2


def test_a_work_is_cut_into_64_parts_within_limits():
    """Two cases of five counts at 2000 batches of 1000 lengths; few rows are not cut, many are cut more."""
    for batches, rows in ((2000, 2000 * 1000 * 10 // 64), (200, 2**17), (20000, 2**20)):
        grid = Grid.of(range(1, batches + 1), range(1, 1001), [1, 2, 4, 8, 16])
        assert SweepParts.of(scenarios(), grid, all_rows=True).part_rows == rows


def test_a_cell_of_a_load_simulates_every_policy_and_seed():
    of = Scenario(gpu="h100-sxm", model="llama-3.1-8b", drafter="ngram", acceptance=0.5, latency="roofline")
    found = LoadParts.of([of], [1.0, 2.0], {"requests": 300, "seeds": 3, "policies": ("none", "1")})
    assert (found.requests, found.rates, len(found.cases)) == (3 * 2 * 300, (1.0, 2.0), 1)
    assert LoadParts.of([of], None, {"requests": 300, "seeds": 2}).rates == (None,)


def test_what_is_left_out_is_nothing_but_for_these():
    """Factors and counts are one, sizes those that most have."""
    assert numbers_left_out("parts") == {
        "Shard.number": 1,
        "Shard.count": 1,
    }
