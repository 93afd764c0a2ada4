"""One reader for every file: what it refuses, that it has words for every annotation and reads them all."""

import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import pytest
import tomlkit
from msgspec import Meta

from medusa_sim import data
from medusa_sim.acceptance.profile import load_acceptance
from medusa_sim.engines import runtime
from medusa_sim.engines.runtime import load_runtime
from medusa_sim.errors import DataError, SpecError
from medusa_sim.gpus.gpu import load_gpu
from medusa_sim.gpus.prices import prices
from medusa_sim.models import named
from medusa_sim.models.named import load_model
from medusa_sim.reading.strict import Sourced, Text, Us, convert


class Inner(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    name: Text
    kind: Literal["a", "b"] = "a"


class Outer(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    time: Sourced[Us]
    count: Annotated[int, Meta(ge=1, le=9, description="things")]
    inner: Inner | None = None
    many: dict[str, Inner] = {}
    kinds: dict[Literal["a", "b"], int] = {}
    pairs: list[tuple[int, float]] = []
    flag: bool = False


GOOD: dict[str, Any] = {"time": {"value": 1, "source": "s"}, "count": 2}


def test_what_is_right_is_read():
    read = convert({**GOOD, "many": {"x": {"name": "n"}}, "pairs": [[1, 2]]}, Outer, "f.toml")
    assert (read.time.value, read.count, read.many["x"].kind, read.pairs) == (1.0, 2, "a", [(1, 2.0)])


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"count": 0}, "f.toml: top.count: given 0; allowed: a whole number >= 1, things"),
        ({"count": 10**400}, "top.count: given 1000"),
        ({"count": 2.5}, "top.count: given 2.5; allowed: a whole number"),
        ({"count": True}, "top.count: given True"),
        ({"count": None}, "top.count: given null or NaN; allowed: a whole number"),
        ({"time": 3}, "top.time: given 3; allowed: a table"),
        ({"time": {"value": -1, "source": "s"}}, "top.time.value: given -1; allowed: a number >= 0"),
        ({"time": {"value": 1}}, "top.time.source: missing; give the document or command"),
        ({"time": {"value": 1, "source": " "}}, "top.time.source: given ' '; allowed: text on one line"),
        (
            {"time": {"value": float("nan"), "source": "s"}},
            "top.time.value: given nan; allowed: a number >= 0",
        ),
        ({"inner": {"name": "n", "kind": "c"}}, "top.inner.kind: given 'c'; allowed: a, b"),
        ({"inner": []}, "top.inner: given []; allowed: a table"),
        ({"many": {"good": {"name": "n"}, "x": {}}}, "top.many.x.name: missing"),
        ({"many": {"x": 1}}, "top.many.x: given 1"),
        ({"kinds": {"a": 1, "c": 1}}, "top.kinds.c: unknown key; allowed here: a, b"),
        ({"pairs": [[1, "x"]]}, "top.pairs[0][1]: given 'x'; allowed: a number"),
        ({"pairs": [[1]]}, "top.pairs[0]: given [1]"),
        ({"flag": 1}, "top.flag: given 1; allowed: true or false"),
        ({"other": 1}, "top.other: unknown key; allowed here: count, flag, inner, kinds, many, pairs, time"),
        ({"count": "x" * 5_000}, "top.count: given 'xxx"),
        ({"x" * 5_000: 1}, "unknown key"),
    ],
)
def test_what_is_wrong_is_one_line_with_file_and_key(change, told):
    with pytest.raises(DataError) as caught:
        convert({**GOOD, **change}, Outer, "f.toml", key="top", error=DataError)
    message = str(caught.value)
    assert told in message
    assert "\n" not in message
    assert len(message) < 300


@pytest.mark.parametrize("content", [3, [], None, "x", {}])
def test_what_is_no_table_is_refused(content):
    with pytest.raises(SpecError, match=r"f\.toml: "):
        convert(content, Outer, "f.toml")


def shipped(path: str | Path) -> dict[str, Any]:
    return tomllib.loads((data.shipped_dir() / path).read_text())


def datasheet() -> dict[str, Any]:
    """A GPU with one fitted kernel."""
    kernel = shipped("hardware/a40.toml")["kernels"]["torch"]["gemm"]["fp16"]
    return shipped("hardware/h100-sxm.toml") | {
        "name": "own",
        "kernels": {"torch": {"gemm": {"fp16": kernel}}},
    }


PRICE = {"gpu": "a40", "usd_per_gpu_hour": 0.5, "offer": "us", "date": "2026-11-01", "source": "a price list"}
TERM = {"value": 500.0, "band": 0.1, "source": "my benchmark"}
FILES: dict[str, tuple[Callable[[], dict[str, Any]], Callable[[Path], object]]] = {
    "hardware/own.toml": (datasheet, lambda path: load_gpu("own", path.parents[1])),
    "models.toml": (lambda: {"own": shipped(named.MODELS_FILE)["llama-7b"]}, lambda _: load_model("own")),
    "runtimes.toml": (
        lambda: {"own": shipped(runtime.RUNTIMES_FILE)["kernel"]}, lambda _: load_runtime("own")
    ),
    "own-runtime.toml": (
        lambda: {"inherits": "vllm-0.33", "title": "m", "engine": {"widen": 2.0, "host_us_per_step": TERM}},
        lambda path: load_runtime(str(path)),
    ),
    "profiles/prices.toml": (lambda: {"schema": 1, "price": [PRICE]}, lambda path: prices(path.parents[1])),
    "profile.toml": (lambda: shipped("profiles/acceptance/mtp-deepseek-r1.toml"), load_acceptance),
}  # fmt: skip
"""A sound file of each kind, and who reads it."""


def damaged(table: dict[str, Any]) -> Iterator[tuple[str, bool]]:
    """The table with each value in it made one of no kind, with one too many and without it, in turn.

    Yields the key, and whether it must be refused.
    """
    kept = dict(table)
    for key in [*kept, "surplus"]:
        table.clear()
        table.update({key: [[]], **kept} | {key: [[]]})
        yield key, True
        del table[key]
        yield key, False
        table.clear()
        table.update(kept)
        inner = kept.get(key)
        inner = inner[0] if isinstance(inner, list) else inner
        if isinstance(inner, dict):
            yield from damaged(inner)


@pytest.mark.parametrize("name", FILES)
def test_every_file_is_read_strictly(name, tmp_path, monkeypatch):
    made, load = FILES[name]
    content, turns = made(), 0
    for key, is_wrong in damaged(content.get("own", content)):
        turns += 1
        path = tmp_path / str(turns) / name  # a name of its own: what was read is kept
        path.parent.mkdir(parents=True)
        path.write_text(tomlkit.dumps(content))
        if name in ("models.toml", "runtimes.toml"):
            module = named if name == "models.toml" else runtime
            monkeypatch.setattr(module, name.replace(".toml", "_file").upper(), path)
        try:
            load(path)
        except SpecError as error:
            refused = str(error)
            assert "\n" not in refused
            assert path.name in refused
            assert key in refused or (not is_wrong and "missing" in refused)
        else:
            assert not is_wrong, key
    assert turns > 6


@pytest.mark.parametrize(("length", "told"), [(60, "x" * 60), (61, "x" * 57 + "...")])
def test_a_key_is_named_up_to_60_characters(length, told):
    with pytest.raises(SpecError, match=rf"many\.{told}: missing|many\.{told}\.name: missing"):
        convert({**GOOD, "many": {"x" * length: {}}}, Outer, "f.toml")
