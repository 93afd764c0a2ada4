"""Input from outside: how much of it is taken, and how its text is written out again."""
