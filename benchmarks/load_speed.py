"""Seconds and memory of a simulated load: the requests of a public hour, and ten times as many drawn ones.

    python benchmarks/load_speed.py [--requests 200000]

CPU seconds of one process. The trace is not part of this project ($MEDUSA_SIM_DATA).
"""

from __future__ import annotations

import argparse
import resource
import time

from recorded import data_folder, present

from medusa_sim.load.arrivals import Drawn, Lengths, Source, Traced
from medusa_sim.load.simulate import LoadTest
from medusa_sim.load.trace import read_trace
from medusa_sim.plan.scenario import Scenario

POLICIES = ("none", "3", "schedule", "adaptive", "budget")


def main() -> None:
    """Print a line a policy and source."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=200_000, help="drawn requests")
    asked = parser.parse_args()
    scenario = Scenario(gpu="h100-sxm", model="llama-3.1-8b", drafter="eagle3")
    hour = present(data_folder() / "traces" / "azure_2023_conv.parquet")
    lengths = Lengths(prompt_tokens=1155, output_tokens=211)
    sources: list[tuple[str, Source, float | None]] = [
        ("Azure conversation hour", Traced(read_trace(hour)), None),
        (f"{asked.requests:,} drawn", Drawn(lengths=lengths, count=asked.requests), 5.5),
    ]
    for name, source, rate in sources:
        test = LoadTest(scenario=scenario, source=source, policies=POLICIES, seeds=1)
        for served in test.served:
            requests, _ = test.requests(rate, 0)
            start = time.process_time()
            served.run(requests, 0)
            taken = time.process_time() - start
            most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
            print(f"{name:26s} {served.name:10s} {requests.count:>9,} requests {taken:6.2f} s "
                  f"({1e6 * taken / requests.count:.0f} us each), at most {most:.0f} MB")  # fmt: skip


if __name__ == "__main__":
    main()
