"""One request, one answer: whoever is asked about it takes its length, and prints the same rates and costs.

Without `--seq` a step is as long as the request half way through its output, in sweep, recommend, compare and
check; `load` runs it from its first token to its last.
"""

import pytest
from asking import document, refused, run

import medusa_sim as ms
from medusa_sim.grid.request_latency import REQUEST
from medusa_sim.load.arguments import LoadArguments
from medusa_sim.plan.recommend import recommend
from medusa_sim.report.recommend.python import row_values
from medusa_sim.scenario.defaults import DEFAULT_SEQ_LEN
from medusa_sim.scenario.question import Question
from medusa_sim.setups.question import SetupQuestion

GIVEN = {"gpu": "h100-sxm", "model": "llama-3.1-8b", "drafter": "eagle3"}
REQUESTS = ((8000, 500), (100, 1001), (500, 300))
OF_LOAD = 0.02
"""A closed loop of one user beside the step's mean law."""


def served(request: tuple[int, int], **more: object) -> ms.Scenario:
    return ms.Scenario(**GIVEN, prompt_tokens=request[0], output_tokens=request[1], **more)


@pytest.mark.parametrize("request_", REQUESTS, ids=str)
@pytest.mark.parametrize("users", [1, 8])
def test_every_door_prices_a_request_alike(request_, users):
    scenario = served(request_)
    (row,) = scenario.recommend(users).answer.schedule
    swept = scenario.sweep(users, candidates=[1, row.candidates]).set_index("candidates").loc[row.candidates]
    compared = ms.compare(
        GIVEN["model"], gpus=GIVEN["gpu"], counts=1, engines="vllm", weight_dtypes="bf16", drafters="eagle3",
        drafts=row.drafts, batches=users, prompt_tokens=request_[0], output_tokens=request_[1],
    )  # fmt: skip
    checked = scenario.check(
        batch=users, drafts=row.drafts, tpot_ms=1.0, tokens_per_step=row.tokens_per_step
    ).answer
    assert row.seq_len == swept.seq_len == checked.run.seq_len == round(request_[0] + request_[1] / 2)
    chosen = compared.chosen
    assert row.tpot_us == pytest.approx(swept.tpot_us)
    assert row.tpot_us == pytest.approx(chosen["tpot_ms"] * 1e3)
    assert row.tpot_us == pytest.approx(
        checked.predicted_us, rel=2e-4
    )  # of a mean alone, as if all drafts were alike
    for name in ("tokens_per_s", "usd_per_million_tokens", "joule_per_token"):
        assert getattr(row, name) == pytest.approx(swept[name]), name
        of_setup = "tokens_per_s_per_gpu" if name == "tokens_per_s" else name
        assert getattr(row, name) == pytest.approx(chosen[of_setup]), name
    if users > 1:
        return
    run = scenario.simulate(
        [row.drafts], search=False, users=users, max_num_seqs=users, requests=200, seeds=1, length_cv=0.0,
        prompt_tokens=request_[0], output_tokens=request_[1],
    ).frame.iloc[0]  # fmt: skip
    assert run.tokens_per_s == pytest.approx(row.tokens_per_s, rel=OF_LOAD)
    assert run.tpot_mean_s * 1e6 == pytest.approx(row.tpot_us, rel=OF_LOAD)
    assert run.usd_per_million_tokens == pytest.approx(row.usd_per_million_tokens, rel=OF_LOAD)


def test_a_request_is_the_scenarios_or_the_questions():
    asked = recommend(ms.Scenario(**GIVEN), Question(batch_max=4, request=(500, 300)))
    its_own = recommend(served((500, 300)), Question(batch_max=4))
    assert asked.question.seq_len == its_own.question.seq_len == (650,)
    said, own = (
        [[getattr(each, name) for name in REQUEST] for each in answer.request_latencies]
        for answer in (asked, its_own)
    )
    assert said == own
    assert [*map(row_values, asked.schedule)] == [*map(row_values, its_own.schedule)]
    assert recommend(served((500, 300)), Question(seq_len=(700,))).question.seq_len == (700,)
    assert recommend(ms.Scenario(**GIVEN), Question(batch_max=2)).question.seq_len == (DEFAULT_SEQ_LEN,)
    assert served((500, 300)).step().seq_len == 650
    assert ms.Scenario(**GIVEN).step().seq_len == DEFAULT_SEQ_LEN
    assert list(ms.sweep(**GIVEN, prompt_tokens=100, output_tokens=51).seq_len.unique()) == [126]
    with pytest.raises(ms.MedusaSimError, match="seq_len is empty"):
        ms.Scenario(**GIVEN).recommend(1, [])


def test_commands_take_the_length_of_the_request():
    words = [f"--{name}={value}" for name, value in GIVEN.items()]
    words += ["--prompt-tokens", "30000", "--output-tokens", "500"]
    answer = document("recommend", *words, "--batch", "1..32")
    assert {row["seq_len"] for row in answer["schedule"]} == {30250}
    assert answer["memory"][0]["max_batch_with"] < 32  # 32 such requests fit on no H100
    swept = document("sweep", *words, "--batch", "32")
    assert {row["seq_len"] for row in swept["rows"]} == {30250}
    assert not any(row["fits_memory"] for row in swept["rows"])


def test_requests_beyond_a_model_are_stated_or_refused():
    small = ms.Scenario(prompt_tokens=1_000_000, output_tokens=1_000_000)
    told = "requests of 1000000 + 1000000 tokens go beyond the 2048 positions of vicuna-7b"
    assert told in small.warnings
    assert not [line for line in small.sweep().attrs["warnings"] if "length" in line]  # once is enough
    (line,) = (each for each in ms.Scenario().sweep(seq_len=3000).attrs["warnings"] if "positions" in each)
    assert line == "length 3000 is beyond the 2048 positions of vicuna-7b"
    for tokens in ("1e17", "0.5", "inf", "nan"):
        for command in ("recommend", "sweep"):
            words = ("--prompt-tokens", tokens, "--output-tokens", "100")
            refused("'--prompt-tokens'", command, *words, code=2)


def test_every_answer_begins_with_what_is_served():
    """Three commands had three defaults, and none said which."""
    words = [f"--{name}={value}" for name, value in GIVEN.items()]
    card, model = words[:2]
    asked, served_text = ["--prompt-tokens", "512", "--output-tokens", "256"], "512 in, 256 out"
    first = {
        "recommend": [*words, *asked, "--batch", "1..8"],
        "sweep": [*words, *asked, "--batch", "8"],
        "check": [*words, *asked, "--batch", "8", "--drafts", "0", "--measured-tpot-ms", "7.1"],
        "load": [*words, *asked, "--users", "8", "--requests", "40", "--seeds", "1", "--no-search"],
        "compare": [
            card,
            model,
            *asked,
            "--gpus",
            "1",
            "--engine",
            "vllm",
            "--users",
            "8",
            "--drafter",
            "none",
        ],
    }
    for command, given in first.items():
        line = run(command, *given).stdout.splitlines()[0]
        assert served_text in line, command
        assert "8 requests at once" in line, command
    unsaid = dict.fromkeys(("recommend", "check"), "896 in, 256 out")
    for command, text in {**unsaid, "sweep": "1,024 tokens of context, no prompts"}.items():
        given = [each for each in first[command] if each not in asked]
        assert text in run(command, *given).stdout.splitlines()[0], command


def test_one_default_serves_all():
    """Bare `recommend` priced a step without prompts, $0.607, where `compare` priced a server, $0.952."""
    asked, load = SetupQuestion(), LoadArguments()
    usual = (asked.prompt_tokens, asked.output_tokens)
    assert asked.seq_len == ms.Scenario(**GIVEN).length == DEFAULT_SEQ_LEN
    assert (load.prompt_tokens, load.output_tokens) == usual
    compared = ms.compare(
        GIVEN["model"], gpus=GIVEN["gpu"], counts=1, engines="vllm", weight_dtypes="bf16", drafters="eagle3",
        drafts=3, batches=16,
    )  # fmt: skip
    answer = ms.Scenario(**GIVEN, max_drafts=3).recommend(16).answer
    (row,) = answer.schedule
    assert answer.question.request == usual
    assert row.drafts == 3
    for name in ("usd_per_million_tokens", "tokens_per_s", "tokens_per_s_per_user", "joule_per_token"):
        of_setup = "tokens_per_s_per_gpu" if name == "tokens_per_s" else name
        assert getattr(row, name) == pytest.approx(compared.chosen[of_setup]), name
    assert "896 in, 256 out" in compared.sentence
    measured = {"batch": 16, "drafts": 3, "tpot_ms": 1.0, "tokens_per_step": row.tokens_per_step}
    checked = ms.Scenario(**GIVEN).check(**measured).answer
    assert checked.predicted_us == pytest.approx(row.tpot_us, rel=1e-5)


def test_lengths_without_a_request_and_kernels_without_an_engine_are_steps():
    words = [f"--{name}={value}" for name, value in GIVEN.items()]
    assert "896 in, 256 out, 1..4 requests at once" in run("recommend", *words, "--batch", "1..4").stdout
    for given in ([*words, "--seq", "1024"], ["--runtime", "cuda-graph"], []):
        first = run("recommend", *given, "--batch", "1..4").stdout.splitlines()[0]
        assert "1,024 tokens of context, no prompts" in first, given
    for scenario in (ms.Scenario(), ms.Scenario(**GIVEN, runtime="cuda-graph")):
        assert scenario.with_usual_requests() is scenario
    own = served((500, 300))
    assert own.with_usual_requests() is own
