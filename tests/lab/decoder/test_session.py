"""From a request to an answer: prompts as their tokenizer has them, trees that fit, times of steps alone."""

import json
import shutil
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from decoder_models import noisy_copy, tiny_config, tiny_heads, tiny_llama
from one_line import one_line
from tokenizers import Tokenizer, processors

from medusa_sim.errors import SpecError, UsageError
from medusa_sim.lab.decoder import fixed_shapes, session
from medusa_sim.lab.decoder.arguments import Request
from medusa_sim.lab.decoder.cache import KVCache
from medusa_sim.lab.decoder.checkpoint import load_checkpoint
from medusa_sim.lab.decoder.checkpoint_folder import save_checkpoint
from medusa_sim.lab.decoder.config import config_from_hf, read_config
from medusa_sim.lab.decoder.generate import Forward, generate
from medusa_sim.lab.decoder.generation import GenerationSettings
from medusa_sim.lab.decoder.methods import FOREIGN_PROFILE
from medusa_sim.lab.decoder.model import Llama, random_llama
from medusa_sim.lab.decoder.prompts import chat_prompt, first_allowed, read_prompt
from medusa_sim.lab.decoder.session import decoded
from medusa_sim.lab.decoder.tokenizer import encode, load_tokenizer, train_tokenizer
from medusa_sim.lab.decoder.trials import LEAST_GAIN, Sizing, sizing

pytestmark = pytest.mark.filterwarnings("ignore")
TEXT = "def f(x):\n    return x + 1\n\n\nclass A:\n    pass\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A tiny target with heads, its draft, and a draft of another vocabulary of the same size."""
    tokenizer = train_tokenizer([TEXT] * 5, vocab=270).to_str()
    other = train_tokenizer(["while True: yield lambda z: z"] * 5, vocab=270).to_str()
    model = random_llama(tiny_config(270, num_hidden_layers=1, eos_token_ids=(0,)), seed=3, std=0.3)
    heads = tiny_heads(model, count=4)
    save_checkpoint(tmp_path / "target", model, heads, dtype=torch.float32, tokenizer_json=tokenizer)
    draft = noisy_copy(model)
    save_checkpoint(tmp_path / "draft", draft, dtype=torch.float32, tokenizer_json=tokenizer)
    save_checkpoint(tmp_path / "other", draft, dtype=torch.float32, tokenizer_json=other)
    return tmp_path


def _request(folder: Path, **changes: object) -> Request:
    values: dict[str, object] = {
        "texts": ["def f"],
        "checkpoint": str(folder / "target"),
        "max_new_tokens": 6,
        "temperature": 0.0,
        "tree": "2-1",
    }
    return Request(**(values | changes))


def _with_bos(folder: Path) -> Tokenizer:
    tokenizer = load_tokenizer(folder)
    end = tokenizer.token_to_id("<|endoftext|>")
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<|endoftext|> $A", special_tokens=[("<|endoftext|>", end)]
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    return load_tokenizer(folder)


def test_the_begin_of_text_token_is_added_as_the_tokenizer_says(folder):
    plain = encode(load_tokenizer(folder / "target"), "def f")
    tokenizer = _with_bos(folder / "target")
    assert encode(tokenizer, "def f") == [0, *plain]
    assert encode(tokenizer, "def f", special_tokens=False) == plain
    assert read_prompt("def f", tokenizer, folder).tokens == [0, *plain]
    with one_line(UsageError, "not UTF-8 text"):
        encode(tokenizer, "def \udcff")  # as bytes that are no text arrive from a shell
    row = decoded(_request(folder)).records[0]
    model = load_checkpoint(folder / "target").model
    settings = GenerationSettings(max_new_tokens=6)
    assert row["token_ids"] == generate(model, [[0, *plain]], settings).sequences[0].token_ids


def test_a_chat_template_is_rendered_and_refused_in_one_line(folder):
    target = folder / "target"
    with pytest.raises(SpecError, match="no chat_template"):
        chat_prompt(target, "hello")
    template = (
        "{{ bos_token }}{% for m in messages %}[{{ m['role'] }}] {{ m['content'] }}{% endfor %}"
        "{% if add_generation_prompt %} [assistant]{% endif %}"
    )
    config = {"chat_template": template, "bos_token": {"content": "<s>"}}
    (target / "tokenizer_config.json").write_text(json.dumps(config))
    assert chat_prompt(target, "hello") == "<s>[user] hello [assistant]"
    tokenizer = _with_bos(target)
    expected = encode(tokenizer, "<s>[user] hello [assistant]", special_tokens=False)
    assert read_prompt("hello", tokenizer, target, chat=True).tokens == expected
    endless = "{% macro again() %}{{ again() }}{% endmacro %}{{ again() }}"
    for broken in ("{{ raise_exception('no') }}", "{% if %}", "{{ 1 / 0 }}", endless):
        (target / "tokenizer_config.json").write_text(json.dumps({"chat_template": broken}))
        with one_line(SpecError, match="cannot be rendered"):
            chat_prompt(target, "hello")
    (target / "tokenizer_config.json").write_text(json.dumps({"chat_template": [1, {"name": "other"}]}))
    with one_line(SpecError, match="no chat_template"):
        chat_prompt(target, "hello")


def test_end_tokens_and_head_repositories_are_read_from_configs(folder, tmp_path):
    target = folder / "target"
    assert read_config(target).eos_token_ids == (0,)
    (target / "generation_config.json").write_text(json.dumps({"eos_token_id": [0, 5, 7]}))
    assert read_config(target).eos_token_ids == (0, 5, 7)
    (target / "generation_config.json").write_text(json.dumps({"temperature": 0.6}))
    assert read_config(target).eos_token_ids == (0,)
    (target / "generation_config.json").write_text("[")
    with pytest.raises(SpecError, match="generation_config"):
        read_config(target)
    (tmp_path / "config.json").write_text(json.dumps({"medusa_num_heads": 2, "base_model_name_or_path": "x"}))
    with pytest.raises(SpecError, match="--checkpoint BASE --head-file"):
        read_config(tmp_path)


def test_a_foreign_checkpoint_never_takes_the_shipped_accuracies_silently(folder):
    answer = decoded(_request(folder, tree="4"))
    assert len(answer.notes) == 1
    assert FOREIGN_PROFILE in answer.notes[0]
    given = decoded(_request(folder, tree="4", acceptance="python-stdlib-medusa-1"))
    assert given.notes == []
    shutil.copytree(folder / "target", folder / "python-stdlib-medusa-1")
    own = decoded(_request(folder, tree="4", checkpoint=str(folder / "python-stdlib-medusa-1")))
    assert own.notes == []
    with pytest.raises(SpecError, match="knows no heads"):
        decoded(_request(folder, tree="4", acceptance="paper-fig21"))
    assert decoded(_request(folder)).notes == []  # a branching needs no accuracies


def test_threads_of_the_caller_stay_as_they_were(folder, monkeypatch):
    set_to = []
    monkeypatch.setattr(torch, "get_num_threads", lambda: 7)
    monkeypatch.setattr(torch, "set_num_threads", set_to.append)
    decoded(_request(folder, threads=3))
    assert set_to == [3, 7]


def test_a_draft_model_with_other_tokens_is_refused(folder):
    request = _request(folder, method="sd", tree="2", draft=str(folder / "draft"))
    assert decoded(request).records[0]["method"] == "sd"
    with pytest.raises(UsageError, match="one tokenizer"):
        decoded(_request(folder, method="sd", tree="2", draft=str(folder / "other")))


def test_a_prompt_lends_its_last_space_to_the_first_word(folder):
    tokenizer = load_tokenizer(folder / "target")
    lent = read_prompt("def ", tokenizer, folder)
    assert lent.lends_space
    assert lent.tokens == encode(tokenizer, "def")
    assert read_prompt("def ", tokenizer, folder, keep_space=True).tokens == encode(tokenizer, "def ")
    for text in ("def", " ", "x  ", "x\n"):
        assert not read_prompt(text, tokenizer, folder).lends_space
    allowed = first_allowed([lent, read_prompt("x", tokenizer, folder)], tokenizer, 270)
    assert bool(allowed[1].all())
    starts = [tokenizer.decode([token]) for token in torch.nonzero(allowed[0]).flatten().tolist()]
    assert starts
    assert all(text.startswith(" ") for text in starts)
    answer = decoded(_request(folder, texts=["def "], temperature=0.8))
    for row in answer.records:
        whole = tokenizer.decode(lent.tokens + row["token_ids"])
        assert whole == "def " + row["text"]


class _Slow:
    """A forward that takes long to be made ready, as a compiled one does."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self.calls = seconds, 0

    def __call__(self, model: Llama, cache: KVCache) -> fixed_shapes.FixedForward:
        return fixed_shapes.FixedForward(model, cache, self._made)

    def _made(self, forward: Forward, _: tuple[torch.Tensor, ...]) -> Forward:
        def run(*inputs: torch.Tensor) -> torch.Tensor:
            self.calls += 1
            return forward(*inputs)

        time.sleep(self.seconds)
        return run


def test_times_are_of_steps_alone(folder, monkeypatch):
    """Capture happens on the run's own shapes, and no step pays for them."""
    slow = _Slow(0.4)
    model = tiny_llama(dtype=torch.float32)
    settings = GenerationSettings(max_new_tokens=5)
    run = generate(model, [[1, 2]], settings, make_forward=slow)
    assert run.setup_s >= 0.4
    assert run.decode_s < 0.3
    assert slow.calls == run.steps + 1
    assert run.sequences[0].token_ids == generate(model, [[1, 2]], settings).sequences[0].token_ids
    monkeypatch.setitem(fixed_shapes.FORWARDS, "static", _Slow(0.2))
    for row in decoded(_request(folder, launch="static")).records:
        assert row["setup_s"] >= 0.2
        assert row["decode_s"] < 0.2
        assert row["tokens_per_s"] == pytest.approx(5 / row["decode_s"])


def test_the_tree_is_the_one_with_the_best_expected_gain():
    found = Sizing(step_s={1: 1.0, 2: 1.2, 4: 1.5, 8: 2.5}, tokens_per_step={1: 1.0, 2: 1.4, 4: 1.9, 8: 2.4})
    assert found.best == 4
    assert found.gain(4) == pytest.approx(1.9 / 1.5)
    dear = Sizing(step_s={1: 1.0, 2: 1.5, 4: 2.0}, tokens_per_step={1: 1.0, 2: 1.4, 4: 1.9})
    assert dear.best == 1
    assert dear.best_tree == 4
    assert dear.gain(4) < LEAST_GAIN


def test_sizing_times_plain_decoding_and_a_tree_however_short_the_budget(folder):
    target = load_checkpoint(folder / "target")
    accuracy = torch.full((4, 8), 0.1, dtype=torch.float64).numpy()
    from medusa_sim.acceptance.heads import HeadAccuracy

    heads = HeadAccuracy.checked(accuracy)
    settings = GenerationSettings(max_new_tokens=20)
    short = sizing(target, heads, [[1, 2, 3]], settings, budget_s=0.0)
    assert sorted(short.step_s) == [1, 4]
    whole = sizing(target, heads, [[1, 2, 3]], settings, budget_s=3.0)
    assert set(whole.step_s) == {1, 2, 3, 4, 6, 8, 16}
    assert whole.tokens_per_step[1] == 1.0
    with one_line(UsageError, "no step is left"):
        sizing(target, heads, [[1, 2, 3]], replace(settings, max_new_tokens=1))
    auto = decoded(_request(folder, tree=None, acceptance="medusa1-vicuna-7b"))
    assert auto.headline
    if auto.gain is not None and auto.gain < 1.0:
        assert auto.records[0]["method"] == "ar"


@pytest.mark.parametrize(("tree", "method"), [(None, "ar"), ("2-1", "medusa")])
def test_one_new_token_comes_from_the_prompt_and_has_no_step(folder, tree, method):
    asked = {"max_new_tokens": 1, "tree": tree, "acceptance": "medusa1-vicuna-7b"}
    answer = decoded(_request(folder, **asked))
    row = answer.records[0]
    assert (row["method"], row["new_tokens"], row["steps"], row["tokens_per_step"]) == (method, 1, 0, None)
    assert answer.gain is None
    prompt = encode(load_tokenizer(folder / "target"), "def f")
    model = load_checkpoint(folder / "target").model
    assert row["token_ids"] == [int(model.logits(model(torch.tensor([prompt])))[0, -1].argmax())]


def test_a_draft_model_is_packed_with_its_target(folder, monkeypatch):
    packed: list[object] = []
    monkeypatch.setattr(session, "pack", lambda *modules: packed.extend(modules))
    decoded(_request(folder, method="sd", tree="2", draft=str(folder / "draft"), packed=True))
    assert [type(module).__name__ for module in packed] == ["Llama", "MedusaHeads", "Llama"]


def test_seeds_and_unknown_rope_settings_are_refused():
    model = tiny_llama(dtype=torch.float32)
    with pytest.raises(UsageError, match="seed is"):
        generate(model, [[1]], GenerationSettings(max_new_tokens=1, seed=99999999999999))
    values = tiny_config(13).to_hf()
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
    for key, value in (("truncate", False), ("mscale", 1.0), ("mscale_all_dim", 0.5), ("other", 1)):
        with pytest.raises(SpecError, match=f"rope_scaling.{key}"):
            config_from_hf(values | {"rope_scaling": yarn | {key: value}}, "config.json")
    accepted = yarn | {"truncate": True, "attention_factor": 1.2}
    assert config_from_hf(values | {"rope_scaling": accepted}, "config.json").rope_scaling.factor == 4.0
