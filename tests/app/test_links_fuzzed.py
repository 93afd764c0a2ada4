"""Links with wrong values: a page answers, or says in one line what it ignored or cannot do."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import pytest

pytest.importorskip("streamlit")

from pages_read import Opened

sys.path.insert(0, str(Path(__file__).parents[1] / "fuzz"))

from mutations import NUMBERS, WORDS

PAGES = ("answer", "load", "tree", "compare", "evidence")
NAMES = (
    "gpu", "model", "runtime", "seq", "drafter", "heads", "draft_model", "acceptance", "dtype",
    "weight_dtype", "kv_dtype", "tp", "ep", "batch", "batch_max", "objective", "max_latency_ms", "policy",
    "rate", "candidates",
)  # fmt: skip
SENDABLE = tuple(word for word in WORDS if word != "\udcff")
"""What a browser can put into an address."""
SOUND = {
    "gpu": ("h100-sxm", "rtx-4090", "b200"),
    "model": ("gpt-oss-20b", "deepseek-r1", "llama-68m", "qwen3-next-80b-a3b"),
    "runtime": ("vllm", "sglang-0.5", "tgi", "cuda-graph"),
    "drafter": ("ngram", "eagle3", "mtp", "draft-model"),
    "acceptance": ("0.7", "0.8,0.6", "2.8@3"),
    "tp": ("8",),
    "batch_max": ("4",),
}


@pytest.mark.slow
@pytest.mark.usefixtures("short_loads")
@pytest.mark.parametrize("seed", range(8))
def test_a_link_with_wrong_values_leaves_no_fault(opened: Opened, seed: int) -> None:
    pick = random.Random(seed)  # noqa: S311  # draws test cases
    url = {name: pick.choice(values) for name, values in SOUND.items() if pick.random() < 0.4}
    for name in pick.sample(NAMES, pick.choice((1, 2, 3))):
        url[name] = pick.choice((*NUMBERS, *SENDABLE))
    page = opened(PAGES[seed % len(PAGES)], **url)  # fails on an exception and on a fault that is a bug
    for told in (*page.error, *page.warning):
        assert "Traceback" not in told.value
        assert len(told.value) < 2_000
