"""Where speculation pays, in words and as values: surely, perhaps, and where drafts run."""

from __future__ import annotations

from typing import Any

from medusa_sim.plan.break_even import BreakEven
from medusa_sim.plan.verdict import VERDICTS, Stretch, Verdict
from medusa_sim.report.words.numbers import span

_MOST_NAMED = 3
"""Most stretches that are listed in order."""
_SAYS: dict[Verdict, str] = {"pays": "pays", "uncertain": "is uncertain", "loses": "loses"}


def break_even_text(break_even: BreakEven, what: str) -> str:
    """`pays to batch 200, is uncertain to 400 and loses beyond (searched to 1,024)`; or of lengths."""
    known = break_even.known
    if break_even.direction == "does not fit":
        return f"does not fit at any {what}"
    if len(known) == 1:
        searched = f"every {what} that fits, {break_even.searched_from:,} to {break_even.searched_to:,}"
        if known[0].verdict == "uncertain":
            return f"is uncertain at {searched}{_drafted(break_even, what)}"
        return f"{_SAYS[known[0].verdict]} at {searched}"
    searched = f"(searched to {break_even.searched_to:,})"
    kinds = [stretch.verdict for stretch in known]
    if kinds in (["pays", "loses"], ["loses", "pays"]):
        return f"{known[1].verdict} from {what} {known[1].first:,} on {searched}"
    if len(known) <= _MOST_NAMED:
        *before, last = known
        told = [f"{_SAYS[before[0].verdict]} to {what} {before[0].last:,}"]
        told += [f"{_SAYS[stretch.verdict]} to {stretch.last:,}" for stretch in before[1:]]
        end = f"{_SAYS[last.verdict]} beyond{_drafted(break_even, what)}"
        return f"{', '.join(told)} and {end} {searched}"
    told = [
        f"{_SAYS[kind]} at {what} {_spans([stretch for stretch in known if stretch.verdict == kind])}"
        for kind in VERDICTS
        if kind != "loses" and kind in kinds
    ]
    elsewhere = " and loses elsewhere" if "loses" in kinds else ""
    return f"{', '.join(told)}{elsewhere}{_drafted(break_even, what)} {searched}"


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
            {"first": stretch.first, "last": stretch.last, "kind": stretch.verdict}
            for stretch in break_even.known
        ],
    }


def _drafted(break_even: BreakEven, what: str) -> str:
    """Where drafts run within the uncertain stretches."""
    unsure = [stretch for stretch in break_even.known if stretch.verdict == "uncertain"]
    if not unsure:
        return ""
    if not break_even.spans:
        return ", without a predicted gain"
    first, last = break_even.spans[-1]
    for stretch in unsure:
        if stretch.first <= last < stretch.last:
            return f", with a predicted gain to {what} {last}"
        if stretch.first < first <= stretch.last:
            return f", with a predicted gain from {what} {first} on"
    return ""


def _spans(stretches: list[Stretch]) -> str:
    return ", ".join(span(stretch.first, stretch.last) for stretch in stretches)
