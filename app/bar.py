"""The question that every page is about, in one bar on top: the model first, all of it applied together."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

import answers
import inputs
import link
import show
import streamlit as st
import uploads
from chosen import (
    DEFAULT,
    DRAFTER,
    GPU,
    INPUTS,
    MODEL,
    MORE,
    OWN_MODEL,
    REQUEST,
    SHIPPED,
    PageArguments,
    default_engine,
    draft_for,
    drafter_of,
    drafters_of,
    measured_models,
    set_up_of,
)
from inputs import Input

from medusa_sim.acceptance.profile import CURVE_HEADS, acceptance_names
from medusa_sim.engines.runtime import (
    UNTIMED,
    load_runtime,
    local_runtime_names,
    runtime_aliases,
    runtime_names,
)
from medusa_sim.errors import MedusaSimError, SpecError, UsageError, names_meant, shown
from medusa_sim.gpus.gpu import load_gpu
from medusa_sim.gpus.gpu_names import device_names, gpu_names, local_names
from medusa_sim.models.named import load_model, model_names
from medusa_sim.outside.limits import SENT_HEADER_BYTES
from medusa_sim.report.words.numbers import with_prefix
from medusa_sim.scenario.acceptance import CONDITIONAL, LETTERS, NUMBERS
from medusa_sim.scenario.declare import FLAG, NUMBER, WHOLE, Argument
from medusa_sim.scenario.defaults import KERNELS_ALONE, request_length
from medusa_sim.step.drafter import drafter_class, drafter_names, drafters

_TYPED = f"a measured profile of the list, {NUMBERS}"
_AN_ID = "meta-llama/Llama-3.1-8B-Instruct"
_RATES = re.compile(rf"({CONDITIONAL})?[{LETTERS}]+")
_NEWEST = tuple(runtime_aliases().values())
RUNS_ON = (
    *_NEWEST, *(name for name in runtime_names() if name not in (*_NEWEST, "paper", "kernel")), "kernel",
    *UNTIMED, *local_runtime_names(),
)  # fmt: skip
"""The newest of each engine first: what is typed finds it before older ones. `paper` has no kernels for a
whole step; its figures are on the page Evidence."""
GPUS = (1, 2, 4, 8, 16)
_LONGEST = 131_072
"""Tokens of a context, a prompt or an output."""
_OPENED = "bar_opened"
_LOCAL = local_runtime_names()
"""Engines that read files of weights in formats of their own."""
_MOST_OFFERED = 4
_MOST = 10**9
"""Of a number that may be as large as one likes."""
_OWN_CODE = {"cuda-graph": "own CUDA graph", "hf-eager": "own eager code", "kernel": "kernels, no engine"}
_BEGIN = {"rtx-": 2, "cpu-": 3, "a100-": 1, "a40-": 1, "l4-": 1}
"""How names of other GPUs than those of today's data centres begin, and the place of their kind: older,
consumer, measured here."""
_TAKEN, _TYPED_AS = "model_taken", "model_typed_as"


def set_up(where: Any, *, searched: bool = False, away: bool = False) -> PageArguments:
    """The shared inputs, as one bar; searched: the page looks for GPU and engine, which are put away.

    away: the page asks a question of its own; what was asked elsewhere is kept.

    A phone shows them as one line, which opens (`look.css`).
    """
    box = where.container(key="bar_away" if away else "bar")
    box.toggle(_line(searched=searched), key=_OPENED)
    form = box.form("question", border=True)
    row = form.container(key="asked_searched" if searched else "asked")
    more = form.expander("More", type="compact", key="bar_more").container(key="asked_more")
    of_card = more if searched else row
    known = link.value_of("drafter")
    drafter = known if known in drafter_names() else DRAFTER
    seen = str(link.value_of("gpu"))
    model = model_choice(row, seen if seen in device_names() else GPU)
    gpu = gpu_choice(of_card)
    of_tp = Input.of_argument("tp", "They share the model by tensor parallelism.")
    tp = inputs.pick(of_card, of_tp, GPUS, 1)
    engine = engine_choice(of_card, default_engine(drafter))
    drafter = drafter_choice(row, engine)
    words: dict[str, Any] = {"gpu": gpu, "tp": tp, "runtime": engine, "drafter": drafter}
    meaning = (
        "Tokens of a request: speedups are those of a server that reads such prompts between its steps. Type "
        "a context and no request for a step without prompts."
    )
    for name, label in zip(REQUEST, ("Prompt", "Output"), strict=True):
        empty = f"{REQUEST[name]:,.0f}"
        words[name] = inputs.number(row, Input(name, label, meaning), 1, _LONGEST, empty=empty)
    row.form_submit_button("Apply", type="primary", on_click=_fold)
    words["acceptance"] = acceptance_choice(more, drafter)
    kind = drafter_class(drafter)
    if kind.unit == "head":
        of_heads = Input.of_argument("heads", "Trained; fewer may be run.")
        words["heads"] = inputs.whole(more, of_heads, 1, CURVE_HEADS, CURVE_HEADS)
    if kind.takes_draft_model:
        of_draft = Input.of_argument("draft_model", "A smaller model of the same family and vocabulary.")
        words["draft_model"] = inputs.choice(more, of_draft, model_names(), draft_for(str(model)))
    followed = request_length(*(words[name] or usual for name, usual in REQUEST.items()))
    meaning = f"Committed tokens before the step: a request's prompt and half its output, else {followed:,}."
    of_seq = Input("seq", "Context (tokens)", meaning)
    words["seq"] = inputs.number(more, of_seq, 1, _LONGEST, empty=f"{followed:,}")
    of_ep = Input.of_argument("ep", "Expert parallelism, for mixtures of experts.")
    words["ep"] = tp > 1 and inputs.on_off(more, of_ep, default=False)
    words |= {each.name: of_argument(more, each, is_local=engine in _LOCAL) for each in MORE}
    config = _uploaded_config(box) if model == OWN_MODEL else None
    typed, name = st.session_state.get(_TYPED_AS, ("", ""))
    beside = [f"{name}: typed as {shown(typed)}."] if model == name else []
    beside += [] if searched else [_beside(gpu, engine)]
    if beside:
        box.caption(show.escaped(" ".join(beside)))
    if model is None:
        _which_model()
    if drafter not in drafters_of(engine) and not (searched or away):
        _which_drafter(engine, drafter)
    return set_up_of({**words, "model": model}, config)


def _fold() -> None:
    """Show a phone the answer once the question was put."""
    st.session_state[_OPENED] = False


def _line(*, searched: bool) -> str:
    """The question before it is drawn, as a phone shows it."""
    names = ("model", "gpu", "tp", "runtime", "drafter", *REQUEST)
    said = {name: link.value_of(name) for name in (*names, "seq", "acceptance")}
    try:
        known = set_up_of(said)
        line = known.drafted if searched else known.line
    except (MedusaSimError, ValueError):  # said where it is asked
        line = "the question"
    return f"Change {show.escaped(line)}"


def _beside(gpu: str, engine: str) -> str:
    """What the names of GPU and engine stand for."""
    if engine in UNTIMED:
        about = (
            f"{engine}: its time between kernels is not known: kernels alone ({KERNELS_ALONE}) are counted"
        )
    else:
        title = load_runtime(engine).title  # which begins with the engine's name
        about = f"{_OWN_CODE[engine]}: {title}" if engine in _OWN_CODE else title
    return f"{gpu}: {card_text(gpu)}. {about}."


def _which_drafter(engine: str, drafter: str) -> None:
    """Ask what is meant where an engine does not run a drafter."""
    st.title("Which drafter?", anchor=False)
    st.warning(
        f"{engine} does not run {drafter}. Take a drafter that it has, or an engine that runs {drafter}."
    )
    with st.container(horizontal=True):
        for name in drafters_of(engine)[:_MOST_OFFERED]:
            st.button(f"Draft with {name}", on_click=st.session_state.update, args=({"drafter": name},))
        for name in [each for each in RUNS_ON if drafter in drafters_of(each)][:_MOST_OFFERED]:
            st.button(f"Run on {name}", on_click=st.session_state.update, args=({"runtime": name},))
    st.stop()


def of_argument(where: Any, argument: Argument, *, is_local: bool = False) -> Any:
    """The input of an argument as it is declared: what it may be, its range, its label and help.

    is_local: the engine reads files of weights, whose formats are choices too.
    """
    field = Input(argument.name, argument.label, show.in_words(argument.help))
    if argument.type is FLAG:
        is_on = inputs.on_off(where, field, default=bool(argument.default))
        return argument.default if is_on == bool(argument.default) else is_on
    if argument.choices:
        names = (DEFAULT, *argument.choices, *(argument.others if is_local else ()))
        chosen = inputs.choice(where, field, names, DEFAULT, inputs.format_words)
        return argument.default if chosen == DEFAULT else chosen
    if argument.type not in (WHOLE, NUMBER):
        return inputs.text(where, field, empty=DEFAULT) or argument.default
    empty = DEFAULT if argument.default is None else f"{argument.default:g}"
    of_type: type[int] | type[float] = int if argument.type is WHOLE else float
    low, high = of_type(argument.least or 0), of_type(argument.most or _MOST)
    given = inputs.number(where, field, low, high, empty=empty)
    return argument.default if given is None else given


def runs_trees() -> bool:
    """Whether the engine that is chosen verifies trees, before it is drawn."""
    drafter, engine = st.session_state.get("drafter"), st.session_state.get("runtime")
    drafter, engine = drafter or st.query_params.get("drafter"), engine or st.query_params.get("runtime")
    engine = runtime_aliases().get(engine or "", engine)
    if engine not in RUNS_ON:
        engine = default_engine(drafter if drafter in drafter_names() else DRAFTER)
    return not PageArguments(runtime=engine).chain_only


def take(preset: Mapping[str, str | int | None]) -> None:
    """Set every input to a preset, or to its default where that says nothing: the callback of a button."""
    defaults = INPUTS | {"batch": 1, "runtime": default_engine(str(preset.get("drafter", DRAFTER)))}
    del defaults["draft_model"]  # it follows the model
    said = {name: value for name, value in preset.items() if value is not None}
    for name, value in (defaults | said).items():
        if name in preset or name in st.session_state:
            st.session_state[name] = value


def engine_choice(where: Any, default: str) -> str:
    """A serving engine, or how the user's own code launches its kernels."""
    meaning = (
        "What runs it. Own CUDA graph, own eager code: of yours, which may verify any tree. Serving engines "
        "verify chains of drafts, some of them trees, and add time of their own to a step. Only what the "
        "engine can run is recommended."
    )
    return inputs.choice(where, Input.of_argument("runtime", meaning), RUNS_ON, default, engine_words)


def engine_words(name: str) -> str:
    """How the user's own code runs; engines by their names."""
    return _OWN_CODE.get(name, name)


def offered_gpus() -> tuple[str, ...]:
    """Every GPU, those of today's data centres first, what stands on desks last."""
    ranked = sorted(gpu_names(), key=lambda name: (_kind(name), name))
    return (*ranked, *local_names())


def _kind(gpu: str) -> int:
    """By its name alone: reading the files of all GPUs would keep the first answer waiting."""
    return next((place for begin, place in _BEGIN.items() if f"{gpu}-".startswith(begin)), 0)


def card_text(gpu: str) -> str:
    """`80 GiB, 3.35 TB/s`."""
    card = load_gpu(gpu)
    return f"{card.memory_bytes / 2**30:.0f} GiB, {with_prefix(card.bandwidth_bytes_per_s, 'B/s')}"


def gpu_choice(where: Any) -> str:
    """A GPU that is known."""
    meaning = "Data centre first, then older, consumer, and what stands on a desk."
    return inputs.choice(where, Input.of_argument("gpu", meaning), offered_gpus(), GPU)


def model_choice(where: Any, gpu: str) -> str | None:
    """A model by name or Hugging Face id, one measured on the device, or the user's own; None: none such.

    What is typed and begins one name alone is that one.
    """
    options = (*measured_models(gpu), *model_names(), OWN_MODEL)
    meaning = (
        "Sizes decide the time of a step. Pick a name, type a Hugging Face id "
        f"({_AN_ID}), or hand in its config.json or GGUF file: the last entry."
    )
    if (taken := st.session_state.pop(_TAKEN, None)) is not None:
        st.session_state["model"], st.session_state[_TYPED_AS] = taken[1], taken
    chosen = inputs.choice(where, Input.of_argument("model", meaning), options, MODEL, typed=True)
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


def _as_named(typed: str) -> str:
    return "-".join(typed.lower().split())


def _which_model() -> None:
    """Ask which model is meant by what was typed."""
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


def drafter_choice(where: Any, engine: str) -> str:
    """What drafts: the default, or what commands take where the engine lacks that."""
    known = drafters_of(engine)
    first = DRAFTER if DRAFTER in known else drafter_of(engine)
    field = Input.of_argument("drafter", "What proposes the candidates.")
    return inputs.choice(where, field, drafter_names(), first, lambda name: drafter_class(name).title)


def acceptance_choice(where: Any, drafter: str) -> str | None:
    """A profile, or rates as the user types them; None for what ships."""
    profiles = profiles_of(drafter)
    options = (SHIPPED, *profiles)
    meaning = (
        f"How often drafts are accepted: {_TYPED}. It depends on model, drafter and prompts: measure yours."
    )
    field = Input.of_argument("acceptance", meaning)
    chosen = inputs.choice(where, field, options, SHIPPED, profile_words, typed=True)
    if chosen == SHIPPED:
        return None
    check_acceptance(chosen, profiles)
    return chosen


def check_acceptance(typed: str, profiles: Iterable[str]) -> None:
    """Raise UsageError for what is neither rates nor one of these profiles.

    It is never opened as a file: the app may be open to others.
    """
    if typed not in profiles and not _RATES.fullmatch(typed):
        raise UsageError(f"Acceptance {typed[:40]!r}: give {_TYPED}")


def profile_words(name: str) -> str:
    """`EAGLE-3 chain on Llama-3.1-8B-Instruct, MT-bench`: a profile by its title, what is typed as it is."""
    return answers.profile_titles().get(name, name)


def profiles_of(drafter: str) -> tuple[str, ...]:
    """Profiles that may be of this drafter: those of no other."""
    others = [kind for name, kind in drafters().items() if name != drafter]
    prefixes = drafter_class(drafter).profiles
    claimed = tuple(prefix for kind in others for prefix in kind.profiles if prefix not in prefixes)
    return tuple(name for name in acceptance_names() if not name.startswith(claimed))


def _uploaded_config(where: Any) -> bytes:
    try:
        content = uploaded_model(where)
    except MedusaSimError:
        st.title("Your own model", anchor=False)
        raise
    if content is None:
        st.title("Your own model", anchor=False)
        st.info("Drop its file above, or pick another model there.")
        st.stop()
    return content


def uploaded_model(where: Any) -> bytes | None:
    """A model's file that is handed in; None until it is. Raises DataError or SpecError for what is none."""
    given = where.file_uploader(
        "config.json, or the start of a GGUF file",
        type=["json", "gguf"],
        key="config",
        help=f"Sizes and formats are read, weights are not. Of a GGUF file the first "
        f"{SENT_HEADER_BYTES / 1e6:.0f} MB hold all that: `head -c {SENT_HEADER_BYTES} model.gguf > "
        "start.gguf`.",
    )
    return None if given is None else uploads.model_bytes(given.name, given.getvalue())
