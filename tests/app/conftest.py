"""Pages run by Streamlit's own test runner."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("streamlit")

import show
import under_load
from pages_read import PAPERS, Opened
from streamlit.testing.v1 import AppTest

from medusa_sim.units import FORMATS, format_text

ONLY_TYPED = re.compile(
    r"--(?:format|price|bench|counters|by-count|measured)|medusa-sim acceptance|usd_per_million"
    r"|served\.toml|1\.\.N|\b(?:" + "|".join(name for name in FORMATS if format_text(name) != name) + r")\b"
)
"""What only the command line has a place for, ids of formats among it."""
ADDRESSES = {"answer": "", "compare": "which-gpu"}


@pytest.fixture
def short_loads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loads of 150 requests and one seed: figures of the size that is asked for are not what is tested."""
    whole = under_load.load_test

    def short(scenario: Any, **asked: Any) -> Any:
        return whole(scenario, **{**asked, "requests": 150, "seeds": 1})

    monkeypatch.setattr(under_load, "load_test", short)


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Opened:
    """Opens a page as main.py does, with parameters in its URL, of the papers' set-up where they say nothing.

    What every page keeps is asked of each.
    """
    monkeypatch.setenv("MEDUSA_SIM_DATA_DIR", str(tmp_path / "own"))

    def run(view: str, /, **url: Any) -> AppTest:
        script = (
            "import bar, importlib, inputs, show, streamlit as st\n"
            "from views import server\n"
            f"inputs.take_words({ADDRESSES.get(view, view)!r})\n"
            "with show.errors():\n"
            "    chosen = bar.set_up(st)\n"
            f"    importlib.import_module('views.{view}').page(chosen)\n"
            "    server.judged(chosen)\n"
        )
        page = AppTest.from_string(script, default_timeout=600)  # ends what hangs, not what is slow
        for name, value in (PAPERS | url).items():
            page.query_params[name] = str(value)
        page.run()
        assert not page.exception, page.exception
        faults = [error.value for error in page.error if error.icon == show.FAULT]
        assert faults == [], faults
        assert page.title or page.error
        assert all("\n" not in error.value for error in page.error)
        told = [line.value for line in (*page.error, *page.warning, *page.info, *page.success)]
        options = {f"--{name}" for name in show._LABELS}
        assert not [line for line in told if options & set(re.findall(r"--[a-z-]+", line))], (
            "inputs have labels"
        )
        prose = [each.value for each in (*page.markdown, *page.caption) if "<div" not in each.value]
        prose = [] if url.get("view") == "method" else prose  # a document
        assert not [line for line in (*told, *prose) if ONLY_TYPED.search(line)], "words of commands"
        assert "Traceback" not in str(told)
        return page

    return run
