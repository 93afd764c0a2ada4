"""`quantization_config` of AMD's quark -> formats of modules.

A rule has the formats of weights and inputs, once for all linear layers and by names of modules. Which pairs
engines take: vllm-project/vllm, `quantization/quark/quark.py`.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from medusa_sim.errors import SpecError
from medusa_sim.models.modules import STANDS_IN, Scheme
from medusa_sim.reading.strict import convert
from medusa_sim.units import SIXTEEN

_NVFP4_GROUP = 16
_FORMS = {
    (("fp8",), ("fp8",)): "fp8",
    (("int8",), ("int8",)): "int8",
    (("int8",), ()): "int8_wo",
    (("int4",), ()): "int4",
    (("uint4",), ()): "int4",
    (("fp4",), ()): "mxfp4",
    (("fp4",), ("fp4",)): "mxfp4",
    (("fp4",), ("fp8",)): "mxfp4_fp8",
    (("fp4", "fp8"), ("fp4", "fp8")): "nvfp4",
}
"""Dtypes of weights and inputs -> format; two of a tensor are its values and the scales of blocks."""


class _Tensor(msgspec.Struct, frozen=True, kw_only=True):
    dtype: Annotated[str, Meta(max_length=60)]
    qscheme: str | None = None
    group_size: int | None = None


_Tensors = _Tensor | list[_Tensor] | None
"""In the order of quantisation, where several follow one another."""


class _Rule(msgspec.Struct, frozen=True, kw_only=True):
    weight: _Tensors = None
    input_tensors: _Tensors = None
    output_tensors: _Tensors = None


class _Quark(msgspec.Struct, frozen=True, kw_only=True):
    global_quant_config: _Rule | None = None
    layer_quant_config: dict[str, _Rule] | None = None
    layer_type_quant_config: dict[str, Any] | None = None
    kv_cache_quant_config: dict[str, _Rule] | None = None
    exclude: list[str] | None = None


def quark_scheme(config: dict[str, Any], where: str) -> Scheme:
    """Formats that its table gives. Raises SpecError naming a rule that is not modelled."""
    given = convert(config, _Quark, where)
    if given.layer_type_quant_config:
        raise SpecError(f"{where}.layer_type_quant_config: rules by type of layer; allowed: by name alone")
    rules = given.layer_quant_config or {}
    caches = [
        each.dtype
        for rule in (*rules.values(), *(given.kv_cache_quant_config or {}).values())
        for each in _listed(rule.output_tensors)
    ]
    if not set(caches) <= {"fp8_e4m3"}:
        raise SpecError(f"{where}.kv_cache_quant_config: output in {caches[0]}; allowed: fp8_e4m3")
    main, notes = SIXTEEN, dict[str, None]()
    if given.global_quant_config is not None and given.global_quant_config.weight is not None:
        main = _form(given.global_quant_config, f"{where}.global_quant_config", notes)
    return Scheme(
        main=main,
        excluded=tuple(given.exclude or ()),
        by_name={
            name: _form(rule, f"{where}.layer_quant_config.{name[:60]}", notes)
            for name, rule in rules.items()
            if rule.weight is not None
        },
        is_mixed=main == SIXTEEN,
        kv_dtype="fp8" if caches else None,
        notes=tuple(notes),
    )


def _listed(given: _Tensors) -> list[_Tensor]:
    return given if isinstance(given, list) else [given] if given is not None else []


def _form(rule: _Rule, where: str, notes: dict[str, None]) -> str:
    """Format of a rule; adds to the notes."""
    weight, inputs = (_listed(each) for each in (rule.weight, rule.input_tensors))
    pair = tuple(tuple(each.dtype.partition("_")[0] for each in part) for part in (weight, inputs))
    if pair not in _FORMS:
        text = " with inputs ".join("+".join(part) or "none" for part in pair)
        raise SpecError(
            f"{where}: given weights {text}; allowed: fp4 (alone, with fp4 or fp8), fp8 with fp8, int8 "
            "(alone or with int8), int4 alone"
        )
    if pair == (("fp4",), ("fp4",)):
        if weight[0].group_size == _NVFP4_GROUP:
            return "nvfp4"
        notes[STANDS_IN["mxfp4"]] = None
    if _FORMS[pair] == "fp8" and weight[0].qscheme in ("per_block", "per_group"):
        return "fp8_block"
    return _FORMS[pair]
