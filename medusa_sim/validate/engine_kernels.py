"""The time of a forward pass from an engine's own operators, each timed by itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from medusa_sim.validate.engine_record import EngineRecord, EngineStep

if TYPE_CHECKING:
    import pandas as pd

LAYER_OPS = ("rms_norm", "rms_norm", "qkv_proj", "rope", "o_proj", "gate_up_proj", "activation", "down_proj")


class Kernels:
    """One model's operators. Linear layers by rows; attention over batch, query tokens and context."""

    def __init__(self, rows: pd.DataFrame, layers: int) -> None:
        from scipy.interpolate import RegularGridInterpolator

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
