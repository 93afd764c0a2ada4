"""Tokens per step: curves, candidate trees, head accuracies and draft-model methods.

Knows nothing of time: one step cost serves every acceptance profile, and the other way round.
"""
