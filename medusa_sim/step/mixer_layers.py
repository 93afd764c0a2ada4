"""Layers whose mixers are alike, and how the kernels of one of them are written down."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np

from medusa_sim.arrays import FloatArray, as_float
from medusa_sim.engines.runtime import Runtime
from medusa_sim.models.mixers import Mixer
from medusa_sim.models.model import Model
from medusa_sim.operators.attention import AttentionKind
from medusa_sim.operators.elementwise import ElementwiseKind
from medusa_sim.operators.operator import CONTEXT, GENERATION, VERIFY, Operator, Size
from medusa_sim.step.launch import Launch, Part, elementwise_launch, head_launch, linear_launch
from medusa_sim.step.workload import Phase, Workload

FUSED_KIND: dict[Phase, AttentionKind] = {
    "prefill": "prefill_attention",
    "decode": "decode_attention",
    "verify": "verify_attention",
}
"""Kind of a fused attention operator by phase of the step."""
KERNEL_PHASE: dict[Phase, str] = {"prefill": CONTEXT, "decode": GENERATION, "verify": VERIFY}
"""Phase of a step as kernels of windows, states and modules name it."""

MixerT_co = TypeVar("MixerT_co", bound=Mixer, covariant=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class MixerLayers(Generic[MixerT_co]):
    """Layers whose mixers are alike but for their windows."""

    model: Model
    """With the mixer's linear layers in their format."""
    variants: tuple[tuple[int, MixerT_co], ...]
    """(layers, mixer) of every window."""
    workload: Workload
    runtime: Runtime
    unfused_keys: Size
    """Keys of products that are no fused kernel."""

    @property
    def output_model(self) -> Model:
        """With the output projection in its format."""
        return self.model.in_form(self.variants[0][1].out_form)

    @property
    def count(self) -> int:
        """How many they are."""
        return sum(count for count, _ in self.variants)

    @property
    def rows(self) -> Size:
        """Rows of their linear layers."""
        return self.workload.rows

    @property
    def keys(self) -> FloatArray:
        """Keys of a sequence, the new tokens included."""
        return as_float(self.workload.kv_len)

    @property
    def prefix(self) -> FloatArray:
        """Those before the new tokens."""
        return np.maximum(self.keys - as_float(self.workload.query_tokens), 0.0)

    @property
    def is_prompt(self) -> bool:
        """Whether a prompt is read."""
        return self.workload.phase == "prefill"

    def linear(self, name: str, part: Part, n: int, k: int) -> Launch:
        """A linear layer of every one of these, with n outputs and k inputs."""
        return linear_launch(self.model, name, part, self.rows, n, k, self.count)

    def output_linear(self, name: str, n: int, k: int) -> Launch:
        """The same in the format of output projections."""
        return linear_launch(self.output_model, name, "o_proj", self.rows, n, k, self.count)

    def unquantised_linear(self, name: str, n: int, k: int) -> Launch:
        """The same in the dtype of the activations, before attention."""
        return head_launch(self.model, name, "qkv", self.rows, n, k, self.count)

    def elementwise(
        self, name: str, kind: ElementwiseKind, n: int, part: Part = "norm_rope", rows: Size | None = None
    ) -> Launch:
        """A pass over rows (None: those of the linear layers) of width n."""
        m = self.rows if rows is None else rows
        return elementwise_launch(self.model, name, kind, part, m, n, self.count)

    def attention(self, operator: Callable[..., Operator], name: str, **sizes: Any) -> Launch:
        """An operator of attention over the step's batch and queries, in the dtype of the activations."""
        of_step = {"batch": self.workload.batch, "q_len": self.workload.query_tokens}
        sized = operator(name=name, dtype=self.model.activation_dtype, **{**of_step, **sizes})
        return Launch(operator=sized, part="attention", count=self.count)
