"""Under load, Tree, Evidence, what a server says, wrong links: what a page shows is the package's."""

import random
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import answers
import pytest
import show
import under_load
from chosen import PageArguments
from damage import NUMBERS, WORDS
from one_line import one_line
from pages_read import (
    Opened,
    commands,
    csv_rows,
    figures,
    metrics,
    printed,
    set_up,
    table_of,
    text_of,
    unfolded,
)
from pages_read import charts as drawn
from streamlit.testing.v1 import AppTest
from views import sources as method
from views.server import OPENED

from medusa_sim import data
from medusa_sim.acceptance.tree import CandidateTree
from medusa_sim.doubts.of_scenario import scenario_doubts
from medusa_sim.errors import SpecError
from medusa_sim.load.arguments import LoadArguments
from medusa_sim.report.words.numbers import significant

EAGLE = {"gpu": "h100-sxm", "model": "llama-3.1-8b", "drafter": "eagle3", "seqs": 64, "tpot": 12}


@pytest.mark.usefixtures("short_loads")
def test_the_answer_is_the_packages_and_the_commands(opened: Opened) -> None:
    page = opened("load", **EAGLE, drafts=3)
    asked = LoadArguments(policies=("none", "3"), tpot_ms=12.0, max_num_seqs=64)
    found = under_load.load(PageArguments(gpu="h100-sxm", model="llama-3.1-8b", drafter="eagle3"), asked)
    plain, drafting = found.carried
    shown = metrics(page)
    assert shown["Carried within the limits"] == f"{significant(drafting.largest_per_s or 0.0, 3)}/s"
    assert shown["Always full"] == f"{significant(drafting.saturated_per_s, 3)}/s"
    assert page.success[0].value.startswith(
        "**llama-3.1-8b on h100-sxm under vllm-0.33:** With 3 drafts a step the server sustains "
    )
    assert len(drawn(page)) == 3, "against the rate, over time, what was measured"
    told = next(told for told in commands(page) if "--timeline" not in told)
    rows = csv_rows(printed(f"{told} --requests 80 --seeds 1"))
    assert [row["policy"] for row in rows[:2]] == ["none", "K=3"]
    for point in found.last:
        asked = point.policy, point.arrivals_per_s
        own = (row for row in rows if (row["policy"], float(row["rate_per_s"])) == asked)
        assert float(next(own)["tpot_mean_s"]) == point.mean["tpot_mean_s"]
    assert float(rows[-1]["rate_per_s"]) > drafting.saturated_per_s, "drawn beyond where it is full"
    assert plain.largest_per_s is not None


@pytest.mark.usefixtures("short_loads")
@pytest.mark.parametrize(
    "url",
    [
        {"policy": "schedule", "drafts": 1, "ttft": 200},
        {"policy": "budget", "bursts": 4, "prompts": 2000, "outputs": 100, "shows": "goodput_per_s",
         "over": "kv_tokens"},
    ],
)  # fmt: skip
def test_changes_are_followed(opened: Opened, url: dict[str, object]) -> None:
    page = opened("load", **{**EAGLE, **url})
    assert page.success
    assert not page.error


@pytest.mark.usefixtures("short_loads")
def test_what_cannot_be_simulated_is_one_line(opened: Opened) -> None:
    page = opened("load", runtime="cuda-graph", acceptance="paper-fig21")
    assert "by position" in page.error[0].value
    nobody = opened("load", drafter="eagle", model="opt-13b", drafts=16)
    assert nobody.error or nobody.success


def budget(page: AppTest) -> tuple[dict[str, dict[int, float]], dict[str, dict[str, Any]]]:
    """Both lines of the budget chart by count, and the tree at hand on each of them."""
    spec = next(
        each for each in drawn(page) if "layer" in each and "what" in str(each["layer"][0]["encoding"])
    )
    lines: dict[str, dict[int, float]] = {}
    for row in spec["layer"][0]["data"]["values"]:
        lines.setdefault(row["what"], {})[row["candidates"]] = row["value"]
    return lines, {row["what"]: row for row in spec["layer"][1]["data"]["values"]}


@pytest.mark.parametrize(
    ("size", "batch", "runtime"), [(2, 1, "hf-eager"), (16, 8, "cuda-graph"), (200, 2, "cuda-graph")]
)
def test_the_best_tree_of_its_size_lies_on_the_curve(
    opened: Opened, size: int, batch: int, runtime: str
) -> None:
    lines, here = budget(opened("tree", size=size, batch=batch, gpu="h100-sxm", runtime=runtime))
    for what, row in here.items():
        assert row["candidates"] == size
        assert row["value"] == pytest.approx(lines[what][size])


@pytest.mark.parametrize(
    "url",
    [
        {},
        {"runtime": "hf-eager", "batch": 4},
        {"model": "vicuna-13b"},
        {"drafter": "eagle"},
        {"runtime": "vllm-0.33", "drafter": "draft-model", "acceptance": "0.7,0.5,0.4"},
    ],
)
def test_the_command_gives_the_curve(opened: Opened, url: dict[str, Any]) -> None:
    page = opened("tree", size=40, **url)
    rows = csv_rows(printed(next(told for told in commands(page) if "--by-count" in told)))
    lines, _ = budget(page)
    assert [int(row["candidates"]) for row in rows] == [*lines["speedup"]]
    for what, column in (("tokens per step", "tokens_per_step"), ("speedup", "speedup")):
        assert [float(row[column]) for row in rows] == pytest.approx([*lines[what].values()])


def test_answers_follow_what_is_asked() -> None:
    tree = CandidateTree.cartesian([3, 2])
    first = answers.tree(set_up(), tree, 2).step_speedup
    assert answers.tree(set_up(), tree, 2).step_speedup == first
    others = (
        answers.tree(set_up(gpu="l40s"), tree, 2),
        answers.tree(set_up(seq_len=200), tree, 2),
        answers.tree(set_up(), tree, 3),
        answers.tree(set_up(model="vicuna-13b"), tree, 2),
        answers.tree(set_up(), CandidateTree.cartesian([2, 2]), 2),
    )
    assert first not in [other.step_speedup for other in others]


def test_rates_of_a_chain_have_a_short_curve(opened: Opened) -> None:
    page = opened("tree", drafter="eagle", kind="my paths", paths="[[0], [0, 0]]")
    assert not page.error
    lines, here = budget(page)
    assert 6 <= max(lines["speedup"]) <= 16, "as far as rates are carried on"
    assert here["speedup"]["value"] == pytest.approx(lines["speedup"][3])


def test_the_interval_says_what_it_is(opened: Opened) -> None:
    page = opened("tree", acceptance="python-stdlib-medusa-1")
    found = next(each for each in figures(page) if each["Label"] == "Tokens per step")
    assert found["Delta"].endswith("(80 %)")
    assert "80 % interval from the sample sizes" in found["meaning"]
    assert "model error" in found["meaning"]


def test_the_caption_of_the_tree_says_what_is_drawn(opened: Opened) -> None:
    def captions(**url: Any) -> list[str]:
        return [each.value for each in opened("tree", runtime="cuda-graph", **url).caption]

    assert "Numbers: ranks" in " ".join(captions(size=64))
    assert "independent" in " ".join(captions(size=64))
    assert "Numbers" not in " ".join(captions(size=65))
    assert "fitted tail" in " ".join(captions(kind="my paths", paths="[[0], [11]]"))
    assert "fitted tail" not in " ".join(captions(kind="my paths", paths="[[0], [1]]"))


def test_what_the_set_up_rests_on_stands_below_the_headline(opened: Opened) -> None:
    url = {"gpu": "h200-sxm", "model": "llama-3.1-8b", "drafter": "eagle3", "runtime": "vllm-0.33"}
    page = opened("tree", **url)
    lines = scenario_doubts(answers.scenario_of(set_up(**url)))
    assert lines
    shown = [each.value for each in page.markdown]
    for line in lines:
        assert any(show.in_words(line[1:]) in each for each in shown)


@pytest.mark.parametrize(
    "url",
    [
        {},
        {"fitted": "false", "gpu": "h100-sxm", "model": "llama-3-8b", "runtime": "hf-eager"},
        {"acceptance": "paper-fig4-sparse"},
        {"drafter": "ngram", "acceptance": "0.6"},
    ],
)
def test_the_command_lists_what_the_page_shows(opened: Opened, url: dict[str, Any]) -> None:
    page = opened("evidence", view="numbers in use", **url)
    told = next(told for told in commands(page) if "medusa-sim specs" in told)
    rows = csv_rows(printed(f"{told} --format csv"))
    table = table_of(page, "what", "number")
    listed = [(f"{row['kind']} {row['name']}", row["key"]) for row in rows]
    assert listed == list(zip(table["what"], table["number"], strict=True))
    assert ("--with-kernels" in told) == (url.get("fitted") != "false")
    if url.get("drafter") != "ngram":
        assert any(what.startswith("acceptance ") for what, _ in listed)
    assert (table["source"].str.len() > 0).all()
    fewer = table_of(opened("evidence", view="numbers in use", find="bandwidth", **url), "what", "number")
    assert 0 < len(fewer) < len(table)


def test_a_missing_file_is_one_line(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    with one_line(SpecError, "hardware/no-such-gpu.toml", "a100-80gb-pcie", "choose"):
        method.found_file("hardware", "no-such-gpu.toml")
    assert method.found_file("hardware", "a40.toml").name == "a40.toml"
    monkeypatch.setattr(method, "data", SimpleNamespace(find=lambda *_: None, stems=data.stems))
    page = opened("evidence", view="numbers in use")
    assert [error.value for error in page.error if "hardware/a100-80gb-pcie.toml" in error.value]
    assert len(table_of(page, "what", "number")), "the numbers are shown before the line"


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("see [log.md](log.md), then", "see log.md, then"),
        ("[a *b*](../docs/x.md#part) and [c](d.md)", "a *b* and c"),
        ('[t](log.md "a title")', "t"),
        ("![the page](images/tree.png)", "the page"),
        ("[paper](https://arxiv.org/abs/2401.10774)", "[paper](https://arxiv.org/abs/2401.10774)"),
        ("[paper](http://a.b/c)", "[paper](http://a.b/c)"),
        ("[below](#the-step)", "[below](#the-step)"),
        ("`a[i](x)` stays", "`a[i](x)` stays"),
        ("```\nf[k](n)\n```\n[y](z.md)", "```\nf[k](n)\n```\ny"),
        ("T[m] (n) and (a) [b]", "T[m] (n) and (a) [b]"),
    ],
)
def test_relative_links_become_text(given: str, shown: str) -> None:
    assert method.without_relative_links(given) == shown


def test_no_link_of_the_page_leads_nowhere_and_only_links_change(opened: Opened) -> None:
    text = method.method_text()
    (words_of_link,) = re.findall(r"\[([^\]]*)\]\(what-did-not-work\.md\)", text)
    page = opened("evidence", view="method")
    shown = "".join(part.value for part in page.markdown)
    assert len(shown) > 0.9 * len(text)
    section = opened("evidence", view="method", section="Symbols")
    parts = [part.value for part in section.markdown if part.value.startswith("## ")]
    assert [part.splitlines()[0] for part in parts] == ["## Symbols"]
    outside_code = re.sub(r"(`+).*?\1", "", shown, flags=re.DOTALL)
    targets = re.findall(r"\]\(([^)]*)\)", outside_code)
    assert all(target.startswith(("http://", "https://", "#")) for target in targets)
    assert words_of_link in shown
    kept, links = method.without_relative_links(text), re.findall(r"\]\((?!https?://|#)([^()]*)\)", text)
    words = [len(re.findall(r"\w+", each)) for each in (text, kept, *links)]
    assert words[0] - words[1] == sum(words[2:])


PAGES = Path(__file__).parents[1] / "data" / "engine"
EIGHT_B = {"gpu": "h100-sxm", "model": "llama-3.1-8b", "drafter": "eagle3", "batch_max": 8}


def test_a_metrics_page_is_judged_and_taken_over(opened: Opened) -> None:
    page = unfolded(opened("answer", **EIGHT_B), OPENED)
    page.text_area(key="engine_text").set_value((PAGES / "vllm_metrics_after.txt").read_text()).run()
    assert not page.exception
    told = text_of(page)
    assert "counted" in told
    assert "tokens a step; drafts accepted in 0." in told
    taken = next(button for button in page.button if button.label.startswith("Take over acceptance"))
    taken.click().run()
    assert not page.exception
    given = page.selectbox(key="acceptance").value
    assert all(0.0 < float(share) < 1.0 for share in given.split(","))
    assert page.success, "the answer follows the acceptance taken over"


@pytest.mark.parametrize(("name", "runtime"), [("vllm", "vllm-0.33"), ("sglang", "sglang-0.5")])
def test_a_log_gives_a_verdict_on_speed(opened: Opened, name: str, runtime: str) -> None:
    page = unfolded(opened("answer", **EIGHT_B, runtime=runtime), OPENED)
    text = (PAGES / f"{name}.log").read_text()
    page.text_area(key="engine_text").set_value(text).run()
    assert not page.error
    told = "\n".join(line.value for line in (*page.success, *page.warning))
    assert "8 requests at once" in told
    assert "--counters" not in told
    taken = next(button for button in page.button if button.label.startswith("Take over"))
    assert "acceptance" in taken.label
    older = "\n".join(re.sub(r"accept rate: [0-9.]+, ", "", line) for line in text.splitlines())
    page.text_area(key="engine_text").set_value(older).run()
    assert not page.error
    added = re.search(r"Not in the file, taken from this page: \d drafts a step", text_of(page))
    assert (added is not None) == (name == "sglang")
    other = unfolded(opened("answer", **EIGHT_B, runtime="sglang" if name == "vllm" else "vllm"), OPENED)
    other.text_area(key="engine_text").set_value(text).run()
    assert f"is a run of {name}" in text_of(other)


def test_what_is_no_engines_is_one_line(opened: Opened) -> None:
    page = unfolded(opened("answer", **EIGHT_B), OPENED)
    page.text_area(key="engine_text").set_value("hello there").run()
    assert page.error[0].value.startswith("pasted.txt")
    assert "\n" not in page.error[0].value
    assert page.success, "the page stands"


VIEWS = ("answer", "load", "tree", "compare", "evidence")
NAMES = (
    "gpu", "model", "runtime", "seq", "drafter", "heads", "draft_model", "acceptance", "dtype",
    "weight_dtype", "kv_dtype", "tp", "ep", "batch", "batch_max", "objective", "max_latency_ms", "policy",
    "rate", "candidates",
)  # fmt: skip
SENDABLE = tuple(word for word in WORDS if word != "\udcff")
"""What a browser can put into an address."""
SOUND = {
    "gpu": ("h100-sxm", "rtx-4090", "b200"),
    "model": ("gpt-oss-20b", "deepseek-r1", "llama-68m", "qwen3-next-80b-a3b"),
    "runtime": ("vllm", "sglang-0.5", "llama-cpp", "cuda-graph"),
    "drafter": ("ngram", "eagle3", "mtp", "draft-model"),
    "acceptance": ("0.7", "0.8,0.6", "2.8@3", "60%@3"),
    "tp": ("8",),
    "batch_max": ("4",),
}


@pytest.mark.slow
@pytest.mark.usefixtures("short_loads")
@pytest.mark.parametrize(
    "seed", [*range(4), *(pytest.param(seed, marks=pytest.mark.nightly) for seed in range(4, 16))]
)
def test_a_link_with_wrong_values_leaves_no_fault(opened: Opened, seed: int) -> None:
    pick = random.Random(seed)  # noqa: S311  # draws test cases
    view, few = VIEWS[seed % len(VIEWS)], {"gpu_choices": "h100-sxm,l40s", "copies": "1"}
    url = few if view == "compare" else {}
    url |= {name: pick.choice(values) for name, values in SOUND.items() if pick.random() < 0.4}
    for name in pick.sample(NAMES, pick.choice((1, 2, 3))):
        url[name] = pick.choice((*NUMBERS, *SENDABLE))
    page = opened(view, **url)  # fails on an exception and on a fault that is a bug
    assert all(len(told.value) < 2_000 for told in (*page.error, *page.warning))
