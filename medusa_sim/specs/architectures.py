"""What the models of a family share: their norms, biases, positions and choice of the next token."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from medusa_sim.specs.feed_forwards import Mlp
from medusa_sim.specs.mixers import Grouped

Norm = Literal["rms", "layer"]
Positions = Literal["rope", "learned"]


@dataclass(frozen=True, slots=True)
class Architecture:
    """What every model of a family shares."""

    gated: bool
    norm: Norm
    positions: Positions
    qkv_bias: bool
    output_bias: bool
    mlp_bias: bool
    qk_norm: bool
    norms_per_layer: int = 2
    samples_top_k: bool = False
    samples_top_p: bool = True

    def attention(
        self, heads: int, kv_heads: int, head_dim: int, size: int | None = None, *, chunked: bool = False
    ) -> Grouped:
        """Attention of so many heads with the family's biases and norms; `size` as in `Grouped`."""
        return Grouped(
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            qkv_bias=self.qkv_bias,
            output_bias=self.output_bias,
            qk_norm=self.qk_norm,
            size=size,
            chunked=chunked,
        )

    def mlp(self, width: int) -> Mlp:
        """A dense MLP of that width."""
        return Mlp(width=width, gated=self.gated, bias=self.mlp_bias)

    @property
    def of_model(self) -> dict[str, Any]:
        """What it says of the whole model, by the names of `Model`'s fields."""
        return {
            name: getattr(self, name)
            for name in ("norm", "positions", "norms_per_layer", "samples_top_k", "samples_top_p")
        }


ARCHITECTURES: dict[str, Architecture] = {
    "llama": Architecture(True, "rms", "rope", False, False, False, False),
    "granite": Architecture(True, "rms", "rope", False, False, False, False),
    "phi3": Architecture(True, "rms", "rope", False, False, False, False),
    "smollm3": Architecture(True, "rms", "rope", False, False, False, False),
    "seed_oss": Architecture(True, "rms", "rope", True, False, False, False),
    "ernie4_5": Architecture(True, "rms", "rope", False, False, False, False),
    "hunyuan_v1_dense": Architecture(True, "rms", "rope", False, False, False, True),
    "glm4": Architecture(True, "rms", "rope", True, False, False, False, norms_per_layer=4),
    "gemma": Architecture(True, "rms", "rope", False, False, False, False),
    "gemma2": Architecture(True, "rms", "rope", False, False, False, False, norms_per_layer=4),
    "olmo2": Architecture(True, "rms", "rope", False, False, False, True),
    "exaone4": Architecture(True, "rms", "rope", False, False, False, True),
    "cohere2": Architecture(True, "layer", "rope", False, False, False, False, norms_per_layer=1),
    "arcee": Architecture(False, "rms", "rope", False, False, False, False),
    "apertus": Architecture(False, "rms", "rope", False, False, False, True),
    "nemotron": Architecture(False, "layer", "rope", False, False, False, False),
    "phimoe": Architecture(True, "layer", "rope", True, True, False, False),
    "hunyuan_v1_moe": Architecture(True, "rms", "rope", False, False, False, False),
    "ernie4_5_moe": Architecture(True, "rms", "rope", False, False, False, False),
    "dots1": Architecture(True, "rms", "rope", False, False, False, True),
    "bailing_moe": Architecture(True, "rms", "rope", False, False, False, False),
    "exaone_moe": Architecture(True, "rms", "rope", False, False, False, True),
    "mistral4": Architecture(True, "rms", "rope", False, False, False, False),
    "granitemoehybrid": Architecture(True, "rms", "rope", False, False, False, False),
    "mistral": Architecture(True, "rms", "rope", False, False, False, False, samples_top_p=False),
    "qwen2": Architecture(True, "rms", "rope", True, False, False, False, samples_top_k=True),
    "qwen3": Architecture(True, "rms", "rope", False, False, False, True, samples_top_k=True),
    "gemma3_text": Architecture(
        True, "rms", "rope", False, False, False, True, norms_per_layer=4, samples_top_k=True
    ),
    "opt": Architecture(False, "layer", "learned", True, True, True, False),
    "mixtral": Architecture(True, "rms", "rope", False, False, False, False, samples_top_p=False),
    "qwen2_moe": Architecture(True, "rms", "rope", True, False, False, False, samples_top_k=True),
    "qwen3_moe": Architecture(True, "rms", "rope", False, False, False, True, samples_top_k=True),
    "deepseek_v2": Architecture(True, "rms", "rope", False, False, False, False),
    "deepseek_v3": Architecture(True, "rms", "rope", False, False, False, False),
    "kimi_k2": Architecture(True, "rms", "rope", False, False, False, False),
    "gpt_oss": Architecture(True, "rms", "rope", True, True, False, False),
    "llama4_text": Architecture(True, "rms", "rope", False, False, False, False),
    "glm4_moe": Architecture(True, "rms", "rope", True, False, False, False),
    "glm4_moe_lite": Architecture(True, "rms", "rope", False, False, False, False),
    "minimax_m2": Architecture(True, "rms", "rope", False, False, False, True, samples_top_k=True),
    "minimax_m3": Architecture(True, "rms", "rope", False, False, False, True, samples_top_k=True),
    "qwen3_next": Architecture(True, "rms", "rope", False, False, False, True, samples_top_k=True),
    "qwen3_5": Architecture(True, "rms", "rope", False, False, False, True, samples_top_k=True),
    "kimi_linear": Architecture(True, "rms", "rope", False, False, False, False),
    "nemotron_h": Architecture(True, "rms", "rope", False, False, False, False),
    "deepseek_v32": Architecture(True, "rms", "rope", False, False, False, False),
    "deepseek_v4": Architecture(True, "rms", "rope", False, False, False, False),
    "glm_moe_dsa": Architecture(True, "rms", "rope", False, False, False, False),
    "gemma4_text": Architecture(
        True, "rms", "rope", False, False, False, True, norms_per_layer=4, samples_top_k=True
    ),
    "mimo": Architecture(True, "rms", "rope", True, False, False, False),
    "mimo_v2_flash": Architecture(True, "rms", "rope", False, False, False, False),
    "step3p5": Architecture(True, "rms", "rope", False, False, False, True),
    "nemotron-nas": Architecture(True, "rms", "rope", False, False, False, False),
}
