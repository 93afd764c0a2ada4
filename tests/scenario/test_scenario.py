"""One scenario: defaults, kernel sets by dtype, and what does not fit together."""

import json
from dataclasses import FrozenInstanceError, replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from one_line import one_line

import medusa_sim as ms
from medusa_sim.acceptance.profile import load_acceptance
from medusa_sim.doubts.of_scenario import scenario_doubts
from medusa_sim.doubts.stand_ins import borrowed_shares
from medusa_sim.engine_runs.run import engine_run
from medusa_sim.engines.runtime import load_runtime, local_runtime_names, runtime_names
from medusa_sim.errors import CoverageError, SpecError, UsageError
from medusa_sim.gpus.gpu import load_gpu
from medusa_sim.gpus.gpu_names import gpu_names
from medusa_sim.grid.axes import Grid
from medusa_sim.grid.sweep import SweepTable, sweep
from medusa_sim.latency.by_name import latency_model
from medusa_sim.latency.calibrated import CalibratedLatency
from medusa_sim.latency.operator_time import Source
from medusa_sim.load.load_test import load_test
from medusa_sim.models.named import load_model, model_names
from medusa_sim.operators.gemm import Gemm
from medusa_sim.plan.recommend import recommend
from medusa_sim.scenario.defaults import DEFAULT_DRAFTERS, KERNELS_ALONE, RUNS_CHAINS
from medusa_sim.scenario.question import Measured, Question
from medusa_sim.scenario.scenario import Scenario
from medusa_sim.step.drafter import drafter_names, drafters
from medusa_sim.step.step import decode_step, verification_step
from medusa_sim.units import FORMATS

ROOT = Path(__file__).resolve().parents[2]


def test_defaults_are_those_of_the_command_line():
    scenario = Scenario()
    names = [getattr(scenario, name).name for name in ("gpu", "model", "runtime", "latency", "profile")]
    assert names == ["a100-80gb-pcie", "vicuna-7b", "cuda-graph", "calibrated", "medusa1-vicuna-7b"]
    assert (scenario.scope, scenario.baseline, scenario.kernels) == ("model", "same", "torch")
    assert scenario_doubts(scenario) == ()


@pytest.mark.parametrize("drafter", drafter_names())
def test_where_no_runtime_is_named_the_drafter_decides(drafter):
    runtime = load_runtime(drafters()[drafter].default_runtime)
    assert runtime.engine is None or drafter in runtime.engine.drafters
    assert drafters()[drafter].default_runtime == (KERNELS_ALONE if drafter == "medusa" else RUNS_CHAINS)
    assert runtime.chain_only is (drafter != "medusa")
    assert Scenario(runtime="hf-eager").but(runtime=None, drafter="eagle").runtime.name == "vllm-0.33"


@pytest.mark.parametrize("runtime", [*runtime_names()[1:], *local_runtime_names(), "vllm-0.18"])
def test_where_no_drafter_is_named_the_runtime_decides(runtime):
    """Every runtime that runs whole steps (`paper` has a block) answers without being told what drafts."""
    gpu = ON_ITS_OWN.get(runtime, "h100-sxm")
    scenario = ms.Scenario(gpu=gpu, model="llama-2-7b", runtime=runtime)
    engine = load_runtime(runtime).engine
    runs = [name for name in DEFAULT_DRAFTERS if engine is None or name in engine.drafters]
    assert scenario.drafting.drafter_class.name == runs[0]
    changed = ms.Scenario(model="llama-2-7b").but(gpu=gpu, runtime=runtime)
    assert changed.drafting.drafter_class is scenario.drafting.drafter_class
    assert f"--drafter {runs[0]}" in scenario.command("sweep")
    assert scenario.sweep([4], candidates=[1]).decode_step_us.notna().all()


ON_ITS_OWN = {
    "mlx": "m3-max", "llama.cpp-metal": "m3-max", "llama.cpp-rocm": "rx-7900-xtx",
    "llama.cpp-cpu": "cpu-ryzen-7950x",
}  # fmt: skip
"""Runtimes that do not run on a GPU of a data centre, and one that they run on."""


def test_names_and_objects_are_the_same():
    names = {
        "gpu": "h100-sxm",
        "model": "llama-3.1-8b",
        "runtime": "hf-eager",
        "acceptance": "medusa1-vicuna-7b",
    }
    readers = {"gpu": load_gpu, "model": load_model, "runtime": load_runtime, "acceptance": load_acceptance}
    loaded = {kind: readers[kind](name) for kind, name in names.items()}
    tables = [swept(Scenario(**given, latency="roofline"), [1, 8], 512, [1, 8]) for given in (loaded, names)]
    assert tables[0].pandas().equals(tables[1].pandas())


SERVED = Scenario(gpu="h100-sxm", model="llama-3.1-8b", drafter="ngram", acceptance=0.5, latency="roofline",
                  prompt_tokens=896, output_tokens=256)  # fmt: skip


@pytest.mark.parametrize(
    "ask",
    [
        lambda seq_len: recommend(SERVED, Question(batch_max=1, seq_len=(seq_len,))),
        lambda seq_len: ms.Scenario(**SERVED.changed).sweep(seq_len=[2048, seq_len], candidates=[1, 2]),
        lambda seq_len: ms.Scenario(**SERVED.changed).step(seq_len=seq_len, candidates=2),
        lambda seq_len: engine_run(
            SERVED, given=Measured(batch=1, drafts=0, tpot_ms=5.0, seq_len=seq_len)
        ),
    ],
    ids=["recommend", "sweep", "step", "check"],
)  # fmt: skip
def test_a_length_shorter_than_its_requests_is_refused_at_every_door(ask):
    """Prompts of 896 tokens were read in a cache of 354."""
    ask(1024)
    with pytest.raises(UsageError, match=r"--seq 354: .* are 1024 long .* ask from 1024"):
        ask(354)


def test_the_kernel_set_follows_the_dtype():
    assert Scenario(model="llama-7b").kernels == "torch"
    assert Scenario(model="llama-3-8b", gpu="h100-sxm").kernels == "sglang"
    assert Scenario(model="llama-3-8b").kernels == "torch"  # an A100 runs bf16 as it runs fp16
    assert Scenario(gpu="h100-sxm", dtype="fp8").kernels == "sglang"
    assert Scenario(model="llama-7b", runtime="paper", scope="block").kernels == "paper"
    assert Scenario(latency="roofline").kernels == "none"


def swept(scenario: Scenario, batch: list[int], length: int, candidates: list[int]) -> SweepTable:
    (table,) = sweep([scenario], Grid.of(batch, [length], candidates))
    assert np.isfinite(table.numbers["speedup"]).all()
    assert (table.numbers["verify_step_us"] > 0).all()
    return table


def test_a_gpu_without_kernels_is_refused_in_one_line_and_has_a_roofline(bare_gpu):
    with pytest.raises(SpecError, match=r"bare has no kernel set .*\(it has: none\).*--latency roofline"):
        swept(Scenario(gpu=bare_gpu), [1], 1024, [1])
    swept(Scenario(gpu=bare_gpu, latency="roofline"), [1], 1024, [1, 4])


@pytest.mark.parametrize("gpu", [name for name in gpu_names() if not name.startswith("cpu-")])
@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_every_gpu_sweeps_by_default(gpu, dtype):
    swept(Scenario(gpu=gpu, dtype=dtype), [1], 1024, [1, 4])


@pytest.mark.parametrize("gpu", [name for name in gpu_names() if name.startswith("cpu-")])
def test_a_cpu_sweeps_in_the_dtype_that_it_was_measured_in(gpu):
    dtype = "bf16" if "-bf16" in gpu else "fp32"
    swept(Scenario(gpu=gpu, dtype=dtype, runtime="kernel", kernels="torch"), [1], 256, [1, 8])
    if dtype == "fp32":
        with pytest.raises(SpecError, match="fp16"):
            swept(Scenario(gpu=gpu), [1], 1024, [1])


@pytest.mark.parametrize("model", model_names())
def test_every_model_sweeps_by_default(model):
    # not every GPU has kernels for experts of every format
    experts = {"gpu": "b200", "tp": 8, "latency": "roofline", "drafter": "ngram", "acceptance": "0.5"}
    swept(Scenario(model=model, **experts if load_model(model).experts else {}), [1], 512, [1, 4])


def test_a_config_file_is_a_model_with_its_mtp_module_and_dtype(tmp_path):
    shipped = json.loads((ROOT / "docs" / "example_config.json").read_text(encoding="utf-8"))

    def config(**changes: object) -> Path:
        path = tmp_path / "config.json"
        path.write_text(json.dumps({**shipped, **changes}), encoding="utf-8")
        return path

    for path in (config(num_key_value_heads=8), str(config(num_key_value_heads=8))):
        assert Scenario(model=path).model.attention.kv_heads == 8
    scenario = Scenario(model=config(num_nextn_predict_layers=1), drafter="mtp", acceptance=0.8)
    assert scenario.model.mtp_layers == 1
    assert scenario.options()
    scenario = Scenario(model=config(torch_dtype="float32"), latency="roofline")
    assert any("float32" in line and "fp16" in line for line in scenario_doubts(scenario))
    assert not any("float32" in line for line in scenario_doubts(scenario.but(dtype="bf16")))


@pytest.mark.parametrize(
    ("names", "error", "told"),
    [
        ({"kernels": "rocm"}, SpecError, "torch"),
        ({"drafter": "medusae"}, UsageError, "medusa"),
        ({"baseline": "one"}, UsageError, "fixed"),
        ({"draft_vocab": 32000}, UsageError, "takes no --draft-vocab"),
        ({"draft_runtime": "hf-eager"}, UsageError, "takes no --draft-runtime"),
        ({"drafter": "eagle", "heads": 3}, UsageError, "takes no --heads"),
        ({"max_drafts": 0}, UsageError, "max drafts 0: whole numbers from 1"),
        ({"heads": 1, "acceptance": "paper-fig21"}, UsageError, "curve measured with 5 heads"),
    ],
)
def test_what_does_not_fit_is_one_line(names, error, told):
    with one_line(error, match=told):
        next(sweep([Scenario(**names)], Grid.of([1], [128], [1, 4])))


def test_padded_vocabularies_speculate_and_eagle_3_fuses_three_features():
    draft = replace(load_model("llama-68m"), vocab=32_064)
    scenario = Scenario(drafter="draft-model", draft_model=draft, acceptance=0.7)
    assert scenario.drafting.parts.draft == draft
    target = load_model("llama-3.1-8b")
    two, three = (
        Scenario(model=target, drafter=name, acceptance=0.7).options()[0].drafter.weight_bytes(target)
        for name in ("eagle", "eagle3")
    )
    # queries, keys and values read embedding and feature, and an LM head of their own is over 32,000 tokens
    both = target.hidden * (target.hidden + 2 * 1024)
    assert three - two == pytest.approx(2 * (target.hidden**2 + both + 32_000 * target.hidden))


def test_what_is_borrowed_is_stated():
    borrowed = Scenario(model="llama-2-7b")
    assert borrowed.profile.borrowed
    assert "another model" in scenario_doubts(borrowed)[0]
    assert scenario_doubts(Scenario(model="llama-2-7b", acceptance=0.7)) == ()
    assert any("borrowed from" in line for line in scenario_doubts(Scenario(gpu="rtx-4090")))


@pytest.mark.parametrize("runtime", [*sorted({*runtime_names()} - {"paper"}), "mine.toml"])
def test_an_engine_that_nobody_measured_says_so(runtime, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("mine.toml").write_text('inherits = "vllm-0.33"\ntitle = "mine"\n[engine]\nwiden = 2.0\n')
    scenario = Scenario(gpu="h100-sxm", model="llama-3.1-8b", drafter="ngram", acceptance="0.5")
    told = " ".join(scenario_doubts(scenario.but(runtime=runtime)))
    assert ("nobody measured this engine" in told) == (runtime == "mine.toml")
    assert load_runtime(runtime).is_measured() == (runtime != "mine.toml")
    assert ("nobody measured drafting" in told) == runtime.startswith("tensorrt-llm-")


@pytest.mark.parametrize(
    ("runtime", "measured"),
    [("vllm-0.11", ""), ("vllm-0.33", "H100"), ("sglang-0.5", "H200"), ("tensorrt-llm-1.2", "B200")],
)
def test_terms_that_were_measured_on_other_numbers_of_gpus_are_counted(runtime, measured):
    """ "Taken over for 8 GPUs" was said of terms that were measured on eight."""
    asked = {"gpu": "b200", "model": "deepseek-r1", "tp": 8, "drafter": "mtp", "runtime": runtime}
    for tp in (1, 2, 8):
        scenario = Scenario(**asked | {"tp": tp})
        terms = scenario.setting.runtime.engine.terms
        outside = [name for name, term in terms.items() if term.value and "gpus" in term.outside]
        told = [line for line in scenario_doubts(scenario) if "carried over, with wider bands" in line]
        assert bool(told) == bool(outside)
        if told:
            assert told[0].startswith(f"{len(outside)} of the ")
            assert measured in told[0]


def test_what_is_borrowed_is_named_with_its_share_of_the_step():
    """ "Kernels of h200-sxm are borrowed" was said where only elementwise kernels are."""
    (line,) = (
        each for each in scenario_doubts(Scenario(gpu="h200-sxm", model="llama-3.1-8b")) if "borrowed" in each
    )
    assert "are borrowed from h100-sxm:torch: elementwise kernels (" in line
    scenario = ms.Scenario(gpu="h200-sxm", model="llama-3.1-8b", drafter="eagle3", runtime="cuda-graph")
    frame = scenario.step(1, candidates=1).breakdown()
    own = frame[frame.source == "borrowed"].time_us.sum() / frame.time_us.sum()
    assert sum(borrowed_shares(scenario).values()) == pytest.approx(own, abs=0.02)


def test_nvfp4_weights_can_be_stated_beside_any_activations_and_old_versions_group_other_experts():
    asked = {"gpu": "b200", "model": "deepseek-r1", "tp": 8, "drafter": "mtp"}
    for dtype in (None, "bf16", "fp8", "nvfp4"):
        found = Scenario(**asked, runtime="tensorrt-llm", dtype=dtype, weight_dtype="nvfp4")
        assert (found.model.dtype, found.model.weight_dtype) == ("nvfp4", "nvfp4")

    def of_version(version: str, weights: str | None) -> tuple[float, float]:
        """(time of a step, what grouping adds to its 58 layers of experts), microseconds."""
        of = Scenario(**asked | {"runtime": f"tensorrt-llm-{version}", "weight_dtype": weights})
        added = of.runtime.at(of.case).engine.experts_us_per_layer.value
        return float(decode_step(of.setting, 4, 1024).time_us), 58 * added

    (fp8, grouping), (nvfp4, none) = (
        np.subtract(of_version("1.1", weights), of_version("1.2", weights)) for weights in (None, "nvfp4")
    )
    assert grouping > 1_000.0
    assert none == 0.0
    assert grouping < fp8 < 1.5 * grouping
    assert nvfp4 < 0.5 * fp8


@pytest.mark.parametrize("gpu", ["a100-80gb-sxm", "h100-sxm", "b200", "rtx-4090"])
@pytest.mark.parametrize("model", ["gpt-oss-20b", "qwen3-30b-a3b", "mixtral-8x7b", "deepseek-v2-lite"])
@pytest.mark.parametrize(
    "dtypes", [{}, {"weight_dtype": "int4"}, {"dtype": "fp8_block"}, {"kv_dtype": "fp8"}]
)
def test_no_time_rests_on_more_than_is_shown(gpu, model, dtypes):
    try:
        scenario = Scenario(gpu=gpu, model=model, drafter="ngram", acceptance="0.5", **dtypes)
        steps = decode_step(scenario.setting, 8, 1024), verification_step(scenario.setting, 8, 1024, 4)
    except SpecError:  # no kernel of that arithmetic on this GPU
        return
    told = " ".join(scenario_doubts(scenario))
    worst = max(int(step.source) for step in steps)
    assert (worst >= Source.BORROWED) <= ("borrowed" in told or "nobody measured" in told or "extrap" in told)
    assert (worst == Source.EXTRAPOLATED) == ("nobody measured" in told or "extrapolated" in told)


@pytest.mark.parametrize(
    "parallel", [{"tp": 8}, {"tp": 8, "ep": 8}, {"tp": 8, "ep": 8, "dp_attention": True}]
)
@pytest.mark.parametrize("gpu", ["h100-sxm", "b200"])
def test_experts_spread_over_gpus_are_shown(gpu, parallel):
    scenario = Scenario(gpu=gpu, model="qwen3-30b-a3b", drafter="ngram", acceptance="0.5", **parallel)
    spread = parallel.get("ep", 1) > 1
    assert any("experts spread over GPUs (ep 8)" in line for line in scenario_doubts(scenario)) == spread
    step = decode_step(scenario.setting, np.array([1, 64]), 1024)
    assert (np.max(step.source) == Source.EXTRAPOLATED) == spread
    if spread:
        together = decode_step(scenario.but(tp=8, ep=1).setting, np.array([1, 64]), 1024)
        if not parallel.get("dp_attention"):
            assert np.all(step.high_us / step.low_us > together.high_us / together.low_us)


def test_counts_that_acceptance_does_not_describe_have_no_rows():
    scenario = Scenario(drafter="eagle", acceptance="0.7,0.5,0.3", latency="roofline")
    assert list(swept(scenario, [1], 128, [1, 2, 4, 7, 8, 16]).numbers["candidates"]) == [1, 2, 4, 7]
    with pytest.raises(CoverageError, match=r"covers candidates 2\.\.7"):
        scenario.covered([8, 16])


def test_every_drafter_is_registered_once_and_says_what_it_is():
    assert len(set(drafter_names())) == len(drafter_names()) == len(drafters())
    for name, kind in drafters().items():
        assert kind.name == name
        assert kind.title
        assert kind.unit in ("head", "draft")
        assert kind.profiles
        assert load_acceptance(kind.lender).name == kind.lender


def test_the_measured_model_refuses_or_falls_back_by_choice():
    gpu, far = load_gpu("a100-80gb-pcie"), Gemm(name="far", m=8, n=128, k=128, dtype="fp16")
    calibrated = partial(CalibratedLatency, gpu, "torch")
    with pytest.raises(CoverageError, match="measure"):
        latency_model(gpu, "measured", calibrated).time(far)
    assert latency_model(gpu, "measured", calibrated, fallback="calibrated").time(far).time_us > 0.0


def test_a_scenario_owns_its_card_and_refuses_the_latency_model_of_another():
    scenario = Scenario(gpu="h100-sxm")
    assert scenario.latency.gpu is scenario.gpu
    assert scenario.but(latency=scenario.latency).latency is scenario.latency
    with one_line(UsageError, "gpu a40 with a latency model of h100-sxm", "one GPU"):
        scenario.but(gpu="a40", latency=scenario.latency)
    faster = replace(scenario.gpu, bandwidth_bytes_per_s=2.0 * scenario.gpu.bandwidth_bytes_per_s)
    with one_line(UsageError, "h100-sxm with other numbers", "one GPU"):
        scenario.but(gpu=faster, latency=scenario.latency)
    for made in (scenario, ms.Scenario()):
        with pytest.raises(FrozenInstanceError):
            made.gpu = faster


def test_a_scenario_is_changed_by_making_another():
    scenario = Scenario(latency="roofline", acceptance=0.7)
    other = scenario.but(gpu="h100-sxm")
    assert (scenario.gpu.name, other.gpu.name) == ("a100-80gb-pcie", "h100-sxm")
    assert other.profile.name == scenario.profile.name
    assert "acceptance=0.7" in repr(other)
    with pytest.raises(UsageError, match="runtime"):
        scenario.but(runtim="x")


def test_collectives_that_were_measured_between_two_cards_say_so_beyond():
    scenario = Scenario(gpu="l40s", model="llama-3.1-8b", runtime="sglang", drafter="eagle3", tp=2)
    for asked, is_told in (({}, False), ({"tp": 4}, True), ({"tp": 4, "gpu": "h100-sxm"}, False)):
        assert ("were measured on 2 GPUs only" in " ".join(scenario_doubts(scenario.but(**asked)))) == is_told


@pytest.mark.parametrize(
    ("gpu", "model", "tp", "said"),
    [("b200", "llama-3.1-8b", 4, True), ("b200", "llama-3.1-70b", 4, False),
     ("mi300x", "qwen3-32b", 2, False), ("rtx-5090", "llama-3.1-8b", 1, False)],
)  # fmt: skip
def test_fp8_that_is_slower_than_bf16_says_why(gpu, model, tp, said):
    """Small layers on Blackwell do not earn back that inputs are quantised; no borrowed rule adds to it."""
    named = {"gpu": gpu, "model": model, "tp": tp, "drafter": "ngram", "acceptance": "0.5"}
    if said:  # vLLM's layers are cuBLAS's there
        named["runtime"] = "sglang"
    scenario = Scenario(**named, dtype="fp8")
    assert any("quantised first" in line for line in scenario_doubts(scenario)) == said
    batches = np.array([1, 8, 64, 256])
    times = [
        decode_step(Scenario(**named, dtype=each).setting, batches, 640).time_us for each in ("fp8", "bf16")
    ]
    assert said or (times[0] < 1.02 * times[1]).all()


NAMED_BY_EXPERTS = [name for name in model_names() if load_model(name).precision != load_model(name).form]


@pytest.mark.parametrize("name", NAMED_BY_EXPERTS)
def test_a_checkpoint_asked_for_in_its_own_format_is_the_one_published(name):
    set_up = {"gpu": "b200", "model": name, "tp": 8, "runtime": "vllm", "drafter": "ngram"}
    published, model = ms.Scenario(**set_up), load_model(name)
    for asked in ({}, {"dtype": model.dtype}):
        given = ms.Scenario(**set_up, weight_dtype=FORMATS[model.precision].weight_dtype, **asked)
        assert given.model == published.model
        assert given.precision == published.precision == model.precision


@pytest.mark.parametrize("value", [np.float32("nan"), np.int64(-3), np.float32(0)])
def test_numbers_of_numpy_are_held_to_the_same_range(value):
    with pytest.raises(UsageError, match="prompt tokens"):
        Scenario(prompt_tokens=value)


def test_a_load_test_knows_that_its_acceptance_is_another_models():
    """A profile that outputs change was passed on as if it had been given."""
    other = replace(load_model("deepseek-r1"), name="deepseek-r1-next")
    of = Scenario(gpu="h200", model=other, runtime="sglang", tp=8, drafter="mtp")
    loaded = load_test(of, output_tokens=256).scenario
    assert loaded.profile.output_share < 1.0
    assert any("another model" in line for line in scenario_doubts(loaded))
