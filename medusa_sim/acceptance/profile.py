"""Acceptance profiles: a named, sourced answer to "how many tokens does one step emit?".

One TOML file a profile under `profiles/acceptance/` (or a user's own path). The format is versioned
(`schema = 1`); docs/acceptance-format.md describes every kind. Whatever the kind, a profile answers
`tokens_per_step(candidates)` and its 80 % `band(candidates)`, raises CoverageError beyond what it was
measured on, and gives exactly 1 token per step at one candidate.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy.typing as npt

from medusa_sim.acceptance.curve import FloatArray, LogCurve, TableCurve
from medusa_sim.acceptance.profile_file import CurveFile, LogCurveFile, ProfileFile, decoded_profile
from medusa_sim.errors import SpecError, unknown_name


class AcceptanceModel(Protocol):
    """What every kind of profile can answer."""

    @property
    def candidates_max(self) -> int:
        """Largest count (root included) that the profile covers."""

    def tokens_per_step(self, candidates: npt.ArrayLike) -> FloatArray:
        """Mean tokens emitted per step with the best shape of that many candidates."""

    def band(self, candidates: npt.ArrayLike) -> tuple[FloatArray, FloatArray]:
        """80 % interval of `tokens_per_step`."""


@dataclass(frozen=True)
class AcceptanceProfile:
    """A profile with its name, kind and source; `model` does the arithmetic."""

    name: str
    kind: str
    title: str
    source: str
    model: AcceptanceModel

    @property
    def candidates_max(self) -> int:
        """Largest count (root included) that the profile covers."""
        return self.model.candidates_max

    def tokens_per_step(self, candidates: npt.ArrayLike) -> FloatArray:
        """Mean tokens emitted per step, of the shape of `candidates` (root included, from 1).

        Raises:
            CoverageError: a count beyond `candidates_max`.
            UsageError: a count below 1 or not whole.
        """
        return self.model.tokens_per_step(candidates)

    def band(self, candidates: npt.ArrayLike) -> tuple[FloatArray, FloatArray]:
        """(low, high) of the 80 % interval of `tokens_per_step`, from residuals or label counts."""
        return self.model.band(candidates)


def _model(name: str, file: ProfileFile) -> AcceptanceModel:
    match file:
        case LogCurveFile():
            return LogCurve(name, file.slope, file.candidates_max, tuple(file.points))
        case CurveFile():
            return TableCurve(name, tuple(file.points), file.error_tokens)


def _folders(data_dir: Path | str | None) -> list[Path]:
    package = Path(__file__).resolve().parents[1]
    roots = ([Path(data_dir)] if data_dir else []) + [package.parent, package / "_data"]
    return [root / "profiles" / "acceptance" for root in roots]


def acceptance_names(data_dir: Path | str | None = None) -> tuple[str, ...]:
    """Names of every profile found, the user's own folder included, sorted."""
    return tuple(sorted({path.stem for folder in _folders(data_dir) for path in folder.glob("*.toml")}))


def _found(name_or_path: str, data_dir: Path | str | None) -> Path:
    if name_or_path.endswith(".toml") or os.sep in name_or_path:
        return Path(name_or_path)
    for folder in _folders(data_dir):
        if (path := folder / f"{name_or_path}.toml").is_file():
            return path
    raise SpecError(unknown_name("acceptance profile", name_or_path, acceptance_names(data_dir)))


def load_acceptance(name_or_path: str | Path, data_dir: Path | str | None = None) -> AcceptanceProfile:
    """The profile of that name (`data_dir` is searched first, then shipped data) or at that path.

    Raises:
        SpecError: no such profile (the nearest name is suggested) or a malformed file.
    """
    path = _found(str(name_or_path), data_dir)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(
            f"acceptance profile {path}: cannot be read ({error}); give a readable TOML file"
        ) from error
    file = decoded_profile(text, path)
    return AcceptanceProfile(
        path.stem, str(type(file).__struct_config__.tag), file.title, file.source, _model(path.stem, file)
    )
