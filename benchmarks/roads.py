"""Sweep beside load: random servers of a closed loop, in the steady state and step by step.

    python benchmarks/roads.py                    # 60 set-ups, some minutes
    python benchmarks/roads.py --count 200 --seed 7
    python benchmarks/roads.py --each             # with a line for each set-up

Drawn are an engine of each family in all its versions, a GPU, a dense, mixed or hybrid model on as few GPUs
as hold it, a way of drafting or none, prompts of 32 to 8,192 tokens, outputs of 8 to 2,048 and 1 to 512
requests, of equal or unequal lengths. Both roads price the same steps; what is apart is how they put them
together. The simulator is right but for chance: some 1 % of its rates, 3 % of its first tokens.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
from common.script import command_line
from scan import CARDS, ENGINES, GPUS, MODELS, TOKENS, every_row

from medusa_sim.engines.runtime import runtime_names
from medusa_sim.errors import MedusaSimError
from medusa_sim.grid.cells import Cells, price
from medusa_sim.load.load_test import load_test
from medusa_sim.load.run_result import RunResult
from medusa_sim.load.step_table import chains
from medusa_sim.scenario.scenario import Scenario
from medusa_sim.units import US_PER_S

DRAFTERS = ("", "eagle3", "mtp", "draft-model", "ngram")
DTYPES = ("bf16", "bf16", "fp8")
PROMPTS, OUTPUTS, USERS = (32, 8192), (8, 2048), (1, 512)
LENGTH_CVS = (0.4, 0.8)
MOST_DRAFTS = 3
ROOM = 0.6
"""Most of the requests that fit at their mean length: beyond, lengths of chance decide who waits."""
LEAST_REQUESTS, OF_A_USER = 600, 30
RUNS = 5
"""Of each server: a whole prompt that hardly fits a step stops the others in one run of several (B of N7)."""
QUANTITIES = ("tokens/s", "TPOT", "ITL", "TTFT")
"""ITL: the median of gaps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """A server and its clients."""

    family: str
    scenario: Scenario
    drafts: int
    users: int
    length_cv: float

    def __str__(self) -> str:
        asked, traffic = self.scenario, self.scenario.traffic
        assert traffic is not None  # `drawn` gives one
        drafts = f" {asked.setting.drafter_name} {self.drafts}" if self.drafts else ""
        return (
            f"{asked.gpus} x {asked.gpu.name} {asked.model.name} {asked.setting.runtime.name}{drafts}, "
            f"{self.users} x {traffic.prompt_tokens:g} + {traffic.output_tokens:g}, cv {self.length_cv:g}"
        )


def drawn(count: int, seed: int) -> Iterator[Server]:
    """So many random servers that run, families of engines in turn."""
    rng, found = np.random.default_rng(seed), 0
    while found < count:
        family = ENGINES[found % len(ENGINES)]
        try:
            each = _drawn(rng, family)
        except MedusaSimError:
            continue
        if each is not None:
            found += 1
            yield each


def _drawn(rng: np.random.Generator, family: str) -> Server | None:
    """One server, on as few GPUs as hold its requests; None where none do. Raises MedusaSimError."""
    engine = str(rng.choice([name for name in runtime_names() if name.startswith(f"{family}-")]))
    gpu, model, drafter = (str(rng.choice(names)) for names in (CARDS, MODELS, DRAFTERS))
    prompt, output, users = (round(np.exp(rng.uniform(*np.log(ends)))) for ends in (PROMPTS, OUTPUTS, USERS))
    length_cv, drafts = float(rng.choice(LENGTH_CVS)), int(rng.integers(1, MOST_DRAFTS + 1))
    dtype = None if model.startswith("gpt-oss") else str(rng.choice(DTYPES))
    given: dict[str, Any] = {"drafter": drafter, "acceptance": TOKENS} if drafter else {}
    for tp in GPUS:
        scenario = Scenario(
            gpu=gpu, model=model, runtime=engine, tp=tp, dtype=dtype, prompt_tokens=prompt,
            output_tokens=output, length_cv=length_cv, **given,
        )  # fmt: skip
        each = Server(
            family=family, scenario=scenario, drafts=drafts if drafter else 0, users=users,
            length_cv=length_cv,
        )  # fmt: skip
        if users <= ROOM * swept(each).max_batch.min():
            return each
    return None


def swept(each: Server) -> Cells:
    """Its steady state."""
    scenario, drafts = each.scenario, each.drafts
    options = chains(scenario)[drafts - 1 : drafts] if drafts else ()
    return price(scenario, np.array([each.users]), [scenario.length], options)


def differences(each: Server) -> dict[str, float]:
    """Sweep over load, less 1."""
    traffic = each.scenario.traffic
    assert traffic is not None  # `drawn` gives one
    test = load_test(
        each.scenario, users=each.users, requests=max(LEAST_REQUESTS, OF_A_USER * each.users),
        prompt_tokens=traffic.prompt_tokens, output_tokens=traffic.output_tokens, length_cv=each.length_cv,
        policies=(str(each.drafts) if each.drafts else "none",), seeds=RUNS, max_num_seqs=each.users,
    )  # fmt: skip
    results = [test.servers[0].run(test.requests(test.any_rate, seed)[0], seed) for seed in range(RUNS)]
    table = pd.concat([_inside(result) for result in results])
    further, output = table.output - 1, float(table.output.mean())
    emitted, span_s = (
        sum(getattr(result.inside, name) for result in results) for name in ("emitted", "span_s")
    )
    # of lengths as they were drawn
    asked = each.scenario.but(prompt_tokens=float(table.prompt.mean()), output_tokens=output)
    cells = swept(replace(each, scenario=asked))
    seen = cells.server
    pairs = {
        "tokens/s": (cells.tokens_per_s, emitted / span_s),
        "TPOT": (seen.tpot_us / US_PER_S, table.further_s.sum() / further.sum()),
        "ITL": (seen.itl_us / US_PER_S, np.mean([result.inside.gap_quantile_s(0.5) for result in results])),
        "TTFT": (seen.first_token_us / US_PER_S, table.first_s.mean()),
    }
    return {name: float(values[0, 0, -1] / told) - 1.0 for name, (values, told) in pairs.items()}


def _inside(result: RunResult) -> pd.DataFrame:
    """Requests that arrive in the window of a run."""
    asked, (start_s, end_s) = result.requests, result.window_s
    columns = {
        "prompt": asked.prompt_tokens,
        "output": asked.output_tokens,
        "first_s": result.first_token_s - result.arrival_s,
        "further_s": result.finish_s - result.first_token_s,
    }
    return pd.DataFrame(columns)[(result.arrival_s >= start_s) & (result.arrival_s <= end_s)]


def summary(table: pd.DataFrame) -> Iterator[str]:
    """A line for each quantity and family of engines: median, nine of ten, and the worst."""
    for name in QUANTITIES:
        for family, rows in [("all", table), *table.groupby("family")]:
            size = 100.0 * rows[name].abs().dropna()
            yield (
                f"{name:9} {family:13} {size.median():5.1f} {size.quantile(0.9):6.1f} {size.max():6.1f}  "
                f"({100.0 * rows[name][size.idxmax()]:+.1f}: {size.idxmax()})"
            )


def main() -> None:
    """Draw, price both ways, and tell."""
    options = command_line(__doc__)
    options.add_argument("--count", type=int, default=60, metavar="N", help="set-ups")
    options.add_argument("--seed", type=int, default=1, help="of the draws")
    options.add_argument("--each", action="store_true", help="a line for each set-up")
    asked = options.parse_args()
    every = list(drawn(asked.count, asked.seed))
    table = every_row(every, differences, each_too=asked.each).assign(family=[each.family for each in every])
    print(f"sweep beside load, {len(table)} servers: %, median, nine of ten, worst")
    print("\n".join(summary(table)))


if __name__ == "__main__":
    main()
