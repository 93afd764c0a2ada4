"""Numbers of a step by hand: chances, kernels of one device, drafts that end early, the roofline."""

from dataclasses import replace

import numpy as np
import pytest
from left_out import numbers_left_out
from msgspec import structs
from on_roofline import GPU, LLAMA, ROOF, setting

from medusa_sim.engines.runtime import load_runtime
from medusa_sim.engines.term import Term
from medusa_sim.errors import UsageError
from medusa_sim.gpus.gpu import load_gpu
from medusa_sim.grid.axes import Grid
from medusa_sim.latency.operator_time import Bound, OperatorTime, Source
from medusa_sim.latency.roofline import RooflineLatency
from medusa_sim.models.parallel import Parallel
from medusa_sim.operators.attention import Attention
from medusa_sim.operators.elementwise import Elementwise
from medusa_sim.operators.gemm import Gemm
from medusa_sim.operators.operator import Operator
from medusa_sim.operators.table import read_rows
from medusa_sim.scenario.scenario import Scenario
from medusa_sim.step import memory
from medusa_sim.step.accepting import acceptance_launches
from medusa_sim.step.compose import Cost, overhead_halves
from medusa_sim.step.drafter.base import DrafterParts
from medusa_sim.step.drafter.layer import Eagle3, Mtp
from medusa_sim.step.drafting import drafting_cost, drafting_times, eager_levels_us
from medusa_sim.step.expert_union import DISJOINT, INDEPENDENT, union
from medusa_sim.step.graphs import is_captured, padded_tokens, step_rows
from medusa_sim.step.host import drafting_us
from medusa_sim.step.kernels import argmax_us, kernel_time, launch_time
from medusa_sim.step.launch import Launch
from medusa_sim.step.memory import profiled_bytes, usable_memory_bytes
from medusa_sim.step.network import model_launches
from medusa_sim.step.pass_cost import pass_cost
from medusa_sim.step.pass_work import PassWork
from medusa_sim.step.rows import predicted_rows
from medusa_sim.step.sampling import filter_us
from medusa_sim.step.setting import Setting
from medusa_sim.step.sparse import reading_at_most
from medusa_sim.step.step import (
    _longest_path,
    decode_step,
    prefill_step,
    speculative_step,
    verification_step,
)
from medusa_sim.step.timed_kernels import TimedKernels
from medusa_sim.step.verified import Verified, drafted_tokens, mean_drafted_tokens
from medusa_sim.step.workload import decode, verify


def test_a_step_is_the_targets_pass_and_those_that_draft():
    """Three drafts of a layer are three passes; one candidate drafts none, a block has no drafter."""
    of = setting(drafter=Eagle3(depth=3))

    def passes(of: Setting) -> list[str]:
        return [kernels.work.name for kernels in speculative_step(of, 2, 512, 4).passes]

    assert passes(of) == ["target", "draft", "draft", "draft"]
    assert passes(replace(of, scope="block")) == ["target"]
    assert [kernels.work.name for kernels in decode_step(of, 2, 512).passes] == ["target"]


def test_of_many_keys_each_query_reads_its_choice_and_a_prompt_is_cut_into_blocks():
    """2,000 keys are chosen: of 6,000 a prompt's three blocks read 3,000 each, of 1,500 all are read."""
    keys = np.array([1500.0, 2003.0, 6000.0])

    def sizes(of: Operator) -> list[list[float]]:
        return [np.broadcast_to(getattr(of, name), 3).tolist() for name in ("batch", "q_len", "kv_len")]

    heads = {"heads": 8, "kv_heads": 8, "head_dim": 64}
    one = Attention(name="a", kind="prefill_attention", dtype="bf16", batch=4, q_len=600, kv_len=1, **heads)
    blocks = [1, 2003 / 2000, 3]
    assert sizes(reading_at_most(one, keys, 2000, prompt=True)) == [
        pytest.approx([4 * cut for cut in blocks]), pytest.approx([600 / cut for cut in blocks]),
        [1500, 3000, 3000],
    ]  # fmt: skip
    few = replace(one, q_len=3)
    assert sizes(reading_at_most(few, keys, 2000, prompt=False)) == [
        [4, 4, 12],
        [3, 3, 1],
        [1500, 2003, 2000],
    ]


def test_drafts_end_before_the_first_token_that_is_not_kept():
    """Kept by 0.5, then by 0.4, and so on: of three drafts none by a half, three by 0.08."""
    batch, drafts = np.array([1.0, 2.0, 20.0]), np.array([3.0, 2.0, 1.0])
    tokens, weights = drafted_tokens(batch, drafts, (0.5, 0.4))
    assert tokens.shape == weights.shape == (3, 1 + 8)
    assert weights[0, :5] == pytest.approx([0.5, 0.3, 0.12, 0.08, 0.0])
    assert tokens[0, :4] == pytest.approx([1, 2, 3, 4])
    # 1 + 0.5 + 0.2 + 0.08 tokens of three drafts, 1 + 0.5 of one
    assert mean_drafted_tokens(np.array([3.0, 1.0, 0.0]), (0.5, 0.4)) == pytest.approx([1.78, 1.5, 1.0])
    # two requests of 0, 1 or 2 drafts with 0.5, 0.3 and 0.2: their sum
    assert weights[1, :6] == pytest.approx([0.25, 0.3, 0.29, 0.12, 0.04, 0.0])
    assert tokens[1, :5] == pytest.approx([1, 1.5, 2, 2.5, 3])
    # twenty are as eight
    assert weights[2] == pytest.approx([1 / 256 * n for n in (1, 8, 28, 56, 70, 56, 28, 8, 1)])
    assert tokens[2] == pytest.approx(1 + np.arange(9) / 8)


@pytest.mark.parametrize(
    ("runtime", "shares"), [("cuda-graph", [1, 0.5, 0.2]), ("llama.cpp-cuda", [1, 1, 0.5, 0.2])]
)
def test_a_pass_runs_in_the_rounds_that_reach_it(runtime, shares):
    """llama.cpp reads what was verified in a pass of its own; what a server adds is added once."""
    whole = setting(runtime, drafter=Eagle3(depth=3))
    early = replace(whole, verified=Verified(sure_shares=(0.5, 0.4, 0.3)))
    passes, fewer = (drafting_times(each, 1, 1024, 4)[: len(shares)] for each in (whole, early))
    found = [float(one.time_us / all_of.time_us) for one, all_of in zip(fewer, passes, strict=True)]
    assert found == pytest.approx(shares)


def test_a_round_that_may_end_early_takes_the_mean_over_its_widths():
    whole = setting(drafter=Eagle3(depth=3))
    early = replace(whole, verified=Verified(sure_shares=(0.5, 0.4, 0.3)))
    mean = sum(
        chance * float(verification_step(whole, 1, 1024, width).time_us)
        for width, chance in ((1, 0.5), (2, 0.3), (3, 0.14), (4, 0.06))
    )
    assert float(verification_step(early, 1, 1024, 4).time_us) == pytest.approx(mean)
    assert float(early.verified.mean_tokens(4)) == pytest.approx(0.5 + 0.6 + 0.42 + 0.24)


def test_kernels_of_one_device_are_off_together_beside_what_each_is_by_itself():
    """Two launches of 100 us, each off by 0.3 on the logarithm, of which all share 0.18; and one of 50."""

    def launched(time_us: float, count: int) -> tuple[Launch, OperatorTime]:
        one = np.asarray(time_us)
        time = OperatorTime(
            time_us=one, low_us=one * np.exp(-0.3), high_us=one * np.exp(0.3), bound=np.asarray(Bound.MEMORY),
            source=np.asarray(Source.CALIBRATED), device_half=0.18,
        )  # fmt: skip
        return Launch(operator=Gemm(name="a", m=1, n=1, k=1, dtype="fp16"), part="mlp", count=count), time

    launches = launched(100.0, 2), launched(50.0, 1)
    work = PassWork(
        launches=tuple(launch for launch, _ in launches), runtime=load_runtime("cuda-graph"),
        workload=decode(1, 1), name="target",
    )  # fmt: skip
    kernels = TimedKernels(work=work, times=launches)
    own = np.sqrt(0.3**2 - 0.18**2)  # 0.24
    below, above, shared = kernels.band
    ((shared_below, shared_above),) = shared.values()
    assert (float(below), float(above)) == (0.0, 0.0)
    assert float(shared_below) == pytest.approx(250 * (1 - np.exp(-own)))
    assert float(shared_above) == pytest.approx(250 * (np.exp(own) - 1))
    assert float(kernels.device_half_us) == pytest.approx(250 * 0.18)


def test_a_server_keeps_room_for_a_step_or_for_choosing_tokens_at_its_start():
    engine = load_runtime("vllm-0.11").engine
    of_logit = engine.profiled_bytes_per_logit.value
    choosing = of_logit * LLAMA.whole_vocab * 1024
    step = 8192 * 2 * (3 * LLAMA.mlp.width + 2 * LLAMA.hidden) + 256 * 4 * LLAMA.whole_vocab
    assert profiled_bytes(LLAMA, engine, 8192, 1024, 256) == pytest.approx(choosing)
    assert profiled_bytes(LLAMA, engine, 8192, 1, 256) == profiled_bytes(LLAMA, None, 8192, 1024, 256) == step


def test_a_gpu_that_shares_the_hosts_memory_fills_its_share_of_it():
    shared = replace(load_gpu("gb10"), kernels={})  # run by local engines alone
    assert usable_memory_bytes(shared) == pytest.approx(0.9 * 0.9 * 128 * 2**30)


def test_kernels_take_a_share_of_their_time_and_gaps_between_them_stay():
    whole = prefill_step(setting("cuda-graph"), 1, 512)
    kernels = sum(float(part) for part in whole.parts_us.values())
    assert whole.gaps_us > 0.0
    assert float(whole.with_kernels_share(0.25).device_us) == pytest.approx(0.25 * kernels + whole.gaps_us)


def test_what_is_beside_kernels_is_the_rest_of_the_step():
    eager = decode_step(setting("hf-eager"), 1, 1024)
    kernels = sum(float(part) for part in eager.parts_us.values())
    assert float(eager.no_kernels_us) == pytest.approx(float(eager.time_us) - kernels)


def test_a_grid_counts_its_rows_and_names_the_size_that_is_none():
    assert Grid.of([1, 2], [10, 20, 30], [1, 2, 3, 4]).rows == 24
    with pytest.raises(UsageError, match="batch -3"):
        Grid.of([4, -3, 0], [1], [1])
    with pytest.raises(UsageError, match="seq_len 9000000"):
        Grid.of([1], [5, 9_000_000_000_000_000_000], [1])


def cost(**squares: float) -> Cost:
    """100 us of kernels (10 less to 20 more) and 10 beside them."""
    given = {"device_us": 100.0, "exposed_us": 10.0, "below_square": 100.0, "above_square": 400.0} | squares
    return Cost(**{name: np.asarray(value) for name, value in given.items()})


def test_a_band_joins_kernels_an_engine_and_a_set_up_in_quadrature_and_ends_at_the_kernels():
    bare, served = cost(), cost(step_square=9.0, draft_square=16.0)
    beside_others = cost(step_square=9.0, draft_square=16.0, setup_half_us=12.0)
    assert [float(each.time_us) for each in (bare, served, beside_others)] == [110.0] * 3
    assert [float(each.low_us) for each in (bare, served, beside_others)] == pytest.approx(
        [100.0, 110 - 125**0.5, 110 - 269**0.5]
    )
    assert [float(each.high_us) for each in (bare, served, beside_others)] == pytest.approx(
        [130.0, 110 + 425**0.5, 110 + 569**0.5]
    )
    # an engine adds nothing negative: kernels alone at their fastest are the floor
    assert float(cost(exposed_us=1.0, step_square=400.0).low_us) == pytest.approx(90.0)


def test_a_ratio_of_an_engines_steps_has_half_of_both_bands_and_what_published_gains_miss_by():
    plain, step = (
        cost(device_us=40.0, step_square=9.0),
        cost(step_square=9.0, draft_square=16.0, gain_square=0.01),
    )
    engine = np.hypot(3 / 110 - 3 / 50, 4 / 110)
    told = [
        np.hypot(0.5 * np.hypot(kernels, engine), 0.1) for kernels in (np.log(110 / 100), np.log(130 / 110))
    ]
    assert [float(half) for half in overhead_halves(step, plain)] == pytest.approx(told)
    assert [float(half) for half in overhead_halves(cost(), cost())] == pytest.approx(
        [np.log(110 / 100), np.log(130 / 110)]
    )


def test_what_the_host_does_beside_a_pass_by_its_kernels_layers_and_requests():
    """33 requests for two schedulers are 17 each; heads continue a pass and launch their kernels alone."""
    eager = load_runtime("hf-eager")
    launches = model_launches(LLAMA, decode(33, 100), eager)
    given = {"launches": launches, "workload": decode(33, 100), "layers": 32, "schedulers": 2}
    heads, whole = (PassWork(runtime=eager, name=name, **given) for name in ("continued", "target"))
    count, one = sum(launch.count for launch in launches), np.asarray(5000.0)
    time = OperatorTime(time_us=one, low_us=one, high_us=one, bound=one, source=np.asarray(Source.CALIBRATED))

    def costs(work: PassWork, **more: bool) -> Cost:
        return pass_cost(TimedKernels(work=work, times=((launches[0], time),)), **more)

    device = launches[0].count * 5000 + count * load_runtime("vllm-0.11").launch_us
    assert float(costs(heads).host_us) == count * eager.host_us_per_launch
    assert float(costs(whole).host_us) == pytest.approx(
        count * eager.host_us_per_launch + eager.host_us_per_step
    )
    vllm = load_runtime("vllm-0.11")
    terms = {"host_us_per_step": 100.0, "host_us_per_request": 2.0, "layer_us": 3.0, "plan_us_per_pass": 7.0,
             "hidden_us_per_step": 50.0, "between_share": 0.1, "pieces_us_per_layer": 5.0}  # fmt: skip
    engine = vllm.engine.with_terms(
        {name: Term(value=value, band=0.5, source="made up for tests") for name, value in terms.items()}
    )
    served = PassWork(runtime=replace(vllm, engine=engine), name="target", **given)
    count = count * vllm.host_us_per_launch + vllm.host_us_per_step
    found = costs(served)
    exposed = 100 + 17 * 2 + 32 * 3 - 50
    assert float(found.host_us) == pytest.approx(count + 50)
    assert float(found.exposed_us) == pytest.approx(exposed)
    assert float(found.step_square) == pytest.approx(0.25 * (100**2 + 34**2 + 96**2 + 50**2))
    assert float(found.setup_half_us) == pytest.approx(0.1 * (device + exposed))
    # heads launch kernels in the same set-up; what prompts add to a step is in the step's
    added = {name: costs(replace(served, name=name)) for name in ("continued", "prompts")}
    assert float(added["continued"].setup_half_us) == pytest.approx(0.1 * device)
    assert float(added["prompts"].setup_half_us) == 0.0
    assert all(float(each.exposed_us) == 0.0 for each in added.values())
    pieces = costs(served, whole_graph=False)  # of one query the plan alone
    assert float(pieces.exposed_us) == pytest.approx(exposed + 7)


def test_an_engine_chooses_tokens_with_kernels_of_its_own():
    """Their band is that of the term, up and down alike on the logarithm."""
    runtime = load_runtime("vllm-0.11")
    token = Elementwise(name="next_token", kind="next_token", dtype="bf16", m=np.array([8.0]), n=LLAMA.vocab)
    found = kernel_time(ROOF, runtime, Launch(operator=token, part="lm_head"))
    band = runtime.engine.sampling_bytes_per_logit.band
    assert found.time_us == pytest.approx(argmax_us(runtime.engine, GPU, 8.0, LLAMA.vocab))
    assert band > 0.0
    assert found.high_us / found.time_us == pytest.approx(1 + band)
    assert found.time_us / found.low_us == pytest.approx(1 + band)


def test_eager_code_moves_features_between_the_levels_of_a_tree():
    """With the square of their width: twice 4,096 take four times as long."""
    eager = load_runtime("hf-eager")
    assert eager_levels_us(eager, 3, 8192) == 3 * 4 * eager.host_us_per_level
    assert eager_levels_us(eager, 3) == 3 * eager.host_us_per_model_level
    added = drafting_cost(eager, 1, looks_up=False, levels_us=100.0)
    assert float(added.exposed_us) == eager.host_us_per_drafted_step + 100
    assert float(added.draft_square) == pytest.approx((0.3 * float(added.exposed_us)) ** 2)
    assert float(drafting_cost(eager, 1, looks_up=True).exposed_us) == eager.host_us_per_lookup


@pytest.mark.parametrize(
    ("launch_us", "host_us", "bound"), [(3.0, 0.0, "memory"), (30.0, 0.0, "latency"), (3.0, 20.0, "host")]
)
def test_a_row_is_its_kernel_the_gap_before_it_and_a_host_that_overlaps(tmp_path, launch_us, host_us, bound):
    """33.6 MB of weights of an H100 take 10 us; kernel and host join in the norm of degree three."""
    file = tmp_path / "rows.csv"
    file.write_text("op,m,n,k,dtype\nup_proj,1,4096,4096,fp16\n")
    runtime = replace(load_runtime("cuda-graph"), launch_us=launch_us, host_us_per_launch=host_us)
    (row,) = predicted_rows(read_rows(file), GPU, runtime, latency="roofline").to_dict("records")
    kernel = ROOF.time(Gemm(name="up_proj", m=1, n=4096, k=4096, dtype="fp16"))
    assert float(kernel.time_us) == pytest.approx(2 * (4096 * 4096 + 2 * 4096) / 3.35e6, rel=1e-3)
    for name, alone_us in (("predicted", kernel.time_us), ("low", kernel.low_us), ("high", kernel.high_us)):
        told = ((float(alone_us) + launch_us) ** 3 + host_us**3) ** (1 / 3)
        assert row[f"{name}_us"] == pytest.approx(told), name
    assert row["bound"] == bound


@pytest.mark.parametrize(
    ("unit", "padded", "captured"),
    [("tokens", [4, 8, 16, 24], [True] * 3 + [False]), ("requests", [6, 6, 24, 24], [True] * 4),
     ("multiples", [3, 6, 15, 24], [True] * 2 + [False] * 2)],
)  # fmt: skip
def test_rows_are_filled_up_to_a_captured_size(unit, padded, captured):
    """Sizes of 2, 4, 8 and 16; requests of three tokens, beyond the largest (multiples: 9) as they are."""
    engine = structs.replace(load_runtime("vllm-0.11").engine, graph_sizes=(2, 4, 8, 16), graph_unit=unit)
    requests = np.array([1, 2, 5, 8])
    assert padded_tokens(engine, requests, 3).tolist() == padded
    assert is_captured(engine, requests, 3).tolist() == captured


def test_an_uncertain_input_widens_a_kernels_band_and_leaves_it_above_no_time():
    """A kernel of 10 us, within 3 to 20, whose input may be that of 1 or 20: logarithms add in quadrature."""

    class Proportional(RooflineLatency):
        def time(self, operator):
            us = np.asarray(float(operator.m))
            code = np.zeros((), dtype=np.int8)
            return OperatorTime(time_us=us, low_us=0.3 * us, high_us=2.0 * us, bound=code, source=code)

    ten, one, twenty = (Elementwise(name="", kind="residual", m=m, n=1, dtype="bf16") for m in (10, 1, 20))
    launch = Launch(operator=ten, part="experts", ends=(one, twenty))
    time = launch_time(Proportional(GPU), launch)
    assert float(time.low_us) == pytest.approx(10 * np.exp(-np.hypot(np.log(10 / 3), np.log(10))))
    assert float(time.high_us) == pytest.approx(10 * np.exp(np.sqrt(2) * np.log(2)))


@pytest.mark.parametrize("setup_us", [10.0, 95.0, 500.0, 5_000.0])
def test_no_error_of_a_set_up_takes_a_step_below_no_time(setup_us):
    cost = Cost(
        device_us=np.full(2, 100.0), step_square=np.full(2, 400.0**2), setup_half_us=np.full(2, setup_us)
    )
    assert (cost.low_us > 0.0).all()
    assert (cost.low_us <= cost.time_us).all()
    assert np.isfinite([*cost.halves.down, *cost.halves.up]).all()
    alone = Cost(device_us=np.full(1, 100.0), setup_half_us=np.full(1, setup_us))
    assert alone.low_us[0] == pytest.approx(max(100.0 - setup_us, 10.0))


def test_after_a_tree_four_kernels_judge_it_and_the_longest_path_is_copied_in_every_layer():
    """Of 3 requests with 8 candidates: 24 rows of depth 5 + 1; 1 + 2 tokens of each in all 32 layers."""
    tree, copied = acceptance_launches(LLAMA, verify(3, 512, 8), 5, longest=2)
    assert (tree.count, float(tree.operator.m), float(tree.operator.n)) == (4, 24.0, 6.0)
    assert (copied.count, float(copied.operator.m)) == (1, 3 * (2 + 1) * 32.0)
    assert float(copied.operator.n) == 2 * 8 * 128  # K and V of eight heads
    assert float(acceptance_launches(LLAMA, verify(3, 512, 8), 5)[1].operator.m) == 3 * (5 + 1) * 32.0


@pytest.mark.parametrize(
    ("looks_up", "width", "expected_us"),
    [(False, 1, 100 + 3 * 7), (False, 2, 100 + 40 + 3 * 7), (True, 1, 3 * 2)],
)
def test_drafting_is_charged_once_a_step_and_for_each_request(looks_up, width, expected_us):
    """And once more where a level has several nodes; a look-up for each request alone."""
    values = {
        "draft_us_per_step": 100,
        "tree_us_per_step": 40,
        "draft_us_per_request": 7,
        "lookup_us_per_request": 2,
    }
    terms = {name: Term(value=float(value), source="a test") for name, value in values.items()}
    engine = load_runtime("sglang").engine.with_terms(terms)
    assert float(drafting_us(engine, 3, looks_up=looks_up, width=width).time_us) == pytest.approx(expected_us)
    if width == 1:
        cost = drafting_cost(replace(load_runtime("sglang"), engine=engine), 3, looks_up=looks_up)
        assert float(cost.exposed_us) == pytest.approx(expected_us)


def test_caches_are_compacted_for_the_longest_path_that_so_many_candidates_have():
    """From five drafts to the longest chain of nine."""
    assert _longest_path(setting(longest_drafts=9), np.array([4, 8, 20])).tolist() == [5, 7, 9]
    assert _longest_path(setting(longest_drafts=5), 8) == _longest_path(setting(), 8) == 5


def test_a_plain_pass_is_the_targets_over_one_token_of_each_sequence():
    target = speculative_step(setting(drafter=Eagle3(depth=1)), 2, 512, 2).passes[0].work
    works = (
        target,
        replace(target, workload=decode(2, 512)),
        replace(target, name="draft", workload=decode(2, 512)),
    )
    assert [work.is_plain for work in works] == [False, True, False]


def test_an_engine_charges_drafting_for_the_requests_of_one_host():
    """Eight hosts with attention of their own hold 17 requests in threes at most."""
    engine = load_runtime("sglang").engine
    of = Scenario(
        gpu="h200-sxm", model="deepseek-r1", drafter="mtp", runtime="sglang", tp=8, ep=8, dp_attention=True,
        max_drafts=1, acceptance=0.7,
    ).setting  # fmt: skip
    of = replace(of, drafter=Mtp.sized(DrafterParts(modules=1), 1))
    *_, charged = drafting_times(of, 17, 512, 2)
    alone = drafting_us(engine, 3, looks_up=False, width=1)
    assert float(charged.cost.exposed_us) == pytest.approx(float(alone.time_us))


@pytest.mark.parametrize(
    ("law", "tokens", "woken"),
    [
        (INDEPENDENT, 2, 64 * (1 - 14 / 16 * 15 / 17)), (DISJOINT, 2, 16.0), (DISJOINT, 9, 64.0),
        (0.5, 4, 64 * (1 - 14 / 16 * 15 / 17)),
    ],
)  # fmt: skip
def test_two_requests_of_one_token_wake_as_many_experts_as_their_law_says(law, tokens, woken):
    """Eight of 64 a token, z = 14; four tokens of a sequence with exponent 0.5 count as two."""
    assert float(union(64, 8, 1, tokens, law)) == pytest.approx(woken)
    assert float(union(64, 8, tokens, 1, INDEPENDENT)) == pytest.approx(
        64 * (1 - 14 / (14 + tokens) * 15 / (15 + tokens))
    )
    assert (INDEPENDENT.beta, INDEPENDENT.low, INDEPENDENT.high) == (1.0, 1.0, 1.0)
    assert (DISJOINT.beta, DISJOINT.low, DISJOINT.high) == (None, 1.0, 1.0)


def test_the_fewest_gpus_are_those_on_which_one_token_of_one_request_fits(monkeypatch):
    """Of 8 GB on one GPU and 8 / tp on more: 1 GB is left for it at eight of them."""
    monkeypatch.setattr(
        memory, "step_memory_bytes", lambda shard, drafter, *sizes: 8.0 * np.prod(sizes) / shard.parallel.tp
    )
    monkeypatch.setattr(memory, "usable_memory_bytes", lambda gpu, engine, shard: 1.0)
    assert memory.fewest_gpus(LLAMA, GPU, Parallel()) == 8
    monkeypatch.setattr(memory, "usable_memory_bytes", lambda gpu, engine, shard: 0.99)
    assert memory.fewest_gpus(LLAMA, GPU, Parallel()) == 16
    monkeypatch.setattr(memory, "usable_memory_bytes", lambda gpu, engine, shard: 0.06)
    assert memory.fewest_gpus(LLAMA, GPU, Parallel()) is None  # heads are not split over 128


@pytest.mark.parametrize(
    ("runtime", "requests", "candidates", "rows"),
    [
        ("cuda-graph", [0.1, 2.4, 7.0], 4, [1.0, 10.0, 28.0]),  # as many as there are, and one at least
        ("vllm-0.33", [3.0, 5.0], 1, [4.0, 8.0]),  # captured are 1, 2, 4, 8
    ],
)  # fmt: skip
def test_rows_of_a_step_are_whole_and_those_of_the_graph_that_holds_them(runtime, requests, candidates, rows):
    scenario = Scenario(
        gpu="h100-sxm", model="llama-3.1-8b", runtime=runtime, drafter="eagle3", acceptance=0.6
    )
    assert step_rows(scenario.setting.runtime, np.array(requests), candidates, candidates).tolist() == rows


def test_what_is_left_out_is_nothing_but_for_these():
    """Factors and counts are one, sizes those that most have."""
    assert numbers_left_out("step") == {
        "DrafterParts.heads": 5,
        "DrafterParts.modules": 1,
        "DraftModel.width": 1,
        "LayerDrafter.width": 1,
        "LayerDrafter.layers": 1,
        "Mtp.modules": 1,
        "Medusa.heads": 5,
        "DFlash.layers": 5,
        "DSpark.rank": 256,
        "PEagle.layers": 4,
        "Launch.count": 1,
        "Launch.share": 1.0,
        "PassWork.schedulers": 1,
        "PromptTerms.share": 1.0,
        "Setting.compacted_drafts": 5,
        "TimedKernels.share": 1.0,
        "Verified.match_rate": 1.0,
    }


@pytest.mark.parametrize(
    ("rows", "top_k", "counted"),
    [(3.0, False, 3.0), (10.0, False, 10.0), (14.0, False, 11.0), (3.0, True, 4.5)],
)
def test_rows_of_logits_are_filtered_each_up_to_a_number_and_a_quarter_beyond(rows, top_k, counted):
    """(N6) of 100,000 words: 2 us a million and 8 bytes each at 4 TB/s; top-k adds a half."""
    values = {
        "filter_us": 5.0, "filter_us_per_million": 2.0, "filter_bytes_per_logit": 8.0,
        "filter_full_rows": 10.0, "filter_share_beyond": 0.25, "filter_top_k_share": 0.5,
    }  # fmt: skip
    engine = load_runtime("vllm").engine.with_terms(
        {name: Term(value=value, source="a test") for name, value in values.items()}
    )
    gpu = replace(GPU, bandwidth_bytes_per_s=4e12)
    assert float(filter_us(engine, gpu, rows, 100_000, top_k=top_k)) == pytest.approx(5.0 + 0.4 * counted)
    assert float(filter_us(engine, gpu, rows, 0, top_k=top_k)) == 0.0


def test_a_drafter_that_reads_the_prompt_makes_its_step_longer():
    of, drafter = setting("kernel"), Eagle3(depth=1)
    alone, beside = prefill_step(of, 1, 512), prefill_step(of, 1, 512, drafter)
    assert 1.02 < float(beside.time_us / alone.time_us) < 1.1  # a layer beside 32, and what joins its inputs


def test_all_requests_verify_as_many_tokens_where_every_draft_is_found():
    tokens, weights = Verified().cases(np.array([1.0, 4.0]), np.array([[3.0], [5.0]]))
    assert tokens.tolist() == [[[3.0], [3.0]], [[5.0], [5.0]]]
    assert weights.tolist() == [[[1.0], [1.0]], [[1.0], [1.0]]]
