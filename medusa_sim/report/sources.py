"""Where the numbers of an answer come from: the end of every report."""

from __future__ import annotations

from collections.abc import Sequence

from medusa_sim import __version__
from medusa_sim.report.blocks import Block, Bullets, Folded, Heading, Text
from medusa_sim.report.table import TextTable
from medusa_sim.report.words.numbers import percent
from medusa_sim.scenario.scenario import Scenario


def sources(scenarios: Sequence[Scenario]) -> dict[str, dict[str, str]]:
    """Sources of the numbers of a GPU, a model, a runtime, kernels and acceptance."""
    sources_of: dict[str, dict[str, str]] = {}
    for scenario in scenarios:
        gpu, model, runtime = scenario.gpu, scenario.model, scenario.runtime
        sources_of[f"gpu {gpu.name}"] = dict(gpu.sources)
        sources_of[f"model {model.name}"] = {"sizes": model.source}
        sources_of[f"runtime {runtime.name}"] = dict(runtime.sources)
        if scenario.backend is not None:
            sources_of[f"runtime {runtime.name}"]["verified_by"] = (
                f"{scenario.backend.name}: {scenario.backend.source}"
            )
        sources_of[f"acceptance {scenario.profile.name}"] = {"tokens_per_step": scenario.profile.source}
        if scenario.kernel_fits.by_key:
            kernels = sources_of.setdefault(f"kernels {gpu.name} {scenario.kernels}", {})
            kernels |= {
                name: f"{fit.source}; {fit.rows} rows, mean error {percent(fit.fit_error)} of the fit, "
                f"{percent(fit.heldout_error)} on held-out shapes"
                for name, fit in scenario.kernel_fits.by_key.items()
            }
    return sources_of


def closing(scenarios: Sequence[Scenario], trust: tuple[str, ...], command: str) -> list[Block]:
    """The end of a report: sources, how far to trust it, version and command."""
    tables = [
        Folded(
            f"{name}: {len(facts)} source{'s' if len(facts) > 1 else ''}",
            TextTable.by_column(
                {"number": list(facts), "source": list(facts.values())}, words=("number", "source")
            ),
        )
        for name, facts in sources(scenarios).items()
    ]
    lines: list[Block] = [Heading("How far to trust this"), Bullets(trust)] if trust else []
    return [Heading("Sources"), *tables, *lines, Text(f"medusa-sim {__version__}, `{command}`", "soft")]
