"""Which passes are captured in a graph, and what they are padded to."""

from dataclasses import replace

import numpy as np
import pytest
from engine_settings import engine, setting, with_terms
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from medusa_sim.latency.waves import norm_max
from medusa_sim.models.named import load_model
from medusa_sim.scenario.scenario import Scenario
from medusa_sim.step.drafter.layer import Mtp
from medusa_sim.step.drafting import drafting_times
from medusa_sim.step.graphs import is_captured, most_captured_tokens, padded_tokens
from medusa_sim.step.host import (
    HOST_OVERLAP,
    launching_us,
    split_host,
)
from medusa_sim.step.step import decode_step


@given(
    batch=st.integers(1, 600),
    width=st.integers(1, 17),
    unit=st.sampled_from(("tokens", "multiples", "requests")),
)
def test_padding_fills_up_to_a_captured_size(batch, width, unit):
    of = structs.replace(engine(), graph_unit=unit)
    padded = float(padded_tokens(of, batch, width))
    tokens = batch * width
    assert padded >= tokens
    # a step is in a graph exactly where it is filled up to one
    assert is_captured(of, batch, width) == (tokens <= most_captured_tokens(of, width))
    if not is_captured(of, batch, width):
        assert padded == tokens
        return
    if unit == "requests":
        assert padded / width in of.graph_sizes
        assert float(padded_tokens(of, padded / width, width)) == padded
    elif unit == "tokens":
        assert padded in of.graph_sizes
    else:
        assert padded % width == 0
        # one of the sizes, rounded up, and no smaller one would do
        rounded = sorted({-(-size // width) * width for size in of.graph_sizes})
        assert padded == next(size for size in rounded if size >= tokens) <= of.graph_sizes[-1]


def test_a_graph_larger_than_the_largest_size_is_not_captured():
    """In multiples of 3 vLLM's sizes end at 498: 513 would be beyond the largest, 512."""
    of, requests = engine("vllm-0.33"), np.array([165, 166, 167, 170, 171])
    assert is_captured(of, requests, 3).tolist() == [True, True, False, False, False]
    assert padded_tokens(of, requests, 3).tolist() == [498, 498, 501, 510, 513]
    # some requests find two drafts: the sizes are those of three tokens, 9, 18 and 24, not 8, 16 and 24
    found = np.arange(9) / 8
    assert padded_tokens(of, 8, 1.0 + 2.0 * found, 3).tolist() == [9, 18, 18, 18, 18, 18, 24, 24, 24]
    assert is_captured(of, 250, 1.0 + 2.0 * np.array([0.49, 0.5]), 3).tolist() == [True, False]
    assert [most_captured_tokens(of, tokens) for tokens in (1, 3, 4)] == [512, 498, 512]
    # a list of its own for plain servers, which ends elsewhere
    plain = structs.replace(of, plain_graph_sizes=(1, 600))
    assert is_captured(plain, 600, np.array([1, 3])).tolist() == [True, False]
    assert [most_captured_tokens(plain, tokens) for tokens in (1, 3)] == [600, 498]


def test_a_server_without_a_drafter_captures_sizes_of_its_own():
    """SGLang captures fewer beside a drafter: 33 plain requests were padded to 64."""
    batch, width = np.array([[9, 33, 100, 161]]), np.array([[1], [4]])
    assert padded_tokens(engine("sglang-0.4"), batch, width).tolist() == [
        [16, 40, 104, 161], [4 * 9, 4 * 64, 4 * 128, 4 * 161]
    ]  # fmt: skip
    newer = engine("sglang-0.5")
    assert (padded_tokens(newer, batch, width) / width == padded_tokens(newer, batch, 1)).all()


@pytest.mark.parametrize(
    ("gpu", "runtime", "tp", "largest"),
    [
        ("rtx-4090", "sglang", 1, 48), ("rtx-4090", "sglang", 4, 160), ("rtx-4090", "sglang-0.5.5", 1, 24),
        ("l40s", "sglang", 1, 32), ("l40s", "sglang-0.5.5", 4, 160), ("h100-sxm", "sglang", 2, 256),
        ("h100-sxm", "sglang", 4, 512), ("b200", "sglang", 1, 512), ("a10g", "sglang-0.4", 1, 23),
        ("h100-sxm", "sglang-0.4", 1, 160), ("rtx-4090", "vllm", 1, 512),
    ],
)  # fmt: skip
def test_sglang_captures_batches_by_the_memory_of_a_gpu_and_how_many_share_a_model(gpu, runtime, tp, largest):
    of = Scenario(gpu=gpu, model="qwen3-8b", runtime=runtime, drafter="eagle3", tp=tp).setting.runtime.engine
    assert of.graph_sizes[-1] == largest
    drafting = 1 if runtime == "vllm" else 3  # a size is one of tokens, or of requests
    assert is_captured(of, np.array([largest, largest + 1]), drafting).tolist() == [True, False]


def test_beyond_the_captured_sizes_small_models_wait_for_their_launches():
    small = with_terms(setting(model=load_model("qwen3-0.6b")), engine(eager_us_per_layer=500.0))
    inside, outside = decode_step(small, 512, 64), decode_step(small, 513, 64)
    floor = 500.0 * small.model.layers
    assert float(inside.device_us) < floor
    smooth = float(norm_max(outside.device_us, np.asarray(floor), HOST_OVERLAP))
    for step, batch, expected in ((inside, 512, float(inside.device_us)), (outside, 513, smooth)):
        assert float(step.time_us - split_host(engine(), batch).exposed.time_us) == pytest.approx(expected)
    # the larger the step, the less of it is the host's: no cliff where kernels take as long
    large = with_terms(setting(model=load_model("llama-3.1-8b")), engine(eager_us_per_layer=100.0))
    before, after = (float(decode_step(large, batch, 512).time_us) for batch in (512, 513))
    assert before < after < 1.05 * before
    terms = engine(eager_us_per_layer=100.0)
    assert launching_us(terms, 32, np.array([True, False])).time_us.tolist() == [0.0, 3200.0]


def test_levels_of_a_tree_are_in_a_graph_where_the_tokens_just_accepted_are_not():
    """SGLang on Hopper with latent attention; two nodes a level had been charged 1.4 ms of launches more."""
    of = Scenario(gpu="h200-sxm", model="deepseek-r1", runtime="sglang-0.5", tp=8, drafter="mtp").setting

    def drafting_us(width: int) -> list[float]:
        drafter = Mtp(depth=3, width=width)
        return [float(each.time_us) for each in drafting_times(replace(of, drafter=drafter), 4, 2048, 4)]

    chain, tree = drafting_us(1), drafting_us(2)
    assert tree[0] == chain[0] > 1.5 * chain[1]
    assert chain[1] < tree[1] < 1.2 * chain[1]


def test_a_server_that_is_set_up_for_a_batch_has_a_graph_of_it():
    """TensorRT-LLM captures its largest batch; sizes of 1.2 end at 128, those of 1.3 go on by 64."""
    older, newer = (engine(f"tensorrt-llm-{version}") for version in ("1.2", "1.3"))
    requests = np.array([100, 128, 129, 200, 257])
    assert padded_tokens(older, requests, 1).tolist() == [104, 128, 129, 200, 257]
    assert padded_tokens(newer, requests, 1).tolist() == [104, 128, 192, 256, 320]
    assert is_captured(older, requests, 1).all()
