"""What comes from outside, and what of it goes out again: how much is taken, and how its text is written."""
