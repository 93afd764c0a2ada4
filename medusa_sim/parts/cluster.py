"""Workers of dask.distributed that compute parts: they write them themselves, numbers alone come back."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from concurrent.futures import CancelledError
from pathlib import Path
from typing import TYPE_CHECKING

from medusa_sim.errors import OutputError, UsageError, install
from medusa_sim.parts.running import compute_with

if TYPE_CHECKING:
    from distributed import Client


ANSWER_S = 10.0
"""Longest wait for a scheduler to answer, and for the first of its workers."""
AHEAD = 3
"""Parts in flight per thread of the workers: enough to keep them busy, few enough for any number of parts."""
_TALKATIVE = ("distributed", "tornado", "asyncio")
RETRIES = 2
"""Further tries of a part whose worker failed otherwise than by ending."""


def require_cluster_extra() -> None:
    """Raises UsageError, one line, where dask.distributed is not installed."""
    import importlib.util

    if importlib.util.find_spec("distributed") is None:
        raise UsageError(
            f"--scheduler needs dask.distributed; {install('cluster')}, or share the work by --workers N or "
            "--shard i/n, which need nothing"
        )


def compute_on_cluster(scheduler: str, path: Path, numbers: list[int]) -> Iterator[int]:
    """By the workers of a scheduler.

    Raises OutputError where no scheduler or worker answers, where the scheduler goes away or a part ends its
    workers.
    """
    from distributed import KilledWorker

    with _client(scheduler) as client:
        threads = max(sum(client.nthreads().values()), 1)
        executor = client.get_executor(pure=False, retries=RETRIES)
        try:
            yield from compute_with(executor, AHEAD * threads, path, numbers)
        except KilledWorker as error:
            raise OutputError(
                "a part ended every worker that computed it, perhaps for memory; finished parts are kept: "
                "give workers more, and run the same command again"
            ) from error
        except CancelledError as error:
            raise OutputError(
                "the scheduler went away; finished parts are kept: run the same command again when it is back"
            ) from error


@contextlib.contextmanager
def _client(scheduler: str) -> Iterator[Client]:
    """A client of the scheduler named."""
    from distributed import Client

    # Its loggers have levels and handlers of their own; what matters is told here, in one line.
    for name in [name for name in logging.root.manager.loggerDict if name.startswith(_TALKATIVE)]:
        logging.getLogger(name).disabled = True
    try:
        client = Client(scheduler, timeout=ANSWER_S)
    except (OSError, TimeoutError, ValueError) as error:
        raise OutputError(
            f"no dask scheduler answers at {scheduler} within {ANSWER_S:g} s; start one with `dask "
            "scheduler`, or take --workers N"
        ) from error
    with client:
        try:
            client.wait_for_workers(1, timeout=ANSWER_S)
        except TimeoutError as error:
            raise OutputError(
                f"the scheduler at {scheduler} has no worker after {ANSWER_S:g} s; start some with "
                f"`dask worker {scheduler}`"
            ) from error
        yield client
