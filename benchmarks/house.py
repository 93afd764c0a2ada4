"""The rooms of the package from the top down: the test enforces this list, CONTRIBUTING shows it.

A module imports from its own line and from lines above. Where the modules of a room are listed, they are in
order as well: each imports from those before it.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Room:
    """One line of the house: a folder of the package, or modules that lie loose beside it."""

    names: tuple[str, ...]
    says: str
    modules: tuple[str, ...] = ()


def in_order(modules: str) -> tuple[str, ...]:
    """Modules of a room, as they stand."""
    return tuple(modules.split())


HOUSE = (
    Room(("errors",), "what a user can cause or fix, one line each"),
    Room(("outside",), "how much is taken from files and links, and how their text goes out again"),
    Room(("file_types", "units", "arrays"), "types of stored weights, constants and array types"),
    Room(("data",), "where files are found"),
    Room(
        ("reading",),
        "files within limits; documents, strict schemas and tables of them",
        in_order("files documents strict tables"),
    ),
    Room(("writing",), "files appear whole or not at all"),
    Room(("gpus",), "data sheets, fitted kernels, prices, and what a GPU borrows from another"),
    Room(
        ("models",),
        "layers of a model, by name, from a config or a GGUF file; formats and shares of GPUs",
    ),
    Room(
        ("engines",),
        "runtimes and what engines add to kernels: terms, where they were measured, how near",
    ),
    Room(("operators",), "FLOP and byte counts, each written once; tables of operators in and out"),
    Room(("latency",), "operator -> time: roofline, calibrated kernels, measured rows"),
    Room(("acceptance",), "heads, trees, curves and profiles -> tokens per step; knows no cost"),
    Room(
        ("step",),
        "model and workload -> kernels -> one step; its time is composed in one place (compose)",
        in_order(
            "expert_union launch workload mixer_layers attention latent sparse recurrent "
            "residual feed_forward fusions exchange accepting last_logits network kernels pass_work "
            "timed_kernels graphs host compose pass_times verified drafter setting pass_cost drafting "
            "prompt_kernels prompts step sampling memory rows breakdown"
        ),
    ),
    Room(
        ("serving",),
        "a full server: steps averaged over who decodes, who is away and whose prompt rides along",
        in_order(
            "chance request_steps traffic running returning request_cycle begun_prompts "
            "mixed_steps step_means first_tokens server watts"
        ),
    ),
    Room(
        ("scenario",),
        "what is asked, resolved once: arguments, defaults, acceptance -> a scenario",
        in_order(
            "defaults acceptance declare axis_values arguments question draft_options as_run local_rows "
            "local_correction latency_asked kernel_fits adjusted_acceptance scenario"
        ),
    ),
    Room(
        ("doubts",),
        "what a scenario rests on that was not measured for it, in sentences",
        in_order(
            "standing stand_ins acceptance kernels room of_scenario term_shares terms one_model of_answer"
        ),
    ),
    Room(
        ("grid",),
        "scenario -> surface (the only thing that prices steps) -> cells and every quantity of them",
        in_order(
            "axes roofline cached_or_self extrapolation configurations surface steps server_steps bands "
            "cells costs quantity quantities cell single_step request_latency sweep"
        ),
    ),
    Room(
        ("plan",),
        "cells -> what to run: verdicts, schedules, recommendations, checks of running engines",
        in_order(
            "verdict measured_run check surprises count_curves coarse_search "
            "break_even shortfall sweep_answer batch_ranges range_cell sensitivity alternatives "
            "schedule_row quantities schedule capacity recommendation recommend tree_answer"
        ),
    ),
    Room(
        ("engine_runs",),
        "benchmarks, logs and counters of running engines, read as runs to check",
        in_order("log bench_row load_generators bench run"),
    ),
    Room(
        ("load",),
        "requests over time: arrivals, an engine's scheduler, policies of speculation, goodput",
        in_order(
            "quantities arguments slos limits requests trace lengths sources accepted draws server_host "
            "prompt_table step_table policies policy_names run_result recorder request_state batch cache "
            "asked_policy scheduler clients serving_loop energy metrics point load_test trial saturation "
            "largest_rate losses carried_rates answer"
        ),
    ),
    Room(
        ("setups",),
        "which set-up: all that model, GPU and engine allow, the frontier, the one for a target",
        in_order(
            "quantities question setup served_figures set_up_cells pricing comparison search measured loaded"
        ),
    ),
    Room(("export",), "launch settings of engines"),
    Room(
        ("report",),
        "answers in words, tables, pages and figures, a folder a command; numbers are rounded only here",
    ),
    Room(
        ("parts",),
        "a question of any size cut into parts that any number of workers write",
        ("json_arguments", "folder", "works", "running", "processes", "cluster"),
    ),
    Room(
        ("lab",),
        "what measures, fits and checks: a real Medusa decoder (torch), microbenchmarks, fits, papers",
        in_order("block_efficiency decoder measure calibrate validate reproduce"),
    ),
    Room(("cli",), "one module a command"),
    Room(("api",), "the Python face: import medusa_sim"),
)
MOST_LOOSE = 9
"""Modules that may lie beside the rooms, __init__ and __main__ among them."""
START, END = "<!-- house: written by make docs from benchmarks/house.py -->", "<!-- /house -->"


def house_text() -> str:
    """The block of CONTRIBUTING.md."""
    width = max(len(", ".join(room.names)) for room in HOUSE) + 1
    lines = [
        "hardware/  profiles/   numbers with their sources: GPUs and kernels, acceptance, the papers' tables"
    ]
    lines += ["medusa_sim/"]
    for room in HOUSE:
        name = ", ".join(room.names)
        folder = "" if len(room.names) > 1 or room.names[0] in _LOOSE else "/"
        lines.append(f"  {name + folder:<{width}}  {room.says}")
    lines += ["app/                  the browser app: widgets -> one cached call into the package -> charts"]
    lines += ["tests/  benchmarks/  docs/"]
    block = "\n".join(lines)
    return f"{START}\n\n```text\n{block}\n```\n\n{END}"


_LOOSE = ("errors", "data", "writing", "api")
