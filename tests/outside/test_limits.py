"""Inputs that once took minutes or gigabytes: each is read or refused in one line, in linear time."""

import contextlib
import json
import re
import subprocess
import sys
from pathlib import Path

import fuzzer
import numpy as np
import pyarrow as pa
import pytest
from one_line import one_line
from pyarrow import parquet

from medusa_sim.acceptance.engine_records import read_counts
from medusa_sim.acceptance.head_table import read_accuracies
from medusa_sim.acceptance.metrics_page import samples
from medusa_sim.acceptance.tree_file import read_tree
from medusa_sim.engine_runs.bench import read_bench
from medusa_sim.errors import DataError, MedusaSimError, SpecError
from medusa_sim.load.trace import read_trace
from medusa_sim.models.hf_config import model_from_config
from medusa_sim.operators.table import read_rows
from medusa_sim.outside import limits
from medusa_sim.reading.documents import json_of
from medusa_sim.reading.files import held, read_bytes
from medusa_sim.reading.tables import csv_lines

SIZE = 100_000
LINE = "draft acceptance rate = 0.5 (    1 accepted /    2 generated) "
RATES = "acceptance rate per position = ("
RECORD = {"acceptance_histogram": {"0": 1, "3": 1}}


def filled(text: str) -> str:
    return (text * (SIZE // len(text) + 1))[:SIZE]


READERS = {
    "a label without an end": (read_counts, f"vllm:x{{{'a' * SIZE}}} 1"),
    "a log without line breaks": (read_counts, filled(LINE)),
    "rates without an end": (read_counts, LINE + filled(RATES)),
    "both, again and again": (read_counts, filled(LINE + RATES)),
    "short lines of a log": (read_counts, filled(f"{LINE}{RATES}\n")),
    "an empty tree": (read_tree, "\n" * SIZE),
    "a tree that is closed too often": (read_tree, "a=[[\n" + filled("] ")),
    "a tree that is opened too often": (read_tree, filled("a=[[\n")),
    "a tree with a node below each node": (
        read_tree, json.dumps({"Successors": [[i + 1] for i in range(11_000)] + [[]]}),
    ),
    "a path listed twice": (read_tree, json.dumps([[i] for i in range(4_000)] * 3)),
    "a key given twice": (read_tree, "{" + ",".join(f'"k{i}":1' for i in range(9_000)) + ',"k8999":1}'),
    "JSON lines of nothing": (read_counts, "[]\n" * (SIZE // 3)),
    "many columns": (read_accuracies, "head,rank,accuracy," + "x," * 50_000 + "\n"),
    "many heads": (read_accuracies, "head,rank,accuracy\n" + "".join(f"{i},0,0.5\n" for i in range(1_000))),
    "many columns of a benchmark": (read_bench, "x," * 50_000 + "y\n1\n"),
}  # fmt: skip


@pytest.mark.parametrize(("read", "text"), READERS.values(), ids=READERS)
def test_a_hundred_kilobytes_take_less_than_a_second(read, text):
    name = "given.csv" if read is read_bench else "given.txt"

    def read_in_time():
        with fuzzer.limited(1.0), held(name, text.encode()) as path, contextlib.suppress(MedusaSimError):
            read(path)

    try:
        read_in_time()
    except fuzzer.OutOfTimeError:  # once may be the machine: slow is what is so again
        read_in_time()


@pytest.mark.parametrize(
    "record",
    [
        {"acceptance_histogram": {"0": 1, "30000000": 1}},
        {**RECORD, "num_spec_tokens": 10**9},
        {**RECORD, "num_draft_tokens": 10**12},
        {**RECORD, "per_step_accepted": [0, 3], "per_step_drafted": [10**9, 3]},
        {**RECORD, "acceptance_histogram_by_draft_length": {str(10**9): {"0": 1, "3": 1}}},
        {"acceptance_histogram": {"0": 10**30}},
        {"acceptance_histogram": {"0": "9" * 5_000}},
        {"acceptance_histogram": {"0": 1e300}},
        {"spec_decode_num_drafts": 10, "spec_decode_draft_tokens": 10,
         "spec_decode_per_position_acceptance_rates": [0.1] * 100_000},
    ],
)  # fmt: skip
def test_counts_that_cannot_be_are_refused_before_memory_is_taken(record):
    told = "malformed|in a row|corrupt|a count of"
    with fuzzer.limited(1.0), held("record.json", json.dumps(record).encode()) as path:
        with pytest.raises(DataError, match=told) as caught:
            read_counts(path)
        one_line(caught)


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ('vllm:x{a="1",b="{}"} 2', [("vllm:x", {"a": "1", "b": "{}"}, 2.0)]),
        ("x 1 1700000000", [("x", {}, 1.0)]),
        ("x NaN", []), ("x +Inf", []), ("x 1e300", []), ("x{a=1} 1", [("x", {}, 1.0)]), ("# x 1", []),
        ("x{", []), ("x 1 2 3", []), ("x" + " " * 20_000 + "1", []),
    ],
)  # fmt: skip
def test_samples_of_a_page(line, value):
    assert list(samples(line)) == value


def test_a_position_that_is_no_figure_is_no_position():
    page = 'vllm:spec_decode_num_accepted_tokens_per_pos_total{position="²"} 1\n'
    with held("page.txt", page.encode()) as path, pytest.raises(DataError, match="no counters"):
        read_counts(path)


def test_a_text_that_is_short_in_a_parquet_file_and_long_in_memory_is_refused(tmp_path):
    rows = 200_000
    long = pa.DictionaryArray.from_arrays(pa.array([0] * rows, pa.int32()), pa.array(["x" * 100_000]))
    columns = {name: pa.array(np.ones(rows)) for name in ("arrival_s", "prompt_tokens", "output_tokens")}
    path = tmp_path / "trace.parquet"
    parquet.write_table(pa.table({**columns, "session": long}), path, store_schema=False)
    assert path.stat().st_size < 200_000
    for read in (read_trace, read_rows):
        with pytest.raises(DataError, match="texts of more than") as caught:
            read(path)
        one_line(caught)


def test_steps_with_a_cell_that_csv_refuses_are_refused_in_one_line(tmp_path):
    path = tmp_path / "steps.csv"
    path.write_text('a,"' + "x" * 200_000)
    with pytest.raises(DataError, match=r"cannot be read") as caught:
        list(csv_lines(path, "rows"))
    one_line(caught)


def test_a_decoder_of_many_layers_is_refused(tmp_path):
    from medusa_sim.lab.decoder.config import read_config

    sizes = {"vocab_size": 8, "hidden_size": 8, "intermediate_size": 8, "num_attention_heads": 2}
    (tmp_path / "config.json").write_text(json.dumps({**sizes, "num_hidden_layers": 10**9}))
    with pytest.raises(SpecError, match="<= 1000") as caught:
        read_config(tmp_path)
    one_line(caught)


@pytest.mark.parametrize("name", ["a\nb", "a\x1b[31mb", "a\u202eb", "x" * 201])
def test_a_model_whose_name_breaks_a_line_is_refused(tmp_path, name):
    from models.test_patterns import LLAMA

    (tmp_path / name).mkdir()
    (tmp_path / name / "config.json").write_text(json.dumps(LLAMA))
    with pytest.raises(SpecError, match="rename the folder") as caught:
        model_from_config(tmp_path / name)
    one_line(caught)


def test_what_is_held_in_memory_is_read_from_there_and_named_alone(tmp_path, monkeypatch):
    from models.test_patterns import LLAMA

    monkeypatch.chdir(tmp_path)
    Path("hf_quant_config.json").write_text('{"quantization": {"quant_algo": "FP8"}}')
    with held("../../etc/config.json", json.dumps(LLAMA).encode()) as path:
        model = model_from_config(path)
        assert read_bytes(path, 10**6, "it").startswith(b"{")
        with pytest.raises(SpecError, match=r"^config.json: more than 10 bytes"):
            read_bytes(path, 10, "it")
    assert model.name == "uploaded"
    assert model.form != "fp8"  # what lies in the folder of the program is not beside an upload
    with pytest.raises(SpecError, match=r"no such file|cannot be read"):
        read_bytes(path, 10**6, "it")


def test_nesting_and_keys_are_refused_by_name():
    with pytest.raises(SpecError, match="nested"):
        json_of("[" * 5_000 + "]" * 5_000, "x", "a list")
    with pytest.raises(SpecError, match="'b' is given twice"):
        json_of('{"a": 1, "b": 2, "b": 3}', "x", "a table")


def test_no_reader_has_a_limit_of_its_own():
    """Sizes of what is read stand in one module; others import them."""
    own = re.compile(r"^_?[A-Z_]*(SPEC|TABLE|PAGE|INDEX|HEADER|UPLOAD|CONFIG)_?BYTES\b.*=", re.MULTILINE)
    folder = Path(limits.__file__).parents[1]
    found = [path for path in folder.rglob("*.py") if own.search(path.read_text(encoding="utf-8"))]
    assert found == [Path(limits.__file__)]


def test_a_line_of_json_takes_no_memory(tmp_path):
    """In a process of its own, since memory once taken stays: 3.9 GB before."""
    path = tmp_path / "record.json"
    path.write_text('{"acceptance_histogram":{"0":1,"30000000":1}}')
    code = (
        "import resource, sys\n"
        "from pathlib import Path\n"
        "from medusa_sim.acceptance.engine_records import read_counts\n"
        "from medusa_sim.errors import DataError\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "try:\n    read_counts(Path(sys.argv[1]))\n"
        "except DataError:\n    pass\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)\n"
    )
    run = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True, check=True)
    assert int(run.stdout) < 20_000  # kB
