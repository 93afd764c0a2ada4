"""What can be cut into parts: rows that follow from a description and a number."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

if TYPE_CHECKING:
    import pyarrow as pa

Description: TypeAlias = dict[str, Any]
"""JSON that says everything a result depends on: `kind` names the work, `version` the package."""


class Work(Protocol):
    """Rows in numbered parts. Equal descriptions give equal parts, on any machine and in any order."""

    @property
    def description(self) -> Description:
        """From which `works.work_of` makes the same work again."""
        ...

    @property
    def parts(self) -> int:
        """How many there are."""
        ...

    def computed(self, number: int) -> int:
        """Rows that are computed for a part, of which it may keep fewer: what progress counts."""
        ...

    def tables(self, number: int) -> Iterator[pa.Table]:
        """The rows of a part in chunks that fit in memory; all parts have the same columns."""
        ...
