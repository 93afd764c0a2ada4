"""Write a checkpoint so many times as wide that computes the same: its text and guesses at another cost.

    python benchmarks/widened.py profiles/checkpoints/python-stdlib-medusa-2 OUT/python-stdlib-medusa-2

Every width is laid down `times` times over (Net2WiderNet, Chen et al. 2016): a layer sees `times` equal
inputs, each with its share of the weight. The logits are those of the given checkpoint but for rounding, so
that its acceptance profile holds (the folder needs its name), and the weights are `times` squared as many:
tokens per step stay, the cost of a step changes.
"""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import torch
from common.script import command_line, ends_in_a_line
from torch import Tensor

from medusa_sim.errors import UsageError
from medusa_sim.lab.decoder.checkpoint import Checkpoint, load_checkpoint
from medusa_sim.lab.decoder.checkpoint_folder import save_checkpoint
from medusa_sim.lab.decoder.heads import MedusaHeads
from medusa_sim.lab.decoder.model import Llama
from medusa_sim.lab.decoder.tokenizer import load_tokenizer


def widened(given: Checkpoint, times: int) -> tuple[Llama, MedusaHeads | None]:
    """Backbone and heads `times` as wide. Raises UsageError for heads that share the LM head."""
    config, heads = given.model.config, given.heads
    if heads is not None and not heads.own_output:
        raise UsageError(f"{given.path}: heads that share the LM head cannot be widened; give others")
    model = Llama(
        dataclasses.replace(
            config,
            hidden_size=times * config.hidden_size,
            intermediate_size=times * config.intermediate_size,
            num_attention_heads=times * config.num_attention_heads,
            num_key_value_heads=times * config.num_key_value_heads,
            tie_word_embeddings=False,  # each input of the output layer has a share
        )
    ).to(given.model.dtype)
    model.load_state_dict({name: _laid(name, each, times) for name, each in given.model.state_dict().items()})
    if heads is None:
        return model.eval(), None
    wide = MedusaHeads(
        count=heads.count, layers=heads.layers, hidden=times * config.hidden_size, vocab=config.vocab_size
    )
    wide.to(given.model.dtype).load_state_dict(
        {name: _laid(name, each, times) for name, each in heads.state_dict().items()}
    )
    return model.eval(), wide.eval()


_OVER_VOCABULARY = re.compile(r"lm_head\.weight|\d+\.\d+\.weight")
"""Output layers, whose rows are tokens."""


def _laid(name: str, weight: Tensor, times: int) -> Tensor:
    """A weight over itself `times` times along every width; each input of a product has its share of it."""
    if weight.dim() == 1:
        return weight.repeat(times)
    if name == "model.embed_tokens.weight":
        return weight.repeat(1, times)
    rows = 1 if _OVER_VOCABULARY.fullmatch(name) else times
    return weight.repeat(rows, times) / times


def main() -> None:
    """Read, widen, write."""
    parser = command_line(__doc__)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("save", type=Path)
    parser.add_argument("--times", type=int, default=4)
    asked = parser.parse_args()
    model, heads = widened(load_checkpoint(asked.checkpoint), asked.times)
    save_checkpoint(
        asked.save,
        model,
        heads,
        tokenizer_json=load_tokenizer(asked.checkpoint).to_str(),
        record={"recipe": {"widened": asked.checkpoint.resolve().name, "times": asked.times}},
        overwrite=True,
    )
    millions = sum(weight.numel() for part in (model, heads) if part for weight in part.parameters()) / 1e6
    print(f"{asked.save}: {millions:.1f} M parameters, heads included; the text of {asked.checkpoint.name}")


if __name__ == "__main__":
    torch.set_grad_enabled(mode=False)
    ends_in_a_line(main)
