"""The joint law of a whole step, every draft and decision enumerated, with laws that depend on the path."""

import itertools
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from decoder_models import Enumerated, outcomes
from path_laws import Law, Path, completed, path_laws, text_probability

from medusa_sim.decoder.accept import Rule, accept_by_rejection, draft_of

VOCAB = 3
CHEAP = [[1], [2], [3], [1, 1], [2, 1], [1, 2], [1, 1, 1]]
WIDE = [[2, 2], [3, 1], [2, 1, 1]]
CASES = [
    *((tree, sparse, temperature) for tree in CHEAP for sparse, temperature in ((False, 1.0), (True, 0.5))),
    *((tree, True, 0.5) for tree in WIDE),  # impossible tokens leave fewer drafts to enumerate
]


def drawn_tree(
    branching: list[int], laws: dict[Path, Law], rule: Rule, draws: Enumerated
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
    branching: list[int], target: dict[Path, Law], draft: dict[Path, Law], rule: Rule, temperature: float
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
        kept = verdict.paths[0]
        return (*(paths[kept[-1]] if kept else ()), verdict.next_tokens[0])

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


def test_the_oracle_sees_a_wrong_law():
    """Emitting the draft's own tokens is another law."""
    target, draft = path_laws(VOCAB, 1, seed=1), path_laws(VOCAB, 1, seed=2)
    texts = [(float(draft[()][token]), (token,)) for token in range(VOCAB)]
    found = completed(texts, target, 2)
    pairs = itertools.product(range(VOCAB), repeat=2)
    assert max(abs(found[text] - text_probability(target, text)) for text in pairs) > 0.05
