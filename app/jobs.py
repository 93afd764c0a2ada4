"""Long answers, computed by `worker` processes: AT_ONCE of them, in the order of a fair queue.

A page that another user opens meanwhile finds the server's own process free. A job that takes too long, or
whose session has gone, is ended at once; workers stay for the next job.
"""

from __future__ import annotations

import atexit
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import TypeVar, cast

from worker import MOST_S, TOLD_EVERY_S, Worker

from medusa_sim.errors import UsageError

T = TypeVar("T")

AT_ONCE = 2
MOST_WAIT_S = 180.0
_WAITING = (
    "Two long answers are being computed for others; yours is number {place} in line and begins by itself."
)
_THE_SAME = "Another page asked the same a moment ago; its answer is this one's."
_TOO_MANY = (
    f"others are first and {MOST_WAIT_S:.0f} s have passed; open the page again later, or run its command"
)


class Queue:
    """Jobs that run, `most` at once, and those that wait, in the order in which they came.

    A session's first job goes before the second of any: a search has several at once where nobody else asks.
    """

    def __init__(self, most: int = AT_ONCE) -> None:
        self._most = most
        self._sessions: dict[object, str] = {}
        self._running: set[object] = set()
        self._lock = threading.Lock()

    def enter(self, session: str) -> object:
        """A ticket of a new job."""
        ticket = object()
        with self._lock:
            self._sessions[ticket] = session
        return ticket

    def ahead_of(self, ticket: object) -> int:
        """How many jobs have to end before this one begins; 0: it runs from now on."""
        with self._lock:
            if ticket in self._running:
                return 0
            known = Counter[str]()
            rounds = {}
            for each, session in self._sessions.items():
                rounds[each] = known[session]
                known[session] += 1
            waiting = [each for each in rounds if each not in self._running]
            place = sorted(waiting, key=rounds.__getitem__).index(ticket)
            ahead = max(place + 1 - (self._most - len(self._running)), 0)
            if not ahead:
                self._running.add(ticket)
            return ahead

    @property
    def running(self) -> int:
        """How many jobs run."""
        return len(self._running)

    def leave(self, ticket: object) -> None:
        """Take a job out."""
        with self._lock:
            del self._sessions[ticket]
            self._running.discard(ticket)


@dataclass(frozen=True, slots=True)
class Watch:
    """How the progress of a job is shown, four times a second; either may raise to give the job up.

    advance: called with (done, in all). waiting: called with a sentence that says what goes first.
    """

    advance: Callable[[int, int], None]
    waiting: Callable[[str], None]

    def __call__(self, done: int, total: int) -> None:
        """As `advance`."""
        self.advance(done, total)

    def others(self) -> None:
        """Another session asked the same, and its job runs."""
        self.waiting(_THE_SAME)


UNWATCHED = Watch(lambda done, total: None, lambda line: None)
QUEUE = Queue()
_idle: list[Worker] = []
_idle_lock = threading.Lock()


def this_session() -> str:
    """The session of the page that runs; empty outside of one."""
    from streamlit.runtime.scriptrunner import get_script_run_ctx

    context = get_script_run_ctx(suppress_warning=True)
    return "" if context is None else context.session_id


def run(
    job: Callable[..., T], watch: Watch = UNWATCHED, *, session: str | None = None, most_s: float = MOST_S
) -> T:
    """What `job(advance=...)` returns, computed by a worker, which gets it pickled.

    session: None: that of the page that runs. Raises what the job raises, UsageError where it takes too long
    or too much.
    """
    ticket = QUEUE.enter(this_session() if session is None else session)
    try:
        begun = time.monotonic()
        while place := QUEUE.ahead_of(ticket):
            if time.monotonic() - begun > MOST_WAIT_S:
                raise UsageError(_TOO_MANY)
            watch.waiting(_WAITING.format(place=place))
            time.sleep(TOLD_EVERY_S)
        worker = _idle_worker()
        try:
            return cast(T, worker.compute(job, watch.advance, most_s))
        finally:
            _put_back(worker)
    finally:
        QUEUE.leave(ticket)
        warm_up()


def as_completed(
    items: Sequence[str], answer: Callable[[str, Watch], T], watch: Watch = UNWATCHED
) -> Iterator[tuple[str, T]]:
    """Items with what `answer(item, watch)` gives of them, in the order in which that is known.

    Answers are sought in threads, which no page belongs to: their progress is passed on to the page's watch
    from here, and where that raises they raise the next time that they report.
    """
    progress: dict[str, tuple[int, int]] = {}
    lines: list[str] = []
    is_over = threading.Event()

    def watch_of(item: str) -> Watch:
        def advance(done: int, total: int) -> None:
            if is_over.is_set():
                raise _GivenUpError
            progress[item] = done, total

        def waiting(line: str) -> None:
            advance(*progress.get(item, (0, 0)))
            lines.append(line)

        return Watch(advance, waiting)

    with ThreadPoolExecutor(AT_ONCE) as pool:
        left = {pool.submit(answer, item, watch_of(item)): item for item in items}
        try:
            while left:
                found, _ = wait(left, timeout=TOLD_EVERY_S, return_when=FIRST_COMPLETED)
                if lines:
                    watch.waiting(lines.pop())
                    lines.clear()
                largest = max((total for _, total in progress.values()), default=0)
                done = sum(progress[item][0] for item in left.values() if item in progress)
                watch.advance((len(items) - len(left)) * largest + done, len(items) * largest)
                for future in found:
                    yield left.pop(future), future.result()
        finally:
            is_over.set()
            for future in left:
                future.cancel()


class _GivenUpError(Exception):
    """Nobody waits for the answer any more."""


def _idle_worker() -> Worker:
    """A worker that waits for a job, or a new one."""
    with _idle_lock:
        while _idle:
            worker = _idle.pop()
            if worker.is_alive:
                return worker
            worker.end()
    return Worker()


def _put_back(worker: Worker) -> None:
    """Keep a worker for the next job, or end it."""
    if not worker.is_reusable:
        worker.end()
        return
    with _idle_lock:
        _idle.append(worker)


def warm_up() -> None:
    """Start workers, which import what jobs need, while the user reads the first page."""
    with _idle_lock:
        while len(_idle) + QUEUE.running < AT_ONCE:
            _idle.append(Worker())


@atexit.register
def _end_all() -> None:
    with _idle_lock:
        while _idle:
            _idle.pop().end()
