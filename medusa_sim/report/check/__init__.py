"""A check of a running engine: on a screen, for Python."""
