"""Work made again from its description, as a worker elsewhere does it."""

from __future__ import annotations

import json
from functools import lru_cache

from medusa_sim.errors import UsageError, unknown_name
from medusa_sim.parts.load_parts import LoadParts
from medusa_sim.parts.sweep_parts import SweepParts
from medusa_sim.parts.work import Description, Work


def work_of(description: Description) -> Work:
    """The work of a description; the same object for the same description, with what it has loaded.

    Raises UsageError for a kind that nobody knows, and what the work itself raises.
    """
    return _work(json.dumps(description, sort_keys=True))


@lru_cache(maxsize=4)
def _work(text: str) -> Work:
    description = json.loads(text)
    match description.get("kind"):
        case "sweep":
            return SweepParts.made_from(description)
        case "load":
            return LoadParts.made_from(description)
        case kind:
            raise UsageError(unknown_name("kind of work", str(kind), ("sweep", "load")))
