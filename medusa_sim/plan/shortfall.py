"""Memory that is missing for a batch and length, and changes that would make them fit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from medusa_sim.errors import MedusaSimError
from medusa_sim.gpus.gpu import load_gpu
from medusa_sim.gpus.gpu_names import gpu_names
from medusa_sim.scenario.defaults import request_length
from medusa_sim.scenario.scenario import Scenario
from medusa_sim.serving.traffic import served_length
from medusa_sim.step.memory import NO_DRAFTER, MemoryParts, memory_parts
from medusa_sim.step.step import decode_step
from medusa_sim.units import BYTES_PER_ELEMENT

_MOST_CHANGES = 3
"""Changes that are listed."""
_NARROWER = {"fp8": 1.0, "int4": 0.5}
"""Formats of weights to try, with the bytes of an element."""
_NARROWER_FILES = {"llama.cpp": ("Q8_0", "Q4_K_M"), "mlx": ("8bit", "4bit")}
"""Types of file instead, of engines that read those; in the same order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One change with which what was asked fits. option: as a command takes it; bytes of one GPU."""

    option: str
    needed_bytes: float
    usable_bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortfall:
    """A batch and length that do not fit even without speculation: bytes of one GPU, and what would fit."""

    batch: int
    seq_len: int
    parts: MemoryParts
    usable_bytes: float
    changes: tuple[Change, ...]

    @property
    def needed_bytes(self) -> float:
        """Weights, KV cache and activations of the plain step."""
        return float(self.parts.total)


def shortfall(scenario: Scenario, batch: int, seq_len: int) -> Shortfall | None:
    """Memory that is missing for a batch and length, with a few changes that would fit; None where they fit.

    Every change was tried: a smaller batch or context, narrower weights or KV cache, more GPUs, another GPU,
    several of another.
    """
    asked = _Asked(scenario, batch, seq_len)
    parts, usable = _plain_memory(asked), scenario.usable_memory_bytes
    if scenario.scope == "block" or float(parts.total) <= usable:
        return None
    least = (next(filter(None, kind), None) for kind in _kinds_of_changes(asked))
    changes = tuple(islice(filter(None, least), _MOST_CHANGES))
    return Shortfall(batch=batch, seq_len=seq_len, parts=parts, usable_bytes=usable, changes=changes)


@dataclass(frozen=True, slots=True)
class _Asked:
    """A batch and length of a scenario."""

    scenario: Scenario
    batch: int
    seq_len: int

    def tried(self, option: str, **changes: Any) -> Change | None:
        """The same with some arguments of the scenario changed; None where that is not enough."""
        try:
            other = replace(self, scenario=self.scenario.but(**changes)) if changes else self
            needed, usable = float(_plain_memory(other).total), other.scenario.usable_memory_bytes
            if needed > usable:
                return None
            decode_step(other.scenario.setting, 1, 1)
        except MedusaSimError:  # it cannot be run, or the GPU lacks every kernel of a format
            return None
        return Change(option=option, needed_bytes=needed, usable_bytes=usable)


def _plain_memory(asked: _Asked) -> MemoryParts:
    """Bytes that a plain step of requests in flight keeps on one GPU."""
    scenario = asked.scenario
    cached = served_length(scenario.setting, asked.seq_len, scenario.traffic)
    return memory_parts(scenario.shard, NO_DRAFTER, asked.batch, cached, 1)


def _kinds_of_changes(asked: _Asked) -> Iterator[Iterator[Change | None]]:
    """Each kind of change with its alternatives, the least first; None: not enough."""
    scenario, tried = asked.scenario, asked.tried
    folder = scenario.arguments.data_dir
    gpus = sorted((load_gpu(name, folder) for name in gpu_names(folder)), key=lambda gpu: gpu.memory_bytes)
    larger = [gpu for gpu in gpus if gpu.memory_bytes > scenario.gpu.memory_bytes]
    tps = [tp for tp in (2, 4, 8, 16) if tp > scenario.parallel.tp]
    forms = _NARROWER_FILES.get(scenario.runtime.library, tuple(_NARROWER))
    yield _largest(1, asked.batch, lambda batch: replace(asked, batch=batch).tried(f"--batch {batch}"))
    yield (
        tried(f"--weight-dtype {form}", weight_dtype=form)
        for form, size in zip(forms, _NARROWER.values(), strict=True)
        if size < BYTES_PER_ELEMENT[scenario.model.weight_dtype]
    )
    yield (tried(f"--tp {tp}", tp=tp) for tp in tps)
    yield (tried(f"--gpu {gpu.name}", gpu=gpu.name) for gpu in larger)
    if scenario.model.kv_dtype != "fp8":
        yield iter([tried("--kv-dtype fp8", kv_dtype="fp8")])
    yield _shorter(asked)
    yield (
        tried(f"--gpu {gpu.name} --tp {tp}", gpu=gpu.name, tp=tp)
        for tp in tps
        for gpu in larger
        if tried(f"--gpu {gpu.name}", gpu=gpu.name) is None  # one is enough: do not try several
    )
    yield (tried(f"--weight-dtype {forms[-1]} --tp {tp}", weight_dtype=forms[-1], tp=tp) for tp in tps)


def _shorter(asked: _Asked) -> Iterator[Change | None]:
    """A shorter context, down to what requests hold half way; where it is theirs, shorter prompts."""
    scenario, traffic = asked.scenario, asked.scenario.traffic
    longest = min(asked.seq_len, scenario.model.max_seq_len + 1)
    if traffic is None or longest > scenario.length:
        least = 1 if traffic is None else scenario.length
        return _largest(least, longest, lambda n: replace(asked, seq_len=n).tried(f"--seq {n}"))

    def with_prompt(tokens: int) -> Change | None:
        shorter = replace(asked, seq_len=request_length(tokens, traffic.output_tokens))
        option = f"--prompt-tokens {tokens} --output-tokens {traffic.output_tokens:g}"
        return shorter.tried(option, prompt_tokens=tokens)

    return _largest(1, int(traffic.prompt_tokens), with_prompt)


def _largest(low: int, high: int, fits: Callable[[int], Change | None]) -> Iterator[Change | None]:
    """The largest whole number from `low` on below `high` that fits."""
    if fits(low) is None:
        return
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    yield fits(low)
