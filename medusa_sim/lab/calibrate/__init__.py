"""Measured rows of a device -> fitted kernel parameters, and how good they are on held-out shapes."""
