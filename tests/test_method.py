"""docs/method.md: every label is defined once, everything that code and docs cite exists."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
METHOD = ROOT / "docs" / "method.md"
LABEL = r"[A-Z]\d{1,2}"
FAMILIES = "QOKIGAUECYSPTDRVMNWXZLFBHJ"
"""First letters of labels, in the order of the chapters."""


def defined() -> list[str]:
    """Labels at the start of a line of an equation block."""
    return re.findall(rf"(?m)^    \(({LABEL})\)", METHOD.read_text(encoding="utf-8"))


def cited(path: Path) -> set[str]:
    """Labels in brackets of the families that method.md uses."""
    found = re.findall(rf"\(({LABEL})\)", path.read_text(encoding="utf-8"))
    return {label for label in found if label[0] in FAMILIES}


def test_every_label_is_defined_once() -> None:
    again = [label for label, times in Counter(defined()).items() if times > 1]
    assert not again
    assert {label[0] for label in defined()} <= set(FAMILIES)


@pytest.mark.parametrize("family", sorted({label[0] for label in defined()}))
def test_labels_of_a_family_count_up(family: str) -> None:
    numbers = [int(label[1:]) for label in defined() if label[0] == family]
    assert numbers == list(range(1, len(numbers) + 1))


def test_cited_labels_exist() -> None:
    files = [*(ROOT / "medusa_sim").rglob("*.py"), *(ROOT / "app").rglob("*.py"), METHOD]
    known = set(defined())
    missing = {f"{path.relative_to(ROOT)}: {label}" for path in files for label in cited(path) - known}
    assert not missing


@pytest.mark.parametrize(
    "page",
    ["README.md", "CONTRIBUTING.md", "docs/method.md", "docs/decoder.md", "docs/validation-decoder.md"],
)
def test_files_named_in_the_docs_exist(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    named = re.findall(r"`((?:medusa_sim|tests|benchmarks|app|docs|profiles|hardware)/[\w./-]+)`", text)
    named += [
        f"medusa_sim/{path}" for path in re.findall(r"`((?:step|plan|latency|calibrate)/[\w/-]+\.py)`", text)
    ]
    links = re.findall(r"\]\((?!http)([\w./-]+)(?:#[\w-]+)?\)", text)
    missing = [path for path in named if not (ROOT / path).exists()]
    missing += [link for link in links if not ((ROOT / page).parent / link).exists()]
    assert not missing
