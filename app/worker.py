"""A worker: a process that computes long answers, and the app's end of its pipes.

    app     -> worker   (folder, environment variables, job, most seconds of a processor)
    worker  -> app      ("advance", (done, in all)), four times a second
                        ("value" or "error", (that, peak bytes)), at the end

All of it pickled. The process is started as the command line is, so that nothing of Streamlit is in it: those
of `multiprocessing` would begin with the main module, which in Streamlit is the page.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, cast

from medusa_sim.errors import MedusaSimError, UsageError

MOST_S = 60.0
"""Of one job, of a processor's time; four times as long by the clock, since others run too."""
MOST_BYTES = 3 << 30
"""Of a job's address space."""
_KEPT_BYTES = 600 << 20
"""A process that took more is not used again."""
TOLD_EVERY_S = 0.25
_TOO_LONG = (
    f"this takes more than {MOST_S:.0f} s of a processor, the most that the app gives one answer; ask for "
    "less (fewer GPUs, policies or tokens), or run its command"
)
_TOO_LARGE = "this takes more memory than the app gives one answer; ask for less, or run its command"


class Worker:
    """A process that computes one job at a time.

    is_reusable: whether it can take another; not while it runs one, nor after it was ended or grew large.
    """

    def __init__(self) -> None:
        threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
        self._process = subprocess.Popen(  # noqa: S603  # this Python, this file
            [sys.executable, "-P", __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **threads, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        )
        self._jobs, self._answers = (
            cast(IO[bytes], pipe) for pipe in (self._process.stdin, self._process.stdout)
        )
        self.is_reusable = True

    @property
    def is_alive(self) -> bool:
        """Whether the process runs."""
        return self._process.poll() is None

    def compute(self, job: Callable[..., Any], advance: Callable[[int, int], None], most_s: float) -> Any:
        """What `job(advance=...)` returns.

        advance: called here; what it raises gives the job up. Raises what the job raises, UsageError where it
        takes too long or too much.
        """
        self.is_reusable = False
        late = threading.Event()

        def end_late() -> None:
            late.set()
            self._process.kill()

        timer = threading.Timer(4.0 * most_s, end_late)
        timer.daemon = True
        timer.start()
        try:
            kind, value, peak_bytes = self._answer(job, advance, most_s)
        except (EOFError, BrokenPipeError, pickle.UnpicklingError) as error:
            is_late = late.is_set() or self._process.wait() == -getattr(signal, "SIGXCPU", 0)
            raise UsageError(_TOO_LONG if is_late else _TOO_LARGE) from error
        finally:
            timer.cancel()
        self.is_reusable = peak_bytes <= _KEPT_BYTES and not late.is_set()
        if kind == "value":
            return value
        if isinstance(value, MemoryError):  # which the process lives through
            raise UsageError(_TOO_LARGE)
        raise value

    def _answer(
        self, job: Callable[..., Any], advance: Callable[[int, int], None], most_s: float
    ) -> tuple[str, Any, int]:
        """(`value` or `error`, that, the most bytes that the process has held)."""
        environment = {name: value for name, value in os.environ.items() if name.startswith("MEDUSA_SIM_")}
        pickle.dump((str(Path.cwd()), environment, job, most_s), self._jobs)
        self._jobs.flush()
        while True:
            kind, answer = pickle.load(self._answers)  # noqa: S301  # from our own process
            if kind != "advance":
                return kind, *answer
            advance(*answer)

    def end(self) -> None:
        """End the process, whatever it computes."""
        self._process.kill()
        for pipe in (self._jobs, self._answers):
            with contextlib.suppress(OSError):
                pipe.close()
        self._process.wait()


# The process.


def main() -> None:
    """Compute jobs, one after another, until their pipe ends."""
    # what is printed by mistake is no answer
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    _give_way()
    import pandas as pd  # noqa: F401

    import medusa_sim.load.answer
    import medusa_sim.setups.search  # noqa: F401  # while nobody waits

    with contextlib.suppress(EOFError, BrokenPipeError, KeyboardInterrupt):
        while True:
            folder, environment, job, most_s = pickle.load(sys.stdin.buffer)  # noqa: S301  # the app's own
            os.chdir(folder)
            for name in [name for name in os.environ if name.startswith("MEDUSA_SIM_")]:
                del os.environ[name]
            os.environ.update(environment)
            _end_after(most_s)
            _compute(answers, job)


def _compute(answers: IO[bytes], job: Callable[..., Any]) -> None:
    """Write the job's value or error, and its progress meanwhile, also where it reports none itself."""
    progress, done, lock = [(0, 0)], threading.Event(), threading.Lock()

    def write(kind: str, answer: Any) -> None:
        with lock:
            pickle.dump((kind, answer), answers, pickle.HIGHEST_PROTOCOL)
            answers.flush()

    def report() -> None:
        while not done.wait(TOLD_EVERY_S):
            write("advance", progress[0])

    def advance(so_far: int, in_all: int) -> None:
        progress[0] = so_far, in_all

    reporting = threading.Thread(target=report, daemon=True)
    reporting.start()
    try:
        kind, value = "value", job(advance=advance)
    except Exception as error:  # raised again where the answer is waited for
        if not isinstance(error, MedusaSimError | MemoryError):
            logging.getLogger("medusa_sim.app").exception("a job failed")
        kind, value = "error", error
    done.set()
    reporting.join()
    write(kind, (value, _peak_bytes()))


def _give_way() -> None:
    """Run when nothing else wants to, within MOST_BYTES; where the system knows of neither, as it is."""
    with contextlib.suppress(ImportError, AttributeError, OSError, ValueError):
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (MOST_BYTES, MOST_BYTES))
    with contextlib.suppress(AttributeError, OSError):
        os.nice(10)


def _end_after(most_s: float) -> None:
    """Have the system end this process when it has taken so many seconds more of a processor."""
    with contextlib.suppress(ImportError, AttributeError, OSError, ValueError):
        import resource

        used = resource.getrusage(resource.RUSAGE_SELF)
        soft = math.ceil(used.ru_utime + used.ru_stime + most_s)
        resource.setrlimit(resource.RLIMIT_CPU, (soft, resource.getrlimit(resource.RLIMIT_CPU)[1]))


def _peak_bytes() -> int:
    """The most memory that this process has held; 0 where the system does not say."""
    with contextlib.suppress(ImportError):
        import resource

        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return int(peak if sys.platform == "darwin" else peak << 10)
    return 0


if __name__ == "__main__":
    main()
