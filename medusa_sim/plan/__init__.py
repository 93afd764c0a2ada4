"""A priced grid -> what to run: where speculation pays, with how many candidates, and how sure that is."""

from medusa_sim.plan import quantities  # declared for whoever prints an answer of this room

__all__ = ["quantities"]
