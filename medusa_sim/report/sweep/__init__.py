"""A sweep: on a screen, in sentences, as tables, as a page."""
