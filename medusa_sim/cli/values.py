"""Types of options: grids, names, numbers of threads.

Grids as they are typed: `8`, `1,2,8`, `1..64`, `16..112:16`, `1..64:x2`, and lists of these. Lengths may be
given in k, which is 1024 tokens as in the names of models: `128k` is 131072.

Names of GPUs, models, runtimes and profiles may be lists, and the shell completes them.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import click
from click.shell_completion import CompletionItem

from medusa_sim.cli import say, warn
from medusa_sim.errors import MedusaSimError, UsageError, shown

MAX_VALUES = 65_536
"""Values on one axis; the rows of all axes together are not limited."""
_SHOWN = 160
_FEW = 8
"""Values of equal steps that are listed; more are told as a grid."""

_RANGE = re.compile(r"(?P<first>[0-9]+)\.\.(?P<last>[0-9]+)(?::(?P<factor>x)?(?P<step>[0-9]+))?", re.ASCII)
_NUMBER = re.compile(r"[0-9]+", re.ASCII)
_K = re.compile(r"([0-9]{1,9})[kK]\b", re.ASCII)


@dataclass(frozen=True, slots=True)
class Axis:
    """One axis of a grid: whether `a..b` means powers of two, its largest, if it takes 4k."""

    powers_of_two: bool
    largest: int
    in_k: bool = False

    @property
    def forms(self) -> str:
        """Accepted forms, for help and error messages."""
        return "8 or 1,2,8 or 1..64 or 16..112:16 or 1..64:x2" + (" or 4k (4096)" if self.in_k else "")

    def values(self, text: str) -> tuple[int, ...]:
        """The whole numbers of `text`, ascending and without repeats.

        `a..b` is every power of two from a to b on a batch or length axis and every integer
        elsewhere; `a..b:s` steps by s from a; `a..b:xf` multiplies by f. Ends are included where the
        progression meets them.

        Raises:
            UsageError: an empty, reversed, zero or too large grid, or text that is not a grid.
        """
        values: set[int] = set()
        for part in text.split(","):
            plain = _K.sub(lambda typed: str(int(typed[1]) * 1024), part) if self.in_k else part
            values.update(self._part(plain.strip(), text))
            if len(values) > MAX_VALUES:
                raise self._error(text, f"more than {MAX_VALUES} values", "a coarser step")
        return tuple(sorted(values))

    def _part(self, part: str, text: str) -> Sequence[int]:
        if _NUMBER.fullmatch(part):
            return (self._checked(part, text),)
        match = _RANGE.fullmatch(part)
        if match is None:
            given = f"{part!r} is not a grid" if part else "an empty entry"
            raise self._error(text, given, self.forms)
        first, last = self._checked(match["first"], text), self._checked(match["last"], text)
        if last < first:
            raise self._error(text, f"{part!r} runs backwards", f"{last}..{first}")
        if match["step"] is None and self.powers_of_two:
            powers = [2**p for p in range(self.largest.bit_length()) if first <= 2**p <= last]
            if not powers:
                given = f"no power of two lies in {first}..{last}"
                raise self._error(text, given, f"{first}..{last}:1 for every integer")
            return powers
        step = int((match["step"] or "1")[:9])
        if match["factor"]:
            if step < 2:
                raise self._error(text, f"the factor x{step} does not grow", "x2 or more")
            powers = [first * step**p for p in range(last.bit_length())]
            return [value for value in powers if value <= last]
        if step < 1:
            raise self._error(text, "a step of 0 never ends", "a step from 1")
        values = range(first, last + 1, step)
        if len(values) > MAX_VALUES:
            raise self._error(text, f"{len(values)} values, more than {MAX_VALUES}", "a coarser step")
        return values

    def _checked(self, digits: str, text: str) -> int:
        value = int(digits) if len(digits) < 20 else self.largest + 1
        if not 1 <= value <= self.largest:
            shown = digits if len(digits) < 20 else f"{digits[:12]}..."
            raise self._error(text, f"{shown} is out of range", f"whole numbers from 1 to {self.largest}")
        return value

    def one(self, text: str) -> int:
        """The one value of `text`. Raises UsageError for several too."""
        values = self.values(text)
        if len(values) > 1:
            raise UsageError(f"{','.join(map(str, values))}: one value is taken at a time")
        return values[0]

    def _error(self, text: str, problem: str, allowed: str) -> UsageError:
        given = text if len(text) <= 40 else f"{text[:37]}..."
        said = problem if problem.startswith(repr(given)) else f"{given!r}: {problem}"
        return UsageError(f"{said}; allowed: {allowed}")


BATCH = Axis(powers_of_two=True, largest=65_536)
SEQ_LEN = Axis(powers_of_two=True, largest=16_777_216, in_k=True)
CANDIDATES = Axis(powers_of_two=False, largest=65_536)
TP = Axis(powers_of_two=True, largest=1024)
DRAFTS = Axis(powers_of_two=False, largest=64)


class Reading(click.ParamType[Any]):
    """Result of `read` for text; other values were read before."""

    def __init__(self, name: str, read: Callable[[str], Any]) -> None:
        self.name, self.read = name, read

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The value; what `read` refuses is a usage error (exit 2)."""
        if not isinstance(value, str):
            return value
        try:
            return self.read(value)
        except UsageError as error:
            self.fail(str(error), param, ctx)
        except click.BadParameter as error:
            self.fail(error.message, param, ctx)


def grid(axis: Axis) -> Reading:
    """The type of a grid on an axis."""
    return Reading("grid", axis.values)


def echo_grid(**axes: Sequence[int]) -> None:
    """Print the numbers of the grids on stderr."""
    for name, values in axes.items():
        say(f"{name}: {_listed(values)}")


def _listed(values: Sequence[int]) -> str:
    """The values; many of equal steps as a grid says them: `1..64:1`."""
    steps = {after - before for before, after in pairwise(values)}
    if len(values) > _FEW and len(steps) == 1:
        return f"{values[0]}..{values[-1]}:{steps.pop()}"
    if len(values) <= _SHOWN:
        return " ".join(map(str, values))
    head, tail = " ".join(map(str, values[: _SHOWN // 2])), values[-1]
    return f"{head} ... {tail} ({len(values)} values)"


NameKind = Literal[
    "gpu", "model", "runtime", "engine", "drafter", "format", "profile", "target", "plain", "auto"
]


def names_of(kind: NameKind, data_dir: str | None) -> Iterable[str]:
    """Names of a kind, with those of a data folder; what knows them is imported when they are asked for."""
    names: Iterable[str] = ()
    match kind:
        case "gpu":
            from medusa_sim.gpus.gpu_names import gpu_names

            names = gpu_names(data_dir)
        case "model":
            from medusa_sim.models.named import model_names

            names = model_names()
        case "runtime":
            from medusa_sim.engines.runtime import runtime_names

            names = runtime_names(data_dir)
        case "engine":
            from medusa_sim.engines.runtime import runtime_aliases

            names = runtime_aliases()
        case "drafter":
            from medusa_sim.step.drafter import drafter_names

            names = drafter_names()
        case "format":
            from medusa_sim.units import FORMATS

            names = FORMATS
        case "profile":
            from medusa_sim.acceptance.profile import acceptance_names

            names = acceptance_names(data_dir)
        case "target":
            from medusa_sim.lab.reproduce import TARGETS

            names = TARGETS
        case "plain":
            from medusa_sim.setups.setup import NO_DRAFTER

            names = (NO_DRAFTER,)
        case "auto":
            from medusa_sim.setups.question import AUTO

            names = (AUTO,)
    return names


class NameType(click.ParamType[str | tuple[str, ...]]):
    """One name, or with `many` a comma-separated list; whether it exists is the loader's to say.

    kinds: whose names there are.
    """

    def __init__(self, *kinds: NameKind, many: bool = False, name: str = "") -> None:
        self.name, self.kinds, self.many = name or kinds[0], kinds, many

    def known(self, data_dir: str | None) -> Iterable[str]:
        """Accepted names."""
        return [name for kind in self.kinds for name in names_of(kind, data_dir)]

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> str | tuple[str, ...]:
        """The name, or the tuple of names without repeats; an empty one is a usage error."""
        if isinstance(value, tuple):
            return value
        names = [part.strip() for part in str(value).split(",")] if self.many else [str(value).strip()]
        if not all(names):
            self.fail(f"{value!r} holds an empty name", param, ctx)
        return tuple(dict.fromkeys(names)) if self.many else names[0]

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Known names that complete the typed text; in a list, the text after its last comma."""
        del param
        typed, comma, last = incomplete.rpartition(",") if self.many else ("", "", incomplete)
        try:
            known = self.known(ctx.params.get("data_dir"))
            return [CompletionItem(f"{typed}{comma}{name}") for name in known if name.startswith(last)]
        except MedusaSimError:
            return []


def _allowed(bounds: click.IntRange | click.FloatRange) -> str:
    """`whole numbers from 1 to 64 are allowed`."""
    what = "whole numbers" if isinstance(bounds, click.IntRange) else "finite numbers"
    low = "" if bounds.min is None else f" {'above' if bounds.min_open else 'from'} {bounds.min:.12g}"
    high = "" if bounds.max is None else f" to {bounds.max:.12g}"
    return f"{what}{low}{high} are allowed"


class Whole(click.IntRange):
    """A whole number in a range, refused in words that other doors use too."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The number. Fails for other text and for numbers out of range."""
        try:
            return super().convert(value, param, ctx)
        except click.BadParameter:
            self.fail(f"{shown(value)}: {_allowed(self)}", param, ctx)


class Finite(click.FloatRange):
    """A finite number in a range, refused in words that other doors use too; click's own lets nan pass."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The number. Fails for other text, nan, infinity and numbers out of range."""
        try:
            number = super().convert(value, param, ctx)
        except click.BadParameter:
            number = math.nan
        if not math.isfinite(number):
            self.fail(f"{shown(value)}: {_allowed(self)}", param, ctx)
        return number


def numbers(text: str, number_type: click.ParamType[float] | None = None) -> tuple[float, ...]:
    """Numbers between commas, in their order; number_type: what each may be, else any finite number."""
    one = number_type or Finite()
    return tuple(one.convert(part.strip(), None, None) for part in text.split(","))


class Threads(Whole):
    """Threads or processes; more than a machine can start would end the command without a message."""

    def __init__(self, what: str = "threads") -> None:
        super().__init__(1, 1024)
        self.what = what

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """The number. Fails where it is far above the cores of this machine."""
        threads = int(super().convert(value, param, ctx))
        cores = os.cpu_count() or 1
        if threads > (most := max(64, 4 * cores)):
            self.fail(f"{threads} {self.what} on {cores} cores; at most {most} here", param, ctx)
        return threads


class DataFolder(click.Path):
    """A data folder; that it is not there yet is said, since then only shipped data is found."""

    def __init__(self) -> None:
        super().__init__(path_type=Path, file_okay=False)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The folder as it was typed."""
        folder = Path(str(super().convert(value, param, ctx)))
        if not folder.expanduser().is_dir():
            warn([f"--data-dir {folder}: no such folder, so only shipped data is found"])
        return folder


MODEL, DRAFTER, ACCEPTANCE = NameType("model"), NameType("drafter"), NameType("profile")
RUNTIME = NameType("engine", "runtime", name="runtime")
GPUS, MODELS = NameType("gpu", many=True, name="gpus"), NameType("model", many=True, name="models")
DRAFTERS = NameType("drafter", many=True, name="drafters")
NAMES: dict[str, click.ParamType[Any]] = {
    "gpu": NameType("gpu"), "model": MODEL, "models": MODELS, "runtime": RUNTIME, "drafter": DRAFTER,
    "profile": ACCEPTANCE, "batch": grid(BATCH), "seq_len": grid(SEQ_LEN), "candidates": grid(CANDIDATES),
    "length": Reading("grid", SEQ_LEN.one), "threads": Threads(), "processes": Threads("processes"),
    "shares": Reading("shares", numbers), "gpus": GPUS, "counts": grid(TP), "drafts": grid(DRAFTS),
    "formats": NameType("format", many=True, name="formats"),
    "caches": NameType("auto", "format", many=True, name="formats"),
    "engines": NameType("engine", many=True, name="engines"),
    "drafters": NameType("plain", "drafter", many=True, name="drafters"), "data_dir": DataFolder(),
}  # fmt: skip
"""Types of options by the kind of their values (`scenario.declare.Argument.names`)."""
