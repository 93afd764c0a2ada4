"""The arguments of a scenario, each declared once: name, type, default, help, option, what it may be.

Options of the command line, checks in Python, `Scenario.command`, files of parts and help pages follow from
the fields of `Arguments`; other records (what a load or a recommendation is asked) are declared alike. Light
to import: classes that a value may be an object of are looked up when one is given.
"""

from __future__ import annotations

import inspect
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, ClassVar, Concatenate, ParamSpec, TypeVar

from medusa_sim.errors import UsageError, check_kind, shown, unknown_name
from medusa_sim.file_types import CACHES, named_file, read_by
from medusa_sim.file_types import NAMES as FILE_NAMES
from medusa_sim.plan import (
    DEFAULT_DRAFTERS,
    DEFAULT_GPU,
    DEFAULT_MODEL,
    LENGTH_CV,
    LOAD_OUTPUT_TOKENS,
    LOAD_PROMPT_TOKENS,
    LONGEST_DRAFT,
    MAX_DRAFTS,
    RUNS_CHAINS,
    RUNS_TREES,
)

if TYPE_CHECKING:
    from medusa_sim.data import DataDir
    from medusa_sim.latency.base import LatencyModel
    from medusa_sim.latency.by_name import Fallback, LatencyName
    from medusa_sim.plan import Baseline
    from medusa_sim.plan.acceptance import Given
    from medusa_sim.specs.gpu import Gpu
    from medusa_sim.specs.models import ModelName
    from medusa_sim.specs.runtime import Runtime
    from medusa_sim.step.workload import Scope

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Type:
    """What a value is, in words and classes; loaded: the class of objects that may stand for a name."""

    wanted: str
    classes: tuple[type, ...]
    loaded: Callable[[], type] | None = None

    @property
    def allowed(self) -> tuple[type, ...]:
        """Every class that a value may be of."""
        return self.classes if self.loaded is None else (*self.classes, self.loaded())


def _gpu() -> type:
    from medusa_sim.specs.gpu import Gpu

    return Gpu


def _model() -> type:
    from medusa_sim.specs.model import Model

    return Model


def _runtime() -> type:
    from medusa_sim.specs.runtime import Runtime

    return Runtime


def _latency() -> type:
    from medusa_sim.latency.base import LatencyModel

    return LatencyModel


WHOLE = Type("a whole number", (Integral,))
NUMBER = Type("a number", (Real,))
FLAG = Type("True or False", (bool,))
WORD = Type("a name", (str,))
PATH = Type("a path", (str, os.PathLike))
FOLDER = Type("a folder", (str, os.PathLike))
ANY = Type("anything", (object,))
"""Checked by what reads it."""
GPU = Type("a name or a loaded GPU", (str,), _gpu)
MODEL = Type("a name, a path or a loaded model", (str, os.PathLike), _model)
RUNTIME = Type("a name or a loaded runtime", (str,), _runtime)
LATENCY = Type("a name or a latency model", (str,), _latency)


@dataclass(frozen=True, slots=True, kw_only=True)
class Argument:
    """One argument, as every door of the project takes it."""

    name: str
    default: Any
    type: Type
    help: str
    section: str = ""
    """Heading of help pages that it stands under."""
    label: str = ""
    """What the app calls its input; empty: the app has none."""
    option: str
    """`--tp`; `--chain-only/--trees` for a flag with a name for False."""
    choices: tuple[str, ...] = ()
    """Names that it may be, where they are few and fixed."""
    others: tuple[str, ...] = ()
    """More names beside these, in any case, that menus leave out."""
    names: str = ""
    """What its values are of (`gpu`, `model`, `batch`, ...): read and listed by `cli.values.NAMES`."""
    required: bool = False
    many: bool = False
    """The option may be given again; the value is a tuple."""
    metavar: str | None = None
    least: float | None = None
    above: float | None = None
    most: float | None = None

    def unknown(self, value: str, runtime: object = None) -> str:
        """One line for a name that is none of its choices; runtime: the engine, whose names are listed."""
        what, engine = self.name.replace("_", " "), str(getattr(runtime, "name", runtime or ""))
        also = {name: named_file(name) for name in self.others}
        if own := [name for name in self.others if name in read_by(engine)]:
            return unknown_name(what, value, own, {name: of for name, of in also.items() if of in own})
        local = f"; a local --runtime takes {', '.join(self.others[:4])}, ... too" if self.others else ""
        return unknown_name(what, value, self.choices, {} if engine else also) + local * (not engine)

    def check(self, value: object, runtime: object = None) -> None:
        """Refuse a value of another type or out of range; None passes where it is the default.

        runtime: the engine given beside it. Python takes "no" for true, True for 1 and 2.5 heads for a
        number of heads. Raises UsageError.
        """
        if value is None and self.default is None:
            return
        if self.many and isinstance(value, Sequence):
            for each in value:
                check_kind(self.name, each, self.type.wanted, self.type.allowed)
            return
        check_kind(self.name, value, self.type.wanted, self.type.allowed)
        is_other = isinstance(value, str) and value.lower() in self.others
        if self.choices and isinstance(value, str) and value not in self.choices and not is_other:
            raise UsageError(self.unknown(value, runtime))
        if isinstance(value, int | float) and self.type in (WHOLE, NUMBER) and not self._covers(value):
            raise UsageError(f"{self.name.replace('_', ' ')} {shown(value)}: {self._range} are allowed")

    def _covers(self, value: float) -> bool:
        """Whether a number is finite and in the range; nan is above nothing."""
        low = value >= (-math.inf if self.least is None else self.least)
        high = value < math.inf if self.most is None else value <= self.most
        return low and high and (self.above is None or value > self.above)

    @property
    def _range(self) -> str:
        parts = ["whole numbers" if self.type is WHOLE else "finite numbers"]
        parts += [f"from {self.least:g}"] if self.least is not None else []
        parts += [f"above {self.above:g}"] if self.above is not None else []
        parts += [f"to {self.most:g}"] if self.most is not None else []
        return " ".join(parts)

    def is_default(self, value: object) -> bool:
        """Whether a value is the default; objects are by identity."""
        return value is self.default or (isinstance(value, str | int | float) and value == self.default)

    def words(self, value: object) -> list[str]:
        """Option and value as one types them. Raises UsageError for an object that no option can name."""
        yes, _, no = self.option.partition("/")
        if isinstance(value, bool):
            return [word for word in [yes if value else no] if word]
        if isinstance(value, str | int | float):
            return [yes, str(value)]
        if isinstance(value, os.PathLike):
            return [yes, os.fspath(value)]
        if isinstance(value, Sequence) and all(isinstance(each, str | Real) for each in value):
            return [
                yes,
                ",".join(str(each if isinstance(each, str | int) else float(each)) for each in value),
            ]
        if self.names and self.type is not ANY and isinstance(value, self.type.allowed):
            return [yes, str(getattr(value, "name", value))]
        raise UsageError(
            f"{self.name} was given as an object of Python; a command can only name it: give its name"
        )


def argument(default: Any, type_: Type, help_: str, section: str = "", **more: Any) -> Any:
    """A field of a record of arguments; more: further fields of `Argument`. REQUIRED: without a default."""
    return field(
        default=default, metadata={"type": type_, "help": help_, "section": section, **more}, kw_only=True
    )


REQUIRED: Any = MISSING
_DECLARED: dict[type, dict[str, Argument]] = {}


def declared(record: Any) -> dict[str, Argument]:
    """The arguments that a record declares, by name, in their order."""
    if record not in _DECLARED:
        _DECLARED[record] = _read(record)
    return _DECLARED[record]


def _read(record: Any) -> dict[str, Argument]:
    return {
        each.name: Argument(
            name=each.name,
            default=None if each.default is MISSING else each.default,
            required=each.default is MISSING,
            **{"option": f"--{each.name.replace('_', '-')}", **each.metadata},
        )
        for each in fields(record)
        if each.metadata
    }


def check(given: Mapping[str, object], known: Mapping[str, Argument], what: str = "argument") -> None:
    """Refuse unknown arguments, and values of another type than theirs or out of range. Raises UsageError."""
    for name in given:
        if name not in known:
            raise UsageError(unknown_name(what, name, known))
    for name, each in known.items():
        if name in given:
            each.check(given[name], given.get("runtime"))


def takes(record: Callable[P, object]) -> Callable[[Callable[..., T]], Callable[Concatenate[Any, P], T]]:
    """Give a function whose keywords are a record's arguments their signature, for readers and checkers."""

    def of(function: Callable[..., T]) -> Callable[Concatenate[Any, P], T]:
        own = inspect.signature(function)
        kept = [each for each in own.parameters.values() if each.kind is not each.VAR_KEYWORD]
        arguments = inspect.signature(record).parameters.values()
        function.__signature__ = own.replace(parameters=[*kept, *arguments])  # type: ignore[attr-defined]
        return function

    return of


MOST_TOKENS = 10**9
"""Of a prompt or an output."""
_DTYPES = ("fp16", "bf16", "fp32", "fp8", "fp8_block", "int8", "nvfp4")
_WEIGHTS = (*_DTYPES, "int4", "mxfp4")
_MACHINE, _DRAFTS, _FORMATS = "Engine and GPUs", "Drafts and acceptance", "Number formats"
_REQUESTS, _ASKED = "Requests", "What is asked for"


class Declared:
    """A record whose fields are arguments."""

    always: ClassVar[tuple[str, ...]] = ()
    """Arguments that are named even at their defaults."""

    def __post_init__(self) -> None:
        check(self.values, declared(type(self)))

    @property
    def values(self) -> dict[str, Any]:
        """Every argument by name."""
        return {name: getattr(self, name) for name in declared(type(self))}

    @property
    def changed(self) -> dict[str, Any]:
        """The arguments that differ from the defaults, and those that are always named."""
        known = declared(type(self))
        return {
            name: value
            for name, value in self.values.items()
            if name in self.always or not known[name].is_default(value)
        }


@dataclass(frozen=True, eq=False)
class Arguments(Declared):
    """What a scenario is made from: names, files or loaded objects."""

    always: ClassVar[tuple[str, ...]] = ("gpu", "model", "drafter")

    gpu: str | Gpu = argument(
        DEFAULT_GPU, GPU, "GPU (`medusa-sim specs` lists them).", _MACHINE, names="gpu", label="GPU"
    )
    model: ModelName = argument(
        DEFAULT_MODEL,
        MODEL,
        "Model, or the path of a Hugging Face config.json or GGUF file.",
        _MACHINE,
        names="model",
        label="Model",
    )
    runtime: str | Runtime | None = argument(
        None, RUNTIME,
        f"The engine, or how kernels launch [by the drafter: medusa {RUNS_TREES}, others {RUNS_CHAINS}].",
        _MACHINE, names="runtime", label="Engine",
    )  # fmt: skip
    drafter: str | None = argument(
        None, WORD,
        "What proposes the candidates: {names} [the first of " + ", ".join(DEFAULT_DRAFTERS)
        + " that the runtime runs].",
        _DRAFTS, names="drafter", label="Drafter",
    )  # fmt: skip
    acceptance: Given = argument(
        None, ANY,
        "A profile's name, a TOML or CSV file, one rate for every draft (0.7), the share of steps that "
        "accept each draft (0.78,0.60,0.42), rates given that the draft before was accepted "
        "(conditional:0.78,0.77,0.70), or a mean length with its drafts (2.8@3) [medusa, eagle: the model's "
        "own profile, else a borrowed one].",
        _DRAFTS, names="profile", label="Acceptance",
    )  # fmt: skip
    heads: int | None = argument(
        None, WHOLE,
        "Trained Medusa heads; as many run as a tree is deep [all of the profile; a curve has 5].",
        _DRAFTS, least=1, most=LONGEST_DRAFT, label="Medusa heads",
    )  # fmt: skip
    draft_model: ModelName | None = argument(
        None, MODEL, "Model of --drafter draft-model and pard.", _DRAFTS, names="model", label="Draft model"
    )
    draft_runtime: str | Runtime | None = argument(
        None, RUNTIME, "How the draft model launches [as --runtime].", _DRAFTS, names="runtime"
    )
    draft_vocab: int | None = argument(
        None, WHOLE, "Output tokens of an EAGLE layer's own head.", _DRAFTS, least=1
    )
    max_drafts: int = argument(
        MAX_DRAFTS, WHOLE, "Longest draft that is searched (num_speculative_tokens).", _DRAFTS,
        least=1, most=LONGEST_DRAFT,
    )  # fmt: skip
    chain_only: bool | None = argument(
        None, FLAG, "Search chains only, or trees too [chains where the runtime has no tree attention].",
        _DRAFTS, option="--chain-only/--trees",
    )  # fmt: skip
    match_rate: float | None = argument(
        None, NUMBER,
        "Of --drafter ngram and suffix: share of the steps that find drafts [the profile's, else its first "
        "rate / 0.53].",
        _DRAFTS, above=0,
    )  # fmt: skip
    p_min: float = argument(
        0.0, NUMBER,
        "llama.cpp's --spec-draft-p-min: a draft ends before the first token whose probability under the "
        "drafter is below it.",
        _DRAFTS, least=0, most=0.99, label="p-min",
    )  # fmt: skip
    prompt_tokens: float | None = argument(
        None, NUMBER,
        "Mean prompt of a server's requests, which ride on decode steps: speedups and rates are the server's "
        f"[engines, without --seq: {LOAD_PROMPT_TOKENS:g} in, {LOAD_OUTPUT_TOKENS:g} out; sweep: none ride].",
        _REQUESTS, least=1, most=MOST_TOKENS,
    )  # fmt: skip
    output_tokens: float | None = argument(
        None, NUMBER, "Mean output of these requests (with --prompt-tokens).", _REQUESTS,
        least=1, most=MOST_TOKENS,
    )  # fmt: skip
    length_cv: float = argument(
        LENGTH_CV, NUMBER,
        "Coefficient of variation of their prompts and outputs (log-normal; 0: all equal).",
        _REQUESTS, least=0, most=10,
    )  # fmt: skip
    workload: str | None = argument(
        None, WORD,
        "MT-bench category whose acceptance rate to use instead of the average (writing, coding, ...).",
        _DRAFTS,
    )  # fmt: skip
    lossless: bool = argument(
        False, FLAG,
        "Lossless output: greedy instead of typical acceptance.",
        _DRAFTS,
    )  # fmt: skip
    dtype: str | None = argument(
        None, WORD, "Arithmetic of the linear layers [the model's].", _FORMATS, choices=_DTYPES, label="Dtype"
    )
    weight_dtype: str | None = argument(
        None, WORD,
        "Stored weights [as --dtype]; int4, mxfp4, and int8 under 16 bits, are weight-only. Of llama.cpp "
        "and MLX the type of the file: Q4_K_M, Q8_0, IQ4_XS, 4bit ...",
        _FORMATS, choices=_WEIGHTS, others=FILE_NAMES, label="Weights",
    )  # fmt: skip
    kv_dtype: str | None = argument(
        None,
        WORD,
        "KV cache; of llama.cpp q8_0, q4_0 ... too.",
        _FORMATS,
        choices=("fp16", "bf16", "fp32", "fp8"),
        others=CACHES,
        label="KV cache",
    )
    tp: int = argument(
        1, WHOLE, "GPUs that share the model (tensor parallelism).", _MACHINE, least=1, label="GPUs"
    )
    ep: int = argument(
        1, WHOLE, "Groups of these GPUs among which whole experts are split; 1 splits every expert over all.",
        _MACHINE, least=1, label="Whole experts on each GPU",
    )  # fmt: skip
    dp_attention: bool = argument(
        False, FLAG, "Attention of other sequences on every GPU, as SGLang's --enable-dp-attention.", _MACHINE
    )
    overlap: str | None = argument(
        None, WORD,
        "How far candidates of one sequence share experts [chain, or tree where trees are run].",
        _MACHINE, choices=("chain", "tree", "independent", "disjoint"),
    )  # fmt: skip
    latency: LatencyName | LatencyModel = argument(
        "calibrated", LATENCY,
        "roofline: the datasheet's limits. calibrated: fitted kernels. measured: a profile's rows.",
        _MACHINE, choices=("calibrated", "roofline", "measured"),
    )  # fmt: skip
    kernels: str | None = argument(
        None, WORD,
        "Kernel set [default: torch for fp16, sglang for bf16 and fp8, paper with --runtime paper].",
        _MACHINE,
    )  # fmt: skip
    bench: str | os.PathLike[str] | None = argument(
        None, PATH,
        "What llama-bench, llama-batched-bench, mlx-lm's benchmark or llama-server's timings print on your "
        "own machine: llama.cpp's and MLX's times are corrected by its rows.",
        _MACHINE,
    )  # fmt: skip
    power_limit: float | None = argument(
        None, NUMBER,
        "Watts that the card may take, of llama.cpp and MLX: its arithmetic slows, its memory does not [all "
        "of its power].",
        _MACHINE, above=0, most=2000,
    )  # fmt: skip
    fallback: Fallback = argument(
        "refuse", WORD,
        "With --latency measured, for shapes that were not measured: refuse, or predict as calibrated.",
        _MACHINE, choices=("refuse", "calibrated"),
    )  # fmt: skip
    scope: Scope = argument(
        "model", WORD,
        "model: all that an engine runs. block: the Medusa paper's simplified block.",
        _ASKED, choices=("model", "block"),
    )  # fmt: skip
    baseline: Baseline = argument(
        "same", WORD,
        "Divide by plain decoding at the same batch and length, or (as the paper's plots) at batch 1, 1024.",
        _ASKED, choices=("same", "fixed"),
    )  # fmt: skip
    price: float | None = argument(
        None, NUMBER,
        "Dollars per GPU-hour [the dated list price of `medusa-sim specs prices`, where there is one].",
        _ASKED, above=0,
    )  # fmt: skip
    data_dir: DataDir = argument(
        None, FOLDER,
        "Your own specs and profiles, searched before the shipped ones [default: $MEDUSA_SIM_DATA_DIR, else "
        "the platform's user data folder].",
        "Output", names="data_dir",
    )  # fmt: skip


ARGUMENTS = declared(Arguments)
"""What a scenario takes, by name."""


def words_of(given: Mapping[str, object], known: Mapping[str, Argument] = ARGUMENTS) -> list[str]:
    """Arguments as words of the command line. Raises UsageError for an object that no option can name."""
    return [word for name, value in given.items() for word in known[name].words(value)]
