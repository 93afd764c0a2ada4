"""Goal of a comparison and the choices that a set-up leaves open, for the command line and Python."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, inf
from typing import Any, Literal

from medusa_sim.errors import UsageError, shown
from medusa_sim.scenario.arguments import ARGUMENTS
from medusa_sim.scenario.declare import FLAG, NUMBER, WHOLE, Declared, Type, argument
from medusa_sim.scenario.defaults import LOAD_OUTPUT_TOKENS, LOAD_PROMPT_TOKENS, request_length
from medusa_sim.units import KILO

Measure = Literal["cost", "throughput", "energy"]
COLUMN: dict[Measure, str] = {
    "cost": "usd_per_million_tokens",
    "throughput": "tokens_per_s_per_gpu",
    "energy": "joule_per_token",
}
"""Column of each measure."""
BATCHES = (
    1, 2, 3, 4, 6, 8, 12, 16, 20, 24, 32, 40, 48, 64, 80, 96, 128, 160, 192, 224, 256, 320, 384, 448, 512,
)  # fmt: skip
"""Requests in one copy of the model that are tried."""
DRAFTS = (1, 2, 3, 5)
"""Draft lengths that are tried: those that recipes of engines use."""
SURE, SURER = 0.7, 0.9
"""Least probability of meeting the requested speed, and a stricter one that is reported too."""
_MOST = 10**9
"""Of any number that is asked."""
MOST_RATE = 10**6
"""Requests a second: more than all that is served anywhere."""
NAMES = Type("names", (tuple,))
SIZES = Type("whole numbers", (tuple,))
"""Fields that are lists; Python takes a single value too."""
_REQUESTS, _ASKED, _CHOICES = "Requests", "What is asked for", "What may be chosen"
GPUS = (1, 2, 4, 8)
"""GPUs of one copy of the model that are tried."""
FP8, AUTO = "fp8", "auto"
"""The cache that every engine here has beside the published one, and that one's name."""


@dataclass(frozen=True, kw_only=True)
class SetupQuestion(Declared):
    """Traffic, limits and goal of a comparison.

    rate or users fix the traffic; without either a copy is full. measure: what is to be saved; None: cost
    where every named GPU has a price, else throughput. Raises UsageError for what makes no sense.
    """

    prompt_tokens: float = argument(
        LOAD_PROMPT_TOKENS, NUMBER, "Mean prompt.", _REQUESTS, least=1, most=_MOST
    )
    output_tokens: float = argument(
        LOAD_OUTPUT_TOKENS, NUMBER, "Mean output.", _REQUESTS, least=1, most=_MOST
    )
    ttft_ms: float | None = argument(
        None, NUMBER, "Limit of the time to the first token.", _ASKED, above=0, most=_MOST
    )
    tpot_ms: float | None = argument(
        None, NUMBER, "Limit of a request's mean time per token.", _ASKED, above=0, most=_MOST
    )
    e2e_ms: float | None = argument(
        None, NUMBER, "Limit of a request's whole time.", _ASKED, above=0, most=_MOST
    )
    tokens_per_s_per_user: float | None = argument(
        None, NUMBER, "Least tokens a second of one user [no limit].", _ASKED, above=0, most=_MOST
    )
    sure: float = argument(
        SURE, NUMBER, "Required probability of meeting the speed target.", _ASKED,
        least=0.01, most=0.99,
    )  # fmt: skip
    rate: float | None = argument(
        None, NUMBER, "Requests a second, of all copies together.", _REQUESTS, above=0, most=MOST_RATE
    )
    users: int | None = argument(
        None, WHOLE, "Requests at once, of all copies.", _REQUESTS, least=1, most=_MOST
    )
    measure: Measure | None = argument(
        None,
        Measure,
        "What the best set-up saves [cost; throughput a GPU where a named GPU has no price].",
        _ASKED,
    )
    batches: tuple[int, ...] = argument(
        BATCHES, SIZES, f"Requests of one copy that are tried [1 to {BATCHES[-1]}].", _ASKED,
        option="--batch", names="batch",
    )  # fmt: skip
    drafts: tuple[int, ...] = argument(
        DRAFTS, SIZES, f"Draft lengths [{','.join(map(str, DRAFTS))}].", _ASKED, names="drafts"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.rate is not None and self.users is not None:
            raise UsageError("a rate and a number of users each fix the traffic: give one of them")
        if self.output_tokens <= 1.0:
            raise UsageError("set-ups are ranked by the time between tokens: outputs of 1 have none; give 2")
        _check_sizes(self, "batches", "drafts")

    @property
    def tried(self) -> tuple[int, ...]:
        """Batches of a copy that are priced: users are shared out evenly among the copies that hold them."""
        if self.users is None:
            return self.batches
        return tuple(sorted({ceil(self.users / ceil(self.users / size)) for size in self.batches}))

    @property
    def seq_len(self) -> int:
        """Committed tokens of a request half way through its output."""
        return request_length(self.prompt_tokens, self.output_tokens)

    @property
    def slowest_tpot_us(self) -> float:
        """The stricter of the two limits on the time per token; infinite without one."""
        by_time = inf if self.tpot_ms is None else self.tpot_ms * KILO
        by_rate = inf if self.tokens_per_s_per_user is None else 1e6 / self.tokens_per_s_per_user
        return float(min(by_time, by_rate))


def list_argument(argument_name: str, help_: str, names: str, **more: Any) -> Any:
    """A field for several values of an argument; by its own option, unless `more` says another."""
    one = ARGUMENTS[argument_name]
    kind = SIZES if one.type is WHOLE else NAMES
    return argument(None, kind, help_, _CHOICES, names=names, **{"option": one.option, **more})


@dataclass(frozen=True, kw_only=True)
class SetupChoices(Declared):
    """Values that may be chosen; None: all that the model, the GPUs and the engines allow."""

    gpus: tuple[str, ...] | None = list_argument("gpu", "GPUs [all of data centres].", "gpus")
    counts: tuple[int, ...] | None = list_argument(
        "tp", f"GPUs of one copy [{','.join(map(str, GPUS))}].", "counts", option="--gpus"
    )
    weight_dtypes: tuple[str, ...] | None = list_argument(
        "weight_dtype", "Precision of the weights [as published, fp8 and nvfp4].", "formats"
    )
    kv_dtypes: tuple[str, ...] | None = list_argument(
        "kv_dtype",
        f"KV cache, {AUTO},{FP8} for both everywhere [{AUTO}, as published; {FP8} where that has no room].",
        "caches",
    )
    engines: tuple[str, ...] | None = list_argument(
        "runtime", "Engines [vllm, sglang and tensorrt-llm].", "engines", option="--engine"
    )
    drafters: tuple[str, ...] | None = list_argument(
        "drafter",
        "What proposes drafts, `none` among them [none and those whose acceptance on this model is known].",
        "drafters",
    )
    eps: tuple[int, ...] | None = list_argument("ep", "Groups of experts [1 and all GPUs].", "counts")
    dp_attention: bool | None = argument(
        None, FLAG,
        "Each GPU has sequences of its own in attention [both, where the model has latent attention].",
        _CHOICES, option="--dp-attention/--no-dp-attention",
    )  # fmt: skip

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_sizes(self, "counts", "eps")


def _check_sizes(record: Declared, *names: str) -> None:
    for name in names:
        given = getattr(record, name)
        if given is not None and (not given or min(given) < 1):
            raise UsageError(f"{name} {given}: at least one whole number from 1 is needed")


def prices_of(given: str | None) -> float | dict[str, float] | None:
    """Dollars per GPU-hour: `2.5`, or by GPU `h100-sxm=2.5,b200=5`. Raises UsageError for anything else."""
    if given is None:
        return None
    try:
        if "=" not in given:
            return float(given)
        pairs = [part.split("=") for part in given.split(",")]
        return {gpu.strip(): float(usd) for gpu, usd in pairs}
    except ValueError:
        raise UsageError(
            f"--price {shown(given)}: dollars per GPU-hour, 2.5, or by GPU, h100-sxm=2.5,b200=5"
        ) from None
