"""Mean times to the first token as servers were measured by others, beside a full server and a load test.

    python benchmarks/first_tokens.py            # errors by engine, GPU, format and model

Rows: those of `served_rows.py`. Their load generators start all clients at once, ask ten requests of each and
take the mean (`--num-prompts` is ten times `--max-concurrency`): a tenth of all wait for the prompts of the
others. *full*: a server that stays full (N17); *test*: a load test (N19); *recipe*: with what single recipes
of InferenceX ask of an engine (`as_served`) or make a client wait besides, in steps (`waited_steps`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
import pandas as pd
from common.recipes import graphs_hold_prompts, with_graphed_prompts
from common.script import command_line
from common.study import named_rows, table
from msgspec.structs import replace as with_fields
from served_rows import GROUP, served_cells, set_ups

import medusa_sim as ms
from medusa_sim.engines.engine import StepLimit
from medusa_sim.engines.runtime import Runtime, load_runtime
from medusa_sim.grid.cells import price
from medusa_sim.units import US_PER_MS

HELD_STEPS, HELD_BELOW = 20, 8
"""Steps that the first prompt of a 70B waits for others in TensorRT-LLM at 1,024 + 1,024 tokens, until they
fill 0.9 of a step, and the GPUs from which its recipe no longer asks for it (batch_wait_timeout_iters,
batch_wait_max_tokens_ratio; recipes of InferenceX for 70B)."""
ROOMY = "1.2"
"""Versions of TensorRT-LLM whose recipe of DeepSeek gives a step 8,192 tokens."""
SPARE = 64
"""Before, max_num_tokens is that of the requests, of one prompt and so many, in whole multiples of them."""
DELAYED = 40
"""Steps that a prompt of 1,024 + 1,024 tokens in fp8 waits for others where graphs hold prompts, until they
fill 0.8 of a step."""
WARMED_UP = "2026-01-27"
"""From that day on load tests of InferenceX send two prompts a client before they begin (its pull request
480, ten days after 2026-01-17)."""
POLLED, POLLED_FROM_16 = 10, 30
"""Steps after which SGLang on a B200 looks for new requests (`--scheduler-recv-interval`)."""
SetUps: TypeAlias = Iterable[tuple[dict[str, Any], pd.DataFrame]]
ENDS = (0.1, 0.9)
"""Shares of the measured times below the ends of an 80 % band."""


def as_served(runtime: Runtime, row: Any, arguments: dict[str, Any]) -> Runtime:
    """A runtime with what the recipe of a row asks of its engine."""
    engine, model = runtime.engine, arguments["model"]
    if row.backend != "trtllm" or engine is None:
        return runtime
    if "70b" in model and row.isl == row.osl and arguments["tp"] < HELD_BELOW:
        engine = with_fields(engine, prompt_wait_steps=HELD_STEPS)
    elif model.startswith("deepseek") and not str(row.backend_version).startswith(ROOMY):
        tokens = -(-int(row.concurrency + row.isl + SPARE) // SPARE) * SPARE
        limit = StepLimit(tokens=tokens, requests=int(row.concurrency))
        engine = with_fields(engine, step_limits=(limit,))
    elif model.startswith("deepseek") and graphs_hold_prompts(
        row.precision, (row.isl, row.osl), row.concurrency,
        drafts=False, is_spread=row.ep > 1, splits=arguments["dp_attention"],
    ):  # fmt: skip
        is_delayed = row.precision == "fp8" and row.osl == row.isl
        engine = with_fields(with_graphed_prompts(engine), prompt_wait_steps=DELAYED if is_delayed else 0)
    return replace(runtime, engine=engine)


def is_steady(row: Any, arguments: dict[str, Any]) -> bool:
    """Whether a mean time to the first token is that of a server which users meet.

    Not where TensorRT-LLM splits attention over requests: its recipes let a prompt wait up to 60 steps until
    every GPU has one. Not where SGLang, which compiles kernels when they are first used, was tested without
    a warm-up: the same cell of DeepSeek takes 663 ms without one and 188 with (nvfp4, 8 requests), 1,927 and
    780 in fp8.
    """
    if row.backend == "sglang":
        return str(row.measured) >= WARMED_UP
    return not (row.backend == "trtllm" and arguments["dp_attention"])


def by_recipe(found: SetUps) -> SetUps:
    """Every set-up with rows of one recipe: TensorRT-LLM's of DeepSeek gives a step tokens by concurrency."""
    for arguments, own in found:
        is_deepseek = arguments["model"].startswith("deepseek") and "ttft_mean_ms" in own
        if is_deepseek and own.backend.iloc[0] == "trtllm":
            yield from ((arguments, part) for _, part in own.groupby("concurrency"))
        else:
            yield arguments, own


def waited_steps(row: Any, arguments: dict[str, Any]) -> float:
    """Steps that a client waits by the recipe of a row beside `load_test_steps` of its engine."""
    is_deepseek = arguments["model"].startswith("deepseek")
    if row.backend == "sglang" and is_deepseek and arguments["gpu"] == "b200":
        return (POLLED_FROM_16 - POLLED) / 2.0 if row.concurrency >= 16 else 0.0
    return 0.0


def full_server(rows: pd.DataFrame) -> Iterator[dict[str, Any]]:
    """A line of every cell: its group, arguments, measured and predicted milliseconds."""
    for arguments, own in by_recipe(set_ups(rows)):
        scenario = ms.Scenario(**arguments)
        asked = as_served(load_runtime(arguments["runtime"]), own.iloc[0], arguments)
        batch = np.array(sorted({int(count) for count in own.concurrency}))
        cells, held = (
            price(each, batch, [scenario.length], [])
            for each in (scenario, ms.Scenario(**arguments | {"runtime": asked}))
        )
        seen = cells.server
        full, test, step, recipe = (
            np.broadcast_to(time_us / US_PER_MS, cells.shape)[:, 0, 0]
            for time_us in (
                seen.first_token_us, seen.benchmark_first_token_us, seen.step_us,
                held.server.benchmark_first_token_us,
            )
        )  # fmt: skip
        for line in named_rows(own):
            place = int(np.searchsorted(batch, line.concurrency))
            yield {
                "engine": line.backend,
                "gpu": arguments["gpu"],
                "weights": scenario.model.form,
                "model": arguments["model"],
                "measured": line.ttft_mean_ms,
                "full": full[place],
                "test": test[place],
                "recipe": recipe[place] + waited_steps(line, arguments) * step[place],
            }


def main() -> None:
    """Print the table."""
    command_line(__doc__).parse_args()
    cells = pd.DataFrame(full_server(served_cells()))
    ways = ["full", "test", "recipe"]
    errors = 100.0 * (cells[ways].div(cells.measured, axis=0) - 1.0)
    groups = [cells[name] for name in GROUP]
    weight = 1.0 / cells.groupby(GROUP).measured.transform("size").to_numpy()
    means, biases = errors.abs().groupby(groups).mean(), errors.groupby(groups).mean()
    counts = errors.groupby(groups).size()
    lines = [
        (*key, counts[key], *(f"{means.loc[key, way]:.0f} ({biases.loc[key, way]:+.0f})" for way in ways))
        for key in means.index
    ]
    words = " | ".join(f"{way}, mean % (bias)" for way in ways)
    print(table(f"engine | GPU | weights | model | cells | {words}", 4, lines))
    for way in ways:
        late = np.log((cells.measured / cells[way]).to_numpy())
        order = np.argsort(late)
        places = np.searchsorted(np.cumsum(weight[order]), np.array(ENDS) * weight.sum())
        low, high = late[order][places]
        print(
            f"{way}: {len(cells)} cells {errors[way].abs().mean():.0f} %, bias {errors[way].mean():+.0f} %, "
            f"mean over {len(means)} groups {means[way].mean():.0f} %, median {means[way].median():.0f} %; "
            f"late by {low:+.2f} to {high:+.2f} (80 %, of the logarithm, groups alike)"
        )


if __name__ == "__main__":
    main()
