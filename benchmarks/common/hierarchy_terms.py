"""What `hierarchy.py` fits: terms of engines, the part of a step each works on, and levels with spreads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

MANY = 8
"""GPUs from which small layers split over all of them run other kernels than on a few."""
REFERENCE = ("bf16", "hopper", "dense", "new", "few", "fused")
"""Where terms were fitted by other rows: nothing deviates there."""
OWN_HOST = ("vllm",)
"""Engines whose host was fitted by other rows."""
HOST = {
    "sglang": {"host_us_per_step": 134.0, "host_us_per_request": 5.0},
    "trtllm": {"host_us_per_step": 200.0, "host_us_per_request": 5.0},
}
"""What the host of the others is drawn to: published rounds of SGLang; a guess."""


@dataclass(frozen=True)
class Effect:
    """A term: the part of a step that it is a factor on or (plus) is charged for; spreads by level.

    but: engines in which it was fitted elsewhere. of_first: of first tokens alone. of_seen: what a
    generation adds is written for the forms of models that showed it (vLLM's recipe for Llama-70B on a B200
    has graphs of decoding alone; those of other models have the default's).
    """

    term: str
    part: str
    spreads: dict[str, float]
    plus: bool = False
    but: tuple[str, ...] = ()
    of_first: bool = False
    of_seen: bool = False

    @property
    def levels(self) -> list[tuple[tuple[str, ...], float]]:
        """Columns of cells that tell the places of a level, and its spread."""
        return [(tuple(columns.split()), spread) for columns, spread in self.spreads.items()]


EFFECTS = (
    Effect("linear_share", "linear", {
        "weights": 0.025, "generation weights": 0.08, "engine weights": 0.05,
        "engine generation weights": 0.04, "engine version weights": 0.08,
    }),
    Effect("attention_share", "attention", {
        "engine": 0.05, "engine generation": 0.05, "engine form": 0.075, "engine generation form": 0.075,
    }, but=OWN_HOST),
    Effect("experts_share", "experts", {
        "experts_in": 0.1, "generation experts_in": 0.2, "engine experts_in": 0.1,
        "engine generation experts_in": 0.12, "engine gpus experts_in": 0.1,
    }),
    Effect("exchange_share", "exchange", {"engine": 0.1, "engine generation": 0.1, "engine gpus": 0.1}),
    Effect("prompt_share", "prompt", {
        "engine": 0.05, "engine generation": 0.075, "layers_of": 0.3, "engine version": 0.1,
    }),
    Effect("kernels_share", "kernels", {"engine version form": 0.1}),
    Effect("host_us_per_step", "steps", {
        "engine": 100.0, "engine generation": 150.0, "engine form": 100.0,
    }, plus=True, but=OWN_HOST),
    Effect("host_us_per_request", "requests", {
        "engine": 1.5, "engine generation": 1.5,
    }, plus=True, but=OWN_HOST),
    Effect("prompt_us_per_layer", "prompt_layers", {
        "engine": 35.0, "engine generation": 55.0,
    }, plus=True, of_seen=True),
    Effect("load_test_us", "tests", {
        "every": 50_000.0, "form": 50_000.0, "engine": 20_000.0, "engine generation": 8_000.0,
    }, plus=True, of_first=True),
    Effect("layer_us", "layers_shared", {"engine": 2.0, "engine generation": 2.0}, plus=True),
    Effect("experts_us_per_layer", "expert_layers", {
        "engine experts_by": 20.0, "engine experts_by experts_in": 20.0,
        "engine version experts_by experts_in": 40.0,
    }, plus=True),
    Effect("expert_parallel_us_per_layer", "spread_layers", {"engine experts_in": 20.0}, plus=True),
)  # fmt: skip
SHARES = tuple(effect.term for effect in EFFECTS if not effect.plus)


class Grouped(NamedTuple):
    """Where TensorRT-LLM groups the products of experts: a generation of GPUs and a format of experts.

    splits: whether attention is split over requests. is_old: before 1.2 alone. None: either, or any.
    """

    generation: str
    experts_in: str | None
    splits: bool | None
    is_old: bool


GROUPED = (
    Grouped("hopper", "mxfp4", None, is_old=False),  # TRITON, of gpt-oss
    Grouped("blackwell", "fp8_block", splits=False, is_old=True),  # DEEPGEMM; recipes of InferenceX
    Grouped("blackwell", None, splits=True, is_old=False),  # CUTLASS, DEEPGEMM
)
"""No two hold for one set-up."""
