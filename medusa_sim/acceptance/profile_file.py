"""The file format of acceptance profiles, version 1 (documented in docs/acceptance-format.md).

Every file has `schema = 1`, `kind`, `title` and `source`, and may have `request_spread`: the standard
deviation among requests on the logit of their acceptance, and `longest_context`: tokens up to which it was
measured. The other keys belong to the kind. Unknown keys, missing keys, wrong types and a missing source are
refused with the file and the key named.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Annotated, Literal, TypeAlias, get_args

import msgspec
from msgspec import Meta

from medusa_sim.errors import SpecError, shown
from medusa_sim.outside.escaping import printable
from medusa_sim.outside.limits import TEXT_CHARACTERS
from medusa_sim.reading.documents import read_toml
from medusa_sim.reading.files import FileState, file_state, named
from medusa_sim.reading.strict import Schema, Text, convert

SCHEMA: Literal[1] = 1

Rate = Annotated[float, Meta(ge=0.0, le=1.0)]
Count = Annotated[int, Meta(ge=0, le=10**15)]
Ranks = Annotated[int, Meta(ge=0, le=4_096)]
Point = tuple[
    Annotated[int, Meta(ge=1, le=1_000_000, description="candidates")],
    Annotated[float, Meta(ge=1.0, le=1e6, description="tokens per step")],
]
"""(candidates, tokens_per_step)."""

Agreement: TypeAlias = Literal["target", "teacher-forced"]
"""Meaning of "right" when rates were measured: equal to what the target emits in its own text, or to
the next token of a given text. The second is not the acceptance of a running system."""


class _ProfileFile(
    msgspec.Struct,
    frozen=True,
    forbid_unknown_fields=True,
    kw_only=True,
    omit_defaults=True,
    tag_field="kind",
):
    schema: Schema
    title: Text
    source: Text
    request_spread: Annotated[float, Meta(ge=0.0, le=10.0)] | None = None
    longest_context: Annotated[int, Meta(ge=1, le=1_000_000_000)] | None = None


class LogCurveFile(_ProfileFile, frozen=True, kw_only=True, tag="log-curve"):
    """`tokens_per_step = 1 + slope ln(candidates)` for 1..candidates_max.

    `points`: published (candidates, tokens_per_step) from which the residuals are computed.
    """

    slope: Annotated[float, Meta(ge=0.0, le=100.0)]
    candidates_max: Annotated[int, Meta(ge=1, le=1_000_000)]
    points: list[Point] = []


class CurveFile(_ProfileFile, frozen=True, kw_only=True, tag="curve"):
    """Monotone interpolation of `points` (candidates, tokens_per_step).

    `error_tokens`: half width of the 80 % band of one point.
    """

    points: Annotated[list[Point], Meta(min_length=1)]
    error_tokens: Annotated[float, Meta(ge=0.0, le=100.0, description="tokens")] = 0.0


class HeadRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One head: `accuracy` of exactly rank 0, 1, ...; `labels` tokens it was scored on (0: unknown)."""

    accuracy: list[Rate]
    labels: Count = 0


class FittedHeadRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One head in compact form: rank 0 is right with `top1`, rank i > 0 with `scale (i + 1)^-exponent`."""

    top1: Rate
    scale: Annotated[float, Meta(ge=0.0, le=100.0)]
    exponent: Annotated[float, Meta(ge=0.0, le=100.0)]


class HeadTopkFile(_ProfileFile, frozen=True, kw_only=True, tag="head-topk"):
    """Accuracy per head and rank, either measured (`heads`) or fitted (`fitted_heads`, `ranks`).

    `measured_ranks` of a fitted file: the ranks after them are the fit's tail. `fit_error`: mean
    absolute error of the fitted accuracies. `correlation`, `model_error`: see HeadAccuracy and
    ShapedAcceptance. `design_effect`: variance of what the accuracies give, over that of as many
    independent labels; labels of one text go together.
    """

    agreement: Agreement
    heads: list[HeadRow] = []
    fitted_heads: list[FittedHeadRow] = []
    ranks: Ranks = 0
    measured_ranks: Ranks = 0
    fit_error: Rate = 0.0
    correlation: Annotated[float, Meta(ge=-1.0, le=1.0)] = 0.0
    model_error: Rate = 0.0
    design_effect: Annotated[float, Meta(ge=1.0, le=1e6)] = 1.0


class PositionRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One position of a chain: its acceptance `rate` over `trials` (0: unknown)."""

    rate: Rate
    trials: Count = 0


class OutputRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """In outputs of `tokens` every conditional rate is `share` of what the file says.

    error: relative 80 % half width of the accepted drafts that follow.
    """

    tokens: Annotated[float, Meta(ge=1.0, le=1e9)]
    share: Rate
    error: Rate = 0.0


class PositionFile(_ProfileFile, frozen=True, kw_only=True, tag="position"):
    """Acceptance per chain position.

    `rates = "unconditional"`: all guesses up to this one accepted (falls along the chain);
    `rates = "conditional"`: this one accepted where the ones before were. `match_rate`: share of the steps in
    which a drafter that looks drafts up in the text found any; rates count every step. `match_runs`: how many
    times as long as of independent steps runs of them are. `by_output`: what the length of an output changes,
    shortest first. `of_mean`: the rates, or those after the first, are one number, solved from a mean
    length.
    """

    agreement: Agreement
    rates: Literal["conditional", "unconditional"]
    positions: list[PositionRow]
    model_error: Rate = 0.0
    of_mean: bool = False
    match_rate: Annotated[float, Meta(gt=0.0, le=1.0)] | None = None
    match_runs: Annotated[float, Meta(ge=1.0, le=100.0)] | None = None
    by_output: tuple[OutputRow, ...] = ()


class DraftVectorFile(_ProfileFile, frozen=True, kw_only=True, tag="draft-vector"):
    """`children[k]`: probability that the (k + 1)-th child of an accepted node is the accepted one.

    The same at every depth to `depth_max`; `trials` nodes were observed (0: unknown).
    """

    agreement: Agreement
    children: list[Rate]
    depth_max: Annotated[int, Meta(ge=1, le=1_000)]
    trials: Count = 0
    model_error: Rate = 0.0


ProfileFile: TypeAlias = LogCurveFile | CurveFile | HeadTopkFile | PositionFile | DraftVectorFile


def read_profile(path: Path) -> ProfileFile:
    """The profile of a file, checked for types, ranges, schema, source and finite numbers.

    Raises:
        SpecError: one line that names the file, the key and what is allowed.
    """
    return _read(file_state(path))


@lru_cache(maxsize=128)
def _read(state: FileState) -> ProfileFile:
    path = state.path
    content = read_toml(path, "a TOML acceptance profile")
    kinds = {str(form.__struct_config__.tag): form for form in get_args(ProfileFile)}
    kind = content.get("kind")
    if not isinstance(kind, str) or kind not in kinds:
        given = "missing" if kind is None else f"given {shown(kind)}"
        raise SpecError(f"{named(path)}: kind: {given}; allowed: {', '.join(kinds)}")
    profile: ProfileFile = convert(content, kinds[kind], path)
    return profile


def encoded_profile(profile: ProfileFile) -> str:
    """The TOML text of a profile; `read_profile` reads it back unchanged.

    Title and source may come from an engine or a file's name: what no line shows stands there as its escape.
    """
    import tomlkit

    told = {
        "title": printable(profile.title)[:TEXT_CHARACTERS],
        "source": printable(profile.source)[:TEXT_CHARACTERS],
    }
    return tomlkit.dumps(msgspec.to_builtins(profile) | told)
