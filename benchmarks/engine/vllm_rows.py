"""What an engine is measured at: steps by batch, texts, requests over time."""

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

    while not all(lengths.values()):
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
        yield engine.row(
            "step",
            batch=batch,
            seq_len=round(plan["prompt_tokens"] + (before + after) / 2 / batch, 1),
            **quantiles_us(samples),
            reference_us=1e6 * statistics.median(beside),
            elapsed_us=1e6 * elapsed / len(samples),
            emitted=after - before,
        )
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
    yield engine.row(
        "tokens",
        elapsed_s=time.perf_counter() - started,
        texts=[texts[name] for name in names],
        emitted=[emitted[name] for name in names],
    )


def load_rows(engine: Engine, plan: Plan, reference: Reference) -> Iterator[dict[str, object]]:
    """Requests that arrive over time: when each has its first and its last token, and how long steps take.

    Time is that of the steps, in runs of the reference, which is timed every few steps (the median of the
    last RECENT): neither what other programs take counts nor how fast the machine is. It jumps to the next
    arrival where nothing runs. A load whose arrivals are `in_steps` has each step for one unit of time. Of
    each step: requests that decode, tokens of prompts, time.
    """
    prompts = json.loads(Path(plan["prompts"]).read_text(encoding="utf-8"))
    for run in plan["loads"]:
        now, coming = 0.0, 0
        beside: deque[float] = deque(maxlen=RECENT)
        speeds: list[float] = []
        steps: list[tuple[int, int, float]] = []
        names: dict[str, int] = {}
        first: dict[int, float] = {}
        last: dict[int, float] = {}
        engine.counters.clear()
        arrival, output = run["arrival"], run["output_tokens"]
        while coming < len(arrival) or names:
            if not names and arrival[coming] > now:
                now = arrival[coming]
            while coming < len(arrival) and arrival[coming] <= now:
                names[engine.begin([prompts[coming % len(prompts)]], output[coming])[0]] = coming
                coming += 1
            if len(steps) % plan["beside_every"] == 0:
                speeds.append(reference.seconds())
                beside.append(speeds[-1])
            seconds, outputs = engine.step()
            taken = seconds / statistics.median(beside)
            now += 1.0 if run["in_steps"] else taken
            began = [names[found.request_id] for found in outputs if names[found.request_id] not in first]
            read = sum(len(prompts[request % len(prompts)]) for request in began)
            steps.append((len(outputs) - len(began), read, taken))
            first.update(dict.fromkeys(began, now))
            for found in outputs:
                if found.finished:
                    last[names.pop(found.request_id)] = now
        yield engine.row(
            "load",
            load=run["load"],
            reference_us=1e6 * statistics.median(speeds),
            first_token=[first[i] for i in range(len(arrival))],
            finish=[last[i] for i in range(len(arrival))],
            steps=steps,
        )
