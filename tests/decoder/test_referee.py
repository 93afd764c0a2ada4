"""transformers as the referee: equal texts on 128 prompts, equal counts of forwards on every eighth."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from medusa_sim.data import shipped_dir
from medusa_sim.decoder.checkpoint import load_checkpoint
from medusa_sim.decoder.draft import NgramDrafter, TreeDrafter
from medusa_sim.decoder.generate import Drafter, Generation, GenerationSettings, generate
from medusa_sim.decoder.prompts import load_tokenizer
from medusa_sim.decoder.training.corpus import heldout_prompts, read_corpus

transformers = pytest.importorskip("transformers")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
PROMPTS, PROMPT_TOKENS, NEW_TOKENS = 128, 48, 24


def _folder(name: str) -> Path:
    return shipped_dir() / "profiles" / "checkpoints" / name


def _theirs(name: str) -> Any:
    model = transformers.AutoModelForCausalLM.from_pretrained(_folder(name), dtype=torch.float32).eval()
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = 0
    return model


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    tokenizer = load_tokenizer(_folder("python-stdlib-medusa-1"))
    return heldout_prompts(
        read_corpus().heldout, tokenizer, count=PROMPTS, prompt_tokens=PROMPT_TOKENS, seed=11
    )


@pytest.fixture(scope="module")
def target() -> Any:
    return _theirs("python-stdlib-medusa-1")


@pytest.fixture(scope="module")
def plain(target: Any, prompts: list[list[int]]) -> list[list[int]]:
    """transformers' greedy continuation of every prompt."""
    with torch.inference_mode():
        out = target.generate(torch.tensor(prompts), max_new_tokens=NEW_TOKENS, do_sample=False)
    return [row[PROMPT_TOKENS:] for row in out.tolist()]


def _ours(prompts: Sequence[Sequence[int]], drafter: Drafter | None = None) -> list[Generation]:
    model = load_checkpoint(_folder("python-stdlib-medusa-1")).model
    settings = GenerationSettings(max_new_tokens=NEW_TOKENS, stop_at_end_of_text=False)
    return generate(model, prompts, settings, drafter).sequences


def test_plain_texts_are_equal(prompts, plain):
    assert [s.token_ids for s in _ours(prompts)] == plain


def _chain(length: int) -> Drafter:
    draft = load_checkpoint(_folder("python-stdlib-draft")).model
    return TreeDrafter(draft, [1] * length, temperature=0.0, independent=True, rule="multi-round")


METHODS: dict[str, tuple[Callable[[], Drafter], dict[str, Any]]] = {
    "assisted-2": (lambda: _chain(2), {"assistant": 2}),
    "assisted-4": (lambda: _chain(4), {"assistant": 4}),
    "assisted-7": (lambda: _chain(7), {"assistant": 7}),
    "prompt-lookup-5": (
        lambda: NgramDrafter(length=5, ngram_max=3),
        {"prompt_lookup_num_tokens": 5, "max_matching_ngram_size": 3},
    ),
}


@pytest.mark.parametrize("name", METHODS)
def test_texts_and_forwards_of_the_target_are_equal(name, target, prompts, plain):
    """Theirs starts on prompt and first token: its first call has no root. Ours counts steps after it."""
    make, options = METHODS[name]
    ours = _ours(prompts, make())
    assert [s.token_ids for s in ours] == plain
    given = {key: value for key, value in options.items() if key != "assistant"}
    if "assistant" in options:
        assistant = _theirs("python-stdlib-draft")
        assistant.generation_config.num_assistant_tokens = options["assistant"]
        assistant.generation_config.num_assistant_tokens_schedule = "constant"
        assistant.generation_config.assistant_confidence_threshold = 0.0
        given["assistant_model"] = assistant
    forwards = 0
    forward = target.forward

    def counted(*arguments: Any, **named: Any) -> Any:
        nonlocal forwards
        forwards += 1
        return forward(*arguments, **named)

    target.forward = counted
    try:
        for prompt, text, mine in list(zip(prompts, plain, ours, strict=True))[::8]:
            before = forwards
            begun = torch.tensor([prompt + text[:1]])
            with torch.inference_mode():
                out = target.generate(begun, max_new_tokens=NEW_TOKENS - 1, do_sample=False, **given)
            assert out[0].tolist() == prompt + text
            assert forwards - before == mine.steps
    finally:
        target.forward = forward
