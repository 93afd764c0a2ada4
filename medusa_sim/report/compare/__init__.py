"""A comparison of set-ups: on a screen, as values, for Python, as a page."""
