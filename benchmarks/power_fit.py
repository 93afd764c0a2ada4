"""Fits the watts of a card (docs/method-engines.md, W2, W3); prints the errors on models that were left out.

Rows: `engines/power_mlenergy.csv` with the tokens/s of the same runs in `plain_decode_mlenergy.csv` (vLLM
0.11 behind its server, H100). They are not part of this project (CONTRIBUTING.md): the folder is
$MEDUSA_SIM_DATA, or ../shared/data. `python benchmarks/power_fit.py` prints the table, `--write` puts the
parameters into `hardware/h100-sxm.toml`.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from engine_parallel import MODELS
from engine_rows import PROMPTS
from recorded import data_folder, present
from scipy.optimize import least_squares
from scores import left_out, table

from medusa_sim.arrays import BoolArray, FloatArray
from medusa_sim.calibrate.rows import write_power
from medusa_sim.errors import SpecError
from medusa_sim.plan.scenario import Scenario
from medusa_sim.plan.surface import price
from medusa_sim.specs.costs import PowerFit
from medusa_sim.specs.gpu import load_gpu
from medusa_sim.step.network import model_launches
from medusa_sim.step.server import Traffic, filter_us, load_watts, served_length, under_limit
from medusa_sim.step.step import step_works
from medusa_sim.step.workload import Launch, prefill
from medusa_sim.units import US_PER_S

CARD = "h100-sxm"
RUNTIME = "vllm-0.11"
START = (150.0, 100e-12, 1e-12, 500.0)
"""idle_watts, joule_per_byte, joule_per_flop, sampling_watts."""
SOURCE = (
    "ML.ENERGY benchmark (leaderboard 3.0, vLLM 0.11.1, H100, Apache-2.0): watts of five models of 8B to 70B "
    "on 1, 2 and 4 cards"
)
HALF_WIDTH = 0.8
"""Quantile of the errors on left-out models that the stored half-width is."""


def rows_of(folder: Path) -> pd.DataFrame:
    """Every run at its measured tokens/s.

    What one GPU moves, computes and samples a second, and its watts; predicted_us: its predicted step, NaN
    where the kernels are not known.
    """
    power = pd.read_csv(present(folder / "engines" / "power_mlenergy.csv"))
    speed = pd.read_csv(present(folder / "engines" / "plain_decode_mlenergy.csv"))
    assert (power.model == speed.model).all()
    assert (power.max_num_seqs == speed.max_num_seqs).all()
    both = power.assign(output=speed.avg_output_len, tokens_per_s=speed.output_tok_s, ep=speed.ep)
    return pd.DataFrame([_row(line) for line in both.itertuples()])


def _row(line: Any) -> dict[str, object]:
    gpus, batch = int(line.n_gpus), float(line.avg_batch)
    traffic = Traffic(prompt_tokens=PROMPTS[line.task], output_tokens=float(line.output))
    scenario = Scenario(
        gpu=CARD, model=MODELS[line.model], dtype="bf16", runtime=RUNTIME, drafter="eagle3", acceptance=0.7,
        tp=gpus, ep=int(line.ep),
        prompt_tokens=traffic.prompt_tokens, output_tokens=traffic.output_tokens,
    )  # fmt: skip
    setting, engine = scenario.setting, scenario.runtime.engine
    length = traffic.prompt_tokens + traffic.output_tokens / 2
    assert engine is not None
    seen = round(float(served_length(setting, length, traffic)))
    launches = [launch for work in step_works(setting, round(batch), seen, 1) for launch in work.launches]
    prompt = model_launches(setting.shard, prefill(1, traffic.prompt_tokens), scenario.runtime)
    finished = batch / traffic.output_tokens
    computed = sum(_of(launch, launch.operator.flops) for launch in launches)
    computed += finished * sum(_of(launch, launch.operator.flops) for launch in prompt)
    step_us = US_PER_S * batch / float(line.tokens_per_s)
    vocab, top_k = scenario.model.vocab, scenario.model.samples_top_k
    return {
        "model": scenario.model.name,
        "gpus": gpus,
        "bytes_per_s": sum(_of(launch, launch.operator.bytes) for launch in launches) / step_us * US_PER_S,
        "flops_per_s": computed / step_us * US_PER_S,
        "sampling": float(filter_us(engine, scenario.gpu, batch, vocab, top_k=top_k)) / gpus / step_us,
        "watts": float(line.watts_all_gpus) / gpus,
        "step_us": step_us,
        "predicted_us": _predicted_us(scenario, round(batch), round(length)),
    }


def _predicted_us(scenario: Scenario, batch: int, length: int) -> float:
    """The plain step as a server is predicted to take it; NaN where a kernel of the model was not fitted."""
    try:
        return float(price(scenario, [batch], [length], ()).served.token_us[0, 0, 0])
    except SpecError:
        return float("nan")


def _of(launch: Launch, each: FloatArray) -> float:
    return launch.count * launch.share * float(np.ravel(each)[0])


def law(
    parameters: Sequence[float] | FloatArray, rows: pd.DataFrame, limit: float, *, predicted: bool
) -> FloatArray:
    """Watts of one GPU. predicted: at the predicted step where there is one, else at the measured one."""
    idle, per_byte, per_flop, sampling = parameters
    slower = (rows.predicted_us / rows.step_us).fillna(1.0) if predicted else 1.0
    drawn = per_byte * rows.bytes_per_s + per_flop * rows.flops_per_s + sampling * rows.sampling
    return under_limit(load_watts(idle, (drawn / slower).to_numpy(dtype=np.float64)), limit)


def fitted(rows: pd.DataFrame, limit: float) -> FloatArray:
    """Parameters by robust least squares of the logarithm, every model with the same weight."""
    weight = 1.0 / np.sqrt(rows.groupby("model").model.transform("size"))
    start = np.asarray(START)

    def residuals(scaled: FloatArray) -> FloatArray:
        return np.asarray(weight * np.log(law(scaled * start, rows, limit, predicted=False) / rows.watts))

    found = least_squares(residuals, np.ones(start.size), bounds=(0.0, np.inf), loss="soft_l1", f_scale=0.1)
    return np.asarray(found.x * start)


def scored(rows: pd.DataFrame, limit: float) -> pd.DataFrame:
    """Rows with relative errors of their watts.

    `fit`: of the fit to all. `measured`, `predicted`: of fits without a row's model, at those steps.
    """

    def errors(parameters: FloatArray, own: BoolArray, *, predicted: bool) -> FloatArray:
        found = law(parameters, rows[own], limit, predicted=predicted)
        return np.asarray(found / rows[own].watts.to_numpy() - 1.0)

    held = {
        name: left_out(
            rows.model,
            lambda keep: fitted(rows[keep], limit),
            partial(errors, predicted=name == "predicted"),
        )
        for name in ("measured", "predicted")
    }
    whole = errors(fitted(rows, limit), np.ones(len(rows), dtype=bool), predicted=True)
    return rows.assign(fit=whole, **held)


def error_table(found: pd.DataFrame) -> str:
    """One line a model, and all of them."""
    lines = [
        (str(name), str(len(own)), ", ".join(map(str, sorted(set(own.gpus)))),
         *(f"{own[of].abs().mean():.1%}" for of in ("fit", "measured", "predicted")),
         f"{own.predicted.mean():+.1%}")
        for name, own in (*found.groupby("model", sort=False), ("all", found))
    ]  # fmt: skip
    headers = "model | rows | GPUs | fit | left out, measured step | left out, predicted step | bias"
    return table(headers, 1, lines)


def power_fit(found: pd.DataFrame, limit: float) -> PowerFit:
    """What the hardware file holds."""
    idle, per_byte, per_flop, sampling = (float(f"{value:.4g}") for value in fitted(found, limit))
    outside = found.predicted.abs()
    return PowerFit(
        idle_watts=idle,
        joule_per_byte=per_byte,
        joule_per_flop=per_flop,
        dtype="bf16",
        sampling_watts=sampling,
        error=round(float(np.quantile(outside, HALF_WIDTH)), 3),
        source=SOURCE,
        rows=len(found),
        fit_error=round(float(found.fit.abs().mean()), 4),
        heldout_error=round(float(outside.mean()), 4),
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table and the parameters; with --write store them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args(arguments)
    gpu = load_gpu(CARD)
    assert gpu.power is not None
    limit = gpu.power.limit_watts
    found = scored(rows_of(data_folder()), limit)
    fit = power_fit(found, limit)
    print(error_table(found))
    print(fit)
    if given.write:
        write_power(Path(gpu.path), fit)


if __name__ == "__main__":
    main()
