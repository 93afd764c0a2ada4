"""Sampling methods emit the target's law: exactly by enumeration, and at scale by a chi-square test."""

import itertools
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product

import numpy as np
import pytest
import torch
from decoder_models import BiasedLlama, Enumerated, noisy_copy, outcomes, tiny_heads, tiny_llama
from path_laws import Law as PathLaw
from path_laws import Path, completed, path_laws, text_probability
from scipy import stats

from medusa_sim.acceptance.tree import CandidateTree
from medusa_sim.lab.decoder import rejection
from medusa_sim.lab.decoder.accept import accept_by_rejection
from medusa_sim.lab.decoder.candidates import RejectionRule, draft_of
from medusa_sim.lab.decoder.distributions import Draws, distribution
from medusa_sim.lab.decoder.drafter import Drafter
from medusa_sim.lab.decoder.generate import generate, prefill, verify
from medusa_sim.lab.decoder.generation import Generation, GenerationSettings
from medusa_sim.lab.decoder.medusa_drafter import MedusaDrafter
from medusa_sim.lab.decoder.model import Llama
from medusa_sim.lab.decoder.model_drafter import BeamDrafter, TreeDrafter
from medusa_sim.lab.decoder.ngram_drafter import NgramDrafter

Law = torch.Tensor


def _law(rng: np.random.Generator, vocab: int, *, sparse: bool = False) -> Law:
    weights = rng.dirichlet(np.full(vocab, 0.6))
    if sparse:
        weights[rng.permutation(vocab)[: vocab // 2]] = 0.0
        weights /= weights.sum()
    return torch.tensor(weights, dtype=torch.float64)


def _pairs(vocab: int) -> list[tuple[str, Law, Law]]:
    rng = np.random.default_rng(7)
    some = [(f"random{i}", _law(rng, vocab), _law(rng, vocab)) for i in range(4)]
    some += [(f"sparse{i}", _law(rng, vocab, sparse=True), _law(rng, vocab, sparse=True)) for i in range(4)]
    p = _law(rng, vocab)
    half = vocab // 2
    first = torch.tensor([1.0 / half] * half + [0.0] * (vocab - half), dtype=torch.float64)
    last = torch.tensor([0.0] * half + [1.0 / (vocab - half)] * (vocab - half), dtype=torch.float64)
    certain = torch.zeros(vocab, dtype=torch.float64)
    certain[1] = 1.0
    return [
        *some, ("equal", p, p), ("disjoint", first, last), ("certain", certain, p), ("one draft", p, certain),
    ]  # fmt: skip


RULES: dict[str, tuple[Callable[..., tuple[int | None, Law]], bool]] = {
    "recursive": (rejection.recursive_rejection, False),
    "multi-round": (rejection.multi_round_rejection, True),
    "k-seq": (rejection.k_seq, True),
}


def _law_of(run: Callable[[Enumerated], int], vocab: int) -> Law:
    """The token's law over every draft and decision of the run."""
    found = torch.zeros(vocab, dtype=torch.float64)
    for probability, token in outcomes(run):
        found[int(str(token))] += probability
    return found


@pytest.mark.parametrize(
    ("rule", "k"), [each for each in product(RULES, (1, 2, 3, 4)) if each[1] < 4 or not RULES[each[0]][1]]
)
def test_one_token_has_the_target_law_exactly(rule, k):
    """Enumerates every draft and every decision; fp64, so 1e-12 is rounding. Four of four tokens are all."""
    function, independent = RULES[rule]
    for name, p, q in _pairs(4):

        def emitted(draws: Enumerated, p: Law = p, q: Law = q) -> int:
            draw = draws.tokens_with_replacement if independent else draws.tokens_without_replacement
            drafted = [token for token in draw(q[None], k)[0].tolist() if token >= 0]
            chosen, left = function(p, q, drafted, draws)
            return drafted[chosen] if chosen is not None else draws.token(left)

        assert torch.allclose(_law_of(emitted, 4), p, atol=1e-12), name


@pytest.mark.parametrize("rule", RULES)
def test_equal_laws_accept_the_first_draft(rule):
    """With p = q nothing is ever rejected, and the empty residual is never drawn from."""
    function, independent = RULES[rule]
    p = _law(np.random.default_rng(0), 5)
    for seed in range(50):
        draws = Draws(seed)
        draw = draws.tokens_with_replacement if independent else draws.tokens_without_replacement
        chosen, _ = function(p, p, draw(p[None], 3)[0].tolist(), draws)
        assert chosen == 0


def test_certain_drafts_are_accepted_with_p():
    """Heads and n-grams draft with q = 1: acceptance is p(x), not 1 - TV(p, q)."""
    p, drafted = _law(np.random.default_rng(5), 5), [3, 1]

    def emitted(draws: Enumerated, *, kept: bool = False) -> int:
        chosen, left = rejection.recursive_rejection(p, None, drafted, draws)
        if kept:
            return int(chosen is not None)
        return drafted[chosen] if chosen is not None else draws.token(left)

    assert torch.allclose(_law_of(emitted, 5), p, atol=1e-12)
    accepted = _law_of(partial(emitted, kept=True), 2)[1]
    assert float(accepted) == pytest.approx(float(p[3] + p[1]), rel=1e-12)


VOCAB = 3


PROMPT, LENGTH, SAMPLES = [1, 0, 2], 3, 1500


def _joint(model: Llama, temperature: float, vocab: int, length: int) -> dict[tuple[int, ...], float]:
    """Exact law of the `length` tokens after PROMPT, from full forwards without a cache."""
    texts = list(itertools.product(range(vocab), repeat=length))
    tokens = torch.tensor([PROMPT + list(text) for text in texts])
    laws = distribution(model.logits(model(tokens)), temperature)[:, len(PROMPT) - 1 : -1]
    chosen = torch.gather(laws, 2, torch.tensor(texts)[..., None])[..., 0]
    return dict(zip(texts, chosen.prod(-1).tolist(), strict=True))


def _pair(name: str, vocab: int, unlike: tuple[int, ...]) -> tuple[Llama, Llama]:
    """A target and its draft; `disjoint`: the draft never says `unlike`, the target nothing else."""
    target = tiny_llama(vocab, num_hidden_layers=1, std=0.5)
    if name == "disjoint":
        others = tuple(set(range(vocab)) - set(unlike))
        return BiasedLlama(target, others), BiasedLlama(target, unlike)
    return target, target if name == "equal" else noisy_copy(target)


def _tree(draft: Llama, branching: list[int], rule: RejectionRule, temperature: float) -> Drafter:
    return TreeDrafter(draft, branching, temperature=temperature, rejection_rule=rule)


STEPS: dict[str, tuple[list[int], RejectionRule]] = {
    "sd": ([1, 1], "multi-round"), "specinfer": ([2, 1], "multi-round"), "spectr": ([2, 1], "k-seq"),
    "rsd-c": ([3, 1], "recursive"),
}  # fmt: skip
RUNS: dict[str, tuple[list[int], RejectionRule]] = {
    "sd": ([1, 1, 1], "multi-round"), "specinfer": ([4, 2], "multi-round"), "spectr": ([3, 1], "k-seq"),
    "rsd-c": ([4, 2], "recursive"),
}  # fmt: skip


@pytest.mark.parametrize(("method", "pair"), [*product(STEPS, ("noisy", "disjoint")), ("specinfer", "equal")])
def test_one_step_keeps_the_joint_law_of_three_tokens_exactly(method, pair):
    """Every draft and decision of a depth-2 step, the text completed by the target: its joint law.

    Steps follow each other on nothing but the text, so a step that keeps the joint law keeps it forever.
    """
    model, draft = _pair(pair, 3, unlike=(0,))
    temperature = 0.9
    drafter = _tree(draft, *STEPS[method], temperature)
    settings = GenerationSettings(max_new_tokens=9, temperature=temperature)
    with torch.inference_mode():
        joint = _joint(model, temperature, 3, LENGTH)
        cache = model.new_cache(batch=1, capacity=40)
        prefill(model, cache, [PROMPT[:-1]])
        drafter.begin([PROMPT[:-1]], 40, [])

        def emitted(draws: Enumerated) -> tuple[int, ...]:
            drafter.cache.lengths = torch.full((1,), len(PROMPT) - 1)
            drafter.draws = [draws]
            proposal = drafter.propose(torch.tensor([PROMPT[-1]]), torch.zeros(1, 1), [Generation(PROMPT)])
            states = model(proposal.tokens, cache=cache, tree_mask=proposal.mask, depths=proposal.depths)
            verdict = verify(proposal, model.logits(states), settings, [draws])
            return (*proposal.tokens[0, verdict[0].path].tolist(), verdict[0].text[-1])

        found = dict.fromkeys(joint, 0.0)
        for probability, text in outcomes(emitted):
            rest = {whole: p for whole, p in joint.items() if whole[: len(text)] == text}
            for whole, p in rest.items():
                found[whole] += probability * p / sum(rest.values())
    assert sum(found.values()) == pytest.approx(1.0, abs=1e-12)
    assert [found[whole] for whole in joint] == pytest.approx([*joint.values()], abs=1e-10)


AT_NIGHT = [
    pytest.param(*each, marks=pytest.mark.nightly)
    for each in (("sd", "noisy"), ("specinfer", "noisy"), ("spectr", "disjoint"))
]
"""Loops of which another is run with that rule or with such drafts."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "pair"),
    [
        *product(("ar", "medusa", "ngram", "rsd-s", "spectr", "rsd-c"), ("noisy",)),
        *product(("ngram", "rsd-s"), ("disjoint",)), ("rsd-s", "equal"), *AT_NIGHT,
    ],
)  # fmt: skip
def test_generated_texts_have_the_joint_law(method, pair):
    """Chi-square over all texts of 3 tokens from a whole run of `generate`, in one batch.

    1500 samples at level 1e-3: a law that is wrong by a total variation of 0.12, displaced between
    equal halves, is found with power 0.99 (noncentrality n (2 TV)^2 = 86 at the 63 degrees of freedom
    of 4^3 texts). Seeds are fixed: no flicker. Small errors are the business of the exact tests above, which
    take every draft with every rule; here the loop around them is run where all is kept, some and nothing.
    """
    temperature = 0.8
    model, draft = _pair(pair, 4, unlike=(0, 1))
    joint = _joint(model, temperature, 4, LENGTH)
    drafter: Drafter | None = None
    match method:
        case "rsd-s":
            drafter = BeamDrafter(draft, width=4, depth=2, temperature=temperature)
        case "medusa":
            drafter = MedusaDrafter(model, tiny_heads(model, count=2), CandidateTree.cartesian([2, 2]))
        case "ngram":
            drafter = NgramDrafter(length=2)
        case _ if method in RUNS:
            drafter = _tree(draft, *RUNS[method], temperature)
    settings = GenerationSettings(max_new_tokens=LENGTH, temperature=temperature, seed=11)
    run = generate(model, [PROMPT] * SAMPLES, settings, drafter)
    observed = Counter(tuple(sequence.token_ids) for sequence in run.sequences)
    assert not any(observed[text] for text, p in joint.items() if p == 0.0)
    # Cells that expect fewer than 5 are pooled, as the chi-square approximation needs.
    often = [(p * SAMPLES, observed[text]) for text, p in joint.items() if p * SAMPLES >= 5.0]
    rare = [(p * SAMPLES, observed[text]) for text, p in joint.items() if 0.0 < p * SAMPLES < 5.0]
    cells = [*often, *([tuple(map(sum, zip(*rare, strict=True)))] if rare else [])]
    statistic = sum((o - e) ** 2 / e for e, o in cells)
    p_value = float(stats.chi2.sf(statistic, max(len(cells) - 1, 1)))
    assert p_value > 1e-3, (statistic, len(cells))


def test_stochastic_beams_are_a_sample_of_whole_texts():
    """Children's keys have their beam's key as maximum, and the best leaf has the draft's joint law.

    That law (Gumbel-max over whole texts) is what makes the beams a sample without replacement. Chi-square
    over 9 texts, 20000 samples: total variation 0.024 is found with power 0.99.
    """
    generator = torch.Generator().manual_seed(0)
    samples, vocab = 20000, 3
    first = torch.softmax(torch.randn(vocab, generator=generator, dtype=torch.float64), -1)
    second = torch.softmax(torch.randn(vocab, vocab, generator=generator, dtype=torch.float64), -1)
    drafter = BeamDrafter(tiny_llama(vocab), width=vocab, depth=2, temperature=1.0)
    drafter.draws = [Draws(seed) for seed in range(samples)]
    start = torch.zeros(samples, 1, dtype=torch.float64)
    keys = drafter._perturbed(first.log().expand(samples, 1, vocab), start)[:, 0]
    assert torch.allclose(keys.amax(-1, keepdim=True), start, atol=1e-9)
    reach = (first.log()[:, None] + second.log()).expand(samples, vocab, vocab)
    leaves = drafter._perturbed(reach, keys)
    assert torch.allclose(leaves.amax(-1), keys, atol=1e-9)
    best = leaves.flatten(1).argmax(-1)
    observed = torch.bincount(best, minlength=vocab * vocab).double()
    expected = samples * (first[:, None] * second).flatten()
    statistic = float(((observed - expected) ** 2 / expected).sum())
    assert stats.chi2.sf(statistic, vocab * vocab - 1) > 1e-3
    # Runner-up texts too: given the best, the next one has the law renormalised without it.
    joint = (first[:, None] * second).flatten()
    top = leaves.flatten(1).topk(2, dim=-1).indices
    pair = (
        torch.bincount(top[:, 0] * vocab**2 + top[:, 1], minlength=vocab**4).double().view(vocab**2, vocab**2)
    )
    told = samples * joint[:, None] * joint / (1.0 - joint[:, None])
    told.fill_diagonal_(0.0)
    often = told >= 5.0
    statistic = float(((pair - told)[often] ** 2 / told[often]).sum())
    assert stats.chi2.sf(statistic, int(often.sum()) - 1) > 1e-3


CHEAP = [[1], [2], [3], [1, 1], [2, 1], [1, 2], [1, 1, 1]]
WIDE = [[2, 2], [3, 1], [2, 1, 1]]
CASES = [
    *((tree, sparse, temperature) for tree in CHEAP for sparse, temperature in ((False, 1.0), (True, 0.5))),
    *((tree, True, 0.5) for tree in WIDE),  # impossible tokens leave fewer drafts to enumerate
]


def drawn_tree(
    branching: list[int], laws: dict[Path, PathLaw], rule: RejectionRule, draws: Enumerated
) -> tuple[list[Path], list[int]]:
    """Paths and parents of the nodes, root first: with replacement unless the rule is recursive."""
    paths: list[Path] = [()]
    parents = [-1]
    level = [0]
    for width in branching:
        deeper = []
        for node in level:
            law = torch.from_numpy(laws[paths[node]])[None]
            draw = draws.tokens_without_replacement if rule == "recursive" else draws.tokens_with_replacement
            for token in draw(law, width)[0].tolist():
                if token >= 0:
                    paths.append((*paths[node], token))
                    parents.append(node)
                    deeper.append(len(paths) - 1)
        level = deeper
    return paths, parents


def step_law(
    branching: list[int],
    target: dict[Path, PathLaw],
    draft: dict[Path, PathLaw],
    rule: RejectionRule,
    temperature: float,
) -> Iterator[tuple[float, Path]]:
    """(probability, emitted tokens) of every way a step can fall."""

    def run(draws: Enumerated) -> Path:
        paths, parents = drawn_tree(branching, draft, rule, draws)
        tokens = torch.tensor([[path[-1] if path else 0 for path in paths]])
        laws = torch.stack([torch.from_numpy(draft[path]) for path in paths])[None]
        with np.errstate(divide="ignore"):
            logits = torch.from_numpy(np.stack([temperature * np.log(target[path]) for path in paths]))[None]
        proposal = draft_of(tokens, torch.tensor([parents]), laws, rule)
        verdict = accept_by_rejection(proposal, logits, temperature=temperature, draws=[draws])
        kept = verdict[0].path
        return (*(paths[kept[-1]] if kept else ()), verdict[0].text[-1])

    yield from outcomes(run)


@pytest.mark.parametrize(("branching", "sparse", "temperature"), CASES)
@pytest.mark.parametrize("rule", ["recursive", "multi-round", "k-seq"])
def test_a_step_emits_the_targets_law(branching, rule, sparse, temperature):
    depth = len(branching)
    target = path_laws(VOCAB, depth, seed=1, sparse=sparse)
    draft = path_laws(VOCAB, depth, seed=2, sparse=sparse)
    emitted = list(step_law(branching, target, draft, rule, temperature))
    assert sum(probability for probability, _ in emitted) == pytest.approx(1.0, abs=1e-12)
    found = completed(emitted, target, depth + 1)
    for text in itertools.product(range(VOCAB), repeat=depth + 1):
        assert found.get(text, 0.0) == pytest.approx(text_probability(target, text), abs=1e-12), text
