"""What every page is about, and the inputs in the sidebar that say it: the engine first."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import inputs
import show
import streamlit as st
from chosen import (
    DRAFTER,
    GPU,
    MODEL,
    OWN_MODEL,
    SetUp,
    default_engine,
    drafter_of,
    drafters_of,
    measured_models,
)

from medusa_sim.acceptance.profile import acceptance_names
from medusa_sim.errors import MedusaSimError, SpecError, UsageError, names_meant, shown
from medusa_sim.plan import LOAD_OUTPUT_TOKENS, LOAD_PROMPT_TOKENS, request_length
from medusa_sim.plan.acceptance import CONDITIONAL
from medusa_sim.plan.argument import FLAG, NUMBER, WHOLE, Argument
from medusa_sim.plan.arguments import ARGUMENTS
from medusa_sim.plan.insights import LIMIT
from medusa_sim.report.text import with_prefix
from medusa_sim.specs.gpu import gpu_names, load_gpu
from medusa_sim.specs.models import load_model, model_names
from medusa_sim.specs.runtime import UNTIMED, load_runtime, runtime_aliases, runtime_names
from medusa_sim.step.drafter import drafter_kind, drafter_names, drafters

SHIPPED = "as shipped"
DEFAULT = "default"
"""Of an argument, where the input says nothing."""
_TYPED = (
    "a measured profile of the list, one rate (0.7), the share of steps that accept each draft "
    "(0.78,0.60,0.42), rates given that the draft before was accepted (conditional:0.78,0.77,0.70) or a mean "
    "length with its drafts (2.8@3)"
)
_AN_ID = "meta-llama/Llama-3.1-8B-Instruct"
_RATES = re.compile(rf"({CONDITIONAL})?[0-9.,@ ]+")
_NEWEST = tuple(runtime_aliases().values())
RUNS_ON = (
    *_NEWEST, *(name for name in runtime_names() if name not in (*_NEWEST, "paper", "kernel")), "kernel",
    *UNTIMED,
)  # fmt: skip
"""The newest of each engine first: what is typed finds it before older ones. `paper` has no kernels for a
whole step; its figures are on the page Evidence."""
GPUS = (1, 2, 4, 8, 16)
_LARGEST_SEQ_LEN = 131_072
REQUEST = {"prompt": LOAD_PROMPT_TOKENS, "output_tokens": LOAD_OUTPUT_TOKENS}
"""Inputs of a page that say its request, from which the context follows, and what they are untyped."""
_SMALL = "llama-68m"
"""Drafts where nothing is known of the model."""
_HEADS = 5
"""Heads of every shipped profile."""
LABEL = {name: each.label for name, each in ARGUMENTS.items()}
OWN: dict[str, str | int | bool | None] = {
    "runtime": None, "gpu": GPU, "model": MODEL, "drafter": DRAFTER, "heads": _HEADS, "draft_model": None,
    "acceptance": SHIPPED, "tp": 1, "ep": False,
}  # fmt: skip
"""Arguments whose inputs are more than their declarations, and what these are where nothing is said."""
MORE = [each for each in ARGUMENTS.values() if each.label and each.name not in OWN]
"""Arguments whose inputs follow from their declarations."""


def set_up(where: Any, *, searched: bool = False) -> SetUp:
    """The shared inputs, in the sidebar; searched: the page looks for card and engine, which are put away."""
    known = inputs.now("drafter")
    given = where.container()
    away = where.expander("Engine, GPU, context: of the other pages") if searched else given
    engine = engine_choice(away, default_engine(known if known in drafter_names() else DRAFTER))
    gpu = gpu_choice(away)
    model = model_choice(given, gpu)
    config = _own_config(given) if model == OWN_MODEL else None
    followed = _length()
    help_text = (
        f"Committed tokens before the step: a request's prompt and half its output, else {followed:,}."
    )
    label = "Context (tokens)"
    typed = inputs.perhaps(away, "seq", label, 1, _LARGEST_SEQ_LEN, help_text, empty=f"{followed:,}")
    seq_len = followed if typed is None else typed
    drafter = drafter_choice(given, engine)
    heads: int | None = None
    draft_model = None
    if drafter_kind(drafter).unit == "head":
        help_text = "Trained; fewer may be run."
        trained = inputs.whole(given, "heads", LABEL["heads"], 1, _HEADS, _HEADS, help_text)
        heads = None if trained == _HEADS else trained
    if drafter_kind(drafter).takes_draft_model:
        help_text = "A smaller model of the same family and vocabulary."
        first = _draft_for(model) if model in model_names() else _SMALL
        draft_model = inputs.choice(
            given, "draft_model", LABEL["draft_model"], model_names(), first, help_text
        )
    acceptance = acceptance_choice(given, drafter)
    tp = inputs.step_of(away, "tp", LABEL["tp"], GPUS, 1, "They share the model by tensor parallelism.")
    with away if searched else given.expander("More"):
        whole_experts = tp > 1 and inputs.on_off(
            st, "ep", LABEL["ep"], False, "Expert parallelism, for mixtures of experts."
        )
        more = {each.name: of_argument(st, each) for each in MORE}
    if model is None:
        _which_model()
    more["dtype"] = more["dtype"] or dtype_of(gpu)
    return SetUp(
        gpu=gpu, model=str(model) if config is None else "config.json", runtime=engine, seq_len=seq_len,
        is_step=typed is not None and not any(map(inputs.now, REQUEST)),
        drafter=drafter, heads=heads, draft_model=draft_model, acceptance=acceptance, config=config,
        tp=tp, ep=tp if whole_experts else 1, **more,
    )  # fmt: skip


def of_argument(where: Any, argument: Argument) -> Any:
    """The input of an argument as it is declared: what it may be, its range, its label and help."""
    name, label, help_text = argument.name, argument.label, show.in_words(argument.help)
    if argument.type is FLAG:
        is_on = inputs.on_off(where, name, label, bool(argument.default), help_text)
        return argument.default if is_on == bool(argument.default) else is_on
    if argument.choices:
        chosen = inputs.choice(where, name, label, (DEFAULT, *argument.choices), DEFAULT, help_text)
        return argument.default if chosen == DEFAULT else chosen
    if argument.type not in (WHOLE, NUMBER):
        return inputs.text(where, name, label, "", help_text, empty=DEFAULT) or argument.default
    unsaid = DEFAULT if argument.default is None else f"{argument.default:g}"
    if argument.type is WHOLE:
        low, high = int(argument.least or 0), int(argument.most or _MOST)
        given: float | None = inputs.perhaps(where, name, label, low, high, help_text, empty=unsaid)
    else:
        least, most = float(argument.least or 0.0), float(argument.most or _MOST)
        given = inputs.amount(where, name, label, most, None, help_text, low=least, empty=unsaid)
    return argument.default if given is None else given


_MOST = 10**9
"""Of a number that may be as large as one likes."""


def unsaid(argument: Argument) -> str | bool | None:
    """What the input of an argument holds where nothing is said."""
    if argument.type is FLAG:
        return bool(argument.default)
    if argument.choices:
        return DEFAULT
    return None if argument.type in (WHOLE, NUMBER) else ""


def _length() -> int:
    """Committed tokens where none are typed: half way through the page's request."""
    typed = {name: str(inputs.now(name)) for name in REQUEST}
    prompt, output = (
        int(typed[name]) if typed[name].isdecimal() else usual for name, usual in REQUEST.items()
    )
    return request_length(prompt, output)


def runs_trees() -> bool:
    """Whether the engine that is chosen verifies trees, before it is drawn."""
    drafter, engine = st.session_state.get("drafter"), st.session_state.get("runtime")
    drafter, engine = drafter or st.query_params.get("drafter"), engine or st.query_params.get("runtime")
    engine = runtime_aliases().get(engine or "", engine)
    if engine not in RUNS_ON:
        engine = default_engine(drafter if drafter in drafter_names() else DRAFTER)
    return not SetUp(runtime=engine).chain_only


def take(preset: Mapping[str, str | int | None]) -> None:
    """Set every input to a preset, or to its default where that says nothing: the callback of a button."""
    defaults = OWN | {each.name: unsaid(each) for each in MORE} | {"seq": None}
    del defaults["draft_model"]  # it follows the model
    defaults["runtime"] = default_engine(str(preset.get("drafter", DRAFTER)))
    said = {name: value for name, value in preset.items() if value is not None}
    for name, value in (defaults | said).items():
        if name in preset or name in st.session_state:
            st.session_state[name] = value


def engine_choice(where: Any, default: str) -> str:
    """A serving engine, or how code of one's own launches its kernels."""
    help_text = (
        "What runs it. cuda-graph, hf-eager: code of your own, which may verify any tree. Serving engines "
        "verify chains of drafts, some of them trees, and add time of their own to a step. Only what the "
        "engine can run is recommended."
    )
    chosen = inputs.choice(where, "runtime", LABEL["runtime"], RUNS_ON, default, help_text)
    untimed = f"Its time between kernels is not known: kernels alone ({LIMIT}) are counted."
    where.caption(untimed if chosen in UNTIMED else load_runtime(chosen).title)
    return chosen


def cards() -> tuple[str, ...]:
    """Every card, those of today's data centres first."""
    return tuple(sorted(gpu_names(), key=lambda name: (_KINDS.index(_kind(name)), name)))


_KINDS = ("data centre", "data centre, older", "workstation or consumer", "measured here")
_BEGIN = {"rtx-": 2, "cpu-": 3, "a100-": 1, "a40-": 1, "l4-": 1}
"""How names of other cards than those of today's data centres begin, and the place of their kind."""


def _kind(gpu: str) -> str:
    """By its name alone: reading the files of all cards would keep the first answer waiting."""
    return _KINDS[next((place for begin, place in _BEGIN.items() if f"{gpu}-".startswith(begin)), 0)]


def card_text(gpu: str) -> str:
    """`80 GiB, 3.35 TB/s`."""
    card = load_gpu(gpu)
    return f"{card.memory_bytes / 2**30:.0f} GiB, {with_prefix(card.bandwidth_bytes_per_s, 'B/s')}"


def gpu_choice(where: Any) -> str:
    """A GPU that is known."""
    help_text = "Data centre first, then older, consumer, and devices measured here."
    chosen = inputs.choice(where, "gpu", LABEL["gpu"], cards(), GPU, help_text)
    where.caption(f"{_kind(chosen).capitalize()}: {card_text(chosen)}")
    return chosen


def model_choice(where: Any, gpu: str) -> str | None:
    """A model by name or Hugging Face id, one measured on the device, or the user's own; None: none such.

    What is typed and begins one name alone is that one.
    """
    options = (*measured_models(gpu), *model_names(), OWN_MODEL)
    help_text = (
        "Sizes decide the time of a step. Pick a name, type a Hugging Face id "
        f"({_AN_ID}), or upload your own config.json: the last entry."
    )
    if (taken := st.session_state.pop(_TAKEN, None)) is not None:
        st.session_state["model"], st.session_state[_TYPED_AS] = taken[1], taken
    chosen = inputs.choice(where, "model", LABEL["model"], options, MODEL, help_text, typed=True)
    typed, name = st.session_state.get(_TYPED_AS, ("", ""))
    if chosen == name:
        where.caption(f"Typed as {show.escaped(shown(typed))}")
    if chosen in options:
        return chosen
    # What is typed is never looked for on the disk: the app may be open to others.
    try:
        name = load_model(chosen, on_disk=False).name
    except SpecError:
        begin = [name for name in model_names() if name.startswith(_as_named(chosen))]
        if len(begin) != 1:
            return None
        name = begin[0]
    if name in options:
        st.session_state[_TAKEN] = chosen, name
        st.rerun()
    return name


_TAKEN, _TYPED_AS = "model_taken", "model_typed_as"


def _as_named(typed: str) -> str:
    return "-".join(typed.lower().split())


def _which_model() -> None:
    """Ask which model is meant by what was typed, on the page: the sidebar is folded away on a phone."""
    typed = str(st.session_state["model"])
    near = names_meant(_as_named(typed), model_names())
    st.title("Which model?", anchor=False)
    is_id = typed.count("/") == 1
    st.warning(
        f"No model is known as {show.escaped(shown(typed))}. Pick another, type a Hugging Face id such as "
        f"{_AN_ID}, or upload its config.json" + (", which holds all that is asked of it." if is_id else ".")
    )
    with st.container(horizontal=True):
        for name in (*near, OWN_MODEL):
            label = "Upload its config.json" if name == OWN_MODEL else name
            st.button(label, on_click=st.session_state.update, args=({"model": name},))
    st.stop()


def _draft_for(model: str) -> str:
    """The smallest model with the vocabulary of another, of its family where that has a smaller one."""
    target, family = load_model(model), model.partition("-")[0]
    alike = [each for each in map(load_model, model_names()) if each.vocab == target.vocab]
    alike = [each for each in alike if each.weight_bytes < target.weight_bytes] or alike
    return min(alike, key=lambda each: (each.name.partition("-")[0] != family, each.weight_bytes)).name


def drafter_choice(where: Any, engine: str) -> str:
    """What drafts: of the methods that the engine has; what commands take where it lacks the app's own."""
    options = tuple(method for method in drafter_names() if method in drafters_of(engine))
    first = DRAFTER if DRAFTER in options else drafter_of(engine)
    return inputs.choice(where, "drafter", LABEL["drafter"], options, first, "What proposes the candidates.")


def acceptance_choice(where: Any, drafter: str) -> str | None:
    """A profile, or rates as the user types them; None for what ships."""
    profiles = profiles_of(drafter)
    options = (SHIPPED, *profiles)
    help_text = (
        f"How often drafts are accepted: {_TYPED}. It depends on model, drafter and prompts: measure yours."
    )
    chosen = inputs.choice(where, "acceptance", LABEL["acceptance"], options, SHIPPED, help_text, typed=True)
    if chosen == SHIPPED:
        return None
    # What is typed is never opened as a file: the app may be open to others.
    if chosen not in profiles and not _RATES.fullmatch(chosen):
        raise UsageError(f"Acceptance {chosen[:40]!r}: give {_TYPED}")
    return chosen


def profiles_of(drafter: str) -> tuple[str, ...]:
    """Profiles that may be of this drafter: those of no other."""
    others = [kind for name, kind in drafters().items() if name != drafter]
    own = drafter_kind(drafter).profiles
    claimed = tuple(prefix for kind in others for prefix in kind.profiles if prefix not in own)
    return tuple(name for name in acceptance_names() if not name.startswith(claimed))


def dtype_of(gpu: str) -> str | None:
    """The only dtype that a device was measured in; None where there are several."""
    measured = {dtype for kernels in load_gpu(gpu).kernels.values() for dtype in kernels.linear}
    return measured.pop() if len(measured) == 1 else None


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
