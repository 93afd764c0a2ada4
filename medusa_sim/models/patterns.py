"""Regular expressions and wildcards that a file gives, matched in time linear in the name.

Python's `re` backtracks: `([a-z]+)+#` of a file would take hours on a name of forty letters, and no other
thread runs meanwhile. Here all patterns together are one automaton (K. Thompson, Regular expression search
algorithm, 1968) that is in a set of places at once. What needs more than that, references backwards and looks
around, is refused.
"""

from __future__ import annotations

import string
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, TypeAlias

from medusa_sim.errors import SpecError, shown
from medusa_sim.outside.limits import PATTERN_NESTING, PATTERN_STATES, PATTERN_STEPS

_ASCII: Final = frozenset(map(chr, range(128)))
_CONTROLS: Final = {"n": "\n", "t": "\t", "r": "\r", "f": "\f", "v": "\v"}
_ALLOWED = "allowed: letters, `.`, classes, groups, `|`, `* + ? {m,n}`, `^` and `$`"
_START, _END = "start", "end"
"""Places that take no letter: they lead on where a name begins, and where it ends."""


@dataclass(frozen=True, slots=True)
class _Letters:
    """Letters that one place takes; others: any letter beyond ASCII too."""

    known: frozenset[str]
    others: bool = False

    def negated(self) -> _Letters:
        return _Letters(_ASCII - self.known, not self.others)


_CLASSES: Final = {
    "d": _Letters(frozenset(string.digits)),
    "w": _Letters(frozenset(string.ascii_letters + string.digits + "_"), others=True),
    "s": _Letters(frozenset(string.whitespace)),
}
_ANY = _Letters(_ASCII - {"\n"}, others=True)


@dataclass(frozen=True, slots=True)
class _Then:
    """Parts one after another."""

    parts: tuple[_Part, ...]


@dataclass(frozen=True, slots=True)
class _Either:
    parts: tuple[_Part, ...]


@dataclass(frozen=True, slots=True)
class _Repeated:
    """A part at least `low` times, at most `high` (None: any number of times)."""

    part: _Part
    low: int
    high: int | None


@dataclass(frozen=True, slots=True)
class _At:
    """The beginning or the end of the name."""

    is_end: bool


_Part: TypeAlias = _Letters | _Then | _Either | _Repeated | _At


class _Parser:
    """One regular expression, letter by letter."""

    def __init__(self, text: str) -> None:
        self.text, self.at, self.depth = text, 0, 0

    def refuse(self, what: str) -> SpecError:
        return SpecError(f"{shown(self.text)}: {what}; {_ALLOWED}")

    def whole(self) -> _Part:
        part = self.either()
        if self.at < len(self.text):
            raise self.refuse("a bracket `)` that none opens")
        return part

    def peek(self, letters: str) -> bool:
        return self.at < len(self.text) and self.text[self.at] in letters

    def take(self) -> str:
        if self.at >= len(self.text):
            raise self.refuse("ends within a part")
        self.at += 1
        return self.text[self.at - 1]

    def either(self) -> _Part:
        parts = [self.then()]
        while self.peek("|"):
            self.at += 1
            parts.append(self.then())
        return parts[0] if len(parts) == 1 else _Either(tuple(parts))

    def then(self) -> _Part:
        parts: list[_Part] = []
        while self.at < len(self.text) and not self.peek("|)"):
            part = self.single()
            times = self.times()
            parts.append(part if times is None else _Repeated(part, *times))
            if times is not None and self.peek("*+?{"):
                raise self.refuse("two quantifiers in a row")
        return _Then(tuple(parts))

    def times(self) -> tuple[int, int | None] | None:
        """(least, most) of the quantifier that comes next; None without one."""
        if not self.peek("*+?{"):
            return None
        sign = self.take()
        found: tuple[int, int | None] = {"*": (0, None), "+": (1, None), "?": (0, 1)}.get(sign, (0, None))
        if sign == "{":
            inside, closed, rest = self.text[self.at : self.at + 20].partition("}")
            low, comma, high = inside.partition(",")
            del rest
            if not closed or not all(each.isdecimal() or not each for each in (low, high)) or not low + high:
                raise self.refuse("a `{` that is no number of times")
            self.at += len(inside) + 1
            found = int(low or 0), (int(high) if high else None if comma else int(low))
            if found[1] is not None and found[1] < found[0]:
                raise self.refuse("a `{` whose numbers fall")
        self.at += self.peek("?")  # lazy: says which of several matches, not whether there is one
        return found

    def single(self) -> _Part:
        match letter := self.take():
            case ".":
                return _ANY
            case "^" | "$":
                return _At(letter == "$")
            case "[":
                return self.letters()
            case "\\":
                return self.escape()
            case "(":
                return self.group()
            case "*" | "+" | "?" | "{":
                raise self.refuse(f"a `{letter}` with nothing before it")
            case _:
                return _only(letter)

    def group(self) -> _Part:
        if self.peek("?"):
            if not self.text.startswith("?:", self.at):
                raise self.refuse("a group `(?` other than `(?:`")
            self.at += 2
        self.depth += 1
        if self.depth > PATTERN_NESTING:
            raise self.refuse(f"groups nested more than {PATTERN_NESTING} deep")
        part = self.either()
        if self.take() != ")":
            raise self.refuse("a bracket that is not closed")
        self.depth -= 1
        return part

    def escape(self) -> _Part:
        letter = self.take()
        if letter in "AZ":
            return _At(letter == "Z")
        return self.escaped(letter)

    def escaped(self, letter: str) -> _Letters:
        if letter.lower() in _CLASSES:
            known = _CLASSES[letter.lower()]
            return known if letter.islower() else known.negated()
        if letter in _CONTROLS:
            return _only(_CONTROLS[letter])
        if letter.isalnum():
            raise self.refuse(rf"`\{letter}`")
        return _only(letter)

    def letters(self) -> _Letters:
        """A class, from after its `[`."""
        is_negated = self.peek("^")
        self.at += is_negated
        known: set[str] = set()
        others = False
        is_first = True
        while is_first or not self.peek("]"):
            is_first = False
            low = self.one()
            if self.peek("-") and self.text[self.at + 1 : self.at + 2] not in ("]", ""):
                self.at += 1
                high = self.one()
                if not len(low.known) == len(high.known) == 1 or min(low.known) > min(high.known):
                    raise self.refuse("a range in `[` that does not rise from one letter to another")
                first, last = ord(min(low.known)), ord(min(high.known))
                known.update(map(chr, range(first, last + 1)))
            else:
                known |= low.known
                others |= low.others
        self.at += 1
        found = _Letters(frozenset(known), others)
        return found.negated() if is_negated else found

    def one(self) -> _Letters:
        """One letter of a class, or a class within it."""
        letter = self.take()
        return self.escaped(self.take()) if letter == "\\" else _only(letter)


def _only(letter: str) -> _Letters:
    return _Letters(frozenset((letter,))) if letter in _ASCII else _Letters(frozenset(), others=True)


def _states(part: _Part) -> int:
    """Places that a part needs, its repetitions written out."""
    match part:
        case _Then(parts) | _Either(parts):
            return 1 + sum(map(_states, parts))
        case _Repeated(inner, low, high):
            return 1 + max(low + 1, high or 0) * _states(inner)
    return 1


def of_wildcards(name: str) -> str:
    """The regular expression of a name with `*`, `?` and `[...]`, or of a module inside one of that name."""
    parts, at = [], 0
    while at < len(name):
        letter = name[at]
        at += 1
        close = name.find("]", at + 1) if letter == "[" else -1
        if letter == "*":
            parts.append(".*")
        elif letter == "?":
            parts.append(".")
        elif close >= 0:
            inside = name[at:close].replace("\\", "\\\\").replace("[", "\\[")
            parts.append(f"[{'^' + inside[1:] if inside.startswith('!') else inside}]")
            at = close + 1
        else:
            parts.append(letter if letter.isalnum() or letter == "_" else f"\\{letter}")
    return "".join(parts) + r"(?:\..*)?$"


class Patterns:
    """Names that begin with what one of some regular expressions describes, as `re.match` finds them.

    Raises SpecError for an expression that needs more than an automaton, for too many or too long ones, and
    on asking where the names take more than PATTERN_STEPS.
    """

    def __init__(self, given: Iterable[str]) -> None:
        self._takes: list[_Letters | str | None] = []
        """Of each place: what it takes; None: nothing, it leads on at once. A text: a mark, as _START."""
        self._next: list[tuple[int, ...]] = []
        self._found = self._place("found")
        parts: list[_Part] = []
        size = 0
        for each in dict.fromkeys(given):
            part = _Parser(each).whole() if len(each) <= PATTERN_STATES else None
            size += PATTERN_STATES + 1 if part is None else _states(part)
            if part is None or size > PATTERN_STATES:
                raise SpecError(f"{shown(each)}: patterns of more than {PATTERN_STATES:,} letters together")
            parts.append(part)
        self._left = PATTERN_STEPS
        self._known: dict[tuple[int, str], int] = {}
        self._ends: dict[int, bool] = {}
        self._sets: list[frozenset[int]] = []
        self._numbers: dict[frozenset[int], int] = {}
        starts = [self._built(part, self._found) for part in parts]
        self._start = self._number(self._closure(starts, at=_START))

    def __contains__(self, name: object) -> bool:
        state = self._start
        for number, word in enumerate(str(name).split(".")):
            state = self._after(state, f".{word}" if number else word)
            if state < 0:
                return False
        if state not in self._ends:
            self._ends[state] = self._found in self._closure(self._sets[state], at=_END)
        return self._ends[state]

    def _after(self, state: int, word: str) -> int:
        """The set of places after a word, by number; below 0 where none is left, and found stays found."""
        if (known := self._known.get((state, word))) is not None:
            return known
        places = self._sets[state]
        for letter in word:
            if self._found in places:
                break
            self._left -= len(places)
            taken = (place for place in places if _takes(self._takes[place], letter))
            places = self._closure([target for place in taken for target in self._next[place]])
        after = self._number(places) if places else -1
        self._known[state, word] = after
        return after

    def _number(self, places: frozenset[int]) -> int:
        number = self._numbers.setdefault(places, len(self._sets))
        if number == len(self._sets):
            self._sets.append(places)
        return number

    def _place(self, takes: _Letters | str | None, *after: int) -> int:
        self._takes.append(takes)
        self._next.append(after)
        return len(self._takes) - 1

    def _built(self, part: _Part, after: int) -> int:
        """The first place of a part that leads to `after`."""
        match part:
            case _Then(parts):
                for each in reversed(parts):
                    after = self._built(each, after)
                return after
            case _Either(parts):
                return self._place(None, *(self._built(each, after) for each in parts))
            case _Repeated(inner, low, high):
                if high is None:
                    again = self._place(None, after)
                    self._next[again] = (self._built(inner, again), after)
                    after = again
                else:
                    end = after
                    for _ in range(high - low):
                        after = self._place(None, self._built(inner, after), end)
                for _ in range(low):
                    after = self._built(inner, after)
                return after
            case _At(is_end):
                return self._place(_END if is_end else _START, after)
            case _Letters():
                return self._place(part, after)

    def _closure(self, places: Iterable[int], at: str = "") -> frozenset[int]:
        """Places that wait for a letter or for the end, with those that the ones before lead to at once.

        at: _START before the first letter, _END after the last.
        """
        waiting: set[int] = set()
        seen: set[int] = set()
        left = list(places)
        while left:
            self._left -= 1
            if self._left < 0:
                raise SpecError(
                    "patterns match the names of its modules too slowly; give fewer, or fewer with `*`"
                )
            place = left.pop()
            if place in seen:
                continue
            seen.add(place)
            takes = self._takes[place]
            if takes is None or takes == at:
                left += self._next[place]
            elif takes != _START:
                waiting.add(place)
        if self._found in waiting:
            return frozenset((self._found,))
        return frozenset(waiting)


def _takes(takes: _Letters | str | None, letter: str) -> bool:
    """Whether a place takes a letter; marks take none."""
    return isinstance(takes, _Letters) and (letter in takes.known or (takes.others and letter not in _ASCII))
