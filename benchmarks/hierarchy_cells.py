"""Served cells as `hierarchy.py` fits them: the parts of each one's time, and the levels it belongs to."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
from deepseek_rows import GPUS as DEEPSEEK_GPUS
from deepseek_rows import OLDER, newest
from deepseek_rows import SETUP as DEEPSEEK_SETUP
from first_tokens import as_served, by_recipe, is_steady, waited_steps
from hierarchy_terms import EFFECTS, GROUPED, HOST, MANY, SHARES
from msgspec.structs import replace as with_fields
from study import named_rows

import medusa_sim as ms
from medusa_sim.specs.case import form_of, weight_formats
from medusa_sim.specs.place import Place
from medusa_sim.specs.runtime import Runtime, load_runtime
from medusa_sim.step.step import decode_step
from medusa_sim.units import FORMATS, US_PER_MS

STATED_SHARE = 0.9
INFERENCEX = 1024
"""Its lengths are multiples of this; NVIDIA's own rows of two dense models are too, with lengths as named."""
NVIDIA = ("llama-3.1-8b", "qwen3-32b")
A_LAYER_US = 10.0
"""Of the host in steps with prompts, by which it is told what a microsecond of it adds."""
PARTS = ("linear", "attention", "experts", "exchange", "prompt")


def bare(name: str, **values: float) -> Runtime:
    """A runtime without the terms that are fitted here, or with these values of some."""
    runtime = load_runtime(name)
    assert runtime.engine is not None
    terms, host = runtime.engine.terms, HOST.get(runtime.library, {})
    changed = {}
    for effect in EFFECTS:
        given = terms[effect.term]
        kept = host.get(effect.term, given.value if "host" in effect.term else 0.0)
        value = values.get(effect.term, 1.0 if effect.term in SHARES else kept)
        changed[effect.term] = with_fields(given, value=value, deviations=(), elsewhere=())
    return replace(runtime, engine=runtime.engine.with_terms(changed))


def deepseek_set_ups() -> Iterator[tuple[dict[str, Any], pd.DataFrame]]:
    """Set-ups of DeepSeek-R1 without drafts (engines/inferencex_deepseek_r1) with rows of every version."""
    rows = newest(versions=True).query("speculation == 'none'")
    rows = rows.assign(
        tpot_mean_ms=rows.median_tpot_ms, backend=rows.engine.replace("tensorrt-llm", "trtllm")
    )
    rows["backend_version"] = np.where(rows.runtime == "tensorrt-llm-1.1", "1.1", "")
    for _, own in rows.groupby([*DEEPSEEK_SETUP, "runtime"]):
        line: Any = own.iloc[0]
        yield (
            {
                "gpu": DEEPSEEK_GPUS[line.gpu],
                "model": "deepseek-r1",
                "runtime": RUNTIME.get(line.runtime, line.runtime),
                "tp": int(line.tp),
                "ep": int(line.ep),
                "dp_attention": bool(line.dp_attention),
                "prompt_tokens": float(line.prompt_tokens),
                "output_tokens": float(line.output_tokens),
                "drafter": "ngram",
                "acceptance": "0.5",
                "weight_dtype": "nvfp4" if line.weights == "fp4" else None,
            },
            own,
        )


RUNTIME = {"tensorrt-llm": "tensorrt-llm-1.2", "sglang": "sglang-0.5"}


def experts_by(engine: str, generation: str, version: str, experts_in: str, *, splits: bool) -> str:
    """Whether a layer of experts runs as the kernel that times it, or (grouped) with launches that it lacks.

    TensorRT-LLM groups the experts' products where no kernel of its own was fitted (GROUPED). On Blackwell it
    has one kernel (TRTLLM) otherwise; on Hopper its CUTLASS kernels were measured whole.
    """
    is_grouped = any(
        generation == each.generation
        and experts_in == (each.experts_in or experts_in)
        and each.splits in (None, splits)
        and (version == "old" or not each.is_old)
        for each in GROUPED
    )
    return "grouped" if engine == "trtllm" and is_grouped else "fused"


def parts_of(set_ups: Iterable[tuple[dict[str, Any], pd.DataFrame]]) -> pd.DataFrame:
    """Every cell with the parts of its time, microseconds, and what levels it belongs to.

    as_named: by how much more, in the log, it is priced at with the lengths that the test's command names, of
    which STATED_SHARE was drawn.
    """
    found: list[dict[str, Any]] = []
    for named, own in by_recipe(set_ups):
        name, model = named["runtime"], named["model"]
        is_drawn = int(named["prompt_tokens"]) % INFERENCEX == 0 and model not in NVIDIA
        share = STATED_SHARE if is_drawn else 1.0
        arguments = named | {key: share * named[key] for key in ("prompt_tokens", "output_tokens")}
        is_test = model not in NVIDIA and "ttft_mean_ms" in own
        runtimes = (
            as_served(bare(name, **changed), own.iloc[0], named) if is_test else bare(name, **changed)
            for changed in ({}, {"prompt_share": 2.0}, {"prompt_us_per_layer": A_LAYER_US})
        )
        scenario, *changed = (ms.Scenario(**arguments | {"runtime": runtime}) for runtime in runtimes)
        batch = np.array(sorted({int(count) for count in own.concurrency}))
        swept, slower, waiting = (
            each.sweep(batch=batch.tolist(), candidates=[1]) for each in (scenario, *changed)
        )
        first_us, first_slower_us, first_waiting_us = (
            US_PER_MS * rows.benchmark_ttft_ms.to_numpy() for rows in (swept, slower, waiting)
        )
        prompt_layers = (waiting.tpot_us - swept.tpot_us).to_numpy() / A_LAYER_US
        every = dataclasses.replace(scenario.setting.runtime, kernels_half_share=1.0)
        setting = dataclasses.replace(scenario.setting, runtime=every)
        step = decode_step(setting, batch, np.asarray(scenario.length))
        parts = {part: np.zeros(batch.size) for part in PARTS}
        for part, time_us in step.parts_us.items():
            place = "linear" if part in ("qkv", "o_proj", "mlp") else part
            if place in parts:
                parts[place] = parts[place] + time_us
        parts["prompt"] = (swept.tpot_us - swept.decode_step_us).to_numpy()
        rest = swept.tpot_us.to_numpy() - sum(parts.values())
        as_named = np.zeros(batch.size)
        if is_drawn:
            longer = ms.Scenario(**named | {"runtime": scenario.runtime})
            longer_us = longer.sweep(batch=batch.tolist(), candidates=[1]).tpot_us.to_numpy()
            as_named = np.log(longer_us / swept.tpot_us.to_numpy())
        of, form = scenario.model, form_of(scenario.model)
        formats = weight_formats(of)
        expert_layers = of.layers if of.experts is not None else 0
        cost = dataclasses.replace(step.cost, setup_half_us=np.zeros(()))
        early = np.broadcast_to(np.log(cost.time_us / cost.low_us), batch.shape)
        late = np.broadcast_to(np.log(cost.high_us / cost.time_us), batch.shape)
        of_kernels = [
            np.broadcast_to(square / np.maximum(square + cost.engine_square, 1e-9), batch.shape)
            for square in (cost.below_square, cost.above_square)
        ]
        experts_in = formats[0] if of.experts is None else FORMATS[of.experts.form or of.form].weight_dtype
        version = "old" if name in OLDER else "new"
        for line in named_rows(own):
            at = int(np.searchsorted(batch, line.concurrency))
            found.append(
                {
                    "engine": line.backend,
                    "gpu": arguments["gpu"],
                    "generation": scenario.gpu.architecture,
                    "weights": formats[0],
                    "experts_in": experts_in,
                    "layers_of": "dense" if of.experts is None else experts_in,
                    "form": form,
                    "version": version,
                    "model": model,
                    "family": model.replace("-r1", "-v3"),
                    "experts_by": experts_by(
                        line.backend,
                        scenario.gpu.architecture,
                        version,
                        experts_in,
                        splits=scenario.parallel.dp_attention,
                    ),
                    "every": "all",
                    "gpus": "many" if arguments["tp"] >= MANY else "few",
                    "runtime": name,
                    "tokens": round(named["prompt_tokens"] + named["output_tokens"] / 2.0),
                    "place": place_of(scenario)._replace(runtime=name),
                    "faster": early[at],
                    "slower": late[at],
                    "kernels_faster": of_kernels[0][at],
                    "kernels_slower": of_kernels[1][at],
                    "tp": arguments["tp"],
                    "ep": arguments["ep"],
                    "requests_at": int(line.concurrency),
                    "as_named": as_named[at],
                    "measured": US_PER_MS * line.tpot_mean_ms,
                    "first_measured": US_PER_MS * line.ttft_mean_ms
                    if is_test and is_steady(line, arguments)
                    else np.nan,
                    "first_prompts": first_slower_us[at] - first_us[at],
                    "first_layers": (first_waiting_us[at] - first_us[at]) / A_LAYER_US,
                    "first_steps": (2.0 * first_us[at] - first_slower_us[at]) / swept.tpot_us[at]
                    + waited_steps(line, arguments),
                    "tests": 1.0,
                    "rest": rest[at],
                    **{part: values[at] for part, values in parts.items()},
                    "kernels": 1.0,
                    "steps": 1.0,
                    "requests": np.ceil(line.concurrency / scenario.parallel.schedulers),
                    "prompt_layers": prompt_layers[at],
                    "layers_shared": float((arguments["tp"] > 1) * of.layers),
                    "expert_layers": float(expert_layers),
                    "spread_layers": float((arguments["ep"] > 1) * expert_layers),
                }
            )
    return pd.DataFrame(found)


def place_of(scenario: ms.Scenario) -> Place:
    """Where the steps of a scenario would be measured."""
    runtime, case = scenario.runtime, scenario.case
    return Place(runtime.library, runtime.name, case.gpu, case.generation, case.formats, case.sizes)
