"""What cannot be answered is refused in one line with its exit code, and nothing is written."""

import shlex

import pytest
from asking import HEADS, refused
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
