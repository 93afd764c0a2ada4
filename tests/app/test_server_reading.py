"""What a running engine says, pasted: its acceptance and batch are taken over, its speed is judged."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("streamlit")

from pages_read import Opened, text_of, unfolded
from views.server import OPENED

PAGES = Path(__file__).parents[1] / "data" / "engine"
EIGHT_B = {"gpu": "h100-sxm", "model": "llama-3.1-8b", "drafter": "eagle3", "batch_max": 8}


def test_a_metrics_page_is_judged_and_taken_over(opened: Opened) -> None:
    page = unfolded(opened("answer", **EIGHT_B), OPENED)
    page.text_area(key="engine_text").set_value((PAGES / "vllm_metrics_after.txt").read_text()).run()
    assert not page.exception
    told = text_of(page)
    assert "counted" in told
    assert "tokens a step; acceptance by position 0." in told
    taken = next(button for button in page.button if button.label.startswith("Take over acceptance"))
    taken.click().run()
    assert not page.exception
    given = page.selectbox(key="acceptance").value
    assert all(0.0 < float(share) < 1.0 for share in given.split(","))
    assert page.success, "the answer follows the acceptance taken over"


def test_what_is_no_engines_is_one_line(opened: Opened) -> None:
    page = unfolded(opened("answer", **EIGHT_B), OPENED)
    page.text_area(key="engine_text").set_value("hello there").run()
    assert "\n" not in page.error[0].value
    assert page.error[0].value.startswith("pasted.txt")
    assert page.success, "the page stands"
