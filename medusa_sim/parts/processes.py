"""Processes of this machine: a pool that can be interrupted, and is made anew where one of them ends."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import active_children, get_context, parent_process, resource_tracker
from pathlib import Path
from typing import ParamSpec, TypeVar

from medusa_sim.errors import OutputError
from medusa_sim.parts.running import compute_here, compute_with

P = ParamSpec("P")
T = TypeVar("T")
TRIES = 3
"""Pools that may end without having finished a part."""
AHEAD = 2
"""Parts in flight per process."""


def compute_on_processes(workers: int, path: Path, numbers: list[int]) -> Iterator[int]:
    """By at most so many processes, by fewer where there is little to do.

    Raises OutputError where processes end again and again without having finished a part.
    """
    if min(workers, len(numbers)) <= 1:
        yield from compute_here(path, numbers)
        return
    missing, tries = dict.fromkeys(numbers), TRIES
    while missing:
        count = min(workers, len(missing))
        try:
            with _pool(count) as pool:
                for number in compute_with(pool, AHEAD * count, path, [*missing]):
                    yield number
                    del missing[number]
                    tries = TRIES
        except BrokenProcessPool as error:
            tries -= 1
            if not tries:
                raise OutputError(
                    f"processes ended {TRIES} times before a part was finished, perhaps for memory; finished "
                    "parts are kept: run the same command again with fewer --workers"
                ) from error


class _Pool(ProcessPoolExecutor):
    """A pool that starts processes while it is asked: they do not hear Ctrl-C, which is the client's."""

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """As the base class does."""
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            return super().submit(_ending, fn, *args, **kwargs)
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


@contextlib.contextmanager
def _pool(workers: int) -> Iterator[_Pool]:
    """Processes that end with the block, in the middle of a part where it is left early."""
    resource_tracker.ensure_running()  # its own start would let Ctrl-C through
    others = {*active_children()}
    pool = _Pool(workers, get_context("spawn"), _begin)
    try:
        yield pool
    except BaseException:
        for process in {*active_children()} - others:
            process.terminate()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def _begin() -> None:
    """In a process: it ends with the client, however that ends."""
    threading.Thread(target=_end_with_client, daemon=True).start()


def _end_with_client() -> None:
    client, own = parent_process(), threading.main_thread().ident
    assert client is not None and own is not None  # noqa: S101, PT018  # both run
    client.join()
    signal.pthread_kill(own, signal.SIGTERM)


def _ending(fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    """In a process: a call. SIGTERM ends it, so that it takes away what is half-written, and the process."""
    signal.signal(signal.SIGTERM, _end)
    try:
        return fn(*args, **kwargs)
    except SystemExit:
        os._exit(1)  # a pool would go on with the next call
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _end(*_: object) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # one is enough: a second would cut off the cleaning
    sys.unraisablehook = lambda _: None  # a writer that is cut off and let go says nothing
    sys.exit(1)
