"""What every page is about: arguments of a scenario by names, and the same as options of a command."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import uploads

from medusa_sim import data
from medusa_sim.acceptance.profile import CURVE_HEADS
from medusa_sim.engines.runtime import UNTIMED, load_runtime, runtime_aliases
from medusa_sim.errors import UsageError, shown
from medusa_sim.export import ENGINES
from medusa_sim.export.engines import METHODS
from medusa_sim.gpus.gpu import load_gpu
from medusa_sim.models.model import Model
from medusa_sim.models.named import load_model, model_names
from medusa_sim.report.words.scenario import formats_text
from medusa_sim.scenario.arguments import ARGUMENTS, Arguments, words_of
from medusa_sim.scenario.declare import FLAG, NUMBER, WHOLE, Argument
from medusa_sim.scenario.defaults import (
    DEFAULT_DRAFTER,
    DEFAULT_GPU,
    DEFAULT_MODEL,
    DEFAULT_SEQ_LEN,
    KERNELS_ALONE,
    LOAD_OUTPUT_TOKENS,
    LOAD_PROMPT_TOKENS,
    default_drafter,
    request_length,
)
from medusa_sim.step.drafter import drafter_class, drafter_names

_KERNELS = ("tp", "ep", "dtype", "weight_dtype", "kv_dtype")
"""Arguments besides GPU, model and engine that decide the kernels of a step."""
OWN_MODEL = "my file: config.json, GGUF"
SHIPPED, DEFAULT = "as shipped", "default"
"""Of an acceptance and of other arguments, where the input says nothing."""
POINT = " · "
_SMALL = "llama-68m"
"""Drafts where nothing is known of the model."""
NO_ENGINE = "json"
"""Name of the export with settings for the user's own code."""
REQUEST = {"prompt": LOAD_PROMPT_TOKENS, "output_tokens": LOAD_OUTPUT_TOKENS}
"""Parameters that say the request, from which the context follows, and what they are untyped."""


@dataclass(frozen=True, slots=True)
class Preset:
    """A set-up to start from. words: parameters of its link; about: what it is, below its answer."""

    name: str
    about: str
    words: dict[str, str | int]


PRESETS = (
    Preset("Chat on one H100", "Llama-3.1-8B, EAGLE-3, vLLM",
           {"gpu": "h100-sxm", "model": "llama-3.1-8b", "drafter": "eagle3"}),
    Preset("DeepSeek-R1 on 8 H200", "MTP, SGLang",
           {"gpu": "h200-sxm", "model": "deepseek-r1", "drafter": "mtp",
            "runtime": load_runtime("sglang").name, "tp": 8}),
    Preset("My Mac", "Qwen3-8B in 4 bits, M4 Max, llama.cpp",
           {"gpu": "m4-max", "model": "qwen3-8b", "drafter": "draft-model", "draft_model": "qwen3-0.6b",
            "runtime": "llama.cpp-metal", "weight_dtype": "q4_k_m", "acceptance": "0.7"}),
    Preset("Agents at 100k tokens", "Llama-3.3-70B, EAGLE-3, 4 H200",
           {"gpu": "h200-sxm", "model": "llama-3.3-70b", "drafter": "eagle3", "tp": 4,
            "prompt": 100_000, "output_tokens": 500, "batch": 4}),
    Preset("The Medusa paper", "Vicuna-7B, trees of 5 heads, A100",
           {"gpu": DEFAULT_GPU, "model": DEFAULT_MODEL, "drafter": DEFAULT_DRAFTER}),
)  # fmt: skip
"""Each with its answer on its GPU, at its `batch` (1 where it says none)."""
OPENS = PRESETS[0].words
"""What the app opens on, and what every input is where a link says nothing of it."""
GPU, MODEL, DRAFTER = (str(OPENS[name]) for name in ("gpu", "model", "drafter"))
_OWN_INPUTS: dict[str, str | int | bool | None] = {
    "runtime": None, "gpu": GPU, "model": MODEL, "drafter": DRAFTER, "heads": CURVE_HEADS,
    "draft_model": None, "acceptance": SHIPPED, "tp": 1, "ep": False,
}  # fmt: skip
"""Arguments whose inputs are more than their declarations, and what these are where nothing is said."""
MORE = [each for each in ARGUMENTS.values() if each.label and each.name not in _OWN_INPUTS]
"""Arguments whose inputs follow from their declarations."""


def _unsaid(argument: Argument) -> str | bool | None:
    """What the input of an argument holds where nothing is said."""
    if argument.type is FLAG:
        return bool(argument.default)
    if argument.choices:
        return DEFAULT
    return None if argument.type in (WHOLE, NUMBER) else ""


INPUTS = {**_OWN_INPUTS, **{each.name: _unsaid(each) for each in MORE}, **dict.fromkeys(REQUEST), "seq": None}
"""Every input of the bar by its parameter, and what it holds where nothing is said."""


@dataclass(frozen=True, kw_only=True)
class PageArguments(Arguments):
    """Arguments of a scenario as the inputs of a page say them, and a length. A key of every cache.

    runtime: of the version that runs; by the drafter where none is given. request: prompt and output tokens
    where they were said. is_step: a length was asked about and no request, so that steps without prompts are
    priced. config: an uploaded config.json, or the start of a GGUF file, in the place of the model's name.
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
    request: tuple[int, int] | None = None
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
        return KERNELS_ALONE if self.is_untimed else self.engine

    @property
    def without_engine(self) -> bool:
        """Whether no serving engine runs it."""
        return not self.is_untimed and load_runtime(self.engine).engine is None

    @property
    def export(self) -> str:
        """The name under which launch settings are written."""
        return next((name for name in ENGINES if self.engine.startswith(name)), NO_ENGINE)

    @property
    def given(self) -> dict[str, Any]:
        """The arguments of the scenario, those at their defaults left out."""
        return {**self.changed, "model": self.model_given, "runtime": self.launched}

    @property
    def options(self) -> list[str]:
        """The same set-up as options of `medusa-sim recommend`."""
        return [*words_of(self.given), "--seq", str(self.seq_len)]

    @property
    def kernel_options(self) -> list[str]:
        """What decides the kernels of a step, GPU apart, and the length."""
        return [*self._options("model", "runtime", *_KERNELS), "--seq", str(self.seq_len)]

    @property
    def load_options(self) -> list[str]:
        """The same set-up as options of `medusa-sim load`, which has no one length and no trees."""
        return self._options(*(name for name in self.given if name != "chain_only"))

    def _options(self, *names: str) -> list[str]:
        return words_of({name: value for name, value in self.given.items() if name in names})

    @cached_property
    def model_given(self) -> str:
        """The model's name, or the file of one that was measured on this device."""
        return measured_models(self.gpu).get(self.model, self.model)

    @property
    def cards(self) -> str:
        """`h200-sxm`; `8 x h200-sxm`."""
        return self.gpu if self.tp == 1 else f"{self.tp} x {self.gpu}"

    @property
    def line(self) -> str:
        """All of it on one line, the model first."""
        model, *drafting = self.drafted.split(POINT)
        parts = [model, *formats_text(self), self.cards, self.engine, *drafting, f"context {self.seq_len:,}"]
        return POINT.join(parts)

    @property
    def drafted(self) -> str:
        """Model, drafter and acceptance: what is given where GPUs and engines are searched."""
        acceptance = [] if self.acceptance is None else [f"acceptance {self.acceptance}"]
        return POINT.join([self.model, self.drafter, *acceptance])

    @property
    def title(self) -> str:
        """`vicuna-7b on a100-80gb-pcie`, with the engine where there is one."""
        engine = "" if self.without_engine else f" under {self.engine}"
        return f"{self.model} on {self.cards}{engine}"


def drafters_of(engine: str) -> tuple[str, ...]:
    """Drafting methods that an engine has."""
    if engine in UNTIMED:
        return tuple(METHODS[engine])
    terms = load_runtime(engine).engine
    return drafter_names() if terms is None else terms.drafters


def drafter_of(engine: str | None) -> str:
    """What drafts where none is named."""
    return default_drafter(None if engine is None else drafters_of(engine))


def set_up_of(words: Mapping[str, Any], config: bytes | None = None) -> PageArguments:
    """The set-up that parameters of a link name, or inputs of the bar by the same names.

    Values may be text; None and what is left out are what the app opens on. Raises UsageError for what no
    argument takes.
    """
    said = {name: value for name, value in words.items() if value not in (None, "", SHIPPED, DEFAULT)}
    gpu, model = (str(said.get(name, OPENS[name])) for name in ("gpu", "model"))
    runtime = str(said.get("runtime", ""))
    runtime = runtime_aliases().get(runtime, runtime)
    known = (DRAFTER,) if not runtime else drafters_of(runtime)
    drafter = str(said.get("drafter", DRAFTER if DRAFTER in known else drafter_of(runtime)))
    tp = _whole(said, "tp") or 1
    prompt, output = (_whole(said, name) for name in REQUEST)
    usual = [int(tokens) for tokens in REQUEST.values()]
    request = (prompt or usual[0], output or usual[1])
    is_asked = prompt is not None or output is not None
    typed = _whole(said, "seq")
    kind = drafter_class(drafter)
    heads = _whole(said, "heads") if kind.unit == "head" else None
    draft = (said.get("draft_model") or draft_for(model)) if kind.takes_draft_model else None
    more = {each.name: _typed(each, said[each.name]) for each in MORE if each.name in said}
    more["dtype"] = more.get("dtype") or dtype_of(gpu)
    is_whole = str(said.get("ep", "")).lower() in ("true", str(tp)) and tp > 1
    return PageArguments(
        gpu=gpu, model=model if config is None else uploads.called(config),
        runtime=runtime or default_engine(drafter), drafter=drafter,
        seq_len=request_length(*request) if typed is None else typed,
        request=request if is_asked else None, is_step=typed is not None and not is_asked,
        heads=None if heads == CURVE_HEADS else heads, draft_model=draft, acceptance=said.get("acceptance"),
        config=config, tp=tp, ep=tp if is_whole else 1, **more,
    )  # fmt: skip


def _whole(said: Mapping[str, Any], name: str) -> int | None:
    try:
        return int(said[name]) if name in said else None
    except ValueError:
        raise UsageError(f"{name} {shown(str(said[name]))}: a whole number is needed") from None


def _typed(argument: Argument, value: Any) -> Any:
    """A value of a link as its argument takes it."""
    if not isinstance(value, str):
        return value
    if argument.type is FLAG:
        return value.lower() == "true"
    if argument.type not in (WHOLE, NUMBER):
        return value
    try:
        return int(value) if argument.type is WHOLE else float(value)
    except ValueError:
        raise UsageError(f"{argument.label} {shown(value)}: a number is needed") from None


def dtype_of(gpu: str) -> str | None:
    """The only dtype that a device was measured in; None where there are several."""
    measured = {dtype for kernels in load_gpu(gpu).kernels.values() for dtype in kernels.linear}
    return measured.pop() if len(measured) == 1 else None


def draft_for(model: str) -> str:
    """The model that drafts for another where none is chosen."""
    return drafts_for(load_model(model))[0] if model in model_names() else _SMALL


def drafts_for(target: Model) -> tuple[str, ...]:
    """Models with the vocabulary of another: smaller ones first, then its family, then by size."""

    def order(each: Model) -> tuple[bool, bool, float]:
        is_of_family = each.name.partition("-")[0] == target.name.partition("-")[0]
        return each.weight_bytes >= target.weight_bytes, not is_of_family, each.weight_bytes

    alike = [each for each in map(load_model, model_names()) if each.vocab == target.vocab]
    return tuple(each.name for each in sorted(alike, key=order))


def default_engine(drafter: str) -> str:
    """The runtime of a drafter where none is named, by its version."""
    return load_runtime(drafter_class(drafter).default_runtime).name


def measured_models(gpu: str) -> dict[str, str]:
    """Models whose steps were measured on that very device, and their files as one would type them."""
    folder = data.find("profiles/decoder", gpu)
    configs = sorted(folder.glob("*/config.json")) if folder is not None else []
    return {path.parent.name: from_here(path) for path in configs}


def from_here(path: Path) -> str:
    """As one would type it in the folder that the app was started in."""
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)
