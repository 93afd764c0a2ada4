"""The scripts of this folder by what they are for: writes benchmarks/README.md.

python benchmarks/index.py
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
PAGE = HERE / "README.md"


@dataclass(frozen=True, slots=True)
class Group:
    """Modules of one purpose: scripts, the ones to begin with first, and what they import."""

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
        "served_rows deepseek_rows engine_fit engine_rows engine_bands engine_parallel first_tokens "
        "serving_validation load_validation compare_validation gpus_left_out moe_speculation published "
        "power_fit recipes terms",
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
        "every_setup answer_agrees pairs scan roads recorded_answers mutations guards app_feel",
    ),
    _group(
        "Pages and releases",
        "refresh_docs script pages index house worked_example hybrid_break_even build_site build_release",
    ),
)

_INTRODUCTION = """# Benchmarks

Written by `make docs` from `benchmarks/index.py`. What measures, fits and checks the simulator from outside.
Run a script from the root, `python benchmarks/NAME.py`; `--help` says what it needs. Measured rows are read
from `MEDUSA_SIM_DATA`, else from `../shared/data`.

- `log/`: what was tried and what it gave, a file a day.
- `asked/`: questions whose answers `recorded_answers.py` compares before and after a change.
- `engine/`: what runs inside vLLM's own environment. `models/`: sizes of models that are measured on a CPU.
- `published/`, `templates/`: figures that pages cite; pages with their numbers left out.
- `cpu_ground_truth.sh`: measure, train, decode and compare on this CPU, from nothing.
"""


def index_text() -> str:
    """The page: a table for each group, and the modules that its scripts import."""
    return "\n".join([_INTRODUCTION, *map(_section, GROUPS)])


def _section(group: Group) -> str:
    told = {name: _read(name) for name in group.names}
    scripts = [f"| `{name}.py` | {line} |" for name, (line, is_script) in told.items() if is_script]
    shared = [f"`{name}` ({line.rstrip('.')})" for name, (line, is_script) in told.items() if not is_script]
    lines = [f"## {group.title}", "", "| script | what it is for |", "| --- | --- |", *scripts, ""]
    return "\n".join(
        [*lines, *(["Imported by them:", "", *(f"- {one}" for one in shared), ""] if shared else [])]
    )


def _read(name: str) -> tuple[str, bool]:
    """What a module says of itself in its first line, and whether it is a command."""
    text = (HERE / f"{name}.py").read_text(encoding="utf-8")
    said = (ast.get_docstring(ast.parse(text)) or "").splitlines()[0]
    return said, "if __name__ ==" in text
