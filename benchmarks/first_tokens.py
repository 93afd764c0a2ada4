"""Mean times to the first token as servers were measured by others, beside a full server and a load test.

    python benchmarks/first_tokens.py            # errors by engine, card, format and model

Rows: those of `served_rows.py`. Their load generators start all clients at once, ask ten requests of each and
take the mean (`--num-prompts` is ten times `--max-concurrency`): a tenth of all wait for the prompts of the
others. *full*: a server that stays full (N17); *test*: a load test (N19); *recipe*: with what single recipes
of InferenceX make a client wait besides, in steps (`waited_steps`).
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
from served_rows import GROUP, served_cells, set_ups
from study import named_rows, table

import medusa_sim as ms
from medusa_sim.grid.cells import price
from medusa_sim.units import US_PER_MS

DELAYED, DELAYED_BELOW = 20, 8
"""Steps that prompts of a 70B wait for each other in TensorRT-LLM at 1,024 + 1,024 tokens, and the GPUs from
which its recipe no longer asks for it (batch_wait_timeout_iters; recipes of InferenceX for 70B)."""
POLLED, POLLED_FROM_16 = 10, 30
"""Steps after which SGLang on a B200 looks for new requests (`--scheduler-recv-interval`)."""
ENDS = (0.1, 0.9)
"""Shares of the measured times below the ends of an 80 % band."""


def waited_steps(row: Any, arguments: dict[str, Any]) -> float:
    """Steps that a client waits by the recipe of a row beside `load_test_steps` of its engine."""
    is_deepseek = arguments["model"].startswith("deepseek")
    if row.backend == "trtllm" and "70b" in arguments["model"] and row.isl == row.osl:
        return DELAYED - 1.0 if arguments["tp"] < DELAYED_BELOW else 0.0
    if row.backend == "sglang" and is_deepseek and arguments["gpu"] == "b200":
        return (POLLED_FROM_16 - POLLED) / 2.0 if row.concurrency >= 16 else 0.0
    return 0.0


def full_server(rows: pd.DataFrame) -> Iterator[dict[str, Any]]:
    """A line of every cell: its group, arguments, measured and predicted milliseconds."""
    for arguments, own in set_ups(rows):
        scenario = ms.Scenario(**arguments)
        batch = np.array(sorted({int(count) for count in own.concurrency}))
        cells = price(scenario, batch, [scenario.length], [])
        seen = cells.served
        full, test, step = (
            np.broadcast_to(time_us / US_PER_MS, cells.shape)[:, 0, 0]
            for time_us in (seen.first_token_us, seen.benchmark_first_token_us, seen.step_us)
        )
        for line in named_rows(own):
            at = int(np.searchsorted(batch, line.concurrency))
            yield {
                "engine": line.backend,
                "gpu": arguments["gpu"],
                "weights": scenario.model.form,
                "model": arguments["model"],
                "measured": line.ttft_mean_ms,
                "full": full[at],
                "test": test[at],
                "recipe": test[at] + waited_steps(line, arguments) * step[at],
            }


def main() -> None:
    """Print the table."""
    argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0]).parse_args()
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
    print(table(f"engine | card | weights | model | cells | {words}", 4, lines))
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
