"""Settings that an engine would refuse at start cannot be built; versions are matched to what was read."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from medusa_sim.errors import UsageError
from medusa_sim.export.chains import ChainGrid, best_tiers, drafts_by_batch
from medusa_sim.export.engines import BY_NAME
from medusa_sim.export.schemas import (
    SglangFlags,
    SglangSlot,
    TensorrtSpeculativeConfig,
    VllmSpeculativeConfig,
)
from medusa_sim.export.settings import Versions

VLLM: dict[str, Any] = {"method": "eagle3", "num_speculative_tokens": 3, "model": "d"}
TRT: dict[str, Any] = {
    "decoding_type": "Eagle3", "version": "1.3", "max_draft_len": 3, "speculative_model": "d"
}  # fmt: skip
SGL: dict[str, Any] = {"algorithm": "EAGLE3", "num_steps": 3, "eagle_topk": 1, "num_draft_tokens": 4}


@pytest.mark.parametrize(
    ("made", "sound", "change"),
    [
        (VllmSpeculativeConfig, VLLM, {"num_speculative_tokens": 0}),
        (VllmSpeculativeConfig, VLLM, {"model": None}),
        (VllmSpeculativeConfig, VLLM, {"method": "dflash", "parallel_drafting": True}),
        (VllmSpeculativeConfig, VLLM, {"num_speculative_tokens_per_batch_size": [(2, 8, 3)]}),
        (VllmSpeculativeConfig, VLLM, {"num_speculative_tokens_per_batch_size": [(1, 8, 3), (8, 16, 1)]}),
        (VllmSpeculativeConfig, VLLM, {"num_speculative_tokens_per_batch_size": [(1, 8, 4)]}),
        (VllmSpeculativeConfig, VLLM, {"synthetic_acceptance_rates": [0.5, 0.4, 0.3]}),
        (
            VllmSpeculativeConfig,
            VLLM,
            {"rejection_sample_method": "synthetic", "synthetic_acceptance_rates": [0.5, 0.6, 0.3]},
        ),
        (
            VllmSpeculativeConfig,
            VLLM,
            {"rejection_sample_method": "synthetic", "synthetic_acceptance_rates": [0.5, 0.4]},
        ),
        (TensorrtSpeculativeConfig, TRT, {"draft_len_schedule": {80: 2, 256: 3}}),  # what 1.3 refused to load
        (TensorrtSpeculativeConfig, TRT, {"version": "1.2", "draft_len_schedule": {64: 3}}),
        (
            TensorrtSpeculativeConfig,
            TRT,
            {
                "version": "1.2",
                "use_dynamic_tree": True,
                "dynamic_tree_max_topK": 4,
                "max_total_draft_tokens": 8,
            },
        ),
        (
            TensorrtSpeculativeConfig,
            TRT,
            {"use_dynamic_tree": True, "dynamic_tree_max_topK": 2, "max_total_draft_tokens": 8},
        ),
        (TensorrtSpeculativeConfig, TRT, {"speculative_model": None}),
        (TensorrtSpeculativeConfig, TRT, {"decoding_type": "MTP", "version": "1.2"}),
        (TensorrtSpeculativeConfig, TRT, {"decoding_type": "PARD"}),
        (SglangFlags, SGL, {"num_draft_tokens": 3}),
        (SglangFlags, SGL, {"eagle_topk": 4, "num_draft_tokens": 12}),
        (SglangFlags, SGL, {"num_steps": None}),
        (SglangFlags, SGL, {"algorithm": "DFLASH"}),
        (
            SglangFlags,
            SGL,
            {"algorithm": "STANDALONE", "adaptive_slots": {1: SglangSlot(candidate_steps=[3])}},
        ),
        (SglangFlags, SGL, {"adaptive_slots": {2: SglangSlot(candidate_steps=[3])}}),
    ],
)
def test_settings_that_an_engine_refuses_are_not_made(made, sound, change):
    made(**sound)
    with pytest.raises(ValueError, match=r"\w"):
        made(**sound | change)


def test_a_slot_of_sglang_drafts_one_token_at_least():
    with pytest.raises(ValueError, match="candidate_steps"):
        SglangSlot(candidate_steps=[0])


def test_versions_between_and_just_beyond_are_said_and_far_ones_refused():
    versions = Versions("x", ("0.24", "0.26", "0.33"), "0.33")
    assert versions.chosen(None) == ("0.33", "")
    assert versions.chosen("v0.26.1rc2") == ("0.26", "")
    for asked, nearest in (("0.29", "0.26"), ("0.34.0", "0.33")):
        known, note = versions.chosen(asked)
        assert known == nearest
        assert asked in note
    for asked in ("0.9", "0.40", "1.0", "new"):
        with pytest.raises(UsageError, match="known"):
            versions.chosen(asked)
    tensorrt_llm = BY_NAME["tensorrt-llm"].versions
    assert tensorrt_llm.chosen(None)[0] == "1.2"
    assert tensorrt_llm.chosen("1.4.0rc1") == ("1.4", "")


def grid(values: np.ndarray) -> ChainGrid:
    batches, columns = values.shape
    return ChainGrid(
        batch=np.arange(1, batches + 1),
        drafts=np.arange(columns),
        log_speedup=np.where(np.arange(columns) == 0, 0.0, values),
        rates=np.linspace(0.9, 0.1, columns - 1),
        memory_limited=False,
    )


@given(
    seed=st.integers(0, 2**32 - 1),
    batches=st.integers(1, 60),
    columns=st.integers(2, 6),
    gain=st.floats(0.0, 0.2),
    off=st.booleans(),
)
def test_tiers_cover_every_batch_once_and_never_rise(seed, batches, columns, gain, off):
    made = grid(np.random.default_rng(seed).normal(0.0, 0.3, (batches, columns)))
    captured = (1, 2, 4, 8, 16, 32)
    tiers = best_tiers(made, captured, gain=gain, idle_cost=(lambda _: 0.1) if off else None)
    assert tiers[0].batch_min == 1
    assert tiers[-1].batch_max == batches
    assert all(b.batch_min == a.batch_max + 1 for a, b in pairwise(tiers))
    assert all(b.drafts < a.drafts for a, b in pairwise(tiers))
    assert all(tier.batch_max in captured for tier in tiers[:-1])
    assert off or min(tier.drafts for tier in tiers) > 0


@given(seed=st.integers(0, 2**32 - 1), columns=st.integers(2, 5))
def test_tiers_are_the_best_of_all_falling_ones(seed, columns):
    """Against every falling choice of one number for each span between captured sizes."""
    made = grid(np.random.default_rng(seed).normal(0.0, 0.3, (16, columns)))
    captured = (1, 2, 4, 8)
    switch = 0.03
    tiers = best_tiers(made, captured, gain=switch, idle_cost=None)

    def worth(drafts: np.ndarray) -> float:
        values = made.log_speedup[np.arange(16), drafts]
        return float(values @ made.weight - np.log1p(switch) * np.count_nonzero(np.diff(drafts)))

    spans = np.searchsorted(np.asarray((1, 2, 4, 8, 16)), made.batch)
    choices = np.stack(np.meshgrid(*[np.arange(1, columns)] * 5, indexing="ij"), axis=-1).reshape(-1, 5)
    falling = choices[np.all(np.diff(choices, axis=1) <= 0, axis=1)]
    best = max(worth(choice[spans]) for choice in falling)
    assert worth(drafts_by_batch(made, tiers)) == pytest.approx(best)
