"""What an engine may fill: a share of the card, or the weights and a share of what they leave."""

import pytest

import medusa_sim as ms
from medusa_sim.step.memory import CONTEXT_BYTES, LINKED_BYTES, USABLE_MEMORY_SHARE


def _scenario(runtime: str, **given: object) -> ms.Scenario:
    return ms.Scenario(gpu="b200", model="deepseek-r1", drafter="mtp", runtime=runtime, **given)


def test_tensorrt_llm_fills_the_weights_and_a_share_of_the_rest_and_what_is_known_to_run_fits():
    scenario = _scenario("tensorrt-llm", tp=8)
    weights, card = scenario.shard.weight_bytes, scenario.gpu.memory_bytes
    taken = CONTEXT_BYTES + LINKED_BYTES
    left = card - taken - weights
    assert scenario.usable_memory_bytes == pytest.approx(weights + 0.9 * left, rel=1e-12)
    assert _scenario("sglang", tp=8).usable_memory_bytes == USABLE_MEMORY_SHARE * card - taken
    # InferenceX serves DeepSeek-R1 in fp8 on four B200 with TensorRT-LLM: 32 requests of 8192 + 1024 tokens
    found = _scenario("tensorrt-llm", tp=4).sweep([1, 32, 512], 8192 + 512, [1])
    assert found.fits_memory.tolist() == [True, True, False]


@pytest.mark.parametrize("runtime", ["tensorrt-llm", "sglang"])
def test_what_the_weights_alone_overfill_never_fits(runtime):
    scenario = ms.Scenario(gpu="h200-sxm", model="deepseek-r1", drafter="mtp", runtime=runtime, tp=4)
    assert scenario.usable_memory_bytes < scenario.shard.weight_bytes
