"""Specifications: as rows, in tables."""
