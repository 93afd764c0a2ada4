"""Published tokens/s of host-bound code at batch 1, predicted from a few of its own rows.

Hugging Face's eager code waits for its host: a step takes a smooth maximum of launches x host_us_per_launch
and what the device needs. How fast a host is differs from table to table (Tables 1 and 4 of the Medusa paper
disagree by 20 % on one baseline), so the runtime's number is fitted to some rows of a table and the others of
the same table are predicted. What is fitted is marked in the column `is_fitted`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from medusa_sim.arrays import FloatArray
from medusa_sim.data import DataDir
from medusa_sim.lab.reproduce.decoding import CONTEXT, overhead_of
from medusa_sim.lab.reproduce.published import PAPER_GPU, read_published
from medusa_sim.scenario.scenario import Scenario
from medusa_sim.step.compose import step_us
from medusa_sim.step.step import decode_step
from medusa_sim.units import US_PER_S

if TYPE_CHECKING:
    import pandas as pd

FITTED_MODELS = ("vicuna-7b", "vicuna-13b")
FITTED_GAMMAS = (1, 3, 8)
FITTED_DEPTHS = (2, 4)
"""Rows that parameters are fitted to: the two smaller Vicunas, three draft lengths, chains of two depths."""
_SLOWEST_LAUNCH_US = 1000.0
_RATES = np.linspace(0.02, 0.98, 193)


@dataclass(frozen=True, slots=True)
class PlainStep:
    """A plain step at batch 1: what the device needs, and how many kernels the host launches."""

    device_us: float
    launches: float

    def time_us(self, host_us_per_launch: float) -> float:
        """Device and host together (`compose.step_us`)."""
        return float(step_us(np.asarray(self.device_us), self.launches * host_us_per_launch))


def plain_step(model: str, data_dir: DataDir = None) -> PlainStep:
    """A plain step of a model under `hf-eager` on the paper's GPU, with one microsecond a launch."""
    setting = Scenario(gpu=PAPER_GPU, model=model, runtime="hf-eager", data_dir=data_dir).setting
    step = decode_step(setting, 1, CONTEXT)
    return PlainStep(float(step.device_us), float(step.host_us) / setting.runtime.host_us_per_launch)


def host_us_per_launch(steps: Sequence[PlainStep], measured_us: Sequence[float]) -> float:
    """The launch time that meets these steps best (relative least squares)."""
    from scipy.optimize import minimize_scalar

    def miss(host_us: float) -> float:
        pairs = zip(steps, measured_us, strict=True)
        return float(sum((step.time_us(host_us) / measured - 1.0) ** 2 for step, measured in pairs))

    return float(minimize_scalar(miss, bounds=(0.0, _SLOWEST_LAUNCH_US), method="bounded").x)


def baseline_rates(table: str, column: str, data_dir: DataDir = None) -> pd.DataFrame:
    """Tokens/s of plain decoding in a table of the Medusa paper.

    Columns: model, published_tokens_per_s, predicted_tokens_per_s, error, is_fitted, launches, device_us,
    host_us_per_launch; then published_overhead (acceleration rate over speedup) and predicted_overhead.
    """
    import pandas as pd

    printed = read_published(table)
    model, rate, accepted = printed["model"], printed[column].astype(float), printed["acc_rate"].astype(float)
    steps = [plain_step(each, data_dir) for each in model]
    is_fitted = model.isin(FITTED_MODELS)
    own = [step for step, fits in zip(steps, is_fitted, strict=True) if fits]
    fitted = host_us_per_launch(own, (US_PER_S / rate[is_fitted]).tolist())
    predicted = np.array([US_PER_S / step.time_us(fitted) for step in steps])
    return pd.DataFrame(
        {
            "model": model,
            "published_tokens_per_s": rate,
            "predicted_tokens_per_s": predicted,
            "error": predicted / rate - 1.0,
            "is_fitted": is_fitted,
            "launches": [step.launches for step in steps],
            "device_us": [step.device_us for step in steps],
            "host_us_per_launch": fitted,
            "published_overhead": accepted
            / printed["speedup" if "speedup" in printed else "speedup_medusa2"],
            "predicted_overhead": [
                overhead_of(*each, fitted, data_dir) for each in zip(model, accepted, strict=True)
            ],
        }
    )


def figure7b(data_dir: DataDir = None) -> pd.DataFrame:
    """Figure 7b: Vicuna-13B with a draft model, tokens/s by draft length gamma.

    Columns: draft, gamma, published_tokens_per_s, predicted_tokens_per_s, error, is_fitted, acceptance_rate,
    draft_launches, host_us_per_launch. tokens/s = E(alpha, gamma) / (target + gamma x draft step), with
    E = (1 - alpha^(gamma + 1)) / (1 - alpha) (Leviathan et al. 2023, equation 1) and both steps bound by the
    host of Table 1. alpha is fitted to three of fifteen lengths; drafts of unknown sizes are left out.
    """
    import pandas as pd

    rates = read_published("medusa_table1")
    measured = dict(zip(rates["model"], rates["baseline_tokens_per_s_approx"].astype(float), strict=True))
    target = plain_step("vicuna-13b", data_dir)
    host = host_us_per_launch([target], [US_PER_S / measured["vicuna-13b"]])
    printed = read_published("medusa_figure7b")
    gamma = printed["gamma"].to_numpy(dtype=np.float64)
    chosen = np.isin(gamma, FITTED_GAMMAS)
    rows: list[dict[str, object]] = []
    for draft in ("llama-68m", "llama-160m"):
        step = plain_step(draft, data_dir)
        published_rate = printed[draft].to_numpy(dtype=np.float64)
        step_us = target.time_us(host) + gamma * step.time_us(host)
        curves = chain_tokens(_RATES[:, None], gamma) / step_us * US_PER_S
        errors = np.abs(curves[:, chosen] / published_rate[chosen] - 1.0).mean(axis=1)
        best = int(np.argmin(errors))
        rows += [
            {
                "draft": draft,
                "gamma": int(gamma[i]),
                "published_tokens_per_s": float(published_rate[i]),
                "predicted_tokens_per_s": float(curves[best, i]),
                "error": float(curves[best, i] / published_rate[i]) - 1.0,
                "is_fitted": bool(chosen[i]),
                "acceptance_rate": float(_RATES[best]),
                "draft_launches": step.launches,
                "host_us_per_launch": host,
            }
            for i in range(gamma.size)
        ]
    return pd.DataFrame(rows)


def chain_tokens(rate: FloatArray, gamma: FloatArray) -> FloatArray:
    """Tokens per step of a chain of gamma drafts, each accepted with the same probability below 1."""
    tokens: FloatArray = (1.0 - rate ** (gamma + 1.0)) / (1.0 - rate)
    return tokens


def rsd_token_rates() -> pd.DataFrame:
    """Token rates of the RSD paper, A100: every method, draft shape and task.

    Columns: target, task, experiment, decoder, spec, depth, published_tokens_per_s, predicted_tokens_per_s,
    error, is_fitted, target_step_us, draft_step_us. tokens/s = block efficiency / (target step + depth x
    draft step): the two times are fitted, for each target, to the chains (SD) of depth 2 and 4 of one task,
    and predict the other tasks, depths and methods. Block efficiencies are the published ones, so that this
    tests the times alone; `rsd-figure4` and `rsd-figure5` test block efficiencies.
    """
    import pandas as pd

    printed = read_published("rsd_block_efficiency")
    printed = printed[printed["tokens_per_s"].notna()]
    frames = []
    for _, mine in printed.groupby("target", sort=True):
        step_us = (mine["block_efficiency"] / mine["tokens_per_s"] * US_PER_S).to_numpy(dtype=np.float64)
        depth = mine["depth"].to_numpy(dtype=np.float64)
        task = mine["task"].iloc[0]
        chosen = (
            (mine["decoder"] == "SD") & mine["depth"].isin(FITTED_DEPTHS) & (mine["task"] == task)
        ).to_numpy()
        slope, base = np.polyfit(depth[chosen], step_us[chosen], 1)
        rate = mine["block_efficiency"].to_numpy(dtype=np.float64) / (base + slope * depth) * US_PER_S
        frames.append(
            pd.DataFrame(
                {
                    **{
                        name: mine[name]
                        for name in ("target", "task", "experiment", "decoder", "spec", "depth")
                    },
                    "published_tokens_per_s": mine["tokens_per_s"],
                    "predicted_tokens_per_s": rate,
                    "error": rate / mine["tokens_per_s"] - 1.0,
                    "is_fitted": chosen,
                    "target_step_us": base,
                    "draft_step_us": slope,
                }
            )
        )
    return pd.concat(frames, ignore_index=True)
