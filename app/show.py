"""What a page shows: charts with their caption, command and downloads; notes; errors in one line."""

from __future__ import annotations

import json
import logging
import re
import shlex
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import link
import streamlit as st
from charts.style import HALO
from jobs import Watch

from medusa_sim.cli.progress import QUIET_S, time_left
from medusa_sim.errors import MedusaSimError
from medusa_sim.outside.escaping import for_html, for_markdown
from medusa_sim.report.words.numbers import capitalised
from medusa_sim.scenario.arguments import ARGUMENTS

if TYPE_CHECKING:
    import pyarrow as pa

    from medusa_sim.report.table import TextTable

_LABELS = {each.option.removeprefix("--"): each.label for each in ARGUMENTS.values() if each.label} | {
    "batch": "Plan for requests at once", "candidates": "Candidates", "draft-path": "Draft checkpoint",
    "seq": "Context", "prompt-tokens": "Prompt", "output-tokens": "Output",
}  # fmt: skip
"""What inputs are called here, by their options of the command line."""
_OPTION = re.compile(r"--([a-z][a-z-]*)(?: [A-Z][A-Z_]*\b)?")
"""`--acceptance FILE`."""
_SAID = {
    "usd_per_million_tokens: at ": "prices: ",
    "; --price gives another": "",
    "with --batch 1..N": "with --batch",
    "give --price ": "type its price, ",
    "see --format csv or json": "the table to save has them",
    "/metrics page, --counters)": "/metrics page)",
    " is held in profiles/served.toml": " is held",
    " (medusa-sim acceptance from-engine)": "",
    "measure longer drafts with medusa-sim acceptance from-engine": "paste your engine's log below",
}
"""What lines say of the command line alone, and what this app says in its place."""
_OTHER = re.compile(r"(?<![\w`-])--[a-z][a-z-]*")
"""An option of an engine: shown as code, which stays on one line."""
_OF_STREAMLIT = re.compile(r":(?=[a-z])|(?<=:)//|(?<=\bwww)\.|@(?=[\w-]+\.)", re.IGNORECASE)
"""What Streamlit's Markdown takes for an icon or a colour, and an address, which it makes a link."""
_BROKEN = "\N{ZERO WIDTH SPACE}"
_LONGEST_TEXT = 2_000
SHARE = "share"
"""What is handed out of a whole answer."""
FILES = "files_"
"""Before the name of what a popover hands out: its key."""
FAULT = ":material/bug_report:"
"""Stands before a line that no input should have caused."""
_LINE = 64
_NUMBER = re.compile(r"(?!.* x )(?:-|off|never|no room|[-+$]?[0-9][^:;]{0,24})")
"""`3`, `1..40`, `1.66x to 1.50x`, `27.1 ms`, `2,561 (1,703)`, `-`."""
_JOINT = re.compile(r"(?<=\w\w)[._/:](?=\w\w)")
_MOST_ROWS = 40
Download = tuple[str, str, Callable[[], bytes | str]]
"""Suffix, MIME type, and what makes the content."""
VEGA_LITE = "6.1"
"""Of Streamlit's charts: what is downloaded is drawn as on the page."""
_DRAWN_EVERY_S = 0.2
"""Of progress: more often would cost more than it tells."""
_PHONE_WIDE = 40
"""Letters of a command that fit on a line of a phone: no option is broken between its dashes."""
_OF_LAYERS = ("data", "transform", "encoding", "layer", "resolve")


@contextmanager
def progress(unit: str) -> Iterator[Watch]:
    """A bar with the time left of what takes more than a second, or who is first; gone with it."""
    place, start = st.empty(), time.monotonic()
    drawn = start + QUIET_S - _DRAWN_EVERY_S

    def advance(done: int, total: int) -> None:
        nonlocal drawn
        now = time.monotonic()
        if now - drawn < _DRAWN_EVERY_S:
            return
        drawn = now
        left = time_left(done, total, now - start)
        known = f"{done:,} of {total:,} {unit}, {left}" if done else f"beginning with {unit}"
        place.progress(min(done / max(total, 1), 1.0), known)

    def waiting(told: str) -> None:
        nonlocal start
        start = time.monotonic()
        place.info(told, icon=":material/hourglass_top:")

    try:
        yield Watch(advance, waiting)
    finally:
        place.empty()


@contextmanager
def errors() -> Iterator[None]:
    """A failure becomes one line and ends the page; a bug's traceback goes to the server's log."""
    try:
        yield
    except MedusaSimError as error:
        st.error(in_words(str(error)), icon=":material/error:")
        st.stop()
    except Exception as error:
        logging.getLogger("medusa_sim.app").exception("a page failed")
        st.error(
            f"**A fault of medusa-sim, not of yours** ({type(error).__name__}). Please report it with "
            f"[the link to this set-up]({address()}); other set-ups still answer.",
            icon=FAULT,
        )
        st.stop()


def address() -> str:
    """The page as it is, to be opened again or sent to somebody."""
    return f"{st.context.url or ''}?{urlencode(st.query_params.to_dict())}"


def embedded() -> bool:
    """Whether another page shows this one in a frame: `?embed=true`."""
    return bool(st.context.is_embedded)


def warn(*lines: str) -> None:
    """What must not be overlooked, in one box."""
    if lines:
        sentences = [in_words(capitalised(line)) for line in lines]
        st.warning(sentences[0] if len(sentences) == 1 else "\n".join(f"- {line}" for line in sentences))


def beside(lines: Iterable[str]) -> None:
    """What a headline rests on that was not measured for it, a line each below it."""
    for line in lines:
        st.markdown(f":material/warning: {in_words(capitalised(line))}")


def how_sure(lines: Iterable[tuple[str, str]], *others: str) -> None:
    """What a number rests on: a few labelled lines, and every reservation in full behind a fold."""
    told = [f"- **{escaped(label)}**: {in_words(text)}" for label, text in lines]
    st.markdown("\n".join(["**How sure**", "", *told]))
    if others:
        with st.expander(f"Every reservation in full: {len(others)}"):
            beside(others)


def in_words(line: str) -> str:
    """A line of the package as Markdown in the words of this app: inputs have labels, not options."""
    for option, words in _SAID.items():
        line = line.replace(option, words)
    named = _OPTION.sub(lambda found: f"“{_LABELS[found[1]]}”" if found[1] in _LABELS else found[0], line)
    return _OTHER.sub(r"`\g<0>`", escaped(named))


def escaped(text: str) -> str:
    """Text as Markdown of a page that means no more than it says: no mark, no icon, no link."""
    short = text if len(text) <= _LONGEST_TEXT else f"{text[:_LONGEST_TEXT]}..."
    return _OF_STREAMLIT.sub(
        lambda mark: f"\\{mark[0]}" if mark[0] == ":" else f"{mark[0][0]}{_BROKEN}{mark[0][1:]}",
        for_markdown(short),
    )


def ignored_note() -> None:
    """One line about URL values that were not used."""
    if ignored := link.ignored():
        st.warning(escaped(f"Ignored from the link: {'; '.join(ignored)}."), icon=":material/link_off:")


def command(words: Sequence[str]) -> str:
    """A command line."""
    return shlex.join(["medusa-sim", *words])


def code(text: str) -> None:
    """A command or settings, whole at any width; one click selects all of it.

    Streamlit's own blocks of code load 1.5 MB of highlighting, for which the page stands still.
    """

    def whole(word: re.Match[str]) -> str:
        escaped = for_html(word[0])
        return f"<span>{escaped}</span>" if len(word[0]) <= _PHONE_WIDE else escaped

    lines = re.sub(r"\S+", whole, text.strip("\n"))
    st.html(f'<pre class="command" title="One click selects all of it">{lines}</pre>')


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


@dataclass(frozen=True, slots=True)
class Figure:
    """One number of an answer: its name, itself, what goes with it, what it means."""

    label: str
    value: str
    beside: str | None
    meaning: str


def figures(*shown: Figure, width: int = 132) -> None:
    """Numbers beside each other, as many in a row as there is room for; width: of each, in pixels at least.

    One piece of HTML that the browser draws with the text around it: Streamlit's own metrics wait for their
    modules, those of the charts among them. It has their hooks.
    """
    cells = "".join(
        f'<div class="figure" data-testid="stMetric" tabindex="0">'
        f'<div data-testid="stMetricLabel">{for_html(each.label)}</div>'
        f'<div data-testid="stMetricValue">{for_html(each.value)}</div>'
        f'<div data-testid="stMetricDelta">{for_html(each.beside or "")}</div>'
        f'<div class="meaning" role="tooltip">{for_html(each.meaning)}</div></div>'
        for each in shown
    )
    cells = cells.replace("$", "&#36;")  # two of them would be a formula, whose fonts are loaded first
    st.markdown(f'<div class="figures" style="--width:{width}px">{cells}</div>', unsafe_allow_html=True)


def table(rows: Sequence[Mapping[str, object]], phone: Sequence[str] = ()) -> None:
    """Rows with the same columns, whole at any width; phone: the columns for which a phone has room."""
    if not rows:
        return
    names = list(rows[0])
    kinds = {}
    for name in names:
        is_number = all(_NUMBER.fullmatch(str(row[name])) for row in rows)
        is_wide = bool(phone) and name not in phone
        kinds[name] = " ".join([*(["number"] if is_number else []), *(["wide"] if is_wide else [])])
    head = "".join(f'<th class="{kinds[name]}">{for_html(name)}</th>' for name in names)
    cells = ([(kinds[name], _cell(row[name], kinds[name])) for name in names] for row in rows)
    lines = ("".join(f'<td class="{kind}">{text}</td>' for kind, text in line) for line in cells)
    body = f"<tbody>{''.join(f'<tr>{line}</tr>' for line in lines)}</tbody>"
    more = (
        "<p>A wider screen shows more columns.</p>" if any("wide" in kind for kind in kinds.values()) else ""
    )
    tall = " tall" if len(rows) > _MOST_ROWS else ""
    table_ = f"<table><thead><tr>{head}</tr></thead>{body}</table>"
    st.html(f'<div class="numbers{tall}">{table_}{more}</div>')


def _cell(value: object, kind: str) -> str:
    """A cell as HTML: words break after their joints, numbers nowhere."""
    text = for_html(str(value))
    return text if "number" in kind else _JOINT.sub(r"\g<0><wbr>", text)


def text_table(shown: TextTable, wanted: Sequence[str] = (), phone: Sequence[str] = ()) -> None:
    """A table as the command line prints it; wanted: those columns alone."""
    rows = [dict(zip(shown.headers, cells, strict=True)) for cells in shown.rows]
    kept = [name for name in shown.headers if name in (wanted or shown.headers)]
    table([{name: row[name] for name in kept} for row in rows], phone)


def chart(
    spec: dict[str, Any],
    *,
    name: str,
    caption: str,
    command: str | None = None,
    rows: Callable[[], Any] | None = None,
    values: Callable[[], dict[str, Any]] = dict,
    alt: str = "",
) -> None:
    """A chart, its caption, the command `told` that gives its numbers, and its downloads.

    rows: makes the numbers (`csv_bytes`), when a file is asked for. values: what JSON says beside them.
    """
    st.vega_lite_chart(_with_data_inside(spec), width="stretch", key=f"chart_{name}", alt=alt or caption)
    st.caption(caption)
    downloads: list[Download] = [
        ("png", "image/png", lambda: picture(spec, "png")),
        ("svg", "image/svg+xml", lambda: picture(spec, "svg")),
    ]
    if rows is not None:
        downloads += [
            ("csv", "text/csv", lambda: csv_bytes(rows())),
            ("json", "application/json", lambda: json_bytes(rows(), command or "", name, values())),
        ]
    hand_out(name, downloads, command)


def _with_data_inside(spec: dict[str, Any]) -> dict[str, Any]:
    """The same chart with its data one level down, where Streamlit leaves them as they are.

    Data at the top it takes through pandas into Arrow: 0.4 s of imports, and more bytes than a short table.
    """
    if "layer" not in spec or "data" not in spec:
        return spec
    inner = {name: spec[name] for name in _OF_LAYERS if name in spec}
    return {**{name: part for name, part in spec.items() if name not in inner}, "layer": [inner]}


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
        for suffix in {suffix for suffix, _, _ in files} & _FIRST.keys():
            warm_up(suffix)
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


@st.cache_resource(show_spinner=False)
def warm_up(suffix: str) -> None:
    """Start what draws, which takes a second or two, while the user reads which files there are."""
    threading.Thread(target=_FIRST[suffix], daemon=True).start()


def _drawing_library() -> None:
    import matplotlib.backends.backend_svg
    import matplotlib.colorbar
    import matplotlib.figure  # noqa: F401


_FIRST: dict[str, Callable[[], object]] = {
    "png": lambda: picture({"mark": "point", "data": {"values": []}}, "svg"),
    "html": _drawing_library,
}
"""What each kind of file waits for the first time."""


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
