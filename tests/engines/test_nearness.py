"""How near a set-up lies to what was measured: the worst that is new, and bands that only open."""

import dataclasses
import itertools
import tomllib
from functools import partial
from typing import get_args

import msgspec
import numpy as np
import pandas as pd
import pytest
from common import (
    hierarchy_bands,
    hierarchy_cells,
    hierarchy_fit,
    hierarchy_terms,
    hierarchy_written,
    recipes,
)
from common.script import ROOT
from common.terms import inline

import medusa_sim as ms
import medusa_sim.engines.nearness
from medusa_sim.doubts.standing import standing
from medusa_sim.engines.case import Form
from medusa_sim.engines.nearness import nearest, nearness, widening_by, widenings, widenings_beside
from medusa_sim.engines.place import KINDS, Difference, difference
from medusa_sim.engines.ranges import MeasuredRange
from medusa_sim.engines.runtime import load_runtime, runtime_names
from medusa_sim.engines.served_groups import Spread, known_kinds, served_groups
from medusa_sim.engines.widening import Widening, least_half_width, unbeaten
from medusa_sim.report.words.standing import standing_sentence
from medusa_sim.step.step import decode_step, verification_step

SERVED = [group.place for group in served_groups()]
PARTS = np.linspace(0.0, 0.9, 10)
"""Of a step, what layers of experts take; 0 of a dense model."""
HOME = next(place for place in SERVED if place.runtime == "vllm-0.15" and place.formats == ("fp8",))
EXAMPLE = (
    (0.018, 0.0),
    (0.085, 0.0),
    (0.05, 0.157),
    (0.05, 0.157),
    *[(0.06, 0.157)] * 4,
)
"""(step, experts) of every kind in the example of `nearness`, the nearest first."""
CHANGES = {
    "version": {"runtime": "vllm-0.33"},
    "generation": {"gpu": "rtx-5090", "generation": "consumer-blackwell"},
    "model": {"sizes": "7 layers of 64"},
    "form": {"sizes": "7 layers of 64", "form": "hybrid"},
    "format": {"formats": ("int3",)},
    "engine": {"library": "another"},
}


def half_widths(offered) -> np.ndarray:
    """Of steps of 1, by PARTS."""
    return least_half_width(offered, 1.0, PARTS)


def test_every_measured_group_is_measured_and_what_is_new_is_named_by_its_worst():
    for place in SERVED:
        for part in (0.0, 0.5):
            assert nearness(place, part).difference.kind == "measured", place
    for kind, changed in CHANGES.items():
        assert nearness(HOME._replace(**changed), 0.0).difference.kind == kind
    for one, other in itertools.combinations(CHANGES, 2):
        both = nearness(HOME._replace(**CHANGES[one] | CHANGES[other]), 0.0).difference
        assert both.kind == max(one, other, key=KINDS.index), (one, other)
    others = [place for place in SERVED if place.gpu != HOME.gpu]
    assert difference(HOME, nearest(HOME, others)).kind in ("gpu", "generation", "model")


def test_a_set_up_is_judged_by_the_group_that_its_band_goes_by():
    for place in SERVED:
        for changed in CHANGES.values():
            new = place._replace(**changed)
            for part, half in zip(PARTS, half_widths(widenings(new)), strict=True):
                judged = nearness(new, part)
                assert judged.widening.half_width(1.0, part) == pytest.approx(half)
                assert judged.widening == widening_by(new.library, difference(new, judged.group.place))


def test_the_least_of_several_widenings_counts_at_every_part_of_experts():
    offered = [Widening(0.3, 0.0), Widening(0.1, 0.4), Widening(0.2, 0.2), Widening(0.2, 0.5)]
    assert unbeaten(offered) == (Widening(0.1, 0.4), Widening(0.2, 0.2), Widening(0.3, 0.0))
    every = np.min([each.half_width(1.0, PARTS) for each in offered], axis=0)
    for order in itertools.permutations(offered):
        np.testing.assert_allclose(half_widths(unbeaten(order)), every)
    assert least_half_width((), np.ones(3), 0.5).tolist() == [0.0] * 3


def test_a_dense_model_is_judged_as_one_and_a_mixture_by_what_its_experts_take(monkeypatch):
    """It had the width of another version, since half of its step counted as experts (0.085 for 0.034)."""
    kinds = {
        kind: msgspec.structs.replace(known, step_share=step, experts_share=experts)
        for (kind, known), (step, experts) in zip(known_kinds().items(), EXAMPLE, strict=True)
    }
    monkeypatch.setattr(medusa_sim.engines.nearness, "known_kinds", lambda: kinds)
    monkeypatch.setattr(medusa_sim.engines.nearness, "known_spreads", lambda: {"vllm": Spread(steps=0.67)})
    own = next(
        group.place for group in served_groups()
        if (group.model, group.runtime, group.gpu, group.formats)
        == ("llama-3.1-8b", "vllm-0.24", "a100-80gb-sxm", ("bf16",))
    )._replace(gpu="h100-sxm", generation="hopper")  # fmt: skip
    dense, mixture = nearness(own, 0.0), nearness(own, 0.9)
    assert dense.widening.step_share == pytest.approx(0.67 * 0.05)
    assert dense.widening.step_share < kinds["version"].step_share == mixture.widening.step_share
    assert (dense.group.gpu, mixture.difference.kind) == ("a100-80gb-sxm", "version")


def test_what_lies_further_off_is_never_known_better():
    kinds = [near for kind, near in known_kinds().items() if kind != "version"]  # it adds to the others
    for share in ("step_share", "experts_share"):
        shares = [getattr(near, share) for near in kinds]
        assert shares == sorted(shares)
    for changed in CHANGES.values():
        place = HOME._replace(**changed)
        later = widenings(place._replace(runtime="vllm-0.33"))
        assert (half_widths(later) >= half_widths(widenings(place))).all()


def test_of_places_as_near_the_one_with_the_least_besides_counts_in_any_order():
    """The same version first, then what else differs, then how far the versions lie apart."""
    model = HOME._replace(sizes="7 layers of 64")
    ranked = [
        model, model._replace(gpu="b200", generation="blackwell"), model._replace(runtime="vllm-0.14"),
        model._replace(runtime="vllm-0.11"), model._replace(runtime="vllm-0.14", gpu="gh200"),
        HOME._replace(formats=("int3",)), HOME._replace(library="another", runtime="another-1"),
    ]  # fmt: skip
    while ranked:
        for order in (ranked, ranked[::-1]):
            assert nearest(HOME, order) == ranked[0]
        ranked = ranked[1:]


def test_versions_of_other_engines_are_not_compared():
    """Of two groups of other engines, alike in all else, the first counts whatever their numbers."""
    own = HOME._replace(library="another", runtime="another-9.9")
    others = [HOME._replace(runtime="vllm-0.15"), HOME._replace(library="third", runtime="third-9.9")]
    assert [nearest(own, order) for order in (others, others[::-1])] == others


def test_an_engine_is_as_wide_as_its_groups_lie_from_fits_without_them():
    """An engine of which nothing was measured has the mean engine's widths; a version has every engine's."""
    kinds, wide = known_kinds(), {}
    for library in ("vllm", "sglang", "another"):
        wide[library] = widening_by(library, Difference(("model",), (0, 0, 0)))
    assert wide["another"] == (kinds["model"].step_share, kinds["model"].experts_share)
    assert wide["vllm"].step_share < wide["another"].step_share < wide["sglang"].step_share
    assert wide["vllm"].experts_share == wide["another"].experts_share  # it has one mixture
    least = max(kinds["gpu"].step_share, kinds["version"].step_share)
    for library in ("vllm", "another"):
        assert widening_by(library, Difference(("gpu", "version"), (0, 1, 0))).step_share == least
    for new in (Difference((), (0, 0, 0)), Difference(("version",), (0, 1, 0))):
        assert widening_by("vllm", new) == widening_by("sglang", new)


def test_another_measured_group_never_opens_a_band():
    """TensorRT-LLM 1.1 was known worse where 1.2 had been measured than where nothing had."""
    narrower = 0
    for index, own in enumerate(SERVED):
        runtimes = {place.runtime for place in SERVED if place.library == own.library}
        places = [own._replace(runtime=runtime) for runtime in sorted(runtimes)]
        fewer = SERVED[:index] + SERVED[index + 1 :]
        known = np.array([half_widths(widenings(place)) for place in places])
        unknown = np.array([half_widths(widenings_beside(place, fewer)) for place in places])
        assert (unknown >= known - 1e-12).all(), own
        narrower += (unknown > known).any()
    assert narrower > len(SERVED) / 4


def test_no_engine_is_known_better_unmeasured_than_measured():
    """In mixtures too, and in set-ups that are new in several ways: SGLang was 24 % beside 23."""
    news = [{}, *CHANGES.values(), CHANGES["model"] | CHANGES["format"] | CHANGES["generation"]]
    for place, new in itertools.product(SERVED, news):
        later = place._replace(**new)._replace(library=place.library, runtime=f"{place.library}-99")
        unknown = later._replace(library="another", runtime="another-1")
        assert (half_widths(widenings(unknown)) >= half_widths(widenings(later)) - 1e-12).all(), later
    assert nearness(unknown, 0.0).difference.is_other_version


def test_a_runtime_without_an_engine_is_never_surer_than_an_engine():
    """Steps of gpt-fast, priced as a captured graph, had the band of their kernels: 29 % of 14 lay in it."""
    places = (("llama-2-7b", "a100-80gb-sxm"), ("mixtral-8x7b", "h100-sxm"), ("gpt-oss-120b", "b200"))
    for model, gpu in places:
        case = ms.Scenario(gpu=gpu, model=model, drafter="ngram", acceptance="0.5").case
        known = {name: load_runtime(name).at(case) for name in runtime_names()}
        served = [half_widths(of.widenings) for of in known.values() if of.engine is not None]
        for name in ("cuda-graph", "hf-eager"):
            assert (half_widths(known[name].widenings) >= np.max(served, axis=0) - 1e-12).all(), name
        assert known["kernel"].widenings == known["paper"].widenings == ()


def test_patches_tell_versions_apart():
    own = HOME._replace(library="sglang", runtime="sglang-0.5.9")
    others = [own._replace(runtime=f"sglang-0.5.{patch}") for patch in (2, 8, 12)]
    assert nearest(own, others) == others[1]


@pytest.mark.parametrize(("asked", "named"), [
    ("vllm-0.33", "vllm-0.15"), ("vllm-0.12", "vllm-0.11"), ("vllm-0.11", "vllm-0.11"),
])  # fmt: skip
def test_of_groups_as_near_the_one_of_the_nearest_version_is_named(asked, named):
    place = next(group.place for group in served_groups() if group.place.runtime == "vllm-0.11")
    assert place.gpu == "h100-sxm"
    assert nearness(place._replace(runtime=asked), 0.0).group.runtime == named


@pytest.mark.parametrize(
    "changed", [{"runtime": "vllm-0.33"}, {"gpu": "b300"}, {"model": "qwen3-14b", "tp": 4}]
)
def test_the_band_of_a_step_opens_with_what_is_new(changed):
    asked = {"gpu": "h200-sxm", "model": "llama-3.1-70b", "dtype": "fp8", "tp": 4, "runtime": "vllm-0.15"}

    def half_width(**given) -> float:
        setting = ms.Scenario(**given, drafter="ngram", acceptance="0.5").setting
        step = decode_step(setting, 16, 1024)
        return float(np.log(step.high_us / step.low_us) / 2.0)

    assert half_width(**asked | changed) > half_width(**asked) > 0.0


def test_what_no_row_had_is_outside_with_wider_bands_and_stated():
    """Terms of the joint fit counted for hybrids as measured, though no row had recurrent layers."""
    asked = {"gpu": "h200-sxm", "tp": 4, "dtype": "bf16", "drafter": "ngram", "acceptance": "0.5"}
    for runtime, model, forms in (
        ("vllm-0.15", "qwen3-next-80b-a3b", ("dense", "mixture")),
        ("sglang-0.5", "gpt-oss-120b", ("dense", "latent")),
        ("tensorrt-llm-1.2", "qwen3.5-27b", ("dense", "mixture", "latent")),
    ):
        new, known = (
            ms.Scenario(**asked | {"model": each}, runtime=runtime) for each in (model, "llama-3.1-70b")
        )
        term, at_home = (each.setting.runtime.engine.linear_share for each in (new, known))
        assert term.measured.forms == forms
        assert (term.outside, at_home.outside) == (("forms",), ())
        assert term.band == pytest.approx(1.5 * at_home.band)
        assert standing(known).kind != "form"
    assert standing(new).kind == "form"
    assert "models of other forms were measured" in standing_sentence(new, standing(new))
    cells = pd.DataFrame(
        {"form": ["latent", "dense"], "tp": [1, 8], "generation": ["hopper"] * 2, "requests": [4.0, 96.0]}
    )
    written = hierarchy_written.measured_range(cells)
    assert inline(written) == (
        '{ forms = ["dense", "latent"], gpus = [1, 8], generations = ["hopper"], requests = 96, '
        'fewer = [["latent", 4]] }'
    )
    fields = msgspec.toml.decode(f"measured = {inline(written)}")["measured"]
    measured = msgspec.convert(fields, MeasuredRange)
    requests = {form: measured.at(form).requests for form in get_args(Form)}
    assert requests == {"dense": 96, "latent": 4, "mixture": 4, "hybrid": 4, "sparse": 4}
    assert "up to 96 requests; latent up to 4" in measured.text


def test_an_engine_is_known_up_to_the_requests_that_its_form_was_measured_with():
    """512 requests, which dense models told, counted for mixtures, which no row of the engine holds."""
    dense, latent, mixture = (
        ms.Scenario(gpu="h200-sxm", model=model, tp=8, runtime="sglang-0.5").setting.runtime.engine
        for model in ("llama-3.1-70b", "deepseek-v3", "gpt-oss-120b")
    )
    assert dense.measured_requests > latent.measured_requests
    assert mixture.measured_requests <= latent.measured_requests
    dense, mixture, *without_rows = (
        ms.Scenario(gpu="h200-sxm", model=model, tp=8, runtime="vllm-0.33").setting.runtime.engine
        for model in ("llama-3.1-70b", "gpt-oss-120b", "qwen3.5-27b", "deepseek-v3", "deepseek-v3.2")
    )
    assert dense.measured_requests > mixture.measured_requests
    assert {each.measured_requests for each in without_rows} == {mixture.measured_requests}


def test_a_refit_keeps_what_models_shown_that_it_does_not_hold():
    known = tomllib.loads((ROOT / "medusa_sim/engines/runtimes.toml").read_text(encoding="utf-8"))
    term = known["sglang-0.5"]["engine"]["experts_share"]
    (kept,) = hierarchy_written.deviations_of_others(term, {"deepseek-v3", "gpt-oss-120b"})
    assert kept["only"] == "kimi-k3"


def left_out(kind, engine, off, *, experts=0.0):
    """Cells of one group whose errors are spread evenly to `off` either way."""
    return pd.DataFrame(
        {
            "way": "a GPU", "group": f"{engine}, {off:g}, {experts:g}", "kind": kind, "faster": 0.01,
            "slower": 0.01, "kernels_faster": 1.0, "kernels_slower": 1.0,
            "experts": experts, "short": np.linspace(-off, off, 41), "library": engine,
            "is_other_version": False, "spread": 1.0, "experts_spread": 1.0,
        }
    )  # fmt: skip


def test_dense_models_tell_what_whole_steps_differ_by_and_mixtures_what_experts_do():
    lines = pd.concat(
        [
            *(left_out("generation", engine, 0.1) for engine in ("vllm", "sglang")),
            *(left_out("generation", engine, 0.3, experts=0.5) for engine in ("vllm", "sglang")),
            *(left_out("engine", engine, 0.05) for engine in ("vllm", "sglang")),
            left_out("gpu", "vllm", 0.02), left_out("version", "trtllm", 0.2, experts=0.5),
            left_out("model", "trtllm", 0.1).assign(is_other_version=True),
        ],
        ignore_index=True,
    )  # fmt: skip
    found = hierarchy_bands.kinds_of(lines)
    generation = found["generation"]
    # 0.08 and, farther, 0.04 alone: one share with which four groups hold 0.6, 0.6, 1 and 1
    assert generation["step_share"] == pytest.approx(0.06, abs=0.006)
    both = np.hypot(generation["step_share"], 0.5 * generation["experts_share"])
    assert both == pytest.approx(0.24, abs=0.02)
    # a farther kind is never known better, and one engine's GPUs tell nothing of another's
    for share in ("step_share", "experts_share"):
        assert found["engine"][share] == found["gpu"][share] == generation[share]
    nothing = {"step_share": hierarchy_bands.NIGHTS, "experts_share": 0.0, "kernels_half_share": 0.0}
    assert found["measured"] | nothing == found["measured"]
    # another version is told like the rest: by dense models, though they are new in something else too
    version = found["version"]
    assert version["step_share"] == pytest.approx(0.08, abs=0.006)
    assert np.hypot(version["step_share"], 0.5 * version["experts_share"]) == pytest.approx(0.16, abs=0.012)
    assert found["generation"]["held"] == pytest.approx(0.7, abs=0.05)


def test_steps_that_were_measured_tell_how_much_of_their_kernels_bands_counts():
    """Kernels of +-10 % whose sums err evenly by up to 5: 80 % lie within 4, of which nights are 1.8."""
    lines = left_out("measured", "vllm", 0.05).assign(faster=0.1, slower=0.1)
    assert hierarchy_bands.measured_of(lines)["kernels_half_share"] == pytest.approx(
        np.sqrt(0.04**2 - hierarchy_bands.NIGHTS**2) / 0.1, abs=0.02
    )
    # terms of the engine keep theirs, and no share of kernels is above all of it
    engine = lines.assign(kernels_faster=0.0, kernels_slower=0.0)
    assert (hierarchy_bands.told(engine, 0.3).faster == 0.1).all()
    assert hierarchy_bands.measured_of(left_out("measured", "vllm", 0.5))["kernels_half_share"] == 1.0


def test_a_plain_step_that_was_measured_has_a_share_of_its_kernels_band_and_no_other_has():
    asked = {"gpu": "b200", "model": "llama-3.1-70b", "dtype": "fp8", "tp": 4, "runtime": "vllm-0.15"}
    setting = ms.Scenario(**asked, drafter="ngram", acceptance="0.5").setting
    assert setting.runtime.kernels_half_share == known_kinds()["measured"].kernels_half_share < 1.0
    whole = dataclasses.replace(setting, runtime=dataclasses.replace(setting.runtime, kernels_half_share=1.0))
    told, every = (decode_step(of, 16, 1024).cost for of in (setting, whole))
    share = setting.runtime.kernels_half_share
    np.testing.assert_allclose(told.above_square, share**2 * every.above_square)
    np.testing.assert_allclose(told.engine_square, every.engine_square)
    verified = (verification_step(of, 16, 1024, 4).cost.above_square for of in (setting, whole))
    assert float(next(verified)) == float(next(verified))


def test_engines_spread_as_their_groups_lie_from_fits_without_them():
    parts = [
        ("gpu", "vllm", 0.1),
        ("model", "sglang", 0.4),
        ("measured", "vllm", 0.9),
        ("engine", "sglang", 1),
    ]
    lines = pd.concat([left_out(*part) for part in parts], ignore_index=True)
    out = lines[lines.kind.isin(["gpu", "model"])]
    assert hierarchy_bands.spreads_of(lines) == {
        "sglang": Spread(steps=2.0, experts=2.0), "vllm": Spread(steps=0.5, experts=1.0)
    }  # fmt: skip
    mixtures = [left_out("measured", "vllm", 0.9, experts=part) for part in (0.4, 0.5)]
    lines = pd.concat([lines, *mixtures], ignore_index=True)  # of two networks
    assert hierarchy_bands.spreads_of(lines)["vllm"] == Spread(steps=0.5, experts=0.5)
    # a width that holds the mean engine's holds each its own share
    lines = out.assign(spread=out.library.map({"sglang": 2.0, "vllm": 0.5}), kind="model")
    share = hierarchy_bands.kinds_of(lines)["model"]["step_share"]
    assert hierarchy_bands.band_of(lines, share, 0.0).max() == pytest.approx(4 * share * 0.5)
    assert hierarchy_bands.by_group(lines, hierarchy_bands.band_of(lines, share, 0.0)).min() > 0.75


def test_a_value_knows_the_model_whose_cells_alone_tell_it():
    small, large = "32 layers of 4096", "80 layers of 8192"
    cells = pd.DataFrame(
        [
            {"model": model, "place": HOME._replace(sizes=sizes), "part": part}
            for model, sizes, part in (("llama-3.1-8b", small, 0.0), ("llama-3.1-70b", large, 2.0),
                                       ("llama-3.3-70b", large, 1.0), ("llama-3.1-70b", large, 1.0))
        ]
    )  # fmt: skip
    fit = object.__new__(hierarchy_fit.Fit)
    fit.cells = cells
    fit.names = [(hierarchy_terms.Effect("term", "part", ()), ("engine",), ("vllm",))]
    fit.levels = np.ones((4, 1))
    assert fit.only_model(0) == "llama-3.1-70b"  # the 8B's cells have no such part
    cells.loc[0, "part"] = 1.0
    assert fit.only_model(0) == ""


@pytest.mark.parametrize(
    ("generation", "version", "experts_in", "splits", "by"),
    [
        ("hopper", "new", "mxfp4", False, "grouped"), ("hopper", "new", "fp8_block", True, "fused"),
        ("blackwell", "new", "fp8_block", False, "fused"),
        ("blackwell", "old", "fp8_block", False, "grouped"),
        ("blackwell", "old", "nvfp4", False, "fused"), ("blackwell", "new", "nvfp4", True, "grouped"),
    ],
)  # fmt: skip
def test_tensorrt_llm_groups_experts_where_no_kernel_of_its_own_was_fitted(
    generation, version, experts_in, splits, by
):
    assert hierarchy_cells.experts_by("trtllm", generation, version, experts_in, splits=splits) == by
    assert hierarchy_cells.experts_by("sglang", generation, version, experts_in, splits=splits) == "fused"


def test_recipes_tell_how_a_mixture_was_split_before_rows_did():
    even, long_prompt = (1024, 1024), (8192, 1024)
    of_r1 = partial(recipes.unsaid_split, "deepseek-r1")
    assert of_r1("b200", "fp4", 8, even, 8) == (1, False)
    assert of_r1("b200", "fp4", 8, even, 16) == (8, False)
    assert of_r1("b200", "fp4", 4, even, 256) == (4, True)
    assert of_r1("b200", "fp4", 4, long_prompt, 64) == (4, True)
    assert of_r1("h200-sxm", "fp8", 8, long_prompt, 32) == (8, False)
    assert recipes.unsaid_split("gpt-oss-120b", "h200-sxm", "fp4", 4, even, 4) == (4, False)
    assert recipes.unsaid_split("llama-3.1-70b", "b200", "fp4", 4, even, 64) == (1, False)


def test_slopes_of_a_fit_are_those_of_its_times():
    cells = pd.DataFrame(
        {
            "engine": "trtllm", "generation": ["hopper", "blackwell", "hopper"],
            "weights": ["fp8", "fp8", "bf16"],
            "experts_in": ["fp8_block", "fp8_block", "bf16"], "layers_of": ["mxfp4", "mxfp4", "dense"],
            "form": ["latent", "latent", "dense"], "version": ["old", "new", "new"], "gpus": "many",
            "experts_by": ["grouped", "fused", "grouped"], "every": "all", "rest": 1.0, "linear": 3.0,
            "attention": 2.0, "experts": [4.0, 5.0, 0.0], "exchange": 1.0, "prompt": 2.0, "kernels": 1.0,
            "steps": 1.0, "requests": 4.0, "prompt_layers": 0.1, "layers_shared": 30.0, "tests": 1.0,
            "expert_layers": [30.0, 30.0, 0.0], "spread_layers": [30.0, 0.0, 0.0], "first_prompts": 9.0,
            "first_layers": 2.0, "first_steps": 3.0,
        }
    )  # fmt: skip
    fit = hierarchy_fit.Fit(cells)
    values = np.linspace(0.01, 0.3, fit.spreads.size)
    for times in (fit._with_slopes, lambda at: fit.first(at, np.ones(3))):
        slopes = times(values)[1]
        for place in range(values.size):
            near = [values + sign * 1e-6 * (np.arange(values.size) == place) for sign in (1.0, -1.0)]
            further, back = (times(at)[0] for at in near)
            np.testing.assert_allclose((further - back) / 2e-6, slopes[:, place], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("model", ["llama-3.1-8b", "gpt-oss-20b"])
def test_a_launched_step_is_known_no_better_than_an_engine_that_nobody_measured(model):
    """Eager code of 24 ms was printed as +-0.1 %, a graph of 6 as +-1.2. Bare kernels are no step."""
    eager, graph, bare = (
        ms.Scenario(gpu="h100-sxm", model=model, runtime=runtime, drafter="ngram", acceptance="0.5").step(4)
        for runtime in ("hf-eager", "cuda-graph", "kernel")
    )
    for step in (eager, graph):
        least = 0.9 * known_kinds()["version"].step_share * step.time_us  # some of it waits for nothing
        low, high = step.band_us
        assert min(step.time_us - low, high - step.time_us) > least
    assert bare.band_us[1] < 1.1 * bare.time_us


def test_a_band_opens_only_as_far_as_it_lifts_large_groups():
    """A group out of reach of bands that hold 85 % in the mean widened all others to no end."""
    near = [left_out("gpu", engine, 0.1) for engine in ("vllm", "sglang", "trtllm", "another")]
    shares = []
    for off in (0.1, 0.15, 9.0):
        lines = pd.concat([*near, left_out("gpu", "fifth", off)], ignore_index=True)

        def trial(share, own=lines):
            return own, np.full(len(own), share)

        shares.append(hierarchy_bands.needed(trial, 0.0, 0.2))
    # 80 % of each; 60 of the fifth, with 90 of the others; 100 of the others and none of the fifth
    np.testing.assert_allclose(shares, [0.08, 0.09, 0.1], atol=0.003)
