"""The record of a served engine: what `benchmarks/validate_engine.py` keeps of a run, and reading it back.

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
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeVar

import msgspec
import numpy as np
from scipy.interpolate import RegularGridInterpolator

from medusa_sim.errors import DataError
from medusa_sim.reading import read_csv_table
from medusa_sim.specs.measurement import Environment, read_meta
from medusa_sim.specs.model import Model
from medusa_sim.specs.strict import convert
from medusa_sim.validate.steps import decoder_model

if TYPE_CHECKING:
    import pandas as pd


DTYPE = "bf16"
OPERATOR_COLUMNS = ("target", "op", "m", "batch", "q_len", "kv_len", "time_us")
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
        operators=read_csv_table(folder / "operators.csv", OPERATOR_COLUMNS),
        accepted=_structs(folder / "acceptance.csv", Accepted),
        texts=_structs(folder / "texts.csv", SameText),
        models={name: decoder_model(folder, name, DTYPE) for name in (*meta.targets, meta.draft)},
    )


def _structs(path: Path, form: type[Struct]) -> list[Struct]:
    frame = read_csv_table(path, form.__struct_encode_fields__)
    return convert(frame.to_dict("records"), list[form], path, error=DataError)  # type: ignore[valid-type]


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
