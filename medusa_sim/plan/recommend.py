"""The search for a recommendation: every count at every batch asked about, then a schedule of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from medusa_sim.arrays import IntArray
from medusa_sim.errors import UsageError
from medusa_sim.grid.cells import price
from medusa_sim.grid.configurations import PLAIN
from medusa_sim.plan.break_even import BreakEven, break_even_batches
from medusa_sim.plan.capacity import batches_tried
from medusa_sim.plan.coarse_search import at_few_counts, coarse_searches
from medusa_sim.plan.recommendation import Recommendation
from medusa_sim.plan.schedule import ranges_over, schedule_rows
from medusa_sim.scenario.question import Question
from medusa_sim.scenario.scenario import Scenario


def recommend(scenario: Scenario, question: Question | None = None) -> Recommendation:
    """Search every configuration and answer (question None: the default one).

    The traffic of the server is the question's request, else the scenario's own, else the one that `compare`
    and `load` ask about too: speedups and rates are the server's. Only where lengths are asked about without
    a request, or no engine serves any, are they those of a step.
    Raises UsageError where the question or the profile does not fit the drafter, SpecError or
    CoverageError from the latency model.
    """
    scenario, asked = _with_traffic(scenario, Question() if question is None else question)
    options = scenario.options(asked.candidates_max)
    lengths = np.asarray(asked.seq_len, dtype=np.int64)
    cells = price(scenario, asked.batches, lengths, options)
    largest = cells.surface.max_batch[:, PLAIN].tolist()
    coarse = coarse_searches(
        scenario, at_few_counts(options), lengths, cells.surface.batch, [*map(batches_tried, largest)]
    )
    break_evens = break_even_batches(coarse, cells)
    if more := _batches_at_break_even(break_evens, cells.surface.batch):
        # a row that stands for batches between two searched ones must not cross break-even either
        cells = price(scenario, np.union1d(cells.surface.batch, more), lengths, options)
        break_evens = break_even_batches(coarse, cells)
    ranges = tuple(ranges_over([s], cells, asked, break_evens) for s in range(lengths.size))
    schedule = tuple(
        row for s, of_length in enumerate(ranges) for row in schedule_rows(cells, s, of_length, asked)
    )
    return Recommendation(
        question=asked,
        scenario=scenario,
        cells=cells,
        coarse=coarse,
        break_even_batches=break_evens,
        schedule=schedule,
        ranges=ranges,
    )


def _with_traffic(scenario: Scenario, question: Question) -> tuple[Scenario, Question]:
    """Both with the requests that the answer is about, and the question with its lengths."""
    if scenario.scope != "model":
        raise UsageError(f"scope {scenario.scope}: a recommendation is about whole models; take scope model")
    if question.request is not None:
        prompt, output = question.request
        scenario = scenario.but(prompt_tokens=prompt, output_tokens=output)
    elif not question.seq_len:
        scenario = scenario.with_usual_requests()
    traffic = scenario.traffic
    if traffic is not None and traffic.output_tokens <= 1.0 and question.max_latency_ms is not None:
        raise UsageError(
            f"max latency {question.max_latency_ms:g} ms: outputs of 1 token have no time between tokens; "
            "leave it out, or give outputs of 2"
        )
    if traffic is not None and question.request is None:
        question = replace(question, request=(round(traffic.prompt_tokens), round(traffic.output_tokens)))
    return scenario, replace(question, seq_len=scenario.lengths(question.seq_len))


def _batches_at_break_even(break_evens: Sequence[BreakEven], searched: IntArray) -> list[int]:
    """The last batch before each break-even that lies between two searched ones, and the first after it."""
    near = {batch for found in break_evens for edge in found.edges for batch in (edge - 1, edge)}
    return sorted(near.intersection(range(int(searched[0]) + 1, int(searched[-1]))) - {*searched.tolist()})
