"""One argument, declared once: name, type, default, help, option, what it may be; and records of them.

Options of the command line, checks in Python, files of parts and help pages follow from the fields of a
record. Light to import: classes that a value may be an object of are looked up when one is given.
"""

from __future__ import annotations

import inspect
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from numbers import Integral, Real
from typing import Any, ClassVar, Concatenate, ParamSpec, TypeVar, get_args

from medusa_sim.errors import UsageError, check_kind, shown, unknown_name
from medusa_sim.file_types import named_file, read_by

P = ParamSpec("P")
T = TypeVar("T")
REQUIRED: Any = MISSING
_DECLARED: dict[type, dict[str, Argument]] = {}


@dataclass(frozen=True, slots=True)
class Type:
    """The kind of a value, in words and classes; loaded: the class of objects that may stand for a name."""

    wanted: str
    classes: tuple[type, ...]
    loaded: Callable[[], type] | None = None

    @property
    def allowed(self) -> tuple[type, ...]:
        """Every class that a value may be of."""
        return self.classes if self.loaded is None else (*self.classes, self.loaded())


def _gpu() -> type:
    from medusa_sim.gpus.gpu import Gpu

    return Gpu


def _model() -> type:
    from medusa_sim.models.model import Model

    return Model


def _runtime() -> type:
    from medusa_sim.engines.runtime import Runtime

    return Runtime


def _latency() -> type:
    from medusa_sim.latency.model import LatencyModel

    return LatencyModel


WHOLE = Type("a whole number", (Integral,))
NUMBER = Type("a number", (Real,))
FLAG = Type("True or False", (bool,))
WORD = Type("a name", (str,))
PATH = Type("a path", (str, os.PathLike))
FOLDER = Type("a folder", (str, os.PathLike))
ANY = Type("anything", (object,))
"""Checked by what reads it."""
GPU = Type("a name or a loaded GPU", (str,), _gpu)
MODEL = Type("a name, a path or a loaded model", (str, os.PathLike), _model)
RUNTIME = Type("a name or a loaded runtime", (str,), _runtime)
LATENCY = Type("a name or a latency model", (str,), _latency)


@dataclass(frozen=True, slots=True, kw_only=True)
class Argument:
    """One argument, as every door of the project takes it."""

    name: str
    default: Any
    type: Type
    help: str
    section: str = ""
    """Heading of help pages that it stands under."""
    label: str = ""
    """Name of its input in the app; empty: the app has none."""
    option: str
    """`--tp`; `--chain-only/--trees` for a flag with a name for False."""
    choices: tuple[str, ...] = ()
    """Names that it may be, where they are few and fixed."""
    others: tuple[str, ...] = ()
    """Further names, which menus leave out."""
    belong_to: tuple[str, tuple[str, ...]] = ("", ())
    """Another option with names that are looked for here."""
    names: str = ""
    """The kind of its values (`gpu`, `model`, `batch`, ...): read and listed by `cli.values.NAMES`."""
    required: bool = False
    many: bool = False
    """The option may be given again; the value is a tuple."""
    metavar: str | None = None
    least: float | None = None
    above: float | None = None
    most: float | None = None

    @property
    def called(self) -> str:
        """Its name in messages: words of the option that is typed."""
        return self.option.partition("/")[0].removeprefix("--").replace("-", " ")

    def named(self, value: str) -> str | None:
        """The name that a text means, whatever its case or a tool's spelling; None where it means none."""
        read = (value.lower(), *([named_file(value)] if self.others else []))
        return next((name for name in read if name in (*self.choices, *self.others)), None)

    def unknown(self, value: str, runtime: object = None) -> str:
        """The error for a name that is no choice; runtime: the engine whose names it lists."""
        what, engine = self.called, str(getattr(runtime, "name", runtime or ""))
        option, names = self.belong_to
        if value.lower() in names:
            return f"{what} {shown(value)}: {option} takes it (here: {', '.join(self.choices)})"
        also = {name: named_file(name) for name in self.others}
        if known := [name for name in self.others if name in read_by(engine)]:
            return unknown_name(
                what, value, known, {name: alias for name, alias in also.items() if alias in known}
            )
        local = f"; a local --runtime takes {', '.join(self.others[:4])}, ... too" if self.others else ""
        return unknown_name(what, value, self.choices, {} if engine else also) + local * (not engine)

    def check(self, value: object, runtime: object = None) -> None:
        """Refuse a value of another type or out of range; None passes where it is the default.

        Python itself would take "no" for true, True for 1 and 2.5 for a number of heads. runtime: the engine
        given beside it. Raises UsageError.
        """
        if value is None and self.default is None:
            return
        if self.many and isinstance(value, Sequence):
            for each in value:
                check_kind(self.name, each, self.type.wanted, self.type.allowed)
            return
        check_kind(self.name, value, self.type.wanted, self.type.allowed)
        if self.choices and isinstance(value, str) and value not in self.choices:
            known = self.named(value) if self.others else None
            if known is None:
                raise UsageError(self.unknown(value, runtime))
        if isinstance(value, Real) and self.type in (WHOLE, NUMBER) and not self._covers(value):
            raise UsageError(f"{self.called} {shown(value)}: {self._range} are allowed")

    def _covers(self, value: Any) -> bool:
        """Whether a number is finite and in the range; nan is above nothing."""
        low = value >= (-math.inf if self.least is None else self.least)
        high = value < math.inf if self.most is None else value <= self.most
        return low and high and (self.above is None or value > self.above)

    @property
    def _range(self) -> str:
        parts = ["whole numbers" if self.type is WHOLE else "finite numbers"]
        parts += [f"from {self.least:g}"] if self.least is not None else []
        parts += [f"above {self.above:g}"] if self.above is not None else []
        parts += [f"to {self.most:g}"] if self.most is not None else []
        return " ".join(parts)

    def is_default(self, value: object) -> bool:
        """Whether a value is the default; objects are by identity."""
        return value is self.default or (isinstance(value, str | int | float) and value == self.default)

    def words(self, value: object) -> list[str]:
        """Option and value as one types them. Raises UsageError for an object that no option can name."""
        yes, _, no = self.option.partition("/")
        if isinstance(value, bool):
            return [word for word in [yes if value else no] if word]
        if isinstance(value, str | int | float):
            return [yes, str(value)]
        if isinstance(value, os.PathLike):
            return [yes, os.fspath(value)]
        if isinstance(value, Sequence) and all(isinstance(item, str | Real) for item in value):
            return [
                yes,
                ",".join(str(item if isinstance(item, str | int) else float(item)) for item in value),
            ]
        if self.names and self.type is not ANY and isinstance(value, self.type.allowed):
            return [yes, str(getattr(value, "name", value))]
        raise UsageError(
            f"{self.name} was given as an object of Python; a command needs a name: pass its name instead"
        )


def argument(default: Any, type_: object, help_: str, section: str = "", **more: Any) -> Any:
    """A field of a record of arguments; default REQUIRED: it has none.

    type_: a `Type`, or the Literal of its annotation, whose names are then its choices. more: further fields
    of `Argument`.
    """
    known = {"type": type_} if isinstance(type_, Type) else {"type": WORD, "choices": get_args(type_)}
    return field(default=default, metadata={**known, "help": help_, "section": section, **more}, kw_only=True)


def declared(record: Any) -> dict[str, Argument]:
    """The arguments that a record declares, by name, in their order."""
    if record not in _DECLARED:
        _DECLARED[record] = _read(record)
    return _DECLARED[record]


def _read(record: Any) -> dict[str, Argument]:
    return {
        each.name: Argument(
            name=each.name,
            default=None if each.default is MISSING else each.default,
            required=each.default is MISSING,
            **{"option": f"--{each.name.replace('_', '-')}", **each.metadata},
        )
        for each in fields(record)
        if each.metadata
    }


def check(given: Mapping[str, object], known: Mapping[str, Argument], what: str = "argument") -> None:
    """Refuse unknown arguments, and values of another type than theirs or out of range. Raises UsageError."""
    for name in given:
        if name not in known:
            raise UsageError(unknown_name(what, name, known))
    for name, each in known.items():
        if name in given:
            each.check(given[name], given.get("runtime"))


def takes(record: Callable[P, object]) -> Callable[[Callable[..., T]], Callable[Concatenate[Any, P], T]]:
    """Give a function that takes a record's arguments as keywords their signature."""

    def of(function: Callable[..., T]) -> Callable[Concatenate[Any, P], T]:
        signature = inspect.signature(function)
        kept = [
            parameter
            for parameter in signature.parameters.values()
            if parameter.kind is not parameter.VAR_KEYWORD
        ]
        arguments = inspect.signature(record).parameters.values()
        function.__signature__ = signature.replace(parameters=[*kept, *arguments])  # type: ignore[attr-defined]
        return function

    return of


class Declared:
    """A record whose fields are arguments."""

    always: ClassVar[tuple[str, ...]] = ()
    """Arguments that are named even at their defaults."""

    def __post_init__(self) -> None:
        check(self.values, declared(type(self)))

    @property
    def values(self) -> dict[str, Any]:
        """Every argument by name."""
        return {name: getattr(self, name) for name in declared(type(self))}

    @property
    def changed(self) -> dict[str, Any]:
        """The arguments that differ from the defaults, and those that are always named."""
        known = declared(type(self))
        return {
            name: value
            for name, value in self.values.items()
            if name in self.always or not known[name].is_default(value)
        }
