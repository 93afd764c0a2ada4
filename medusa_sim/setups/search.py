"""Every set-up priced at steady batches -> the comparison; then what lies between two of the batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from medusa_sim.acceptance.adjustments import workload_ratio
from medusa_sim.data import DataDir
from medusa_sim.engines.runtime import load_engine, load_runtime
from medusa_sim.errors import MedusaSimError, UsageError
from medusa_sim.gpus.gpu import load_gpu
from medusa_sim.gpus.gpu_names import gpu_name
from medusa_sim.models.model import Model
from medusa_sim.models.named import ModelName, load_model
from medusa_sim.scenario.acceptance import resolve_word
from medusa_sim.scenario.arguments import ARGUMENTS
from medusa_sim.scenario.declare import check
from medusa_sim.scenario.scenario import Scenario
from medusa_sim.setups.comparison import Comparison
from medusa_sim.setups.pricing import Pricer, Refused, surface_of
from medusa_sim.setups.quantities import OF_LOAD_TESTS
from medusa_sim.setups.question import AUTO, BATCHES, Measure, SetupChoices, SetupQuestion
from medusa_sim.setups.set_up_cells import SetUpCells
from medusa_sim.setups.setup import NO_DRAFTER, SET_UP, SetUp, setups
from medusa_sim.step.drafter import drafter_class

if TYPE_CHECKING:
    import pandas as pd

Prices: TypeAlias = float | Mapping[str, float] | None
"""Dollars per GPU-hour: of every GPU, by GPU, or as listed."""
MOST = 6
"""Set-ups that are looked at more closely, with speculation and as many without."""
_APART = 2
"""Batches between which others lie."""


def compare(
    model: ModelName,
    question: SetupQuestion | None = None,
    choices: SetupChoices | None = None,
    *,
    prices: Prices = None,
    advance: Callable[[int, int], None] | None = None,
    refine: bool = True,
    load_tests: bool = True,
    **given: Any,
) -> Comparison:
    """Price every set-up that `choices` allows and answer the question.

    prices: dollars per GPU-hour of every GPU, or by GPU (others as listed). advance: told (set-ups priced,
    of so many). refine: look between batches too. load_tests: with `OF_LOAD_TESTS`. given:
    further arguments of every `Scenario` (acceptance, draft_model, latency, data_dir, ...). Raises SpecError
    or UsageError for what no set-up could make good (an unknown model, GPU, engine or drafter), UsageError
    where every set-up was refused.
    """
    import pandas as pd

    asked, allowed = question or SetupQuestion(), choices or SetupChoices()
    data_dir = given.get("data_dir")
    allowed, prices = by_file(allowed, prices, data_dir)
    target = model if isinstance(model, Model) else load_model(model)
    drafters = allowed.drafters or default_drafters(target, data_dir)
    _refuse_for_all(allowed, drafters, prices, given)
    todo = list(setups(target, allowed, drafters, data_dir))
    rows: list[dict[str, Any]] = []
    refused: dict[Refused, None] = {}
    scenarios: dict[tuple[Any, ...], Scenario] = {}
    for done, priced in enumerate(_priced(todo, target, asked, prices, given), 1):
        for one in priced:
            if isinstance(one, Refused):
                # what scenarios call --tp is --gpus of a comparison
                refused[replace(one, reason=one.reason.replace("--tp", "--gpus"))] = None
            else:
                rows.append(one.rows(asked, load_tests=load_tests))
                scenarios[tuple(one.set_up.values())] = one.scenario
        if advance is not None:
            advance(done, len(todo))
    if not rows:
        raise NothingRunsError(target.name, len(todo), tuple(refused))
    table = pd.DataFrame({name: np.concatenate([part[name] for part in rows]) for name in rows[0]})
    priced_all = Comparison(
        model=target,
        question=asked,
        measure=_measure(asked, table, is_named=allowed.gpus is not None),
        table=table,
        refused=tuple(refused),
        scenarios=scenarios,
    )
    found = priced_all.for_target()
    return refined(found) if refine else found


def _priced(
    todo: Sequence[SetUp], model: Model, asked: SetupQuestion, prices: Prices, given: Mapping[str, Any]
) -> Iterator[list[SetUpCells | Refused]]:
    """The cells of every set-up, or why it was refused, GPU by GPU."""
    shares: dict[Any, float | MedusaSimError] = {}
    for gpu, of_gpu in groupby(todo, key=lambda setup: setup.gpu):
        usd = prices.get(gpu) if isinstance(prices, Mapping) else prices
        pricer = Pricer(
            model=model, asked=asked, gpu=load_gpu(gpu, given.get("data_dir")),
            given={**given, "price": usd}, shares=shares,
        )  # fmt: skip
        yield from map(pricer.priced, of_gpu)


def _refuse_for_all(
    allowed: SetupChoices,
    drafters: Sequence[str],
    prices: Prices,
    given: Mapping[str, Any],
) -> None:
    """Raises what no set-up could make good, before hundreds of them are refused for it one by one."""
    data_dir = given.get("data_dir")
    check(given, ARGUMENTS)
    for name in drafters:
        if name != NO_DRAFTER:
            drafter_class(name)
    for name in allowed.engines or ():
        load_engine(name, data_dir)
    by_gpu = prices if isinstance(prices, Mapping) else {}
    for name in (*(allowed.gpus or ()), *by_gpu):
        load_gpu(name, data_dir)
    for usd in by_gpu.values() if by_gpu else [prices]:
        ARGUMENTS["price"].check(usd)
    for name in allowed.kv_dtypes or ():
        if name != AUTO:
            ARGUMENTS["kv_dtype"].check(name)
    if isinstance(acceptance := given.get("acceptance"), str):
        resolve_word(acceptance, data_dir)
    if (workload := given.get("workload")) is not None:
        workload_ratio(workload)
    if (runtime := given.get("draft_runtime")) is not None:
        load_runtime(runtime, data_dir)
    if (draft := given.get("draft_model")) is not None and not isinstance(draft, Model):
        load_model(draft)


def _measure(asked: SetupQuestion, table: pd.DataFrame, *, is_named: bool) -> Measure:
    """Measure to optimise; GPUs without a price that nobody named are left out, and the answer says so."""
    with_price = table.usd_per_million_tokens.notna()
    by_cost = with_price.all() if is_named else with_price.any()
    return asked.measure or ("cost" if by_cost else "throughput")


_OTHER_CHOICES = (
    "; allow other GPUs (--gpu), more of them (--gpus), fewer requests (--batch), fewer bits "
    "(--weight-dtype) or other engines (--engine)"
)
"""What may help where the reason names no remedy."""


class NothingRunsError(UsageError):
    """Every set-up was refused; refused: all of them, with the reasons."""

    def __init__(self, model: str, tried: int, refused: tuple[Refused, ...]) -> None:
        first = refused[0]
        super().__init__(
            f"none of {tried} set-ups of {model} can run; {first.setup}: {first.reason}"
            + ("" if "; " in first.reason else _OTHER_CHOICES)
        )
        self.model, self.tried, self.refused = model, tried, refused

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.model, self.tried, self.refused)


def together(parts: Sequence[Comparison | NothingRunsError], *, refine: bool = True) -> Comparison:
    """Comparisons of the same question about named GPUs, one for each GPU and not refined, as one.

    What `compare` answers for all of them; refine: look between batches too. Raises NothingRunsError where
    none has an answer.
    """
    import pandas as pd

    refused = tuple(dict.fromkeys(item for part in parts for item in part.refused))
    known = [part for part in parts if isinstance(part, Comparison)]
    if not known:
        tried = sum(part.tried for part in parts if isinstance(part, NothingRunsError))
        raise NothingRunsError(
            next(part.model for part in parts if isinstance(part, NothingRunsError)), tried, refused
        )
    table = pd.concat([part.table for part in known], ignore_index=True)
    first = known[0]
    whole = replace(
        first,
        measure=_measure(first.question, table, is_named=True),
        table=table,
        refused=refused,
        scenarios={key: scenario for part in known for key, scenario in part.scenarios.items()},
    )
    found = whole.for_target()
    return refined(found) if refine else found


def by_file(allowed: SetupChoices, prices: Prices, data_dir: DataDir) -> tuple[SetupChoices, Prices]:
    """Choices and prices with GPUs by the names of their files, however they were written."""
    if allowed.gpus is not None:
        allowed = replace(allowed, gpus=tuple(gpu_name(name, data_dir) for name in allowed.gpus))
    if isinstance(prices, Mapping):
        prices = {gpu_name(each, data_dir): usd for each, usd in prices.items()}
    return allowed, prices


def default_drafters(model: Model, data_dir: DataDir = None) -> tuple[str, ...]:
    """Plain decoding and every drafter whose acceptance was measured on this model, else EAGLE-3 or MTP."""
    from medusa_sim.acceptance.profile import acceptance_names
    from medusa_sim.step.drafter import drafters

    known = acceptance_names(data_dir)
    measured = [
        name for name, kind in drafters().items()
        if any(f"{prefix}{model.name}" in known for prefix in kind.profiles)
    ]  # fmt: skip
    return (NO_DRAFTER, *(measured or ["mtp" if model.mtp_layers else "eagle3"]))


def refined(answer: Comparison) -> Comparison:
    """The answer with a row more for each set-up that may win between two of its batches.

    Of a set-up whose next batch misses the limits, or does not fit, and would win if it did not, every batch
    up to it is priced; the best that keeps the limits is added. Batches that were asked for stay as they are.
    """
    import pandas as pd

    if answer.question.batches != BATCHES:
        return answer
    grid = answer.table.batch.isin(answer.question.tried)
    if not grid.all():  # what another target added
        answer = replace(answer, table=answer.table[grid].reset_index(drop=True)).for_target()
    refined_rows = []
    for plain in (True, False):
        rows = answer.table[(answer.table.drafter == NO_DRAFTER) == plain]
        for key, batches in _gaps(answer, rows):
            best = _best(answer, key, batches)
            refined_rows += [] if best is None else [best]
    if not refined_rows:
        return answer
    table = pd.concat([answer.table, pd.DataFrame(refined_rows)], ignore_index=True)
    groups = table.groupby(list(SET_UP), sort=False).ngroup().to_numpy()
    order = np.lexsort((table.batch.to_numpy(), groups))  # a set-up's rows stay together
    table = table.iloc[order].reset_index(drop=True).astype(answer.table.dtypes.to_dict())
    return replace(answer, table=table).for_target()


def _gaps(answer: Comparison, rows: pd.DataFrame) -> list[tuple[tuple[Any, ...], tuple[int, ...]]]:
    """(set-up, batches to try) of those that win if their next batch keeps the limits, the best MOST."""
    lower, column = answer.less_is_better, answer.column
    tried = np.asarray(answer.question.tried)
    kept = rows[rows.meets_limits & rows[column].notna()]
    if kept.empty:
        return []
    best = float(kept[column].min() if lower else kept[column].max())
    known = rows[rows[column].notna()]
    groups = known.groupby(list(SET_UP), sort=False).ngroup().tolist()
    batches, values = known.batch.tolist(), known[column].tolist()
    of_batch = dict(zip(zip(groups, batches, strict=True), values, strict=True))
    within = np.flatnonzero(known.meets_limits)
    last = {groups[place]: int(place) for place in within[np.argsort(known.batch.to_numpy()[within])]}
    gaps = []
    for group, place in sorted(last.items()):
        batch = batches[place]
        larger = tried[tried > batch]
        if not larger.size or larger[0] - batch < _APART:
            continue
        share = float(larger[0] / batch)  # at most: as if a step took no longer
        hoped = of_batch.get((group, larger[0]), values[place] * (1.0 / share if lower else share))
        if hoped < best if lower else hoped > best:
            gaps.append((hoped, place, tuple(range(batch + 1, int(larger[0])))))
    gaps.sort(key=lambda each: each[0], reverse=not lower)
    return [(Comparison.key(known.iloc[place]), batches) for _, place, batches in gaps[:MOST]]


def _best(answer: Comparison, key: tuple[Any, ...], batches: tuple[int, ...]) -> dict[str, Any] | None:
    """The best row of a set-up at further batches within the limits, where it is better than what it had."""
    import pandas as pd

    asked, scenario = replace(answer.question, batches=batches), answer.scenarios[key]
    plain = key[SET_UP.index("drafter")] == NO_DRAFTER
    there = answer.table
    cells = SetUpCells.every(surface_of(scenario, asked, plain=plain), plain=plain)
    rows = cells.rows(asked, load_tests=set(OF_LOAD_TESTS) <= set(there))
    if not rows["batch"].size:
        return None
    priced = there[(there[list(SET_UP)] == list(key)).all(axis=1)]
    every = pd.concat([priced[list(rows)], pd.DataFrame(rows)], ignore_index=True)
    chosen = replace(answer, table=every).for_target().chosen
    return None if chosen is None or int(chosen["batch"]) in set(priced.batch) else chosen
