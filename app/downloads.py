"""What a page hands out: commands to copy, and files that are made when they are asked for."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import streamlit as st
from charts.style import HALO

if TYPE_CHECKING:
    import pyarrow as pa

Download = tuple[str, str, Callable[[], bytes | str]]
"""Suffix, MIME type, and what makes the content."""
VEGA_LITE = "6.1"
"""Of Streamlit's charts: what is downloaded is drawn as on the page."""
SHARE = "share"
"""What is handed out of a whole answer."""
FILES = "files_"
"""Before the name of what a popover hands out: its key."""
_LINE = 64


def hand_out(
    name: str, files: Sequence[Download], command: str | None = None, shown: str = "", label: str = ""
) -> None:
    """The command to copy and files to save, behind one button; shown: what stands above, to copy too.

    The files' buttons are drawn when it is opened, a file is made when it is asked for: a page that moves
    with a slider carries neither.
    """
    label = label or ("Copy, files" if shown else "Files" if command is None else "Command, files")
    icon = ":material/share:" if name == SHARE else ":material/download:"
    with st.popover(label, key=f"{FILES}{name}", on_change="rerun", type="tertiary", icon=icon) as opened:
        for text in (shown, wrapped(command or "")):
            if text:
                st.code(text, language=None, wrap_lines=True)
        if not opened.open:
            return
        with st.container(horizontal=True, gap="small"):
            for suffix, mime, made in files:
                st.download_button(
                    suffix.upper(),
                    data=made,
                    file_name=f"medusa-sim-{name}.{suffix}",
                    mime=mime,
                    key=f"download_{name}_{suffix}",
                    on_click="ignore",
                    type="tertiary",
                    icon=":material/download:",
                    help=f"This as {suffix.upper()}",
                )


def picture(spec: dict[str, Any], form: str) -> bytes | str:
    """The chart drawn without a browser, on white."""
    import vl_convert

    whole = {**spec, "background": "white", "width": 760, "padding": 6}
    svg = str(vl_convert.vegalite_to_svg(json.dumps(whole), vl_version=VEGA_LITE))
    # as `look.css` does on the page: else the stroke would lie over the text
    halo = f'stroke="{HALO["stroke"]}"'
    svg = svg.replace(halo, f'{halo} stroke-width="3" paint-order="stroke"')
    return svg if form == "svg" else bytes(vl_convert.svg_to_png(svg, scale=2))


def csv_bytes(rows: Any) -> bytes:
    """As `--format csv` writes it. rows: an Arrow table, a frame of pandas, or mappings."""
    from medusa_sim.report.formats import csv_parts

    return b"".join(csv_parts([_arrow(rows)]))


def json_bytes(rows: Any, command: str, kind: str, more: dict[str, Any]) -> bytes:
    """As `--format json` writes it."""
    from medusa_sim.report.formats import json_parts

    return b"".join(json_parts([_arrow(rows)], command, kind, more))


def _arrow(rows: Any) -> pa.Table:
    import pyarrow as pa

    if isinstance(rows, pa.Table):
        return rows
    if hasattr(rows, "columns"):
        return pa.Table.from_pandas(rows, preserve_index=False)
    return pa.Table.from_pylist([dict(row) for row in rows])


def wrapped(command: str) -> str:
    """Commands, one a line, to be read and copied: their lines break between options only."""
    pieces = []
    for whole in command.splitlines():
        lines = [""]
        for part in _options(shlex.split(whole)):
            if len(lines[-1]) + 1 + len(part) > _LINE and lines[-1].strip():
                lines.append(f"  {part}")
            else:
                lines[-1] = f"{lines[-1]} {part}" if lines[-1] else part
        pieces.append(" \\\n".join(lines))
    return "\n".join(pieces)


def _options(words: Sequence[str]) -> list[str]:
    """Words that stay together: an option and its value."""
    parts: list[str] = []
    for word in words:
        if parts and parts[-1].startswith("--") and " " not in parts[-1] and not word.startswith("--"):
            parts[-1] += f" {shlex.quote(word)}"
        else:
            parts.append(shlex.quote(word))
    return parts
