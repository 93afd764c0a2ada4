"""What scripts of `benchmarks/` share: nothing here is run by itself."""
