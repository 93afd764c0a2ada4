"""Cached calls into the package. Arguments are names and numbers: no cache can answer for another question.

Results are shared between sessions and never changed. Every cache also depends on the files that answers
are computed from (`data_version`): a GPU that was measured while the app runs is seen at once.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import streamlit as st
import uploads
from chosen import SetUp

from medusa_sim import data
from medusa_sim.errors import MedusaSimError
from medusa_sim.export.engines import engine_settings
from medusa_sim.latency.by_name import cached, latency_model
from medusa_sim.load.arguments import LoadArguments
from medusa_sim.load.question import LoadAnswer, load_test, run_load
from medusa_sim.measure.cells import STEPS
from medusa_sim.operators.kinds import KINDS
from medusa_sim.operators.table import read_rows
from medusa_sim.plan import tree_speedup
from medusa_sim.plan.defaults import DEFAULT_GPU, DEFAULT_SEQ_LEN
from medusa_sim.plan.question import Question
from medusa_sim.plan.recommend import recommend, scheduled_row_at, steps_at
from medusa_sim.plan.recommendation import Recommendation
from medusa_sim.plan.scenario import Scenario
from medusa_sim.reproduce import Reproduction, reproduction
from medusa_sim.setups.comparison import Comparison
from medusa_sim.setups.question import Measure
from medusa_sim.setups.question import Question as SetUpQuestion
from medusa_sim.setups.search import compare, refined
from medusa_sim.setups.setup import PLAIN, Choices
from medusa_sim.specs.gpu import load_gpu
from medusa_sim.specs.model import Model
from medusa_sim.specs.models import load_model
from medusa_sim.specs.parallel import Parallel
from medusa_sim.specs.runtime import load_runtime
from medusa_sim.specs.variants import on_one_gpu, with_dtypes
from medusa_sim.step.breakdown import breakdown
from medusa_sim.step.roofline import roofline_points
from medusa_sim.step.workload import Grid
from medusa_sim.validate.generations import RunsCell, RunsValidation, validate_runs
from medusa_sim.validate.operators import compared_rows
from medusa_sim.validate.steps import DecoderValidation, StepCell, validate_decoder

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

    from medusa_sim.acceptance.tree import CandidateTree
    from medusa_sim.export.settings import EngineSettings
    from medusa_sim.latency.by_name import CachedLatency
    from medusa_sim.plan.recommendation import RequestLatency
    from medusa_sim.plan.schedule import ScheduleRow
    from medusa_sim.plan.tree_speedup import TreeAnswer, TreeCurve
    from medusa_sim.specs.fitted import Fit


_KINDS = (
    "hardware",
    "profiles/acceptance",
    "profiles/operators",
    "profiles/decoder",
    "profiles/runtimes",
)


def data_version() -> float:
    """Changes when a file of hardware or profiles does, the user's own folder included."""
    newest = 0.0
    for root in data.data_roots():
        for kind in _KINDS:
            folder = root / kind
            if folder.is_dir():
                newest = max([newest, *(path.stat().st_mtime for path in (folder, *folder.iterdir()))])
    return newest


def scenario_of(set_up: SetUp) -> Scenario:
    """The set-up as the command line builds it. Raises UsageError for what does not fit together."""
    return _scenario(set_up, data_version())


def _published_model(set_up: SetUp) -> Model:
    """The model that was chosen or uploaded, in its own dtypes."""
    return load_model(set_up.model_given) if set_up.config is None else uploads.model_of(set_up.config)


@st.cache_resource(max_entries=64, show_spinner=False, ttl=900)
def _scenario(set_up: SetUp, version: float) -> Scenario:
    runtime = load_runtime(set_up.runtime)
    kernels = runtime.kernel_set(model_of(set_up).dtype)
    latency = _latency(set_up.gpu, kernels, version, runtime.library)
    loaded = {"model": _published_model(set_up), "latency": latency, "kernels": kernels}
    return Scenario(**{**set_up.arguments, **loaded})


@st.cache_resource(max_entries=16, show_spinner=False, ttl=900)
def _latency(gpu: str, kernels: str, version: float, library: str) -> CachedLatency:
    del version
    return cached(latency_model(load_gpu(gpu), "calibrated", kernels, library=library, serves=library))


def recommendation(set_up: SetUp, batch_max: int, objective: str = "latency") -> Recommendation:
    """`medusa-sim recommend` for batches 1 to batch_max at the set-up's length."""
    return _recommendation(set_up, 1, batch_max, objective, None, data_version())


@st.cache_resource(max_entries=64, show_spinner=False)
def _recommendation(
    set_up: SetUp,
    batch_min: int,
    batch_max: int,
    objective: str,
    asked: tuple[int, int] | None,
    version: float,
) -> Recommendation:
    question = Question(
        batch_min=batch_min,
        batch_max=batch_max,
        seq_len=(set_up.seq_len,),
        objective=objective,  # type: ignore[arg-type]
        request=asked,
    )
    return recommend(_scenario(set_up, version), question)


def row_at(set_up: SetUp, batch_max: int, batch: int) -> ScheduleRow:
    """The schedule's row at one batch."""
    return scheduled_row_at(recommendation(set_up, batch_max), batch, set_up.seq_len)


def drafts_at(set_up: SetUp, batch: int) -> int:
    """Drafts in a row that are recommended at a batch; the best of them where none are."""
    return (
        row_at(set_up, 64, batch).drafts
        or max(recommendation(set_up, 64).by_drafts, key=lambda each: each.speedup).drafts
    )


def request(set_up: SetUp, batch: int, prompt: int, output: int) -> RequestLatency:
    """One of `batch` requests from its prompt to its last token, as `recommend --prompt-tokens` answers."""
    return _recommendation(set_up, batch, batch, "latency", (prompt, output), data_version()).requests[0]


def launch_settings(set_up: SetUp, batch_max: int, objective: str, draft_path: str | None) -> EngineSettings:
    """What `recommend --export` prints. Raises UsageError for what the engine cannot do."""
    return _launch_settings(set_up, batch_max, objective, draft_path, data_version())


@st.cache_resource(max_entries=64, show_spinner=False)
def _launch_settings(
    set_up: SetUp, batch_max: int, objective: str, draft_path: str | None, version: float
) -> EngineSettings:
    answer = _recommendation(set_up, 1, batch_max, objective, None, version)
    return engine_settings(answer, set_up.export, draft_path=draft_path)


def roofline(set_up: SetUp, batch: int, candidates: int) -> pa.Table:
    """`medusa-sim roofline` for one batch, count and the set-up's length."""
    return _roofline(set_up, batch, candidates, data_version())


@st.cache_data(max_entries=64, show_spinner=False)
def _roofline(set_up: SetUp, batch: int, candidates: int, version: float) -> pa.Table:
    runtime = load_runtime(set_up.runtime)
    sizes = on_one_gpu(model_of(set_up), Parallel(tp=set_up.tp, ep=set_up.ep))
    latency = _latency(set_up.gpu, runtime.kernel_set(sizes.dtype), version, runtime.library)
    grid = Grid.of((batch,), (set_up.seq_len,), (candidates,))
    return roofline_points(latency, load_gpu(set_up.gpu), sizes, runtime, grid)


_BOTH = {"decode_attention": "attention", "verify_attention": "attention"}
"""What plain and speculative steps call otherwise."""


def operators(set_up: SetUp, answer: Recommendation, batch: int) -> tuple[int, list[dict[str, Any]]]:
    """Candidates of the scheduled step at a batch, and the operators of it and of a plain one by name.

    Rows: op, launches, plain_us, speculative_us (all launches of a step), bound, source; the longest first.
    Drafting passes are one row an operator.
    """
    both = steps_at(answer, batch, set_up.seq_len, scheduled=True)
    frames = [breakdown(both.setting, batch, set_up.seq_len, each) for each in (1, both.candidates)]
    found: dict[str, dict[str, Any]] = {}
    for frame, column in zip(frames, ("plain_us", "speculative_us"), strict=True):
        for row in (dict(zip(frame.columns, values, strict=True)) for values in frame.to_numpy().tolist()):
            is_draft = str(row["pass"]).startswith("draft")
            name = f"drafting: {row['op']}" if is_draft else _BOTH.get(row["op"], row["op"])
            held = found.setdefault(name, {"op": name, "launches": 0, "plain_us": 0.0, "speculative_us": 0.0})
            held |= {"bound": row["bound"], "source": row["source"]}
            held["launches"] = row["launches"] + (held["launches"] if is_draft else 0)
            held[column] += row["time_us"]
    return both.candidates, sorted(found.values(), key=lambda row: -row["speculative_us"])


_CHANGED = 0.1
_OTHER_ENGINES = ("vllm", "sglang", "tensorrt-llm")


def changes(set_up: SetUp, batch: int) -> list[dict[str, float | int | str]]:
    """What the answer at a batch would be with one thing changed: what, change, speedup, drafts.

    The same search each time; what cannot be (no room, no such kernel) is left out.
    """
    return _changes(set_up, batch, data_version())


@st.cache_data(max_entries=64, show_spinner=False)
def _changes(set_up: SetUp, batch: int, version: float) -> list[dict[str, float | int | str]]:
    row = _single(set_up, batch, version)
    found: list[dict[str, float | int | str]] = [
        {"what": "acceptance", "change": f"{share:+.0%}", "speedup": speedup, "drafts": row.drafts}
        for share, speedup in (
            (-_CHANGED, row.speedup_acceptance_minus_10_percent),
            (_CHANGED, row.speedup_acceptance_plus_10_percent),
        )
    ]
    seq_len, library = set_up.seq_len, load_runtime(set_up.runtime).library
    asked = [
        ("context", f"{length:,}", dataclasses.replace(set_up, seq_len=length), batch)
        for length in (max(seq_len // 2, 1), 2 * seq_len)
    ]
    asked += [("batch", f"{size}", set_up, size) for size in (max(batch // 2, 1), 2 * batch) if size != batch]
    asked += [
        ("engine", name, dataclasses.replace(set_up, engine=load_runtime(name).name), batch)
        for name in _OTHER_ENGINES
        if load_runtime(name).library != library
    ]
    asked += [
        ("precision", name, other, batch)
        for name, other in (
            ("weights int4", dataclasses.replace(set_up, weight_dtype="int4")),
            ("fp8", dataclasses.replace(set_up, dtype="fp8")),
            ("KV fp8", dataclasses.replace(set_up, kv_dtype="fp8")),
        )
        if other != set_up
    ]
    for what, change, other, size in asked:
        with contextlib.suppress(MedusaSimError):
            new = _single(other, size, version)
            if new.fits_memory:
                found.append({"what": what, "change": change, "speedup": new.speedup, "drafts": new.drafts})
    return found


def _single(set_up: SetUp, batch: int, version: float) -> ScheduleRow:
    answer = _recommendation(set_up, batch, batch, "latency", None, version)
    return scheduled_row_at(answer, batch, set_up.seq_len)


def model_of(set_up: SetUp) -> Model:
    """The model by name, or the uploaded one, in the set-up's dtypes."""
    model = _published_model(set_up)
    return with_dtypes(model, set_up.dtype, set_up.weight_dtype, set_up.kv_dtype)


def best_tree(set_up: SetUp, candidates: int, batch: int) -> CandidateTree:
    """The tree of that size that a search would run."""
    return _best_tree(set_up, candidates, batch, data_version())


@st.cache_resource(max_entries=64, show_spinner=False)
def _best_tree(set_up: SetUp, candidates: int, batch: int, version: float) -> CandidateTree:
    return tree_speedup.best_tree(_scenario(set_up, version), candidates, batch, set_up.seq_len)


def tree_curve(set_up: SetUp, batch: int, largest: int) -> TreeCurve:
    """The best drafting of every size to `largest` candidates."""
    return _tree_curve(set_up, batch, largest, data_version())


@st.cache_resource(max_entries=64, show_spinner=False)
def _tree_curve(set_up: SetUp, batch: int, largest: int, version: float) -> TreeCurve:
    return tree_speedup.tree_curve(_scenario(set_up, version), batch, set_up.seq_len, largest)


def tree(set_up: SetUp, chosen: CandidateTree, batch: int) -> TreeAnswer:
    """What a tree gives in the set-up."""
    return _tree(set_up, chosen, batch, data_version())


@st.cache_resource(max_entries=128, show_spinner=False)
def _tree(set_up: SetUp, chosen: CandidateTree, batch: int, version: float) -> TreeAnswer:
    return tree_speedup.tree_answer(_scenario(set_up, version), chosen, batch, set_up.seq_len)


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareQuestion:
    """What the page Which GPU? asks: target, traffic, and what may be chosen; target: tokens/s a user."""

    target: int
    prompt_tokens: int
    output_tokens: int
    measure: str
    gpus: tuple[str, ...]
    counts: tuple[int, ...]
    engines: tuple[str, ...]
    weight_dtypes: tuple[str, ...]

    def options(self, set_up: SetUp) -> list[str]:
        """The same as options of `medusa-sim compare`."""
        lists = {
            "--gpu": self.gpus, "--gpus": self.counts, "--engine": self.engines,
            "--weight-dtype": self.weight_dtypes, "--drafter": (PLAIN, set_up.drafter),
        }  # fmt: skip
        given = ["--model", set_up.model_given]
        given += [word for name, values in lists.items() for word in (name, ",".join(map(str, values)))]
        numbers = {
            "--prompt-tokens": self.prompt_tokens, "--output-tokens": self.output_tokens,
            "--tokens-per-s-per-user": self.target, "--measure": self.measure,
            "--acceptance": set_up.acceptance, "--draft-model": set_up.draft_model,
        }  # fmt: skip
        return given + [word for name, value in numbers.items() if value for word in (name, str(value))]


def set_ups_for(
    set_up: SetUp, asked: CompareQuestion, advance: Callable[[int, int], None] | None = None
) -> Comparison:
    """`medusa-sim compare` with the set-up's model, drafter and acceptance; advance as in `load`.

    Another target, or something else to save, is answered from the set-ups that were priced before.
    """
    # The sidebar's card, context and engine make no other question.
    alike = dataclasses.replace(set_up, gpu=DEFAULT_GPU, seq_len=DEFAULT_SEQ_LEN, tp=1, ep=1, engine="")
    kept = _set_ups_for(alike, dataclasses.replace(asked, target=0, measure=""), data_version())
    if not kept:
        given: dict[str, Any] = {"acceptance": set_up.acceptance, "draft_model": set_up.draft_model}
        kept.append(
            compare(
                _published_model(set_up),
                SetUpQuestion(prompt_tokens=asked.prompt_tokens, output_tokens=asked.output_tokens),
                Choices(
                    gpus=asked.gpus,
                    counts=asked.counts,
                    engines=asked.engines,
                    weight_dtypes=asked.weight_dtypes,
                    drafters=(PLAIN, set_up.drafter),
                ),
                advance=advance,
                **{name: value for name, value in given.items() if value is not None},
            )
        )
    measure = cast(Measure, asked.measure)
    return refined(kept[0].for_target(measure, tokens_per_s_per_user=float(asked.target)))


@st.cache_resource(max_entries=16, show_spinner=False)
def _set_ups_for(set_up: SetUp, asked: CompareQuestion, version: float) -> list[Comparison]:
    """Where an answer is kept, as `_load`."""
    return []


def load(
    set_up: SetUp, asked: LoadArguments, advance: Callable[[int, int], None] | None = None
) -> LoadAnswer:
    """`medusa-sim load`, with its number of requests and seeds. Raises UsageError for what makes no sense.

    advance: told (requests simulated, requests in all as far as known).
    """
    version = data_version()
    kept = _load(set_up, asked, version)
    if not kept:
        kept.append(_loaded(set_up, asked, version, advance))
    return kept[0]


@st.cache_resource(max_entries=32, show_spinner=False)
def _load(set_up: SetUp, asked: LoadArguments, version: float) -> list[LoadAnswer]:
    """Where an answer is kept: a cached function cannot draw its own progress."""
    return []


def _loaded(
    set_up: SetUp, asked: LoadArguments, version: float, advance: Callable[[int, int], None] | None
) -> LoadAnswer:
    test = load_test(_scenario(set_up, version), **asked.values)
    return run_load(test, advance=advance)


def fits_of(gpu: str, kernels: str) -> dict[str, Fit]:
    """`linear layers, fp16` -> how well it was fitted, of every kernel of one set."""
    known = load_gpu(gpu).kernels.get(kernels)
    if known is None:
        return {}
    return {
        kind.title if kind.section == key else f"{kind.title}, {key.replace('_', ' ')}": kernel.fit
        for kind in KINDS
        for key, kernel in kind.table(known).items()
    }


def profile_files(gpu: str) -> dict[str, Path]:
    """Files of measured rows of a GPU, by name: shipped, or the user's own."""
    folder = data.find("profiles/operators", gpu)
    return {} if folder is None else {path.name: path for path in sorted(folder.glob("*.csv"))}


def rows_of(path: Path) -> pd.DataFrame:
    """Checked rows with measured times."""
    return _rows_of(str(path), path.stat().st_mtime)


@st.cache_data(max_entries=16, show_spinner=False)
def _rows_of(path: str, version: float) -> pd.DataFrame:
    del version
    return read_rows(path, need_time=True)


def compared(frame: pd.DataFrame, gpu: str, kernels: str) -> pd.DataFrame:
    """Rows with their predictions, as `validate` makes them."""
    return _compared(frame, gpu, kernels, data_version())


@st.cache_data(max_entries=16, show_spinner=False)
def _compared(frame: pd.DataFrame, gpu: str, kernels: str, version: float) -> pd.DataFrame:
    del version
    runtime = load_runtime("paper" if kernels == "paper" else "kernel")
    return compared_rows(frame, load_gpu(gpu), runtime, leave_out=lambda line: None, kernels=kernels)


@st.cache_data(max_entries=64, show_spinner=False)
def reproduced(name: str) -> Reproduction:
    """A table or figure of the papers, predicted beside published."""
    return reproduction(name)


def decoder_folder(gpu: str) -> Path | None:
    """Measured steps of the decoder on this device, if there are any."""
    return data.find("profiles/decoder", gpu)


def decoder_validation(gpu: str, folder: str, latency: str) -> DecoderValidation:
    """The simulator against the steps of a folder, as `validate decoder` compares them."""
    return _decoder_validation(gpu, folder, latency, data_version())


@st.cache_data(max_entries=16, show_spinner=False)
def _decoder_validation(gpu: str, folder: str, latency: str, version: float) -> DecoderValidation:
    del version
    return validate_decoder(Path(folder), load_gpu(gpu), latency=latency, fallback="calibrated")  # type: ignore[arg-type]


def runs_validation(gpu: str, folder: str, latency: str) -> RunsValidation:
    """The simulator against whole generations of a trained decoder."""
    return _runs_validation(gpu, folder, latency, data_version())


@st.cache_data(max_entries=16, show_spinner=False)
def _runs_validation(gpu: str, folder: str, latency: str, version: float) -> RunsValidation:
    del version
    return validate_runs(Path(folder), load_gpu(gpu), latency=latency, fallback="calibrated")  # type: ignore[arg-type]


def decoder_cells(gpu: str, folder: str, latency: str) -> pd.DataFrame:
    """Every cell of either: model, batch, candidates, measured_us, predicted_us, is_fitted."""
    import pandas as pd

    pairs: list[tuple[StepCell | RunsCell, float, float]]
    if (Path(folder) / STEPS).exists():
        steps = decoder_validation(gpu, folder, latency).cells
        pairs = [(cell, cell.measured_us, cell.predicted_us) for cell in steps]
    else:
        runs = runs_validation(gpu, folder, latency).cells
        pairs = [(cell, cell.step_us, cell.predicted_step_us) for cell in runs]
    return pd.DataFrame(
        {
            "model": cell.model,
            "batch": cell.batch,
            "candidates": cell.candidates,
            "measured_us": measured_us,
            "predicted_us": predicted_us,
            "is_fitted": cell.is_fitted,
        }
        for cell, measured_us, predicted_us in pairs
    )
