"""Strict reading of files into structs: types and ranges stand in the annotations, every number has a source.

A key that is missing, unknown, of the wrong type or outside its range is an error of one line that names
file, key, what was given and what is allowed. Ranges and units are `msgspec.Meta` of the annotation; its
`description` is the unit or the words for what should stand there.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Iterable, Iterator
from typing import Annotated, Any, Generic, Literal, TypeVar, Union

import msgspec
from msgspec import Meta

from medusa_sim.errors import MedusaSimError, SpecError, shown
from medusa_sim.outside.limits import TEXT_CHARACTERS
from medusa_sim.reading import first_not_finite, named
from medusa_sim.units import BYTES_PER_ELEMENT

T = TypeVar("T")
NumberT = TypeVar("NumberT")

_UNIONS = (Union, types.UnionType)
_WORDS: dict[Any, str] = {str: "text", bool: "true or false", int: "a whole number", float: "a number"}

_CONTROLS = r"\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069"
"""What a terminal or a script obeys instead of showing it, line breaks among them."""
Text = Annotated[
    str,
    Meta(
        pattern=rf"^[^{_CONTROLS}]*[^\s{_CONTROLS}][^{_CONTROLS}]*$",
        max_length=TEXT_CHARACTERS,
        description="text on one line, not empty",
    ),
]
Schema = Annotated[Literal[1], Meta(description="1, the schema that this version reads")]
Us = Annotated[float, Meta(ge=0.0, le=1e6, description="microseconds")]
Error = Annotated[float, Meta(ge=0.0, le=10.0, description="a mean error as a fraction")]


class Sourced(msgspec.Struct, Generic[NumberT], frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A number, the document or command that gives it, and a remark on how."""

    value: NumberT
    source: Text
    note: str = ""


def convert(
    content: object, form: type[T], where: object, *, key: str = "", error: type[MedusaSimError] = SpecError
) -> T:
    """`content` (of a TOML or JSON file) as a `form`; `where` names the file and `key` the place in it.

    Raises `error`: one line with file, key, what was given and what is allowed.
    """
    if (bad := first_not_finite(content, key)) is not None:
        raise error(f"{named(str(where))}: {bad}: given nan or infinity; allowed: a finite number")
    try:
        return msgspec.convert(content, form, strict=True)
    except msgspec.ValidationError as wrong:
        at, problem = _fault(content, form, key) or (key, str(wrong))
        raise error(f"{named(str(where))}: {at + ': ' if at else ''}{problem}") from wrong


def check_dtypes(
    names: Iterable[str], where: object, key: str, error: type[MedusaSimError] = SpecError
) -> None:
    """Refuse a name that is no dtype. Raises `error`."""
    for name in names:
        if name not in BYTES_PER_ELEMENT:
            allowed = ", ".join(BYTES_PER_ELEMENT)
            raise error(f"{named(str(where))}: {key}.{shown(name)[1:-1]}: unknown dtype; allowed: {allowed}")


def _fault(value: object, form: Any, key: str) -> tuple[str, str] | None:
    """Where and why `value` is no `form`: (dotted key, problem); None where it is one."""
    try:
        msgspec.convert(value, form, strict=True)
    except msgspec.ValidationError as wrong:
        inner = next(_inner_faults(value, form, key), None)
        if inner is not None:
            return inner
        if isinstance(value, dict) and _struct(form, value) is not None:
            return key, str(wrong).partition(" - at ")[0]  # told by the struct itself: parts that disagree
        return key, f"given {shown(value)}; allowed: {_allowed(form)}"
    return None


def _inner_faults(value: object, form: Any, key: str) -> Iterator[tuple[str, str]]:
    """Faults of the parts of a table or list, the first one first."""
    struct = _struct(form, value)
    origin, arguments = typing.get_origin(form), typing.get_args(form)
    if origin is Annotated:
        yield from _inner_faults(value, arguments[0], key)
    elif isinstance(value, dict) and struct is not None:
        yield from _struct_faults(value, struct, key)
    elif isinstance(value, dict) and origin is dict:
        yield from _dict_faults(value, arguments, key)
    elif isinstance(value, list) and origin in (list, tuple):
        each = arguments[:1] if origin is list or Ellipsis in arguments else arguments
        for index, child in enumerate(value):
            fault = _fault(child, each[min(index, len(each) - 1)], f"{key}[{index}]")
            yield from [fault] if fault else []
    elif origin in _UNIONS:
        for option in arguments:
            if isinstance(value, dict | list) and typing.get_origin(option) is type(value):
                yield from _inner_faults(value, option, key)


def _struct_faults(value: dict[str, object], struct: Any, key: str) -> Iterator[tuple[str, str]]:
    fields = {field.encode_name: field for field in msgspec.structs.fields(struct)}
    config = (typing.get_origin(struct) or struct).__struct_config__
    tag = config.tag_field if config.tag is not None else None
    for name in value:
        if name not in fields and name != tag and config.forbid_unknown_fields:
            yield _below(key, name), f"unknown key; allowed here: {', '.join(sorted(fields))}"
    for name, field in fields.items():
        if name in value:
            fault = _fault(value[name], field.type, _below(key, name))
            yield from [fault] if fault else []
        elif field.required:
            yield _below(key, name), f"missing; {_needed(name, field.type)} is needed"


def _dict_faults(value: dict[str, object], arguments: tuple[Any, ...], key: str) -> Iterator[tuple[str, str]]:
    names, values = arguments
    for name, child in value.items():
        if _fault(name, names, key) is not None:
            yield _below(key, name), f"unknown key; allowed here: {_allowed(names)}"
        fault = _fault(child, values, _below(key, name))
        yield from [fault] if fault else []


def _struct(form: Any, value: object = None) -> Any:
    """The struct that a form is (perhaps `| None`; of several the one that `value` names), or None."""
    origin = typing.get_origin(form)
    if origin is Annotated:
        return _struct(typing.get_args(form)[0], value)
    if origin in _UNIONS:
        structs = [struct for option in typing.get_args(form) if (struct := _struct(option, value))]
        tags = [getattr(struct, "__struct_config__", None) for struct in structs]
        if isinstance(value, dict):
            named_one = [
                s for s, tag in zip(structs, tags, strict=True) if tag and value.get(tag.tag_field) == tag.tag
            ]
            structs = named_one or structs
        return next(iter(structs), None)
    base = origin or form
    return form if isinstance(base, type) and issubclass(base, msgspec.Struct) else None


def _fields(struct: Any) -> dict[str, Any]:
    """Type of every field of a struct."""
    return {field.name: field.type for field in msgspec.structs.fields(struct)}


def _below(key: str, name: object) -> str:
    text = str(name)
    text = text if len(text) <= 60 else text[:57] + "..."
    text = " ".join(text.split())
    return f"{key}.{text}" if key else text


def _needed(name: str, form: Any) -> str:
    if name == "source":
        return "the document or command that gives the number"
    return _allowed(form)


def _allowed(form: Any) -> str:
    """What a form accepts, in words: `a number from 1e+09 to 1e+15 bytes/s`."""
    origin, arguments = typing.get_origin(form), typing.get_args(form)
    struct = _struct(form)
    if origin is Annotated:
        text = _allowed_number(arguments[0], [meta for meta in arguments[1:] if isinstance(meta, Meta)])
    elif origin is Literal:
        text = ", ".join(map(str, arguments))
    elif origin in _UNIONS:
        text = " or ".join(_allowed(option) for option in arguments if option is not types.NoneType)
    elif struct is not None and {"value", "source"} <= (parts := _fields(struct)).keys():
        text = f"a table with value ({_allowed(parts['value'])}) and source"
    elif struct is not None or origin is dict or form is dict:
        text = "a table"
    elif origin in (list, tuple):
        text = f"a list, each {_allowed(arguments[0])}"
    else:
        text = _WORDS.get(form, str(getattr(form, "__name__", form)))
    return text


def _allowed_number(base: Any, metas: list[Meta]) -> str:
    words = next((meta.description for meta in metas if meta.description), "")
    if base not in (int, float):
        return words or _allowed(base)
    low = next((bound for meta in metas for bound in (meta.ge, meta.gt) if bound is not None), None)
    high = next((bound for meta in metas for bound in (meta.le, meta.lt) if bound is not None), None)
    text = "a whole number" if base is int else "a number"
    above = any(meta.gt is not None for meta in metas)
    if low is not None and high is not None:
        text += f" {'above' if above else 'from'} {low:g} {'and up ' if above else ''}to {high:g}"
    elif low is not None:
        text += f" {'above' if above else 'from'} {low:g}" + ("" if above else " up")
    return f"{text} {words}".strip()
