"""A scenario -> what to run: the grid of costs and tokens per step, and every answer read off it."""
