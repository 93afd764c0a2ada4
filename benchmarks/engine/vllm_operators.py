"""Operators of a model that an engine has loaded, timed one by one."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from typing import Any

import torch
from vllm_engine import BLOCK_TOKENS, Engine, Plan
from vllm_timing import Reference, quantiles_us, timed

LEAST_SAMPLES = 8
"""Of an operator of every layer: a draft model of two layers is passed through four times."""


class Operators:
    """A model's own modules, timed one by one in the order of a step, each layer with its own weights.

    What a kernel takes at its first call of a shape, where it is built, does not count. A small model's
    rounds follow each other, as a draft's passes do, whose weights stay in the cache.
    """

    def __init__(self, model: Any, runner: Any, name: str, reference: Reference) -> None:
        self.name, self.model, self.runner, self.reference = name, model, runner, reference
        self.layers = list(model.model.layers)
        first = self.layers[0]
        self.hidden = first.hidden_size
        self.attention = first.self_attn
        self.dtype = runner.dtype
        self.vocab = model.lm_head.num_embeddings
        self.rounds = -(-LEAST_SAMPLES // len(self.layers))

    def rows(self, tokens: int) -> Iterator[dict[str, object]]:
        """Linear layers, norms, rotation and activation at `tokens` rows, LM head and embedding beside."""
        x = torch.randn(tokens, self.hidden).to(self.dtype)
        residual = torch.randn(tokens, self.hidden).to(self.dtype)
        positions = torch.arange(tokens) % 512
        ids = (torch.arange(tokens) * 97) % self.vocab
        heads = self.attention.num_heads * self.attention.head_dim
        inner = self.layers[0].mlp.down_proj.input_size
        samples: dict[str, list[float]] = {}
        head = self.model.lm_head

        def add(name: str, call: Callable[[], object]) -> None:
            samples.setdefault(name, []).append(timed(call))

        def once(layers: list[Any]) -> None:
            add("embedding", lambda: self.model.model.embed_tokens(ids))
            for layer in layers:
                qkv = layer.self_attn.qkv_proj(x)[0]
                sizes = [heads, self.attention.kv_size, self.attention.kv_size]
                q, k, _ = qkv.split(sizes, dim=-1)
                wide, gated = x[:, :1].expand(tokens, heads).contiguous(), torch.empty(tokens, inner)
                gated = gated.uniform_(-1, 1).to(self.dtype)
                add("rms_norm", lambda layer=layer: layer.input_layernorm(x, residual))
                add("qkv_proj", lambda layer=layer: layer.self_attn.qkv_proj(x))
                add("rope", lambda layer=layer, q=q, k=k: layer.self_attn.rotary_emb(positions, q, k))
                add("o_proj", lambda layer=layer, wide=wide: layer.self_attn.o_proj(wide))
                both = layer.mlp.gate_up_proj(x)[0]
                add("gate_up_proj", lambda layer=layer: layer.mlp.gate_up_proj(x))
                add("activation", lambda layer=layer, both=both: layer.mlp.act_fn(both))
                add("down_proj", lambda layer=layer, gated=gated: layer.mlp.down_proj(gated))
            add("lm_head", lambda: head.quant_method.apply(head, x, bias=None))

        once(self.layers[:1])
        beside = [self.reference.seconds()]
        for _ in range(self.rounds):
            once(self.layers)
        beside.append(self.reference.seconds())
        shapes = {
            "embedding": (self.hidden, 0),
            "rms_norm": (self.hidden, 0),
            "qkv_proj": (self.attention.q_size + 2 * self.attention.kv_size, self.hidden),
            "rope": (self.attention.q_size + self.attention.kv_size, 0),
            "o_proj": (self.hidden, heads),
            "gate_up_proj": (2 * inner, self.hidden),
            "activation": (inner, 0),
            "down_proj": (self.hidden, inner),
            "lm_head": (self.vocab, self.hidden),
        }
        for op, (n, k) in shapes.items():
            yield self._row(op, samples[op][1:], beside, m=tokens, n=n, k=k or "")

    def attention_rows(self, batch: int, q_len: int, kv_len: int) -> Iterator[dict[str, object]]:
        """Attention of every layer over its own cache, the new keys and values written before it."""
        from vllm import _custom_ops as ops
        from vllm.v1.attention.backends.cpu_attn import CPUAttentionMetadata

        part = self.attention
        tokens, blocks = batch * q_len, -(-kv_len // BLOCK_TOKENS)
        table = torch.arange(batch * blocks, dtype=torch.int32).view(batch, blocks) + 1
        slots = torch.tensor(
            [(1 + b * blocks) * BLOCK_TOKENS + kv_len - q_len + i for b in range(batch) for i in range(q_len)]
        )
        starts = torch.arange(batch + 1, dtype=torch.int32) * q_len
        lengths = torch.full((batch,), kv_len, dtype=torch.int32)
        attend = part.attn
        plan = ops.cpu_attn_get_scheduler_metadata(
            num_reqs=batch, num_heads=part.num_heads, num_kv_heads=part.num_kv_heads, head_dim=part.head_dim,
            seq_lens=lengths, dtype=self.dtype, query_start_loc=starts, causal=True, sliding_window_size=-1,
            isa=attend.isa, enable_kv_split=True,
        )  # fmt: skip
        metadata = CPUAttentionMetadata(
            num_actual_tokens=tokens, max_query_len=q_len, query_start_loc=starts, max_seq_len=kv_len,
            seq_lens=lengths, block_table=table, slot_mapping=slots, scheduler_metadata=plan,
        )  # fmt: skip

        def heads(count: int) -> torch.Tensor:
            return torch.randn(tokens, count, part.head_dim).to(self.dtype)

        q, k, v = heads(part.num_heads), heads(part.num_kv_heads), heads(part.num_kv_heads)
        out = torch.empty_like(q)

        def call(attend: Any) -> None:
            attend.impl.do_kv_cache_update(attend, k, v, attend.kv_cache, slots)
            attend.impl.forward(attend, q, k, v, attend.kv_cache, metadata, out)

        call(self.layers[0].self_attn.attn)
        beside, samples = [self.reference.seconds()], []
        for _ in range(self.rounds):
            samples += [timed(lambda layer=layer: call(layer.self_attn.attn)) for layer in self.layers]
        beside.append(self.reference.seconds())
        heads_of = {"heads": part.num_heads, "kv_heads": part.num_kv_heads, "head_dim": part.head_dim}
        op = "decode_attention" if q_len == 1 else "verify_attention"
        yield self._row(op, samples, beside, batch=batch, q_len=q_len, kv_len=kv_len, **heads_of)

    def _row(
        self, op: str, samples: list[float], beside: list[float], **size: int | str
    ) -> dict[str, object]:
        """A line of the record. samples, beside: seconds of the operator and of the reference."""
        reference_us = 1e6 * statistics.median(beside)
        times = {**quantiles_us(samples), "reference_us": reference_us}
        return {"row": "operator", "model": self.name, "op": op, **size, **times}


@torch.inference_mode()
def operator_rows(engine: Engine, plan: Plan, reference: Reference) -> Iterator[dict[str, object]]:
    """Operators of the target, and of the draft model where this engine has one."""
    from vllm.config import set_current_vllm_config
    from vllm.forward_context import set_forward_context

    runner = engine.runner
    sizes = plan["operators"]
    model, attention = Operators(runner.model, runner, "target", reference), sizes["attention"]
    if engine.method == "draft":
        model = Operators(runner.drafter.model, runner, "draft", reference)
        attention = sizes["draft_attention"]
    with set_current_vllm_config(runner.vllm_config), set_forward_context(None, runner.vllm_config):
        for tokens in sizes["tokens"]:
            yield from model.rows(tokens)
        for batch, q_len, kv_len in attention:
            yield from model.attention_rows(batch, q_len, kv_len)
