"""What an engine is measured at: steps by batch, texts, steps that read prompts, requests over time."""

from __future__ import annotations

import json
import statistics
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path

from vllm_engine import Engine, Plan, prompts_of
from vllm_timing import Reference, quantiles_us

WARM_STEPS = 2
"""Steps after a change of the batch that are not timed: requests are condensed, kernels see a new shape."""

REQUESTS_TIMED = 32
"""Of a cell: as many steps as they need, where that is more than the plan's."""

SETTLING_STEPS = 12
"""At most, until every request repeats itself, so that prompt lookup drafts in full."""


RECENT = 5
"""Runs of the reference by which a served step is judged: one alone may be a slow one."""


def step_rows(engine: Engine, plan: Plan, reference: Reference) -> Iterator[dict[str, object]]:
    """One pass over the batches: all requests start together and fall away by halves, largest batch first.

    The steps of a batch are timed one by one, more of them where they are short; the first after a change are
    not. `elapsed_us` is the wall time of the timed steps over their number, `emitted` and the
    counters are of those steps. The reference runs after every so many steps as the plan says.
    """
    batches = sorted(plan["batches"], reverse=True)
    prompts = prompts_of(batches[0], plan["prompt_tokens"], plan["vocab"])
    running = engine.begin(prompts, plan["max_tokens"])
    lengths = dict.fromkeys(running, 0)

    def advance() -> float:
        seconds, outputs = engine.step()
        for output in outputs:
            lengths[output.request_id] = len(output.outputs[0].token_ids)
        return seconds

    while not all(lengths.values()) or sum(lengths.values()) < plan["grown_tokens"] * len(running):
        advance()
    for _ in range(SETTLING_STEPS if engine.method == "ngram" else 0):
        engine.counters.clear()
        advance()
        if engine.counters.drafted == engine.drafts * batches[0]:
            break
    for batch in batches:
        engine.end(running[batch:])
        running = running[:batch]
        for _ in range(WARM_STEPS):
            advance()
        engine.counters.clear()
        before = sum(lengths[name] for name in running)
        beside, samples, elapsed = [reference.seconds()], [], 0.0
        for number in range(max(plan["steps"], REQUESTS_TIMED // batch)):
            started = time.perf_counter()
            samples.append(advance())
            elapsed += time.perf_counter() - started
            if number % plan["beside_every"] == plan["beside_every"] - 1:
                beside.append(reference.seconds())
        after = sum(lengths[name] for name in running)
        counted = engine.counters
        yield {
            "row": "step",
            "method": engine.method,
            "drafts": engine.drafts,
            "batch": batch,
            "seq_len": round(plan["prompt_tokens"] + (before + after) / 2 / batch, 1),
            **quantiles_us(samples),
            "reference_us": 1e6 * statistics.median(beside),
            "elapsed_us": 1e6 * elapsed / len(samples),
            "emitted": after - before,
            "drafting": counted.drafts,
            "drafted": counted.drafted,
            "accepted": counted.accepted,
        }
    engine.end(running)
    while engine.engine.has_unfinished_requests():
        engine.step()


def token_rows(engine: Engine, plan: Plan) -> Iterator[dict[str, object]]:
    """Greedy continuations of prompts, and the counters of their speculation."""
    prompts = json.loads(Path(plan["prompts"]).read_text(encoding="utf-8"))
    engine.counters.clear()
    names = engine.begin(prompts, plan["new_tokens"])
    texts: dict[str, list[int]] = {name: [] for name in names}
    emitted: dict[str, list[int]] = {name: [] for name in names}
    started = time.perf_counter()
    while engine.engine.has_unfinished_requests():
        for output in engine.step()[1]:
            text = list(output.outputs[0].token_ids)
            emitted[output.request_id].append(len(text) - len(texts[output.request_id]))
            texts[output.request_id] = text
    counted = engine.counters
    yield {
        "row": "tokens",
        "method": engine.method,
        "drafts": engine.drafts,
        "elapsed_s": time.perf_counter() - started,
        "drafting": counted.drafts,
        "drafted": counted.drafted,
        "accepted": counted.accepted,
        "texts": [texts[name] for name in names],
        "emitted": [emitted[name] for name in names],
    }


def prompt_rows(engine: Engine, plan: Plan, reference: Reference) -> Iterator[dict[str, object]]:
    """Steps that read prompts: so many at once, alone and beside requests that decode."""
    length, repeats = plan["prompt_tokens"], plan["steps"]
    for beside in plan["prompts_beside"]:
        running = engine.begin(prompts_of(beside, length, plan["vocab"]), plan["max_tokens"] - length - 1)
        for _ in range(WARM_STEPS + 1 + plan["grown_tokens"] if beside else 0):
            engine.step()
        for prompts in plan["prompts_at_once"]:
            samples, speeds = [], [reference.seconds()]
            for repeat in range(repeats):
                texts = prompts_of(prompts * (repeat + 2), length, plan["vocab"] - 17 * repeat)[-prompts:]
                new = engine.begin([text[::-1] for text in texts], plan["max_tokens"] - length - 1)
                samples.append(engine.step()[0])
                engine.end(new)
                if repeat % plan["beside_every"] == plan["beside_every"] - 1:
                    speeds.append(reference.seconds())
            yield {
                "row": "prompt",
                "method": engine.method,
                "drafts": engine.drafts,
                "batch": beside,
                "tokens": prompts * length,
                **quantiles_us(samples),
                "reference_us": 1e6 * statistics.median(speeds),
            }
        engine.end(running)
        while engine.engine.has_unfinished_requests():
            engine.step()


def load_rows(engine: Engine, plan: Plan, reference: Reference) -> Iterator[dict[str, object]]:
    """Requests that arrive over time: when each has its first and its last token, by the time of the steps.

    Time is that of the steps, each divided by how fast the machine ran beside it, and jumps to the next
    arrival where nothing runs: what other programs take does not count. The reference is timed every few
    steps: the median of the last RECENT is the speed, and times are as where it takes the plan's.
    """
    prompts = json.loads(Path(plan["prompts"]).read_text(encoding="utf-8"))
    for run in plan["loads"]:
        now, steps, coming = 0.0, 0, 0
        beside: deque[float] = deque(maxlen=RECENT)
        names: dict[str, int] = {}
        first: dict[int, float] = {}
        last: dict[int, float] = {}
        engine.counters.clear()
        arrival, output = run["arrival_s"], run["output_tokens"]
        while coming < len(arrival) or names:
            if not names and arrival[coming] > now:
                now = arrival[coming]
            while coming < len(arrival) and arrival[coming] <= now:
                names[engine.begin([prompts[coming % len(prompts)]], output[coming])[0]] = coming
                coming += 1
            if steps % plan["beside_every"] == 0:
                beside.append(reference.seconds())
            seconds, outputs = engine.step()
            now += seconds * 1e-6 * plan["reference_us"] / statistics.median(beside)
            steps += 1
            for found in outputs:
                request = names[found.request_id]
                first.setdefault(request, now)
                if found.finished:
                    last[request] = now
                    del names[found.request_id]
        counted = engine.counters
        yield {
            "row": "load",
            "method": engine.method,
            "drafts": engine.drafts,
            "rate_per_s": run["rate_per_s"],
            "first_token_s": [first[i] for i in range(len(arrival))],
            "finish_s": [last[i] for i in range(len(arrival))],
            "steps": steps,
            "drafting": counted.drafts,
            "drafted": counted.drafted,
            "accepted": counted.accepted,
        }
