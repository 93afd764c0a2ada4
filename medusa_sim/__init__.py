"""medusa-sim: how many candidate tokens one speculative verification step should carry.

    import medusa_sim as ms

    s = ms.Scenario(gpu="h100-sxm", model="llama-3.1-8b", drafter="eagle3", acceptance="eagle3-llama-3.1-8b")
    s.sweep(batch=[1, 4, 16, 64], candidates=range(1, 33))
    s.recommend(batch=(1, 64))

docs/python.md shows the rest. Names are loaded when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from medusa_sim.acceptance.profile import load_acceptance as load_acceptance
    from medusa_sim.api import Scenario as Scenario
    from medusa_sim.api import compare as compare
    from medusa_sim.api import recommend as recommend
    from medusa_sim.api import simulate as simulate
    from medusa_sim.api import sweep as sweep
    from medusa_sim.api import time_rows as time_rows
    from medusa_sim.errors import MedusaSimError as MedusaSimError
    from medusa_sim.grid.single_step import SingleStep as SingleStep
    from medusa_sim.report.compare.python import Compared as Compared
    from medusa_sim.report.load.python import Simulation as Simulation
    from medusa_sim.report.recommend.python import Answer as Answer
    from medusa_sim.specs.gpu import load_gpu as load_gpu
    from medusa_sim.specs.models import load_model as load_model

__version__ = "0.1.0"

_HOMES = {
    "Answer": "medusa_sim.report.recommend.python",
    "Compared": "medusa_sim.report.compare.python",
    "MedusaSimError": "medusa_sim.errors",
    "Scenario": "medusa_sim.api",
    "Simulation": "medusa_sim.report.load.python",
    "SingleStep": "medusa_sim.grid.single_step",
    "compare": "medusa_sim.api",
    "load_acceptance": "medusa_sim.acceptance.profile",
    "load_gpu": "medusa_sim.specs.gpu",
    "load_model": "medusa_sim.specs.models",
    "recommend": "medusa_sim.api",
    "simulate": "medusa_sim.api",
    "sweep": "medusa_sim.api",
    "time_rows": "medusa_sim.api",
}

__all__ = [
    "Answer", "Compared", "MedusaSimError", "Scenario", "Simulation", "SingleStep", "compare",
    "load_acceptance", "load_gpu", "load_model", "recommend", "simulate", "sweep", "time_rows",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """A public name, imported at its first use (PEP 562), so that `import medusa_sim` stays fast."""
    if name not in _HOMES:
        raise AttributeError(f"module 'medusa_sim' has no attribute {name!r} (public: {', '.join(__all__)})")
    from importlib import import_module

    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """The public names."""
    return [*__all__, "__version__"]
