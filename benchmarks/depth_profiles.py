"""Which rates by position give the mean acceptance lengths that were published by draft length?

    python benchmarks/depth_profiles.py            # every profile and what its fit errs; two seconds
    python benchmarks/depth_profiles.py --write    # into profiles/acceptance

Rates are fitted: lengths good to NOISE each, and rates behind accepted drafts (LEAST_BEHIND and more) whose
slope changes by about BEND from one to the next, so that noise in a length does not become a jump of a rate.
A profile ends at the last draft length whose mean is within END of the largest: beyond it the drafter is out
of the depth that it was trained for. Profiles of one or two published figures stand in
published/single_lengths.toml.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from common.script import ROOT, command_line
from common.study import measured_rows
from msgspec import structs
from scipy.optimize import least_squares

from medusa_sim.acceptance.heads import NORMAL_90TH, rates_of_mean
from medusa_sim.acceptance.profile_file import PositionFile, PositionRow, encoded_profile, read_profile
from medusa_sim.arrays import FloatArray, IntArray
from medusa_sim.scenario.acceptance import MEAN_LENGTH_ERROR

END = 0.03
NOISE, BEND = 0.02, 0.1
DIGITS = 4
"""Of a rate that is written."""
LEAST_BEHIND = 0.1
LEAST_ERROR = 0.05
"""80 % half-width of accepted drafts that a profile has at least: another task of the same kind."""
GOLDEN = {
    ("DeepSeek-V4-Pro", "MTP"): "mtp-deepseek-v4-pro",
    ("DeepSeek-V4-Pro-0813", "DSpark"): "dspark-deepseek-v4-pro",
    ("GLM-5.2", "MTP"): "mtp-glm-5.2",
    ("Kimi-K2.5", "EAGLE3"): "eagle3-kimi-k2.5",
    ("Kimi-K3", "DSpark"): "dspark-kimi-k3",
    ("MiniMax-M3", "EAGLE3"): "eagle3-minimax-m3",
    ("Qwen3.5-397B-A17B", "MTP"): "mtp-qwen3.5-397b-a17b",
    ("DeepSeek-R1", "MTP"): "mtp-deepseek-r1",
}
"""Model and drafter of the table -> name of the profile."""
HOW = {
    "on": ", thinking, SPEED-Bench coding",
    "off": ", not thinking, SPEED-Bench coding",
    "": ", strict acceptance",
}
PUBLISHED_BY = (
    "InferenceX golden acceptance lengths (github SemiAnalysisAI/InferenceX, 843c6254f), vLLM, B300"
)
PUBLISHED_STRICT = "published mean acceptance lengths of 1 to 5 MTP drafts, strict acceptance"
BUNDLE = {
    ("Llama-3.1-8B-Instruct", "SpecForge"): "eagle3-llama-3.1-8b-specforge",
    ("Qwen3-30B-A3B-Instruct-2507", "SpecForge"): "eagle3-qwen3-30b-a3b",
}
"""Model and drafter of SGLang's SpecBundle, of which chains of 3, 5 and 7 drafts are published."""
BUNDLE_TASK = "mtbench"
"""That of the other profiles of EAGLE-3."""
MT_BENCH_TOKENS = 1024
"""Contexts of its turns, as of the other profiles of EAGLE-3."""
PUBLISHED_BUNDLE = (
    "mean acceptance lengths of chains of 3, 5 and 7 drafts on MT-bench in SGLang's SpecBundle "
    "(github sgl-project/SpecForge, a6b6b023), H200"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """A profile and the lengths from which it was made, with so many drafts."""

    name: str
    file: PositionFile
    lengths: FloatArray
    drafts: IntArray

    @property
    def predicted(self) -> FloatArray:
        """Mean lengths that its rates give."""
        rates = np.array([row.rate for row in self.file.positions])
        every = 1.0 + np.cumsum(np.cumprod(rates) if self.file.rates == "conditional" else rates)
        return np.asarray(every[self.drafts - 1])


def one_by_one(lengths: FloatArray) -> IntArray:
    """Drafts of lengths with 1, 2, ... of them."""
    return np.arange(1, lengths.size + 1)


def smooth_rates(lengths: FloatArray, drafts: IntArray | None = None) -> FloatArray:
    """Unconditional rates by position from mean lengths with so many `drafts`; None: with 1, 2, ..."""
    places = (one_by_one(lengths) if drafts is None else drafts) - 1

    def residuals(conditional: FloatArray) -> FloatArray:
        predicted = 1.0 + np.cumsum(np.cumprod(conditional))
        return np.concatenate([(predicted[places] - lengths) / NOISE, np.diff(conditional, 2) / BEND])

    start = np.linspace(0.9, 0.5, int(places[-1]) + 1)
    found = least_squares(residuals, start, bounds=(LEAST_BEHIND, 1.0))
    return np.asarray(np.cumprod(found.x))


def left_out(lengths: FloatArray, drafts: IntArray | None = None) -> FloatArray:
    """Error of accepted drafts at each length between the ends, predicted from the others."""
    every = one_by_one(lengths) if drafts is None else drafts
    kept = [every != left for left in every[1:-1]]
    found = [1.0 + smooth_rates(lengths[each], every[each]).cumsum() for each in kept]
    inner = np.array([one[left - 1] for one, left in zip(found, every[1:-1], strict=True)])
    return np.asarray((inner - lengths[1:-1]) / (lengths[1:-1] - 1.0))


def trained_depth(lengths: FloatArray) -> int:
    """The last draft length that gives about the most."""
    return int(np.flatnonzero(lengths >= lengths.max() * (1.0 - END))[-1]) + 1


def golden() -> Iterator[Fitted]:
    """A profile for each model, drafter and way of thinking of the table."""
    table = measured_rows("moe_acceptance", keep_default_na=False)
    for key, rows in table.groupby(["model", "drafter", "thinking"], sort=False):
        model, drafter, thinking = (str(part) for part in key)
        if (model, drafter) not in GOLDEN:
            continue
        every = rows.sort_values("draft_tokens").tokens_per_step.to_numpy(dtype=np.float64)
        rates = smooth_rates(every[: trained_depth(every)])
        rates = rates[rates.round(DIGITS) > 0.0]
        lengths = every[: rates.size]
        error = (1.0 + np.cumsum(rates) - lengths) / (lengths - 1.0)
        told = (
            f"fitted (benchmarks/depth_profiles.py) to the {PUBLISHED_BY if thinking else PUBLISHED_STRICT}; "
            f"rates that fall smoothly with depth, to lengths of 1 to {lengths.size} of {every.size} drafts, "
            f"mean error {abs(error).mean():.1%} of accepted drafts. model_error: its 80 % half-width, at "
            "least 5 %"
        )
        wide = max(LEAST_ERROR, NORMAL_90TH * float(np.sqrt(np.mean(error**2))))
        name = GOLDEN[model, drafter] + ("-no-thinking" if thinking == "off" else "")
        file = profile(f"{drafter} on {model}{HOW[thinking]}", told, rates, wide)
        yield Fitted(name=name, file=file, lengths=lengths, drafts=one_by_one(lengths))


def bundle() -> Iterator[Fitted]:
    """A profile for each drafter of BUNDLE."""
    table = measured_rows("specbundle_eagle3").query("shape == 'chain' and benchmark == @BUNDLE_TASK")
    for (model, maker), name in BUNDLE.items():
        rows = table[(table.model == model) & table.drafter.str.endswith(maker)].sort_values("steps")
        drafts, lengths = rows.steps.to_numpy(), rows.accept_length.to_numpy(dtype=np.float64)
        rates = smooth_rates(lengths, drafts)
        error = (1.0 + np.cumsum(rates)[drafts - 1] - lengths) / (lengths - 1.0)
        told = (
            f"fitted (benchmarks/depth_profiles.py) to the {PUBLISHED_BUNDLE}; rates that fall smoothly with "
            f"depth and meet them within {np.ceil(100.0 * abs(error).max()):.0f} %. model_error: another task"
        )
        file = profile(f"EAGLE-3 chain ({maker}) on {model}, MT-bench", told, rates, LEAST_ERROR)
        file = structs.replace(file, longest_context=MT_BENCH_TOKENS)
        yield Fitted(name=name, file=file, lengths=lengths, drafts=drafts)


def profile(
    title: str, source: str, rates: FloatArray, error: float, *, of_mean: bool = False
) -> PositionFile:
    """A profile of rates by position; of_mean: conditional ones, solved from a mean length."""
    return PositionFile(
        schema=1, title=title, source=source, agreement="target",
        rates="conditional" if of_mean else "unconditional", model_error=round(error, 3), of_mean=of_mean,
        positions=[PositionRow(rate=round(float(rate), DIGITS)) for rate in rates],
    )  # fmt: skip


def single() -> Iterator[Fitted]:
    """Profiles from one or two published figures, or rates as they are published."""
    path = Path(__file__).parent / "published" / "single_lengths.toml"
    for given in tomllib.loads(path.read_text(encoding="utf-8"))["profile"]:
        told, first = given["source"], given.get("first")
        if "rates" in given:
            reached = np.array(given["rates"])
            file = profile(given["title"], told, reached, LEAST_ERROR)
        else:
            told += f"; rates {'behind the first ' if first else ''}taken as one conditional rate that gives "
            told += "this mean. model_error: that of a mean length at other depths (docs/method.md)"
            rates = rates_of_mean(given["length"], given["drafts"], first)
            reached = np.cumprod(rates)
            file = profile(given["title"], told, rates, MEAN_LENGTH_ERROR, of_mean=True)
        lengths = 1.0 + np.cumsum(reached)
        yield Fitted(name=given["name"], file=file, lengths=lengths, drafts=one_by_one(lengths))


def main() -> None:
    """Print the profiles; write them where asked."""
    given = command_line(__doc__, writes="the profiles into profiles/acceptance").parse_args()
    worst, apart = 0.0, []
    for found in (*golden(), *bundle(), *single()):
        error = np.abs(found.predicted - found.lengths) / (found.lengths - 1.0)
        worst = max(worst, float(error.max()))
        if found.lengths.size > 2 and error.max() > 1e-6:  # not made of one mean
            apart.append(np.abs(left_out(found.lengths, found.drafts)))
        told = " ".join(f"{length:.2f}" for length in found.predicted)
        print(f"{found.name:42} {told:45} mean error {error.mean():.1%}, worst {error.max():.1%}")
        if given.write:
            path = ROOT / "profiles" / "acceptance" / f"{found.name}.toml"
            known = read_profile(path) if path.exists() else found.file
            # by_output is fitted by acceptance_by_output.py; contexts are no part of these lengths
            kept = {name: getattr(known, name) for name in ("by_output", "longest_context")}
            path.write_text(encoded_profile(structs.replace(found.file, **kept)))
    out = np.concatenate(apart).mean()
    print(f"worst error of accepted drafts {worst:.1%}, of lengths left out {out:.1%}")


if __name__ == "__main__":
    main()
