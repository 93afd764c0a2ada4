"""Operator -> time. `roofline` is ideal, `calibrated` is fitted, `measured` reads a profile."""
