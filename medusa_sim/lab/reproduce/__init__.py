"""The papers' tables and figures, predicted beside published: `targets.TARGETS` lists them."""

from __future__ import annotations

from medusa_sim.lab.reproduce.published import Reproduction
from medusa_sim.lab.reproduce.targets import TARGETS, reproduction, scores

__all__ = ["TARGETS", "Reproduction", "reproduction", "scores"]
