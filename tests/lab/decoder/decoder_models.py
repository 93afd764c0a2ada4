"""Tiny models and an enumerator of random decisions, for the decoder's tests."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from medusa_sim.lab.decoder.config import DecoderConfig
from medusa_sim.lab.decoder.distributions import Draws
from medusa_sim.lab.decoder.heads import MedusaHeads, new_heads
from medusa_sim.lab.decoder.model import Llama, random_llama


def tiny_config(vocab: int = 13, **changes: object) -> DecoderConfig:
    values: dict[str, object] = {
        "vocab_size": vocab, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 512,
    }  # fmt: skip
    return DecoderConfig(**(values | changes))


def tiny_llama(
    vocab: int = 13,
    *,
    seed: int = 1,
    dtype: torch.dtype = torch.float64,
    std: float = 0.35,
    **changes: object,
) -> Llama:
    return random_llama(tiny_config(vocab, **changes), seed=seed, dtype=dtype, std=std)


def noisy_copy(model: Llama, *, seed: int = 2, noise: float = 0.3) -> Llama:
    """A draft that agrees with `model` often but not always."""
    generator = torch.Generator().manual_seed(seed)
    copy = Llama(model.config).to(model.dtype).eval().requires_grad_(requires_grad=False)
    for target, source in zip(copy.parameters(), model.parameters(), strict=True):
        wobble = torch.randn(source.shape, generator=generator, dtype=torch.float64).to(source.dtype)
        target.copy_(source * (1.0 + noise * wobble))
    return copy


def tiny_heads(model: Llama, *, count: int = 4, seed: int = 3, own_output: bool = True) -> MedusaHeads:
    """Heads that are sometimes right: the LM head with noise."""
    generator = torch.Generator().manual_seed(seed)
    heads = new_heads(model.lm_head, count=count, own_output=own_output)
    with torch.no_grad():
        for parameter in heads.parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter.add_(0.1 * noise.to(parameter.dtype))
    return heads.eval().requires_grad_(requires_grad=False)


def ragged_prompts(count: int, vocab: int, *, seed: int = 0, longest: int = 20) -> list[list[int]]:
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, longest + 1, (count,), generator=generator).tolist()
    return [torch.randint(0, vocab, (n,), generator=generator).tolist() for n in lengths]


class BiasedLlama(Llama):
    """A model whose law never has the tokens in `impossible`."""

    def __init__(self, base: Llama, impossible: tuple[int, ...]) -> None:
        super().__init__(base.config)
        self.to(base.dtype)
        self.load_state_dict(base.state_dict())
        self.eval().requires_grad_(requires_grad=False)
        bias = torch.zeros(base.config.vocab_size, dtype=base.dtype)
        bias[list(impossible)] = -torch.inf
        self.bias = bias

    def logits(self, hidden: Tensor) -> Tensor:
        return super().logits(hidden) + self.bias


class Enumerated(Draws):
    """Draws that follow a script and remember its probability; what the script leaves open is option 0.

    `outcomes` runs a function once for every possible script.
    """

    def __init__(self, script: list[int]) -> None:
        super().__init__(0)
        self.script, self.place = script, 0
        self.options: list[int] = []  # number of options at every decision made
        self.probability = 1.0

    def _choose(self, probabilities: list[float]) -> int:
        possible = [i for i, p in enumerate(probabilities) if p > 0.0]
        chosen = self.script[self.place] if self.place < len(self.script) else 0
        self.place += 1
        self.options.append(len(possible))
        self.probability *= probabilities[possible[chosen]]
        return possible[chosen]

    def happens(self, probability: float) -> bool:
        assert -1e-12 <= probability <= 1.0 + 1e-12
        return self._choose([min(probability, 1.0), max(1.0 - probability, 0.0)]) == 0

    def token(self, p: Tensor) -> int:
        assert float(p.min()) >= 0.0
        assert abs(float(p.sum()) - 1.0) < 1e-9
        return self._choose(p.tolist())

    def tokens_with_replacement(self, laws: Tensor, count: int) -> Tensor:
        return torch.tensor([[self.token(row) for _ in range(count)] for row in laws])

    def tokens_without_replacement(self, laws: Tensor, count: int) -> Tensor:
        rows = []
        for row in laws:
            left, drawn = row.clone(), []
            for _ in range(count):
                if float(left.sum()) <= 0.0:
                    drawn.append(-1)
                    continue
                drawn.append(self._choose((left / left.sum()).tolist()))
                left[drawn[-1]] = 0.0
            rows.append(drawn)
        return torch.tensor(rows)


def outcomes(run: Callable[[Enumerated], object]) -> Iterator[tuple[float, object]]:
    """(probability, result) of every way the random decisions inside `run` can fall."""
    script: list[int] = []
    while True:
        draws = Enumerated(script)
        yield_value = run(draws)
        yield draws.probability, yield_value
        script = (script + [0] * len(draws.options))[: len(draws.options)]
        while script and script[-1] + 1 >= draws.options[len(script) - 1]:
            script.pop()
        if not script:
            return
        script[-1] += 1
