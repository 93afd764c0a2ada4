"""Time of one whole recommendation: batches 1..64, four lengths, trees to 256 candidates, one core.

python benchmarks/recommend_search.py [--latency roofline] [--gpu NAME] [--model NAME]
"""

from __future__ import annotations

import argparse
import time

from medusa_sim.plan.question import Question
from medusa_sim.plan.recommend import recommend
from medusa_sim.plan.scenario import Scenario

REPEATS = 5


def main() -> None:
    """Print the best and the median of REPEATS runs, CPU and wall time."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--latency", default="calibrated")
    parser.add_argument("--gpu", default="a100-80gb-pcie")
    parser.add_argument("--model", default="vicuna-7b")
    parser.add_argument("--acceptance", default="medusa1-vicuna-7b")
    given = parser.parse_args()
    question = Question(batch_max=64, seq_len=(512, 1024, 2048, 4096), candidates_max=256)
    times = []
    for _ in range(REPEATS):
        scenario = Scenario(
            gpu=given.gpu, model=given.model, latency=given.latency, acceptance=given.acceptance
        )
        cpu, wall = time.process_time(), time.perf_counter()
        answer = recommend(scenario, question)
        times.append((time.process_time() - cpu, time.perf_counter() - wall))
    cells = answer.surface.step_us.size
    cpu_s, wall_s = (sorted(column) for column in zip(*times, strict=True))
    print(f"{given.gpu} {given.model} {given.latency}: {cells} configurations and rows around them")
    print(f"cpu s: best {cpu_s[0]:.3f}, median {cpu_s[REPEATS // 2]:.3f}")
    print(f"wall s: best {wall_s[0]:.3f}, median {wall_s[REPEATS // 2]:.3f}")


if __name__ == "__main__":
    main()
