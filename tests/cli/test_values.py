"""Grids and names: every form of the command line's contract, what is refused, and what was meant."""

import re
import shutil
from itertools import pairwise
from pathlib import Path
from typing import get_args

import pytest
from asking import answered, refused
from hypothesis import given
from hypothesis import strategies as st

from medusa_sim.acceptance.profile import acceptance_names
from medusa_sim.cli import values
from medusa_sim.cli.values import BATCH, CANDIDATES, MAX_VALUES, SEQ_LEN
from medusa_sim.engines.runtime import load_runtime, runtime_aliases
from medusa_sim.errors import SpecError, UsageError, unknown_name
from medusa_sim.gpus.gpu import load_gpu
from medusa_sim.gpus.gpu_names import _RELATIVES, gpu_names
from medusa_sim.models.hf_families import CLASSES, FAMILIES, UNMODELLED, unmodelled
from medusa_sim.models.named import load_model, model_names
from medusa_sim.report.specs.rows import _modelled


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("8", (8,)), ("1,2,8", (1, 2, 8)), ("8,1,2,2", (1, 2, 8)), ("1..64", (1, 2, 4, 8, 16, 32, 64)),
        ("3..40", (4, 8, 16, 32)), ("1..64:x2", (1, 2, 4, 8, 16, 32, 64)), ("3..30:x3", (3, 9, 27)),
        ("1..5:1", (1, 2, 3, 4, 5)), ("16..112:16", (16, 32, 48, 64, 80, 96, 112)), ("1..10:4", (1, 5, 9)),
        (" 1 , 16..48:16 ", (1, 16, 32, 48)), ("7..7:1", (7,)), ("64..64", (64,)),
    ],
)  # fmt: skip
def test_forms_on_a_power_axis(text, values):
    assert BATCH.values(text) == values
    assert SEQ_LEN.values(text) == values


def test_a_plain_range_of_candidates_is_every_integer():
    assert CANDIDATES.values("1..64") == tuple(range(1, 65))
    assert CANDIDATES.values("1,16..112:16") == (1, *range(16, 113, 16))


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "empty entry"), ("1,,2", "empty entry"), ("64..1", "1..64"), ("0", "whole numbers from 1"),
        ("0..4", "whole numbers from 1"), ("1..8:0", "step"), ("1..8:x1", "x2 or more"),
        ("1..8:x0", "x2 or more"), ("-3", "not a grid"), ("2.5", "not a grid"), ("1e3", "not a grid"),
        ("eight", "not a grid"), ("1...8", "not a grid"), ("1..8:2:2", "not a grid"), ("٣", "not a grid"),
        ("99999999", "out of range"), ("9" * 400, "out of range"), ("1.." + "9" * 30, "out of range"),
        ("5..7", "no power of two"),
    ],
)  # fmt: skip
def test_refused_in_one_line(text, told):
    with pytest.raises(UsageError) as refused:
        BATCH.values(text)
    message = str(refused.value)
    assert told in message
    assert "\n" not in message
    assert "allowed" in message
    assert len(message) < 300


def test_too_many_values_are_refused_before_they_are_made():
    with pytest.raises(UsageError, match=f"more than {MAX_VALUES}"):
        SEQ_LEN.values("1..16777216:1")


@given(st.integers(1, 500), st.integers(0, 500), st.integers(1, 50))
def test_steps_start_at_the_first_and_stay_inside(first, extra, step):
    values = CANDIDATES.values(f"{first}..{first + extra}:{step}")
    assert values[0] == first
    assert values[-1] <= first + extra < values[-1] + step
    assert all(b - a == step for a, b in pairwise(values))


@given(st.integers(1, 60_000), st.integers(2, 9))
def test_factors_multiply_from_the_first(first, factor):
    values = BATCH.values(f"{first}..65536:x{factor}")
    assert values[0] == first
    assert all(b == a * factor for a, b in pairwise(values))
    assert values[-1] * factor > 65_536


ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("begins", UNMODELLED)
def test_a_family_that_is_not_modelled_is_refused_by_name(begins, tmp_path):
    what = UNMODELLED[begins]
    for name in (begins, f"{begins}-9b-instruct", f"someone/{begins.upper()}-9B"):
        with pytest.raises(SpecError, match=re.escape(what)) as refused:
            load_model(name)
        assert "did you mean" not in str(refused.value)
    config = tmp_path / "config.json"
    for text in ('{"architectures": ["%sForCausalLM"]}', '{"architectures": ["%sForX"], "text_config": {}}'):
        config.write_text(text % begins.title())
        with pytest.raises(SpecError, match=re.escape(what)):
            load_model(config)


def test_nothing_that_is_modelled_is_refused_by_name():
    for name in (*CLASSES, *FAMILIES):
        assert unmodelled(name) is None, name
    for name in model_names():
        assert load_model(name).name == name


def test_names_that_may_be_meant_are_listed():
    told = unknown_name("model", "llama-4", model_names())
    assert "one of llama-4-maverick, llama-4-scout?" in told
    assert "mean 'kimi-k2.5'?" in unknown_name("model", "kimi-k2.", model_names())
    assert "did you mean" not in unknown_name("model", "", model_names())
    for other, near in (("A16", "a40"), ("GH200", "h200-sxm"), ("L20", "l40s")):
        with pytest.raises(SpecError, match=f"{near}.*hardware/NAME.toml"):
            load_gpu(other)
    with pytest.raises(SpecError, match="one of h100-nvl, h100-pcie, h100-sxm"):
        load_gpu("h100")
    assert set(_RELATIVES.values()) <= set(gpu_names())
    assert not set(_RELATIVES) & set(gpu_names())


@pytest.mark.parametrize(
    ("words", "told", "code"),
    [
        (("--gpu", "RTX 4091"), "did you mean 'rtx-4090'?", 1),
        (("--gpu", "h1000"), "did you mean one of h100-nvl, h100-pcie, h100-sxm?", 1),
        (("--gpu", "b200-sxm"), "did you mean 'b200'?", 1),
        (("--gpu", "gb300-nvl72"), "did you mean 'gb300'?", 1),
        (("--gpu", "tpu-v5"), "unknown GPU 'tpu-v5' (`medusa-sim specs` lists", 1),
        (("--drafter", "none"), "`compare --drafter none` and `load --policy none`", 2),
        (("--model", "r1"), "did you mean 'deepseek-r1'?", 1),
        (("--runtime", "ollama"), "did you mean one of llama.cpp-cpu, llama.cpp-cuda", 1),
        (("--drafter", "nextn"), "did you mean 'mtp'?", 2),
        (("--dtype", "float16"), "did you mean 'fp16'? (known: bf16, fp16, ", 2),
        (("--weight-dtype", "Q9_K", "--runtime", "mlx"), "'Q9_K' (known: mlx-2bit, mlx-3bit, mlx-4bit, ", 2),
        (("--runtime", "llama.cpp-cuda", "--weight-dtype", "Q9_K"), "q4_k_m, q5_k_m, q6_k? (known: f16, ", 2),
        (("--weight-dtype", "q4km"), "did you mean 'q4_k_m'? (known: bf16, ", 2),
        (("--gpu", "A30 24GB"), "its nearest relative is 'a100-40gb'", 1),
        (("--runtime", "llama-cpp"), "--export llama-cpp", 1),
        (("--acceptance", "2.8@"), "two numbers, as in 2.8@3", 2),
        (("--model", "https://huggingface.co/my/model/tree/main"), "'my/model' is no folder here", 1),
    ],
)
def test_what_people_type_is_answered_as_meant(words, told, code):
    refused(told, "sweep", *words, code=code)


def test_the_hardware_file_of_the_guide_is_one(tmp_path):
    text = (ROOT / "docs" / "guide.md").read_text(encoding="utf-8")
    block = re.search(r"```toml\n(schema = 1\n.*?)```", text, re.DOTALL)
    (tmp_path / "hardware").mkdir()
    (tmp_path / "hardware" / "my-gpu.toml").write_text(block[1])
    asked = ("sweep", "--gpu", "my-gpu", "--candidates", "1,2", "--data-dir", str(tmp_path))
    for dtype in ("fp16", "bf16"):
        answered(*asked, "--dtype", dtype)


def test_every_profile_says_which_model_it_is_of():
    named = {name: _modelled(name) for name in acceptance_names()}
    assert named["eagle3-kimi-k2.5-no-thinking"] == "kimi-k2.5"
    for name, model in named.items():
        if name.startswith(("draft-", "paper-", "python-", "typical-")):
            continue  # of no model, or of two
        refused = unmodelled(name.partition("-")[2])
        assert model in model_names() or (refused is not None and refused in model), name


def test_specs_shows_what_other_commands_take(tmp_path, monkeypatch):
    """Names of models between those listed, versions of engines, a folder that is here."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "cm").mkdir()
    shutil.copy(ROOT / "docs" / "example_config.json", tmp_path / "cm" / "config.json")
    for name in ("qwen3-coder-30b-a3b", "minimax-m2.5", "vllm-0.16", "cm"):
        answered("specs", name)
    refused("unknown GPU, model, runtime or profile 'cn'", "specs", "cn", code=1)


def test_aliases_are_names_everywhere():
    for alias, name in runtime_aliases().items():
        assert load_runtime(alias).name == name
        ended = answered("specs", alias)
        assert name in ended.stdout
        assert load_runtime(f"{alias}-99.1").name.startswith(alias)  # the nearest, which an answer says


def test_lengths_may_be_given_in_k():
    assert SEQ_LEN.values("128k") == (131_072,)
    assert SEQ_LEN.values("1k,4K..16k") == (1024, 4096, 8192, 16_384)
    assert SEQ_LEN.values("1k..4k:1k") == (1024, 2048, 3072, 4096)
    for axis, text in ((BATCH, "1k"), (SEQ_LEN, "kk"), (SEQ_LEN, "1.5k"), (SEQ_LEN, "99999999k")):
        with pytest.raises(UsageError):
            axis.values(text)


@pytest.mark.parametrize("kind", get_args(values.NameKind))
def test_the_names_of_every_kind_stand_where_they_are_looked_up(kind):
    names = tuple(values.names_of(kind, None))
    assert names
    assert all(names)
