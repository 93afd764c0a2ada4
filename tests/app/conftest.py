"""Pages run by Streamlit's own test runner."""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("streamlit")

import answers
import show
import under_load
from pages_read import PAPERS, Opened
from streamlit.components.v2 import manifest_scanner
from streamlit.testing.v1 import AppTest

from medusa_sim.export import launch
from medusa_sim.plan import recommend
from medusa_sim.plan.recommendation import Recommendation
from medusa_sim.scenario.question import Question
from medusa_sim.scenario.scenario import Scenario
from medusa_sim.units import FORMATS, format_text

ONLY_TYPED = re.compile(
    r"--(?:format|price|bench|counters|by-count|measured)|medusa-sim acceptance|usd_per_million"
    r"|served\.toml|1\.\.N|\b(?:" + "|".join(name for name in FORMATS if format_text(name) != name) + r")\b"
)
"""What only the command line has a place for, ids of formats among it."""
ADDRESSES = {"answer": "", "compare": "which-gpu"}
SEARCHES = 4
"""Searches that are kept: a page's, and those that its commands ask besides."""


@pytest.fixture(autouse=True, scope="session")
def installed_once() -> Iterator[None]:
    """What is installed is listed once: every `AppTest` reads the metadata of all packages, half a second."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            manifest_scanner, "scan_component_manifests", cache(manifest_scanner.scan_component_manifests)
        )
        yield


@pytest.fixture(autouse=True, scope="session")
def searched_once() -> Iterator[None]:
    """A page and the commands that it prints share a search where scenario and question are equal.

    Both are compared by every value that was resolved from words, so that a page that asks something else
    than its command still has another answer.
    """
    search = recommend.recommend
    kept: OrderedDict[object, Recommendation] = OrderedDict()

    def once(scenario: Scenario, question: Question | None = None) -> Recommendation:
        asked = recommend._with_traffic(scenario, Question() if question is None else question)
        values = tuple(asked[0].arguments.values.items())
        if not all(isinstance(value, str | int | float | None) for _, value in values):
            return search(scenario, question)
        key = (values, asked[1], answers.data_version())
        found = kept.pop(key, None) or search(scenario, question)
        kept[key] = found
        if len(kept) > SEARCHES:
            kept.popitem(last=False)
        return found

    with pytest.MonkeyPatch.context() as patch:
        for module in (recommend, answers, launch):
            patch.setattr(module, "recommend", once)
        yield


@pytest.fixture
def short_loads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loads of 80 requests and one seed: figures of the size that is asked for are not what is tested."""
    whole = under_load.load_test

    def short(scenario: Any, **asked: Any) -> Any:
        return whole(scenario, **{**asked, "requests": 80, "seeds": 1})

    monkeypatch.setattr(under_load, "load_test", short)


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Opened:
    """Opens a page as main.py does, with parameters in its URL, of the papers' set-up where they say nothing.

    What every page keeps is asked of each.
    """
    monkeypatch.setenv("MEDUSA_SIM_DATA_DIR", str(tmp_path / "own"))

    def run(view: str, /, **url: Any) -> AppTest:
        script = (
            "import bar, importlib, link, show, streamlit as st\n"
            "from views import server\n"
            f"link.resolve_aliases({ADDRESSES.get(view, view)!r})\n"
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
