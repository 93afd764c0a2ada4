"""Doubts about a scenario, in sentences: parts that were not measured, and the nearest rows."""
