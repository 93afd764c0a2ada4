"""Chosen set-ups as fleets under load."""

from __future__ import annotations

import pytest

import medusa_sim as ms
from medusa_sim.setups.loaded import under_load

SMALL = {
    "model": "llama-3.1-8b", "gpus": "h100-sxm", "counts": 1, "engines": "vllm",
    "drafters": ("none", "eagle3"), "batches": (8, 32), "weight_dtypes": "bf16",
}  # fmt: skip


def test_a_full_server_is_the_steady_one() -> None:
    """A closed loop at the row's batch: the step of the row, with prompts between steps (10 %)."""
    found = ms.compare(**SMALL)
    for row in found.comparison.best.to_dict("records"):
        loaded = under_load(found.comparison, row, requests=300)
        assert loaded.replicas == row["replicas"] == 1
        assert loaded.point.mean["tokens_per_s"] == pytest.approx(row["tokens_per_s_per_gpu"], rel=0.1)
        assert loaded.usd_per_million_tokens == pytest.approx(row["usd_per_million_tokens"], rel=0.1)


def test_copies_are_added_until_the_limits_hold() -> None:
    found = ms.compare(**SMALL, rate=30.0, tokens_per_s_per_user=100, ttft_ms=400)
    chosen, plain = found.under_load(requests=300)
    assert chosen.row["drafter"] == "eagle3"
    assert plain.row["drafter"] == "none"
    for loaded in (chosen, plain):
        assert loaded.keeps
        assert loaded.replicas >= loaded.row["replicas"]
        assert loaded.gpus == loaded.replicas
