"""The folder that training writes: which files are its own, and how they get there whole or not at all.

Nothing here deletes a file that this project did not write: a folder with anything else in it is refused.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from medusa_sim.errors import OutputError, SpecError
from medusa_sim.lab.decoder.heads import PREFIX, MedusaHeads
from medusa_sim.lab.decoder.model import Llama
from medusa_sim.outside.limits import SPEC_BYTES
from medusa_sim.reading.documents import read_json

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
