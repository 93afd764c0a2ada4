"""The one place where a set-up is put together: GPU, model, runtime, drafter, acceptance, latency.

Names, files or objects go in; what comes out is loaded, checked and the same for the command line, the app
and Python. Defaults stand here and nowhere else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np

from medusa_sim.acceptance.profile import CURVE_HEADS
from medusa_sim.arrays import IntArray
from medusa_sim.data import DataDir
from medusa_sim.errors import CoverageError, UsageError, unknown_name
from medusa_sim.latency.base import LatencyModel
from medusa_sim.latency.by_name import Fallback, LatencyName, latency_model
from medusa_sim.latency.collective import FEWEST_RANKS
from medusa_sim.plan.acceptance import Given, acceptance_of
from medusa_sim.plan.arguments import (
    WHOLE,
    ModelName,
    check_kinds,
    check_parts,
    draft_model_of,
    matched,
    runtime_of,
    traffic_of,
)
from medusa_sim.plan.defaults import (
    CANDIDATES_MAX,
    DEFAULT_DRAFTER,
    DEFAULT_GPU,
    DEFAULT_MODEL,
    MAX_DRAFTS,
    TYPICAL,
    default_runtime,
)
from medusa_sim.plan.draft_options import MAX_HEADS, Drafting, DraftOption, draft_options
from medusa_sim.plan.grounds import (
    dense_fits,
    fits_beside,
    linear_fit,
    other_form,
    too_large,
    unfitted_kinds,
    unpacked,
)
from medusa_sim.plan.speedup import BASELINES, Baseline
from medusa_sim.specs.attention_backends import Backend, backend_of
from medusa_sim.specs.feed_forwards import MoE
from medusa_sim.specs.fitted import Fit
from medusa_sim.specs.gpu import Gpu, load_gpu
from medusa_sim.specs.hf_config import RUN_IN_FP16
from medusa_sim.specs.link_kernels import CollectiveKernel
from medusa_sim.specs.mixers import Latent
from medusa_sim.specs.model import UNCHECKED, Model, unpacked_where, with_dtypes
from medusa_sim.specs.models import load_model
from medusa_sim.specs.parallel import ONE, Parallel
from medusa_sim.specs.prices import Price, given_price, price_of
from medusa_sim.specs.recurrent import Recurrent
from medusa_sim.specs.runtime import Runtime
from medusa_sim.specs.shard import on_one_gpu
from medusa_sim.step.drafter.base import Parts
from medusa_sim.step.drafter.ngram import NoDrafter
from medusa_sim.step.drafter.registry import drafter_kind
from medusa_sim.step.server import Traffic
from medusa_sim.step.step import Setting, step_kernels
from medusa_sim.step.union import CHAIN, TREE, Overlap, overlap_of
from medusa_sim.step.workload import SCOPES, Scope
from medusa_sim.units import BYTES_PER_ELEMENT

SEVERAL_GPUS_WIDEN = 1.5
"""Bands of an engine's terms on several GPUs, which nobody measured apart: as between versions."""
_ONE_NODE = 8


class Scenario:
    """What is run where, before batch, length and count are chosen. Never changed once made.

    gpu, model, runtime, drafter: names, files or loaded objects; runtime None: by the drafter
    (`plan.defaults.default_runtime`). acceptance: any form of
    `plan.acceptance.FORMS`; None takes the model's own profile, else a borrowed one, which `warnings` says.
    heads: trained Medusa heads (None: as many as the profile has; a curve has five); as many run as a
    tree is deep, with a curve all of them. max_drafts: longest draft. chain_only: no trees (None:
    as the runtime). match_rate: share of the steps in which n-grams are found (None: the profile's); what is
    accepted goes with it.
    prompt_tokens, output_tokens: means of a server's requests, whose prompts ride on decode steps (None: none
    ride). dtype, weight_dtype, kv_dtype: None as the model is published. tp, ep, dp_attention: the GPUs that
    share the model, and how (`specs.parallel.Parallel`). overlap: how far candidates of one sequence share
    experts, a name of `step.union.OVERLAPS` (None: as chains do, or as trees where trees are run). latency: a
    name, or a latency model that is kept between questions. kernels: None takes the runtime's set for the
    dtype. fallback: what `measured` does beyond its rows. scope: `model`, or the paper's `block`. baseline:
    `same` batch and length, or `fixed`. price: dollars per GPU-hour (None: the GPU's first row of
    `profiles/prices.toml`, which need not have one).

    Raises SpecError, DataError or UsageError naming what is unknown or does not fit together.
    """

    def __init__(
        self,
        *,
        gpu: str | Gpu = DEFAULT_GPU,
        model: ModelName = DEFAULT_MODEL,
        runtime: str | Runtime | None = None,
        drafter: str = DEFAULT_DRAFTER,
        acceptance: Given = None,
        heads: int | None = None,
        draft_model: ModelName | None = None,
        draft_runtime: str | Runtime | None = None,
        draft_vocab: int | None = None,
        max_drafts: int = MAX_DRAFTS,
        chain_only: bool | None = None,
        match_rate: float | None = None,
        prompt_tokens: float | None = None,
        output_tokens: float | None = None,
        workload: str | None = None,
        lossless: bool = False,
        dtype: str | None = None,
        weight_dtype: str | None = None,
        kv_dtype: str | None = None,
        tp: int = 1,
        ep: int = 1,
        dp_attention: bool = False,
        overlap: str | None = None,
        latency: LatencyName | LatencyModel = "calibrated",
        kernels: str | None = None,
        fallback: Fallback = "refuse",
        scope: Scope = "model",
        baseline: Baseline = "same",
        price: float | None = None,
        data_dir: DataDir = None,
    ) -> None:
        given = {name: value for name, value in locals().items() if name not in ("self", "__class__")}
        self.given: dict[str, Any] = given
        """What it was made from, by the names above: for `but` and for writing it as a command."""
        check_kinds(given, Scenario.__init__.__kwdefaults__ or {})
        for name, value, allowed in (("scope", scope, SCOPES), ("baseline", baseline, BASELINES)):
            if value not in allowed:
                raise UsageError(unknown_name(name, value, allowed))
        kind = drafter_kind(drafter)
        if heads is not None and kind.unit != "head":
            raise UsageError(f"drafter {drafter} takes no --heads; --max-drafts limits the draft length")
        self.runtime: Runtime = runtime_of(runtime or default_runtime(drafter), data_dir)
        published = model if isinstance(model, Model) else load_model(model)
        self.model: Model = with_dtypes(published, dtype, weight_dtype, kv_dtype)
        self.gpu: Gpu = load_gpu(gpu, data_dir) if isinstance(gpu, str) else gpu
        self.unpacked_forms: tuple[str, ...] = ()
        """Formats of the checkpoint that the card has no arithmetic for."""
        if dtype is None and weight_dtype is None:
            self.model, self.unpacked_forms = unpacked_where(self.model, self.gpu.lacks)
        self.parallel = Parallel(tp=tp, ep=ep, dp_attention=dp_attention)
        self.shard: Model = on_one_gpu(self.model, self.parallel)
        """What one GPU holds of the model."""
        check_parts(self.shard, self.runtime, self.gpu)
        profile = acceptance_of(
            acceptance,
            kind,
            model_name=self.model.name,
            workload=workload,
            lossless=lossless,
            data_dir=data_dir,
        )
        if heads is not None and not 1 <= heads <= MAX_HEADS:
            raise UsageError(f"heads {heads}: whole numbers from 1 to {MAX_HEADS} are allowed")
        if draft_vocab is not None and draft_vocab < 1:
            raise UsageError(f"draft vocabulary {draft_vocab}: whole numbers from 1 are allowed")
        if kind.unit == "head" and heads is not None:
            profile = profile.of_heads(heads)
        self.match_rate, self.profile = matched(match_rate, kind, profile)
        self.drafting = Drafting(
            method=drafter,
            parts=Parts(
                heads=heads or (profile.heads.heads if profile.heads is not None else CURVE_HEADS),
                draft=draft_model_of(draft_model, dtype),
                draft_runtime=None if draft_runtime is None else runtime_of(draft_runtime, data_dir),
                draft_vocab=draft_vocab,
                modules=max(self.model.mtp_layers, 1),
            ),
            max_drafts=max_drafts,
        )
        kind.check(self.drafting.parts, self.model)
        if self.drafting.parts.draft is not None:
            on_one_gpu(self.drafting.parts.draft, Parallel(tp=tp))  # a draft that cannot be split is refused
        engine = self.runtime.engine
        if engine is not None and drafter not in engine.drafters:
            raise UsageError(
                f"runtime {self.runtime.name} runs no {drafter} drafter; it has: {', '.join(engine.drafters)}"
            )
        # a curve of tree sizes knows no chains, and the paper's block no engine
        chains = self.runtime.chain_only or self.model.keeps_states
        as_run = chains and profile.heads is not None and scope == "model"
        self.chain_only: bool = as_run if chain_only is None else chain_only
        if self.model.keeps_states and not self.chain_only and scope == "model":
            raise UsageError(
                f"{self.model.name} has recurrent layers, whose states no engine rolls back along a tree: "
                "trees cannot be verified; leave out --trees and give --acceptance by position, not a curve"
            )
        self.overlap: Overlap = overlap_of(overlap) if overlap else CHAIN if not self._has_trees else TREE
        self.traffic: Traffic | None = traffic_of(prompt_tokens, output_tokens)
        self.scope: Scope = scope
        self.baseline: Baseline = baseline
        self.price: Price | None = (
            price_of(self.gpu.name, data_dir) if price is None else given_price(self.gpu.name, price)
        )
        chosen = kernels or step_kernels(self.gpu, self.runtime, self.model.dtype)
        self.latency: LatencyModel = (
            latency_model(
                self.gpu,
                latency,
                chosen,
                fallback=fallback,
                data_dir=data_dir,
                library="" if kernels else self.runtime.library,
                serves=self.runtime.library,
            )
            if isinstance(latency, str)
            else latency
        )
        self.kernels = "none" if self.latency.name == "roofline" else chosen
        self._options: dict[int, tuple[DraftOption, ...]] = {}

    def __repr__(self) -> str:
        """The arguments that are not the defaults."""
        told = ", ".join(f"{name}={value!r}" for name, value in self.changed.items())
        return f"Scenario({told})"

    @property
    def changed(self) -> dict[str, Any]:
        """The arguments that differ from the defaults; GPU, model and drafter always."""
        defaults = Scenario.__init__.__kwdefaults__ or {}
        always = ("gpu", "model", "drafter")
        return {
            name: value
            for name, value in self.given.items()
            if name in always or not _is_default(value, defaults[name])
        }

    def but(self, **changes: Any) -> Scenario:
        """The same scenario with some arguments changed. Raises UsageError for an unknown argument."""
        for name in changes:
            if name not in self.given:
                raise UsageError(unknown_name("scenario argument", name, self.given))
        return type(self)(**{**self.given, **changes})

    @cached_property
    def setting(self) -> Setting:
        """What every step shares; plain decoding until an option's drafter is put in."""
        return Setting(
            latency=self.latency,
            model=self.model,
            runtime=self._launched,
            scope=self.scope,
            drafter=NoDrafter(),
            method=self.drafting.method,
            depth=self.depth,
            match_rate=self.match_rate,
            parallel=self.parallel,
            overlap=self.overlap,
        )

    @property
    def _launched(self) -> Runtime:
        """The runtime, with wider bands where its engine was measured on one GPU alone."""
        engine = self.runtime.engine
        if engine is None or self.parallel.tp == 1:
            return self.runtime
        return replace(self.runtime, engine=engine.widened(SEVERAL_GPUS_WIDEN))

    @property
    def depth(self) -> int:
        """The longest path of drafts that may be run; cache compaction is sized for it."""
        heads, parts = self.profile.heads, self.drafting.parts
        if heads is None:
            return parts.heads
        trained = [parts.heads] if self.drafting.kind.unit == "head" else []
        return min(heads.heads, self.drafting.max_drafts, *trained)

    def options(self, candidates_max: int = CANDIDATES_MAX) -> tuple[DraftOption, ...]:
        """Every way of drafting that the profile describes, up to a count.

        Raises UsageError where the profile cannot describe the drafter.
        """
        check_kinds({"candidates_max": candidates_max}, {}, {"candidates_max": WHOLE})
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
            raise CoverageError(
                f"acceptance {self.profile.name} with drafter {self.drafting.method} covers candidates "
                f"2..{self._largest()}, given {int(asked[asked > 1].min())} and more: lower --candidates; "
                f"{self.where_trees_run or 'or choose a profile measured further out'}"
            )
        return kept

    @property
    def where_trees_run(self) -> str:
        """How to ask for trees where the runtime runs chains alone; empty where it runs both."""
        heads = self.profile.heads
        if not (self.runtime.chain_only and self.chain_only) or heads is None or heads.ranks == 1:
            return ""
        return (
            f"{self.runtime.name} has no tree attention: take trees with --runtime cuda-graph (kernels "
            "alone) or --trees"
        )

    def _largest(self) -> int:
        return max(int(option.candidates[-1]) for option in self.options())

    @property
    def borrows_acceptance(self) -> bool:
        """Whether nothing was given and the profile in use was measured on another model."""
        return self.given["acceptance"] is None and not self.profile.name.endswith(f"-{self.model.name}")

    @cached_property
    def fits(self) -> dict[str, Fit]:
        """`gemm.fp16` -> how well it was fitted, of the kernels that a step of this model calls."""
        if self.latency.name != "calibrated":
            return {}
        found = dense_fits(self.gpu.kernel_set(self.kernels), self.model)
        others = any(self.model.blocks(kind) for kind in (MoE, Latent, Recurrent)) or self.model.streams > 1
        if self.scope == "block" or (self.parallel == ONE and not others):
            return found
        return {**found, **fits_beside(self.latency, self.shard, self.runtime)}

    @property
    def linear_fit(self) -> Fit | None:
        """How well the linear layers of this model's format were fitted; None where nobody fitted them."""
        return linear_fit(self.fits, self.model)

    @property
    def unpacks(self) -> tuple[str, ...]:
        """What is stored narrower than its kernel was measured with: `int4 weights`, `a KV cache in fp8`."""
        if self.latency.name != "calibrated":
            return ()
        return unpacked(self.model, self.gpu.kernel_set(self.kernels))

    @property
    def backend(self) -> Backend | None:
        """The attention kernel of a verification step; None where nothing tells (a roofline, the block)."""
        if self.latency.name == "roofline" or self.scope == "block":
            return None
        model = self.shard
        return backend_of(
            self.runtime.library,
            self.gpu.architecture,
            latent=bool(model.blocks(Latent)),
            bytes_of_kv=BYTES_PER_ELEMENT[model.kv_dtype or model.dtype],
            head_dim=model.attention.head_dim,
        )

    @property
    def kernel_lenders(self) -> tuple[str, ...]:
        """Other devices and libraries whose measured kernels stand in for this GPU's own, each once."""
        lenders = (fit for fit in self.fits.values() if fit.is_borrowed(self.gpu.name))
        return tuple(dict.fromkeys(fit.inherited_from for fit in lenders))

    @property
    def cards(self) -> str:
        """`h200-sxm`; `8 x h200-sxm (tp 8)`."""
        parallel = self.parallel
        return self.gpu.name if parallel == ONE else f"{parallel.tp} x {self.gpu.name} ({parallel.ways})"

    @property
    def gpus(self) -> int:
        """GPUs that run the model together."""
        return self.parallel.tp

    @property
    def usd_per_gpu_hour(self) -> float | None:
        """The price, whoever gave it; None where nobody did."""
        return None if self.price is None else self.price.usd_per_gpu_hour

    @property
    def warnings(self) -> tuple[str, ...]:
        """What the scenario rests on that was not measured for it, a sentence each."""
        told = []
        if self.profile.name.startswith(TYPICAL):
            told.append(
                f"acceptance {self.profile.name} is an assumption ({self.profile.title}): nobody measured "
                f"{self.drafting.method} on {self.model.name}; give your own with --acceptance"
            )
        elif self.borrows_acceptance:
            told.append(
                f"acceptance {self.profile.name} was measured on another model than {self.model.name}; give "
                "your own with --acceptance"
            )
        if self.given["dtype"] is None:
            told += [f"{self.model.name}: {note}" for note in self.model.notes if note.endswith(RUN_IN_FP16)]
        told += [f"{self.model.name}: {note}" for note in self.model.notes if note.endswith(UNCHECKED)]
        if not self.runtime.is_measured:
            told.append(
                f"{self.runtime.name}: nobody measured this engine; its own terms are guesses or another's, "
                "with wide bands"
            )
        elif not self.runtime.is_drafting_measured:
            told.append(
                f"{self.runtime.name}: nobody measured drafting in this engine; its terms are guesses or "
                "another's, with wide bands"
            )
        if (parallel := self.parallel) != ONE and (engine := self.runtime.engine) is not None:
            known = f", {engine.several_gpus} aside," if engine.several_gpus else ""
            told.append(
                f"{self.runtime.name}'s own terms{known} were fitted on one GPU and are taken over for "
                f"{parallel}, with wider bands"
            )
        if self.gpu.exceeds_link(np.asarray(float(self.parallel.tp))):
            told.append(
                f"the link of {self.gpu.name} joins {self.gpu.linked_gpus} cards: {self.parallel.tp} share "
                "a slower one"
            )
        if self.parallel.tp > _ONE_NODE:
            told.append(
                f"{self.parallel}: priced as if all were in one NVLink domain; links between nodes are slower"
            )
        if self.scope == "model" and (told_of := too_large(self.model, self.shard, self.gpu)):
            told.append(told_of)
        told += self._told_of_kernels()
        if self.runtime.chain_only and self._has_trees:
            told.append(
                f"{self.runtime.name} has no tree attention: trees are priced as if it had; --chain-only "
                "leaves them out"
            )
        return tuple(told)

    def _told_of_kernels(self) -> list[str]:
        """What times rest on beside kernels that were fitted to this GPU, format and spread."""
        if self.latency.name != "calibrated":
            return []
        told = []
        if self.kernel_lenders:
            told.append(
                f"kernels of {self.gpu.name} are borrowed from {', '.join(self.kernel_lenders)}, with wider "
                "bands"
            )
        if other := other_form(self.model, self.fits):
            told.append(
                f"nobody measured experts in {other[0]} on {self.gpu.name}: times are of {other[1]} kernels "
                "that read as many bytes, with wider bands"
            )
        if self.unpacked_forms:
            told.append(
                f"{self.gpu.name} has no {' or '.join(self.unpacked_forms)} arithmetic: such weights are "
                "unpacked to 16 bits, as vLLM does (Marlin)"
            )
        unfitted = () if self.scope == "block" else unfitted_kinds(self.latency, self.shard, self.runtime)
        if unfitted:
            told.append(
                f"{' and '.join(unfitted)} of {self.model.name}: no kernel is fitted; times follow from "
                "bytes and FLOPs, with wide bands"
            )
        if self.model.blocks(Latent) and self.scope == "model":
            told.append(
                f"latent attention of {self.model.name} was fitted at one query: its verification is "
                "extrapolated, 10 to 20 % from public rows in the mean, with wider bands"
            )
        if self.unpacks:
            told.append(
                f"nobody measured the unpacking of {' and '.join(self.unpacks)} on {self.gpu.name}: times "
                "are of kernels without it that read as many bytes, with wider bands"
            )
        if self.parallel.tp > FEWEST_RANKS and not all(kernel.knows_ranks for kernel in self._collectives):
            told.append(
                f"collectives of {self.gpu.name} were measured between {FEWEST_RANKS:g} cards alone: among "
                f"{self.parallel.tp} they are extrapolated, with wider bands"
            )
        if self.parallel.ep > 1:
            told.append(
                f"experts spread over GPUs (ep {self.parallel.ep}) are priced by kernels that were fitted "
                "without, with wider bands"
            )
        return told

    @property
    def _collectives(self) -> list[CollectiveKernel]:
        """Kernels of the exchange of a step."""
        places = [key.removeprefix("collective.") for key in self.fits if key.startswith("collective.")]
        parts = (place.partition(":") for place in places)
        return [self.gpu.kernels[name].collective[key] for name, _, key in parts]

    @property
    def _has_trees(self) -> bool:
        heads = self.profile.heads
        return not self.chain_only and (heads is None or heads.ranks > 1)


def _is_default(value: object, default: object) -> bool:
    return value is default or (isinstance(value, str | int | float) and value == default)
