"""Models by name, by Hugging Face id or by path.

Named models live in `models.toml` beside this file, each with its source and the ids of checkpoints that have
its shape. Any Hugging Face `config.json` of a family in `hf_families.py` works too.
"""

from __future__ import annotations

import dataclasses
import os
import re
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import Meta

from medusa_sim.errors import SpecError, check_kind, names_meant, shown, unknown_name
from medusa_sim.models.checkpoints import stored_as
from medusa_sim.models.feed_forwards import FeedForward
from medusa_sim.models.layer_group import LayerGroup, side_by_side
from medusa_sim.models.mixers import Grouped, Latent
from medusa_sim.models.model import Layers, Length, Model, Vocab, Width, of_dtype
from medusa_sim.models.recurrent import GatedDelta, KimiDelta, Mamba2
from medusa_sim.models.sparse import BlockSparse, Compressed
from medusa_sim.models.variants import ARCHITECTURES, with_dtypes
from medusa_sim.reading.documents import read_toml
from medusa_sim.reading.files import FileState, file_state
from medusa_sim.reading.strict import Text, convert

ModelName: TypeAlias = str | os.PathLike[str] | Model

MODELS_FILE = Path(__file__).with_name("models.toml")
_PAGE = re.compile(r"https?://huggingface\.co/([^/?#]+/[^/?#]+)")
"""A model's page, with its id."""
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*")
_OF_A_CHAT = re.compile(r"-(instruct|chat|it|base|thinking|hf)(-\d{4})?$")
"""Suffixes that ids add to the name of a model."""
_AS_GIVEN = (
    "architecture", "hidden", "mlp_width", "vocab", "max_seq_len", "mtp_layers", "streams", "source"
)  # fmt: skip


Mixers = Grouped | BlockSparse | Latent | Compressed | GatedDelta | KimiDelta | Mamba2
"""Every kind of mixer, told apart by `kind` in a file."""


class _Group(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Layers that are alike."""

    count: Layers
    mixer: Mixers | tuple[Mixers, ...] | None = None
    """Several run side by side on one input."""
    feed_forward: FeedForward | None = None

    @property
    def layers(self) -> LayerGroup:
        """As a model has them."""
        return LayerGroup(self.count, side_by_side(self.mixer), self.feed_forward)


class _Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A model in `models.toml`. hf: ids of published checkpoints that have this shape.

    dtype: of the activations; weights: of the linear layers as released, where another.
    """

    architecture: Annotated[str, Meta(description=f"one of {', '.join(ARCHITECTURES)}")]
    hidden: Width
    layers: Layers | None = None
    intermediate: Width | None = None
    heads: Width | None = None
    kv_heads: Width | None = None
    head_dim: Width | None = None
    groups: tuple[_Group, ...] = ()
    mlp_width: Annotated[int, Meta(ge=0, le=1_000_000)] = 0
    vocab: Vocab
    max_seq_len: Length
    dtype: Literal["fp16", "bf16", "fp32"]
    source: Text
    note: str = ""
    tied_embeddings: bool | None = None
    mtp_layers: Annotated[int, Meta(ge=0, le=1000)] = 0
    samples_top_p: bool = True
    mtp: _Group | None = None
    streams: Annotated[int, Meta(ge=1, le=64)] = 1
    weights: Literal["fp8_block", "int4", "mxfp4"] | None = None
    hf: list[Text] = []

    def __post_init__(self) -> None:
        """Refuse an unknown family, or layers given twice or not at all. Raises ValueError."""
        if self.architecture not in ARCHITECTURES:
            raise ValueError(f"architecture: given {self.architecture}; allowed: {', '.join(ARCHITECTURES)}")
        alike = (self.layers, self.heads, self.kv_heads, self.head_dim, self.intermediate)
        names = ("layers", "heads", "kv_heads", "head_dim", "intermediate")
        if bool(self.groups) != (alike == (None,) * len(alike)):
            raise ValueError(f"give {', '.join(names)}, or groups of layers instead")
        if not self.groups and None in alike:
            raise ValueError(f"{names[alike.index(None)]}: missing; a whole number from 1 is needed")
        if self.heads and self.kv_heads and self.heads % self.kv_heads:
            raise ValueError(f"kv_heads: given {self.kv_heads}; it must divide heads = {self.heads}")


def model_names() -> tuple[str, ...]:
    """Names in `models.toml`, sorted."""
    return tuple(sorted(_entries(file_state(MODELS_FILE))))


def load_model(name_or_path: str | os.PathLike[str], *, on_disk: bool = True) -> Model:
    """A model by name, by Hugging Face id, or by the path of a `config.json` or of its folder.

    `meta-llama/Llama-3.1-8B-Instruct`, or its page, is the named model of that shape, unless there is a
    folder of this name; `Qwen/Qwen3-32B-FP8` is it in that format. Whatever else holds a slash, ends in
    `.json` or is a folder with a config is a path. on_disk: False takes names and ids alone and does not look
    whether a file is there: for what comes from a link. Raises SpecError for an unknown name (with the
    nearest), for an id that no named model lists, or a config of another architecture.
    """
    check_kind("model", name_or_path, "a name or a path", (str, os.PathLike))
    given = os.fspath(name_or_path)
    if page := _PAGE.match(given):
        given = page[1]
    entries = _entries(file_state(MODELS_FILE))
    if given in entries:
        return _model(given, entries[given])
    named = _by_id(file_state(MODELS_FILE)).get(given.lower())
    if on_disk and given.endswith(".gguf"):
        from medusa_sim.models.gguf import model_from_gguf

        return model_from_gguf(Path(given))
    is_id = _ID.fullmatch(given) is not None and not given.endswith(".json")
    is_there = on_disk and os.path.exists(given)  # noqa: PTH110  # no error for long names
    if named is not None and not (is_id and is_there):
        model, listed = _model(named, entries[named]), entries[named].hf
        ids = (hf for hf in listed if given.lower() in (hf.lower(), hf.lower().rpartition("/")[2]))
        return dataclasses.replace(model, checkpoint=next(ids, ""))
    from medusa_sim.models.hf_families import unmodelled  # a named model needs no reader of configs

    is_path = on_disk and (given.endswith(".json") or "/" in given or os.sep in given)
    if not is_there and (stored := _stored(given)):
        return stored
    what = unmodelled(given)
    if what is not None and (not is_path or (is_id and not is_there)):
        raise SpecError(f"model {shown(given)}: not modelled: its {what}; docs/method.md lists what is")
    if is_id and not is_there:
        raise SpecError(_unknown_id(given))
    if is_path or (is_there and os.path.isfile(os.path.join(given, "config.json"))):  # noqa: PTH113, PTH118
        from medusa_sim.models.hf_config import model_from_config

        return model_from_config(Path(given))
    if is_there:
        what = "a folder without config.json" if os.path.isdir(given) else "no config.json or GGUF file"  # noqa: PTH112
        raise SpecError(
            f"model {shown(given)} is {what}; give the path of one, or a name of `medusa-sim specs`"
        )
    known = unknown_name("model", given, entries)
    raise SpecError(f"{known}; or give the path of a Hugging Face config.json")


def _stored(given: str) -> Model | None:
    """The named model that a checkpoint in another format has the shape of; None for other ids and names."""
    if (found := stored_as(given)) is None:
        return None
    base, form = found
    entries = _entries(file_state(MODELS_FILE))
    by_id = _by_id(file_state(MODELS_FILE))
    name = base if base in entries else by_id.get(base.lower()) or by_id.get(base.lower().rpartition("/")[2])
    if name is None:
        return None
    model = _model(name, entries[name])
    if form != model.form:
        model = with_dtypes(model, **{"weight_dtype" if form == "int4" else "dtype": form})
    return dataclasses.replace(model, checkpoint=given if "/" in given else "")


def checkpoint_ids(name: str) -> tuple[str, ...]:
    """Hugging Face ids of the checkpoints that have a named model's shape; none for any other name."""
    entry = _entries(file_state(MODELS_FILE)).get(name)
    return () if entry is None else tuple(entry.hf)


def _unknown_id(given: str) -> str:
    """Advice about an id that no named model lists."""
    ids = {hf for entry in _entries(file_state(MODELS_FILE)).values() for hf in entry.hf}
    near = names_meant(given, ids)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return (
        f"{shown(given)} is no folder here, and no named model lists this Hugging Face id{hint}; download "
        f"its config.json (huggingface.co/{shown(given)[1:-1]}/raw/main/config.json) and give its path"
    )


@lru_cache(maxsize=4)
def _entries(state: FileState) -> dict[str, _Entry]:
    return convert(read_toml(state.path), dict[str, _Entry], state.path.name)


@lru_cache(maxsize=4)
def _by_id(state: FileState) -> dict[str, str]:
    """Lower-case ids, and their part after the slash, to the name of the model of that shape."""
    ids = {hf.lower(): name for name, entry in _entries(state).items() for hf in entry.hf}
    ends = {hf.rpartition("/")[2]: name for hf, name in ids.items()}
    bare = {_OF_A_CHAT.sub("", end): name for end, name in ends.items()}
    return bare | ends | ids


def _model(name: str, entry: _Entry) -> Model:
    family, tied = ARCHITECTURES[entry.architecture], entry.tied_embeddings
    groups, shared = tuple(group.layers for group in entry.groups), family.of_model
    if not groups:
        mixer = family.attention(entry.heads or 0, entry.kv_heads or 0, entry.head_dim or 0)
        groups = (LayerGroup(entry.layers or 0, (mixer,), family.mlp(entry.intermediate or 0)),)
    model = Model(
        name=name,
        groups=groups,
        tied_embeddings=entry.architecture == "opt" if tied is None else tied,
        mtp=None if entry.mtp is None else entry.mtp.layers,
        notes=(entry.note,) if entry.note else (),
        **{key: getattr(entry, key) for key in _AS_GIVEN},
        **of_dtype(entry.dtype),
        **shared | {"samples_top_p": shared["samples_top_p"] and entry.samples_top_p},
    )
    match entry.weights:
        case None:
            return model
        case "int4" | "mxfp4" as stored:
            released = with_dtypes(model, weight_dtype=stored)
        case dtype:
            released = with_dtypes(model, dtype=dtype)
    return dataclasses.replace(released, groups=model.groups, mtp=model.mtp)  # with formats of their own
