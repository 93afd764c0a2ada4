"""A full server, simulated, beside published measurements: a section of docs/validation-engines.md.

    python benchmarks/load_validation.py            # the section
    python benchmarks/load_validation.py --write    # into the page

Rows of the ML.ENERGY benchmark (leaderboard 3.0, vLLM 0.11.1 through its server, H100).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
from common.engine_rows import MIXTURES, MODELS, PROMPT_CV, PROMPTS, SERVED_MODELS, Kernels, published_rows
from common.pages import filled, write_section
from common.script import command_line
from common.study import mean_bias_worst, measured_rows, named_rows, table
from engine_fit import engines_of, fit

from medusa_sim.arrays import IntArray
from medusa_sim.engines.runtime import Runtime, load_runtime
from medusa_sim.errors import MedusaSimError
from medusa_sim.load.arguments import BLOCK_TOKENS, LoadArguments
from medusa_sim.load.lengths import Lengths
from medusa_sim.load.load_test import LoadTest
from medusa_sim.load.metrics import Metrics
from medusa_sim.load.requests import Requests
from medusa_sim.load.run_result import RunResult
from medusa_sim.load.sources import Traced
from medusa_sim.scenario.scenario import Scenario

RUNTIME = "vllm-0.11"
REQUESTS = {"lm-arena-chat": 1024, "gpqa": 198}
SENT_AGAIN = {"llama-3.1-8b": (256, 768), "llama-3.1-70b": (512,), "qwen3-30b-a3b": (256,)}
"""Requests of a run, all sent at once; slots from which the same ones are sent once more
(github.com/ml-energy/benchmark, configs/vllm: benchmark.yaml and sweeps.yaml)."""
CHAT = Lengths(prompt_tokens=150.0, output_tokens=400.0, prompt_cv=4.0, output_cv=0.5)
CHAT_TURNS = 1.3
OUTPUT_CV = {"lm-arena-chat": 0.5, "gpqa": 0.4}
"""A prompt and its answer, turns of a conversation (Chatbot Arena, arXiv 2403.04132, table 1, has 1.3 turns),
and the spread of outputs. Each turn is a request with what was said before, and they follow each other: of a
prompt the one before it is in the cache, its answer, which comes from the data, is not. The lengths are
assumed: of eight choices that fit the dense rows on one GPU about alike, with those on several in sight."""
PASSES = 3
"""Simulations until what requests find, which hangs on when others end, is that of the one before."""
ALL_FOUND = 1.0 - 1e-9
"""Share of a prompt that is found where it was said before."""
QUANTITIES = (
    ("tokens/s", "output_tok_s", "tokens_per_s", 1.0),
    ("median ITL", "median_itl_ms", "itl_p50_s", 1e3),
    ("p90 ITL", "p90_itl_ms", "itl_p90_s", 1e3),
)
"""Name, column of the measurement, metric of the simulation, factor to the column's unit."""


def left_out_runtimes() -> dict[str, Runtime]:
    """The runtime by model, from a fit to everything but that model; `""`: from a fit to everything."""
    rows = [Kernels(row) for row in published_rows()]
    found = {}
    for model in ("", *SERVED_MODELS.values()):
        values = fit([row for row in rows if row.row.group != model])
        found[model] = replace(load_runtime(RUNTIME), engine=engines_of(values)[RUNTIME])
    return found


@dataclass(frozen=True, kw_only=True, eq=False)
class Turns(Requests):
    """Requests of which each finds so many tokens of its prompt (requests,) as the one before left there."""

    found: IntArray

    @cached_property
    def session_tokens(self) -> IntArray:
        """Tokens that may be found."""
        return self.found


def chat_prompts(count: int) -> tuple[IntArray, IntArray]:
    """(tokens of each prompt, those that the prompt before it left in the cache): turns follow each other."""
    own, answers, _ = CHAT.drawn(count, seed=0)
    turns = np.random.default_rng(0).geometric(1.0 / CHAT_TURNS, count)
    opens = np.zeros(count, dtype=np.bool_)
    opens[(np.cumsum(turns) - turns)[np.cumsum(turns) - turns < count]] = True
    prompt, found = own.copy(), np.zeros(count, dtype=np.int64)
    for place in np.flatnonzero(~opens):
        found[place] = prompt[place - 1] // BLOCK_TOKENS * BLOCK_TOKENS
        prompt[place] += prompt[place - 1] + answers[place - 1]
    return prompt, found


def requests_of(line: Any, model: str) -> Turns:
    """What a run of the benchmark sends, all at once."""
    count = REQUESTS[line.task]
    prompt_tokens, prompt_cv, output_cv = (by_task[line.task] for by_task in (PROMPTS, PROMPT_CV, OUTPUT_CV))
    spread = {"prompt_cv": prompt_cv, "output_cv": output_cv}
    lengths = Lengths(prompt_tokens=prompt_tokens, output_tokens=float(line.avg_output_len), **spread)
    times = 1 + sum(int(line.max_num_seqs) >= least for least in SENT_AGAIN.get(model, ()))
    prompt, output, _ = lengths.drawn(count * times, seed=0)
    found = np.zeros(count, dtype=np.int64)
    if line.task == "lm-arena-chat":
        prompt, found = chat_prompts(count)
    return Turns(
        arrival_s=np.zeros(count * times),
        prompt_tokens=np.resize(prompt, count * times),
        output_tokens=output,
        found=np.resize(found, count * times),
    )


def found_again(sent: Turns, result: RunResult, kv_tokens: int, once: int) -> IntArray:
    """`found` of requests that were sent before: all, where the first one's blocks are in use or untaken.

    Freed blocks are taken in the order in which they were freed. once: requests that differ.
    """
    line, found = result.timeline, sent.found.copy()
    step_s = np.diff(line.time_s, prepend=0.0)
    taken = np.cumsum((line.prompt_tokens_per_s + line.tokens_per_s) * step_s)
    start, left = result.first_token_s[once:], result.finish_s[:-once]
    since = np.interp(start, line.time_s, taken) - np.interp(left, line.time_s, taken)
    free = kv_tokens - np.interp(start, line.time_s, line.kv_tokens)
    kept = (left > start) | (since < free)
    found[once:][kept] = (sent.prompt_tokens[once:] // BLOCK_TOKENS * BLOCK_TOKENS)[kept]
    return found


def simulated(line: Any, model: str, runtime: Runtime) -> Metrics:
    """The metrics of one row of the file, as the benchmark takes them.

    Gaps are those of the whole run, tokens a second those between the first token of as many requests as
    there are slots and the end of all but as many and one.
    """
    scenario = Scenario(
        gpu="h100-sxm", model=model, runtime=runtime, drafter="ngram", acceptance=0.1, dtype="bf16",
        tp=int(line.n_gpus), ep=int(line.ep) if int(line.ep) > 1 else 1,
    )  # fmt: skip
    most, once, sent = int(line.max_num_seqs), REQUESTS[line.task], requests_of(line, model)
    asked = LoadArguments(
        policies=("none",), max_num_seqs=most, prefix_hit_rate=ALL_FOUND, prefix="session", seeds=1
    )
    test = LoadTest(scenario, asked, Traced(sent))
    point = test.point(test.servers[0], None)
    for _ in range(PASSES if sent.count > once else 0):
        found = found_again(sent, point.first_result, test.servers[0].limits.kv_tokens, once)
        test.source = Traced(replace(sent, found=found))
        point = test.point(test.servers[0], None)
    result, time_s = point.first_result, point.first_result.timeline.time_s
    start = np.sort(result.first_token_s)[most - 1]
    end = np.sort(result.finish_s)[result.finish_s.size - most - 2]
    steady = (time_s >= start) & (time_s <= end)
    return {**point.mean, "tokens_per_s": float(result.timeline.tokens_per_s[steady].mean())}


def compared() -> tuple[pd.DataFrame, list[str]]:
    """(a row of every measurement that can be simulated with relative errors, why others are left out)."""
    rows = measured_rows("plain_decode_mlenergy").query("dtype == 'bfloat16'")
    runtimes = left_out_runtimes()
    found, left = [], []
    for line in named_rows(rows.drop_duplicates(["model", "task", "n_gpus", "ep", "max_num_seqs"])):
        model = MODELS.get(line.model)
        kind = "dense, one GPU" if line.n_gpus == 1 else "dense, several GPUs"
        if line.model in MIXTURES:
            kind = "mixtures of experts"
        if model is None:
            left.append(f"{line.model}: no such model is shipped")
            continue
        try:
            metrics = simulated(line, model, runtimes.get(model, runtimes[""]))
        except MedusaSimError as error:
            left.append(f"{model} on {line.n_gpus} GPUs: {error}")
            continue
        errors = (metrics[ours] * unit / getattr(line, theirs) - 1.0 for _, theirs, ours, unit in QUANTITIES)
        found.append((kind, model, line.task, line.n_gpus, line.avg_batch, *errors))
    columns = ["kind", "model", "task", "GPUs", "batch", *(name for name, *_ in QUANTITIES)]
    return pd.DataFrame(found, columns=columns), list(dict.fromkeys(left))


def page(rows: pd.DataFrame, left: list[str]) -> str:
    """The section `load` of docs/validation-engines.md."""
    names = [name for name, *_ in QUANTITIES]
    summary = table(" | ".join(["rows", "n", *(f"{name}, mean % (bias; worst)" for name in names)]), 1, [
        (kind, len(part), *(mean_bias_worst(part[name]) for name in names))
        for kind, part in rows.groupby("kind", sort=False)
    ])  # fmt: skip
    told = "".join(f"- left out: {line}\n" for line in left)
    return filled("load_validation", chat=CHAT, turns=CHAT_TURNS, summary=summary, left=told)


def every_run(rows: pd.DataFrame) -> str:
    """The errors of each run."""
    names = [name for name, *_ in QUANTITIES]
    return table(" | ".join(["model", "task", "GPUs", "batch", *(f"{name} %" for name in names)]), 2, [
        (row["model"], row["task"], row["GPUs"], f"{row['batch']:.0f}",
         *(f"{100 * row[name]:+.1f}" for name in names))
        for _, row in rows.iterrows()
    ])  # fmt: skip


def main() -> None:
    """Print the section and every run; write the section where asked."""
    given = command_line(__doc__, writes="`load` of docs/validation-engines.md").parse_args()
    rows, left = compared()
    text = page(rows, left)
    print(text, every_run(rows), sep="\n")
    if given.write:
        write_section("validation-engines.md", "load", text)


if __name__ == "__main__":
    main()
