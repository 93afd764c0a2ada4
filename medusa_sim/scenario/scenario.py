"""A scenario: the GPU, model, engine, drafter, acceptance and latency model that its arguments name.

Names, files or objects go in; every part is loaded here and nowhere else, so that the command line, the app
and Python answer about the same thing. `doubts.doubts` says what was not measured for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from medusa_sim.acceptance.p_min import ending_unsure
from medusa_sim.acceptance.profile import CURVE_HEADS, AcceptanceProfile
from medusa_sim.arrays import IntArray
from medusa_sim.errors import CoverageError, UsageError, check_kind
from medusa_sim.file_types import FILES
from medusa_sim.latency.by_name import latency_model
from medusa_sim.latency.cached import cached
from medusa_sim.latency.local import LocalLatency, clock_under
from medusa_sim.latency.model import LatencyModel
from medusa_sim.scenario.acceptance import acceptance_of, matched, measured_acceptance
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
from medusa_sim.scenario.draft_options import Drafting, DraftOption, draft_options
from medusa_sim.scenario.kernel_fits import KernelFits
from medusa_sim.specs.backends import Backend, backend_of_model
from medusa_sim.specs.case import Case, case_of
from medusa_sim.specs.gpu import Gpu, load_gpu
from medusa_sim.specs.local import with_backend
from medusa_sim.specs.model import Model
from medusa_sim.specs.models import load_model
from medusa_sim.specs.parallel import ONE, Parallel
from medusa_sim.specs.prices import Price, given_price, price_of
from medusa_sim.specs.runtime import Runtime, load_runtime, local_runtime_names
from medusa_sim.specs.variants import on_one_gpu, with_dtypes
from medusa_sim.step.drafter import drafter_kind
from medusa_sim.step.drafter.base import Drafter, DrafterParts
from medusa_sim.step.expert_union import CHAIN, TREE, Overlap, overlap_of
from medusa_sim.step.memory import usable_memory_bytes
from medusa_sim.step.setting import Setting, step_kernels
from medusa_sim.step.traffic import Traffic
from medusa_sim.step.workload import Scope


@dataclass(frozen=True, eq=False, init=False, repr=False)
class Scenario:
    """What is run where, before batch, length and count are chosen.

    Made from `scenario.arguments.Arguments`, all by name. Its other parts are what these stand for, loaded
    when it is made; it owns its GPU and its latency model.

    Raises SpecError, DataError or UsageError naming what is unknown or does not fit together.
    """

    arguments: Arguments
    _options: dict[int, tuple[DraftOption, ...]]

    @takes(Arguments)
    def __init__(self, **given: Any) -> None:
        check(given, ARGUMENTS, "scenario argument")
        object.__setattr__(self, "arguments", Arguments(**given))
        object.__setattr__(self, "_options", {})
        self._check()

    def _check(self) -> None:
        """Load every part, and refuse those that do not go together."""
        asked, kind = self.arguments, self._kind
        if asked.heads is not None and kind.unit != "head":
            raise UsageError(f"drafter {kind.name} takes no --heads; --max-drafts limits the draft length")
        check_fit(self.shard, self.runtime, self.gpu)
        kind.check(self.drafting.parts, self.model)
        if self.drafting.parts.draft is not None:
            on_one_gpu(self.drafting.parts.draft, Parallel(tp=asked.tp))  # refuses one that cannot be split
        engine = self.runtime.engine
        if engine is not None and kind.name not in engine.drafters:
            raise UsageError(
                f"runtime {self.runtime.name} runs no {kind.name} drafter; it has: "
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
        return {**self.arguments.changed, "drafter": self._kind.name}

    def __repr__(self) -> str:
        """The arguments that are not the defaults."""
        text = ", ".join(f"{name}={value!r}" for name, value in self.changed.items())
        return f"Scenario({text})"

    def but(self, **changes: Any) -> Scenario:
        """The same scenario with some arguments changed. Raises UsageError for an unknown argument."""
        check(changes, ARGUMENTS, "scenario argument")
        return type(self)(**{**self.arguments.values, **changes})

    # The machine: what runs the model, on which GPUs.

    @cached_property
    def runtime(self) -> Runtime:
        """The engine, or how kernels launch; the drafter's own where none is named."""
        asked = self.arguments
        given = asked.runtime or self._kind.default_runtime
        if isinstance(given, str):
            given = with_backend(given, self.gpu.local)
        return _runtime(given, asked.data_dir)

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
        asked = self.arguments
        return as_run(self.published, self.runtime, self.gpu, asked.dtype, asked.weight_dtype, asked.kv_dtype)

    @property
    def precision(self) -> str:
        """Format of the checkpoint: as published or asked for, whatever the GPU unpacks."""
        asked = self.arguments
        formats = formats_asked(self.published, self.runtime, asked.dtype, asked.weight_dtype)
        return with_dtypes(self.published, *formats).precision

    @property
    def engine(self) -> str:
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
        """How the model is split over GPUs."""
        asked = self.arguments
        return Parallel(tp=asked.tp, ep=asked.ep, dp_attention=asked.dp_attention)

    @property
    def gpus(self) -> int:
        """GPUs that run the model together."""
        return self.parallel.tp

    @property
    def cards(self) -> str:
        """`h200-sxm`; `8 x h200-sxm (tp 8)`."""
        parallel = self.parallel
        return self.gpu.name if parallel == ONE else f"{parallel.tp} x {self.gpu.name} ({parallel.ways})"

    @cached_property
    def shard(self) -> Model:
        """What one GPU holds of the model."""
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

    # The drafts: what proposes them, how many are accepted.

    @property
    def _kind(self) -> type[Drafter]:
        """The registered drafter; by the runtime where none is named."""
        asked = self.arguments
        if asked.drafter is not None:
            return drafter_kind(asked.drafter)
        engine = None if asked.runtime is None else self.runtime.engine
        return drafter_kind(default_drafter(None if engine is None else engine.drafters))

    @cached_property
    def measured_acceptance(self) -> AcceptanceProfile:
        """Acceptance as measured, before a workload, lengths, a match rate or p-min change it."""
        asked = self.arguments
        return measured_acceptance(asked.acceptance, self._kind, self.model.name, asked.data_dir)

    @cached_property
    def _matched(self) -> tuple[float, AcceptanceProfile]:
        asked = self.arguments
        profile = acceptance_of(
            self.measured_acceptance,
            self._kind,
            model_name=self.model.name,
            workload=asked.workload,
            lossless=asked.lossless,
        )
        if asked.output_tokens is not None:
            profile = profile.of_outputs(asked.output_tokens)
        if self._kind.unit == "head" and asked.heads is not None:
            profile = profile.of_heads(asked.heads)
        return matched(asked.match_rate, self._kind, profile)

    @cached_property
    def _kept(self) -> tuple[tuple[float, ...], AcceptanceProfile]:
        """(shares of drafts that are kept, the acceptance that is left) where drafts end early."""
        p_min, profile = self.arguments.p_min, self._matched[1]
        if not p_min:
            return (), profile
        if self._kind.looks_up or self._kind.unit != "draft":
            raise UsageError(
                f"drafter {self._kind.name} takes no --p-min: it gives its drafts no probability; choose "
                "draft-model, mtp, eagle3 or dflash"
            )
        if self.runtime.library != "llama.cpp":
            raise UsageError(
                f"--p-min ends drafts of llama.cpp, not of {self.runtime.name}; choose --runtime "
                "llama.cpp-cuda or another of its backends"
            )
        return ending_unsure(profile, p_min)

    @property
    def match_rate(self) -> float:
        """Share of the steps that verify drafts."""
        return self._matched[0]

    @property
    def profile(self) -> AcceptanceProfile:
        """Acceptance over all steps."""
        return self._kept[1]

    @cached_property
    def drafting(self) -> Drafting:
        """What drafts, before its depth is chosen."""
        asked, heads = self.arguments, self.profile.heads
        draft, launched = asked.draft_model, asked.draft_runtime
        if draft is not None:
            draft = draft if isinstance(draft, Model) else load_model(draft)
            # a local engine's draft comes in a file like the target's, or in its own
            own_file = not self.runtime.local or draft.weight_dtype in FILES
            draft = with_dtypes(draft, asked.dtype, None if own_file else asked.weight_dtype)
        return Drafting(
            method=self._kind.name,
            parts=DrafterParts(
                heads=asked.heads or (CURVE_HEADS if heads is None else heads.heads),
                draft=draft,
                draft_runtime=None if launched is None else _runtime(launched, asked.data_dir),
                draft_vocab=asked.draft_vocab,
                modules=max(self.model.mtp_layers, 1),
            ),
            max_drafts=asked.max_drafts,
        )

    @property
    def depth(self) -> int:
        """The longest path of drafts that may be run; cache compaction is sized for it."""
        heads, parts = self.profile.heads, self.drafting.parts
        if heads is None:
            return parts.heads
        trained = [parts.heads] if self._kind.unit == "head" else []
        return min(heads.heads, self.drafting.max_drafts, *trained)

    @property
    def guessed_from(self) -> int | None:
        """The first draft whose acceptance is a guess (T9), where so many may be run."""
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
        """How to ask for trees where the runtime runs chains only; empty where it runs both."""
        heads = self.profile.heads
        if not (self.runtime.chain_only and self.chain_only) or heads is None or heads.ranks == 1:
            return ""
        return (
            f"{self.runtime.name} has no tree attention: take trees with --runtime cuda-graph (kernels "
            "alone) or --trees"
        )

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
        """Those of the counts that some way of drafting has, in their order; 1 is plain decoding.

        Raises CoverageError where counts above 1 were asked for and none is covered.
        """
        asked = np.asarray(candidates, dtype=np.int64)
        largest = int(max(asked.max(initial=2), 2))
        known = np.concatenate([[1], *(option.candidates for option in self.options(largest))])
        kept: IntArray = asked[np.isin(asked, known)]
        if (asked > 1).any() and not (kept > 1).any():
            largest = max(int(option.candidates[-1]) for option in self.options())
            raise CoverageError(
                f"acceptance {self.profile.name} with drafter {self.drafting.method} covers candidates "
                f"2..{largest}, given {int(asked[asked > 1].min())} and more: lower --candidates; "
                f"{self.where_trees_run or 'or choose a profile measured further out'}"
            )
        return kept

    # The requests, and what is asked of a step.

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

        Those of `compare` and `load`. Without an engine nothing serves requests, and steps are priced.
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

    @property
    def scope(self) -> Scope:
        """Which operators a step has."""
        return self.arguments.scope

    @property
    def baseline(self) -> Baseline:
        """What speedups divide by."""
        return self.arguments.baseline

    # The kernels: how long they take, and how well that is known.

    @cached_property
    def overlap(self) -> Overlap:
        """How far candidates of one sequence share experts."""
        asked = self.arguments.overlap
        return overlap_of(asked) if asked else TREE if self.has_trees else CHAIN

    @cached_property
    def latency(self) -> LatencyModel:
        """The times of kernels of this GPU."""
        asked = self.arguments
        if not isinstance(asked.latency, str):
            if (other := asked.latency.gpu) != self.gpu:
                numbers = " with other numbers" if other.name == self.gpu.name else ""
                raise UsageError(
                    f"gpu {self.gpu.name} with a latency model of {other.name}{numbers}: a scenario has one "
                    "GPU; leave out one of them"
                )
            return asked.latency
        if asked.bench is not None and not self.runtime.local:
            raise UsageError(
                f"--bench corrects llama.cpp and MLX, not {self.runtime.name}; choose --runtime "
                f"{' or '.join(local_runtime_names())}"
            )
        if asked.power_limit is not None and not self.runtime.local:
            raise UsageError(
                f"--power-limit slows kernels of llama.cpp and MLX, not of {self.runtime.name}; choose "
                f"--runtime {' or '.join(local_runtime_names())}"
            )
        if self.runtime.local and asked.latency == "calibrated":
            local = LocalLatency(self.gpu, self.runtime.local)
            if asked.bench is not None:
                from medusa_sim.scenario.machine_law import corrected
                from medusa_sim.scenario.machine_rows import read_rows

                local = corrected(local, self.shard, self.runtime, read_rows(Path(asked.bench)).rows)
            clock = clock_under(asked.power_limit, self.gpu)  # rows are taken as measured without a limit
            return LocalLatency(local.gpu, local.law.backend, local.law, clock)
        return latency_model(
            self.gpu,
            asked.latency,
            self._kernel_set,
            fallback=asked.fallback,
            data_dir=asked.data_dir,
            library="" if asked.kernels else self.runtime.library,
            serves=self.runtime.library,
        )

    @property
    def _kernel_set(self) -> str:
        return self.arguments.kernels or step_kernels(self.gpu, self.runtime, self.model.dtype)

    @property
    def kernels(self) -> str:
        """Name of the kernel set; `none` of a roofline and of local engines, whose laws know no sets."""
        return "none" if self.latency.name in ("roofline", "local") else self._kernel_set

    @cached_property
    def setting(self) -> Setting:
        """What every step shares, a memory of kernel times too; plain decoding until a drafter is put in."""
        runtime = self.runtime
        return Setting(
            latency=cached(self.latency),
            model=self.model,
            runtime=runtime.at(self.case),
            scope=self.scope,
            served_drafter=self.drafting.method,
            compacted_drafts=self.depth if self.guessed_from is None else self.guessed_from - 1,
            longest_drafts=self.depth,
            match_rate=self.match_rate,
            sure_shares=self._kept[0],
            parallel=self.parallel,
            overlap=self.overlap,
        )

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
        """How well the kernels that its steps call were fitted."""
        return KernelFits(
            gpu=self.gpu,
            model=self.model,
            shard=self.shard,
            runtime=self.runtime,
            latency=self.latency,
            kernels=self.kernels,
            scope=self.scope,
            is_split=self.parallel != ONE,
        )


def _runtime(given: str | Runtime, data_dir: Any) -> Runtime:
    return load_runtime(given, data_dir) if isinstance(given, str) else given
