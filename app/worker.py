"""A process of `jobs`: jobs come on standard input, what they tell and return leaves on standard output.

It gives way to the server's own process, has a limit of memory, and ends with its input.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import pickle
import sys
import threading
from collections.abc import Callable
from typing import IO, Any

TOLD_EVERY_S = 0.25


def main(most_bytes: int) -> None:
    """Jobs, one after another."""
    # what is printed by mistake is no answer
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    _give_way(most_bytes)
    import pandas as pd  # noqa: F401

    import medusa_sim.load.answer
    import medusa_sim.setups.search  # noqa: F401  # while nobody waits

    with contextlib.suppress(EOFError, BrokenPipeError, KeyboardInterrupt):
        while True:
            folder, environment, job, most_s = pickle.load(sys.stdin.buffer)  # noqa: S301  # the server's own
            os.chdir(folder)
            for name in [name for name in os.environ if name.startswith("MEDUSA_SIM_")]:
                del os.environ[name]
            os.environ.update(environment)
            _end_after(most_s)
            _answer(answers, job)


def _answer(answers: IO[bytes], job: Callable[..., Any]) -> None:
    """The job's value or error. What it is at is told meanwhile, also where it tells nothing itself."""
    at, done = [(0, 0)], threading.Event()
    lock = threading.Lock()

    def tell(kind: str, told: Any) -> None:
        with lock:
            pickle.dump((kind, told), answers, pickle.HIGHEST_PROTOCOL)
            answers.flush()

    def beat() -> None:
        while not done.wait(TOLD_EVERY_S):
            tell("advance", at[0])

    def advance(so_far: int, in_all: int) -> None:
        at[0] = so_far, in_all

    beating = threading.Thread(target=beat, daemon=True)
    beating.start()
    try:
        kind, value = "value", job(advance=advance)
    except Exception as error:  # told where the answer is waited for
        from medusa_sim.errors import MedusaSimError

        if not isinstance(error, MedusaSimError | MemoryError):
            logging.getLogger("medusa_sim.app").exception("a job failed")
        kind, value = "error", error
    done.set()
    beating.join()
    tell(kind, (value, peak_bytes()))


def _give_way(most_bytes: int) -> None:
    """Run when nothing else wants to, within so many bytes; where the system knows of neither, as it is."""
    with contextlib.suppress(ImportError, AttributeError, OSError, ValueError):
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (most_bytes, most_bytes))
    with contextlib.suppress(AttributeError, OSError):
        os.nice(10)


def _end_after(most_s: float) -> None:
    """Have the system end this process when it has taken so many seconds more of a processor."""
    with contextlib.suppress(ImportError, AttributeError, OSError, ValueError):
        import resource

        used = resource.getrusage(resource.RUSAGE_SELF)
        soft = math.ceil(used.ru_utime + used.ru_stime + most_s)
        resource.setrlimit(resource.RLIMIT_CPU, (soft, resource.getrlimit(resource.RLIMIT_CPU)[1]))


def peak_bytes() -> int:
    """The most memory that this process has held; 0 where the system does not say."""
    with contextlib.suppress(ImportError):
        import resource

        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return int(peak if sys.platform == "darwin" else peak << 10)
    return 0


if __name__ == "__main__":
    main(int(sys.argv[1]))
