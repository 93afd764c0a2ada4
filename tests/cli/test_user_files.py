"""Nothing of the user's is overwritten unasked: inputs, reports, kernels and runtimes of their own."""

import shlex
import shutil
from pathlib import Path

import click
import pytest
from asking import commands
from asking import run as _run
from tables import table

ROOT = Path(__file__).resolve().parents[2]
ENGINE = ROOT / "tests" / "data" / "engine"
TREE = "[[0], [1], [0, 0]]"
HEADS = "head,rank,accuracy,labels\n0,0,0.6,100\n0,1,0.1,100\n1,0,0.4,100\n"
OBSERVED = "decoder,spec,block_efficiency\nSD,2,1.9\nSD,3,2.2\nSD,4,2.4\n"
DRAFT = "profiles/checkpoints/python-stdlib-draft"
STEPS = "profiles/decoder/cpu-emerald-rapids-3m"
FILES: dict[str, str | Path] = {
    "trace.csv": "arrival_s,prompt_tokens,output_tokens\n0,100,20\n0.5,300,40\n",
    "ops.csv": ROOT / "docs" / "example_rows.csv",
    "tree.json": TREE,
    "heads.csv": HEADS,
    "observed.csv": OBSERVED,
    "profile.toml": ROOT / "profiles" / "acceptance" / "medusa1-vicuna-7b.toml",
    "config.json": ROOT / "docs" / "example_config.json",
    "runtime.toml": 'inherits = "vllm-0.11"\ntitle = "mine"\n',
    "bench.json": ENGINE / "vllm_serve_plain_b8.json",
    "local.json": '[{"n_prompt": 0, "n_gen": 64, "avg_ts": 120.0}]',
    "before.txt": ENGINE / "vllm_metrics_before.txt",
    "after.txt": ENGINE / "vllm_metrics_after.txt",
    "served.csv": "gpu,model,runtime,concurrency,prompt,output,tpot_ms\n"
    "h100-sxm,llama-3.1-8b,vllm-0.15,8,512,256,7.0\n",
    "prompt.txt": "import os",
}
SMALL = ("--batch", "1", "--seq", "256")
CASES = [tuple(shlex.split(line)) for line in table("command_lines")["results"]["lines"]]
"""Commands whose result is sent to the file behind `@`, or behind `>` where no argument names it."""
OUTPUTS = {"out", "output_path", "path", "plot", "save", "examples_dir"}
NO_RESULT = {"measure"}
"""Writes a folder of its own, which it goes on from."""


def _in(folder: Path) -> None:
    """Every file that a case reads, and other names of some of them."""
    for name, content in FILES.items():
        data = content.encode() if isinstance(content, str) else content.read_bytes()
        (folder / name).write_bytes(data)
    for name, copied in (("tree.svg", "tree.json"), ("tree.toml", "tree.json"), ("heads.toml", "heads.csv"),
                         ("before.toml", "before.txt"), ("other.csv", "observed.csv"),
                         ("local.svg", "local.json")):  # fmt: skip
        shutil.copy(folder / copied, folder / name)
    shutil.copytree(ROOT / DRAFT, folder / "draft")
    shutil.copytree(ROOT / STEPS, folder / "steps")
    (folder / "text").mkdir()
    for name in "abcdefghijklmnopqrst":
        (folder / "text" / f"{name}.py").write_text(f"# {name}\n" * 200)


@pytest.mark.parametrize("case", CASES, ids=lambda case: " ".join(case)[:60])
def test_no_command_writes_its_result_over_what_it_reads(case, tmp_path, monkeypatch):
    if case[0] in ("train", "decode"):
        pytest.importorskip("torch")
    _in(tmp_path)
    monkeypatch.chdir(tmp_path)
    target = next(word[1:] for word in reversed(case) if word[0] in "@>")
    args = [word.removeprefix("@") for word in case if word[0] != ">"]
    before = (tmp_path / target).read_bytes()
    command = next(found for words, found in commands() if case[: len(words)] == words)
    form = ["--format", "csv"] if any("--format" in param.opts for param in command.params) else []
    ended = _run(*args, "-o", target, *form)
    assert ended.exit_code == 1, ended.output
    assert target in ended.stderr
    assert "read by this command" in ended.stderr
    assert (tmp_path / target).read_bytes() == before


def test_every_option_that_takes_a_file_has_a_case():
    named = {word for case in CASES for word in case}
    for words, command in commands():
        if words[0] in NO_RESULT:
            continue
        for param in command.params:
            is_output = param.name in {*OUTPUTS, "data_dir"} or "--report" in param.opts
            if isinstance(param.type, click.Path) and not is_output:
                cases = [case for case in CASES if case[: len(words)] == words]
                positional = isinstance(param, click.Argument)
                assert cases if positional else any(set(param.opts) & set(case) for case in cases), param.opts
    assert "--trace" in named


@pytest.mark.parametrize("kind", ["relative", "symbolic", "dots"])
def test_other_names_of_the_same_file_are_the_same_file(kind, tmp_path, monkeypatch):
    _in(tmp_path)
    monkeypatch.chdir(tmp_path / "text")
    given, other = tmp_path / "trace.csv", tmp_path / "link.csv"
    before = given.read_bytes()
    if kind == "symbolic":
        other.symlink_to(given)
    names = {"relative": "../trace.csv", "dots": f"{tmp_path}/text/../trace.csv"}
    ended = _run("load", "--trace", str(given), "-o", names.get(kind, str(other)))
    assert ended.exit_code == 1
    assert "read by this command" in ended.stderr
    assert given.read_bytes() == before


def test_a_report_replaces_only_what_a_report_left(tmp_path):
    sweep = ("sweep", *SMALL, "--candidates", "1,4", "--report", str(tmp_path / "out"))
    page = tmp_path / "out" / "report.md"
    page.parent.mkdir()
    page.write_text("my own")
    ended = _run(*sweep)
    assert ended.exit_code == 1
    assert "--overwrite" in ended.stderr
    assert [path.name for path in page.parent.iterdir()] == ["report.md"]
    assert page.read_text() == "my own"
    for overwrite in (["--overwrite"], []):  # what it wrote itself is written anew
        assert _run(*sweep, *overwrite).exit_code == 0
        assert page.read_text() != "my own"


def test_own_runtimes_and_kernels_are_replaced_only_when_asked(tmp_path):
    bench = [str(ENGINE / f"vllm_serve_plain_b{batch}.json") for batch in (1, 8, 64)]
    engine = ("calibrate", "engine", "--gpu", "h100-sxm", "--model", "llama-3.1-8b", "--name", "mine",
              *bench)  # fmt: skip
    rows, sizes = tmp_path / "rows.csv", (64, 512, 1024, 2048, 8192)
    lines = [f"rms_norm,{m},{n},fp16,{2 + m * n / 2e6}" for m in sizes for n in sizes]
    rows.write_text("\n".join(["op,m,n,dtype,time_us", *lines]) + "\n")
    kernels = ("calibrate", "rows", "--gpu", "a40", "--kernels", "mine", str(rows))
    for command, name in ((engine, "profiles/runtimes/mine.toml"), (kernels, "hardware/a40.toml")):
        args = (*command, "--data-dir", str(tmp_path / "data"))
        assert (ended := _run(*args)).exit_code == 0, ended.output
        written = tmp_path / "data" / name
        before = written.read_bytes()
        ended = _run(*args)
        assert ended.exit_code == 1
        assert "--overwrite" in ended.stderr
        assert written.read_bytes() == before
        assert _run(*args, "--overwrite").exit_code == 0
