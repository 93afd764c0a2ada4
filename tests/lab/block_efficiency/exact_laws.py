"""What draft-model methods accept and emit, by other routes than the package takes: oracles for its tests."""

import itertools

import numpy as np
import numpy.typing as npt

from medusa_sim.arrays import FloatArray
from medusa_sim.lab.block_efficiency.rejection import checked_pair, k_seq_gamma, normalised, residual


def recursive_rejection(
    draft: npt.ArrayLike, target: npt.ArrayLike, draws: int
) -> tuple[FloatArray, FloatArray]:
    """What recursive rejection of `draws` distinct tokens accepts and emits, exactly, by enumeration.

    Returns (children, emitted): children (..., draws), the probability that the k-th draw is the accepted
    one; emitted (..., vocabulary), the distribution of the token that is accepted or drawn from the last
    residual, which equals the target's (Theorem 3.1).

    After rejecting x, x is struck from the draft, the draft is renormalised (leaving that out biases the
    output from the third draw on), and the target becomes the residual (equations 2 and 3). Fewer tokens
    than draws simply end the list.
    """
    draft, target = np.broadcast_arrays(*checked_pair(draft, target))
    contexts = draft.shape[:-1]
    children, emitted = np.zeros((*contexts, draws)), np.zeros(draft.shape)
    for context in np.ndindex(contexts):
        _walk(draft[context], target[context], draws, 1.0, children[context], emitted[context])
    return children, emitted


def _walk(
    draft: FloatArray,
    target: FloatArray,
    draws: int,
    reached: float,
    children: FloatArray,
    emitted: FloatArray,
) -> None:
    """One round of a draft and a residual target; adds what it accepts to `children` and `emitted`."""
    at = children.size - draws
    accepted = np.minimum(draft, target)
    children[at] += reached * accepted.sum()
    emitted += reached * accepted
    over = np.maximum(draft - target, 0.0)  # of the rejected token, times the chance of rejection
    left = residual(draft, target)
    for token in np.flatnonzero(over > 0.0):
        struck = draft.copy()
        struck[token] = 0.0
        if draws > 1 and struck.sum() > 0.0:
            _walk(struck / struck.sum(), left, draws - 1, reached * over[token], children, emitted)
        else:
            emitted += reached * over[token] * left


def multi_round_emitted(draft: npt.ArrayLike, target: npt.ArrayLike, draws: int) -> FloatArray:
    """Distribution of the token emitted after at most `draws` rounds of SpecInfer; the target's."""
    draft, left = checked_pair(draft, target)
    reached = np.ones((*np.broadcast_shapes(draft.shape, left.shape)[:-1], 1))
    emitted = np.zeros(np.broadcast_shapes(draft.shape, left.shape))
    for _ in range(draws):
        accepted = np.minimum(draft, left)
        emitted = emitted + reached * accepted
        reached = reached * (1.0 - accepted.sum(axis=-1, keepdims=True))
        left = residual(draft, left)
    return np.asarray(emitted + reached * left)


def k_seq_emitted(draft: npt.ArrayLike, target: npt.ArrayLike, draws: int) -> FloatArray:
    """Distribution of the token emitted by K-SEQ, accepted or redrawn from the residual; the target's."""
    draft, target = checked_pair(draft, target)
    taken = np.minimum(draft, target / k_seq_gamma(draft, target, draws)[..., None])
    beta = taken.sum(axis=-1)
    accepted = 1.0 - (1.0 - beta) ** draws
    scale = np.divide(accepted, beta, out=np.zeros_like(beta), where=beta > 0.0)
    through = taken * scale[..., None]
    left = normalised(np.maximum(target - through, 0.0), target)
    return np.asarray(through + (1.0 - accepted)[..., None] * left)


def enumerated_holders(draft: FloatArray, target: FloatArray, draws: int) -> FloatArray:
    """(draws,) probability that K-SEQ accepts and 1, 2, ... of the drafts hold the token, draw by draw."""
    gamma = float(k_seq_gamma(draft, target, draws))
    holders = np.zeros(draws)
    for tokens in itertools.product(range(draft.size), repeat=draws):
        reached = float(np.prod(draft[list(tokens)]))
        for token in tokens:
            if draft[token] == 0.0:
                break
            chance = min(1.0, target[token] / (gamma * draft[token]))
            holders[tokens.count(token) - 1] += reached * chance
            reached *= 1.0 - chance
    return holders


def optimal_coupling(draft: npt.ArrayLike, target: npt.ArrayLike, draws: int) -> tuple[FloatArray, float]:
    """The optimal transport plan itself for one context, by linear programming.

    Returns (plan, acceptance): plan (vocabulary^draws, vocabulary) couples each tuple of draws (in
    itertools.product order) with the emitted token.
    """
    from scipy.optimize import linprog

    draft, target = checked_pair(draft, target)
    size = draft.size
    tuples = list(itertools.product(range(size), repeat=draws))
    source = np.array([np.prod(draft[list(draw)]) for draw in tuples])
    member = np.array([[float(token in draw) for token in range(size)] for draw in tuples])
    rows = np.kron(np.eye(len(tuples)), np.ones(size))
    columns = np.kron(np.ones(len(tuples)), np.eye(size))
    solution = linprog(
        -member.ravel(),
        A_eq=np.vstack([rows, columns]),
        b_eq=np.concatenate([source, target]),
        method="highs",
    )
    plan = np.asarray(solution.x, dtype=np.float64).reshape(member.shape)
    return plan, float((plan * member).sum())
