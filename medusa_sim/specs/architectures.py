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

    gated: bool = True
    norm: Norm = "rms"
    positions: Positions = "rope"
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
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


_FAMILIES = (
    (Architecture(), """llama granite phi3 smollm3 ernie4_5 gemma hunyuan_v1_moe ernie4_5_moe bailing_moe
        mistral4 granitemoehybrid deepseek_v2 deepseek_v3 kimi_k2 llama4_text glm4_moe_lite kimi_linear
        nemotron_h deepseek_v32 deepseek_v4 glm_moe_dsa mimo_v2_flash nemotron-nas"""),
    (Architecture(qkv_bias=True), "seed_oss glm4_moe mimo"),
    (Architecture(qkv_bias=True, output_bias=True), "gpt_oss"),
    (Architecture(qkv_bias=True, norms_per_layer=4), "glm4"),
    (Architecture(qkv_bias=True, samples_top_k=True), "qwen2 qwen2_moe"),
    (Architecture(qk_norm=True), "hunyuan_v1_dense olmo2 exaone4 dots1 exaone_moe step3p5"),
    (Architecture(qk_norm=True, samples_top_k=True),
     "qwen3 qwen3_moe qwen3_next qwen3_5 minimax_m2 minimax_m3"),
    (Architecture(qk_norm=True, norms_per_layer=4, samples_top_k=True), "gemma3_text gemma4_text"),
    (Architecture(norms_per_layer=4), "gemma2"),
    (Architecture(qk_norm=True, norms_per_layer=4), "afmoe"),
    (Architecture(samples_top_p=False), "mistral mixtral"),
    (Architecture(gated=False), "arcee"),
    (Architecture(gated=False, qk_norm=True), "apertus"),
    (Architecture(gated=False, norm="layer"), "nemotron"),
    (Architecture(gated=False, norm="layer", positions="learned", qkv_bias=True, output_bias=True,
                  mlp_bias=True), "opt"),
    (Architecture(norm="layer", norms_per_layer=1), "cohere2"),
    (Architecture(norm="layer", qkv_bias=True, output_bias=True), "phimoe"),
)  # fmt: skip
"""What differs from Llama, and the families that share it."""
ARCHITECTURES: dict[str, Architecture] = {
    family: shared for shared, families in _FAMILIES for family in families.split()
}
