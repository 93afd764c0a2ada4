"""How the app starts and opens; answers that are kept between runs."""

import json
import os
import socket
import subprocess
import sys
from collections import OrderedDict
from pathlib import Path

import answers
import bar
import inputs
import numpy as np
import pytest
from answer_cache import KEPT_BYTES, AnswerCache, array_bytes
from chosen import OPENS, PRESETS, PageArguments, Preset
from one_line import one_line
from pages_read import (
    APP,
    Opened,
    commands,
    csv_rows,
    metrics,
    printed,
    set_up,
    text_of,
)
from presets import answer_text
from streamlit import config
from streamlit.testing.v1 import AppTest

from medusa_sim.cli.app import check_address, leave_out_here, main_script, streamlit_options
from medusa_sim.engines.runtime import runtime_aliases
from medusa_sim.errors import UsageError
from medusa_sim.gpus.gpu_names import device_names
from medusa_sim.load.policy_names import NAMES as POLICIES
from medusa_sim.scenario.arguments import ARGUMENTS
from medusa_sim.scenario.question import Question
from medusa_sim.step.drafter import drafter_class, drafter_names

OPTIONS = main_script().parent / ".streamlit" / "config.toml"


def test_nothing_is_asked_or_sent() -> None:
    options = streamlit_options(OPTIONS)
    assert options["logger.hideWelcomeMessage"] is True
    assert options["server.showEmailPrompt"] is False
    assert options["browser.gatherUsageStats"] is False


def test_streamlit_knows_every_option() -> None:
    known = config.get_config_options()
    assert set(streamlit_options(OPTIONS)) <= set(known)


def test_a_missing_file_is_one_line(tmp_path: Path) -> None:
    with one_line(UsageError, match="installation is incomplete"):
        streamlit_options(tmp_path / "config.toml")


@pytest.mark.parametrize("address", ["203.0.113.7", "not a host", "x" * 300, "a..b"])
def test_an_address_of_another_machine_is_one_line(address: str) -> None:
    with pytest.raises(UsageError, match=r"cannot listen on .*, port 8501 \(.+\); give an address of this"):
        check_address(address, 8501)


def test_a_port_that_is_taken_is_one_line() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(UsageError, match="another --port"):
            check_address("127.0.0.1", port)
    check_address("127.0.0.1", port)


def test_the_first_page_opens_without_tables() -> None:
    """pandas and pyarrow take longer to import than the answer takes; files that are asked for need them."""
    code = (
        "import sys\n"
        "from streamlit.testing.v1 import AppTest\n"
        f"sys.path.insert(0, {str(main_script().parent)!r})\n"
        f"page = AppTest.from_file({str(main_script())!r}, default_timeout=600).run()\n"
        "assert page.success and not page.exception\n"
        "print(*{name.partition('.')[0] for name in sys.modules})\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"pandas", "pyarrow", "scipy", "matplotlib", "torch"} & set(result.stdout.split())


def test_a_file_where_the_app_is_started_is_no_module(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    for first in ("", str(tmp_path)):
        monkeypatch.setattr(sys, "path", [first, "kept"])
        leave_out_here()
        assert sys.path == ["kept"]
        leave_out_here()
        assert sys.path == ["kept"]


@pytest.mark.parametrize("preset", PRESETS, ids=lambda preset: preset.name)
def test_a_preset_says_on_its_card_what_its_page_and_the_command_say(opened: Opened, preset: Preset) -> None:
    page = opened("answer", **preset.words)
    assert not any("Ignored" in warning.value for warning in page.warning)
    told = [line for line in commands(page) if line.startswith("medusa-sim recommend ")]
    card = answer_text(preset.name)
    of_batch = str(preset.words.get("batch", 1))
    answer = json.loads(printed(f"{told[0].partition(' --by-count')[0]} --format json"))
    if "does not fit" not in card and "without drafts" not in card:
        assert card.startswith(metrics(page)["Speedup"])
        rows = csv_rows(printed(told[0]))
        assert metrics(page)["Speedup"] in {
            f"{float(row['speedup']):.2f}x" for row in rows if row["batch"] == of_batch
        }
    else:
        assert page.error
    loses = answer["break_even_batch"]
    speculates = page.success or (page.warning and not page.error)
    assert (f"off from {loses} requests" in card) == (loses is not None and bool(speculates))


def whole_app(**url: object) -> AppTest:
    """The app as a browser opens it, its own address and bar first."""
    page = AppTest.from_file(str(APP / "main.py"), default_timeout=600)
    for name, value in url.items():
        page.query_params[name] = str(value)
    page.run()
    assert not page.exception
    return page


SAID = ("gpu", "model", "drafter", "runtime")
"""What a set-up is known by."""


def said(page: AppTest) -> dict[str, str]:
    return {name: page.selectbox(key=name).value for name in SAID}


@pytest.mark.parametrize(
    "url",
    [{}, {"gpu": "b200"}, {"seq": 4096}, {"drafter": "ngram"}, {"model": "qwen3-8b"}, {"runtime": "sglang"}],
)
def test_what_a_link_leaves_out_is_what_the_app_opens_on(url: dict[str, object]) -> None:
    page = whole_app(**url)
    meant = {**OPENS, "runtime": "vllm-0.33", **url}
    assert said(page) == {name: runtime_aliases().get(str(meant[name]), meant[name]) for name in SAID}
    assert "preset" not in page.query_params
    told = commands(page)[0]
    for name in SAID:
        assert f"--{name} {said(page)[name]}" in told, "a command says what it is about"


def test_choices_are_those_of_arguments(opened: Opened) -> None:
    page = opened("answer", batch_max=8)
    for name in ("dtype", "weight_dtype", "kv_dtype"):
        shown = [inputs.format_words(each) for each in ARGUMENTS[name].choices]
        assert page.selectbox(key=name).options[1:] == shown, "words, not ids"
    assert "8 bits (fp8 in blocks)" in page.selectbox(key="dtype").options
    assert page.selectbox(key="drafter").options == [drafter_class(name).title for name in drafter_names()]
    assert set(page.selectbox(key="gpu").options) == set(device_names())
    assert not set(page.selectbox(key="runtime").options) & {"cuda-graph", "hf-eager", "kernel"}
    titles = [bar.profile_words(name) for name in bar.profiles_of("medusa")]
    assert page.selectbox(key="acceptance").options[1:] == titles
    policies = {name for name in POLICIES if "=" not in name}
    assert set(inputs.WORDS["policy"]) - {"fixed"} == policies - {"none", "K"}


def test_a_list_of_words_keeps_names_in_the_link() -> None:
    page = whole_app(dtype="fp8", acceptance="eagle3-qwen3-8b", kv_dtype="fp3")
    assert "--dtype fp8" in commands(page)[0]
    assert "--acceptance eagle3-qwen3-8b" in commands(page)[0]
    assert any("kv_dtype=fp3 (known are" in warning.value for warning in page.warning)
    page.selectbox(key="weight_dtype").set_value("int4")
    page.selectbox(key="dtype").set_value("default")
    next(button for button in page.button if button.label == "Apply").click().run()
    assert [page.query_params[name] for name in ("weight_dtype", "acceptance")] == ["int4", "eagle3-qwen3-8b"]
    assert "dtype" not in page.query_params


def test_any_argument_has_an_input_by_its_declaration() -> None:
    """One more argument on the page is its label: value, choices, range and help follow."""
    code = (
        "import bar, dataclasses, streamlit as st\n"
        "from medusa_sim.scenario.arguments import ARGUMENTS\n"
        "for each in ARGUMENTS.values():\n"
        "    asked = dataclasses.replace(each, label=each.name)\n"
        "    assert bar.of_argument(st, asked) == each.default, each.name\n"
    )
    page = AppTest.from_string(code, default_timeout=600).run()
    assert not page.exception, page.exception
    drawn = (*page.selectbox, *page.toggle, *page.number_input, *page.text_input)
    assert {each.key for each in drawn} == set(ARGUMENTS)


def test_the_newest_of_an_engine_stands_before_older_ones() -> None:
    for name, newest in runtime_aliases().items():
        assert next(each for each in bar.RUNS_ON if each.startswith(name)) == newest


def test_an_id_is_the_model_of_its_shape() -> None:
    page = whole_app(model="Qwen/Qwen3-8B")
    assert page.selectbox(key="model").value == "qwen3-8b"
    assert "--model qwen3-8b" in commands(page)[0]


@pytest.mark.parametrize("typed", ["llama-3.3", "Llama 3.3", "LLAMA-3.3-70b"])
def test_what_begins_one_name_alone_is_that_model(typed: str) -> None:
    page = whole_app(model=typed)
    assert page.selectbox(key="model").value == "llama-3.3-70b"
    assert "--model llama-3.3-70b" in commands(page)[0] if commands(page) else page.error
    assert typed in text_of(page)


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("gpt-5", {"gpt-oss-120b", "gpt-oss-20b"}),
        ("qwen3-next", {"qwen3-next-80b-a3b"}),
        ("llama-4", {"llama-4-maverick", "llama-4-scout"}),
        ("nobody/knows-it", set()),
        ("../../etc/passwd", set()),
    ],
)
def test_a_model_that_is_not_known_is_asked_back(typed: str, offered: set[str]) -> None:
    page = whole_app(model=typed)
    if typed == "qwen3-next":
        assert page.selectbox(key="model").value in offered
        return
    assert [title.value for title in page.title] == ["Which model?"]
    assert not page.error
    assert len(page.warning[0].value) < 300
    buttons = [button.label for button in page.button]
    assert offered <= set(buttons)
    assert "Upload its config.json" in buttons
    assert page.selectbox(key="acceptance"), "the bar is whole"
    if offered:
        next(button for button in page.button if button.label in offered).click()
        page.session_state["model"] = min(offered)  # AppTest sends a typed option back as none of the list
        page.run()
        assert page.title[0].value == "Does speculation pay?"


def test_the_whole_app_takes_other_names_of_a_link() -> None:
    page = whole_app(runtime="sglang", kept="gpu=b200")
    assert page.selectbox(key="runtime").value == runtime_aliases()["sglang"]
    assert not any("Ignored" in warning.value for warning in page.warning)


def test_a_draft_model_fits_its_target() -> None:
    for model, draft in (
        ("llama-3.1-8b", "llama-3.2-1b"),
        ("vicuna-7b", "llama-68m"),
        ("qwen3-8b", "qwen3-0.6b"),
    ):
        page = whole_app(model=model, drafter="draft-model", acceptance="0.7")
        assert page.selectbox(key="draft_model").value == draft
        told = [box.value for box in (*page.success, *page.warning, *page.error)]
        assert any(line.startswith(f"**{model} on ") for line in told)


def test_a_set_up_is_one_line() -> None:
    line = PageArguments(gpu="h200-sxm", model="deepseek-r1", drafter="mtp", tp=8, kv_dtype="fp8").line
    assert "\n" not in line
    for word in ("deepseek-r1", "8 x h200-sxm", "fp8 KV", "mtp", "context 1,024"):
        assert word in line


def test_an_answer_is_made_once() -> None:
    made: list[int] = []
    kept = AnswerCache()

    @kept
    def squared(value: int) -> int:
        made.append(value)
        return value * value

    assert [squared(3), squared(4), squared(3)] == [9, 16, 9]
    assert made == [3, 4]


@pytest.mark.parametrize(
    "name", ["profiles/prices.toml", "hardware/local/x.toml", "profiles/operators/x/y.csv"]
)
def test_a_file_of_any_folder_changes_the_version(name: str, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(answers.data, "data_roots", lambda: [tmp_path])
    path = tmp_path / name
    path.parent.mkdir(parents=True)
    path.touch()
    os.utime(path, (4e9, 4e9))
    assert answers._version_at(-1, name) == 4e9


def test_the_least_lately_used_go_first() -> None:
    made: list[int] = []
    kept = AnswerCache(most_bytes=25_000)

    @kept
    def row(value: int) -> np.ndarray:
        made.append(value)
        return np.full(1_000, float(value))

    for value in (1, 2, 3, 1, 4, 1, 2):
        assert row(value)[0] == value
    assert made == [1, 2, 3, 4, 2]
    assert kept.held_bytes <= 25_000
    huge = AnswerCache(most_bytes=10)(lambda: np.zeros(1_000))
    assert huge() is huge()  # the last one stays, however large


def test_a_result_larger_than_all_stays_beside_others() -> None:
    """A page asks for its search more than once, and for small things between."""
    made: list[int] = []
    kept = AnswerCache(most_bytes=10_000)

    @kept
    def result(size: int) -> np.ndarray:
        made.append(size)
        return np.zeros(size)

    for size in (2_000, 100, 2_000, 100, 3_000, 100, 3_000, 2_000):
        result(size)
    assert made == [2_000, 100, 3_000, 2_000]
    assert kept.held_bytes == 800


def test_small_results_outlive_large_ones() -> None:
    """Sentences of the example cards stay, though the answers that they tell of have gone."""
    made: list[str] = []
    kept = AnswerCache(most_bytes=200_000)

    @kept
    def result(name: str, size: int) -> np.ndarray:
        made.append(name)
        return np.zeros(size)

    for _ in range(2):
        result("sentence", 0)
        for answer in ("a", "b", "c"):
            result(answer, 10_000)
    assert made == ["sentence", "a", "b", "c", "a", "b", "c"]


def test_a_move_of_the_first_page_asks_for_nothing_anew(monkeypatch) -> None:
    """What the page and its example cards rest on is held together."""
    monkeypatch.setattr(answers.KEPT, "_entries", OrderedDict())
    page = AppTest.from_file(str(APP / "main.py"), default_timeout=600).run()
    before = set(answers.KEPT._entries)
    page.select_slider[0].set_value(4).run()
    assert {key[0][0] for key in set(answers.KEPT._entries) - before}.isdisjoint(
        {"recommendation", "answer_text", "warnings"}
    )
    assert before <= set(answers.KEPT._entries)


def test_a_failure_is_not_kept() -> None:
    asked: list[int] = []

    @AnswerCache()
    def fails() -> None:
        asked.append(1)
        raise ValueError("no")

    for _ in range(2):
        with pytest.raises(ValueError, match="no"):
            fails()
    assert len(asked) == 2


def test_arrays_are_counted_once_views_included() -> None:
    whole = np.zeros((100, 100))
    assert whole.nbytes <= array_bytes([whole[::2], whole, {"a": whole[0]}]) < 1.1 * whole.nbytes


def test_a_search_of_trees_holds_more_than_one_of_chains() -> None:
    chains = array_bytes(
        answers.recommendation(
            set_up(gpu="h100-sxm", model="llama-3.1-8b", drafter="eagle3"), Question(batch_max=64)
        )
    )
    trees = array_bytes(answers.recommendation(set_up(runtime="cuda-graph"), Question(batch_max=64)))
    assert 1e5 < chains < trees / 4
    assert chains < KEPT_BYTES / 10


"""Pages of Streamlit's themes."""
