"""A step as the sum of what it launches: physics that any latency model must keep."""

from dataclasses import replace
from math import comb

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from medusa_sim.api import Scenario
from medusa_sim.engines.runtime import load_runtime
from medusa_sim.gpus.gpu import load_gpu
from medusa_sim.gpus.inheritance import TOGETHER, TOGETHER_ALIKE
from medusa_sim.latency.operator_time import Bound, Source
from medusa_sim.latency.roofline import RooflineLatency
from medusa_sim.models.named import load_model
from medusa_sim.models.variants import with_dtypes
from medusa_sim.operators.attention import Attention
from medusa_sim.operators.kinds import KIND_OF
from medusa_sim.operators.operator import Operator
from medusa_sim.step.compose import Cost, step_us
from medusa_sim.step.drafter.draft_model import DraftModel
from medusa_sim.step.drafter.medusa import Medusa
from medusa_sim.step.drafting import drafting_times
from medusa_sim.step.host import HOST_OVERLAP
from medusa_sim.step.launch import PARTS
from medusa_sim.step.memory import CONTEXT_BYTES, LINKED_BYTES, USABLE_MEMORY_SHARE
from medusa_sim.step.network import model_launches, step_launches
from medusa_sim.step.setting import Setting
from medusa_sim.step.step import decode_step, prefill_step, speculative_step, verification_step
from medusa_sim.step.verified import Verified, found_shares
from medusa_sim.step.workload import Workload, decode, prefill, verify

GPU = load_gpu("a100-80gb-pcie")


def setting(
    model: str = "llama-7b", runtime: str = "cuda-graph", scope: str = "model", **other: object
) -> Setting:
    given = {"latency": RooflineLatency(GPU), "model": load_model(model), "runtime": load_runtime(runtime),
             "scope": scope, "drafter": Medusa()}  # fmt: skip
    return Setting(**(given | other))


def test_block_is_the_eight_kernels_of_the_paper():
    model, runtime = load_model("llama-7b"), load_runtime("paper")
    launches = step_launches(model, verify(4, 1024, 16), runtime, "block")
    names = [launch.operator.name for launch in launches]
    assert names == ["q_proj", "k_proj", "v_proj", "qk", "pv", "up_proj", "gate_proj", "down_proj"]
    assert all(launch.count == 1 for launch in launches)
    products = [launch.operator for launch in launches if isinstance(launch.operator, Attention)]
    assert all(product.kv_len == 1024 for product in products)  # Table 5 uses s, not s + q


@pytest.mark.parametrize("model", ["llama-7b", "llama-3-8b", "opt-13b"])
@pytest.mark.parametrize("runtime", ["paper", "cuda-graph"])
def test_a_decode_step_reads_every_weight_once(model, runtime):
    spec = load_model(model)
    launches = step_launches(spec, decode(1, 1024), load_runtime(runtime), "model")
    read = sum(
        launch.count * launch.operator.weight_bytes for launch in launches if hasattr(launch.operator, "k")
    )
    # Everything but the embedding table (one row is read), norms, biases and learned positions.
    layer = spec.attention.weights(spec.hidden) + spec.mlp.weights(spec.hidden)
    linear = 2 * (spec.layers * layer + spec.vocab * spec.hidden)
    assert read == pytest.approx(linear, rel=1e-12)


def test_three_phases_share_one_set_of_formulas():
    model, runtime = load_model("llama-3-8b"), load_runtime("cuda-graph")

    def operators(workload: Workload, scope: str) -> list[Operator]:
        return [launch.operator for launch in step_launches(model, workload, runtime, scope)]

    for one, other in zip(
        operators(prefill(2, 512), "block"), operators(verify(2, 512, 512), "block"), strict=True
    ):
        assert isinstance(one, Attention) or one.flops == other.flops
    for one, other in zip(
        operators(verify(2, 512, 1), "model"), operators(decode(2, 512), "model"), strict=True
    ):
        assert (one.flops, one.bytes) == (other.flops, other.bytes)


def test_verification_reads_the_kv_once_for_all_candidates():
    """Charging the cache once per candidate is the commonest fault of simulators: 9 to 30 times too slow."""
    long = setting("llama-2-7b")
    at = [float(verification_step(long, 16, 8192, count).parts_us["attention"]) for count in (1, 16, 64)]
    assert at[1] == pytest.approx(at[0], rel=0.01)
    assert at[2] < 1.1 * at[0]


@given(batch=st.integers(1, 256), seq_len=st.integers(1, 16384), candidates=st.integers(1, 256))
def test_roofline_steps_grow_with_everything(batch, seq_len, candidates):
    at = np.array([batch, seq_len, candidates])
    time_us = speculative_step(setting(), *at).time_us
    assert time_us > 0
    for more in np.eye(3, dtype=int):
        assert speculative_step(setting(), *(at + more)).time_us >= time_us


def test_a_grid_equals_its_points_and_parts_and_launches_add_up_to_the_step():
    sizes = np.array([1, 7, 64]), np.array([128, 4096]), np.array([1, 17, 112])
    grid = speculative_step(setting(), *np.ix_(*sizes))
    assert grid.time_us.shape == (3, 2, 3)
    for at in ((0, 0, 0), (1, 1, 2), (2, 0, 1)):
        point = speculative_step(
            setting(), *(int(axis[place]) for axis, place in zip(sizes, at, strict=True))
        )
        assert grid.time_us[at] == pytest.approx(float(point.time_us), rel=1e-12)
        assert grid.bound[at] == point.bound
        assert set(point.parts_us) <= set(PARTS)
        assert sum(point.parts_us.values()) + point.gaps_us == pytest.approx(
            float(point.device_us), rel=1e-12
        )


def test_a_host_bound_runtime_takes_a_smooth_maximum_of_device_and_host():
    eager = setting(runtime="hf-eager")
    step = decode_step(eager, 1, 128)
    assert step.host_us > step.device_us
    assert step.host_us < step.time_us < step.host_us + step.device_us
    assert step.bound == Bound.HOST
    big = speculative_step(eager, 64, 4096, 112)
    assert big.time_us == pytest.approx(float(big.device_us), rel=1e-2)
    assert step.low_us <= step.time_us <= step.high_us


def test_device_and_host_are_put_together_smoothly_and_what_is_exposed_adds():
    device = np.array([1.0, 10.0, 100.0])
    assert (step_us(device, 0.0) == device).all()
    assert step_us(device, device)[1] == pytest.approx(2.0 ** (1.0 / HOST_OVERLAP) * 10.0)
    host = np.array([[5.0], [50.0]])
    whole = step_us(device, host)
    assert whole.shape == (2, 3)
    assert (whole >= np.maximum(device, host)).all()
    assert (whole <= device + host).all()
    assert step_us(device, host, 3.0) == pytest.approx(whole + 3.0)


def test_costs_add_pass_by_pass_and_their_errors_in_quadrature():
    one, two = (
        Cost(device_us=np.array([d]), host_us=np.asarray(h), exposed_us=np.zeros(()),
             below_square=np.array([9.0]), above_square=np.array([16.0]))
        for d, h in ((10.0, 2.0), (20.0, 40.0))
    )  # fmt: skip
    both = one + two
    assert both.time_us == step_us(np.array([30.0]), 42.0)
    assert both.low_us == step_us(30.0 - np.hypot([3.0], [3.0]), 42.0)
    assert both.high_us == step_us(30.0 + np.hypot([4.0], [4.0]), 42.0)
    assert (one + two).time_us < one.time_us + two.time_us  # the host of one works ahead of the other


def test_heads_cost_what_they_read_a_block_no_drafting_and_a_slow_draft_its_host():
    (drafting,) = drafting_times(setting("vicuna-7b"), 1, 1024, 64)
    read_us = Medusa().weight_bytes(load_model("vicuna-7b")) / GPU.bandwidth_bytes_per_s * 1e6
    assert float(drafting.device_us) >= 0.99 * read_us
    assert drafting.host_us == 0.0
    assert drafting_times(setting(scope="block"), 1, 1024, 64) == ()
    slow = DraftModel(draft=load_model("llama-68m"), depth=4, runtime=load_runtime("hf-eager"))
    (first, *_) = drafting_times(setting(drafter=slow), 1, 512, 5)
    assert first.host_us > 0


def test_quantised_weights_make_decoding_faster_and_prefill_runs_one_head():
    full = setting("llama-2-7b", drafter=None)
    int4 = replace(full, model=with_dtypes(full.model, weight_dtype="int4"))
    quantised, plain = (decode_step(of, 1, 128).parts_us for of in (int4, full))
    assert quantised["mlp"] < 0.3 * plain["mlp"]
    assert quantised["lm_head"] == plain["lm_head"]
    long, short = (prefill_step(setting(), 1, tokens).parts_us for tokens in (4096, 128))
    assert long["lm_head"] == short["lm_head"]
    assert long["mlp"] > 10 * short["mlp"]


def test_borrowed_kernels_of_a_kind_share_a_part_of_their_error():
    """The band of a step adds that part of their half-widths, whatever their number; kinds in quadrature."""
    asked = {"gpu": "l4", "model": "llama-3.2-1b", "runtime": "cuda-graph", "drafter": "ngram"}
    of = Scenario(**asked, acceptance=0.6).setting
    step = decode_step(of, 1, 1024)
    assert step.source == Source.BORROWED
    launches = step_launches(of.model, decode(1, 1024), of.runtime, "model")
    times = [of.latency.time(launch.operator) for launch in launches]
    widths: dict[str, float] = {}
    for launch, time in zip(launches, times, strict=True):
        assert int(time.source) == Source.BORROWED
        kind = KIND_OF[launch.operator.kind].section
        # an L40S lends them, of Ada as an L4 is; norms come from an A40
        part = TOGETHER if kind == "elementwise" else TOGETHER_ALIKE
        widths[kind] = widths.get(kind, 0.0) + part * float(launch.count * (time.high_us - time.time_us))
    assert step.cost.above_square == pytest.approx(sum(width**2 for width in widths.values()), rel=1e-9)


@pytest.mark.parametrize(("name", "copies"), [("vicuna-7b", 0), ("zephyr-7b", 2)])
def test_eager_code_copies_k_and_v_to_all_query_heads(name, copies):
    model = load_model(name)
    for runtime, expected in (("hf-eager", copies * model.layers), ("cuda-graph", 0)):
        launches = model_launches(model, decode(1, 1024), load_runtime(runtime))
        assert sum(launch.count for launch in launches if launch.operator.name == "repeat_kv") == expected


def served(runtime: str, **given: object) -> Scenario:
    return Scenario(gpu="b200", model="deepseek-r1", drafter="mtp", runtime=runtime, **given)


def test_tensorrt_llm_fills_the_weights_and_a_share_of_the_rest_and_what_is_known_to_run_fits():
    scenario = served("tensorrt-llm", tp=8)
    weights, card = scenario.shard.weight_bytes, scenario.gpu.memory_bytes
    taken = CONTEXT_BYTES + LINKED_BYTES
    left = card - taken - weights
    assert scenario.usable_memory_bytes == pytest.approx(weights + 0.9 * left, rel=1e-12)
    assert served("sglang", tp=8).usable_memory_bytes == USABLE_MEMORY_SHARE * card - taken
    # InferenceX serves DeepSeek-R1 in fp8 on four B200 with TensorRT-LLM: 32 requests of 8192 + 1024 tokens
    found = served("tensorrt-llm", tp=4).sweep([1, 32, 1024], 8192 + 512, [1])
    assert found.fits_memory.tolist() == [True, True, False]
    for runtime in ("tensorrt-llm", "sglang"):  # the weights alone overfill
        small = served(runtime, tp=4).but(gpu="h200-sxm")
        assert small.usable_memory_bytes < small.shard.weight_bytes


def test_a_looked_up_step_is_the_mean_over_those_that_find_drafts():
    """(N5): one request has plain steps among its own; of several every number of hits counts."""
    asked = {"gpu": "l40s", "model": "llama-3.1-8b", "drafter": "ngram", "runtime": "vllm", "acceptance": 0.4}
    setting = replace(Scenario(**asked).setting, verified=Verified(match_rate=0.3))
    all_find = replace(setting, verified=Verified())

    def time_us(of: Setting, batch: float, candidates: float) -> float:
        return float(
            verification_step(of, np.asarray(batch), np.asarray(16_384), np.asarray(candidates)).time_us
        )

    plain, found = time_us(all_find, 1, 1), time_us(all_find, 1, 4)
    assert time_us(setting, 1, 4) == pytest.approx(0.7 * plain + 0.3 * found, rel=1e-3)
    odds = [comb(3, hits) * 0.3**hits * 0.7 ** (3 - hits) for hits in range(4)]
    each = [time_us(all_find, 3, 1 + 3 * hits / 3) for hits in range(4)]
    assert time_us(setting, 3, 4) == pytest.approx(np.dot(odds, each), rel=3e-3)
    # nothing jumps where drafts are found a little more often, on either side of a tile
    rates = np.linspace(0.05, 0.95, 91)
    times = [time_us(replace(setting, verified=Verified(match_rate=rate)), 64, 4) for rate in rates]
    assert np.abs(np.diff(np.log(times))).max() < 0.03


@given(draws=st.integers(1, 3000), rate=st.floats(0.01, 0.99))
def test_parts_of_those_that_find_drafts_keep_their_mean(draws, rate):
    shares, weights = found_shares(np.asarray([float(draws)]), rate)
    assert weights.sum() == pytest.approx(1.0)
    assert float((shares * weights).sum()) == pytest.approx(rate, rel=1e-6)
    assert (shares <= 1.0 + 1e-9).all()


@pytest.mark.parametrize("requests", [2.5, 0.5, 0.0])
def test_only_whole_requests_find_drafts(requests):
    with pytest.raises(ValueError, match=f"not by {requests:g}"):
        found_shares(np.array([4.0, requests]), 0.5)


@pytest.mark.parametrize("drafter", ["ngram", "suffix"])
def test_a_looked_up_step_takes_any_shapes(drafter):
    asked = {"gpu": "h100-sxm", "model": "llama-3.1-8b", "drafter": drafter, "runtime": "vllm"}
    setting = Scenario(**asked, acceptance=0.4).setting
    lengths = np.array([100, 1000, 5000])
    many = verification_step(setting, 4, lengths, 3).time_us
    each = [
        float(verification_step(setting, np.asarray(4), np.asarray(one), np.asarray(3)).time_us)
        for one in lengths
    ]
    np.testing.assert_allclose(many, each)


@pytest.mark.parametrize(("requests", "rate"), [(1, 0.3), (4, 0.25), (10, 0.8)])
def test_requests_that_find_drafts_are_none_or_quarters_of_the_rest(requests, rate):
    """None has its own probability; the mean is the rate; the lowest quarter's mean is by hand."""
    shares, weights = found_shares(np.array([float(requests)]), rate)
    told = [comb(requests, k) * rate**k * (1 - rate) ** (requests - k) for k in range(requests + 1)]
    assert weights[0] == pytest.approx([told[0], *[(1 - told[0]) / 4] * 4])
    assert float((shares * weights).sum()) == pytest.approx(rate)
    left, lowest = (1 - told[0]) / 4, 0.0
    for k in range(1, requests + 1):
        taken = min(told[k], left)
        lowest, left = lowest + taken * k, left - taken
    assert shares[0, 0] == 0.0
    assert shares[0, 1] * requests == pytest.approx(lowest / ((1 - told[0]) / 4))
