"""The parts of a set-up that an engine's terms may depend on: model, GPUs, attention kernel, formats."""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias

from medusa_sim.engines.place import sizes_of
from medusa_sim.gpus.gpu import Gpu
from medusa_sim.models.mixers import Latent, Mixer
from medusa_sim.models.model import Model
from medusa_sim.units import FORMATS, SCALED

Form: TypeAlias = Literal["dense", "mixture", "latent", "hybrid", "sparse"]
"""Kind of a model: the last of these that it is. Mixtures have experts, hybrids recurrent layers."""


class Case(NamedTuple):
    """The parts of a set-up that an engine's terms may depend on."""

    form: Form = "dense"
    """Form of the model."""
    experts: bool = False
    """Whether the model has experts."""
    gpus: int = 1
    """GPUs that share the model."""
    generation: str = "hopper"
    """Generation of the GPU (`Gpu.architecture`)."""
    backend: str = ""
    """Attention kernel of a verification step, by its key in `backends.toml`."""
    formats: tuple[str, ...] = ()
    """Formats of the weights in all parts of the model."""
    gpu: str = ""
    """Name of the GPU; empty: unknown, and then nothing says how near a measured set-up is."""
    memory_bytes: float = 0.0
    """Memory of that GPU."""
    sizes: str = ""
    """Shape of the model (`place.sizes_of`); empty: unknown."""
    splits: bool = False
    """Whether attention is split over requests."""


def case_of(model: Model, gpu: Gpu, gpus: int, backend: str) -> Case:
    """The case of a model on `gpus` GPUs.

    model: what one of them holds. backend: key of the attention kernel of a verification step.
    """
    return Case(
        form=form_of(model),
        experts=model.experts is not None,
        gpus=gpus,
        generation=gpu.architecture,
        backend=backend,
        formats=weight_formats(model),
        gpu=gpu.name,
        memory_bytes=gpu.memory_bytes,
        sizes=sizes_of(model),
        splits=model.parallel.dp_attention,
    )


def form_of(model: Model) -> Form:
    """The form of a model, whole or one GPU's part."""
    if any(mixer.chooses_keys for _, mixer in model.blocks(Mixer)):
        return "sparse"
    if model.keeps_states:
        return "hybrid"
    if model.blocks(Latent):
        return "latent"
    return "dense" if model.experts is None else "mixture"


def weight_formats(model: Model) -> tuple[str, ...]:
    """Formats of a model's weights, the format of its linear layers first.

    mxfp4 under 8-bit arithmetic is one of its own: terms of mxfp4 are gpt-oss's, told under 16 bits.
    """
    parts = [part for group in model.groups for part in group.parts]
    forms = [model.form, *(part.form for part in parts if part.form is not None)]
    return tuple(dict.fromkeys(form if form in SCALED else FORMATS[form].weight_dtype for form in forms))
