"""Text that may have come from outside, written so that it means no more than it says: one function a target.

Names of models, GPUs and files, titles and sources of profiles, cells of tables, values of links and what
errors quote of them are in nearly every line that is shown. Whoever writes for a target passes it here.
"""

from __future__ import annotations

import re
import shlex
import zlib

_MARKS = re.compile(
    r"[\\`*\[\]|$~]"
    r"|<|&(?=[#\w])"
    r"|(?<!\w)_|_(?!\w)"  # inside a word it is a letter
)
_BEGINS = re.compile(r"[-+#=>]|(\d{1,9})([.)])")
"""Marks that make a line a list, a heading or a quotation."""
_ENTITIES = {"<": "&lt;", "&": "&amp;"}
_FORMULA = re.compile(r"[=@\t\r]|[-+](?![\d.,]*\s?%?$)")
_NO_FILE = re.compile(r"[^A-Za-z0-9._+-]+")


def printable(text: str) -> str:
    r"""One line on which every character is seen: others, line breaks among them, as their escapes in Python.

    >>> printable("a\x1b[31m\nb")
    'a\\x1b[31m\\nb'
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def for_terminal(text: str) -> str:
    """Lines for a terminal, which obeys what it cannot show."""
    return "\n".join("\t".join(map(printable, line.split("\t"))) for line in text.split("\n"))


def for_html(text: str) -> str:
    """Inside an element or a quoted attribute of HTML; line breaks stay."""
    from html import escape  # a page needs it, a start does not

    return escape(for_terminal(text))


def for_svg(text: str) -> str:
    """Inside an element or a quoted attribute of an SVG, whose XML knows no control characters."""
    from html import escape

    return escape(printable(text))


def for_markdown(text: str) -> str:
    r"""Inside a line of Markdown or a cell of its table: no emphasis, code, link, picture, HTML or formula.

    >>> for_markdown("![a](b) <img src=x> `c` $d$ e_f")
    '!\\[a\\](b) &lt;img src=x> \\`c\\` \\$d\\$ e_f'
    """
    return _MARKS.sub(lambda mark: _ENTITIES.get(mark[0], f"\\{mark[0]}"), printable(text))


def paragraph(text: str) -> str:
    """A paragraph or an entry of a list in Markdown; single backquotes mark code where they come in pairs."""
    line = " ".join(text.split())
    parts = line.split("`")
    if len(parts) % 2 == 0 or "``" in line:
        written = for_markdown(line)
    else:
        written = "".join(f"`{printable(s)}`" if i % 2 else for_markdown(s) for i, s in enumerate(parts))
    if (begin := _BEGINS.match(written)) is None:
        return written
    place = begin.start(2) if begin[2] else 0
    return f"{written[:place]}\\{written[place:]}"


def code_block(text: str) -> str:
    """Lines as a block of code in Markdown, whatever fences they hold."""
    runs = re.findall("`+", text)
    fence = "`" * max(3, 1 + max(map(len, runs), default=0))
    return f"{fence}\n{for_terminal(text).rstrip()}\n{fence}\n"


def for_csv(text: str) -> str:
    """A cell of a CSV file: where a spreadsheet would compute it, behind an apostrophe.

    >>> for_csv("=1+1"), for_csv("-0.5"), for_csv("-"), for_csv("+10%")
    ("'=1+1", '-0.5', '-', '+10%')
    """
    return f"'{text}" if _FORMULA.match(text) else text


def for_shell(text: str) -> str:
    """One word of a command line."""
    return shlex.quote(printable(text))


def for_comment(text: str) -> str:
    """Behind the `#` of a script, on one line."""
    return printable(text)


def for_figure(text: str, most: int = 160) -> str:
    """In a figure of matplotlib, whose look takes dollars for dollars (`text.parse_math`); lines stay.

    most: letters that there is room for; a longer text loses its middle.
    """
    written = for_terminal(text)
    return written if len(written) <= most else f"{written[: most // 2 - 1]}...{written[1 - most // 2 :]}"


def for_file(text: str) -> str:
    """Part of the name of a file that is written: plain letters, and a sum where others were given."""
    plain = _NO_FILE.sub("-", text)[:80]
    return plain if plain == text else f"{plain}-{zlib.crc32(text.encode()):08x}"
