"""A fast seed of the fuzzer (`python tests/fuzz --seed N --count 5000` is the long run), and of Python's arguments."""

import inspect
import itertools
import math
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import fuzzer
import pytest
import readers

import medusa_sim as ms
from medusa_sim.load.load_test import load_test
from medusa_sim.scenario.arguments import ARGUMENTS
from medusa_sim.scenario.question import Question


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_no_traceback_no_hang_no_nan_and_one_line():
    ran, failures = fuzzer.fuzz(0, range(40), seconds=300.0)
    assert not failures, failures[0]
    assert ran == 40


def test_a_case_is_a_function_of_its_seed_and_number(tmp_path):
    for number in range(10):
        first, second = (tmp_path / f"{name}{number}" for name in "ab")
        first.mkdir()
        second.mkdir()
        one, other = fuzzer.Case(3, number, first).args, fuzzer.Case(3, number, second).args
        assert [arg.replace(str(second), str(first)) for arg in other] == one


@pytest.mark.slow
def test_no_reader_takes_a_second_or_200_mb():
    """The smallest run: `python tests/fuzz/readers.py --seed N --count 10000` is the long one."""
    found = readers.fuzz(0, range(300))
    assert not found, found[0]


def test_the_fuzzer_of_readers_sees_time_memory_and_tracebacks(monkeypatch):
    kept = []

    def hold(path):
        kept.append(bytearray(readers.MOST_BYTES + 50_000_000))
        kept.clear()

    def spin(path):
        end = time.process_time() + 1.2 * readers.MOST_S
        while time.process_time() < end:
            pass

    def fail(path):
        raise ValueError

    for read, rule in ((hold, "memory"), (spin, "slow"), (fail, "traceback")):
        monkeypatch.setattr(readers, "readers", lambda read=read: {"a": ("a.txt", read)})
        found = readers.broken_rule("a", b"x")
        assert found is not None
        assert found[0] == rule


@pytest.mark.parametrize(
    ("code", "stderr", "rule"),
    [
        (1, "Error: one line\n", None), (1, "note\nError: one line\n", None), (1, "", "one line"),
        (2, "Error: a\nError: b\n", "one line"), (1, "Error: a\nand more\n", "one line"),
        (1, "Error: " + "x" * 5_000, "long line"), (120, "", "exit code"),
    ],
)  # fmt: skip
def test_the_rules_see_what_they_are_for(code, stderr, rule):
    found = fuzzer._broken_errors(code, stderr)
    assert (found[0] if found else None) == rule


@pytest.mark.parametrize(
    ("text", "is_found"),
    [
        ("speedup nan", True), ("-inf us", True), ("NaN,", True), ("nanochat", False), ("info", False),
        ("inf", True),
    ],
)  # fmt: skip
def test_nan_is_found_and_words_are_not(text, is_found):
    assert bool(fuzzer.NOT_A_NUMBER.search(text)) is is_found


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
