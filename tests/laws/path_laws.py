"""Laws that depend on the whole path, and the joint law of what a step emits: written without the package."""

import itertools
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

Law = npt.NDArray[np.float64]
Path = tuple[int, ...]


def path_laws(vocab: int, depth: int, seed: int, *, sparse: bool = False) -> dict[Path, Law]:
    """A law of the next token behind every path up to `depth` tokens; sparse: a third of them impossible."""
    rng = np.random.default_rng(seed)
    laws = {}
    for length in range(depth + 1):
        for path in itertools.product(range(vocab), repeat=length):
            law = rng.dirichlet(np.full(vocab, 0.7))
            if sparse:
                law[rng.permutation(vocab)[: vocab // 3]] = 0.0
            laws[path] = law / law.sum()
    return laws


def text_probability(laws: dict[Path, Law], text: Path) -> float:
    """That these tokens follow one another."""
    return float(np.prod([laws[text[:i]][token] for i, token in enumerate(text)]))


def completed(emitted: Iterable[tuple[float, Path]], laws: dict[Path, Law], length: int) -> dict[Path, float]:
    """Law of whole texts where what was emitted goes on as `laws` have it."""
    shorter: dict[Path, float] = {}
    for probability, text in emitted:
        shorter[text] = shorter.get(text, 0.0) + probability
    found: dict[Path, float] = {}
    vocab = len(laws[()])
    for text, probability in shorter.items():
        for rest in itertools.product(range(vocab), repeat=length - len(text)):
            whole = (*text, *rest)
            follows = np.prod([laws[whole[:i]][whole[i]] for i in range(len(text), length)])
            found[whole] = found.get(whole, 0.0) + probability * float(follows)
    return found
