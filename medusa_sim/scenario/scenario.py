"""A scenario: the GPU, model, engine, drafter, acceptance and latency model that its arguments name.

Names, files or objects go in; every part is loaded here and nowhere else, so that the command line, the app
and Python answer about the same thing. `doubts.of_scenario` says what was not measured for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from medusa_sim.acceptance.profile import AcceptanceProfile
from medusa_sim.arrays import IntArray
from medusa_sim.engines.backends import Backend, backend_of_model
from medusa_sim.engines.case import Case, case_of
from medusa_sim.engines.runtime import Runtime, load_runtime
from medusa_sim.errors import CoverageError, UsageError, check_kind
from medusa_sim.gpus.gpu import Gpu, load_gpu
from medusa_sim.gpus.local import with_backend
from medusa_sim.gpus.prices import Price, given_price, price_of
from medusa_sim.latency.cached import cached
from medusa_sim.latency.model import LatencyModel
from medusa_sim.models.model import Model
from medusa_sim.models.named import load_model
from medusa_sim.models.parallel import ONE, Parallel
from medusa_sim.models.variants import on_one_gpu, with_dtypes
from medusa_sim.scenario.acceptance import resolve
from medusa_sim.scenario.adjusted_acceptance import AdjustedAcceptance, adjust
from medusa_sim.scenario.arguments import ARGUMENTS, Arguments
from medusa_sim.scenario.as_run import as_run, check_fit, formats_asked
from medusa_sim.scenario.declare import WHOLE, check, takes
from medusa_sim.scenario.defaults import (
    CANDIDATES_MAX,
    DEFAULT_SEQ_LEN,
    LOAD_OUTPUT_TOKENS,
    LOAD_PROMPT_TOKENS,
    Baseline,
    default_drafter,
    request_length,
)
from medusa_sim.scenario.draft_options import Drafting, DraftOption, draft_options, drafting_asked
from medusa_sim.scenario.kernel_fits import KernelFits
from medusa_sim.scenario.latency_asked import latency_asked
from medusa_sim.serving.traffic import Traffic, longest_prompt
from medusa_sim.step import Scope
from medusa_sim.step.drafter import drafter_class
from medusa_sim.step.drafter.base import Drafter
from medusa_sim.step.expert_union import CHAIN, OVERLAPS, TREE, Overlap
from medusa_sim.step.memory import usable_memory_bytes
from medusa_sim.step.setting import Setting
from medusa_sim.step.verified import Verified


@dataclass(frozen=True, eq=False, init=False, repr=False)
class Scenario:
    """A model on a machine with a drafter, before batch, length and count are chosen.

    Made from `scenario.arguments.Arguments`, all by name. Its other parts are loaded from these
    when it is made; it owns its GPU and its latency model.

    Raises SpecError, DataError or UsageError naming what is unknown or does not fit together.
    """

    arguments: Arguments

    @takes(Arguments)
    def __init__(self, **given: Any) -> None:
        check(given, ARGUMENTS, "scenario argument")
        object.__setattr__(self, "arguments", Arguments(**given))
        self._check()

    def _check(self) -> None:
        """Load every part, and refuse those that do not go together."""
        asked, drafter = self.arguments, self.drafter_class
        if asked.heads is not None and drafter.unit != "head":
            raise UsageError(f"drafter {drafter.name} takes no --heads; --max-drafts limits the draft length")
        check_fit(self.shard, self.runtime, self.gpu)
        drafter.check(self.drafting.parts, self.model)
        if self.drafting.parts.draft is not None:
            on_one_gpu(self.drafting.parts.draft, Parallel(tp=asked.tp))  # refuses one that cannot be split
        engine = self.runtime.engine
        if engine is not None and drafter.name not in engine.drafters:
            raise UsageError(
                f"runtime {self.runtime.name} runs no {drafter.name} drafter; it has: "
                f"{', '.join(engine.drafters)}"
            )
        if self.model.keeps_states and not self.chain_only and self.scope == "model":
            raise UsageError(
                f"{self.model.name} has recurrent layers, whose states no engine rolls back along a tree: "
                "trees cannot be verified; leave out --trees and give --acceptance by position, not a curve"
            )
        _ = self.overlap, self.traffic, self.price, self.latency

    @property
    def changed(self) -> dict[str, Any]:
        """The arguments that differ from the defaults; GPU, model and drafter always."""
        return {**self.arguments.changed, "drafter": self.drafter_class.name}

    def __repr__(self) -> str:
        """The arguments that are not the defaults."""
        text = ", ".join(f"{name}={value!r}" for name, value in self.changed.items())
        return f"Scenario({text})"

    def but(self, **changes: Any) -> Scenario:
        """The same scenario with some arguments changed. Raises UsageError for an unknown argument."""
        check(changes, ARGUMENTS, "scenario argument")
        return type(self)(**{**self.arguments.values, **changes})

    # The machine: engine, GPUs, and the model as they hold it.

    @property
    def scope(self) -> Scope:
        """Which operators a step has."""
        return self.arguments.scope

    @cached_property
    def runtime(self) -> Runtime:
        """The engine, or how kernels launch; the drafter's own where none is named."""
        asked = self.arguments
        given = asked.runtime or self.drafter_class.default_runtime
        if isinstance(given, str):
            given = with_backend(given, self.gpu.local)
        return load_runtime(given, asked.data_dir) if isinstance(given, str) else given

    @cached_property
    def gpu(self) -> Gpu:
        """The GPU."""
        asked = self.arguments
        return load_gpu(asked.gpu, asked.data_dir) if isinstance(asked.gpu, str) else asked.gpu

    @cached_property
    def published(self) -> Model:
        """The model as it was published."""
        given = self.arguments.model
        return given if isinstance(given, Model) else load_model(given)

    @cached_property
    def _as_run(self) -> tuple[Model, tuple[str, ...]]:
        return as_run(self.published, self.runtime, self.gpu, self.arguments)

    @property
    def precision(self) -> str:
        """Format of the checkpoint: as published or asked for, whatever the GPU unpacks."""
        formats = formats_asked(self.published, self.runtime, self.arguments)
        return with_dtypes(self.published, *formats).precision

    @property
    def engine_name(self) -> str:
        """The runtime as it was named: `vllm` for its newest version."""
        given = self.arguments.runtime
        return given if isinstance(given, str) else self.runtime.name

    @property
    def model(self) -> Model:
        """The model in the formats that it runs in."""
        return self._as_run[0]

    @property
    def unpacked_forms(self) -> tuple[str, ...]:
        """Formats of the checkpoint that the GPU has no arithmetic for."""
        return self._as_run[1]

    @cached_property
    def parallel(self) -> Parallel:
        """The split of the model over GPUs."""
        asked = self.arguments
        return Parallel(tp=asked.tp, ep=asked.ep, dp_attention=asked.dp_attention)

    @property
    def gpus(self) -> int:
        """GPUs that run the model together."""
        return self.parallel.tp

    @property
    def gpus_text(self) -> str:
        """`h200-sxm`; `8 x h200-sxm (tp 8)`."""
        parallel = self.parallel
        return self.gpu.name if parallel == ONE else f"{parallel.tp} x {self.gpu.name} ({parallel.ways})"

    @cached_property
    def shard(self) -> Model:
        """The part of the model that one GPU holds."""
        return on_one_gpu(self.model, self.parallel)

    @property
    def usable_memory_bytes(self) -> float:
        """Bytes that the engine may fill on one GPU."""
        return usable_memory_bytes(self.gpu, self.runtime.engine, self.shard)

    @cached_property
    def price(self) -> Price | None:
        """Price of a GPU-hour, given or listed; None where neither is."""
        name, asked = self.gpu.name, self.arguments
        return price_of(name, asked.data_dir) if asked.price is None else given_price(name, asked.price)

    @property
    def usd_per_gpu_hour(self) -> float | None:
        """The price in dollars; None where there is none."""
        return None if self.price is None else self.price.usd_per_gpu_hour

    @property
    def drafter_class(self) -> type[Drafter]:
        """The registered drafter; the runtime's usual one where none is named."""
        asked = self.arguments
        if asked.drafter is not None:
            return drafter_class(asked.drafter)
        engine = None if asked.runtime is None else self.runtime.engine
        return drafter_class(default_drafter(None if engine is None else engine.drafters))

    # The kernels: how long they take, and how well that is known.

    @cached_property
    def latency(self) -> LatencyModel:
        """The times of kernels of this GPU."""
        return latency_asked(self.arguments, self.gpu, self.runtime, self.shard, self._kernel_set)

    @property
    def _kernel_set(self) -> str:
        return self.arguments.kernels or self.runtime.step_kernels(self.gpu, self.model.dtype)

    @property
    def kernels(self) -> str:
        """Name of the kernel set; `none` of a roofline and of local engines, whose laws know no sets."""
        return "none" if self.latency.name in ("roofline", "local") else self._kernel_set

    @property
    def case(self) -> Case:
        """The set-up as the ranges of an engine's terms see it."""
        return case_of(self.shard, self.gpu, self.gpus, self._backend.key)

    @property
    def backend(self) -> Backend | None:
        """The attention kernel of a verification step; None where nothing tells (a roofline, the block)."""
        if self.latency.name in ("roofline", "local") or self.scope == "block":
            return None
        return self._backend

    @property
    def _backend(self) -> Backend:
        runtime = self.runtime
        return backend_of_model(self.shard, runtime.library, self.gpu.architecture, runtime.backend)

    @cached_property
    def kernel_fits(self) -> KernelFits:
        """Fits of the kernels that its steps call."""
        return KernelFits(setting=self.setting, kernels=self.kernels)

    # What drafts.

    @cached_property
    def measured_acceptance(self) -> AcceptanceProfile:
        """Acceptance as measured, before a workload, lengths, a match rate or p-min change it."""
        asked = self.arguments
        return resolve(asked.acceptance, self.drafter_class, self.model.name, asked.data_dir)

    @cached_property
    def _adjusted(self) -> AdjustedAcceptance:
        return adjust(self.measured_acceptance, self.arguments, self.drafter_class, self.runtime)

    @property
    def match_rate(self) -> float:
        """Share of the steps that verify drafts."""
        return self._adjusted.match_rate

    @property
    def sure_shares(self) -> tuple[float, ...]:
        """Shares of drafts that are run, given those before, under p-min; empty without."""
        return self._adjusted.sure_shares

    @property
    def profile(self) -> AcceptanceProfile:
        """Acceptance over all steps, with all that is asked (`adjusted_acceptance.adjust`)."""
        return self._adjusted.profile

    @cached_property
    def drafting(self) -> Drafting:
        """The drafter, before its depth is chosen."""
        return drafting_asked(self.arguments, self.drafter_class, self.profile, self.model, self.runtime)

    @property
    def depth(self) -> int:
        """The longest path of drafts that may be run; cache compaction is sized for it."""
        heads, parts = self.profile.heads, self.drafting.parts
        if heads is None:
            return parts.heads
        trained = [parts.heads] if self.drafter_class.unit == "head" else []
        return min(heads.depth, self.drafting.max_drafts, *trained)

    @property
    def guessed_from(self) -> int | None:
        """The first draft whose acceptance is a guess (T9); None where no such draft may be run."""
        measured = self.profile.measured_drafts
        return None if measured is None or self.depth <= measured else measured + 1

    @property
    def chain_only(self) -> bool:
        """Whether chains only are searched: as asked, else where trees cannot be verified."""
        if self.arguments.chain_only is not None:
            return self.arguments.chain_only
        # a curve of tree sizes knows no chains, and the paper's block no engine
        is_limited = self.runtime.chain_only or self.model.keeps_states
        return is_limited and self.profile.heads is not None and self.scope == "model"

    @property
    def has_trees(self) -> bool:
        """Whether trees are searched too."""
        heads = self.profile.heads
        return not self.chain_only and (heads is None or heads.ranks > 1)

    @property
    def where_trees_run(self) -> str:
        """The way to ask for trees where the runtime runs chains only; empty where it runs both."""
        heads = self.profile.heads
        if not (self.runtime.chain_only and self.chain_only) or heads is None or heads.ranks == 1:
            return ""
        return (
            f"{self.runtime.name} has no tree attention: take trees with --runtime cuda-graph (kernels "
            "alone) or --trees"
        )

    @cached_property
    def _options(self) -> dict[int, tuple[DraftOption, ...]]:
        """Ways of drafting that were asked for, by the largest count."""
        return {}

    def options(self, candidates_max: int = CANDIDATES_MAX) -> tuple[DraftOption, ...]:
        """Every way of drafting that the profile describes, up to a count.

        Raises UsageError where the profile cannot describe the drafter.
        """
        check_kind("candidates_max", candidates_max, WHOLE.wanted, WHOLE.allowed)
        if candidates_max not in self._options:
            self._options[candidates_max] = draft_options(
                self.drafting, self.profile, candidates_max=candidates_max, chain_only=self.chain_only
            )
        return self._options[candidates_max]

    def covered(self, candidates: Sequence[int] | IntArray) -> IntArray:
        """The counts that some way of drafting has, in the order given; 1 is plain decoding.

        Raises CoverageError where counts above 1 were asked for and none is covered.
        """
        asked = np.asarray(candidates, dtype=np.int64)
        options = self.options(int(asked.max(initial=2)))
        kept: IntArray = asked[np.isin(asked, [1, *(count for each in options for count in each.candidates)])]
        if (asked > 1).any() and not (kept > 1).any():
            largest = max(int(option.candidates[-1]) for option in self.options())
            raise CoverageError(
                f"acceptance {self.profile.name} with drafter {self.drafting.method} covers candidates "
                f"2..{largest}, given {int(asked[asked > 1].min())} and more: lower --candidates; "
                f"{self.where_trees_run or 'or choose a profile measured further out'}"
            )
        return kept

    # The requests, and what a step shares with others.

    @cached_property
    def traffic(self) -> Traffic | None:
        """Mean tokens of a server's requests; None where none were given."""
        asked = self.arguments
        prompt, output = asked.prompt_tokens, asked.output_tokens
        if prompt is None and output is None:
            return None
        if prompt is None or output is None:
            raise UsageError("--prompt-tokens and --output-tokens describe the traffic: give both or neither")
        return Traffic(
            prompt_tokens=float(prompt),
            output_tokens=float(output),
            prompt_cv=asked.length_cv,
            output_cv=asked.length_cv,
        )

    def with_usual_requests(self) -> Scenario:
        """The scenario with the requests that answers are about where none are given; itself where some are.

        The usual requests are those of `compare` and `load`. Without an engine nothing serves requests, and
        steps are priced.
        """
        if self.traffic is not None or self.runtime.engine is None:
            return self
        return self.but(prompt_tokens=LOAD_PROMPT_TOKENS, output_tokens=LOAD_OUTPUT_TOKENS)

    @property
    def refused_prompt(self) -> float | None:
        """Tokens of the longest prompt that its engine takes by default, if those of requests are longer."""
        longest = longest_prompt(self.runtime, self.gpu)
        return longest if self.traffic is not None and self.traffic.prompt_tokens > longest else None

    @property
    def length(self) -> int:
        """Committed tokens of a step where no length is asked for: half way through a request."""
        traffic = self.traffic
        if traffic is None:
            return DEFAULT_SEQ_LEN
        return request_length(traffic.prompt_tokens, traffic.output_tokens)

    def lengths(self, asked: Sequence[int] = ()) -> tuple[int, ...]:
        """Committed tokens of steps as asked for; `length` where none are.

        What is longer than a request half way through its output lies in a cached prefix. Raises UsageError
        for what is shorter: prompts, of which the server reads as many, would not fit in.
        """
        traffic = self.traffic
        if asked and traffic is not None and min(asked) < self.length:
            raise UsageError(
                f"--seq {min(asked)}: requests of {traffic.prompt_tokens:.12g} tokens in and "
                f"{traffic.output_tokens:.12g} out are {self.length} long half way through their output; "
                f"leave out --seq, ask from {self.length} (what is longer is a cached prefix), or give "
                "shorter --prompt-tokens"
            )
        return tuple(asked) or (self.length,)

    @property
    def baseline(self) -> Baseline:
        """The plain step that speedups divide by."""
        return self.arguments.baseline

    @cached_property
    def overlap(self) -> Overlap:
        """Overlap of the experts of one sequence's candidates."""
        asked = self.arguments.overlap
        return OVERLAPS[asked] if asked else TREE if self.has_trees else CHAIN

    @cached_property
    def setting(self) -> Setting:
        """The setting of every step, with a memory of kernel times; without a drafter."""
        runtime = self.runtime.at(self.case)
        if runtime.engine is None and self.latency.name == "roofline":
            runtime = replace(runtime, widenings=())  # a bound has no error
        return Setting(
            latency=cached(self.latency),
            model=self.model,
            runtime=runtime,
            scope=self.scope,
            served_drafter=self.drafting.method,
            compacted_drafts=self.depth if self.guessed_from is None else self.guessed_from - 1,
            longest_drafts=self.depth,
            verified=Verified(
                match_rate=1.0 if runtime.fills_lookups else self.match_rate, sure_shares=self.sure_shares
            ),
            parallel=self.parallel,
            overlap=self.overlap,
        )
