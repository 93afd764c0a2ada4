"""One rule of formats and makers for every command: what a GPU has no arithmetic for, who runs where."""

import pytest
from asking import run

import medusa_sim as ms
from medusa_sim.errors import SpecError, UsageError
from medusa_sim.file_types import FILES
from medusa_sim.setups.setup import name_of
from medusa_sim.units import FORMATS, format_text

ASKED = {"model": "llama-3.1-8b", "counts": 1, "drafters": "none", "batches": 8}


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_weights_that_were_asked_for_are_unpacked_where_the_card_lacks_their_arithmetic(engine):
    """Marlin: `compare` prices what `recommend --weight-dtype` and a checkpoint in fp8 are priced as."""
    found = ms.compare(**ASKED, gpus="a100-80gb-sxm", engines=engine, weight_dtypes="fp8")
    (row,) = found.table.to_dict("records")
    assert row["precision"] == "fp8_wo"
    own = found.answer.scenario(row)
    assert (own.model.dtype, own.model.weight_dtype) == ("bf16", "fp8")
    asked = found.answer.question
    traffic = {"prompt_tokens": asked.prompt_tokens, "output_tokens": asked.output_tokens}
    formats = {"runtime": engine, "dtype": "bf16", "weight_dtype": "fp8"}
    beside = ms.Scenario(gpu="a100-80gb-sxm", model="llama-3.1-8b", drafter="ngram", **formats, **traffic)
    rows = beside.sweep(batch=[8], seq_len=[asked.seq_len], candidates=[1])
    assert float(rows.iloc[0].tpot_us) == pytest.approx(1e3 * row["tpot_ms"])
    assert "--quantization fp8" in found.command()


def test_nothing_is_unpacked_unasked_and_tensorrt_llm_unpacks_nothing():
    found = ms.compare(**ASKED, gpus="a100-80gb-sxm", engines="vllm")
    assert set(found.table.precision) == {"bf16"}
    assert any(
        "--weight-dtype fp8 takes it for the weights alone" in each["reason"] for each in found.refused
    )
    with pytest.raises(UsageError, match="no fp8 arithmetic"):
        ms.compare(**ASKED, gpus="a100-80gb-sxm", engines="tensorrt-llm", weight_dtypes="fp8")
    assert set(ms.compare(**ASKED, gpus="h100-sxm", engines="vllm", weight_dtypes="fp8").table.precision) == {
        "fp8"
    }


@pytest.mark.parametrize("dtype", ["fp8", "fp8_block"])
def test_an_arithmetic_that_the_card_lacks_names_the_option_that_would_do(dtype):
    done = run("recommend", "--gpu", "a100-80gb-sxm", "--model", "llama-3.1-8b", "--drafter", "eagle3",
               "--dtype", dtype)  # fmt: skip
    assert done.exit_code == 1
    assert "engines unpack such weights to 16 bits: --weight-dtype" in done.stderr
    option = done.stderr.split()[-1]
    words = ("recommend", "--gpu", "a100-80gb-sxm", "--model", "llama-3.1-8b", "--drafter", "eagle3")
    assert run(*words, "--weight-dtype", option).exit_code == 0


@pytest.mark.parametrize("gpu", ["mi300x", "mi325x", "mi355x"])
def test_tensorrt_llm_is_priced_on_no_card_of_amd(gpu):
    with pytest.raises(SpecError, match="NVIDIA"):
        ms.Scenario(gpu=gpu, model="llama-3.1-8b", drafter="eagle3", runtime="tensorrt-llm")
    for command in ("recommend", "sweep"):
        done = run(
            command,
            "--gpu",
            gpu,
            "--model",
            "llama-3.1-8b",
            "--drafter",
            "eagle3",
            "--runtime",
            "tensorrt-llm",
        )
        assert done.exit_code == 1
        assert "runs on NVIDIA" in done.stderr


def test_every_format_has_words_of_its_own() -> None:
    """Names of files apart, which people know as they stand, no words are an id."""
    words = {name: format_text(name) for name in FORMATS if name not in FILES}
    assert not [text for text in words.values() if "_" in text]
    assert len(set(words.values())) == len(words)
    assert {format_text(name) for name in FILES} == set(FILES)


def test_names_of_set_ups_have_formats_in_words() -> None:
    row = {"gpus": 8, "gpu": "h200-sxm", "tp": 8, "ep": 1, "dp_attention": False, "kv_precision": None}
    for name in FORMATS:
        assert f", {format_text(name)}, " in name_of({**row, "precision": name, "engine": "vllm"})
