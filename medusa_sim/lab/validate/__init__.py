"""Predictions against measurements: operators, steps, whole generations, trees, throughput."""
