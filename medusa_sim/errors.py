"""Every failure that a user can cause or fix. Anything else is a bug and keeps its traceback.

MedusaSimError
├── UsageError      arguments that contradict each other or a grid that is empty (exit 2)
├── SpecError       a GPU, model, runtime, tree or acceptance file that is missing or wrong
├── DataError       a table of rows with missing columns, text in numbers, mixed dtypes
├── CoverageError   a question outside what was measured or fitted
├── OutputError     a file or folder that cannot be written
└── ThresholdError  a check ran and missed its threshold (exit 3)
"""

from __future__ import annotations

import re
import reprlib
from collections.abc import Iterable, Mapping

SHOWN_CHARACTERS = 60
_SHORT = reprlib.Repr()
_SHORT.maxlevel = 3
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = SHOWN_CHARACTERS
MOST_MEANT = 8
"""Names that an error offers where each of them may be meant."""
MOST_LISTED = 30
"""Names that an error lists where `medusa-sim specs` does too: more are a wall."""
_IN_SPECS = ("GPU", "model", "runtime", "acceptance profile", "GPU, model, runtime or profile")
"""Kinds of names that it lists."""
_OTHERWISE = {
    "ollama": "llama.cpp", "lmstudio": "llama.cpp", "ampere": "a100", "hopper": "h100", "blackwell": "b200",
    "nextn": "mtp", "promptlookup": "ngram", "lookup": "ngram", "speculator": "eagle3", "half": "fp16",
    "float16": "fp16", "bfloat16": "bf16", "float32": "fp32", "float": "fp32", "e4m3": "fp8", "fp4": "nvfp4",
    "w8a8": "int8", "w4a16": "int4", "awq": "int4", "gptq": "int4", "nf4": "int4",
}  # fmt: skip
"""What people type, without marks between words, and how names begin that say it here."""
_ALIKE = 0.6
"""Share of the letters that a misspelt name has in common with what is meant, at least."""
_SLIP = 0.9
"""Of a name that a finger missed: drafter typed as draftr."""
_FAMILY = 3
"""Letters that are a family's name at least: h100, gpt, llama."""
_AS_NEAR = 0.1
"""Of a score: names of one family that differ by less may all be meant."""


class MedusaSimError(Exception):
    """Base of every expected failure. The message is one line: what, given, allowed, next step."""

    exit_code = 1


class UsageError(MedusaSimError):
    """Arguments that cannot be used together, or that are outside what a command takes."""

    exit_code = 2


class SpecError(MedusaSimError):
    """A specification (GPU, model, runtime, tree, acceptance profile) is missing or wrong."""


class DataError(MedusaSimError):
    """A table of measured rows is malformed."""


class CoverageError(MedusaSimError):
    """A prediction was asked for where nothing was measured or fitted."""


class OutputError(MedusaSimError):
    """A result could not be written; nothing half-written is left behind."""


class ThresholdError(MedusaSimError):
    """A validation ran to its end and missed the threshold that was asked for."""

    exit_code = 3


def check_kind(name: str, value: object, wanted: str, allowed: tuple[type, ...]) -> None:
    """Refuse a value of another kind than is wanted; True is no number. Raises UsageError."""
    if not isinstance(value, allowed) or (isinstance(value, bool) and bool not in allowed):
        raise UsageError(f"{name} {shown(value)}: {wanted} is needed")


def shown(given: object) -> str:
    """A value as an error names it: its repr on one line, at most SHOWN_CHARACTERS long.

    >>> shown("medusa"), len(shown("a" * 1000))
    ("'medusa'", 60)
    """
    try:
        text = _SHORT.repr(given)
    except ValueError:  # an integer of more digits than Python prints
        text = f"an integer of {given.bit_length()} bits" if isinstance(given, int) else "a value"
    text = " ".join(text.split())
    return text if len(text) <= SHOWN_CHARACTERS else text[: SHOWN_CHARACTERS - 3] + "..."


def install(extra: str) -> str:
    """What adds an extra of the project, as the README says it: the package is on no index.

    >>> install("app")
    "run pip install '.[app]' in the project's folder"
    """
    return f"run pip install '.[{extra}]' in the project's folder"


def names_meant(given: str, allowed: Iterable[str]) -> list[str]:
    """Names that may be meant: those that begin with what is given, else the nearest, its family first.

    Case and marks between words count nothing.

    >>> names_meant("gpt-5", ["gpt-oss-20b", "gpt-oss-120b", "opt-125m"])
    ['gpt-oss-120b', 'gpt-oss-20b']
    >>> names_meant("h1000", ["a100", "h100-pcie", "h100-sxm", "v100"])
    ['h100-pcie', 'h100-sxm']
    >>> names_meant("draftr", ["draft_runtime", "drafter"])
    ['drafter', 'draft_runtime']
    """
    names, raw = sorted(allowed), given[:SHOWN_CHARACTERS].strip().lower()
    if meant := [name for name in names if raw and name.lower().startswith(raw)]:
        return meant[:MOST_MEANT]
    typed = _letters(raw)
    letters = {name: _letters(name) for name in names}
    for begins in (typed, _letters(_OTHERWISE.get(typed, ""))):
        same = [name for name in names if letters[name] == begins]
        meant = same or [name for name in names if begins and letters[name].startswith(begins)]
        if meant:
            slips = [] if same else [name for name in names if _is_slip(typed, letters[name])]
            return list(dict.fromkeys([*slips, *meant]))[:MOST_MEANT]
    if meant := [name for name in names if typed in re.split(r"[-_ ]", name.lower())]:
        return meant[:MOST_MEANT]
    scores = {name: score for name in names if typed and (score := _nearness(typed, letters[name]))}
    best = max(scores, key=lambda name: scores[name], default="")
    shared = typed[: _same_begin(typed, letters.get(best, ""))]
    return [
        name
        for name, score in scores.items()
        if score == scores[best]
        or (len(shared) >= _FAMILY and letters[name].startswith(shared) and score >= scores[best] - _AS_NEAR)
    ][:MOST_MEANT]


def _letters(name: str) -> str:
    """A name in lower case without spaces and marks between its words."""
    return "".join(each for each in name.lower() if each.isalnum())


def _is_slip(typed: str, name: str) -> bool:
    """Whether one differs from the other by a letter or two."""
    from difflib import SequenceMatcher

    return typed != name and SequenceMatcher(None, typed, name).ratio() >= _SLIP


def _same_begin(typed: str, name: str) -> int:
    """Letters that both begin with."""
    pairs = zip(typed, name, strict=False)
    return next((at for at, (a, b) in enumerate(pairs) if a != b), min(len(typed), len(name)))


def _nearness(typed: str, name: str) -> float:
    """How much of both is the same, a common beginning more than the rest; 0: too little."""
    from difflib import SequenceMatcher

    alike = SequenceMatcher(None, typed, name).ratio()
    begin = _same_begin(typed, name)
    if alike < _ALIKE and begin < min(_FAMILY, len(name)):
        return 0.0
    return alike + 0.5 * begin / len(typed) + 0.25 * (begin == len(name))


def unknown_name(kind: str, given: str, allowed: Iterable[str], also: Mapping[str, str] | None = None) -> str:
    """One line for a name that does not exist: those that may be meant, then all, or where they are listed.

    also: names that may be meant too and are not listed, and as what they are offered.

    >>> unknown_name("model", "llama-4", ["llama-4-scout", "llama-4-maverick", "llama-7b"]).split(" (")[0]
    "unknown model 'llama-4'; did you mean one of llama-4-maverick, llama-4-scout?"
    """
    names = sorted(allowed)
    also = also or {}
    meant = list(dict.fromkeys(also.get(name, name) for name in names_meant(given, {*names, *also})))
    near = f"one of {', '.join(meant)}" if len(meant) > 1 else "".join(map(repr, meant))
    hint = f"; did you mean {near}?" if near else ""
    is_wall = len(names) > MOST_LISTED and kind in _IN_SPECS
    known = "`medusa-sim specs` lists the known ones" if is_wall else f"known: {', '.join(names)}"
    return f"unknown {kind} {shown(given)}{hint} ({known})"
