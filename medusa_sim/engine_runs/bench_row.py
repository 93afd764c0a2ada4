"""A run of a load generator as a row: requests in flight, time of a step, tokens of a request."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from medusa_sim.errors import DataError
from medusa_sim.outside.limits import POSITIONS
from medusa_sim.reading.files import named
from medusa_sim.scenario.declare import NUMBER, Declared, argument
from medusa_sim.units import US_PER_MS, US_PER_S

WANTED = (
    "a result of vllm bench serve, latency or throughput, SGLang's bench_serving, AIPerf "
    "(profile_export_aiperf.json) or GuideLLM (benchmarks.json), a log of vLLM or SGLang, or a CSV of "
    "concurrency, itl_ms or tpot_ms, prompt, output"
)
SHORTEST_US, LONGEST_US = 50.0, 60e6
"""Times of a step that can be: below and beyond, a column has another unit than it says."""
UNITS_US = {"us": 1.0, "ms": US_PER_MS, "s": US_PER_S, "sec": US_PER_S, "seconds": US_PER_S}
"""Microseconds of each unit that files name."""
OWN = "llama-bench"
"""The tool behind output copied from a terminal: llama-bench, mlx-lm, a server's timings."""
LOG = "log"
"""The tool of what an engine logged itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchRow:
    """One run at a fixed number of requests in flight.

    itl_us: median time between two chunks of a request (a step). tpot_us: time per token of a request. One of
    them is known. prompt, output: mean tokens of a request. drafts: draft tokens a step, 0: no speculation.
    acceptance_length: tokens a step. offline: one batch from its prompts to its last token, in `tpot_us`.
    with_prompts: `tpot_us` is requests over tokens a second, with the time in which each read its prompt.
    tells_drafts: whether the result would say so if its server drafted.
    model, engine: as the file names them; empty where it does not.
    """

    source: str
    tool: str
    model: str = ""
    engine: str = ""
    concurrency: float
    itl_us: float | None = None
    tpot_us: float | None = None
    prompt: float = 0.0
    output: float = 0.0
    tokens_per_s: float | None = None
    drafts: float = 0.0
    acceptance_length: float = 1.0
    offline: bool = False
    with_prompts: bool = False
    tells_drafts: bool = True

    @property
    def step_us(self) -> float:
        """Time of a step as it was observed: of a chunk, or of a token times the tokens of a step."""
        if self.itl_us is not None:
            return self.itl_us
        assert self.tpot_us is not None  # noqa: S101  # `checked` refuses rows without a time
        return self.tpot_us * self.acceptance_length


@dataclass(frozen=True, kw_only=True)
class Shape(Declared):
    """Shape that `vllm bench latency` and `throughput` leave out of their results, and drafts a step."""

    concurrency: float | None = argument(
        None, NUMBER, "Requests in flight, where a result lacks them.", above=0
    )
    prompt: float | None = argument(
        None, NUMBER, "Prompt tokens, where it lacks them.", option="--prompt-tokens", above=0
    )
    output: float | None = argument(
        None, NUMBER, "Output tokens, where it lacks them.", option="--output-tokens", above=0
    )
    drafts: float | None = argument(
        None, NUMBER, "Drafts a step, where it lacks them.", least=0, most=POSITIONS
    )


def with_shape(row: BenchRow, shape: Shape) -> BenchRow:
    """The row, completed with what the file leaves out."""
    return replace(
        row,
        prompt=row.prompt or shape.prompt or 0.0,
        output=row.output or shape.output or 0.0,
        drafts=row.drafts or (shape.drafts or 0.0 if row.acceptance_length > 1.0 else 0.0),
    )


def taken_as_plain(rows: Sequence[BenchRow], drafts: float | None) -> str:
    """A line on results that do not say whether their server drafted; empty where all do, or drafts is 0."""
    untold = dict.fromkeys(row.source for row in rows if not row.tells_drafts)
    if drafts == 0 or not untold:
        return ""
    return (
        f"{', '.join(untold)}: does not say whether its server drafted, so it is read as plain decoding "
        "(--drafts 0 if it was; a drafting server is measured by vllm bench serve)"
    )


def checked(row: BenchRow, path: Path) -> BenchRow:
    """The row. Raises DataError for numbers that cannot be, naming file and number."""
    where = f"{named(path)} ({row.source})" if row.tool == "csv" else named(path)
    if row.itl_us is None and row.tpot_us is None:
        raise DataError(f"{where}: neither itl nor tpot is given")
    for name, value in (("time between chunks", row.itl_us), ("time per token", row.tpot_us)):
        if value is None:
            continue
        told = f"{value / US_PER_MS:g} ms"
        if not (math.isfinite(value) and value > 0.0):
            raise DataError(f"{where}: a {name} of {told} is none; a number above 0 is needed")
        if not SHORTEST_US <= value <= LONGEST_US:
            raise DataError(
                f"{where}: the {name} would be {told}, no step of a model takes that; is the unit another "
                "one (s, ms, us)?"
            )
    tokens = 0.0 if row.tool in (LOG, OWN) else 1.0  # of a request: they do not say
    for name, least in (
        ("concurrency", 1.0), ("prompt", tokens), ("output", tokens), ("acceptance_length", 1.0),
    ):  # fmt: skip
        value = getattr(row, name)
        if not (math.isfinite(value) and value >= least):
            raise DataError(f"{where}: {name} {value:g}; a number from {least:g} is needed")
    if not 0.0 <= row.drafts <= POSITIONS or row.acceptance_length > row.drafts + 1.0 + 1e-9:
        raise DataError(
            f"{where}: {row.acceptance_length:.2f} tokens a step with {row.drafts:g} drafts cannot be; give "
            "the drafts of a step (--drafts K, column drafts)"
        )
    _check_rate(row, where)
    return row


def _check_rate(row: BenchRow, where: str) -> None:
    """Tokens per second that cannot go with the time per token: units of one of them are mixed up."""
    if row.tokens_per_s is None:
        return
    per_token_us = row.tpot_us if row.tpot_us is not None else row.step_us / row.acceptance_length
    ratio = row.tokens_per_s * per_token_us / US_PER_S / row.concurrency
    if not 0.02 <= ratio <= 5.0:
        raise DataError(
            f"{where}: {row.tokens_per_s:g} tokens/s with {row.concurrency:g} requests of "
            f"{per_token_us:g} us a token do not fit (by a factor of {ratio:.2g}); are units mixed?"
        )
