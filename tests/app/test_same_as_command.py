"""Every page says what the command that it prints says, on every GPU: no page resolves a set-up itself."""

import ast
import itertools
import json
from collections.abc import Callable
from typing import Any

import pytest
from pages_read import APP, Opened, commands, csv_rows, metrics, printed
from pages_read import charts as drawn

from medusa_sim.gpus.gpu import load_gpu
from medusa_sim.gpus.gpu_names import gpu_names
from medusa_sim.report.words.numbers import significant
from medusa_sim.scenario.scenario import Scenario
from medusa_sim.units import KILO

SET_UPS = (
    {"model": "llama-3.1-8b", "drafter": "eagle3", "runtime": "vllm-0.33"},
    {"model": "qwen3-30b-a3b", "drafter": "eagle3", "runtime": "sglang-0.5", "acceptance": "0.6"},
    {"model": "vicuna-7b", "drafter": "medusa", "runtime": "cuda-graph"},
)
CARDS = tuple(name for name in sorted(gpu_names()) if not name.startswith("cpu-"))
SERVED = (*SET_UPS[:2], {"model": "mistral-7b", "drafter": "ngram", "acceptance": "0.4"})
"""What engines run."""


def command(page: Any, name: str, told: str = "") -> str:
    """The first command of a page of that name."""
    return next(line for line in commands(page) if line.startswith(f"medusa-sim {name} ") and told in line)


def answer_page(opened: Opened, url: dict[str, Any]) -> None:
    page = opened("answer", batch=8, batch_max=16, **url)
    if not metrics(page):
        assert "does not fit" in page.error[0].value
        return
    told = json.loads(
        printed(f"{command(page, 'recommend', '--batch').partition(' --by-count')[0]} --format json")
    )
    rows = csv_rows(printed(command(page, "recommend", "--by-count")))
    counted, shown = told["counted_in"], drawn(page)[0]["data"]["values"]
    speedup = {(row["batch"], row[counted]): float(row["speedup"]) for row in rows}
    for point in shown:
        count = str(point[counted]) if point["candidates"] > 1 else "0" if counted == "drafts" else "1"
        assert point["speedup"] == pytest.approx(speedup.get((str(point["batch"]), count), 1.0)), point
    loses = told["break_even_batch"]
    figures = metrics(page)
    if told["enable"]:
        assert figures["Loses from"] == ("never" if loses is None else str(loses))


def roofline_page(opened: Opened, url: dict[str, Any]) -> None:
    page = opened("answer", batch=8, batch_max=8, look="roofline", **url)
    if not metrics(page):
        assert "does not fit" in page.error[0].value
        return
    rows = csv_rows(printed(command(page, "roofline")))
    layers = drawn(page)[-1]["layer"]
    points = next(each["data"]["values"] for each in layers if "time_us" in each["data"]["values"][0])
    assert [float(row["time_us"]) for row in rows] == pytest.approx([row["time_us"] for row in points])


def evidence_page(opened: Opened, url: dict[str, Any]) -> None:
    page = opened("evidence", **url)
    names = {"gpu", "model", "runtime", "drafter", "acceptance"}
    kernels = Scenario(**{name: value for name, value in url.items() if name in names}).kernels
    assert page.selectbox(key="kernels").value == kernels


def tree_page(opened: Opened, url: dict[str, Any]) -> None:
    page = opened("tree", size=8, batch=4, **{**url, **SET_UPS[2]})
    rows = csv_rows(printed(command(page, "recommend", "--by-count")))
    told = {int(row["candidates"]): float(row["speedup"]) for row in rows}
    assert metrics(page)["Speedup"] == f"{told[8]:.2f}x"


def load_page(opened: Opened, url: dict[str, Any]) -> None:
    page = opened("load", drafts=2, seqs=16, **url)
    if page.error and not metrics(page):
        return
    full = float(metrics(page)["Always full"].removesuffix("/s"))
    rows = csv_rows(printed(f"{command(page, 'load', '--format csv')} --requests 80 --seeds 1"))
    rate = max(float(row["rate_per_s"]) for row in rows if float(row["rate_per_s"]) < full)
    own = next(row for row in rows if float(row["rate_per_s"]) == rate and row["policy"] == "K=2")
    assert metrics(page)["Time per token"] == f"{significant(KILO * float(own['tpot_mean_s']), 3)} ms"


def which_page(opened: Opened, url: dict[str, Any]) -> None:
    page = opened("compare", gpu_choices=url["gpu"], copies=1, target=10, **url)
    if page.error and not metrics(page):
        return
    rows = csv_rows(printed(command(page, "compare")))
    chosen = [row for row in rows if row["chosen"].lower() == "true"]
    if not chosen:
        assert page.error
        return
    assert metrics(page)["Tokens/s a user"] == significant(float(chosen[0]["tokens_per_s_per_user"]), 3)


PAGES: dict[str, Callable[[Opened, dict[str, Any]], None]] = {
    "answer": answer_page, "roofline": roofline_page, "evidence": evidence_page, "tree": tree_page,
    "load": load_page, "which": which_page,
}  # fmt: skip


def cases() -> list[Any]:
    """Every GPU, page and set-up; a share of the GPUs, set-ups in turn, is not nightly."""
    own = {name for name in CARDS if load_gpu(name).step_kernels}
    found = []
    for (at, card), (turn, name) in itertools.product(enumerate(CARDS), enumerate(PAGES)):
        of = SERVED if name in ("load", "which") else SET_UPS[:1] if name == "tree" else SET_UPS
        for i, chosen in enumerate(of):
            first = at % (4 if name == "answer" else 10) == turn % 2 + (name != "answer") * turn // 2
            quick = (first and i == at // 2 % len(of)) or (card in own and i == 0 and turn < 1)
            marks = [] if quick else [pytest.mark.nightly]
            url = {"gpu": card, **chosen}
            found.append(pytest.param(name, url, marks=marks, id=f"{name}-{card}-{chosen['model']}"))
    return found


@pytest.mark.usefixtures("short_loads")
@pytest.mark.parametrize(("page", "url"), cases())
def test_a_page_says_what_its_command_says(opened: Opened, page: str, url: dict[str, Any]) -> None:
    PAGES[page](opened, url)


RESOLVES = {"kernel_set", "step_kernels", "latency_model", "with_dtypes", "on_one_gpu", "as_served", "as_run"}


def test_no_page_resolves_a_set_up_itself() -> None:
    """Words go to `Scenario`: kernels, formats and what one GPU holds are chosen there alone."""
    for path in APP.rglob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        names = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
        names |= {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
        assert not names & RESOLVES, path.name
