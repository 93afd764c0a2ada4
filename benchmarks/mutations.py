"""Breaks one line at a time and sees whether the tests of its own room notice.

    python benchmarks/mutations.py --count 30 --seed 2
    python benchmarks/mutations.py --place medusa_sim/step/memory.py:105
    python benchmarks/mutations.py --room plan --count 5 --list

A mutation changes one constant (x 1.1, a whole number + 1), sign, operator, comparison, minimum or maximum,
or rounding in a room, a folder of the package. Left out is what tests leave free: constants that were chosen
(`_CHOSEN`), what chooses the words of a sentence and the text of an error. In a copy of the tree, with the
change, the tests of that room run until the first that fails, the slow ones left out, quick ones first. Exit
code 3 where a mutation survives. Those of `equivalent_mutations.toml` change nothing that a test could tell,
and the file says why: one that is drawn is not run and counted apart.
"""

from __future__ import annotations

import ast
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from common.script import ROOT, command_line

PACKAGE = ROOT / "medusa_sim"
SAME = Path(__file__).with_name("equivalent_mutations.toml")
LEFT_OUT = {"__main__.py", "py.typed"}
TIMEOUT_S = 600.0
"""Seconds after which the tests of a mutation are ended; a loop without an end is noticed, too."""

BESIDE = {
    "lab/calibrate": "latency", "scenario": "plan", "doubts": "plan", "grid": "plan",
    "cli/train": "lab/decoder", "cli/decode": "lab/decoder", "cli/measure": "lab/measure",
    "cli/validate": "lab/validate", "cli/reproduce": "lab/reproduce", "cli/calibrate": "lab/calibrate",
    "cli/card": "report",
}  # fmt: skip
"""Rooms, and modules of one, that have tests in another's folder as well: fits are asked beside the laws that
they fit, cells and what is doubtful about them through answers, commands of the laboratory where it is.
"""

_OPERATORS: dict[type[ast.operator], tuple[str, str]] = {
    ast.Add: ("+", "-"), ast.Sub: ("-", "+"), ast.Mult: ("*", "/"), ast.Div: ("/", "*"),
}  # fmt: skip
_COMPARISONS: dict[type[ast.cmpop], tuple[str, str]] = {
    ast.Lt: ("<", ">="), ast.LtE: ("<=", ">"), ast.Gt: (">", "<="), ast.GtE: (">=", "<"),
    ast.Eq: ("==", "!="), ast.NotEq: ("!=", "=="),
}  # fmt: skip
_CALLS = {
    "min": "max", "max": "min", "minimum": "maximum", "maximum": "minimum", "argmin": "argmax",
    "argmax": "argmin", "floor": "ceil", "ceil": "floor",
}  # fmt: skip
_NO_NUMBERS = {
    "argument", "Quantity", "Literal", "significant", "lru_cache", "cache", "Kind", "subplots", "savefig",
}  # fmt: skip
"""Calls whose numbers are help, digits, sizes of caches, edges of bands or sizes of pictures."""
_SHAPES = {"ones_like", "zeros_like"}
"""Calls by which a product or a sum takes another shape and the same values."""
_CHOSEN = (
    "outside/limits.py", "report/figures", "lab/calibrate", "lab/measure", "lab/decoder/training",
    "lab/decoder/trials",
)  # fmt: skip
"""Where constants of a module were chosen freely: what is taken from a file, sizes of pictures, where a fit's
search begins and ends, what is measured or timed and how often, how a model is trained. A tenth more of one
is as right, so that no test should notice.
"""
_DRAWN = ("report/figures", "report/card.py", "acceptance/tree_picture")
"""Where numbers are places, widths and sizes on a picture, and its least and largest ones."""
_LOOKS = {"size", "width"}
"""Arguments of a chart's series that say how it looks, not what it shows."""
_DIGITS = {"percent"}
"""Calls whose second number is how many digits are told."""
_AXIS = 8
"""More ascending sizes than this in a constant are an axis that is tried: another one is as right."""
_NOTHING = 2e-9
"""Numbers below this only keep a division from one by zero."""


@dataclass(frozen=True)
class Mutation:
    """Text of a file that another takes the place of; `line` counts from 1, `start` in characters."""

    path: Path
    line: int
    start: int
    old: str
    new: str

    @property
    def room(self) -> str:
        """The folder of the package, with that of the laboratory below it."""
        return "/".join(self.path.relative_to(PACKAGE).parts[:-1][: 2 if "lab" in self.path.parts else 1])

    @property
    def text(self) -> str:
        """Its line, without what stands before and after."""
        return self.path.read_text(encoding="utf-8").splitlines()[self.line - 1].strip()

    @property
    def key(self) -> tuple[str, str]:
        """What tells it apart wherever its line stands: the file, and the line with `<old -> new>` in it."""
        text = self.path.read_text(encoding="utf-8")
        begin, end = text.rfind("\n", 0, self.start) + 1, self.start + len(self.old)
        rest = text[end:].partition("\n")[0]
        marked = f"{text[begin : self.start]}<{self.old} -> {self.new}>{rest}"
        return self.path.relative_to(PACKAGE).as_posix(), marked.strip()

    def __str__(self) -> str:
        return f"{self.path.relative_to(ROOT)}:{self.line}: {self.old} -> {self.new}: {self.text[:90]}"

    def applied(self) -> str:
        """The file's text with the change."""
        text = self.path.read_text(encoding="utf-8")
        return text[: self.start] + self.new + text[self.start + len(self.old) :]


class _Reader:
    """Reads the mutations of a file off its tree."""

    def __init__(self, path: Path) -> None:
        self.path, self.text = path, path.read_text(encoding="utf-8")
        self._raw = self.text.encode()
        self._starts = [0]
        for line in self._raw.splitlines(keepends=True):
            self._starts.append(self._starts[-1] + len(line))

    def below(self, node: ast.AST) -> Iterator[Mutation]:
        """Of a node and what it holds; annotations, decorators, indices and texts of errors are left out."""
        if isinstance(node, ast.Raise):
            node = _without_text(node)
        if isinstance(node, ast.Call) and _name(node.func) in _NO_NUMBERS:
            return
        if isinstance(node, ast.keyword) and node.arg in _LOOKS and "report/charts" in self.path.as_posix():
            return
        if isinstance(node, ast.IfExp) and (_is_words(node.body) or _is_words(node.orelse)):
            return
        if isinstance(node, ast.BinOp) and _is_letters(node.left) and isinstance(node.right, ast.Compare):
            return
        if (
            isinstance(node, ast.Call) and _name(node.func) == "reshape"
        ):  # to which all below 0 are as many as fit
            left = [each for each in node.args if not isinstance(each, ast.UnaryOp)]
            node = ast.copy_location(ast.Call(node.func, left, node.keywords), node)
        yield from self._of(node)
        if isinstance(node, ast.Call) and _name(node.func) in _DIGITS:
            node = ast.copy_location(ast.Call(node.func, node.args[:1], []), node)
        for name, child in ast.iter_fields(node):
            if name not in ("annotation", "returns", "decorator_list", "slice"):
                for each in child if isinstance(child, list) else [child]:
                    if isinstance(each, ast.AST):
                        yield from self.below(each)

    def _of(self, node: ast.AST) -> Iterator[Mutation]:
        """Of a node itself."""
        if any(part in self.path.as_posix() for part in _DRAWN) and isinstance(node, ast.Constant | ast.Call):
            return
        match node:
            case ast.Call(func=called) if (name := _name(called)) in _CALLS:
                end = self._place(called.end_lineno, called.end_col_offset)
                yield self._at(end - len(name), name, _CALLS[name])
            case ast.Constant(value=float(value)) if value == 0.0 or value >= _NOTHING:
                yield self._at(self._begin(node), self._source(node), repr(value * 1.1 or 0.1))
            case ast.Constant(value=int(value)) if not isinstance(value, bool):
                yield self._at(self._begin(node), self._source(node), repr(value + 1))
            case ast.UnaryOp(op=ast.USub(), operand=inner) if not isinstance(inner, ast.Constant):
                yield self._at(self._begin(node), "-", "")
            case ast.BinOp(right=ast.Call(func=called)) if _name(called) in _SHAPES:
                return
            case ast.BinOp(op=operator) if type(operator) in _OPERATORS and not _is_text(node):
                yield from self._between(node.left, node.right, *_OPERATORS[type(operator)])
            case ast.Compare(ops=[first, *_]) if type(first) in _COMPARISONS:
                yield from self._between(node.left, node.comparators[0], *_COMPARISONS[type(first)])

    def _at(self, start: int, old: str, new: str) -> Mutation:
        return Mutation(self.path, self.text.count("\n", 0, start) + 1, start, old, new)

    def _between(self, first: ast.expr, second: ast.expr, old: str, new: str) -> Iterator[Mutation]:
        """Of an operator: it stands between its two sides."""
        start = self.text.find(old, self._place(first.end_lineno, first.end_col_offset), self._begin(second))
        if start >= 0:
            yield self._at(start, old, new)

    def _begin(self, node: ast.expr) -> int:
        return self._place(node.lineno, node.col_offset)

    def _place(self, line: int | None, column: int | None) -> int:
        """The character at a line and a byte of it, as the tree counts."""
        return len(self._raw[: self._starts[(line or 1) - 1] + (column or 0)].decode())

    def _source(self, node: ast.expr) -> str:
        return self.text[self._begin(node) : self._place(node.end_lineno, node.end_col_offset)]


def mutations_of(path: Path) -> list[Mutation]:
    """Every mutation of a file, in the order of its tree."""
    reader = _Reader(path)
    is_chosen = any(part in path.as_posix() for part in _CHOSEN)
    return [
        mutation
        for node in ast.parse(reader.text).body
        if not (isinstance(node, (ast.Assign, ast.AnnAssign)) and (is_chosen or _is_axis(node)))
        for mutation in reader.below(_without_defaults(node) if is_chosen else node)
    ]


def _without_defaults(node: ast.stmt) -> ast.stmt:
    """A class without the values that its fields are given; anything else as it is."""
    if not isinstance(node, ast.ClassDef):
        return node
    kept = [each for each in node.body if not isinstance(each, ast.Assign | ast.AnnAssign)]
    return ast.copy_location(ast.ClassDef(node.name, node.bases, node.keywords, kept, []), node)


def _is_axis(node: ast.stmt) -> bool:
    """Whether a constant lists sizes that are tried."""
    every = [each for each in ast.walk(node) if isinstance(each, ast.Constant)]
    placed_so = sorted(every, key=lambda each: (each.lineno, each.col_offset))
    sizes = [each.value for each in placed_so if isinstance(each.value, int)]
    return len(every) == len(sizes) > _AXIS and sizes == sorted(sizes)


def _is_words(node: ast.expr) -> bool:
    """Whether a text with numbers in it, a sentence."""
    return isinstance(node, ast.JoinedStr)


def _without_text(node: ast.Raise) -> ast.Raise:
    """An error without its sentence: tests ask which error it is."""
    raised = node.exc
    if not isinstance(raised, ast.Call):
        return node
    kept = [each for each in raised.args if not _is_words(each)]
    call = ast.Call(func=raised.func, args=kept, keywords=raised.keywords)
    return ast.copy_location(ast.Raise(exc=ast.copy_location(call, raised), cause=node.cause), node)


def _is_letters(node: ast.expr) -> bool:
    """Whether a text that stands or not, as the s of a plural does."""
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def _name(called: ast.expr) -> str:
    """The last name of what is called."""
    return called.id if isinstance(called, ast.Name) else getattr(called, "attr", "")


def _is_text(node: ast.AST) -> bool:
    """Whether an operation joins texts or paths."""
    return any(
        isinstance(each, ast.JoinedStr) or (isinstance(each, ast.Constant) and isinstance(each.value, str))
        for each in ast.walk(node)
    )


def tests_of(mutation: Mutation, copy: Path) -> list[str]:
    """Test files of the room in a copy of the tree: first values by hand, which take no time, then those
    that name the module.
    """
    tests = copy / "tests"
    stem = mutation.path.stem
    if not mutation.room:
        found = sorted(tests.glob(f"test_{stem}*.py")) or [tests / "test_api.py"]
    else:
        found = sorted((tests / mutation.room).rglob("test_*.py"))
        for name in (mutation.room, f"{mutation.room}/{stem}"):
            found += sorted((tests / BESIDE[name]).rglob("test_*.py")) if name in BESIDE else []
    module = ".".join(mutation.path.relative_to(ROOT).with_suffix("").parts)
    found.sort(
        key=lambda path: (not path.stem.endswith("_values"), module not in path.read_text(encoding="utf-8"))
    )
    return [str(path.relative_to(copy)) for path in found]


def drawn(count: int, seed: int, room: str) -> list[Mutation]:
    """Mutations by chance: a room, a file of it by its number of mutations, and one of those."""
    rooms: dict[str, list[Mutation]] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        if path.name not in LEFT_OUT:
            for mutation in mutations_of(path):
                if mutation.room == room or (not room and tests_of_room(mutation.room)):
                    rooms.setdefault(mutation.room, []).append(mutation)
    if not rooms:
        raise SystemExit(f"no room {room!r} with tests of its own")
    pick = random.Random(seed)  # noqa: S311  # repeatable chance, not secrets
    names = sorted(rooms)
    return [pick.choice(rooms[names[turn % len(names)]]) for turn in range(count)]


def tests_of_room(room: str) -> bool:
    """Whether a room has a folder of tests."""
    return bool(room) and (ROOT / "tests" / room).is_dir()


def equivalent() -> dict[tuple[str, str], str]:
    """Why each mutation of `equivalent_mutations.toml` changes nothing. Ends where one is gone."""
    given = tomllib.loads(SAME.read_text(encoding="utf-8"))["same"]
    why = {(each["file"], line): each["why"] for each in given for line in each["lines"]}
    there = {each.key for file in {key[0] for key in why} for each in mutations_of(PACKAGE / file)}
    if gone := sorted(set(why) - there):
        raise SystemExit("\n".join(f"{SAME.name}: no such mutation: {' | '.join(key)}" for key in gone))
    return why


def placed(place: str) -> list[Mutation]:
    """The mutations of FILE:LINE."""
    name, _, line = place.rpartition(":")
    return [each for each in mutations_of((ROOT / name).resolve()) if each.line == int(line)]


def copied(folder: Path) -> Path:
    """A copy of the tree."""
    kept = {"app", "benchmarks", "docs", "hardware", "medusa_sim", "profiles", "tests"}
    for path in ROOT.iterdir():
        if path.name in kept:
            shutil.copytree(path, folder / path.name, ignore=shutil.ignore_patterns("__pycache__"))
        elif path.is_file():
            shutil.copy(path, folder / path.name)
    return folder


def caught(mutation: Mutation, copy: Path, limit_s: float) -> str:
    """The first test that fails in the copy with the mutation, `` where all pass."""
    target = copy / mutation.path.relative_to(ROOT)
    sound = target.read_text(encoding="utf-8")
    target.write_text(mutation.applied(), encoding="utf-8")
    data = os.environ.get("MEDUSA_SIM_DATA", str(ROOT.parent / "shared" / "data"))
    paths = os.pathsep.join(str(copy / name) for name in ("", "benchmarks", "tests"))
    chosen = "not browser and not slow and not nightly"
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-m", chosen]

    def tested(*tests: str) -> subprocess.CompletedProcess[str]:
        # what the first process compiles in the copy serves all others
        return subprocess.run(
            [*command, *tests], cwd=copy, capture_output=True, text=True, check=False, timeout=limit_s,
            env={**os.environ, "PYTHONPATH": paths, "MEDUSA_SIM_DATA": data, "PYTHONDONTWRITEBYTECODE": ""},
        )  # fmt: skip

    try:
        run = tested(*tests_of(mutation, copy))
    except subprocess.TimeoutExpired:
        return f"no end within {limit_s:.0f} s"
    finally:
        target.write_text(sound, encoding="utf-8")
    if run.returncode == 0:
        return ""
    told = [line for line in run.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    if told and tested(failed := told[0].partition(" - ")[0].split(" ", 1)[1]).returncode in (1, 2):
        raise SystemExit(f"{failed} fails without any mutation")
    return told[0][:150] if told else (run.stdout + run.stderr).strip()[-150:]


def run(mutations: Sequence[Mutation], limit_s: float) -> list[Mutation]:
    """Try each, with a line for each and the time left; those that survive."""
    survived: list[Mutation] = []
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="medusa-sim-mutations-") as folder:
        copy = copied(Path(folder))
        for done, mutation in enumerate(mutations, start=1):
            started = time.monotonic()
            told = caught(mutation, copy, limit_s)
            if not told:
                survived.append(mutation)
            now = time.monotonic()
            left_s = (now - began) / done * (len(mutations) - done)
            print(
                f"[{done}/{len(mutations)}, {now - started:.0f} s, {left_s / 60:.0f} min left] "
                f"{'caught' if told else 'SURVIVED'}: {mutation}\n    {told}",
                flush=True,
            )
    return survived


def main() -> None:
    """The command line: exit 3 where a mutation survives."""
    parser = command_line(__doc__)
    parser.add_argument("--count", type=int, default=1, help="mutations to try, drawn room after room")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--from", type=int, default=1, dest="first", help="the first of a draw to try: goes on"
    )
    parser.add_argument("--room", default="", help="a folder of the package: plan, lab/calibrate, ...")
    parser.add_argument("--place", action="append", default=[], help="FILE:LINE, instead of drawing")
    parser.add_argument("--limit-s", type=float, default=TIMEOUT_S, help="longest run of tests of a mutation")
    parser.add_argument("--list", action="store_true", help="print the mutations and run nothing")
    asked = parser.parse_args()
    chosen = [each for place in asked.place for each in placed(place)]
    chosen = chosen[: asked.count] if asked.place else drawn(asked.count, asked.seed, asked.room)
    chosen = chosen[asked.first - 1 :]
    same = {} if asked.place else equivalent()
    for mutation in chosen:
        if mutation.key in same:
            print(f"EQUIVALENT: {mutation}\n    {same[mutation.key]}", flush=True)
    told_apart = [mutation for mutation in chosen if mutation.key not in same]
    if asked.list:
        print(*told_apart, sep="\n")
        return
    survived = run(told_apart, asked.limit_s)
    tried = len(told_apart)
    print(f"{tried - len(survived)} of {tried} caught, {len(chosen) - tried} equivalent")
    sys.exit(3 if survived else 0)


if __name__ == "__main__":
    main()
