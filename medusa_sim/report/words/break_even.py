"""Where speculation pays, in words and as values: surely, perhaps, and where drafts run."""

from __future__ import annotations

from typing import Any

from medusa_sim.plan.break_even import BreakEven
from medusa_sim.plan.verdict import Stretch, Verdict
from medusa_sim.report.words.numbers import in_brackets

_SLIVER = 0.005
"""A last stretch of a smaller share of what was searched is where memory ends, and is left out."""
_SAYS: dict[Verdict, str] = {"pays": "pays", "uncertain": "is uncertain", "loses": "loses"}


def break_even_text(break_even: BreakEven, what: str) -> str:
    """`pays up to batch 200, is uncertain up to 400 and loses above (searched to 1,024)`; or of lengths.

    In order and once; of an uncertain stretch also where a gain is predicted in it.
    """
    if break_even.direction == "does not fit":
        return f"does not fit at any {what}"
    stretches = list(break_even.known)
    if len(stretches) == 1:
        searched = f"every {what} that fits, {break_even.searched_from:,} to {break_even.searched_to:,}"
        return f"{_SAYS[stretches[0].verdict]} at {searched}{in_brackets(_gain_in(stretches[0], break_even))}"
    *others, end = stretches
    if len(others) > 1 and end.last - end.first < _SLIVER * end.last:
        stretches = others
    *before, last = stretches
    searched = f"searched to {last.last:,}"
    if {stretch.verdict for stretch in stretches} == {"pays", "loses"} and len(stretches) == 2:
        return f"{last.verdict} from {what} {last.first:,} on{in_brackets(searched)}"
    parts = [
        f"{_SAYS[stretch.verdict]} up to {'' if place else f'{what} '}{stretch.last:,}"
        + in_brackets(_gain_in(stretch, break_even))
        for place, stretch in enumerate(before)
    ]
    ends = in_brackets(_gain_in(last, break_even), searched)
    return f"{', '.join(parts)} and {_SAYS[last.verdict]} above{ends}"


def break_even_values(break_even: BreakEven) -> dict[str, Any]:
    """Where and in which direction, with the range that was searched.

    known: what is certain and what is not; drafts_made: first and last value of each range with drafts.
    """
    return {
        "at": break_even.at,
        "direction": break_even.direction,
        "searched": [break_even.searched_from, break_even.searched_to],
        "drafts_made": [list(span) for span in break_even.spans],
        "known": [
            {"first": stretch.first, "last": stretch.last, "verdict": stretch.verdict}
            for stretch in break_even.known
        ],
    }


def _gain_in(stretch: Stretch, break_even: BreakEven) -> str:
    """Part of an uncertain stretch in which a predicted gain is drafted for; empty where that is all or none.

    Where drafts are made nowhere, no gain is predicted.
    """
    if stretch.verdict != "uncertain":
        return ""
    if not break_even.spans:
        return "no gain predicted"
    inside = [part for span in break_even.spans if (part := span.part_in(stretch.span)) is not None]
    if inside == [stretch.span]:
        return ""
    ends = [
        " ".join(
            [
                *([f"from {first:,}"] if first > stretch.first else []),
                *([f"up to {last:,}"] if last < stretch.last else []),
            ]
        )
        for first, last in inside
    ]
    return f"gain predicted {' and '.join(ends)}" if ends else ""
