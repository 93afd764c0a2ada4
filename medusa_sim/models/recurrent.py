"""Mixers that keep a state of fixed size: gated delta rule, Kimi delta attention, Mamba-2."""

from __future__ import annotations

from typing import Annotated, ClassVar

from msgspec import Meta

from medusa_sim.models.mixers import Grouped, Mixer, Width
from medusa_sim.units import BYTES_PER_ELEMENT, SIXTEEN


class Recurrent(Mixer, frozen=True, kw_only=True):
    """A mixer that keeps a state of fixed size instead of a cache, and a short convolution before it.

    Its verification is sequential in the tokens of a sequence and keeps a state for each of them.
    """

    USUAL_STATES: ClassVar = "fp32"
    """Dtype of states that nothing names."""

    conv: Annotated[int, Meta(ge=1, le=64)] = 4
    """Width of the convolution."""
    named_states: str | None = None
    """Dtype of the states that the model's config names; None: engines choose (`models/state_rules.toml`)."""

    @property
    def state_dtype(self) -> str:
        """Dtype of the states."""
        return self.named_states or self.USUAL_STATES

    @property
    def state_size(self) -> int:
        """Elements of the recurrent state of one request."""
        raise NotImplementedError

    @property
    def conv_width(self) -> int:
        """Channels that pass the convolution."""
        raise NotImplementedError

    @property
    def input_width(self) -> int:
        """Outputs of the projections before the recurrence, which engines fuse."""
        raise NotImplementedError

    def weights(self, hidden: int) -> int:
        """The projections before the recurrence, and the output's."""
        return hidden * (self.input_width + self.output_width)

    def thin_projections(self, hidden: int) -> tuple[tuple[str, int, int], ...]:
        """(name, outputs, inputs) of small projections besides the fused one, in 16 bits."""
        del hidden
        return ()

    def state_bytes(self, dtype: str) -> float:
        """The state, and the last inputs of the convolution."""
        window = (self.conv - 1) * self.conv_width * BYTES_PER_ELEMENT[dtype]
        return self.state_size * BYTES_PER_ELEMENT[self.state_dtype] + window

    def draft_state_bytes(self, dtype: str) -> float:
        """All of it: a rejected draft's state cannot be undone (vLLM keeps K + 1 blocks a request)."""
        return self.state_bytes(dtype)


class GatedDelta(Recurrent, frozen=True, kw_only=True, tag="gated_delta"):
    """The gated delta rule (arXiv 2412.06464) as Qwen3-Next has it.

    S <- a S (1 - beta k k^T) + beta v k^T, o = S q for each value head.
    """

    SPLIT: ClassVar = {
        "key_heads": "key heads of linear attention",
        "value_heads": "value heads of linear attention",
    }

    key_heads: Width
    value_heads: Width
    key_dim: Width
    value_dim: Width

    def thin_projections(self, hidden: int) -> tuple[tuple[str, int, int], ...]:
        """Beta and a of every head: a GEMM of its own."""
        return (("ba_proj", 2 * self.value_heads, hidden),)

    @property
    def state_size(self) -> int:
        """A key_dim x value_dim matrix a value head."""
        return self.value_heads * self.key_dim * self.value_dim

    @property
    def conv_width(self) -> int:
        """Queries, keys and values."""
        return 2 * self.key_heads * self.key_dim + self.output_width

    @property
    def input_width(self) -> int:
        """Queries, keys, values and the output gate z."""
        return self.conv_width + self.output_width

    @property
    def output_width(self) -> int:
        """Values of all heads."""
        return self.value_heads * self.value_dim

    def other_parameters(self, hidden: int) -> int:
        """Beta and a of every head, the convolution, A and dt, the gated norm."""
        convolution = self.conv * self.conv_width
        return 2 * hidden * self.value_heads + convolution + 2 * self.value_heads + self.value_dim

    def as_grouped(self) -> Grouped:
        """Its value heads."""
        return Grouped(heads=self.value_heads, kv_heads=self.key_heads, head_dim=self.value_dim)


class KimiDelta(Recurrent, frozen=True, kw_only=True, tag="kimi_delta"):
    """Kimi delta attention (arXiv 2510.26692): the gated delta rule with a decay for every key channel.

    Engines keep its states in fp32.
    """

    SPLIT: ClassVar = {"heads": "heads of linear attention"}

    heads: Width
    head_dim: Width
    full_gate: bool = False
    """Whether the output gate is a whole matrix (Kimi-K3) instead of two thin ones."""
    full_decay: bool = False
    """The same of the decay (Ling-3.0)."""

    def thin_projections(self, hidden: int) -> tuple[tuple[str, int, int], ...]:
        """Beta of every head, and pairs of thin matrices for decay and gate."""
        whole = {"decay": self.full_decay, "gate": self.full_gate}
        names = [name for name, is_whole in whole.items() if not is_whole]
        pairs = ((f"{name}_a_proj", self.head_dim, hidden) for name in names)
        wide = ((f"{name}_b_proj", self.width, self.head_dim) for name in names)
        return (("beta_proj", self.heads, hidden), *pairs, *wide)

    @property
    def width(self) -> int:
        """P: channels of all heads."""
        return self.heads * self.head_dim

    @property
    def state_size(self) -> int:
        """A square matrix a head."""
        return self.heads * self.head_dim**2

    @property
    def conv_width(self) -> int:
        """Queries, keys and values."""
        return 3 * self.width

    @property
    def input_width(self) -> int:
        """Queries, keys, values, a whole gate and a whole decay."""
        return (3 + self.full_gate + self.full_decay) * self.width

    @property
    def output_width(self) -> int:
        """Values of all heads."""
        return self.width

    def weights(self, hidden: int) -> int:
        """q, k, v, gate, decay and the output; a thin decay or gate is h x head_dim and head_dim x P."""
        thin_pairs = (not self.full_decay) + (not self.full_gate)
        return super().weights(hidden) + thin_pairs * self.head_dim * (hidden + self.width)

    def other_parameters(self, hidden: int) -> int:
        """Beta of every head, the convolution, A and dt, the gated norm."""
        return hidden * self.heads + self.conv * self.conv_width + self.heads + self.width + self.head_dim

    def as_grouped(self) -> Grouped:
        """Its heads."""
        return Grouped(heads=self.heads, kv_heads=self.heads, head_dim=self.head_dim)


class Mamba2(Recurrent, frozen=True, kw_only=True, tag="mamba2"):
    """Mamba-2's state-space layer (arXiv 2405.21060) as Nemotron-H has it."""

    USUAL_STATES: ClassVar = SIXTEEN
    SPLIT: ClassVar = {"heads": "Mamba heads"}
    COPIED: ClassVar = {"groups": "groups of Mamba heads"}

    heads: Width
    head_dim: Width
    groups: Width
    """Groups of heads that share B and C."""
    state: Width
    """N: the state's width."""
    conv_bias: bool = True

    @property
    def state_size(self) -> int:
        """head_dim x N a head."""
        return self.output_width * self.state

    @property
    def conv_width(self) -> int:
        """x, B and C."""
        return self.output_width + 2 * self.groups * self.state

    @property
    def input_width(self) -> int:
        """z, x, B, C and dt."""
        return self.output_width + self.conv_width + self.heads

    @property
    def output_width(self) -> int:
        """Channels of all heads."""
        return self.heads * self.head_dim

    def other_parameters(self, hidden: int) -> int:
        """The convolution, A, D and dt, the gated norm."""
        del hidden
        return self.conv_width * (self.conv + self.conv_bias) + 3 * self.heads + self.output_width

    def as_grouped(self) -> Grouped:
        """Its channels as heads of a usual width."""
        heads = max(1, self.output_width // 128)
        return Grouped(heads=heads, kv_heads=heads, head_dim=128)
