"""Whole training runs: a killed one goes on with its own settings alone, and heads are not lost."""

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from decoder_models import tiny_config, tiny_heads
from one_line import one_line
from safetensors.torch import load_file

from medusa_sim.decoder.arguments import Recipe
from medusa_sim.decoder.checkpoint import load_checkpoint, save_checkpoint
from medusa_sim.decoder.model import random_llama
from medusa_sim.decoder.prompts import train_tokenizer
from medusa_sim.decoder.training import recipe as recipe_module
from medusa_sim.decoder.training import train as train_module
from medusa_sim.decoder.training.recipe import run_recipe
from medusa_sim.decoder.training.trainer import Trainer, TrainSettings
from medusa_sim.errors import MedusaSimError, SpecError, UsageError


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("library")
    for i in range(60):
        (path / f"file{i}.py").write_text(f"def f{i}(x):\n    return x + {i}\n" * 30)
    return path


@pytest.fixture(scope="module")
def start(library: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint with three heads."""
    path = tmp_path_factory.mktemp("start") / "checkpoint"
    texts = [file.read_text() for file in sorted(library.glob("*.py"))]
    model = random_llama(tiny_config(270, num_hidden_layers=1, tie_word_embeddings=True), seed=3, std=0.1)
    tokenizer = train_tokenizer(texts, vocab=270).to_str()
    save_checkpoint(path, model, tiny_heads(model, count=3), dtype=torch.float32, tokenizer_json=tokenizer)
    return path


@pytest.fixture
def recipe(library: Path, start: Path, tmp_path: Path) -> Recipe:
    return Recipe(
        method="medusa-2", save=tmp_path / "out", checkpoint=start, text_folder=library, steps=4, batch=2,
        length=32, responses=2, dtype="fp32",
    )  # fmt: skip


class _KilledError(Exception):
    pass


def _killed(recipe: Recipe, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run, ended right after its second step was saved."""

    class Interrupted(Trainer):
        def save(self) -> None:
            super().save()
            raise _KilledError

    with monkeypatch.context() as patch:
        patch.setattr(train_module, "Trainer", Interrupted)
        patch.setattr(recipe_module, "TrainSettings", partial(TrainSettings, save_every=2))
        with pytest.raises(_KilledError):
            run_recipe(recipe)


OTHERS: dict[str, tuple[dict[str, Any], str]] = {
    "method": ({"method": "medusa-1"}, "method medusa-2, now medusa-1"),
    "data": ({"data": "self"}, "data text, now self"),
    "lambda_0": ({"lambda_0": 5.0}, "lambda_0 0.2, now 5.0"),
    "schedule": ({"schedule": "sine"}, "schedule constant, now sine"),
    "responses": ({"responses": 3}, "responses 2, now 3"),
    "temperature": ({"temperature": 0.5}, "temperature 0.7, now 0.5"),
    "steps": ({"steps": 5}, "steps 4, now 5"),
    "seed": ({"seed": 1}, "seed 0, now 1"),
}


def test_a_state_is_taken_up_by_its_own_settings_alone(recipe, library, tmp_path, monkeypatch):
    _killed(recipe, monkeypatch)
    state = recipe.save.with_name("out.state.safetensors")
    before = state.read_bytes()
    for changes, told in OTHERS.values():
        with one_line(SpecError, told, match="other settings"):
            run_recipe(replace(recipe, **changes))
    other_text = tmp_path / "library"
    other_text.mkdir()
    for file in library.glob("*.py"):
        (other_text / file.name).write_text(file.read_text() + "# more\n")
    with pytest.raises(SpecError, match=r"\(text "):
        run_recipe(replace(recipe, text_folder=other_text))
    assert state.read_bytes() == before
    assert not recipe.save.exists()
    run_recipe(recipe)
    assert not state.exists()
    at_once = replace(recipe, save=tmp_path / "at once")
    run_recipe(at_once)
    for name, value in load_file(at_once.save / "model.safetensors").items():
        assert torch.equal(load_file(recipe.save / "model.safetensors")[name], value), name


def test_another_checkpoint_is_another_run(recipe, start, tmp_path, monkeypatch):
    """Told by its weights: a copy elsewhere is the same, another file under its name is not."""
    _killed(recipe, monkeypatch)
    loaded = load_checkpoint(start)
    loaded.model.model.norm.weight.mul_(1.1)
    text = (start / "tokenizer.json").read_text()
    save_checkpoint(tmp_path / "other", loaded.model, loaded.heads, dtype=torch.float32, tokenizer_json=text)
    with pytest.raises(SpecError, match="weights of the checkpoint"):
        run_recipe(replace(recipe, checkpoint=tmp_path / "other"))


def test_medusa_1_goes_on_from_heads_and_says_so(recipe, start):
    """One step at a tiny rate leaves the heads next to where they were; new ones start far from it."""
    told: list[str] = []
    given = replace(recipe, method="medusa-1", steps=1, learning_rate=1e-9)
    run_recipe(given, note=told.append)
    assert told == [f"training goes on from the 3 heads of {start}"]
    before, after = load_checkpoint(start).heads, load_checkpoint(recipe.save).heads
    assert after is not None
    for name, value in before.state_dict().items():
        assert torch.allclose(after.state_dict()[name], value, atol=1e-6)
    for changes, name in (
        ({"medusa_heads": 5}, "--medusa-heads is 5"),
        ({"medusa_layers": 2}, "--medusa-layers is 2"),
        ({"own_output": False}, "--own-output is False"),
    ):
        with pytest.raises(UsageError, match=name):
            run_recipe(replace(given, overwrite=True, **changes))
    assert run_recipe(replace(given, overwrite=True, medusa_heads=3)).steps == 1


def test_a_finished_checkpoint_is_kept_unless_asked(recipe):
    run_recipe(recipe)
    weights = (recipe.save / "model.safetensors").read_bytes()
    with pytest.raises(MedusaSimError, match="--overwrite"):
        run_recipe(replace(recipe, seed=1))
    assert (recipe.save / "model.safetensors").read_bytes() == weights
    run_recipe(replace(recipe, seed=1, overwrite=True))
    assert (recipe.save / "model.safetensors").read_bytes() != weights
    record = json.loads((recipe.save / "training.json").read_text())
    assert record["recipe"]["seed"] == 1
    assert "overwrite" not in record["recipe"]
