"""What a page shows: charts with their caption, command and downloads; notes; errors in one line."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import inputs
import streamlit as st

from medusa_sim.errors import MedusaSimError

if TYPE_CHECKING:
    import pyarrow as pa

VEGA_LITE = "6.1"
"""Of Streamlit's charts: what is downloaded is drawn as on the page."""


@contextmanager
def errors() -> Iterator[None]:
    """Expected failures become one line and end the page; bugs keep their traceback."""
    try:
        yield
    except MedusaSimError as error:
        st.error(str(error), icon=":material/error:")
        st.stop()


def ignored_note() -> None:
    """One line about URL values that were not used."""
    found = inputs.ignored()
    if found:
        st.warning(f"Ignored from the link: {'; '.join(found)}.", icon=":material/link_off:")


def command(words: Sequence[str]) -> str:
    """A command line to copy."""
    return shlex.join(["medusa-sim", *words])


def chart(
    spec: dict[str, Any],
    *,
    name: str,
    caption: str,
    told: str | None = None,
    rows: pa.Table | None = None,
    alt: str = "",
) -> None:
    """A chart, its caption, the command `told` that gives its numbers, and one row of downloads."""
    st.vega_lite_chart(spec, width="stretch", key=f"chart_{name}", alt=alt or caption)
    st.caption(caption)
    if told is not None:
        st.code(told, language="sh", wrap_lines=True)
    downloads: list[tuple[str, str, Callable[[], bytes | str]]] = [
        ("png", "image/png", lambda: picture(spec, "png")),
        ("svg", "image/svg+xml", lambda: picture(spec, "svg")),
    ]
    if rows is not None:
        downloads += [
            ("csv", "text/csv", lambda: csv_bytes(rows)),
            ("json", "application/json", lambda: json_bytes(rows, told or "", name)),
        ]
    download_row(name, downloads)


def download_row(name: str, files: Sequence[tuple[str, str, Callable[[], bytes | str]]]) -> None:
    """Buttons beside each other; a file is made when it is asked for."""
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

    whole = {**spec, "background": "white", "width": 760}
    if form == "svg":
        return str(vl_convert.vegalite_to_svg(json.dumps(whole), vl_version=VEGA_LITE))
    return bytes(vl_convert.vegalite_to_png(json.dumps(whole), vl_version=VEGA_LITE, scale=2))


def csv_bytes(rows: pa.Table) -> bytes:
    """As `--format csv` writes it."""
    from medusa_sim.report.formats import csv_parts

    return b"".join(csv_parts([rows]))


def json_bytes(rows: pa.Table, told: str, kind: str) -> bytes:
    """As `--format json` writes it."""
    from medusa_sim.report.formats import json_parts

    return b"".join(json_parts([rows], told, kind, {}))
