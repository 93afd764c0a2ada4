"""A fuzzer of the command line: every option of every command, every kind of file that is read.

    python tests/fuzz --seed 7 --count 5000

Each case is a command with a valid small set-up in which some options and files are changed, or one about
any set-up (`set_ups.py`). It must end within its time with code 0, 1, 2 or 3, without a warning of numpy;
where it fails, with one line that starts with `Error: `; where it succeeds, without nan or infinity in its
output and with JSON that parses. A case is a function of the seed
and its number alone.
"""

import argparse
import collections
import contextlib
import gc
import json
import os
import random
import re
import resource
import shlex
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import click
from click.testing import CliRunner

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(Path(__file__).parent), str(ROOT / "tests")]

from damage import GRIDS, NUMBERS, WORDS, mutated  # noqa: E402
from set_ups import set_up  # noqa: E402
from tables import table  # noqa: E402

TIME_LIMIT_S = 30
OF_SET_UPS = 0.4
"""Share of the cases that ask about any set-up."""
LONGEST_LINE = 1_200
NOT_A_NUMBER = re.compile(r"(?<![\w.-])[+-]?(nan|inf|infinity)(?![\w-])", re.IGNORECASE)

_TABLE = table("fuzz")
BASES = [shlex.split(line) for line in _TABLE["bases"]]
FOLDERS, SEEDS, TEXTS = _TABLE["folders"], _TABLE["seeds"], _TABLE["texts"]
SKIPPED = ("list_targets", "device", "data", "text_folder", "workers", "scheduler", "requests")
"""Options that price every table of both papers, let training, measuring or long runs begin, or start processes."""


@dataclass(frozen=True)
class Failure:
    """A case that broke a rule."""

    number: int
    rule: str
    command: list[str]
    told: str


class Case:
    """One command of a seed, with its files in `folder`."""

    def __init__(self, seed: int, number: int, folder: Path) -> None:
        self.pick = random.Random(f"{seed}/{number}")
        self.folder = folder
        self.files = 0
        self.holds_nan = False
        is_any = self.pick.random() < OF_SET_UPS
        self.args = set_up(self.pick) if is_any else self._options(list(self.pick.choice(BASES)))

    def _options(self, args: list[str]) -> list[str]:
        """The command with its files, and with some options changed, added or lost."""
        args = [self._file(arg[1:]) if arg.startswith("@") else arg for arg in args]
        if self.pick.random() < 0.3:
            return args
        command = _command(args)
        names = [
            param for param in command.params if isinstance(param, click.Option) and param.name not in SKIPPED
        ]
        for _ in range(self.pick.choice((1, 1, 2, 3))):
            option = self.pick.choice(names)
            args += [self.pick.choice(option.opts)]
            if not option.is_flag:
                args += [self._value(option)]
            elif self.pick.random() < 0.02:
                args += [self.pick.choice(WORDS)]
        if self.pick.random() < 0.05:
            args[self.pick.randrange(1, len(args))] = self.pick.choice((*WORDS, *NUMBERS))
        if self.pick.random() < 0.03:
            args.insert(self.pick.randrange(1, len(args)), self.pick.choice(("--no-such", "-z", "--", "-")))
        return [arg.replace("\x00", "") for arg in args]

    def _value(self, option: click.Option) -> str:
        """A value that the option may or may not take."""
        kind = option.type
        sound: tuple[str, ...] = ("1", "2", "4")
        if isinstance(kind, click.Choice):
            sound = tuple(map(str, kind.choices)) * 3
        elif isinstance(kind, click.Path):
            return self._path(option)
        elif type(kind).__name__ == "GridType":
            sound = GRIDS * 3
        elif type(kind).__name__ == "NameType":
            sound = tuple(kind.known(None))[:60] if self.pick.random() < 0.9 else sound
        elif isinstance(kind, click.types.FloatParamType):
            sound = ("0.1", "0.5", "0.9", "1.0", "10")
        value = self.pick.choice(sound if self.pick.random() < 0.7 else (*NUMBERS, *WORDS))
        self.holds_nan |= bool(NOT_A_NUMBER.search(value))
        return value

    def _path(self, option: click.Option) -> str:
        outputs = ("output_path", "output", "plot", "save", "out")
        if option.name in outputs or "--report" in option.opts:
            suffix = self.pick.choice(
                (".csv", ".json", ".md", ".parquet", ".txt", ".png", ".svg", ".toml", "", ".xyz")
            )
            places = ("out" + suffix, "-", "no/folder/x" + suffix, ".", "/dev/null", "o" * 300 + suffix)
            return self.pick.choice((str(self.folder / ("out" + suffix)), *places))
        kinds = (*SEEDS, *TEXTS, "data", "decoder", "odd")
        return self._file(self.pick.choice(kinds))

    def _file(self, kind: str) -> str:
        if kind.startswith("out"):
            return str(self.folder / kind)
        if kind == "odd" or self.pick.random() < 0.04:
            return self._odd()
        if kind == "data":
            return self._data()
        if kind in FOLDERS:
            return self._tree_of_files(FOLDERS[kind], self.folder / kind)
        path, content = self._seed(kind)
        target = self.folder / f"{self.files}-{path}"
        self.files += 1
        target.write_bytes(self._changed(content, 0.75))
        return str(target)

    def _seed(self, kind: str) -> tuple[str, bytes]:
        """Name and content of a sound file of a kind."""
        suffix = {
            "trace": ".csv", "heads": ".csv", "tree": ".json", "observations": ".csv", "runtime": ".toml",
            "own": ".txt",
        }  # fmt: skip
        texts = TEXTS.get(kind, ())
        paths = (
            [] if kind not in SEEDS else sorted(p for of in SEEDS[kind] for p in ROOT.glob(of) if p.is_file())
        )
        choice = self.pick.randrange(len(texts) + len(paths))
        if choice < len(texts):
            return kind + suffix[kind], texts[choice].encode()
        path = paths[choice - len(texts)]
        return path.name, path.read_bytes()

    def _changed(self, content: bytes, share: float) -> bytes:
        if self.pick.random() < share:
            content = mutated(content, self.pick)
        self.holds_nan |= bool(NOT_A_NUMBER.search(content.decode("utf-8", "replace")))
        return content

    def _odd(self) -> str:
        """A path that is no file of any kind."""
        pipe, loop = self.folder / "pipe", self.folder / "loop"
        if not pipe.exists():
            os.mkfifo(pipe)
            loop.symlink_to(loop)
        odd = (
            "/dev/zero", "/dev/null", "/", "none.csv", "none.toml", "/dev/zero/x.toml", "n" * 300 + ".toml",
            "",
        )  # fmt: skip
        return self.pick.choice((*odd, str(pipe), str(loop), str(self.folder)))

    def _data(self) -> str:
        """A data folder with a hardware file, measured rows and a profile, one of them mutated."""
        folder = self.folder / f"data{self.files}"
        self.files += 1
        (folder / "hardware").mkdir(parents=True)
        (folder / "profiles" / "acceptance").mkdir(parents=True)
        hardware = (ROOT / "hardware" / self.pick.choice(("a40.toml", "l4.toml"))).read_bytes()
        content = hardware.replace(b'"l4"', b'"a40"')
        (folder / "hardware" / "a40.toml").write_bytes(self._changed(content, 0.8))
        rows = "profiles/operators/cpu-emerald-rapids-3m"
        if self.pick.random() < 0.5:
            self._tree_of_files(rows, folder / rows)
        return str(folder)

    def _tree_of_files(self, source: str, target: Path) -> str:
        """A copy of a folder in which about one file is mutated."""
        target.mkdir(exist_ok=True, parents=True)
        for path in sorted((ROOT / source).rglob("*")):
            if path.is_file():
                place = target / path.relative_to(ROOT / source)
                place.parent.mkdir(parents=True, exist_ok=True)
                place.write_bytes(self._changed(path.read_bytes(), 0.3))
        return str(target)


def _command(args: list[str]) -> click.Command:
    from medusa_sim.cli import cli

    context = click.Context(cli)
    command = cli.get_command(context, args[0])
    if isinstance(command, click.Group):
        command = command.get_command(context, args[1])
    assert command is not None
    return command


class OutOfTimeError(BaseException):
    """No Exception, so that no handler of the program takes it for its own."""


@contextlib.contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Raise OutOfTimeError where the block takes more time of the CPU, or six times as long by the clock.

    What the process holds already is kept from the garbage collector meanwhile: it is not the block's.
    """
    timers = {signal.SIGALRM: (signal.ITIMER_REAL, 6.0), signal.SIGPROF: (signal.ITIMER_PROF, 1.0)}

    def ring(number: int, frame: FrameType | None) -> None:
        if frame is not None and frame.f_code.co_filename == weakref.__file__:
            signal.setitimer(timers[signal.Signals(number)][0], 0.01)  # a callback's error would be swallowed
            return
        raise OutOfTimeError

    before = {number: signal.signal(number, ring) for number in timers}
    gc.freeze()
    for timer, factor in timers.values():
        signal.setitimer(timer, factor * seconds)
    try:
        yield
    finally:
        for number, (timer, _) in timers.items():
            signal.setitimer(timer, 0.0)
            signal.signal(number, before[number])
        gc.unfreeze()


def broken_rule(case: Case, time_limit_s: float = TIME_LIMIT_S) -> tuple[str, str] | None:
    """The rule that a case breaks, and what shows it; None where it breaks none."""
    from medusa_sim.cli import cli

    try:
        with limited(time_limit_s), warnings.catch_warnings():
            warnings.simplefilter("error", RuntimeWarning)
            result = CliRunner().invoke(cli, case.args, prog_name="medusa-sim")
    except OutOfTimeError:
        return "hang", f"more than {time_limit_s} s"
    if isinstance(result.exception, OutOfTimeError):
        return "hang", f"more than {time_limit_s} s"
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        return "traceback", "".join(traceback.format_exception(result.exception)[-3:])
    return _broken_errors(result.exit_code, result.stderr) or (
        _broken_output(case, result.stdout) if result.exit_code == 0 else None
    )


def _broken_errors(code: int, stderr: str) -> tuple[str, str] | None:
    """Exit code and error line: one, the last, and short."""
    if code not in (0, 1, 2, 3):
        return "exit code", str(code)
    lines = stderr.splitlines()
    errors = [line for line in lines if line.startswith("Error: ")]
    if code in (1, 2) and (len(errors) != 1 or not lines[-1].startswith("Error: ")):
        return "one line", stderr[-500:]
    if any(len(line) > LONGEST_LINE for line in errors):  # notes may quote a file's own source
        return "long line", max(errors, key=len)[:300]
    return None


def _broken_output(case: Case, stdout: str) -> tuple[str, str] | None:
    if not case.holds_nan and (found := NOT_A_NUMBER.search(stdout)):
        return "nan", stdout[max(0, found.start() - 200) : found.end() + 50]
    if stdout.startswith('{"schema') or stdout.startswith('{\n "schema'):
        try:
            json.loads(stdout)
        except ValueError as error:
            return "json", str(error)
    if left := [path.name for path in case.folder.rglob("*.part")]:
        return "left behind", ", ".join(left)
    return None


def fuzz(
    seed: int, numbers: range, *, seconds: float | None = None, verbose: bool = False
) -> tuple[int, list[Failure]]:
    """How many cases ran, and those that broke a rule; at most `seconds` (the case that runs is finished)."""
    failures = []
    ran = 0
    codes: collections.Counter[str] = collections.Counter()
    start = time.monotonic()
    before = Path.cwd()
    for number in numbers:
        if seconds is not None and time.monotonic() - start > seconds:
            break
        folder = Path(tempfile.mkdtemp(prefix="medusa-sim-fuzz-"))
        os.chdir(folder)
        began = time.monotonic()
        try:
            case = Case(seed, number, folder)
            found = broken_rule(case)
        finally:
            os.chdir(before)
            shutil.rmtree(folder, ignore_errors=True)
        ran += 1
        codes[case.args[0]] += 1
        if found is not None:
            failures.append(Failure(number, found[0], case.args, found[1]))
            if verbose:
                shown = " ".join(arg[:80] for arg in case.args)
                print(f"[{number}] {found[0]}: {shown}\n{found[1][:1500]}\n", flush=True)
        if verbose and time.monotonic() - began > 20.0:
            print(
                f"[{number}] slow: {time.monotonic() - began:.1f} s {' '.join(case.args)[:200]}", flush=True
            )
    return ran, failures


def main() -> None:
    """The command line of the fuzzer: exit 1 where a case failed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=5_000)
    parser.add_argument("--first", type=int, default=0)
    options = parser.parse_args()
    limit = 6 * 2**30
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    os.environ["MEDUSA_SIM_DATA_DIR"] = str(Path(tempfile.gettempdir()) / "medusa-sim-fuzz-has-no-user-data")
    os.environ["MPLBACKEND"] = "agg"
    start = time.monotonic()
    ran, failures = fuzz(options.seed, range(options.first, options.first + options.count), verbose=True)
    rules = collections.Counter(failure.rule for failure in failures)
    counted = ", ".join(f"{rule} {count}" for rule, count in rules.items()) or "none"
    print(
        f"seed {options.seed}: {ran} cases, {len(failures)} failures ({counted}), {time.monotonic() - start:.0f} s"
    )
    sys.exit(bool(failures))
