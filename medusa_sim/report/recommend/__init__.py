"""A recommendation: on a screen, in sentences, as values, for Python, as a page."""
