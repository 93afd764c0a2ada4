"""A sweep for people at a terminal: the answer first, one line for each batch and length."""

from __future__ import annotations

from collections.abc import Sequence

from medusa_sim.plan import FREE_WITHIN
from medusa_sim.plan.cells import Cells
from medusa_sim.plan.columns import SWEEP, gain_column, with_unlisted
from medusa_sim.plan.counts import NEAR_BEST
from medusa_sim.plan.insights import Answer, Free
from medusa_sim.plan.quantities import BY_NAME
from medusa_sim.plan.scenario import Scenario
from medusa_sim.plan.slower import slower_format_us
from medusa_sim.plan.slower import slower_with_more as batches_slower_with_more
from medusa_sim.plan.terms import beyond_measured
from medusa_sim.report.caveats import (
    COST_COLUMNS,
    Costs,
    acceptance_basis,
    as_sentence,
    cost_sentences,
    memory_text,
    more_may_pay,
    shortfall_text,
)
from medusa_sim.report.quantity_table import quantity_table, shown
from medusa_sim.report.text import NOTHING, TextTable, drafts_text, duration, percent, span, times
from medusa_sim.report.verdict_text import crossing_text
from medusa_sim.report.workload_text import several_text, workload_text
from medusa_sim.step.workload import Grid
from medusa_sim.units import GIGA

_TABLE = (
    "batch", "seq_len", "candidates", "near_best", "drafts", "fits_memory", "speedup", "interval",
    "step_speedup", "kernels_speedup", "tokens_per_step", "baseline_overhead", "decode_step_us",
    "verify_step_us", "tokens_per_s", "plain_tokens_per_s", "usd_per_million_tokens", "joule_per_token",
    "grid_best", "free_candidates", "bound",
)  # fmt: skip
"""Columns of the table for people."""
_EXPENDABLE = (
    "joule_per_token", "usd_per_million_tokens", "decode_step_us", "verify_step_us", "plain_tokens_per_s",
    "bound", "grid_best", "tokens_per_step", "tokens_per_s",
)  # fmt: skip
"""Those that a narrow terminal leaves out, the first one first."""


def headline(scenario: Scenario, grid: Grid) -> str:
    """What was swept, on one line."""
    workload = workload_text(scenario, grid.seq_len, several_text(grid.batch))
    return f"{setup_text(scenario)}; {workload}{served_text(scenario)}"


def setup_text(scenario: Scenario) -> str:
    """What runs where, with what speedups are against where that is not plain decoding alike."""
    drafting = drafter_text(scenario) if scenario.scope == "model" else "one block"
    if scenario.where_trees_run:
        drafting += ", as a chain"
    fixed = scenario.baseline == "fixed"
    against = ", against the decode step at batch 1 and length 1024" if fixed else ""
    return f"{scenario_text(scenario, drafting)}{against}"


def served_text(scenario: Scenario) -> str:
    """That speedups are a server's, where requests are given."""
    return "" if scenario.traffic is None else "; speedups of the server, that of the step beside them"


def scenario_text(scenario: Scenario, drafting: str) -> str:
    """GPU, model, what drafts, runtime, latency and acceptance, on one line."""
    latency = scenario.latency.name
    latency += f" ({scenario.kernels} kernels)" if latency == "calibrated" else ""
    latency += "" if scenario.backend is None else f", verified by {scenario.backend.name}"
    return (
        f"{scenario.cards}, {scenario.model.name} {scenario.model.numbers}, {drafting}, "
        f"{scenario.runtime.name}, {latency}, {acceptance_text(scenario)}"
    )


def acceptance_text(scenario: Scenario) -> str:
    """`acceptance typical-ngram (workload coding)`: the profile, and what a reader of its name cannot see."""
    profile, guessed = scenario.profile, scenario.guessed_from
    marks = [
        # counted against a text and not the model's output
        *(["teacher-forced"] if profile.agreement == "teacher-forced" else []),
        *([] if guessed is None else [f"guessed from draft {guessed} on"]),
        *([] if profile.workload is None else [f"workload {profile.workload}"]),
    ]
    return f"acceptance {profile.name}" + (f" ({', '.join(marks)})" if marks else "")


def drafter_text(scenario: Scenario) -> str:
    """What drafts, in a few words."""
    drafting = scenario.drafting
    parts, title = drafting.parts, drafting.kind.title
    if drafting.kind.unit == "head":
        return f"{parts.heads} {title}"
    if parts.draft is not None:
        own = f" ({parts.draft_runtime.name})" if parts.draft_runtime is not None else ""
        return f"{title} {parts.draft.name}{own}"
    return title


def best_table(answer: Answer) -> TextTable:
    """One row for each batch and length: the best count and what it gives.

    Columns that say nothing here (one length, no throughput, everything fits) are left out.
    """
    fits, counts = answer.fits, answer.column("candidates").tolist()
    grid_gains = answer.column(SWEEP[gain_column(answer.scenario)], answer.best_on_grid).tolist()
    grid_counts = answer.column("candidates", answer.best_on_grid).tolist()
    own: dict[str, list[str]] = {
        "near_best": [NOTHING if low == high else f"{span(low, high)}" for low, high in answer.near],
        "drafts": [str(value) if value else NOTHING for value in answer.column("drafts").tolist()],
        "speedup": [times(value) for value, _, _ in answer.gains],
        "interval": [f"{low:.2f}-{high:.2f}" for _, low, high in answer.gains],
        "grid_best": [
            NOTHING if count == chosen else f"{count}: {times(gain)}"
            for count, gain, chosen in zip(grid_counts, grid_gains, counts, strict=True)
        ],
        "free_candidates": [free_text(int(free), answer.free) for free in answer.free.whole],
    }
    unit = "heads" if answer.scenario.drafting.kind.unit == "head" else "drafts"
    left_out = {
        *(["seq_len"] if answer.grid.seq_len.size == 1 else []),
        *(["fits_memory"] if all(fits) else []),
        *(["step_speedup"] if answer.scenario.traffic is None else []),
    }
    columns: dict[str, list[str]] = {}
    for name in with_unlisted(_TABLE):
        if name in left_out or not BY_NAME[name].title:
            continue
        cells = own.get(name) or [shown(name, value) for value in answer.column(name).tolist()]
        known = name in ("batch", "seq_len", "fits_memory")
        is_heads = name == "drafts" and not answer.best.configurations.are_chains
        columns[unit if is_heads else name] = [
            cell if here or known else NOTHING for cell, here in zip(cells, fits, strict=True)
        ]
    return quantity_table(columns, words=("bound", "fits_memory"), expendable=_EXPENDABLE)


def free_text(count: int, free: Free) -> str:
    """A free budget; `256+` where the search ended before it did."""
    return f"{count}+" if count >= free.largest else str(count)


def verdicts(answer: Answer) -> list[str]:
    """What follows from the grid: where it stops paying, what is free, where a larger count is cheaper."""
    several = answer.grid.seq_len.size > 1
    requests = int(answer.grid.batch.min()), int(answer.grid.batch.max())
    shortfall = [] if answer.shortfall is None else [shortfall_text(answer.shortfall)]
    if not any(answer.fits):
        return shortfall
    ranges = [
        crossing_text(crossing, "batch") + (f" at length {answer.grid.seq_len[place]}" if several else "")
        for place, crossing in enumerate(answer.paying)
    ]
    hints = [
        f"{pair.larger} candidates than {pair.smaller} (batch {pair.batch}"
        f"{f', length {pair.seq_len}' if several else ''})"
        for pair in answer.cheaper[:6]
    ]
    return [
        f"Speculation {'; '.join(ranges)}.",
        *engine_line(answer.in_engine),
        *_memory(answer),
        *_cost(answer),
        _free(answer),
        *([f"Larger but faster: {'; '.join(hints)}."] if hints else []),
        *shortfall,
        *slower_format(answer.by_count),
        *slower_with_more(answer.by_count),
        *([as_sentence(more_may_pay(answer.scenario))] if answer.ends_profile else []),
        *kernels_line(answer.scenario),
        *acceptance_basis(answer.scenario.profile),
        *map(as_sentence, beyond_measured(answer.scenario, int(answer.grid.seq_len.max()), requests)),
    ]


def slower_format(cells: Cells) -> list[str]:
    """That the format that was asked for is slower than the published one."""
    if (both := slower_format_us(cells)) is None:
        return []
    own, published = both
    return [
        f"Slower than as published: a plain step at batch {cells.surface.batch[0]} takes {duration(own)} in "
        f"{cells.scenario.model.numbers}, {duration(published)} without --dtype and --weight-dtype."
    ]


def slower_with_more(cells: Cells) -> list[str]:
    """Numbers of requests from which one more lowers the throughput."""
    edges = batches_slower_with_more(cells)
    if not edges:
        return []
    shown = sorted(edges[:3])
    listed = ", ".join(f"{batch} ({100.0 * change:.0f} %)" for batch, change in shown)
    return [
        f"More requests give less throughput beyond batch {listed}: linear layers begin another row of "
        "tiles there, or a graph of the next size."
    ]


def engine_line(best: Cells | None) -> list[str]:
    """What the engine that runs this drafter would give instead, at the first and the last batch."""
    if best is None:
        return []
    surface = best.surface
    several = surface.seq_len.size > 1
    ends = [
        f"{times(float(best.speedup[i, s, 0]))} with {drafts_text(int(best.candidates_at(i, s)))} at batch "
        f"{surface.batch[i]}" + (f", length {surface.seq_len[s]}" if several else "")
        for i, s in dict.fromkeys([(0, 0), (best.shape[0] - 1, best.shape[1] - 1)])
        if best.fits[i, s, 0]
    ]
    if not ends:
        return []
    name = best.scenario.runtime.name
    return [f"{name} has no tree attention: its chain gives {'; '.join(ends)} (--runtime vllm)."]


def _cost(answer: Answer) -> list[str]:
    """What tokens cost at the first and the last batch and length."""
    several = answer.grid.seq_len.size > 1
    names = ("batch", "seq_len", *COST_COLUMNS)
    rows = zip(answer.fits, *(answer.column(name).tolist() for name in names), strict=True)
    return cost_sentences(
        answer.scenario,
        [
            Costs(f"batch {size}" + (f", length {length}" if several else ""), *cost)
            for fits, size, length, *cost in rows
            if fits
        ],
    )


def _memory(answer: Answer) -> list[str]:
    """What the largest batch of the grid that fits keeps on a GPU, and how much larger it could be."""
    if answer.scenario.scope == "block":
        return []
    case = max(range(len(answer.fits)), key=lambda at: (answer.fits[at], answer.column("batch")[at]))
    parts, most = answer.memory(case)
    batch, length = (int(answer.column(name)[case]) for name in ("batch", "seq_len"))
    room = answer.scenario.usable_memory_bytes / GIGA
    count = int(answer.column("candidates")[case])
    return [
        f"Memory of a GPU at batch {batch}, length {length}: {memory_text(parts)} of {room:,.1f}; the "
        f"largest batch with {count} candidates is {most}."
    ]


def _free(answer: Answer) -> str:
    meaning = (
        f"As good: candidates within {NEAR_BEST:.0%} of the best speedup. Free: most candidates that cost "
        f"at most {FREE_WITHIN - 1:.0%} more than a plain step"
    )
    if answer.drafting_share <= 0.0:
        return f"{meaning} (searched to {answer.free.largest})."
    alone = free_text(int(answer.free.verification[0]), answer.free)
    batch = answer.grid.batch[0]
    return (
        f"{meaning}. At batch {batch} drafting alone adds {percent(answer.drafting_share)}; verification "
        f"alone is free up to {alone}."
    )


def sources(settings: Sequence[Scenario]) -> dict[str, dict[str, str]]:
    """Where the numbers of a sweep come from: GPU, model, runtime, kernels, acceptance."""
    sources_of: dict[str, dict[str, str]] = {}
    for item in settings:
        gpu, model, runtime = item.gpu, item.model, item.runtime
        sources_of[f"gpu {gpu.name}"] = dict(gpu.sources)
        sources_of[f"model {model.name}"] = {"sizes": model.source}
        sources_of[f"runtime {runtime.name}"] = dict(runtime.sources)
        if item.backend is not None:
            sources_of[f"runtime {runtime.name}"]["verified_by"] = (
                f"{item.backend.name}: {item.backend.source}"
            )
        sources_of[f"acceptance {item.profile.name}"] = {"tokens_per_step": item.profile.source}
        if item.kernel_fits.by_key:
            kernels = sources_of.setdefault(f"kernels {gpu.name} {item.kernels}", {})
            kernels |= {
                name: f"{fit.source}; {fit.rows} rows, mean error {fit.fit_error:.1%} of the fit, "
                f"{fit.heldout_error:.1%} on held-out shapes"
                for name, fit in item.kernel_fits.by_key.items()
            }
    return sources_of


def kernels_line(scenario: Scenario) -> list[str]:
    """The kinds of kernels that a step calls, with the error of each on shapes that its fit had not seen."""
    errors: dict[str, list[float]] = {}
    for name, fit in scenario.kernel_fits.by_key.items():
        errors.setdefault(name.partition(".")[0], []).append(fit.heldout_error)
    if not errors:
        return []
    text = ", ".join(f"{section} {span_of_percents(values)}" for section, values in errors.items())
    return [f"Kernels, mean error on held-out shapes: {text}; sources with --format json or --report."]


def span_of_percents(values: Sequence[float]) -> str:
    """`5.2 %`, or `5.6-8.5 %`."""
    low, high = percent(min(values)), percent(max(values))
    return high if low == high else f"{low.removesuffix(' %')}-{high}"
