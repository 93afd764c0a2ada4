"""RSD-S exactly, for draft and target models small enough to write down (RSD paper 3.2, Theorem 3.2).

Stochastic beam search draws sequences without replacement: give every full sequence a Gumbel key on
its log probability, let a node's key be the largest below it, and keep the W largest at each level.
So the beams follow from the order in which distinct sequences are drawn, and enumerating that order
gives the exact law of the tree. Draws that change no beam are skipped: without replacement, the next one that
does is drawn in proportion to its own probability among those that do.
"""

from collections.abc import Sequence

import numpy as np

from medusa_sim.acceptance.draft_model.rejection import checked_distribution, recursive_children_of_draws
from medusa_sim.arrays import FloatArray
from medusa_sim.errors import DataError

SEQUENCES_MAX = 64
Prefix = tuple[int, ...]
Model = Sequence[FloatArray]
"""Conditional laws: level l has shape (vocabulary^l, vocabulary), prefixes in base-vocabulary order."""


def _row(prefix: Prefix, vocabulary: int) -> int:
    row = 0
    for token in prefix:
        row = row * vocabulary + token
    return row


def _checked_models(draft: Model, target: Model, width: int) -> int:
    if not draft or len(target) < len(draft) or width < 1:
        raise DataError(
            "a draft model of one level or more, as many target levels and a width from 1 are needed"
        )
    vocabulary = int(draft[0].shape[-1])
    for level, both in enumerate(zip(draft, target, strict=False)):
        for law, name in zip(both, ("draft", "target"), strict=True):
            if checked_distribution(law, f"{name} level {level}").shape != (vocabulary**level, vocabulary):
                raise DataError(
                    f"{name} level {level}: {vocabulary**level} laws of {vocabulary} tokens are needed"
                )
    if vocabulary ** len(draft) > SEQUENCES_MAX:
        raise DataError(f"{vocabulary ** len(draft)} sequences; at most {SEQUENCES_MAX} can be enumerated")
    return vocabulary


def accepted_in_tree(levels: Sequence[Sequence[Prefix]], draft: Model, target: Model) -> float:
    """Expected accepted draft tokens of one drawn tree, by recursive rejection at each accepted node.

    `levels[l]`: the nodes of depth l + 1, siblings in the order in which they were drawn.
    """
    vocabulary = int(draft[0].shape[-1])
    reached: dict[Prefix, float] = {(): 1.0}
    total = 0.0
    for level, nodes in enumerate(levels):
        children: dict[Prefix, list[int]] = {}
        for node in nodes:
            children.setdefault(node[:-1], []).append(node[-1])
        following: dict[Prefix, float] = {}
        for parent, tokens in children.items():
            row = _row(parent, vocabulary)
            laws = draft[level][row][None, :], target[level][row][None, :]
            accepted = recursive_children_of_draws(*laws, np.array([tokens]))[0]
            for token, probability in zip(tokens, accepted, strict=True):
                following[(*parent, token)] = reached.get(parent, 0.0) * float(probability)
        total += sum(following.values())
        reached = following
    return total


def rsd_s_block_efficiency(draft: Model, target: Model, width: int) -> float:
    """Exact expected tokens per step of RSD-S: `len(draft)` levels, beams of `width`.

    Raises:
        DataError: laws of the wrong shape, or too many sequences to enumerate.
    """
    vocabulary = _checked_models(draft, target, width)
    length = len(draft)
    sequences: dict[Prefix, float] = {(): 1.0}
    for level in range(length):
        sequences = {
            (*prefix, token): probability * float(draft[level][_row(prefix, vocabulary), token])
            for prefix, probability in sequences.items()
            for token in range(vocabulary)
        }
    possible = {sequence: probability for sequence, probability in sequences.items() if probability > 0.0}

    def expected(drawn: tuple[tuple[Prefix, ...], ...]) -> float:
        changes: dict[tuple[tuple[Prefix, ...], ...], float] = {}
        for sequence, probability in possible.items():
            grown = tuple(
                nodes
                if len(nodes) >= width or sequence[: level + 1] in nodes
                else (*nodes, sequence[: level + 1])
                for level, nodes in enumerate(drawn)
            )
            if grown != drawn:
                changes[grown] = changes.get(grown, 0.0) + probability
        if not changes:
            return accepted_in_tree(drawn, draft, target)
        mass = sum(changes.values())
        return sum(share / mass * expected(grown) for grown, share in changes.items())

    return 1.0 + expected(((),) * length)
