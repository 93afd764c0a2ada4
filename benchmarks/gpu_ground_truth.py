r"""What a GPU has to tell, in calls of under ten minutes that go on where the last one stopped.

    python benchmarks/gpu_ground_truth.py OUT --dry-run     what would run, call by call, with expected times
    python benchmarks/gpu_ground_truth.py OUT               one call; again for the next, until it says done
    python benchmarks/gpu_ground_truth.py OUT --device cuda:1 --only check,steps
    python benchmarks/gpu_ground_truth.py OUT --archive gpu.tar.gz
                                             all results in one file, written after every stage and read back
                                             where OUT is gone
    python benchmarks/gpu_ground_truth.py OUT --only fit,compare        later, on a machine without the GPU
    python benchmarks/gpu_ground_truth.py OUT --device cpu --scale 0.02 \
        --models benchmarks/models/llama-3m/config.json     a rehearsal without a GPU, two minutes

First whether the GPU does what the CPU's tests promise (tests marked cuda, the decoder eager, static and as
a CUDA graph); then whole steps and operators of Llama-7B, Llama-3-8B and Llama-13B; then fits and
comparisons, which need the GPU no more. OUT/data is the --data-dir of every command: hardware/,
profiles/operators/<gpu> and profiles/decoder/<gpu>-... go into the project as they are. OUT/state.json
says what is done and on which GPU, OUT/logs why something failed: a stage that fails is told and passed
over, --retry tries it again. A fit or a comparison that lacks rows says so and is no failure: --scale is the
share of the usual time that is measured. The package need not be installed; kinds of stages whose packages
are not there are passed over.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import time
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from common.script import ROOT, command_line

sys.path.insert(0, str(ROOT))  # a CUDA torch's Python need not have the package

from medusa_sim.writing import write_text

GRACE_S = 20.0
"""For a stage that is told to end, to keep its rows."""
CALL_S = 510.0
"""A call starts nothing that is not expected to end within this."""
OVER_S = 45.0
"""A call ends its last stage this long after `CALL_S` at the latest: with GRACE_S under ten minutes."""
SLACK = 1.4
"""A stage may take this many times its expected seconds before it is ended; `measure` keeps its rows then."""
LEAST_BUDGET_S = 10.0
"""For some rows of every kind, however small the scale."""
START_S = 10.0
"""Of a stage's seconds, those before it measures anything: Python, torch, a model's weights."""
NEED_GPU = ("check", "steps", "operators")
KINDS = (*NEED_GPU, "fit", "compare")
TOO_FEW = re.compile("a fit needs|kernel for|larger --budget")
"""What a log says where rows are too few: no failure."""
DONE, FAILED, FEW = "done", "failed", "too few rows"
DEVICE = "device"
"""Key of the GPU's name in OUT/state.json, beside the stages."""
SIM = "from medusa_sim.cli import main; main()"
SIM_COMMAND = (sys.executable, "-c", SIM)
MEASURES = ("torch", "numpy", "click", "msgspec", "tomlkit")
NEEDED = {
    "check": (*MEASURES, "safetensors", "tokenizers", "pandas", "pyarrow", "pytest", "hypothesis"),
    "steps": MEASURES,
    "operators": MEASURES,
    "fit": (*MEASURES, "pandas", "pyarrow", "scipy"),
    "compare": (*MEASURES, "pandas", "pyarrow", "scipy"),
}
"""Packages of each kind of stages; versions are those of pyproject.toml."""
PLAIN_GRID, LONG_GRID = "16..128:16", "16,32,64,128"
MODELS = "llama-7b,llama-3-8b,llama-13b"


@dataclass(frozen=True, slots=True)
class Stage:
    """A command, what it is about, and the seconds it is expected to take on an H100."""

    name: str
    kind: str
    seconds: float
    command: tuple[str, ...]

    def expected_s(self, scale: float) -> float:
        """Where so large a share of the usual time is measured; a start takes as long as ever."""
        start_s = min(START_S, self.seconds)
        return start_s + scale * (self.seconds - start_s)


def missing_packages(kind: str) -> list[str]:
    """Requirements of a kind of stages that this Python does not meet, as pip wants them."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    known = [
        *project["dependencies"],
        *(text for each in project["optional-dependencies"].values() for text in each),
    ]
    least = {re.split("[>\\[]", text)[0]: text for text in known}
    return [text for name in NEEDED[kind] if not _is_met(text := least.get(name, name))]


def _is_met(requirement: str) -> bool:
    name, _, least = requirement.partition(">=")
    try:
        version = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return not least and importlib.util.find_spec(name) is not None
    return _numbers(version) >= _numbers(least)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version.split("+", maxsplit=1)[0]))


def stages(given: argparse.Namespace, name: str) -> Iterator[Stage]:
    """Everything in order. name: of the GPU, as its hardware file has it."""
    data, is_gpu = given.out / "data", given.device != "cpu"
    device, named = ("--device", given.device), ("--name", given.name) if given.name else ()
    on_device = (*device, "--dtype", given.dtype, *named)
    if is_gpu:
        tests = ("tests/lab/measure/test_measure_capture.py", "tests/lab/decoder/test_decoder_lossless.py")
        # What a newer torch deprecates is an error to the tests, and says nothing of the GPU.
        pytest = ("-m", "pytest", "-q", "-m", "cuda", "-W", "default")
        yield Stage("check-tests", "check", 90, (sys.executable, *pytest, *tests))
    for launch in ("eager", "static", *(("cuda-graph",) if is_gpu else ())):
        words = *device, *f"--launch {launch} --tree 8 --temperature 0".split()
        yield Stage(
            f"check-decode-{launch}", "check", 20, (*SIM_COMMAND, "decode", "--prompt", "def ", *words)
        )

    def steps(model: str, batches: str, grid: str, seq_len: int, seconds: float) -> Stage:
        label, folder = f"{_label(model)}-{seq_len}", data / "profiles/decoder"
        own = folder / f"{name}-{label}-{batches.replace(',', '-')}"
        words = ("--batch", batches, "--candidates", grid, "--seq-len", str(seq_len), "--passes", "3")
        asked = ("measure", "steps", str(own), "--models", model, *words)
        command = (*SIM_COMMAND, *asked, *on_device)
        return Stage(f"steps-{label}-{batches}", "steps", seconds, command)

    def operators(model: str, seconds: float) -> Stage:
        budget = f"{max(LEAST_BUDGET_S, given.scale * seconds):.0f}"
        words = ("--models", model, "--budget", budget, "--resume", "--data-dir", str(data))
        command = (*SIM_COMMAND, "measure", "operators", *on_device, *words)
        return Stage(f"operators-{_label(model)}", "operators", seconds + 30, command)

    first, *others = given.models.split(",")
    batches, few = ("1,4,16", "1,4") if is_gpu else ("1", "1")
    grid, long_grid, long_len = (PLAIN_GRID, LONG_GRID, 8192) if is_gpu else ("4,16", "4", 256)
    yield steps(first, batches, grid, 1024, 90)
    yield operators(first, 200)
    yield steps(first, few, long_grid, long_len, 70)
    for model in others[:1]:
        yield steps(model, batches, grid, 1024, 95)
        yield operators(model, 240)
        yield steps(model, "64", long_grid, 1024, 60)
        yield steps(model, "1,4,16", long_grid, long_len, 90)
    for model in others[1:]:
        yield operators(model, 200)
    # a fit and a comparison of every folder of steps, which need no GPU
    rows = sorted(str(path) for path in (data / "profiles/operators" / name).glob("*.csv")) or ["ROWS"]
    told = ("--gpu", name, "--kernels", "torch", "--data-dir", str(data))
    fit = ("calibrate", "rows", *rows, *told, "--overwrite", "-o", str(given.out / "fit.md"))
    yield Stage("fit", "fit", 150, (*SIM_COMMAND, *fit))
    for path in sorted((data / "profiles/decoder").glob("*/steps.csv")) or [Path("STEPS/steps.csv")]:
        for latency, fallback in (("measured", "calibrated"), ("calibrated", "refuse")):
            label = f"{path.parent.name}-{latency}"
            asked = ("--latency", latency, "--fallback", fallback)
            written = ("--format", "md", "-o", str(given.out / f"{label}.md"))
            command = (*SIM_COMMAND, "validate", "decoder", str(path.parent), *told, *asked, *written)
            yield Stage(f"compare-{label}", "compare", 5, command)


def _label(model: str) -> str:
    path = Path(model)
    return path.parent.name if path.name == "config.json" else model


class Run:
    """The folder of a run: what is done, and one call that does more."""

    def __init__(self, given: argparse.Namespace) -> None:
        self.given = given
        self.path = given.out / "state.json"
        self.state: dict[str, str] = {}  # by stage (done, failed, too few rows), and of the device
        if self.path.is_file():
            self.state = json.loads(self.path.read_text(encoding="utf-8"))

    def waiting(self, name: str) -> list[Stage]:
        """Stages that are neither done nor, without --retry, failed; no comparison without a fit."""
        passed = (DONE,) if self.given.retry else (DONE, FAILED, FEW)
        return [
            stage
            for stage in stages(self.given, name)
            if self.state.get(stage.name) not in passed
            and stage.kind in self.given.kinds
            and (stage.kind != "compare" or self.state.get("fit") not in (FAILED, FEW))
        ]

    def write(self) -> None:
        """OUT/state.json, whole or not at all."""
        write_text(self.path, json.dumps(self.state, indent=1))

    def call(self, name: str) -> int:
        """Stages one after another while they fit the call. Returns an exit status."""
        began, failed = time.monotonic(), 0
        (self.given.out / "logs").mkdir(parents=True, exist_ok=True)
        tried: set[str] = set()
        while True:
            left = self.given.call_s - (time.monotonic() - began)
            # Listed anew each time: folders of steps appear while it runs.
            waiting = [stage for stage in self.waiting(name) if stage.name not in tried]
            if not waiting:
                print("done" if not failed else f"done, {failed} stages failed (--retry tries them again)")
                return 1 if failed else 0
            stage = waiting[0]
            if stage.expected_s(self.given.scale) > left:
                print(f"{len(waiting)} stages are left, the next is {stage.name}; call again")
                return 0
            tried.add(stage.name)
            failed += self._do(stage, left) == FAILED
            self.pack()

    def pack(self) -> None:
        """All of OUT in one file, which appears whole: a call that is killed leaves the one before."""
        archive: Path | None = self.given.archive
        if archive is None:
            return
        archive.parent.mkdir(parents=True, exist_ok=True)
        part = archive.with_name(f"{archive.name}.part")
        with tarfile.open(part, "w:gz") as packed:
            packed.add(self.given.out, ".")
        part.replace(archive)

    def _do(self, stage: Stage, left_s: float) -> str:
        """Run a stage within what the call has left; keep and return how it ended."""
        expected_s = stage.expected_s(self.given.scale)
        usual_s = max(SLACK * expected_s, min(60.0, left_s))
        log = self.given.out / "logs" / f"{stage.name}.log"
        print(f"{stage.name}: about {expected_s:.0f} s", flush=True)
        began = time.monotonic()
        with log.open("w", encoding="utf-8") as file:
            process = subprocess.Popen(stage.command, stdout=file, stderr=subprocess.STDOUT, cwd=ROOT,
                                       env=_environment(self.given.out))  # fmt: skip
            try:
                status = process.wait(min(usual_s, left_s + OVER_S))
            except subprocess.TimeoutExpired:
                status = _interrupted(process) or 1
            except BaseException:  # Ctrl-C, or told to end: no stage outlives its call
                _interrupted(process)
                raise
        (last,) = log.read_text(encoding="utf-8").strip().splitlines()[-1:] or [""]
        ended = DONE if status == 0 else FEW if TOO_FEW.search(last) else FAILED
        self.state[stage.name] = ended
        self.write()
        told = f"FAILED ({status})" if ended == FAILED else ended
        print(f"  {told} in {time.monotonic() - began:.0f} s: {last}")
        return ended


def _interrupted(process: subprocess.Popen[bytes]) -> int:
    """Ctrl-C for a stage, upon which `measure` keeps its rows; its exit status."""
    process.send_signal(signal.SIGINT)
    try:
        return process.wait(GRACE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()


def _environment(out: Path) -> dict[str, str]:
    path = os.pathsep.join(part for part in (str(ROOT), os.environ.get("PYTHONPATH")) if part)
    own = {"PYTHONPATH": path, "PYTHONUNBUFFERED": "1", "MEDUSA_SIM_DATA_DIR": str(out / "data")}
    return {**os.environ, **own}


def gpu_name(given: argparse.Namespace, known: str | None) -> str:
    """The name under which rows of this device are kept; `<gpu>` where it cannot be asked.

    known: that of the calls before, which fits and comparisons need alone.
    """
    if given.name:
        return str(given.name)
    if known and not given.kinds & set(NEED_GPU):
        return known
    words = (
        "from medusa_sim.lab.measure.environment import environment, torch_device; import sys; "
        "print(environment(torch_device(sys.argv[1])).name)"
    )
    told = subprocess.run(
        [sys.executable, "-c", words, given.device],
        capture_output=True, text=True, check=False, cwd=ROOT, env=_environment(given.out),
    )  # fmt: skip
    if told.returncode:
        if given.dry_run:
            return "<gpu>"
        raise SystemExit(f"Error: {(told.stderr.strip().splitlines() or ['no device'])[-1]}")
    return told.stdout.strip()


def _has_packages(given: argparse.Namespace) -> bool:
    """Takes kinds without their packages out of those asked for, and says so; whether any is left."""
    missing = {kind: missing_packages(kind) for kind in KINDS if kind in given.kinds}
    if not any(missing.values()):
        return True
    wanted = list(dict.fromkeys(text for texts in missing.values() for text in texts))
    left = {kind for kind, texts in missing.items() if not texts}
    passed = "" if given.dry_run or not left else f"; passed over: {', '.join(missing.keys() - left)}"
    words = " ".join(map(repr, wanted))
    start = "note" if given.dry_run or left else "Error"
    told = f"{start}: missing: {', '.join(wanted)}; {sys.executable} -m pip install {words}{passed}"
    print(told, file=sys.stderr)
    if not given.dry_run:
        given.kinds = left
    return bool(given.kinds)


def show(waiting: Sequence[Stage], scale: float, call_s: float) -> None:
    """The plan: stages by call, expected seconds, commands."""
    call, used = 1, 0.0
    for stage in waiting:
        seconds = stage.expected_s(scale)
        if used and used + seconds > call_s:
            call, used = call + 1, 0.0
        if not used:
            print(f"call {call}")
        used += seconds
        shown = " ".join(stage.command).replace(" ".join(SIM_COMMAND), "medusa-sim")
        print(f"  {seconds:4.0f} s  {stage.name}\n          {shown}")
    total = sum(stage.expected_s(scale) for stage in waiting)
    print(f"{len(waiting)} stages, {total / 60:.0f} minutes in {call} calls")


def main() -> int:
    """One call."""
    parser = command_line(__doc__)
    parser.add_argument("out", type=lambda text: Path(text).absolute())
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dtype", help="fp16 on a GPU, fp32 on a CPU")
    parser.add_argument("--models", default=MODELS, help="the first gets most, the third operators alone")
    parser.add_argument("--only", help=f"kinds of stages, by commas: {', '.join(KINDS)}")
    parser.add_argument("--name", help="of the device, where its own is not wanted")
    parser.add_argument("--scale", type=float, default=1.0, help="of the seconds that are measured")
    parser.add_argument("--call-s", type=float, default=CALL_S, help="seconds of this call")
    parser.add_argument(
        "--archive", type=Path, help="tar.gz of OUT: read first where OUT is gone, then written"
    )
    parser.add_argument("--retry", action="store_true", help="stages that failed too")
    parser.add_argument("--dry-run", action="store_true")
    given = parser.parse_args()
    given.dtype = given.dtype or ("fp32" if given.device == "cpu" else "fp16")
    given.kinds = set(given.only.split(",")) if given.only else set(KINDS)
    if unknown := given.kinds.difference(KINDS):
        parser.error(f"--only {given.only}: no kind {min(unknown)!r} (allowed: {', '.join(KINDS)})")
    if not _has_packages(given):
        return 1
    if given.archive and given.archive.is_file() and not given.out.exists():
        shutil.unpack_archive(given.archive, given.out, "gztar")
    if not given.dry_run:
        given.out.mkdir(parents=True, exist_ok=True)
    run = Run(given)
    name = gpu_name(given, run.state.get(DEVICE))
    if given.dry_run:
        show(run.waiting(name), given.scale, given.call_s)
        return 0
    # A shell starts what runs in the background with Ctrl-C ignored, and stages would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    run.state[DEVICE] = name
    run.write()
    try:
        return run.call(name)
    finally:
        run.pack()


if __name__ == "__main__":
    raise SystemExit(main())
