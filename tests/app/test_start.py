"""`medusa-sim app` and `streamlit run app/main.py` start with the same options, and ask nobody anything."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest
from one_line import one_line

pytest.importorskip("streamlit")

from streamlit import config

from medusa_sim.cli.app import check_address, leave_out_here, main_script, streamlit_options
from medusa_sim.errors import UsageError

OPTIONS = main_script().parent / ".streamlit" / "config.toml"


def test_nothing_is_asked_or_sent() -> None:
    options = streamlit_options(OPTIONS)
    assert options["logger.hideWelcomeMessage"] is True
    assert options["server.showEmailPrompt"] is False
    assert options["browser.gatherUsageStats"] is False


def test_streamlit_knows_every_option() -> None:
    known = config.get_config_options()
    assert set(streamlit_options(OPTIONS)) <= set(known)


def test_a_missing_file_is_one_line(tmp_path: Path) -> None:
    with one_line(UsageError, match="installation is incomplete"):
        streamlit_options(tmp_path / "config.toml")


@pytest.mark.parametrize("address", ["203.0.113.7", "not a host", "x" * 300, "a..b"])
def test_an_address_of_another_machine_is_one_line(address: str) -> None:
    with pytest.raises(UsageError, match=r"cannot listen on .*, port 8501 \(.+\); give an address of this"):
        check_address(address, 8501)


def test_a_port_that_is_taken_is_one_line() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(UsageError, match="another --port"):
            check_address("127.0.0.1", port)
    check_address("127.0.0.1", port)


def test_the_first_page_opens_without_tables() -> None:
    """pandas and pyarrow take longer to import than the answer takes; files that are asked for need them."""
    code = (
        "import sys\n"
        "from streamlit.testing.v1 import AppTest\n"
        f"sys.path.insert(0, {str(main_script().parent)!r})\n"
        f"page = AppTest.from_file({str(main_script())!r}, default_timeout=600).run()\n"
        "assert page.success and not page.exception\n"
        "print(*{name.partition('.')[0] for name in sys.modules})\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"pandas", "pyarrow", "scipy", "matplotlib", "torch"} & set(result.stdout.split())


def test_a_file_where_the_app_is_started_is_no_module(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    for first in ("", str(tmp_path)):
        monkeypatch.setattr(sys, "path", [first, "kept"])
        leave_out_here()
        assert sys.path == ["kept"]
        leave_out_here()
        assert sys.path == ["kept"]
