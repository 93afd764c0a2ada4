"""How much of a decoding step is Python: the decoder against a minimal loop, in turns, as ratios.

    python benchmarks/decoder_speed.py profiles/checkpoints/python-stdlib-medusa-2

The minimal loop is what one writes for one model and one sequence: weights fused, no modules, no batch, no
masks. Everything takes turns on one thread, in CPU seconds; a ratio is taken within each round and its median
counts, so that it holds on a machine that others use; times do not. Prints Markdown.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from common.script import command_line
from common.study import table
from decoder import heldout_windows
from torch import Tensor
from torch.nn import functional

from medusa_sim.acceptance.heads import optimal_order
from medusa_sim.acceptance.profile import load_acceptance
from medusa_sim.lab.decoder.cache import KVCache
from medusa_sim.lab.decoder.checkpoint import Checkpoint, load_checkpoint
from medusa_sim.lab.decoder.generate import generate
from medusa_sim.lab.decoder.generation import GenerationSettings
from medusa_sim.lab.decoder.medusa_drafter import MedusaDrafter
from medusa_sim.lab.decoder.model import Llama


class MinimalLoop:
    """Greedy decoding of one sequence by a Llama without biases: as little Python as it takes.

    fused: Q, K, V and gate, up each one product, as engines do it; else the products that the decoder and
    the operators of `medusa_sim.operators` have.
    """

    def __init__(self, model: Llama, capacity: int, *, fused: bool) -> None:
        self.fused = fused
        c = model.config
        self.heads, self.kv_heads = c.num_attention_heads, c.num_key_value_heads
        self.dim, self.eps = c.head_dim, c.rms_norm_eps
        self.embedding, self.norm = model.model.embed_tokens.weight, model.model.norm.weight
        self.head = model.lm_head.weight
        layers: list[Any] = list(model.model.layers)
        self.layers = [
            (
                layer.input_layernorm.weight,
                self._joined([layer.self_attn.get_parameter(f"{name}_proj.weight") for name in "qkv"]),
                layer.self_attn.get_parameter("o_proj.weight"),
                layer.post_attention_layernorm.weight,
                self._joined([layer.mlp.get_parameter(f"{name}_proj.weight") for name in ("gate", "up")]),
                layer.mlp.get_parameter("down_proj.weight"),
                torch.zeros(1, c.num_key_value_heads, capacity, c.head_dim),
                torch.zeros(1, c.num_key_value_heads, capacity, c.head_dim),
            )
            for layer in layers
        ]
        turns = c.rope_theta ** (-torch.arange(0, c.head_dim, 2) / c.head_dim)
        angles = torch.arange(capacity)[:, None] * turns
        angles = torch.cat((angles, angles), -1)
        self.cos, self.sin = angles.cos(), angles.sin()

    def _joined(self, weights: list[Tensor]) -> list[Tensor]:
        return [torch.cat(weights)] if self.fused else weights

    def forward(self, tokens: Tensor, start: int) -> Tensor:
        """Logits (vocab,) after `tokens` (q,) at positions from `start`."""
        q, heads, kv, dim = tokens.shape[0], self.heads, self.kv_heads, self.dim
        end = start + q
        cos, sin = self.cos[start:end], self.sin[start:end]
        x = functional.embedding(tokens, self.embedding)
        size, half, group = x.shape[-1:], dim // 2, heads // kv
        for first, qkv, out, second, gate_up, down, keys, values in self.layers:
            normal = functional.rms_norm(x, size, first, self.eps)
            parts = [functional.linear(normal, weight) for weight in qkv]
            mixed = parts[0] if self.fused else torch.cat(parts, -1)
            mixed = mixed.view(q, heads + 2 * kv, dim).transpose(0, 1)
            turned = mixed[: heads + kv]
            turned = turned * cos + torch.cat((-turned[..., half:], turned[..., :half]), -1) * sin
            keys[0, :, start:end] = turned[heads:]
            values[0, :, start:end] = mixed[heads + kv :]
            rows = turned[:heads].reshape(1, kv, group * q, dim)
            mask = None
            if q > 1:
                seen = torch.arange(end) <= torch.arange(start, end)[:, None]
                mask = seen.repeat(group, 1)
            seen_rows = functional.scaled_dot_product_attention(
                rows, keys[:, :, :end], values[:, :, :end], mask
            )
            x = x + functional.linear(seen_rows.view(heads, q, dim).transpose(0, 1).reshape(q, -1), out)
            normal = functional.rms_norm(x, size, second, self.eps)
            parts = [functional.linear(normal, weight) for weight in gate_up]
            gate, up = parts[0].chunk(2, -1) if self.fused else parts
            x = x + functional.linear(functional.silu(gate) * up, down)
        return functional.linear(functional.rms_norm(x[-1:], size, self.norm, self.eps), self.head)[0]

    @torch.inference_mode()
    def generate(self, prompt: Sequence[int], new_tokens: int) -> tuple[list[int], float]:
        """New tokens, and the seconds that all but the first took."""
        token = self.forward(torch.tensor(prompt), 0).argmax()
        text, started = [int(token)], time.perf_counter()
        for position in range(len(prompt), len(prompt) + new_tokens - 1):
            token = self.forward(token[None], position).argmax()
            text.append(int(token))
        return text, time.perf_counter() - started


class Rounds:
    """Seconds a step of each, over rounds in which all take their turn; a first round only warms up."""

    def __init__(self, turns: dict[str, Callable[[], float]], rounds: int) -> None:
        self.seconds: dict[str, list[float]] = {name: [] for name in turns}
        for number in range(1 + rounds):
            for name, turn in turns.items():
                seconds = turn()
                if number:
                    self.seconds[name].append(seconds)

    def ratio(self, one: str, other: str) -> float:
        """Of two names, each round for itself: the median."""
        pairs = zip(self.seconds[one], self.seconds[other], strict=True)
        return statistics.median(mine / theirs for mine, theirs in pairs)


def _plain(target: Checkpoint, prompt: list[int], new_tokens: int, rounds: int) -> Rounds:
    """Plain decoding, the text of all loops being the same."""
    model, capacity = target.model, len(prompt) + new_tokens
    minimal = {
        "minimal loop, fused products": MinimalLoop(model, capacity, fused=True),
        "minimal loop, the same products": MinimalLoop(model, capacity, fused=False),
    }
    settings = GenerationSettings(max_new_tokens=new_tokens, stop_at_end_of_text=False)
    wanted = generate(model, [prompt], settings).sequences[0].token_ids
    if any(loop.generate(prompt, new_tokens)[0] != wanted for loop in minimal.values()):
        raise SystemExit("the minimal loop writes another text")
    turns: dict[str, Callable[[], float]] = {
        name: lambda loop=loop: loop.generate(prompt, new_tokens)[1] / (new_tokens - 1)  # type: ignore[misc]
        for name, loop in minimal.items()
    }
    turns["decode"] = lambda: generate(model, [prompt], settings).decode_s / (new_tokens - 1)
    return Rounds(turns, rounds)


@torch.inference_mode()
def _steps(target: Checkpoint, prompt: list[int], sizes: list[int], new_tokens: int, rounds: int) -> Rounds:
    """Whole greedy steps by tree size (`step SIZE`); their heads, forward and LM head (`products SIZE`)."""
    model, heads = target.model, target.heads
    accuracy = load_acceptance(target.path.resolve().name).heads
    if heads is None or accuracy is None:
        raise SystemExit(f"{target.path}: a checkpoint with heads and a profile of its name are needed")
    order = optimal_order(accuracy, max(sizes))
    settings = GenerationSettings(max_new_tokens=new_tokens, stop_at_end_of_text=False)
    hidden = torch.randn(1, model.config.hidden_size)

    def products(drafter: MedusaDrafter | None, cache: KVCache, tokens: Tensor, depth: int) -> float:
        started = time.perf_counter()
        for _ in range(4):
            if drafter is None:
                model.logits(model(tokens, cache=cache))
                continue
            heads(hidden, model.lm_head, depth)
            model.logits(model(tokens, cache=cache, tree_mask=drafter.mask, depths=drafter.depths))
        return (time.perf_counter() - started) / 4

    def step(drafter: MedusaDrafter | None) -> float:
        run = generate(model, [prompt], settings, drafter)
        return run.decode_s / run.steps

    turns: dict[str, Callable[[], float]] = {}
    for size in sizes:
        drafter = MedusaDrafter(model, heads, order.tree(size)) if size > 1 else None
        depth = order.tree(size).depth
        cache = model.new_cache(batch=1, capacity=len(prompt) + new_tokens + size)
        cache.lengths += len(prompt) + new_tokens // 2
        tokens = torch.tensor([(prompt * size)[:size]])
        turns[f"products {size}"] = partial(products, drafter, cache, tokens, depth)
        turns[f"step {size}"] = partial(step, drafter)
    return Rounds(turns, rounds)


def main() -> None:
    """Run and print."""
    parser = command_line(__doc__)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--new-tokens", type=int, default=17)
    parser.add_argument("--sizes", type=int, nargs="+", default=[1, 2, 4, 8, 16])
    given = parser.parse_args()
    torch.set_num_threads(1)
    target, (prompt,) = load_checkpoint(given.checkpoint), heldout_windows(given.checkpoint, 1)
    with mock.patch("time.perf_counter", time.thread_time):  # one thread: what others take is not counted
        plain = _plain(target, prompt, given.new_tokens, given.rounds)
        ratios = [(name, f"{plain.ratio('decode', name):.2f}") for name in plain.seconds]
        print(table("plain decoding, one sequence, one thread | tokens/s over those of decode", 1, ratios))
        found = _steps(target, prompt, given.sizes, given.new_tokens, given.rounds)
    print(table("candidates | step / plain step | step / its products", 0, [
        (size, f"{found.ratio(f'step {size}', f'step {given.sizes[0]}'):.2f}",
         f"{found.ratio(f'step {size}', f'products {size}'):.2f}") for size in given.sizes
    ]))  # fmt: skip


if __name__ == "__main__":
    main()
