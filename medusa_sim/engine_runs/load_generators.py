"""JSON of load generators: vLLM's, SGLang's and TensorRT-LLM's own, AIPerf and GuideLLM.

The inter-token latency of vLLM and SGLang is the time between two chunks, a step; that of AIPerf and GuideLLM
is the mean per token of a request, which is kept apart as `tpot`, and so is SGLang's where it speculates.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from medusa_sim.acceptance.engine_counters import combined
from medusa_sim.acceptance.engine_records import counts_in
from medusa_sim.engine_runs.bench_row import UNITS_US, WANTED, BenchRow, Shape
from medusa_sim.errors import DataError, shown
from medusa_sim.reading.files import named
from medusa_sim.units import US_PER_MS, US_PER_S

VLLM_SERVE, AIPERF = "vllm bench serve", "aiperf"
"""The tools whose results hold acceptance by position."""


def is_result(document: Any) -> bool:
    """Whether a document has a key that only one of the tools writes."""
    return isinstance(document, dict) and bool(_READERS.keys() & document.keys())


def rows_of_result(document: Any, path: Path, shape: Shape) -> Iterator[BenchRow]:
    """The rows of a document. Raises DataError for one of another kind or version."""
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
    iteration = _tokens_an_iteration(result)
    tool = "sglang bench_serving" if sglang else VLLM_SERVE
    if iteration is not None:
        tool = "benchmark_serving of tensorrt-llm"
    completed = _number(result, "completed", path)
    if completed <= 0 or result.get("failed"):
        raise DataError(
            f"{named(path)}: {result.get('failed', 'all')} requests failed; fix that and run again"
        )
    in_flight = result.get("max_concurrency") or result.get("concurrency") or shape.concurrency
    if in_flight is None:
        raise DataError(
            f"{named(path)}: ran at a request rate, not at a number of requests in flight; run again with "
            "--max-concurrency N"
        )
    output = _number(result, "total_output_tokens", path) / completed
    drafts, length = 0.0, float(result.get("accept_length") or 1.0)
    if iteration is not None and iteration > 1.0 + 2.0 / output:  # plain decoding may have a token too many
        length = iteration
    if result.get("spec_decode_num_drafts"):
        drafts = _number(result, "spec_decode_draft_tokens", path) / _number(
            result, "spec_decode_num_drafts", path
        )
        length = _number(result, "spec_decode_acceptance_length", path)
    elif result.get("accept_length") or length > 1.0:
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
        output=output,
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
        tells_drafts=False,
    )


def _of_throughput(result: Mapping[str, Any], path: Path, shape: Shape) -> Iterator[BenchRow]:
    """`vllm bench throughput`: prompts included; requests in flight and output tokens are not in the file."""
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
        with_prompts=True,
        tells_drafts=False,
    )


def _of_aiperf(result: Mapping[str, Any], path: Path, shape: Shape) -> Iterator[BenchRow]:
    """AIPerf: means over requests; its inter-token latency is per token.

    What was accepted is there where the server tells it of each request (docs/tutorials/spec-decode-metrics).
    """
    if result.get("was_cancelled") or result.get("error_summary"):
        raise DataError(f"{named(path)}: the run was cancelled or had errors; fix that and run again")
    in_flight = shape.concurrency if shape.concurrency is not None else _anywhere(result, "concurrency")
    if in_flight is None:
        raise DataError(f"{named(path)}: does not say how many requests were in flight; add --concurrency B")
    counts = combined(found) if (found := counts_in([result], path)) else None
    yield BenchRow(
        source=path.name,
        tool=AIPERF,
        concurrency=float(in_flight),
        drafts=0.0 if counts is None else float(counts.tried.size),
        acceptance_length=1.0 if counts is None else counts.tokens_per_step,
        tells_drafts=counts is not None,
        tpot_us=_aiperf_us(result["inter_token_latency"], path),
        prompt=float(result["input_sequence_length"]["avg"]),
        output=float(result["output_sequence_length"]["avg"]),
        tokens_per_s=float(result["output_token_throughput"]["avg"]),
    )


def _aiperf_us(metric: Mapping[str, Any], path: Path) -> float:
    unit = str(metric.get("unit", "ms"))
    if unit not in UNITS_US:
        raise DataError(f"{named(path)}: inter_token_latency in {unit!r}; known units: {', '.join(UNITS_US)}")
    return float(metric.get("p50", metric["avg"])) * UNITS_US[unit]


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
            tells_drafts=False,
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
    named = next((engine for engine in _ENGINES if given.startswith(engine)), "")
    return "tensorrt-llm" if _tokens_an_iteration(document) else named  # its server alone tells them


def _tokens_an_iteration(result: Mapping[str, Any]) -> float | None:
    """Mean tokens of a step, as TensorRT-LLM's client has them; 0 of other servers, None of other clients."""
    given = result.get("avg_decoded_tokens_per_iter")
    mean = given.get("mean") if isinstance(given, dict) else given
    return float(mean) if isinstance(mean, int | float) else None


_READERS: dict[str, Callable[[Mapping[str, Any], Path, Shape], Iterator[BenchRow]]] = {
    "median_itl_ms": _of_serve,
    "avg_latency": _of_latency,
    "requests_per_second": _of_throughput,
    "inter_token_latency": _of_aiperf,
    "benchmarks": _of_guidellm,
}
"""A key that only one tool writes, and what reads its result."""


def _number(table: Mapping[str, Any], key: str, path: Path) -> float:
    value = table.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise DataError(f"{named(path)}: {key} is {shown(value)}, a number is needed; give {WANTED}")
    return float(value)
