"""Long answers in processes of their own: AT_ONCE in all, none for longer than MOST_S.

A page that another user opens meanwhile finds the server's own process free, and a job that takes too long,
or whose session has gone, is ended whatever it is at. Processes stay for the next job; they are started as
the command line is, so that nothing of Streamlit is in them.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, TypeVar, cast

from medusa_sim.errors import UsageError

T = TypeVar("T")

AT_ONCE = 2
MOST_S = 60.0
"""Of one job, of a processor's time; four times as long by the clock, where others are at it too."""
TOLD_EVERY_S = 0.25
"""To a page, of how far its search is."""
MOST_BYTES = 3 << 30
"""Of a job's address space."""
KEPT_BYTES = 600 << 20
"""A process that took more is not kept for the next job."""
MOST_WAIT_S = 180.0
_WAITING = (
    "Two long answers are being computed for others; yours is number {place} in line and begins by itself."
)
_THE_SAME = "Another page asked the same a moment ago; its answer is this one's."
_TOO_LONG = (
    f"this takes more than {MOST_S:.0f} s of a processor, the most that the app gives one answer; ask for "
    "less (fewer GPUs, policies or tokens), or run its command"
)
_TOO_LARGE = "this takes more memory than the app gives one answer; ask for less, or run its command"
_TOO_MANY = (
    f"others are first and {MOST_WAIT_S:.0f} s have passed; open the page again later, or run its command"
)


class Line:
    """Who is at it and who waits, in the order in which they came.

    A session's first job goes before the second of any: a search has several at once where nobody else asks.
    """

    def __init__(self, at_once: int = AT_ONCE) -> None:
        self._at_once = at_once
        self._sessions: dict[object, str] = {}
        self._begun: set[object] = set()
        self._lock = threading.Lock()

    def enter(self, session: str) -> object:
        """A place in the line."""
        ticket = object()
        with self._lock:
            self._sessions[ticket] = session
        return ticket

    def before(self, ticket: object) -> int:
        """How many have to leave before it is this one's turn: 0, it is."""
        with self._lock:
            if ticket in self._begun:
                return 0
            known = Counter[str]()
            ranked = []
            for place, (each, session) in enumerate(self._sessions.items()):
                if each not in self._begun:
                    ranked.append((known[session], place, each))
                known[session] += 1
            place = [each for *_, each in sorted(ranked, key=lambda of: of[:2])].index(ticket)
            left = max(place + 1 - (self._at_once - len(self._begun)), 0)
            if not left:
                self._begun.add(ticket)
            return left

    @property
    def at_it(self) -> int:
        """How many have their turn."""
        return len(self._begun)

    def leave(self, ticket: object) -> None:
        """Give the place up."""
        with self._lock:
            del self._sessions[ticket]
            self._begun.discard(ticket)


@dataclass(frozen=True, slots=True)
class Watch:
    """Who is told how a job goes, four times a second; either may raise to give it up, as Streamlit does.

    advance: told (done, in all). waiting: told, in a sentence, who is first.
    """

    advance: Callable[[int, int], None]
    waiting: Callable[[str], None]

    def __call__(self, done: int, total: int) -> None:
        """As `advance`."""
        self.advance(done, total)

    def others(self) -> None:
        """Another session asked the same and is at it."""
        self.waiting(_THE_SAME)


NOBODY = Watch(lambda done, total: None, lambda told: None)
LINE = Line()
_idle: list[subprocess.Popen[bytes]] = []
_idle_lock = threading.Lock()


def this_session() -> str:
    """The session of the page that runs; empty outside of one."""
    from streamlit.runtime.scriptrunner import get_script_run_ctx

    context = get_script_run_ctx(suppress_warning=True)
    return "" if context is None else context.session_id


def run(
    job: Callable[..., T], watch: Watch = NOBODY, *, session: str | None = None, most_s: float = MOST_S
) -> T:
    """What `job(advance=...)` returns, computed in another process, which gets it pickled.

    session: None: that of the page that runs. Raises what the job raises, UsageError where it takes too long
    or too much.
    """
    ticket = LINE.enter(this_session() if session is None else session)
    try:
        begun = time.monotonic()
        while place := LINE.before(ticket):
            if time.monotonic() - begun > MOST_WAIT_S:
                raise UsageError(_TOO_MANY)
            watch.waiting(_WAITING.format(place=place))
            time.sleep(0.25)
        return cast(T, _computed(job, watch, most_s))
    finally:
        LINE.leave(ticket)
        warm_up()


def as_completed(
    items: Sequence[str], answer: Callable[[str, Watch], T], watch: Watch = NOBODY
) -> Iterator[tuple[str, T]]:
    """Items with what `answer(item, watch)` gives of them, in the order in which that is known.

    Answers are sought in threads, which no page belongs to: what they tell of their watch is told on to the
    page's from here, and where that raises they raise the next time that they tell something.
    """
    at: dict[str, tuple[int, int]] = {}
    lines: list[str] = []
    gone = threading.Event()

    def told(item: str) -> Watch:
        def advance(done: int, total: int) -> None:
            if gone.is_set():
                raise _GoneError
            at[item] = done, total

        def waiting(line: str) -> None:
            advance(*at.get(item, (0, 0)))
            lines.append(line)

        return Watch(advance, waiting)

    with ThreadPoolExecutor(AT_ONCE) as pool:
        left = {pool.submit(answer, item, told(item)): item for item in items}
        ended: list[str] = []
        try:
            while left:
                found, _ = wait(left, timeout=TOLD_EVERY_S, return_when=FIRST_COMPLETED)
                if lines:
                    watch.waiting(lines.pop())
                    lines.clear()
                largest = max((total for _, total in at.values()), default=0)
                done = len(ended) * largest + sum(at[item][0] for item in left.values() if item in at)
                watch.advance(done, len(items) * largest)
                for future in found:
                    item = left.pop(future)
                    ended.append(item)
                    yield item, future.result()
        finally:
            gone.set()
            for future in left:
                future.cancel()


class _GoneError(Exception):
    """Nobody waits for the answer any more."""


def _computed(job: Callable[..., Any], watch: Watch, most_s: float) -> Any:
    process = _process()
    stdin, stdout = cast(IO[bytes], process.stdin), cast(IO[bytes], process.stdout)
    ended = threading.Event()

    def end() -> None:
        ended.set()
        process.kill()

    timer = threading.Timer(4.0 * most_s, end)
    timer.daemon = True
    timer.start()
    keep = False
    try:
        environment = {name: value for name, value in os.environ.items() if name.startswith("MEDUSA_SIM_")}
        pickle.dump((str(Path.cwd()), environment, job, most_s), stdin)
        stdin.flush()
        while True:
            kind, told = pickle.load(stdout)  # noqa: S301  # from our own process
            if kind == "advance":
                watch.advance(*told)
                continue
            value, peak_bytes = told
            keep = peak_bytes <= KEPT_BYTES
            if kind == "value":
                return value
            raise value
    except MemoryError:  # which the process lives through
        raise UsageError(_TOO_LARGE) from None
    except (EOFError, BrokenPipeError, pickle.UnpicklingError) as error:
        is_late = ended.is_set() or process.wait() == -getattr(signal, "SIGXCPU", 0)
        raise UsageError(_TOO_LONG if is_late else _TOO_LARGE) from error
    finally:
        timer.cancel()
        if keep and not ended.is_set():
            with _idle_lock:
                _idle.append(process)
        else:
            _end(process)


def _process() -> subprocess.Popen[bytes]:
    """A process that waits for a job: one that is there, or a new one."""
    with _idle_lock:
        while _idle:
            process = _idle.pop()
            if process.poll() is None:
                return process
            _end(process)
    return _started()


def _started() -> subprocess.Popen[bytes]:
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    return subprocess.Popen(  # noqa: S603  # this Python, a file of the app
        [sys.executable, "-P", str(Path(__file__).with_name("worker.py")), str(MOST_BYTES)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, **threads, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
    )


def warm_up() -> None:
    """Start processes, which import what jobs need, while the user reads the first page."""
    with _idle_lock:
        while len(_idle) + LINE.at_it < AT_ONCE:
            _idle.append(_started())


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    for pipe in (process.stdin, process.stdout):
        with contextlib.suppress(OSError):
            cast(IO[bytes], pipe).close()
    process.wait()


@atexit.register
def _end_all() -> None:
    with _idle_lock:
        while _idle:
            _end(_idle.pop())
