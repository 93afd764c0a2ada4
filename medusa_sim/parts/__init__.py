"""A question of any size cut into parts: any worker computes a part, and each is written once."""
