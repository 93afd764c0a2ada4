"""Histograms and logs of engines: how many drafts each step accepted, request by request.

What is read, wherever it stands inside the JSON: vLLM's and TensorRT-LLM's `speculative_decoding` objects and
AIPerf's records (`acceptance_histogram`, `num_spec_steps`, with `per_step_accepted` and `per_step_drafted` or
`acceptance_histogram_by_draft_length` where the length of every draft is known), SGLang's
`spec_correct_drafts_histogram` (0.5.11: `spec_accept_histogram`), the result of `vllm bench serve`, and the
lines that llama.cpp and vLLM log.

Counters of an engine's `/metrics` page: parsed, subtracted, and fetched within a time limit.

vLLM (vllm/v1/spec_decode/metrics.py): `vllm:spec_decode_num_drafts_total`, `..._num_draft_tokens_total`,
`..._num_accepted_tokens_total` and `..._num_accepted_tokens_per_pos_total{position="k"}`, one series an
engine and model. SGLang's page holds means alone (`sglang:spec_accept_length`), no positions.
"""

from __future__ import annotations

import http.client
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from medusa_sim.acceptance.engine_counters import (
    AcceptanceCounts,
    counts_of_listed,
    counts_of_positions,
    counts_of_steps,
)
from medusa_sim.errors import DataError, shown
from medusa_sim.reading import TABLE_BYTES, json_documents, named, read_text
from medusa_sim.units import US_PER_S

PAGE_BYTES = 20_000_000
"""The largest page that is read."""
TIMEOUT_S = 5.0

_SAMPLE = re.compile(r"^([a-zA-Z_:][\w:]*)(?:\{(.*)\})?\s+(\S+)(?:\s+\d+)?$")
_LABEL = re.compile(r'([a-zA-Z_]\w*)="((?:[^"\\]|\\.)*)"')
_PREFIX = "vllm:spec_decode_num_"
_SGLANG_MEAN = "sglang:spec_accept_length"


@dataclass
class Scrape:
    """Counters of one page by model: drafts, draft tokens, accepted tokens by position; tokens generated and
    requests finished; requests running, and of finished ones their number, summed seconds per token, and
    summed tokens of prompts and outputs.
    """

    drafts: dict[str, float] = field(default_factory=dict)
    draft_tokens: dict[str, float] = field(default_factory=dict)
    accepted: dict[str, dict[int, float]] = field(default_factory=dict)
    generated: dict[str, float] = field(default_factory=dict)
    finished: dict[str, float] = field(default_factory=dict)
    running: dict[str, float] = field(default_factory=dict)
    timed: dict[str, float] = field(default_factory=dict)
    token_s: dict[str, float] = field(default_factory=dict)
    prompts: dict[str, float] = field(default_factory=dict)
    outputs: dict[str, float] = field(default_factory=dict)


_BY_MODEL = {
    "drafts": "drafts",
    "draft_tokens": "draft_tokens",
    "vllm:generation_tokens": "generated",
    "vllm:request_success": "finished",
    "vllm:num_requests_running": "running",
    "vllm:request_time_per_output_token_seconds_count": "timed",
    "vllm:request_time_per_output_token_seconds_sum": "token_s",
    "vllm:request_prompt_tokens_sum": "prompts",
    "vllm:request_generation_tokens_sum": "outputs",
}
"""What a page calls the fields of a `Scrape` that are one number a model."""


def samples(text: str) -> Iterator[tuple[str, dict[str, str], float]]:
    """(name, labels, value) of every sample of a page in Prometheus' text format; comments are left out."""
    for line in text.splitlines():
        match = _SAMPLE.match(line.strip())
        if match is None:
            continue
        try:
            value = float(match[3])
        except ValueError:
            continue
        yield match[1], dict(_LABEL.findall(match[2] or "")), value


def is_page(text: str) -> bool:
    """Whether a text holds counters of speculation of vLLM or SGLang."""
    return _PREFIX in text or "sglang:" in text or "vllm:" in text


def scrape(text: str, where: str) -> Scrape:
    """The counters of a page, engines of one model added up.

    Raises DataError for a page without counters of speculation, saying what to do with SGLang's means.
    """
    page = Scrape()
    means: dict[str, float] = {}
    for name, labels, value in samples(text):
        model = labels.get("model_name", "")
        if name.startswith("sglang:spec_"):
            means[name] = value
        counter = name.removeprefix(_PREFIX).removesuffix("_total")
        if counter in _BY_MODEL:
            by_model: dict[str, float] = getattr(page, _BY_MODEL[counter])
            by_model[model] = by_model.get(model, 0.0) + value
        elif counter == "accepted_tokens_per_pos" and labels.get("position", "").isdigit():
            by_position = page.accepted.setdefault(model, {})
            position = int(labels["position"])
            by_position[position] = by_position.get(position, 0.0) + value
    if page.drafts and page.accepted:
        return page
    if _SGLANG_MEAN in means:
        drafts = means.get("sglang:spec_num_steps")
        mean = f"{means[_SGLANG_MEAN]:.2f}@{drafts:.0f}" if drafts else f"{means[_SGLANG_MEAN]:.2f}@STEPS"
        raise DataError(
            f"{where}: SGLang's page holds a mean without positions; use it as --acceptance {mean} (`check`: "
            f"--tokens-per-step {means[_SGLANG_MEAN]:.2f} and --drafts), or give responses with "
            "return_spec_tokens_details"
        )
    raise DataError(
        f"{where}: no counters of speculation ({_PREFIX}...); is this the /metrics page of an engine that "
        "speculates?"
    )


def counts_between(before: Scrape | None, after: Scrape, where: str) -> list[AcceptanceCounts]:
    """What was counted between two pages (None: since the server started), for every model.

    Raises DataError for a counter that went down, positions that changed, and as `counts_of_positions` does.
    """
    grown = []
    for model, by_position in after.accepted.items():
        earlier = {} if before is None else before.accepted.get(model, {})
        if earlier and earlier.keys() != by_position.keys():
            raise DataError(
                f"{where}: {len(earlier)} positions before and {len(by_position)} after; the server was "
                "started anew in between"
            )
        first = before or Scrape()
        drafts = _risen(first.drafts.get(model, 0.0), after.drafts.get(model, 0.0), "drafts", where)
        tokens = _risen(
            first.draft_tokens.get(model, 0.0), after.draft_tokens.get(model, 0.0), "draft tokens", where
        )
        accepted = [
            _risen(earlier.get(k, 0.0), by_position[k], f"accepted tokens of position {k}", where)
            for k in sorted(by_position)
        ]
        counts = counts_of_positions(accepted, steps=drafts, draft_tokens=tokens, engine="vLLM", model=model)
        if model in after.generated:
            made = _risen(first.generated.get(model, 0.0), after.generated[model], "generated tokens", where)
            ended = _risen(first.finished.get(model, 0.0), after.finished.get(model, 0.0), "requests", where)
            # a step gives one token more than it accepts; the first token of a request comes with its prompt
            counts = replace(counts, all_steps=made - sum(accepted) - ended)
        timed = after.timed.get(model, 0.0) - first.timed.get(model, 0.0)
        if timed > 0.0:
            took_s, prompts, outputs = (
                getattr(after, name).get(model, 0.0) - getattr(first, name).get(model, 0.0)
                for name in ("token_s", "prompts", "outputs")
            )
            counts = replace(
                counts, tpot_us=took_s / timed * US_PER_S, prompt=prompts / timed, output=outputs / timed
            )
        grown.append(replace(counts, running=after.running.get(model)))
    return grown


def _risen(before: float, after: float, what: str, where: str) -> float:
    if after < before:
        raise DataError(
            f"{where}: {what} went down from {before:.0f} to {after:.0f}; the server was started anew in "
            "between, or the pages are the wrong way round"
        )
    return after - before


def fetched(url: str, timeout_s: float = TIMEOUT_S) -> str:
    """The page at an http or https address, within the time limit. Raises DataError in one line."""
    parts = urlsplit(url)
    connections = {"http": http.client.HTTPConnection, "https": http.client.HTTPSConnection}
    if parts.scheme not in connections or not parts.hostname:
        raise DataError(f"{shown(url)}: give an http or https address such as http://127.0.0.1:8000/metrics")
    deadline = time.monotonic() + timeout_s
    try:
        connection = connections[parts.scheme](parts.hostname, parts.port, timeout=timeout_s)
        try:
            connection.request("GET", parts.path or "/metrics")
            response = connection.getresponse()
            body = _within(response, deadline)
        finally:
            connection.close()
    except TimeoutError as error:
        raise DataError(f"{url}: no answer within {timeout_s:g} s; is the server up? (--timeout)") from error
    except (OSError, ValueError, http.client.HTTPException) as error:
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise DataError(f"{url}: cannot be reached ({reason}); is the server up?") from error
    if response.status != http.client.OK:
        raise DataError(f"{url}: answered {response.status} {response.reason}; give the /metrics page")
    return body.decode("utf-8", errors="replace")


def _within(response: http.client.HTTPResponse, deadline: float) -> bytes:
    """The body, read until the deadline: a server that drips must not hold the command for ever."""
    parts: list[bytes] = []
    size = 0
    while part := response.read1(65536):
        parts.append(part)
        size += len(part)
        if size > PAGE_BYTES:
            raise ValueError(f"more than {PAGE_BYTES:,} bytes")
        if time.monotonic() > deadline:
            raise TimeoutError
    return b"".join(parts)


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
        counts = list(_in_json(json_documents(text, path, WANTED, DataError), path))
    else:
        counts = list(_in_log(text, path))
    if not counts:
        raise DataError(f"{named(path)}: holds no acceptance of an engine; give {WANTED}")
    return counts


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
        listed = counts_of_listed([*map(int, drafted)], [*map(int, accepted)], engine=engine, model=model)
        return replace(listed, all_steps=None)  # lists may leave out steps without drafts
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
        for match in pattern.finditer(text):
            rates = _rates(match["rates"], path)
            accepted, drafted = int(match["accepted"]), int(match["drafted"])
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
