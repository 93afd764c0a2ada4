"""GPUs: datasheet numbers, strict loading, and what a GPU borrows from a relative."""

import copy
import math
import os
import tomllib
import types
import typing
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pytest
import tomlkit
from one_line import one_line
from tables import table

import medusa_sim as ms
from medusa_sim import data
from medusa_sim.doubts.of_scenario import scenario_doubts
from medusa_sim.errors import SpecError
from medusa_sim.gpus.gpu import Gpu, architecture_of, load_gpu
from medusa_sim.gpus.gpu_names import device_names, gpu_names
from medusa_sim.gpus.kernels import SECTIONS, ElementwiseKernel, GemmKernel, KernelSet, UnfusedKernel
from medusa_sim.report.specs.rows import gpu_rows, kernel_rows

SHIPPED = data.shipped_dir() / "hardware"
NAMES = sorted(path.stem for path in SHIPPED.glob("*.toml") if not path.stem.startswith("cpu-"))
NUMBERS = ["sms", "l2_bytes", "memory_bytes", "bandwidth_bytes_per_s", "link_bandwidth_bytes_per_s"]

DATASHEET = table("datasheets")


@pytest.fixture(autouse=True)
def _no_user_data(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(data.DATA_DIR_VARIABLE, str(tmp_path / "user"))


def test_the_shipped_gpus_are_the_listed_ones():
    measured = {name for name in gpu_names() if load_gpu(name).architecture == "cpu"}
    emerald = {f"cpu-emerald-rapids-{size}" for size in ("1m", "3m", "50m", "300m")}
    genoa = {
        f"cpu-epyc-genoa-{size}" for size in ("3m", "50m", "300m", "50m-bf16", "300m-bf16", "70m-bf16-packed")
    }
    assert measured == emerald | genoa
    assert set(DATASHEET) == set(NAMES) == set(gpu_names()) - measured
    assert load_gpu("rtx-a6000").paper_peak_flops_per_s == {"fp16": 181e12}  # beside the datasheet's


@pytest.mark.parametrize("name", NAMES)
def test_datasheet_numbers(name):
    gpu = load_gpu(name)
    sms, l2, memory, bandwidth, fp16, *narrow = DATASHEET[name]
    assert (gpu.sms, gpu.l2_bytes, gpu.memory_bytes) == (sms, l2 * 2**20, memory * 2**30)
    assert gpu.bandwidth_bytes_per_s == bandwidth * 1e9
    assert gpu.peak("fp16") == gpu.peak("bf16") == pytest.approx(fp16 * 1e12, rel=1e-12)
    for dtype, peak in zip(("fp8", "int8", "nvfp4"), narrow, strict=True):
        assert gpu.peak_flops_per_s.get(dtype, 0.0) == pytest.approx(peak * 1e12, rel=1e-12), dtype
    if narrow[-1]:  # scales of blocks do not change a peak
        assert gpu.peak("mxfp4") == gpu.peak("nvfp4") > gpu.peak("fp8_block") == gpu.peak("fp8")
    else:
        with pytest.raises(SpecError, match=rf"{name} has no dense peak for dtype 'nvfp4'.*fp16, bf16"):
            gpu.peak("nvfp4")


@pytest.mark.parametrize("name", NAMES)
def test_every_number_keeps_its_source_through_loading(name):
    content = tomllib.loads((SHIPPED / f"{name}.toml").read_text())
    gpu = load_gpu(name)
    rows = {row.key: row for row in gpu_rows(gpu) if not row.key.startswith("power.fit.")}
    bridge = [key for key in ("linked_gpus", "wide_link_bandwidth_bytes_per_s") if key in content]
    assert len(bridge) in (0, 2)
    expected = [*NUMBERS, *bridge, "power.limit_watts"]
    for group in ("peak_flops_per_s", "paper_peak_flops_per_s"):
        expected += [f"{group}.{dtype}" for dtype in content.get(group, {})]
    expected += [f"local.{key}" for key, told in content.get("local", {}).items() if isinstance(told, dict)]
    assert set(rows) == set(gpu.sources) == set(expected)
    for key, row in rows.items():
        table: Any = content
        for part in key.split("."):
            table = table[part]
        assert (row.value, row.source, row.note) == (table["value"], table["source"], table.get("note", ""))
        assert len(row.source) > 10


@pytest.mark.parametrize("name", NAMES)
def test_sources_name_documents_and_no_registry(name):
    text = (SHIPPED / f"{name}.toml").read_text().lower()
    assert not any(host in text for host in ("pypi.org", "huggingface.co", "docker.io", "conda.io"))


def test_an_unknown_gpu_suggests_the_nearest():
    with pytest.raises(SpecError, match="did you mean 'h100-sxm'"):
        load_gpu("h100-smx")
    with pytest.raises(SpecError, match="unknown GPU"):
        load_gpu("../../etc/passwd")


def test_an_unknown_kernel_set_names_the_command():
    with pytest.raises(
        SpecError, match=r"no kernel set 'mine'.*medusa-sim calibrate rows --gpu a40 --kernels mine"
    ):
        load_gpu("a40").kernel_set("mine")


# --- user files ---------------------------------------------------------------------------------------


def _example(kind: type[Any]) -> Any:
    """A value of any kernel struct with every required field filled, whatever fields it has today."""
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        required = [field for field in msgspec.structs.fields(kind) if field.required]
        return kind(**{field.name: _example(field.type) for field in required})
    origin = typing.get_origin(kind)
    if origin is typing.Annotated:
        return _example(typing.get_args(kind)[0])
    if origin is tuple:
        inner = typing.get_args(kind)
        return tuple(_example(part) for part in inner if part is not Ellipsis)
    if origin in (dict, list):
        return origin()
    if origin in (typing.Union, types.UnionType):
        return _example(typing.get_args(kind)[0])
    return {float: 0.5, int: 1, str: "test", bool: True}.get(kind, kind)


def _builtins(value: Any) -> Any:
    return msgspec.to_builtins(value)


@cache
def _datasheet() -> dict[str, Any]:
    content = tomllib.loads((SHIPPED / "h100-sxm.toml").read_text())
    content.pop("kernels", None)  # most of the file, and none of them is tried here
    return content


def _content(name: str = "test-gpu") -> dict[str, Any]:
    return copy.deepcopy(_datasheet()) | {"name": name}


def _write(root: Path, content: dict[str, Any], name: str = "test-gpu") -> Path:
    folder = root / "hardware"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.toml"
    path.write_text(tomlkit.dumps(content))
    return path


def test_a_users_file_replaces_the_shipped_one_and_is_read_again_when_it_changes(tmp_path):
    content = _content("a40")
    path = _write(tmp_path, content, "a40")
    assert load_gpu("a40", tmp_path).sms == 132
    assert load_gpu("a40").sms == 84
    assert load_gpu("a40", tmp_path) is load_gpu("a40", tmp_path)
    content["sms"]["value"] = 7
    path.write_text(tomlkit.dumps(content))
    os.utime(path, ns=(1, 1))
    assert load_gpu("a40", tmp_path).sms == 7


def _fails(root: Path, content: dict[str, Any], *words: str) -> None:
    path = _write(root, content)
    with one_line(SpecError, str(path), *words):
        load_gpu("test-gpu", root)


def test_other_broken_files_name_what_is_wrong(tmp_path):
    for key, value, told in (
        ("schema", 2, "schema that this version reads"),
        ("schema", True, "schema that this version reads"),
        ("name", "other", "'test-gpu'"),
        ("architecture", "Ampere 2", "lower-case"),
        ("architecture", "amper", "did you mean 'ampere'?"),
        ("peak_flops_per_s", {}, "empty"),
    ):
        content = _content()
        content[key] = value
        _fails(tmp_path, content, key, told)
    content = _content()
    content["sms"]["value"] = 131.5
    _fails(tmp_path, content, "sms.value", "whole number")
    content["sms"] = 80
    _fails(tmp_path, content, "sms: given 80; allowed: a table with note, source, value")
    content = _content()
    content = _content()
    content["peak_flops_per_s"]["fp12"] = content["peak_flops_per_s"]["fp16"]
    _fails(tmp_path, content, "peak_flops_per_s.fp12", "unknown dtype")


def test_a_key_given_twice_a_file_that_is_no_toml_and_a_fit_that_is_no_table_are_one_line(tmp_path):
    content = tomllib.loads((SHIPPED / "a40.toml").read_text()) | {"name": "test-gpu"}
    kernel = next(iter(content["kernels"]["torch"]["gemm"].values()))
    fit = kernel["fit"]
    for wrong, told in ((3, "fit: given 3; allowed: a table"), ([fit], "fit: given"), (..., "fit: missing")):
        kernel["fit"] = wrong
        if wrong is ...:
            del kernel["fit"]
        _fails(tmp_path, content, told)
    path = _write(tmp_path, _content())
    path.write_text(path.read_text() + "\n[sms]\nvalue = 1\nsource = 'x'\n")
    with pytest.raises(SpecError, match=r"test-gpu\.toml: cannot be parsed.*line"):
        load_gpu("test-gpu", tmp_path)
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(SpecError, match="not UTF-8"):
        load_gpu("test-gpu", tmp_path)


# --- kernels and inheritance --------------------------------------------------------------------------


def _kernel(source: str, **changes: Any) -> dict[str, Any]:
    kernel = _builtins(_example(GemmKernel))
    kernel["fit"] |= {
        "source": source,
        "rows": 10,
        "fit_error": 0.05,
        "heldout_error": 0.08,
        "residuals": [{"size_max": 1e9, "low": 0.9, "high": 1.2}],
    }
    return kernel | changes


def _relative(root: Path) -> dict[str, Any]:
    content = _content("relative")
    elementwise = _builtins(_example(ElementwiseKernel))
    elementwise["fit"] |= {"rows": 5, "residuals": [{"size_max": 1e9, "low": 0.9, "high": 1.1}]}
    content["kernels"] = {
        "torch": {"gemm": {"fp16": _kernel("measured fp16")}, "elementwise": {"rope": elementwise}},
        "sglang": {"gemm": {"bf16": _kernel("measured bf16"), "fp8": _kernel("measured fp8")}},
    }
    _write(root, content, "relative")
    return content


def _with_inherit(
    root: Path, inherit: Any, own: dict[str, Any] | None = None, set_name: str = "torch"
) -> Gpu:
    content = _content()
    content["kernels"] = {set_name: {**(own or {}), "inherit": inherit}}
    _write(root, content)
    return load_gpu("test-gpu", root)


def test_fitted_kernels_are_read_as_they_are(tmp_path):
    content = _relative(tmp_path)
    gpu = load_gpu("relative", tmp_path)
    assert msgspec.to_builtins(gpu.kernels) == msgspec.to_builtins(
        msgspec.convert(content["kernels"], dict[str, KernelSet])
    )
    keys = {row.key for row in kernel_rows(gpu)}
    assert {"kernels.torch.gemm.fp16.fit.rows", "kernels.sglang.gemm.fp8.fit.heldout_error"} <= keys


def test_a_whole_section_or_a_renamed_entry_can_be_inherited(tmp_path):
    _relative(tmp_path)
    gpu = _with_inherit(
        tmp_path,
        {
            "reason": "same chip",
            "widen": 2.0,
            "gemm": {"fp16": "relative", "bf16": "relative:sglang", "fp8": "relative:sglang:bf16"},
            "elementwise": "relative",
        },
    )
    gemm = gpu.kernel_set("torch").gemm
    assert gemm["fp16"].fit.inherited_from == "relative:torch:fp16"
    assert gemm["fp16"].fit.source == "inherited from relative:torch:fp16 (same chip): measured fp16"
    assert gemm["bf16"].fit.inherited_from == "relative:sglang:bf16"
    assert gemm["fp8"].fit.source.endswith("measured bf16")
    assert gpu.kernel_set("torch").elementwise["rope"].fit.inherited_from == "relative:torch"
    # 0.9 and 1.2 about their centre sqrt(0.9 * 1.2), twice as wide in the logarithm
    band = gemm["fp16"].fit.residuals[0]
    assert band.low * band.high == pytest.approx(0.9 * 1.2)
    assert band.high / band.low == pytest.approx((1.2 / 0.9) ** 2)


def test_the_unfused_products_are_one_kernel_and_are_inherited_as_one(tmp_path):
    content = _content("relative")
    products = _builtins(_example(UnfusedKernel))
    products["fit"] |= {"source": "measured products", "rows": 5}
    content["kernels"] = {"paper": {"unfused": products}}
    _write(tmp_path, content, "relative")
    inherit = {"reason": "same chip", "unfused": "relative"}
    borrowed = _with_inherit(tmp_path, inherit, set_name="paper").kernel_set("paper").unfused
    assert borrowed.fit.inherited_from == "relative:paper"
    assert {row.key for row in kernel_rows(load_gpu("test-gpu", tmp_path))} >= {
        "kernels.paper.unfused.ramp_us"
    }


@pytest.mark.parametrize("name", device_names())
def test_the_architecture_is_read_without_the_kernels(name):
    assert architecture_of(name) == load_gpu(name).architecture


def test_watts_are_borrowed_wherever_the_lender_has_its_kernels(tmp_path):
    shipped = data.find("hardware", "h100-sxm.toml").read_text(encoding="utf-8")
    sheet, kernels = shipped.split("[kernels", maxsplit=1)
    numbers, power = sheet.split("[power", maxsplit=1)
    behind = f"{numbers}[kernels{kernels}\n[power{power}"
    (tmp_path / "hardware").mkdir()
    (tmp_path / "hardware" / "h100-sxm.toml").write_text(behind, encoding="utf-8")
    assert load_gpu("rtx-3090", tmp_path).power == load_gpu("rtx-3090").power


def test_what_was_measured_wins_and_a_band_of_the_same_gpu_is_not_widened(tmp_path):
    _relative(tmp_path)
    own = {"gemm": {"fp16": _kernel("own fp16")}}
    gpu = _with_inherit(tmp_path, {"reason": "same chip", "gemm": "relative:torch"}, own)
    assert gpu.kernel_set("torch").gemm["fp16"].fit.source == "own fp16"
    assert gpu.kernel_set("torch").gemm["fp16"].fit.inherited_from == ""
    inherit = {"reason": "same pipes", "widen": 3.0, "gemm": {"bf16": "test-gpu:torch:fp16"}}
    gpu = _with_inherit(tmp_path, inherit, own)
    assert (
        gpu.kernel_set("torch").gemm["bf16"].fit.residuals
        == gpu.kernel_set("torch").gemm["fp16"].fit.residuals
    )


@pytest.mark.parametrize("inherit", [
    {"attention": "relative"}, {"gemm": {"bf16": "relative"}}, {"gemm": {"fp8": "relative:sglang:fp16"}},
    {"gemm": "relative:paper"}, {"gemm": {"*": "relative:torch:fp8"}}, {"moe": "test-gpu:sglang"},
])  # fmt: skip
def test_what_a_relative_lacks_cannot_be_inherited(tmp_path, inherit):
    _relative(tmp_path)
    with one_line(SpecError, f"kernels.torch.inherit.{next(iter(inherit))}: ", "was not fitted there"):
        _with_inherit(tmp_path, {"reason": "same chip", **inherit})


@pytest.mark.parametrize(
    ("inherit", "told"),
    [
        ({"gemm": "relative"}, "kernels.torch.inherit.reason: missing"),
        ({"reason": "x"}, "nothing is inherited"),
        ({"reason": "x", "gemm": "relative", "widen": 0.5}, "kernels.torch.inherit.widen"),
        (
            {"reason": "x", "gemm": "relative", "norms": "relative"},
            "kernels.torch.inherit.norms: unknown key",
        ),
        ({"reason": "x", "gemm": "a:b:c:d"}, "kernels.torch.inherit.gemm"),
        ({"reason": "x", "gemm": "relative:torch:fp16"}, "a whole section takes"),
        ({"reason": "x", "unfused": {"qk": "relative"}}, "kernels.torch.inherit.unfused"),
        ({"reason": "x", "gemm": 3}, "kernels.torch.inherit.gemm"),
        ({"reason": "x", "gemm": {"fp16": 3}}, "kernels.torch.inherit.gemm.fp16"),
        ({"reason": "x", "gemm": "test-gpu:torch"}, "cannot inherit from itself"),
        ({"reason": "x", "gemm": "relativ"}, "unknown GPU 'relativ'; did you mean 'relative'"),
        ("relative", "kernels.torch.inherit"),
    ],
)
def test_a_wrong_inheritance_names_file_and_key(tmp_path, inherit, told):
    _relative(tmp_path)
    with one_line(SpecError, told, "test-gpu.toml"):
        _with_inherit(tmp_path, inherit)


def test_an_inherited_kernel_cannot_be_inherited_again(tmp_path):
    _relative(tmp_path)
    middle = _content("middle")
    middle["kernels"] = {"torch": {"inherit": {"reason": "same chip", "gemm": "relative"}}}
    _write(tmp_path, middle, "middle")
    with pytest.raises(
        SpecError, match="middle:torch was not fitted there, or is itself inherited; name the GPU and set"
    ):
        _with_inherit(tmp_path, {"reason": "a copy of a copy", "gemm": "middle"})


@pytest.mark.parametrize(
    ("key", "value"),
    [("fit_error", math.nan), ("residuals", [{"size_max": 1.0, "low": 1.2, "high": 0.9}]), ("rows", 0)],
)
def test_a_fit_that_cannot_be_names_file_and_key(tmp_path, key, value):
    kernel = _kernel("measured")
    kernel["fit"][key] = value
    _fails(tmp_path, _content() | {"kernels": {"torch": {"gemm": {"fp16": kernel}}}}, "kernels.torch", key)


@pytest.mark.parametrize("name", NAMES)
def test_every_kernel_that_a_shipped_file_borrows_is_there(name):
    gpu = load_gpu(name)
    for set_name, kernels in msgspec.toml.decode(Path(gpu.path).read_bytes()).get("kernels", {}).items():
        for section in set(SECTIONS) & kernels.get("inherit", {}).keys():
            borrowed, held = kernels["inherit"][section], gpu.kernels[set_name].table(section)
            assert held, section
            assert held.keys() >= (borrowed.keys() if isinstance(borrowed, dict) else set()), section


@pytest.mark.parametrize(
    ("name", "lender"),
    [("h800-sxm", "h100-sxm"), ("h20-sxm", "h200-sxm"), ("a10g", "a40"), ("gb10", "rtx-5090")],
)
def test_a_card_that_borrows_everything_is_between_its_own_limits_and_its_lenders(name, lender):
    """A step of one request follows the memory, and says that its kernels are borrowed."""
    own, other = (ms.Scenario(gpu=gpu, model="llama-3.2-3b", drafter="ngram") for gpu in (name, lender))
    at = {"batch": [1], "seq_len": [512], "candidates": [1]}
    step, beside = (each.sweep(**at).iloc[0] for each in (own, other))
    slower = other.gpu.bandwidth_bytes_per_s / own.gpu.bandwidth_bytes_per_s
    assert 0.8 * min(slower, 1.0) < step.tpot_us / beside.tpot_us < 1.35 * max(slower, 1.0)
    weights_us = 1e6 * own.model.weight_bytes / own.gpu.bandwidth_bytes_per_s
    assert weights_us < step.tpot_us < 2.5 * weights_us
    assert any("borrowed" in line for line in scenario_doubts(own))


def test_cards_that_nobody_measured_are_compared_where_they_are_named_alone():
    asked = {"counts": 1, "engines": "vllm", "drafters": "none", "batches": 8}
    found = ms.compare("llama-3.1-8b", **asked)
    assert not {"h20-sxm", "h800-sxm", "a10g", "gb10"} & set(found.table.gpu)
    named = ms.compare(
        "llama-3.1-8b", gpus=("h20", "GB10"), counts=1, engines="vllm", drafters="none", batches=8
    )
    assert set(named.table.gpu) == {"h20-sxm", "gb10"}
