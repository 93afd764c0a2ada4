"""Mean times to the first token as servers were measured by others, beside those of a server that stays full.

    python benchmarks/first_tokens.py            # errors by engine, card, format and model
    python benchmarks/first_tokens.py --load 40  # so many cells in a closed loop that starts at once, as well

Rows: those of `served_rows.py`. Load generators start all clients at once, ask ten requests of each and take
the mean, the first ones of a cold server included; `medusa-sim load --users` starts them at once too, on a
warm one.
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
from medusa_sim.plan.cells import price
from medusa_sim.units import US_PER_MS

REQUESTS_A_CLIENT = 10
MOST_CLIENTS = 128
"""In closed loops: more take minutes each."""
SEED = 0


def full_server(rows: pd.DataFrame) -> Iterator[dict[str, Any]]:
    """A line of every cell: its group, arguments, measured and predicted milliseconds."""
    for arguments, own in set_ups(rows):
        scenario = ms.Scenario(**arguments)
        batch = np.array(sorted({int(count) for count in own.concurrency}))
        cells = price(scenario, batch, [scenario.length], [])
        first_ms = np.broadcast_to(cells.served.first_token_us / US_PER_MS, cells.shape)[:, 0, 0]
        for line in named_rows(own):
            yield {
                "engine": line.backend,
                "gpu": arguments["gpu"],
                "weights": scenario.model.form,
                "model": arguments["model"],
                "arguments": arguments,
                "requests": int(line.concurrency),
                "measured": line.ttft_mean_ms,
                "predicted": first_ms[int(np.searchsorted(batch, line.concurrency))],
            }


def closed_loop_ms(line: Any) -> float:
    """Milliseconds of a cell in the simulator: all clients start at once."""
    run = ms.Scenario(**line.arguments).simulate(
        ["none"],
        users=line.requests,
        requests=REQUESTS_A_CLIENT * line.requests,
        prompt_tokens=line.arguments["prompt_tokens"],
        output_tokens=line.arguments["output_tokens"],
        length_cv=0.0,
        seeds=1,
        search=False,
    )
    return 1e3 * float(run.answer.points[0].mean["ttft_s"])


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--load", type=int, default=0, metavar="CELLS", help="cells to simulate as well")
    asked = parser.parse_args()
    cells = pd.DataFrame(full_server(served_cells()))
    cells["error"] = 100.0 * (cells.predicted / cells.measured - 1.0)
    lines = [
        (*key, len(part), f"{part.error.abs().mean():.0f}", f"{part.error.mean():+.0f}")
        for key, part in cells.groupby(GROUP)
    ]
    print(table("engine | card | weights | model | cells | mean % | bias %", 4, lines))
    print(f"{len(cells)} cells: {cells.error.abs().mean():.0f} %, bias {cells.error.mean():+.0f} %")
    if asked.load:
        few = cells[cells.requests <= MOST_CLIENTS].sample(asked.load, random_state=SEED)
        errors = np.array([closed_loop_ms(line) / line.measured - 1.0 for line in named_rows(few)])
        told = f"{100.0 * np.abs(errors).mean():.0f} %, bias {100.0 * errors.mean():+.0f} %"
        print(f"{len(few)} cells in a closed loop: {told}; a full server {few.error.abs().mean():.0f} %")


if __name__ == "__main__":
    main()
