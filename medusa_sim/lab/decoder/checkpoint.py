"""Checkpoint folders in Hugging Face form: config.json, safetensors (sharded or not), tokenizer.json.

Nothing is unpickled, but for torch's `weights_only` reader on the v1 Medusa file `medusa_lm_head.pt`.
Every key, shape and value is checked before a model is returned.

The folder that training writes: which files are its own, and how they get there whole or not at all.

Nothing here deletes a file that this project did not write: a folder with anything else in it is refused.
"""

from __future__ import annotations

import json
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from medusa_sim.errors import OutputError, SpecError, shown
from medusa_sim.lab.decoder.config import DecoderConfig, read_config
from medusa_sim.lab.decoder.heads import PREFIX, MedusaHeads, heads_from_tensors
from medusa_sim.lab.decoder.model import Llama
from medusa_sim.outside.limits import INDEX_BYTES, SPEC_BYTES
from medusa_sim.reading import as_input, named, read_json

DTYPES: dict[str, torch.dtype] = {
    "fp64": torch.float64,
    "fp32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
}
HEAD_FILES = ("medusa_lm_head.safetensors", "medusa_lm_head.pt")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A loaded model, its Medusa heads if it has any, and where it came from."""

    model: Llama
    heads: MedusaHeads | None
    path: Path


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Every tensor of one safetensors file. Raises SpecError if it is missing, truncated or no such file."""
    as_input(path)
    try:
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
    except FileNotFoundError:
        raise SpecError(f"{path}: no such file") from None
    except (SafetensorError, OSError) as error:
        raise SpecError(f"{path}: not a readable safetensors file, perhaps truncated ({error})") from None


def _read_legacy_heads(path: Path) -> dict[str, Tensor]:
    as_input(path)
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises half a dozen types here, and all of them mean the same
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise SpecError(f"{path}: not a weights-only torch file ({reason})") from None
    if not isinstance(state, dict) or not all(isinstance(value, Tensor) for value in state.values()):
        raise SpecError(f"{path}: must hold a dictionary of tensors")
    return {str(name): value for name, value in state.items()}


def read_weights(directory: Path) -> dict[str, Tensor]:
    """All tensors of a checkpoint folder, shards joined by `model.safetensors.index.json` if present.

    Raises SpecError for a missing shard or a tensor that its shard does not hold.
    """
    index_path = directory / "model.safetensors.index.json"
    if not index_path.exists():
        path = directory / "model.safetensors"
        if not path.exists():
            raise SpecError(
                f"{path}: no such file; pickled weights (.bin) are not loaded, convert them to safetensors"
            )
        return read_tensors(path)
    what = "JSON with a weight_map of tensor names to files"
    index = read_json(index_path, INDEX_BYTES, what)
    weight_map = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(weight_map, dict) or not all(isinstance(file, str) for file in weight_map.values()):
        raise SpecError(f"{index_path}: must be {what}")
    shards = sorted(set(weight_map.values()))
    tensors: dict[str, Tensor] = {}
    for shard in shards:
        if Path(shard).name != shard or not shard.isprintable():
            raise SpecError(f"{index_path}: shard {shown(shard)} must be a file of the same folder")
        if not os.path.exists(directory / shard):  # noqa: PTH110  # no error for long names
            raise SpecError(
                f"{named(directory / shard)}: shard is missing ({len(shards)} are listed in "
                f"{index_path.name})"
            )
        tensors |= read_tensors(directory / shard)
    absent = [name for name in weight_map if name not in tensors]
    if absent:
        raise SpecError(
            f"{index_path}: tensor {shown(absent[0])} is not in its shard {shown(weight_map[absent[0]])}"
        )
    return tensors


def _require_finite(tensors: dict[str, Tensor], where: str) -> None:
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            raise SpecError(f"{where}: tensor {name!r} holds NaN or infinite values")


def model_from_tensors(
    config: DecoderConfig, tensors: dict[str, Tensor], *, dtype: torch.dtype, where: str
) -> Llama:
    """A backbone from tensors with Hugging Face names, every key and shape checked.

    `lm_head.weight` may be absent where embeddings are tied. Raises SpecError.
    """
    with torch.device("meta"):
        model = Llama(config)
    state = model.state_dict()
    if config.tie_word_embeddings:
        state.pop("lm_head.weight")
    for name, expected in state.items():
        if name not in tensors:
            raise SpecError(f"{where}: tensor {name!r} is missing; config.json describes another model")
        if tensors[name].shape != expected.shape:
            raise SpecError(
                f"{where}: {name} has shape {tuple(tensors[name].shape)}, "
                f"config.json says {tuple(expected.shape)}"
            )
    unknown = [
        name
        for name in tensors
        if name not in state
        and not name.startswith(PREFIX)
        and name != "lm_head.weight"
        and not name.endswith("rotary_emb.inv_freq")
    ]
    if unknown:
        raise SpecError(f"{where}: unexpected tensor {unknown[0]!r}; config.json describes another model")
    weights = {name: tensors[name].to(dtype) for name in state}
    model.load_state_dict(weights, assign=True, strict=False)
    if config.tie_word_embeddings:
        model.lm_head.weight = model.model.embed_tokens.weight
    return model.eval().requires_grad_(requires_grad=False)


def load_checkpoint(
    directory: Path | str,
    *,
    heads_path: Path | str | None = None,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
) -> Checkpoint:
    """The model in `directory` with its Medusa heads: inside the full model, or in a head file.

    `heads_path` names a head file or the folder of one (a public Medusa-1 repository); by default
    the model's own folder is searched. Raises SpecError, one line, for anything malformed.
    """
    path = Path(directory)
    config = read_config(path)
    tensors = read_weights(path)
    _require_finite(tensors, str(path))
    model = model_from_tensors(config, tensors, dtype=dtype, where=str(path))
    head_tensors, where = tensors, str(path)
    file = find_head_file(Path(heads_path) if heads_path is not None else path)
    if file is not None:
        head_tensors = _read_legacy_heads(file) if file.suffix == ".pt" else read_tensors(file)
        where = str(file)
        _require_finite(head_tensors, where)
    elif heads_path is not None:
        raise SpecError(f"{heads_path}: no Medusa head file there (known names: {', '.join(HEAD_FILES)})")
    heads = heads_from_tensors(head_tensors, hidden=config.hidden_size, vocab=config.vocab_size, where=where)
    if heads is None and file is not None:
        raise SpecError(f"{where}: no Medusa head keys like '0.0.linear.weight'")
    if heads is not None:
        heads = heads.to(device=device, dtype=dtype).eval().requires_grad_(requires_grad=False)
    return Checkpoint(model.to(device), heads, path)


def find_head_file(path: Path) -> Path | None:
    """`path` if it is a file, else the head file in that folder, else None."""
    if path.is_file():
        return path
    return next((path / name for name in HEAD_FILES if (path / name).is_file()), None)


RECORD = "training.json"
"""How a checkpoint came about; marks a folder as written here."""
OWN_FILES = ("config.json", "model.safetensors", "tokenizer.json", RECORD)


def check_replaceable(directory: Path | str, *, overwrite: bool = False) -> None:
    """Raises OutputError (one line) unless a checkpoint may be written at `directory`.

    It may where nothing is, into an empty folder, and with `overwrite` over a checkpoint that training
    wrote: its own files and nothing else.
    """
    path = Path(directory)
    if not path.exists():
        return
    if not path.is_dir():
        raise OutputError(f"{path} is a file; --save names a folder")
    try:
        entries = sorted(path.iterdir())
    except OSError as error:
        raise OutputError(f"{path}: cannot be read ({error.strerror}); choose another folder") from None
    foreign = [e.name for e in entries if e.name not in OWN_FILES or e.is_symlink() or not e.is_file()]
    if foreign:
        more = f" and {len(foreign) - 1} more" if len(foreign) > 1 else ""
        raise OutputError(
            f"{path} holds {foreign[0]!r}{more}, which training did not write; choose a new or empty folder"
        )
    if entries and not _is_recorded(path / RECORD):
        raise OutputError(
            f"{path} holds a checkpoint that training did not write (no recipe in {RECORD}); "
            "choose a new or empty folder"
        )
    if entries and not overwrite:
        raise OutputError(f"{path} holds a finished checkpoint; give --overwrite to replace it")


def _is_recorded(path: Path) -> bool:
    try:
        record = read_json(path, SPEC_BYTES, "the record of a training")
    except SpecError:
        return False
    return isinstance(record, dict) and "recipe" in record


def write_safetensors(path: Path, tensors: dict[str, Tensor], metadata: dict[str, str] | None = None) -> None:
    """Writes whole or not at all, beside `path` under a name that nobody can foresee. Raises OutputError."""
    contiguous = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    try:
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.name[:100]}.") as folder:
            temporary = Path(folder) / "whole"
            save_file(contiguous, temporary, metadata={"format": "pt"} | (metadata or {}))
            temporary.chmod(0o644)  # safetensors makes it private
            temporary.replace(path)
    except (OSError, SafetensorError) as error:
        raise OutputError(f"{path}: cannot be written ({error})") from None


def save_checkpoint(
    directory: Path | str,
    model: Llama,
    heads: MedusaHeads | None = None,
    *,
    dtype: torch.dtype = torch.float16,
    tokenizer_json: str | None = None,
    record: dict[str, Any] | None = None,
    overwrite: bool = False,
) -> None:
    """Writes config.json, model.safetensors (heads under `medusa_head.`), tokenizer.json and training.json.

    The folder appears complete or not at all: it is built beside its place and renamed. `record` has the
    `recipe`. Raises OutputError where something is in the way (`check_replaceable`) or cannot be written.
    """
    check_replaceable(directory, overwrite=overwrite)
    path = Path(directory).resolve()  # a link is written through
    tensors = {name: tensor.to(dtype) for name, tensor in model.state_dict().items()}
    if model.config.tie_word_embeddings:
        tensors.pop("lm_head.weight")
    config = model.config.to_hf() | {"torch_dtype": str(dtype).removeprefix("torch.")}
    if heads is not None:
        tensors |= {PREFIX + name: tensor.to(dtype) for name, tensor in heads.state_dict().items()}
        config |= {"medusa_num_heads": heads.count, "medusa_num_layers": heads.layers}
    texts = {"config.json": json.dumps(config, indent=2) + "\n"}
    if tokenizer_json is not None:
        texts["tokenizer.json"] = tokenizer_json
    if record is not None:
        texts[RECORD] = json.dumps(record, indent=1) + "\n"
    building = _folder_beside(path)
    try:
        write_safetensors(building / "model.safetensors", tensors)
        for name, text in texts.items():
            (building / name).write_text(text, encoding="utf-8")
        building.chmod(0o755)
        _put(building, path)
    except OSError as error:
        raise OutputError(f"{path}: cannot be written ({error})") from None
    finally:
        if building.exists():
            _remove_own(building)


def check_room(directory: Path | str) -> None:
    """Raises OutputError unless a folder can be made beside `directory`, where a checkpoint is built."""
    _folder_beside(Path(directory).resolve()).rmdir()


def _folder_beside(path: Path) -> Path:
    """A new folder beside a place, whose parents are made. Raises OutputError."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
    except OSError as error:
        raise OutputError(f"{path}: cannot be written ({error.strerror}); choose another --save") from None


def _put(building: Path, path: Path) -> None:
    """Renames `building` to `path`, a checkpoint that is there aside first, so that one of them is whole."""
    if not path.exists() or not any(path.iterdir()):
        building.rename(path)
        return
    aside = building.with_name(building.name + ".old")
    path.rename(aside)
    try:
        building.rename(path)
    except OSError:
        aside.rename(path)
        raise
    _remove_own(aside)


def _remove_own(folder: Path) -> None:
    """Deletes a checkpoint's own files and the folder, which stays if anything else has come into it."""
    for name in OWN_FILES:
        (folder / name).unlink(missing_ok=True)
    folder.rmdir()
