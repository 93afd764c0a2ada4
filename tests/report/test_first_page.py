"""Reports of every command begin with one page in the same order, and lose nothing of what is told."""

from __future__ import annotations

import pytest

import medusa_sim as ms
from medusa_sim.grid.axes import Grid
from medusa_sim.load.answer import run_load
from medusa_sim.load.load_test import load_test
from medusa_sim.plan.sweep_answer import sweep_answer
from medusa_sim.report.blocks import Appendix, Heading, Picture
from medusa_sim.report.compare.page import compare_blocks
from medusa_sim.report.compare.screen import compare_screen
from medusa_sim.report.document import markdown_page
from medusa_sim.report.load.page import load_blocks
from medusa_sim.report.load.screen import load_screen
from medusa_sim.report.recommend.page import recommend_blocks
from medusa_sim.report.recommend.screen import recommend_screen
from medusa_sim.report.sweep.page import report_blocks
from medusa_sim.report.sweep.screen import sweep_screen
from medusa_sim.scenario.scenario import Scenario
from medusa_sim.units import FORMATS, format_text

_ORDER = ["Why", "How sure", "Measured near it", "Warnings"]
_MODEL = {"model": "llama-3.1-8b", "drafter": "eagle3"}


def _recommended(**more):
    answer = ms.recommend(gpu="l40s", **_MODEL, **more).answer
    return recommend_blocks(answer, "c"), recommend_screen(answer)


def _compared(**more):
    asked = {"counts": 1, "engines": "vllm", "drafters": ("none", "eagle3"), "batches": (1, 8)}
    answer = ms.compare(_MODEL["model"], gpus="l40s", **asked, **more).answer
    return compare_blocks(answer, "c"), compare_screen(answer)


def _loaded():
    test = load_test(Scenario(gpu="l40s", **_MODEL), policies=("none", "2"), requests=30, seeds=1)
    answer = run_load(test)
    return load_blocks(answer, "c"), load_screen(answer)


def _swept():
    scenario, grid = Scenario(gpu="l40s", **_MODEL), Grid.of([1, 16], [1024], [1, 2, 4])
    return report_blocks([scenario], grid, "c"), sweep_screen(sweep_answer(scenario, grid))


@pytest.mark.parametrize(
    "report",
    [_recommended, lambda: _recommended(dtype="fp8_block"), _compared,
     lambda: _compared(tokens_per_s_per_user=1e4), _loaded, _swept],
    ids=["recommend", "recommend in blocks", "compare", "compare beyond reach", "load", "sweep"],
)  # fmt: skip
def test_one_page_in_the_same_order_and_nothing_lost(report):
    blocks, screen = report()
    *page, rest = blocks
    assert isinstance(rest, Appendix)
    assert not any(isinstance(block, Appendix) for block in page)
    headings = [block.text for block in page if isinstance(block, Heading)][1:]
    assert headings == [name for name in _ORDER if name in headings]
    assert ("Warnings" in headings) == bool(screen.warnings)
    assert sum(isinstance(block, Picture) for block in page) <= 1
    first, whole = markdown_page(page), markdown_page(blocks)
    for fact in screen.facts:
        replaced = fact.label in ("How sure", "Acceptance", "Surer", "Without", "Next")
        assert replaced or f"**{fact.label}**" in whole
    for line in screen.answer:
        assert line.split(" ")[0] in first
    names = [name for name in FORMATS if format_text(name) != name]
    assert not [line for line in first.split("\n") if any(f" {name}" in line for name in names)]
