"""A sweep: on a screen, as a page."""
