"""Bands beyond what was measured do not narrow.

An engine's terms were fitted to servers of up to some number of requests, and of tokens a request. Beyond
these the terms are a smaller share of a step, and its band would narrow although no more is known. So a band
is at least as wide as at every edge below. Edges are the largest value measured and its doublings.

Steps of an engine that was measured with up to 64 requests, asked about with 48, 100 and 300:

>>> asked = np.array([48, 100, 300])
>>> edges = edges_below(64, asked)
>>> edges.tolist()
[64, 128, 256]

By its terms the step has half-widths of 10, 7 and 5 % there, and of 9, 6 and 8 % at the edges. 100 and 300
requests lie beyond the first edge and keep its 9 %:

>>> least = widest_below(edges, np.array([0.09, 0.06, 0.08]), asked)
>>> np.maximum([0.10, 0.07, 0.05], least).tolist()
[0.1, 0.09, 0.09]
"""

from __future__ import annotations

import numpy as np

from medusa_sim.arrays import FloatArray, IntArray


def edges_below(measured: int, asked: IntArray | FloatArray) -> IntArray:
    """The largest value measured (0: none) and its doublings, up to the largest value asked."""
    edges = []
    while 0 < measured < asked.max(initial=0):
        edges.append(measured)
        measured *= 2
    return np.asarray(edges, dtype=np.int64)


def widest_below(
    edges: IntArray, halves: FloatArray, asked: IntArray | FloatArray, axis: int = 0
) -> FloatArray:
    """The widest half-width at any edge below each value asked; 0 where there is none.

    halves: half-widths, with the edges along `axis`; the result has the values asked there.
    """
    widest = np.maximum.accumulate(halves, axis=axis)
    nothing = np.zeros_like(widest.take([0], axis=axis))
    below = np.searchsorted(edges, asked, side="left")
    return np.asarray(np.concatenate([nothing, widest], axis=axis).take(below, axis=axis))
