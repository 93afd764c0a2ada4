"""Tokens per step of methods that draft with a small model, predicted from a few measured chains.

Block efficiency is the papers' word for tokens per step. `draft` and `target` are distributions: arrays whose
last axis is the vocabulary and sums to 1; leading axes are contexts. Equations (D1) to (D13) are those of
docs/method-acceptance.md, the methods those of Recursive Speculative Decoding (RSD, arXiv 2402.14160).
"""
