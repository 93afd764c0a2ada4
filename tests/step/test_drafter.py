"""What drafting costs: counts of kernels, rows and bytes from the sizes of the models."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from medusa_sim.latency.roofline import RooflineLatency
from medusa_sim.operators.operator import Gemm
from medusa_sim.specs.gpu import load_gpu
from medusa_sim.specs.models import load_model
from medusa_sim.specs.runtime import load_runtime
from medusa_sim.step.drafter.draft_model import DraftModel
from medusa_sim.step.drafter.layer import Eagle
from medusa_sim.step.drafter.medusa import MedusaHeads
from medusa_sim.step.drafter.ngram import NoDrafter
from medusa_sim.step.step import Setting, decode_step, drafting_steps, prefill_step, work_time
from medusa_sim.step.workload import prefill, verify

MODEL = load_model("vicuna-7b")
LLAMA = load_model("llama-3.1-8b")
DRAFT = load_model("llama-68m")
RUNTIME = load_runtime("cuda-graph")
STEP = verify(batch=4, seq_len=1024, candidates=16)


def gemms(works: tuple, name: str) -> list[Gemm]:
    return [
        launch.operator
        for work in works
        for launch in work.launches
        if launch.operator.name == name and isinstance(launch.operator, Gemm)
    ]


def test_medusa_weights_are_those_of_the_public_checkpoints() -> None:
    # Vicuna-7B, five heads of 4096 x 4096 + 4096 and 32000 x 4096 in fp16: 5 x 295.7 MB
    assert MedusaHeads(heads=5).weight_bytes(MODEL) == pytest.approx(
        2 * 5 * (4096 * 4096 + 4096 + 32000 * 4096)
    )
    shared = MedusaHeads(heads=5, own_output_layers=False).weight_bytes(MODEL)
    assert shared == 2 * 5 * 4096 * 4097
    assert MedusaHeads().kv_bytes_per_token(MODEL) == 0.0


def test_heads_run_on_all_candidates_or_on_the_accepted_row() -> None:
    heads = MedusaHeads(heads=3)
    (output,) = gemms(heads.work(MODEL, STEP, RUNTIME), "medusa_output")
    assert (int(output.m), output.n, output.k) == (64, 32000, 4096)
    accepted = replace(RUNTIME, head_rows="accepted")
    (output,) = gemms(heads.work(MODEL, STEP, accepted), "medusa_output")
    assert int(output.m) == 4


def test_a_head_costs_the_same_whichever_it_is() -> None:
    latency = RooflineLatency(load_gpu("a100-80gb-pcie"))
    times = [
        float(sum(work_time(latency, w).time_us for w in MedusaHeads(heads=k).work(MODEL, STEP, RUNTIME)))
        for k in (1, 2, 4)
    ]
    assert times[1] == pytest.approx(2 * times[0])
    assert times[2] == pytest.approx(4 * times[0])


def test_n_grams_cost_nothing() -> None:
    none = NoDrafter()
    assert none.work(MODEL, STEP, RUNTIME) == ()
    assert none.prompt_work(MODEL, prefill(1, 100), RUNTIME) == ()
    assert none.weight_bytes(MODEL) == none.kv_bytes_per_token(MODEL) == 0.0


def test_a_draft_model_of_the_targets_own_size_costs_one_decode_step_a_draft() -> None:
    latency = RooflineLatency(load_gpu("a100-80gb-pcie"))
    setting = Setting(
        latency=latency, model=MODEL, runtime=RUNTIME, scope="model", drafter=DraftModel(draft=MODEL, depth=3)
    )
    drafted = sum(float(step.time_us) for step in drafting_steps(setting, 2, 1000, 4))
    decoded = sum(float(decode_step(setting, 2, 1000 + i).time_us) for i in range(3))
    assert drafted == pytest.approx(decoded)
    prompt = sum(
        float(work_time(latency, work).time_us)
        for work in setting.drafter.prompt_work(MODEL, prefill(2, 500), RUNTIME)
    )
    assert prompt == pytest.approx(float(prefill_step(setting, 2, 500).time_us))


def test_a_draft_model_keeps_its_own_runtime_and_cache() -> None:
    eager = load_runtime("hf-eager")
    works = DraftModel(draft=DRAFT, depth=4, runtime=eager).work(MODEL, STEP, RUNTIME)
    assert len(works) == 4
    assert {work.runtime.name for work in works} == {"hf-eager"}
    assert all(work.of == "draft" for work in works)
    drafter = DraftModel(draft=DRAFT, depth=4)
    assert drafter.weight_bytes(MODEL) == DRAFT.weight_bytes
    assert drafter.kv_bytes_per_token(MODEL) == DRAFT.kv_bytes_per_token


def test_width_multiplies_the_rows_behind_the_first_level() -> None:
    rows = [
        int(g.m)
        for g in gemms(DraftModel(draft=DRAFT, depth=3, width=4).work(MODEL, STEP, RUNTIME), "down_proj")
    ]
    assert rows == [4, 16, 16]


def test_an_eagle_layer_reads_what_was_accepted_first_and_looks_at_the_last_row() -> None:
    works = Eagle(depth=3).work(LLAMA, STEP, RUNTIME)
    assert [int(g.m) for g in gemms(works, "draft_fusion")] == [16, 4, 4]  # 4 sequences x (3 + 1) rows
    assert [int(g.m) for g in gemms(works, "lm_head")] == [4, 4, 4]
    assert all(g.n == LLAMA.vocab for g in gemms(works, "lm_head"))


def test_an_eagle_layer_of_a_pruned_vocabulary_has_a_head_of_its_own() -> None:
    pruned = Eagle(depth=2, draft_vocab=32000, fused_inputs=3)
    assert {g.n for g in gemms(pruned.work(LLAMA, STEP, RUNTIME), "lm_head")} == {32000}
    assert {g.k for g in gemms(pruned.work(LLAMA, STEP, RUNTIME), "draft_fusion")} == {3 * LLAMA.hidden}
    grown = pruned.weight_bytes(LLAMA) - Eagle(depth=2, fused_inputs=3).weight_bytes(LLAMA)
    assert grown == 2 * 32000 * LLAMA.hidden
    assert pruned.kv_bytes_per_token(LLAMA) == pytest.approx(LLAMA.kv_bytes_per_token / 32)


def test_drafting_is_a_small_share_and_grows_with_depth() -> None:
    latency = RooflineLatency(load_gpu("h100-sxm"))
    decode = float(
        decode_step(
            Setting(latency=latency, model=LLAMA, runtime=RUNTIME, scope="model", drafter=NoDrafter()),
            1,
            1024,
        ).time_us
    )
    shares = []
    for depth in (1, 2, 4):
        works = Eagle(depth=depth).work(LLAMA, verify(1, 1024, depth + 1), RUNTIME)
        shares.append(float(sum(np.asarray(work_time(latency, work).time_us) for work in works)) / decode)
    assert shares[0] < 0.15  # one of 32 layers, the LM head and the fusion layer
    assert shares[2] == pytest.approx(4 * shares[0], rel=0.05)
