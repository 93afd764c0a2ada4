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
    from medusa_sim.gpus.gpu import load_gpu as load_gpu
    from medusa_sim.grid.single_step import SingleStep as SingleStep
    from medusa_sim.models.named import load_model as load_model
    from medusa_sim.report.check.python import CheckResult as CheckResult
    from medusa_sim.report.compare.python import CompareResult as CompareResult
    from medusa_sim.report.load.python import LoadResult as LoadResult
    from medusa_sim.report.recommend.python import RecommendResult as RecommendResult

__version__ = "0.1.0"

_HOMES = {
    "CheckResult": "medusa_sim.report.check.python",
    "CompareResult": "medusa_sim.report.compare.python",
    "LoadResult": "medusa_sim.report.load.python",
    "MedusaSimError": "medusa_sim.errors",
    "RecommendResult": "medusa_sim.report.recommend.python",
    "Scenario": "medusa_sim.api",
    "SingleStep": "medusa_sim.grid.single_step",
    "compare": "medusa_sim.api",
    "load_acceptance": "medusa_sim.acceptance.profile",
    "load_gpu": "medusa_sim.gpus.gpu",
    "load_model": "medusa_sim.models.named",
    "recommend": "medusa_sim.api",
    "simulate": "medusa_sim.api",
    "sweep": "medusa_sim.api",
    "time_rows": "medusa_sim.api",
}

__all__ = [
    "CheckResult", "CompareResult", "LoadResult", "MedusaSimError", "RecommendResult", "Scenario",
    "SingleStep", "compare", "load_acceptance", "load_gpu", "load_model", "recommend", "simulate", "sweep",
    "time_rows",
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
