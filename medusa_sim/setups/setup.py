"""Set-ups: what a model, a GPU and an engine allow together, and why they refuse the rest."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from medusa_sim.data import DataDir
from medusa_sim.engines.runtime import runtime_aliases
from medusa_sim.errors import UsageError
from medusa_sim.gpus.gpu_names import gpu_names
from medusa_sim.models.feed_forwards import MoE
from medusa_sim.models.mixers import Latent
from medusa_sim.models.model import Model
from medusa_sim.setups.question import AUTO, FP8, GPUS, SetupChoices
from medusa_sim.units import FORMATS, HALVES, format_of, format_text

NO_DRAFTER = "none"
"""The drafter of a set-up that does not speculate."""
ENGINES = tuple(runtime_aliases())
"""Servers: names of engines without a version."""
_OTHERS = ("cpu-", "rtx-", "gb10", "h20-", "h800-", "a10g")
"""How names of GPUs begin that are compared where they are named alone: a workstation's, a processor's, and
those that nobody measured a kernel of and that few can choose.
"""
SET_UP = (
    "gpu", "tp", "ep", "dp_attention", "precision", "kv_precision", "engine", "drafter"
)  # fmt: skip
"""Columns that name what is launched; a drafter with several draft lengths is one set-up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SetUp:
    """One copy of the model on `tp` GPUs. precision: of the weights, a name of `units.FORMATS`.

    kv_precision: None as the model is published; narrows_cache: or narrower where that holds too few
    requests. drafters: those to try on the same GPUs, `none` among them. unpacks: weights alone have the
    precision where the GPU has no arithmetic for it, as that precision was asked for by name.
    """

    gpu: str
    tp: int
    ep: int
    dp_attention: bool
    precision: str
    kv_precision: str | None
    engine: str
    drafters: tuple[str, ...]
    narrows_cache: bool = False
    unpacks: bool = False

    def arguments(self, model: Model) -> dict[str, Any]:
        """As `scenario.scenario.Scenario` takes it, without model and drafter."""
        given: dict[str, Any] = {
            "gpu": self.gpu,
            "runtime": self.engine,
            "tp": self.tp,
            "ep": self.ep,
            "dp_attention": self.dp_attention,
            "kv_dtype": self.kv_precision,
        }
        if self.precision != model.precision:
            form = FORMATS[self.precision]
            weight_only = form.dtype in HALVES and form.weight_dtype != form.dtype
            given["dtype"] = model.activation_dtype if weight_only else form.dtype
            given["weight_dtype"] = form.weight_dtype
        return given

    @property
    def words(self) -> str:
        """`8 x h200-sxm, TP 8, EP 8, fp8 in blocks, sglang`."""
        return name_of({name: getattr(self, name) for name in SET_UP[:-1]} | {"gpus": self.tp})


def name_of(row: Mapping[Any, Any]) -> str:
    """`8 x h200-sxm, TP 4, EP 4, fp8 in blocks, sglang`: all GPUs of a row first."""
    ways = [f"TP {row['tp']}"] if row["tp"] > 1 else []
    ways += [f"EP {row['ep']}"] if row["ep"] > 1 else []
    ways += ["data-parallel attention"] if row["dp_attention"] else []
    cache = ["KV in fp8"] if row["kv_precision"] == FP8 else []
    ways += [format_text(row["precision"]), *cache, row["engine"]]
    return ", ".join([f"{row['gpus']} x {row['gpu']}", *ways])


def precisions(model: Model, given: Sequence[str] | None) -> tuple[str, ...]:
    """Names of formats: those given, else the model's own, fp8 and nvfp4.

    Raises UsageError for an unknown name.
    """
    published = model.precision
    usual = (published, *(("fp8",) if published in HALVES else ()), "nvfp4")
    return tuple(dict.fromkeys(usual if given is None else (_named(model, name) for name in given)))


def _named(model: Model, name: str) -> str:
    try:
        form = format_of(name).key
    except ValueError as error:
        raise UsageError(str(error)) from None
    return model.precision if {form, model.precision} <= set(HALVES) else form


def caches(model: Model, given: Sequence[str] | None) -> tuple[str | None, ...]:
    """Precisions of the KV cache, each once; None: as the model is published."""
    published = model.kv_dtype or model.activation_dtype
    return tuple(dict.fromkeys(None if name in (AUTO, published) else name for name in given or (AUTO,)))


def setups(
    model: Model, choices: SetupChoices, drafters: Sequence[str], data_dir: DataDir = None
) -> Iterator[SetUp]:
    """Every set-up worth pricing, GPUs outermost; what cannot be is for the scenario to refuse.

    Experts are spread over the GPUs or not, and attention is data-parallel with them, only in mixtures of
    experts.
    """
    has_experts, latent = bool(model.blocks(MoE)), bool(model.blocks(Latent))
    of_data_centres = [name for name in gpu_names(data_dir) if not name.startswith(_OTHERS)]
    for gpu, tp, precision, kv, engine in product(
        choices.gpus or of_data_centres,
        choices.counts or GPUS,
        precisions(model, choices.weight_dtypes),
        caches(model, choices.kv_dtypes),
        choices.engines or ENGINES,
    ):
        eps = choices.eps or ((1, tp) if has_experts and tp > 1 else (1,))
        for ep in dict.fromkeys(eps):
            ways = (False, True) if latent and ep == tp > 1 else (False,)
            for dp in ways if choices.dp_attention is None else (bool(choices.dp_attention and tp > 1),):
                yield SetUp(
                    gpu=gpu, tp=tp, ep=ep, dp_attention=dp, precision=precision, kv_precision=kv,
                    engine=engine, drafters=tuple(drafters), narrows_cache=choices.kv_dtypes is None,
                    unpacks=choices.weight_dtypes is not None,
                )  # fmt: skip
