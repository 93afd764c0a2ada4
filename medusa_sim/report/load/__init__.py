"""A load test: on a screen, in tables, as values, for Python, as a page."""
