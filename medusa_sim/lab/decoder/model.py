"""The Llama-family backbone, with the parameter names of Hugging Face so that checkpoints load as they are.

One forward serves training (no cache, causal), prefill, decoding and tree verification: new tokens are
written after the committed ones and attend to what the mask allows. Its linear layers, attention and
elementwise steps are the operators of those names in `medusa_sim.operators`, one to one.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from medusa_sim.lab.decoder.attention import CachedPass, Pass, attention_mask, mask_bias
from medusa_sim.lab.decoder.cache import KVCache
from medusa_sim.lab.decoder.config import DecoderConfig
from medusa_sim.lab.decoder.rotary import Rotations, rotate


class RMSNorm(nn.Module):
    """x / rms(x) * weight, the mean square taken in fp32 or wider."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.size, self.eps = (size,), eps

    def forward(self, x: Tensor) -> Tensor:
        """(rows, size), the same. Half precision is rounded before the weight applies, as in training."""
        return functional.rms_norm(x, self.size, None, self.eps) * self.weight


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

    def forward(self, x: Tensor, pass_: Pass) -> Tensor:
        """(batch * q, hidden) -> (batch * q, hidden)."""
        q, k, v = (
            project(x).view(pass_.batch, -1, heads, self.head_dim)
            for project, heads in (
                (self.q_proj, self.heads), (self.k_proj, self.kv_heads), (self.v_proj, self.kv_heads),
            )
        )  # fmt: skip
        q, k = rotate(q, pass_.cos, pass_.sin), rotate(k, pass_.cos, pass_.sin)
        out = pass_.attend(self.layer, q, k, v).transpose(1, 2)
        merged: Tensor = self.o_proj(out.reshape(x.shape[0], -1))
        return merged


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

    def forward(self, x: Tensor, pass_: Pass) -> Tensor:
        """(batch * q, hidden) -> (batch * q, hidden)."""
        x = x + self.self_attn(self.input_layernorm(x), pass_)
        out: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return out


class Backbone(nn.Module):
    """Embedding, layers and final norm: the `model.` prefix of a checkpoint."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        # without values: drawing them on `meta` loads torch's compiler, 1.5 s, and every caller sets its own
        no_values = torch.empty(config.vocab_size, config.hidden_size)
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size, _weight=no_values)
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
        self.rotations = Rotations(config)

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the weights."""
        return self.model.embed_tokens.weight.dtype

    @property
    def device(self) -> torch.device:
        """Device that holds the weights."""
        return self.model.embed_tokens.weight.device

    def new_cache(self, *, batch: int, capacity: int) -> KVCache:
        """An empty cache in the model's dtype and on its device."""
        config = self.config
        shape = (config.num_hidden_layers, batch, config.num_key_value_heads, capacity, config.head_dim)
        keys, values = (torch.zeros(shape, dtype=self.dtype, device=self.device) for _ in range(2))
        return KVCache(keys, values, torch.zeros(batch, dtype=torch.long, device=self.device))

    def forward(
        self,
        tokens: Tensor,
        *,
        cache: KVCache | None = None,
        tree_mask: Tensor | None = None,
        depths: Tensor | None = None,
        pass_: Pass | None = None,
    ) -> Tensor:
        """Hidden states (batch, q, hidden) of new tokens (batch, q), the last q of t that are uncommitted.

        Uncommitted token i of a sequence goes to slot lengths + i of the cache and to position lengths +
        depths[i]; it sees the committed prefix and what `tree_mask` ((q, t) or (batch, q, t) bool; default:
        causal) allows. depths: (t,) or (batch, t), default 0..t-1. `lengths` do not move: the caller commits
        by `KVCache.keep`. pass_: one that was made elsewhere (`fixed_shapes`), in place of all of these.
        Raises UsageError where the cache has no room.
        """
        if pass_ is None:
            if cache is None:
                pass_ = self.causal_pass(tokens)
            else:
                pass_ = self.growing_pass(cache, tokens, tree_mask, depths)
        # Layers see rows: a product of a matrix is quicker than of a batch of them.
        x = self.model.embed_tokens(tokens.flatten())
        for layer in self.model.layers:
            x = layer(x, pass_)
        out: Tensor = self.model.norm(x)
        return out.view(*tokens.shape, -1)

    def causal_pass(self, tokens: Tensor) -> Pass:
        """The pass over whole texts (batch, q) without a cache."""
        count, device, window = tokens.shape[1], tokens.device, self.config.sliding_window
        cos, sin = (table[:count] for table in self.rotations.tables(count, device, self.dtype))
        mask = None
        if window is not None and count > window:
            order = torch.arange(count, device=device)
            distance = order[:, None] - order
            mask = (distance >= 0) & (distance < window)
        return Pass(tokens.shape[0], cos, sin, mask)

    def growing_pass(
        self, cache: KVCache, tokens: Tensor, tree_mask: Tensor | None = None, depths: Tensor | None = None
    ) -> CachedPass:
        """The pass over new tokens (see `forward`) that looks at the slots in use, more in every step.

        Raises UsageError where the cache has no room.
        """
        order = torch.arange(tokens.shape[1], device=tokens.device)
        mask = order[:, None] >= order if tree_mask is None else tree_mask
        uncommitted = mask.shape[-1]
        kv_len = cache.require_room(uncommitted) + uncommitted
        filled = min(cache.lengths_on_host) + uncommitted == kv_len
        return self.cached_pass(cache, mask, order if depths is None else depths, kv_len, filled=filled)

    def cached_pass(
        self, cache: KVCache, tree_mask: Tensor, depths: Tensor, kv_len: int, *, filled: bool
    ) -> CachedPass:
        """The pass over new tokens (see `forward`) that looks at the first `kv_len` slots of a cache.

        filled: every sequence ends at `kv_len` with its new tokens, so that all that is committed is seen.
        Shapes follow from the arguments, and nothing is read from the device.
        """
        config, dtype = self.config, cache.keys.dtype
        query_tokens, uncommitted = tree_mask.shape[-2:]
        first = uncommitted - query_tokens
        if filled and config.sliding_window is None:
            prefix, bias = kv_len - uncommitted, None
            slots: Tensor | int = prefix + first
            positions = prefix + depths[..., first:]
            if uncommitted > 1:
                tree = mask_bias(tree_mask.expand(cache.batch, -1, -1), config.group_size, dtype)
                bias = functional.pad(tree, (prefix, 0))
        else:
            committed = cache.lengths[:, None]
            positions = (committed + depths)[:, first:]
            slots = committed + torch.arange(first, uncommitted, device=tree_mask.device)
            seen = attention_mask(
                cache.lengths, tree_mask, kv_len, depths, sliding_window=config.sliding_window
            )
            bias = mask_bias(seen, config.group_size, dtype)
        tables = self.rotations.tables(cache.capacity, cache.lengths.device, dtype)
        cos, sin = (table[positions] for table in tables)
        return CachedPass(cos, sin, bias, cache=cache, slots=slots, kv_len=kv_len)

    def logits(self, hidden: Tensor) -> Tensor:
        """(..., hidden) -> (..., vocab)."""
        out: Tensor = self.lm_head(hidden)
        return out


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
