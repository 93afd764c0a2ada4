"""Benchmarks and logs of running engines as rows, and with their counters as runs to check."""
