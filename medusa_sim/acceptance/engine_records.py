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
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import urlsplit

from medusa_sim.acceptance.engine_counters import (
    AcceptanceCounts,
    counts_of_listed,
    counts_of_positions,
    counts_of_steps,
)
from medusa_sim.errors import DataError, shown
from medusa_sim.outside.limits import COUNT, PAGE_BYTES, POSITIONS, TABLE_BYTES
from medusa_sim.reading import json_documents, named, read_text, short_lines_of
from medusa_sim.units import US_PER_S

TIMEOUT_S = 5.0

_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_LABEL = re.compile(r'[ ,]*([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)"')
_POSITION = re.compile(r"[0-9]{1,4}", re.ASCII)
_PREFIX = "vllm:spec_decode_num_"
_SGLANG_MEAN = "sglang:spec_accept_length"


Scrape: TypeAlias = dict[str, dict[str | int, float]]
"""Counters of one page by model: those of `_BY_MODEL`, and accepted tokens by position (a number)."""

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
"""Those that are one number a model, as a page calls them. timed: requests with a time per token, of which
the seconds (token_s) and the tokens of prompts and outputs are summed."""
_NAMES: dict[str | int, str] = {
    "drafts": "drafts", "draft_tokens": "draft tokens", "generated": "generated tokens",
    "finished": "requests",
}  # fmt: skip
"""Of counters that never fall while a server runs."""


def samples(text: str) -> Iterator[tuple[str, dict[str, str], float]]:
    """(name, labels, value) of every sample of a page in Prometheus' text format.

    Comments, values that are no finite number and lines of another kind are left out.
    """
    for line in short_lines_of(text):
        sample = line.strip()
        if (name := _NAME.match(sample)) is None:
            continue
        at, labels = name.end(), {}
        if sample.startswith("{", at):
            at += 1
            while (label := _LABEL.match(sample, at)) is not None:  # each from where the last one ends
                labels[label[1]] = label[2]
                at = label.end()
            at = sample.find("}", at) + 1
        words = sample[at:].split(None, 2) if at else []
        if len(words) in (1, 2) and (value := _finite(words[0])) is not None:
            yield name[0], labels, value


def _finite(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if abs(value) <= COUNT else None


def is_page(text: str) -> bool:
    """Whether a text holds counters of speculation of vLLM or SGLang."""
    return _PREFIX in text or "sglang:" in text or "vllm:" in text


def scrape(text: str, where: str) -> Scrape:
    """The counters of a page, engines of one model added up.

    Raises DataError for a page without counters of speculation, saying what to do with SGLang's means.
    """
    page: Scrape = defaultdict(lambda: defaultdict(float))
    means: dict[str, float] = {}
    for name, labels, value in samples(text):
        counters = page[labels.get("model_name", "")]
        counter = name.removeprefix(_PREFIX).removesuffix("_total")
        if name.startswith("sglang:spec_"):
            means[name] = value
        elif counter in _BY_MODEL:
            counters[_BY_MODEL[counter]] += value
        elif counter == "accepted_tokens_per_pos" and _POSITION.fullmatch(labels.get("position", "")):
            counters[int(labels["position"])] += value
    if any("drafts" in counters for counters in page.values()) and any(map(_positions, page.values())):
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
    for model, now in after.items():
        earlier = {} if before is None else before.get(model, {})
        positions, known = _positions(now), _positions(earlier)
        if known and known != positions:
            raise DataError(
                f"{where}: {len(known)} positions before and {len(positions)} after; the server was "
                "started anew in between"
            )
        if not positions:
            continue
        risen = {key: now.get(key, 0.0) - earlier.get(key, 0.0) for key in {*now, *earlier, *_NAMES}}
        for key, what in (_NAMES | {k: f"accepted tokens of position {k}" for k in positions}).items():
            if risen[key] < 0.0:
                raise DataError(
                    f"{where}: {what} went down from {earlier[key]:.0f} to {now.get(key, 0.0):.0f}; the "
                    "server was started anew in between, or the pages are the wrong way round"
                )
        accepted = [risen[k] for k in positions]
        counts = counts_of_positions(
            accepted, steps=risen["drafts"], draft_tokens=risen["draft_tokens"], engine="vLLM", model=model
        )
        if "generated" in now:
            # a step gives one token more than it accepts; the first token of a request comes with its prompt
            counts = replace(counts, all_steps=risen["generated"] - sum(accepted) - risen["finished"])
        if (timed := risen.get("timed", 0.0)) > 0.0:
            took_s, prompt, output = (risen.get(k, 0.0) / timed for k in ("token_s", "prompts", "outputs"))
            counts = replace(counts, tpot_us=took_s * US_PER_S, prompt=prompt, output=output)
        grown.append(replace(counts, running=now.get("running")))
    return grown


def _positions(counters: Mapping[str | int, float]) -> list[int]:
    return sorted(key for key in counters if isinstance(key, int))


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
    sglang = next((table[name] for name in _SGLANG_HISTOGRAMS if table.get(name)), None)
    try:
        if "acceptance_histogram" in table:
            return _of_histogram(table, model, path)
        if sglang:
            drafts = table.get("spec_num_proposed_drafts", table.get("spec_proposed_drafts", 0))
            record = {"engine": "SGLang", "acceptance_histogram": sglang, "num_draft_tokens": drafts}
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
    """A count of a record. Raises ValueError where it is more than can be."""
    number = int(value)
    if number > most:
        raise ValueError(f"{shown(value)}, {most:,} at most can be")
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
        taken = [[_whole(each, POSITIONS) for each in given] for given in (drafted, accepted)]
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
