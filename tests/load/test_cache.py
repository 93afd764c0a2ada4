"""KV blocks: the bound, the count and the steps that fit, against each request by itself."""

import numpy as np
import pytest
from load_tables import constant_table

from medusa_sim.load.batch import Batch
from medusa_sim.load.cache import Cache
from medusa_sim.load.draws import Draws
from medusa_sim.load.limits import SchedulerLimits, limits_of
from medusa_sim.load.request_state import RequestState
from medusa_sim.scenario.scenario import Scenario

WINDOW = np.minimum(np.arange(400.0), 64 + 0.25 * np.arange(400.0))


@pytest.mark.parametrize("held", [None, WINDOW], ids=["full", "window"])
def test_blocks_of_many_requests_are_those_of_each(held):
    within = SchedulerLimits(kv_blocks=9000, positions=4096, lookahead=3, held=held)
    batch = Batch(
        Draws(constant_table(0.01, rates=(0.7,) * 3).accepted, np.full(20, 100), seed=0, spread=0.0)
    )
    cache = Cache(within, batch, longest_prompt=1)
    lengths = np.random.default_rng(0).integers(1, 4000, size=20).tolist()
    for number, length in enumerate(lengths):
        batch.join(RequestState(number, length, 101, session_tokens=None, committed=length + 1))
    cache.reserved = 7
    slack = 20 if held is None else 20 * 13  # a block of each request; lengths that differ, of a window
    for drafts in (0, 3):
        each = sum(within.blocks_of(length + drafts) for length in lengths)
        # of a window each request is rounded up by itself, and all together once
        assert cache.blocks_needed(drafts) - 7 == pytest.approx(each, abs=20 * (held is not None))
        assert cache.blocks_needed(drafts) <= cache.most_blocks(drafts) <= cache.blocks_needed(drafts) + slack
        steps = cache.steps_that_fit(drafts)
        assert cache.most_blocks(drafts, steps) <= within.kv_blocks
        assert held is not None or cache.most_blocks(drafts, steps + 20) > within.kv_blocks
    assert cache.fits(3, within.kv_blocks - cache.blocks_needed(3))
    assert not cache.fits(3, within.kv_blocks - cache.blocks_needed(3) + 1)


def test_tokens_are_those_in_the_cache_and_blocks_of_a_shared_text_count_once():
    within = SchedulerLimits(kv_blocks=100, positions=4096, prefix_hit_rate=0.5, shares_prefix=True)
    batch = Batch(Draws(constant_table(0.01).accepted, np.full(2, 50), seed=0, spread=0.0))
    cache = Cache(within, batch, longest_prompt=64)
    assert cache.blocks == 98
    for number in range(2):
        batch.join(RequestState(number, 64, 50, session_tokens=None, committed=65, shared=2))
    assert (batch.tokens, batch.shared) == (128, 4)
    assert (
        cache.blocks_needed(0) == 2 * 5 - 4
    )  # 64 tokens and the slot of the next: five blocks, two of them shared
    assert cache.most_blocks(0) == 2 * 5 - 4
    assert cache.tokens == 128 - 4 * 16
    assert batch.take_steps(10) == 20
    assert (cache.blocks_needed(0), cache.tokens) == (2 * 5 - 4, 148 - 4 * 16)
    batch.take_steps(6)
    assert cache.blocks_needed(0) == 2 * 6 - 4
    gone = batch.drop_last()
    assert (gone.number, gone.left, gone.committed) == (1, 33, 81)
    assert (batch.tokens, batch.shared) == (80, 2)


@pytest.mark.parametrize("model", ["gpt-oss-20b", "gemma-3-4b", "llama-4-scout", "kimi-linear-48b-a3b"])
def test_what_a_request_holds_of_its_blocks_grows_ever_slower(model):
    """The bound of the mean length rests on it."""
    tp = 8 if model == "llama-4-scout" else 1
    scenario = Scenario(gpu="h200-sxm", model=model, runtime="vllm", tp=tp, drafter="ngram", acceptance=0.5)
    held = limits_of(scenario, None).held
    assert held is not None
    assert np.diff(held, 2).max() < 1e-9
    assert held[1] - held[0] == pytest.approx(1.0)
