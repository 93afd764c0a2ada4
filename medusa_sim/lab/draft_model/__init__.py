"""Exact small-vocabulary calculators of draft-model methods.

`draft` and `target` are distributions: arrays whose last axis is the vocabulary and sums to 1; leading axes
are contexts. Formulas are those of the Recursive Speculative Decoding paper (arXiv 2402.14160).
"""
