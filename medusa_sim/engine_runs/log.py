"""Log lines of vLLM and SGLang while they serve: requests running, tokens per second, acceptance.

    vLLM    Engine 000: Avg prompt throughput: 12.0 tokens/s, Avg generation throughput: 2100.0 tokens/s,
            Running: 24 reqs, ...   (v1/metrics/loggers.py, every 10 s)
    SGLang  Decode batch. #running-req: 16, ..., accept len: 2.41, accept rate: 0.47, ...,
            gen throughput (token/s): 1650.20, ...   (every so many steps)

vLLM counts requests that still read their prompt among the running, and no token of theirs: 1 to 7 %, a
quarter with prompts of 30,000 tokens. Lines without prompts tell the time per token; where every line has
some, running over rate is the time per token of a request with its own prompt.

SGLang's accept length counts the target's own token. Its accept rate, which older versions do not write, is
the accepted of the drafted tokens, and before pull request 23530 (April 2026) each of both with one more. So
length and rate tell how many drafts were run (`drafts_of`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median

from medusa_sim.reading.documents import short_lines_of

_VLLM = re.compile(
    r"(?:Avg prompt throughput: (?P<prompts>\d{1,12}(?:\.\d{1,6})?) tokens/s, )?"
    r"Avg generation throughput: (?P<rate>\d{1,12}(?:\.\d{1,6})?) tokens/s, "
    r"Running: (?P<running>\d{1,9}) reqs"
)
_SGLANG = re.compile(r"Decode batch\W.{0,20}?#running-req: (?P<running>\d{1,9})\b")
_SGLANG_RATE = re.compile(r"gen throughput \(token/s\): (\d{1,12}(?:\.\d{1,6})?)")
_SGLANG_LENGTH = re.compile(r"accept len: (\d{1,3}(?:\.\d{1,6})?)")
_SGLANG_SHARE = re.compile(r"accept rate: (\d(?:\.\d{1,6})?)")
STEADY = 0.9
"""Of the most requests running in any line: fewer are the beginning or the end."""
_FEWEST = 3
"""Lines from which the first is left out: what it counts began earlier."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLine:
    """One line. reads: whether running requests read prompts; length: tokens a step; share: SGLang's accept
    rate.
    """

    engine: str
    running: int
    tokens_per_s: float
    reads: bool = False
    length: float | None = None
    share: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Logged:
    """Average of the lines with the most requests. drafts: None where they do not say.

    reads: whether some of the running requests read their prompts meanwhile.
    """

    engine: str
    lines: int
    running: float
    tokens_per_s: float
    reads: bool
    length: float | None
    drafts: int | None


def lines_of(text: str) -> list[LogLine]:
    """Every line of a log that holds a speed."""
    found = []
    for line in short_lines_of(text):
        if (match := _VLLM.search(line)) is not None:
            one = LogLine(
                engine="vllm",
                running=int(match["running"]),
                tokens_per_s=float(match["rate"]),
                reads=float(match["prompts"] or 0.0) > 0.0,
            )
        elif (match := _SGLANG.search(line)) and (rate := _SGLANG_RATE.search(line)):
            length, share = (
                None if told is None else float(told[1])
                for told in (_SGLANG_LENGTH.search(line), _SGLANG_SHARE.search(line))
            )
            one = LogLine(
                engine="sglang",
                running=int(match["running"]),
                tokens_per_s=float(rate[1]),
                length=length,
                share=share,
            )
        else:
            continue
        if one.running and one.tokens_per_s > 0.0:
            found.append(one)
    return found


def logged(text: str) -> Logged | None:
    """The speed in a log; None where it holds none.

    Lines with fewer than STEADY of the most requests are left out, and the first of several; where some are
    without prompts, so are those with.
    """
    lines = lines_of(text)
    if not lines:
        return None
    engine, most = lines[-1].engine, max(line.running for line in lines)
    kept = [line for line in lines if line.engine == engine and line.running >= STEADY * most]
    kept = kept[1:] if len(kept) >= _FEWEST else kept or lines
    kept = [line for line in kept if not line.reads] or kept
    lengths = [line.length for line in kept if line.length is not None]
    return Logged(
        engine=engine,
        lines=len(kept),
        running=fmean(line.running for line in kept),
        tokens_per_s=fmean(line.tokens_per_s for line in kept),
        reads=kept[0].reads,
        length=fmean(lengths) if lengths else None,
        drafts=drafts_of(kept),
    )


def drafts_of(lines: Sequence[LogLine]) -> int | None:
    """Drafts of a step, which all lines share; None where no line tells them.

    Of both meanings of SGLang's accept rate the right one gives a whole number, the same on every line;
    today's where both do.
    """
    told = [(line.length, line.share) for line in lines if line.length and line.length > 1.0 and line.share]
    if not told:
        return None
    today = [(length - 1.0) / share for length, share in told]
    before = [length / share - 1.0 for length, share in told]
    drafts = before if _from_whole(before) < _from_whole(today) else today
    return round(median(drafts))


def _from_whole(values: Sequence[float]) -> float:
    """Mean distance of values from one whole number, to two digits, as logs have."""
    whole = round(median(values))
    return round(fmean(abs(value - whole) for value in values), 2)
