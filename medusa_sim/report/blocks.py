"""Blocks of a report: headings, texts, tables, pictures and what a reader unfolds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Literal, TypeAlias

from medusa_sim.outside.escaping import for_file
from medusa_sim.report.table import TextTable

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, slots=True)
class Heading:
    """A heading of level 1 to 3."""

    text: str
    level: int = 2


@dataclass(frozen=True, slots=True)
class Text:
    """A paragraph; tone: `lead` for the answer, `soft` for the question above it."""

    text: str
    tone: Literal["", "lead", "soft"] = ""


@dataclass(frozen=True, slots=True)
class Bullets:
    """A list of sentences."""

    items: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Labelled:
    """Facts, each with its label."""

    items: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Code:
    """Lines to copy."""

    text: str


@dataclass(frozen=True)
class Picture:
    """A figure with the name of its file and a caption that says what it shows.

    draw: makes it, with `slim=True` as a phone shows it.
    """

    draw: Callable[..., Figure]
    name: str
    caption: str

    @property
    def file(self) -> str:
        """The PNG of the Markdown page."""
        return f"{for_file(self.name)}.png"

    @cached_property
    def figure(self) -> Figure:
        """The picture for a page of full width."""
        return self.draw()


@dataclass(frozen=True, slots=True)
class Folded:
    """A table that a reader unfolds."""

    summary: str
    table: TextTable


@dataclass(frozen=True, slots=True)
class Appendix:
    """Everything after the first page: a reader unfolds it; where it is open it is printed too."""

    summary: str
    blocks: tuple[Block, ...]


Block: TypeAlias = "Heading | Text | Bullets | Labelled | Code | Picture | Folded | Appendix | TextTable"


def pictures_of(blocks: Sequence[Block]) -> Iterator[Picture]:
    """Every picture of a report, its appendix included."""
    for block in blocks:
        if isinstance(block, Picture):
            yield block
        elif isinstance(block, Appendix):
            yield from pictures_of(block.blocks)
