"""What a page shows, as values that are compared with direct calls of the package."""

import re
import shlex
from collections.abc import Callable
from html import unescape
from pathlib import Path
from typing import Any

import pandas as pd
from chosen import PageArguments
from click.testing import CliRunner
from streamlit.testing.v1 import AppTest

APP = Path(__file__).resolve().parents[2] / "app"

Opened = Callable[..., AppTest]
PAPERS = {"gpu": "a100-80gb-pcie", "model": "vicuna-7b", "drafter": "medusa"}
"""Trees of heads: the set-up of commands that name none."""


def set_up(**changes: object) -> PageArguments:
    """The papers' set-up, with these changes."""
    return PageArguments(**{**PAPERS, **changes})  # type: ignore[arg-type]


def metrics(page: AppTest) -> dict[str, str]:
    return {each["Label"]: each["Value"] for each in figures(page)}


def figures(page: AppTest) -> list[dict[str, str]]:
    """Numbers of a page: Label, Value, Delta and meaning of each."""
    parts = re.compile(r'<div (?:data-testid="stMetric|class="(?=meaning))(\w+)"[^>]*>(.*?)</div>')
    shown = (text.value for text in page.markdown if text.value.startswith('<div class="figures"'))
    each = (found for text in shown for found in text.split('<div class="figure"')[1:])
    return [{name: unescape(told) for name, told in parts.findall(found)} for found in each]


def unfolded(page: AppTest, key: str) -> AppTest:
    """The page with one of its folded parts open."""
    page.session_state[key] = True
    return page.run()


def printed(command: str) -> str:
    """What the command that a page prints gives."""
    from medusa_sim.cli import cli

    program, *words = shlex.split(command)
    assert program == "medusa-sim"
    result = CliRunner().invoke(cli, words)
    assert result.exit_code == 0, result.output
    return result.stdout


def commands(page: AppTest) -> list[str]:
    """Commands of a page, one a line."""
    told = [code.value.replace("\\\n", " ") for code in page.code if code.value.startswith("medusa-sim")]
    return [line for text in told for line in text.splitlines()]


def csv_rows(text: str) -> list[dict[str, str]]:
    import csv

    return list(csv.DictReader(text.splitlines()))


def text_of(page: AppTest) -> str:
    """All text of a page, its Markdown escapes taken off."""
    parts = [*page.markdown, *page.success, *page.error, *page.warning, *page.info, *page.caption]
    return re.sub(r"\\([$*_~<\[\]`])", r"\1", "\n".join(part.value for part in parts))


def tables(page: AppTest) -> list[pd.DataFrame]:
    """Tables of a page, cells as text."""
    found = []
    for body in (each.proto.body for each in page.get("html") if "<table>" in each.proto.body):
        head = [unescape(name) for name in re.findall(r"<th class[^>]*>(.*?)</th>", body)]
        rows = [
            [unescape(cell.replace("<wbr>", "")) for cell in re.findall(r"<td[^>]*>(.*?)</td>", row)]
            for row in re.findall(r"<tr>(.*?)</tr>", body)
        ]
        found.append(pd.DataFrame([row for row in rows if row], columns=head))
    return found


def table_of(page: AppTest, *columns: str) -> pd.DataFrame:
    """The first table of a page that has these columns."""
    return next(table for table in tables(page) if {*columns} <= {*table.columns})


def charts(page: AppTest) -> list[dict[str, Any]]:
    """Specifications of the charts on a page, as the modules of charts write them."""
    import json

    sent = [json.loads(each.proto.spec) for each in page.get("vega_lite_chart")]
    inner = [spec["layer"][0] if len(spec.get("layer", ())) == 1 else {} for spec in sent]
    return [{**spec, **(one if "layer" in one else {})} for spec, one in zip(sent, inner, strict=True)]
