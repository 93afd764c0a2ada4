"""On your own machine: what a benchmark of llama.cpp or MLX printed, and what it says of drafts there."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import answers
import bar
import inputs
import notes
import show
import streamlit as st
import uploads
from charts.draw import lines_spec
from chosen import OWN_MODEL, PageArguments, drafts_for
from inputs import Input

from medusa_sim.acceptance.profile import acceptance_names
from medusa_sim.engines.runtime import load_runtime
from medusa_sim.errors import MedusaSimError, UsageError
from medusa_sim.export.engines import engine_settings
from medusa_sim.file_types import FILES, OF_MLX
from medusa_sim.gpus.gpu import load_gpu
from medusa_sim.gpus.gpu_names import gpu_names, local_names
from medusa_sim.gpus.local import runtimes_of
from medusa_sim.grid.sweep import count_table
from medusa_sim.latency.local import LocalLatency
from medusa_sim.models.named import load_model, model_names
from medusa_sim.plan.schedule import scheduled_counts
from medusa_sim.reading.files import held
from medusa_sim.report.charts.sweep import speedup_chart
from medusa_sim.report.length_view import view_of
from medusa_sim.report.words.numbers import duration, percent, times
from medusa_sim.scenario.local_correction import band_without_rows
from medusa_sim.scenario.local_rows import LocalRows, bench_command, read_rows
from medusa_sim.scenario.question import Question
from medusa_sim.step.drafter import drafter_class
from views.verdict import AS_GOOD, as_good, certainty, verdict_of

if TYPE_CHECKING:
    from medusa_sim.models.model import Model
    from medusa_sim.plan.recommendation import Recommendation
    from medusa_sim.plan.schedule_row import ScheduleRow

_DEVICE, _MODEL, _FILE, _MLX = "rtx-3090", "llama-3.1-8b", "q4_k_m", "mlx-4bit"
_RATE = "0.7"
_CONTEXTS = (512, 1024, 2048, 4096, 8192, 16384, 32768)
Words = Callable[[str], str] | None
_TOLD = "What llama-bench, llama-batched-bench, mlx-lm's benchmark or llama-server's timings printed."


def page(set_up: PageArguments) -> None:
    """What is asked, and a paste that says it; the verdict, the flag to add, and how well it is known."""
    del set_up  # of a server
    st.title("On your own machine", anchor=False)
    asking = st.container()
    pasted = st.text_area("Paste a benchmark of yours", key="own_bench", height=80, placeholder=_TOLD)
    headline = st.container()
    try:
        rows, path = _rows(pasted)
        with asking:
            asked = _asked(rows, path)
    except MedusaSimError as error:
        st.error(show.in_words(str(error)), icon=":material/error:")
        return
    show.ignored_note()
    with headline, _readable(path, pasted), show.errors():
        _answer(asked, rows)
    st.caption("The rows that tell most are those of this command; paste what it prints:")
    show.code(bench_command(asked.engine))


def _rows(pasted: str) -> tuple[LocalRows | None, str]:
    """What the paste says, and the path at which it is held: its own for each content, a key of caches."""
    if not pasted.strip():
        return None, ""
    content = uploads.checked("paste", pasted.encode())
    with held(f"bench-{hashlib.sha256(content).hexdigest()[:8]}.txt", content) as path:
        return read_rows(path), str(path)


def _readable(path: str, pasted: str) -> AbstractContextManager[Path | None]:
    return held(path, pasted.encode()) if path else nullcontext()


def _asked(rows: LocalRows | None, path: str) -> PageArguments:
    """The set-up that the paste tells, the rest from inputs."""
    told: dict[str, Any] = {} if rows is None else dict(rows.told)
    if told:
        st.caption(f"Read from it: {show.escaped(', '.join(map(str, told.values())))}.")
    row = st.container(key="of_own")

    def given(argument: str, field: Input, options: Sequence[str], usual: str, words: Words = None) -> str:
        """An argument as the paste says it, else from its input."""
        return str(told[argument]) if argument in told else inputs.choice(row, field, options, usual, words)

    meaning = "Whose law is corrected by your rows; without any it is the answer for a device like yours."
    gpu = given("gpu", Input("device", "Device", meaning), _devices(), _DEVICE)
    engines = runtimes_of(load_gpu(gpu).local)
    if not engines:
        raise UsageError(f"{gpu} runs no local engine; choose another device")
    of_engine = Input("backend", "Engine", "The engine and its backend.")
    runtime = given("runtime", of_engine, engines, engines[0])
    of_model = Input("own_model", "Model", "Sizes decide the time of a step.")
    model = given("model", of_model, (*model_names(), OWN_MODEL), _MODEL)
    config = bar.uploaded_model(st) if model == OWN_MODEL else None
    if model == OWN_MODEL and config is None:
        raise UsageError("Model: drop its file below, or pick another model")
    of_mlx = runtime == "mlx"
    files = tuple(each for each in FILES if each.startswith(OF_MLX) == of_mlx and "@" not in each)
    of_file = Input("own_file", "File", "Type of the file, as in its name.")
    is_told = config is not None and uploads.is_gguf(config)  # by its tensors
    form = None if is_told else given(
        "weight_dtype", of_file, files, _MLX if of_mlx else _FILE, inputs.format_words
    )  # fmt: skip
    terms = load_runtime(runtime).engine
    drafters = () if terms is None else terms.drafters
    meaning = "What proposes the drafts. mtp: the model's own head, where it has one."
    of_drafter = Input("own_drafter", "Drafter", meaning)
    drafter = inputs.choice(row, of_drafter, drafters, "ngram", lambda name: drafter_class(name).title)
    draft = None
    if drafter == "draft-model":
        draft = _draft_model(row, load_model(model) if config is None else uploads.model_of(config))
    counted = None if rows is None else rows.acceptance()
    usual_rate = _RATE if counted is None else counted
    meaning = (
        "Chance that a draft is accepted (0.7); share of all drafts, as llama-server logs it, with their "
        "number a round (60%@3); mean tokens of a round (2.8@3); or shares by position (0.8,0.6,0.5)."
    )
    typed = inputs.text(row, Input("own_rate", "Acceptance", meaning), empty=usual_rate)
    rate = typed or usual_rate
    if not typed and counted is None:
        st.caption(f"Acceptance {_RATE} is a guess: type what your engine logs.")
    bar.check_acceptance(rate, acceptance_names())
    of_context = Input("own_context", "Context", "Tokens before a step.")
    seq_len = inputs.step_of(row, of_context, _CONTEXTS, 1024)
    return PageArguments(
        gpu=gpu, runtime=runtime, model=model if config is None else uploads.called(config), config=config,
        weight_dtype=form, drafter=drafter, draft_model=draft,
        acceptance=rate, seq_len=seq_len, is_step=True, bench=path or None,
    )  # fmt: skip


def _devices() -> tuple[str, ...]:
    """Devices on which local engines run."""
    return (*local_names(), *(card for card in gpu_names() if load_gpu(card).local is not None))


def _draft_model(where: Any, target: Model) -> str:
    """A model with the target's vocabulary. Raises UsageError where none is known."""
    alike = drafts_for(target)
    if not alike:
        raise UsageError(
            f"no known model has the {target.vocab} tokens of {target.name}: pick another drafter"
        )
    return inputs.choice(where, Input("own_draft", "Draft model", "A smaller one."), alike, alike[0])


def _answer(asked: PageArguments, rows: LocalRows | None) -> None:
    answer = answers.recommendation(asked, Question(batch_max=1))
    row = answer.scheduled_row_at(1, asked.seq_len)
    verdict_of(asked, answer, row)
    if not row.fits_memory:
        return
    known = _band(answer)
    show.figures(
        show.Figure(
            "Drafts", "off" if row.candidates == 1 else str(row.drafts),
            None if row.candidates == 1 else as_good(answer, row), f"Of each round. {AS_GOOD}",
        ),
        show.Figure(
            "Speedup", times(row.speedup), f"80 %: {row.speedup_low:.2f} to {row.speedup_high:.2f}",
            "Tokens a second over decoding without drafts.",
        ),
        show.Figure(
            "A plain token", duration(row.decode_step_us), None, "Time of a forward pass of one token.",
        ),
        show.Figure("A pass is known within", percent(known[0]), known[1], "80 % of passes lie so near."),
    )  # fmt: skip
    show.how_sure(certainty(answer, row), *notes.warnings(answer))
    _flag(answer, asked, row)
    _counts(answer, asked)
    if rows is not None and rows.build:
        st.caption(f"Build {show.escaped(rows.build)}; the kernels are those of autumn 2026.")


def _band(answer: Recommendation) -> tuple[float, str]:
    """(half-width of a pass, what the rows have made of it)."""
    latency = answer.scenario.latency
    assert isinstance(latency, LocalLatency)  # noqa: S101  # its engines have no other
    if answer.scenario.arguments.bench is None:
        return latency.law.band, "a device like yours"
    return latency.law.band, f"your device; one like it {percent(band_without_rows(latency))}"


def _flag(answer: Recommendation, asked: PageArguments, row: ScheduleRow) -> None:
    """The flag to add to the engine's command."""
    if row.candidates == 1:
        st.markdown("Add no flag: plain decoding is faster.")
        return
    st.markdown("Add to the command of your engine:")
    if asked.engine == "mlx":
        show.code(f"--draft-model {asked.draft_model or 'DRAFT'} --num-draft-tokens {row.drafts}")
        return
    path = None if asked.drafter in ("mtp", "ngram") else f"{asked.draft_model or 'DRAFT'}.gguf"
    show.code(engine_settings(answer, "llama-cpp", draft_path=path).text)


def _counts(answer: Recommendation, asked: PageArguments) -> None:
    recommended = scheduled_counts(answer.rows_at(asked.seq_len))
    view = view_of(answer.cells.by_count, asked.seq_len, [*range(1, 17), *recommended.values()], recommended)
    rows = count_table(answer.cells.by_count)
    words = [Path(word).name if word == asked.bench else word for word in asked.options]
    show.chart(
        lines_spec(speedup_chart(view, "", chains=True), 300),
        name="own",
        caption="Ring: what is recommended. Tick: the pass jumps after this number. Band: 80 %.",
        command=show.command(["recommend", *words, "--batch", "1", "--by-count", "--format", "csv"]),
        rows=lambda: rows,
        alt="Speedup against the number of drafts",
    )
