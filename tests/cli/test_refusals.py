"""What cannot be answered is refused in one line with its exit code, and nothing is written."""

import re
import shlex

import click
import pytest
from asking import HEADS, commands, refused
from tables import table

TABLE = table("command_lines")
HEADERS = {
    "OPS": "op,m,n,k,batch,q_len,kv_len,heads,kv_heads,head_dim,dtype,time_us,source,remark\n",
    "EXPERTS": "op,engine,kernel,dtype,tokens,hidden,inter,topk,experts,tp,ep,distribution,"
    "local_experts_hit,local_rows\n",
    "HEADS": HEADS,
}


@pytest.mark.parametrize(
    ("start", "line", "code", "told"),
    [(start, *row) for start, rows in TABLE["lines"].items() for row in rows],
)
def test_a_line_that_is_refused(start, line, code, told, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    refused(told, *shlex.split(f"{start} {line}"), code=code)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("line", "text", "told"), [(line, *row) for line, rows in TABLE["files"].items() for row in rows]
)
def test_a_file_that_is_refused(line, text, told, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, content in HEADERS.items():
        text = text.replace(name, content)
    (tmp_path / "given.csv").write_text(text)
    (tmp_path / "targets.csv").write_text("decoder,spec\nSD,5\n")
    words = shlex.split(line.replace("FILE", "given.csv").replace("TARGETS", "targets.csv"))
    code = 2 if "calibrate" in line or "--engine-version" in line else 1
    refused(told, *words, code=code)
    assert {path.name for path in tmp_path.iterdir()} == {"given.csv", "targets.csv"}


INTERNAL = re.compile(r"\b(tp|ep|batch|seq_len|candidates|drafts|counts|cards)\b|[a-z]_[a-z]")
"""Names that a message may have from inside; of an option's own line only those that it is called by."""
BAD = ("-1", "nan", "zz", "1" + "0" * 30, "", "1,x", "4..1")
"""Wrong for numbers, for grids or for choices."""


@pytest.mark.parametrize("words", [words for words, _ in commands()], ids=" ".join)
def test_whatever_an_option_is_given_it_is_called_as_it_was_typed(words):
    """`--gpus -1` was refused as tp."""
    command = next(found for name, found in commands() if name == words)
    for option in command.params:
        if not isinstance(option, click.Option) or option.is_flag:
            continue
        typed = option.opts[-1]
        for given in BAD:
            try:
                option.type_cast_value(click.Context(command), (given,) if option.multiple else given)
            except click.UsageError as error:
                told = error.format_message()
                assert told.startswith(f"Invalid value for '{typed}'"), told
                said = told.partition(": ")[2].partition("allowed")[0].partition("known")[0]
                said = said.replace(typed.lstrip("-").replace("-", " "), "")
                assert not INTERNAL.search(said), told
