"""Writes what the documentation shows of the program: `make docs`.

docs/cli.md from the help pages, sections of docs/validation*.md, the worked example of docs/method.md, the
tables of docs/hybrids.md, docs/speedup.png from the default report, the outputs of docs/*.ipynb, the house of
CONTRIBUTING.md, benchmarks/README.md, and in README.md, docs/guide.md, docs/load.md, docs/engine-loop.md
every ```text block behind a ```sh block. A block that ends in `...` shows the beginning of what is printed:
as many paragraphs as it had.
"""

from __future__ import annotations

import ast
import contextlib
import io
import json
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import click
from click.testing import CliRunner
from common.index import PAGE, index_text
from common.script import ROOT, command_line
from house import END, START, house_text

from medusa_sim.cli import cli
from medusa_sim.writing import write_text

_WIDTH = 100
"""Of help pages."""
_INSIDE = r"(?:(?!```).)*"
_COMMANDS = re.compile(
    rf"(?P<sh>```sh\n(?P<commands>{_INSIDE})```)(?P<text>\n\n```text\n{_INSIDE}```)?", re.DOTALL
)
_SHOWN = re.compile(rf"(```sh\n(?P<commands>{_INSIDE})```\n\n```text\n)({_INSIDE})(```)", re.DOTALL)
_HOUSE = re.compile(f"{re.escape(START)}.*{re.escape(END)}", re.DOTALL)


def output_of(commands: str, folder: Path) -> str:
    """What shell lines `medusa-sim ...` print to stdout in `folder`, without the user's own data."""
    runner, parts = CliRunner(env={"MEDUSA_SIM_DATA_DIR": str(folder / "none"), "COLUMNS": None}), []
    with contextlib.chdir(folder):
        for line in commands.strip().splitlines():
            words = shlex.split(line, comments=True)[1:]
            done = runner.invoke(cli, words, prog_name="medusa-sim", catch_exceptions=False)
            if done.exit_code:
                raise SystemExit(f"{line}\n{done.stderr}")
            parts.append(done.stdout)
    return "".join(parts)


def beginning_of(printed: str, shown: str) -> str:
    """What a page shows of an output: all, or as many paragraphs as it has where its block ends in `...`."""
    *paragraphs, last = shown.split("\n\n")
    if last.strip() != "...":
        return printed
    return "\n\n".join([*printed.split("\n\n")[: len(paragraphs)], "...\n"])


def reference() -> str:
    """The text of docs/cli.md, which a test compares with the file."""
    head = "# Command line\n\nWritten by `make docs` from the help pages.\n"
    return "\n".join([head, *_pages("medusa-sim", cli, None)])


def _pages(name: str, command: click.Command, parent: click.Context | None) -> Iterator[str]:
    """The page of a command, then those of the commands in it."""
    context = click.Context(
        command, parent=parent, info_name=name, terminal_width=_WIDTH, max_content_width=_WIDTH
    )
    yield f"## {context.command_path}\n\n```text\n{command.get_help(context)}\n```\n"
    if isinstance(command, click.Group):
        for inner in command.list_commands(context):
            found = command.get_command(context, inner)
            if found is not None:
                yield from _pages(inner, found, context)


def loop_page() -> str:
    """docs/engine-loop.md with what its commands print beside the files of tests/data/engine."""
    page = (ROOT / "docs" / "engine-loop.md").read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for path in (ROOT / "tests" / "data" / "engine").iterdir():
            (folder / path.name).symlink_to(path)
        return _COMMANDS.sub(
            lambda found: found["sh"] + _filled(output_of(found["commands"], folder), found["text"]), page
        )


def notebook(path: Path) -> str:
    """A notebook with the output of every cell, as Jupyter would store it."""
    page = json.loads(path.read_text(encoding="utf-8"))
    names: dict[str, object] = {}
    cells = (cell for cell in page["cells"] if cell["cell_type"] == "code")
    for number, cell in enumerate(cells, start=1):
        cell |= {"execution_count": number, "outputs": _outputs("".join(cell["source"]), names, number)}
    return json.dumps(page, indent=1, ensure_ascii=False) + "\n"


def _outputs(source: str, names: dict[str, object], number: int) -> list[dict[str, object]]:
    """What a cell prints, and the value of its last expression as text and, where it has one, HTML."""
    body = ast.parse(source).body
    last = body.pop() if body and isinstance(body[-1], ast.Expr) else None
    printed, value = io.StringIO(), None
    with contextlib.redirect_stdout(printed):
        exec(compile(ast.Module(body, []), "<cell>", "exec"), names)  # noqa: S102  # our own notebook
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), "<cell>", "eval"), names)  # noqa: S307
    found: list[dict[str, object]] = []
    if text := printed.getvalue():
        found.append({"name": "stdout", "output_type": "stream", "text": text.splitlines(keepends=True)})
    if value is not None:
        data = {"text/plain": repr(value).splitlines(keepends=True)}
        html = getattr(value, "_repr_html_", lambda: None)()
        if html is not None:
            data["text/html"] = html.splitlines(keepends=True)
        found.append(
            {"data": data, "execution_count": number, "metadata": {}, "output_type": "execute_result"}
        )
    return found


def _filled(printed: str, text: str | None) -> str:
    return "" if text is None else f"\n\n```text\n{printed.rstrip()}\n```"


def main() -> None:
    """Write the pages, or docs/cli.md alone."""
    parser = command_line(__doc__)
    parser.add_argument("--cli", action="store_true", help="docs/cli.md alone, seconds instead of minutes")
    is_cli_alone = parser.parse_args().cli
    write_text(ROOT / "docs" / "cli.md", reference())
    if is_cli_alone:
        return
    for script in ("validation.py", "worked_example.py", "hybrid_break_even.py"):
        command = [sys.executable, str(ROOT / "benchmarks" / script), "--write"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for shared in ("profiles", "docs"):
            (folder / shared).symlink_to(ROOT / shared)
        for name_of_page in ("README.md", "docs/guide.md", "docs/load.md", "docs/which-setup.md"):
            page = ROOT / name_of_page
            text = page.read_text(encoding="utf-8")
            filled = _SHOWN.sub(
                lambda found: (
                    found[1] + beginning_of(output_of(found["commands"], folder), found[3]) + found[4]
                ),
                text,
            )
            write_text(page, filled)
        page = ROOT / "CONTRIBUTING.md"
        house = _HOUSE.sub(lambda found: house_text(), page.read_text(encoding="utf-8"))
        write_text(page, house)
        write_text(PAGE, index_text())
        write_text(ROOT / "docs" / "engine-loop.md", loop_page())
        for path in sorted((ROOT / "docs").glob("*.ipynb")):
            write_text(path, notebook(path))
        output_of("medusa-sim sweep --batch 1..64 --report report", folder)
        picture = next((folder / "report").glob("speedup-*.png"))
        (ROOT / "docs" / "speedup.png").write_bytes(picture.read_bytes())
        output_of(f"{which_setup()} --report which", folder)
        picture = folder / "which" / "usd_per_million_tokens.png"
        (ROOT / "docs" / "images" / "which-setup.png").write_bytes(picture.read_bytes())


def which_setup() -> str:
    """The command of docs/which-setup.md."""
    page = (ROOT / "docs" / "which-setup.md").read_text(encoding="utf-8")
    found = re.search(r"^medusa-sim compare .*$", page, re.MULTILINE)
    assert found is not None  # the page begins with it
    return found[0]


if __name__ == "__main__":
    main()
