"""Progress: silent when quick, a line now and again away from a terminal, a bar on one."""

import os
import pty
import subprocess
import sys

import pyarrow as pa

from medusa_sim.cli import output

TABLES = [pa.table({"batch": [1, 2, 3]}), pa.table({"batch": [4]})]


def test_tables_pass_through_in_silence(capsys):
    assert list(output.count_rows(TABLES, 4, "rows")) == TABLES
    assert capsys.readouterr() == ("", "")


def test_away_from_a_terminal_a_line_now_and_again(capsys, monkeypatch):
    monkeypatch.setattr(output, "_LINE_EVERY_S", 0.0)
    with output.progress("shapes") as advance:
        advance(1, 4, 90.0)
        advance(4, 4, None)
    assert capsys.readouterr().err.splitlines() == ["1 of 4 shapes, 1:30 left", "4 of 4 shapes, 0:00 left"]


def test_a_terminal_sees_a_bar_once_it_takes_longer():
    code = (
        "import medusa_sim.cli.output as p\np.QUIET_S = 0.0\n"
        "with p.progress('shapes') as advance:\n    advance(3, 4, 61.0)\n"
    )
    main, other = pty.openpty()
    done = subprocess.run([sys.executable, "-c", code], stderr=other, stdout=subprocess.PIPE, check=True)
    os.close(other)
    drawn = os.read(main, 65536).decode()
    os.close(main)
    assert "3 of 4 shapes" in drawn
    assert "1:01 left" in drawn
    assert done.stdout == b""
