"""Doubts about fitted kernels: borrowed from another GPU, of another format, or for fewer GPUs."""

from __future__ import annotations

from collections.abc import Iterator

from medusa_sim.doubts.stand_ins import borrowed_shares, forms_of_experts, other_form, slower_than_halves
from medusa_sim.engines.engine_formats import expert_products
from medusa_sim.gpus.carried import OTHER_VENDOR
from medusa_sim.gpus.fitted_links import FEWEST_RANKS
from medusa_sim.latency.model import known_time
from medusa_sim.models.mixers import Latent
from medusa_sim.operators.kinds import KIND_OF
from medusa_sim.scenario.scenario import Scenario
from medusa_sim.units import format_text

_LEAST_SHARE = 0.01
"""Share of a step below which no number is given."""


def borrowed_kernels(scenario: Scenario) -> Iterator[str]:
    """Kernels of other GPUs or libraries stand in for some share of a plain step."""
    if not scenario.kernel_fits.lenders:
        return
    slower = max(fit.slower for fit in scenario.kernel_fits.by_key.values())
    times = "" if slower == 1.0 else f", with times scaled by {slower:g}, as served steps there suggest"
    lent = borrowed_shares(scenario)
    *most, last = list(lent) or ["what a plain step does not call"]
    what = f"{', '.join(most)} and {last}" if most else last
    share = sum(lent.values())
    percent = "under 1" if share < _LEAST_SHARE else f"{100.0 * share:.0f}"
    part = f" ({percent} % of a plain step)" if lent else ""
    yield (
        f"kernels of {scenario.gpu.name} are borrowed from "
        f"{', '.join(map(_lender_text, scenario.kernel_fits.lenders))}: {what}{part}, with wider bands{times}"
    )


def _lender_text(lender: str) -> str:
    """`b200:sglang:fp8_block` -> `b200:sglang (fp8 in blocks)`."""
    gpu, library, *form = lender.split(":")
    return f"{gpu}:{library}" + "".join(f" ({format_text(each)})" for each in form)


def slow_format(scenario: Scenario) -> Iterator[str]:
    """Linear layers take longer in their narrow format than in 16 bits."""
    if slow := slower_than_halves(scenario):
        yield (
            f"linear layers in {format_text(slow[0])} take {slow[2]:.2f} times as long as in bf16 on "
            f"{scenario.gpu.name} at {slow[1]} rows: inputs are quantised first, and kernels with scales "
            "reach less of the peak"
        )


def experts_in_another_format(scenario: Scenario) -> Iterator[str]:
    """Kernels of another format price the experts."""
    if other := other_form(scenario):
        yield (
            f"nobody measured experts in {format_text(other[0])} on {scenario.gpu.name}: times are of "
            f"{format_text(other[1])} kernels that read as many bytes, with wider bands"
        )


def experts_put_together(scenario: Scenario) -> Iterator[str]:
    """The engine's experts run products of a kernel that was measured on other shapes."""
    forms, runtime = forms_of_experts(scenario), scenario.runtime
    if forms and expert_products(runtime.library, scenario.gpu.architecture, forms[0]):
        yield (
            f"products of experts in {format_text(forms[0])} in {runtime.name} on "
            f"{scenario.gpu.architecture} are borrowed from a kernel of other shapes, behind the launches of "
            "their own, with wider bands"
        )


def unpacked_weights(scenario: Scenario) -> Iterator[str]:
    """The GPU lacks the arithmetic of the checkpoint's format."""
    if scenario.unpacked_forms:
        forms = " or ".join(map(format_text, scenario.unpacked_forms))
        yield (
            f"{scenario.gpu.name} has no {forms} arithmetic: such weights are unpacked to 16 bits, as vLLM "
            "does (Marlin)"
        )


def unfitted_kernels(scenario: Scenario) -> Iterator[str]:
    """Some kinds of kernels were not fitted on any GPU."""
    launches = () if scenario.scope == "block" else scenario.kernel_fits.plain_launches
    unfitted = {
        KIND_OF[launch.operator.kind].title: None
        for launch in launches
        if launch.composed and known_time(scenario.latency, launch.operator) is None
    }
    if unfitted:
        yield (
            f"{' and '.join(unfitted)} of {scenario.model.name}: no kernel is fitted; times follow from "
            "bytes and FLOPs, with wide bands"
        )


def verification_by_other_kernels(scenario: Scenario) -> Iterator[str]:
    """Verification was measured on no such GPU, or with other numbers of queries than it has."""
    if scenario.scope != "model":
        return
    if scenario.gpu.architecture == OTHER_VENDOR:
        yield (
            f"no round was measured by its kernels on a GPU like {scenario.gpu.name}: of two that were "
            "published in SGLang, DeepSeek-V3 with MTP on eight MI300X took 1.9 times the prediction, "
            "Kimi-K3 with DSpark on eight MI350X as long as predicted"
        )
    if "sparse" in {place.partition(".")[0] for place in scenario.kernel_fits.by_key}:
        yield (
            f"sparse attention of {scenario.model.name} takes fitted modules: those of several queries a "
            "request are of prompts or extrapolated from one, with wider bands"
        )
    elif scenario.model.blocks(Latent):
        yield (
            f"latent attention of {scenario.model.name} was fitted at one query: its verification is "
            "extrapolated, 10 to 20 % from public rows on average, with wider bands"
        )


def unmeasured_unpacking(scenario: Scenario) -> Iterator[str]:
    """Weights or K and V are stored in fewer bits than their kernel was measured with."""
    if unpacked := " and ".join(scenario.kernel_fits.unpacks):
        yield (
            f"nobody measured the unpacking of {unpacked} on {scenario.gpu.name}: times are of kernels "
            "without it that read as many bytes, with wider bands"
        )


def cost_of_a_narrow_cache(scenario: Scenario) -> Iterator[str]:
    """What an fp8 cache adds to kernels of 16 bits was measured once, with other models."""
    if (cache := scenario.kernel_fits.fp8_cache) is not None:
        yield (
            f"attention on {scenario.gpu.name} with a KV cache in fp8 is extrapolated from 16 bits, by "
            f"{cache.source.partition(':')[0]}, with wider bands"
        )


def collectives_of_more_gpus(scenario: Scenario) -> Iterator[str]:
    """Collectives were measured on two GPUs only."""
    places = [
        key.removeprefix("collective.").partition(":")
        for key in scenario.kernel_fits.by_key
        if key.startswith("collective.")
    ]
    exchange = [scenario.gpu.kernels[name].collective[key] for name, _, key in places]
    if scenario.parallel.tp > FEWEST_RANKS and not all(kernel.knows_ranks for kernel in exchange):
        yield (
            f"collectives on {scenario.gpu.name} were measured on {FEWEST_RANKS:g} GPUs only; "
            f"{scenario.parallel.tp} is an extrapolation, with wider bands"
        )


def spread_experts(scenario: Scenario) -> Iterator[str]:
    """Kernels of experts were fitted without spreading experts over GPUs."""
    if scenario.parallel.ep > 1:
        yield (
            f"experts spread over GPUs (ep {scenario.parallel.ep}) are priced by kernels that were fitted "
            "without, with wider bands"
        )


RULES_OF_KERNELS = (
    borrowed_kernels,
    slow_format,
    experts_in_another_format,
    experts_put_together,
    unpacked_weights,
    unfitted_kernels,
    verification_by_other_kernels,
    unmeasured_unpacking,
    cost_of_a_narrow_cache,
    collectives_of_more_gpus,
    spread_experts,
)
