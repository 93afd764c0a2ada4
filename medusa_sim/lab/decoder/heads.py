"""Medusa heads (Medusa paper, section 2.1): head k guesses the token k + 2 positions ahead.

    p^(k) = softmax(W2 (SiLU(W1 h + b1) + h)),  W1 = 0 and W2 = the language-model head at initialisation

Three public layouts of weights differ in their keys, and only the keys are asked (`layout_of_keys`):
own output layers (`{i}.{j}.linear.*` and `{i}.{L}.weight`), the base model's head shared (no
`{i}.{L}.weight`), and either of them under `medusa_head.` inside a full model.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import islice

import torch
from torch import Tensor, nn
from torch.nn import functional

from medusa_sim.errors import SpecError
from medusa_sim.lab.decoder.arguments import HEAD_LAYERS

PREFIX = "medusa_head."
_LINEAR_KEY = re.compile(r"(\d{1,9})\.(\d{1,9})\.linear\.(weight|bias)")
_OUTPUT_KEY = re.compile(r"(\d{1,9})\.(\d{1,9})\.weight")


class ResBlock(nn.Module):
    """x + SiLU(W1 x + b1), the identity at initialisation."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.linear = nn.Linear(hidden, hidden)
        nn.init.zeros_(self.linear.weight)
        # Public code leaves the bias at its random default; zero makes the head start as the LM head.
        nn.init.zeros_(self.linear.bias)

    def forward(self, x: Tensor) -> Tensor:
        """(..., hidden) -> (..., hidden)."""
        return x + functional.silu(self.linear(x))


class MedusaHeads(nn.Module):
    """`count` heads of `layers` residual blocks each, then an output layer of their own or the shared one.

    The state dict has the public key names, without prefix.
    """

    def __init__(self, *, count: int, layers: int, hidden: int, vocab: int, own_output: bool = True) -> None:
        super().__init__()
        self.count, self.layers, self.own_output = count, layers, own_output
        for i in range(count):
            blocks: list[nn.Module] = [ResBlock(hidden) for _ in range(layers)]
            if own_output:
                blocks.append(nn.Linear(hidden, vocab, bias=False))
            self.add_module(str(i), nn.Sequential(*blocks))

    def forward(self, hidden: Tensor, lm_head: nn.Linear, first: int | None = None) -> Tensor:
        """Logits (heads, ..., vocab) from hidden states (..., hidden), of the `first` heads or of all.

        `lm_head` serves shared layouts.
        """
        count = self.count if first is None else first
        guesses = [head(hidden) for head in islice(self.children(), count)]
        return torch.stack(guesses if self.own_output else [lm_head(x) for x in guesses])

    @torch.no_grad()
    def start_from(self, lm_head: nn.Linear) -> None:
        """Copies the language-model head into every own output layer (Medusa paper, section 2.1.1)."""
        if self.own_output:
            for i in range(self.count):
                self.get_parameter(f"{i}.{self.layers}.weight").copy_(lm_head.weight)


@dataclass(frozen=True, slots=True)
class HeadLayout:
    """What a set of keys says: how many heads and blocks, and whether each head has its own output layer."""

    count: int
    layers: int
    own_output: bool
    prefix: str


def layout_of_keys(keys: Iterable[str], where: str) -> HeadLayout | None:
    """The layout that `keys` are in, or None if they hold no Medusa heads.

    Head and block counts come from the keys: `medusa_num_heads` of public configs is wrong as often
    as not. Raises SpecError where only the prefix speaks of heads.
    """
    names = list(keys)
    prefix = PREFIX if any(name.startswith(PREFIX) for name in names) else ""
    stripped = [name[len(prefix) :] for name in names if name.startswith(prefix)]
    linear = [match for name in stripped if (match := _LINEAR_KEY.fullmatch(name))]
    output = [match for name in stripped if (match := _OUTPUT_KEY.fullmatch(name))]
    if not linear:
        if prefix:
            raise SpecError(f"{where}: keys under {PREFIX!r} but none like '{PREFIX}0.0.linear.weight'")
        return None
    return HeadLayout(
        count=len({match[1] for match in linear + output}),
        layers=len({match[2] for match in linear}),
        own_output=bool(output),
        prefix=prefix,
    )


def heads_from_tensors(
    tensors: Mapping[str, Tensor], *, hidden: int, vocab: int, where: str
) -> MedusaHeads | None:
    """Heads built from whatever of the three layouts is in `tensors`; None if there is none.

    Raises SpecError for a missing or unexpected key, or a shape other than (hidden, hidden), (hidden,),
    (vocab, hidden).
    """
    layout = layout_of_keys(tensors, where)
    if layout is None:
        return None
    with torch.device("meta"):
        heads = MedusaHeads(
            count=layout.count, layers=layout.layers, hidden=hidden, vocab=vocab, own_output=layout.own_output
        )
    needed = {layout.prefix + name: tensor.shape for name, tensor in heads.state_dict().items()}
    if missing := [key for key in needed if key not in tensors]:
        raise SpecError(
            f"{where}: Medusa head key {missing[0]!r} is missing "
            f"({len(missing)} in all); the file is incomplete"
        )
    extra = [key for key in tensors if layout.prefix and key.startswith(layout.prefix) and key not in needed]
    if extra:
        raise SpecError(f"{where}: unexpected Medusa head key {extra[0]!r}")
    for key, shape in needed.items():
        if tensors[key].shape != shape:
            raise SpecError(f"{where}: {key} has shape {tuple(tensors[key].shape)}, expected {tuple(shape)}")
    heads.load_state_dict({key.removeprefix(layout.prefix): tensors[key] for key in needed}, assign=True)
    return heads


def new_heads(
    lm_head: nn.Linear, *, count: int, layers: int = HEAD_LAYERS, own_output: bool = True
) -> MedusaHeads:
    """Heads for training: every one starts as a copy of the language-model head."""
    vocab, hidden = lm_head.weight.shape
    heads = MedusaHeads(count=count, layers=layers, hidden=hidden, vocab=vocab, own_output=own_output)
    heads.start_from(lm_head)
    return heads.to(device=lm_head.weight.device, dtype=lm_head.weight.dtype)
