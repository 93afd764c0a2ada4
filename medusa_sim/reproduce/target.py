"""What a reproduction hands out: a tidy table, where it comes from, and what to keep in mind."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, slots=True, kw_only=True)
class Reproduction:
    """One table or figure of a paper, predicted beside published.

    name: as the command line spells it (`table6`). frame: one row a cell; columns that hold what the
    paper prints start with `published_` and are empty where the paper gives nothing or where it is
    kept out of this project as a test. source: paper and place. caveat: one line.
    """

    name: str
    title: str
    source: str
    caveat: str
    frame: pd.DataFrame
