"""At temperature 0 every method emits what autoregressive decoding emits, token for token."""

import json
import math
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from decoder_models import noisy_copy, ragged_prompts, tiny_heads, tiny_llama

from medusa_sim.acceptance.heads import HeadAccuracy, optimal_order
from medusa_sim.acceptance.tree import CandidateTree
from medusa_sim.data import shipped_dir
from medusa_sim.errors import UsageError
from medusa_sim.lab.decoder.cache import KVCache
from medusa_sim.lab.decoder.candidates import RejectionRule
from medusa_sim.lab.decoder.checkpoint import load_checkpoint
from medusa_sim.lab.decoder.drafter import Drafter
from medusa_sim.lab.decoder.fixed_shapes import (
    FixedForward,
    graphed_forward,
    scanned_slots,
    static_forward,
)
from medusa_sim.lab.decoder.generate import generate
from medusa_sim.lab.decoder.generation import Generation, GenerationSettings
from medusa_sim.lab.decoder.medusa_drafter import MedusaDrafter
from medusa_sim.lab.decoder.model import Llama
from medusa_sim.lab.decoder.model_drafter import BeamDrafter, TreeDrafter
from medusa_sim.lab.decoder.ngram_drafter import NgramDrafter
from medusa_sim.lab.decoder.tokenizer import load_tokenizer
from medusa_sim.lab.decoder.training.corpus import file_windows, read_corpus

VOCAB, NEW_TOKENS = 31, 24
TIE = 1e-4
"""fp32: a divergence is a tie if top-1 and top-2 logits are nearer than this."""
HALF_BOUND = {torch.bfloat16: 0.25, torch.float16: 0.03}
"""Logits here are of size 4 to 8, where one bf16 step is 2^-5 to 2^-6 and one fp16 step 2^-8 to 2^-9:
eight roundings. A divergence in half precision must start at a smaller gap."""


def _own_trees() -> dict[str, CandidateTree]:
    steep = HeadAccuracy.checked([[0.5 * 0.5**rank for rank in range(10)]] * 4)
    flat = HeadAccuracy.checked([[0.09] * 10, [0.05] * 10, [0.04] * 10, [0.03] * 10])
    return {
        "optimal-64-steep": optimal_order(steep, 64).tree(64),
        "optimal-64-flat": optimal_order(flat, 64).tree(64),
        "cartesian-4-2-2": CandidateTree.cartesian([4, 2, 2]),
        "chain-4": CandidateTree.chain(4),
        "root": CandidateTree.chain(0),
        "ragged": CandidateTree.from_paths([[0], [0, 0], [0, 0, 0], [0, 0, 0, 0], [1], [5], [5, 1]]),
    }


@torch.inference_mode()
def _gap(model: Llama, text: Sequence[int]) -> float:
    """Distance of the two best logits after `text`, in the model's own precision."""
    top = model.logits(model(torch.tensor([list(text)])))[0, -1].double().topk(2).values
    return float(top[0] - top[1])


def _ties(model: Llama, expected: Sequence[Generation], found: Sequence[Generation], bound: float) -> int:
    """Sequences that differ, each at a gap below `bound`."""
    ties = 0
    for one, other in zip(expected, found, strict=True):
        if one.token_ids == other.token_ids:
            continue
        pairs = zip(one.token_ids, other.token_ids, strict=True)
        first = next(i for i, (a, b) in enumerate(pairs) if a != b)
        gap = _gap(model, one.prompt + one.token_ids[:first])
        assert gap < bound, (first, gap)
        ties += 1
    return ties


def _both(
    model: Llama, prompts: list[list[int]], drafter: Drafter, bound: float | None = None
) -> tuple[int, int]:
    """Texts with the drafter and without it: (texts that part at a tie, drafts that were accepted)."""
    if bound is None:
        bound = 0.0 if model.dtype == torch.float64 else TIE
    settings = GenerationSettings(max_new_tokens=NEW_TOKENS)
    found = generate(model, prompts, settings, drafter).sequences
    ties = _ties(model, generate(model, prompts, settings).sequences, found, bound)
    return ties, sum(sum(text.accepted_lengths) for text in found)


def test_autoregressive_decoding_is_the_argmax_of_full_forwards():
    """The reference of all others, against no cache at all."""
    model = tiny_llama(VOCAB)
    prompts = ragged_prompts(6, VOCAB)
    run = generate(model, prompts, GenerationSettings(max_new_tokens=12))
    for prompt, sequence in zip(prompts, run.sequences, strict=True):
        text = list(prompt)
        for _ in range(12):
            text.append(int(model.logits(model(torch.tensor([text])))[0, -1].argmax()))
        assert sequence.token_ids == text[len(prompt) :]
        assert sequence.tokens_per_step == 1.0


@pytest.mark.parametrize("batch", [1, 12])
@pytest.mark.parametrize("name", _own_trees())
def test_medusa_is_lossless_on_own_trees(name, batch):
    """fp64 exactly, fp32 but for ties. 12 prompts each: 144 over the trees and batches, in each precision."""
    for dtype in (torch.float64, torch.float32):
        model = tiny_llama(VOCAB, dtype=dtype)
        drafter = MedusaDrafter(model, tiny_heads(model), _own_trees()[name])
        prompts = ragged_prompts(12, VOCAB, seed=batch)
        for start in range(0, 12, batch):
            assert _both(model, prompts[start : start + batch], drafter)[0] <= 1


@pytest.mark.slow
def test_medusa_is_lossless_on_every_public_tree(shared_data):
    """Nine public 64-candidate trees, 12 ragged prompts each (108), fp64 exactly and fp32 but for ties."""
    trees = json.loads((shared_data / "acceptance" / "medusa_trees.json").read_text())
    assert len(trees) == 9
    counts = np.zeros(2)
    for dtype in (torch.float64, torch.float32):
        model = tiny_llama(VOCAB, dtype=dtype)
        heads = tiny_heads(model)
        for i, paths in enumerate(trees.values()):
            drafter = MedusaDrafter(model, heads, CandidateTree.from_paths(paths))
            counts += _both(model, ragged_prompts(12, VOCAB, seed=i), drafter)
    assert counts[0] <= 2
    assert counts[1] > 500  # drafts were accepted, or the test would show nothing


DRAFTS: dict[str, Callable[[Llama], Drafter]] = {
    "medusa": lambda m: MedusaDrafter(m, tiny_heads(m), CandidateTree.cartesian([4, 2, 2])),
    "sd": lambda m: _tree(m, [1] * 4, "multi-round"),
    "specinfer": lambda m: _tree(m, [3, 2, 1], "multi-round"),
    "spectr": lambda m: _tree(m, [4, 1, 1], "k-seq"),
    "rsd-c": lambda m: _tree(m, [2, 2, 2], "recursive"),
    "rsd-s": lambda m: BeamDrafter(noisy_copy(m), width=4, depth=3, temperature=0.0),
    "rsd-s-wide": lambda m: BeamDrafter(noisy_copy(m), width=40, depth=2, temperature=0.0),
    "ngram": lambda _: NgramDrafter(length=4),
}


def _tree(model: Llama, branching: list[int], rule: RejectionRule) -> Drafter:
    draft = noisy_copy(model)
    return TreeDrafter(draft, branching, temperature=0.0, rejection_rule=rule)


ACCEPTED = {
    ("medusa", 0.0): ([13, 10, 11, 11, 11, 10], 12), ("medusa", 0.9): ([11, 9, 12, 12, 10, 12], 12),
    ("sd", 0.0): ([11, 11, 13, 13, 13, 12], 5), ("sd", 0.9): ([7, 13, 12, 10, 8, 12], 16),
    ("specinfer", 0.0): ([10, 10, 12, 12, 11, 11], 12), ("specinfer", 0.9): ([10, 8, 11, 9, 8, 9], 23),
    ("spectr", 0.0): ([10, 9, 12, 11, 10, 10], 16), ("spectr", 0.9): ([10, 11, 8, 8, 8, 9], 24),
    ("rsd-c", 0.0): ([10, 11, 12, 13, 11, 12], 9), ("rsd-c", 0.9): ([6, 6, 6, 6, 9, 9], 36),
    ("rsd-s", 0.0): ([10, 10, 12, 11, 10, 9], 16), ("rsd-s", 0.9): ([8, 9, 9, 8, 7, 7], 30),
    ("rsd-s-wide", 0.0): ([6, 6, 6, 7, 6, 6], 41), ("rsd-s-wide", 0.9): ([6] * 6, 42),
    ("ngram", 0.0): ([10, 13, 12, 13, 12, 13], 5), ("ngram", 0.9): ([11, 13, 13, 13, 13, 13], 2),
}  # fmt: skip
"""Steps of six texts of 14 tokens, and drafts that were accepted."""


@pytest.mark.parametrize(("method", "temperature"), ACCEPTED)
def test_seeded_runs_take_their_steps(method, temperature):
    model = tiny_llama(VOCAB)
    drafter = DRAFTS[method](model)
    if hasattr(drafter, "temperature"):
        drafter.temperature = temperature
    settings = GenerationSettings(max_new_tokens=14, temperature=temperature, seed=5)
    texts = generate(model, ragged_prompts(6, VOCAB, seed=3), settings, drafter).sequences
    steps, accepted = ACCEPTED[method, temperature]
    assert [text.steps for text in texts] == steps
    assert sum(sum(text.accepted_lengths) for text in texts) == accepted


@pytest.mark.parametrize("method", DRAFTS)
def test_draft_methods_are_lossless(method):
    """20 ragged prompts in one batch and 4 alone, fp64 exactly and fp32 but for ties."""
    for dtype in (torch.float64, torch.float32):
        model = tiny_llama(VOCAB, dtype=dtype)
        drafter = DRAFTS[method](model)
        prompts = ragged_prompts(24, VOCAB, seed=5)
        for group in (prompts[:20], *([prompt] for prompt in prompts[20:])):
            ties, accepted = _both(model, group, drafter)
            assert ties <= 1
            assert accepted > 0 or len(group) == 1


@pytest.mark.parametrize("dtype", HALF_BOUND)
@pytest.mark.parametrize("method", ["medusa", "rsd-s", "sd"])
def test_half_precision_diverges_at_near_ties_only(method, dtype):
    model = tiny_llama(VOCAB, dtype=dtype)
    _both(model, ragged_prompts(24, VOCAB, seed=8), DRAFTS[method](model), HALF_BOUND[dtype])


@pytest.mark.parametrize("method", DRAFTS)
def test_texts_end_exactly_at_end_of_text_and_at_the_limit(method):
    """With frequent end tokens: the text is the unlimited one, cut right behind its first end token."""
    plain = tiny_llama(VOCAB)
    ending = tiny_llama(VOCAB, eos_token_ids=(3, 7, 11, 19))
    prompts = ragged_prompts(16, VOCAB, seed=6)
    long = generate(plain, prompts, GenerationSettings(max_new_tokens=24)).sequences
    for model, new_tokens in ((ending, 24), (ending, 7), (plain, 7), (plain, 1)):
        settings = GenerationSettings(max_new_tokens=new_tokens)
        found = generate(model, prompts, settings, DRAFTS[method](model)).sequences
        for whole, sequence in zip(long, found, strict=True):
            expected = whole.token_ids[:new_tokens]
            stops = [i for i, token in enumerate(expected) if token in model.config.eos_token_ids]
            assert sequence.token_ids == expected[: stops[0] + 1 if stops else None]
            assert len(sequence.token_ids) == 1 + sequence.steps + sum(sequence.accepted_lengths)
    unstopped = GenerationSettings(max_new_tokens=24, stop_at_end_of_text=False)
    same = generate(ending, prompts, unstopped).sequences
    assert [s.token_ids for s in same] == [s.token_ids for s in long]


def test_a_text_does_not_depend_on_its_batch():
    """Also when sampled: every sequence has its own random numbers (compared at the same place)."""
    model = tiny_llama(VOCAB)
    drafter = BeamDrafter(noisy_copy(model), width=3, depth=2, temperature=0.9)
    prompts = ragged_prompts(5, VOCAB, seed=2)
    settings = GenerationSettings(max_new_tokens=16, temperature=0.9, seed=4)
    together = generate(model, prompts, settings, drafter).sequences
    alone = generate(model, prompts[:1], settings, drafter).sequences
    assert together[0].token_ids == alone[0].token_ids


FORWARDS = [
    static_forward,
    pytest.param(graphed_forward, marks=[pytest.mark.cuda]),
]


@pytest.mark.parametrize("make_forward", FORWARDS)
def test_steps_of_fixed_shapes_emit_the_same_text(make_forward):
    """What graphs replay."""
    is_graph = make_forward is graphed_forward
    model = tiny_llama(VOCAB)
    drafter = MedusaDrafter(model, tiny_heads(model), CandidateTree.cartesian([3, 2]))
    asked = ragged_prompts(3, VOCAB), GenerationSettings(max_new_tokens=10)
    if is_graph and not torch.cuda.is_available():
        with pytest.raises(UsageError, match="CUDA"):
            generate(model, *asked, drafter, make_forward=make_forward)
        pytest.skip("no CUDA device")
    if is_graph:
        model = model.to("cuda")
        drafter = MedusaDrafter(model, tiny_heads(model).to("cuda"), drafter.tree)
    eager = generate(model, *asked, drafter).sequences
    fixed = generate(model, *asked, drafter, make_forward=make_forward).sequences
    assert [s.token_ids for s in fixed] == [s.token_ids for s in eager]


def test_a_step_of_fixed_shape_scans_what_the_text_needs(monkeypatch):
    """The same text, at most twice the slots that are needed, and a shape for every doubling."""
    monkeypatch.setattr("medusa_sim.lab.decoder.fixed_shapes.SLOTS_MIN", 16)
    model = tiny_llama(VOCAB)
    drafter = MedusaDrafter(model, tiny_heads(model), CandidateTree.cartesian([3, 2]))
    prompts = ragged_prompts(3, VOCAB)
    settings = GenerationSettings(max_new_tokens=150)
    scanned: list[int] = []
    steps: list[tuple[int, int]] = []  # slots that were needed and scanned
    attention = torch.nn.functional.scaled_dot_product_attention

    def attend(q: torch.Tensor, keys: torch.Tensor, *rest: torch.Tensor) -> torch.Tensor:
        scanned.append(keys.shape[2])
        return attention(q, keys, *rest)

    class Noted(FixedForward):
        def __call__(self, tokens: torch.Tensor, mask: torch.Tensor, depths: torch.Tensor) -> torch.Tensor:
            scanned.clear()
            states = super().__call__(tokens, mask, depths)
            (slots,) = set(scanned)
            steps.append((max(self.cache.lengths.tolist()) + tokens.shape[1], slots))
            assert self.shapes == len({slots for _, slots in steps})
            return states

    def noted(model: Llama, cache: KVCache) -> Noted:
        return Noted(model, cache, lambda forward, _: forward)

    eager = generate(model, prompts, settings, drafter).sequences
    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", attend)
    static = generate(model, prompts, settings, drafter, make_forward=noted).sequences
    assert [s.token_ids for s in static] == [s.token_ids for s in eager]
    assert all(needed <= slots <= max(16, 2 * (needed - 1)) for needed, slots in steps)
    capacity = max(len(prompt) for prompt in prompts) + 150 + drafter.nodes
    assert steps[-1][1] == capacity  # the last rung
    assert 4 <= len({slots for _, slots in steps}) <= 1 + math.ceil(math.log2(capacity / 16))


@pytest.mark.parametrize("capacity", [40, 256, 300, 4096, 5000])
def test_slots_double_from_256(capacity):
    rungs = {scanned_slots(needed, capacity) for needed in range(1, capacity + 1)}
    assert len(rungs) <= 1 + max(0, math.ceil(math.log2(capacity / 256)))
    assert max(rungs) == capacity
    assert all(slots % 16 == 0 for slots in rungs - {capacity})
    assert all(n <= scanned_slots(n, capacity) <= max(256, 2 * n) for n in range(1, capacity + 1))


PROMPTS, PROMPT_TOKENS, NEW_TOKENS = 128, 48, 24


def _folder(name: str) -> Path:
    return shipped_dir() / "profiles" / "checkpoints" / name


def _theirs(name: str) -> Any:
    transformers = pytest.importorskip("transformers")
    model = transformers.AutoModelForCausalLM.from_pretrained(_folder(name), dtype=torch.float32).eval()
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = 0
    return model


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    tokenizer = load_tokenizer(_folder("python-stdlib-medusa-1"))
    return file_windows(read_corpus().heldout, tokenizer, count=PROMPTS, prompt_tokens=PROMPT_TOKENS, seed=11)


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


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_plain_texts_are_equal(prompts, plain):
    assert [s.token_ids for s in _ours(prompts)] == plain


def _chain(length: int) -> Drafter:
    draft = load_checkpoint(_folder("python-stdlib-draft")).model
    return TreeDrafter(draft, [1] * length, temperature=0.0, rejection_rule="multi-round")


METHODS: dict[str, tuple[Callable[[], Drafter], dict[str, Any]]] = {
    **{f"assisted-{drafts}": (partial(_chain, drafts), {"assistant": drafts}) for drafts in (2, 4, 7)},
    "prompt-lookup-5": (
        lambda: NgramDrafter(length=5, ngram_max=3),
        {"prompt_lookup_num_tokens": 5, "max_matching_ngram_size": 3},
    ),
}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.nightly if name in ("assisted-2", "assisted-7") else ())
        for name in METHODS
    ],
)
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
