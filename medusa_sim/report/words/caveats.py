"""Caveats of an answer, in sentences."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from medusa_sim.doubts.of_answer import answer_doubts
from medusa_sim.doubts.of_scenario import scenario_doubts
from medusa_sim.grid.axes import Grid
from medusa_sim.grid.cells import Cells
from medusa_sim.plan.surprises import slower_format_us, slower_with_more
from medusa_sim.report.words.numbers import capitalised, duration, percent
from medusa_sim.scenario.scenario import Scenario


def caveats(scenarios: Sequence[Scenario], grid: Grid) -> Iterator[str]:
    """One sentence each, those that apply to these scenarios and this grid."""
    yield (
        "Every time is a prediction. The 80 % interval joins the errors of kernels, of an engine's terms and "
        "of the acceptance profile with what is new about the set-up against measured ones; it does not "
        "cover another clock or another driver."
    )
    for scenario in scenarios:
        yield from map(as_sentence, scenario_doubts(scenario))
        yield from _latency_caveats(scenario)
    profiles = {scenario.profile.name: scenario.profile for scenario in scenarios}
    for profile in profiles.values():
        yield (
            f"Tokens per step come from `{profile.name}` ({profile.source}), whatever the GPU and model: "
            "measure your own model's acceptance before relying on the speedup. Step times do not depend "
            "on it."
        )
    if any(scenario.scope == "block" for scenario in scenarios):
        yield (
            "Scope `block` is the Medusa paper's simplified block: no norms, output projection, LM head or "
            "drafter."
        )
    if any(scenario.baseline == "fixed" for scenario in scenarios):
        yield (
            "Baseline `fixed` divides every step by one decode step at batch 1 and length 1024, as the "
            "paper's plots do; it is no throughput ratio."
        )
    requests = int(grid.batch.min()), int(grid.batch.max())
    for scenario in scenarios:
        yield from map(as_sentence, answer_doubts(scenario, int(grid.seq_len.max()), requests))


def as_sentence(line: str) -> str:
    """A warning as a sentence of its own."""
    return f"{capitalised(line)}."


def more_may_pay(scenario: Scenario) -> str:
    """Says where the best count is the last one whose acceptance is known."""
    return f"the best count is the largest that acceptance {scenario.profile.name} describes: more may pay"


def guessed_text(scenario: Scenario, drafts: int) -> str:
    """` (guessed beyond 3 drafts)` for the tokens of more drafts; empty where all were measured."""
    first = scenario.guessed_from
    if first is None or drafts < first:
        return ""
    return f" (guessed beyond {'1 draft' if first == 2 else f'{first - 1} drafts'})"


def _latency_caveats(scenario: Scenario) -> Iterator[str]:
    name = scenario.latency.name
    if name == "roofline":
        yield (
            f"`{scenario.gpu.name}`: the roofline is a floor; the README's table of errors says how far it "
            "falls short of measured layers."
        )
    if name != "calibrated":
        return
    gemm = scenario.kernel_fits.linear
    if gemm is not None:
        yield (
            f"Linear layers of `{scenario.gpu.name}` ({scenario.kernels}): mean error "
            f"{percent(gemm.fit_error)} on the {gemm.rows} rows of the fit, "
            f"{percent(gemm.heldout_error)} on held-out shapes."
        )
    if scenario.backend is not None:
        yield (
            f"Verification attends with {scenario.backend.name} ({scenario.backend.source}); few rows of it "
            "with 2 to 128 queries are public: its time is put together from decode and prefill kernels "
            "where keys are split, and follows rows of an RTX 3090 where they are not."
        )


def slower_format_text(cells: Cells) -> list[str]:
    """Says where the format that was asked for is slower than the published one."""
    if (both := slower_format_us(cells)) is None:
        return []
    predicted, published = both
    return [
        f"slower than as published: a plain step at batch {cells.surface.batch[0]} takes "
        f"{duration(predicted)} in {cells.scenario.model.numbers}, {duration(published)} without "
        "--dtype and --weight-dtype"
    ]


def more_requests_text(cells: Cells) -> list[str]:
    """Numbers of requests from which one more lowers the throughput."""
    edges = slower_with_more(cells)
    if not edges:
        return []
    shown = sorted(edges[:3])
    listed = ", ".join(f"{batch} ({percent(change, 0)})" for batch, change in shown)
    return [
        f"more requests give less throughput beyond batch {listed}: linear layers begin another row of "
        "tiles there, or a graph of the next size"
    ]
