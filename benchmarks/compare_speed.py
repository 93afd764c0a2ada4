"""How long does it take to price every set-up? Twelve cards, eight counts, three precisions, four drafters.

    python benchmarks/compare_speed.py [REPEATS]

CPU seconds of one core (a busy machine stretches the clock), the median of so many runs of each model, and
when the first progress came. One engine; batches to 512, every split that the model allows.
"""

from __future__ import annotations

import sys
import time
from statistics import median

import medusa_sim as ms
from medusa_sim.setups.comparison import compare
from medusa_sim.setups.question import Question
from medusa_sim.setups.setup import Choices

CARDS = (
    "a100-80gb-sxm", "h100-sxm", "h100-pcie", "h100-nvl", "h200-sxm", "b200", "b300", "gb200", "gb300",
    "l40s", "a40", "l4",
)  # fmt: skip
MODELS = {
    "llama-3.1-8b": (("bf16", "fp8", "nvfp4"), ("none", "eagle3", "ngram", "suffix")),
    "qwen3-235b-a22b": (("bf16", "fp8", "nvfp4"), ("none", "eagle3", "ngram", "suffix")),
    "deepseek-r1": (("bf16", "fp8_block", "nvfp4"), ("none", "eagle3", "ngram", "mtp")),
}


def run(model: str) -> tuple[float, float, int]:
    """(CPU seconds, CPU seconds to the first progress, rows) of one comparison."""
    formats, drafters = MODELS[model]
    choices = Choices(
        gpus=CARDS, counts=tuple(range(1, 9)), engines=("vllm",), drafters=drafters, weight_dtypes=formats
    )
    question = Question(prompt_tokens=1000, output_tokens=500, tokens_per_s_per_user=50)
    seen: list[float] = []
    start = time.process_time()
    found = compare(model, question, choices, advance=lambda *_: seen.append(time.process_time()))
    return time.process_time() - start, seen[0] - start, len(found.table)


def main() -> None:
    """Print a line a model; the first run warms files and imports and is left out."""
    repeats = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    ms.compare("llama-3.1-8b", gpus="l4", counts=1, engines="vllm", drafters="none")
    for model in MODELS:
        runs = [run(model) for _ in range(repeats)]
        whole, first = (median(part[at] for part in runs) for at in (0, 1))
        print(f"{model}: {runs[0][2]} rows in {whole:.1f} s of one core, first progress after {first:.2f} s")


if __name__ == "__main__":
    main()
