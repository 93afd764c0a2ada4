"""The Llama-family backbone, with the parameter names of Hugging Face so that checkpoints load as they are.

One forward serves training (no cache, causal), prefill, decoding and tree verification: new tokens are
written behind the committed ones and attend to what the mask allows. Its linear layers, attention and
elementwise steps are the operators of `medusa_sim.operators.operator`, one to one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from medusa_sim.decoder.cache import KVCache, Window
from medusa_sim.decoder.config import DecoderConfig
from medusa_sim.decoder.parts import Embedding, Linear, Part
from medusa_sim.decoder.tree_attention import (
    aligned,
    attend,
    attention_mask,
    mask_bias,
    prefix_and_tree,
)

_TABLE_ROWS = 256
"""Rotations are tabulated for so many positions, or a multiple."""


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
    """Rotary embedding of (batch, q, heads, head_dim) by (.., q, 1, head_dim) cosines and sines.

    The first half of the sines is negative: x cos + (-x2, x1) sin is x cos + (x2, x1) (-sin, sin).
    """
    return torch.addcmul(x * cos, x.roll(x.shape[-1] // 2, -1), sin)


class RMSNorm(Part):
    """x / rms(x) * weight, the mean square taken in fp32 or wider."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.size, self.eps = (size,), eps
        # What rows are multiplied with for their mean, and eps: constants, so no buffers.
        self._mean = torch.full((size, 1), 1.0 / size, dtype=torch.float32, device="cpu")
        self._eps = torch.full((1,), eps, dtype=torch.float32, device="cpu")

    def forward(self, x: Tensor) -> Tensor:
        """(rows, size), the same. Half precision is rounded before the weight applies, as in training."""
        weight: Any = self._parameters["weight"]
        out: Tensor
        if x.dtype in (torch.float16, torch.bfloat16):
            out = functional.rms_norm(x, self.size, None, self.eps) * weight
        elif x.is_cpu and x.dtype == torch.float32 and not torch.compiler.is_compiling():
            # Torch has no kernel for this on a CPU; the mean as a product halves the time of a row.
            out = torch.addmm(self._eps, x * x, self._mean).rsqrt_() * x * weight
        else:
            out = functional.rms_norm(x, self.size, weight, self.eps)
        return out


class Step:
    """What every layer of one forward shares: sequences, rotations, where to write and look in the cache.

    `slots` (batch, q) names where new rows go, of `kv_len` that are looked at; `windows`, in its place, are
    `KVCache.windows`. `mask` None: every query sees every key that is looked at (or, without a cache, those
    up to itself). `prefix` above 0: every query sees so many keys, and `mask` is over those behind them.
    """

    __slots__ = ("batch", "cache", "cos", "kv_len", "mask", "prefix", "sin", "slots", "windows")

    def __init__(
        self,
        batch: int,
        cos: Tensor,
        sin: Tensor,
        cache: KVCache | None = None,
        slots: Tensor | None = None,
        mask: Tensor | None = None,
        kv_len: int = 0,
        prefix: int = 0,
        windows: Sequence[Window] = (),
    ) -> None:
        self.batch, self.cos, self.sin, self.prefix = batch, cos, sin, prefix
        self.cache, self.slots, self.mask, self.kv_len, self.windows = cache, slots, mask, kv_len, windows


class Attention(Part):
    """Grouped-query attention over the cache, or causal over its own tokens without one."""

    def __init__(self, config: DecoderConfig, layer: int) -> None:
        super().__init__()
        self.layer, self.head_dim = layer, config.head_dim
        self.heads, self.kv_heads = config.num_attention_heads, config.num_key_value_heads
        hidden, bias = config.hidden_size, config.attention_bias
        self.q_proj = Linear(hidden, self.heads * self.head_dim, bias=bias)
        self.k_proj = Linear(hidden, self.kv_heads * self.head_dim, bias=bias)
        self.v_proj = Linear(hidden, self.kv_heads * self.head_dim, bias=bias)
        self.o_proj = Linear(self.heads * self.head_dim, hidden, bias=config.output_bias)

    def forward(self, x: Tensor, step: Step) -> Tensor:
        """(batch * q, hidden) -> (batch * q, hidden)."""
        batch, query_tokens = step.batch, x.shape[0] // step.batch
        heads, kv_heads, head_dim = self.heads, self.kv_heads, self.head_dim
        q_proj, k_proj, v_proj, o_proj = self.parts
        # Queries and keys are rotated as one.
        both = torch.cat((q_proj(x), k_proj(x)), 1).view(batch, query_tokens, heads + kv_heads, head_dim)
        q, k = torch.split_with_sizes(rotate(both, step.cos, step.sin), [heads, kv_heads], 2)
        v = v_proj(x).view(batch, query_tokens, kv_heads, head_dim)
        q, group = q.transpose(1, 2), heads // kv_heads
        if step.cache is None:
            k, v = (each.transpose(1, 2).repeat_interleave(group, 1) for each in (k, v))
            out = functional.scaled_dot_product_attention(
                q, k, v, attn_mask=step.mask, is_causal=step.mask is None
            )
        else:
            if step.slots is not None:
                step.cache.write(self.layer, step.slots, k, v)
                keys, values = step.cache.first(self.layer, step.kv_len)
            else:
                own_keys, own_values, keys, values = step.windows[self.layer]
                own_keys.copy_(k)
                own_values.copy_(v)
            # The query heads of a group become rows of their K/V head: each K/V row is read once.
            q = q.reshape(batch, kv_heads, group * query_tokens, head_dim)
            if step.prefix and step.mask is not None:
                out = prefix_and_tree(q, keys, values, step.prefix, step.mask)
            else:
                out = attend(q, keys, values, step.mask)
            out = out.view(batch, heads, query_tokens, head_dim)
        merged: Tensor = o_proj(out.transpose(1, 2).reshape(x.shape[0], heads * head_dim))
        return merged


class MLP(Part):
    """down(silu(gate x) * up x)."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        hidden, inner, bias = config.hidden_size, config.intermediate_size, config.mlp_bias
        self.gate_proj = Linear(hidden, inner, bias=bias)
        self.up_proj = Linear(hidden, inner, bias=bias)
        self.down_proj = Linear(inner, hidden, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        """(..., hidden) -> (..., hidden)."""
        gate_proj, up_proj, down_proj = self.parts
        out: Tensor = down_proj(functional.silu(gate_proj(x)) * up_proj(x))
        return out


class Layer(Part):
    """One pre-norm transformer block."""

    def __init__(self, config: DecoderConfig, layer: int) -> None:
        super().__init__()
        self.self_attn = Attention(config, layer)
        self.mlp = MLP(config)
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)

    def forward(self, x: Tensor, step: Step) -> Tensor:
        """(batch * q, hidden) -> (batch * q, hidden)."""
        self_attn, mlp, input_layernorm, post_attention_layernorm = self.parts
        x = self_attn(input_layernorm(x), step).add_(x)
        out: Tensor = mlp(post_attention_layernorm(x)).add_(x)
        return out


class Backbone(Part):
    """Embedding, layers and final norm: the `model.` prefix of a checkpoint."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.embed_tokens = Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(Layer(config, layer) for layer in range(config.num_hidden_layers))
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)


class Llama(Part):
    """Backbone and language-model head.

    `forward` returns the hidden states after the final norm, (batch, q, hidden): the head and the
    Medusa heads are applied by the caller, on the rows it needs. `splits_attention`: a tree behind prefixes
    of one length is verified in two parts (`prefix_and_tree`) and not under one mask.
    """

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.config = config
        self.model = Backbone(config)
        self.lm_head = Linear(config.hidden_size, config.vocab_size, bias=False)
        if config.tie_word_embeddings:
            self.lm_head.weight = self.model.embed_tokens.weight
        frequencies, self.rope_factor = inverse_frequencies(config)
        # No buffers: `.half()` would round the frequencies. Tables are made where they are asked for.
        self._frequencies = frequencies
        self._tables: dict[tuple[torch.device, torch.dtype], tuple[Tensor, Tensor]] = {}
        self._last_bias: tuple[Tensor, Tensor] | None = None
        self.splits_attention = False

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
        filled: bool = False,
    ) -> Tensor:
        """Hidden states (batch, q, hidden) of new tokens (batch, q).

        With a cache, `offset` uncommitted tokens lie behind the committed ones already, and with the
        new ones there are t = offset + q. New token i goes to slot lengths + offset + i and position
        lengths + depths[offset + i]; it sees the committed prefix and what `tree_mask` ((q, t) or
        (batch, q, t) bool; default: causal) allows. depths: (t,) or (batch, t), default 0..t-1.
        `lengths` do not move: the caller commits by `cache.keep`. `kv_len` fixes how many slots
        attention scans (all shapes static, as CUDA graphs need; nothing is read from the device); by
        default the longest sequence + t. `filled`: `kv_len` is every sequence's length + t, so that one
        token alone needs no mask.
        """
        query_tokens = tokens.shape[1]
        if cache is None:
            step = self._uncached_step(tokens)
        elif kv_len is None and cache.batch == 1 and self.config.sliding_window is None:
            step = self._single_step(query_tokens, cache, tree_mask, depths, offset)
        else:
            step = self._batched_step(query_tokens, cache, tree_mask, depths, offset, kv_len, filled)
        backbone, _ = self.parts
        embed_tokens, layers, norm = backbone.parts
        # Layers see rows: a product of a matrix is quicker than of a batch of them.
        x = embed_tokens(tokens.flatten())
        for layer in layers:
            x = layer(x, step)
        out: Tensor = norm(x)
        return out.view(*tokens.shape, -1)

    def logits(self, hidden: Tensor) -> Tensor:
        """(..., hidden) -> (..., vocab)."""
        _, lm_head = self.parts
        out: Tensor = lm_head(hidden)
        return out

    def _uncached_step(self, tokens: Tensor) -> Step:
        (batch, query_tokens), device = tokens.shape, tokens.device
        cos, sin = (table[:query_tokens] for table in self._rotations(query_tokens, device, self.dtype))
        mask, window = None, self.config.sliding_window
        if window is not None and query_tokens > window:
            order = torch.arange(query_tokens, device=device)
            distance = order[:, None] - order
            mask = (distance >= 0) & (distance < window)
        return Step(batch, cos, sin, mask=mask)

    def _single_step(
        self,
        query_tokens: int,
        cache: KVCache,
        tree_mask: Tensor | None,
        depths: Tensor | None,
        offset: int,
    ) -> Step:
        """Of one sequence: rows side by side, and a mask only where a token must not see another."""
        scratch_tokens = offset + query_tokens
        length = cache.require_room(scratch_tokens)
        start, kv_len = length + offset, length + scratch_tokens
        cos, sin = self._rotations(kv_len, cache.lengths.device, cache.keys.dtype)
        if depths is None or scratch_tokens == 1:
            cos, sin = cos.narrow(0, start, query_tokens), sin.narrow(0, start, query_tokens)
        else:
            depths = depths.view(-1)[offset:] if offset else depths.view(-1)
            tables = (each.narrow(0, length, scratch_tokens) for each in (cos, sin))
            cos, sin = (each.index_select(0, depths) for each in tables)
        bias, prefix = None, 0
        if query_tokens > 1 or (tree_mask is not None and offset):
            if tree_mask is None:
                order = torch.arange(scratch_tokens, device=cos.device)
                tree_mask = order[offset:, None] >= order
            small = self._tree_bias(tree_mask, cache.keys.dtype)
            if self.splits_attention and length:
                bias, prefix = small, length
            else:
                bias = aligned((1, 1, small.shape[0], kv_len), small.dtype, small.device, fill=0.0)
                bias[..., length:] = small
        windows = cache.windows(start, query_tokens, kv_len)
        return Step(1, cos, sin, cache, mask=bias, prefix=prefix, windows=windows)

    def _batched_step(
        self,
        query_tokens: int,
        cache: KVCache,
        tree_mask: Tensor | None,
        depths: Tensor | None,
        offset: int,
        kv_len: int | None,
        filled: bool,
    ) -> Step:
        """Of any sequences, each with a mask over all slots that are looked at."""
        scratch_tokens, window = offset + query_tokens, self.config.sliding_window
        order = torch.arange(scratch_tokens, device=cache.lengths.device)
        if kv_len is None:
            longest = cache.require_room(scratch_tokens)
            kv_len = longest + scratch_tokens
            filled = min(cache.lengths_on_host) == longest
        depths = order if depths is None else depths
        behind = cache.lengths[:, None]
        positions = (behind + depths)[:, offset:]
        tables = self._rotations(cache.capacity, order.device, cache.keys.dtype)
        cos, sin = (table[positions] for table in tables)
        bias, prefix = None, 0
        if not filled or scratch_tokens > 1 or window is not None:
            if tree_mask is None:
                tree_mask = order[offset:, None] >= order
            if self.splits_attention and filled and window is None and kv_len > scratch_tokens:
                prefix = kv_len - scratch_tokens
                mask = tree_mask.expand(cache.batch, query_tokens, scratch_tokens)
            else:
                mask = attention_mask(
                    cache.lengths, tree_mask, kv_len, depths, offset=offset, sliding_window=window
                )
            # Once for all layers: additive, and a row for every query head of a K/V head's group.
            bias = mask_bias(mask, self.config.group_size, self.dtype)
        return Step(cache.batch, cos, sin, cache, behind + order[offset:], bias, kv_len, prefix=prefix)

    def _tree_bias(self, tree_mask: Tensor, dtype: torch.dtype) -> Tensor:
        """`mask_bias` of a tree alone, (group * q, t); drafters with one tree give one mask."""
        known = self._last_bias
        if known is None or known[0] is not tree_mask or known[1].dtype != dtype:
            mask = tree_mask.view(1, *tree_mask.shape[-2:])
            known = self._last_bias = (tree_mask, mask_bias(mask, self.config.group_size, dtype)[0, 0])
        return known[1]

    def _rotations(self, positions: int, device: torch.device, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Cosines and signed sines (see `rotate`) of at least so many positions, (.., 1, head_dim) each."""
        found = self._tables.get((device, dtype))
        if found is None or len(found[0]) < positions:
            found = self._new_tables(positions, device, dtype)
        return found

    @torch.compiler.disable  # type: ignore[untyped-decorator]  # torch leaves it untyped
    def _new_tables(self, positions: int, device: torch.device, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        with torch.inference_mode(mode=False):  # training may use them too
            wide = accumulation_dtype(dtype)
            order = torch.arange(-(-positions // _TABLE_ROWS) * _TABLE_ROWS, device=device)
            angles = order[:, None, None].to(wide) * self._frequencies.to(device=device, dtype=wide)
            cos, sin = angles.cos() * self.rope_factor, angles.sin() * self.rope_factor
            found = (torch.cat((cos, cos), -1).to(dtype), torch.cat((-sin, sin), -1).to(dtype))
        self._tables[device, dtype] = found
        return found


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
