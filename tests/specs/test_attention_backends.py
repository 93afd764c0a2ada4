"""Which kernel verifies: the table of facts."""

import pytest

from medusa_sim.plan.scenario import Scenario
from medusa_sim.specs.engine_facts import FACTS, backend_of, backend_of_row
from medusa_sim.specs.gpu import load_gpu


@pytest.mark.parametrize(
    ("gpu", "runtime", "kv_dtype", "name"),
    [
        ("a100-80gb-sxm", "vllm", None, "FlashAttention-2"),
        ("l40s", "vllm", None, "FlashAttention-2"),
        ("a100-80gb-sxm", "vllm", "fp8", "FlashInfer"),
        ("h100-sxm", "vllm", "fp8", "FlashAttention-3"),
        ("b200", "vllm", None, "trtllm-gen"),
        ("a100-80gb-sxm", "sglang", None, "FlashInfer"),
        ("a100-80gb-sxm", "cuda-graph", None, "kernels that split"),
    ],
)
def test_engine_card_and_cache_choose_the_kernel(gpu, runtime, kv_dtype, name):
    found = Scenario(gpu=gpu, model="llama-3.1-8b", runtime=runtime, drafter="eagle3", kv_dtype=kv_dtype)
    assert name in found.backend.name


def test_every_fact_can_be_reached_and_names_cards_that_exist():
    known = {load_gpu(name).architecture for name in ("a100-80gb-sxm", "l40s", "h100-sxm", "b200", "mi300x")}
    known.add(load_gpu("rtx-5090").architecture)
    for fact in FACTS:
        assert set(fact.cards) <= known
        wide = 512.0 if fact.backend.name.startswith("Triton attention") else 128.0
        of_kv = fact.bytes_of_kv or 2.0
        found = {
            backend_of(engine, card, latent=fact.latent, bytes_of_kv=of_kv, head_dim=wide)
            for engine in fact.engines
            for card in fact.cards
        }
        assert fact.backend in found


def test_rows_name_their_kernel_in_words():
    named = backend_of_row("varlen paged, num_splits forced to 1")
    assert not named.splits
    assert backend_of_row("something else") is None
    # calls from Python before queries were grouped, and kernels in a graph
    for name, called in (("trtllm-gen decode", True), ("trtllm-gen decode optimised", False)):
        kernel = backend_of_row(name)
        assert kernel.name.endswith("called from Python") == called
