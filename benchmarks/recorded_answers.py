"""Records what the project answers, and compares two recordings: shows that a refactor changed no number.

    python benchmarks/recorded_answers.py record out/before.json
    python benchmarks/recorded_answers.py compare out/before.json out/after.json

An answer is one call: a command line, whose standard output is kept, or a step of the Python API. Numbers
must agree to 1e-9, words exactly; `command` lines and versions are left out. Exit code 3 where one differs.
"""

from __future__ import annotations

import itertools
import json
import math
import shlex
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pandas as pd
from click.testing import CliRunner
from common.script import command_line

import medusa_sim as ms
from medusa_sim.cli import cli
from medusa_sim.errors import MedusaSimError

TOLERANCE = 1e-9
_LEFT_OUT = ("command", "version", "schema")
_SHOWN = 3
"""Differing values that are printed of an answer."""

ASKED = Path(__file__).parent / "asked"
SCENARIOS = ("", *(ASKED / "scenarios.txt").read_text(encoding="utf-8").splitlines())
"""Scenarios, as options of the commands that take one; the first has the defaults."""
QUESTIONS = (
    "sweep {} --batch 1,8,64 --seq 512,4096 --candidates 1,2,4,6,16 --format csv",
    "sweep {} --batch 1,32",
    "recommend {} --batch 1..64 --format json",
)
"""What every scenario is asked."""

OTHERS = (ASKED / "commands.txt").read_text(encoding="utf-8").splitlines()
"""Further command lines."""

_GPUS = ("a100-80gb-pcie", "a40", "h100-sxm", "h200-sxm", "l40s", "rtx-5090", "b200", "cpu-epyc-genoa-50m")
_SIZES: dict[str, dict[str, tuple[Any, ...]]] = {
    "linear": {"m": (1, 7, 64, 65, 2048), "n": (4096,), "k": (14336,),
               "dtype": ("fp16", "bf16", "fp8", "fp8_block", "nvfp4", "int4", "fp32")},
    "decode_attention": {"batch": (1, 16), "q_len": (1,), "kv_len": (700, 9000), "dtype": ("fp16", "bf16")},
    "verify_attention": {"batch": (1, 16), "q_len": (4, 64), "kv_len": (700,), "dtype": ("fp16", "bf16")},
    "prefill_attention": {"batch": (1, 4), "q_len": (512,), "kv_len": (512, 2000), "dtype": ("fp16", "bf16")},
    **{op: {"m": (1, 33, 4096), "n": (4096,), "dtype": ("fp16", "fp32")}
       for op in ("rms_norm", "rope", "activation", "residual", "embedding")},
    "moe": {"tokens": (1, 24, 700), "hidden": (4096,), "inter": (1536,), "topk": (8,), "experts": (128,),
            "tp": (1, 2), "distribution": ("balanced", "uniform"),
            "dtype": ("bf16", "fp8", "fp8_block", "mxfp4", "nvfp4")},
    **{op: {"batch": (1, 16), "q_len": (1, 4), "kv_len": (3000,), "heads": (16, 128), "kv_dtype": ("bf16",),
            "scope": ("kernel", "module"), "dtype": ("bf16",)} for op in ("mla_decode", "mla_prefill")},
    **{op: {"bytes": (4096, 10**6, 10**8), "ranks": (2, 8), "dtype": ("bf16",)}
       for op in ("all_reduce", "all_gather", "all_to_all")},
    **{op: {"tokens": (8, 1000), "hidden": (7168,), "topk": (8,), "experts": (256,), "ep": (8,),
            "dtype": ("bf16",)} for op in ("dispatch", "combine")},
}  # fmt: skip
"""Sizes of the rows of every family; a table holds all their combinations."""


def operator_rows() -> Iterator[dict[str, Any]]:
    """Rows of every family."""
    heads = {"heads": 32, "kv_heads": 8, "head_dim": 128}
    for op, sizes in _SIZES.items():
        for row in itertools.product(*sizes.values()):
            yield {"op": op, **(heads if "attention" in op else {}), **dict(zip(sizes, row, strict=True))}


def lines(rows: str) -> Iterator[str]:
    """Every command line; rows: files of `operator_rows`, `{}` in their name stands for the family."""
    for scenario, question in itertools.product(SCENARIOS, QUESTIONS):
        yield " ".join(question.format(scenario).split())
    yield from OTHERS
    families = dict.fromkeys(family_of(row) for row in operator_rows())
    for index, (gpu, family) in enumerate(itertools.product(_GPUS, families)):
        cache = ("cold", "as-measured")[index % 2]
        yield f"time --gpu {gpu} --ops {rows.format(family)} --cache {cache} --runtime kernel --format csv"


def family_of(row: Mapping[str, Any]) -> str:
    """The file that a row of `operator_rows` goes to: rows that one kernel or none of a GPU serves."""
    return f"{row['op']}-{row['dtype']}-{row.get('scope', '')}"


def record(path: Path, first: int | None = None) -> None:
    """Write every answer to `path`; first: of so many commands and steps alone."""
    started, answers = time.perf_counter(), {}
    runner = CliRunner()
    with tempfile.TemporaryDirectory() as folder:
        place = f"{folder}/{{}}.csv"
        rows = sorted(operator_rows(), key=family_of)
        for family, alike in itertools.groupby(rows, key=family_of):
            pd.DataFrame(alike).to_csv(place.format(family), index=False)
        for line in itertools.islice(lines(place), first):
            result = runner.invoke(cli, shlex.split(line), prog_name="medusa-sim")
            failed = result.exception is not None and not isinstance(result.exception, SystemExit)
            told = result.stdout if result.exit_code == 0 else result.stderr
            told = repr(result.exception) if failed else told
            key = line.replace(folder, "")
            answers[key] = {"exit": result.exit_code, "said": parsed(told.replace(folder, ""))}
    answers |= dict(itertools.islice(steps(), first))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(answers, indent=0), encoding="utf-8")
    refused = sum(answer.get("exit", 0) != 0 for answer in answers.values())
    took = time.perf_counter() - started
    print(f"{path}: {len(answers)} answers, {refused} of them refusals; {took:.0f} s")


def steps() -> Iterator[tuple[str, dict[str, Any]]]:
    """Steps of the Python API, operator by operator."""
    for scenario, batch in itertools.product(SCENARIOS, (2, 48)):
        try:
            answer = ms.Scenario.from_command(f"recommend {scenario}").step(batch, 1500, 3)
        except MedusaSimError as error:
            yield f"step {scenario} {batch}", {"exit": 1, "said": str(error)}
            continue
        rows = json.loads(answer.breakdown().to_json(orient="records", double_precision=15))
        yield f"step {scenario} {batch}", {"time_us": answer.time_us, "band_us": answer.band_us, "rows": rows}


def parsed(text: str) -> Any:
    """Output as JSON holds it; a table as its lines, whose numbers are compared as numbers."""
    try:
        return json.loads(text)
    except ValueError:
        return [line.split(",") if "," in line else line.rstrip() for line in text.splitlines()]


def compare(before: Path, after: Path) -> int:
    """Print what differs between two recordings; how many answers do."""
    old, new = (json.loads(path.read_text(encoding="utf-8")) for path in (before, after))
    lost, added = sorted(old.keys() - new.keys()), sorted(new.keys() - old.keys())
    differing = 0
    for key in [key for key in old if key in new]:
        if found := list(differences(old[key], new[key], "")):
            differing += 1
            more = [f"and {len(found) - _SHOWN} more"] if len(found) > _SHOWN else []
            print(key, *found[:_SHOWN], *more, sep="\n    ")
    for key in lost + added:
        print(f"only {'before' if key in old else 'after'}: {key}")
    print(f"{len(old)} and {len(new)} answers: {differing} differ by more than {TOLERANCE:g}")
    return differing + len(lost) + len(added)


def differences(old: Any, new: Any, place: str) -> Iterator[str]:
    """Places where two answers differ, with both values."""
    if isinstance(old, dict) and isinstance(new, dict):
        for name in [*old, *(name for name in new if name not in old)]:
            if name not in _LEFT_OUT:
                yield from differences(old.get(name, "(none)"), new.get(name, "(none)"), f"{place}.{name}")
    elif isinstance(old, list) and isinstance(new, list):
        if len(old) != len(new):
            yield f"{place}: {len(old)} -> {len(new)} entries"
        for index, (one, other) in enumerate(zip(old, new, strict=False)):
            yield from differences(one, other, f"{place}[{index}]")
    elif not same(old, new):
        yield f"{place}: {old!r} -> {new!r}"


def same(old: Any, new: Any) -> bool:
    """Whether two values agree: numbers, also those that are written as text, to TOLERANCE."""
    if old == new:
        return True
    try:
        return math.isclose(float(old), float(new), rel_tol=TOLERANCE, abs_tol=0.0)
    except (TypeError, ValueError):
        return False


def main() -> None:
    """Record or compare."""
    parser = command_line(__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    alone = commands.add_parser("record")
    alone.add_argument("file", type=Path)
    alone.add_argument("--first", type=int, help="of so many commands and steps alone")
    both = commands.add_parser("compare")
    both.add_argument("before", type=Path)
    both.add_argument("after", type=Path)
    given = parser.parse_args()
    if given.command == "record":
        record(given.file, given.first)
    elif compare(given.before, given.after):
        sys.exit(3)


if __name__ == "__main__":
    main()
