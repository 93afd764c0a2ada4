"""Runtimes: what they fuse, what launching costs, which kernel verifies, and strict loading."""

import itertools
import tomllib
from dataclasses import replace

import msgspec
import numpy as np
import pytest
import tomlkit
from one_line import one_line

from medusa_sim.doubts.of_scenario import scenario_doubts
from medusa_sim.engines import runtime as runtime_module
from medusa_sim.engines.backends import FACTS, backend_of, backend_of_row
from medusa_sim.engines.case import Case
from medusa_sim.engines.engine import UNITS
from medusa_sim.engines.place import version_numbers
from medusa_sim.engines.ranges import Deviation, band_factor
from medusa_sim.engines.runtime import (
    VERSION_WIDEN,
    _distance,
    load_runtime,
    runtime_aliases,
    runtime_names,
)
from medusa_sim.engines.term import Term
from medusa_sim.errors import SpecError
from medusa_sim.gpus.gpu import load_gpu
from medusa_sim.lab.reproduce.token_rates import plain_step
from medusa_sim.models.named import load_model
from medusa_sim.report.specs.rows import runtime_rows
from medusa_sim.scenario.scenario import Scenario
from medusa_sim.step.drafter import drafter_names
from medusa_sim.step.step import decode_step

TIMES = ("launch_us", "host_us_per_launch", "host_us_per_step")


KERNELS = ("paper", "kernel", "cuda-graph", "hf-eager")
ENGINES = (
    "vllm-0.10", "vllm-0.11", "vllm-0.14", "vllm-0.15", "vllm-0.24", "vllm-0.33", "vllm-0.8", "vllm-v0",
    "sglang-0.4", "sglang-0.5.0", "sglang-0.5", "sglang-0.5.7", "sglang-0.5.5",
    "tensorrt-llm-1.2", "tensorrt-llm-1.3", "tensorrt-llm-1.1",
)  # fmt: skip


def test_the_runtimes_and_what_each_fuses():
    assert runtime_names() == (*KERNELS, *ENGINES)
    assert runtime_aliases() == {
        "vllm": "vllm-0.33",
        "sglang": "sglang-0.5",
        "tensorrt-llm": "tensorrt-llm-1.2",
    }
    assert load_runtime("vllm").name == "vllm-0.33"
    fused = {
        name: (load_runtime(name).fused_qkv, load_runtime(name).fused_gate_up, load_runtime(name).attention)
        for name in runtime_names()
    }
    assert fused == {
        "paper": (False, False, "unfused"),
        "kernel": (True, True, "fused"),
        "cuda-graph": (True, True, "fused"),
        "hf-eager": (False, False, "fused"),
        **dict.fromkeys(ENGINES, (True, True, "fused")),
    }
    assert all(load_runtime(name).engine is None for name in KERNELS)
    assert not any(load_runtime(name).chain_only for name in KERNELS)
    for name in ("kernel", "paper"):
        assert [getattr(load_runtime(name), key) for key in TIMES] == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("name", ENGINES)
def test_every_term_of_an_engine_says_where_it_is_from(name):
    engine = load_runtime(name).engine
    rows = {row.key: row for row in runtime_rows(load_runtime(name))}
    for key, term in engine.terms.items():
        row = rows[f"engine.{key}"]
        assert (row.value, row.source, row.unit) == (term.value, term.source, UNITS[key])
        assert term.source
        if term.inherited_from:
            assert f"inherited from {term.inherited_from}" in row.note
            lender = load_runtime(term.inherited_from).engine
            # what nobody measured in this version is less certain than where somebody did
            assert term.value == lender.terms[key].value
            assert term.band >= lender.terms[key].band
    assert set(engine.drafters) <= set(drafter_names())


@pytest.mark.parametrize(
    ("asked", "name", "holds"),
    [
        ("vllm-0.12", "vllm-0.11", True), ("vllm-0.11.1", "vllm-0.11", True),
        ("vllm-0.16", "vllm-0.15", True),
        ("vllm-0.7.3", "vllm-v0", True), ("vllm-0.40", "vllm-0.33", False),
        ("sglang-0.5.3", "sglang-0.5.0", True),
        ("sglang-0.5.3.post3", "sglang-0.5.0", True), ("sglang-0.5.9", "sglang-0.5.7", True),
        ("sglang-0.5.6", "sglang-0.5.5", True), ("sglang-0.5.12", "sglang-0.5", True),
        ("sglang-0.4.6", "sglang-0.4", True), ("sglang-0.3", "sglang-0.4", False),
        ("tensorrt-llm-1.3", "tensorrt-llm-1.3", True), ("tensorrt-llm-1.3.0rc2", "tensorrt-llm-1.3", True),
        ("tensorrt-llm-0.20", "tensorrt-llm-1.1", False),
    ],
)  # fmt: skip
def test_a_version_takes_the_terms_that_hold_it_or_the_nearest_and_says_so(asked, name, holds):
    found = load_runtime(asked)
    assert found.name == name
    assert found.holds_asked == holds
    assert found.asked == ("" if asked == name else asked)
    own = load_runtime(name).engine.draft_us_per_pass
    widened = VERSION_WIDEN * own.band
    assert found.engine.draft_us_per_pass.band == pytest.approx(own.band if holds else widened)
    told = " ".join(
        scenario_doubts(Scenario(gpu="h100-sxm", model="llama-3.1-8b", drafter="eagle3", runtime=asked))
    )
    assert (f"{asked} has the terms of {name}" in told) == (asked != name)
    assert ("nearest" in told) == (not holds)


@pytest.mark.parametrize(
    ("version", "span", "far"),
    [
        ("0.11", ("0.10", "0.12"), (0, 0, 0)), ("0.10", ("0.10", "0.12"), (0, 0, 0)),
        ("0.12.9", ("0.10", "0.12"), (0, 0, 0)), ("0.12.3", ("0.10", "0.12.2"), (0, 0, 1)),
        ("0.12.2", ("0.10", "0.12.2"), (0, 0, 0)), ("0.15", ("0.10", "0.12"), (0, 3, 0)),
        ("0.15.2", ("0.10", "0.12.1"), (0, 3, 0)), ("0.8", ("0.10", "0.12"), (0, 2, 0)),
        ("0.10.1", ("0.10.4", "0.12"), (0, 0, 3)), ("0.20", ("1.1.2", "1.3"), (1, 1, 2)),
        ("2.0", ("1.1", "1.3.4"), (1, -3, -4)), ("3.5", ("1.1", "1.3"), (2, -3, 0)),
    ],
)  # fmt: skip
def test_a_version_is_far_by_majors_minors_and_patches(version, span, far):
    """To another major, from the end of one to the start of the other: 1.1.2 is nearer to 0.20 than 1.3."""
    assert _distance(version, span) == far


def test_the_versions_of_an_engine_do_not_overlap_and_what_is_no_version_is_unknown():
    spans = {}
    for name in ENGINES:
        first, last = load_runtime(name).versions
        family = name.rpartition("-")[0]
        spans.setdefault(family, []).append((version_numbers(first), version_numbers(last)))
    for known in spans.values():
        known.sort()
        assert all(first <= last for first, last in known)
        assert all(last < first for (_, last), (first, _) in itertools.pairwise(known))
    for name in ("cuda-graphs", "vllm-new", "vlm-0.12", "vllm-"):
        with one_line(SpecError, "unknown runtime"):
            load_runtime(name)
    with pytest.raises(SpecError, match="did you mean 'cuda-graph'"):
        load_runtime("cuda-graphs")


@pytest.mark.parametrize("name", ENGINES)
def test_every_term_of_an_engine_knows_where_it_was_measured(name):
    engine = load_runtime(name).engine
    measured = engine.measured
    assert all(
        (
            measured.forms,
            measured.gpus,
            measured.generations,
            measured.requests,
            measured.rows,
            measured.version,
        )
    )
    for key, term in engine.terms.items():
        assert term.measured is not None, key
        if term.value and not term.measured.assumed:
            assert term.measured.generations, key
        for other in term.elsewhere:
            assert other.outside or other.forms or other.backends, key


def of_form(term, case):
    """A term with the requests that models of a case's form were measured with."""
    measured = None if term.measured is None else term.measured.at(case.form)
    return msgspec.structs.replace(term, measured=measured)


def test_outside_its_range_a_term_is_replaced_or_its_band_is_wider_and_inside_it_is_as_it_was():
    engine = load_runtime("sglang").engine
    home = Case("latent", True, 8, "hopper", "FLASHINFER_MLA")
    at_home = engine.at(home)
    for key in ("plan_us_per_pass", "prompt_us_per_launch", "experts_share"):
        assert at_home.terms[key] == of_form(engine.terms[key], home)
    away = engine.at(Case("dense", False, 1, "hopper", "FA3"))
    prompts = away.prompt_us_per_launch
    assert prompts.outside == ("forms", "gpus")
    assert prompts.value == 50.0
    assert "ordinary launches" in prompts.rule
    for case in (
        home,
        Case(),
        Case("hybrid", True, 4, "ampere", "FA2"),
        Case("sparse", True, 8, "cdna", "DSA"),
    ):
        for key, term in engine.at(case).terms.items():
            of = engine.terms[key]
            if term.rule:
                assert of.elsewhere
            elif any(each.holds(case) for each in of.deviations):
                continue
            elif term.outside:
                assert term.value == of.value
                assert term.band == pytest.approx(band_factor(term.outside) * of.band)
            else:
                assert term == of_form(of, case)


def test_deviations_of_a_term_that_hold_count_one_after_another():
    alike = Deviation(formats=("fp8",), times=0.8)
    both = (
        alike,
        Deviation(formats=("fp8",), generations=("blackwell",), times=0.5, plus=1.0),
        Deviation(plus=-9.0),
    )
    term = Term(value=10.0, source="a test", deviations=both[:2])
    assert term.at(Case()).value == 10.0
    assert term.at(Case(formats=("bf16", "fp8"))).value == 8.0
    assert term.at(Case(generation="blackwell", formats=("fp8",))).value == 5.0
    assert term.at(Case(generation="blackwell", formats=("fp8_block",))).value == 10.0
    assert msgspec.structs.replace(term, deviations=both).at(Case(formats=("fp8",))).value == 0.0
    split = Term(value=10.0, source="a test", deviations=(Deviation(splits=True, plus=3.0),))
    assert [split.at(Case(splits=splits)).value for splits in (True, False)] == [13.0, 10.0]
    assert split.deviations[0].text == "+3 for attention split over requests"


@pytest.mark.parametrize(
    ("term", "parts"),
    [
        ("linear_share", {"qkv", "o_proj", "mlp"}),
        ("attention_share", {"attention"}),
        ("experts_share", {"experts"}),
        ("exchange_share", {"exchange"}),
    ],
)
def test_a_share_is_of_its_own_part_of_a_step_alone(term, parts):
    asked = {"gpu": "h200-sxm", "model": "gpt-oss-120b", "drafter": "ngram", "acceptance": "0.5", "tp": 4}
    runtime = load_runtime("vllm-0.15")

    def parts_us(value):
        given = runtime.engine.with_terms({term: Term(value=value, source="a test")})
        of = Scenario(**asked, runtime=replace(runtime, engine=given)).setting
        return decode_step(of, np.asarray(16), np.asarray(1024)).parts_us

    whole, half = parts_us(1.0), parts_us(0.5)
    for part, time_us in whole.items():
        share = 0.5 if part in parts else 1.0
        assert float(half[part]) == pytest.approx(
            share * float(time_us), rel=0.2 if part == "experts" else 1e-9
        )


def test_planning_belongs_to_its_attention_backend():
    asked = {"gpu": "h200-sxm", "model": "deepseek-r1", "drafter": "mtp", "tp": 8}
    sglang = load_runtime("sglang")
    by = {
        backend: Scenario(**asked, runtime=replace(sglang, backend=backend)).setting.runtime.engine
        for backend in ("", "FLASHINFER_MLA")
    }
    assert by["FLASHINFER_MLA"].plan_us_per_pass == sglang.engine.plan_us_per_pass
    assert by[""].plan_us_per_pass.value < 0.25 * sglang.engine.plan_us_per_pass.value
    sparse = Scenario(**asked | {"model": "deepseek-v3.2"}, runtime="sglang").setting.runtime.engine
    assert 8_000 <= sparse.plan_us_per_pass.value <= 19_000
    with one_line(SpecError, "attention backend", "FLASHINFER_MLA"):
        _ = Scenario(**asked, runtime=replace(sglang, backend="FLASHINFER_ML")).setting


def test_a_runtime_of_ones_own_inherits_from_an_engine(tmp_path):
    folder = tmp_path / "profiles" / "runtimes"
    folder.mkdir(parents=True)
    own = folder / "mine.toml"
    own.write_text(
        'inherits = "vllm-0.33"\ntitle = "my server"\n[engine]\nwiden = 2.0\n'
        'host_us_per_step = { value = 500.0, band = 0.1, source = "my benchmark" }\n'
    )
    for runtime in (load_runtime("mine", tmp_path), load_runtime(str(own))):
        assert runtime.name == "mine"
        relative = load_runtime("vllm").engine
        assert runtime.engine.host_us_per_step.value == 500.0
        lent = runtime.engine.draft_us_per_pass
        assert (lent.value, lent.band) == (
            relative.draft_us_per_pass.value,
            2.0 * relative.draft_us_per_pass.band,
        )
    assert "mine" in runtime_names(tmp_path)


@pytest.mark.parametrize(
    ("key", "value", "told"),
    [
        ("host_us_per_step", {"value": -3.0, "source": "somewhere"}, "allowed"),
        ("graph_sizes", [4, 2], "rising"),
        ("graph_sizes", "1..256", "rising"),
        ("graph_unit", "tons", "multiples, requests, tokens"),
        ("drafters", ["eagle", 3], "names"),
        ("widen", 0.5, "allowed"),
    ],
)
def test_a_broken_engine_names_file_and_key(tmp_path, key, value, told):
    path = tmp_path / "mine.toml"
    content = {"inherits": "vllm-0.33", "title": "my server", "engine": {key: value}}
    path.write_text(tomlkit.dumps(content))
    with one_line(SpecError, told, f"engine.{key}", "mine.toml"):
        load_runtime(str(path))


def test_default_kernel_sets():
    graph = load_runtime("cuda-graph")
    assert [graph.kernel_set(dtype) for dtype in ("fp16", "bf16", "fp8")] == ["torch", "sglang", "sglang"]
    assert load_runtime("paper").kernel_set("fp16") == "paper"
    with pytest.raises(SpecError, match=r"runtime paper names no kernel set for dtype 'fp8'.*--kernels"):
        load_runtime("paper").kernel_set("fp8")


@pytest.mark.parametrize("name", ["paper", "kernel", "cuda-graph", "hf-eager"])
def test_every_time_keeps_its_source_through_loading(name):
    content = tomllib.loads(runtime_module.RUNTIMES_FILE.read_text())[name]
    rows = {row.key: row for row in runtime_rows(load_runtime(name))}
    for key in TIMES:
        row = rows[key]
        assert (row.value, row.source, row.unit) == (content[key]["value"], content[key]["source"], "us")
        assert row.note == content[key].get("note", "")
    assert all(row.source for row in rows.values())


def test_the_host_bound_estimate_follows_from_table_1_of_the_medusa_paper():
    # 45 and 35 tokens/s (read to two digits, so 2-3 %) at 14 launches a layer and 4 outside
    eager = load_runtime("hf-eager")
    for name, tokens_per_s in (("vicuna-7b", 45.0), ("vicuna-13b", 35.0)):
        step = plain_step(name)
        assert step.launches == pytest.approx(14 * load_model(name).layers + 4)
        assert eager.host_us_per_step == 0.0
        assert step.time_us(eager.host_us_per_launch) == pytest.approx(1e6 / tokens_per_s, rel=0.03)


@pytest.mark.parametrize(
    ("key", "value", "told"),
    [
        ("launch_us", {"value": -0.5, "source": "somewhere"}, "allowed"), ("fused_qkv", 1, "true or false"),
        ("attention", "flash", "fused, unfused"), ("kernels", {"fp12": "torch"}, "unknown dtype"),
    ],
)  # fmt: skip
def test_a_broken_runtime_names_file_and_key(monkeypatch, tmp_path, key, value, told):
    content = tomllib.loads(runtime_module.RUNTIMES_FILE.read_text())
    content["kernel"][key] = value
    path = tmp_path / "runtimes.toml"
    path.write_text(tomlkit.dumps(content))
    monkeypatch.setattr(runtime_module, "RUNTIMES_FILE", path)
    with one_line(SpecError, told, f"kernel.{key}", "runtimes.toml"):
        load_runtime("cuda-graph")


@pytest.mark.parametrize(
    ("gpu", "runtime", "kv_dtype", "name"),
    [
        ("a100-80gb-sxm", "vllm", None, "FlashAttention-2"),
        ("l40s", "vllm", None, "FlashAttention-2"),
        ("a100-80gb-sxm", "vllm", "fp8", "FlashInfer"),
        ("h100-sxm", "vllm", "fp8", "FlashAttention-3"),
        ("b200", "vllm", None, "trtllm-gen"),
        ("a100-80gb-sxm", "sglang", None, "FlashInfer"),
        ("a100-80gb-sxm", "cuda-graph", None, "kernels that split"),
    ],
)
def test_engine_card_and_cache_choose_the_kernel(gpu, runtime, kv_dtype, name):
    found = Scenario(gpu=gpu, model="llama-3.1-8b", runtime=runtime, drafter="eagle3", kv_dtype=kv_dtype)
    assert name in found.backend.name


def test_every_fact_can_be_reached_and_names_cards_that_exist():
    known = {load_gpu(name).architecture for name in ("a100-80gb-sxm", "l40s", "h100-sxm", "b200", "mi300x")}
    known.add(load_gpu("rtx-5090").architecture)
    for fact in FACTS:
        assert set(fact.generations) <= known
        wide = 512.0 if fact.backend.name.startswith("Triton attention") else 128.0
        of_kv = fact.bytes_of_kv or 2.0
        found = {
            backend_of(engine, generation, attention=fact.attention, bytes_of_kv=of_kv, head_dim=wide)
            for engine in fact.engines
            for generation in fact.generations
        }
        assert fact.backend in found


def test_rows_name_their_kernel_in_words():
    named = backend_of_row("varlen paged, num_splits forced to 1")
    assert not named.splits
    assert backend_of_row("something else") is None
    # calls from Python before queries were grouped, and kernels in a graph
    for name, called in (("trtllm-gen decode", True), ("trtllm-gen decode optimised", False)):
        kernel = backend_of_row(name)
        assert kernel.name.endswith("called from Python") == called


def test_what_an_engine_runs_on_and_unpacks_is_the_same_in_all_its_versions():
    engines = {name: of.engine for name in runtime_names() if (of := load_runtime(name)).engine is not None}
    assert {name for name, of in engines.items() if of.nvidia_only} == {
        name for name in engines if name.startswith("tensorrt-llm-")
    }
    assert {name for name, of in engines.items() if of.unpacks_fp8} == {
        name for name in engines if name.startswith(("vllm-", "sglang-"))
    }


def test_hybrids_in_sglang_launch_prompts_alike_with_drafts_and_without():
    engine = load_runtime("sglang-0.5").engine
    for experts, gpus in itertools.product((True, False), (1, 4, 8)):
        found = engine.at(Case("hybrid", experts, gpus, "hopper", "FA3"))
        assert found.prefill_us_per_launch.value == found.prompt_us_per_launch.value > 0.0
    assert engine.at(Case("dense", False, 4, "hopper", "FA3")).prefill_us_per_launch.value == 0.0


def test_a_fit_without_hybrids_says_nothing_of_their_layers():
    before = load_runtime("sglang-0.5.4").engine.at(Case("hybrid", True, 8, "blackwell", "TRITON"))
    after = load_runtime("sglang-0.5.6").engine.at(Case("hybrid", True, 8, "blackwell", "TRITON"))
    assert before.layer_us.value == after.layer_us.value > 10.0
