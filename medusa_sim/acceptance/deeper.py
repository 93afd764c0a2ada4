"""Rates of drafts beyond the last one that was measured: a guess, and how far off it may be.

    (T9)  ln c_(n+j) = ln c_n - f j,   f = u max(s, 0),   s = (ln c_1 - ln c_n) / (n - 1)

c_k is the probability that draft k is accepted where those before it were, n the drafts that were measured.
A chain falls on as it fell, by a share u <= 1 of it. Where all rates are one number that a mean length gave,
or there is only one, they do not say how they fall, and f is what rates of deeper chains fall from their
mean. Its 80 % interval has the fall a half-width lower and higher: it opens with each draft.

No draft adds more than the one before it, and a larger c_k never gives fewer tokens a step: where draft i
adds t_i tokens, c_1 brings (t_1 + ... + t_n + sum_j (1 - u j (j + 1) / (2 (n - 1))) t_(n+j)) / c_1, which is
positive for j <= n.

Both are fitted by `python benchmarks/deeper_rates.py` to shipped profiles of 5 to 8 drafts, each predicted
from its first 1 to 4. No profile says anything of depths beyond DEEPEST, so that none is carried on further.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from medusa_sim.acceptance.heads import HeadAccuracy
from medusa_sim.arrays import FloatArray

DEEPEST = 8
"""Drafts of the deepest shipped profiles: beyond them nobody measured how rates fall."""


@dataclass(frozen=True, slots=True)
class Fall:
    """How the logarithm of conditional rates of a kind of drafter falls beyond what was measured (T9)."""

    share: float
    """Share of a chain's own mean fall that goes on (u)."""
    share_error: float
    """80 % half-width of that fall from draft to draft."""
    alone: float
    """Fall from draft to draft where one number holds for all."""
    alone_error: float
    """80 % half-width of that."""


FALLS = {
    "eagle": Fall(share=0.40, share_error=0.053, alone=0.10, alone_error=0.066),
    "mtp": Fall(share=0.96, share_error=0.165, alone=0.26, alone_error=1.03),
    "every": Fall(share=0.78, share_error=0.085, alone=0.18, alone_error=0.158),
}
"""By kind of drafter (`Drafter.falls_as`): five EAGLE profiles, six of MTP, all 13 with DSpark's.

Half-widths from models that the fit had not seen. Accepted drafts of such models at the guessed depths: EAGLE
1.5 % off on average, MTP 1.6, all 1.7; from a mean length 1.4, 11.0, 5.5 (`benchmarks/deeper_rates.py`).
"""


@dataclass(frozen=True, slots=True)
class Guess:
    """From which draft on rates are guessed."""

    measured: int
    """The last draft that is not."""
    error: float
    """80 % half-width of the fall of their logarithm from draft to draft."""


def fall_of(rates: FloatArray, fall: Fall, *, of_mean: bool) -> tuple[float, float]:
    """(fall, its 80 % half-width) from draft to draft after conditional rates (drafts,), none of them 0.

    of_mean: they are one number, solved from a mean length.
    """
    if of_mean or rates.size < 2:
        return fall.alone, fall.alone_error
    return fall.share * max(float(np.log(rates[0] / rates[-1])) / (rates.size - 1), 0.0), fall.share_error


def fallen(rates: FloatArray, by: float, drafts: int) -> FloatArray:
    """(drafts,) more conditional rates: the logarithm of each is `by` below the one before it, 0 at most."""
    return np.asarray(np.minimum(rates[-1] * np.exp(-by * np.arange(1, drafts + 1)), 1.0))


def carried_on(heads: HeadAccuracy, fall: Fall, *, of_mean: bool) -> tuple[HeadAccuracy, Guess] | None:
    """A chain's rates to twice their depth, DEEPEST at most; None where nothing can be carried on.

    Trees of several ranks, the children of a draft model and what was never accepted are left as they are.
    """
    rates = heads.conditional()[:, 0]
    more = min(heads.depth, DEEPEST - heads.depth)
    if more < 1 or heads.ranks > 1 or heads.shared or heads.correlation or not rates.all():
        return None
    by, error = fall_of(rates, fall, of_mean=of_mean)
    accuracy = np.concatenate([heads.accuracy, fallen(rates, by, more)[:, None]])
    # a guess follows from the last rate: no better known than that
    labels = None if heads.labels is None else np.append(heads.labels, np.full(more, heads.labels[-1]))
    return replace(heads, accuracy=accuracy, labels=labels), Guess(heads.depth, error)


def guessed_band(rates: FloatArray, guess: Guess) -> tuple[FloatArray, FloatArray]:
    """(fewer, more) tokens that a chain of 0, 1, ... drafts may emit by the guess, each (1 + drafts,)."""
    beyond = np.maximum(np.arange(1, rates.size + 1) - guess.measured, 0)

    def emitted(by: float) -> FloatArray:
        reached = np.cumprod(np.minimum(rates * np.exp(-by * beyond), 1.0))
        return np.concatenate([[0.0], np.cumsum(reached)])

    guessed = emitted(0.0)
    return guessed - emitted(guess.error), emitted(-guess.error) - guessed
