"""Counters of an engine's `/metrics` page: parsed, subtracted, and fetched within a time limit.

vLLM (vllm/v1/spec_decode/metrics.py): `vllm:spec_decode_num_drafts_total`, `..._num_draft_tokens_total`,
`..._num_accepted_tokens_total` and `..._num_accepted_tokens_per_pos_total{position="k"}`, one series an
engine and model. SGLang's page holds means alone (`sglang:spec_accept_length`), no positions.
"""

from __future__ import annotations

import http.client
import re
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TypeAlias
from urllib.parse import urlsplit

from medusa_sim.acceptance.engine_counters import AcceptanceCounts, counts_of_positions
from medusa_sim.errors import DataError, shown
from medusa_sim.outside.limits import COUNT, PAGE_BYTES
from medusa_sim.reading.documents import short_lines_of
from medusa_sim.units import US_PER_S

TIMEOUT_S = 5.0

_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_LABEL = re.compile(r'[ ,]*([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)"')
_POSITION = re.compile(r"[0-9]{1,4}", re.ASCII)
_PREFIX = "vllm:spec_decode_num_"
_SGLANG_MEAN = "sglang:spec_accept_length"


Scrape: TypeAlias = dict[str, dict[str | int, float]]
"""Counters of one page by model: those in `_BY_MODEL`, and accepted tokens by position."""

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
"""Counters with one number a model, by their names on a page. timed: requests with a time per token, of which
the seconds (token_s) and the tokens of prompts and outputs are summed."""
_NAMES: dict[str | int, str] = {
    "drafts": "drafts", "draft_tokens": "draft tokens", "generated": "generated tokens",
    "finished": "requests",
}  # fmt: skip
"""Counters that never fall while a server runs, in words."""


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
    """Counts between two pages (None: since the server started), for every model.

    Raises DataError for a counter that went down, positions that changed, and as `counts_of_positions` does.
    """
    grown = []
    for model, now in after.items():
        earlier = {} if before is None else before.get(model, {})
        positions, known = _positions(now), _positions(earlier)
        if known and known != positions:
            raise DataError(
                f"{where}: {len(known)} positions before and {len(positions)} after; the server was "
                "restarted in between"
            )
        if not positions:
            continue
        risen = {key: now.get(key, 0.0) - earlier.get(key, 0.0) for key in {*now, *earlier, *_NAMES}}
        for key, what in (_NAMES | {k: f"accepted tokens of position {k}" for k in positions}).items():
            if risen[key] < 0.0:
                raise DataError(
                    f"{where}: {what} went down from {earlier[key]:.0f} to {now.get(key, 0.0):.0f}; the "
                    "server was restarted in between, or the pages are the wrong way round"
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
            connection.request("GET", (parts.path or "/metrics") + (f"?{parts.query}" if parts.query else ""))
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
