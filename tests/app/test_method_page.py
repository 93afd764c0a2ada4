"""The page Method: its command gives its numbers, no link leads nowhere, a missing file is said."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("streamlit")

from pages_read import Opened, commands, csv_rows, printed, tables
from views import sources as method

from medusa_sim import data
from medusa_sim.errors import SpecError


@pytest.mark.parametrize(
    "url",
    [
        {},
        {"fitted": "false", "gpu": "h100-sxm", "model": "llama-3-8b", "runtime": "hf-eager"},
        {"acceptance": "paper-fig4-sparse"},
        {"drafter": "ngram", "acceptance": "0.6"},
    ],
)
def test_the_command_lists_what_the_page_shows(opened: Opened, url: dict[str, Any]) -> None:
    page = opened("evidence", view="numbers in use", **url)
    told = next(told for told in commands(page) if "medusa-sim specs" in told)
    rows = csv_rows(printed(f"{told} --format csv"))
    table = tables(page)[0]
    listed = [(f"{row['kind']} {row['name']}", row["key"]) for row in rows]
    assert listed == list(zip(table["what"], table["number"], strict=True))
    assert ("--with-kernels" in told) == (url.get("fitted") != "false")
    if url.get("drafter") != "ngram":
        assert any(what.startswith("acceptance ") for what, _ in listed)
    assert (table["source"].str.len() > 0).all()
    fewer = tables(opened("evidence", view="numbers in use", find="bandwidth", **url))[0]
    assert 0 < len(fewer) < len(table)


def test_a_missing_file_is_one_line(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SpecError) as caught:
        method.found_file("hardware", "no-such-gpu.toml")
    told = str(caught.value)
    assert "\n" not in told
    assert "hardware/no-such-gpu.toml" in told
    assert "a100-80gb-pcie" in told
    assert "choose" in told
    assert method.found_file("hardware", "a40.toml").name == "a40.toml"
    monkeypatch.setattr(method, "data", SimpleNamespace(find=lambda *_: None, stems=data.stems))
    page = opened("evidence", view="numbers in use")
    assert [error.value for error in page.error if "hardware/a100-80gb-pcie.toml" in error.value]
    assert tables(page), "the numbers are shown before the line"


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("see [log.md](log.md), then", "see log.md, then"),
        ("[a *b*](../docs/x.md#part) and [c](d.md)", "a *b* and c"),
        ('[t](log.md "a title")', "t"),
        ("![the page](images/tree.png)", "the page"),
        ("[paper](https://arxiv.org/abs/2401.10774)", "[paper](https://arxiv.org/abs/2401.10774)"),
        ("[paper](http://a.b/c)", "[paper](http://a.b/c)"),
        ("[below](#the-step)", "[below](#the-step)"),
        ("`a[i](x)` stays", "`a[i](x)` stays"),
        ("```\nf[k](n)\n```\n[y](z.md)", "```\nf[k](n)\n```\ny"),
        ("T[m] (n) and (a) [b]", "T[m] (n) and (a) [b]"),
    ],
)
def test_relative_links_become_text(given: str, shown: str) -> None:
    assert method.without_relative_links(given) == shown


def test_no_link_of_the_page_leads_nowhere(opened: Opened) -> None:
    assert "(log.md)" in method.method_text()
    shown = "".join(part.value for part in opened("evidence", view="method").markdown)
    outside_code = re.sub(r"(`+).*?\1", "", shown, flags=re.DOTALL)
    targets = re.findall(r"\]\(([^)]*)\)", outside_code)
    assert all(target.startswith(("http://", "https://", "#")) for target in targets)
    assert "log.md the history" in shown


def test_only_links_change() -> None:
    text = method.method_text()
    words = re.findall(r"\w+", method.without_relative_links(text))
    assert len(re.findall(r"\w+", text)) - len(words) == sum(
        len(re.findall(r"\w+", link)) for link in re.findall(r"\]\((?!https?://|#)([^()]*)\)", text)
    )
