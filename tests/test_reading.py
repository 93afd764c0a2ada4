"""Files are read within limits and written whole: what no command may do to a machine or to a folder."""

import os
import re
import resource
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from asking import answered, run
from one_line import one_line
from pyarrow import parquet

from medusa_sim.cli.output import Output
from medusa_sim.errors import DataError, OutputError, SpecError, UsageError, shown
from medusa_sim.reading import tables
from medusa_sim.reading.documents import json_of, read_json, read_toml, short_lines_of
from medusa_sim.reading.files import read_bytes, read_text
from medusa_sim.reading.tables import csv_chunks, csv_lines, numbered_csv_table, parquet_parts
from medusa_sim.writing import STDOUT, atomic, check_writable

MAIN = "from medusa_sim.cli import main; main()"


def command(*args: str, **options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", MAIN, *args], capture_output=True, text=True, check=False, **options
    )


# --- Limits -------------------------------------------------------------------------------------------


def test_a_limit_holds_while_reading_and_text_that_is_no_utf8_is_refused(tmp_path):
    file = tmp_path / "a.txt"
    file.write_bytes(b"x" * 100)
    assert read_bytes(file, 100, "text") == b"x" * 100
    with pytest.raises(SpecError, match=r"a\.txt: more than 99 bytes, the most that is read; give text"):
        read_bytes(file, 99, "text")
    path = tmp_path / "x"
    path.write_bytes(b"ab\xff")
    with pytest.raises(DataError, match="byte 2 is not UTF-8"):
        read_text(path, 10, "text", DataError)
    path.write_bytes("\ufeffab".encode())
    assert read_text(path, 10, "text") == "ab"


def test_pipes_devices_and_folders_are_refused(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path, told in (
        (pipe, "no regular file"),
        (Path("/dev/zero"), "no regular file"),
        (tmp_path, "is a folder"),
        (tmp_path / "none", "no such file"),
        (tmp_path / ("n" * 300), "File name too long"),
    ):
        with pytest.raises(SpecError, match=told):
            read_text(path, 10, "text")
        with pytest.raises(DataError, match=told):
            next(csv_chunks(path, 10))


def test_every_reader_of_the_command_line_refuses_a_device():
    limit = 2_000_000_000

    def small() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))

    for args in (
        ("sweep", "--model", "/dev/zero"),
        ("specs", "/dev/zero/config.json"),
        ("tree", "score", "--tree", "/dev/zero"),
        ("sweep", "--acceptance", "/dev/zero"),
        ("time", "--ops", "/dev/zero"),
        ("acceptance", "predict", "--observations", "/dev/zero", "--targets", "/dev/zero"),
    ):
        ended = command(*args, preexec_fn=small, timeout=60)
        assert ended.returncode in (1, 2), ended
        assert len(ended.stderr.strip().splitlines()) == 1, ended.stderr


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[" * 100_000, "nested too deep"),
        ("[" * 60 + "]" * 60, "nested more than 40 deep"),
        ("9" * 5_000, "4300 digits"),
        ('{"a": 1, "a": 2}', "'a' is given twice"),
        ("[NaN]", "no JSON number"),
        ("{", "cannot be parsed"),
        ("[1e999]", "nan or infinity"),
    ],
)
def test_json_that_breaks_parsers_is_one_line(tmp_path, text, told):
    (tmp_path / "x.json").write_text(text)
    for act in (
        lambda: json_of(text, "text", "JSON"),
        lambda: read_json(tmp_path / "x.json", 1_000_000, "JSON"),
    ):
        with one_line(SpecError, match=told) as caught:
            act()
        assert len(str(caught.value)) < 500


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("a = " + "[" * 5_000, "nested too deep"),
        ("a" + ".a" * 3_000 + " = 1", "nested"),
        ("a = " + "9" * 5_000, "4300 digits"),
        ("a = 1\na = 2", "Cannot overwrite"),
        ("a.b = [nan]", "nan or infinity"),
        ("\xff", "cannot be parsed"),
    ],
)
def test_toml_that_breaks_parsers_is_one_line(tmp_path, text, told):
    path = tmp_path / "x.toml"
    path.write_text(text)
    with one_line(SpecError, match=told):
        read_toml(path)


def test_rows_longer_than_the_header_are_refused(tmp_path):
    """pandas takes their first field for an index, and every column for its neighbour."""
    path = tmp_path / "shifted.csv"
    for text in ("a,b\n1,2,3\n", "a,b\n0,2,3\n1,4,5\n"):
        path.write_text(text, encoding="utf-8")
        with pytest.raises(DataError, match=r"shifted\.csv: rows have more fields than the header"):
            list(csv_chunks(path, 10))
        with pytest.raises(DataError, match=r"shifted\.csv line 2: 3 cells, the header has 2"):
            numbered_csv_table(path, ("a",))
    path.write_text("a,b\n1,2,\n3,4,\n", encoding="utf-8")  # a comma at the end of lines is none
    assert (
        next(csv_chunks(path, 10))["b"].tolist() == numbered_csv_table(path, ("a",))["b"].tolist() == [2, 4]
    )


def test_rows_know_their_line_of_the_file(tmp_path):
    path = tmp_path / "noted.csv"
    path.write_text('# ours\n\na, b\n1,2,\n"3\n",x\n# between\n5,6,\n')
    frame = numbered_csv_table(path, ("a", "b"), text=("b",))
    assert (frame.index.tolist(), frame["a"].tolist()) == ([4, 5, 8], [1, 3, 5])
    assert frame["b"].tolist() == ["2", "x", "6"]
    path.write_text("# ours\na,b, A\n1,2,3\n")
    with one_line(DataError, match="line 2: column 'a' stands twice"):
        numbered_csv_table(path, ("a",))


def test_tables_have_a_limit_and_end_at_the_first_bad_line(tmp_path, monkeypatch):
    path = tmp_path / "t.csv"
    path.write_text("a,b\n" + "1,2\n" * 50_000)
    assert len(numbered_csv_table(path, ("a",))) == 50_000
    with monkeypatch.context() as patch:
        patch.setattr(tables, "TABLE_ROWS", 40_000)
        with pytest.raises(DataError, match="more than 40,000 rows"):
            numbered_csv_table(path, ("a",))
    with pytest.raises(DataError, match="columns missing: c"):
        numbered_csv_table(path, ("a", "c"))
    path.write_text("a,b\n1,2\n1,2,3\n")
    with pytest.raises(DataError, match="line 3"):
        numbered_csv_table(path, ("a",))
    path.write_bytes(b"x" * 2_000_000)
    with pytest.raises(DataError, match="no end"):
        next(csv_chunks(path, 10))


def test_parquet_is_read_in_parts_and_texts_are_limited(tmp_path, monkeypatch):
    path = tmp_path / "t.parquet"
    parquet.write_table(pa.table({"name": ["ab", "cd", "ab"], "n": [1, 2, 3], "list": [[1], [2], [3]]}), path)
    parts = list(parquet_parts(path, 2, "rows"))
    assert [part.num_rows for part in parts] == [2, 1]
    assert pa.concat_tables(parts).to_pydict() == {"name": ["ab", "cd", "ab"], "n": [1, 2, 3]}
    monkeypatch.setattr(tables, "TABLE_BYTES", 4)
    assert len(list(parquet_parts(path, 2, "rows"))) == 2
    with pytest.raises(DataError, match="texts of more than 4 bytes"):
        list(parquet_parts(path, 3, "rows"))
    monkeypatch.setattr(tables, "TABLE_BYTES", 0)
    parquet.write_table(pa.table({"name": pa.array([None, ""], pa.string()), "n": [1, 2]}), path)
    assert [part.num_rows for part in parquet_parts(path, 2, "rows")] == [2]  # texts of no bytes
    parquet.write_table(pa.table({"n": pa.array([], pa.int64())}), path)
    assert [part.num_rows for part in parquet_parts(path, 2, "rows")] == [0]


def test_values_are_shown_short_and_a_missing_folder_is_an_output_error():
    for value in ("a" * 10_000, 10**5_000, ["x" * 50] * 1_000, {"k" * 500: 1}, [[[[[[1]]]]]], "a\nb"):
        assert len(shown(value)) <= 60
        assert "\n" not in shown(value)
    with pytest.raises(OutputError), atomic(Path("/no/such/folder/x")):
        pass


# --- Writing ------------------------------------------------------------------------------------------


def test_the_dash_is_stdout(capfdbinary, tmp_path):
    check_writable(STDOUT)
    assert Output.of("json", STDOUT).path is None
    assert Output.of(None, STDOUT).form == "table"
    ended = command("specs", "a40", "--format", "csv", "-o", "-", cwd=tmp_path)
    assert ended.returncode == 0
    assert ended.stdout.startswith("kind,name,key")
    assert not list(tmp_path.iterdir())


def test_an_empty_file_is_shown_as_one(tmp_path):
    (tmp_path / "x.json").write_text(" \n", encoding="utf-8")
    with pytest.raises(SpecError, match="is empty"):
        read_json(tmp_path / "x.json", 100, "JSON")


@pytest.mark.parametrize("name", ["out.xyz", "out", "out.jsn"])
def test_a_suffix_that_says_nothing_is_refused(tmp_path, name):
    with pytest.raises(UsageError, match=r"cannot tell the form .*--format"):
        Output.of(None, tmp_path / name)
    assert Output.of("csv", tmp_path / name).form == "csv"
    assert Output.of(None, Path("/dev/null")).form == "table"


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP"])
def test_a_signal_leaves_no_part_behind(tmp_path, name):
    code = (
        "import os, signal, sys, medusa_sim.cli as cli\n"
        "from pathlib import Path\n"
        "from medusa_sim.writing import atomic\n"
        f"signal.signal(signal.{name}, signal.SIG_DFL)\n"  # nohup leaves it ignored
        "class Group:\n"
        "    def main(self, prog_name):\n"
        "        with atomic(Path('out.csv')) as file:\n"
        f"            os.kill(os.getpid(), signal.{name})\n"
        "cli.cli = Group()\n"
        "cli.main()\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=False, timeout=60)
    assert ended.returncode > 128
    assert not list(tmp_path.iterdir())


# --- Streams ------------------------------------------------------------------------------------------


def test_a_closed_stdout_is_one_line_and_a_file_works(tmp_path):
    def shell(line: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["sh", "-c", line.replace("medusa-sim", f"{sys.executable} -c '{MAIN}'")],
            capture_output=True, text=True, check=False, cwd=tmp_path,
        )  # fmt: skip

    ended = shell("medusa-sim specs a40 >&-")
    assert ended.returncode == 1
    assert ended.stderr.startswith("Error: the output cannot be written (Bad file descriptor); ")
    assert ended.stderr.count("\n") == 1
    assert shell("medusa-sim specs a40 -o x.csv >&-").returncode == 0
    assert (tmp_path / "x.csv").read_text().startswith("kind,")
    assert shell("medusa-sim specs a40 >&- 2>&-").returncode == 1
    assert shell("medusa-sim specs --format csv | head -1").stdout.startswith("kind")


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_terminals_that_are_not_utf8(encoding):
    environment = {**os.environ, "PYTHONIOENCODING": encoding, "MPLBACKEND": "module://no_such_backend"}
    for args in (
        ("--help",),
        ("tree", "show", "--help"),
        ("specs", "no-such-\u4e16"),
        ("sweep", "--batch", "1"),
    ):
        ended = command(*args, env=environment)
        assert "Traceback" not in ended.stderr, ended.stderr


def test_error_lines_are_short(tmp_path, monkeypatch):
    """Also of integers of more than 4,300 digits, which Python refuses to read, wherever they stand."""
    monkeypatch.chdir(tmp_path)
    long = "9" * 5_000
    Path("rows.csv").write_text(f"decoder,spec,block_efficiency\nSD,{long},2.0\nRSD-C,2-{long},2.0\n")
    Path("heads.csv").write_text(f"head,top1,top{long}\n0,0.5,0.6\n")
    for args in (
        ("specs", "x" * 10_000),
        ("sweep", "--gpu", "x" * 10_000),
        ("sweep", "--model", "x" * 10_000),
        ("sweep", "--model", "/" + "x" * 10_000),
        ("sweep", "--batch", "1" * 10_000),
        ("y" * 10_000,),
        ("time", "--ops", "z" * 10_000 + ".csv"),
        ("sweep", "-o", "z" * 10_000 + ".csv"),
        ("sweep", "--data-dir", "z" * 10_000),
        ("acceptance", "predict", "--observations", "rows.csv", "--targets", "rows.csv"),
        ("recommend", "--batch", "1", "--export", "vllm", "--engine-version", long),
        ("decode", "--tree", long),
    ):
        ended = run(*args)  # an exception that is a bug is raised
        assert ended.exit_code in (1, 2)
        line = ended.stderr.strip().splitlines()
        assert len(line) == 1, ended.stderr[:300]
        assert len(line[0]) < 1_100, (args[:2], len(line[0]))
    answered("acceptance", "show", "heads.csv")  # a column of another name is no rank, and is left out


def test_lines_of_a_log_hold_more_than_blanks_and_at_most_ten_thousand_characters():
    lines = ["first", "x" * 10_000, "y" * 10_001, "", "  ", "last"]
    assert list(short_lines_of("\r\n".join(lines))) == ["first", "x" * 10_000, "last"]


def test_a_data_folder_that_is_not_there_is_stated(tmp_path):
    ended = command("specs", "a40", "--data-dir", str(tmp_path / "later"))
    assert ended.returncode == 0
    assert re.match(
        r"warning: --data-dir .*later: no such folder, so only shipped data is found", ended.stderr
    )


def test_rows_of_a_table_have_the_numbers_of_their_lines(tmp_path):
    """Behind a comment and a cell of two lines, too."""
    (tmp_path / "x.csv").write_text('a,b\n1,2\n# no row\n"3\n4",5\n6,7,\n')
    rows = list(csv_lines(tmp_path / "x.csv", "rows"))
    assert rows == [(1, ["a", "b"]), (2, ["1", "2"]), (4, ["3\n4", "5"]), (6, ["6", "7"])]
