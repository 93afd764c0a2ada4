"""Microbenchmarks of a device -> profile rows that `calibrate` and the `measured` latency model read."""
