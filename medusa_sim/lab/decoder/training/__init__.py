"""Training of Medusa heads and small models on text or on a model's own output."""
