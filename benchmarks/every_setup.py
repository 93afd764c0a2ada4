"""Asks about every shipped model x drafter x runtime x {1, 4, 8} GPUs x request, and checks each answer.

    python benchmarks/every_setup.py --sample 400 --seed 1 --jobs 2
    python benchmarks/every_setup.py --jobs 2            # all of them, in an order drawn by the seed
    python benchmarks/every_setup.py --skip 5000         # go on behind the first 5,000 of that order

All of them are over 200,000, two or three a second.

A set-up is either refused in one line, or its answer agrees with itself at six neighbouring batches and one
length, on a GPU that turns with the set-up and holds the model where one does: speculation is on where the
best speedup is certainly above 1 and off where it certainly is not, in the schedule, its rows at a batch, the
curve by count, the crossings, `enable`, the decision and the exported settings; bands lie around values;
every warning stands in the text, in Markdown, in JSON, in the notebook's HTML, in the report and on the app's
page. `recommend`, `sweep`, `compare` and the app's own resolution of its inputs give the same numbers at one
batch, for a length and for three requests without one. Prints counts, reasons of refusal and failures, and
while it runs how many are done and the time left; what has run is a random sample at any time. Exit code 3
where anything failed.
"""

from __future__ import annotations

import collections
import itertools
import math
import multiprocessing
import random
import sys
import time
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from common.answer_agrees import failures
from common.script import command_line

import medusa_sim as ms
from medusa_sim.engines.runtime import runtime_names
from medusa_sim.errors import MedusaSimError
from medusa_sim.gpus.gpu import Gpu, load_gpu
from medusa_sim.gpus.gpu_names import gpu_names
from medusa_sim.latency.by_name import LatencyName
from medusa_sim.models.named import load_model, model_names
from medusa_sim.plan.recommend import recommend
from medusa_sim.plan.recommendation import Recommendation
from medusa_sim.scenario.question import Question
from medusa_sim.scenario.scenario import Scenario
from medusa_sim.step.drafter import drafter_class, drafter_names
from medusa_sim.step.memory import usable_memory_bytes

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "app"))
import answers  # the app's, which draw nothing
import chosen

GPUS = (1, 4, 8)
LENGTH = 1024
REQUESTS = (None, (8000, 500), (100, 1000), (500, 300))
"""(prompt, output) tokens; None: steps of LENGTH."""
BATCHES = 6
FIRST_BATCHES = (1, 5, 14, 30, 62, 126, 250)
"""Where the batches that are asked for begin, in turn."""
RATE = 0.6
"""Acceptance of drafters of which none ships."""
PROGRESS = 200
"""Set-ups between two lines of progress."""
ROOM = 1.25
"""Memory over weights from which a GPU is taken to hold a model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SetUp:
    """What is asked; turn: which of the GPUs and batches; request: (prompt, output) tokens, if any."""

    model: str
    drafter: str
    runtime: str
    gpus: int
    turn: int
    latency: LatencyName = "calibrated"
    request: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """refused: the line, where it was, also of what does not fit. failures: what is wrong with the answer."""

    asked: SetUp
    gpu: str
    refused: str = ""
    failures: tuple[str, ...] = ()


def set_ups() -> Iterator[SetUp]:
    """All of them, in an order that does not depend on anything else."""
    every = itertools.product(model_names(), drafter_names(), runtime_names(), GPUS, REQUESTS)
    for turn, (model, drafter, runtime, gpus, request) in enumerate(every):
        yield SetUp(model=model, drafter=drafter, runtime=runtime, gpus=gpus, turn=turn, request=request)


@lru_cache
def _gpus() -> tuple[Gpu, ...]:
    return tuple(load_gpu(name) for name in gpu_names() if not name.startswith("cpu-"))


def gpu_of(asked: SetUp) -> str:
    """A GPU with a link where it needs one, that holds its share of the weights if any does, in turn."""
    linked = [gpu for gpu in _gpus() if asked.gpus == 1 or gpu.link_bandwidth_bytes_per_s]
    share = ROOM * load_model(asked.model).weight_bytes / asked.gpus
    largest = max(linked, key=usable_memory_bytes)
    fitting = [gpu for gpu in linked if usable_memory_bytes(gpu) >= share] or [largest]
    return fitting[asked.turn % len(fitting)].name


@lru_cache
def draft_of(model: str) -> str | None:
    """The smallest shipped model with the vocabulary of another that is larger; None where none is."""
    target = load_model(model)
    others = (load_model(name) for name in model_names())
    alike = [one for one in others if abs(one.vocab / target.vocab - 1.0) <= 0.01]
    smaller = [one for one in alike if one.weight_bytes < 0.5 * target.weight_bytes]
    return min(smaller, key=lambda one: one.weight_bytes).name if smaller else None


def checked(asked: SetUp) -> Outcome:
    """Ask about one set-up, and find what is wrong with the answer."""
    gpu = gpu_of(asked)
    kind = drafter_class(asked.drafter)
    first = FIRST_BATCHES[asked.turn % len(FIRST_BATCHES)]
    try:
        prompt, output = asked.request or (None, None)
        scenario = Scenario(
            gpu=gpu, model=asked.model, tp=asked.gpus, runtime=asked.runtime, latency=asked.latency,
            drafter=asked.drafter, draft_model=draft_of(asked.model) if kind.takes_draft_model else None,
            acceptance=RATE if kind.lender is None else None, prompt_tokens=prompt, output_tokens=output,
        )  # fmt: skip
        lengths = () if asked.request else (LENGTH,)
        found = recommend(scenario, Question(batch_min=first, batch_max=first + BATCHES - 1, seq_len=lengths))
        wrong = (*failures(found), *contradictions(found, asked))
    except MedusaSimError as refused:
        told = str(refused)
        wrong = (f"a refusal of several lines: {told!r}",) if "\n" in told or not told else ()
        return Outcome(asked=asked, gpu=gpu, refused=told, failures=wrong)
    except Exception:  # any other exception is what is looked for
        return Outcome(asked=asked, gpu=gpu, failures=(traceback.format_exc(limit=-4),))
    too_large = "" if wrong or found.cells.fits[0, 0, 0] else "its first batch does not fit the memory"
    return Outcome(asked=asked, gpu=gpu, refused=too_large, failures=wrong)


NUMBERS = ("tpot_us", "tokens_per_s", "tokens_per_s_per_user", "usd_per_million_tokens", "joule_per_token")
"""What every door says of a batch."""
SAME = 1e-9


def contradictions(found: Recommendation, asked: SetUp) -> Iterator[str]:
    """Where `sweep`, `compare` and the app give other numbers than `recommend` at its first batch."""
    batch, (length,) = found.question.batch_min, found.question.seq_len
    row = found.scheduled_row_at(batch, length)
    if not row.fits_memory:
        return
    ours = {name: getattr(row, name) for name in NUMBERS}
    yield from differences("sweep", ours, _swept(found.scenario, batch, length, row.candidates))
    if found.chains and (compared := _compared(found.scenario, asked, batch, row.drafts)):
        yield from differences("compare", ours, compared)
    if asked.latency == "calibrated":  # the app has no other
        yield from differences("the app", ours, _shown_by_the_app(found, asked))


def differences(door: str, ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> Iterator[str]:
    """Numbers of a door that are not those of `recommend`, a line each."""
    for name in ours.keys() & theirs.keys():
        own, other = (math.nan if said is None else float(said) for said in (ours[name], theirs[name]))
        if not math.isclose(own, other, rel_tol=SAME) and not (math.isnan(own) and math.isnan(other)):
            yield f"{door} says {name} {other:.6g}, recommend {own:.6g}"


def _swept(scenario: Scenario, batch: int, length: int, candidates: int) -> dict[str, float]:
    """The sweep's row of a count; for a request without a length, as the command asks."""
    api = ms.Scenario(**scenario.arguments.values)
    frame = api.sweep(batch, None if scenario.traffic is not None else length, candidates)
    return {name: float(frame[name].iloc[0]) for name in NUMBERS}


_OF_COMPARE = {"tpot_us": ("tpot_ms", 1e3), "tokens_per_s": ("tokens_per_s_per_gpu", 0.0)}
"""Other names in a comparison, and by what theirs are multiplied (0: the GPUs)."""


def _compared(scenario: Scenario, asked: SetUp, batch: int, drafts: int) -> dict[str, float]:
    """The row of the same set-up in a comparison; empty where a comparison knows no such set-up."""
    if asked.request is None or scenario.runtime.engine is None:
        return {}
    given = {
        name: scenario.arguments.values[name]
        for name in ("draft_model", "acceptance", "latency")
        if scenario.arguments.values.get(name) is not None
    }
    try:
        answer = ms.compare(
            asked.model, gpus=scenario.gpu.name, counts=asked.gpus, eps=1, dp_attention=False,
            engines=asked.runtime, drafters=asked.drafter if drafts else "none", drafts=max(drafts, 1),
            batches=batch, weight_dtypes=load_model(asked.model).precision, kv_dtypes="auto",
            prompt_tokens=asked.request[0], output_tokens=asked.request[1], **given,
        )  # fmt: skip
    except MedusaSimError:
        return {}
    rows = answer.table[answer.table["tp"] == asked.gpus].to_dict("records")
    if not rows:
        return {}
    (row,) = rows
    return {
        name: float(row[theirs]) * (factor or row["tp"])
        for name in NUMBERS
        for theirs, factor in [_OF_COMPARE.get(name, (name, 1.0))]
    }


def _shown_by_the_app(found: Recommendation, asked: SetUp) -> dict[str, float]:
    """The app's numbers for the same inputs and batches, by its own resolution of them."""
    question, scenario, (length,) = found.question, found.scenario, found.question.seq_len
    given = scenario.arguments.values
    acceptance = given.get("acceptance")
    inputs = chosen.PageArguments(
        gpu=scenario.gpu.name, model=asked.model, runtime=asked.runtime, drafter=asked.drafter, tp=asked.gpus,
        seq_len=length, draft_model=given.get("draft_model"),
        acceptance=None if acceptance is None else str(acceptance),
    )  # fmt: skip
    answer = answers.recommendation(
        inputs,
        Question(batch_min=question.batch_min, batch_max=question.batch_max, request=asked.request),
    )
    row = answer.scheduled_row_at(question.batch_min, length)
    return {name: getattr(row, name) for name in NUMBERS}


def main() -> int:
    """Ask about all or a sample; the exit code."""
    parser = command_line(__doc__)
    parser.add_argument("--sample", type=int, default=0, help="so many, drawn at random [all]")
    parser.add_argument("--skip", type=int, default=0, help="leave out so many, that ran before")
    parser.add_argument("--seed", type=int, default=0, help="draws the order [0]")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--only", default="", help="words that the set-up must have, as in 'sglang mtp'")
    args = parser.parse_args()
    every = [asked for asked in set_ups() if all(word in repr(asked) for word in args.only.split())]
    random.Random(args.seed).shuffle(every)  # noqa: S311
    every = every[args.skip : args.skip + args.sample if args.sample else None]
    start = time.perf_counter()
    counts, refusals = collections.Counter[str](), collections.Counter[str]()
    with multiprocessing.Pool(args.jobs) as pool:
        for done, outcome in enumerate(pool.imap(checked, every, chunksize=8), 1):
            counts["failed" if outcome.failures else "refused" if outcome.refused else "answered"] += 1
            if outcome.refused:
                refusals[_kind(outcome)] += 1
            for line in outcome.failures:
                print(f"FAILED {outcome.asked} on {outcome.gpu}: {line}", flush=True)
            if done % PROGRESS == 0:
                left = (time.perf_counter() - start) / done * (len(every) - done)
                print(f"{done} of {len(every)}, {left / 60:.0f} min left: {dict(counts)}", file=sys.stderr)
    took = time.perf_counter() - start
    print(f"{len(every)} set-ups in {took:.0f} s ({len(every) / took:.1f} a second): {dict(counts)}")
    for told, count in refusals.most_common():
        print(f"{count:6d} refused: {told}")
    return 3 if counts["failed"] else 0


def _kind(outcome: Outcome) -> str:
    """A refusal without the names that it is about."""
    asked = outcome.asked
    told = outcome.refused
    for name in (asked.model, asked.drafter, asked.runtime, outcome.gpu):
        told = told.replace(name, "...")
    return told[:90]


if __name__ == "__main__":
    sys.exit(main())
