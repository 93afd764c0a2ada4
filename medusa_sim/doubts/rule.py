"""A rule of doubts: of a scenario, lines about what an answer rests on; none where it rests on nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeAlias

from medusa_sim.scenario.scenario import Scenario

Rule: TypeAlias = Callable[[Scenario], Iterator[str]]
