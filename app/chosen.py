"""What every page is about: a scenario by names, and the same as options of the command line."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from medusa_sim import data
from medusa_sim.export import ENGINES
from medusa_sim.plan import DEFAULT_DRAFTER, DEFAULT_GPU, DEFAULT_MODEL, DEFAULT_SEQ_LEN
from medusa_sim.plan.arguments import ARGUMENTS, words_of
from medusa_sim.plan.insights import LIMIT
from medusa_sim.specs.runtime import UNTIMED, load_runtime
from medusa_sim.step.drafter import drafter_kind

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


@dataclass(frozen=True, slots=True, kw_only=True)
class SetUp:
    """A scenario by names, as the command line takes them: a key of every cache.

    acceptance: a profile's name, one rate, rates by position or a mean length; None for what ships.
    config: an uploaded config.json in the place of a model's name. engine: by the drafter where none is
    named.
    """

    gpu: str = GPU
    model: str = MODEL
    engine: str = ""
    seq_len: int = DEFAULT_SEQ_LEN
    drafter: str = DRAFTER
    heads: int | None = None
    draft_model: str | None = None
    acceptance: str | None = None
    config: bytes | None = None
    dtype: str | None = None
    weight_dtype: str | None = None
    kv_dtype: str | None = None
    tp: int = 1
    ep: int = 1

    def __post_init__(self) -> None:
        if not self.engine:
            object.__setattr__(self, "engine", default_engine(self.drafter))

    @property
    def runtime(self) -> str:
        """How kernels are launched, and what the engine adds to them."""
        return LIMIT if self.engine in UNTIMED else self.engine

    @property
    def own_code(self) -> bool:
        """Whether no serving engine runs it."""
        return self.engine not in UNTIMED and load_runtime(self.engine).engine is None

    @property
    def chain_only(self) -> bool:
        """Whether the engine verifies chains alone, so that no tree's number may be shown for it."""
        return self.engine in UNTIMED or load_runtime(self.engine).chain_only

    @property
    def export(self) -> str:
        """The name under which launch settings are written."""
        return next((name for name in ENGINES if self.engine.startswith(name)), NO_ENGINE)

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments of the scenario; the engine always, since commands differ in it."""
        first = {"gpu": self.gpu, "model": self.model_given}
        same = ("runtime", "drafter", "chain_only", "heads", "draft_model", "acceptance", "dtype",
                "weight_dtype", "kv_dtype", "tp", "ep")  # fmt: skip
        return first | {name: getattr(self, name) for name in same}

    @property
    def options(self) -> list[str]:
        """The same set-up as options of `medusa-sim recommend`."""
        return [*self._options(), "--seq", str(self.seq_len)]

    @property
    def kernel_options(self) -> list[str]:
        """What decides the kernels of a step, GPU apart, and the length."""
        return [*self._options("model", "runtime", *_KERNELS), "--seq", str(self.seq_len)]

    @property
    def load_options(self) -> list[str]:
        """The same set-up as options of `medusa-sim load`, which has no one length and no trees."""
        return self._options(*(name for name in self.arguments if name != "chain_only"))

    def _options(self, *names: str) -> list[str]:
        """Arguments as options, those that answers depend on always, of these names (none: of all).

        The app opens on another set-up than a command that names none: what it is about is always said.
        """
        of = {name: value for name, value in self.arguments.items() if not names or name in names}
        always, unsaid = ("gpu", "model", "runtime", "drafter"), (None, False)
        return words_of({
            name: value for name, value in of.items()
            if name in always or value not in (*unsaid, ARGUMENTS[name].default)
        })  # fmt: skip

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
