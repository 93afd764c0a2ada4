"""Strict reading of files into structs: types and ranges stand in the annotations, every number has a source.

A key that is missing, unknown, of the wrong type or outside its range is an error of one line that names
file, key, what was given and what is allowed, in msgspec's own terms. Ranges are `msgspec.Meta` of the
annotation; its `description` is the unit or the words for what should stand there.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable
from typing import Annotated, Any, Generic, Literal, TypeVar

import msgspec
from msgspec import Meta, inspect

from medusa_sim.errors import MedusaSimError, SpecError, shown
from medusa_sim.outside.limits import TEXT_CHARACTERS
from medusa_sim.reading.files import named
from medusa_sim.units import BYTES_PER_ELEMENT

T = TypeVar("T")
NumberT = TypeVar("NumberT")

_CONTROLS = r"\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069"
"""Characters that a terminal or a script obeys instead of showing them, line breaks among them."""
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
_STEP = re.compile(r"\.([^.\[`]+)|\[(\d+|\.\.\.)\]")
_NEEDED = {"source": "; give the document or command that the number is from"}
_WORDS = {
    "int": "a whole number", "float": "a number", "str": "text", "bool": "true or false",
    "object": "a table", "array": "a list", "null": "nothing",
}  # fmt: skip
_TYPE = re.compile(rf"\b({'|'.join(_WORDS)})\b")


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
    try:
        return msgspec.convert(content, form, strict=True)
    except msgspec.ValidationError as wrong:
        raise error(f"{named(str(where))}: {_told(wrong, copy.deepcopy(content), form, key)}") from wrong


def check_dtypes(
    names: Iterable[str], where: object, key: str, error: type[MedusaSimError] = SpecError
) -> None:
    """Refuse a name that is no dtype. Raises `error`."""
    for name in names:
        if name not in BYTES_PER_ELEMENT:
            allowed = ", ".join(BYTES_PER_ELEMENT)
            raise error(f"{named(str(where))}: {key}.{shown(name)[1:-1]}: unknown dtype; allowed: {allowed}")


def _told(wrong: msgspec.ValidationError, content: Any, form: Any, key: str) -> str:
    """The message as `key: given ...; allowed: ...`. `content` loses the entries beside the fault."""
    problem, _, path = str(wrong).partition(" - at ")
    value, info = content, inspect.type_info(form)
    for name, index in _STEP.findall(path.rpartition("$")[2]):
        step: Any = int(index) if index.isdigit() else name or _culprit(str(wrong), content, form, value)
        key = f"{key}[{step}]" if index.isdigit() else _below(key, step)
        value, info = value[step], _inside(info, step)
    if path.startswith("`key`"):
        key = _below(key, _culprit(str(wrong), content, form, value))
        return f"{key}: unknown key; allowed here: {_names(info)}"
    if found := re.fullmatch(r"Object missing required field `(.*)`", problem):
        words = _names(_inside(info, found[1]))
        needed = _NEEDED.get(found[1], f"; allowed: {words}" if words else "")
        return f"{_below(key, found[1])}: missing{needed}"
    if found := re.fullmatch(r"Object contains unknown field `(.*)`", problem, re.DOTALL):
        return f"{_below(key, found[1])}: unknown key; allowed here: {_names(info)}"
    said = info.extra_json_schema if isinstance(info, inspect.Metadata) else None
    words = (said or {}).get("description", "")
    if problem.startswith("Expected "):
        allowed = problem.removeprefix("Expected ").partition(", got ")[0].replace("`", "")
        allowed = _TYPE.sub(lambda name: _WORDS[name[0]], allowed).replace(" | ", " or ")
        if allowed == _WORDS["object"] and (keys := _names(info)):
            allowed = f"{allowed} with {keys}"
        problem = words if "regex" in allowed else ", ".join(filter(None, (allowed, words)))
    elif problem.startswith("Invalid "):  # a word that is not listed, or no date
        problem = words or _names(info)
    else:  # said by a struct itself: parts that disagree
        return f"{key}: {problem}" if key else problem
    given = "null or NaN" if value is None else shown(value)  # `read_json` takes both as None
    return f"{key}: given {given}; allowed: {problem}".removeprefix(": ")


def _culprit(message: str, content: Any, form: Any, table: dict[str, Any]) -> str:
    """The key of `table`, a part of `content`, that the message calls `[...]`; the others are removed."""
    for name, child in list(table.items()):
        table.clear()
        table[name] = child
        try:
            msgspec.convert(content, form, strict=True)
        except msgspec.ValidationError as wrong:
            if str(wrong) == message:
                break
    return next(iter(table))


def _inside(info: Any, step: Any) -> Any:
    """The type of an entry of a table or list."""
    match info:
        case inspect.Metadata():
            return _inside(info.type, step)
        case inspect.UnionType():
            inner = [found for option in info.types if (found := _inside(option, step)) is not None]
            return inspect.UnionType(tuple(inner)) if inner else None
        case inspect.StructType():
            return next((field.type for field in info.fields if field.encode_name == step), None)
        case inspect.DictType():
            return info.value_type
        case inspect.ListType() | inspect.VarTupleType():
            return info.item_type
    return None


def _names(info: Any) -> str:
    """The words or keys that a type accepts."""
    match info:
        case inspect.Metadata():
            return _names(info.type)
        case inspect.UnionType():
            return ", ".join(dict.fromkeys(filter(None, map(_names, info.types))))
        case inspect.StructType():
            return ", ".join(sorted(field.encode_name for field in info.fields))
        case inspect.LiteralType():
            return ", ".join(map(str, info.values))
        case inspect.DictType():
            return _names(info.key_type)
    return ""


def _below(key: str, name: object) -> str:
    text = " ".join(str(name).split())
    text = text if len(text) <= 60 else text[:57] + "..."
    return f"{key}.{text}" if key else text
