"""The Llama-family backbone, with the parameter names of Hugging Face so that checkpoints load as they are.

One forward serves training (no cache, causal), prefill, decoding and tree verification: new tokens are
written behind the committed ones and attend to what the mask allows. Its linear layers, attention and
elementwise steps are the operators of `medusa_sim.operators.operator`, one to one.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from medusa_sim.decoder.cache import KVCache
from medusa_sim.decoder.config import DecoderConfig
from medusa_sim.decoder.tree_attention import attention_mask, mask_bias


def accumulation_dtype(dtype: torch.dtype) -> torch.dtype:
    """fp32 for half precision, else the dtype itself: norms, rotations and laws are computed in it."""
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype


def inverse_frequencies(config: DecoderConfig) -> tuple[Tensor, float]:
    """Rotary inverse frequencies (head_dim / 2,), fp32 on the CPU, and the factor on cos and sin.

    Plain (Su et al. 2021), linear (position interpolation), Llama 3 (wavelength bands) and
    YaRN (Peng et al. 2023, with its 0.1 ln(factor) + 1 attention factor).
    """
    scaling, dim, theta = config.rope_scaling, config.head_dim, config.rope_theta
    plain = 1.0 / theta ** (torch.arange(0, dim, 2, dtype=torch.float32, device="cpu") / dim)
    if scaling.rope_type == "linear":
        return plain / scaling.factor, 1.0
    if scaling.rope_type == "llama3":
        original = scaling.original_max_position_embeddings
        wavelength = 2 * math.pi / plain
        low, high = scaling.low_freq_factor, scaling.high_freq_factor
        smooth = ((original / wavelength - low) / (high - low)).clamp(0.0, 1.0)
        return (1 - smooth) * plain / scaling.factor + smooth * plain, 1.0
    if scaling.rope_type == "yarn":
        original = scaling.original_max_position_embeddings

        def rotation_dim(rotations: float) -> float:
            return dim * math.log(original / (rotations * 2 * math.pi)) / (2 * math.log(theta))

        low = max(math.floor(rotation_dim(scaling.beta_fast)), 0)
        high = min(math.ceil(rotation_dim(scaling.beta_slow)), dim - 1)
        ramp = (
            (torch.arange(dim // 2, dtype=torch.float32, device="cpu") - low) / max(high - low, 1e-3)
        ).clamp(0.0, 1.0)
        factor = scaling.attention_factor
        if factor is None:
            factor = 0.1 * math.log(scaling.factor) + 1.0 if scaling.factor > 1 else 1.0
        return ramp * plain / scaling.factor + (1 - ramp) * plain, factor
    return plain, 1.0


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding of (batch, heads, q, head_dim) by (batch, 1, q, head_dim) cosines and sines."""
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


class RMSNorm(nn.Module):
    """x / rms(x) * weight, the mean square taken in fp32 or wider."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """(..., size) -> (..., size)."""
        wide = x.to(accumulation_dtype(x.dtype))
        normal = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        return self.weight * normal.to(x.dtype)


class Step:
    """What every layer of one forward shares: rotations, and where to write and look in the cache."""

    __slots__ = ("cache", "cos", "kv_len", "mask", "sin", "slots")

    def __init__(
        self,
        cos: Tensor,
        sin: Tensor,
        cache: KVCache | None,
        slots: Tensor | None,
        mask: Tensor | None,
        kv_len: int,
    ) -> None:
        self.cos, self.sin = cos, sin
        self.cache, self.slots, self.mask, self.kv_len = cache, slots, mask, kv_len


class Attention(nn.Module):
    """Grouped-query attention over the cache, or causal over its own tokens without one."""

    def __init__(self, config: DecoderConfig, layer: int) -> None:
        super().__init__()
        self.layer, self.head_dim = layer, config.head_dim
        self.heads, self.kv_heads = config.num_attention_heads, config.num_key_value_heads
        hidden, bias = config.hidden_size, config.attention_bias
        self.q_proj = nn.Linear(hidden, self.heads * self.head_dim, bias=bias)
        self.k_proj = nn.Linear(hidden, self.kv_heads * self.head_dim, bias=bias)
        self.v_proj = nn.Linear(hidden, self.kv_heads * self.head_dim, bias=bias)
        self.o_proj = nn.Linear(self.heads * self.head_dim, hidden, bias=config.output_bias)

    def forward(self, x: Tensor, step: Step) -> Tensor:
        """(batch, q, hidden) -> (batch, q, hidden)."""
        batch, query_tokens, _ = x.shape
        q = rotate(self._split(self.q_proj(x), self.heads), step.cos, step.sin)
        k = rotate(self._split(self.k_proj(x), self.kv_heads), step.cos, step.sin)
        v = self._split(self.v_proj(x), self.kv_heads)
        group = self.heads // self.kv_heads
        if step.cache is None or step.slots is None or step.mask is None:
            k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
            out = functional.scaled_dot_product_attention(
                q, k, v, attn_mask=step.mask, is_causal=step.mask is None
            )
        else:
            step.cache.write(self.layer, step.slots, k, v)
            keys = step.cache.keys[self.layer, :, :, : step.kv_len]
            values = step.cache.values[self.layer, :, :, : step.kv_len]
            # The query heads of a group become rows of their K/V head: each K/V row is read once.
            q = q.reshape(batch, self.kv_heads, group * query_tokens, self.head_dim)
            out = functional.scaled_dot_product_attention(q, keys, values, attn_mask=step.mask)
            out = out.reshape(batch, self.heads, query_tokens, self.head_dim)
        merged: Tensor = self.o_proj(out.transpose(1, 2).reshape(batch, query_tokens, -1))
        return merged

    def _split(self, x: Tensor, heads: int) -> Tensor:
        return x.view(x.shape[0], x.shape[1], heads, self.head_dim).transpose(1, 2)


class MLP(nn.Module):
    """down(silu(gate x) * up x)."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        hidden, inner, bias = config.hidden_size, config.intermediate_size, config.mlp_bias
        self.gate_proj = nn.Linear(hidden, inner, bias=bias)
        self.up_proj = nn.Linear(hidden, inner, bias=bias)
        self.down_proj = nn.Linear(inner, hidden, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        """(..., hidden) -> (..., hidden)."""
        out: Tensor = self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))
        return out


class Layer(nn.Module):
    """One pre-norm transformer block."""

    def __init__(self, config: DecoderConfig, layer: int) -> None:
        super().__init__()
        self.self_attn = Attention(config, layer)
        self.mlp = MLP(config)
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)

    def forward(self, x: Tensor, step: Step) -> Tensor:
        """(batch, q, hidden) -> (batch, q, hidden)."""
        x = x + self.self_attn(self.input_layernorm(x), step)
        out: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return out


class Backbone(nn.Module):
    """Embedding, layers and final norm: the `model.` prefix of a checkpoint."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(Layer(config, layer) for layer in range(config.num_hidden_layers))
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)


class Llama(nn.Module):
    """Backbone and language-model head.

    `forward` returns the hidden states after the final norm, (batch, q, hidden): the head and the
    Medusa heads are applied by the caller, on the rows it needs.
    """

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.config = config
        self.model = Backbone(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        if config.tie_word_embeddings:
            self.lm_head.weight = self.model.embed_tokens.weight
        frequencies, self.rope_factor = inverse_frequencies(config)
        # No buffer: `.half()` would round the rotations. One copy per device instead.
        self._frequencies = {torch.device("cpu"): frequencies}

    @property
    def dtype(self) -> torch.dtype:
        """Of the weights."""
        return self.model.embed_tokens.weight.dtype

    @property
    def device(self) -> torch.device:
        """Of the weights."""
        return self.model.embed_tokens.weight.device

    def new_cache(self, *, batch: int, capacity: int) -> KVCache:
        """An empty cache in the model's dtype and on its device."""
        return KVCache(self.config, batch=batch, capacity=capacity, dtype=self.dtype, device=self.device)

    def forward(
        self,
        tokens: Tensor,
        *,
        cache: KVCache | None = None,
        tree_mask: Tensor | None = None,
        depths: Tensor | None = None,
        offset: int = 0,
        kv_len: int | None = None,
    ) -> Tensor:
        """Hidden states (batch, q, hidden) of new tokens (batch, q).

        With a cache, `offset` uncommitted tokens lie behind the committed ones already, and with the
        new ones there are t = offset + q. New token i goes to slot lengths + offset + i and position
        lengths + depths[offset + i]; it sees the committed prefix and what `tree_mask` ((q, t) or
        (batch, q, t) bool; default: causal) allows. depths: (t,) or (batch, t), default 0..t-1.
        `lengths` do not move: the caller commits by `cache.compact`. `kv_len` fixes how many slots
        attention scans (all shapes static, as CUDA graphs need); by default the longest sequence + t.
        """
        scratch_tokens = offset + tokens.shape[1]
        order = torch.arange(scratch_tokens, device=tokens.device)
        if cache is None:
            step = self._uncached_step(order[None])
        else:
            if kv_len is None:
                cache.require_room(scratch_tokens)
                kv_len = int(cache.lengths.max()) + scratch_tokens
            if depths is None:
                depths = order
            if tree_mask is None:
                tree_mask = order[offset:, None] >= order
            lengths = cache.lengths[:, None]
            mask = attention_mask(
                cache.lengths,
                tree_mask,
                kv_len,
                depths,
                offset=offset,
                sliding_window=self.config.sliding_window,
            )
            cos, sin = self._rotations((lengths + depths)[:, offset:])
            # Once for all layers: additive, and a row for every query head of a K/V head's group.
            bias = mask_bias(mask, self.config.group_size, self.dtype)
            step = Step(cos, sin, cache, lengths + order[offset:], bias, kv_len)
        x = self.model.embed_tokens(tokens)
        for layer in self.model.layers:
            x = layer(x, step)
        out: Tensor = self.model.norm(x)
        return out

    def logits(self, hidden: Tensor) -> Tensor:
        """(..., hidden) -> (..., vocab)."""
        out: Tensor = self.lm_head(hidden)
        return out

    def _uncached_step(self, positions: Tensor) -> Step:
        cos, sin = self._rotations(positions)
        mask, window = None, self.config.sliding_window
        if window is not None and positions.shape[1] > window:
            distance = positions[0, :, None] - positions[0, None, :]
            mask = (distance >= 0) & (distance < window)
        return Step(cos, sin, None, None, mask, 0)

    def _rotations(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        wide = accumulation_dtype(self.dtype)
        device = positions.device
        if device not in self._frequencies:
            self._frequencies[device] = self._frequencies[torch.device("cpu")].to(device)
        angles = positions[:, None, :, None].to(wide) * self._frequencies[device].to(wide)
        angles = torch.cat((angles, angles), dim=-1)
        factor = self.rope_factor
        return (angles.cos() * factor).to(self.dtype), (angles.sin() * factor).to(self.dtype)


def random_llama(
    config: DecoderConfig, *, seed: int = 0, dtype: torch.dtype = torch.float32, std: float = 0.02
) -> Llama:
    """A model with normal(0, std) weights, the same for a given seed whatever the dtype asked for."""
    generator = torch.Generator().manual_seed(seed)
    model = Llama(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("norm.weight"):
                continue
            parameter.copy_(torch.empty(parameter.shape).normal_(0.0, std, generator=generator))
    return model.to(dtype).eval()
