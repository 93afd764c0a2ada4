"""Several GPUs and mixtures of experts in a step: shapes of the shards, what is exchanged, memory, bands."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import medusa_sim as ms
from medusa_sim.doubts.of_scenario import scenario_doubts
from medusa_sim.engines.runtime import load_runtime
from medusa_sim.errors import UsageError
from medusa_sim.gpus.gpu import load_gpu
from medusa_sim.latency.operator_time import OperatorTime
from medusa_sim.models.feed_forwards import MoE
from medusa_sim.models.layer_group import LayerGroup
from medusa_sim.models.model import Model
from medusa_sim.models.named import load_model
from medusa_sim.models.parallel import Parallel
from medusa_sim.models.variants import on_one_gpu
from medusa_sim.operators.attention import Attention
from medusa_sim.operators.collective import Collective
from medusa_sim.operators.dispatch import Dispatch
from medusa_sim.operators.experts import Experts
from medusa_sim.operators.gemm import Gemm
from medusa_sim.operators.latent import LatentAttention
from medusa_sim.operators.operator import Operator
from medusa_sim.operators.window import WindowAttention
from medusa_sim.scenario.as_run import check_fit
from medusa_sim.scenario.scenario import Scenario
from medusa_sim.step.drafter.layer import Mtp
from medusa_sim.step.drafting import drafting_times
from medusa_sim.step.expert_union import (
    CHAIN,
    DISJOINT,
    INDEPENDENT,
    OVERLAPS,
    TREE,
    of_busiest,
    union,
    union_band,
)
from medusa_sim.step.launch import Launch
from medusa_sim.step.memory import fewest_gpus, step_memory_bytes
from medusa_sim.step.network import model_launches
from medusa_sim.step.step import decode_step, verification_step
from medusa_sim.step.workload import decode, prefill, verify

ENGINE = load_runtime("vllm")


def _launches(model: Model, batch: int = 8, candidates: int = 1, **ways: object) -> dict[str, Launch]:
    """Kernels of one step by name; those of one name differ in their sizes alone."""
    shard = on_one_gpu(model, Parallel(**ways))
    launches = model_launches(shard, verify(batch, 1024, candidates), ENGINE)
    return {launch.operator.name: launch for launch in launches}


def _flops(launches: dict[str, Launch], *kinds: type[Operator]) -> float:
    return sum(
        launch.count * float(launch.operator.flops)
        for launch in launches.values()
        if isinstance(launch.operator, kinds)
    )


@pytest.mark.parametrize("name", ["llama-3.1-70b", "mixtral-8x7b", "deepseek-r1"])
@pytest.mark.parametrize("tp", [2, 4, 8])
def test_tensor_parallel_gpus_share_the_arithmetic(name, tp):
    model = load_model(name)
    whole, part = _launches(model), _launches(model, tp=tp)
    for kinds in ((Attention, LatentAttention), (Experts,)):
        assert tp * _flops(part, *kinds) == pytest.approx(_flops(whole, *kinds))
    # routers and the compression of latent attention are computed by all
    same = _flops({key: whole[key] for key in ("router", "qkv_a_proj") if key in whole}, Gemm)
    split = tp * (_flops(part, Gemm) - same) + same
    assert split == pytest.approx(_flops(whole, Gemm), rel=1e-9)


def test_kv_heads_that_do_not_divide_are_held_twice():
    model = load_model("qwen3-30b-a3b")  # four K/V heads
    kernel = _launches(model, tp=8)["verify_attention"].operator
    assert isinstance(kernel, Attention)
    assert (kernel.heads, kernel.kv_heads) == (4, 1)
    assert on_one_gpu(model, Parallel(tp=8)).kv_bytes_per_token == model.kv_bytes_per_token / 4


@given(tp=st.sampled_from([2, 4, 8]), batch=st.integers(1, 300), candidates=st.integers(1, 8))
def test_two_reductions_a_layer_and_one_of_the_embedding(tp, batch, candidates):
    model = load_model("llama-3.1-70b")
    launches = _launches(model, batch, candidates, tp=tp)
    reduce = launches["all_reduce"]
    assert isinstance(reduce.operator, Collective)
    assert reduce.count == 2 * model.layers + 1
    assert reduce.operator.ranks == tp
    assert float(np.asarray(reduce.operator.message_bytes)) == batch * candidates * model.hidden * 2
    gather = launches["logit_gather"].operator
    assert isinstance(gather, Collective)
    assert float(np.asarray(gather.message_bytes)) == batch * candidates * model.vocab * 2
    assert not {"all_reduce", "logit_gather"} & _launches(model).keys()


def test_data_parallel_attention_works_on_its_own_sequences():
    model = load_model("deepseek-r1")
    launches = _launches(model, 64, 2, tp=8, ep=8, dp_attention=True)
    attention, experts = launches["mla_decode"].operator, launches["experts"].operator
    assert isinstance(attention, LatentAttention)
    assert (float(attention.batch), attention.heads) == (8, 128)
    assert isinstance(experts, Experts)
    assert (experts.local_experts, experts.inter) == (32, 2048)
    assert float(np.asarray(experts.rows)) == pytest.approx(128 + 1.4345 * (128 * 7 / 8) ** 0.5, rel=1e-3)
    sent = launches["dispatch"]
    assert isinstance(sent.operator, Dispatch)
    assert (float(np.asarray(sent.operator.tokens)), sent.count) == (16, 58)
    assert "all_reduce" not in launches
    gathered = _launches(model, 64, 2, tp=8, dp_attention=True)
    assert gathered["reduce_scatter"].count == model.layers
    assert "dispatch" not in gathered


@pytest.mark.parametrize(("weights", "byte"), [("nvfp4", 0.5625), ("fp8_block", 2.0)])
def test_tensorrt_llm_gathers_tokens_before_experts_that_few_gpus_share(weights, byte):
    engine = load_runtime("tensorrt-llm")
    for gpus, gathers in ((8, True), (16, False)):
        of = Scenario(
            gpu="b200", model="deepseek-r1", weight_dtype=weights, runtime="tensorrt-llm", tp=gpus, ep=gpus,
            dp_attention=True, drafter="mtp",
        )  # fmt: skip
        sent = [
            (launch.count, launch.operator)
            for launch in model_launches(of.shard, verify(64, 1024, 1), engine)
            if isinstance(launch.operator, Collective) and launch.operator.name != "logit_gather"
        ]
        experts, dense = (58, 3) if gathers else (0, 3)
        hidden = of.model.hidden
        assert (experts + dense, 64 * hidden * 2) in [(n, op.message_bytes) for n, op in sent]
        sizes = {op.message_bytes: n for n, op in sent if op.kind == "all_gather"}
        assert sizes.get(64 * hidden * byte, 0) >= experts
        dispatched = [
            one for one in model_launches(of.shard, verify(64, 1024, 1), engine)
            if isinstance(one.operator, Dispatch)
        ]  # fmt: skip
        assert bool(dispatched) != gathers


def test_tensorrt_llm_adds_up_in_one_shot_to_128_rows_of_any_width():
    """2 MiB of a 70B's rows go on along the line of 256 and 512 KiB on eight H200; 129 rows are no faster."""
    engine = load_runtime("tensorrt-llm")
    of = Scenario(gpu="h200-sxm", model="llama-3.1-70b", runtime="tensorrt-llm", tp=8, drafter="eagle3")

    def sum_time(batch: int) -> OperatorTime:
        launches = model_launches(of.shard, verify(batch, 1024, 1), engine)
        (summed,) = (one.operator for one in launches if one.operator.name == "all_reduce")
        return of.setting.latency.time(summed)

    few, more, all_us, beyond = (float(sum_time(batch).time_us) for batch in (8, 16, 128, 129))
    assert all_us == pytest.approx(more + 14.0 * (more - few), rel=1e-3)
    assert beyond == pytest.approx(all_us)
    assert sum_time(129).low_us < 0.6 * sum_time(128).low_us  # the library's own choice


@pytest.mark.parametrize(("gpu", "sends"), [("b200", False), ("h200-sxm", False), ("gb200", True)])
def test_tensorrt_llm_sends_tokens_to_their_experts_where_nvlink_joins_nodes(gpu, sends):
    """Four experts a token on eight GPUs: DeepEP's kernels are 106 us a layer on a B200, gathering 36."""
    of = Scenario(
        gpu=gpu, model="gpt-oss-120b", runtime="tensorrt-llm", tp=8, ep=8, dp_attention=True
    ).setting
    sent = {
        one.operator.kind: one.operator
        for one in model_launches(of.shard, decode(64, 1024), of.runtime)
        if one.part == "exchange"
    }
    assert ("dispatch" in sent, "reduce_scatter" in sent) == (sends, not sends)
    if gpu == "b200":
        us = sum(float(of.latency.time(sent[kind]).time_us) for kind in ("all_gather", "reduce_scatter"))
        assert us < 50.0


@pytest.mark.parametrize("gpu", ["rtx-pro-6000", "l40s"])
def test_tensorrt_llm_leaves_sums_over_pcie_to_nccl(gpu):
    """In one shot 128 rows of a 70B took longer than 256 by NCCL."""
    of = Scenario(gpu=gpu, model="llama-3.1-70b", runtime="tensorrt-llm", tp=8, dtype="fp8").setting
    launches = model_launches(of.shard, decode(np.array([64.0, 128.0, 256.0]), 1024), of.runtime)
    summed = next(one.operator for one in launches if one.operator.name == "all_reduce")
    time_us = of.latency.time(summed).time_us
    assert time_us == pytest.approx(of.latency.time(replace(summed, one_shot_bytes=0.0)).time_us)
    assert time_us[1] < 0.9 * time_us[2]


def test_one_expert_that_all_take_is_a_dense_mlp():
    dense = load_model("llama-3.1-8b")
    one = MoE(experts=1, topk=1, inter=dense.mlp.width)
    mixed = replace(dense, groups=(LayerGroup(dense.layers, (dense.attention,), one),))
    assert mixed.parameter_count == dense.parameter_count + dense.layers * dense.hidden  # a router a layer
    assert mixed.active_parameter_count == mixed.parameter_count
    for batch, candidates in ((1, 1), (8, 4), (64, 2)):
        kernel = _launches(mixed, batch, candidates)["experts"].operator
        mlp = [_launches(dense, batch, candidates)[key].operator for key in ("gate_up_proj", "down_proj")]
        for count in ("flops", "weight_bytes"):
            expected = sum(float(getattr(each, count)) for each in mlp)
            assert float(getattr(kernel, count)) == pytest.approx(expected, rel=1e-9)


@given(batch=st.integers(1, 256), candidates=st.integers(1, 16))
def test_the_experts_that_are_read_are_the_union(batch, candidates):
    model = load_model("qwen3-30b-a3b")
    launch = _launches(model, batch, candidates)["experts"]
    kernel = launch.operator
    assert isinstance(kernel, Experts)
    assert float(np.asarray(kernel.hit)) == pytest.approx(float(union(128, 8, batch, candidates, CHAIN)))
    assert launch.ends is not None
    few, many = (float(np.asarray(end.hit)) for end in launch.ends)
    assert 8 - 1e-9 <= few <= float(np.asarray(kernel.hit)) <= many <= 128 + 1e-9


def _priced(**changes: object) -> Scenario:
    given = {"gpu": "h100-sxm", "model": "qwen3-30b-a3b", "latency": "roofline", "drafter": "ngram"}
    return Scenario(**given | {"acceptance": "0.7"} | changes)


def test_the_spread_of_the_union_is_in_the_band_and_dear_in_the_middle():
    setting = _priced().setting
    plain, wide = decode_step(setting, 8, 1024), verification_step(setting, 8, 1024, 4)
    assert float(wide.low_us) < float(wide.time_us) < float(wide.high_us)
    # one token a sequence has no overlap to be unsure of; what is wrong of a set-up is wrong of both
    sure, unsure = (replace(step.cost, setup_half_us=np.zeros(())) for step in (plain, wide))
    assert float(sure.high_us - sure.time_us) < 0.5 * float(unsure.high_us - unsure.time_us)
    alone = replace(setting, overlap=INDEPENDENT)
    assert float(verification_step(alone, 8, 1024, 4).time_us) > float(wide.time_us)
    batch = np.asarray([8, 256])
    ratio = verification_step(setting, batch, 1024, 4).device_us / decode_step(setting, batch, 1024).device_us
    assert ratio[0] > 1.5
    assert ratio[1] < 1.2  # every expert is read anyway


def test_weights_and_cache_of_one_gpu():
    def held(model: Model, batch: int, length: int, **ways: object) -> float:
        return float(step_memory_bytes(on_one_gpu(model, Parallel(**ways)), None, batch, length, 1))

    model, latent = load_model("llama-3.1-70b"), load_model("deepseek-r1")
    assert 0.25 < held(model, 8, 4096, tp=4) / held(model, 8, 4096, tp=1) < 0.26
    whole, own = (
        held(latent, 64, 8192, tp=8, **ways) - held(latent, 64, 0, tp=8, **ways)
        for ways in ({}, {"ep": 8, "dp_attention": True})
    )
    assert whole == pytest.approx(64 * 8192 * latent.kv_bytes_per_token)
    assert own == pytest.approx(whole / 8)


def test_windowed_layers_read_their_window():
    model = load_model("gpt-oss-120b")
    for workload in (decode(4, 8192), verify(4, 8192, 4), prefill(2, 8192)):
        launches = model_launches(model, workload, ENGINE)
        attention = [each for each in launches if isinstance(each.operator, Attention | WindowAttention)]
        assert [launch.count for launch in attention] == [18, 18]
        full, windowed = (float(launch.operator.flops) for launch in attention)
        assert windowed < 0.05 * full
    (window,) = (each for each in attention if isinstance(each.operator, WindowAttention))
    # every query of a long prompt has its 128 keys, in the kernel and in what stands for it
    for operator in (window.operator, *(each.operator for each in window.composed)):
        assert float(operator.flops) == pytest.approx(4 * 2 * 64 * 64 * 8192 * 128, rel=0.01)


def test_how_many_gpus_a_model_needs():
    model, gpu = load_model("llama-3.3-70b"), _priced().gpu
    assert fewest_gpus(model, gpu, Parallel()) == 2
    assert any("--tp 2 would" in line for line in scenario_doubts(_priced(model="llama-3.3-70b")))
    assert not any("GPU" in line for line in scenario_doubts(_priced()))


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"gpu": "cpu-emerald-rapids-1m", "model": "llama-68m", "tp": 2}, "has no link to another GPU"),
        ({"runtime": "paper"}, "has experts"),
        ({"tp": 3}, r"heads \(32\) cannot be split over tp 3"),
        ({"overlap": "none"}, "unknown overlap 'none'"),
        ({"model": "llama-2-70b", "tp": 8, "drafter": "draft-model", "draft_model": "llama-68m"},
         r"llama-68m: heads \(12\) cannot be split over tp 8"),
    ],
)  # fmt: skip
def test_what_cannot_be_priced(changes, told):
    with pytest.raises(UsageError, match=told):
        _priced(**changes)


def test_hosts_under_data_parallel_attention_have_their_own_requests():
    ways = {"gpu": "b200", "model": "deepseek-r1", "drafter": "mtp", "runtime": "tensorrt-llm", "tp": 8}
    shared, apart = (Scenario(**ways, ep=8, dp_attention=apart).setting for apart in (False, True))
    assert (shared.parallel.schedulers, apart.parallel.schedulers) == (1, 8)
    every, own, alone = (
        float(decode_step(setting, batch, 1024).cost.exposed_us)
        for setting, batch in ((shared, 64), (apart, 64), (shared, 8))
    )
    assert own == pytest.approx(alone)
    assert own < every


def test_sglangs_pass_over_accepted_tokens_is_in_no_graph_on_hopper():
    """eagle_worker_v2.py of 0.5.12 captures it for Triton and trtllm-gen's latent attention alone."""

    def exposed(gpu: str, runtime: str, backend: str = "") -> list[float]:
        launched = replace(load_runtime(runtime), backend=backend)
        found = Scenario(gpu=gpu, model="deepseek-r1", drafter="mtp", runtime=launched, tp=8)
        passes = drafting_times(replace(found.setting, drafter=Mtp(depth=2)), 4, 1024, 3)
        return [float(each.cost.exposed_us) for each in passes if each.passes]

    engine = load_runtime("sglang").engine
    first, later = exposed("h200-sxm", "sglang", "FLASHINFER_MLA")
    added = engine.plan_us_per_pass.value + engine.pieces_us_per_layer.value
    assert first - later == pytest.approx(added, rel=0.02)
    for gpu, runtime in (("b200", "sglang"), ("h200-sxm", "tensorrt-llm")):
        first, later = exposed(gpu, runtime)
        assert first < 2.0 * later


TOKENS = np.array([1, 2, 4, 8, 16, 64, 256, 4096])


@pytest.mark.parametrize("name", OVERLAPS)
def test_one_token_wakes_its_own_experts_and_many_wake_them_all(name):
    law = OVERLAPS[name]
    assert union(128, 8, 1, 1, law) == pytest.approx(8.0)
    assert union(128, 8, 100_000, 4, law) == pytest.approx(128.0)
    assert union(8, 8, 1, 3, law) == pytest.approx(8.0)
    grown = union(128, 8, 1, TOKENS, law)
    assert np.all(np.diff(grown) >= 0.0)
    assert np.all((grown >= 8.0 - 1e-9) & (grown <= 128.0))


def test_sequences_choose_independently_and_sharing_orders_the_laws():
    tree, chain, alone, apart = (
        union(256, 8, 1, TOKENS[1:], law) for law in (TREE, CHAIN, INDEPENDENT, DISJOINT)
    )
    assert np.all(tree < chain)
    assert np.all(chain <= alone)
    assert np.all(alone <= apart)
    np.testing.assert_allclose(union(64, 4, TOKENS, 1, CHAIN), union(64, 4, TOKENS, 1, INDEPENDENT))
    np.testing.assert_allclose(union(64, 4, 3, 5, CHAIN), union(64, 4, 3 * 5**CHAIN.beta, 1))


def test_tokens_that_choose_popular_experts_wake_fewer():
    """Drawn: 64 experts, 4 a token, popularities of shape 2; a token takes each independently."""
    drawn = np.random.default_rng(7)
    liked = drawn.beta(2.0, 2.0 * (64 / 4 - 1), (4000, 64))
    for tokens in (2, 8, 40):
        woken = (1.0 - (1.0 - liked) ** tokens).sum(axis=1).mean()
        assert float(union(64, 4, tokens, 1)) == pytest.approx(woken, rel=0.01)
        assert woken < 64 * (1 - (1 - 4 / 64) ** tokens)


def test_the_band_holds_the_union():
    low, high = union_band(128, 8, 4, TOKENS, CHAIN)
    whole = union(128, 8, 4, TOKENS, CHAIN)
    assert np.all((low <= whole) & (whole <= high))
    assert [float(end) for end in union_band(128, 8, 4, 3, DISJOINT)] == [96.0, 96.0]


def test_a_published_count_of_a_chain_is_met():
    """Cohere's own model, 128 experts, 8 a token: four consecutive tokens wake 20.36 of them."""
    assert union(128, 8, 1, 4, CHAIN) == pytest.approx(20.36, rel=0.08)
    assert union(128, 8, 1, 4, INDEPENDENT) == pytest.approx(27.97, rel=1e-3)


def test_the_busiest_of_spread_experts_is_that_of_a_draw():
    generator = np.random.default_rng(5)
    experts, topk, ranks, tokens = 256, 8, 8, 16
    draws = np.argsort(generator.random((400, tokens, experts)), axis=2)[..., :topk]
    hit = np.array([np.bincount(np.unique(draw) // (experts // ranks), minlength=ranks) for draw in draws])
    pairs = np.array([np.bincount((draw // (experts // ranks)).ravel(), minlength=ranks) for draw in draws])
    whole, held = experts * (1.0 - (1.0 - topk / experts) ** tokens), experts // ranks
    assert float(of_busiest(whole, ranks, held)) == pytest.approx(hit.max(axis=1).mean(), rel=0.03)
    assert float(of_busiest(tokens * topk, ranks)) == pytest.approx(pairs.max(axis=1).mean(), rel=0.03)
    assert float(of_busiest(whole, 1, experts)) == float(whole)
    assert float(of_busiest(experts, ranks, held)) == held


@pytest.mark.parametrize(("card", "ep", "fused"), [("h200-sxm", 1, 1), ("h200-sxm", 8, 0), ("b200", 1, 0)])
def test_sglang_runs_the_shared_expert_with_the_routed_ones(card, ep, fused):
    scenario = ms.Scenario(gpu=card, model="deepseek-r1", runtime="sglang-0.5", tp=8, ep=ep)
    shard = on_one_gpu(scenario.model, scenario.parallel)
    launches = {
        launch.operator.name: launch.operator
        for launch in model_launches(shard, decode(4, 1024), scenario.setting.runtime)
    }
    assert launches["experts"].topk == 8 + fused
    assert ("shared_down_proj" in launches) == (not fused)


@pytest.mark.parametrize(("dense", "has"), [(False, "experts"), (True, "latent attention")])
def test_kernels_of_a_paper_are_refused_for_what_a_model_has(dense, has):
    model = load_model("deepseek-r1")
    if dense:
        groups = tuple(group for group in model.groups if not isinstance(group.feed_forward, MoE))
        model = replace(model, groups=groups)
    with pytest.raises(UsageError, match=f"has {has}:"):
        check_fit(model, load_runtime("paper"), load_gpu("h100-sxm"))
