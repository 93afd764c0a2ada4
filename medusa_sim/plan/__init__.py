"""What there is to choose from: ways of drafting with their costs, and the acceptance that goes with them."""

from __future__ import annotations

from medusa_sim.plan.acceptance import acceptance_of, constant_rate, is_another_models
from medusa_sim.plan.options import CANDIDATES_MAX, METHODS, Drafting, DraftOption, Method, draft_options

__all__ = [
    "CANDIDATES_MAX",
    "METHODS",
    "DraftOption",
    "Drafting",
    "Method",
    "acceptance_of",
    "constant_rate",
    "draft_options",
    "is_another_models",
]
