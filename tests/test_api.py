"""The Python face: its pages run, its names are listed and documented, commands and scenarios are one."""

import gc
import inspect
import json
import os
import random
import re
import signal
import subprocess
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner
from numbers_in_text import numbers
from one_line import one_line

import medusa_sim as ms
from medusa_sim import api
from medusa_sim.cli import cli
from medusa_sim.errors import UsageError
from medusa_sim.setups.question import SetupChoices
from medusa_sim.setups.search import compare

DOCS = Path(__file__).resolve().parents[1] / "docs"
PUBLIC = (
    "CheckResult", "CompareResult", "LoadResult", "MedusaSimError", "RecommendResult", "Scenario",
    "SingleStep", "compare", "load_acceptance", "load_gpu", "load_model", "recommend", "simulate", "sweep",
    "time_rows",
)  # fmt: skip


def test_the_public_names_are_these():
    assert tuple(ms.__all__) == PUBLIC
    assert set(PUBLIC) < set(dir(ms))
    with pytest.raises(AttributeError, match="public: CheckResult"):
        _ = ms.predict


@pytest.mark.parametrize("name", PUBLIC)
def test_every_public_name_is_documented_and_typed(name):
    found = getattr(ms, name)
    assert inspect.getdoc(found)
    members = [found]
    if inspect.isclass(found) and not issubclass(found, Exception):
        members = [
            value.fget if isinstance(value, property) else getattr(value, "__func__", value)
            for key, value in vars(found).items()
            if not key.startswith("_") and (callable(value) or isinstance(value, property | classmethod))
        ]
    for member in members:
        if inspect.isfunction(member):
            assert inspect.getdoc(member), member
            signature = inspect.signature(member)
            assert signature.return_annotation is not inspect.Signature.empty, member
            for argument in signature.parameters.values():
                assert argument.name in ("self", "cls") or argument.annotation is not argument.empty, member


def test_type_checkers_see_what_is_loaded():
    text = Path(str(ms.__file__)).read_text(encoding="utf-8")
    checked = re.findall(r"^    from ([\w.]+) import (\w+) as (\w+)$", text, re.MULTILINE)
    assert {name for _, name, alias in checked if name == alias} == set(PUBLIC)
    assert {name: home for home, name, _ in checked} == ms._HOMES


def test_importing_the_package_loads_nothing_else():
    code = (
        "import sys, medusa_sim\n"
        "print(sorted(n for n in sys.modules if n.split('.')[0] in ('numpy', 'pandas', 'click', 'torch')))"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert told.strip() == "[]"


def state_of_the_process() -> tuple[object, ...]:
    """What a library could set behind its caller's back."""
    return (
        gc.get_threshold(), gc.isenabled(), np.geterr(), np.get_printoptions(), list(warnings.filters),
        dict(os.environ), signal.getsignal(signal.SIGINT), sys.getrecursionlimit(), sys.excepthook,
        random.getstate(), str(np.random.get_state()),  # noqa: NPY002  # the global one is what is looked at
    )  # fmt: skip


def test_the_caller_s_process_stays_as_it_was():
    """A comparison set the collector's threshold while it ran."""
    before, during = state_of_the_process(), []
    scenario = ms.Scenario(gpu="h100-sxm", model="llama-3.1-8b", drafter="eagle3")
    scenario.sweep(batch=[1, 8])
    scenario.recommend(batch=(1, 8))
    choices = SetupChoices(gpus=("h100-sxm",), counts=(1,), engines=("vllm",), weight_dtypes=("bf16",))
    compare("llama-3.1-8b", choices=choices, advance=lambda *_: during.append(state_of_the_process()))
    assert during
    assert all(state == before for state in (*during, state_of_the_process()))


def test_the_page_about_python_runs():
    blocks = re.findall(r"```python\n(.*?)```", (DOCS / "python.md").read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) > 5
    names: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, "docs/python.md", "exec"), names)  # noqa: S102  # our own page


@pytest.mark.parametrize(
    ("name", "told"), [("medusa_sim", "--speculative-config"), ("slow_engine", "Outside the band")]
)
def test_a_notebook_runs(name, told, capsys):
    notebook = json.loads((DOCS / f"{name}.ipynb").read_text(encoding="utf-8"))
    names: dict[str, object] = {}
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            assert cell["outputs"], "make docs writes what a cell prints"
            assert all(each["output_type"] != "error" for each in cell["outputs"])
            exec(compile("".join(cell["source"]), f"docs/{name}.ipynb", "exec"), names)  # noqa: S102
    assert told in capsys.readouterr().out


@pytest.fixture(scope="module")
def scenario() -> ms.Scenario:
    return ms.Scenario(
        gpu="h100-sxm", model="llama-3.1-8b", drafter="eagle3", acceptance="0.7,0.5", latency="roofline"
    )


def test_a_list_of_no_cards_is_refused_and_not_read_as_all():
    with pytest.raises(UsageError, match="gpus is empty"):
        ms.compare(gpus=[])


def test_frames_are_the_command_lines(scenario):
    frame = scenario.sweep(batch=[16, 64], candidates=[1, 2, 3])
    line = scenario.command("sweep").split()[1:]
    told = (
        CliRunner()
        .invoke(cli, [*line, "--batch", "16,64", "--candidates", "1,2,3", "--format", "json"])
        .stdout
    )
    rows = pd.DataFrame(json.loads(told)["rows"])
    assert list(frame.columns) == list(rows.columns)
    for column in frame:
        # JSON has no nan
        pd.testing.assert_series_equal(
            frame[column], rows[column].astype(frame[column].dtype), check_exact=True
        )
    assert frame.attrs["warnings"] == json.loads(told)["warnings"]


def test_an_answer_prints_its_sentence_and_shows_its_schedule(scenario):
    answer = scenario.recommend(batch=(1, 8))
    assert repr(answer) == answer.sentence
    assert answer.sentence.startswith("Enable speculation at batch 1..8")
    page = answer._repr_html_()
    assert answer.sentence.split(".")[0] in page
    assert "<table" in page
    assert "<table" in scenario._repr_html_()
    assert list(answer.schedule["candidates"]) == [row["candidates"] for row in answer.to_dict()["schedule"]]
    assert set(answer.by_count["candidates"]) == {1, 2, 3, 4, 5}
    assert "RedHatAI/" in str(answer.export("vllm"))
    with pytest.raises(UsageError, match="needs the checkpoint"):
        answer.export("llama-cpp")
    assert "my/draft" in str(answer.export("vllm", draft_path="my/draft"))
    with pytest.raises(UsageError, match="max_latency_ms"):
        scenario.recommend(max_latency=3)


def test_a_step_adds_up_and_agrees_with_the_sweep(scenario):
    frame = scenario.sweep(batch=[8], candidates=[1, 2, 3]).set_index("candidates")
    for count in (1, 2, 3):
        step = scenario.step(batch=8, candidates=count)
        assert step.time_us == pytest.approx(frame["verify_step_us"][count], rel=1e-9)
        assert step.speedup == pytest.approx(frame["speedup"][count], rel=1e-9)
        assert step.tokens_per_s == pytest.approx(frame["tokens_per_s"][count], rel=1e-9)
        table = step.breakdown()
        assert table["time_us"].sum() == pytest.approx(step.time_us, rel=1e-9)
        assert table["share"].sum() == pytest.approx(1.0)
        assert set(table["source"]) <= {"roofline", ""}
    assert scenario.step(batch=8).candidates == 5
    unknown = scenario.step(batch=8, candidates=32)
    assert unknown.speedup is None
    assert unknown.overhead > 1.0


def test_a_host_bound_step_says_so_and_rates_keep_every_digit_in_a_command():
    step = ms.Scenario(runtime="hf-eager", latency="roofline").step(candidates=4)
    last = step.breakdown().iloc[-1]
    assert (last["op"], last["bound"]) == ("host and engine", "host")
    assert last["share"] > 0.3
    scenario = ms.Scenario(acceptance=[0.7123456789, 1 / 3], latency="roofline", drafter="eagle")
    again = ms.Scenario.from_command(scenario.command())
    assert again.profile.tokens_per_step(3) == scenario.profile.tokens_per_step(3)


@pytest.mark.parametrize(
    "line",
    [
        "recommend",
        "medusa-sim recommend --gpu h100-sxm --model llama-3.1-8b --drafter eagle3 --draft-vocab 32000",
        "recommend --acceptance 0.78,0.60,0.42 --chain-only --runtime vllm --max-drafts 3",
        "sweep --acceptance paper-fig4-sparse --heads 5 --scope block --baseline fixed --batch 1..64",
        "recommend --drafter draft-model --draft-model llama-68m --draft-runtime hf-eager --acceptance 2.8@3",
        "sweep --dtype bf16 --weight-dtype int4 --kv-dtype fp8 --latency roofline",
        "recommend --workload coding --lossless --acceptance paper-fig4-sparse",
        "recommend --trees --runtime vllm",
        "recommend --gpu h200-sxm --model deepseek-r1 --tp 8 --dp-attention --runtime sglang --drafter mtp",
    ],
)
def test_a_command_and_its_scenario_are_one(line):
    scenario = ms.Scenario.from_command(line)
    name = line.removeprefix("medusa-sim ").split()[0]
    again = ms.Scenario.from_command(scenario.command(name))
    assert again.command(name) == scenario.command(name)
    assert again.changed == scenario.changed


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("", "one of recommend, sweep"),
        ("specs", "one of recommend, sweep"),
        ("recommend --gpuu x", "--gpuu"),
        ("recommend --heads many", "heads"),
        ("sweep --gpu a40,h100-sxm", "names 2 of gpu"),
        ("recommend --help", "no scenario"),
        ('recommend --gpu "', "quotation"),
    ],
)
def test_lines_that_are_no_scenario_are_refused(line, told):
    with one_line(UsageError, match=told):
        ms.Scenario.from_command(line)


@pytest.mark.parametrize("sizes", ["12", "1..64", 1.5, [1, 2.5], True, None, [None], float("nan"), ["4"]])
def test_sizes_that_are_no_whole_numbers_are_refused(scenario, sizes):
    with pytest.raises(UsageError, match=r"batch .*: whole numbers from 1 are allowed"):
        scenario.sweep(batch=sizes)
    if sizes is not None:  # the length of the request
        with pytest.raises(UsageError, match=r"seq_len .*: whole numbers from 1 are allowed"):
            scenario.recommend(seq_len=sizes)
    with pytest.raises(UsageError, match=r"batch .*: whole numbers from 1 are allowed"):
        scenario.step(batch=sizes)


@pytest.mark.parametrize(
    ("name", "values", "wanted"),
    [
        ("tp", ("2", 2.5, True), "a whole number"), ("draft_vocab", ("32000", 1.5), "a whole number"),
        ("draft_vocab", (0, -5), "whole numbers from 1"), ("max_drafts", ("3", 2.5, None), "a whole number"),
        ("chain_only", ("yes", 1), "True or False"), ("lossless", ("no", 0), "True or False"),
        ("price", ("3", True), "a number"), ("gpu", (None, 5, ["a40"]), "a name or a loaded GPU"),
        ("model", (None, 5), "a name, a path or a loaded model"), ("drafter", (5, ["eagle3"]), "a name"),
    ],
)  # fmt: skip
def test_arguments_of_another_kind_are_refused(scenario, name, values, wanted):
    for value in values:
        with pytest.raises(UsageError, match=wanted):
            scenario.but(**{name: value})


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("requests", 2.5, "a whole number"),
        ("seeds", "1", "a whole number"),
        ("max_num_batched_tokens", 10**9, "from 1 to 131072"),
        ("max_num_seqs", 0, "from 1 to 4096"),
        ("block_size", 1025, "from 1 to 1024"),
        ("drop_long", "no", "True or False"),
        ("share", "0.9", "a number"),
        ("trace", 5, "a path"),
    ],
)
def test_arguments_of_a_load_of_another_kind_are_refused(scenario, name, value, told):
    with pytest.raises(UsageError, match=told):
        scenario.simulate("none", **{name: value})


def test_sizes_of_frames_and_arrays_are_taken_and_a_load_takes_numbers_of_any_kind(scenario):
    sizes = pd.Series([1.0, 4.0])
    frame = scenario.sweep(batch=sizes, candidates=sizes.to_numpy().astype(int)[:1])
    assert list(frame["batch"]) == [1, 4]
    asked = {"requests": 20, "seeds": 1, "max_num_seqs": 8, "search": False}
    found = scenario.simulate(["none", 2], rates=pd.Series([4, 4]), **asked)
    assert list(found.frame["policy"]) == ["none", "K=2"]
    for rates in ("4", ["4"], True, [None]):
        with pytest.raises(UsageError, match=r"rates .*: numbers are allowed"):
            scenario.simulate("none", rates=rates, **asked)


def test_objects_have_no_option_and_several_cards_are_one_frame():
    profile = ms.load_acceptance("medusa1-vicuna-7b")
    with pytest.raises(UsageError, match="its name"):
        ms.Scenario(acceptance=profile).command()
    loaded = ms.Scenario(gpu=ms.load_gpu("a40"), model=ms.load_model("llama-7b"), acceptance=[0.7, 0.5])
    assert loaded.command() == (
        "medusa-sim recommend --gpu a40 --model llama-7b --drafter medusa --acceptance 0.7,0.5"
    )
    frame = ms.sweep(gpu=["a40", "h100-sxm"], model="vicuna-7b", latency="roofline", candidates=4)
    assert list(frame["gpu"]) == ["a40", "h100-sxm"]
    assert ms.recommend(batch=4, latency="roofline").answer.question.batch_max == 4


@pytest.mark.parametrize("order", [1, -1])
def test_a_question_has_the_ends_of_its_batches_and_every_length(scenario, monkeypatch, order):
    monkeypatch.setattr(api, "recommended", lambda scenario, asked: asked)
    asked = scenario.recommend([3, 9, 5][::order], [700, 90], request=(800, 200)).answer
    assert (asked.batch_min, asked.batch_max) == (3, 9)
    assert (asked.seq_len, asked.request) == ((700, 90), (800, 200))
    for request in ((800,), (800, 0), (0, 200), (800, 200, 1)):
        with pytest.raises(UsageError):
            scenario.recommend(3, request=request)


@pytest.mark.parametrize("order", [1, -1])
def test_rows_are_warned_of_at_their_longest_and_at_both_ends_of_their_batches(scenario, monkeypatch, order):
    told = []
    monkeypatch.setattr(api, "answer_doubts", lambda scenario, *sizes: told.append(sizes) or ["far"])
    monkeypatch.setattr(api, "scenario_doubts", lambda scenario, most: [f"to {most}"])
    frame = scenario.sweep([3, 9, 5][::order], [700, 90, 500][::order], [2, 30, 1][::order])
    assert told == [(700, (3, 9))]
    of_counts, ends, far = frame.attrs["warnings"]
    assert (of_counts, numbers(ends)[0], far) == ("to 30", "30", "far")


def test_a_step_is_that_of_the_sizes_given(scenario, monkeypatch):
    monkeypatch.setattr(api, "single_step", lambda scenario, *sizes: sizes)
    assert scenario.step(3, 700, 2) == (3, 700, 2)
    assert scenario.step(3, candidates=2) == (3, scenario.length, 2)
    best = SimpleNamespace(schedule_row=SimpleNamespace(best_candidates=5))
    monkeypatch.setattr(api.Scenario, "recommend", lambda scenario, batch, length: best)
    assert scenario.step(3, 700) == (3, 700, 5)


def test_a_request_is_its_prompt_and_its_output_of_a_token_at_least():
    scenario = ms.Scenario(latency="roofline", acceptance="0.7,0.5", max_drafts=2, drafter="eagle3")
    for request in ((1,), (1, 2, 3), (0, 5), (5, 0)):
        with pytest.raises(UsageError, match=r"\(prompt, output\) tokens are needed"):
            scenario.recommend(batch=[1], request=request)
    assert len(scenario.recommend(batch=[1], request=(1, 5), candidates_max=2).schedule) == 1
