"""Arguments of a scenario, loaded and checked one by one."""

from __future__ import annotations

import os
from collections.abc import Mapping
from numbers import Integral, Real
from typing import TypeAlias

import numpy as np

from medusa_sim.acceptance.profile import AcceptanceProfile
from medusa_sim.data import DataDir
from medusa_sim.errors import UsageError, check_kind
from medusa_sim.latency.base import LatencyModel
from medusa_sim.specs.gpu import Gpu
from medusa_sim.specs.mixers import Latent
from medusa_sim.specs.model import Model, with_dtypes
from medusa_sim.specs.models import load_model
from medusa_sim.specs.runtime import Runtime, load_runtime
from medusa_sim.step.drafter.base import Drafter
from medusa_sim.step.server import Traffic

ModelName: TypeAlias = str | os.PathLike[str] | Model


Kind: TypeAlias = tuple[str, tuple[type, ...]]
WHOLE: Kind = ("a whole number", (Integral,))
NUMBER: Kind = ("a number", (Real,))
FLAG: Kind = ("True or False", (bool,))
WORD: Kind = ("a name", (str,))
_MODEL: Kind = ("a name, a path or a loaded model", (str, os.PathLike, Model))
_RUNTIME: Kind = ("a name or a loaded runtime", (str, Runtime))
_KINDS: dict[str, Kind] = {
    "gpu": ("a name or a loaded GPU", (str, Gpu)),
    "model": _MODEL,
    "draft_model": _MODEL,
    "runtime": _RUNTIME,
    "draft_runtime": _RUNTIME,
    "latency": ("a name or a latency model", (str, LatencyModel)),
    **dict.fromkeys(("heads", "max_drafts", "draft_vocab", "tp", "ep"), WHOLE),
    **dict.fromkeys(("match_rate", "prompt_tokens", "output_tokens", "price"), NUMBER),
    **dict.fromkeys(("chain_only", "lossless", "dp_attention"), FLAG),
    **dict.fromkeys(("drafter", "workload", "dtype", "weight_dtype", "kv_dtype", "overlap", "kernels"), WORD),
    **dict.fromkeys(("scope", "baseline", "fallback"), WORD),
}


def check_kinds(
    given: Mapping[str, object], defaults: Mapping[str, object], kinds: Mapping[str, Kind] = _KINDS
) -> None:
    """Refuse arguments of another kind than theirs, before one is taken for another value.

    Python takes "no" for true, True for 1 and 2.5 heads for a number of heads. None passes where it is the
    default. Raises UsageError.
    """
    for name, (wanted, allowed) in kinds.items():
        value = given.get(name)
        if name not in given or (value is None and name in defaults and defaults[name] is None):
            continue
        check_kind(name, value, wanted, allowed)


def runtime_of(runtime: str | Runtime, data_dir: DataDir) -> Runtime:
    """A runtime, by name or as it is. Raises SpecError for an unknown name."""
    return load_runtime(runtime, data_dir) if isinstance(runtime, str) else runtime


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


def check_parts(model: Model, runtime: Runtime, gpu: Gpu) -> None:
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


def traffic_of(prompt_tokens: float | None, output_tokens: float | None) -> Traffic | None:
    """Mean tokens of a server's requests; None where none were given. Raises UsageError for one alone."""
    if prompt_tokens is None and output_tokens is None:
        return None
    if prompt_tokens is None or output_tokens is None:
        raise UsageError("--prompt-tokens and --output-tokens describe the traffic: give both or neither")
    for name, value in (("prompt", prompt_tokens), ("output", output_tokens)):
        if not 1.0 <= value < np.inf:
            raise UsageError(f"{name} tokens {value:g}: a finite number from 1 is needed")
    return Traffic(prompt_tokens=float(prompt_tokens), output_tokens=float(output_tokens))


def draft_model_of(model: ModelName | None, dtype: str | None) -> Model | None:
    """The model that drafts, in the dtype of the target. Raises SpecError for an unknown name."""
    if model is None:
        return None
    return with_dtypes(model if isinstance(model, Model) else load_model(model), dtype)
