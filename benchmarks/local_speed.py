"""Errors of llama.cpp's and MLX's predicted speeds on measured rows, and on devices that were left out.

    python benchmarks/local_speed.py            # the tables
    python benchmarks/local_speed.py --write    # into docs/local.md

Rows: times of forward passes of 1 to 16 tokens, plain speeds, and runs with drafts, collected from public
benchmarks of 2024 to 2026 (`local/`). Kernels that were replaced since are left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from common.local_curves import (
    UNSEEN_MODELS,
    curves,
    form_of,
    is_unseen,
    known,
    left_out,
    own,
    percent,
    predicted,
    runtime_of,
    verification_table,
)
from common.measured_pairs import joined, pairs_of
from common.pages import write_section
from common.script import command_line
from common.study import measured, table

from medusa_sim.api import Scenario as ApiScenario
from medusa_sim.errors import MedusaSimError
from medusa_sim.gpus.gpu import load_gpu
from medusa_sim.gpus.gpu_names import device_names, gpu_name
from medusa_sim.gpus.local import runtimes_of
from medusa_sim.latency.local import LocalLatency
from medusa_sim.scenario.local_correction import passes
from medusa_sim.scenario.local_rows import LocalRow
from medusa_sim.scenario.scenario import Scenario
from medusa_sim.step.drafter import drafter_class
from medusa_sim.step.drafting import drafting_cost
from medusa_sim.step.pass_cost import timed_pass
from medusa_sim.step.step import decode_step, verification_step
from medusa_sim.step.workload import verify


class Speed(NamedTuple):
    """Tokens a second of plain decoding, predicted with its 80 % band and measured.

    unseen: nobody looked at it when a constant was chosen.
    """

    runtime: str
    gpu: str
    model: str
    form: str
    predicted: float
    low: float
    high: float
    measured: float
    unseen: bool


def plain_speeds() -> Iterator[Speed]:
    """Speeds whose device, model and file type are known."""
    rows: Any = pd.read_csv(measured("local/decode.csv")).fillna({"date": ""})
    rows = rows[
        rows["engine"].isin(["llama.cpp", "Rapid-MLX"])
        & rows["test"].str.fullmatch(r"tg(32|64|128|256|512|1024)|tg bucket \w+")
    ]
    for key, group in rows.groupby(["device", "backend", "model", "quant", "depth"]):
        device, backend, model, quant, depth = key
        name = known(str(model))
        if name is None or "amdvlk" in str(backend).lower():
            continue
        newest = group[group["date"] == max(group["date"])]
        made, threads = float(newest["n"].iloc[0]), re.match(r"(\d+) threads", str(newest["note"].iloc[0]))
        place = gpu_name(str(device)), runtime_of(str(backend)), name, form_of(str(quant), str(model))
        cached, tokens_per_s = float(depth) + 0.5 * made, float(newest["value"].median())
        try:
            yield speed(*place, cached, tokens_per_s, is_unseen(str(model)), threads and int(threads[1]))
        except MedusaSimError:
            continue


def ollama_speeds() -> Iterator[Speed]:
    """Speeds of GPUs and Macs under Ollama (llama.cpp inside), in the median over machines with the GPU.

    Left out: Radeons, whose backend the rows do not tell, and gpt-oss, for which Ollama has its own engine.
    """
    rows: Any = pd.read_csv(measured("local/decode.csv"))
    rows = rows[rows["backend"].eq("Ollama GPU") & rows["model"].isin(UNSEEN_MODELS)]
    rows = rows.assign(gpu=[_gpu_of(str(device)) for device in rows["device"]])
    for (gpu, model), group in rows[rows["gpu"].isin(device_names())].groupby(["gpu", "model"]):
        place = gpu, runtimes_of(load_gpu(gpu).local)[0], UNSEEN_MODELS[model], "q4_k_m"
        yield speed(*place, OLLAMA_DEPTH, float(group["value"].median()), unseen=True)


def _gpu_of(device: str) -> str:
    """The NVIDIA GPU or the Mac's chip of a machine's description; empty where it names neither."""
    if found := re.search(r"\(Nvidia (?:RTX )?(\w+(?: Ti)?(?: Super)?)\)", device):
        return gpu_name({"Spark": "GB10"}.get(found[1], f"RTX {found[1]}"))
    found = re.search(r"\bM\d(?: (?:Pro|Max|Ultra))?\b", device)
    return gpu_name(found[0]) if found else ""


OLLAMA_DEPTH = 300.0
"""Tokens in the cache, about: a short question and half of its answer."""


def speed(
    gpu: str,
    runtime: str,
    model: str,
    form: str,
    depth: float,
    tokens_per_s: float,
    unseen: bool,
    threads: int | None = None,
) -> Speed:
    """A measured speed beside the predicted one. Raises MedusaSimError for a device or type not known."""
    latency, shape, engine = own(gpu, runtime, model, form)
    if threads:  # of a CPU, which has as much bandwidth and less arithmetic then
        latency = LocalLatency(latency.gpu, latency.law.backend, latency.law, threads / latency.gpu.sms)
    ((_, step),) = passes(latency, shape, engine, [LocalRow(columns=1, depth=max(1.0, depth), time_us=1.0)])
    predicted, low, high = (1e6 / us.item() for us in (step.time_us, step.high_us, step.low_us))
    return Speed(runtime, gpu, model, form, predicted, low, high, tokens_per_s, unseen)


def plain_table() -> str:
    """Plain tokens a second by runtime, of models at which constants were chosen."""
    by: dict[str, dict[str, list[float]]] = {}
    for each in plain_speeds():
        if each.unseen:
            continue
        by.setdefault(each.runtime, {}).setdefault(each.gpu, []).append(each.predicted / each.measured - 1.0)
    shown = [
        (runtime, len(gpus), sum(map(len, gpus.values())), percent(np.concatenate(list(gpus.values()))),
         percent([np.mean(errors) for errors in gpus.values()]), percent(without_each(gpus)))
        for runtime, gpus in by.items()
    ]  # fmt: skip
    return table("runtime | devices | rows | error | of a device's mean | of a device left out", 1, shown)


def unseen_table() -> str:
    """Plain tokens a second of models and GPUs at which nobody looked when constants were chosen."""
    by: dict[tuple[str, str], list[Speed]] = {}
    for each in plain_speeds():
        if each.unseen:
            by.setdefault((each.gpu, each.model), []).append(each)
    for each in ollama_speeds():
        by.setdefault(("GPUs under Ollama", each.model), []).append(each)
    shown = [
        (*key, len(those), percent([each.predicted / each.measured - 1.0 for each in those]),
         f"{100 * np.mean([each.low <= each.measured <= each.high for each in those]):.0f} %")
        for key, those in by.items()
    ]  # fmt: skip
    return table("device | model | rows | error | held", 2, shown)


def without_each(gpus: dict[str, list[float]]) -> list[float]:
    """Mean error of each device where the law is as fast as all other devices ask; none of one alone."""
    means = {gpu: float(np.mean(np.log1p(errors))) for gpu, errors in gpus.items()}
    others = {gpu: [mean for other, mean in means.items() if other != gpu] for gpu in means}
    return [float(np.expm1(means[gpu] - np.mean(rest))) for gpu, rest in others.items() if rest]


def speedups() -> Iterator[tuple[str, str, str, str, int, float, float]]:
    """(device, runtime, model, file type, drafts, predicted and measured) speedups with own heads."""
    rows: Any = pd.read_csv(measured("local/spec_runs.csv"))
    rows = rows[(rows["engine"] == "llama.cpp") & (rows["method"] == "draft-mtp") & rows["speedup"].notna()]
    rows = rows.assign(rate=pd.to_numeric(rows["acceptance"], errors="coerce"))
    rows = rows.assign(drafts=pd.to_numeric(rows["n_max"], errors="coerce"))
    for row in rows[rows["rate"].notna() & rows["drafts"].notna()].itertuples():
        name = known(str(row.target))
        if name is None:
            continue
        gpu, runtime = gpu_name(str(row.device)), runtime_of(str(row.backend))
        form, drafts = form_of(str(row.target_quant), str(row.target)), int(row.drafts)
        try:
            relative = round_of(gpu, runtime, name, form, drafts)
        except MedusaSimError:
            continue
        gain = (1.0 + drafts * float(row.rate)) / relative
        yield gpu, runtime, name, form, drafts, gain, float(row.speedup)


def runs_table() -> str:
    """Speedups of runs with the model's own head, at the acceptance that they report."""
    by: dict[tuple[str, ...], list[tuple[float, float]]] = {}
    for gpu, runtime, name, form, drafts, gain, told in speedups():
        by.setdefault((gpu, runtime, name, form, str(drafts)), []).append((gain, told))
    shown = [
        (*key, len(pairs), f"{np.mean([m for _, m in pairs]):.2f}", percent([p / m - 1.0 for p, m in pairs]),
         f"{sum((p > 1.0) == (m > 1.0) for p, m in pairs)} of {len(pairs)}")
        for key, pairs in by.items()
    ]  # fmt: skip
    return table("device | runtime | model | file | drafts | runs | speedup | error | sign", 4, shown)


def pairs() -> pd.DataFrame:
    """Passes of several tokens, plain speeds and speedups as pairs (`common/measured_pairs.py`)."""
    passes = [
        {"engine": curve.runtime, "gpu": curve.gpu, "model": curve.model, "weights": curve.form,
         "measured": ratio, "predicted": own_ratio, "requests": m if curve.is_batch else 1,
         "cell": f"{m} tokens", "low": low, "high": high, "left_out": outside}
        for curve in curves()
        for m, ratio, own_ratio, low, high, outside in zip(
            curve.columns, curve.ratios, *predicted(curve), left_out(curve).errors(curve), strict=True
        )
    ]  # fmt: skip
    speeds = [
        {"engine": each.runtime, "gpu": each.gpu, "model": each.model, "weights": each.form,
         "measured": each.measured, "predicted": each.predicted, "low": each.low, "high": each.high,
         "fitted": "no" if each.unseen else "yes"}
        for each in (*plain_speeds(), *ollama_speeds())
    ]  # fmt: skip
    gains = [
        {"engine": runtime, "gpu": gpu, "model": name, "weights": form, "measured": told, "predicted": gain,
         "cell": f"{drafts} drafts"}
        for gpu, runtime, name, form, drafts, gain, told in speedups()
    ]  # fmt: skip
    seen = {"kind": "local", "fitted": "yes"}
    return joined([
        pairs_of(pd.DataFrame(passes), what="pass of q tokens over one", data="local/tq.csv", **seen),
        pairs_of(pd.DataFrame(speeds), what="plain tokens/s", data="local/decode.csv", kind="local"),
        pairs_of(pd.DataFrame(gains), what="speedup", data="local/spec_runs.csv", **seen),
    ])  # fmt: skip


@cache
def round_of(gpu: str, runtime: str, model: str, form: str, drafts: int, depth: int = 300) -> float:
    """A round of so many drafts of the model's own head, in plain steps."""
    scenario = Scenario(
        gpu=gpu, runtime=runtime, model=model, weight_dtype=form, drafter="mtp", acceptance=0.7,
        max_drafts=drafts,
    )  # fmt: skip
    setting = scenario.setting
    drafter = drafter_class("mtp").sized(scenario.drafting.parts, drafts)
    works = drafter.work(scenario.shard, verify(1, depth, drafts + 1), setting.runtime)
    drafted = sum(float(timed_pass(setting.latency, work).time_us) for work in works)
    cost = drafting_cost(setting.runtime, 1, looks_up=False)
    beside = 0.0 if cost is None else float(cost.exposed_us)
    verified = float(verification_step(setting, 1, depth, drafts + 1).time_us)
    return (verified + drafted + beside) / float(decode_step(setting, 1, depth).time_us)


def rounds_table() -> str:
    """Whole rounds of one to six drafts, in plain steps."""
    rows: Any = pd.read_csv(measured("local/round_cost.csv"))
    shown, gains = [], []
    for row in rows.itertuples():
        place = gpu_name(str(row.device)), "llama.cpp-cuda", "qwen3.5-27b", "ud-q4_k_xl"
        own_round = round_of(*place, int(row.n_max))
        gains.append((row.tokens_per_round / own_round, row.tokens_per_round / row.round_rel))
        error = f"{100 * (own_round / row.round_rel - 1):+.0f} %"
        shown.append((row.n_max, f"{own_round:.2f}", f"{row.round_rel:.2f}", error))
    best = [int(np.argmax([pair[i] for pair in gains])) + 1 for i in (0, 1)]
    text = table("drafts | predicted | measured | error", 0, shown)
    return f"{text}\n\nBest number of drafts: predicted {best[0]}, measured {best[1]}."


def sweeps_table() -> str:
    """Best number of drafts and best p-min of one machine, and what the predicted ones give up."""
    rows: Any = pd.read_csv(measured("local/spec_runs.csv"), dtype=str)
    rows = rows[(rows["device"] == SWEPT) & (rows["prompt"] == "Overall")]
    by = {(int(row.n_max), float(row.p_min)): float(row.spec_tps) for row in rows.itertuples()}
    found = {(drafts, p_min): gain_of(gpu_name(SWEPT), drafts, p_min) for drafts, p_min in by}
    asked = {
        "drafts, p-min 0": [place for place in by if place[1] == 0.0],
        "p-min, 5 drafts": [place for place in by if place[0] == 5],
        "drafts, p-min 0.3": [place for place in by if place[1] == 0.3],
    }
    shown = []
    for name, places in asked.items():
        own, true = (max(places, key=speeds.__getitem__) for speeds in (found, by))
        axis = 1 if name.startswith("p-min") else 0
        shown.append((name, f"{own[axis]:g}", f"{true[axis]:g}", f"{100 * (1 - by[own] / by[true]):.1f}"))
    return table("sweep | predicted | measured | speed given up, %", 1, shown)


SWEPT, SWEPT_RATE = "RTX PRO 6000 Max-Q", 0.803
"""The rate of a draft where 54.3 % of five are accepted."""


def gain_of(gpu: str, drafts: int, p_min: float) -> float:
    """Speedup of so many drafts of the model's own head at the swept machine's acceptance."""
    scenario = ApiScenario(
        gpu=gpu, runtime="llama.cpp-cuda", model="qwen3.5-27b", weight_dtype="ud-q4_k_xl", drafter="mtp",
        acceptance=SWEPT_RATE, max_drafts=drafts, p_min=p_min,
    )  # fmt: skip
    return float(scenario.sweep(1, 300, [drafts + 1]).iloc[0]["speedup"])


def page() -> str:
    """All tables."""
    return "\n\n".join(
        [
            "Time of q tokens over that of one (q = 2 to 16), median / mean of the absolute error in per "
            "cent. *Left out*: the law's four factors (bandwidth, arithmetic, what is fixed, tiles) are "
            "those of the other devices of its class; how types compare was chosen with all rows in sight. "
            "*Held*: rows in the 80 % band of a device left out. "
            "*Four rows*: 1, 2, 4 and 8 tokens of the machine's own; errors between them, and at 16 beyond "
            "them, where other kernels run (the command that is printed asks for 16, too). "
            "*Jumps*: curves whose largest step is where it was measured.",
            verification_table(),
            "Plain tokens a second:",
            plain_table(),
            "The same where nobody looked when a constant was chosen: other models, and GPUs under Ollama "
            "(*held*: rows inside the 80 % band):",
            unseen_table(),
            "Speedups with the model's own head, at the acceptance that each run reports:",
            runs_table(),
            "Rounds of Qwen3.8-27B (UD-Q4_K_XL) with its own head on an RTX 5090, in plain steps:",
            rounds_table(),
            "Best settings of Qwen3.8-27B with its own head on an RTX PRO 6000 Max-Q, at one rate:",
            sweeps_table(),
        ]
    )


def main() -> None:
    """Print the tables; write them into the page where asked."""
    given = command_line(__doc__, writes="the tables into docs/local.md").parse_args()
    text = page()
    print(text)
    if given.write:
        write_section("local.md", "local", text)


if __name__ == "__main__":
    main()
