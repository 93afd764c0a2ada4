"""benchmarks/README.md: the scripts by what they are for, and what they share."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
BENCHMARKS = HERE.parent
PAGE = BENCHMARKS / "README.md"


@dataclass(frozen=True, slots=True)
class Group:
    """Scripts of one purpose, the ones to begin with first, and what only these share."""

    title: str
    names: tuple[str, ...]


def _group(title: str, names: str) -> Group:
    return Group(title, tuple(names.split()))


GROUPS = (
    _group(
        "Errors of kernels",
        "operator_rows kernels verify_attention kernel_rows mixer_rows routing expert_union",
    ),
    _group(
        "Terms and errors of engines and servers",
        "hierarchy hierarchy_cells hierarchy_terms hierarchy_fit hierarchy_bands hierarchy_written "
        "served_rows deepseek_rows engine_fit engine_rows engine_bands round_bands "
        "first_tokens serving_validation load_validation compare_validation gpus_left_out moe_speculation "
        "published power_fit recipes terms",
    ),
    _group(
        "Acceptance",
        "acceptance acceptance_by_output decoder own_pair draft_pairs deeper_rates depth_profiles "
        "lookup_runs",
    ),
    _group(
        "Real engines, machines and the decoder",
        "validate_engine engine_load engine_page steps_record steps_compared agreement validate_local "
        "local_speed local_curves local_page llama_runs near_ties decoder_speed peers widened "
        "gpu_ground_truth",
    ),
    _group(
        "All errors, and where their rows are",
        "accuracy evidence evidence_rows evidence_rule evidence_wheel measured_pairs own_servers "
        "page_commands readme_errors study validation",
    ),
    _group(
        "Do answers stay right, and fast",
        "every_setup answer_agrees scan roads recorded_answers mutations guards app_feel",
    ),
    _group(
        "Pages and releases",
        "refresh_docs script pages index house worked_example hybrid_break_even build_site build_release",
    ),
)

_INTRODUCTION = """# Benchmarks

What measures, fits and checks the simulator from outside. Written by `make docs` from
`benchmarks/common/index.py`.

Run a script from the root, `python benchmarks/NAME.py`; `--help` says what it needs. Scripts print; those
that have a page or a file of parameters write it with `--write`. Measured rows are read from
`MEDUSA_SIM_DATA`, else from `../shared/data`.

| to | run |
| --- | --- |
| see how a change moves answers | `recorded_answers.py record FILE` before, `compare FILE` after |
| see how it moves errors on measured rows | `accuracy.py` |
| fit what engines add to kernels again | `hierarchy.py` |
| look for answers that contradict themselves | `scan.py`, `every_setup.py --sample 500` |
| find lines that no test holds | `mutations.py --room ROOM --count 5` |
| compare speed and memory with a commit | `make bench` |
| renew pages | `make docs` |

Beside the scripts:

- `common/`: what they share; nothing in it is run by itself.
- `log/`: what was tried and what it gave, a file a day.
- `asked/`: questions whose answers `recorded_answers.py` compares before and after a change.
- `engine/`: what runs inside vLLM's own environment. `models/`: sizes of models that are measured on a CPU.
- `published/`, `templates/`: figures that pages cite; pages with their numbers left out.
- `cpu_ground_truth.sh`: measure, train, decode and compare on this CPU, from nothing.
"""


def index_text() -> str:
    """The page: scripts in a table for each purpose, then the modules that they share."""
    shared = (f"- {line}" for group in GROUPS for line in _shared(group))
    return "\n".join(
        [_INTRODUCTION, *map(_section, GROUPS), "## What they share, in `common/`", "", *shared, ""]
    )


def _section(group: Group) -> str:
    scripts = [name for name in group.names if (BENCHMARKS / f"{name}.py").is_file()]
    rows = (f"| `{name}.py` | {_said(BENCHMARKS / f'{name}.py')} |" for name in scripts)
    return "\n".join([f"## {group.title}", "", "| script | what it is for |", "| --- | --- |", *rows, ""])


def _shared(group: Group) -> Iterator[str]:
    for name in group.names:
        if (path := HERE / f"{name}.py").is_file():
            yield f"`{name}`: {_said(path)}"


def _said(path: Path) -> str:
    """What a module says of itself in its first line."""
    return (ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "").splitlines()[0]
