"""What every page is about: a scenario by names, and the same as options of the command line."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from medusa_sim import data
from medusa_sim.export import ENGINES
from medusa_sim.export.engines import METHODS
from medusa_sim.plan import DEFAULT_DRAFTER, DEFAULT_GPU, DEFAULT_MODEL, DEFAULT_SEQ_LEN, default_drafter
from medusa_sim.plan.arguments import Arguments, words_of
from medusa_sim.plan.insights import LIMIT
from medusa_sim.specs.runtime import UNTIMED, load_runtime
from medusa_sim.step.drafter import drafter_kind, drafter_names

_KERNELS = ("tp", "ep", "dtype", "weight_dtype", "kv_dtype")
"""Arguments beside GPU, model and engine that decide the kernels of a step."""
OWN_MODEL = "my config.json"
_POINT = " · "
NO_ENGINE = "json"
"""What settings for code of one's own are written as."""


PRESETS: dict[str, dict[str, str | int]] = {
    "8B on one H100, EAGLE-3": {"gpu": "h100-sxm", "model": "llama-3.1-8b", "drafter": "eagle3"},
    "R1 on 8 H200, MTP": {
        "gpu": "h200-sxm", "model": "deepseek-r1", "drafter": "mtp", "runtime": load_runtime("sglang").name,
        "tp": 8,
    },
    "Vicuna-7B on one A100, Medusa's trees": {
        "gpu": DEFAULT_GPU, "model": DEFAULT_MODEL, "drafter": DEFAULT_DRAFTER,
    },
    "my own": {"model": OWN_MODEL},
}  # fmt: skip
"""Set-ups to start from, by the parameters of their links."""
OPENS = next(iter(PRESETS.values()))
"""What the app opens on, and what every input is where a link says nothing of it."""
GPU, MODEL, DRAFTER = (str(OPENS[name]) for name in ("gpu", "model", "drafter"))


@dataclass(frozen=True, kw_only=True)
class SetUp(Arguments):
    """What the inputs of a page say: arguments of a scenario, and a length. A key of every cache.

    runtime: of the version that runs; by the drafter where none is given. is_step: a length was asked about
    and no request, so that steps without prompts are priced. config: an uploaded config.json in the place of
    the model's name.
    """

    always: ClassVar[tuple[str, ...]] = ("gpu", "model", "runtime", "drafter")
    """The app opens on another set-up than a command that names none: what it is about is always said."""

    if TYPE_CHECKING:  # names, never loaded objects
        gpu: str = ""
        model: str = ""
        runtime: str | None = None
        drafter: str = ""
        draft_model: str | None = None
        acceptance: str | None = None
    seq_len: int = DEFAULT_SEQ_LEN
    is_step: bool = False
    config: bytes | None = None

    def __post_init__(self) -> None:
        if not self.drafter:
            object.__setattr__(self, "drafter", drafter_of(self.runtime))
        if self.runtime is None:
            object.__setattr__(self, "runtime", default_engine(self.drafter))
        if self.chain_only is None and (self.is_untimed or load_runtime(self.engine).chain_only):
            object.__setattr__(self, "chain_only", True)  # no tree's number may be shown for it
        super().__post_init__()

    @property
    def engine(self) -> str:
        """The engine that was chosen, by its version."""
        return str(self.runtime)

    @property
    def is_untimed(self) -> bool:
        """Whether nothing is known of the engine's time between kernels."""
        return self.engine in UNTIMED

    @property
    def launched(self) -> str:
        """The runtime that its steps are priced with."""
        return LIMIT if self.is_untimed else self.engine

    @property
    def own_code(self) -> bool:
        """Whether no serving engine runs it."""
        return not self.is_untimed and load_runtime(self.engine).engine is None

    @property
    def export(self) -> str:
        """The name under which launch settings are written."""
        return next((name for name in ENGINES if self.engine.startswith(name)), NO_ENGINE)

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments of the scenario, those at their defaults left out."""
        return {**self.changed, "model": self.model_given, "runtime": self.launched}

    @property
    def options(self) -> list[str]:
        """The same set-up as options of `medusa-sim recommend`."""
        return [*words_of(self.arguments), "--seq", str(self.seq_len)]

    @property
    def kernel_options(self) -> list[str]:
        """What decides the kernels of a step, GPU apart, and the length."""
        return [*self._options("model", "runtime", *_KERNELS), "--seq", str(self.seq_len)]

    @property
    def load_options(self) -> list[str]:
        """The same set-up as options of `medusa-sim load`, which has no one length and no trees."""
        return self._options(*(name for name in self.arguments if name != "chain_only"))

    def _options(self, *names: str) -> list[str]:
        return words_of({name: value for name, value in self.arguments.items() if name in names})

    @property
    def model_given(self) -> str:
        """The model's name, or the file of one that was measured on this device."""
        return measured_models(self.gpu).get(self.model, self.model)

    @property
    def line(self) -> str:
        """All of it on one line, the model first."""
        cards = f"{self.tp} x {self.gpu}" if self.tp > 1 else self.gpu
        dtypes = [
            f"{value} {what}".strip()
            for what, value in (("", self.dtype), ("weights", self.weight_dtype), ("KV", self.kv_dtype))
            if value
        ]
        model, *drafting = self.drafted.split(_POINT)
        parts = [model, *dtypes, cards, self.engine, *drafting, f"context {self.seq_len:,}"]
        return _POINT.join(parts)

    @property
    def drafted(self) -> str:
        """Model, drafter and acceptance: what is given where cards and engines are searched."""
        acceptance = [] if self.acceptance is None else [f"acceptance {self.acceptance}"]
        return _POINT.join([self.model, self.drafter, *acceptance])

    @property
    def title(self) -> str:
        """`vicuna-7b on a100-80gb-pcie`, with the engine where there is one."""
        engine = "" if self.own_code else f" under {self.engine}"
        cards = self.gpu if self.tp == 1 else f"{self.tp} x {self.gpu}"
        return f"{self.model} on {cards}{engine}"


def drafters_of(engine: str) -> tuple[str, ...]:
    """Drafting methods that an engine has."""
    if engine in UNTIMED:
        return tuple(METHODS[engine])
    terms = load_runtime(engine).engine
    return drafter_names() if terms is None else terms.drafters


def drafter_of(engine: str | None) -> str:
    """What drafts where none is named."""
    return default_drafter(None if engine is None else drafters_of(engine))


def default_engine(drafter: str) -> str:
    """The runtime of a drafter where none is named, by its version."""
    return load_runtime(drafter_kind(drafter).default_runtime).name


def measured_models(gpu: str) -> dict[str, str]:
    """Models whose steps were measured on that very device, and their files as one would type them."""
    folder = data.find("profiles/decoder", gpu)
    configs = sorted(folder.glob("*/config.json")) if folder is not None else []
    return {path.parent.name: from_here(path) for path in configs}


def from_here(path: Path) -> str:
    """As one would type it in the folder that the app was started in."""
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)
