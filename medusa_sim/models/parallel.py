"""Several GPUs for one model: tensor parallelism, expert parallelism, data-parallel attention.

    vLLM      --tensor-parallel-size 8 [--enable-expert-parallel]    Parallel(tp=8, ep=1 or 8)
    SGLang    --tp 8 [--ep 8] --enable-dp-attention --dp 8     Parallel(tp=8, ep=1 or 8, dp_attention=True)

Every GPU runs the same kernels on its share of the weights, so that one of them is again a `Model`: fewer
heads, narrower MLPs and experts, a part of the vocabulary (`models.variants`). What they exchange is added by
the workload. Pipeline parallelism is not modelled.
"""

from __future__ import annotations

from dataclasses import dataclass

from medusa_sim.errors import UsageError

LARGEST = 1024
"""GPUs of one model at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parallel:
    """How many GPUs share a model, and how."""

    tp: int = 1
    """GPUs."""
    ep: int = 1
    """Groups among which whole experts are split, each expert over tp / ep GPUs."""
    dp_attention: bool = False
    """Whether every GPU has attention of other sequences, with its weights on all of them."""

    def __post_init__(self) -> None:
        """Refuse numbers that do not go together. Raises UsageError."""
        for name, value in (("tp", self.tp), ("ep", self.ep)):
            if not 1 <= value <= LARGEST:
                raise UsageError(f"{name} {value}: whole numbers from 1 to {LARGEST} are allowed")
        if self.tp % self.ep:
            raise UsageError(
                f"ep {self.ep} does not divide tp {self.tp}, the number of GPUs (as SGLang counts); give "
                f"--tp {self.ep} --ep {self.ep}, or an --ep that divides {self.tp}"
            )
        if self.dp_attention and self.ep not in (1, self.tp):
            raise UsageError(
                f"ep {self.ep} with data-parallel attention over {self.tp} GPUs; allowed: 1 or {self.tp}"
            )

    @property
    def attention_tp(self) -> int:
        """GPUs that share the heads of one sequence."""
        return 1 if self.dp_attention else self.tp

    @property
    def expert_tp(self) -> int:
        """GPUs that share the width of one expert."""
        return self.tp // self.ep

    @property
    def schedulers(self) -> int:
        """Hosts that schedule, draft and sample for a share of the requests each."""
        return self.tp if self.dp_attention else 1

    @property
    def exchanges_experts(self) -> bool:
        """Whether tokens are sent to the GPUs of their experts (else every GPU has all tokens)."""
        return self.dp_attention and self.ep > 1

    @property
    def ways(self) -> str:
        """`tp 8, ep 8, data-parallel attention`."""
        ways = [f"tp {self.tp}"]
        ways += [f"ep {self.ep}"] if self.ep > 1 else []
        ways += ["data-parallel attention"] if self.dp_attention else []
        return ", ".join(ways)

    def __str__(self) -> str:
        """`8 GPUs (tp 8, ep 8)`; `1 GPU`."""
        return "1 GPU" if self.tp == 1 else f"{self.tp} GPUs ({self.ways})"


ONE = Parallel()


def share(model: str, what: str, size: int, parts: int) -> int:
    """`size` of one of `parts` GPUs. Raises UsageError naming the numbers that divide it."""
    if size % parts:
        raise UsageError(f"{model}: {what} ({size}) cannot be split over tp {parts}; {divisors(size, 'tp')}")
    return size // parts


def copied_share(model: str, what: str, size: int, groups: int, parts: int) -> int:
    """As `share`, of what several GPUs hold together where it does not divide; groups: that divide anyway."""
    if size % parts == 0:
        return size // parts
    if parts % size == 0:
        return 1
    raise UsageError(
        f"{model}: {size} {what} can be neither split nor copied over tp {parts}; {divisors(groups, 'tp')}"
    )


def divisors(size: int, option: str) -> str:
    """`choose --tp 1, 2, 4`: numbers of GPUs that divide a size."""
    fits = [str(parts) for parts in (1, 2, 3, 4, 5, 6, 7, 8, 16, 32, 64, 128) if size % parts == 0]
    return f"choose --{option} {', '.join(fits)}"
