"""Checkpoint folders in Hugging Face form: config.json, safetensors (sharded or not), tokenizer.json.

Nothing is unpickled, but for torch's `weights_only` reader on the v1 Medusa file `medusa_lm_head.pt`.
Every key, shape and value is checked before a model is returned.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from medusa_sim.errors import SpecError, shown
from medusa_sim.lab.decoder.config import DecoderConfig, read_config
from medusa_sim.lab.decoder.heads import PREFIX, MedusaHeads, heads_from_tensors
from medusa_sim.lab.decoder.model import Llama
from medusa_sim.outside.limits import INDEX_BYTES
from medusa_sim.reading.documents import read_json
from medusa_sim.reading.files import as_input, named

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
