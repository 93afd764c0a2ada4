"""The Llama-family backbone, with the parameter names of Hugging Face so that checkpoints load as they are.

One forward serves training (no cache, causal), prefill, decoding and tree verification: new tokens are
written after the committed ones and attend to what the mask allows. Its linear layers, attention and
elementwise steps are the operators of those names in `medusa_sim.operators`, one to one.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from medusa_sim.lab.decoder.cache import KVCache
from medusa_sim.lab.decoder.config import DecoderConfig
from medusa_sim.lab.decoder.fast_passes import quick_pass
from medusa_sim.lab.decoder.passes import NewTokens, Pass, cached_pass, causal_pass
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

    def forward(self, x: Tensor, shared: Pass) -> Tensor:
        """(batch * q, hidden) -> (batch * q, hidden)."""
        batch, query_tokens = shared.batch, x.shape[0] // shared.batch
        heads, kv_heads, head_dim = self.heads, self.kv_heads, self.head_dim
        q = self.q_proj(x).view(batch, query_tokens, heads, head_dim)
        k = self.k_proj(x).view(batch, query_tokens, kv_heads, head_dim)
        v = self.v_proj(x).view(batch, query_tokens, kv_heads, head_dim)
        q, k = rotate(q, shared.cos, shared.sin), rotate(k, shared.cos, shared.sin)
        keys, values = shared.write(self.layer, k, v)
        # The query heads of a group become rows of their K/V head: each K/V row is read once.
        rows = q.transpose(1, 2).reshape(batch, kv_heads, -1, head_dim)
        out = shared.attend(rows, keys, values).view(batch, heads, query_tokens, head_dim)
        merged: Tensor = self.o_proj(out.transpose(1, 2).reshape(x.shape[0], heads * head_dim))
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

    def forward(self, x: Tensor, shared: Pass) -> Tensor:
        """(batch * q, hidden) -> (batch * q, hidden)."""
        x = x + self.self_attn(self.input_layernorm(x), shared)
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
    Medusa heads are applied by the caller, on the rows it needs. `splits_attention`: a tree after prefixes
    of one length is verified in two parts (`fast_passes.prefix_and_tree`) and not under one mask.
    """

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.config = config
        self.model = Backbone(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        if config.tie_word_embeddings:
            self.lm_head.weight = self.model.embed_tokens.weight
        self.rotations = Rotations(config)
        self.splits_attention = False

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
        return KVCache(self.config, batch=batch, capacity=capacity, dtype=self.dtype, device=self.device)

    def forward(
        self,
        tokens: Tensor,
        *,
        cache: KVCache | None = None,
        tree_mask: Tensor | None = None,
        depths: Tensor | None = None,
        offset: int = 0,
        shared: Pass | None = None,
    ) -> Tensor:
        """Hidden states (batch, q, hidden) of new tokens (batch, q).

        With a cache, `offset` uncommitted tokens lie after the committed ones already, and with the
        new ones there are t = offset + q. New token i goes to slot lengths + offset + i and position
        lengths + depths[offset + i]; it sees the committed prefix and what `tree_mask` ((q, t) or
        (batch, q, t) bool; default: causal) allows. depths: (t,) or (batch, t), default 0..t-1.
        `lengths` do not move: the caller commits by `KVCache.keep`. shared: of a pass that was made elsewhere
        (`fixed_shapes`), in place of all of these.
        """
        if shared is None and cache is not None:
            order = torch.arange(offset + tokens.shape[1], device=tokens.device)
            mask = order[offset:, None] >= order if tree_mask is None else tree_mask
            new = NewTokens(tokens.shape[1], offset, mask, order if depths is None else depths)
            given = (self.config, self.rotations, cache, new)
            shared = quick_pass(*given, splits_attention=self.splits_attention) or cached_pass(*given)
        elif shared is None:
            shared = causal_pass(self.config, self.rotations, tokens, self.dtype)
        # Layers see rows: a product of a matrix is quicker than of a batch of them.
        x = self.model.embed_tokens(tokens.flatten())
        for layer in self.model.layers:
            x = layer(x, shared)
        out: Tensor = self.model.norm(x)
        return out.view(*tokens.shape, -1)

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
