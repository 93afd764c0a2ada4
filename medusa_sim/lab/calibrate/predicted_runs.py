"""Runs of a load generator on an engine: their steps as an engine's terms give them, and what they cover."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from medusa_sim.arrays import FloatArray
from medusa_sim.engine_runs.bench_row import BenchRow
from medusa_sim.engines.case import form_of
from medusa_sim.engines.engine import Engine
from medusa_sim.engines.ranges import MeasuredRange
from medusa_sim.engines.term import Term
from medusa_sim.operators.operator import Size
from medusa_sim.serving.server import ServedCells, in_server
from medusa_sim.serving.traffic import Traffic, served_length
from medusa_sim.step.drafter.base import Drafter
from medusa_sim.step.setting import Setting
from medusa_sim.step.step import decode_step, prefill_step, speculative_step

DrafterOf = Callable[[int], Drafter]
"""What drafts so many tokens."""


def engine_of(setting: Setting) -> Engine:
    """The engine of a setting that has one."""
    engine = setting.runtime.engine
    assert engine is not None  # noqa: S101  # fitted_runtime has refused other runtimes
    return engine


def with_terms(setting: Setting, terms: dict[str, Term]) -> Setting:
    """The setting with some terms of its engine replaced."""
    engine = engine_of(setting).with_terms(terms)
    return replace(setting, runtime=replace(setting.runtime, engine=engine))


def predicted_us(setting: Setting, row: BenchRow, drafter: DrafterOf | None) -> float:
    """Microseconds of a step of this run as its load generator would see it, prompts of others included.

    drafter: what drafts so many tokens, where the run speculates.
    """
    traffic = None if row.offline else Traffic(prompt_tokens=row.prompt, output_tokens=row.output)
    seq_len = served_length(setting, row.prompt + row.output / 2.0, traffic)
    tokens = np.asarray(row.acceptance_length)
    candidates = round(row.drafts) + 1
    if candidates > 1:
        assert drafter is not None  # noqa: S101  # fitted_runtime has refused runs without it
        asked = replace(setting, drafter=drafter(candidates - 1), compacted_drafts=candidates - 1)
    else:
        asked = setting

    def step_of(requests: Size) -> tuple[FloatArray, FloatArray]:
        """The step of so many requests, and its attention."""
        if candidates > 1:
            step = speculative_step(asked, requests, seq_len, candidates)
        else:
            step = decode_step(asked, requests, seq_len)
        return step.time_us, step.parts_us["attention"]

    step_us, attention_us = step_of(row.concurrency)
    loaded = asked.drafter if candidates > 1 else None
    cells = ServedCells(
        setting=asked,
        requests=row.concurrency,
        candidates=candidates,
        tokens_per_step=tokens,
        step_us=step_us,
        attention_us=attention_us,
        fewer=step_of,
        drafter=loaded,
    )
    seen = in_server(cells, traffic)
    if row.itl_us is not None:
        return float(seen.itl_us)
    if not row.offline:
        return float((seen.token_us if row.with_prompts else seen.tpot_us) * tokens)
    prompt_us = prefill_step(asked, row.concurrency, row.prompt, loaded, candidates=candidates).time_us
    return float((seen.tpot_us + prompt_us / row.output) * tokens)


def measured_range(setting: Setting, rows: Sequence[BenchRow]) -> MeasuredRange:
    """The set-up of the runs, by which the terms are known elsewhere."""
    gpus = setting.parallel.tp
    return MeasuredRange(
        forms=(form_of(setting.shard),),
        gpus=(gpus, gpus),
        generations=(setting.latency.gpu.architecture,),
        requests=max(round(max((row.concurrency for row in rows), default=1.0)), 1),
    )


def source_text(rows: Sequence[BenchRow]) -> str:
    """Where a term fitted to these runs comes from: `fitted to 6 runs (vllm bench serve)`."""
    tools = ", ".join(sorted({row.tool for row in rows}))
    return f"fitted to {len(rows)} runs ({tools})"


def covered_text(rows: Sequence[BenchRow]) -> str:
    """What the runs covered: `1 to 64 requests, prompts of 512, outputs of 128, 3 drafts`."""
    sizes = sorted({row.concurrency for row in rows})
    drafts = sorted({round(row.drafts) for row in rows if row.drafts > 0})
    prompts, outputs = (_span([getattr(row, name) for row in rows]) for name in ("prompt", "output"))
    text = f"{sizes[0]:g} to {sizes[-1]:g} requests, prompts of {prompts}, outputs of {outputs}"
    return f"{text}, {'/'.join(map(str, drafts))} drafts" if drafts else text


def _span(tokens: Sequence[float]) -> str:
    """`128 to 10000`, or the one number."""
    return " to ".join(dict.fromkeys(f"{end:.0f}" for end in (min(tokens), max(tokens))))
