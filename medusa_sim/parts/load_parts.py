"""Load tests of many scenarios and rates in parts of one cell each: every policy at one rate, in pairs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from medusa_sim import __version__
from medusa_sim.load.question import load_test, run_load
from medusa_sim.load.simulate import LoadTest
from medusa_sim.parts.work import Case, Description, Frozen, case_of, digests, frozen, plain, scenario_of
from medusa_sim.plan.scenario import Scenario

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class LoadParts:
    """Cases (arguments of `Scenario`) x rates, each with every policy.

    asked: further arguments of `load.question.load_test`; rates: requests a second (None: the source's own).
    requests: that one cell simulates, of all policies and seeds.
    """

    cases: tuple[Case, ...]
    rates: tuple[float | None, ...]
    asked: Case
    requests: int

    @classmethod
    def of(
        cls, scenarios: Sequence[Scenario], rates: Sequence[float] | None, asked: dict[str, Any]
    ) -> LoadParts:
        """The parts of a question.

        Raises UsageError or DataError for values that make no sense, and what a scenario cannot serve, before
        any part is begun.
        """
        given: Case = {name: plain(name, value) for name, value in asked.items()}
        first = load_test(scenarios[0], **given)
        counts = [
            test.requests(test.any_rate, 0)[0].count
            for test in (first, *(replace(first, scenario=item) for item in scenarios[1:]))
        ]
        each = first.seeds * len(first.policies) * max(counts)
        return cls(
            cases=tuple(case_of(item) for item in scenarios),
            rates=(None,) if rates is None else tuple(rates),
            asked=given,
            requests=each,
        )

    @classmethod
    def made_from(cls, description: Description) -> LoadParts:
        """The parts of a description."""
        return cls(
            cases=tuple(description["cases"]),
            rates=tuple(description["rates"]),
            asked=description["asked"],
            requests=description["requests"],
        )

    @property
    def description(self) -> Description:
        """Cases, rates and what is asked, with the version and the files named."""
        return {
            "kind": "load",
            "version": __version__,
            "cases": list(self.cases),
            "rates": list(self.rates),
            "asked": self.asked,
            "requests": self.requests,
            "files": digests(self.cases, **self.asked),
        }

    @property
    def parts(self) -> int:
        """One for each case and rate."""
        return len(self.cases) * len(self.rates)

    def computed(self, number: int) -> int:
        """Requests that a part simulates, roughly."""
        del number
        return self.requests

    def tables(self, number: int) -> Iterator[pa.Table]:
        """A row for each policy of one case at one rate."""
        from medusa_sim.report.load_rows import load_arrow

        case, rate = divmod(number, len(self.rates))
        test = _test(frozen(self.cases[case]), frozen(self.asked))
        chosen = self.rates[rate]
        yield load_arrow(run_load(test, None if chosen is None else (chosen,), search=False))


@lru_cache(maxsize=8)
def _test(case: Frozen, asked: Frozen) -> LoadTest:
    """The test of a case, whose table of steps is kept between rates."""
    return load_test(scenario_of(case), **dict(asked))
