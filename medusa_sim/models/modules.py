"""Formats of the parts of a checkpoint by the names of its modules."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import msgspec

from medusa_sim.errors import SpecError, shown
from medusa_sim.models.feed_forwards import FeedForward, Mlp, MoE
from medusa_sim.models.layer_group import LayerGroup, grouped
from medusa_sim.models.mixers import Mixer
from medusa_sim.models.model import UNCHECKED, Model
from medusa_sim.models.patterns import Patterns, of_wildcards
from medusa_sim.models.recurrent import GatedDelta
from medusa_sim.outside.limits import MODULE_CHARACTERS
from medusa_sim.units import SIXTEEN

_PREFIXES = (
    "model.layers.",
    "model.language_model.layers.",
    "language_model.model.layers.",
    "backbone.layers.",
    "layers.",
)
_ATTENTION = ("self_attn", "attn", "mixer", "attention")
_INPUTS = (
    "q_proj", "k_proj", "v_proj", "qkv_proj", "q_b_proj", "kv_a_proj_with_mqa", "q_a_proj", "kv_b_proj",
    "wq_a", "wq_b", "wkv", "in_proj",
)  # fmt: skip
_OUTPUTS = ("o_proj", "out_proj", "wo_a", "wo_b")
_LINEAR = ("linear_attn.in_proj_qkv", "linear_attn.in_proj_qkvz", "linear_attn.in_proj_z")
_MLPS = ("mlp", "feed_forward", "ffn", "mixer")
_MATRICES = ("up_proj", "gate_proj", "down_proj", "gate_up_proj", "w1", "w3", "w2")
_EXPERTS = ("mlp.experts", "block_sparse_moe.experts", "ffn.experts", "mixer.experts")
_SHARED = ("shared_experts", "shared_expert", "shared_mlp")
_BESIDE = "gemma4_text"
"""The family whose experts stand beside an MLP, and not inside one."""

STANDS_IN = {
    "fp8_block": f"MXFP8, whose kernels were not measured, is timed as fp8 with a scale a block, {UNCHECKED}",
    "mxfp4": f"MXFP4 with inputs in MXFP4 is multiplied in 16 bits, as engines emulate it, {UNCHECKED}",
    "cache": f"its KV cache in NVFP4 is taken for fp8, 1.8 times as large, {UNCHECKED}",
}
"""Note on a format that has no kernels here, by the format that stands in for it."""


@dataclass(frozen=True, kw_only=True)
class Scheme:
    """Formats of modules, as a file gives them."""

    main: str
    """Of every linear layer that nothing else is said of."""
    excluded: tuple[str, ...] = ()
    """Modules that stay in 16 bits: names or parts of them, wildcards, `re:` and a regular expression."""
    by_name: Mapping[str, str] = field(default_factory=dict)
    """Modules in another format, named in the same way."""
    experts: str | None = None
    """Format of routed experts alone."""
    is_mixed: bool = False
    """Whether every layer has formats of its own, so that `main` is none."""
    kv_dtype: str | None = None
    scale_bytes: float | None = None
    notes: tuple[str, ...] = ()
    """Notes on the formats."""

    @cached_property
    def prefixes(self) -> tuple[str, ...]:
        """How names of its modules begin, as far as any are given."""
        given = (*self.excluded, *self.by_name)
        return tuple(prefix for prefix in _PREFIXES if any(prefix in name for name in given)) or _PREFIXES[:1]

    @cached_property
    def _tests(self) -> tuple[tuple[_Names, str], ...]:
        forms: dict[str, list[str]] = {}
        for name, form in self.by_name.items():
            forms.setdefault(form, []).append(name)
        return (
            (_Names(self.excluded), SIXTEEN),
            *((_Names(names), form) for form, names in forms.items()),
        )

    def form_of(self, names: Iterable[str], default: str | None) -> str:
        """Format of a part whose modules may be named so; default: where nothing is said (None: `main`)."""
        candidates = tuple(names)
        for known, form in self._tests:
            if any(name in known for name in candidates):
                return form
        return default or self.main


class _Names:
    """A set of names of modules, some with wildcards or as regular expressions. Raises as Patterns."""

    def __init__(self, given: Iterable[str]) -> None:
        self.plain: set[str] = set()
        patterns = []
        for name in given:
            if len(name) > MODULE_CHARACTERS:
                raise SpecError(f"{shown(name)}: a module's name of more than {MODULE_CHARACTERS:,} letters")
            if name.startswith("re:"):
                patterns.append(name[3:])
            elif "*" in name:
                patterns.append(of_wildcards(name))
            else:
                self.plain.add(name)
        self.first = {name.partition(".")[0] for name in self.plain}
        self.words = {name.count(".") + 1 for name in self.plain}
        self.patterns = Patterns(patterns) if patterns else None

    def __contains__(self, name: object) -> bool:
        assert isinstance(name, str)  # noqa: S101  # asked of names alone
        parts = name.split(".")
        for start, first in enumerate(parts):
            ends = range(start + 1, len(parts) + 1) if first in self.first else ()
            if any(end - start in self.words and ".".join(parts[start:end]) in self.plain for end in ends):
                return True
        return self.patterns is not None and name in self.patterns


def in_formats(model: Model, scheme: Scheme) -> tuple[tuple[LayerGroup, ...], LayerGroup | None, str]:
    """(groups, MTP module, format of the model) of a scheme. model: with its layers one by one.

    Parts in the model's own format say none. Of a scheme by layer the model's is that of its routed experts,
    else that of most weights.
    """
    beside = model.architecture == _BESIDE
    layers = [_in_formats(index, layer, scheme, beside=beside) for index, layer in enumerate(model.groups)]
    mtp = None if model.mtp is None else _in_formats(len(layers), model.mtp, scheme, beside=beside)
    main = scheme.main
    if scheme.is_mixed:
        sizes: dict[str, float] = {}
        for layer in layers:
            for form, size in _sizes(layer, model.hidden):
                sizes[form] = sizes.get(form, 0.0) + size
        main = max(sizes, key=lambda form: sizes[form])
    own = grouped(_unless(layer, main) for layer in layers)
    return own, None if mtp is None else _unless(mtp, main), main


def _sizes(layer: LayerGroup, hidden: int) -> Iterator[tuple[str, float]]:
    """(format, weights) of the parts of a layer."""
    for part in layer.parts:
        if isinstance(part, MoE):
            yield part.form or SIXTEEN, part.held * part.expert_weights(hidden)
        else:
            yield part.form or SIXTEEN, part.weights(hidden)


def _in_formats(index: int, layer: LayerGroup, scheme: Scheme, *, beside: bool) -> LayerGroup:
    """The layer with the format of each part. beside: its experts are named beside its MLP."""
    paths = [f"{prefix}{index}" for prefix in scheme.prefixes]

    def named(middles: Iterable[str], last: Iterable[str]) -> list[str]:
        return [f"{path}.{middle}.{each}" for path in paths for middle in middles for each in last]

    mixers: list[Mixer] = []
    for mixer in layer.mixers:
        ins = named(_ATTENTION, _INPUTS)
        outs = named(_ATTENTION, _OUTPUTS)
        if isinstance(mixer, GatedDelta):
            ins = [f"{path}.{each}" for path in paths for each in _LINEAR]
            outs = [f"{path}.linear_attn.out_proj" for path in paths]
        forms = {"form": scheme.form_of(ins, mixer.form), "out_form": scheme.form_of(outs, mixer.form)}
        mixers.append(msgspec.structs.replace(mixer, **forms))
    part: FeedForward | None = layer.feed_forward
    if isinstance(part, Mlp):
        part = msgspec.structs.replace(part, form=scheme.form_of(named(_MLPS, _MATRICES), part.form))
    elif isinstance(part, MoE):
        routed = named(("experts",) if beside else _EXPERTS, [f"0.{each}" for each in _MATRICES])
        inside = [f"{mlp}.{each}" for mlp in (*_MLPS, "block_sparse_moe") for each in _SHARED]
        shared = named(("mlp",) if beside else inside, _MATRICES)
        part = msgspec.structs.replace(
            part,
            form=scheme.form_of(routed, part.form or scheme.experts),
            shared_form=scheme.form_of(shared, part.shared_form),
        )
    return LayerGroup(layer.count, tuple(mixers), part)


def _unless(group: LayerGroup, own: str) -> LayerGroup:
    """The layers, with None for the format `own`."""
    return group.with_forms(
        lambda form: None if form == own else form,
        lambda mixer: None if mixer.out_form == mixer.form else mixer.out_form,
    )
