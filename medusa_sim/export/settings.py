"""Common to all exports: the record of an engine, its settings as text, notes on every engine."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import KW_ONLY, dataclass, field

from medusa_sim.errors import UsageError
from medusa_sim.export import EngineName
from medusa_sim.export.chains import ChainPlan, Tier, TreeShape
from medusa_sim.models.parallel import Parallel
from medusa_sim.plan.recommendation import Recommendation
from medusa_sim.scenario.scenario import Scenario

_MOST_SPANS = 3


@dataclass(frozen=True, slots=True)
class EngineMethod:
    """A drafting method in an engine."""

    name: str
    """The engine's own."""
    _: KW_ONLY
    checkpoint: bool
    """Whether settings name the drafter's weights."""
    scheduled: tuple[str, ...] = ()
    """Versions in which a schedule by batch is both read and tested for it; elsewhere the engine ignores it,
    refuses it or is not known to run it."""
    untested: str = ""
    """Why not, for the reader."""
    parallel: bool = False
    """Whether all drafts come out of one pass, which the engine has to be told."""
    versions: tuple[str, ...] = ()
    """Versions that have it; empty: all."""
    sizes_itself: tuple[str, ...] = ()
    """Versions that can choose the drafts of every step themselves."""


@dataclass(frozen=True, slots=True)
class Versions:
    """Versions whose settings were read, oldest first, such as `0.24`; `default` is what installs today.

    A version between two of them is written as for the one before it; `ahead` releases (in the second
    number) beyond the newest one as for the newest. Below 0: as many as come.
    """

    engine: str
    known: tuple[str, ...]
    default: str
    ahead: int = 2

    def chosen(self, asked: str | None) -> tuple[str, str]:
        """The known version to write for, and a note that is empty where it is the one asked for.

        Raises UsageError for text that is no version, and for versions too far from what is known.
        """
        if asked is None:
            return self.default, ""
        wanted = _numbers(asked)
        if not wanted:
            raise UsageError(f"{self.engine} version {asked!r} is no version; known: {', '.join(self.known)}")
        older = [name for name in self.known if _numbers(name) <= wanted]
        newest = _numbers(self.known[-1])
        is_near = wanted[0] == newest[0] and (len(wanted) == 1 or wanted[1] <= newest[1] + self.ahead)
        if not older or (self.ahead >= 0 and not is_near):
            raise UsageError(
                f"{self.engine} {asked}: its settings are not known (known: {', '.join(self.known)}); their "
                "meaning changes between versions, so check the engine's documentation and edit what the "
                f"nearest known version gives (--engine-version {older[-1] if older else self.known[0]})"
            )
        nearest = older[-1]
        if wanted[: len(_numbers(nearest))] == _numbers(nearest):
            return nearest, ""
        return (
            nearest,
            f"{self.engine} {asked} was not read; written as for {nearest}, the nearest known before it",
        )


def _numbers(version: str) -> tuple[int, ...]:
    """(0, 24, 1) of `v0.24.1rc2`; empty where the text does not start like a version."""
    match = re.match(r"[vb]?(\d{1,9}(?:\.\d{1,9})*)", version.strip())
    return tuple(int(part) for part in match[1].split(".")) if match else ()


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """Settings as text that the engine takes, for one version of it, and what a reader must know.

    plan: drafts by batch; None where the settings are those of a tree. chosen: what they were written from.
    """

    engine: str
    version: str
    text: str
    notes: tuple[str, ...] = ()
    plan: ChainPlan | None = field(default=None, repr=False)
    chosen: Chosen | None = field(default=None, repr=False)

    def __str__(self) -> str:
        """The text alone, as it goes into a shell or a file."""
        return self.text


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """Input of an engine's writer: version, method, and the chains or the tree to run."""

    answer: Recommendation
    version: str
    method: EngineMethod
    plan: ChainPlan
    tree: TreeShape | None
    draft_path: str | None
    """The checkpoint of the draft where the method names one."""
    is_default: bool = False
    """No version was asked for."""

    @property
    def drafter(self) -> str:
        """Drafter, by our own name."""
        return self.answer.scenario.drafting.method

    @property
    def starts(self) -> tuple[tuple[int, Tier], ...]:
        """Tiers of the plan and the batch from which each holds; the first holds from 1."""
        return tuple((1 if i == 0 else tier.batch_min, tier) for i, tier in enumerate(self.plan.tiers))


@dataclass(frozen=True, kw_only=True)
class EngineExport:
    """An engine that settings are written for: its features and the form of its settings."""

    name: EngineName
    title: str
    versions: Versions
    methods: dict[str, EngineMethod]
    """By our name of the drafter."""
    missing_methods: dict[str, str] = field(default_factory=dict)
    """Why it has no such method, by our name."""
    has_known_graphs: bool = True
    """Whether its graphs are known, between which a schedule switches."""
    idle_drafter_costs: bool = True
    """Whether a plain step is longer because a drafter is loaded."""
    why_one_number: str
    """Why it drafts one number at every batch, where no method has a reason of its own."""
    batch_option: str
    """Its setting that limits the batch."""
    length_option: str
    """Its setting that limits the length of a request."""
    serve_command: str = ""
    """The command that starts it, where its acceptance can be made synthetic, and the port."""
    port: int = 8000
    bench_command: str = ""
    """The load generator that comes with it; `{port}`, `{name}`, `{common}` (or `{prompt}` and `{output}`)
    are filled in."""
    never_synthetic: tuple[str, ...] = ()
    """Drafters whose acceptance it cannot make synthetic."""
    synthetic_by_position: bool = False
    """Whether synthetic acceptance is by position: one server then has it right at any number of drafts."""
    is_local: bool = False
    """Whether it runs on one's own machine: `check` reads its responses, no runtime is fitted to them."""
    launch_options: dict[str, str] = field(default_factory=dict)
    """Options of its whole command, and what each is given (`parallel_values`, `launch.launch_values`)."""
    kv_dtypes: tuple[str, str] = ("fp8", "bfloat16")
    """Its names of a KV cache in fp8 and of one in 16 bits."""
    quantises_on_load: bool = False
    """Whether it makes the weights of 16-bit checkpoints fp8 while it loads them."""
    sets_cache_dtype: bool = True
    """Whether an option overrides the dtype of the KV cache that a checkpoint brings."""

    def write(self, chosen: Chosen) -> str:
        """The settings."""
        raise NotImplementedError

    def notes(self, chosen: Chosen) -> Iterable[str]:
        """Notes on this engine alone."""
        del chosen
        return ()

    def trees(self, method: EngineMethod, version: str) -> Callable[[TreeShape], bool] | None:
        """Which trees a method may grow in a version; None: none."""
        del method, version
        return None

    def margin(self, answer: Recommendation) -> float:
        """Gain over one fixed number below which a schedule is not written."""
        return answer.question.switching_gain

    def of_gpus(self, parallel: Parallel) -> list[str]:
        """Options, and lines of a configuration file, that share the model among GPUs."""
        values = parallel_values(parallel)
        words = (option_words(option, values.get(name)) for option, name in self.launch_options.items())
        return [" ".join(each) for each in words if each]

    @property
    def takes_dp_attention(self) -> bool:
        """Whether an option shares attention by requests; a file that it reads may say so where none does."""
        return not {"is_dp", "dp"}.isdisjoint(self.launch_options.values())

    def server(self, chosen: Chosen) -> str:
        """The command that starts it on its GPUs."""
        return " ".join(
            [self.serve_command, *self.of_gpus(chosen.answer.scenario.parallel), f"--port {self.port}"]
        )

    def launch_lines(self, scenario: Scenario, speculation: list[str]) -> list[str]:
        """Lines before the serving command, then its options."""
        del scenario
        return speculation

    def synthetic(self, chosen: Chosen, length: float) -> Iterator[str]:
        """Lines that start it with synthetic acceptance of `length` tokens a step."""
        raise NotImplementedError

    def nearest_length(self, version: str, length: float) -> float:
        """Tokens a step that its synthetic acceptance can give, the nearest to `length`."""
        del version
        return length


def parallel_values(parallel: Parallel) -> dict[str, int | bool | None]:
    """Values of the options that share a model among GPUs, by the names of `EngineExport.launch_options`."""
    several = {"tp": parallel.tp, "ep": parallel.ep, "attention_tp": parallel.attention_tp}
    return {
        **{name: count if count > 1 else None for name, count in several.items()},
        "is_ep": parallel.ep > 1,
        "is_dp": parallel.dp_attention,
        "dp": parallel.tp if parallel.dp_attention else None,
    }


def option_words(option: str, value: int | str | bool | None) -> tuple[str, ...]:
    """An option and its value as words: alone where it is a flag, none where it is not set."""
    return (option,) if value is True else () if value in (None, False) else (option, str(value))


def forgone_tree(answer: Recommendation) -> tuple[str, ...]:
    """Gain of the best searched tree over the chain that the engine runs instead."""
    trees = [
        row for row in answer.schedule
        if row.fits_memory and not row.chain and row.candidates > 1 and row.chain_speedup is not None
    ]  # fmt: skip
    if not trees:
        return ()
    row = max(trees, key=lambda each: each.speedup / each.chain_speedup if each.chain_speedup else 0.0)
    chain_speedup = row.chain_speedup or 1.0
    return (
        f"a chain is written: at batch {row.batch_max}, length {row.seq_len} the best chain gives "
        f"{chain_speedup:.2f}x, a tree of {row.candidates} candidates would give {row.speedup:.2f}x "
        f"({100.0 * (row.speedup / chain_speedup - 1.0):+.0f} %)",
    )


def length_note(answer: Recommendation, cap: str) -> str:
    """Engines schedule by batch alone: which lengths were averaged, and beyond which drafts cost time.

    `cap` is the engine's own setting that limits the length of a request.
    """
    lengths = answer.question.seq_len
    if len(lengths) == 1:
        text = f"computed at length {lengths[0]}; the engine does not look at the context"
    else:
        listed = ", ".join(map(str, lengths))
        text = f"one answer for lengths {listed} (geometric mean of the speedups): the engine sees no context"
    loses = answer.break_even_context.loses_from
    if loses is None or loses <= answer.break_even_context.searched_from:
        return text
    return (
        f"{text}: at batch {answer.question.batch_max} speculation loses from length {loses} on; keep longer "
        f"requests from this server with {cap} {loses - 1} and run them on one without a drafter"
    )


def range_notes(plan: ChainPlan, cap: str) -> tuple[str, ...]:
    """Says that outside the searched batches the nearest tier goes on, as in every engine.

    `cap` is the engine's own setting that limits the batch.
    """
    batch, last = plan.grid.batch, plan.tiers[-1]
    notes = []
    if batch[0] > 1:
        notes.append(f"batches below {batch[0]} were not searched and run as {batch[0]} does")
    what = f"the last number of drafts ({last.drafts}) goes on" if last.drafts else "speculation stays off"
    searched_to = plan.grid.searched_to
    if plan.max_batch < searched_to:
        notes.append(
            f"batches above {plan.max_batch} do not fit in memory at this length; shorter ones: {what}"
        )
    else:
        notes.append(
            f"batches above {searched_to} were not searched: {what} there; search further with --batch 1..N, "
            f"or keep the batch below with {cap} {searched_to}"
        )
    if plan.loses:
        worst = min(
            plan.grid.speedup(int(n), plan.drafts_at(int(n)))
            for first, to in plan.loses for n in batch[(batch >= first) & (batch <= to)]
        )  # fmt: skip
        first, to = plan.loses[-1]
        limit = f"limit the batch with {cap} {first - 1}, or " if to == batch[-1] and first > batch[0] else ""
        notes.append(
            f"at batch {_listed(plan.loses)} this is no faster than no speculation (down to {worst:.2f}x): "
            f"{limit}serve such batches without it"
        )
    if plan.unsure:
        notes.append(
            f"at batch {_listed(plan.unsure)} this drafts, which the schedule does not: the gain there is "
            "within its doubt"
        )
    return tuple(notes)


def _listed(spans: tuple[tuple[int, int], ...]) -> str:
    """Few spans one by one, more as the range that they lie in and how much of it they fill."""
    if len(spans) <= _MOST_SPANS:
        return ", ".join(f"{first}..{last}" if last > first else f"{first}" for first, last in spans)
    count = sum(last + 1 - first for first, last in spans)
    return f"{spans[0][0]}..{spans[-1][1]} ({count} batches of these)"


def tier_notes(plan: ChainPlan, why: str) -> tuple[str, ...]:
    """Schedule by batch that one number of drafts replaces, and `why`."""
    if plan.dynamic or len(plan.best_schedule) == 1:
        return ()
    ranges = (f"{each.drafts or 'off'} at {each.batch_min}..{each.batch_max}" for each in plan.best_schedule)
    tiers = ", ".join(ranges)
    batch, best, most, own = plan.largest_loss
    lost = f"{best} drafts give {most:.2f}x" if best else "none would do better"
    return (
        f"one number of drafts for every batch: {plan.drafts}; switching where its graphs end it "
        f"would be {tiers}, but {why}; it costs most at batch {batch}: {own:.2f}x, where {lost}",
    )


def too_small(plan: ChainPlan, margin: float) -> str:
    """The reason that a schedule gains less than it costs."""
    gains, must = 100.0 * plan.gain, 100.0 * margin
    return f"that gains {gains:.1f} % where it must gain {must:.1f} % to pay for switching"
