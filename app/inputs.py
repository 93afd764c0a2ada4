"""Widgets whose values live in the URL, and the inputs that every page shares.

A widget's key is its parameter in the URL; at its default a parameter is left out. Streamlit drops values
that a widget does not allow; `ignored` finds them, so that the page can say so.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import streamlit as st

from medusa_sim.acceptance.profile import acceptance_names
from medusa_sim.errors import MedusaSimError
from medusa_sim.plan.defaults import DEFAULT_DRAFTER, DEFAULT_GPU, DEFAULT_MODEL, DEFAULT_RUNTIME
from medusa_sim.specs.gpu import gpu_names, load_gpu
from medusa_sim.specs.models import model_names
from medusa_sim.specs.runtime import runtime_names
from medusa_sim.step.drafter.registry import drafter_kind, drafter_names

SHIPPED = "as shipped for the model"
OWN_MODEL = "my config.json"
PUBLISHED = "as published"
RUNTIMES = tuple(name for name in runtime_names() if name != "paper")
"""`paper` has no kernels for a whole step; its figures are on the page Validation."""
DTYPES = (PUBLISHED, "fp16", "bf16", "fp32", "fp8", "int8")
DEFAULT_HEADS = 5
_SEEN = "url_as_opened"
_LARGEST_SEQ_LEN = 131_072


def _opened() -> dict[str, str]:
    """URL parameters as they were when the page was opened, before widgets drop what they do not allow."""
    held: dict[str, str] | None = st.session_state.get(_SEEN)
    if held is None:
        held = {name: ",".join(st.query_params.get_all(name)) for name in st.query_params}
        st.session_state[_SEEN] = held
    return held


def _checked(name: str, allowed: Callable[[str], bool], told: str) -> None:
    """Note a URL value that the widget is about to drop."""
    given = _opened().pop(name, None)
    if given is not None and not allowed(given):
        notes: list[str] = st.session_state.setdefault("ignored", [])
        notes.append(f"{name}={given[:40]} ({told})")


def ignored() -> list[str]:
    """URL parameters that were not allowed or that no widget of this page has; told once."""
    unknown = [f"{name} (this page has no such input)" for name in _opened()]
    _opened().clear()
    return [*st.session_state.pop("ignored", []), *unknown]


def choice(
    where: Any,
    name: str,
    label: str,
    options: Sequence[str],
    default: str,
    help_: str,
) -> str:
    """One of several, as a list to pick from; what is shown is what the link holds."""
    _checked(name, lambda given: given in options, f"known are {', '.join(options[:4])}, ...")
    chosen: str = where.selectbox(
        label,
        options,
        index=list(options).index(default),
        key=name,
        help=help_,
        bind="query-params",
    )
    return chosen


def whole(where: Any, name: str, label: str, low: int, high: int, default: int, help_: str) -> int:
    """A whole number on a slider; the only one where there is no other."""
    if low == high:
        _opened().pop(name, None)
        where.caption(f"{label}: {low}")
        return low
    _checked(name, lambda given: _between(given, low, high), f"whole numbers {low} to {high}")
    return int(where.slider(label, low, high, default, key=name, help=help_, bind="query-params"))


def number(where: Any, name: str, label: str, low: int, high: int, default: int, help_: str) -> int:
    """A whole number to type."""
    _checked(name, lambda given: _between(given, low, high), f"whole numbers {low} to {high}")
    return int(where.number_input(label, low, high, default, key=name, help=help_, bind="query-params"))


def step_of(where: Any, name: str, label: str, options: Sequence[int], default: int, help_: str) -> int:
    """One of a few whole numbers, on a slider."""
    _checked(name, lambda given: given in {str(option) for option in options}, f"one of {options}")
    return int(where.select_slider(label, list(options), default, key=name, help=help_, bind="query-params"))


def on_off(where: Any, name: str, label: str, default: bool, help_: str) -> bool:
    """A switch."""
    _checked(name, lambda given: given in ("true", "false", "True", "False"), "true or false")
    return bool(where.toggle(label, default, key=name, help=help_, bind="query-params"))


def text(where: Any, name: str, label: str, default: str, help_: str) -> str:
    """A short text."""
    _opened().pop(name, None)
    return str(where.text_input(label, default, key=name, help=help_, bind="query-params", max_chars=2000))


def _between(given: str, low: int, high: int) -> bool:
    try:
        return low <= int(given) <= high
    except ValueError:
        return False


def gpu_choice(where: Any, name: str = "gpu", label: str = "GPU", default: str = DEFAULT_GPU) -> str:
    """A GPU that is known."""
    told = "A card with a file under hardware/, your own measured devices among them."
    return choice(where, name, label, gpu_names(), default, told)


def model_choice(
    where: Any, name: str = "model", label: str = "Model", default: str = DEFAULT_MODEL, *, own: bool = False
) -> str:
    """A model that is known, or the user's own config.json."""
    options = (*model_names(), OWN_MODEL) if own else model_names()
    told = "Sizes decide the time of a step. Your own Hugging Face config.json: the last entry."
    return choice(where, name, label, options, default, told)


def dtype_choice(where: Any, name: str = "dtype") -> str:
    """A dtype, or the model's own."""
    told = "Arithmetic of the linear layers. A device that was measured in one dtype alone takes that one."
    return choice(where, name, "Dtype", DTYPES, PUBLISHED, told)


def dtype_for(gpu: str, chosen: str) -> str | None:
    """The chosen dtype; where none is chosen, the one that a device was measured in, if it is only one."""
    if chosen != PUBLISHED:
        return chosen
    measured = {dtype for kernels in load_gpu(gpu).kernels.values() for dtype in kernels.linear}
    return measured.pop() if len(measured) == 1 else None


def acceptance_choice(where: Any, name: str = "acceptance", default: str = SHIPPED) -> str:
    """An acceptance profile, or the one that ships for the model."""
    told = "How often guesses are right: a measured profile. It depends on model and prompts; measure yours."
    return choice(where, name, "Acceptance", (SHIPPED, *acceptance_names()), default, told)


@dataclass(frozen=True, slots=True, kw_only=True)
class SetUp:
    """What every page is about; names as the command line takes them. rate: of chain drafters."""

    gpu: str
    model: str
    runtime: str
    seq_len: int
    drafter: str
    heads: int | None
    draft_model: str | None
    acceptance: str | None
    config: bytes | None = None
    dtype: str | None = None

    @property
    def options(self) -> list[str]:
        """The same set-up as options of `medusa-sim recommend`."""
        given = ["--gpu", self.gpu, "--model", self.model, "--seq", str(self.seq_len)]
        given += self.launch_options
        if self.drafter != "medusa":
            given += ["--drafter", self.drafter]
        elif self.heads is not None:
            given += ["--heads", str(self.heads)]
        if self.draft_model is not None:
            given += ["--draft-model", self.draft_model]
        if self.acceptance is not None:
            given += ["--acceptance", self.acceptance]
        return given

    @property
    def launch_options(self) -> list[str]:
        """Runtime and dtype as options, where they are not the default."""
        given = [] if self.runtime == DEFAULT_RUNTIME else ["--runtime", self.runtime]
        return given + self.dtype_options

    @property
    def dtype_options(self) -> list[str]:
        """The dtype as an option, where it is not the model's own."""
        return [] if self.dtype is None else ["--dtype", self.dtype]


def set_up(where: Any) -> SetUp:
    """The shared inputs, in the sidebar."""
    gpu = gpu_choice(where)
    model = model_choice(where, own=True)
    config = _own_config(where) if model == OWN_MODEL else None
    seq_len = number(
        where, "seq_len", "Context (tokens)", 1, _LARGEST_SEQ_LEN, 1024, "Committed tokens before the step."
    )
    drafter = choice(
        where, "drafter", "Drafter", drafter_names(), DEFAULT_DRAFTER, "What proposes the candidates."
    )
    heads: int | None = None
    draft_model = None
    if drafter == "medusa":
        told = "Trained heads; fewer may be run."
        trained = whole(where, "heads", "Medusa heads", 1, 5, DEFAULT_HEADS, told)
        heads = None if trained == DEFAULT_HEADS else trained
    if drafter == "draft-model":
        told = "A smaller model of the same family and vocabulary."
        draft_model = choice(where, "draft_model", "Draft model", model_names(), "llama-68m", told)
    acceptance = _acceptance(where, drafter)
    told = "How kernels are launched: CUDA graphs as serving engines do, or eager as Hugging Face does."
    with where.expander("More"):
        runtime = choice(st, "runtime", "Runtime", RUNTIMES, DEFAULT_RUNTIME, told)
        dtype = dtype_choice(st)
    return SetUp(
        gpu=gpu,
        model=model if config is None else "config.json",
        runtime=runtime,
        seq_len=seq_len,
        drafter=drafter,
        heads=heads,
        draft_model=draft_model,
        acceptance=acceptance,
        config=config,
        dtype=dtype_for(gpu, dtype),
    )


def _acceptance(where: Any, drafter: str) -> str | None:
    """A profile's name, or a rate; None for what ships."""
    if drafter_kind(drafter).lender is not None:
        chosen = acceptance_choice(where)
        return None if chosen == SHIPPED else chosen
    told = "Probability that a draft is accepted where the one before was; it has no shipped value."
    percents = whole(where, "rate", "Acceptance of a draft (%)", 5, 100, 70, told)
    return f"{percents / 100:g}"


def _own_config(where: Any) -> bytes | None:
    import uploads

    given = where.file_uploader(
        "config.json", type=["json"], key="config", help="Hugging Face config of your model; read, never run."
    )
    # On the page: the sidebar is folded away on a narrow screen.
    if given is None:
        st.title("Your own model", anchor=False)
        st.info("Upload its config.json in the sidebar, or pick another model there.")
        st.stop()
    try:
        return uploads.config_bytes(given.name, given.getvalue())
    except MedusaSimError:
        st.title("Your own model", anchor=False)
        raise
