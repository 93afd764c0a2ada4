"""What an engine adds to a step: physics of the terms, padding, bands."""

from dataclasses import replace

import numpy as np
import pytest
from engine_settings import engine, setting, with_terms

import medusa_sim as ms
from medusa_sim.engines.runtime import load_runtime, runtime_names
from medusa_sim.engines.term import Term
from medusa_sim.engines.widening import Widening
from medusa_sim.gpus.gpu import load_gpu
from medusa_sim.grid.cells import price
from medusa_sim.latency.calibrated import CalibratedLatency
from medusa_sim.models.named import load_model
from medusa_sim.models.variants import with_dtypes
from medusa_sim.scenario.scenario import Scenario
from medusa_sim.step.compose import RATIO_SHARE, overhead_halves
from medusa_sim.step.drafter import drafters
from medusa_sim.step.drafter.base import DrafterParts
from medusa_sim.step.drafter.draft_model import DraftModel
from medusa_sim.step.drafter.layer import Eagle
from medusa_sim.step.drafting import drafting_times
from medusa_sim.step.host import (
    Added,
    drafting_pass_us,
    drafting_us,
    split_host,
    sum_of_terms,
)
from medusa_sim.step.setting import Setting
from medusa_sim.step.step import decode_step, speculative_step, verification_step
from medusa_sim.step.verified import Verified

ENGINES = tuple(name for name in runtime_names() if load_runtime(name).engine is not None)
NOTHING = Term(value=0.0, source="a test")
BATCHES = np.array([1, 2, 7, 16, 33, 64, 100, 200, 256])


def verified_us(of: Setting, batch: int, candidates: int = 4) -> float:
    return float(verification_step(of, batch, 512, candidates).time_us)


@pytest.mark.parametrize("name", ENGINES)
def test_an_engine_adds_to_its_own_kernels_and_more_with_requests(name):
    step = decode_step(setting(name), BATCHES, np.array(512))
    added = step.time_us - step.device_us
    assert (added >= 0).all()
    assert (np.diff(added) >= -5.0).all()  # what hides behind the device hides better behind a longer one
    assert (step.low_us <= step.time_us).all()
    assert (step.high_us >= step.time_us).all()


@pytest.mark.parametrize("name", ENGINES)
def test_drafting_costs_more_with_each_pass_and_a_look_up_less_than_any(name):
    terms = engine(name)
    kernels_and_host = 300.0 + float(drafting_pass_us(terms, 1, np.asarray(300.0)).time_us)
    looked_up, *costs = (
        float(drafting_us(terms, 8, looks_up=not passes).time_us) + passes * kernels_and_host
        for passes in (0, 1, 2, 5)
    )
    assert costs == sorted(costs)
    assert looked_up < costs[0]


@pytest.mark.parametrize("name", drafters())
def test_only_a_drafter_that_looks_drafts_up_pays_for_look_ups(name):
    kind, of = drafters()[name], setting("vllm-0.14")
    of = replace(of, drafter=kind.sized(DrafterParts(draft=load_model("llama-68m")), 1))
    dear = with_terms(of, engine("vllm-0.14", lookup_us_per_request=1000.0))
    free = with_terms(of, engine("vllm-0.14", lookup_us_per_request=0.0))
    added = speculative_step(dear, 8, 512, 2).time_us - speculative_step(free, 8, 512, 2).time_us
    assert float(added) == pytest.approx(8000.0 if kind.looks_up else 0.0)


def test_a_pass_is_as_long_as_the_longer_of_its_kernels_and_its_host():
    """EAGLE-3 was charged 392 us beside its kernels where EAGLE had 125: one host serves both."""
    terms = engine("vllm-0.14")
    host = terms.draft_us_per_pass.value
    for kernels in (0.1 * host, host, 10.0 * host):
        whole = kernels + float(drafting_pass_us(terms, 1, np.asarray(kernels)).time_us)
        assert max(kernels, host) <= whole <= 1.27 * max(kernels, host)


def test_what_is_charged_for_a_request_goes_on_beyond_what_was_measured_and_its_band_opens():
    known = load_runtime("vllm-0.10").engine
    sizes = np.array([16, 64, 128, 256, 257, 512, 1024, 2048])
    added = split_host(known, sizes).exposed.plus(drafting_us(known, sizes, looks_up=False))
    assert np.diff(added.time_us) / np.diff(sizes) == pytest.approx(
        np.full(sizes.size - 1, known.host_us_per_request.value + known.draft_us_per_request.value)
    )
    assert known.host_us_per_request.measured.requests == 256
    # relative to what is charged for requests: as it was measured, then up to what a cap would leave out
    charged = Added(*(split_host(known.with_terms({"host_us_per_step": NOTHING}), sizes).exposed))
    shares = charged.half_us / charged.time_us
    assert shares[:4] == pytest.approx(np.full(4, known.host_us_per_request.band))
    assert (np.diff(shares[3:]) > 0.0).all()
    assert charged.half_us[-1] > charged.time_us[-1] - charged.time_us[3]


def test_what_is_hidden_is_not_added():
    whole, partly, free = (
        float(split_host(engine(**hidden), 4).exposed.time_us)
        for hidden in ({}, {"hidden_us_per_step": 100.0}, {"hidden_us_per_step": 1e5})
    )
    assert (whole - partly, free) == (pytest.approx(100.0), 0.0)


def test_drafters_without_asynchronous_scheduling_pay_the_host_that_others_hide():
    """n-grams cost an engine 12 % of a step of an 8B model, where 2 % were charged."""
    asked = setting("vllm-0.14")
    bare = [verified_us(replace(asked, served_drafter=method), 1) for method in ("eagle3", "ngram", "medusa")]
    assert bare[0] < 1.03 * float(decode_step(asked, 1, 512).time_us)
    hidden = engine("vllm-0.14").hidden_us_per_step.value
    assert bare[1] == bare[2] == pytest.approx(bare[0] + hidden, rel=0.01)


def test_no_model_is_faster_than_the_host_of_its_engine():
    terms = engine("vllm-0.33")
    tiny = load_model("llama-3.1-8b").resized(layers=1, vocab=512)
    step = decode_step(setting("vllm-0.33", model=tiny), 1, 16)
    assert float(step.device_us) < terms.hidden_us_per_step.value
    assert float(step.time_us) >= terms.host_us_per_step.value


def test_a_small_mixture_on_eight_gpus_waits_for_no_host_in_vllm_of_2025():
    # InferenceX, 2025-11-02: gpt-oss-120b on eight H200, 64 requests of 8,192 + 1,024 tokens: 12.1 ms a token
    on = ms.Scenario(gpu="h200-sxm", model="gpt-oss-120b", runtime="vllm-0.11", tp=8)
    served = on.but(prompt_tokens=8_192, output_tokens=1_024)
    assert float(served.sweep(64, candidates=[1]).tpot_us.iloc[0]) == pytest.approx(12_145, rel=0.1)


def test_an_fp8_cache_on_ampere_costs_a_plan_every_pass_and_a_round_in_pieces():
    def added(gpu: str) -> np.ndarray:
        """What the cache adds to a plain step and to a verification, in us."""
        latency = CalibratedLatency(load_gpu(gpu), "torch", serves="vllm")
        models = (with_dtypes(load_model("llama-3.1-8b"), "fp16", None, cache) for cache in (None, "fp8"))
        asked = [
            setting("vllm-0.24", model=each, latency=latency, served_drafter="eagle3") for each in models
        ]
        plain, cached = ((float(decode_step(of, 1, 512).time_us), verified_us(of, 1, 6)) for of in asked)
        return np.subtract(cached, plain)

    terms = engine("vllm-0.24")
    plan, pieces = terms.plan_us_per_pass.value, 32 * terms.pieces_us_per_layer.value
    step_us, round_us = added("a100-80gb-sxm")
    assert step_us == pytest.approx(plan, abs=200.0)
    assert round_us == pytest.approx(plan + pieces, abs=600.0)
    assert abs(added("h100-sxm")[1]) < 100.0


def test_a_pass_of_a_draft_model_takes_its_launches_at_least():
    draft = load_model("qwen3-0.6b")
    of = setting(drafter=DraftModel(draft=draft, depth=3), model=load_model("qwen3-8b"))
    floor = engine().draft_us_per_layer.value * draft.layers
    *passes, _ = drafting_times(of, 1, 512, 4)
    assert all(floor <= float(step.time_us) < 1.1 * floor for step in passes)
    *passes, _ = drafting_times(
        with_terms(of, engine(draft_us_per_layer=0.0, draft_us_per_pass=0.0)), 1, 512, 4
    )
    assert [float(each.time_us) for each in passes] == pytest.approx(
        [float(each.device_us) for each in passes]
    )


def test_a_look_up_that_never_matches_is_a_plain_step_and_one_that_always_does_a_full_one():
    # a server with drafts has graphs of multiples of its candidates alone, whatever was found
    filled = np.asarray([8, 64, 256])
    for match_rate, candidates, batches in ((0.0, 8, filled), (1.0, 1, BATCHES), (0.3, 1, BATCHES)):
        plain = decode_step(setting(), batches, 512)
        step = verification_step(setting(verified=Verified(match_rate=match_rate)), batches, 512, candidates)
        # attention is a verification kernel at one query: the decode kernel
        assert step.time_us == pytest.approx(plain.time_us, rel=1e-9)
    rising = [
        verified_us(setting(verified=Verified(match_rate=rate)), 64, 8) for rate in (0.0, 0.2, 0.5, 1.0)
    ]
    assert rising == sorted(rising)
    assert rising[-1] == verified_us(setting(), 64, 8)


@pytest.mark.parametrize(
    ("runtime", "filled"),
    [("sglang", True), ("sglang-0.4", True), ("tensorrt-llm", True), ("vllm", False), ("cuda-graph", False)],
)
def test_engines_that_fill_look_ups_verify_all_drafts_of_every_request(runtime, filled):
    asked = {"gpu": "h100-sxm", "model": "llama-3.1-8b", "runtime": runtime, "drafter": "ngram"}
    seldom = Scenario(**asked, acceptance="0.2,0.1,0.05")
    of = seldom.setting
    assert seldom.match_rate == pytest.approx(0.2 / 0.53)
    tokens = 4.0 if filled else 1.0 + 3.0 * 0.2 / 0.53
    assert float(of.verified.mean_tokens(4)) == pytest.approx(tokens)
    always = replace(of, verified=Verified())
    assert (verified_us(of, 64, 4) == verified_us(always, 64, 4)) is filled


def test_small_kernels_are_merged_and_the_choice_is_the_engines():
    here, alone = (decode_step(setting(name), 8, 512).parts_us for name in ("vllm", "cuda-graph"))
    assert float(here["norm_rope"]) < 0.7 * float(alone["norm_rope"])
    assert float(here["accept"]) < float(alone["accept"])
    for part in ("qkv", "attention", "o_proj", "lm_head"):
        assert float(here[part]) == pytest.approx(float(alone[part]))


def test_terms_that_both_steps_share_hardly_move_a_speedup():
    def slower(of: Setting) -> float:
        return float(overhead_halves(speculative_step(of, 4, 512, 4).cost, decode_step(of, 4, 512).cost).up)

    of = setting(drafter=Eagle(depth=3))
    host = [name for name in engine().terms if name.startswith("host")]
    sure = with_terms(of, engine(**{name: engine().terms[name].value for name in host}))
    # a quarter of a step uncertain by 40 % would move either step by several per cent
    assert 0.0 <= slower(of) - slower(sure) < 0.005
    # of kernels, too, what is common to both steps cancels
    assert slower(of) > RATIO_SHARE * float(speculative_step(of, 4, 512, 4).cost.kernel_halves.up)


@pytest.mark.parametrize("term", ["gain_share", "lookup_gain_share", "far_gain_share"])
@pytest.mark.parametrize("looks_up", [False, True])
def test_what_other_sources_miss_by_opens_a_round_and_its_speedup(term, looks_up):
    of = setting(drafter=drafters()["ngram"].sized(DrafterParts(), 3) if looks_up else Eagle(depth=3))
    nothing = {"gain_share": 0.0, "lookup_gain_share": 0.0, "far_gain_share": 0.0}
    bare, wide = (with_terms(of, engine(**nothing | more)) for more in ({}, {term: 0.3}))
    steps = [speculative_step(each, 4, 512, 4).cost for each in (bare, wide)]
    plain = decode_step(of, 4, 512).cost
    (narrow_down, narrow_up), (down, up) = (overhead_halves(step, plain) for step in steps)
    if (term, looks_up) in (("gain_share", True), ("lookup_gain_share", False)):
        assert (float(down), float(up)) == (float(narrow_down), float(narrow_up))
        assert steps[0].halves == steps[1].halves
        return
    assert float(up) == pytest.approx(np.hypot(float(narrow_up), 0.3))
    # of what both steps have in common, a round has the whole: it is never surer than its ratio
    assert steps[1].high_us >= steps[1].time_us * np.exp(0.3)
    assert steps[1].low_us <= steps[1].time_us * np.exp(-0.3)
    own_us = float(steps[0].high_us - steps[0].time_us)
    of_gain_us = float(steps[0].time_us) * np.expm1(0.3)
    assert float(steps[1].high_us - steps[1].time_us) == pytest.approx(
        np.hypot(RATIO_SHARE * own_us, of_gain_us)
    )


def test_a_round_that_is_known_worse_than_its_ratio_stays_as_it_is():
    of = setting(drafter=Eagle(depth=3))
    bare, told = (with_terms(of, engine(gain_share=share, far_gain_share=0.0)) for share in (0.0, 0.01))
    one, other = (speculative_step(each, 4, 512, 4).cost for each in (bare, told))
    assert one.halves == other.halves


@pytest.mark.parametrize("name", sorted({*runtime_names()} - {*ENGINES, "paper"}))  # paper: of other GPUs
def test_kernels_alone_keep_their_band(name):
    step = decode_step(setting(name), 4, 512)
    assert not step.cost.has_engine_band
    low, high = overhead_halves(step.cost, step.cost).ratios()
    assert float(step.high_us) == pytest.approx(float(step.time_us * high))
    assert float(step.low_us) == pytest.approx(float(step.time_us * low))


@pytest.mark.parametrize("model", ["llama-3.1-8b", "llama-3-70b"])
@pytest.mark.parametrize("tp", [1, 4, 16])
def test_a_guessed_engine_is_known_no_better_than_the_measured_one(model, tp, tmp_path):
    """TensorRT-LLM, of which nothing was measured then, had 3 % on 16 GPUs where vLLM had 15."""
    measured = load_runtime("vllm-0.33").engine.draft_us_per_pass.value
    guess = f'{{ value = {measured}, band = 0.2, source = "a guess" }}'
    mine = tmp_path / "mine.toml"
    mine.write_text(f'inherits = "vllm-0.33"\ntitle = "mine"\n[engine]\ndraft_us_per_pass = {guess}\n')
    widths = {}
    for runtime in ("vllm-0.33", str(mine)):
        scenario = Scenario(
            gpu="h100-sxm", model=model, tp=tp, runtime=runtime, drafter="eagle3", latency="roofline",
            acceptance="0.7,0.5,0.3",
        )  # fmt: skip
        low, high = (end[:, 0, -1] for end in price(scenario, [1, 8, 64], [1024]).speedup_band)
        widths[runtime] = np.log(high / low)
    assert (widths[str(mine)] >= widths["vllm-0.33"]).all()


def test_an_older_version_takes_its_share_of_every_kernel_and_nothing_else():
    asked = {"gpu": "b200", "model": "deepseek-r1", "tp": 8, "drafter": "ngram", "acceptance": "0.5"}
    older, newest = (
        decode_step(Scenario(**asked, runtime=f"tensorrt-llm-{of}").setting, np.array([1, 64]), 1024)
        for of in ("1.1", "1.2")
    )
    share = Scenario(**asked, runtime="tensorrt-llm-1.1").setting.runtime.engine.kernels_share.value
    assert 1.0 < share <= 1.20  # pairs of one set-up on both versions lie between
    for part in ("lm_head", "exchange", "norm_rope"):
        assert older.parts_us[part] == pytest.approx(share * newest.parts_us[part], rel=1e-2), part


def test_eager_trees_pay_for_their_levels_and_look_ups_less_than_other_drafts():
    """Spec-Bench in Hugging Face: 1.3 ms a level on a 7B, 2 ms on a 13B, look-ups 1.2 to 2 ms."""
    eager = load_runtime("hf-eager")
    added = {}
    for name in ("vicuna-7b", "vicuna-13b"):
        of = setting("hf-eager", model=load_model(name), served_drafter="eagle")
        chain, tree = (
            drafting_times(replace(of, drafter=Eagle(depth=5, width=width)), 1, 512, 26)[-1]
            for width in (1, 4)
        )
        added[name] = float(tree.cost.time_us - chain.cost.time_us) / 5
        assert float(chain.cost.time_us) == eager.host_us_per_drafted_step
    assert added["vicuna-7b"] == pytest.approx(1300.0)
    assert added["vicuna-13b"] == pytest.approx(2000.0, rel=0.03)
    ngram = drafters()["ngram"].sized(DrafterParts(), 5)
    (looked_up,) = drafting_times(setting("hf-eager", ngram), 1, 512, 6)
    assert 1200.0 <= float(looked_up.cost.time_us) <= 2000.0
    assert looked_up.cost.has_engine_band


def test_sglang_quantises_activations_in_launches_of_their_own():
    """Four a layer, 0.6 ms of a step of an 8B; weights in fp8 alone, or scales in blocks, have none."""
    terms = engine("sglang-0.5")
    bare = terms.with_terms({"quantise_us": NOTHING})
    added = {}
    for formats in (("fp8", None, None), ("bf16", "fp8", None), ("bf16", None, None)):
        model = with_dtypes(load_model("llama-3.1-8b"), *formats)
        of = setting("sglang-0.5", model=model)
        steps = (decode_step(with_terms(of, each), 1, 512).time_us for each in (terms, bare))
        added[formats[:2]] = float(np.subtract(*steps))
    assert added["fp8", None] == pytest.approx(4 * 32 * terms.quantise_us.value)
    assert 500.0 < added["fp8", None] < 700.0
    assert added["bf16", "fp8"] == added["bf16", None] == 0.0


@pytest.mark.parametrize(
    ("gpu", "model", "us"),
    [
        ("h200-sxm", "gpt-oss-120b", 130), ("b200", "gpt-oss-120b", 65), ("h200-sxm", "qwen3-235b-a22b", 65),
        ("h200-sxm", "llama-3.1-70b", 20), ("h200-sxm", "deepseek-v3", 65),
    ],
)  # fmt: skip
def test_prompts_through_tensorrt_llm_are_launched_by_what_their_layers_are(gpu, model, us):
    """Experts in groups of products have twice the launches that are modelled, fused ones as many."""
    of = Scenario(gpu=gpu, model=model, runtime="tensorrt-llm-1.2", tp=8).setting
    assert of.runtime.engine.prompt_us_per_launch.value == us


def test_what_is_known_of_experts_widens_what_they_take_of_a_step():
    """In quadrature to what the whole step has; a dense model has none."""
    for model, has in (("qwen3-30b-a3b", True), ("llama-3.1-8b", False)):
        of = setting("vllm-0.15", model=load_model(model))
        steps = [
            decode_step(replace(of, runtime=replace(of.runtime, widenings=(Widening(0.1, share),))), 16, 512)
            for share in (0.0, 0.4)
        ]
        bare, wide = (float(step.cost.setup_half_us / step.time_us) for step in steps)
        part = float(steps[0].parts_us["experts"] / steps[0].time_us) if has else 0.0
        assert wide == pytest.approx(np.hypot(bare, 0.4 * part))
        assert (part > 0.1) == has


def test_what_steps_lie_beside_others_widens_a_step_and_no_speedup():
    asked = {"gpu": "h200-sxm", "model": "llama-3.1-70b", "dtype": "fp8", "tp": 4, "drafter": "ngram"}
    runtime = load_runtime("vllm-0.15")

    def rows_of(half: float):
        given = runtime.engine.with_terms({"between_share": Term(value=half, source="a test")})
        of = ms.Scenario(**asked, acceptance="0.5", runtime=replace(runtime, engine=given))
        return of.sweep(batch=[16], candidates=[1, 4]).set_index("candidates")

    narrow, wide = rows_of(0.0), rows_of(0.2)
    for end in ("verify_low_us", "verify_high_us"):
        half = abs(wide[end] / wide.verify_step_us - 1.0)
        assert (half > abs(narrow[end] / narrow.verify_step_us - 1.0)).all()
        assert (half > 0.15).all()
    for end in ("speedup_low", "speedup_high"):
        assert wide[end].to_numpy() == pytest.approx(narrow[end].to_numpy(), rel=0.02)


def test_terms_add_up_and_their_errors_in_quadrature_with_what_requests_are_beyond():
    terms = load_runtime("vllm").engine.terms
    step, request = terms["host_us_per_step"], terms["host_us_per_request"]
    known = request.measured.requests
    for batch in (1.0, known, 3.0 * known):
        found = sum_of_terms(((step, 2.0),), ((request, batch),))
        beyond_us = request.value * max(batch - known, 0.0)
        halves = (2.0 * step.value * step.band, batch * request.value * request.band, beyond_us)
        assert float(found.time_us) == pytest.approx(2.0 * step.value + batch * request.value)
        assert float(found.half_us) == pytest.approx(sum(half**2 for half in halves) ** 0.5)
