"""Parts computed by processes of this machine: they write them themselves, row counts alone come back.

A process makes the work again from its description (`work_of`), computes the part that it is told over its
pipe and answers. It does not hear Ctrl-C, which is the client's, and ends with the client, however that ends.
"""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing import get_context, resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path

from medusa_sim.errors import OutputError
from medusa_sim.parts.folder import PartFolder
from medusa_sim.parts.running import Advance, Done, compute, missing_parts
from medusa_sim.parts.shard import Shard
from medusa_sim.parts.work import Work
from medusa_sim.parts.works import work_of

TRIES = 3
"""Processes that a part may end before it is given up."""
_GIVEN_UP = (
    "part {} ended every process that computed it, perhaps for memory; finished parts are kept: run the same "
    "command again with fewer --workers"
)


def run_on_processes(work: Work, folder: PartFolder, advance: Advance, workers: int) -> Done:
    """Compute every part that is missing on at most so many processes, on fewer where there is little to do.

    Raises OutputError where another client is at it or a part ends its processes, and what parts raise.
    """
    numbers = range(work.parts)
    with folder.claimed(Shard().name):
        missing, rows = missing_parts(folder, numbers, work)
        if min(workers, len(missing)) <= 1:
            compute(work, folder, missing, rows, advance)
        else:
            computed = 0
            for done in _finished(folder, missing, workers):
                computed += done
                advance(computed, rows)
    return Done(written=len(missing), kept=len(numbers) - len(missing), rows=rows)


@dataclass(slots=True)
class _Worker:
    """A process, the client's end of its pipe, and the part that it is at (None before the first)."""

    process: SpawnProcess
    pipe: Connection
    number: int | None = None

    def ended(self) -> None:
        """End the process, which takes its unfinished file away."""
        self.process.terminate()
        self.process.join()
        self.pipe.close()


def _finished(folder: PartFolder, missing: list[int], workers: int) -> Iterator[int]:
    """Rows computed of parts as they are finished. What ends a process is tried by another, TRIES times."""
    waiting, tries, running = deque(missing), Counter[int](), list[_Worker]()

    def more() -> None:
        while waiting and len(running) < workers:
            running.append(_started(folder.path))
            hand(running[-1])

    def hand(worker: _Worker) -> None:
        worker.number = waiting.popleft() if waiting else None
        if worker.number is None:
            running.remove(worker)
            worker.ended()
            return
        # one that has ended meanwhile is seen at its pipe's other end
        with contextlib.suppress(BrokenPipeError):
            worker.pipe.send(worker.number)

    try:
        more()
        while running:
            ready = wait([worker.pipe for worker in running])
            for worker in [each for each in running if each.pipe in ready]:
                assert worker.number is not None  # noqa: S101  # those without are not running
                try:
                    answer = worker.pipe.recv()
                except (EOFError, ConnectionResetError):
                    number = worker.number
                    running.remove(worker)
                    worker.ended()
                    tries[number] += 1
                    if tries[number] == TRIES:
                        raise OutputError(_GIVEN_UP.format(number)) from None
                    waiting.appendleft(number)
                    more()
                    continue
                if isinstance(answer, Exception):
                    raise answer
                yield answer
                hand(worker)
    finally:
        for worker in running:
            worker.ended()


def _started(path: Path) -> _Worker:
    """A process that waits for its first part."""
    context = get_context("spawn")
    resource_tracker.ensure_running()  # its own start lets Ctrl-C through again
    own, other = context.Pipe()
    process = context.Process(target=_serve, args=(str(path), other), daemon=True)
    with _interrupts_kept_back():
        process.start()
    other.close()
    return _Worker(process, own)


@contextlib.contextmanager
def _interrupts_kept_back() -> Iterator[None]:
    """Processes started meanwhile ignore Ctrl-C (an ignored signal is inherited); the client hears it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


def _end(*_: object) -> None:
    """End the process; a writer that is cut off and let go says nothing."""
    sys.unraisablehook = lambda _: None
    sys.exit(1)


def _serve(folder: str, pipe: Connection) -> None:
    """In a process: parts as they are told, until the client closes its end."""
    signal.signal(signal.SIGTERM, _end)
    place = PartFolder(Path(folder))
    with contextlib.suppress(EOFError, BrokenPipeError):
        while True:
            number = pipe.recv()
            try:
                work = work_of(place.description)
                place.write(work, number)
                pipe.send(work.computed(number))
            except Exception as error:  # told by the client
                pipe.send(error)
