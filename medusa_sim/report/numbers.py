"""Numbers as text for people: rounded, with the unit that suits their size."""

from __future__ import annotations

import math
from collections.abc import Sequence

from medusa_sim.units import GIGA, KILO, MEGA, TERA, US_PER_MS, US_PER_S

NOTHING = "-"
"""What an empty cell shows."""

_PREFIXES = ((1e15, "P"), (TERA, "T"), (GIGA, "G"), (MEGA, "M"), (KILO, "k"))


def significant(value: float, digits: int = 4) -> str:
    """`digits` significant digits without an exponent where that is readable: 0.0123, 1.234, 12340."""
    if not math.isfinite(value):
        return NOTHING if math.isnan(value) else str(value)
    if value == 0.0:
        return "0"
    magnitude = math.floor(math.log10(abs(value)))
    if magnitude >= 12 or magnitude < -5:
        return f"{value:.{digits - 1}e}"
    decimals = max(digits - 1 - magnitude, 0)
    return f"{value:.{decimals}f}"


def span(first: int, last: int) -> str:
    """`1..8`, or `8` alone."""
    return str(first) if first == last else f"{first}..{last}"


def drafts_text(candidates: int) -> str:
    """A chain of so many candidates in the word of engines: `3 drafts` (num_speculative_tokens) of 4."""
    return {1: "no drafts", 2: "1 draft"}.get(candidates, f"{candidates - 1} drafts")


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


def percent(fraction: float, digits: int = 1) -> str:
    """A fraction as per cent: 0.0123 -> `1.2 %`."""
    return NOTHING if math.isnan(fraction) else f"{100.0 * fraction:.{digits}f} %"


def times(value: float) -> str:
    """A speedup: `2.31x`."""
    return NOTHING if math.isnan(value) else f"{value:.2f}x"


def times_between(low: float, high: float) -> str:
    """Speedups from the lowest to the highest: `1.21-1.91x`, or `2.31x` alone."""
    return times(high) if f"{low:.2f}" == f"{high:.2f}" else f"{low:.2f}-{times(high)}"


def cell(column: str, value: object) -> str:
    """One cell of a table for people; `column` names the quantity and thereby its unit."""
    if value is None:
        return NOTHING
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        if column.endswith("_bytes") and abs(value) >= KILO:
            return with_prefix(value, "B")
        return significant(value)
    return " ".join(str(value).split())


def is_number(values: Sequence[object]) -> bool:
    """Whether a column holds numbers and nothing else (None and booleans apart)."""
    return all(isinstance(v, int | float) for v in values if v is not None) and any(
        v is not None and not isinstance(v, bool) for v in values
    )
