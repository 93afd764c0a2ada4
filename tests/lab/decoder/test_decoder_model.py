"""Backbone, cache and masks: equal to transformers, to an ancestor walk, and to a fresh prefill."""

import dataclasses
from collections import Counter

import numpy as np
import pytest
import torch
from decoder_models import noisy_copy, ragged_prompts, tiny_config, tiny_heads, tiny_llama
from hypothesis import given
from hypothesis import strategies as st
from one_line import one_line

from medusa_sim.acceptance.tree import CandidateTree
from medusa_sim.engines.runtime import load_runtime
from medusa_sim.errors import SpecError, UsageError
from medusa_sim.lab.decoder.attention import ancestor_mask, attention_mask
from medusa_sim.lab.decoder.cache import KVCache
from medusa_sim.lab.decoder.checkpoint import DTYPES, load_checkpoint
from medusa_sim.lab.decoder.checkpoint_folder import save_checkpoint
from medusa_sim.lab.decoder.config import config_from_hf, read_config
from medusa_sim.lab.decoder.generate import generate, prefill
from medusa_sim.lab.decoder.generation import Generation, GenerationSettings
from medusa_sim.lab.decoder.medusa_drafter import MedusaDrafter
from medusa_sim.lab.decoder.model import random_llama
from medusa_sim.lab.decoder.model_drafter import BeamDrafter, TreeDrafter
from medusa_sim.models.named import load_model
from medusa_sim.operators.gemm import Gemm
from medusa_sim.step import network, workload
from medusa_sim.step.drafter.medusa import Medusa

ROPE = {"rope_theta": 10000.0}
FAMILIES = {
    "llama": ("Llama", {}),
    "llama-biased-tied": (
        "Llama",
        {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True, "head_dim": 12},
    ),
    "llama-3-rope": (
        "Llama",
        {
            "rope_scaling": ROPE
            | {
                "rope_type": "llama3",
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 16,
            }
        },
    ),
    "llama-linear-rope": ("Llama", {"rope_scaling": ROPE | {"rope_type": "linear", "factor": 2.0}}),
    "llama-yarn": (
        "Llama",
        {"rope_scaling": ROPE | {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}},
    ),
    "mistral": ("Mistral", {"sliding_window": None}),
    "mistral-window": ("Mistral", {"sliding_window": 5}),
    "qwen2": ("Qwen2", {}),
}
TOLERANCE = {"fp64": 2e-5, "fp32": 1e-4}
"""fp64: transformers takes norms and rotations in fp32. fp32: observed 0. Logits are of size 9."""


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("family", FAMILIES)
def test_logits_equal_those_of_transformers(family, dtype, tmp_path):
    transformers = pytest.importorskip("transformers")
    name, changes = FAMILIES[family]
    config = getattr(transformers, f"{name}Config")(
        **{
            "vocab_size": 61, "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 3,
            "num_attention_heads": 6, "num_key_value_heads": 2, "max_position_embeddings": 64,
        }
        | changes
    )  # fmt: skip
    torch.manual_seed(0)
    theirs = getattr(transformers, f"{name}ForCausalLM")(config).eval()
    for key, parameter in theirs.named_parameters():
        parameter.data.normal_(1.0 if "norm" in key else 0.0, 0.3)
    theirs = theirs.to(DTYPES[dtype])
    theirs.save_pretrained(tmp_path)
    ours = load_checkpoint(tmp_path, dtype=DTYPES[dtype]).model
    tokens = torch.randint(0, 61, (2, 17))
    with torch.inference_mode():
        expected = theirs(tokens).logits
        plain = ours.logits(ours(tokens))
        cache = ours.new_cache(batch=2, capacity=20)
        prefill(ours, cache, tokens[:, :9].tolist())
        rest = ours.logits(ours(tokens[:, 9:], cache=cache))
        exact = load_checkpoint(tmp_path, dtype=torch.float64).model
        truth = exact.logits(exact(tokens))
    assert float(expected.abs().max()) > 4.0  # not an equality of zeros
    if dtype in TOLERANCE:
        assert torch.allclose(plain.double(), expected.double(), atol=TOLERANCE[dtype])
        assert torch.allclose(rest.double(), expected[:, 9:].double(), atol=TOLERANCE[dtype])
        return
    # Half precision: as near to the exact logits of the same rounded weights as transformers is.
    theirs_off = float((expected.double() - truth).square().mean().sqrt())
    assert 0.0 < theirs_off < 0.15
    assert float((plain.double() - truth).square().mean().sqrt()) < 1.3 * theirs_off
    assert float((rest.double() - truth[:, 9:]).square().mean().sqrt()) < 1.5 * theirs_off


def test_our_config_is_read_by_transformers_and_by_us(tmp_path):
    transformers = pytest.importorskip("transformers")
    for changes in ({}, {"model_type": "qwen2", "attention_bias": True}, {"model_type": "mistral"}):
        config = tiny_config(eos_token_ids=(0, 2), tie_word_embeddings=True, **changes)
        model = random_llama(config)
        path = tmp_path / str(changes.get("model_type", "llama"))
        save_checkpoint(path, model, dtype=torch.float32)
        assert dataclasses.replace(read_config(path), rope_scaling=config.rope_scaling) == config
        theirs = transformers.AutoModelForCausalLM.from_pretrained(path).eval()
        tokens = torch.randint(0, 13, (1, 9))
        with torch.inference_mode():
            assert torch.allclose(theirs(tokens).logits, model.logits(model(tokens)), atol=1e-5)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"model_type": "gemma"}, "model_type: given 'gemma'"),
        ({"model_type": "qwen3_5", "vocab_size": None}, "model_type: given 'qwen3_5'"),  # a wrapper's
        ({"hidden_act": "gelu"}, "hidden_act: given 'gelu'"),
        ({"num_key_value_heads": 3}, "num_key_value_heads 3"),
        ({"vocab_size": -1}, "vocab_size: given -1"),
        ({"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, "rope_type 'dynamic'"),
        ({"rope_scaling": {"rope_type": "linear"}}, "needs a factor"),
        ({"model_type": "qwen2", "use_sliding_window": True}, "use_sliding_window"),
        ({"eos_token_id": "x"}, "eos_token_id"),
    ],
)
def test_config_errors_name_the_key(change, told):
    values = tiny_config().to_hf() | change
    with one_line(SpecError, told, match=r"config\.json"):
        config_from_hf(values, "x/config.json")


@st.composite
def parent_lists(draw: st.DrawFn) -> list[int]:
    size = draw(st.integers(1, 24))
    return [-1] + [draw(st.integers(-1, node - 1)) for node in range(1, size)]


@given(parents=parent_lists())
def test_tree_mask_is_the_ancestor_walk(parents):
    expected = np.zeros((len(parents), len(parents)), dtype=bool)
    for node in range(len(parents)):
        walker = node
        while walker >= 0:
            expected[node, walker] = True
            walker = parents[walker]
    mask = ancestor_mask(torch.tensor([parents, parents]))
    assert np.array_equal(mask[1].numpy(), expected)


def test_tree_mask_of_a_candidate_tree_is_its_own_and_attention_sees_prefix_ancestors_and_self():
    tree = CandidateTree.cartesian([3, 2, 2])
    mask = ancestor_mask(torch.from_numpy(tree.parents)[None])
    assert torch.equal(mask[0], torch.from_numpy(tree.mask))
    # Against a walk over slots, for ragged lengths, behind an offset, with a sliding window.
    parents = [-1, 0, 0, 1, 2, 3]
    tree = ancestor_mask(torch.tensor([parents]))[0]
    depths = tree.sum(-1) - 1
    lengths, offset, kv_len = torch.tensor([4, 0, 7]), 3, 14
    for window in (None, 3):
        mask = attention_mask(lengths, tree[offset:], kv_len, depths, sliding_window=window)
        for b, length in enumerate(lengths.tolist()):
            for query in range(offset, 6):
                position = length + int(depths[query])
                for slot in range(kv_len):
                    node = slot - length
                    seen = node < 0 or (node < 6 and bool(tree[query, node]))
                    key_position = slot if node < 0 else length + int(depths[min(node, 5)])
                    if window is not None:
                        seen = seen and key_position > position - window
                    assert bool(mask[b, query - offset, slot]) == seen


@pytest.mark.parametrize("window", [None, 6])
def test_tree_verification_equals_running_each_path_alone(window):
    """Every node's hidden state is that of the plain text made of the prefix and its path."""
    changes = {"model_type": "mistral", "sliding_window": window} if window else {}
    model = tiny_llama(**changes)
    tree = CandidateTree.cartesian([2, 2, 1])
    prompts = ragged_prompts(3, 13, longest=9)
    tokens = torch.randint(0, 13, (3, tree.candidates), generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        cache = model.new_cache(batch=3, capacity=40)
        prefill(model, cache, prompts)
        hidden = model(
            tokens, cache=cache, tree_mask=torch.from_numpy(tree.mask), depths=torch.from_numpy(tree.depths)
        )
        for b, prompt in enumerate(prompts):
            for node in range(tree.candidates):
                path = np.flatnonzero(tree.mask[node])
                text = torch.tensor([prompt + tokens[b, path].tolist()])
                assert torch.allclose(model(text)[0, -1], hidden[b, node], atol=1e-12)


def test_cache_after_compaction_equals_a_fresh_prefill():
    """Keys and values of ragged sequences after accepting different paths of one tree."""
    model = tiny_llama()
    tree = CandidateTree.cartesian([3, 2, 2])
    prompts = ragged_prompts(4, 13, longest=9)
    tokens = torch.randint(0, 13, (4, tree.candidates), generator=torch.Generator().manual_seed(1))
    index = {path: i + 1 for i, path in enumerate(tree.paths)}
    paths = [(2, 1, 1), (1, 0), (), (0, 1, 0)]
    with torch.inference_mode():
        cache = model.new_cache(batch=4, capacity=40)
        prefill(model, cache, prompts)
        model(
            tokens, cache=cache, tree_mask=torch.from_numpy(tree.mask), depths=torch.from_numpy(tree.depths)
        )
        nodes = [[0] + [index[path[: d + 1]] for d in range(len(path))] for path in paths]
        alone = model.new_cache(batch=1, capacity=40)
        alone.keys, alone.values, alone.lengths = (
            *(store[:, :1].clone() for store in (cache.keys, cache.values)),
            cache.lengths[:1].clone(),
        )
        nodes[2] = []  # the third sequence is finished
        cache.keep(nodes)
        alone.keep(nodes[:1])
        for mine, theirs in zip(rows_of(alone, 0), rows_of(cache, 0), strict=True):
            assert torch.equal(mine, theirs)
        for b, prompt in enumerate(prompts):
            text = prompt + tokens[b, nodes[b]].tolist()
            fresh = model.new_cache(batch=1, capacity=40)
            prefill(model, fresh, [text])
            assert int(cache.lengths[b]) == len(text)
            for mine, theirs in zip(rows_of(cache, b), rows_of(fresh, 0), strict=True):
                assert torch.allclose(mine, theirs, atol=1e-12)


def rows_of(cache: KVCache, sequence: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Committed keys and values of one sequence, each (layers, kv_heads, length, head_dim)."""
    length = int(cache.lengths[sequence])
    return cache.keys[:, sequence, :, :length], cache.values[:, sequence, :, :length]


@pytest.mark.parametrize("kind", ["chain", "tree", "beam"])
def test_draft_cache_follows_the_accepted_text(kind):
    """Also after a step that accepted the whole depth, whose last token the draft has never run."""
    target, prompts = tiny_llama(), ragged_prompts(5, 13, longest=9)
    draft = noisy_copy(target, noise=0.1)
    drafter = {
        "chain": lambda: TreeDrafter(draft, [1, 1], temperature=0.0, rejection_rule="multi-round"),
        "tree": lambda: TreeDrafter(draft, [3, 2], temperature=0.0, rejection_rule="recursive"),
        "beam": lambda: BeamDrafter(draft, width=3, depth=3, temperature=0.0),
    }[kind]()
    run = generate(target, prompts, GenerationSettings(max_new_tokens=15), drafter)
    assert max(max(s.accepted_lengths) for s in run.sequences) >= 2
    longest = max(run.sequences, key=lambda s: s.steps)  # finished last: its cache is up to date
    b = run.sequences.index(longest)
    cache = drafter.cache
    text = longest.prompt + longest.token_ids
    fresh = draft.new_cache(batch=1, capacity=60)
    length = int(cache.lengths[b])
    assert len(text) - 2 <= length + int(drafter.missing[b]) <= len(text) - 1
    with torch.inference_mode():
        prefill(draft, fresh, [text[:length]])
    for mine, theirs in zip(rows_of(cache, b), rows_of(fresh, 0), strict=True):
        assert torch.allclose(mine, theirs, atol=1e-12)


def test_requests_that_cannot_be_served_are_refused_first():
    model = tiny_llama(max_position_embeddings=20)
    settings = GenerationSettings(max_new_tokens=5)
    for prompts, told in [
        ([], "no prompt"),
        ([[]], "empty"),
        ([[1] * 16], "16 tokens"),
        ([[1], [99]], "token 99"),
        ([[-1]], "token -1"),
    ]:
        with pytest.raises(UsageError, match=told):
            generate(model, prompts, settings)
    with pytest.raises(UsageError, match="max_new_tokens"):
        generate(model, [[1]], GenerationSettings(max_new_tokens=0))
    with pytest.raises(UsageError, match="temperature"):
        generate(model, [[1]], GenerationSettings(max_new_tokens=1, temperature=float("nan")))
    cache = model.new_cache(batch=1, capacity=4)
    with pytest.raises(UsageError, match="do not fit the cache of 4"):
        model(torch.zeros(1, 5, dtype=torch.long), cache=cache)


def test_prefill_of_a_batch_equals_each_alone():
    model, prompts = tiny_llama(), ragged_prompts(6, 13)
    with torch.inference_mode():
        cache = model.new_cache(batch=6, capacity=30)
        together = prefill(model, cache, prompts)
        for b, prompt in enumerate(prompts):
            assert torch.allclose(together[b], model(torch.tensor([prompt]))[0, -1], atol=1e-12)
    assert cache.lengths.tolist() == [len(prompt) for prompt in prompts]


def test_generation_counts_are_consistent():
    sequence = Generation([1], [3, 4, 5, 6], [1, 0])
    assert sequence.steps == 2
    assert sequence.tokens_per_step == pytest.approx(1.5)
    assert len(sequence.token_ids) == 1 + sequence.steps + sum(sequence.accepted_lengths)
    assert Generation([1], [2], []).tokens_per_step is None


def test_operators_are_those_of_the_simulator(tmp_path, monkeypatch):
    """Every linear layer of a verification step, one to one: the same (m, n, k) as many times."""
    model = tiny_llama(13, dtype=torch.float32, tie_word_embeddings=True, max_position_embeddings=64)
    save_checkpoint(tmp_path, model, dtype=torch.float16)
    described = load_model(tmp_path / "config.json")
    heads, tree = tiny_heads(model, count=3), CandidateTree.cartesian([3, 1, 1])
    ran: Counter[tuple[int, int, int]] = Counter()

    linear = torch.nn.functional.linear

    def count(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        out, inner = weight.shape
        ran[(x.numel() // inner, out, inner)] += 1
        return linear(x, weight, bias)

    monkeypatch.setattr(torch.nn.functional, "linear", count)
    batch, candidates = 2, tree.candidates
    with torch.inference_mode():
        cache = model.new_cache(batch=batch, capacity=40)
        prefill(model, cache, [[1, 2, 3]] * batch)
        ran.clear()
        drafter = MedusaDrafter(model, heads, tree)
        draft = drafter.propose(torch.zeros(batch, dtype=torch.long), torch.zeros(batch, 32), [])
        model.logits(model(draft.tokens, cache=cache, tree_mask=draft.mask, depths=draft.depths))
    runtime = load_runtime("hf-eager")
    work = workload.verify(batch, 3, candidates)
    launches = [*network.step_launches(described, work, runtime, "model")]
    for part in Medusa(heads=3).work(described, workload.verify(batch, 3, 1), runtime):
        launches += part.launches
    told: Counter[tuple[int, int, int]] = Counter()
    for launch in launches:
        operator = launch.operator
        if isinstance(operator, Gemm):
            told[(int(operator.m), int(operator.n), int(operator.k))] += launch.count
    assert ran == told


@pytest.mark.parametrize("rows", [1, 4, 9])
@pytest.mark.parametrize("masked", [False, True])
def test_rows_in_bf16_attend_as_exactly_as_torch_does(rows, masked):
    """Also the one row that is computed twice: no further from the exact result than rounding is."""
    from medusa_sim.lab.decoder.attention import attend

    generator = torch.Generator().manual_seed(1)
    q, keys, values = (
        torch.randn(2, 3, n, 16, generator=generator, dtype=torch.float64).bfloat16() for n in (rows, 40, 40)
    )
    bias = torch.zeros(2, 1, rows, 40, dtype=torch.bfloat16) if masked else None
    if bias is not None:
        bias[..., 30:] = -torch.inf
    wide = None if bias is None else bias.double()
    exact = torch.nn.functional.scaled_dot_product_attention(q.double(), keys.double(), values.double(), wide)
    assert (attend(q, keys, values, bias).double() - exact).abs().max() < 0.02
