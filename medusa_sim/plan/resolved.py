"""The parts of a scenario: what its arguments name is loaded here, and checked together."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

from medusa_sim.acceptance.profile import CURVE_HEADS, AcceptanceProfile
from medusa_sim.data import DataDir
from medusa_sim.errors import SpecError, UsageError
from medusa_sim.latency.base import LatencyModel
from medusa_sim.latency.by_name import latency_model
from medusa_sim.operators.kinds import KIND_OF, KINDS
from medusa_sim.plan import DEFAULT_SEQ_LEN, Baseline, default_runtime, request_length
from medusa_sim.plan.acceptance import acceptance_of
from medusa_sim.plan.arguments import Arguments
from medusa_sim.plan.draft_options import Drafting
from medusa_sim.specs.costs import Price, given_price, price_of
from medusa_sim.specs.engine_facts import Backend, as_served, backend_of_model, case_of
from medusa_sim.specs.fitted import Fit
from medusa_sim.specs.gpu import Gpu, load_gpu
from medusa_sim.specs.kernels import KernelSet
from medusa_sim.specs.mixers import Latent
from medusa_sim.specs.model import Model
from medusa_sim.specs.models import load_model
from medusa_sim.specs.parallel import ONE, Parallel
from medusa_sim.specs.ranges import Case
from medusa_sim.specs.runtime import Runtime, load_runtime
from medusa_sim.specs.variants import on_one_gpu, unpacked_where, with_dtypes
from medusa_sim.step.drafter import drafter_kind
from medusa_sim.step.drafter.base import Drafter, Parts
from medusa_sim.step.kernels import priced
from medusa_sim.step.memory import usable_memory_bytes
from medusa_sim.step.network import model_launches
from medusa_sim.step.server import Traffic
from medusa_sim.step.step import step_kernels
from medusa_sim.step.workload import CHAIN, TREE, Launch, Overlap, Scope, decode, overlap_of, verify
from medusa_sim.units import FP8_ALONE, UNPACKED, Format

_DENSE = ("gemm", "attention", "elementwise")
"""Sections of the kernels of a dense model on one GPU."""


class Resolved:
    """What the arguments of a scenario stand for, and the kernels that its steps rest on."""

    runtime: Runtime
    model: Model
    gpu: Gpu
    parallel: Parallel
    shard: Model
    """What one GPU holds of the model."""
    unpacked_forms: tuple[str, ...] = ()
    """Formats of the checkpoint that the card has no arithmetic for."""
    profile: AcceptanceProfile
    match_rate: float
    """Share of the steps that verify drafts."""
    drafting: Drafting
    chain_only: bool
    overlap: Overlap
    traffic: Traffic | None
    scope: Scope
    baseline: Baseline
    price: Price | None
    latency: LatencyModel
    kernels: str

    def __init__(self, arguments: Arguments) -> None:
        """Raises SpecError, DataError or UsageError naming what is unknown or does not fit together."""
        asked = self.arguments = arguments
        kind = drafter_kind(asked.drafter)
        if asked.heads is not None and kind.unit != "head":
            raise UsageError(
                f"drafter {asked.drafter} takes no --heads; --max-drafts limits the draft length"
            )
        self.scope, self.baseline = asked.scope, asked.baseline
        self._load_machine()
        self._load_drafts(kind)
        self._check_engine()
        self.overlap = overlap_of(asked.overlap) if asked.overlap else TREE if self.has_trees else CHAIN
        self.traffic = self._traffic()
        self.price = (
            price_of(self.gpu.name, asked.data_dir)
            if asked.price is None
            else given_price(self.gpu.name, asked.price)
        )
        self._load_latency()

    def _load_machine(self) -> None:
        """Runtime, model, GPU, and what one GPU holds."""
        asked = self.arguments
        self.runtime = runtime_of(asked.runtime or default_runtime(asked.drafter), asked.data_dir)
        published = asked.model if isinstance(asked.model, Model) else load_model(asked.model)
        self.gpu = load_gpu(asked.gpu, asked.data_dir) if isinstance(asked.gpu, str) else asked.gpu
        dtypes = (asked.dtype, asked.weight_dtype, asked.kv_dtype)
        self.model, self.unpacked_forms = as_run(published, self.runtime, self.gpu, *dtypes)
        self.parallel = Parallel(tp=asked.tp, ep=asked.ep, dp_attention=asked.dp_attention)
        self.shard = on_one_gpu(self.model, self.parallel)
        _check_parts(self.shard, self.runtime, self.gpu)

    def _load_drafts(self, kind: type[Drafter]) -> None:
        """Acceptance, and what drafts."""
        asked = self.arguments
        profile = acceptance_of(
            asked.acceptance,
            kind,
            model_name=self.model.name,
            workload=asked.workload,
            lossless=asked.lossless,
            data_dir=asked.data_dir,
        )
        if asked.output_tokens is not None:
            profile = profile.of_outputs(asked.output_tokens)
        if kind.unit == "head" and asked.heads is not None:
            profile = profile.of_heads(asked.heads)
        self.match_rate, self.profile = matched(asked.match_rate, kind, profile)
        draft, launched = asked.draft_model, asked.draft_runtime
        if draft is not None:
            draft = with_dtypes(draft if isinstance(draft, Model) else load_model(draft), asked.dtype)
        self.drafting = Drafting(
            method=asked.drafter,
            parts=Parts(
                heads=asked.heads or (profile.heads.heads if profile.heads is not None else CURVE_HEADS),
                draft=draft,
                draft_runtime=None if launched is None else runtime_of(launched, asked.data_dir),
                draft_vocab=asked.draft_vocab,
                modules=max(self.model.mtp_layers, 1),
            ),
            max_drafts=asked.max_drafts,
        )
        kind.check(self.drafting.parts, self.model)
        if draft is not None:
            on_one_gpu(draft, Parallel(tp=asked.tp))  # a draft that cannot be split is refused

    def _check_engine(self) -> None:
        """Whether the engine runs the drafter, and trees or chains of it."""
        asked, engine = self.arguments, self.runtime.engine
        if engine is not None and asked.drafter not in engine.drafters:
            raise UsageError(
                f"runtime {self.runtime.name} runs no {asked.drafter} drafter; it has: "
                f"{', '.join(engine.drafters)}"
            )
        # a curve of tree sizes knows no chains, and the paper's block no engine
        chains = self.runtime.chain_only or self.model.keeps_states
        as_run = chains and self.profile.heads is not None and self.scope == "model"
        self.chain_only = as_run if asked.chain_only is None else asked.chain_only
        if self.model.keeps_states and not self.chain_only and self.scope == "model":
            raise UsageError(
                f"{self.model.name} has recurrent layers, whose states no engine rolls back along a tree: "
                "trees cannot be verified; leave out --trees and give --acceptance by position, not a curve"
            )

    def _traffic(self) -> Traffic | None:
        """Mean tokens of a server's requests; None where none were given."""
        given = {"prompt": self.arguments.prompt_tokens, "output": self.arguments.output_tokens}
        known = {name: float(tokens) for name, tokens in given.items() if tokens is not None}
        if len(known) == 1:
            raise UsageError("--prompt-tokens and --output-tokens describe the traffic: give both or neither")
        if not known:
            return None
        spread = self.arguments.length_cv
        return Traffic(
            prompt_tokens=known["prompt"], output_tokens=known["output"], prompt_cv=spread, output_cv=spread
        )

    def _load_latency(self) -> None:
        """The latency model, and the kernel set that it takes."""
        asked = self.arguments
        chosen = asked.kernels or step_kernels(self.gpu, self.runtime, self.model.dtype)
        self.latency = (
            latency_model(
                self.gpu,
                asked.latency,
                chosen,
                fallback=asked.fallback,
                data_dir=asked.data_dir,
                library="" if asked.kernels else self.runtime.library,
                serves=self.runtime.library,
            )
            if isinstance(asked.latency, str)
            else asked.latency
        )
        self.kernels = "none" if self.latency.name == "roofline" else chosen

    @property
    def length(self) -> int:
        """Committed tokens of a step where no length is asked for: half way through a request."""
        traffic = self.traffic
        if traffic is None:
            return DEFAULT_SEQ_LEN
        return request_length(traffic.prompt_tokens, traffic.output_tokens)

    @property
    def depth(self) -> int:
        """The longest path of drafts that may be run; cache compaction is sized for it."""
        heads, parts = self.profile.heads, self.drafting.parts
        if heads is None:
            return parts.heads
        trained = [parts.heads] if self.drafting.kind.unit == "head" else []
        return min(heads.heads, self.drafting.max_drafts, *trained)

    @property
    def guessed_from(self) -> int | None:
        """The first draft whose acceptance is a guess (T9), where so many may be run."""
        measured = self.profile.measured_drafts
        return None if measured is None or self.depth <= measured else measured + 1

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

    @property
    def has_trees(self) -> bool:
        """Whether trees are searched too."""
        heads = self.profile.heads
        return not self.chain_only and (heads is None or heads.ranks > 1)

    @property
    def borrows_acceptance(self) -> bool:
        """Whether nothing was given and the profile in use was measured on another model."""
        return self.arguments.acceptance is None and not self.profile.name.endswith(f"-{self.model.name}")

    @cached_property
    def fits(self) -> dict[str, Fit]:
        """`gemm.fp16` -> how well it was fitted, of the kernels that a step of this model calls."""
        if self.latency.name != "calibrated":
            return {}
        fits = dense_fits(self.gpu.kernel_set(self.kernels), self.model)
        others = self.model.has_more_kinds
        if self.scope == "block" or (self.parallel == ONE and not others):
            return fits
        # of experts, latent attention and exchange any set of the GPU: the one that the latency model takes
        for launch in priced(self.latency, plain_launches(self.shard, self.runtime)):
            kind = KIND_OF[launch.operator.kind]
            if kind.is_chosen and kind.section != "gemm":
                place = self.latency.time(launch.operator).kernels
                set_name, _, key = place.partition(":")
                fits[f"{kind.section}.{place}"] = kind.table(self.latency.gpu.kernels[set_name])[key].fit
        return fits

    @property
    def linear_fit(self) -> Fit | None:
        """How well the linear layers of this model's format were fitted; None where nobody fitted them."""
        return linear_fit(self.fits, self.model)

    @property
    def unpacks(self) -> tuple[str, ...]:
        """What is stored narrower than its kernel was measured with: `int4 weights`, `a KV cache in fp8`."""
        model = self.model
        if self.latency.name != "calibrated":
            return ()
        form = Format(model.dtype, model.weight_dtype).key
        weights = form != model.dtype and form not in self.gpu.kernel_set(self.kernels).linear
        cache = not model.blocks(Latent) and model.kv_dtype != model.activation_dtype
        return (
            *([f"{model.weight_dtype} weights"] if weights else []),
            *([f"a KV cache in {model.kv_dtype}"] if cache else []),
        )

    @property
    def backend(self) -> Backend | None:
        """The attention kernel of a verification step; None where nothing tells (a roofline, the block)."""
        if self.latency.name == "roofline" or self.scope == "block":
            return None
        return backend_of_model(self.shard, self.runtime.library, self.gpu.architecture, self.runtime.backend)

    @property
    def case(self) -> Case:
        """The set-up as the ranges of an engine's terms see it."""
        runtime = self.runtime
        return case_of(self.shard, runtime.library, self.gpu.architecture, self.gpus, runtime.backend)

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
    def usable_memory_bytes(self) -> float:
        """Bytes that the engine may fill on one GPU."""
        return usable_memory_bytes(self.gpu, self.runtime.engine, self.shard)

    @property
    def usd_per_gpu_hour(self) -> float | None:
        """The price, whoever gave it; None where nobody did."""
        return None if self.price is None else self.price.usd_per_gpu_hour


def runtime_of(runtime: str | Runtime, data_dir: DataDir) -> Runtime:
    """A runtime, by name or as it is. Raises SpecError for an unknown name."""
    return load_runtime(runtime, data_dir) if isinstance(runtime, str) else runtime


def other_maker(engine: str, gpu: Gpu) -> str:
    """Why an engine does not run on a card at all; empty where it does."""
    if engine.startswith(_NVIDIA_ONLY) and gpu.architecture == "cdna":
        return f"{_NVIDIA_ONLY} runs on NVIDIA cards only, and {gpu.name} is AMD's; choose vllm or sglang"
    return ""


_NVIDIA_ONLY = "tensorrt-llm"


def as_run(
    published: Model,
    runtime: Runtime,
    gpu: Gpu,
    dtype: str | None,
    weight_dtype: str | None,
    kv_dtype: str | None,
) -> tuple[Model, tuple[str, ...]]:
    """A checkpoint as an engine runs it on a card, and its formats that the card has no arithmetic for."""
    if reason := other_maker(runtime.name, gpu):
        raise SpecError(reason)
    if dtype is not None and UNPACKED.get(dtype) == FP8_ALONE and gpu.lacks("fp8"):
        raise SpecError(
            f"{gpu.name} has no fp8 arithmetic, only {', '.join(gpu.peak_flops_per_s)}; engines unpack such "
            "weights to 16 bits: --weight-dtype fp8"
        )
    model = with_dtypes(as_served(published, runtime.library), dtype, weight_dtype, kv_dtype)
    if dtype is None and weight_dtype is None:
        return unpacked_where(model, gpu.lacks)
    return model, ()


def matched(
    given: float | None, kind: type[Drafter], profile: AcceptanceProfile
) -> tuple[float, AcceptanceProfile]:
    """Share of the steps that verify drafts, and the acceptance over all steps that goes with it.

    All steps do, but for a drafter that looks drafts up in the text. There the profile says its own share
    (`steps_matched`); with another one as many more or fewer drafts are accepted, since what a match is worth
    stays. Raises UsageError for a rate outside (0, 1] or below the first acceptance, or of a drafter that
    takes none.
    """
    if not kind.looks_up:
        if given is not None:
            raise UsageError(f"drafter {kind.name} takes no --match-rate: it drafts in every step")
        return 1.0, profile
    if given is None:
        return profile.steps_matched, profile
    if not 0.0 < given <= 1.0:
        raise UsageError(f"match rate {given:g}: above 0 and at most 1 is allowed")
    if given < profile.first_accepted:
        least = profile.first_accepted
        raise UsageError(
            f"match rate {given:g}: acceptance {profile.name} accepts a first draft in {least:g} of the "
            f"steps, so drafts are found in as many; give {least:g} to 1, or the acceptance of that text"
        )
    return given, profile.with_ratio(given / profile.steps_matched)


def _check_parts(model: Model, runtime: Runtime, gpu: Gpu) -> None:
    """Refuse GPUs without a link, and a model that the runtime has no kernels for. Raises UsageError."""
    if model.parallel.tp > 1 and not gpu.link_bandwidth_bytes_per_s:
        raise UsageError(
            f"{gpu.name} has no link to another GPU, so --tp {model.parallel.tp} cannot be priced; give "
            f"--tp 1, or add link_bandwidth_bytes_per_s with its source to {gpu.path or 'its file'}"
        )
    if runtime.attention == "unfused" and (model.experts is not None or model.blocks(Latent)):
        raise UsageError(
            f"runtime {runtime.name} runs the kernels of a paper on dense models; {model.name} has experts: "
            "choose --runtime vllm, sglang or cuda-graph"
        )


def dense_fits(held: KernelSet, model: Model) -> dict[str, Fit]:
    """`gemm.fp16`, `attention.decode_attention`, ... -> fit, of a kernel set in the model's format."""
    form = Format(model.dtype, model.weight_dtype).key
    forms = {form if form in held.linear else model.dtype, model.activation_dtype}
    return {
        f"{kind.section}.{key}": kernel.fit
        for kind in KINDS
        if kind.section in _DENSE
        for key, kernel in kind.table(held).items()
        if kind.section != "gemm" or key in forms
    }


def linear_fit(fits: Mapping[str, Fit], model: Model) -> Fit | None:
    """How well the linear layers of the model's format were fitted; None where nobody fitted them."""
    form = Format(model.dtype, model.weight_dtype).key
    return fits.get(f"gemm.{form}", fits.get(f"gemm.{model.dtype}"))


def plain_launches(shard: Model, runtime: Runtime) -> tuple[Launch, ...]:
    """Kernels of a plain step, and those of several tokens a request that such a step has not."""
    verified = model_launches(shard, verify(1, 1, 2), runtime)
    return (
        *model_launches(shard, decode(1, 1), runtime),
        *(launch for launch in verified if launch.composed),
    )
