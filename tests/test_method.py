"""docs/method*.md: every label is defined once, what is cited exists, the worked example adds up."""

import math
import re
from collections import Counter
from pathlib import Path

import pytest
import worked_example
from common import pages

ROOT = Path(__file__).resolve().parents[1]
METHOD = ROOT / "docs" / "method.md"
PAGES = [METHOD, *(ROOT / "docs" / f"method-{part}.md" for part in ("kernels", "engines", "acceptance"))]
LABEL = r"[A-Z]\d{1,2}"
FAMILIES = "QORWKIGAUECYSPXFBHJMNZLTDV"
"""First letters of labels, in the order of the pages."""


def defined() -> list[str]:
    """Labels at the start of a line of an equation block."""
    text = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
    return re.findall(rf"(?m)^    \(({LABEL})\)", text)


def cited(path: Path) -> set[str]:
    """Labels in brackets of the families that the pages use."""
    found = re.findall(rf"\(({LABEL})\)", path.read_text(encoding="utf-8"))
    return {label for label in found if label[0] in FAMILIES}


def test_every_label_is_defined_once():
    again = [label for label, times in Counter(defined()).items() if times > 1]
    assert not again
    assert {label[0] for label in defined()} <= set(FAMILIES)


@pytest.mark.parametrize("family", sorted({label[0] for label in defined()}))
def test_labels_of_a_family_have_no_gap(family):
    numbers = [int(label[1:]) for label in defined() if label[0] == family]
    assert sorted(numbers) == list(range(1, len(numbers) + 1))


def test_cited_labels_exist():
    files = [
        *(ROOT / "medusa_sim").rglob("*.py"),
        *(ROOT / "app").rglob("*.py"),
        *PAGES,
        ROOT / "docs" / "validation.md",
    ]
    known = set(defined())
    missing = {f"{path.relative_to(ROOT)}: {label}" for path in files for label in cited(path) - known}
    assert not missing


EXAMPLE = pages.read_section("method.md", "example")


def numbers(text: str) -> list[float]:
    """Every number of a line, thousands separated by commas."""
    return [float(found.replace(",", "")) for found in re.findall(r"(?<![\w.])\d[\d,]*(?:\.\d+)?", text)]


def line_of(start: str) -> list[float]:
    """Numbers behind the first `=` of the example's line that begins so."""
    line = next(line for line in EXAMPLE.splitlines() if line.strip().startswith(start))
    return numbers(line.partition("=")[2].replace("|_3", "|"))


def table_of_kernels() -> dict[str, list[float]]:
    """Bytes (GB), floor, plain step, verification, drafting of each kernel; 0 where the table has none."""
    rows = (line.strip("| ").split("|") for line in EXAMPLE.splitlines() if line.startswith("| "))
    table = {cells[0].strip(): [sum(numbers(cell)) for cell in cells[1:]] for cells in rows}
    return {name: cells for name, cells in table.items() if name not in {"kernel", "---"}}


def smooth(x: float, y: float) -> float:
    """|x, y|_3."""
    return (x**3 + y**3) ** (1 / 3)


def test_the_worked_example_is_current():
    assert pages.as_section(worked_example.section()) == EXAMPLE, "run `python benchmarks/worked_example.py`"


def test_the_kernels_of_the_example_follow_from_shapes_and_bandwidth():
    """Llama-3.1-8B: h 4096, i 14336, 32 and 8 heads of 128, 32 layers, 128256 words; bf16; H100 3.35 TB/s."""
    table, layers, h = table_of_kernels(), 32, 4096
    elements = {
        "qkv_proj": layers * h * (4096 + 2 * 1024),
        "attention": layers * 2 * 8 * 1024 * 1024,
        "o_proj": layers * h * 4096,
        "gate_up_proj": layers * h * 2 * 14336,
        "down_proj": layers * h * 14336,
        "lm_head": h * 128256,
    }
    for name, count in elements.items():
        size, floor, plain, verification, _ = table[name]
        assert size == pytest.approx(2 * count / 1e9, abs=6e-4)
        assert floor == pytest.approx(2 * count / 3.35e6, abs=0.6)
        assert floor < plain < verification < 1.15 * plain
    for column in range(5):
        parts = sum(cells[column] for name, cells in table.items() if name != "all")
        assert table["all"][column] == pytest.approx(parts, abs=0.06 * len(table) if column > 1 else 3.0)


def test_the_steps_tokens_and_speedup_of_the_example_add_up():
    all_kernels = table_of_kernels()["all"]
    kernels, hidden, host, plain = line_of("plain T")
    assert kernels == round(all_kernels[2])
    assert plain == pytest.approx(smooth(kernels, hidden) + host, abs=1.5)
    kernels, hidden, host, verification = line_of("verification V")
    assert kernels == round(all_kernels[3])
    assert verification == pytest.approx(smooth(kernels, hidden) + host, abs=1.5)
    *passes, batch, per_request, drafting = line_of("drafting D")
    times = list(zip(passes[::2], passes[1::2], strict=True))
    assert sum(time for time, _ in times) == pytest.approx(all_kernels[4], abs=2.0)
    assert drafting == pytest.approx(sum(smooth(*time) for time in times) + batch * per_request, abs=2.0)
    overhead = (verification + drafting) / plain
    assert line_of("overhead")[-1] == pytest.approx(overhead, abs=1e-3)
    rates = numbers(EXAMPLE.partition("those before it were:")[2].partition("\n")[0])
    tokens = 1 + sum(math.prod(rates[: depth + 1]) for depth in range(len(rates)))
    assert line_of("tokens per step")[-1] == pytest.approx(tokens, abs=6e-4)
    assert line_of("speedup")[-1] == pytest.approx(tokens / overhead, abs=6e-3)
    rate = batch * tokens / (verification + drafting) * 1e6
    assert line_of("tokens/s")[-1] == pytest.approx(rate, rel=1e-3)
