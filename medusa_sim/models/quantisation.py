"""`quantization_config` of a Hugging Face config, or modelopt's file beside it -> formats of a Model.

Understood: AWQ at 4 bits, GPTQ and AutoRound at 4 and 8 (weight-only), compressed-tensors, fp8 (a scale a
tensor, or a 128 x 128 block), fbgemm_fp8, modelopt (FP8, NVFP4, weight-only NVFP4, MXFP8, mixed by layer),
AMD's quark, and mxfp4 of experts. Every part of a layer has the format that its module names are given:
modules that a list excludes stay in 16 bits. Others are refused with the method's name.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from medusa_sim.errors import SpecError, shown
from medusa_sim.models.layer_group import grouped
from medusa_sim.models.model import NOT_PRICED, UNCHECKED, Model
from medusa_sim.models.modules import STANDS_IN, Scheme, in_formats
from medusa_sim.models.quark import quark_scheme
from medusa_sim.models.variants import with_dtypes
from medusa_sim.reading.files import named
from medusa_sim.reading.strict import convert
from medusa_sim.units import SIXTEEN

METHODS = (
    "awq", "gptq", "auto-round", "compressed-tensors", "fp8", "fbgemm_fp8", "modelopt", "quark", "mxfp4"
)  # fmt: skip
_INTEGERS = {4: "int4", 8: "int8_wo"}
_BITS: dict[str, dict[int, str]] = {"awq": {4: "int4"}, "gptq": _INTEGERS, "auto-round": _INTEGERS}
_BLOCK = [128, 128]
_USUAL_GROUP = 128
_SCALE_BYTES = 2.0
_ALGORITHMS = {
    "FP8": "fp8",
    "FP8_PER_CHANNEL_PER_TOKEN": "fp8",
    "FP8_PB_WO": "fp8_block",
    "FP8_BLOCK": "fp8_block",
    "NVFP4": "nvfp4",
    "W4A16_NVFP4": "nvfp4_wo",
    "W4A16_AWQ": "int4",
    "W4A16_MXFP4": "mxfp4",
    "MXFP8": "fp8_block",
}
"""modelopt's `quant_algo` -> format."""
_HALF_EMPTY = ("2:4", "marlin-24", "marlin_24", "sparse-24-bitmask")
"""Names of weights of which two in four are left out (vllm-project/vllm, pull request 36799)."""
_MIXED = "MIXED_PRECISION"
_NAMED = {"nvfp4": "nvfp4", "fp8": "fp8", "mxfp4": "mxfp4"}
"""Last word of a repository's name -> format, where none of its files says one."""
_ALL_LINEAR = "Linear"
"""The target of a group that means every linear layer."""


def quantised(
    model: Model, config: dict[str, Any] | None, beside: dict[str, Any] | None, file: Path
) -> Model:
    """The model in the formats that its files name; layers are taken one by one, and grouped again.

    config: `quantization_config`; beside: `quantization` of hf_quant_config.json. Raises SpecError for a
    method, a width or a combination that is not modelled.
    """
    where = f"{named(file)}: quantization_config"
    if config is None and beside is not None:
        scheme = _modelopt(beside, f"{named(file.with_name('hf_quant_config.json'))}: quantization")
    elif config is None:
        named_form = _of_name(file.parent.name)
        if named_form is None:
            return dataclasses.replace(model, groups=grouped(model.groups))
        note = f"{named_form} of its name, no file says which layers: taken for {{}}, {UNCHECKED}"
        if model.experts is None:
            scheme, layers_meant = Scheme(main=named_form), "linear layers"
        else:
            scheme, layers_meant = Scheme(main=SIXTEEN, experts=named_form), "experts alone"
        model = dataclasses.replace(model, notes=(*model.notes, note.format(layers_meant)))
    else:
        scheme = _scheme(model, config, beside, where)
    model = dataclasses.replace(model, notes=(*model.notes, *scheme.notes))
    try:
        layers, mtp, main = in_formats(model, scheme)
    except SpecError as error:  # of names or patterns in it
        raise SpecError(f"{where}: {error}") from error
    kept = with_dtypes(model, kv_dtype=scheme.kv_dtype).in_form(main)
    return dataclasses.replace(kept, groups=layers, mtp=mtp, scale_bytes=scheme.scale_bytes)


def _of_name(folder: str) -> str | None:
    """The format that a folder's last word names, as publishers name a quantised repository."""
    return _NAMED.get(folder.rpartition("-")[2].lower())


def _scheme(model: Model, config: dict[str, Any], beside: dict[str, Any] | None, where: str) -> Scheme:
    """Formats that `quantization_config` gives."""
    method = config.get("quant_method")
    if method is None and isinstance(config.get("producer"), dict):
        method = "modelopt" if config["producer"].get("name") == "modelopt" else None
    if method in ("modelopt", "modelopt_fp4", "modelopt_mixed"):
        return _modelopt({**(beside or {}), **config}, where)  # either may lack what the other says
    excluded = _names(config, "modules_to_not_convert", where)
    _refuse_unmodelled(config, where)
    match method:
        case "awq" | "gptq" | "auto-round" as method:
            key = "bits" if "bits" in config else "w_bit"
            bits = config.get(key)
            allowed = _BITS[method]
            if not isinstance(bits, int) or isinstance(bits, bool) or bits not in allowed:
                listed = " or ".join(f"{known} ({dtype})" for known, dtype in allowed.items())
                raise SpecError(
                    f"{where}.{key}: given {shown(bits)}; allowed: {listed}, {method} is weight-only"
                )
            group = config.get("group_size", config.get("q_group_size", _USUAL_GROUP))
            # zero points are stored whether or not they are all alike (qzeros)
            scales = _scale_bytes(group, bits, f"{where}.group_size", has_zeros=True)
            excluded += _kept(config, bits, where)
            return Scheme(main=allowed[bits], excluded=excluded, scale_bytes=scales)
        case "quark":
            return quark_scheme(config, where)
        case "fp8" | "fbgemm_fp8":
            excluded += _names(config, "ignored_layers", where)
            block = config.get("weight_block_size")
            if block not in (None, _BLOCK):
                raise SpecError(f"{where}.weight_block_size: given {shown(block)}; allowed: {_BLOCK} or none")
            main = "fp8" if block is None and config.get("moe_quant_algo") is None else "fp8_block"
            return Scheme(main=main, excluded=excluded, by_name=_layers(config, where))
        case "mxfp4":
            if model.experts is None:
                raise SpecError(f"{where}.quant_method: mxfp4 is stored in experts; {model.name} has none")
            return Scheme(main=SIXTEEN, experts="mxfp4")
        case "compressed-tensors":
            return _compressed(config, where)
        case None:
            raise SpecError(f"{where}.quant_method: missing; allowed: {', '.join(METHODS)}")
        case other:
            raise SpecError(
                f"{where}.quant_method: given {shown(other)}; allowed: {', '.join(METHODS)}; "
                "or remove quantization_config and choose --dtype"
            )


def _refuse_unmodelled(config: dict[str, Any], where: str) -> None:
    """Raises SpecError for what changes the bytes of a checkpoint and is not modelled."""
    if config.get("lm_head") is True:
        raise SpecError(f"{where}.lm_head: given true; allowed: false (the head is priced in 16 bits)")
    groups = config.get("config_groups")
    tables = [config, *(groups.values() if isinstance(groups, dict) else ()), config.get("sparsity_config")]
    for table in tables:
        given = table if isinstance(table, dict) else {}
        for key in ("format", "checkpoint_format", "sparsity_structure"):
            if given.get(key) in _HALF_EMPTY:
                raise SpecError(
                    f"{where}: {key}: given {shown(given[key])}; allowed: dense weights (2:4 sparsity is not "
                    "modelled, and vLLM no longer runs it)"
                )


def _modelopt(config: dict[str, Any], where: str) -> Scheme:
    """Modelopt's keys, as `hf_quant_config.json` and newer `quantization_config`s have them."""
    given = config.get("quant_algo")
    cache = config.get("kv_cache_quant_algo", config.get("kv_cache_scheme"))
    kv_dtype = None
    notes: tuple[str, ...] = (STANDS_IN["fp8_block"],) if given == "MXFP8" else ()
    if cache is not None:
        form = _dtype(cache, f"{where}.kv_cache_scheme") if isinstance(cache, dict) else cache
        if form not in ("FP8", "fp8", "NVFP4", "fp4"):
            raise SpecError(f"{where}: KV cache in {shown(cache)}; allowed: null, FP8 or NVFP4")
        kv_dtype = "fp8"
        notes += (STANDS_IN["cache"],) if form in ("NVFP4", "fp4") else ()
    excluded = _names(config, "exclude_modules", where) + _names(config, "ignore", where)
    if given == _MIXED:
        by_name = _layers(config, where)
        if not by_name:
            raise SpecError(
                f"{where}.quantized_layers: missing; a table of layers and their quant_algo is needed"
            )
        return Scheme(main=SIXTEEN, by_name=by_name, is_mixed=True, kv_dtype=kv_dtype, notes=notes)
    main = _algorithm(given, f"{where}.quant_algo")
    return Scheme(main=main, excluded=excluded, kv_dtype=kv_dtype, notes=notes)


def _layers(config: dict[str, Any], where: str) -> dict[str, str]:
    """`quantized_layers`: names of modules -> formats."""
    given = config.get("quantized_layers", {})
    if not isinstance(given, dict):
        raise SpecError(f"{where}.quantized_layers: given {shown(given)}; allowed: a table of layers")
    return {
        name: _algorithm(
            about.get("quant_algo") if isinstance(about, dict) else about,
            f"{where}.quantized_layers.{shown(name)[1:-1]}.quant_algo",
        )
        for name, about in given.items()
    }


def _algorithm(given: object, where: str) -> str:
    if not isinstance(given, str) or given.upper() not in _ALGORITHMS:
        raise SpecError(f"{where}: given {shown(given)}; allowed: {', '.join((*_ALGORITHMS, _MIXED))}")
    return _ALGORITHMS[given.upper()]


def _names(config: dict[str, Any], key: str, where: str) -> tuple[str, ...]:
    given = config.get(key)
    if given is None:
        return ()
    if not isinstance(given, list) or not all(isinstance(name, str) for name in given):
        raise SpecError(f"{where}.{key}: given {shown(given)}; allowed: a list of names of modules")
    return tuple(given)


class _Rules(msgspec.Struct, frozen=True, kw_only=True):
    dynamic: dict[str, dict[str, Any]] | None = None
    """GPTQModel's, by regular expressions; those after `-:` are not quantised."""
    extra_config: dict[str, dict[str, Any]] | None = None
    """AutoRound's, by names."""


def _kept(config: dict[str, Any], bits: int, where: str) -> tuple[str, ...]:
    """Modules that rules of their own leave in 16 bits. Raises SpecError for a third width."""
    given = convert(config, _Rules, where)
    rules = dict(given.extra_config or {})
    for name, rule in (given.dynamic or {}).items():
        sign, pattern = (name[:2], name[2:]) if name[:2] in ("-:", "+:") else ("+:", name)
        rules[f"re:{pattern}"] = {"bits": 16} if sign == "-:" else rule
    for name, rule in rules.items():
        if rule.get("bits", bits) not in (bits, 16):
            raise SpecError(f"{where}: {name[:60]}: bits: given {shown(rule['bits'])}; allowed: {bits} or 16")
    return tuple(name for name, rule in rules.items() if rule.get("bits", bits) == 16)


def _compressed(config: dict[str, Any], where: str) -> Scheme:
    """compressed-tensors: one or more groups of layers, each with a scheme of weights and activations."""
    groups = config.get("config_groups")
    if not isinstance(groups, dict) or not groups:
        raise SpecError(f"{where}.config_groups: given {shown(groups)}; allowed: a table of schemes")
    cache = config.get("kv_cache_scheme")
    if cache is not None and _dtype(cache, f"{where}.kv_cache_scheme") != "fp8":
        raise SpecError(f"{where}.kv_cache_scheme: given {shown(cache)}; allowed: null or 8-bit float")
    forms: dict[str, str] = {}
    notes: dict[str, None] = dict.fromkeys(_rotations(config))
    main, scales = SIXTEEN, None
    for name, group in groups.items():
        at = f"{where}.config_groups.{shown(name)[1:-1]}"
        form = _group_form(group, config.get("format"), at, notes)
        targets = _names(group, "targets", at) or (_ALL_LINEAR,)
        if _ALL_LINEAR in targets:
            if main not in (SIXTEEN, form):
                raise SpecError(
                    f"{at}: {form} for all linear layers after {main}; allowed: one for all of them"
                )
            main = form
        forms |= {target: form for target in targets if target != _ALL_LINEAR}
        weights = group["weights"]
        if form in ("int4", "int8_wo"):
            has_zeros = weights.get("symmetric") is False
            group_size = f"{at}.weights.group_size"
            scales = _scale_bytes(
                weights.get("group_size"), weights["num_bits"], group_size, has_zeros=has_zeros
            )
    return Scheme(
        main=main,
        excluded=_names(config, "ignore", where),
        by_name=forms,
        is_mixed=main == SIXTEEN,
        kv_dtype=None if cache is None else "fp8",
        scale_bytes=scales,
        notes=tuple(notes),
    )


def _rotations(config: dict[str, Any]) -> Iterator[str]:
    """A note on transforms that engines apply at run time; those of `weight_` locations are in the weights
    (vllm-project/vllm, pull request 22486).
    """
    given = config.get("transform_config")
    schemes = given.get("config_groups") if isinstance(given, dict) else None
    for scheme in schemes.values() if isinstance(schemes, dict) else ():
        applied = scheme.get("apply") if isinstance(scheme, dict) else None
        for each in applied if isinstance(applied, list) else ():
            if isinstance(each, dict) and not str(each.get("location", "")).startswith("weight_"):
                yield f"transform_config: rotations of what goes into and out of layers are {NOT_PRICED}"


def _group_form(group: object, outer_format: object, where: str, notes: dict[str, None]) -> str:
    """Format of one group of compressed-tensors; adds to the notes."""
    if not isinstance(group, dict):
        raise SpecError(f"{where}: given {shown(group)}; allowed: a table with weights")
    weights = _dtype(group.get("weights"), f"{where}.weights")
    inputs = group.get("input_activations")
    activations = "none" if inputs is None else _dtype(inputs, f"{where}.input_activations")
    is_mx = "mxfp" in str(group.get("format") or outer_format)
    strategy = group["weights"].get("strategy")
    known = {
        ("int4", "none"): "int4",
        ("int8", "none"): "int8_wo",
        ("fp4", "none"): "mxfp4" if is_mx else "nvfp4_wo",
        ("fp4", "fp4"): "mxfp4" if is_mx else "nvfp4",
        ("fp8", "none"): "fp8_wo",
        ("fp8", "fp8"): "fp8_block" if is_mx or strategy == "block" else "fp8",
        ("int8", "int8"): "int8",
    }
    if (weights, activations) not in known:
        raise SpecError(
            f"{where}: given weights {weights} with activations {activations}; allowed: int4, int8, fp8 or "
            "fp4 weights alone, fp8 with fp8, int8 with int8, fp4 with fp4"
        )
    if is_mx and activations != "none":
        notes[STANDS_IN[known[weights, activations]]] = None
    return known[weights, activations]


def _scale_bytes(group: object, bits: int, where: str, *, has_zeros: bool) -> float:
    """Bytes of scales and zero points beside each weight: a group shares a 16-bit scale and one zero point.

    group: weights that share them; None and -1 stand for a whole column, whose scale is not counted.
    """
    if group in (None, -1):
        return 0.0
    if not isinstance(group, int) or isinstance(group, bool) or group < 1:
        raise SpecError(f"{where}: given {shown(group)}; allowed: a whole number from 1, or -1 for a column")
    return (_SCALE_BYTES + (bits / 8 if has_zeros else 0.0)) / group


def _dtype(given: object, where: str) -> str:
    """`int4`, `int8`, `fp8` ... of a table with num_bits and type."""
    if not isinstance(given, dict):
        raise SpecError(f"{where}: given {shown(given)}; allowed: a table with num_bits and type")
    bits, kind = given.get("num_bits"), given.get("type")
    if not isinstance(bits, int) or isinstance(bits, bool) or kind not in ("int", "float"):
        raise SpecError(
            f"{where}: given {shown(bits)} bits of type {shown(kind)}; allowed: 4 or 8 of int or float"
        )
    return f"{'int' if kind == 'int' else 'fp'}{shown(bits)}"
