"""Architecture that a family shares; a model in other formats; the part of a model on one GPU of several."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from medusa_sim.errors import SpecError, UsageError
from medusa_sim.file_types import CACHES, FILES, MIXTURES, named_file
from medusa_sim.models.feed_forwards import Mlp, MoE
from medusa_sim.models.layer_group import LayerGroup, grouped
from medusa_sim.models.mixers import Grouped, Latent
from medusa_sim.models.model import Model, Norm, Positions
from medusa_sim.models.parallel import ONE, Parallel
from medusa_sim.reading.documents import read_toml
from medusa_sim.units import FORMATS, HALVES, SIXTEEN, UNPACKED, Format

FAMILIES_FILE = Path(__file__).with_name("families.toml")
# dtype of the arithmetic -> dtypes in which its weights may be stored
_WEIGHT_DTYPES: dict[str, tuple[str, ...]] = {
    "fp16": ("fp16", "int4", "int8", "fp8", "mxfp4", "nvfp4"),
    "bf16": ("bf16", "int4", "int8", "fp8", "mxfp4", "nvfp4"),
    "fp32": ("fp32",),
    "fp8": ("fp8", "fp8_block"),
    "int8": ("int8",),
    "nvfp4": ("nvfp4",),
}
_FOUR_BITS = "nvfp4"
ACTIVATION_DTYPES = ("fp16", "bf16", "fp32")


@dataclass(frozen=True, slots=True)
class Architecture:
    """Features that every model of a family shares."""

    gated: bool = True
    norm: Norm = "rms"
    positions: Positions = "rope"
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    norms_per_layer: int = 2
    samples_top_k: bool = False
    samples_top_p: bool = True

    def attention(self, heads: int, kv_heads: int, head_dim: int, size: int | None = None) -> Grouped:
        """Attention of so many heads with the family's biases and norms; `size` as in `Grouped`."""
        return Grouped(
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            qkv_bias=self.qkv_bias,
            output_bias=self.output_bias,
            qk_norm=self.qk_norm,
            size=size,
        )

    def mlp(self, width: int) -> Mlp:
        """A dense MLP of that width."""
        return Mlp(width=width, gated=self.gated, bias=self.mlp_bias)

    @property
    def of_model(self) -> dict[str, Any]:
        """Its values for the whole model, by the names of `Model`'s fields."""
        return {
            name: getattr(self, name)
            for name in ("norm", "positions", "norms_per_layer", "samples_top_k", "samples_top_p")
        }


ARCHITECTURES: dict[str, Architecture] = {
    family: Architecture(**about.get("layout", {}))
    for family, about in read_toml(FAMILIES_FILE)["families"].items()
}
"""Architecture of each family, by `model_type`."""


def with_dtypes(
    model: Model,
    dtype: str | None = None,
    weight_dtype: str | None = None,
    kv_dtype: str | None = None,
) -> Model:
    """The model in other dtypes; None keeps what it has, except that weights follow a new `dtype`.

    Allowed: dtype fp16 or bf16 with weights of the same dtype, or weight-only int4 (as AWQ and GPTQ store
    them), int8 or mxfp4; fp32, fp8, int8 or nvfp4 arithmetic with weights of that dtype, fp8 with fp8_block
    too (a scale for each 128 x 128 weights). dtype fp8_block stands for both; nvfp4 weights are multiplied in
    nvfp4 whatever comes in: their layers quantise activations. Projections before latent attention and MTP
    modules then stay in 16 bits, as NVIDIA publishes them (model card of DeepSeek-R1-0528-FP4-v2; excluded
    modules in vllm-project/vllm#25987 and NVIDIA/Model-Optimizer#150). Parts with a format of their own
    (gpt-oss's experts) take a `dtype` or `weight_dtype` that is given, but mxfp4 stays mxfp4 in the files
    of local engines. The KV cache takes the activation dtype or fp8. Raises SpecError for any other
    combination.
    """
    chosen, weights = _arithmetic_and_weights(model, dtype, weight_dtype)
    activations = chosen if chosen in ACTIVATION_DTYPES else model.activation_dtype
    kv_dtype = None if kv_dtype is None else named_file(kv_dtype)
    cache = kv_dtype or ("fp8" if model.kv_dtype == "fp8" else activations)
    own = CACHES if weights in FILES else ()
    if cache not in (activations, "fp8", *own):
        raise SpecError(f"{model.name}: KV cache dtype {cache!r}; allowed: {activations} or fp8")
    groups, module = model.groups, model.mtp
    if dtype is not None or weight_dtype is not None:
        change = _in_a_file if weights in FILES else _in_one_form
        groups = tuple(change(group) for group in groups)
        module = module and change(module)
        if weights == _FOUR_BITS:
            if model.mtp_layers:
                module = dataclasses.replace(_in_one_form(module or groups[-1], SIXTEEN), count=1)
            groups = tuple(_quantised(group, Format(chosen, weights).key) for group in groups)
    return dataclasses.replace(
        model,
        dtype=chosen,
        weight_dtype=weights,
        kv_dtype=cache,
        activation_dtype=activations,
        scale_bytes=model.scale_bytes if weights == model.weight_dtype else None,
        groups=groups,
        mtp=module,
    )


def _arithmetic_and_weights(model: Model, dtype: str | None, weight_dtype: str | None) -> tuple[str, str]:
    """The dtype that a model multiplies in and that of its weights, as `with_dtypes` takes them."""
    if weight_dtype is not None:
        weight_dtype = named_file(weight_dtype)
        if model.experts is not None and f"{weight_dtype}{MIXTURES}" in FILES:
            weight_dtype += MIXTURES
        if dtype is None and weight_dtype in HALVES:
            dtype = weight_dtype
    if dtype == "fp8_block":
        dtype, weight_dtype = "fp8", weight_dtype or "fp8_block"
    if weight_dtype == "nvfp4" and dtype in (None, "fp8", *ACTIVATION_DTYPES[:2]):
        dtype = "nvfp4"
    chosen = dtype or model.dtype
    if chosen not in _WEIGHT_DTYPES:
        raise SpecError(f"{model.name}: dtype {chosen!r}; allowed: {', '.join(_WEIGHT_DTYPES)}")
    weights = weight_dtype or (chosen if dtype is not None else model.weight_dtype)
    takers = HALVES if weights in FILES else tuple(key for key, w in _WEIGHT_DTYPES.items() if weights in w)
    if chosen not in takers:
        nearest = next((key for key in (weights, model.activation_dtype) if key in takers), takers[0])
        would = "fp8_block" if weights == "fp8_block" else nearest
        allowed = "; ".join(f"{key} with {' or '.join(stored)}" for key, stored in _WEIGHT_DTYPES.items())
        raise SpecError(
            f"{model.name}: dtype {chosen} with weight dtype {weights!r}; give --dtype {would} "
            f"(allowed: {allowed})"
        )
    return chosen, weights


def unpacked_where(model: Model, lacks: Callable[[str], bool]) -> tuple[Model, tuple[str, ...]]:
    """(the model as a GPU runs it that lacks some arithmetic, the formats that it unpacks to 16 bits).

    lacks: whether the GPU has no tensor cores for a dtype. Formats without a weight-only form stay.
    """
    parts = [form for group in model.groups for form in _forms(group)]
    used = dict.fromkeys([model.form, *(form for form in parts if form is not None)])
    other = {form: UNPACKED[form] for form in used if form in UNPACKED and lacks(FORMATS[form].dtype)}
    return in_other_forms(model, other), tuple(other)


def in_other_forms(model: Model, other: Mapping[str, str]) -> Model:
    """The model with its parts in some formats computed in others."""
    if not other:
        return model
    own = model.in_form(other.get(model.form, model.form))

    def as_run(form: str | None) -> str | None:
        return None if form is None else other.get(form, form)

    groups = grouped(group.with_forms(as_run) for group in model.groups)
    mtp = None if model.mtp is None else model.mtp.with_forms(as_run)
    return dataclasses.replace(own, groups=groups, mtp=mtp)


def _forms(group: LayerGroup) -> Iterator[str | None]:
    for part in group.parts:
        yield part.form
    for mixer in group.mixers:
        yield mixer.out_form
    if isinstance(group.feed_forward, MoE):
        yield group.feed_forward.shared_form


def _in_one_form(group: LayerGroup, form: str | None = None) -> LayerGroup:
    """The layers with every part in one format, by default the model's."""
    return group.with_forms(lambda _: form, lambda _: None)


def _in_a_file(group: LayerGroup) -> LayerGroup:
    """The layers as files of local engines have them: in the file's types, but for what was trained in mxfp4.

    gpt-oss-20b's "F16" file is 12.8 GiB, its "MXFP4" file 11.3 (ggml-org/gpt-oss-20b-GGUF and
    unsloth/gpt-oss-20b-GGUF): both hold experts as they were published.
    """
    return group.with_forms(lambda form: form if form == "mxfp4" else None, lambda _: None)


def _quantised(group: LayerGroup, form: str) -> LayerGroup:
    """The layers as nvfp4 checkpoints have them: what leads to latent attention stays in 16 bits."""
    mixers = (
        msgspec.structs.replace(mixer, form=SIXTEEN, out_form=form) if isinstance(mixer, Latent) else mixer
        for mixer in group.mixers
    )
    return dataclasses.replace(group, mixers=tuple(mixers))


def on_one_gpu(model: Model, parallel: Parallel) -> Model:
    """Part of a model that one GPU of the group holds and computes, as a model; the model itself on one GPU.

    Raises UsageError for sizes that cannot be split, naming what can.
    """
    if parallel == ONE:
        return model
    if not model.blocks(MoE):
        _refuse_dense(model, parallel)
    return dataclasses.replace(
        model,
        groups=tuple(_share(group, parallel, model.name) for group in model.groups),
        mtp=None if model.mtp is None else _share(model.mtp, parallel, model.name),
        mlp_width=max(1, model.mlp_width // parallel.tp) if model.mlp_width else 0,
        vocab=-(-model.vocab // parallel.tp),
        parallel=parallel,
    )


def _share(group: LayerGroup, parallel: Parallel, model: str) -> LayerGroup:
    feed_forward = group.feed_forward
    return LayerGroup(
        count=group.count,
        mixers=tuple(mixer.on_one_gpu(parallel.attention_tp, model) for mixer in group.mixers),
        feed_forward=None if feed_forward is None else feed_forward.on_one_gpu(parallel, model),
    )


def _refuse_dense(model: Model, parallel: Parallel) -> None:
    if parallel.ep > 1:
        raise UsageError(f"{model.name} has no experts: --ep {parallel.ep} splits experts; give --tp alone")
    if parallel.dp_attention:
        raise UsageError(
            f"{model.name} has no experts: data-parallel attention serves mixtures of experts; run replicas "
            "of a dense model, each with its own batch"
        )
