"""What is asked, resolved once: the GPU, model, engine, drafter and acceptance that arguments name."""
