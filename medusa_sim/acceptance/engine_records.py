"""Histograms and logs of engines: how many drafts each step accepted, request by request.

What is read, wherever it stands inside the JSON: vLLM's and TensorRT-LLM's `speculative_decoding` objects and
AIPerf's records (`acceptance_histogram`, `num_spec_steps`, with `per_step_accepted` and `per_step_drafted` or
`acceptance_histogram_by_draft_length` where the length of every draft is known), the histogram of all of them
in AIPerf's result (0.14), SGLang's `spec_correct_drafts_histogram` (0.5.11: `spec_accept_histogram`), the
result of `vllm bench serve`, and the lines that llama.cpp and vLLM log.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from medusa_sim.acceptance.engine_counters import (
    AcceptanceCounts,
    counts_of_listed,
    counts_of_positions,
    counts_of_steps,
)
from medusa_sim.acceptance.metrics_page import counts_between, is_page, scrape
from medusa_sim.errors import DataError, shown
from medusa_sim.outside.limits import COUNT, POSITIONS, TABLE_BYTES
from medusa_sim.reading.documents import json_documents, short_lines_of
from medusa_sim.reading.files import named, read_text

WANTED = (
    "a /metrics page of vLLM, JSON or JSON lines with acceptance histograms (vLLM, SGLang, TensorRT-LLM, "
    "AIPerf), a result of vllm bench serve, or a log of llama.cpp or vLLM"
)
_SGLANG_HISTOGRAMS = ("spec_correct_drafts_histogram", "spec_accept_histogram")
_AIPERF_HISTOGRAM = "pooled_spec_decode_acceptance_histogram"
_LLAMA = re.compile(
    r"draft acceptance(?: rate)? = \S{1,40} "
    r"\( {0,20}(?P<accepted>\d{1,18}) accepted / {0,20}(?P<drafted>\d{1,18}) generated\)"
)
_LLAMA_RATES = "acceptance rate per position = ("
_VLLM_LOG = re.compile(
    r"Accepted: (?P<accepted>\d{1,18}) tokens, Drafted: (?P<drafted>\d{1,18}) tokens, "
    r"Per-position acceptance rate: (?P<rates>[\d., ]+?), Avg"
)


def read_counts(path: Path, before: Path | None = None) -> list[AcceptanceCounts]:
    """The counts in a file, one entry a model, request or log line. `before`: the page that came first.

    Raises DataError for a file of another kind, counters that went down, and counts at odds with themselves.
    """
    text = read_text(path, TABLE_BYTES, WANTED, DataError)
    if is_page(text) and not text.lstrip().startswith(("{", "[")):
        earlier = None
        if before is not None:
            earlier = scrape(read_text(before, TABLE_BYTES, WANTED, DataError), named(before))
        return counts_between(earlier, scrape(text, named(path)), named(path))
    if before is not None:
        raise DataError(f"{named(path)}: --before is for two /metrics pages; this is none")
    if text.lstrip().startswith(("{", "[")):
        counts = counts_in(json_documents(text, path, WANTED, DataError), path)
    else:
        counts = list(_in_log(text, path))
    if not counts:
        raise DataError(f"{named(path)}: holds no acceptance of an engine; give {WANTED}")
    return counts


def counts_in(documents: Sequence[Any], path: Path) -> list[AcceptanceCounts]:
    """The counts in documents of JSON; none where they hold none. Raises DataError as `read_counts`."""
    return [
        replace(counts, is_request=_is_record(table))
        for document in documents
        for table in _tables(document)
        if (counts := _counts_of(table, _model_of(document), path)) is not None
    ]


def _tables(value: Any) -> Iterator[dict[str, Any]]:
    """Every object inside a document, the outer ones first; those inside a record belong to it."""
    if isinstance(value, dict):
        yield value
        if _is_record(value):
            return
        for child in value.values():
            yield from _tables(child)
    elif isinstance(value, list):
        for child in value:
            yield from _tables(child)


def _is_record(table: Mapping[str, Any]) -> bool:
    return "acceptance_histogram" in table or any(name in table for name in _SGLANG_HISTOGRAMS)


def _model_of(document: Any) -> str:
    for name in ("model", "model_name", "model_id"):
        if isinstance(document, dict) and isinstance(document.get(name), str):
            return str(document[name])
    return ""


def _counts_of(table: Mapping[str, Any], model: str, path: Path) -> AcceptanceCounts | None:
    sglang = next((table[name] for name in _SGLANG_HISTOGRAMS if table.get(name)), None)
    try:
        if "acceptance_histogram" in table:
            return _of_histogram(table, model, path)
        if sglang:
            drafts = table.get("spec_num_proposed_drafts", table.get("spec_proposed_drafts", 0))
            record = {"engine": "SGLang", "acceptance_histogram": sglang, "num_draft_tokens": drafts}
            return _of_histogram(record, model, path)
        if pooled := table.get(_AIPERF_HISTOGRAM):
            drafts = table.get("total_draft_tokens", {}).get("avg", 0)
            record = {"engine": "AIPerf", "acceptance_histogram": pooled, "num_draft_tokens": drafts}
            return _of_histogram(record, model, path)
        if table.get("spec_decode_num_drafts"):
            rates = [float(rate) for rate in table["spec_decode_per_position_acceptance_rates"]]
            steps, tokens = (float(table[f"spec_decode_{name}"]) for name in ("num_drafts", "draft_tokens"))
            return _of_rates(rates, steps, tokens, "vLLM", model)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise DataError(
            f"{named(path)}: an acceptance record is malformed ({' '.join(str(error).split())[:120]}); "
            f"give {WANTED}"
        ) from error
    return None


def _whole(value: Any, most: int = COUNT) -> int:
    """A count of a record. Raises ValueError where it is negative or too large."""
    number = int(value)
    if not 0 <= number <= most:
        raise ValueError(f"{shown(value)} is not from 0 to {most:,}")
    return number


def _histogram(value: Any) -> dict[int, int]:
    """Steps by accepted drafts, from a dense list or a mapping."""
    items = enumerate(value) if isinstance(value, list) else value.items()
    return {_whole(taken, POSITIONS): steps for taken, count in items if (steps := _whole(count))}


def _of_histogram(table: Mapping[str, Any], model: str, path: Path) -> AcceptanceCounts | None:
    """Exact where the length of every draft is known."""
    engine = str(table.get("engine", "engine"))
    histogram = _histogram(table["acceptance_histogram"])
    steps = _whole(table.get("num_spec_steps", sum(histogram.values())))
    if sum(histogram.values()) != steps:
        raise DataError(
            f"{named(path)}: a histogram of {sum(histogram.values())} steps in a record of {steps}; the "
            "record is corrupt"
        )
    if not steps:
        return None
    accepted, drafted = table.get("per_step_accepted"), table.get("per_step_drafted")
    if by_length := table.get("acceptance_histogram_by_draft_length"):
        lengths = {_whole(drafts, POSITIONS): _histogram(part) for drafts, part in by_length.items()}
        counts = counts_of_steps(lengths, engine=engine, model=model)
    elif accepted and drafted:
        taken = [[_whole(count, POSITIONS) for count in given] for given in (drafted, accepted)]
        listed = counts_of_listed(*taken, engine=engine, model=model)
        counts = replace(listed, all_steps=None)  # lists may leave out steps without drafts
    else:
        tokens = _whole(table.get("num_draft_tokens", table.get("total_draft_tokens", 0)))
        given = table.get("num_spec_tokens") or max(0, *histogram, -(-tokens // steps))
        positions = _whole(given, POSITIONS)
        each = [sum(count for taken, count in histogram.items() if taken > k) for k in range(positions)]
        counts = counts_of_positions(
            each, steps=steps, draft_tokens=tokens or steps * positions, engine=engine, model=model
        )
    if (generated := table.get("completion_tokens")) is None:
        return counts
    return replace(counts, all_steps=float(generated) - 1.0 - int(counts.accepted.sum()))


def _of_rates(
    rates: Sequence[float], steps: float, draft_tokens: float, engine: str, model: str = ""
) -> AcceptanceCounts:
    accepted = [rate * steps for rate in rates]
    return counts_of_positions(accepted, steps=steps, draft_tokens=draft_tokens, engine=engine, model=model)


def _in_log(text: str, path: Path) -> Iterator[AcceptanceCounts]:
    for line in short_lines_of(text):
        engine, listed = "llama.cpp", ""
        if (match := _LLAMA.search(line)) is not None:
            _, _, after = line[match.end() :].partition(_LLAMA_RATES)
            listed, closed, _ = after.partition(")")
            if not closed:
                continue
        elif (match := _VLLM_LOG.search(line)) is not None:
            engine, listed = "vLLM", match["rates"]
        else:
            continue
        try:
            rates = [float(part) for part in listed.split(",") if part.strip()]
        except ValueError as error:
            raise DataError(f"{named(path)}: rates per position {listed[:60]!r} are no numbers") from error
        if 0.0 < sum(rates) <= len(rates):  # nothing accepted: the number of steps is not in the line
            steps = int(match["accepted"]) / sum(rates)
            yield _of_rates(rates, steps, min(int(match["drafted"]), steps * len(rates)), engine)
