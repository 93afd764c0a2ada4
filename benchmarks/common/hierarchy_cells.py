"""Served cells as `hierarchy.py` fits them: the parts of each one's time, and the levels it belongs to."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
from deepseek_rows import GPUS as DEEPSEEK_GPUS
from deepseek_rows import OLDER, newest
from deepseek_rows import SETUP as DEEPSEEK_SETUP
from first_tokens import as_served, by_recipe, is_steady, waited_steps
from msgspec.structs import replace as with_fields

import medusa_sim as ms
from common.hierarchy_terms import EFFECTS, GROUPED, HOST, MANY, SHARES
from common.study import named_rows
from medusa_sim.arrays import FloatArray, IntArray
from medusa_sim.engines.case import form_of, weight_formats
from medusa_sim.engines.place import Place
from medusa_sim.engines.runtime import Runtime, load_runtime
from medusa_sim.step.step import decode_step
from medusa_sim.units import FORMATS, US_PER_MS

STATED_SHARE = 0.9
INFERENCEX = 1024
"""Its lengths are multiples of this; NVIDIA's own rows of two dense models are too, with lengths as named."""
NVIDIA = ("llama-3.1-8b", "qwen3-32b")
A_LAYER_US = 10.0
PROMPT_TERMS = {"prompt_share": 2.0, "prompt_us_per_layer": A_LAYER_US}
"""Terms of prompts and the values by which it is told what a share, and a microsecond of the host, adds."""
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
    return pd.concat([_cells(named, rows) for named, rows in by_recipe(set_ups)], ignore_index=True)


def _cells(named: dict[str, Any], rows: pd.DataFrame) -> pd.DataFrame:
    """The cells of one set-up. named: arguments of its scenario, with the lengths that its command names."""
    is_drawn = int(named["prompt_tokens"]) % INFERENCEX == 0 and named["model"] not in NVIDIA
    share = STATED_SHARE if is_drawn else 1.0
    arguments = named | {key: share * named[key] for key in ("prompt_tokens", "output_tokens")}
    is_test = named["model"] not in NVIDIA and "ttft_mean_ms" in rows
    batch = np.array(sorted({int(count) for count in rows.concurrency}))

    def scenario_with(**terms: float) -> ms.Scenario:
        runtime = bare(named["runtime"], **terms)
        runtime = as_served(runtime, rows.iloc[0], named) if is_test else runtime
        return ms.Scenario(**arguments | {"runtime": runtime})

    def swept(scenario: ms.Scenario) -> pd.DataFrame:
        return scenario.sweep(batch=batch.tolist(), candidates=[1])

    scenario = scenario_with()
    sweep = swept(scenario)
    slower, waiting = (swept(scenario_with(**{name: value})) for name, value in PROMPT_TERMS.items())
    by_batch = _times(sweep, slower, waiting) | _step_parts(scenario, batch)
    by_batch["prompt"] = (sweep.tpot_us - sweep.decode_step_us).to_numpy()
    by_batch["rest"] = sweep.tpot_us.to_numpy() - sum(by_batch[part] for part in PARTS)
    by_batch["as_named"] = np.zeros(batch.size)
    if is_drawn:
        longer = swept(ms.Scenario(**named | {"runtime": scenario.runtime}))
        by_batch["as_named"] = np.log(longer.tpot_us.to_numpy() / sweep.tpot_us.to_numpy())
    lines = list(named_rows(rows))
    place: Any = place_of(scenario)._replace(runtime=named["runtime"])
    steady = np.array([is_test and is_steady(line, arguments) for line in lines])
    cells = pd.DataFrame(by_batch).iloc[np.searchsorted(batch, rows.concurrency)].reset_index(drop=True)
    return cells.assign(
        **_levels(scenario, named, str(rows.backend.iloc[0])),
        place=[place] * len(lines),
        requests_at=[int(line.concurrency) for line in lines],
        requests=[np.ceil(line.concurrency / scenario.parallel.schedulers) for line in lines],
        measured=[US_PER_MS * line.tpot_mean_ms for line in lines],
        first_measured=np.where(steady, US_PER_MS * rows.get("ttft_mean_ms", np.nan), np.nan),
        first_steps=cells.first_steps + [waited_steps(line, arguments) for line in lines],
    )


def _times(sweep: pd.DataFrame, slower: pd.DataFrame, waiting: pd.DataFrame) -> dict[str, FloatArray]:
    """By batch what a first token waits for, and layers of prompts, from sweeps with each of PROMPT_TERMS."""
    first_us, slower_us, waiting_us = (
        US_PER_MS * each.benchmark_ttft_ms.to_numpy() for each in (sweep, slower, waiting)
    )
    return {
        "prompt_layers": (waiting.tpot_us - sweep.tpot_us).to_numpy() / A_LAYER_US,
        "first_prompts": slower_us - first_us,
        "first_layers": (waiting_us - first_us) / A_LAYER_US,
        "first_steps": (2.0 * first_us - slower_us) / sweep.tpot_us.to_numpy(),
    }


def _step_parts(scenario: ms.Scenario, batch: IntArray) -> dict[str, FloatArray]:
    """By batch the parts of a plain step, and its band: ends in the log, kernels in their squares."""
    runtime = replace(scenario.setting.runtime, kernels_half_share=1.0)
    step = decode_step(replace(scenario.setting, runtime=runtime), batch, np.asarray(scenario.length))
    found = {part: np.zeros(batch.size) for part in PARTS}
    for part, time_us in step.parts_us.items():
        place = "linear" if part in ("qkv", "o_proj", "mlp") else part
        if place in found:
            found[place] = found[place] + time_us
    cost = replace(step.cost, setup_half_us=np.zeros(()))
    band = {
        "faster": np.log(cost.time_us / cost.low_us),
        "slower": np.log(cost.high_us / cost.time_us),
        "kernels_faster": cost.below_square / np.maximum(cost.below_square + cost.engine_square, 1e-9),
        "kernels_slower": cost.above_square / np.maximum(cost.above_square + cost.engine_square, 1e-9),
    }
    return found | {name: np.broadcast_to(values, batch.shape) for name, values in band.items()}


def _levels(scenario: ms.Scenario, named: dict[str, Any], engine: str) -> dict[str, Any]:
    """What all cells of a set-up have: the levels that they belong to, and the counts that terms work on."""
    model, tp, ep = scenario.model, named["tp"], named["ep"]
    weights, generation = weight_formats(model)[0], scenario.gpu.architecture
    experts_in, expert_layers = weights, 0
    if model.experts is not None:
        experts_in, expert_layers = FORMATS[model.experts.form or model.form].weight_dtype, model.layers
    version = "old" if named["runtime"] in OLDER else "new"
    kernel = experts_by(engine, generation, version, experts_in, splits=scenario.parallel.dp_attention)
    return {
        "engine": engine,
        "gpu": named["gpu"],
        "generation": generation,
        "weights": weights,
        "experts_in": experts_in,
        "experts_by": kernel,
        "layers_of": experts_in if expert_layers else "dense",
        "form": form_of(model),
        "version": version,
        "model": named["model"],
        "family": named["model"].replace("-r1", "-v3"),
        "every": "all",
        "gpus": "many" if tp >= MANY else "few",
        "runtime": named["runtime"],
        "tokens": round(named["prompt_tokens"] + named["output_tokens"] / 2.0),
        "tp": tp,
        "ep": ep,
        "tests": 1.0,
        "kernels": 1.0,
        "steps": 1.0,
        "layers_shared": float((tp > 1) * model.layers),
        "expert_layers": float(expert_layers),
        "spread_layers": float((ep > 1) * expert_layers),
    }


def place_of(scenario: ms.Scenario) -> Place:
    """Where the steps of a scenario would be measured."""
    runtime, case = scenario.runtime, scenario.case
    card = case.gpu, case.generation
    return Place(runtime.library, runtime.name, *card, case.formats, case.sizes, case.form)
