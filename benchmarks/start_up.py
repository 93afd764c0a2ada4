"""Seconds of whole processes: `medusa-sim --help` and the default `medusa-sim sweep`."""

from __future__ import annotations

import json
import subprocess
import sys
import time

COMMANDS = (["--help"], ["sweep"], ["sweep", "--batch", "1..64"])


def seconds(arguments: list[str], repeats: int = 7) -> float:
    """The best of several runs: the others waited for something else."""
    found = []
    for _ in range(repeats):
        start = time.perf_counter()
        subprocess.run(
            [sys.executable, "-c", "from medusa_sim.cli import main; main()", *arguments],
            check=True,
            capture_output=True,
        )
        found.append(time.perf_counter() - start)
    return min(found)


if __name__ == "__main__":
    for arguments in COMMANDS:
        print(json.dumps({"command": " ".join(["medusa-sim", *arguments]), "best_s": seconds(arguments)}))
