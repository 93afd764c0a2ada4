"""Operators of a decoder step, and tables of them."""
