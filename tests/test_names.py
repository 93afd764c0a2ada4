"""Names that docstrings, comments and pages cite are there: modules, functions, fields, constants, files.

A citation is what stands in backticks, and every path that begins with a folder of the repository. Read from
the source, without importing it.
"""

import ast
import builtins
import pydoc
import re
import tomllib
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[1]
TOPS = ("medusa_sim", "app", "benchmarks", "tests", "docs", "hardware", "profiles")
CODE = [
    path
    for top in TOPS[:4]
    for path in sorted((ROOT / top).rglob("*.py"))
    if "_data" not in path.parts and "data" not in path.parts
]
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "docs").glob("*.md")),
]
TABLES = [path for top in TOPS for path in sorted((ROOT / top).rglob("*.toml")) if "_data" not in path.parts]
ROOMS = tuple(
    path.name for path in sorted((ROOT / "medusa_sim").iterdir()) if (path / "__init__.py").exists()
)
LIBRARIES = {"np": "numpy", "ms": "medusa_sim"} | {
    name: name for name in ("msgspec", "numpy", "pandas", "scipy", "torch")
}
FOREIGN = {
    # files of other projects, and those that a user has
    "zsh_source", "binary_trees_log_T06.txt", "block_config.py", "decoderMaskedMultiheadAttentionLaunch.h",
    "decoderXQAImplCommon.h", "decoderXQAImplJIT.cpp", "fp8_gemm_kernel.cu", "profile_export.jsonl",
    "quantization/quark/quark.py", "models/kimi_k3.py", "directory/config.json",
    "benchmarks.json", "profile_export_aiperf.json",
    "docs/speculative.md", "docs/source/features/speculative-decoding.md",
    "docs/features/speculative_decoding/dynamic_speculative_decoding.md",
    "tests/examples/llm_ptq/test_deploy.py", "profiles/runtimes",
    "profiles/runtimes/NAME.toml", "profiles/runtimes/mine.toml", "medusa_sim/_data",
    # names in engines and libraries
    "attention_dp_config", "auth_basic", "auth_request", "enable_piecewise_cuda_graph", "use_more_bits",
    "MIN_HEADS_FOR_BF16_PREFILL",
    "chunk_size", "get_best_config", "gpu_memory_utilization", "num_lookahead_tokens", "posterior_alpha",
    "posterior_threshold", "reshape_and_cache", "resolve_ssm_cache_dtype", "sglang.launch_server",
    "text.parse_math",
    "speculative_decoding", "speculative_decoding.acceptance_histogram", "use_eagle",
    # stand for any, or are symbols
    "lm_head.weight", "medusa_sim.cli.foo", "r_k", "top_1",
}  # fmt: skip
"""Citations of what is not in this repository."""

Members = dict[str, set[str]]


def assigned(target: ast.expr) -> Iterator[str]:
    """Names that an assignment binds, `self.name` among them."""
    match target:
        case ast.Name():
            yield target.id
        case ast.Tuple() | ast.List():
            for element in target.elts:
                yield from assigned(element)
        case ast.Attribute(value=ast.Name(id="self" | "cls")):
            yield target.attr


def defined(body: list[ast.stmt]) -> Iterator[str]:
    """Names that statements of a module or a class bind; what is imported is named where it stands."""
    for node in body:
        match node:
            case ast.FunctionDef() | ast.ClassDef():
                yield node.name
            case ast.Assign():
                for target in node.targets:
                    yield from assigned(target)
            case ast.AnnAssign():
                yield from assigned(node.target)
            case ast.If() | ast.Try():
                yield from defined([*node.body, *node.orelse])


class Source(NamedTuple):
    """What a file of code says; its tree is not kept, since all of them take 0.3 GB."""

    defined: frozenset[str]
    """Names of the module."""
    classes: tuple[tuple[str, frozenset[str], frozenset[str]], ...]
    """Name, members and names of the bases."""
    words: frozenset[str]
    """Every name, and words of strings that are no docstrings."""
    prose: tuple[str, ...]
    """Docstrings, those behind fields and constants too."""


@cache
def source(path: Path) -> Source:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    nodes = list(ast.walk(tree))
    prose = [
        node.value
        for node in nodes
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    ]
    prose_ids, words = {id(node) for node in prose}, set[str]()
    for node in nodes:
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name):
                words.add(name)
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                words.add(name)
            case ast.keyword(arg=str(name)):
                words.add(name)
            case ast.Constant(value=str(text)) if id(node) not in prose_ids:
                words.update(re.findall(r"\w+", text), (text,))
    return Source(
        defined=frozenset(defined(tree.body)),
        classes=tuple(class_of(node) for node in nodes if isinstance(node, ast.ClassDef)),
        words=frozenset(words),
        prose=tuple(str(node.value) for node in prose),
    )


def class_of(node: ast.ClassDef) -> tuple[str, frozenset[str], frozenset[str]]:
    """Name, members (what methods assign to `self` too) and names of the bases."""
    inner = [each for each in ast.walk(node) if isinstance(each, ast.Assign | ast.AnnAssign)]
    targets = [target for each in inner for target in getattr(each, "targets", None) or [each.target]]
    kept = {name for target in targets if isinstance(target, ast.Attribute) for name in assigned(target)}
    bases = frozenset(ast.unparse(base).split(".")[-1] for base in node.bases)
    return node.name, frozenset(defined(node.body)) | kept, bases


@cache
def modules() -> Members:
    """Names of every module of the repository, by the module's dotted place."""
    found: Members = {}
    for path in CODE:
        parts = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = set(source(path).defined)
    return found


@cache
def by_ending() -> dict[str, list[str]]:
    """`compose`, `step.compose` and `medusa_sim.step.compose` -> the modules whose place ends so."""
    found: dict[str, list[str]] = {}
    for module in modules():
        parts = module.split(".")
        for start in range(len(parts)):
            found.setdefault(".".join(parts[start:]), []).append(module)
    return found


@cache
def classes() -> Members:
    """Members of every class, its bases' among them."""
    own: Members = {}
    bases: Members = {}
    for name, members, above in (each for path in CODE for each in source(path).classes):
        own.setdefault(name, set()).update(members)
        bases.setdefault(name, set()).update(above)

    def every(name: str, seen: frozenset[str] = frozenset()) -> set[str]:
        above = bases.get(name, set()) - seen
        return own.get(name, set()).union(*(every(base, seen | {name}) for base in above))

    return {name: every(name) for name in own}


@cache
def words() -> frozenset[str]:
    """Every name of the code, words of its strings that are no docstrings, keys and words of the tables."""
    found = {word for name in modules() for word in name.split(".")}
    found.update(*(source(path).words for path in CODE if path != Path(__file__)))
    for path in TABLES:
        found.update(re.findall(r"\w+", re.sub(r"#.*", "", path.read_text(encoding="utf-8"))))
    return frozenset(found)


@cache
def keys() -> frozenset[str]:
    """`outer.inner` of the tables' keys."""
    found: set[str] = set()

    def walk(table: dict[str, Any], above: str) -> None:
        for key, value in table.items():
            found.add(f"{above}.{key}")
            for inner in value if isinstance(value, list) else [value]:
                if isinstance(inner, dict):
                    walk(inner, key)

    for path in TABLES:
        walk(tomllib.loads(path.read_text(encoding="utf-8")), "")
    return frozenset(found)


@cache
def files() -> frozenset[str]:
    """Ends of the paths of the repository's files and folders: `step/compose.py`, `compose.py`."""
    found: set[str] = set()
    for path in [*ROOT.glob("*"), *(path for top in TOPS for path in (ROOT / top).rglob("*"))]:
        parts = path.relative_to(ROOT).parts
        found.update("/".join(parts[start:]) for start in range(len(parts)))
    return frozenset(found)


def is_there(name: str) -> bool:
    """Whether a dotted name is a module, something in one, a field of a class, of a table or of a library."""
    first, *others = name.split(".")
    if hasattr(builtins, first):
        return pydoc.locate(name) is not None
    if first in LIBRARIES:
        place = ".".join((LIBRARIES[first], *others))
        return find_spec(LIBRARIES[first]) is None or pydoc.locate(place) is not None
    if name in files() or name in keys() or name in words() or others[0] in classes().get(first, ()):
        return True
    is_module = False
    for end in range(1, len(others) + 2):
        inner, *deeper = *(first, *others)[end:], ""
        for module in by_ending().get(".".join((first, *others)[:end]), ()):
            is_module = True
            if not inner or (
                inner in modules()[module] and (not deeper[:-1] or deeper[0] in classes().get(inner, ()))
            ):
                return True
    # `kernel.tiles` of an argument: it is a name, what follows are fields
    return not is_module and first in words() and all(part in fields() for part in others)


@cache
def fields() -> frozenset[str]:
    """Members of any class."""
    return frozenset().union(*classes().values())


def is_path(name: str) -> bool:
    """Whether a path, with NAME or <name> for any, leads to a file or folder of the repository."""
    pattern = re.sub(r"<\w+>|\b[A-Z]{3,}\b", "*", name.rstrip("/"))
    if "*" not in pattern:
        return pattern in files()
    return any(any((ROOT / top).glob(pattern)) for top in (".", "medusa_sim"))


PATH = re.compile(
    rf"(?<![\w/.<>-])(?:{'|'.join((*TOPS, *ROOMS))})/[\w<>*./-]*[\w>*]\.(?:py|toml|md|csv|sh|txt|ipynb)\b"
)


def texts_of(path: Path) -> Iterator[str]:
    """Prose of a file: docstrings and comments, a page without its blocks, a table."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        yield re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    elif path.suffix == ".toml":
        yield from (found for found in PATH.findall(text))
    else:
        yield from source(path).prose
        yield from re.findall(r"#\s.*", text)


@cache
def cited(path: Path) -> frozenset[str]:
    """Names in backticks, paths anywhere in the prose."""
    found: set[str] = set()
    for text in texts_of(path):
        found.update(name.removesuffix("()") for name in re.findall(r"(?<!`)`([^`\n]+)`(?!`)", text))
        found.update(PATH.findall(text))
    return frozenset(found)


def is_missing(name: str) -> bool:
    """Whether a citation is written like a name or a path and leads nowhere."""
    if name.rstrip("/") in FOREIGN:
        return False
    if re.fullmatch(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+", name):
        return not is_there(name)
    if "/" in name:
        is_folder = re.fullmatch(rf"(?:{'|'.join(TOPS)})/[\w/]*", name)
        return bool(is_folder or PATH.fullmatch(name)) and not is_path(name)
    # a lone word is a name where it is written like one; columns have ends of their intervals beside them
    if re.fullmatch(r"[A-Za-z_]\w*", name) and re.search(r"\w_\w|[a-z][A-Z]|^[A-Z]\w+$", name):
        return not {name, re.sub("_(low|high)$", "", name)} & words() and not hasattr(builtins, name)
    return False


def is_private_of_another(name: str, path: Path) -> bool:
    """Whether code cites a private name that its own file does not know."""
    return (
        path.suffix == ".py"
        and re.fullmatch(r"_[A-Za-z]\w*", name) is not None
        and name not in source(path).words
    )


def test_cited_names_are_there():
    missing = {
        path: sorted(name for name in cited(path) if is_missing(name) or is_private_of_another(name, path))
        for path in [*CODE, *PAGES, *TABLES]
    }
    told = [f"{path.relative_to(ROOT)}: {', '.join(names)}" for path, names in missing.items() if names]
    assert not told, "name what is there now; what is another project's goes to FOREIGN"


def test_foreign_names_are_cited():
    every = {name for path in (*CODE, *PAGES, *TABLES) for name in cited(path)}
    assert not FOREIGN - {name.rstrip("/") for name in every}


@pytest.mark.parametrize(
    "name",
    ["latency.chosen", "specs.attention_backends", "step.union", "step/time_of_step.py", "no_such_function",
     "NoSuchClass", "Surface.no_such_field", "medusa_sim.setups.setup.Choices", "np.no_such", "docs/none.md"],
)  # fmt: skip
def test_a_name_that_is_gone_is_missed(name):
    assert is_missing(name)


@pytest.mark.parametrize(
    "name",
    ["compose.step_us", "Surface.by_count", "step/compose.py", "hardware/<gpu>.toml", "gemm.fp16",
     "np.unique", "medusa_sim.setups.question.SetupChoices", "RATIO_SHARE", "kernel.tiles", "config.json"],
)  # fmt: skip
def test_a_name_that_is_there_is_found(name):
    assert not is_missing(name)
