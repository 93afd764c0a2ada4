"""`medusa-sim specs`: GPUs, models, runtimes, profiles and prices, every number with its source."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from medusa_sim.cli import options as take
from medusa_sim.cli import say
from medusa_sim.cli.output import Output
from medusa_sim.errors import MedusaSimError, SpecError, UsageError, unknown_name
from medusa_sim.scenario.arguments import ARGUMENTS

if TYPE_CHECKING:
    import pyarrow as pa

    from medusa_sim.report.specs.tables import SpecEntry

EXAMPLES = ("example_config.json", "example_rows.csv")
KINDS = ("gpu", "model", "runtime", "acceptance", "price", "coverage")
COVERAGE = "coverage"
_SET_UP = ("gpu", "model", "runtime", "dtype", "weight_dtype", "tp", "ep", "dp_attention")
"""Arguments that say which set-up coverage is asked for."""


@take.command(
    "medusa-sim specs",
    "medusa-sim specs h100-sxm",
    "medusa-sim specs --kind model --format csv",
    "medusa-sim specs prices",
    "medusa-sim specs --kind coverage --gpu h200-sxm --model llama-3.3-70b --runtime vllm --tp 4",
    "medusa-sim specs --examples docs",
)
@click.argument("names", nargs=-1)
@click.option("--kind", type=click.Choice(KINDS), help="Only these.")
@click.option("--with-kernels", is_flag=True, help="With a GPU: its fitted kernel parameters too.")
@click.option(
    "--examples",
    "examples_dir",
    type=click.Path(path_type=Path, file_okay=False),
    help="Write an example config.json and example operator rows into this folder, and nothing else.",
)
@take.arguments("set_up", ARGUMENTS, *_SET_UP, changes={name: {"show_default": False} for name in _SET_UP})
@take.overwrite
@take.output
@take.data_dir
def specs(
    *,
    names: tuple[str, ...],
    kind: str | None,
    with_kernels: bool,
    examples_dir: Path | None,
    set_up: dict[str, Any],
    overwrite: bool,
    output: Output,
    data_dir: Path | None,
) -> None:
    """Show GPUs, models, runtimes, acceptance profiles and prices, and the source of each number.

    Without a NAME their names are listed, with --verbose or --kind their main numbers; csv, json, md and
    parquet carry every number with its source. With NAMES (or the path of a config.json) each number of
    these stands on a line with its source. `--kind coverage` lists what predictions were held against, in
    groups of measured rows. With --gpu, --model and --runtime it says whether that set-up was measured, and
    the error to expect.
    """
    given = {name: value for name, value in set_up.items() if take.is_given(name)}
    if kind == COVERAGE or names == (COVERAGE,):
        _coverage(names if kind else (), given, output, data_dir)
        return
    if given:
        option = ARGUMENTS[next(iter(given))].option.partition("/")[0]
        raise UsageError(f"{option} asks for --kind coverage; give that too, or a NAME")
    from medusa_sim.report.specs.rows import spec_rows
    from medusa_sim.report.specs.tables import SpecEntry, entry_screen, names_screen, overview_tables

    if examples_dir is not None:
        from medusa_sim.data import shipped_dir
        from medusa_sim.writing import write_folder

        contents = {name: (shipped_dir() / "docs" / name).read_bytes() for name in EXAMPLES}
        for path in write_folder(examples_dir, contents, overwrite=overwrite):
            say(f"wrote {path}")
        return
    entries = [
        SpecEntry(
            kind=kind_of, name=name, rows=tuple(spec_rows(kind_of, name, data_dir, kernels=with_kernels))
        )
        for kind_of, name in _wanted(names, kind, data_dir)
    ]
    if output.form != "table":
        output.rows(_arrow(entries), "specs")
    elif names:
        output.screens([entry_screen(entry) for entry in entries])
    elif kind is None and not output.is_verbose and not output.is_wide:
        output.screen(names_screen(entries))
    else:
        output.text("\n".join(map(output.drawn, overview_tables(entries, data_dir))))
        say("`medusa-sim specs NAME` shows every number with its source")


def _coverage(names: tuple[str, ...], given: dict[str, Any], output: Output, data_dir: Path | None) -> None:
    """Groups of measured rows: all, some, or with GPU and model how near that set-up is to them."""
    import msgspec
    import pandas as pd

    from medusa_sim.doubts.standing import near_groups, standing
    from medusa_sim.engines.accuracy_groups import COLUMNS, groups
    from medusa_sim.gpus.gpu_names import gpu_name
    from medusa_sim.report.words.standing import groups_table, kinds_table, overview_table, standing_sentence
    from medusa_sim.scenario.scenario import Scenario

    if names:
        raise UsageError("--kind coverage takes no NAME; say --gpu, --model, --runtime")
    found = groups(data_dir)
    more: dict[str, Any] = {}
    if {"gpu", "model"} <= given.keys():
        scenario = Scenario(
            **{"runtime": "vllm", "drafter": "ngram", "acceptance": "0.5"} | given, data_dir=data_dir
        )
        place = standing(scenario)
        found = near_groups(scenario)
        sentence = standing_sentence(scenario, place)
        more = {
            "sentence": sentence, "class": place.kind, "nearest": place.nearest,
            "expected_error": place.expected, "half_width": place.half_width, "between_share": place.between,
        }  # fmt: skip
    elif given:
        known = {"gpu": "gpu", "weight_dtype": "weights", "model": "model"}
        if other := next((name for name in given if name not in (*known, "runtime")), None):
            raise UsageError(f"--{other.replace('_', '-')} belongs to a set-up; give --gpu and --model too")
        asked = {known[name]: value for name, value in given.items() if name in known}
        if "gpu" in asked:
            asked["gpu"] = gpu_name(asked["gpu"], data_dir)
        engine = str(given.get("runtime", ""))
        found = tuple(
            group for group in found
            if all(getattr(group, column) == value for column, value in asked.items())
            and (not engine or engine == group.engine or engine.startswith(f"{group.engine}-"))
        )  # fmt: skip
    if output.form != "table":
        frame = pd.DataFrame([msgspec.structs.asdict(group) for group in found], columns=list(COLUMNS))
        if more:
            say(more["sentence"])
        output.rows(frame, COVERAGE, **more)
    elif more:
        from medusa_sim.report.specs.tables import coverage_screen

        output.screen(coverage_screen(scenario, place))
    else:
        tables = [groups_table(found)] if given else [overview_table(found), kinds_table()]
        output.text("\n".join(map(output.drawn, tables)))
        say("`--kind coverage --gpu GPU --model MODEL --runtime ENGINE` says how near a set-up is to these")


def _wanted(names: tuple[str, ...], kind: str | None, data_dir: Path | None) -> Iterator[tuple[str, str]]:
    """(kind, name) of every entry to show."""
    from medusa_sim.acceptance.profile import acceptance_names
    from medusa_sim.engines.runtime import load_runtime, local_runtime_names, runtime_aliases, runtime_names
    from medusa_sim.gpus.gpu_names import device_names, gpu_name, gpu_names
    from medusa_sim.models.hf_families import unmodelled
    from medusa_sim.models.named import load_model, model_names

    # a list of everything leaves out what stands on desks: more devices than all else together
    is_whole = not names and kind is None
    known = {
        "gpu": gpu_names(data_dir) if is_whole else device_names(data_dir),
        "model": model_names(),
        "runtime": by_version((*runtime_names(data_dir), *local_runtime_names())),
        "acceptance": acceptance_names(data_dir),
        "price": ("prices",),
    }
    known = {key: listed for key, listed in known.items() if kind in (None, key)}
    if not names:
        for key, listed in known.items():
            yield from ((key, name) for name in listed)
        return
    for given in names:
        name = runtime_aliases().get(given, given) if "runtime" in known else given
        if "gpu" in known:
            name = gpu_name(name, data_dir)
        kinds = [key for key, listed in known.items() if name in listed]
        if not kinds and "model" in known and (name.endswith(".json") or "/" in name or unmodelled(name)):
            kinds = ["model"]  # a path or a Hugging Face id, or the model's loader says what is missing
        if not kinds and kind == "gpu":
            kinds = ["gpu"]  # the loader knows relatives
        if not kinds:  # other names of models, folders, versions between those listed
            loaders: dict[str, Callable[[str], object]] = {
                "model": load_model, "runtime": partial(load_runtime, data_dir=data_dir)
            }  # fmt: skip
            kinds = [key for key in known.keys() & loaders.keys() if _loads(loaders[key], name)]
        if not kinds:
            every = [*runtime_aliases(), *(each for listed in known.values() for each in listed)]
            raise SpecError(unknown_name(kind or "GPU, model, runtime or profile", name, every))
        yield kinds[0], name


def by_version(runtimes: Sequence[str]) -> list[str]:
    """Engines in their order, the versions of each from the oldest on.

    >>> by_version(["kernel", "vllm-0.10", "sglang-0.4", "vllm-0.8", "vllm-v0"])
    ['kernel', 'vllm-v0', 'vllm-0.8', 'vllm-0.10', 'sglang-0.4']
    """
    from medusa_sim.engines.engine import unversioned

    engines = list(dict.fromkeys(map(unversioned, runtimes)))
    return sorted(
        runtimes,
        key=lambda name: (engines.index(unversioned(name)), tuple(map(int, re.findall(r"\d+", name)))),
    )


def _loads(load: Callable[[str], object], name: str) -> bool:
    try:
        load(name)
    except MedusaSimError:
        return False
    return True


def _arrow(entries: list[SpecEntry]) -> pa.Table:
    import pyarrow as pa

    flat = [(entry, row) for entry in entries for row in entry.rows]
    numbers = [
        float(row.value) if isinstance(row.value, int | float) and not isinstance(row.value, bool) else None
        for _, row in flat
    ]
    return pa.table(
        {
            "kind": [entry.kind for entry, _ in flat],
            "name": [entry.name for entry, _ in flat],
            "key": [row.key for _, row in flat],
            "value": [str(row.value) for _, row in flat],
            "number": pa.array(numbers, type=pa.float64()),
            "unit": [row.unit for _, row in flat],
            "source": [row.source for _, row in flat],
            "note": [row.note for _, row in flat],
        }
    )
