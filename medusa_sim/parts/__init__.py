"""A question of any size cut into parts: each is computed by whoever takes it and written once."""
