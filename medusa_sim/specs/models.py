"""Models by name or by path.

Named models live in `models.toml` beside this file, each with its source. Any Hugging Face
`config.json` of the Llama, Mistral, Qwen2, Qwen3, Gemma 3 or OPT family works too (`hf_config.py`).
"""

from __future__ import annotations

import dataclasses
import os
from functools import lru_cache
from pathlib import Path

from medusa_sim.errors import SpecError, unknown_name
from medusa_sim.reading import FileState, file_state, read_toml
from medusa_sim.specs.hf_config import model_from_config
from medusa_sim.specs.model import ACTIVATION_DTYPES, ARCHITECTURES, LAYERS, LENGTH, VOCAB, WIDTH, Model
from medusa_sim.specs.sourced import Table

MODELS_FILE = Path(__file__).with_name("models.toml")


def model_names() -> tuple[str, ...]:
    """Names in `models.toml`, sorted."""
    return tuple(sorted(_named_models(file_state(MODELS_FILE))))


def load_model(name_or_path: str | os.PathLike[str]) -> Model:
    """A model by name, or by the path of a Hugging Face `config.json` (or of its folder).

    Whatever holds a slash or ends in `.json` is a path. Raises SpecError for an unknown name (with the
    nearest), or for a config of another architecture.
    """
    given = os.fspath(name_or_path)
    if given.endswith(".json") or "/" in given or os.sep in given:
        return model_from_config(Path(given))
    try:
        entry = _named_models(file_state(MODELS_FILE))[given]
    except KeyError:
        known = unknown_name("model", given, model_names())
        raise SpecError(f"{known}; or give the path of a Hugging Face config.json") from None
    return _named_model(given, entry)


@lru_cache(maxsize=4)
def _named_models(state: FileState) -> dict[str, object]:
    return read_toml(state.path)


def _named_model(name: str, entry: object) -> Model:
    table = Table(MODELS_FILE.name, entry, name)
    family = table.choice("architecture", ARCHITECTURES)
    source = table.text("source", what="the paper or published config that gives the sizes")
    notes = (table.text("note", what="a remark"),) if "note" in table else ()
    tied = table.flag("tied_embeddings") if "tied_embeddings" in table else family == "opt"
    dtype = table.choice("dtype", ACTIVATION_DTYPES)
    heads = table.integer("heads", *WIDTH)
    model = Model(
        name=name,
        architecture=family,
        layers=table.integer("layers", *LAYERS),
        hidden=table.integer("hidden", *WIDTH),
        intermediate=table.integer("intermediate", *WIDTH),
        heads=heads,
        kv_heads=table.integer("kv_heads", *WIDTH),
        head_dim=table.integer("head_dim", *WIDTH),
        vocab=table.integer("vocab", *VOCAB),
        max_seq_len=table.integer("max_seq_len", *LENGTH),
        tied_embeddings=tied,
        dtype=dtype,
        weight_dtype=dtype,
        kv_dtype=dtype,
        activation_dtype=dtype,
        source=source,
        notes=notes,
        **dataclasses.asdict(ARCHITECTURES[family]),
    )
    if heads % model.kv_heads:
        table.fail("kv_heads", f"given {model.kv_heads}; it must divide heads = {heads}")
    table.finish()
    return model
