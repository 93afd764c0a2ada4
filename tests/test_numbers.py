"""Numbers that stand in a page and in the code agree.

Equations that a docstring repeats under their label have the numbers of the page; constants that a page
states in words are the constants in use.
"""

import ast
import re
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
from scipy.optimize import least_squares

from medusa_sim.engines.runtime import load_runtime
from medusa_sim.lab.reproduce.published import read_published
from medusa_sim.lab.reproduce.token_rates import plain_step
from medusa_sim.units import US_PER_S

ROOT = Path(__file__).resolve().parents[1]
PAGES = {path.stem: path.read_text(encoding="utf-8") for path in sorted(ROOT.glob("docs/method*.md"))}
PAGES["CONTRIBUTING"] = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
NUMBER = r"\d[\d,]*(?:\.\d+)?"
ENGINE = load_runtime("vllm").engine

STATED = {
    # what is asked where nothing is said, and how an answer is chosen
    "method: overhead at most #, over the whole step": "scenario.defaults:FREE_WITHIN",
    "CONTRIBUTING: count up to it costs at most # % more": "100 * (scenario.defaults:FREE_WITHIN - 1)",
    "CONTRIBUTING: counts within # % of the best speedup": "100 * plan.count_curves:NEAR_BEST",
    "method: batch # and length # of the same GPU": (
        "scenario.defaults:FIXED_BASELINE_BATCH, scenario.defaults:FIXED_BASELINE_SEQ_LEN"
    ),
    "method: # of the bands of their single rows from a GPU of the same architecture, # from another": (
        "gpus.inheritance:TOGETHER_ALIKE, gpus.inheritance:TOGETHER"
    ),
    "method: no drafts are made, on 1..#": "plan.coarse_search:BATCHES_SEARCHED",
    "method: optimal trees of 2 to # candidates": "scenario.defaults:CANDIDATES_MAX",
    "method: # contexts, trapezoid": "grid.request_latency:_CONTEXTS",
    "method: Usable is # M less # GB": "step.memory:USABLE_MEMORY_SHARE, step.memory:CONTEXT_BYTES / 1e9",
    "method: one older than # days": "gpus.prices:STALE_DAYS",
    # the step
    "method: step time = |device, host|_#": "step.host:HOST_OVERLAP",
    "method: at most # % above the longer": "100 * (2 ** (1 / step.host:HOST_OVERLAP) - 1)",
    "method: The exponent # is": "step.host:HOST_OVERLAP",
    "method: at least #h where it has none": "step.drafter.layer:WIDTHS_OF_MLP",
    "method-engines: together # counts (`RATIO_SHARE`)": "step.compose:RATIO_SHARE",
    "method-engines: match_rate = min(1, a_1 / #)": "acceptance.profile:ACCEPTED_OF_MATCHES",
    "method-engines: take a share (#) of what they take": "ENGINE.elementwise_share.value",
    "method-engines: filter_top_k_share #, filter_full_rows #, filter_share_beyond #": (
        "ENGINE.filter_top_k_share.value, ENGINE.filter_full_rows.value, ENGINE.filter_share_beyond.value"
    ),
    "method-engines: (`--length-cv`, #;": "scenario.arguments:Arguments.length_cv",
    "method-engines: least squares of the relative errors (# %,": "100 * lab.calibrate.engine_fit:NOISE",
    "method-engines: at least # us, # us a request, # bytes": (
        "*lab.calibrate.engine_fit:_HOST_SPREAD.values()"
    ),
    "method-engines: with a band of +-# %": "100 * gpus.power:TRANSFER_ERROR",
    # kernels
    "method-kernels: at m rounded up to a multiple of #": "latency.gemm:_CHOICE_STEP",
    "method-kernels: splits = ceil(blocks / ceil(# blocks tiles / S))": "latency.attention:SPLIT_MARGIN",
    "method-kernels: splits = blocks tile_keys / chunk, u even on 1 +- #": "latency.attention:_LENGTH_SPREAD",
    "method-kernels: |256 / F, #| clocks, splits = 1 F FLOPs of an SM in a clock; tiles of # rows": (
        "latency.verify_attention:_WHOLE_SERIAL_CLOCKS, latency.verify_attention:_WHOLE_ROWS"
    ),
    "method-kernels: |bytes / (bandwidth_fraction B), 2 x # x # k": (
        "latency.latent:_TILE_ROWS, latency.latent:_TILE_COLUMNS"
    ),
    "method-kernels: the band wider by # % in quadrature": "100 * latency.latent:_GROWTH_ERROR",
    "method-kernels: e is # within an architecture, # across architectures and # for attention": (
        "gpus.inheritance:TRANSFER_ERROR_ALIKE, gpus.inheritance:TRANSFER_ERROR, "
        "gpus.inheritance:TRANSFER_ERROR_ATTENTION"
    ),
    "method-kernels: who wrote the kernel: # and #, and # more in quadrature": (
        "gpus.inheritance:TRANSFER_ERROR_SCALED_ALIKE, gpus.inheritance:TRANSFER_ERROR_SCALED, "
        "gpus.inheritance:TRANSFER_ERROR_LIBRARY"
    ),
    "method-kernels: beyond # ranks a later one": "latency.collective:_ENDS_KNOWN_TO",
    "method-kernels: start_us + width_us h / # + spread_us c": "latency.dispatch:_WIDTH",
    "method-kernels: among the measured m below #": "lab.calibrate.serial:_FEW_ROWS",
    "method-kernels: beta is # for chains (least squares on the published unions; # to # is its spread": (
        "step.expert_union:CHAIN.beta, step.expert_union:CHAIN.low, step.expert_union:CHAIN.high"
    ),
    "method-kernels: and # for trees (# to #)": (
        "step.expert_union:TREE.beta, step.expert_union:TREE.low, step.expert_union:TREE.high"
    ),
    "method-kernels: its band wider by e = #, with which 80 %": "latency.moe:SPREAD_ERROR",
    "method-kernels: one token # n d_k d_v FLOPs (Mamba-2 #)": (
        "operators.recurrent:_FLOPS_PER_ENTRY['gdn'], operators.recurrent:_FLOPS_PER_ENTRY['mamba2']"
    ),
    "method-kernels: chunks of C = #": "operators.recurrent:CHUNK['gdn']",
    "method-kernels: Mamba-2, C = #": "operators.recurrent:CHUNK['mamba2']",
    "method-kernels: n = floor(s / #), at most # blocks a multiprocessor": (
        "operators.window:_SPLIT_KEYS, operators.window:_SPLIT_BLOCKS"
    ),
    "method-kernels: error <= floor + # %": "100 * lab.validate.comparison:ALLOWANCE",
    "method-kernels: a sample is # us or more of calls": "lab.measure.bench:_SAMPLE_US",
    "method-kernels: (p90 - p10) / median is above # %": "100 * lab.measure.spread:SPREAD_LIMIT",
    "method-kernels: take turns, settle for # s untimed": "lab.measure.timed_steps:_SETTLE_S['cpu']",
    "method-kernels: threads, clocks (# %) or dtype": "100 * lab.measure.environment:CLOCK_TOLERANCE",
    "method-kernels: rotate through min(W, # C) bytes": "lab.measure.kernels:CACHE_MULTIPLE['cpu']",
    # acceptance
    "method-acceptance: order statistics of # exponentials; draft logits the same plus # normals": (
        "lab.block_efficiency.contexts:ContextModel.vocabulary, "
        "lab.block_efficiency.contexts:ContextModel.noise"
    ),
    "method-acceptance: 1 - alpha(x)^# the": "lab.block_efficiency.contexts:ContextModel.support_exponent",
    "method-acceptance: with # of the variance s^2, W autoregressive (# per position)": (
        "lab.block_efficiency.contexts:ContextModel.block_share, "
        "lab.block_efficiency.contexts:ContextModel.correlation"
    ),
    "method-acceptance: lowered by # times the surprisal min(-ln draft, #)": (
        "lab.block_efficiency.contexts:ContextModel.surprisal_cost, "
        "lab.block_efficiency.contexts:SURPRISAL_MAX"
    ),
    "method-acceptance: # % standard error per row, prior N(#, #) on ln s": (
        "100 * lab.block_efficiency.contexts:ContextModel.observation_error, "
        "*lab.block_efficiency.contexts:ContextModel.spread_prior"
    ),
    "method-acceptance: softness k from #, #, #, #, #, with # / k normals in (D8)": (
        "*lab.block_efficiency.prediction:SOFTNESS, lab.block_efficiency.contexts:ContextModel.noise"
    ),
    "method-acceptance: N(0, #) on ln k": "lab.block_efficiency.contexts:ContextModel.softness_spread",
    "method-acceptance: # levels of x, # contexts each": (
        "lab.block_efficiency.contexts:ContextModel.levels, "
        "lab.block_efficiency.contexts:ContextModel.contexts"
    ),
}  # fmt: skip
"""`page: words around the numbers` -> the numbers, `module:NAME` in an expression of Python."""


def flat(text: str) -> str:
    """Blanks and line ends as one blank each."""
    return re.sub(r"\s+", " ", text)


def number(text: str) -> float:
    return {"half": 0.5}.get(text) or float(text.replace(",", ""))


def in_code(expression: str) -> tuple[float, ...]:
    """The value of an expression in which `module:NAME` is what the module holds."""
    modules: dict[str, object] = {"ENGINE": ENGINE, "load_runtime": load_runtime}

    def read(found: re.Match[str]) -> str:
        name = found[1].replace(".", "_")
        modules[name] = import_module(f"medusa_sim.{found[1]}")
        return f"{name}.{found[2]}"

    code = re.sub(r"([a-z_]+(?:\.[a-z_]+)*):([A-Za-z_]+)", read, expression)
    return tuple(eval(f"({code},)", modules))  # noqa: S307  # the table of this file


@pytest.mark.parametrize("place", STATED)
def test_a_page_states_the_constants_in_use(place):
    if "measure." in STATED[place]:
        pytest.importorskip("torch")
    page, _, words = place.partition(": ")
    pattern = re.escape(flat(words)).replace(r"\#", f"({NUMBER}|half)")
    found = re.findall(pattern, flat(PAGES[page]))
    assert found, "the page says it in other words: change them here too"
    for each in found:
        stated = tuple(map(number, (each,) if isinstance(each, str) else each))
        assert stated == pytest.approx(in_code(STATED[place]), rel=2e-3)


@pytest.mark.parametrize(("table", "column"), [("medusa_table1", "baseline_tokens_per_s_approx"),
                                               ("medusa_table4", "baseline_tokens_per_s")])  # fmt: skip
def test_the_exponent_that_each_table_asks_for_is_the_one_that_is_shown(table, column):
    """Exponent of device and host, and time of a launch: least squares over the four rates of a table."""
    printed = read_published(table)
    steps = [plain_step(model) for model in printed["model"]]
    device_us, launches = (
        np.array([getattr(step, name) for step in steps]) for name in ("device_us", "launches")
    )
    measured_us = US_PER_S / printed[column].astype(float).to_numpy()

    def miss(launch_us: float, exponent: float) -> np.ndarray:
        host_us = launches * launch_us
        return (device_us**exponent + host_us**exponent) ** (1.0 / exponent) / measured_us - 1.0

    fitted = float(least_squares(lambda x: miss(*x), (45.0, 3.0), x_scale=(10.0, 1.0)).x[1])
    code = (ROOT / "medusa_sim" / "step" / "host.py").read_text(encoding="utf-8")
    name = f"Table {table[-1]}"
    for text in (PAGES["method"], code):
        (told,) = re.findall(rf"{name} (?:alone asks )?for ({NUMBER})", flat(text))
        assert number(told) == pytest.approx(fitted, abs=0.06)


EQUATION = re.compile(r"    \(([A-Z]\d{1,2})\)(.*)")


def equations() -> dict[str, str]:
    """The block of each label in the pages."""
    blocks: dict[str, str] = {}
    label = ""
    for line in "\n".join(PAGES.values()).splitlines():
        if found := EQUATION.match(line):
            label = found[1]
            blocks[label] = found[2]
        elif label and line.startswith("      "):
            blocks[label] += line
        elif not line.startswith("    "):
            label = ""
    return blocks


def numbers(text: str) -> set[float]:
    """Of an equation; labels and indices of names left out."""
    text = re.sub(r"\([A-Z]\d{1,2}\)", "", text)
    return {float(found) for found in re.findall(r"(?<![\w.])(?<![a-z]_)\d+(?:\.\d+)?", text)}


def repeated() -> list[tuple[str, str, str]]:
    """(file, label, equation) of docstrings: the label before the equation, or at the end of its line."""
    known, found = equations(), []
    for path in sorted((ROOT / "medusa_sim").rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(text)) if re.search(r"\([A-Z]\d{1,2}\)", text) else ():
            if (
                isinstance(node, ast.Expr)
                and isinstance(node.value, ast.Constant)
                and isinstance(node.value.value, str)
            ):
                for line in node.value.value.splitlines():
                    before = re.match(r"\s{4,}\(([A-Z]\d{1,2})\)\s+(.*)", line)
                    behind = re.match(r"(\s{4,}.*?)\s+\(([A-Z]\d{1,2})\)$", line)
                    label, equation = (
                        before.groups() if before else behind.groups()[::-1] if behind else ("", "")
                    )
                    if label in known:
                        found.append((str(path.relative_to(ROOT)), label, equation.strip()))
    return found


@pytest.mark.parametrize(("path", "label", "equation"), repeated(), ids=lambda text: text[:40])
def test_an_equation_in_a_docstring_has_the_numbers_of_the_page(path, label, equation):
    assert numbers(equation) <= numbers(equations()[label]), f"{path}: ({label}) is another on the page"


def test_equations_are_found():
    assert len(repeated()) > 50
