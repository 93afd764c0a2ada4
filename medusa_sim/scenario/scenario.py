"""A scenario: the GPU, model, engine, drafter, acceptance and latency model that its arguments name.

Names, files or objects go in; every part is loaded here and nowhere else, so that the command line, the app
and Python answer about the same thing. `doubts.of_scenario` says what was not measured for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from medusa_sim.errors import UsageError
from medusa_sim.latency.cached import cached
from medusa_sim.scenario.arguments import ARGUMENTS, Arguments
from medusa_sim.scenario.as_run import check_fit
from medusa_sim.scenario.declare import check, takes
from medusa_sim.scenario.defaults import (
    DEFAULT_SEQ_LEN,
    LOAD_OUTPUT_TOKENS,
    LOAD_PROMPT_TOKENS,
    Baseline,
    request_length,
)
from medusa_sim.scenario.machine_with_drafter import MachineWithDrafter
from medusa_sim.specs.parallel import Parallel
from medusa_sim.specs.variants import on_one_gpu
from medusa_sim.step.expert_union import CHAIN, OVERLAPS, TREE, Overlap
from medusa_sim.step.setting import Setting
from medusa_sim.step.traffic import Traffic
from medusa_sim.step.verified import Verified


@dataclass(frozen=True, eq=False, init=False, repr=False)
class Scenario(MachineWithDrafter):
    """A model on a machine with a drafter, before batch, length and count are chosen.

    Made from `scenario.arguments.Arguments`, all by name. Its other parts are loaded from these
    when it is made; it owns its GPU and its latency model.

    Raises SpecError, DataError or UsageError naming what is unknown or does not fit together.
    """

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
        runtime = self.runtime
        return Setting(
            latency=cached(self.latency),
            model=self.model,
            runtime=runtime.at(self.case),
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
