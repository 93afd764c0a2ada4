"""A fuzzer of the readers: time and memory, for every kind of file that comes from outside.

    python tests/fuzz/readers.py --seed 7 --count 10000

Each case is one file of some 100 kB at most, sound, mutated or swollen (a piece of it repeated until it is that
long), given to its reader. It must be read or refused in one line, within 1 s of a processor and 200 MB.
A case is a function of the seed and its number alone.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import io
import json
import random
import resource
import shutil
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(Path(__file__).parent), str(ROOT / "tests"), str(ROOT)]

from damage import mutated, swollen  # noqa: E402
from fuzzer import SEEDS, TEXTS, OutOfTimeError, limited  # noqa: E402
from models.test_gguf import header, keys, tensors  # noqa: E402
from scenario import test_local_rows as own  # noqa: E402

MOST_S, MOST_BYTES, SIZE = 1.0, 200_000_000, 100_000
HANG_S = 20.0


@dataclass(frozen=True)
class Slow:
    """A case that broke a rule."""

    number: int
    kind: str
    rule: str
    told: str


def _read_hardware(path: Path) -> None:
    from medusa_sim.gpus.gpu import load_gpu

    folder = path.parent / "data" / "hardware"
    folder.mkdir(parents=True)
    shutil.copyfile(path, folder / "a40.toml")
    load_gpu("a40", folder.parent)


def _in_folder(name: str, read: Callable[[Path], object], beside: str = "") -> Callable[[Path], None]:
    """A reader of a folder in which the file is one of several; beside: the folder of the others."""

    def reader(path: Path) -> None:
        folder = path.parent / "folder"
        if beside:
            shutil.copytree(ROOT / beside, folder)
        else:
            folder.mkdir()
        shutil.copyfile(path, folder / name)
        read(folder)

    return reader


@cache
def readers() -> dict[str, tuple[str, Callable[[Path], object]]]:
    """Name of the file and its reader, by kind."""
    from medusa_sim.acceptance.engine_records import read_counts
    from medusa_sim.acceptance.head_table import read_accuracies
    from medusa_sim.acceptance.profile import load_acceptance
    from medusa_sim.acceptance.tree_file import read_tree
    from medusa_sim.engine_runs.bench import read_bench
    from medusa_sim.engines.runtime import load_runtime
    from medusa_sim.lab.decoder.checkpoint import read_weights
    from medusa_sim.lab.decoder.config import read_config
    from medusa_sim.lab.measure.cells import read_steps
    from medusa_sim.lab.validate.served import read_served
    from medusa_sim.load.trace import read_trace
    from medusa_sim.models.gguf import model_from_gguf
    from medusa_sim.models.hf_config import model_from_config
    from medusa_sim.operators.table import read_rows
    from medusa_sim.reading.tables import numbered_csv_table
    from medusa_sim.scenario.local_rows import read_rows as read_machine_rows

    decoder = "profiles/decoder/cpu-emerald-rapids-3m"
    draft = "profiles/checkpoints/python-stdlib-draft"

    def observed(path: Path) -> object:
        return numbered_csv_table(path, ("decoder", "spec"), text=("decoder", "spec"))

    return {
        "config": ("config.json", model_from_config),
        "quantised": ("config.json", model_from_config),
        "counters": ("counters.txt", read_counts),
        "log": ("engine.log", read_counts),
        "bench": ("bench.json", read_bench),
        "bench.csv": ("bench.csv", read_bench),
        "served": ("served.csv", read_served),
        "bench.log": ("engine.log", read_bench),
        "gguf": ("tiny-Q4_K_M.gguf", model_from_gguf),
        "own rows": ("paste.txt", read_machine_rows),
        "tree": ("tree.txt", read_tree),
        "heads": ("heads.csv", read_accuracies),
        "observations": ("observations.csv", observed),
        "ops": ("ops.csv", read_rows),
        "ops.parquet": ("ops.parquet", read_rows),
        "trace": ("trace.csv", read_trace),
        "trace.parquet": ("trace.parquet", read_trace),
        "profile": ("own.toml", lambda path: load_acceptance(str(path))),
        "runtime": ("own.toml", lambda path: load_runtime(str(path))),
        "hardware": ("a40.toml", _read_hardware),
        "steps": ("steps.csv", _in_folder("steps.csv", read_steps, decoder)),
        "decoder config": ("config.json", _in_folder("config.json", read_config)),
        "weights": ("model.safetensors", _in_folder("model.safetensors", read_weights)),
        "index": (
            "index.json", _in_folder("model.safetensors.index.json", read_weights, draft),
        ),
    }  # fmt: skip


_SIZES = json.loads((ROOT / "docs" / "example_config.json").read_text(encoding="utf-8"))
_QUANTISED = (
    {"quant_method": "gptq", "bits": 4, "group_size": 128, "dynamic": {r"-:.*\.(?:1[0-9]|2)\..*gate.*": {}}},
    {"quant_method": "modelopt", "quant_algo": "FP8", "ignore": ["lm_head", "model.layers.1*", "*.mlp.*"]},
    {"quant_method": "fp8", "modules_to_not_convert": [f"model.layers.{i}.mlp" for i in range(40)]},
    {
        "quant_method": "compressed-tensors", "ignore": ["re:.*lm_head", "re:.*self_attn.(q|k|v)_proj$"],
        "config_groups": {
            "a": {"targets": ["Linear"], "weights": {"num_bits": 4, "type": "int", "group_size": 32}},
        },
    },
)  # fmt: skip
_LOG = (
    "draft acceptance rate = 0.57576 (   19 accepted /    33 generated), "
    "acceptance rate per position = (0.7, 0.5, 0.4)\n"
    "Accepted: 19 tokens, Drafted: 33 tokens, Per-position acceptance rate: 0.7, 0.5, Avg Draft acceptance\n"
)


def _parquet(text: str) -> bytes:
    import pandas as pd

    file = io.BytesIO()
    pd.read_csv(io.StringIO(text)).to_parquet(file)
    return file.getvalue()


@cache
def sound(kind: str) -> tuple[bytes, ...]:
    """Sound files of a kind, those that are short enough."""
    if kind == "quantised":
        return tuple(json.dumps(_SIZES | {"quantization_config": each}).encode() for each in _QUANTISED)
    if kind == "log":
        return (_LOG.encode(),)
    if kind == "gguf":
        return tuple(header(keys(), tensors(tied)) + bytes(1000) for tied in (False, True))
    if kind == "own rows":
        texts = (json.dumps(own.JSON), own.TABLE, own.BATCHED, own.MLX, json.dumps(own.SERVER))
        return tuple(text.encode() for text in texts)
    if kind.endswith(".parquet"):
        texts = TEXTS[kind.partition(".")[0]] if "trace" in kind else ()
        ops = (ROOT / "docs" / "example_rows.csv").read_text(encoding="utf-8")
        return tuple(_parquet(text) for text in texts or (ops,))
    files = {
        "hardware": ["hardware/a40.toml", "hardware/l4.toml"],
        "steps": ["profiles/decoder/cpu-emerald-rapids-3m/steps.csv"],
        "decoder config": ["profiles/checkpoints/*/config.json"],
        "weights": ["profiles/checkpoints/python-stdlib-draft/model.safetensors"],
        "bench": ["tests/data/engine/*.json*"],
        "bench.csv": ["tests/data/engine/*.csv"],
        "bench.log": ["tests/data/engine/*.log"],
    }
    texts = TEXTS.get(kind, ())
    if kind == "index":
        texts = ('{"weight_map": {"lm_head.weight": "model.safetensors"}}',)
    paths = [path for of in files.get(kind, SEEDS.get(kind, ())) for path in sorted(ROOT.glob(of))]
    contents = [text.encode() for text in texts] + [path.read_bytes() for path in paths]
    if kind == "served":
        contents.append(
            b"gpu,model,runtime,tp,concurrency,prompt,output,tpot_ms\na40,opt-13b,vllm,1,8,512,256,9.5\n"
        )
    if kind == "bench.csv":
        contents.append(b"concurrency,prompt,output,itl_ms\n1,512,256,9.5\n8,512,256,14\n")
    return tuple(content[:SIZE] for content in contents)


def content_of(seed: int, number: int) -> tuple[str, bytes]:
    """Kind and content of a case."""
    pick = random.Random(f"{seed}/{number}")
    kind = pick.choice(sorted(readers()))
    content = pick.choice(sound(kind))
    for _ in range(pick.choice((1, 1, 2))):
        content = (mutated if pick.random() < 0.5 else swollen)(content, pick)
    return kind, content[:SIZE]


def broken_rule(kind: str, content: bytes) -> tuple[str, str] | None:
    """The rule that the reading breaks, and what shows it."""
    from medusa_sim.errors import MedusaSimError

    name, read = readers()[kind]
    folder = Path(tempfile.mkdtemp(prefix="medusa-sim-readers-"))
    path = folder / "model" / name
    path.parent.mkdir()
    path.write_bytes(content)
    before, began = _start_of_memory(), time.process_time()
    try:
        with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()), limited(HANG_S):
            warnings.simplefilter("ignore")
            read(path)
    except MedusaSimError as error:
        if "\n" in str(error):
            return "one line", str(error)[:300]
    except OutOfTimeError:
        return "hang", f"more than {HANG_S:.0f} s"
    except Exception as error:
        return "traceback", "".join(traceback.format_exception(error)[-3:])
    finally:
        took_s, grown = time.process_time() - began, _memory("VmHWM") - before
        shutil.rmtree(folder, ignore_errors=True)
    if took_s > MOST_S:
        return "slow", f"{took_s:.2f} s for {len(content):,} bytes"
    if grown > MOST_BYTES:
        return "memory", f"{grown / 1e6:.0f} MB for {len(content):,} bytes"
    return None


def _start_of_memory() -> int:
    """Bytes held now; the most that is held is counted from here on, where the system can."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    return _memory("VmRSS")


def _memory(name: str) -> int:
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
            if line.startswith(f"{name}:"):
                return int(line.split()[1]) << 10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def fuzz(seed: int, numbers: range, *, verbose: bool = False) -> list[Slow]:
    """The cases that broke a rule."""
    for kind in readers():  # what is imported and built once is no case's
        for content in sound(kind):
            broken_rule(kind, content)
    found = []
    for number in numbers:
        kind, content = content_of(seed, number)
        broken = broken_rule(kind, content)
        if broken is not None and broken[0] == "slow":  # once may be the machine: slow is what is so again
            broken = broken_rule(kind, content)
        if broken is not None:
            found.append(Slow(number, kind, *broken))
            if verbose:
                print(f"[{number}] {kind}: {broken[0]}: {broken[1][:600]}\n  {content[:120]!r}", flush=True)
    return found


def main() -> None:
    """The command line: exit 1 where a case broke a rule."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=10_000)
    asked = parser.parse_args()
    limit = 6 * 2**30
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    began = time.monotonic()
    found = fuzz(asked.seed, range(asked.first, asked.first + asked.count), verbose=True)
    rules = collections.Counter(each.rule for each in found)
    counted = ", ".join(f"{rule} {count}" for rule, count in rules.items()) or "none"
    print(
        f"seed {asked.seed}: {asked.count} files over {len(readers())} readers, {len(found)} failures "
        f"({counted}), {time.monotonic() - began:.0f} s"
    )
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
