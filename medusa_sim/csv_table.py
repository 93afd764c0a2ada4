"""A CSV with known columns, read strictly: one line for whatever is wrong with the file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from medusa_sim.errors import DataError

if TYPE_CHECKING:
    import pandas as pd


def read_csv_table(path: Path, columns: Sequence[str], **options: Any) -> pd.DataFrame:
    """The table, with at least `columns` and one row. `options` go to pandas' reader (dtype, comment).

    Raises DataError, naming the file and what a good one has.
    """
    import pandas as pd

    wanted = f"give a CSV with columns {', '.join(columns)}"
    try:
        frame: pd.DataFrame = pd.read_csv(path, **options)
    except FileNotFoundError:
        raise DataError(f"{path}: no such file; {wanted}") from None
    except (OSError, ValueError, pd.errors.ParserError, pd.errors.EmptyDataError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise DataError(f"{path}: cannot be read ({reason}); {wanted}") from error
    frame.columns = frame.columns.str.strip()
    if missing := [column for column in columns if column not in frame]:
        found = ", ".join(map(str, frame.columns))[:80]
        raise DataError(f"{path}: columns missing: {', '.join(missing)} (it has: {found}); {wanted}")
    if frame.empty:
        raise DataError(f"{path}: no rows below the header; {wanted}")
    return frame
