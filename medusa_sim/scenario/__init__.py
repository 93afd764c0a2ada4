"""A question, resolved once: the GPU, model, engine, drafter and acceptance that arguments name."""
