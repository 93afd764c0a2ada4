"""Parts computed by workers of dask.distributed: they write them themselves, row counts alone come back.

A worker makes the work again from its description (`work_of`).
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from concurrent.futures import CancelledError
from pathlib import Path
from typing import TYPE_CHECKING, Any

from medusa_sim import __version__
from medusa_sim.errors import OutputError, UsageError, install
from medusa_sim.parts.folder import PartFolder
from medusa_sim.parts.running import Advance, Done, missing_parts
from medusa_sim.parts.shard import Shard
from medusa_sim.parts.work import Work
from medusa_sim.parts.works import work_of

if TYPE_CHECKING:
    from distributed import Client


ANSWER_S = 10.0
"""Longest wait for a scheduler to answer, and for the first of its workers."""
AHEAD = 3
"""Parts in flight per thread of the workers: enough to keep them busy, few enough for any number of parts."""
_TALKATIVE = ("distributed", "tornado", "asyncio")
RETRIES = 2
"""Further tries of a part whose worker failed otherwise than by ending."""


def write_part(folder: str, number: int) -> int:
    """On a worker: compute and write one part unless it is there; rows computed.

    Raises OutputError where the folder is not that of the client or the version is another, and what the part
    raises.
    """
    place = PartFolder(Path(folder))
    if not place.manifest.is_file():
        raise OutputError(f"a worker does not see {folder}; give --out a folder that all machines share")
    description = place.description
    if description.get("version") != __version__:
        raise OutputError(
            f"a worker has medusa-sim {__version__}, the parts are of {description.get('version')}; install "
            "the same version on all"
        )
    work = work_of(description)
    if not place.is_done(number):
        place.write(work, number)
    return work.computed(number)


def run_on_cluster(work: Work, folder: PartFolder, advance: Advance, scheduler: str) -> Done:
    """Compute every part that is missing at a scheduler.

    Raises UsageError where dask is missing, OutputError where no scheduler or worker answers, where another
    client is at it, where the scheduler goes away or a part ends its workers, and what parts raise.
    """
    require_cluster_extra()
    numbers = range(work.parts)
    with folder.claimed(Shard().name), _client(scheduler) as client:
        missing, rows = missing_parts(folder, numbers, work)
        computed = 0
        for number, done in _finished(client, folder, missing):
            if not folder.is_done(number):
                raise OutputError(
                    f"a worker wrote part {number}, which {folder.path} does not show; give --out a folder "
                    "that all machines share"
                )
            computed += done
            advance(computed, rows)
    return Done(written=len(missing), kept=len(numbers) - len(missing), rows=rows)


def require_cluster_extra() -> None:
    """Raises UsageError, one line, where dask.distributed is not installed."""
    import importlib.util

    if importlib.util.find_spec("distributed") is None:
        raise UsageError(
            f"--scheduler needs dask.distributed; {install('cluster')}, or share the work by --workers N or "
            "--shard i/n, which need nothing"
        )


def _finished(client: Client, folder: PartFolder, missing: list[int]) -> Iterator[tuple[int, int]]:
    """(number, rows computed) of parts as they are finished, a few of them in flight at any time."""
    from distributed import KilledWorker, as_completed

    waiting = iter(missing)
    threads = sum(client.nthreads().values())
    numbers: dict[object, int] = {}

    def submit() -> Any:
        number = next(waiting, None)
        if number is None:
            return None
        future = client.submit(write_part, str(folder.path), number, pure=False, retries=RETRIES)
        numbers[future.key] = number
        return future

    first = [future for future in (submit() for _ in range(AHEAD * max(threads, 1))) if future is not None]
    running = as_completed(first)
    for future in running:
        number = numbers.pop(future.key)
        try:
            yield number, future.result()
        except KilledWorker as error:
            raise OutputError(
                f"part {number} ended every worker that computed it, perhaps for memory; finished parts are "
                "kept: give workers more, and run the same command again"
            ) from error
        except CancelledError as error:
            raise OutputError(
                "the scheduler went away; finished parts are kept: run the same command again when it is back"
            ) from error
        following = submit()
        if following is not None:
            running.add(following)


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
