"""Counters of an engine's `/metrics` page: parsed, subtracted, and fetched within a time limit.

vLLM (vllm/v1/spec_decode/metrics.py): `vllm:spec_decode_num_drafts_total`, `..._num_draft_tokens_total`,
`..._num_accepted_tokens_total` and `..._num_accepted_tokens_per_pos_total{position="k"}`, one series an
engine and model. SGLang's page holds means alone (`sglang:spec_accept_length`), no positions.
"""

from __future__ import annotations

import http.client
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from urllib.parse import urlsplit

from medusa_sim.acceptance.engine_counters import AcceptanceCounts, counts_of_positions
from medusa_sim.errors import DataError, shown
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
    requests finished; requests running, and of finished ones their number and summed seconds per token.
    """

    drafts: dict[str, float] = field(default_factory=dict)
    draft_tokens: dict[str, float] = field(default_factory=dict)
    accepted: dict[str, dict[int, float]] = field(default_factory=dict)
    generated: dict[str, float] = field(default_factory=dict)
    finished: dict[str, float] = field(default_factory=dict)
    running: dict[str, float] = field(default_factory=dict)
    timed: dict[str, float] = field(default_factory=dict)
    token_s: dict[str, float] = field(default_factory=dict)


_BY_MODEL = {
    "drafts": "drafts",
    "draft_tokens": "draft_tokens",
    "vllm:generation_tokens": "generated",
    "vllm:request_success": "finished",
    "vllm:num_requests_running": "running",
    "vllm:request_time_per_output_token_seconds_count": "timed",
    "vllm:request_time_per_output_token_seconds_sum": "token_s",
}
"""What a page calls the fields of a `Scrape` that are one number a model."""


def samples(text: str) -> Iterator[tuple[str, dict[str, str], float]]:
    """(name, labels, value) of every sample of a page in Prometheus' text format; comments are left out."""
    for line in text.splitlines():
        found = _SAMPLE.match(line.strip())
        if found is None:
            continue
        try:
            value = float(found[3])
        except ValueError:
            continue
        yield found[1], dict(_LABEL.findall(found[2] or "")), value


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
        told = f"{means[_SGLANG_MEAN]:.2f}@{drafts:.0f}" if drafts else f"{means[_SGLANG_MEAN]:.2f}@STEPS"
        raise DataError(
            f"{where}: SGLang's page holds a mean without positions; use it as --acceptance {told}, or give "
            "responses with return_spec_tokens_details"
        )
    raise DataError(
        f"{where}: no counters of speculation ({_PREFIX}...); is this the /metrics page of an engine that "
        "speculates?"
    )


def counts_between(before: Scrape | None, after: Scrape, where: str) -> list[AcceptanceCounts]:
    """What was counted between two pages (None: since the server started), for every model.

    Raises DataError for a counter that went down, positions that changed, and as `counts_of_positions` does.
    """
    found = []
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
            took_s = after.token_s.get(model, 0.0) - first.token_s.get(model, 0.0)
            counts = replace(counts, tpot_us=took_s / timed * US_PER_S)
        found.append(replace(counts, running=after.running.get(model)))
    return found


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
