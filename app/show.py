"""What a page shows: notes, errors in one line, figures, tables, charts with what they hand out."""

from __future__ import annotations

import logging
import re
import shlex
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import link
import streamlit as st
from downloads import Download, csv_bytes, hand_out, json_bytes, picture
from jobs import Watch

from medusa_sim.cli.progress import QUIET_S, time_left
from medusa_sim.errors import MedusaSimError
from medusa_sim.outside.escaping import for_html, for_markdown
from medusa_sim.report.words.numbers import capitalised
from medusa_sim.scenario.arguments import ARGUMENTS

if TYPE_CHECKING:
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
FAULT = ":material/bug_report:"
"""Stands before a line that no input should have caused."""
_NUMBER = re.compile(r"(?!.* x )(?:-|off|never|no room|[-+$]?[0-9][^:;]{0,24})")
"""`3`, `1..40`, `1.66x to 1.50x`, `27.1 ms`, `2,561 (1,703)`, `-`."""
_JOINT = re.compile(r"(?<=\w\w)[._/:](?=\w\w)")
_MOST_ROWS = 40
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
    files: list[Download] = [
        ("png", "image/png", lambda: picture(spec, "png")),
        ("svg", "image/svg+xml", lambda: picture(spec, "svg")),
    ]
    if rows is not None:
        files += [
            ("csv", "text/csv", lambda: csv_bytes(rows())),
            ("json", "application/json", lambda: json_bytes(rows(), command or "", name, values())),
        ]
    hand_out(name, files, command)


def _with_data_inside(spec: dict[str, Any]) -> dict[str, Any]:
    """The same chart with its data one level down, where Streamlit leaves them as they are.

    Data at the top it takes through pandas into Arrow: 0.4 s of imports, and more bytes than a short table.
    """
    if "layer" not in spec or "data" not in spec:
        return spec
    inner = {name: spec[name] for name in _OF_LAYERS if name in spec}
    return {**{name: part for name, part in spec.items() if name not in inner}, "layer": [inner]}
