"""`quantization_config` of a Hugging Face config -> dtypes of a Model.

Understood: AWQ at 4 bits, GPTQ at 4 and 8 (weight-only), compressed-tensors (int4, int8 or fp8 weights, int8
or fp8 arithmetic, nvfp4), fp8 (with a scale a tensor, or a 128 x 128 block), fbgemm_fp8, modelopt's FP8 and
NVFP4, and mxfp4 (of experts alone, as in gpt-oss). Others are refused with the method's name.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import msgspec

from medusa_sim.errors import SpecError, shown
from medusa_sim.reading import named
from medusa_sim.specs.feed_forwards import MoE
from medusa_sim.specs.model import LayerGroup, Model, with_dtypes

METHODS = ("awq", "gptq", "compressed-tensors", "fp8", "fbgemm_fp8", "modelopt", "mxfp4")
_BITS: dict[str, dict[int, str]] = {"awq": {4: "int4"}, "gptq": {4: "int4", 8: "int8"}}
_BLOCK = [128, 128]
_USUAL_GROUP = 128
_SCALE_BYTES = 2.0


def quantised(model: Model, config: dict[str, Any] | None, file: Path) -> Model:
    """The model in the dtypes that `quantization_config` names; itself where there is none.

    Raises SpecError for a method, a width or a combination that is not modelled.
    """
    if config is None:
        return model
    where = f"{named(file)}: quantization_config"
    match config.get("quant_method"):
        case "awq" | "gptq" as method:
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
            return dataclasses.replace(with_dtypes(model, weight_dtype=allowed[bits]), scale_bytes=scales)
        case "fp8" | "fbgemm_fp8":
            block = config.get("weight_block_size")
            if block not in (None, _BLOCK):
                raise SpecError(f"{where}.weight_block_size: given {shown(block)}; allowed: {_BLOCK} or none")
            return with_dtypes(model, dtype="fp8" if block is None else "fp8_block")
        case "mxfp4":
            if model.experts is None:
                raise SpecError(f"{where}.quant_method: mxfp4 is stored in experts; {model.name} has none")
            return dataclasses.replace(model, groups=tuple(map(_experts_in_mxfp4, model.groups)))
        case "modelopt" | "modelopt_fp4":
            algorithms = {"FP8": "fp8", "NVFP4": "nvfp4"}
            algorithm = config.get("quant_algo")
            if not isinstance(algorithm, str) or algorithm not in algorithms:
                allowed_names = ", ".join(algorithms)
                raise SpecError(f"{where}.quant_algo: given {shown(algorithm)}; allowed: {allowed_names}")
            return with_dtypes(model, dtype=algorithms[algorithm])
        case "compressed-tensors":
            return _compressed(model, config, where)
        case None:
            raise SpecError(f"{where}.quant_method: missing; allowed: {', '.join(METHODS)}")
        case other:
            raise SpecError(
                f"{where}.quant_method: given {shown(other)}; allowed: {', '.join(METHODS)}; "
                "or remove quantization_config and choose --dtype"
            )


def _experts_in_mxfp4(group: LayerGroup) -> LayerGroup:
    if not isinstance(group.feed_forward, MoE):
        return group
    experts = msgspec.structs.replace(group.feed_forward, form="mxfp4")
    return dataclasses.replace(group, feed_forward=experts)


def _compressed(model: Model, config: dict[str, Any], where: str) -> Model:
    """compressed-tensors: one or more groups of layers, each with a scheme of weights and activations."""
    groups = config.get("config_groups")
    if not isinstance(groups, dict) or not groups:
        raise SpecError(f"{where}.config_groups: given {shown(groups)}; allowed: a table of schemes")
    schemes = {_scheme(group, f"{where}.config_groups.{shown(name)}") for name, group in groups.items()}
    first = next(iter(groups.values()))["weights"]
    if len(schemes) > 1:
        several = ", ".join(sorted(f"weights {weights}, activations {acts}" for weights, acts in schemes))
        raise SpecError(f"{where}.config_groups: several schemes ({several}); allowed: one for all layers")
    cache = config.get("kv_cache_scheme")
    kv_dtype = None
    if cache is not None:
        if _dtype(cache, f"{where}.kv_cache_scheme") != "fp8":
            raise SpecError(f"{where}.kv_cache_scheme: given {shown(cache)}; allowed: null or 8-bit float")
        kv_dtype = "fp8"
    match next(iter(schemes)):
        case ("int4" | "int8" as weights, "none"):
            scales = _scale_bytes(
                first.get("group_size"),
                first["num_bits"],
                f"{where}.config_groups: weights.group_size",
                has_zeros=first.get("symmetric") is False,
            )
            stored = with_dtypes(model, weight_dtype=weights, kv_dtype=kv_dtype)
            return dataclasses.replace(stored, scale_bytes=scales)
        case ("fp4", "fp4"):
            return with_dtypes(model, dtype="nvfp4", kv_dtype=kv_dtype)
        case ("fp8", "fp8"):
            return with_dtypes(model, dtype="fp8", kv_dtype=kv_dtype)
        case ("int8", "int8"):
            return with_dtypes(model, dtype="int8", kv_dtype=kv_dtype)
        case (weights, activations):
            raise SpecError(
                f"{where}.config_groups: given weights {weights} with activations {activations}; allowed: "
                "int4 or int8 weights alone, fp8 with fp8, int8 with int8, fp4 with fp4"
            )


def _scale_bytes(group: object, bits: int, where: str, *, has_zeros: bool) -> float:
    """Bytes of scales and zero points beside each weight: a group shares a 16-bit scale and one zero point.

    group: weights that share them; None and -1 stand for a whole column, whose scale is not counted.
    """
    if group in (None, -1):
        return 0.0
    if not isinstance(group, int) or isinstance(group, bool) or group < 1:
        raise SpecError(f"{where}: given {shown(group)}; allowed: a whole number from 1, or -1 for a column")
    return (_SCALE_BYTES + (bits / 8 if has_zeros else 0.0)) / group


def _scheme(group: object, where: str) -> tuple[str, str]:
    if not isinstance(group, dict):
        raise SpecError(f"{where}: given {shown(group)}; allowed: a table with weights")
    activations = group.get("input_activations")
    return (
        _dtype(group.get("weights"), f"{where}.weights"),
        "none" if activations is None else _dtype(activations, f"{where}.input_activations"),
    )


def _dtype(given: object, where: str) -> str:
    """`int4`, `int8`, `fp8` ... of a table with num_bits and type."""
    if not isinstance(given, dict):
        raise SpecError(f"{where}: given {shown(given)}; allowed: a table with num_bits and type")
    bits, kind = given.get("num_bits"), given.get("type")
    if not isinstance(bits, int) or isinstance(bits, bool) or kind not in ("int", "float"):
        raise SpecError(
            f"{where}: given {shown(bits)} bits of type {shown(kind)}; allowed: 4 or 8 of int, 8 of float"
        )
    return f"{'int' if kind == 'int' else 'fp'}{shown(bits)}"
