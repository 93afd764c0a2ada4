"""A rule: the doubts of one kind about a scenario, a sentence each.

The docstring of a rule is the doubt that it raises.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeAlias

from medusa_sim.scenario.scenario import Scenario

Rule: TypeAlias = Callable[[Scenario], Iterator[str]]
