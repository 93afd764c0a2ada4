"""An answer in a notebook: a sentence, a picture, a table and warnings as HTML."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from medusa_sim.outside.escaping import for_html
from medusa_sim.report.table import TextTable

if TYPE_CHECKING:
    import pandas as pd


def notebook_html(
    sentence: str, table: pd.DataFrame | TextTable, lines: Iterable[str], picture: str = ""
) -> str:
    """A sentence, a picture (an SVG file's text), a table and warnings for notebooks."""
    listed = "".join(f"<li>{for_html(line)}</li>" for line in lines)
    return (
        f"<p>{for_html(sentence)}</p>{picture[picture.index('<svg') :] if picture else ''}"
        + (_table_html(table) if isinstance(table, TextTable) else _frame_html(table))
        + (f"<ul>{listed}</ul>" if listed else "")
    )


def _frame_html(frame: pd.DataFrame) -> str:
    html: str = frame.to_html(index=False, float_format=lambda value: f"{value:.3g}")
    return html


def _table_html(table: TextTable) -> str:
    head = "".join(f"<th>{for_html(name)}</th>" for name in table.headers)
    rows = ("".join(f"<td>{for_html(text)}</td>" for text in row) for row in table.rows)
    return f"<table><tr>{head}</tr>{''.join(f'<tr>{row}</tr>' for row in rows)}</table>"
