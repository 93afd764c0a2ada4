"""What may be chosen of a set-up, declared once for the command line and Python."""

from __future__ import annotations

from dataclasses import dataclass

from medusa_sim.errors import UsageError, shown
from medusa_sim.plan.arguments import FLAG, Declared, argument
from medusa_sim.setups.question import NAMES, SIZES

GPUS = (1, 2, 4, 8)
"""GPUs of one copy of the model that are tried."""
FP8, AUTO = "fp8", "auto"
"""The cache that every engine here has beside the published one, and that one's name."""
_CHOICES = "What may be chosen"


@dataclass(frozen=True, kw_only=True)
class Choices(Declared):
    """What may be chosen; None: what the model, the cards and the engines allow."""

    gpus: tuple[str, ...] | None = argument(
        None, NAMES, "Cards [all of data centres].", _CHOICES, option="--gpu", names="cards"
    )
    counts: tuple[int, ...] | None = argument(
        None, SIZES, f"GPUs of one copy [{','.join(map(str, GPUS))}].", _CHOICES, option="--gpus",
        names="counts",
    )  # fmt: skip
    weight_dtypes: tuple[str, ...] | None = argument(
        None, NAMES, "Precision of the weights [as published, fp8 and nvfp4].", _CHOICES,
        option="--weight-dtype", names="formats",
    )  # fmt: skip
    kv_dtypes: tuple[str, ...] | None = argument(
        None, NAMES,
        f"Precision of the KV cache, {AUTO},{FP8} for both at every batch [{AUTO}, as published; {FP8} for "
        "batches beyond what that holds].",
        _CHOICES, option="--kv-dtype", names="caches",
    )  # fmt: skip
    engines: tuple[str, ...] | None = argument(
        None, NAMES, "Engines [vllm, sglang and tensorrt-llm].", _CHOICES, option="--engine", names="engines"
    )
    drafters: tuple[str, ...] | None = argument(
        None, NAMES,
        "What proposes drafts, `none` among them [none and those whose acceptance on this model is known].",
        _CHOICES, option="--drafter", names="drafters",
    )  # fmt: skip
    eps: tuple[int, ...] | None = argument(
        None, SIZES, "Groups of experts [1 and all GPUs].", _CHOICES, option="--ep", names="counts"
    )
    dp_attention: bool | None = argument(
        None, FLAG,
        "Attention of other sequences on every GPU [both, where latent attention allows it].",
        _CHOICES, option="--dp-attention/--no-dp-attention",
    )  # fmt: skip

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("counts", "eps"):
            given = getattr(self, name)
            if given is not None and (not given or min(given) < 1):
                raise UsageError(f"{name} {given}: at least one whole number from 1 is needed")


def prices_of(given: str | None) -> float | dict[str, float] | None:
    """Dollars per GPU-hour: `2.5`, or by card `h100-sxm=2.5,b200=5`. Raises UsageError for anything else."""
    if given is None:
        return None
    try:
        if "=" not in given:
            return float(given)
        pairs = [part.split("=") for part in given.split(",")]
        return {gpu.strip(): float(usd) for gpu, usd in pairs}
    except ValueError:
        raise UsageError(
            f"--price {shown(given)}: dollars per GPU-hour, 2.5, or by card, h100-sxm=2.5,b200=5"
        ) from None
