"""Fits the watts of a GPU (docs/method-engines.md, W2, W3); prints the errors on models that were left out.

    python benchmarks/power_fit.py            # errors by model, and the parameters
    python benchmarks/power_fit.py --write    # the parameters, into `hardware/h100-sxm.toml`

Rows: watts of the ML.ENERGY benchmark and the tokens/s of the same runs (vLLM 0.11 behind its server, H100),
and those of servers given to the project (profiles/servers: Qwen3-8B in vLLM 0.30, contexts to 8,448).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from common.engine_rows import MODELS, PROMPTS
from common.script import ROOT, command_line
from common.study import left_out, measured_rows, named_rows, table
from scipy.optimize import least_squares

from medusa_sim.arrays import BoolArray, FloatArray
from medusa_sim.errors import SpecError
from medusa_sim.gpus.gpu import Gpu, load_gpu
from medusa_sim.gpus.power import PowerFit
from medusa_sim.grid.cells import price
from medusa_sim.lab.calibrate.hardware_file import write_fits
from medusa_sim.lab.validate.served import read_served
from medusa_sim.operators.attention import Attention
from medusa_sim.operators.operator import Operator
from medusa_sim.scenario.scenario import Scenario
from medusa_sim.serving.traffic import served_length
from medusa_sim.serving.watts import load_watts, under_limit
from medusa_sim.step.launch import Launch
from medusa_sim.step.network import model_launches
from medusa_sim.step.sampling import filter_us
from medusa_sim.step.step import decode_work
from medusa_sim.step.workload import prefill
from medusa_sim.units import US_PER_S

CARD = "h100-sxm"
RUNTIME = "vllm-0.11"
IDLE_WATTS = 121.7
"""With a CUDA context and nothing running (arXiv 2605.23918); no row of a server that works tells it."""
TERMS = ("joule_per_byte", "joule_per_cache_byte", "joule_per_flop", "sampling_watts")
START = np.array([100e-12, 200e-12, 1e-12, 500.0])
SOURCE = (
    "ML.ENERGY benchmark (leaderboard 3.0, vLLM 0.11.1, H100, Apache-2.0): watts of five models of 8B to 70B "
    "on 1, 2 and 4 cards; silybench (CC BY 4.0): Qwen3-8B in bf16 and fp8, vLLM 0.30, one card; idle: arXiv "
    "2605.23918"
)
GIVEN = ROOT / "profiles" / "servers"
_OF_RUN = ["gpu", "model", "runtime", "dtype", "prompt", "output", "concurrency", "tokens_per_s", "watts"]
HALF_WIDTH = 0.8
"""Quantile of the errors on left-out models that the stored half-width is."""


def served_rows() -> pd.DataFrame:
    """Every run at its measured tokens/s.

    What one GPU moves, computes and samples a second, and its watts; predicted_us: its predicted step, NaN
    where the kernels are not known.
    """
    power, speed = measured_rows("power_mlenergy"), measured_rows("plain_decode_mlenergy")
    assert (power[["model", "max_num_seqs"]] == speed[["model", "max_num_seqs"]]).all(axis=None)
    both = power.assign(output=speed.avg_output_len, tokens_per_s=speed.output_tok_s, ep=speed.ep)
    return pd.DataFrame([*map(_published, named_rows(both)), *map(_given, named_rows(given_rows()))])


def given_rows() -> pd.DataFrame:
    """Runs on this card in profiles/servers that say their watts and tokens/s."""
    runs = pd.concat(map(read_served, sorted(GIVEN.glob("*.csv")))).reindex(columns=_OF_RUN)
    return runs[runs.gpu == CARD].dropna(subset=["watts", "tokens_per_s"])


def _published(line: Any) -> dict[str, object]:
    scenario = _scenario(
        model=MODELS[line.model], runtime=RUNTIME, tp=int(line.n_gpus), ep=int(line.ep),
        prompt_tokens=PROMPTS[line.task], output_tokens=float(line.output),
    )  # fmt: skip
    return _row(
        scenario,
        float(line.avg_batch),
        float(line.tokens_per_s),
        float(line.watts_all_gpus) / int(line.n_gpus),
    )


def _given(line: Any) -> dict[str, object]:
    scenario = _scenario(
        model=line.model, runtime=line.runtime, dtype=line.dtype,
        prompt_tokens=float(line.prompt), output_tokens=float(line.output),
    )  # fmt: skip
    return _row(scenario, float(line.concurrency), float(line.tokens_per_s), float(line.watts))


def _scenario(dtype: str = "bf16", **asked: Any) -> Scenario:
    return Scenario(gpu=CARD, dtype=dtype, drafter="eagle3", acceptance=0.7, **asked)


def _row(scenario: Scenario, batch: float, tokens_per_s: float, watts: float) -> dict[str, object]:
    setting, engine, traffic = scenario.setting, scenario.runtime.engine, scenario.traffic
    assert traffic is not None
    length = traffic.prompt_tokens + traffic.output_tokens / 2
    assert engine is not None
    seen = round(float(served_length(setting, length, traffic)))
    launches = decode_work(setting, round(batch), seen).launches
    prompt = model_launches(setting.shard, prefill(1, traffic.prompt_tokens), scenario.runtime)
    often = batch / traffic.output_tokens
    step_us = US_PER_S * batch / tokens_per_s
    vocab, top_k = scenario.model.vocab, scenario.model.samples_top_k
    try:
        predicted_us = float(price(scenario, [round(batch)], [round(length)], ()).server.token_us[0, 0, 0])
    except SpecError:  # a kernel of the model was not fitted
        predicted_us = float("nan")
    gpu, per_s = scenario.gpu, US_PER_S / step_us
    return {
        "model": scenario.model.name,
        "gpus": scenario.gpus,
        "bytes_per_s": _sum(launches, _bytes, attention=False) * per_s,
        "cache_bytes_per_s": _sum(launches, _bytes, attention=True) * per_s,
        "flops_per_s": sum(
            times * _sum(some, partial(_flops, gpu), attention=attention) * per_s
            for times, some in ((1.0, launches), (often, prompt))
            for attention in (False, True)
        ),
        "sampling": float(filter_us(engine, gpu, batch, vocab, top_k=top_k)) / scenario.gpus / step_us,
        "watts": watts,
        "step_us": step_us,
        "predicted_us": predicted_us,
    }


def _bytes(operator: Operator) -> FloatArray:
    return operator.bytes


def _flops(gpu: Gpu, operator: Operator) -> FloatArray:
    """FLOPs, in those of bf16 that are as large a share of its peak."""
    return operator.flops * gpu.peak("bf16") / gpu.peak(operator.dtype)


def _sum(launches: Sequence[Launch], of: Callable[[Operator], FloatArray], *, attention: bool) -> float:
    """Over the launches of grouped attention, or over all others."""
    return sum(
        launch.count * launch.share * float(np.ravel(of(launch.operator))[0])
        for launch in launches
        if isinstance(launch.operator, Attention) == attention
    )


def law(parameters: FloatArray, rows: pd.DataFrame, limit: float, *, predicted: bool) -> FloatArray:
    """Watts of one GPU. predicted: at the predicted step where there is one, else at the measured one."""
    per_byte, per_cache_byte, per_flop, sampling = parameters
    slower = (rows.predicted_us / rows.step_us).fillna(1.0) if predicted else 1.0
    drawn = per_byte * rows.bytes_per_s + per_cache_byte * rows.cache_bytes_per_s
    drawn += per_flop * rows.flops_per_s + sampling * rows.sampling
    return under_limit(load_watts(IDLE_WATTS, (drawn / slower).to_numpy(dtype=np.float64)), limit)


def fitted(rows: pd.DataFrame, limit: float) -> FloatArray:
    """Parameters by robust least squares of the logarithm, every model with the same weight."""
    weight = 1.0 / np.sqrt(rows.groupby("model").model.transform("size"))

    def residuals(scaled: FloatArray) -> FloatArray:
        return np.asarray(weight * np.log(law(scaled * START, rows, limit, predicted=False) / rows.watts))

    found = least_squares(residuals, np.ones(START.size), bounds=(0.0, np.inf), loss="soft_l1", f_scale=0.1)
    return np.asarray(found.x * START)


def scored(rows: pd.DataFrame, limit: float) -> pd.DataFrame:
    """Rows with relative errors of their watts.

    `fit`: of the fit to all. `measured`, `predicted`: of fits without a row's model, at those steps.
    """

    def errors(parameters: FloatArray, own: BoolArray, *, predicted: bool) -> FloatArray:
        found = law(parameters, rows[own], limit, predicted=predicted)
        return np.asarray(found / rows[own].watts.to_numpy() - 1.0)

    held = {
        name: left_out(
            rows.model, lambda keep: fitted(rows[keep], limit), partial(errors, predicted=name == "predicted")
        )
        for name in ("measured", "predicted")
    }
    whole = errors(fitted(rows, limit), np.ones(len(rows), dtype=bool), predicted=True)
    return rows.assign(fit=whole, **held)


def error_table(found: pd.DataFrame) -> str:
    """One line a model, and all of them."""
    lines = [
        (name, len(own), ", ".join(map(str, sorted(set(own.gpus)))),
         *(f"{own[error].abs().mean():.1%}" for error in ("fit", "measured", "predicted")),
         f"{own.predicted.mean():+.1%}")
        for name, own in (*found.groupby("model", sort=False), ("all", found))
    ]  # fmt: skip
    headers = "model | rows | GPUs | fit | left out, measured step | left out, predicted step | bias"
    return table(headers, 1, lines)


def power_fit(found: pd.DataFrame, limit: float) -> PowerFit:
    """What the hardware file holds."""
    outside = found.predicted.abs()
    terms = {name: float(f"{v:.4g}") for name, v in zip(TERMS, fitted(found, limit), strict=True)}
    return PowerFit(
        **terms, idle_watts=IDLE_WATTS, dtype="bf16", source=SOURCE, rows=len(found),
        error=round(float(np.quantile(outside, HALF_WIDTH)), 3),
        fit_error=round(float(found.fit.abs().mean()), 4), heldout_error=round(float(outside.mean()), 4),
    )  # fmt: skip


def main() -> None:
    """Print the table and the parameters; write these where asked."""
    given = command_line(__doc__, writes="the parameters into hardware/h100-sxm.toml").parse_args()
    gpu = load_gpu(CARD)
    assert gpu.power is not None
    limit = gpu.power.limit_watts
    found = scored(served_rows(), limit)
    fit = power_fit(found, limit)
    print(error_table(found))
    print(fit)
    if given.write:
        write_fits(Path(gpu.path), [(("power", "fit"), fit)])


if __name__ == "__main__":
    main()
