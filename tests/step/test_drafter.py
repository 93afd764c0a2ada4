"""What drafting costs: counts of kernels, rows and bytes from the sizes of the models."""

from dataclasses import replace

import numpy as np
import pytest

from medusa_sim.engines.runtime import load_runtime
from medusa_sim.errors import UsageError
from medusa_sim.gpus.gpu import load_gpu
from medusa_sim.latency.roofline import RooflineLatency
from medusa_sim.models.named import load_model
from medusa_sim.models.parallel import Parallel
from medusa_sim.models.variants import on_one_gpu
from medusa_sim.operators.experts import Experts
from medusa_sim.operators.gemm import Gemm
from medusa_sim.step.drafter import drafter_names, drafters, lookups
from medusa_sim.step.drafter.base import DrafterParts
from medusa_sim.step.drafter.draft_model import DraftModel
from medusa_sim.step.drafter.layer import Eagle, Eagle3, Mtp
from medusa_sim.step.drafter.lookup import NGram
from medusa_sim.step.drafter.medusa import Medusa
from medusa_sim.step.drafter.parallel import DFlash, DSpark, Pard, PEagle
from medusa_sim.step.drafting import drafting_times
from medusa_sim.step.expert_union import union
from medusa_sim.step.memory import step_memory_bytes
from medusa_sim.step.pass_cost import timed_pass
from medusa_sim.step.setting import Setting
from medusa_sim.step.step import decode_step, prefill_step
from medusa_sim.step.workload import prefill, verify

MODEL = load_model("vicuna-7b")
LLAMA = load_model("llama-3.1-8b")
DRAFT = load_model("llama-68m")
RUNTIME = load_runtime("cuda-graph")
STEP = verify(batch=4, seq_len=1024, candidates=16)
PARTS = DrafterParts(draft=DRAFT)
PARALLEL = (PEagle, Pard, DFlash, DSpark)


def setting(drafter, model=LLAMA, gpu="h100-sxm", depth: int | None = None) -> Setting:
    latency = RooflineLatency(load_gpu(gpu))
    return Setting(
        latency=latency, model=model, runtime=RUNTIME, scope="model", drafter=drafter, compacted_drafts=depth
    )


def gemms(works: tuple, name: str) -> list[Gemm]:
    operators = (launch.operator for work in works for launch in work.launches)
    return [one for one in operators if one.name == name and isinstance(one, Gemm)]


def test_medusa_heads_have_public_weights_and_run_on_all_candidates_or_the_accepted_row():
    # Vicuna-7B, five heads of 4096 x 4096 + 4096 and 32000 x 4096 in fp16: 5 x 295.7 MB
    assert Medusa(heads=5).weight_bytes(MODEL) == pytest.approx(2 * 5 * (4096 * 4096 + 4096 + 32000 * 4096))
    assert Medusa().kv_bytes_per_token(MODEL) == 0.0
    latency = RooflineLatency(load_gpu("a100-80gb-pcie"))
    works = [Medusa(heads=heads).work(MODEL, STEP, RUNTIME) for heads in (1, 2, 4)]
    times = np.array([sum(float(timed_pass(latency, work).time_us) for work in each) for each in works])
    assert times == pytest.approx(times[0] * np.array([1.0, 2.0, 4.0]))
    for head_rows, rows in (("all", 64), ("accepted", 4)):
        runtime = replace(RUNTIME, head_rows=head_rows)
        (output,) = gemms(Medusa(heads=3).work(MODEL, STEP, runtime), "medusa_output")
        assert (int(output.m), output.n, output.k) == (rows, 32000, 4096)


def test_heads_on_several_gpus_choose_among_the_whole_vocabulary():
    """As vLLM's MedusaProposer: each head's logits are gathered, then its token is chosen."""
    (work,) = Medusa(heads=3).work(
        on_one_gpu(MODEL, Parallel(tp=4)), STEP, replace(RUNTIME, head_rows="accepted")
    )
    of = {launch.operator.name: launch for launch in work.launches}
    assert (of["medusa_output"].operator.n, of["medusa_topk"].operator.n) == (8000, 32000)
    gather = of["logit_gather"]
    assert (gather.count, gather.part) == (3, "drafter")
    assert float(gather.operator.message_bytes) == 4 * 32000 * 2


@pytest.mark.parametrize(("runtime", "term"), [("hf-eager", "model_level"), ("sglang", "tree")])
def test_a_draft_models_tree_costs_what_engines_do_for_trees(runtime, term):
    """SGLang runs it with EAGLE's code; eager code gathers and masks between its three levels."""
    base = replace(setting(None), runtime=load_runtime(runtime))
    chain, tree = (
        float(
            drafting_times(replace(base, drafter=DraftModel(draft=DRAFT, depth=3, width=width)), 1, 512, 7)[
                -1
            ].cost.exposed_us
        )
        for width in (1, 2)
    )
    added = 3 * base.runtime.host_us_per_model_level
    if term == "tree":
        added = base.runtime.engine.tree_us_per_step.value
    assert added > 0.0
    assert tree - chain == pytest.approx(added)


def test_look_ups_run_nothing_on_the_gpu_and_hold_nothing():
    for name in lookups():
        found = drafters()[name].sized(PARTS, 5)
        assert found.work(MODEL, STEP, RUNTIME) == ()
        assert found.prompt_work(MODEL, prefill(1, 100), RUNTIME) == ()
        assert found.weight_bytes(MODEL) == found.kv_bytes_per_token(MODEL) == 0.0


def test_without_a_drafter_nothing_is_added_to_verification():
    for runtime in ("cuda-graph", "vllm-0.14"):
        none = replace(setting(None), runtime=load_runtime(runtime))
        assert (none.drafter_name, drafting_times(none, 8, 512, 4)) == ("", ())
        looked_up = drafting_times(replace(none, drafter=NGram()), 8, 512, 4)
        assert len(looked_up) == (none.runtime.engine is not None)  # the host looks drafts up


def test_a_draft_model_of_the_targets_own_size_costs_one_decode_step_a_draft():
    of = setting(DraftModel(draft=MODEL, depth=3), MODEL)
    drafted = sum(float(step.time_us) for step in drafting_times(of, 2, 1000, 4))
    assert drafted == pytest.approx(sum(float(decode_step(of, 2, 1000 + i).time_us) for i in range(3)))
    works = of.drafter.prompt_work(MODEL, prefill(2, 500), RUNTIME)
    prompt = sum(float(timed_pass(of.latency, work).time_us) for work in works)
    assert prompt == pytest.approx(float(prefill_step(of, 2, 500).time_us))


def test_a_draft_model_keeps_its_own_runtime_and_cache_and_width_multiplies_later_rows():
    works = DraftModel(draft=DRAFT, depth=4, runtime=load_runtime("hf-eager")).work(MODEL, STEP, RUNTIME)
    assert [(work.runtime.name, work.name) for work in works] == [("hf-eager", "draft")] * 4
    drafter = DraftModel(draft=DRAFT, depth=4)
    assert drafter.weight_bytes(MODEL) == DRAFT.weight_bytes
    assert drafter.kv_bytes_per_token(MODEL) == DRAFT.kv_bytes_per_token
    works = DraftModel(draft=DRAFT, depth=3, width=4).work(MODEL, STEP, RUNTIME)
    assert [int(g.m) for g in gemms(works, "down_proj")] == [4, 16, 16]


def test_an_eagle_layer_reads_what_was_accepted_first_and_looks_at_the_last_row():
    works = Eagle(depth=3).work(LLAMA, STEP, RUNTIME)
    assert [int(g.m) for g in gemms(works, "lm_head")] == [4, 4, 4]
    assert all(g.n == LLAMA.vocab for g in gemms(works, "lm_head"))


def test_an_eagle_layer_of_a_pruned_vocabulary_has_a_head_of_its_own():
    pruned = Eagle(depth=2, draft_vocab=32000)
    works = pruned.work(LLAMA, STEP, RUNTIME)
    assert {g.n for g in gemms(works, "lm_head")} == {32000}
    assert {g.k for g in gemms(works, "draft_fusion")} == {2 * LLAMA.hidden}
    grown = pruned.weight_bytes(LLAMA) - Eagle(depth=2).weight_bytes(LLAMA)
    assert grown == 2 * 32000 * LLAMA.hidden
    assert pruned.kv_bytes_per_token(LLAMA) == pytest.approx(LLAMA.kv_bytes_per_token / 32)


def test_an_eagle3_layer_weighs_what_its_checkpoint_does():
    """The tensors of yuhuili/EAGLE3-LLaMA3.1-Instruct-8B but for its norms, in 16 bits: 424.7 million."""
    fusion, output, mlp, head = 4096 * 3 * 4096, 4096 * 4096, 3 * 4096 * 14336, 32_000 * 4096
    qkv = (4096 + 2 * 1024) * 2 * 4096
    assert fusion + qkv + output + mlp + head == 424_673_280
    norms = 2 * 4096  # of a layer; the checkpoint has two more
    assert Eagle3(depth=3).weight_bytes(LLAMA) == 2 * (424_673_280 + norms)
    works = Eagle3(depth=3).work(LLAMA, STEP, RUNTIME)
    assert {(g.n, g.k) for g in gemms(works, "qkv_proj")} == {(4096 + 2 * 1024, 2 * 4096)}
    assert {(g.n, g.k) for g in gemms(works, "lm_head")} == {(32_000, 4096)}


def test_features_of_the_target_are_fused_once_a_round_and_a_draft_with_its_token_in_each_pass():
    """A round of EAGLE-3 fuses the 4 x (3 + 1) rows that it reads; EAGLE and MTP fuse in each pass."""
    rows = {
        kind: [int(g.m) for g in gemms(kind.sized(PARTS, 3).work(LLAMA, STEP, RUNTIME), "draft_fusion")]
        for kind in (Eagle, Mtp, Eagle3, PEagle, DFlash)
    }
    assert rows == {Eagle: [16, 4, 4], Mtp: [16, 4, 4], Eagle3: [16], PEagle: [16], DFlash: [16]}
    prompt = Eagle3(depth=3).prompt_work(LLAMA, prefill(2, 500), RUNTIME)
    assert [int(g.m) for g in gemms(prompt, "draft_fusion")] == [1000]
    back = load_runtime("llama.cpp-cuda")  # two passes, of which the first reads features
    assert [int(g.m) for g in gemms(Eagle3(depth=3).work(LLAMA, STEP, back), "draft_fusion")] == [16]


def test_the_first_of_several_layers_reads_token_and_feature():
    (works,) = PEagle(depth=3).work(LLAMA, STEP, RUNTIME)
    counts = {
        launch.operator.k: launch.count for launch in works.launches if launch.operator.name == "qkv_proj"
    }
    assert counts == {2 * 4096: 1, 4096: 3}
    more = PEagle(depth=3).weight_bytes(LLAMA) - PEagle(depth=3, layers=1).weight_bytes(LLAMA)
    assert more == 2 * 3 * LLAMA.resized(layers=1).layers_parameter_count


def test_drafting_is_a_small_share_and_grows_with_depth():
    decode = float(decode_step(setting(None), 1, 1024).time_us)
    shares = [drafting_us(Eagle, depth, batch=1) / decode for depth in (1, 4)]
    assert shares[0] < 0.15  # one of 32 layers, the LM head and the fusion layer
    assert shares[1] == pytest.approx(4 * shares[0], rel=0.05)


def drafting_us(kind: type, depth: int, batch: int = 8, seq_len: int = 1024) -> float:
    steps = drafting_times(setting(kind.sized(PARTS, depth), depth=depth), batch, seq_len, depth + 1)
    return float(sum(np.asarray(step.time_us) for step in steps))


@pytest.mark.parametrize("kind", drafters().values(), ids=drafters())
@pytest.mark.parametrize("batch", [1, 16, 256])
def test_a_longer_draft_never_costs_less(kind, batch):
    found = [drafting_us(kind, depth, batch) for depth in (1, 2, 3, 5, 8, 15)]
    assert found == sorted(found)
    assert (found[0] == 0.0) == kind.looks_up


@pytest.mark.parametrize("kind", PARALLEL)
def test_parallel_drafters_pass_once(kind):
    for depth in (1, 4, 15):
        works = kind.sized(PARTS, depth).work(LLAMA, verify(4, 1024, depth + 1), RUNTIME)
        assert sum(work.name == "draft" for work in works) == 1
    assert drafting_us(kind, 8, batch=1) < 1.3 * drafting_us(kind, 1, batch=1)
    assert drafting_us(Eagle3, 8, batch=1) > 4.0 * drafting_us(Eagle3, 1, batch=1)


def test_a_parallel_pass_reads_what_was_accepted_and_a_mask_for_each_further_draft():
    depth = 5
    for kind in (PEagle, Pard):
        works = kind.sized(PARTS, depth).work(LLAMA, verify(4, 1024, depth + 1), RUNTIME)
        assert {int(g.m) for g in gemms(works, "down_proj")} == {4 * 2 * depth}
    (head,) = gemms(PEagle(depth=depth).work(LLAMA, verify(4, 1024, 6), RUNTIME), "lm_head")
    assert (int(head.m), head.n) == (4 * depth, 32_000)


def test_dflash_projects_the_new_context_and_passes_one_block():
    works = DFlash(depth=7).work(LLAMA, verify(4, 1024, 8), RUNTIME)
    (fusion,), (context,), (head,) = (gemms(works, n) for n in ("draft_fusion", "draft_context", "lm_head"))
    assert (int(fusion.m), fusion.k) == (32, 5 * LLAMA.hidden)
    assert (int(context.m), context.n) == (32, LLAMA.attention.cache_row)
    assert (int(head.m), head.n) == (28, LLAMA.vocab)
    assert {int(g.m) for g in gemms(works, "down_proj")} == {32}
    # its cache grows with the context: five layers of the target's 32
    assert DFlash(depth=7).kv_bytes_per_token(LLAMA) == pytest.approx(LLAMA.kv_bytes_per_token * 5 / 32)
    assert drafting_us(DFlash, 7, batch=64, seq_len=16_000) > 1.5 * drafting_us(DFlash, 7, batch=64)


def test_dspark_adds_a_small_head_for_each_draft():
    works = DSpark(depth=6).work(LLAMA, verify(4, 1024, 7), RUNTIME)
    (markov,) = gemms(works, "markov_head")
    assert (int(markov.m), markov.n, markov.k) == (4, LLAMA.vocab, 256)
    assert {launch.count for launch in works[-1].launches} == {6}
    assert works[-1].name == "continued"
    assert {int(g.m) for g in gemms(works, "down_proj")} == {24}
    grown = DSpark(depth=6).weight_bytes(LLAMA) - DFlash(depth=6).weight_bytes(LLAMA)
    assert grown == 2 * (2 * 256 * LLAMA.vocab + LLAMA.hidden + 256)
    step = drafting_us(DSpark, 8, batch=1) - drafting_us(DSpark, 7, batch=1)
    assert 0.0 < step < drafting_us(Eagle, 1, batch=1)


def test_each_method_reserves_its_own_slots_of_the_cache():
    # as vLLM counts them: EAGLE, MTP, DFlash and PARD K, draft model 1, P-EAGLE and DSpark K - 1
    slots = {name: kind.sized(PARTS, 7).kv_slots() for name, kind in drafters().items()}
    none = dict.fromkeys(("medusa", "ngram", "suffix"), 0)
    ahead = dict.fromkeys(("eagle", "eagle3", "mtp"), 7)
    assert slots == {**none, **ahead, "draft-model": 1, "p-eagle": 6, "dspark": 6, "dflash": 7, "pard": 7}
    for kind in (DraftModel, DFlash):
        drafter = kind.sized(PARTS, 7)
        here, without = (
            float(step_memory_bytes(LLAMA, of, 4, seq_len, 8))
            for of, seq_len in ((drafter, 1000), (None, 1000 + drafter.kv_slots()))
        )
        own = drafter.weight_bytes(LLAMA) + 4 * (1008 + drafter.kv_slots()) * drafter.kv_bytes_per_token(
            LLAMA
        )
        assert here == pytest.approx(without + own)


def test_mtp_drafts_a_multiple_of_its_modules():
    assert Mtp.lengths(DrafterParts(), 5) == (1, 2, 3, 4, 5)
    assert Mtp.lengths(DrafterParts(modules=3), 8) == (1, 2, 3, 6)
    one, three = (Mtp.sized(DrafterParts(modules=n), 3) for n in (1, 3))
    assert three.weight_bytes(LLAMA) == pytest.approx(3 * one.weight_bytes(LLAMA))
    assert three.kv_bytes_per_token(LLAMA) == pytest.approx(3 * one.kv_bytes_per_token(LLAMA))
    layer = LLAMA.resized(layers=1).layers_parameter_count + 2 * LLAMA.hidden**2 + LLAMA.hidden
    assert one.weight_bytes(LLAMA) == pytest.approx(2 * layer)


def test_layers_of_a_quantised_target_are_drafted_as_they_are_stored():
    quantised = replace(LLAMA, dtype="fp8", weight_dtype="fp8")
    for kind, dtype in ((Eagle3, "fp16"), (DFlash, "fp16"), (Mtp, "fp8")):
        target = replace(quantised, activation_dtype="fp16")
        (down, *_) = gemms(kind.sized(PARTS, 2).work(target, STEP, RUNTIME), "down_proj")
        assert down.dtype == dtype


@pytest.mark.parametrize(
    ("kind", "parts", "told"),
    [(Pard, DrafterParts(), "pard needs --draft-model"), (Pard, PARTS, "such a pair cannot speculate"),
     (DFlash, PARTS, "dflash takes no --draft-model"), (Mtp, DrafterParts(), "no MTP module")],
)  # fmt: skip
def test_parts_that_a_drafter_lacks_are_named(kind, parts, told):
    with pytest.raises(UsageError, match=told):
        kind.check(parts, LLAMA)


def test_an_mtp_module_is_a_layer_of_experts_that_wakes_its_own():
    target = load_model("deepseek-v3")
    module = Mtp(depth=3)
    # its README: 11.5 billion parameters beside the shared embedding and head, here in fp8
    assert module.weight_bytes(target) == pytest.approx(11.5e9, rel=0.02)
    layer = target.kv_bytes_per_token / target.layers
    assert module.kv_bytes_per_token(target) == pytest.approx(layer)
    works = module.work(target, verify(16, 1024, 4), RUNTIME)
    experts = [one.operator for work in works for one in work.launches if isinstance(one.operator, Experts)]
    assert target.experts is not None
    for kernel, tokens in zip(experts, (4, 1, 1), strict=True):
        woken = union(target.experts.experts, target.experts.topk, 16, tokens)
        assert float(np.asarray(kernel.hit)) == pytest.approx(float(woken))
    assert all(one.part == "drafter" for work in works for one in work.launches)


@pytest.mark.parametrize("kind", [Eagle3, PEagle, DFlash, DSpark])
def test_draft_layers_are_dense_whatever_the_target_is(kind):
    for name, width in (("gpt-oss-120b", 3 * 2880), ("deepseek-r1", 18432), ("qwen3-30b-a3b", 6144)):
        target = load_model(name)
        works = kind.sized(DrafterParts(), 2).work(target, verify(4, 512, 3), RUNTIME)
        assert {g.k for g in gemms(works, "down_proj")} == {width}
        assert not any(isinstance(one.operator, Experts) for work in works for one in work.launches)


def test_drafters_are_split_as_the_target_is():
    target = load_model("llama-3.1-70b")
    for kind in (Eagle3, PEagle, DFlash, DSpark, DraftModel, Pard):
        drafter = kind.sized(
            DrafterParts(draft=load_model("llama-3.2-1b") if kind.takes_draft_model else None), 3
        )
        shard = on_one_gpu(target, Parallel(tp=4))
        share = drafter.weight_bytes(shard) / drafter.weight_bytes(target)
        assert 0.25 <= share < 0.45, kind.name  # what fuses features is not split
        assert drafter.kv_bytes_per_token(shard) <= drafter.kv_bytes_per_token(target) / 2
        works = drafter.work(shard, verify(8, 512, 4), RUNTIME)
        launched = [one.operator for work in works for one in work.launches]
        gathers = [operator for operator in launched if operator.name == "logit_gather"]
        vocab = drafter.own_vocab if kind in (Eagle3, PEagle) else target.vocab
        for head, gather in zip(gemms(works, "lm_head"), gathers, strict=True):
            assert float(np.asarray(gather.message_bytes)) == int(head.m) * vocab * 2


def test_each_level_is_a_pass_of_the_drafters_own_layers():
    step = verify(4, 512, 4)
    eagle = Eagle(depth=4).work(LLAMA, step, RUNTIME)
    model = DraftModel(draft=DRAFT, depth=3).work(LLAMA, step, RUNTIME)
    assert [work.layers for work in eagle + model] == [1] * 4 + [DRAFT.layers] * 3
    assert [int(g.m) for g in gemms(eagle, "draft_fusion")] == [20, 4, 4, 4]


def test_names_are_listed_in_the_order_of_the_classes():
    assert tuple(drafters()) == drafter_names()


@pytest.mark.parametrize(
    ("name", "levels"), [("eagle3", 3), ("mtp", 3), ("medusa", 0), ("pard", 0), ("ngram", 0)]
)
def test_trees_are_drafted_by_as_many_passes_as_they_are_deep(name, levels):
    """Of drafters that draft level by level; a chain has no level of a tree."""
    parts = DrafterParts(draft=LLAMA)
    chain, tree = (drafters()[name].sized(parts, 3, width) for width in (1, 4))
    assert (chain.tree_levels, tree.tree_levels) == (0, levels)
