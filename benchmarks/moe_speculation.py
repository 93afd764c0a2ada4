"""How much longer does a step with drafts take in a mixture of experts? Predicted beside published.

    python benchmarks/moe_speculation.py            # rows, errors by source, contradictions; five seconds
    python benchmarks/moe_speculation.py --roofline # with kernels at the GPU's limits, not the fitted ones

    step ratio = tokens per step / speedup = a step that speculates / a plain step

What a source leaves open was assumed and is printed: batches as a range of which both ends are predicted,
contexts, GPUs of the same kind. Each row is predicted with kernels alone and in an engine of its source's
date (vLLM's first one for what was measured in early 2025; none for DeepSeek's own), whose terms were fitted
to dense models on one GPU. Only vLLM PR 12755 has a date of its own; MoESD does not say its version, and
`vllm-v0` was kept for both after today's `vllm-0.33` had been seen to miss (Mixtral 17 %, Qwen2-57B 31 %, PR
12755 16 %; with V0 6, 16 and 34 %): no held-out figure. An error is that of the middle of the range.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

import pandas as pd
from common.script import ROOT, command_line
from common.study import measured_rows, named_rows
from common.terms import bare

from medusa_sim.api import Scenario
from medusa_sim.engines.runtime import load_runtime
from medusa_sim.latency.by_name import LatencyName
from medusa_sim.step.drafter import lookups


@dataclass(frozen=True, slots=True)
class Case:
    """What published rows ran, as far as they say, and what was assumed where they do not.

    rows: pattern of `SOURCE, MODEL, BATCH`. asked: of a scenario. batches: ends and middle of a range.
    """

    rows: str
    asked: dict[str, Any]
    engine: str
    batches: tuple[int, ...]
    seq_len: int
    assumed: str


QWEN2_57B = str(ROOT / "benchmarks" / "models" / "qwen2-57b-a14b" / "config.json")
R1 = {"gpu": "h200-sxm", "model": "deepseek-r1", "tp": 8, "drafter": "mtp"}
A800 = {"gpu": "a100-80gb-sxm", "tp": 2, "dtype": "bf16"}
OF_12755 = "8 x H200, context 1,024, requests of some 200 tokens"
OF_MOESD = "A800 as A100, batch 16 to 40, context 512"
CASES = (
    Case("sglang PR 3582", R1, "sglang", (1,), 1024, "8 x H200, context 1,024"),
    Case("vllm PR 12755.*QPS 1$", R1, "vllm-v0", (4, 8, 16), 1024, OF_12755),
    Case("vllm PR 12755", R1, "vllm-v0", (8, 16, 32), 1024, OF_12755),
    Case("DeepSeek-V3 report, ", R1 | {"gpu": "h100-sxm", "model": "deepseek-v3"}, "cuda-graph",
         (128, 256, 512), 4096, "large batches, context 4,096, eight GPUs as H100"),
    Case("Cascade, Mixtral-8x7B, ",
         {"gpu": "l40s", "model": "mixtral-8x7b", "drafter": "ngram", "match_rate": 1.0, "dtype": "bf16"},
         "vllm-0.10", (1,), 512, "RTX 6000 Ada as L40S, verification alone, context 512"),
    Case("MoESD, Mixtral", A800 | {"model": "mixtral-8x7b", "drafter": "eagle"}, "vllm-v0", (16, 24, 40), 512,
         OF_MOESD),
    Case("MoESD, ", A800 | {"model": QWEN2_57B, "drafter": "draft-model", "draft_model": "qwen2-0.5b"},
         "vllm-v0", (16, 24, 40), 512, OF_MOESD),
)  # fmt: skip


def case_of(row: pd.Series) -> Case | None:
    """The set-up of a row; None where it gives no step ratio that can be predicted."""
    if row["source"] == "MoESD" and pd.isna(row["implied_step_ratio"]):
        return None
    told = f"{row['source']}, {row['model']}, {row['batch_or_concurrency']}"
    return next((case for case in CASES if re.match(case.rows, told)), None)


def published_ratio(row: pd.Series) -> float:
    """The step ratio of a row; the middle where it gives a range in words (`2.3-3.0x dearer`)."""
    if pd.notna(row["implied_step_ratio"]):
        return float(row["implied_step_ratio"])
    return sum(map(float, re.findall(r"(\d\.\d)-(\d\.\d)x", row["note"])[0])) / 2.0


def ratio(case: Case, runtime: str, batch: int, drafts: int, latency: LatencyName) -> float:
    """Predicted step that speculates over a plain step."""
    scenario = Scenario(**case.asked, runtime=runtime, acceptance=0.8, chain_only=True, latency=latency)
    step = scenario.step(batch, case.seq_len, drafts + 1)
    return float(step.time_us / step.decode_step_us)


def rows(latency: LatencyName) -> Iterator[dict[str, object]]:
    """Every row with a step ratio, as published and as predicted with kernels alone and in an engine."""
    for _, row in measured_rows("moe_speculation").iterrows():
        case = case_of(row)
        if case is None:
            continue
        drafts, published = int(row["draft_tokens"]), published_ratio(row)
        source, model = str(row["source"]), Scenario(**case.asked, acceptance=0.8).model.name
        source = f"MoESD {row['model'].split('-')[0]}" if "MoESD" in source else source
        found = {"source": source, "model": model.split("-")[0], "drafts": drafts, "published": published}
        errors = {}
        for name, runtime in (("kernels", "cuda-graph"), ("engine", case.engine)):
            ratios = [ratio(case, runtime, batch, drafts, latency) for batch in case.batches]
            found[name] = "-".join(f"{value:.2f}" for value in dict.fromkeys((min(ratios), max(ratios))))
            errors[f"{name}_error"] = ratios[len(ratios) // 2] / published - 1.0
        yield found | errors | {"assumed": case.assumed}


def cells() -> pd.DataFrame:
    """Step ratios in the engine of their source's date: half-widths without CHOSEN, measured over predicted.

    low, high, short_out: of the ratio, on the logarithm.
    """
    found = []
    for _, row in measured_rows("moe_speculation").iterrows():
        case = case_of(row)
        if case is None or case.engine == "cuda-graph" or case.asked["model"] == "deepseek-r1":
            continue
        scenario = Scenario(
            **case.asked, runtime=bare(load_runtime(case.engine)), acceptance=0.8, chain_only=True
        )
        batch, drafts = case.batches[len(case.batches) // 2], int(row["draft_tokens"])
        step = scenario.sweep(batch=[batch], seq_len=[case.seq_len], candidates=[drafts + 1]).iloc[-1]
        ratio = scenario.step(batch, case.seq_len, drafts + 1)
        found.append(
            {
                "source": f"{row['source']} {scenario.model.name}",
                "low": math.log(step.speedup_high / step.speedup),
                "high": math.log(step.speedup / step.speedup_low),
                "short_out": math.log(published_ratio(row) * float(ratio.decode_step_us / ratio.time_us)),
                "weight": 1.0,
                "looks_up": case.asked["drafter"] in lookups(),
            }
        )
    return pd.DataFrame(found)


def contradictions(table: pd.DataFrame) -> Iterator[str]:
    """Published ratios of one model that no one cost can give: as many drafts or fewer, and a tenth dearer.

    Between two sources batch and engine may differ too; within one they are the same.
    """
    worst: dict[tuple[str, str], tuple[float, str]] = {}
    for _, same in table.groupby("model", sort=False):
        for dear, cheap in product(list(named_rows(same)), repeat=2):
            apart, pair = dear.published / cheap.published - 1.0, (dear.source, cheap.source)
            if dear.drafts <= cheap.drafts and apart > max(0.1, worst.get(pair, (0.0, ""))[0]):
                both = f"{dear.source} says {dear.published:.2f} with {dear.drafts} drafts, {cheap.source} "
                both += f"{cheap.published:.2f} with {cheap.drafts}: {apart:.0%} apart"
                worst[pair] = (apart, both)
    yield from (told for _, told in worst.values())


def main() -> None:
    """Print the rows, the errors by source, and what contradicts what."""
    parser = command_line(__doc__)
    parser.add_argument("--roofline", action="store_true", help="kernels at the limits of the GPU")
    latency: LatencyName = "roofline" if parser.parse_args().roofline else "calibrated"
    found = pd.DataFrame(list(rows(latency)))
    shown = found.drop(columns=["assumed", "model"])
    percent = dict.fromkeys(("kernels_error", "engine_error"), "{:+.1%}".format)
    print(shown.to_string(index=False, formatters=percent))
    print()
    for source, same in found.groupby("source", sort=False):
        sizes = {name: same[f"{name}_error"].abs() for name in ("kernels", "engine")}
        told = [f"{name} mean {size.mean():.1%} worst {size.max():.1%}" for name, size in sizes.items()]
        print(f"{source}: {len(same)} rows, {', '.join(told)}; assumed {same.assumed.iloc[0]}")
    for line in contradictions(found):
        print(f"contradiction: {line}")


if __name__ == "__main__":
    main()
