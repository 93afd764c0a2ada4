"""Exact small-vocabulary calculators of draft-model methods.

Laws are arrays whose last axis is the vocabulary and sums to 1; leading axes are contexts. As in the
Recursive Speculative Decoding paper (arXiv 2402.14160): p is the draft's law, q the target's.
"""
