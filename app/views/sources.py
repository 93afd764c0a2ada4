"""Of the page Evidence: docs/method*.md, and every number in use with where it comes from."""

from __future__ import annotations

import re
from pathlib import Path

import answers
import downloads
import inputs
import show
import streamlit as st
from chosen import PageArguments
from inputs import Input

from medusa_sim import data
from medusa_sim.acceptance.profile import acceptance_names
from medusa_sim.errors import SpecError
from medusa_sim.report.specs.rows import model_rows, spec_rows
from medusa_sim.report.specs.tables import shown_value

_PHONE = ("number", "value", "source")
DOCUMENTS = {
    "from a question to an answer": "method.md",
    "kernels": "method-kernels.md",
    "engines": "method-engines.md",
    "acceptance": "method-acceptance.md",
}
_CODE_OR_RELATIVE_LINK = re.compile(r"(?s)(`+).*?\1|!?\[([^\[\]]+)\]\((?!https?://|#)[^()]*\)")


def numbers(set_up: PageArguments) -> None:
    """Every number in use with its unit and source."""
    left, right = st.columns([3, 1])
    wanted = inputs.text(left, Input("find", "Find", "Only rows that hold this text.")).lower()
    of_fits = Input("fitted", "Fitted parameters", "With those of the GPU's kernels.")
    kernels = inputs.on_off(right, of_fits, default=True)
    profile = answers.scenario_of(set_up).profile.name
    chosen = [("gpu", set_up.gpu), ("model", set_up.model_given), ("runtime", set_up.launched)]
    if profile in acceptance_names():  # one rate for every draft is no file
        chosen.append(("acceptance", profile))
    rows = [
        {
            "what": f"{kind} {name}",
            "number": row.key,
            "value": str(row.value),
            "unit": row.unit,
            "source": row.source,
            "remark": row.note,
            "shown": shown_value(row),
        }
        for kind, name in chosen
        for row in (
            model_rows(answers.published_model(set_up))
            if kind == "model" and set_up.config is not None
            else spec_rows(kind, name, kernels=kernels)
        )
    ]
    found = [row for row in rows if wanted in " ".join(row.values()).lower()]
    st.markdown(f"**{len(found)}** of {len(rows)} numbers. Each has its source.")
    table = [
        {
            "what": row["what"],
            "number": row["number"],
            "value": row["shown"],
            "source": "; ".join(filter(None, (row["source"], row["remark"]))),
        }
        for row in found
    ]
    show.table(table, _PHONE)
    command = show.command(["specs", *(name for _, name in chosen), *(["--with-kernels"] if kernels else [])])
    hardware = found_file("hardware", f"{set_up.gpu}.toml")
    files: list[downloads.Download] = [("toml", "application/toml", hardware.read_bytes)]
    if found:
        saved = [{name: value for name, value in row.items() if name != "shown"} for row in found]
        files.insert(0, ("csv", "text/csv", lambda: downloads.csv_bytes(saved)))
    downloads.hand_out("numbers", files, command)


def found_file(kind: str, name: str) -> Path:
    """A file of the data folders, the user's own first. Raises SpecError where there is none."""
    path = data.find(kind, name)
    if path is None:
        suffix = Path(name).suffix
        known = ", ".join(f"{stem}{suffix}" for stem in data.stems(kind, [suffix]))
        raise SpecError(
            f"{kind}/{name} is in no data folder (there are: {known}); choose one of these, "
            "or put the file there"
        )
    return path


def method() -> None:
    """A document of docs/method*.md, whole or a section."""
    known, of_document = tuple(DOCUMENTS), Input("document", "Document", "The way, or what it rests on.")
    document = inputs.choice(st, of_document, known, known[0])
    text = method_text(DOCUMENTS[document])
    parts = re.split(r"(?m)^## ", without_relative_links(text))
    titles = [part.partition("\n")[0] for part in parts[1:]]
    sections = ("everything", *titles)
    chosen = inputs.choice(st, Input("section", "Section", "Jump to a section."), sections, sections[0])
    shown = parts if chosen == "everything" else [parts[1 + titles.index(chosen)]]
    for i, part in enumerate(shown):
        st.markdown(part if chosen == "everything" and i == 0 else f"## {part}")
    downloads.hand_out("method", [("md", "text/markdown", lambda: text)])


def without_relative_links(text: str) -> str:
    """Links to files beside the document as plain text: here they lead nowhere. Code stays as it is."""
    return _CODE_OR_RELATIVE_LINK.sub(lambda found: found[2] or found[0], text)


def method_text(name: str = "method.md") -> str:
    """A page of docs/, of the checkout or the wheel, without comments. Raises SpecError if it is missing."""
    path = data.shipped_dir() / "docs" / name
    if not path.is_file():
        raise SpecError(f"docs/{name} is missing: the installation is incomplete; install medusa-sim again")
    return re.sub(r"<!--.*?-->\n*", "", path.read_text(encoding="utf-8"))
