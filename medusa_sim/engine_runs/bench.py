"""Results of load generators as rows of one kind, from files of any of their formats.

Read are the JSON of `vllm bench serve` (TensorRT-LLM's benchmark_serving writes the same), `vllm bench
latency` and `vllm bench throughput`, the lines of SGLang's `bench_serving`, AIPerf's
`profile_export_aiperf.json`, GuideLLM's `benchmarks.json`, logs of vLLM and SGLang, what stands on one's own
terminal, and a CSV.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from medusa_sim.acceptance.engine_counters import AcceptanceCounts, combined
from medusa_sim.acceptance.engine_records import read_counts
from medusa_sim.engine_runs.bench_row import (
    LOG,
    OWN,
    UNITS_US,
    WANTED,
    BenchRow,
    Shape,
    checked,
    with_shape,
)
from medusa_sim.engine_runs.load_generators import is_result, rows_of_result
from medusa_sim.engine_runs.log import Logged, logged
from medusa_sim.errors import DataError, shown
from medusa_sim.outside.limits import TABLE_BYTES
from medusa_sim.reading.documents import json_documents
from medusa_sim.reading.files import named, read_text
from medusa_sim.reading.tables import numbered_csv_table
from medusa_sim.scenario.local_rows import LocalRows, is_written_by_tools, rows_of
from medusa_sim.units import US_PER_S

_CSV_NUMBERS = ("concurrency", "prompt", "output", "drafts", "acceptance_length", "tokens_per_s")


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
        if (own := _local_rows(text, path)) is not None:
            return [checked(row, path) for row in _of_own(own, path, known)]
        log = logged(text)
        rows = (
            [_of_log(log, path, known)]
            if log is not None
            else [
                row
                for document in json_documents(text, path, WANTED, DataError, finite=False)
                for row in rows_of_result(document, path, known)
            ]
        )
    return [checked(with_shape(row, known), path) for row in rows]


def _local_rows(text: str, path: Path) -> LocalRows | None:
    """Output of a tool, copied from a terminal; None for other text. Raises DataError without a speed."""
    return rows_of(text, path) if is_written_by_tools(text) else None


def _of_own(own: LocalRows, path: Path, shape: Shape) -> Iterator[BenchRow]:
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
    if own.drafted_us and own.accepted_share is not None:
        drafts = shape.drafts or own.drafts
        if drafts is None:
            raise DataError(
                f"{named(path)}: {100.0 * own.accepted_share:.0f} % of the drafts were accepted, but it "
                "does not say how many a round had; add --drafts K"
            )
        yield BenchRow(
            source=path.name,
            tool=OWN,
            model=model,
            concurrency=1.0,
            tpot_us=own.drafted_us,
            drafts=drafts,
            acceptance_length=own.tokens_per_round or 1.0 + drafts * own.accepted_share,
        )


def is_bench(path: Path) -> bool:
    """Whether a file looks like a result of a load generator, by its name or a key that only one writes."""
    if path.suffix.lower() == ".csv":
        return True
    try:
        text = read_text(path, TABLE_BYTES, WANTED, DataError)
        if _local_rows(text, path) is not None or logged(text) is not None:
            return True
        documents = json_documents(text, path, WANTED, DataError, finite=False)
        return any(map(is_result, documents))
    except DataError:
        return False


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
        with_prompts=log.reads,
    )


def logged_counts(path: Path) -> AcceptanceCounts | None:
    """Acceptance by position of a log; None where it holds none."""
    try:
        return combined(read_counts(path))
    except DataError:
        return None


def _of_csv(path: Path) -> Iterator[BenchRow]:
    """Columns concurrency, prompt, output, one of itl_us, itl_ms, itl_s, tpot_us, ..., and drafts if any."""
    import pandas as pd

    frame = numbered_csv_table(path, ("concurrency", "prompt", "output"))
    times = {
        f"{name}_{unit}": (name, factor)
        for name in ("itl", "tpot")
        for unit, factor in UNITS_US.items()
        if f"{name}_{unit}" in frame
    }
    if not times:
        bare = next((name for name in ("itl", "tpot") if name in frame), None)
        why = f"column {bare} has no unit" if bare else "no column itl_ms, itl_us, tpot_ms or tpot_us"
        raise DataError(f"{named(path)}: {why}; name it itl_ms (between two chunks) or tpot_ms (per token)")
    for line, given in zip(frame.index, frame.to_dict("records"), strict=True):
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
        model = given.get("model", "")
        values["model"] = "" if pd.isna(model) else str(model)
        yield BenchRow(source=f"{path.name} line {line}", tool="csv", **values)
