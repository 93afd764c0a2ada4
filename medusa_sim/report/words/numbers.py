"""Numbers as people read them: rounded, with their units; lists of names in words."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from medusa_sim.arrays import joined
from medusa_sim.units import GIGA, KILO, MEGA, TERA, US_PER_MS, US_PER_S

NOTHING = "-"
"""Text of an empty cell."""

_PREFIXES = ((1e15, "P"), (TERA, "T"), (GIGA, "G"), (MEGA, "M"), (KILO, "k"))


def significant(value: float, digits: int = 4) -> str:
    """`digits` significant digits without an exponent where that is readable: 0.0123, 1.234, 12,340."""
    if not math.isfinite(value):
        return NOTHING if math.isnan(value) else str(value)
    if value == 0.0:
        return "0"
    magnitude = math.floor(math.log10(abs(value)))
    if magnitude >= 12 or magnitude < -5:
        return f"{value:.{digits - 1}e}"
    decimals = max(digits - 1 - magnitude, 0)
    return f"{value:,.{decimals}f}"


def span(first: int, last: int) -> str:
    """`1..8`, or `8` alone."""
    return str(first) if first == last else f"{first}..{last}"


def number_of(things: str, count: int) -> str:
    """A count with its noun: `1 request`, `1,000 requests`."""
    return f"{count:,} {things.removesuffix('s') if count == 1 else things}"


def batch_text(batch: int, seq_len: int, *, several: bool) -> str:
    """`batch 64`; `batch 64 of length 1,024` where several lengths were asked about."""
    return f"batch {batch}" + (f" of length {seq_len:,}" if several else "")


def drafts_text(candidates: int) -> str:
    """Candidates of a chain as engines count them: 4 candidates are `3 drafts` (num_speculative_tokens)."""
    return {1: "no drafts", 2: "1 draft"}.get(candidates, f"{candidates - 1} drafts")


def counted(candidates: int, chains: bool) -> str:
    """`3 drafts` of chains, as engines count them, `14 candidates` of trees."""
    return drafts_text(candidates) if chains else f"{candidates} candidates"


def in_brackets(*remarks: str) -> str:
    """` (gain predicted up to 300; searched to 1,024)`; empty without remarks."""
    given = "; ".join(filter(None, remarks))
    return f" ({given})" if given else ""


def duration(time_us: float) -> str:
    """Microseconds as us, ms or s: `812 us`, `14.2 ms`."""
    if not math.isfinite(time_us):
        return NOTHING
    if abs(time_us) >= US_PER_S:
        return f"{significant(time_us / US_PER_S, 3)} s"
    if abs(time_us) >= US_PER_MS:
        return f"{significant(time_us / US_PER_MS, 3)} ms"
    return f"{significant(time_us, 3)} us"


def with_prefix(value: float, unit: str, digits: int = 3) -> str:
    """A quantity with a decimal prefix: 8.5e10 B -> `85.0 GB`, 3.12e14 FLOP/s -> `312 TFLOP/s`."""
    if not math.isfinite(value):
        return NOTHING
    for factor, prefix in _PREFIXES:
        if abs(value) >= factor:
            return f"{significant(value / factor, digits)} {prefix}{unit}"
    return f"{significant(value, digits)} {unit}"


def capitalised(line: str) -> str:
    """The line as a sentence begins; a name with figures (sglang-0.5) or capitals (vLLM) keeps its case."""
    word = line.split(" ", 1)[0]
    return line if any(c.isdigit() or c.isupper() for c in word) else f"{line[:1].upper()}{line[1:]}"


def percent(fraction: float, digits: int = 1, *, signed: bool = False) -> str:
    """A fraction as per cent: 0.0123 -> `1.2 %`; signed: `+1.2 %`."""
    sign = "+" if signed else ""
    return NOTHING if math.isnan(fraction) else f"{100.0 * fraction:{sign}.{digits}f} %"


def times(value: float) -> str:
    """A speedup: `2.31x`."""
    return NOTHING if math.isnan(value) else f"{value:.2f}x"


def times_between(low: float, high: float) -> str:
    """Speedups from the lowest to the highest: `1.21-1.91x`, or `2.31x` alone."""
    return times(high) if f"{low:.2f}" == f"{high:.2f}" else f"{low:.2f}-{times(high)}"


def spans_text(spans: Iterable[tuple[int, int]]) -> str:
    """`1..40, 64..128`: rising, neighbours joined."""
    return ", ".join(span(first, last) for first, last in joined(spans))


def and_more(names: Sequence[str]) -> str:
    """`h100-sxm and 3 more`: the first, and how many others."""
    return f"{names[0]} and {len(names) - 1} more" if len(names) > 1 else names[0]
