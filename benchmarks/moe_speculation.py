"""Mixtures of experts with speculation, predicted beside published: step ratios by source.

    step ratio = tokens per step / speedup = a step that speculates / a plain step

The published figures are not part of this project (CONTRIBUTING.md); their folder is the argument,
$MEDUSA_SIM_DATA, or ../shared/data. What a source leaves open was assumed and is printed: batches as a range
of which both ends are predicted, contexts, GPUs of the same kind. Each row is predicted with kernels alone
and in an engine of its source's date (vLLM's first one for what was measured in early 2025; none for
DeepSeek's own), whose terms were fitted to dense models on one GPU. Only vLLM PR 12755 has a date of its own;
MoESD does not say its version, and `vllm-v0` was kept for both after today's `vllm-0.33` had been seen to
miss (Mixtral 17 %, Qwen2-57B 31 %, PR 12755 16 %; with V0 6, 16 and 34 %): no held-out figure. An error is
that of the middle of the range. `--roofline` takes kernels at the card's limits instead of fitted ones.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import pandas as pd
from recorded import data_folder, present

from medusa_sim.api import Scenario
from medusa_sim.latency.by_name import LatencyName
from medusa_sim.specs.feed_forwards import MoE
from medusa_sim.specs.model import LayerGroup, Model
from medusa_sim.specs.models import load_model
from medusa_sim.specs.variants import ARCHITECTURES

ROOT = Path(__file__).resolve().parents[1]


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


def qwen2_57b() -> Model:
    """Qwen2-57B-A14B (its config.json: 28 layers, 64 experts of 2,560, 8 a token, shared 20,480)."""
    like = load_model("qwen3-30b-a3b")
    return replace(
        like,
        name="qwen2-57b-a14b",
        architecture="qwen2_moe",
        hidden=3584,
        groups=(
            LayerGroup(
                28,
                ARCHITECTURES["qwen2_moe"].attention(28, 4, 128),
                MoE(experts=64, topk=8, inter=2560, shared=20_480, shared_gate=True),
            ),
        ),
        mlp_width=18_944,
        vocab=151_936,
    )


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
    Case("MoESD, ", A800 | {"model": qwen2_57b(), "drafter": "draft-model", "draft_model": "qwen2-0.5b"},
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
    low, high = re.findall(r"(\d\.\d)-(\d\.\d)x", row["note"])[0]
    return (float(low) + float(high)) / 2.0


def ratio(case: Case, runtime: str, batch: int, drafts: int, latency: LatencyName) -> float:
    """Predicted step that speculates over a plain step."""
    scenario = Scenario(**case.asked, runtime=runtime, acceptance=0.8, chain_only=True, latency=latency)
    step = scenario.step(batch, case.seq_len, drafts + 1)
    return float(step.time_us / step.plain_us)


def rows(folder: Path, latency: LatencyName) -> Iterator[dict[str, object]]:
    """Every row with a step ratio, as published and as predicted with kernels alone and in an engine."""
    table = pd.read_csv(present(folder / "engines" / "moe_speculation.csv"))
    for _, row in table.iterrows():
        case = case_of(row)
        if case is None:
            continue
        drafts, published = int(row["draft_tokens"]), published_ratio(row)
        source, model = str(row["source"]), Scenario(**case.asked, acceptance=0.8).model.name
        found = {
            "source": f"MoESD {row['model'].split('-')[0]}" if "MoESD" in source else source,
            "model": model.split("-")[0],
            "drafts": drafts,
            "published": published,
        }
        errors = {}
        for name, runtime in (("kernels", "cuda-graph"), ("engine", case.engine)):
            ratios = [ratio(case, runtime, batch, drafts, latency) for batch in case.batches]
            found[name] = "-".join(f"{value:.2f}" for value in dict.fromkeys((min(ratios), max(ratios))))
            errors[f"{name}_error"] = ratios[len(ratios) // 2] / published - 1.0
        yield found | errors | {"assumed": case.assumed}


def contradictions(table: pd.DataFrame) -> Iterator[str]:
    """Published ratios of one model that no one cost can give: as many drafts or fewer, and a tenth dearer.

    Between two sources batch and engine may differ too; within one they are the same.
    """
    worst: dict[tuple[str, str], tuple[float, str]] = {}
    for _, same in table.groupby("model", sort=False):
        for (_, dear), (_, cheap) in product(same.iterrows(), same.iterrows()):
            apart = dear.published / cheap.published - 1.0
            pair = (dear.source, cheap.source)
            if dear.drafts <= cheap.drafts and apart > max(0.1, worst.get(pair, (0.0, ""))[0]):
                worst[pair] = (
                    apart,
                    f"{dear.source} says {dear.published:.2f} with {dear.drafts} drafts, {cheap.source} "
                    f"{cheap.published:.2f} with {cheap.drafts}: {apart:.0%} apart",
                )
    yield from (told for _, told in worst.values())


def main(arguments: list[str]) -> int:
    """Print the rows, the errors by source, and what contradicts what."""
    given = [word for word in arguments if not word.startswith("--")]
    folder = data_folder(*given[:1])
    latency: LatencyName = "roofline" if "--roofline" in arguments else "calibrated"
    table = pd.DataFrame(list(rows(folder, latency)))
    shown = table.assign(
        kernels_error=[f"{value:+.1%}" for value in table.kernels_error],
        engine_error=[f"{value:+.1%}" for value in table.engine_error],
    )
    print(shown.drop(columns=["assumed", "model"]).to_string(index=False))
    print()
    for source, same in table.groupby("source", sort=False):
        errors = {name: same[f"{name}_error"].abs() for name in ("kernels", "engine")}
        told = ", ".join(
            f"{name} mean {error.mean():.1%} worst {error.max():.1%}" for name, error in errors.items()
        )
        print(f"{source}: {len(same)} rows, {told}; assumed {same.assumed.iloc[0]}")
    for told in contradictions(table):
        print(f"contradiction: {told}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
