"""Traces: files with the arrival, the prompt and the output of each request."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from medusa_sim.arrays import FloatArray, IntArray
from medusa_sim.errors import DataError, UsageError, shown
from medusa_sim.load.arguments import MOST_IN_RUN
from medusa_sim.load.requests import Requests, checked_requests
from medusa_sim.reading.files import named
from medusa_sim.reading.tables import csv_chunks, parquet_parts

if TYPE_CHECKING:
    import pandas as pd

ARRIVAL = ("arrival_s", "arrival", "arrived_at", "timestamp", "time", "time_s", "start_s", "start_time")
PROMPT = ("prompt_tokens", "prompt", "prompt_len", "input_tokens", "input_length", "input_len",
          "contexttokens", "context_tokens", "num_prefill_tokens", "request_tokens", "isl")  # fmt: skip
OUTPUT = ("output_tokens", "output", "output_len", "output_length", "generated_tokens", "generatedtokens",
          "completion_tokens", "num_decode_tokens", "response_tokens", "osl")  # fmt: skip
SESSION = ("session_id", "session", "conversation_id", "conversation", "chat_id")
THINK = ("think_s", "think_time_s", "think_ms", "think_time_ms")
_MILLISECONDS = ("arrival_ms", "timestamp_ms", "time_ms")
_LATEST_S = 1e11
"""Seconds since 1970 will pass this in 3,000 years, milliseconds did in 1973."""
_SELDOM_S = 50.0
"""Mean seconds between requests from which a column without a unit may well hold milliseconds."""
_CHUNK = 200_000
_WANTED = "a CSV or Parquet trace with columns arrival_s, prompt_tokens, output_tokens"


def read_trace(path: Path) -> Requests:
    """The requests of a trace file; column names as in public traces (Azure, Vidur, vLLM, BurstGPT-like).

    Arrivals are seconds (`*_ms`: milliseconds) or dates with times; they start at 0. A column of sessions
    (`session_id`, `conversation_id`, ...) makes a request wait for the one before it, and `think_s` more.
    Raises DataError for a file that is none, for missing columns, text in numbers, no rows, arrivals out of
    order.
    """
    frame = _frame(path)
    if frame.empty:
        raise DataError(f"{named(path)}: no requests below the header; give {_WANTED}")
    trace = _Trace(path, frame)
    prompt, output = trace.whole(PROMPT, "prompt tokens"), trace.whole(OUTPUT, "output tokens")
    arrival = trace.arrival()
    if len(set(trace.columns.get("priority", ()))) > 1:
        raise DataError(
            f"{named(path)}: requests have different priorities, which are not simulated: all are served "
            "first come, first served; drop the column to run it so"
        )
    try:
        return checked_requests(arrival, prompt, output, path.name, *trace.sessions())
    except UsageError as error:
        raise DataError(str(error)) from error


def _frame(path: Path) -> pd.DataFrame:
    import pandas as pd

    if path.suffix.lower() == ".parquet":
        parts: Iterable[pd.DataFrame] = (table.to_pandas() for table in parquet_parts(path, _CHUNK, _WANTED))
    else:
        parts = csv_chunks(path, _CHUNK)
    chunks = []
    held = 0
    for chunk in parts:
        held += len(chunk)
        if held > MOST_IN_RUN:
            raise DataError(f"{named(path)}: more than {MOST_IN_RUN:,} requests; give a part of it")
        chunks.append(chunk)
    return pd.concat(chunks) if chunks else pd.DataFrame()


class _Trace:
    """Columns of a file, by their names in small letters."""

    def __init__(self, path: Path, frame: pd.DataFrame) -> None:
        self.file, self.given = named(path), shown(", ".join(map(str, frame.columns)))
        self.columns: dict[str, pd.Series] = {
            str(name).strip().lower().replace(" ", "_"): frame[name] for name in frame.columns
        }

    def sessions(self) -> tuple[IntArray | None, FloatArray | None]:
        """(session of each request, pause before it in seconds); None where it has no session of two."""
        import pandas as pd

        name = next((column for column in SESSION if column in self.columns), None)
        if name is None:
            return None, None
        session, names = pd.factorize(self.columns[name])
        if names.size == (session >= 0).sum():
            return None, None
        think = next((column for column in THINK if column in self.columns), None)
        if think is None:
            return session.astype(np.int64), None
        pause_s = self._numbers(self.columns[think].fillna(0.0), think)
        pause_s = pause_s / (1e3 if think.endswith("_ms") else 1.0)
        if pause_s.min() < 0.0:
            row = int(np.argmin(pause_s))
            raise DataError(f"{self.file}: {think} of request {row} is below 0; give a time from 0")
        return session.astype(np.int64), pause_s

    def _named(self, names: tuple[str, ...], what: str) -> str:
        """The first of these names that is there."""
        for name in names:
            if name in self.columns:
                return name
        raise DataError(
            f"{self.file}: no column of {what} (known names: {', '.join(names[:6])}, ...; it has: "
            f"{self.given}); give {_WANTED}"
        )

    def _numbers(self, values: pd.Series, what: str) -> FloatArray:
        import pandas as pd

        try:
            numbers = pd.to_numeric(values, errors="coerce").to_numpy(dtype=np.float64)
        except OverflowError as error:
            raise DataError(
                f"{self.file}: {what}: a number of hundreds of digits; give finite ones"
            ) from error
        bad = ~np.isfinite(numbers)
        if bad.any():
            row = int(np.argmax(bad))
            given = values.iloc[row]
            given_text = shown(given.item() if isinstance(given, np.generic) else given)
            raise DataError(
                f"{self.file}: {what} of request {row} is {given_text}; a finite number is needed"
            )
        return numbers

    def whole(self, names: tuple[str, ...], what: str) -> IntArray:
        """A column of whole numbers from 1."""
        numbers = self._numbers(self.columns[self._named(names, what)], what)
        bad = (numbers < 1) | (numbers > 1e9) | (numbers != np.rint(numbers))
        if bad.any():
            row = int(np.argmax(bad))
            raise DataError(
                f"{self.file}: {what} of request {row} is {numbers[row]:g}; whole numbers from 1 are needed"
            )
        return numbers.astype(np.int64)

    def arrival(self) -> FloatArray:
        """Seconds at which requests come."""
        import pandas as pd

        name = self._named((*ARRIVAL, *_MILLISECONDS), "arrivals")
        values = self.columns[name]
        if pd.api.types.is_timedelta64_dtype(values) and values.notna().all():
            return np.asarray(values.dt.total_seconds().to_numpy(dtype=np.float64))
        if not pd.api.types.is_numeric_dtype(values):
            moments = pd.to_datetime(values, errors="coerce", format="ISO8601", utc=True)
            if moments.notna().all():
                since = (moments - moments.iloc[0]).dt.total_seconds()
                return np.asarray(since.to_numpy(dtype=np.float64))
        numbers = self._numbers(values, "arrival")
        seconds = numbers / 1e3 if name in _MILLISECONDS else numbers
        gap = np.ptp(numbers) / max(numbers.size - 1, 1)
        if not name.endswith(("_s", "_ms")) and gap > _SELDOM_S and (numbers == np.rint(numbers)).all():
            raise DataError(
                f"{self.file}: column {name} has whole numbers {gap:.0f} apart on average: seconds or "
                "milliseconds? call it arrival_s or arrival_ms"
            )
        if np.abs(seconds).max() > _LATEST_S:
            row = int(np.argmax(np.abs(seconds)))
            raise DataError(
                f"{self.file}: arrival of request {row} is {seconds[row]:g} s, which no clock shows; call "
                "the column arrival_ms where it holds milliseconds, and divide what is finer"
            )
        return seconds
