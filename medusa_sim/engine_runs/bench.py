"""Results of load generators as rows of one kind: requests in flight, time of a step, tokens a request.

Read are the JSON of `vllm bench serve` (TensorRT-LLM's benchmark_serving writes the same), `vllm bench
latency` and `vllm bench throughput`, the lines of SGLang's `bench_serving`, AIPerf's
`profile_export_aiperf.json`, GuideLLM's `benchmarks.json`, logs of vLLM and SGLang, and a CSV. The
inter-token latency of vLLM and SGLang is the time between two chunks, a step; that of AIPerf and GuideLLM is
the mean per token of a request, which is kept apart as `tpot`, and so is SGLang's where it speculates.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from medusa_sim.engine_runs.log import Logged, logged
from medusa_sim.errors import DataError, shown
from medusa_sim.outside.limits import POSITIONS, TABLE_BYTES
from medusa_sim.plan.arguments import NUMBER, Declared, argument
from medusa_sim.reading import json_documents, named, read_csv_table, read_text
from medusa_sim.units import US_PER_MS, US_PER_S

if TYPE_CHECKING:
    from medusa_sim.acceptance.engine_counters import AcceptanceCounts
    from medusa_sim.plan.own_rows import OwnRows

WANTED = (
    "a result of vllm bench serve, latency or throughput, SGLang's bench_serving, AIPerf "
    "(profile_export_aiperf.json) or GuideLLM (benchmarks.json), a log of vLLM or SGLang, or a CSV of "
    "concurrency, itl_ms or tpot_ms, prompt, output"
)
SHORTEST_US, LONGEST_US = 50.0, 60e6
"""Times of a step that can be: below and beyond, a column has another unit than it says."""
_UNITS_US = {"us": 1.0, "ms": US_PER_MS, "s": US_PER_S, "sec": US_PER_S, "seconds": US_PER_S}
_CSV_NUMBERS = ("concurrency", "prompt", "output", "drafts", "acceptance_length", "tokens_per_s")


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchRow:
    """One run at a fixed number of requests in flight.

    itl_us: median time between two chunks of a request (a step). tpot_us: time per token of a request. One of
    them is known. prompt, output: mean tokens of a request. drafts: draft tokens a step, 0: no speculation.
    acceptance_length: tokens a step. offline: one batch from its prompts to its last token, in `tpot_us`.
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

    @property
    def step_us(self) -> float:
        """Time of a step as it was observed: of a chunk, or of a token times the tokens of a step."""
        if self.itl_us is not None:
            return self.itl_us
        assert self.tpot_us is not None  # noqa: S101  # `checked` refuses rows without a time
        return self.tpot_us * self.acceptance_length


@dataclass(frozen=True, kw_only=True)
class Shape(Declared):
    """What `vllm bench latency` and `throughput` do not write into their results, and drafts a step."""

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


def read_bench(path: Path, shape: Shape | None = None) -> list[BenchRow]:
    """The rows of a file, checked. `shape`: what the file does not say.

    Raises DataError in one line for a file of another kind or version, missing or negative numbers, units
    that cannot be, and runs that failed.
    """
    known = shape or Shape()
    if path.suffix.lower() == ".csv":
        rows = list(_of_csv(path))
    else:
        text = read_text(path, TABLE_BYTES, WANTED, DataError)
        if (own := _own_rows(text, path)) is not None:
            return [_checked(row, path) for row in _of_own(own, path, known)]
        log = logged(text)
        rows = (
            [_of_log(log, path, known)]
            if log is not None
            else [
                row
                for document in json_documents(text, path, WANTED, DataError, finite=False)
                for row in _of_document(document, path, known)
            ]
        )
    return [_checked(_with_shape(row, known), path) for row in rows]


def _own_rows(text: str, path: Path) -> OwnRows | None:
    """What stands on one's own terminal; None of any other text. Raises DataError where it holds no speed."""
    from medusa_sim.plan.own_rows import is_own, rows_of  # commands need `Shape` for their help alone

    return rows_of(text, path) if is_own(text) else None


def _of_own(own: OwnRows, path: Path, shape: Shape) -> Iterator[BenchRow]:
    """llama-bench and its like: plain steps of one or more sequences, and a server's tokens with drafts."""
    model = own.told.get("model", "")
    for row in own.rows:
        if row.columns == 1 or row.is_batch:
            yield BenchRow(
                source=path.name,
                tool=OWN,
                model=model,
                concurrency=float(row.columns),
                itl_us=row.time_us,
            )
    if own.drafted_us and own.acceptance is not None:
        if shape.drafts is None:
            raise DataError(
                f"{named(path)}: {own.acceptance:.0%} of the drafts were accepted, but it does not say how "
                "many a round had; add --drafts K"
            )
        yield BenchRow(
            source=path.name,
            tool=OWN,
            model=model,
            concurrency=1.0,
            tpot_us=own.drafted_us,
            drafts=shape.drafts,
            acceptance_length=1.0 + shape.drafts * own.acceptance,
        )


def is_bench(path: Path) -> bool:
    """Whether a file looks like a result of a load generator, by its name or a key that only one writes."""
    if path.suffix.lower() == ".csv":
        return True
    try:
        text = read_text(path, TABLE_BYTES, WANTED, DataError)
        if _own_rows(text, path) is not None or logged(text) is not None:
            return True
        documents = json_documents(text, path, WANTED, DataError, finite=False)
        return any(isinstance(each, dict) and bool(_READERS.keys() & each.keys()) for each in documents)
    except DataError:
        return False


OWN = "llama-bench"
"""The tool of what stands on one's own terminal: llama-bench, mlx-lm, a server's timings."""
LOG = "log"
"""The tool of what an engine logged itself."""


def _of_log(log: Logged, path: Path, shape: Shape) -> BenchRow:
    """A log's steady lines. vLLM writes its acceptance by position on lines of their own."""
    drafts, length = shape.drafts or log.drafts or 0.0, log.length or 1.0
    if log.engine == "vllm" and (counts := logged_counts(path)) is not None:
        drafts, length = float(counts.tried.size), counts.tokens_per_step
    if length > 1.0 and not drafts:
        raise DataError(
            f"{named(path)}: speculated ({length:.2f} tokens a step), but does not say how many drafts; add "
            "--drafts K"
        )
    return BenchRow(
        source=path.name,
        tool=LOG,
        engine=log.engine,
        concurrency=log.running,
        tpot_us=log.running / log.tokens_per_s * US_PER_S,
        tokens_per_s=log.tokens_per_s,
        drafts=float(drafts) if length > 1.0 else 0.0,
        acceptance_length=length,
    )


def logged_counts(path: Path) -> AcceptanceCounts | None:
    """Acceptance by position of a log; None where it holds none."""
    from medusa_sim.acceptance.engine_counters import combined  # commands need `Shape` for their help alone
    from medusa_sim.acceptance.engine_records import read_counts

    try:
        return combined(read_counts(path))
    except DataError:
        return None


def _of_document(document: Any, path: Path, shape: Shape) -> Iterator[BenchRow]:
    if not isinstance(document, dict):
        raise DataError(f"{named(path)}: holds no result of a benchmark; give {WANTED}")
    for key, read in _READERS.items():
        if key in document:
            try:
                told = _text(_TOLD_MODEL, document)
                for row in read(document, path, shape):
                    yield replace(row, model=row.model or told, engine=_engine_of(document))
            except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
                raise DataError(
                    f"{named(path)}: not as the version that is known writes it ({type(error).__name__} "
                    f"{' '.join(str(error).split())[:120]}); give {WANTED}"
                ) from error
            return
    raise DataError(f"{named(path)}: holds no result of a known benchmark; give {WANTED}")


def _of_serve(result: Mapping[str, Any], path: Path, shape: Shape) -> Iterator[BenchRow]:
    """`vllm bench serve` and what was made after it: SGLang's and TensorRT-LLM's."""
    sglang = str(result.get("backend", "")).startswith("sglang")
    tool = "sglang bench_serving" if sglang else "vllm bench serve"
    completed = _number(result, "completed", path)
    if completed <= 0 or result.get("failed"):
        raise DataError(
            f"{named(path)}: {result.get('failed', 'all')} requests failed; mend that and run again"
        )
    in_flight = result.get("max_concurrency") or result.get("concurrency") or shape.concurrency
    if in_flight is None:
        raise DataError(
            f"{named(path)}: ran at a request rate, not at a number of requests in flight; run again with "
            "--max-concurrency N"
        )
    drafts, length = 0.0, 1.0
    if result.get("spec_decode_num_drafts"):
        drafts = _number(result, "spec_decode_draft_tokens", path) / _number(
            result, "spec_decode_num_drafts", path
        )
        length = _number(result, "spec_decode_acceptance_length", path)
    elif result.get("accept_length"):
        length = _number(result, "accept_length", path)
        if shape.drafts is None:
            raise DataError(
                f"{named(path)}: speculated ({length:.2f} tokens a step), but does not say how many drafts; "
                "add --drafts K"
            )
        drafts = shape.drafts
    yield BenchRow(
        source=path.name,
        tool=tool,
        concurrency=min(float(in_flight), completed),
        # SGLang's client shares the time of a chunk out among its tokens (adjust_itl): no step when it drafts
        itl_us=None if sglang and length > 1.0 else _number(result, "median_itl_ms", path) * US_PER_MS,
        tpot_us=_number(result, "median_tpot_ms", path) * US_PER_MS,
        prompt=_number(result, "total_input_tokens", path) / completed,
        output=_number(result, "total_output_tokens", path) / completed,
        tokens_per_s=_number(result, "output_throughput", path),
        drafts=drafts,
        acceptance_length=length,
    )


def _of_latency(result: Mapping[str, Any], path: Path, shape: Shape) -> Iterator[BenchRow]:
    """`vllm bench latency`: one batch, prompts included; the shape is not in the file."""
    if shape.concurrency is None or shape.prompt is None or shape.output is None:
        raise DataError(
            f"{named(path)}: bench latency does not write its shape; add --concurrency B --prompt-tokens P "
            "--output-tokens N (its --batch-size, --input-len, --output-len)"
        )
    yield BenchRow(
        source=path.name,
        tool="vllm bench latency",
        concurrency=shape.concurrency,
        tpot_us=_number(result, "avg_latency", path) * US_PER_S / shape.output,
        offline=True,
    )


def _of_throughput(result: Mapping[str, Any], path: Path, shape: Shape) -> Iterator[BenchRow]:
    """`vllm bench throughput`: requests in flight and output tokens are not in the file."""
    if shape.concurrency is None or shape.output is None:
        raise DataError(
            f"{named(path)}: bench throughput does not write its shape; add --concurrency B "
            "--prompt-tokens P --output-tokens N (its --max-num-seqs, --input-len, --output-len)"
        )
    rate = _number(result, "requests_per_second", path) * shape.output
    yield BenchRow(
        source=path.name,
        tool="vllm bench throughput",
        concurrency=shape.concurrency,
        tpot_us=shape.concurrency / rate * US_PER_S,
        tokens_per_s=rate,
    )


def _of_aiperf(result: Mapping[str, Any], path: Path, shape: Shape) -> Iterator[BenchRow]:
    """AIPerf: means over requests; its inter-token latency is per token."""
    if result.get("was_cancelled") or result.get("error_summary"):
        raise DataError(f"{named(path)}: the run was cancelled or had errors; mend that and run again")
    in_flight = shape.concurrency if shape.concurrency is not None else _anywhere(result, "concurrency")
    if in_flight is None:
        raise DataError(f"{named(path)}: does not say how many requests were in flight; add --concurrency B")
    yield BenchRow(
        source=path.name,
        tool="aiperf",
        concurrency=float(in_flight),
        tpot_us=_aiperf_us(result["inter_token_latency"], path),
        prompt=float(result["input_sequence_length"]["avg"]),
        output=float(result["output_sequence_length"]["avg"]),
        tokens_per_s=float(result["output_token_throughput"]["avg"]),
    )


def _aiperf_us(metric: Mapping[str, Any], path: Path) -> float:
    unit = str(metric.get("unit", "ms"))
    if unit not in _UNITS_US:
        raise DataError(
            f"{named(path)}: inter_token_latency in {unit!r}; known units: {', '.join(_UNITS_US)}"
        )
    return float(metric.get("p50", metric["avg"])) * _UNITS_US[unit]


def _anywhere(value: Any, key: str) -> float | None:
    """The first number of that name in a document."""
    if isinstance(value, dict):
        if isinstance(value.get(key), int | float):
            return float(value[key])
        value = list(value.values())
    if isinstance(value, list):
        return next((inner for child in value if (inner := _anywhere(child, key)) is not None), None)
    return None


def _of_guidellm(report: Mapping[str, Any], path: Path, shape: Shape) -> Iterator[BenchRow]:
    """GuideLLM: a row a benchmark of a fixed number of streams; its inter-token latency is per token."""
    del shape
    for benchmark in report["benchmarks"]:
        metrics = benchmark["metrics"]
        strategy = benchmark.get("config", {}).get("strategy", {})
        streams = strategy.get("streams")
        if streams is None and strategy.get("type_") == "synchronous":
            streams = 1
        if streams is None:
            streams = metrics["request_concurrency"]["successful"]["mean"]
        yield BenchRow(
            source=path.name,
            tool="guidellm",
            concurrency=float(streams),
            tpot_us=float(metrics["inter_token_latency_ms"]["successful"]["median"]) * US_PER_MS,
            prompt=float(metrics["prompt_token_count"]["successful"]["mean"]),
            output=float(metrics["output_token_count"]["successful"]["mean"]),
            tokens_per_s=float(metrics["output_tokens_per_second"]["successful"]["mean"]),
        )


_TOLD_MODEL = (
    ("model_id",), ("model",), ("input_config", "endpoint", "model_names", 0), ("args", "model"),
    ("benchmarks", 0, "config", "backend", "model"),
)  # fmt: skip
"""Where results name the model that was asked: vLLM, SGLang, AIPerf, GuideLLM."""
_ENGINES = ("vllm", "sglang", "tensorrt-llm")
"""Backends of load generators that are engines; others are protocols, which many engines speak."""


def _text(paths: Sequence[tuple[str | int, ...]], document: Any) -> str:
    """The first text on one of the paths into a document; empty where there is none."""
    for path in paths:
        value = document
        for step in path:
            try:
                value = value[step]
            except (KeyError, IndexError, TypeError):
                value = None
                break
        if isinstance(value, str) and value.strip():
            return value.strip()
    return ""


def _engine_of(document: Mapping[str, Any]) -> str:
    """The engine whose own client asked; empty where a protocol did."""
    given = str(document.get("backend") or "").lower().replace("_", "-")
    return next((engine for engine in _ENGINES if given.startswith(engine)), "")


_READERS: dict[str, Callable[[Mapping[str, Any], Path, Shape], Iterator[BenchRow]]] = {
    "median_itl_ms": _of_serve,
    "avg_latency": _of_latency,
    "requests_per_second": _of_throughput,
    "inter_token_latency": _of_aiperf,
    "benchmarks": _of_guidellm,
}
"""A key that only one tool writes, and what reads its result."""


def _of_csv(path: Path) -> Iterator[BenchRow]:
    """Columns concurrency, prompt, output, one of itl_us, itl_ms, itl_s, tpot_us, ..., and drafts if any."""
    import pandas as pd

    frame = read_csv_table(path, ("concurrency", "prompt", "output"), comment="#")
    times = {
        f"{name}_{unit}": (name, factor)
        for name in ("itl", "tpot")
        for unit, factor in _UNITS_US.items()
        if f"{name}_{unit}" in frame
    }
    if not times:
        bare = next((name for name in ("itl", "tpot") if name in frame), None)
        why = f"column {bare} has no unit" if bare else "no column itl_ms, itl_us, tpot_ms or tpot_us"
        raise DataError(f"{named(path)}: {why}; name it itl_ms (between two chunks) or tpot_ms (per token)")
    for line, given in enumerate(frame.to_dict("records"), start=2):
        values: dict[str, Any] = {}
        for column in (*_CSV_NUMBERS, *times):
            if column not in given or pd.isna(given[column]):
                continue
            number = pd.to_numeric(str(given[column]), errors="coerce")
            if pd.isna(number):
                raise DataError(f"{named(path)} line {line}: {column} {shown(given[column])} is not a number")
            name, factor = times.get(column, (column, 1.0))
            values[f"{name}_us" if column in times else name] = float(number) * factor
        if not {"concurrency", "prompt", "output"} <= values.keys():
            raise DataError(
                f"{named(path)} line {line}: concurrency, prompt and output are needed in every row"
            )
        yield BenchRow(source=f"{path.name} line {line}", tool="csv", **values)


def _number(table: Mapping[str, Any], key: str, path: Path) -> float:
    value = table.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise DataError(f"{named(path)}: {key} is {shown(value)}, a number is needed; give {WANTED}")
    return float(value)


def _with_shape(row: BenchRow, shape: Shape) -> BenchRow:
    return replace(
        row,
        prompt=row.prompt or shape.prompt or 0.0,
        output=row.output or shape.output or 0.0,
        drafts=row.drafts or (shape.drafts or 0.0 if row.acceptance_length > 1.0 else 0.0),
    )


def _checked(row: BenchRow, path: Path) -> BenchRow:
    """The row. Raises DataError for numbers that cannot be, naming file and number."""
    where = f"{named(path)} ({row.source})" if row.tool == "csv" else named(path)
    if row.itl_us is None and row.tpot_us is None:
        raise DataError(f"{where}: neither itl nor tpot is given")
    for name in ("itl_us", "tpot_us"):
        value = getattr(row, name)
        if value is None:
            continue
        if not (math.isfinite(value) and value > 0.0):
            raise DataError(f"{where}: {name} {value:g} is no time; a number above 0 is needed")
        if not SHORTEST_US <= value <= LONGEST_US:
            raise DataError(
                f"{where}: {name} would be {value:g}, no step of a model takes that; is the unit another one "
                "(s, ms, us)?"
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
