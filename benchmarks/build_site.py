"""The documentation as a site: copies its pages, adds the API from docstrings, and builds with MkDocs.

    python benchmarks/build_site.py out/site              # make site
    python benchmarks/build_site.py --pages out/pages     # the Markdown alone, without MkDocs

README.md is the front page and its table of documents the menu, so a document that README does not name
stops the build. Links to files that are not documents lead to the copy under `files/`. The built site needs
no server and no network.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

from common.script import ROOT, command_line

import medusa_sim

DOCS = ROOT / "docs"
LINK = re.compile(r"(!?\[[^\]]*\])\(([^)\s]+)\)")
FRONT = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
"""Documents beside docs/ and their names on the site."""
TYPES = {".md", ".png", ".svg", ".json", ".csv", ".ipynb", ".css", ".js"}


def relinked(text: str, source: Path, files: Path) -> str:
    """The text of a page with its links made true on the site.

    `source` is the page's own path. A document becomes its page, another file of the tree is copied under
    `files/`; addresses and links within the page stay. Raises SystemExit where a link leads nowhere.
    """

    def leads(match: re.Match[str]) -> str:
        label, target = match.groups()
        if re.match(r"[a-z]+:|#", target):
            return match.group()
        path, _, anchor = target.partition("#")
        place = (source.parent / path).resolve()
        if not place.is_relative_to(ROOT) or not place.exists():
            raise SystemExit(f"{source.relative_to(ROOT)}: the link {target} leads nowhere")
        if place.is_relative_to(DOCS):
            page = place.relative_to(DOCS).as_posix()
        elif (name := place.relative_to(ROOT).as_posix()) in FRONT:
            page = FRONT[name]
        elif place.is_dir():
            return label.lstrip("!")[1:-1]
        else:
            copied = files / name
            copied.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(place, copied)
            page = f"files/{name}"
        return f"{label}({page}{'#' + anchor if anchor else ''})"

    return LINK.sub(leads, text)


def menu(readme: str) -> list[tuple[str, str]]:
    """(title, page) of every document in README's table, in its order; titles alike by their pages' names."""
    table = readme.split("## Documents", 1)[-1].split("\n## ", 1)[0]
    links = re.findall(r"\[([^\]]+)\]\(docs/([^)#]+\.md)\)", table)
    times = Counter(name for name, _ in links)
    titles = (
        name if times[name] == 1 else page.removesuffix(".md").replace("-", ": ") for name, page in links
    )
    return [(title[:1].upper() + title[1:], page) for title, (_, page) in zip(titles, links, strict=True)]


def api_page() -> str:
    """The page of the Python interface: each public name of the package, told by its docstring."""
    shown = "Public names of `import medusa_sim as ms`; [in Python](python.md) shows them at work."
    lines = ["# Python interface", "", shown, ""]
    for name in medusa_sim.__all__:
        home = medusa_sim._HOMES[name]
        lines += [f"::: {home}.{name}", ""]
    return "\n".join(lines)


def notebook_page(path: Path) -> str:
    """A notebook as Markdown: its text, its code and the outputs that it was saved with."""
    lines: list[str] = []
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        source = "".join(cell["source"])
        lines += [source, ""] if cell["cell_type"] == "markdown" else ["```python", source, "```", ""]
        for output in cell.get("outputs", []):
            data = output.get("data", {})
            if "image/png" in data:
                image = "".join(data["image/png"]).strip()
                lines += [f'<img alt="output" src="data:image/png;base64,{image}">', ""]
            elif "image/svg+xml" in data:
                lines += ["".join(data["image/svg+xml"]), ""]
            elif "text/plain" in data or "text" in output:
                text = "".join(data.get("text/plain", output.get("text", "")))
                lines += ["```text", text.rstrip(), "```", ""]
    return "\n".join(lines)


def write_pages(folder: Path) -> list[object]:
    """Write the site's Markdown to `folder` and return its menu in MkDocs' form."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    files = folder / "files"
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for path in sorted(DOCS.rglob("*")):
        if path.is_file() and path.suffix in TYPES:
            target = folder / (path.name if path.parent.name == "site" else path.relative_to(DOCS))
            target.parent.mkdir(parents=True, exist_ok=True)
            if path.suffix == ".md":
                target.write_text(relinked(path.read_text(encoding="utf-8"), path, files), encoding="utf-8")
            else:
                shutil.copyfile(path, target)
            if path.suffix == ".ipynb":
                target.with_suffix(".md").write_text(notebook_page(path), encoding="utf-8")
    for name, page in FRONT.items():
        text = relinked((ROOT / name).read_text(encoding="utf-8"), ROOT / name, files)
        (folder / page).write_text(text, encoding="utf-8")
    (folder / "api.md").write_text(api_page(), encoding="utf-8")
    listed = menu(readme)
    notebooks = sorted(path.with_suffix(".md").name for path in DOCS.glob("*.ipynb"))
    named = {page for _, page in listed} | set(notebooks) | {"cli.md", "python.md"}
    if missing := sorted(path.name for path in DOCS.glob("*.md") if path.name not in named):
        raise SystemExit(f"documents that README's table does not name: {', '.join(missing)}")
    reference = {"cli.md", "python.md"}
    return [
        {"Start": "index.md"},
        {"Guides": [{title: page} for title, page in listed if page not in reference]},
        {"Notebooks": notebooks},
        {"Reference": [{"Command line": "cli.md"}, {"In Python": "python.md"}, {"Interface": "api.md"}]},
        {"Project": [{"Contributing": "contributing.md"}, {"Changes": "changelog.md"}]},
    ]


def build(site: Path) -> None:
    """Build the site into `site`; a warning of MkDocs is an error."""
    pages = site.with_name(site.name + "-pages")
    settings = {
        "INHERIT": str(ROOT / "mkdocs.yml"),
        "docs_dir": str(pages.resolve()),
        "site_dir": str(site.resolve()),
        "nav": write_pages(pages),
    }
    config = site.with_name(site.name + ".yml")
    config.write_text(json.dumps(settings), encoding="utf-8")  # JSON is YAML
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "true"}
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--config-file", str(config)]
    subprocess.run(command, check=True, cwd=ROOT, env=environment)
    print(f"{sum(1 for _ in site.rglob('*.html'))} pages in {site}: open {site / 'index.html'}")


def main() -> None:
    """Read the command line and build."""
    parser = command_line(__doc__)
    parser.add_argument("site", type=Path, nargs="?", default=Path("out/site"))
    parser.add_argument("--pages", type=Path, help="write the Markdown here and stop")
    arguments = parser.parse_args()
    if arguments.pages:
        write_pages(arguments.pages)
        print(f"pages in {arguments.pages}")
    else:
        arguments.site.parent.mkdir(parents=True, exist_ok=True)
        build(arguments.site)


if __name__ == "__main__":
    main()
