"""The one place where the time of a step is composed."""
