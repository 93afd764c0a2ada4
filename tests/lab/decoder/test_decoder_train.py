"""Training: label shifts, masks, resuming, the adapter, and timing of random models."""

import json
import math
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from decoder import counts_of_texts, design_effect, repeated_ngram_share
from decoder_models import ragged_prompts, tiny_config, tiny_heads, tiny_llama
from one_line import one_line
from safetensors.torch import load_file

from medusa_sim.errors import DataError, MedusaSimError, OutputError, SpecError, UsageError
from medusa_sim.lab.decoder.arguments import SEED_MAX, Recipe
from medusa_sim.lab.decoder.checkpoint import load_checkpoint
from medusa_sim.lab.decoder.checkpoint_folder import save_checkpoint
from medusa_sim.lab.decoder.generate import generate
from medusa_sim.lab.decoder.generation import GenerationSettings
from medusa_sim.lab.decoder.heads import MedusaHeads, new_heads
from medusa_sim.lab.decoder.model import Llama, random_llama
from medusa_sim.lab.decoder.tokenizer import train_tokenizer
from medusa_sim.lab.decoder.training import recipe as recipe_module
from medusa_sim.lab.decoder.training import train as train_module
from medusa_sim.lab.decoder.training.corpus import Response, response_batch, window_batch, write_responses
from medusa_sim.lab.decoder.training.evaluate import (
    HeadCounts,
    head_counts,
    total_counts,
)
from medusa_sim.lab.decoder.training.recipe import run_recipe
from medusa_sim.lab.decoder.training.train import (
    adapter_off,
    add_adapter,
    combined_weight,
    cross_entropy,
    distillation_loss,
    head_losses,
    language_model_loss,
    medusa_1_loss,
    merge_adapter,
    shifted_labels,
    train_backbone,
    train_medusa_1,
    train_medusa_2,
)
from medusa_sim.lab.decoder.training.trainer import Trainer, TrainSettings, learning_rate_factor

# torch warns about its own lazily built tables when it compiles or when peft looks at it.
pytestmark = pytest.mark.filterwarnings("ignore")


def _planted(step: int, *, vocab: int = 13, length: int = 24) -> tuple[torch.Tensor, torch.Tensor]:
    """Texts that count up by one, from anywhere: the token k + 2 ahead is the last one plus k + 2."""
    generator = torch.Generator().manual_seed(step)
    start = torch.randint(0, vocab, (8, 1), generator=generator)
    tokens = (start + torch.arange(length)) % vocab
    return tokens, torch.ones_like(tokens, dtype=torch.bool)


def _settings(steps: int, rate: float = 1e-2, **more: int) -> TrainSettings:
    return TrainSettings(steps=steps, learning_rate=rate, warmup_steps=5, **more)


@pytest.fixture(scope="module")
def counting() -> Llama:
    """A backbone that has learned to count."""
    model = random_llama(tiny_config(13, num_hidden_layers=1), seed=0)
    history = train_backbone(model, _planted, _settings(150))
    assert history[-1]["loss"] < 0.05
    return model


def test_labels_are_shifted_masked_and_weighted_as_in_the_paper():
    tokens = torch.arange(6)[None]
    mask = torch.tensor([[False, False, True, True, True, False]])
    assert shifted_labels(tokens, mask, 1).tolist() == [[-100, 2, 3, 4, -100, -100]]
    assert shifted_labels(tokens, mask, 3).tolist() == [[3, 4, -100, -100, -100, -100]]
    assert shifted_labels(tokens, mask, 9).tolist() == [[-100] * 6]
    logits = torch.zeros(1, 6, 10)
    assert float(cross_entropy(logits, shifted_labels(tokens, mask, 1))) == pytest.approx(math.log(10))
    assert float(cross_entropy(logits, shifted_labels(tokens, mask, 9))) == 0.0
    # lambda_k = 0.8^k from k = 1 (eq. 1); lambda_0 constant or a rising sine (eq. 2, B.4).
    assert float(medusa_1_loss(torch.ones(3))) == pytest.approx(0.8 + 0.64 + 0.512)
    assert combined_weight(0.2, 5, 100, "constant") == 0.2
    assert combined_weight(0.2, 99, 100, "sine") == pytest.approx(0.2)
    assert combined_weight(0.2, 49, 100, "sine") == pytest.approx(0.2 * math.sin(math.pi / 4))
    settings = [learning_rate_factor(step, 100, 10) for step in range(100)]
    assert settings[0] == pytest.approx(0.1)
    assert settings[9] == settings[10] == 1.0
    assert settings[55] == pytest.approx(0.5)
    assert settings[-1] < 0.001


def test_each_head_learns_its_own_distance(counting):
    """A planted sequence: head k must say the token k + 2 ahead, and no other, from the label shift alone."""
    heads = new_heads(counting.lm_head, count=3)
    before = {name: value.clone() for name, value in counting.state_dict().items()}
    history = train_medusa_1(counting, heads, _planted, _settings(150))
    assert history[-1]["loss"] < 0.3 < history[0]["loss"]
    tokens, _ = _planted(999)
    best = heads(counting(tokens), counting.lm_head).argmax(-1)
    for k in range(3):
        assert float((best[k, :, 6:] == (tokens[:, 6:] + k + 2) % 13).float().mean()) > 0.95
    assert all(torch.equal(before[name], value) for name, value in counting.state_dict().items())


def test_prompts_and_padding_are_no_labels():
    """Changing what a prompt holds changes no loss that is counted on the response alone."""
    responses = [Response([1, 2, 3], [4, 5, 6, 7]), Response([1], [2, 3])]
    tokens, mask = response_batch(responses, batch=6, length=9, seed=0, step=0)
    for row in range(6):
        assert tokens[row][mask[row]].tolist() in ([4, 5, 6, 7], [2, 3])
    long, mask = response_batch([Response([1] * 50, [4, 5])], batch=1, length=8, seed=0, step=0)
    assert long[0].tolist() == [1] * 6 + [4, 5]
    assert mask[0].tolist() == [False] * 6 + [True] * 2
    logits = torch.randn(2, 6, 9, 13)
    tokens, mask = response_batch(responses, batch=6, length=9, seed=0, step=0)
    changed = torch.where(mask, tokens, torch.full_like(tokens, 9))
    assert torch.equal(head_losses(logits, tokens, mask), head_losses(logits, changed, mask))
    assert torch.equal(
        language_model_loss(logits[0], tokens, mask), language_model_loss(logits[0], changed, mask)
    )


def test_self_distillation_writes_responses_of_the_model():
    model = tiny_llama(dtype=torch.float32)
    prompts = ragged_prompts(5, 13)
    responses = write_responses(model, prompts, max_new_tokens=7, temperature=0.0, seed=0, batch=2)
    expected = generate(model, prompts, GenerationSettings(max_new_tokens=7)).sequences
    assert [r.tokens for r in responses] == [s.token_ids for s in expected]
    assert [r.prompt for r in responses] == prompts
    largest = write_responses(model, prompts, max_new_tokens=2, temperature=0.7, seed=SEED_MAX, batch=2)
    other = write_responses(model, prompts, max_new_tokens=2, temperature=0.7, seed=1, batch=2)
    assert [r.tokens for r in largest] != [r.tokens for r in other]


def test_a_killed_run_goes_on_with_identical_results(tmp_path):
    """Also with dropout: killed at steps 5 and 9 of 12 and saved at every fifth, it ends as at once."""

    def run(name: str, kills: tuple[int, ...]) -> dict[str, torch.Tensor]:
        for kill in (*kills, None):

            def report(step: int, _: dict[str, float], kill: int | None = kill) -> None:
                if step == kill:
                    raise KeyboardInterrupt

            model = random_llama(tiny_config(13, num_hidden_layers=1), seed=0)
            heads = new_heads(model.lm_head, count=2)
            with pytest.raises(KeyboardInterrupt) if kill else nullcontext():
                train_medusa_2(
                    model, heads, _planted, _settings(12, save_every=5), state_path=tmp_path / name,
                    report=report,
                )  # fmt: skip
        return dict(model.state_dict()) | dict(heads.state_dict())

    at_once = run("one", ())
    in_parts = run("two", (5, 9))
    for name, value in at_once.items():
        assert torch.equal(value, in_parts[name]), name
    model = random_llama(tiny_config(13, num_hidden_layers=1), seed=0)
    with pytest.raises(SpecError, match="other settings"):
        train_backbone(model, _planted, _settings(9), state_path=tmp_path / "one")
    (tmp_path / "two").write_bytes(b"broken")
    with pytest.raises(SpecError, match="not a readable training state"):
        train_backbone(model, _planted, _settings(12), state_path=tmp_path / "two")


def test_adapter_is_lora_on_every_linear_layer_and_merges(counting):
    model = random_llama(tiny_config(13, num_hidden_layers=1), seed=0)
    model.load_state_dict(counting.state_dict())
    tokens, _ = _planted(0)
    plain = model(tokens)
    add_adapter(model)
    trained = [name for name, p in model.named_parameters() if p.requires_grad]
    assert len(trained) == 2 * 8  # A and B of q, k, v, o, gate, up, down and the head
    assert torch.allclose(model.eval()(tokens), plain)  # B starts at zero
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.normal_(0.0, 0.05)
    adapted = model(tokens)
    assert not torch.allclose(adapted, plain, atol=1e-3)
    with adapter_off(model):
        assert torch.allclose(model(tokens), plain)
    merge_adapter(model)
    assert torch.allclose(model(tokens), adapted, atol=1e-5)
    assert set(model.state_dict()) == set(counting.state_dict())


def test_distillation_loss_is_zero_at_the_teacher_and_trains_the_heads_alone():
    """KL to the model with its adapter off: at the start there is nothing for the backbone to learn."""
    logits = torch.randn(2, 5, 7)
    tokens, mask = torch.randint(0, 7, (2, 5)), torch.ones(2, 5, dtype=torch.bool)
    assert float(distillation_loss(logits, logits, tokens, mask)) == pytest.approx(0.0, abs=1e-6)
    assert float(distillation_loss(logits + torch.randn(2, 5, 7), logits, tokens, mask)) > 0.01
    model = random_llama(tiny_config(13, num_hidden_layers=1), seed=0)
    heads = new_heads(model.lm_head, count=2)
    history = train_medusa_2(
        model, heads, _planted, _settings(40, 2e-3), distil=True, lambda_0=1.0, schedule="sine"
    )
    assert history[0]["lm_loss"] == pytest.approx(0.0, abs=1e-6)
    assert history[-1]["head_0_loss"] < history[0]["head_0_loss"]


def test_head_counts_have_their_own_labels():
    """Head k has k labels fewer than head 0; dividing all by one number would bias later heads down."""
    model = tiny_llama(dtype=torch.float32)
    heads = MedusaHeads(count=3, layers=1, hidden=32, vocab=13)
    text = ragged_prompts(1, 13, seed=4)[0] + list(range(13))
    counts = head_counts(model, heads, text, first=2, ranks=13)
    positions = len(text) - 2
    assert counts.labels.tolist() == [positions - 2, positions - 3, positions - 4]
    assert counts.hits.sum(1).tolist() == counts.labels.tolist()  # 13 ranks of 13 tokens: always one is right
    accuracy = counts.accuracy()
    assert accuracy.accuracy.sum(1).tolist() == pytest.approx([1.0] * 3)


def test_counts_on_own_text_match_what_steps_accept(counting):
    """A rank-0 chain accepts its first guess as often as head 0 is right on the target's own text."""
    heads = new_heads(counting.lm_head, count=2)
    train_medusa_1(counting, heads, _planted, _settings(100))
    run = generate(counting, [[1, 2, 3], [5, 6]], GenerationSettings(max_new_tokens=30))
    accuracy = total_counts(counts_of_texts(counting, heads, run.sequences, ranks=3)).accuracy()
    assert accuracy.accuracy[0, 0] > 0.9


def test_labels_of_one_text_count_as_they_vary_between_texts():
    """Independent labels have a design effect near 1; texts right or wrong as a whole, near their size."""
    generator = torch.Generator().manual_seed(0)

    def effect(chance_of_text: torch.Tensor, size: int = 100) -> float:
        each = []
        for chance in chance_of_text.tolist():
            right = int((torch.rand(size, generator=generator) < chance).sum())
            each.append(HeadCounts(torch.tensor([[right, (size - right) // 2]]), torch.tensor([size])))
        return design_effect(each, (2,))

    alike = effect(torch.full((200,), 0.6))
    apart = effect((torch.rand(200, generator=generator) < 0.6).float())
    assert 1.0 <= alike < 1.3
    assert 70.0 < apart < 130.0


def test_repeated_ngrams_show_loops_and_windows_depend_on_seed_and_step_alone():
    assert repeated_ngram_share([1, 2, 3, 4] * 10) == 1 - 4 / 37  # four of 37 runs of four differ
    assert repeated_ngram_share([1, 2, 1, 2, 1], size=2) == 0.5
    assert repeated_ngram_share(list(range(50))) == 0.0
    assert repeated_ngram_share([1, 2]) == 0.0
    stream = torch.arange(1000)
    one = window_batch(stream, batch=4, length=10, seed=1, step=7)
    assert torch.equal(one, window_batch(stream, batch=4, length=10, seed=1, step=7))
    assert not torch.equal(one, window_batch(stream, batch=4, length=10, seed=1, step=8))
    assert torch.equal(one - one[:, :1], torch.arange(10).expand(4, 10))


def test_recipes_refuse_what_cannot_work_and_diverging_training_stops(tmp_path):
    with pytest.raises(UsageError, match="--checkpoint"):
        run_recipe(Recipe(method="medusa-1", save=tmp_path / "x"))
    with pytest.raises(UsageError, match="own text"):
        run_recipe(Recipe(method="backbone", data="self", save=tmp_path / "x"))
    with pytest.raises(UsageError, match="steps 0"):
        run_recipe(Recipe(method="backbone", steps=0, save=tmp_path / "x"))
    (tmp_path / "file").touch()
    with pytest.raises(OutputError, match="choose another --save"):  # before a text is read: there is none
        run_recipe(Recipe(method="backbone", save=tmp_path / "file" / "x", text_folder=tmp_path / "none"))
    model = random_llama(tiny_config(13, num_hidden_layers=1), seed=0)
    model.model.norm.weight.data.fill_(float("inf"))
    with pytest.raises(DataError, match="lower --learning-rate"):
        train_backbone(model, _planted, _settings(3))


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


def test_what_no_training_can_come_of_is_stated_before_its_first_step(library, tmp_path):
    backbone = Recipe(method="backbone", save=tmp_path / "out", text_folder=library, steps=1, vocab=270)
    for changes, error, words in (
        ({"attention_heads": 4, "kv_heads": 3}, UsageError, "no multiple of --kv-heads 3"),
        ({"hidden": 9, "attention_heads": 3, "kv_heads": 1}, UsageError, "heads 3 wide"),
        ({"hidden": 8, "attention_heads": 16}, UsageError, "heads 0 wide"),
        ({"hidden": 33, "attention_heads": 4}, UsageError, "no multiple of --attention-heads 4"),
        ({"length": 10**6}, DataError, "one text of a batch 1000000"),
    ):
        with one_line(error, words):
            run_recipe(replace(backbone, **changes), report=_never)
    for path in library.glob("*.py"):  # too short to measure the held-out loss on
        (tmp_path / "short").mkdir(exist_ok=True)
        (tmp_path / "short" / path.name).write_text(path.read_text()[:220])
    with one_line(DataError, "has more than 256 tokens"):
        run_recipe(replace(backbone, text_folder=tmp_path / "short", length=16), report=_never)
    assert not list(tmp_path.glob("out*"))


def _never(step: int, record: dict[str, float]) -> None:
    raise AssertionError(step, record)


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


def test_a_text_that_is_too_long_loses_its_start_and_its_response_alone_is_learned_from():
    whole = [Response([1, 2, 3], [4, 5])]
    for length, kept, first in ((4, [2, 3, 4, 5], 2), (5, [1, 2, 3, 4, 5], 3), (1, [5], 0)):
        tokens, mask = response_batch(whole, batch=2, length=length, seed=1, step=0)
        assert tokens.tolist() == [kept, kept]
        assert mask.tolist() == [[place >= first for place in range(length)]] * 2
    tokens, mask = response_batch(whole, batch=1, length=7, seed=1, step=0)
    assert tokens.tolist() == [[1, 2, 3, 4, 5, 0, 0]]
    assert mask.tolist() == [[False, False, False, True, True, False, False]]
