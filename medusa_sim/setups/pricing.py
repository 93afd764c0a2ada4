"""A set-up -> its rows: every drafter and batch at steady load, or why it cannot run.

What alike set-ups share is loaded, sized and timed once: a GPU, a model's share of a GPU, the kernels of a
GPU and an engine, the steps that do not depend on the drafter.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from medusa_sim.data import DataDir
from medusa_sim.engines.engine import Engine
from medusa_sim.engines.runtime import load_runtime
from medusa_sim.errors import CoverageError, MedusaSimError
from medusa_sim.gpus.gpu import Gpu
from medusa_sim.grid.configurations import at_counts
from medusa_sim.grid.surface import Surface, surface_at
from medusa_sim.latency.cached import CachedLatency, Known
from medusa_sim.latency.calibrated import CalibratedLatency
from medusa_sim.latency.model import LatencyModel
from medusa_sim.models.model import Model
from medusa_sim.models.parallel import Parallel
from medusa_sim.models.variants import on_one_gpu, with_dtypes
from medusa_sim.scenario.as_run import why_not_on_gpu
from medusa_sim.scenario.draft_options import DraftOption
from medusa_sim.scenario.scenario import Scenario
from medusa_sim.setups.question import FP8, SetupQuestion
from medusa_sim.setups.set_up_cells import SetUpCells
from medusa_sim.setups.setup import NO_DRAFTER, SetUp
from medusa_sim.step.drafter import drafter_class
from medusa_sim.units import FORMATS, GIGA, UNPACKED, format_text


@dataclass(frozen=True, slots=True)
class Refused:
    """A set-up that cannot run, or with one drafter cannot, and why."""

    setup: str
    reason: str


@dataclass(slots=True, kw_only=True)
class Pricer:
    """Prices set-ups of a model on one GPU for a question.

    given: further arguments of every `Scenario`. shares: bytes of the weights of one GPU by split and
    precision, or why the model cannot be split so, of every GPU alike. latencies: of the GPU's kernels by
    engine and precision, with one memory (`known`): what set-ups ask of one kernel is computed once.
    """

    model: Model
    asked: SetupQuestion
    gpu: Gpu
    given: dict[str, Any]
    shares: dict[Any, float | MedusaSimError]
    latencies: dict[tuple[str, str], LatencyModel] = field(default_factory=dict)
    known: Known = field(default_factory=partial(Known, shares_sizes=True))

    def priced(self, setup: SetUp) -> list[SetUpCells | Refused]:
        """A set-up with all its drafters; batches that its cache does not hold, with a cache in fp8."""
        run = self._as_run(setup)
        if isinstance(run, Refused):
            return [run]
        try:
            if (share := self._weights_of_a_gpu(run)) > self.gpu.memory_bytes:
                raise _NoRoomError(_no_room(share, self.gpu))
            cells = self._of_drafters(run, self.asked)
        except MedusaSimError as error:  # with any drafter
            return [Refused(run.words, str(error))]
        # no KV precision was asked for then, and the GPU computes in fp8
        if not run.narrows_cache or self.model.kv_dtype == FP8 or self.gpu.lacks(FP8):
            return cells
        first = 0 if NO_DRAFTER in run.drafters else 1
        rooms = [one.cells.surface.max_batch[0, first:].max() for one in cells if isinstance(one, SetUpCells)]
        beyond = tuple(batch for batch in self.asked.tried if rooms and batch > max(rooms))
        if beyond:
            with suppress(_NoRoomError):  # batches that fit in neither are not listed as refused
                asked = replace(self.asked, batches=beyond)
                narrow = self._of_drafters(replace(run, kv_precision=FP8), asked)
                cells += [one for one in narrow if isinstance(one, SetUpCells)]
        return cells

    def _as_run(self, setup: SetUp) -> SetUp | Refused:
        """The set-up in the precision that the GPU computes, or why the engine does not run there."""
        gpu, needed = self.gpu, FORMATS[setup.precision].dtype
        runtime = load_runtime(setup.engine, self.given.get("data_dir"))
        if reason := why_not_on_gpu(runtime, gpu):
            return Refused(f"{setup.gpu}, {setup.engine}", reason)
        if setup.precision == self.model.precision or not gpu.lacks(needed):
            return setup
        unpacked = UNPACKED.get(setup.precision) if runtime.engine and runtime.engine.unpacks_fp8 else None
        if unpacked is not None and setup.unpacks:
            return replace(setup, precision=unpacked)
        why = f"the GPU has no {needed} arithmetic, only {', '.join(gpu.peak_flops_per_s)}"
        more = f"; --weight-dtype {setup.precision} takes it for the weights alone" if unpacked else ""
        return Refused(f"{setup.gpu}, {format_text(setup.precision)}", why + more)

    def _of_drafters(self, setup: SetUp, asked: SetupQuestion) -> list[SetUpCells | Refused]:
        """The draft lengths of each drafter at every batch; refused once where all are, for one reason.

        Raises _NoRoomError.
        """
        last: SetUpCells | None = None
        priced: list[SetUpCells | Refused] = []
        for drafter in sorted(setup.drafters, key=lambda name: name == NO_DRAFTER):
            plain = drafter == NO_DRAFTER
            try:
                if plain and last is not None:  # plain decoding is read off any cells
                    last = replace(last, plain=True)
                else:
                    sibling = None if last is None else last.cells.surface
                    surface = replace(self._surface(setup, drafter, asked), sibling=sibling)
                    last = SetUpCells.every(surface, plain=plain)
                if not last.fits.any():
                    raise CoverageError("the drafter and its drafts leave no room for a request")
                _ = last.cells.tokens_per_s  # what cannot be priced is refused here
                priced.append(last)
            except _NoRoomError:
                raise
            except MedusaSimError as error:
                priced.append(Refused(f"{setup.words}, {drafter}", str(error)))
        reasons = {item.reason if isinstance(item, Refused) else None for item in priced}
        if len(reasons) == 1 and (reason := reasons.pop()) is not None:
            return [Refused(setup.words, reason)]
        return priced

    def _weights_of_a_gpu(self, setup: SetUp) -> float:
        """In bytes. Raises MedusaSimError where the model cannot be split so."""
        split = {name: getattr(setup, name) for name in ("tp", "ep", "dp_attention")}
        place = (*split.values(), setup.precision)
        if place not in self.shares:
            formats = {name: setup.arguments(self.model).get(name) for name in ("dtype", "weight_dtype")}
            try:
                model = with_dtypes(self.model, **formats)
                self.shares[place] = float(on_one_gpu(model, Parallel(**split)).weight_bytes)
            except MedusaSimError as error:
                self.shares[place] = error
        share = self.shares[place]
        if isinstance(share, MedusaSimError):
            raise share
        return share

    def _surface(self, setup: SetUp, drafter: str, asked: SetupQuestion) -> Surface:
        """A set-up with a drafter at every batch and draft length; with none, plain decoding alone.

        Raises _NoRoomError.
        """
        given = self.given
        if drafter == NO_DRAFTER or not drafter_class(drafter).takes_draft_model:
            given = {name: value for name, value in given.items() if not name.startswith("draft_")}
        scenario = self._scenario(
            setup,
            model=self.model,
            drafter=any_drafter(setup.engine, given.get("data_dir")) if drafter == NO_DRAFTER else drafter,
            prompt_tokens=asked.prompt_tokens,
            output_tokens=asked.output_tokens,
            **{"chain_only": True, **setup.arguments(self.model), **given, "gpu": self.gpu},
        )
        surface = surface_of(scenario, asked, plain=drafter == NO_DRAFTER)
        if min(asked.tried) > (most := int(surface.max_batch[0, 0])):
            held = f" more than {most:,} of {min(asked.tried):,} requests of {asked.seq_len:,} tokens"
            raise _NoRoomError(_no_room(scenario.shard.weight_bytes, scenario.gpu, held if most else ""))
        return surface

    def _scenario(self, setup: SetUp, **arguments: Any) -> Scenario:
        """With the GPU's kernels as they are known."""
        kernels = (setup.engine, setup.precision)
        if kernels in self.latencies:
            return Scenario(**{**arguments, "latency": self.latencies[kernels]})
        scenario = Scenario(**arguments)
        if isinstance(scenario.latency, CalibratedLatency):
            shared = CachedLatency(scenario.latency, self.known, scenario.latency.whose)
            scenario = scenario.but(latency=shared)
        self.latencies[kernels] = scenario.setting.latency
        return scenario


def surface_of(scenario: Scenario, asked: SetupQuestion, *, plain: bool) -> Surface:
    """The steps of a question's batches and draft lengths, none of them priced yet.

    plain: of plain decoding alone. Raises CoverageError where nothing tells of these draft lengths.
    """
    options: Sequence[DraftOption] = ()
    if not plain:
        options = at_counts(scenario.options(max(asked.drafts) + 1), np.asarray(asked.drafts) + 1)
        if not options:
            raise CoverageError(
                f"acceptance {scenario.profile.name} describes none of these draft lengths; choose others "
                "with --drafts, or a larger --max-drafts"
            )
    return surface_at(scenario, asked.tried, [asked.seq_len], options, in_flight=True)


class _NoRoomError(CoverageError):
    """Not even the smallest batch fits, without a drafter."""


def _no_room(weight_bytes: float, gpu: Gpu, held: str = "") -> str:
    """Why nothing fits. held: what has no room; empty: a single request."""
    size, room = weight_bytes / GIGA, gpu.memory_bytes / GIGA
    return f"{size:.0f} GB of weights a GPU leave no room for{held or ' a request'} in {room:.0f} GB"


def any_drafter(engine: str, data_dir: DataDir = None) -> str:
    """A drafter that an engine runs and that needs nothing, for a scenario that does not speculate."""
    terms: Engine | None = load_runtime(engine, data_dir).engine
    return "ngram" if terms is None or "ngram" in terms.drafters else terms.drafters[0]
