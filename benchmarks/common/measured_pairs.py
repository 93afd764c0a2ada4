"""Pairs of measured and predicted values: one form for every script, where their rows lie, groups of them.

Each script of SCRIPTS in `accuracy.py` has `pairs()`, a frame with COLUMNS. Rows stay with whoever holds the
data: `grouped` makes of them what ships (profiles/accuracy.csv), groups of LEAST_ROWS and more.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any

import numpy as np
import pandas as pd

from medusa_sim.engines.accuracy_groups import LEAST_ROWS, SMALL_GROUPS, Group, span_of, weights_of
from medusa_sim.engines.case import form_of
from medusa_sim.engines.runtime import load_runtime
from medusa_sim.errors import MedusaSimError
from medusa_sim.gpus.fitted import Fit
from medusa_sim.gpus.gpu import Gpu
from medusa_sim.models.named import load_model
from medusa_sim.operators.kinds import KIND_OF
from medusa_sim.operators.operator import Operator
from medusa_sim.operators.table import operators_of
from medusa_sim.step.rows import CHOSEN_COLUMN

COLUMNS = (
    "kind", "what", "engine", "version", "gpu", "model", "family", "weights", "dtype", "gpus", "requests",
    "tokens", "measured", "predicted", "error", "half_width", "held", "left_out", "fitted", "data", "cell",
)  # fmt: skip
"""Of a pair. error: predicted / measured - 1. half_width: of the 80 % band, on the logarithm. left_out: the
error where a fit had not seen the row's group (nan: none was made). data: the file of rows; cell: words."""
WHEEL = "wheel aiconfigurator-core 0.12.0"
SOURCES = {
    "measured/a100_attention": "repository microsoft/vidur",
    "measured/a100_": "repository microsoft/vidur",
    "measured/a40_": "repository microsoft/vidur",
    "measured/h100_": "repository microsoft/vidur",
    "measured/a6000_": "repository casys-kaist/LLMServingSim",
    "measured/": WHEEL,
    "moe_tp/grouped_gemm_infersim": "repository alibaba/InferSim",
    "moe_tp/": WHEEL,
    "kernels_2026/": WHEEL,
    "serving/plain_serving": "repository ai-dynamo/aiconfigurator",
    "serving/disaggregated_silicon": "repository ai-dynamo/aiconfigurator",
    "serving/disaggregated_r1": "repository vngcloud/InferenceX-app",
    "serving/replicas_routing": "repository llm-d/llm-d",
    "serving/sglang_cookbook": "repository sgl-project/sglang",
    "engines/plain_decode_mlenergy": "repository ml-energy/leaderboard",
    "engines/power_mlenergy": "repository ml-energy/leaderboard",
    "engines/inferencex_deepseek_r1": "repository SemiAnalysisAI/InferenceX",
    "engines/specdecode_bench": "figures of arXiv 2601.11580",
    "engines/specbundle_eagle3": "repository sgl-project/SpecForge",
    "engines/issues_and_blogs": "threads of vllm-project/vllm",
    "engines/vllm024_a100_eagle3": "a public repository, named in its rows",
    "engines/vllm028_forward_steps": "a public repository, named in its rows",
    "engines/vllm015_serving": "repository inference-sim/inference-sim",
    "engines/published_2026": "engines' and vendors' pages, named in its rows",
    "engines/": "public pages, named in its rows",
    "acceptance/batch_speedups_eagle": "tables of arXiv 2503.01840",
    "acceptance/": "public repositories and papers, named in the data's README",
    "local/": "public benchmarks of 2024 to 2026, named in its rows",
    "profiles/": "clone",
}
"""How a file of rows begins -> where anybody finds them; the first that fits."""
JOINED = (("model",), ("version",), ("gpu", "family"), ("weights",))
"""What small groups of one kind are told apart by no more, in this order."""
PAIR_OF_STEP = {
    "plain": ("step", "plain step"), "round": ("round", "round"), "speedup": ("speedup", "speedup"),
}  # fmt: skip
"""What was measured of a step -> kind of a pair, and what it is."""
KEYS = ("kind", "what", "engine", "gpu", "model", "family", "weights", "data")


def source_of(data: str) -> str:
    """Where the rows of a file are found. Raises KeyError for a file that no source is named for."""
    for begins, source in SOURCES.items():
        if data.startswith(begins):
            return source
    raise KeyError(f"{data}: name its source in SOURCES of benchmarks/common/measured_pairs.py")


@cache
def family_of(model: str) -> str:
    """`dense`, `mixture`, `latent`, `hybrid` or `sparse`; empty for no model that is known."""
    try:
        return form_of(load_model(model))
    except MedusaSimError:
        return ""


@cache
def format_of(model: str) -> str:
    """The format of a model's weights as it is published."""
    try:
        return weights_of(load_model(model))
    except MedusaSimError:
        return ""


def pairs_of(found: pd.DataFrame, **same: Any) -> pd.DataFrame:
    """COLUMNS of rows that have `measured` and `predicted`. same: columns that hold one value.

    `low` and `high`, ends of the band in the unit of the prediction, give `half_width` and `held`.
    """
    rows = found.assign(**same)
    rows["error"] = rows.predicted / rows.measured - 1.0
    if "low" in rows:
        rows["half_width"] = 0.5 * np.log(rows.high / rows.low)
        inside = (rows.low <= rows.measured) & (rows.measured <= rows.high)
        rows["held"] = inside.astype(float).where(rows.low.notna())
    texts = ("version", "model", "weights", "dtype", "tokens", "cell")
    for name in (*texts, "half_width", "held", "left_out", "requests", "gpus", "fitted"):
        if name not in rows:
            rows[name] = "" if name in texts else 1 if name == "gpus" else np.nan
    if "family" not in rows:
        rows["family"] = [family_of(str(name)) if name else "" for name in rows.model]
    rows["held"] = rows.held.astype(float)
    return rows[list(COLUMNS)]


def kernel_pairs(
    frame: pd.DataFrame, gpu: Gpu, *, data: str, engine: str = "", what: str = ""
) -> Iterator[pd.DataFrame]:
    """Pairs of predicted rows of operators (`step/rows.py`), one frame for each kernel.

    engine: of rows that name none; what: said behind the operator.
    """
    by = tuple(name for name in ("engine", "version", CHOSEN_COLUMN) if name in frame)
    for index, operator in operators_of(frame, by=by):
        own = frame.iloc[index]
        first: Any = own.iloc[0]
        place = str(first[CHOSEN_COLUMN]) if CHOSEN_COLUMN in own else ""
        fit = fit_of(gpu, operator, place)
        is_own = (
            fit is not None
            and not fit.inherited_from
            and place.partition(":")[0] in ("", str(first.get("engine")))
        )
        form = operator.form if operator.FAMILY in ("gemm", "moe") else operator.dtype
        title = "linear" if operator.kind == "gemm" else operator.kind
        yield pairs_of(
            own[list(_TIMES)].rename(columns=_TIMES),
            kind="kernel", what=f"{title}{what}", engine=str(first.engine) if "engine" in own else engine,
            version=str(first.version) if "version" in own else "", gpu=gpu.name, weights=str(form),
            dtype=str(operator.dtype), fitted="yes" if is_own and not what else "no", data=data,
            left_out=fit.heldout_error if fit is not None and is_own else np.nan, gpus=1, cell=place,
        )  # fmt: skip


_TIMES = {"time_us": "measured", "predicted_us": "predicted", "low_us": "low", "high_us": "high"}


def fit_of(gpu: Gpu, operator: Operator, place: str) -> Fit | None:
    """The fit of the kernel at a place `set:key`, else of the default's; None of a roofline."""
    name, _, key = place.partition(":")
    kind = KIND_OF[operator.kind]
    if not key:
        name = name or load_runtime("kernel").kernel_set(operator.dtype)
        key = operator.form if kind.section == "gemm" else operator.kind
    held = gpu.kernels.get(name)
    kernel = None if held is None else kind.table(held).get(key)
    return None if kernel is None else kernel.fit


def grouped(pairs: pd.DataFrame) -> list[Group]:
    """Groups of LEAST_ROWS and more; fewer are joined with their like, and left out where none are."""
    rows = pairs.assign(**{name: pairs[name].astype(str) for name in (*KEYS, "version")})
    waits = rows
    found: list[Group] = []
    for joined in ((), *JOINED):
        waits = waits.assign(**dict.fromkeys((name for name in joined if name in KEYS), SMALL_GROUPS))
        size = waits.groupby(list(KEYS)).error.transform("size")
        for _, part in waits[size >= LEAST_ROWS].groupby(list(KEYS), sort=True):
            found.append(_group(part))
        waits = waits[size < LEAST_ROWS]
    return sorted(found, key=lambda group: tuple(getattr(group, name) for name in KEYS[:-1]))


def _group(part: pd.DataFrame) -> Group:
    first: Any = part.iloc[0]
    size = part.error.abs()
    worst = float(part.error.iloc[int(size.to_numpy().argmax())])
    fits = sorted({str(value) for value in part.fitted if isinstance(value, str)})
    return Group(
        **{name: str(getattr(first, name)) for name in KEYS},
        version=", ".join(sorted({value for value in part.version if value})),
        gpus=span_of(part.gpus),
        requests=span_of(part.requests),
        rows=len(part),
        error=round(float(size.mean()), 4),
        bias=round(float(part.error.mean()), 4),
        worst=round(worst, 2),
        held=_rounded(part.held.mean(), 3),
        half_width=_rounded(part.half_width.mean()),
        left_out=_rounded(part.left_out.abs().mean()),
        fitted="in part" if {"no", "yes"} <= {*fits} else " and ".join(fits) or "no",
        source=source_of(str(first.data)),
    )  # fmt: skip


def _rounded(value: Any, digits: int = 4) -> float | None:
    """None for nan."""
    return None if pd.isna(value) else round(float(value), digits)


def joined(frames: Iterable[pd.DataFrame]) -> pd.DataFrame:
    """All of these, one below the other, without those that hold nothing."""
    filled = [frame for frame in frames if len(frame)]
    return pd.concat(filled, ignore_index=True) if filled else pd.DataFrame(columns=list(COLUMNS))
