"""What a comparison refuses, and what its command says."""

import pytest
from asking import answered, document, frame
from one_line import one_line

import medusa_sim as ms
from medusa_sim.errors import MedusaSimError, SpecError, UsageError
from medusa_sim.setups.setup import SET_UP


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"gpus": "h1000"}, SpecError), ({"engines": "vlm"}, SpecError), ({"drafters": "eagel"}, UsageError),
        ({"weight_dtypes": "fp5"}, UsageError), ({"model": "lama"}, SpecError),
        ({"rate": 1.0, "users": 1}, UsageError), ({"tokens_per_s_per_user": -1.0}, UsageError),
        ({"speed": 1.0}, UsageError), ({"counts": 0}, UsageError),
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_one_error(given, error):
    with pytest.raises(error):
        ms.compare(**{"model": "llama-3.1-8b", "gpus": "h100-sxm", **given})


def test_an_unknown_engine_is_shown_the_engines_alone():
    with one_line(SpecError, "unknown engine 'abc'", "sglang") as caught:
        ms.compare("llama-3.1-8b", gpus="h100-sxm", engines="abc")
    assert "cuda-graph" not in str(caught.value)


def test_where_nothing_runs_the_error_names_what_may_be_allowed():
    with one_line(UsageError, "--gpu)", "--gpus", "--weight-dtype", "--engine"):
        ms.compare("llama-3.1-405b", gpus="h100-sxm", counts=1)


ASKED = (
    "compare --gpu h200-sxm,b200 --model deepseek-r1 --engine sglang,tensorrt-llm --drafter none,mtp "
    "--weight-dtype fp8_block,nvfp4 --gpus 8 --ep 8 --no-dp-attention --prompt-tokens 900 "
    "--output-tokens 900 --tokens-per-s-per-user 40 --batch 16,64"
)


def test_the_command_line_writes_a_row_a_set_up_and_json_says_the_rest():
    answer, rows = document(*ASKED.split()), frame(*ASKED.split())
    keys = rows[["gpu", "tp", "precision", "engine", "drafter", "batch"]]
    assert len(keys.drop_duplicates()) == len(rows) == len(answer["rows"])
    assert len(rows) == (1 + 2) * 2 * 2 * 2  # an H200 has no nvfp4
    assert rows["chosen"].sum() == 1
    said = {"answer", "chosen", "chosen_without_speculation", "runners_up", "refused", "warnings"}
    assert said <= set(answer)
    assert all(set(item) == {"setup", "reason"} for item in answer["refused"])


def test_its_table_begins_with_the_answer():
    asked = (
        "compare --model llama-3.1-8b --gpu h100-sxm,l40s --gpus 1,2 --engine vllm --tokens-per-s-per-user 60"
    )
    shown = answered(*asked.split()).stdout
    asked, answer, *_ = shown.split("\n\n")
    assert "at least 60 tokens/s a user" in asked
    assert "h100-sxm" in answer or "l40s" in answer
    assert "without speculation" in shown or "no drafter does better" in shown
    assert "Pareto frontier, speed per user against cost" in shown


@pytest.mark.parametrize(
    ("name", "option", "value"), [("length_cv", "--length-cv", 0.0), ("max_drafts", "--max-drafts", 1)]
)
def test_what_is_no_choice_holds_for_every_set_up(name, option, value):
    """An argument of a scenario is one of the command by being declared, as it is in Python."""
    few = {"model": "llama-3.1-8b", "gpus": "h100-sxm", "counts": 1, "engines": "vllm", "drafters": "eagle3",
           "weight_dtypes": "bf16", "batches": (8, 32)}  # fmt: skip
    words = ["--model", "llama-3.1-8b", "--gpu", "h100-sxm", "--gpus", "1", "--engine", "vllm"]
    words += ["--drafter", "eagle3", "--weight-dtype", "bf16", "--batch", "8,32"]
    told = document("compare", *words, option, value)["rows"]
    rows, usual = ms.compare(**few, **{name: value}).table, ms.compare(**few).table
    assert [row["usd_per_million_tokens"] for row in told] == pytest.approx(list(rows.usd_per_million_tokens))
    assert list(rows.usd_per_million_tokens) != pytest.approx(list(usual.usd_per_million_tokens))


def test_a_card_without_room_says_how_large_weights_and_memory_are():
    found = ms.compare("llama-3.1-70b", gpus=("l40s", "h200-sxm"), counts=1, drafters="none").answer
    reasons = {each.reason for each in found.refused if "1 x l40s, bf16" in str(each.setup)}
    assert reasons == {"141 GB of weights a GPU leave no room for a request in 52 GB"}
    long = {"prompt_tokens": 30_000, "output_tokens": 500, "batches": 32}
    with one_line(MedusaSimError, "no room for more than 15 of 32 requests of 30,250 tokens in 86 GB"):
        ms.compare("llama-3.1-8b", gpus="h100-sxm", counts=1, drafters="none", weight_dtypes="bf16", **long)


@pytest.mark.parametrize(
    ("counts", "engine", "drafters", "ends"),
    [  # one line where every drafter of a set-up is refused for one reason, else one that names the drafter
        (3, "vllm", ("none", "eagle3"), {"vllm"}),
        (1, "tensorrt-llm", ("none", "suffix"), {"suffix"}),
    ],
)
def test_what_cannot_run_is_refused_once_and_a_drafter_alone_by_its_name(counts, engine, drafters, ends):
    found = ms.compare(
        "llama-3.1-8b", gpus="h100-sxm", counts=(1, counts), engines=engine, drafters=drafters, batches=4,
        weight_dtypes="bf16",
    )  # fmt: skip
    assert [item["setup"].rpartition(", ")[2] for item in found.refused] == [*ends]
    assert set(found.table.drafter) == {*drafters} - ends


def test_plain_decoding_is_not_doubted_for_what_drafts_would_be_accepted_by():
    """The drafter that a scenario without drafts names proposes none; where it drafts it is doubted."""
    asked = {"gpus": "h100-sxm", "counts": 1, "engines": "vllm", "batches": 8, "weight_dtypes": "bf16"}
    plain, both = (
        ms.compare("llama-3.1-8b", drafters=named, **asked) for named in ("none", ("none", "ngram"))
    )
    assert not any("acceptance" in line for line in plain.answer.warnings)
    by_drafter = {
        key[SET_UP.index("drafter")]: lines for key, lines in both.answer.warnings_by_set_up.items()
    }
    assert [any("acceptance" in line for line in by_drafter[name]) for name in ("none", "ngram")] == [
        False,
        True,
    ]
