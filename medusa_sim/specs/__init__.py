"""What is known before anything runs: GPUs, models, runtimes and fitted kernel parameters."""
