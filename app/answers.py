"""Cached calls into the package. Arguments are names and numbers: no cache can answer for another question.

Results are shared between sessions and never changed. Every cache also depends on the files that answers
are computed from (`data_version`): a GPU that was measured while the app runs is seen within a second. They
are kept by bytes (`kept`): a search holds up to 85 MB.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import time
from typing import TYPE_CHECKING, Any

import notes
import uploads
from answer_cache import LONG_BYTES, AnswerCache
from chosen import PageArguments

from medusa_sim import data
from medusa_sim.acceptance.profile import acceptance_names, acceptance_path
from medusa_sim.acceptance.profile_file import read_profile
from medusa_sim.doubts.standing import standing
from medusa_sim.engines.runtime import load_runtime
from medusa_sim.errors import MedusaSimError
from medusa_sim.export.engines import engine_settings
from medusa_sim.grid.axes import Grid
from medusa_sim.grid.configurations import PLAIN
from medusa_sim.grid.roofline import roofline_points
from medusa_sim.grid.surface import surface_at
from medusa_sim.models.model import Model
from medusa_sim.models.named import load_model
from medusa_sim.plan import tree_answer
from medusa_sim.plan.recommend import recommend
from medusa_sim.plan.recommendation import Recommendation
from medusa_sim.report.words.numbers import percent
from medusa_sim.report.words.standing import standing_sentence
from medusa_sim.scenario.arguments import words_of
from medusa_sim.scenario.question import QUESTION, Question
from medusa_sim.scenario.scenario import Scenario
from medusa_sim.setups.measured import NearestFigure, predicted_curve, predicted_speed
from medusa_sim.setups.question import BATCHES
from medusa_sim.setups.served_figures import Figure, by_nearness, differences, figures
from medusa_sim.setups.setup import ENGINES
from medusa_sim.step.breakdown import breakdown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import pyarrow as pa

    from medusa_sim.acceptance.tree import CandidateTree
    from medusa_sim.export.chains import ChainPlan
    from medusa_sim.export.settings import EngineSettings
    from medusa_sim.plan.schedule_row import ScheduleRow
    from medusa_sim.plan.tree_answer import TreeAnswer, TreeCurve

MOST_AT_ONCE = 1024
"""Requests that the app looks at: as many as engines decode at once where nobody says more."""
_CURVE = BATCHES[: BATCHES.index(256) + 1]
_BOTH = {"decode_attention": "attention", "verify_attention": "attention"}
"""What plain and speculative steps call otherwise."""
_CHANGED = 0.1


def data_version() -> float:
    """Changes when a file of hardware or profiles does, the user's own folder included; seen in a second."""
    return _version_at(int(time.monotonic()), os.environ.get(data.DATA_DIR_VARIABLE))


@functools.lru_cache(maxsize=1)
def _version_at(second: int, data_dir: str | None) -> float:
    """Some hundred files are looked at: 5 ms, and ten calls of a page ask."""
    del second, data_dir
    newest = 0.0
    for root in data.data_roots():
        for kind in ("hardware", "profiles"):
            for path in (root / kind, *(root / kind).rglob("*")):
                with contextlib.suppress(OSError):
                    newest = max(newest, path.stat().st_mtime)
    return newest


KEPT = AnswerCache(version=data_version)
LONG = AnswerCache(LONG_BYTES, version=data_version)
"""Loads and searches of cards, computed by `jobs`."""


def published_model(set_up: PageArguments) -> Model:
    """The model that was chosen or uploaded, as it is published."""
    return load_model(set_up.model_given) if set_up.config is None else uploads.model_of(set_up.config)


@KEPT
def profile_titles() -> dict[str, str]:
    """What every acceptance profile is called, by its name; one that cannot be read has none."""
    titles = {}
    for name in acceptance_names():
        with contextlib.suppress(MedusaSimError):
            titles[name] = read_profile(acceptance_path(name)).title
    return titles


@KEPT
def scenario_of(set_up: PageArguments) -> Scenario:
    """The set-up as the command line builds it. Raises UsageError for what does not fit together."""
    uploaded = {} if set_up.config is None else {"model": published_model(set_up)}
    return Scenario(**{**set_up.given, **uploaded})


def usual_request(set_up: PageArguments) -> tuple[int, int] | None:
    """Prompt and output as said, or as `recommend` asks about where none are; None where steps are priced."""
    if set_up.request is not None:
        return set_up.request
    if set_up.is_step:
        return None
    traffic = scenario_of(set_up).with_usual_requests().traffic
    return None if traffic is None else (round(traffic.prompt_tokens), round(traffic.output_tokens))


def options(question: Question) -> list[str]:
    """A question as options of `medusa-sim recommend`; its length is the set-up's."""
    given = words_of(question.changed, QUESTION)
    if question.request is not None:
        prompt, output = map(str, question.request)
        given += ["--prompt-tokens", prompt, "--output-tokens", output]
    return [*given, "--batch", f"{question.batch_min}..{question.batch_max}"]


def every_batch(set_up: PageArguments) -> Question:
    """The question about all batches that memory holds, of the request that was said or is usual."""
    return Question(batch_max=room(set_up), request=usual_request(set_up))


@KEPT
def recommendation(set_up: PageArguments, question: Question) -> Recommendation:
    """`medusa-sim recommend` at the set-up's length."""
    return recommend(scenario_of(set_up), dataclasses.replace(question, seq_len=(set_up.seq_len,)))


@KEPT
def warnings(set_up: PageArguments, question: Question) -> list[str]:
    """What to be warned of there: the same at every batch that is looked at."""
    return notes.warnings(recommendation(set_up, question))


@KEPT
def room(set_up: PageArguments) -> int:
    """The most requests at once that memory holds without drafts, MOST_AT_ONCE at most; at least 1."""
    scenario = scenario_of(set_up).with_usual_requests()
    held = surface_at(scenario, [1], [set_up.seq_len], ()).max_batch
    return min(max(int(held[0, PLAIN]), 1), MOST_AT_ONCE)


def measured_near(set_up: PageArguments, *, every: bool = False) -> list[NearestFigure]:
    """Public measurements with predictions, the nearest to a set-up first; every: far ones too."""
    scenario = scenario_of(set_up)
    return [
        NearestFigure(
            figure=figure,
            differs=differences(figure, scenario),
            tokens_per_s_per_user=_predicted_speed(figures().index(figure)),
        )
        for figure in by_nearness(scenario, every=every)
    ]


@KEPT
def how_near(set_up: PageArguments) -> str:
    """How near a set-up lies to servers that were measured, and the error to expect, in a sentence."""
    scenario = scenario_of(set_up)
    return standing_sentence(scenario, standing(scenario))


@KEPT
def _predicted_speed(place: int) -> float:
    """What is predicted for a figure as it was measured: of no set-up but its own."""
    return predicted_speed(figures()[place])


def measured_curve(figure: Figure) -> dict[str, Any]:
    """The same at other batches too, columns by batch."""
    return _predicted_curve(figures().index(figure))


@KEPT
def _predicted_curve(place: int) -> dict[str, Any]:
    return predicted_curve(figures()[place], _CURVE)


def planned(set_up: PageArguments) -> Recommendation:
    """The answer to `every_batch`."""
    return recommendation(set_up, every_batch(set_up))


def row_at(set_up: PageArguments, batch: int) -> ScheduleRow:
    """The schedule's row at one batch."""
    return planned(set_up).scheduled_row_at(batch, set_up.seq_len)


def drafts_at(set_up: PageArguments, batch: int) -> int:
    """Drafts in a row that are recommended at a batch; where none are, the best that fit, or 1."""
    answer = planned(set_up)
    batch = min(batch, answer.question.batch_max)
    if drafts := answer.scheduled_row_at(batch, set_up.seq_len).drafts:
        return drafts
    best = max(answer.by_drafts, key=lambda each: each.speedup, default=None)
    return 1 if best is None else best.drafts


@KEPT
def launch_settings(
    set_up: PageArguments, question: Question, draft_path: str | None = None
) -> EngineSettings:
    """What `recommend --export` prints. Raises UsageError for what the engine cannot do."""
    return engine_settings(recommendation(set_up, question), set_up.export, draft_path=draft_path)


def launch_plan(set_up: PageArguments, question: Question) -> ChainPlan | None:
    """What the settings run by batch, whichever checkpoint drafts. Raises UsageError as they do."""
    return launch_settings(set_up, question, draft_path="any").plan


@KEPT
def roofline(set_up: PageArguments, batch: int, candidates: int) -> pa.Table:
    """`medusa-sim roofline` for one batch, count and the set-up's length."""
    scenario = scenario_of(set_up)
    grid = Grid.of((batch,), (set_up.seq_len,), (candidates,))
    return roofline_points(scenario.setting.latency, scenario.gpu, scenario.shard, scenario.runtime, grid)


def operators(set_up: PageArguments, answer: Recommendation, batch: int) -> tuple[int, list[dict[str, Any]]]:
    """Candidates of the scheduled step at a batch, and the operators of it and of a plain one by name.

    Rows: op, launches, plain_us, speculative_us (all launches of a step), bound, source; the longest first.
    Drafting passes are one row an operator.
    """
    both = answer.steps_at(batch, set_up.seq_len, scheduled=True)
    frames = [breakdown(both.setting, batch, set_up.seq_len, each) for each in (1, both.candidates)]
    table: dict[str, dict[str, Any]] = {}
    for frame, column in zip(frames, ("plain_us", "speculative_us"), strict=True):
        for row in (dict(zip(frame.columns, values, strict=True)) for values in frame.to_numpy().tolist()):
            is_draft = str(row["pass"]).startswith("draft")
            name = f"drafting: {row['op']}" if is_draft else _BOTH.get(row["op"], row["op"])
            held = table.setdefault(name, {"op": name, "launches": 0, "plain_us": 0.0, "speculative_us": 0.0})
            held |= {"bound": row["bound"], "source": row["source"]}
            held["launches"] = row["launches"] + (held["launches"] if is_draft else 0)
            held[column] += row["time_us"]
    return both.candidates, sorted(table.values(), key=lambda row: -row["speculative_us"])


def _of_lengths(
    set_up: PageArguments, request: tuple[int, int] | None
) -> Iterator[tuple[str, int, PageArguments]]:
    """Half and twice the prompt, with what is cached before it; without requests the context."""
    for factor in (0.5, 2.0):
        if request is None:
            tokens = max(int(factor * set_up.seq_len), 1)
            yield "context", tokens, dataclasses.replace(set_up, seq_len=tokens)
            continue
        prompt = max(int(factor * request[0]), 1)
        longer = set_up.seq_len + prompt - request[0]
        yield "prompt", prompt, dataclasses.replace(set_up, seq_len=longer, request=(prompt, request[1]))


def changes(
    set_up: PageArguments,
    batch: int,
    request: tuple[int, int] | None,
    advance: Callable[[int, int], None] = lambda done, total: None,
) -> list[dict[str, float | int | str]]:
    """What the answer at a batch would be with one thing changed: what, change, speedup, drafts.

    The same search each time, kept as any; what cannot be (no room, no such kernel) is left out. advance:
    told (searches done, searches in all).
    """

    def at(other: PageArguments, size: int) -> ScheduleRow:
        question = Question(batch_min=size, batch_max=size, request=other.request or request)
        return recommendation(other, question).scheduled_row_at(size, other.seq_len)

    row = at(set_up, batch)
    bars: list[dict[str, float | int | str]] = [
        {
            "what": "acceptance",
            "change": percent(share, 0, signed=True),
            "speedup": speedup,
            "drafts": row.drafts,
        }
        for share, speedup in (
            (-_CHANGED, row.speedup_acceptance_minus_10_percent),
            (_CHANGED, row.speedup_acceptance_plus_10_percent),
        )
    ]
    library = load_runtime(set_up.launched).library
    asked = [(what, f"{tokens:,}", other, batch) for what, tokens, other in _of_lengths(set_up, request)]
    asked += [("batch", f"{size}", set_up, size) for size in (max(batch // 2, 1), 2 * batch) if size != batch]
    asked += [
        ("engine", name, dataclasses.replace(set_up, runtime=load_runtime(name).name, chain_only=None), batch)
        for name in ENGINES
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
    for done, (what, change, other, size) in enumerate(asked):
        advance(done, len(asked))
        with contextlib.suppress(MedusaSimError):
            new = at(other, size)
            if new.fits_memory:
                bars.append({"what": what, "change": change, "speedup": new.speedup, "drafts": new.drafts})
    return bars


@KEPT
def best_tree(set_up: PageArguments, candidates: int, batch: int) -> CandidateTree:
    """The tree of that size that a search would run."""
    return tree_answer.best_tree(scenario_of(set_up), candidates, batch, set_up.seq_len)


@KEPT
def tree_curve(set_up: PageArguments, batch: int, largest: int) -> TreeCurve:
    """The best drafting of every size to `largest` candidates."""
    return tree_answer.tree_curve(scenario_of(set_up), batch, set_up.seq_len, largest)


@KEPT
def tree(set_up: PageArguments, chosen: CandidateTree, batch: int) -> TreeAnswer:
    """What a tree gives in the set-up."""
    return tree_answer.tree_answer(scenario_of(set_up), chosen, batch, set_up.seq_len)
