"""Twenty hostile names through every target: each stands there as the text that it is, and nothing else."""

import csv
import io
import subprocess
import zlib
from html.parser import HTMLParser
from xml.etree import ElementTree

import pyarrow as pa
import pytest
from hostile import NAMES
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from medusa_sim.acceptance.tree import CandidateTree
from medusa_sim.acceptance.tree_picture import svg_tree
from medusa_sim.outside.escaping import (
    code_block,
    for_comment,
    for_csv,
    for_figure,
    for_file,
    for_html,
    for_markdown,
    for_shell,
    for_svg,
    for_terminal,
    paragraph,
    printable,
)
from medusa_sim.report.blocks import Bullets, Code, Heading, Text
from medusa_sim.report.document import html_page, markdown_page
from medusa_sim.report.figures.draw import bars_figure, drawing
from medusa_sim.report.figures.files import render
from medusa_sim.report.formats import csv_parts
from medusa_sim.report.screen import Fact, Screen, screen_text
from medusa_sim.report.table import TextTable, aligned, markdown

MARKDOWN = MarkdownIt("commonmark").enable(["table", "strikethrough"])
every_name = pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
MARKUP = st.text(st.sampled_from("ab1 _*`~$[]()<>!|\\&#-+=.:/\n\t\"'"), max_size=30)


def texts_of(source: str) -> list[str]:
    """What Markdown shows; a mark of any kind fails."""
    shown = []
    for token in MARKDOWN.parse(source):
        assert token.type in ("paragraph_open", "paragraph_close", "inline"), token
        for part in token.children or ():
            assert part.type in ("text", "text_special", "softbreak"), part
            shown.append(part.content)
    return shown


@every_name
def test_markdown_shows_the_name_alone(name):
    assert "".join(texts_of(f"x {for_markdown(name)} y")) == f"x {printable(name)} y"
    assert len(texts_of(f"{paragraph(name.replace('`', ''))} y")) > 0


@pytest.mark.parametrize(
    ("line", "written"), [("12. x", "12\\. x"), ("3) x", "3\\) x"), ("- x", "\\- x"), ("x - y", "x - y")]
)
def test_a_paragraph_begins_no_list(line, written):
    assert paragraph(line) == written


@given(MARKUP)
def test_markdown_shows_any_text_alone(text):
    assert "".join(texts_of(f"x{for_markdown(text)}y")) == f"x{printable(text)}y"
    plain_text = " ".join(text.replace("`", "").split())
    assert "".join(texts_of(paragraph(plain_text))) == plain_text


@given(MARKUP)
def test_a_sentence_has_code_and_nothing_else(text):
    for token in MARKDOWN.parse(paragraph(f"x {text} y")):
        assert token.type in ("paragraph_open", "paragraph_close", "inline")
        assert {part.type for part in token.children or ()} <= {"text", "text_special", "code_inline"}


@given(MARKUP)
def test_a_block_of_code_ends_where_it_ends(text):
    tokens = MARKDOWN.parse(f"{code_block(text)}\nafter\n")
    assert [token.type for token in tokens][:2] == ["fence", "paragraph_open"]


@every_name
def test_a_table_in_markdown_keeps_its_columns(name):
    table = TextTable(headers=("a", name), rows=((name, "1"), ("2", name)), right=(False, True), title=name)
    tokens = MARKDOWN.parse(markdown(table))
    assert sum(token.type == "tr_open" for token in tokens) == 3
    assert sum(token.type in ("td_open", "th_open") for token in tokens) == 6
    kinds = {part.type for token in tokens for part in token.children or ()}
    assert kinds <= {"text", "text_special", "strong_open", "strong_close"}


class _Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.text = ""

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        assert not [name for name, _ in attrs if name.startswith("on")]

    def handle_data(self, data):
        self.text += data


@every_name
def test_html_shows_the_name_alone(name):
    parser = _Tags()
    parser.feed(f'<p title="{for_html(name)}">{for_html(name)}</p>')
    assert parser.tags == ["p"]
    assert parser.text == for_terminal(name)


@every_name
def test_a_page_and_its_markdown_hold_the_name_as_text(name):
    table = TextTable(headers=(name,), rows=((name,),), right=(False,), title=name)
    blocks = [Heading(name, 1), Text(name), Bullets((name, name)), Code(name), table]
    parser, empty = _Tags(), _Tags()
    parser.feed(html_page(name, blocks))
    same = [Heading("x", 1), Text("x"), Bullets(("x", "x")), Code("x"),
            TextTable(headers=("x",), rows=(("x",),), right=(False,), title="x")]  # fmt: skip
    empty.feed(html_page("x", same))
    assert [tag for tag in parser.tags if tag != "code"] == [tag for tag in empty.tags if tag != "code"]
    kinds = {part.type for token in MARKDOWN.parse(markdown_page(blocks)) for part in token.children or ()}
    assert kinds <= {"text", "text_special", "code_inline", "strong_open", "strong_close"}


@every_name
def test_svg_is_well_formed_and_holds_the_name(name):
    root = ElementTree.fromstring(svg_tree(CandidateTree.chain(1), title=name))  # noqa: S314  # ours
    assert root[0].text == printable(name)
    ElementTree.fromstring(f'<a b="{for_svg(name)}">{for_svg(name)}</a>')  # noqa: S314


@every_name
def test_a_figure_is_drawn_and_its_text_is_the_name(name):
    with drawing(3.0, 2.0) as (figure, axes):
        axes[0].set_title(for_terminal(name))
        axes[0].plot([1, 2], [1, 2], label=name)
        axes[0].legend([for_terminal(name)])
    ElementTree.fromstring(render(figure, ".svg"))  # noqa: S314
    assert bars_figure  # drawn through the same look
    render(figure, ".png")


@every_name
def test_a_terminal_gets_nothing_that_it_obeys(name):
    table = TextTable(headers=("a", name), rows=((name, "1"),), right=(False, True), title=name)
    screen = Screen(
        asked=name, answer=(name,), tables=(table,), facts=(Fact("Memory", name),), code=("Run:", name),
        warnings=(name,),
    )  # fmt: skip
    for text in (for_terminal(name), aligned(table), screen_text(screen, 60, 60)):
        assert all(line.isprintable() for line in text.replace("\t", "").split("\n"))


@every_name
def test_a_spreadsheet_computes_no_cell(name):
    table = pa.table({name: [name, "x"], "n": [-1.5, 2.0], "m": ["-", "+10%"]})
    rows = list(csv.reader(io.StringIO(b"".join(csv_parts([table])).decode(), newline="")))
    assert [cell[:1] for cell in (rows[0][0], rows[1][0])] != ["=", "="]
    assert not {rows[0][0][:1], rows[1][0][:1]} & set("=@+-\t\r")
    assert rows[1][1:] == ["-1.5", "-"]
    assert rows[2][1:] == ["2", "+10%"]
    assert for_csv("1") == "1"


@every_name
def test_a_shell_sees_one_word_and_one_comment(name, tmp_path):
    script = (
        f"{for_comment(f'# of {name}')}\nMODEL=x  {for_comment(f'# {name}')}\nprintf %s {for_shell(name)}\n"
    )
    run = subprocess.run(["sh"], input=script, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert run.stdout == printable(name)
    assert not run.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("give `--tp 2`, `a*b`", [("text", "give "), ("code", "--tp 2"), ("text", ", "), ("code", "a*b")]),
        ("a lone ` says nothing", [("text", "a lone ` says nothing")]),
        ("`a` and `b", [("text", "`a` and `b")]),
        ("two `` together ``", [("text", "two `` together ``")]),
        ("none", [("text", "none")]),
    ],
)  # fmt: skip
def test_single_backquotes_in_pairs_are_code_and_others_are_text(text, parts):
    found: list[tuple[str, str]] = []
    for part in MARKDOWN.parse(paragraph(text))[1].children or ():
        kind = "code" if part.type == "code_inline" else "text"
        if found and kind == found[-1][0] == "text":
            found[-1] = (kind, found[-1][1] + part.content)
        else:
            found.append((kind, part.content))
    assert [(kind, shown) for kind, shown in found if shown] == parts


@pytest.mark.parametrize("most", [160, 21])
def test_a_text_without_room_loses_its_middle(most):
    letters = "".join(chr(97 + place % 26) for place in range(most + 1))
    assert for_figure(letters[:most], most) == letters[:most]
    cut = for_figure(letters, most)
    begin, _, end = cut.partition("...")
    assert most - 2 <= len(cut) <= most + 1
    assert (letters.startswith(begin), letters.endswith(end)) == (True, True)
    assert abs(len(begin) - len(end)) <= 1
    if most == 160:  # where nobody says how much room there is
        assert (for_figure(letters), for_figure(letters[:most])) == (cut, letters[:most])


def test_the_name_of_a_file_is_plain_and_tells_others_apart():
    assert for_file("llama-3.1-8b") == "llama-3.1-8b"
    assert for_file("a/b") == f"a-b-{zlib.crc32(b'a/b'):08x}"
    assert for_file("a/b") != for_file("a:b")
    assert for_file("x" * 80) == "x" * 80
    assert for_file("x" * 81) == f"{'x' * 80}-{zlib.crc32(b'x' * 81):08x}"


@pytest.mark.parametrize(("text", "fence"), [("a", 3), ("a `b`", 3), ("```", 4), ("`` and ````", 5)])
def test_a_fence_is_three_backquotes_and_longer_than_any_inside(text, fence):
    first, *_, last = code_block(text).splitlines()
    assert first == last == "`" * fence
