"""Names by which a user chooses what a step is. Free of numpy: help pages read them."""

from typing import Literal

Scope = Literal["model", "block"]
"""What a step launches: all that an engine runs, or the Medusa paper's simplified block."""
OverlapName = Literal["chain", "tree", "independent", "disjoint"]
"""How candidates of one sequence share experts (`expert_union`)."""
