"""Acceptance rules node by node: greedy, typical, what padding may not do, and drafts that repeat."""

import math
import timeit

import numpy as np
import pytest
import torch
from decoder_models import tiny_heads, tiny_llama
from hypothesis import given
from hypothesis import strategies as st

from medusa_sim.acceptance.tree import CandidateTree
from medusa_sim.errors import UsageError
from medusa_sim.lab.decoder.accept import accept_by_rejection, accept_greedy, accept_typical, typical_token
from medusa_sim.lab.decoder.candidates import Draft, TreeShape, draft_of
from medusa_sim.lab.decoder.distributions import Draws, distribution
from medusa_sim.lab.decoder.medusa_drafter import MedusaDrafter
from medusa_sim.lab.decoder.ngram_drafter import continuation


def _draft(tree: CandidateTree, tokens: torch.Tensor) -> Draft:
    return Draft(
        tokens=tokens,
        trees=[TreeShape(tree.parents.tolist())] * len(tokens),
        depths=torch.from_numpy(tree.depths),
        mask=torch.from_numpy(tree.mask),
    )


def _walks(tree: CandidateTree, passes: torch.Tensor, scores: torch.Tensor) -> tuple[int, list[int]]:
    """Longest passing path by walking up from every node; ties by score, then by node."""
    best: tuple[int, float, int] = (0, 0.0, 0)
    path_of: dict[int, list[int]] = {0: []}
    for node in range(1, tree.candidates):
        path, walker = [], node
        while walker > 0:
            path.append(walker)
            walker = int(tree.parents[walker])
        if all(bool(passes[n]) for n in path):
            path_of[node] = path[::-1]
            key = (len(path), float(sum(scores[n] for n in path)), -node)
            if (key[0], key[1]) > (best[0], best[1] + 1e-12) or (key[0] > best[0]):
                best = (key[0], key[1], node)
    return best[2], path_of[best[2]]


@given(seed=st.integers(0, 10_000))
def test_greedy_and_typical_keep_the_longest_passing_path(seed):
    """Against walking up from every node, with few tokens so that much is accepted."""
    generator = torch.Generator().manual_seed(seed)
    tree = CandidateTree.from_paths(
        [[0], [0, 0], [0, 0, 0], [0, 1], [1], [1, 0], [2], [2, 0], [2, 0, 1], [2, 0, 0]]
    )
    batch, vocab = 3, 4
    tokens = torch.randint(0, vocab, (batch, tree.candidates), generator=generator)
    logits = 2.0 * torch.randn(batch, tree.candidates, vocab, generator=generator, dtype=torch.float64)
    draft = _draft(tree, tokens)
    parents = torch.from_numpy(tree.parents).clamp(min=0)
    greedy = accept_greedy(draft, logits)
    temperature, epsilon, delta = 0.8, 0.3, 0.5
    typical = accept_typical(draft, logits, temperature=temperature, epsilon=epsilon, delta=delta)
    for b in range(batch):
        match = tokens[b] == logits[b, parents].argmax(-1)
        last, path = _walks(tree, match, torch.zeros(tree.candidates))
        assert greedy[b].path == path
        assert greedy[b].text[-1] == int(logits[b, last].argmax())
        p = torch.softmax(logits[b] / temperature, -1)[parents]
        entropy = -(p * p.log()).sum(-1)
        own = p[torch.arange(tree.candidates), tokens[b]]
        passes = own > torch.minimum(torch.tensor(epsilon, dtype=torch.float64), delta * torch.exp(-entropy))
        last, path = _walks(tree, passes, own.log())
        assert typical[b].path == path
        assert typical[b].text[-1] == int(logits[b, last].argmax())


def test_typical_thresholds_are_epsilon_and_delta_and_the_smaller_counts():
    """Passing either bound suffices (min), and swapping the two numbers changes the verdict."""
    tree = CandidateTree.chain(1)
    flat = torch.zeros(1, 2, 8, dtype=torch.float64)  # H = ln 8: delta exp(-H) = 0.3 / 8 < p = 1 / 8
    draft = _draft(tree, torch.tensor([[0, 3]]))
    assert len(accept_typical(draft, flat, temperature=1.0)[0].path) == 1
    # p = 0.1 at an entropy near 0.33: above epsilon = 0.09, below delta exp(-H) = 0.22. Kept: min is meant.
    peaked = torch.tensor([[[0.9, 0.1], [0.5, 0.5]]], dtype=torch.float64).log()
    draft = _draft(tree, torch.tensor([[0, 1]]))
    assert len(accept_typical(draft, peaked, temperature=1.0)[0].path) == 1
    assert len(accept_typical(draft, peaked, temperature=1.0, epsilon=0.3, delta=0.3)[0].path) == 0
    entropy = -(0.9 * math.log(0.9) + 0.1 * math.log(0.1))
    edge = 0.1 / math.exp(-entropy)
    assert len(accept_typical(draft, peaked, temperature=1.0, epsilon=1.0, delta=edge * 1.001)[0].path) == 0
    assert len(accept_typical(draft, peaked, temperature=1.0, epsilon=1.0, delta=edge * 0.999)[0].path) == 1


def test_laws_are_exact_in_fp64_and_of_a_large_flat_vocabulary():
    """Public code adds 1e-5 inside the logarithm: H of 32000 equal tokens becomes 10.10 instead of 10.37."""
    vocab = 32000
    flat = torch.zeros(1, 2, vocab, dtype=torch.float32)
    draft = _draft(CandidateTree.chain(1), torch.tensor([[0, 5]]))
    delta = 0.85  # p = 1/V > delta exp(-H) = delta/V; with the biased H the threshold is 1.31 delta/V
    assert len(accept_typical(draft, flat, temperature=1.0, delta=delta)[0].path) == 1
    half = torch.randn(3, 50).to(torch.float16)
    p = distribution(half, 0.7)
    assert p.dtype == torch.float64
    assert float((p.sum(-1) - 1.0).abs().max()) < 1e-12


def test_padding_is_never_accepted_nor_gained_from():
    """Unused nodes carry token 0, and token 0 is what the target wants everywhere."""
    parents = torch.tensor([[-1, 0, -1, 1, -1]])
    tokens = torch.zeros(1, 5, dtype=torch.long)
    wanted = torch.zeros(1, 5, 4)
    wanted[..., 0] = 50.0
    draft = draft_of(tokens, parents)
    verdicts = [
        accept_greedy(draft, wanted),
        accept_typical(draft, wanted, temperature=1.0),
        accept_by_rejection(draft, wanted, temperature=1.0, draws=[Draws(0)]),
    ]
    for verdict in verdicts:
        assert [each.path for each in verdict] == [[1, 3]]
    alone = draft_of(tokens, torch.full((1, 5), -1))
    for verdict in (accept_greedy(alone, wanted), accept_typical(alone, wanted, temperature=1.0)):
        assert [each.path for each in verdict] == [[]]
    # A leaf with one guess can yield one accepted token, whatever the target's argmax behind it is.
    tree = CandidateTree.from_paths([[0], [1], [1, 0], [1, 0, 0]])
    logits = torch.zeros(1, 5, 6)
    logits[0, 0, 4] = 9.0  # the target wants 4, which the short leaf (node 1) carries
    logits[0, 1:, 0] = 9.0  # and then 0, the usual padding
    draft = _draft(tree, torch.tensor([[2, 4, 3, 0, 0]]))
    verdict = accept_greedy(draft, logits)
    assert len(verdict[0].path) == 1
    assert verdict[0].text[-1] == 0


def test_repeated_independent_drafts_share_their_children():
    """Two equal siblings are one text: the children of both are drafts of the next token."""
    tree = CandidateTree.cartesian([2, 1])
    tokens = torch.tensor([[0, 1, 1, 2, 3]])
    vocab = 4
    logits = torch.full((1, 5, vocab), -torch.inf, dtype=torch.float64)
    logits[0, 0, 1] = 0.0  # 1 is certain, then 3, which only the second sibling's child carries
    logits[0, 1, 3] = logits[0, 2, 3] = 0.0
    logits[0, 3:, 0] = 0.0
    laws = torch.full((1, 5, vocab), 0.25, dtype=torch.float64)
    base = _draft(tree, tokens)
    for rule in ("multi-round", "k-seq"):
        draft = Draft(
            tokens=tokens,
            trees=base.trees,
            depths=base.depths,
            mask=base.mask,
            distributions=laws,
            rejection_rule=rule,
        )
        verdict = accept_by_rejection(draft, logits, temperature=1.0, draws=[Draws(1)])
        if len(verdict[0].path):
            assert verdict[0].path[0] in (1, 2)
            assert len(verdict[0].path) in (1, 2)
    greedy = distribution(logits[0, 0], 0.0)
    assert greedy.tolist() == [0.0, 1.0, 0.0, 0.0]


def test_tree_deeper_than_the_heads_is_refused_before_any_work():
    model = tiny_llama(13)
    heads = tiny_heads(model, count=3)
    with pytest.raises(UsageError, match="4 deep, the checkpoint has 3 Medusa heads"):
        MedusaDrafter(model, heads, CandidateTree.chain(4))
    with pytest.raises(UsageError, match="rank 13"):
        MedusaDrafter(model, heads, CandidateTree.cartesian([14]))


@given(
    text=st.lists(st.integers(0, 3), min_size=1, max_size=40),
    length=st.integers(1, 6),
    ngram_max=st.integers(1, 4),
    match=st.sampled_from(["earliest", "latest"]),
)
def test_lookup_is_the_search_written_out(text, length, ngram_max, match):
    expected: list[int] = []
    for size in range(min(ngram_max, len(text) - 1), 0, -1):
        starts = [s for s in range(len(text) - size) if text[s : s + size] == text[-size:]]
        if starts:
            start = (starts[0] if match == "earliest" else starts[-1]) + size
            expected = text[start : start + length]
            break
    assert continuation(text, length, ngram_max, match) == expected


def test_lookup_in_a_long_text_is_a_few_comparisons():
    """32k tokens in which nothing repeats: the worst case, all sizes searched to the end."""
    text = np.arange(32_768)
    lookup_s, comparison_s = (
        min(timeit.repeat(run, number=1, repeat=30))
        for run in (lambda: continuation(text, 5, 3), lambda: text == text[-1])
    )
    assert lookup_s < 100 * comparison_s  # hundreds, were it a loop over tokens


def test_typical_tokens_are_drawn_from_those_above_the_threshold():
    p = torch.tensor([0.5, 0.3, 0.12, 0.05, 0.03], dtype=torch.float64)
    entropy = float(-(p * p.log()).sum())
    least = min(0.09, 0.3 * math.exp(-entropy))
    drawn = [typical_token(p.log(), 1.0, Draws(seed)) for seed in range(2000)]
    kept = p * (p > least)
    found = torch.bincount(torch.tensor(drawn), minlength=5) / len(drawn)
    assert torch.allclose(found.double(), kept / kept.sum(), atol=0.04)
    assert float(found[p <= least].sum()) == 0.0


@pytest.mark.parametrize("temperature", [5e-324, 1e-308, 1e-30, 1e30, 1e308])
def test_any_finite_temperature_gives_a_law(temperature):
    logits = torch.tensor([3.0, -7.0, 2.9, -torch.inf])
    p = distribution(logits, temperature)
    assert float(p.sum()) == pytest.approx(1.0)
    assert p.argmax() == 0
    draft = _draft(CandidateTree.chain(1), torch.tensor([[0, 0]]))
    rows = logits.expand(1, 2, 4)
    assert accept_typical(draft, rows, temperature=temperature)[0].text[-1] == 0
    assert len(accept_by_rejection(draft, rows, temperature=temperature, draws=[Draws(0)])) == 1
