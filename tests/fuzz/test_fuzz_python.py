"""Every public function of Python x argument x wrong value: an answer, or the package's own error."""

import inspect
import itertools
import math
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import medusa_sim as ms
from medusa_sim.load.question import load_test
from medusa_sim.plan.arguments import ARGUMENTS
from medusa_sim.plan.question import Question

WRONG: dict[str, Any] = {
    "none": None, "true": True, "zero": 0, "minus": -1, "huge": 10**40, "fraction": 2.5, "nan": math.nan,
    "infinite": math.inf, "text": "a", "no text": "", "nul": "a\0b", "bytes": b"a", "empty list": [],
    "list": ["a", None], "nested": [[1, 2], [3]], "table": {"a": 1}, "object": object(), "complex": 1j,
}  # fmt: skip
SOUND: dict[str, Any] = {"latency": "roofline", "acceptance": "0.7,0.5,0.3", "drafter": "eagle"}
QUICK = {"requests": 8, "seeds": 1, "search": False, "rates": 2.0}


def _scenario() -> ms.Scenario:
    return ms.Scenario(**SOUND)


def _calls() -> Iterator[tuple[str, Callable[..., Any], dict[str, Any], list[str]]]:
    """Name, function, sound arguments, and the arguments that are made wrong."""
    scenario, ours = _scenario(), list(ARGUMENTS)
    answer = scenario.recommend(batch=(1, 2))
    load = [name for name in inspect.signature(load_test).parameters if name not in ("scenario", "policies")]
    asked = [name for name in Question.__dataclass_fields__ if not name.startswith("batch")]
    yield "Scenario", ms.Scenario, SOUND, ours
    yield "but", scenario.but, {}, ours
    yield "sweep of a scenario", scenario.sweep, {}, ["batch", "seq_len", "candidates"]
    yield "recommend of a scenario", scenario.recommend, {"batch": 2}, ["batch", *asked]
    yield "step", scenario.step, {}, ["batch", "seq_len", "candidates"]
    yield (
        "simulate of a scenario",
        scenario.simulate,
        QUICK,
        ["policies", "rates", "search", "target_rate", *load],
    )
    yield "options", scenario.options, {}, ["candidates_max"]
    yield "command", scenario.command, {}, ["name"]
    yield "from_command", ms.Scenario.from_command, {}, ["line"]
    yield "export", answer.export, {"engine": "vllm", "draft_path": "a"}, ["engine", "version", "draft_path"]
    yield (
        "sweep",
        ms.sweep,
        {**SOUND, "candidates": [1, 2]},
        ["gpu", "model", "batch", "seq_len", "candidates", "tp"],
    )
    yield "recommend", ms.recommend, {**SOUND, "batch": 2}, ["batch", "seq_len", "gpu", "model", "request"]
    few = {**SOUND, "gpus": "a40", "counts": 1, "engines": "vllm", "weight_dtypes": "fp16", "batches": 1}
    few["drafters"] = few.pop("drafter")
    compared = ["model", "price", "gpus", "counts", "drafters", "batches", "rate", "users", "tpot_ms"]
    yield "compare", ms.compare, {**few, "prompt_tokens": 8, "output_tokens": 8}, compared
    yield "simulate", ms.simulate, {**SOUND, **QUICK}, ["policies", "rates", "gpu", "prompt_tokens"]
    rows = {"rows": "docs/example_rows.csv", "gpu": "a40"}
    yield "time_rows", ms.time_rows, rows, list(inspect.signature(ms.time_rows).parameters)
    yield "load_gpu", ms.load_gpu, {"name": "a40"}, ["name", "data_dir"]
    yield "load_model", ms.load_model, {}, ["name_or_path"]
    yield "load_acceptance", ms.load_acceptance, {"name_or_path": "a"}, ["name_or_path", "data_dir"]


CALLS = list(_calls())


@pytest.mark.parametrize(("name", "call", "sound", "arguments"), CALLS, ids=[name for name, *_ in CALLS])
def test_a_wrong_value_raises_the_packages_own_error(name, call, sound, arguments):
    leaked = []
    for argument, (what, value) in itertools.product(arguments, WRONG.items()):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            try:
                call(**{**sound, argument: value})
            except ms.MedusaSimError as error:
                if "\n" in str(error):
                    leaked.append(f"{argument}={what}: more than one line")
            except Exception as error:  # what the test looks for
                leaked.append(f"{argument}={what}: {type(error).__name__}: {str(error)[:90]}")
    assert not leaked, "\n".join(leaked)


def test_every_public_function_is_tried():
    tried = {name.split(" ")[0] for name, *_ in CALLS}
    functions = {name for name in ms.__all__ if inspect.isroutine(getattr(ms, name))} | {"Scenario"}
    assert functions <= tried
