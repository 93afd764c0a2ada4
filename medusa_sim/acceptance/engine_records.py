"""Histograms and logs of engines: how many drafts each step accepted, request by request.

What is read, wherever it stands inside the JSON: vLLM's and TensorRT-LLM's `speculative_decoding` objects and
AIPerf's records (`acceptance_histogram`, `num_spec_steps`, with `per_step_accepted` and `per_step_drafted` or
`acceptance_histogram_by_draft_length` where the length of every draft is known), SGLang's
`spec_correct_drafts_histogram` (0.5.11: `spec_accept_histogram`), the result of `vllm bench serve`, and the
lines that llama.cpp and vLLM log.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from medusa_sim.acceptance.engine_counters import AcceptanceCounts, counts_of_positions, counts_of_steps
from medusa_sim.acceptance.prometheus import counts_between, is_page, scrape
from medusa_sim.errors import DataError
from medusa_sim.reading import TABLE_BYTES, json_documents, named, read_text

WANTED = (
    "a /metrics page of vLLM, JSON or JSON lines with acceptance histograms (vLLM, SGLang, TensorRT-LLM, "
    "AIPerf), a result of vllm bench serve, or a log of llama.cpp or vLLM"
)
_SGLANG_HISTOGRAMS = ("spec_correct_drafts_histogram", "spec_accept_histogram")
_LLAMA = re.compile(
    r"draft acceptance(?: rate)? = \S+ "
    r"\(\s*(?P<accepted>\d{1,18}) accepted /\s*(?P<drafted>\d{1,18}) generated\)"
    r".*?acceptance rate per position = \((?P<rates>[^)]*)\)"
)
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
        found = list(_in_json(json_documents(text, path, WANTED, DataError), path))
    else:
        found = list(_in_log(text, path))
    if not found:
        raise DataError(f"{named(path)}: holds no acceptance of an engine; give {WANTED}")
    return found


def _in_json(documents: list[Any], path: Path) -> Iterator[AcceptanceCounts]:
    for document in documents:
        model = _model_of(document)
        for table in _tables(document):
            counts = _counts_of(table, model, path)
            if counts is not None:
                yield replace(counts, is_request=_is_record(table))


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
    try:
        if "acceptance_histogram" in table:
            counts = _of_histogram(table, model, path)
            tokens = table.get("completion_tokens")
            if counts is None or tokens is None:
                return counts
            return replace(counts, all_steps=float(tokens) - 1.0 - int(counts.accepted.sum()))
        for name in _SGLANG_HISTOGRAMS:
            if table.get(name):
                return _of_sglang(table, table[name], model)
        if table.get("spec_decode_num_drafts"):
            return _of_bench(table, model)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DataError(
            f"{named(path)}: an acceptance record is malformed ({error}); give {WANTED}"
        ) from error
    return None


def _histogram(value: Any) -> dict[int, int]:
    """Steps by accepted drafts, from a dense list or a mapping."""
    items = enumerate(value) if isinstance(value, list) else value.items()
    return {int(taken): int(count) for taken, count in items if int(count)}


def _of_histogram(table: Mapping[str, Any], model: str, path: Path) -> AcceptanceCounts | None:
    """vLLM, TensorRT-LLM and AIPerf: exact where the length of every draft is known."""
    engine = str(table.get("engine", "engine"))
    histogram = _histogram(table["acceptance_histogram"])
    steps = int(table.get("num_spec_steps", sum(histogram.values())))
    if sum(histogram.values()) != steps:
        raise DataError(
            f"{named(path)}: a histogram of {sum(histogram.values())} steps in a record of {steps}; the "
            "record is corrupt"
        )
    if not steps:
        return None
    by_length = table.get("acceptance_histogram_by_draft_length")
    if by_length:
        lengths = {int(drafts): _histogram(part) for drafts, part in by_length.items()}
        return counts_of_steps(lengths, engine=engine, model=model)
    accepted, drafted = table.get("per_step_accepted"), table.get("per_step_drafted")
    if accepted and drafted:
        pairs = Counter(zip(map(int, drafted), map(int, accepted), strict=True))
        lengths = {}
        for (drafts, taken), count in pairs.items():
            lengths.setdefault(drafts, {})[taken] = count
        return counts_of_steps(lengths, engine=engine, model=model)
    tokens = int(table.get("num_draft_tokens", table.get("total_draft_tokens", 0)))
    positions = table.get("num_spec_tokens") or max(0, *histogram, -(-tokens // steps))
    return _of_fixed(histogram, int(positions), tokens, engine, model)


def _of_fixed(
    histogram: Mapping[int, int], positions: int, draft_tokens: int, engine: str, model: str
) -> AcceptanceCounts:
    steps = sum(histogram.values())
    accepted = [sum(count for taken, count in histogram.items() if taken > k) for k in range(positions)]
    return counts_of_positions(
        accepted, steps=steps, draft_tokens=draft_tokens or steps * positions, engine=engine, model=model
    )


def _of_sglang(table: Mapping[str, Any], histogram: Any, model: str) -> AcceptanceCounts | None:
    counted = _histogram(histogram)
    steps = sum(counted.values())
    if not steps:
        return None
    proposed = int(table.get("spec_num_proposed_drafts", table.get("spec_proposed_drafts", 0)))
    return _of_fixed(counted, max(0, *counted, -(-proposed // steps)), proposed, "SGLang", model)


def _of_bench(table: Mapping[str, Any], model: str) -> AcceptanceCounts:
    steps = float(table["spec_decode_num_drafts"])
    rates = [float(rate) for rate in table["spec_decode_per_position_acceptance_rates"]]
    return counts_of_positions(
        [rate * steps for rate in rates],
        steps=steps,
        draft_tokens=float(table["spec_decode_draft_tokens"]),
        engine="vLLM",
        model=model,
    )


def _in_log(text: str, path: Path) -> Iterator[AcceptanceCounts]:
    for engine, pattern in (("llama.cpp", _LLAMA), ("vLLM", _VLLM_LOG)):
        for found in pattern.finditer(text):
            rates = _rates(found["rates"], path)
            accepted, drafted = int(found["accepted"]), int(found["drafted"])
            if not sum(rates):
                continue  # nothing accepted: the number of steps is not in the line
            steps = accepted / sum(rates)
            yield counts_of_positions(
                [rate * steps for rate in rates], steps=steps, draft_tokens=min(drafted, steps * len(rates)),
                engine=engine,
            )  # fmt: skip


def _rates(text: str, path: Path) -> Sequence[float]:
    try:
        return [float(part) for part in text.split(",") if part.strip()]
    except ValueError as error:
        raise DataError(f"{named(path)}: rates per position {text[:60]!r} are no numbers") from error
