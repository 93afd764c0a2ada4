"""Which servers were measured, and by how much fits err on steps that they did not see: `nearness.toml`.

`benchmarks/hierarchy.py --write` writes it; `nearness.py` uses it.

    tokens = 8704

    [engines.vllm]
    steps = 0.7
    experts = 1.0

    [[served]]
    library = "vllm"
    runtime = "vllm-0.15"
    gpu = "h200-sxm"
    generation = "hopper"
    formats = ["fp8"]
    sizes = "80 layers of 8192"
    form = "dense"
    model = "llama-3.1-70b"
    cells = 60

    [kinds.model]
    step_share = 0.12
    experts_share = 0.3
    kernels_half_share = 1.0
    error = 0.08
    cells = 900
    groups = 27
    held = 0.79
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from medusa_sim.engines.place import KINDS, Kind, Place
from medusa_sim.reading.documents import read_toml
from medusa_sim.reading.strict import Text, convert

NEARNESS_FILE = Path(__file__).with_name("nearness.toml")
_Share = Annotated[float, Meta(ge=0.0, le=10.0)]
_Times = Annotated[float, Meta(gt=0.0, le=10.0)]


class ServedGroup(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Measured cells of one model at one place; a cell is a number of requests, a length and GPUs."""

    library: Text
    runtime: Text
    gpu: Text
    generation: Text
    formats: tuple[Text, ...]
    sizes: Text
    form: Text
    model: Text
    cells: Annotated[int, Meta(ge=1)]
    """Number of cells."""

    @property
    def place(self) -> Place:
        """Where it was measured."""
        card = self.gpu, self.generation
        return Place(self.library, self.runtime, *card, self.formats, self.sizes, self.form)


class LeftOut(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """By how much fits err that saw no group nearer than one kind of difference; mean over engines."""

    step_share: _Share
    """Half-width as a share of the step, on top of the bands of kernels and engine, with which 80 % bands
    hold on average over groups."""
    experts_share: _Share
    """The same for layers of experts, as a share of their time; dense models say nothing about them."""
    kernels_half_share: Annotated[float, Meta(ge=0.0, le=1.0)]
    """Share of the half-width of a plain step's kernels that counts in addition: below 1 where measured steps
    of the set-up itself told the sum of its kernels."""
    error: _Share
    """Mean relative error."""
    cells: Annotated[int, Meta(ge=0)]
    """Cells that it rests on."""
    groups: Annotated[int, Meta(ge=0)]
    """Groups of these."""
    held: _Share
    """Share of the cells in their bands, on average over groups."""
    note: str = ""


class Spread(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Error of an engine's groups under fits without them, over that of the mean engine."""

    steps: _Times = 1.0
    experts: _Times = 1.0
    """The same of layers of experts."""


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    source: Text
    tokens: Annotated[int, Meta(ge=1)]
    engines: dict[str, Spread]
    served: tuple[ServedGroup, ...]
    kinds: dict[Kind, LeftOut]


@cache
def _file() -> _File:
    return convert(read_toml(NEARNESS_FILE), _File, NEARNESS_FILE)


def served_groups() -> tuple[ServedGroup, ...]:
    """Every group of measured cells."""
    return _file().served


def known_kinds() -> dict[Kind, LeftOut]:
    """Known errors of each kind, the nearest first."""
    return {kind: _file().kinds[kind] for kind in KINDS}


def known_spreads() -> dict[str, Spread]:
    """The spread of every measured engine, by name without version."""
    return _file().engines


def longest_tokens() -> int:
    """Committed tokens of the longest requests whose steps were measured, half way through their outputs."""
    return _file().tokens
