"""llama.cpp's own tools on this machine: passes of so many tokens, and texts with and without drafts.

Every run says how much of its time it had a core (`Ran.share`). On a machine that others use too, a program
of one thread times itself by a clock that stands still while it waits (`engine/thread_clock.c`): what is left
of neighbours is what they take of caches and memory.
"""

from __future__ import annotations

import json
import os
import re
import resource
import subprocess
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

BIN, CLOCK = Path("build") / "bin", "thread_clock.so"
QUIET_SHARE = 0.97
"""Of its time on a core, what a run without a neighbour has at least."""
NEVER = 1000
"""Tokens that a look-up wants to see again: it finds none, and the program decodes plainly."""


class Ran(NamedTuple):
    """Output of a tool, its log, and how much of its time it had its cores."""

    out: str
    log: str
    share: float


class Pass(NamedTuple):
    """Milliseconds of a pass of `columns` tokens behind `depth` others: the samples of one run."""

    columns: int
    depth: int
    is_prompt: bool
    samples_ms: tuple[float, ...]


class Text(NamedTuple):
    """What a prompt was continued with, and how. rounds: target passes. found: rounds with drafts."""

    text: str
    tokens: int
    seconds: float
    drafted: int
    accepted: int
    rounds: int
    found: int
    by_position: tuple[float, ...]
    """Share of the rounds with drafts in which the first, second, ... was accepted."""
    share: float


def run(engine: Path, tool: str, arguments: Sequence[object], threads: int) -> Ran:
    """One tool to its end. Raises SystemExit in one line where it fails."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    command = [str(engine / BIN / tool), *map(str, arguments)]
    clock = {"LD_PRELOAD": str((engine / CLOCK).resolve())} if has_clock(engine, threads) else {}
    done = subprocess.run(
        command, capture_output=True, text=True, errors="replace", check=False, stdin=subprocess.DEVNULL,
        env={**os.environ, **clock},
    )  # fmt: skip
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    cores = (spent.ru_utime + spent.ru_stime - before.ru_utime - before.ru_stime) / threads
    if done.returncode:
        last = (done.stderr.strip() or done.stdout.strip() or "without a word").splitlines()[-1]
        raise SystemExit(f"Error: {tool} stopped with {done.returncode}: {last[:300]}")
    return Ran(done.stdout, done.stderr, cores / max(time.monotonic() - began, 1e-9))


def has_clock(engine: Path, threads: int) -> bool:
    """Whether programs time themselves by the time that they had a core."""
    return threads == 1 and (engine / CLOCK).exists()


def bench(
    engine: Path,
    model: Path,
    columns: Iterable[int],
    depths: Iterable[int],
    *,
    made: int = 0,
    repeats: int = 5,
    threads: int = 1,
) -> tuple[list[dict[str, Any]], float]:
    """(llama-bench's own JSON, share of the time that it ran): passes at every depth, and plain tokens."""
    lists = [",".join(map(str, each)) for each in (columns, depths)]
    ran = run(
        engine, "llama-bench",
        ("-m", model, "-p", lists[0] or 0, "-n", made, "-d", lists[1], "-r", repeats, "-t", threads,
         "-o", "json"),
        threads,
    )  # fmt: skip
    begin, end = ran.out.index("["), ran.out.rindex("]") + 1
    rows: list[dict[str, Any]] = json.loads(ran.out[begin:end])
    return rows, ran.share


def passes(rows: Iterable[dict[str, Any]]) -> list[Pass]:
    """The passes of llama-bench's JSON."""
    found = []
    for row in rows:
        columns, made = int(row["n_prompt"]), int(row["n_gen"])
        if (columns > 0) != (made > 0):
            each = 1e-6 / max(made, 1)
            samples = tuple(each * float(ns) for ns in row["samples_ns"])
            found.append(Pass(columns or 1, int(row["n_depth"]), columns > 0, samples))
    return found


def continued(
    engine: Path, model: Path, prompt: Path, tokens: int, options: Sequence[object], threads: int = 1
) -> Text:
    """A prompt continued greedily by llama-speculative-simple with drafts as its options say.

    The thread that writes its log is not waited for as it ends: in one run of five on a quiet machine, and of
    two on a busy one, the speed is lost. Then it runs again.
    """
    arguments = (
        "-m", model, "-f", prompt, "-n", tokens, "--temp", 0, "-t", threads, "-c", CONTEXT, "--no-escape",
        "-lv", 4, *options,
    )  # fmt: skip
    for _ in range(TRIES):
        ran = run(engine, "llama-speculative-simple", arguments, threads)
        if (found := text_of(ran, prompt.read_text(encoding="utf-8"))) is not None:
            return found
    raise SystemExit(f"Error: llama-speculative-simple printed no speed in {TRIES} runs: {ran.log[-300:]}")


def plain(engine: Path, model: Path, prompt: Path, tokens: int, threads: int = 1) -> str:
    """What llama-completion makes of a prompt, greedily."""
    arguments = (
        "-m", model, "-f", prompt, "-n", tokens, "--temp", 0, "-t", threads, "-c", CONTEXT, "--no-escape",
        "--no-display-prompt", "-no-cnv",
    )  # fmt: skip
    return run(engine, "llama-completion", arguments, threads).out


CONTEXT, TRIES = 1024, 40
OPTIONS: dict[str, Any] = {
    "plain": lambda _drafts, _model: (
        "--spec-type", "ngram-simple", "--spec-ngram-simple-size-n", NEVER, "--spec-ngram-simple-size-m", 4),
    "ngram": lambda drafts, _model: (
        "--spec-type", "ngram-simple", "--spec-ngram-simple-size-n", 3, "--spec-ngram-simple-size-m", drafts),
    "draft-model": lambda drafts, model: (
        "--spec-type", "draft-simple", "-md", model, "--spec-draft-n-max", drafts, "--spec-draft-n-min", 0),
}  # fmt: skip
"""Way of drafting -> the program's options."""

_DECODED = re.compile(r"decoded\s+(\d+) tokens in\s+[\d.]+ seconds, speed:\s+([\d.]+)")
_COUNT = re.compile(r"n_(drafted|accept)\s+= (\d+)")
_CALLS = re.compile(r"#calls\(b,g,a\) =\s*\d+\s+(\d+)\s+(\d+)")
_POSITIONS = re.compile(r"#acc rate/pos = \(([\d., ]*)\)")


def text_of(ran: Ran, prompt: str) -> Text | None:
    """What llama-speculative-simple says of a run; None where a part of its log is missing."""
    decoded, calls = _DECODED.search(ran.log), _CALLS.search(ran.log)
    counts = {name: int(number) for name, number in _COUNT.findall(ran.log)}
    if decoded is None or calls is None or len(counts) < 2:
        return None
    positions = _POSITIONS.search(ran.log)
    tokens = int(decoded[1])
    return Text(
        text=ran.out.partition(prompt)[2] or ran.out,  # a tokenizer may write a prompt otherwise
        tokens=tokens,
        seconds=tokens / float(decoded[2]),
        drafted=counts["drafted"],
        accepted=counts["accept"],
        rounds=tokens - counts["accept"],
        found=int(calls[2]),
        by_position=tuple(map(float, positions[1].split(","))) if positions and positions[1].strip() else (),
        share=ran.share,
    )
