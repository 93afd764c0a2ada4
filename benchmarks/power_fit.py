"""Fits the watts of a card (docs/method-engines.md, W2, W3); prints the errors on models that were left out.

Rows: `engines/power_mlenergy.csv` with the tokens/s of the same runs in `plain_decode_mlenergy.csv` (vLLM
0.11 behind its server, H100). They are not part of this project (CONTRIBUTING.md): the folder is
$MEDUSA_SIM_DATA, or ../shared/data. `python benchmarks/power_fit.py` prints the table, `--write` puts the
parameters into `hardware/h100-sxm.toml`.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from engine_parallel import MODELS
from engine_rows import PROMPTS
from recorded import data_folder, present
from scipy.optimize import least_squares
from scores import table

from medusa_sim.arrays import BoolArray, FloatArray
from medusa_sim.calibrate.rows import write_power
from medusa_sim.errors import SpecError
from medusa_sim.plan.scenario import Scenario
from medusa_sim.plan.surface import price
from medusa_sim.specs.costs import PowerFit
from medusa_sim.specs.gpu import load_gpu
from medusa_sim.step.engine import filter_us
from medusa_sim.step.network import model_launches
from medusa_sim.step.server import Traffic, load_watts, served_length, under_limit
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


@dataclass(frozen=True, kw_only=True)
class Row:
    """One run: what one GPU moves, computes and samples a second, and the watts of one GPU."""

    model: str
    gpus: int
    batch: float
    bytes_per_s: float
    flops_per_s: float
    sampling: float
    watts: float
    step_us: float
    predicted_us: float | None


def rows_of(folder: Path) -> list[Row]:
    """Every run at its measured tokens/s; predicted_us: its predicted step, where the kernels are known."""
    power = pd.read_csv(present(folder / "engines" / "power_mlenergy.csv"))
    speed = pd.read_csv(present(folder / "engines" / "plain_decode_mlenergy.csv"))
    assert (power.model == speed.model).all()
    assert (power.max_num_seqs == speed.max_num_seqs).all()
    both = power.assign(output=speed.avg_output_len, tokens_per_s=speed.output_tok_s, ep=speed.ep)
    return [_row(line) for line in both.itertuples()]


def _row(line: Any) -> Row:
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
    return Row(
        model=scenario.model.name,
        gpus=gpus,
        batch=batch,
        bytes_per_s=sum(_of(launch, launch.operator.bytes) for launch in launches) / step_us * US_PER_S,
        flops_per_s=computed / step_us * US_PER_S,
        sampling=float(filter_us(engine, scenario.gpu, batch, vocab, top_k=top_k)) / gpus / step_us,
        watts=float(line.watts_all_gpus) / gpus,
        step_us=step_us,
        predicted_us=_predicted_us(scenario, round(batch), round(length)),
    )


def _predicted_us(scenario: Scenario, batch: int, length: int) -> float | None:
    """The plain step as a server is predicted to take it; None where a kernel of the model was not fitted."""
    try:
        return float(price(scenario, [batch], [length], ()).served.tpot_us[0, 0, 0])
    except SpecError:
        return None


def _of(launch: Launch, each: FloatArray) -> float:
    return launch.count * launch.share * float(np.ravel(each)[0])


def law(
    parameters: Sequence[float] | FloatArray, rows: Sequence[Row], limit: float, *, predicted: bool
) -> FloatArray:
    """Watts of one GPU. predicted: at the predicted step where there is one, else at the measured one."""
    idle, per_byte, per_flop, sampling = parameters
    slower = np.asarray(
        [row.predicted_us / row.step_us if predicted and row.predicted_us else 1.0 for row in rows]
    )
    moved, computed, sampled = (
        np.asarray([getattr(row, name) for row in rows]) / slower
        for name in ("bytes_per_s", "flops_per_s", "sampling")
    )
    load = load_watts(idle, per_byte * moved + per_flop * computed + sampling * sampled)
    return under_limit(load, limit)


def fitted(rows: Sequence[Row], limit: float) -> FloatArray:
    """Parameters by robust least squares of the logarithm, every model with the same weight."""
    measured = np.asarray([row.watts for row in rows])
    names = [row.model for row in rows]
    weight = np.asarray([1.0 / np.sqrt(names.count(name)) for name in names])
    start = np.asarray(START)

    def residuals(scaled: FloatArray) -> FloatArray:
        return np.asarray(weight * np.log(law(scaled * start, rows, limit, predicted=False) / measured))

    found = least_squares(residuals, np.ones(start.size), bounds=(0.0, np.inf), loss="soft_l1", f_scale=0.1)
    return np.asarray(found.x * start)


def errors(parameters: FloatArray, rows: Sequence[Row], limit: float, *, predicted: bool) -> FloatArray:
    """Predicted over measured watts, minus one."""
    measured = np.asarray([row.watts for row in rows])
    return np.asarray(law(parameters, rows, limit, predicted=predicted) / measured - 1.0)


@dataclass(frozen=True, kw_only=True)
class Left:
    """A model that a refit did not see: errors at measured and at predicted steps, and of the fit to all."""

    model: str
    rows: list[Row]
    fit: FloatArray
    measured: FloatArray
    predicted: FloatArray


def left_out(rows: Sequence[Row], limit: float) -> list[Left]:
    """Each model in turn."""
    whole = fitted(rows, limit)
    found = []
    for model in dict.fromkeys(row.model for row in rows):
        own = [row for row in rows if row.model == model]
        others = fitted([row for row in rows if row.model != model], limit)
        found.append(
            Left(
                model=model,
                rows=own,
                fit=errors(whole, own, limit, predicted=True),
                measured=errors(others, own, limit, predicted=False),
                predicted=errors(others, own, limit, predicted=True),
            )
        )
    return found


def error_table(found: Sequence[Left]) -> str:
    """One line a model, and all of them."""

    def mean(take: Callable[[Left], FloatArray], parts: Sequence[Left]) -> str:
        return f"{np.mean(np.abs(np.concatenate([take(part) for part in parts]))):.1%}"

    def line(name: str, parts: Sequence[Left]) -> tuple[str, ...]:
        rows = [row for part in parts for row in part.rows]
        cards = ", ".join(str(n) for n in sorted({row.gpus for row in rows}))
        bias = np.mean(np.concatenate([part.predicted for part in parts]))
        return (
            name, str(len(rows)), cards, mean(lambda part: part.fit, parts),
            mean(lambda part: part.measured, parts), mean(lambda part: part.predicted, parts), f"{bias:+.1%}",
        )  # fmt: skip

    headers = "model | rows | GPUs | fit | left out, measured step | left out, predicted step | bias"
    return table(headers, 1, [*(line(part.model, [part]) for part in found), line("all", found)])


def power_fit(rows: Sequence[Row], found: Sequence[Left], limit: float) -> PowerFit:
    """What the hardware file holds."""
    idle, per_byte, per_flop, sampling = (float(f"{value:.4g}") for value in fitted(rows, limit))
    outside = np.abs(np.concatenate([part.predicted for part in found]))
    return PowerFit(
        idle_watts=idle,
        joule_per_byte=per_byte,
        joule_per_flop=per_flop,
        dtype="bf16",
        sampling_watts=sampling,
        error=round(float(np.quantile(outside, HALF_WIDTH)), 3),
        source=SOURCE,
        rows=len(rows),
        fit_error=round(float(np.mean(np.abs(np.concatenate([part.fit for part in found])))), 4),
        heldout_error=round(float(np.mean(outside)), 4),
    )


def inside(found: Sequence[Left], half_width: float) -> BoolArray:
    """Which left-out rows the half-width holds."""
    return np.asarray(np.abs(np.concatenate([part.predicted for part in found])) <= half_width)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table and the parameters; with --write store them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args(arguments)
    gpu = load_gpu(CARD)
    assert gpu.power is not None
    limit = gpu.power.limit_watts
    rows = rows_of(data_folder())
    found = left_out(rows, limit)
    fit = power_fit(rows, found, limit)
    print(error_table(found))
    print(fit)
    if given.write:
        write_power(Path(gpu.path), fit)


if __name__ == "__main__":
    main()
