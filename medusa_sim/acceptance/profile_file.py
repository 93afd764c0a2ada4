"""The file format of acceptance profiles, version 1 (documented in docs/acceptance-format.md).

Every file has `schema = 1`, `kind`, `title` and `source`; the other keys belong to the kind. Unknown
keys, missing keys, wrong types and a missing source are refused with the file and the key named.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, TypeAlias

import msgspec

from medusa_sim.errors import SpecError

SCHEMA = 1


class _ProfileFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="kind"):
    schema: int
    title: str
    source: str


class LogCurveFile(_ProfileFile, frozen=True, kw_only=True, tag="log-curve"):
    """`tokens_per_step = 1 + slope ln(candidates)` for 1..candidates_max.

    `points`: published (candidates, tokens_per_step) from which the residuals are computed.
    """

    slope: float
    candidates_max: int
    points: list[tuple[int, float]] = []


class CurveFile(_ProfileFile, frozen=True, kw_only=True, tag="curve"):
    """Monotone interpolation of `points` (candidates, tokens_per_step).

    `error_tokens`: half width of the 80 % band of one point.
    """

    points: list[tuple[int, float]]
    error_tokens: float = 0.0


ProfileFile: TypeAlias = LogCurveFile | CurveFile


def _first_not_finite(value: Any, key: str = "") -> str:
    """The dotted key of the first NaN or infinity inside `value`, or an empty string."""
    if isinstance(value, float):
        return "" if math.isfinite(value) else key
    items: list[tuple[str, Any]] = []
    if isinstance(value, dict):
        items = [(f"{key}.{name}" if key else name, entry) for name, entry in value.items()]
    elif isinstance(value, list | tuple):
        items = [(f"{key}[{i}]", entry) for i, entry in enumerate(value)]
    return next((found for name, entry in items if (found := _first_not_finite(entry, name))), "")


def decoded_profile(text: str, path: Path) -> ProfileFile:
    """The profile in `text`, checked for types, schema, source and finite numbers.

    Raises:
        SpecError: one line that names the file, the key and what is allowed.
    """
    try:
        profile: ProfileFile = msgspec.toml.decode(text, type=ProfileFile)
        raw = msgspec.toml.decode(text)
    except msgspec.DecodeError as error:  # ValidationError included: its message names the key
        raise SpecError(f"acceptance profile {path}: {error}") from error
    if profile.schema != SCHEMA:
        raise SpecError(
            f"acceptance profile {path}: schema {profile.schema} is unknown (this version reads {SCHEMA})"
        )
    if not profile.source.strip():
        raise SpecError(f"acceptance profile {path}: source is empty; say where the numbers come from")
    if key := _first_not_finite(raw):
        raise SpecError(f"acceptance profile {path}: {key} is not a finite number")
    return profile
