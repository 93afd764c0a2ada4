"""Rows that people measured on their own machine: read from a paste, and what they correct."""
# ruff: noqa: E501  # pastes are as wide as tools print them

import json
import random
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest
from one_line import one_line

from medusa_sim.engines.runtime import load_runtime
from medusa_sim.errors import DataError, UsageError
from medusa_sim.gpus.gpu import load_gpu
from medusa_sim.gpus.local import laws
from medusa_sim.latency.local import LocalLatency
from medusa_sim.models.named import load_model
from medusa_sim.models.variants import with_dtypes
from medusa_sim.scenario.local_correction import corrected, pass_times, replace_law, scaled
from medusa_sim.scenario.local_rows import LocalRow, bench_command, rows_of
from medusa_sim.scenario.scenario import Scenario
from medusa_sim.step.setting import Setting
from medusa_sim.step.step import decode_step

PLACE = Path("paste.txt")
JSON = [
    {
        "build_number": 9859, "gpu_info": "NVIDIA GeForce RTX 3090", "backends": "CUDA", "n_depth": 0,
        "model_filename": "models/Meta-Llama-3.1-8B-Instruct-Q4_K_M.gguf", "model_type": "llama 8B Q4_K - Medium",
        "n_prompt": prompt, "n_gen": made, "avg_ts": rate,
    }
    for prompt, made, rate in ((1, 0, 120.0), (2, 0, 220.0), (4, 0, 390.0), (8, 0, 560.0), (512, 0, 5000.0), (0, 64, 125.0))
]  # fmt: skip
TABLE = """
ggml_cuda_init: found 1 CUDA devices:
  Device 0: NVIDIA GeForce RTX 3090, compute capability 8.6, VMM: yes
| model                          |       size |     params | backend    | ngl |            test |          t/s |
| ------------------------------ | ---------: | ---------: | ---------- | --: | --------------: | -----------: |
| llama 8B Q4_K - Medium         |   4.58 GiB |     8.03 B | CUDA       |  99 |             pp2 | 220.0 ± 1.20 |
| llama 8B Q4_K - Medium         |   4.58 GiB |     8.03 B | CUDA       |  99 |   pp4 @ d4096   | 390.0 ± 1.20 |
| llama 8B Q4_K - Medium         |   4.58 GiB |     8.03 B | CUDA       |  99 |            tg64 | 125.0 ± 0.90 |

build: 4fc4ec55 (9859)
"""
BATCHED = """
|    PP |     TG |    B |   N_KV |   T_PP s | S_PP t/s |   T_TG s | S_TG t/s |      T s |    S t/s |
|-------|--------|------|--------|----------|----------|----------|----------|----------|----------|
|   512 |     32 |    1 |    544 |    0.100 |  5120.00 |    0.256 |   125.00 |    0.356 |  1528.09 |
|   512 |     32 |    4 |   2176 |    0.400 |  5120.00 |    0.330 |   387.88 |    0.730 |  2980.82 |
"""
MLX = "Trial 1:  prompt_tps=900.1, generation_tps=45.1\nAverages: prompt_tps=900.1, generation_tps=45.0, peak_memory=5.2\n"
SERVER = {
    "timings": {
        "prompt_n": 20, "predicted_n": 400, "predicted_ms": 4000.0, "predicted_per_second": 100.0, "draft_n": 300,
        "draft_n_accepted": 240,
    }
}  # fmt: skip


def test_json_of_llama_bench_says_where_it_ran():
    found = rows_of(json.dumps(JSON), PLACE)
    assert found.told == {
        "gpu": "rtx-3090", "runtime": "llama.cpp-cuda", "model": "llama-3.1-8b", "weight_dtype": "q4_k_m",
    }  # fmt: skip
    assert found.build == "9859"
    assert [(row.columns, round(row.time_us)) for row in found.rows] == [
        (1, 8333), (2, 9091), (4, 10256), (8, 14286), (1, 8000)
    ]  # fmt: skip  # a prompt of 512 says nothing of verification


def test_lines_of_json_are_read_as_the_list():
    lines = "\n".join(json.dumps(entry) for entry in JSON)
    assert rows_of(lines, PLACE) == rows_of(json.dumps(JSON), PLACE)


def test_the_table_of_llama_bench_says_the_same():
    found = rows_of(TABLE, PLACE)
    assert found.told == {"gpu": "rtx-3090", "runtime": "llama.cpp-cuda", "weight_dtype": "q4_k_m"}
    assert [(row.columns, row.depth, round(row.time_us)) for row in found.rows] == [
        (2, 1.0, 9091), (4, 4096.0, 10256), (1, 32.0, 8000)
    ]  # fmt: skip
    assert found.build == "9859"


def test_a_test_of_prompt_and_answer_is_no_pass_of_either():
    """As in JSON: 16 tokens of a prompt and 64 made tell of neither alone."""
    lines = ["| test | t/s | x |", "| pp16+tg64 | 110.00 | |", "| pp16 @ d512 | 1600.00 ± 2.00 | |"]
    (row,) = rows_of("\n".join(lines), "a paste").rows
    assert (row.columns, row.depth, row.time_us) == (16, 512.0, 10_000.0)


def test_sequences_of_batched_bench_have_caches_of_their_own():
    one, four = rows_of(BATCHED, PLACE).rows
    assert (one.columns, one.is_batch, round(one.time_us)) == (1, False, 8000)
    assert (four.columns, four.is_batch, round(four.time_us)) == (4, True, 10312)
    assert one.depth == 528.0


def test_mlx_lm_tells_a_plain_step():
    found = rows_of(MLX, PLACE)
    assert [round(row.time_us) for row in found.rows] == [22222]
    assert found.told == {"runtime": "mlx"}


def test_timings_of_the_server_tell_acceptance():
    found = rows_of(json.dumps(SERVER), PLACE)
    # 400 tokens: one of the prompt's pass, 240 accepted, and one of the target's own in each of 159 rounds.
    assert (found.rounds, found.drafts) == (159.0, 2)
    assert found.tokens_per_round == pytest.approx(399.0 / 159.0)
    assert found.acceptance(5) == "2.509@2"
    assert not found.rows  # a round with drafts is no plain step


LOG = """
prompt eval time =     120.00 ms /    20 tokens (    6.00 ms per token,   166.67 tokens per second)
       eval time =    5000.00 ms /   401 tokens (   12.50 ms per token,    80.00 tokens per second)
draft acceptance rate = 0.72000 (  288 accepted /   400 generated)
"""


def test_a_log_tells_rounds_by_what_was_made():
    found = rows_of(LOG, PLACE)
    assert (found.rounds, found.drafts) == (112.0, 4)
    assert found.acceptance() == "3.571@4"
    assert rows_of(LOG.replace("       eval", "       other"), PLACE).acceptance() == "72%@3"
    assert rows_of(LOG.replace("       eval", "       other"), PLACE).acceptance(5) == "72%@5"


PLAIN_LOG = """
prompt eval time =     120.00 ms /    20 tokens (    6.00 ms per token,   166.67 tokens per second)
       eval time =    8000.00 ms /   400 tokens (   20.00 ms per token,    50.00 tokens per second)
"""


@pytest.mark.parametrize(
    "text", [PLAIN_LOG + LOG, LOG + PLAIN_LOG, PLAIN_LOG + LOG + PLAIN_LOG, "\n".join(LOG.splitlines()[::-1])]
)
def test_requests_that_draft_nothing_add_no_rounds_to_a_log(text):
    assert rows_of(text, PLACE).acceptance() == rows_of(LOG, PLACE).acceptance()
    assert rows_of(text, PLACE).rounds == 112.0


def test_each_request_of_a_log_has_a_first_token_of_its_own():
    found = rows_of(20 * LOG, PLACE)
    assert found.rounds == 20 * 112.0
    assert found.acceptance() == rows_of(LOG, PLACE).acceptance()


def test_the_time_of_a_token_is_the_mean_of_all_requests_that_drafted():
    slow = {"timings": SERVER["timings"] | {"predicted_n": 1200, "predicted_per_second": 50.0}}
    plain = {"timings": {"prompt_n": 20, "predicted_n": 400, "predicted_per_second": 10.0}}
    for entries in ([SERVER, slow, plain], [slow, plain, SERVER]):
        # 400 tokens of 10 ms and 1200 of 20 ms
        assert rows_of(json.dumps(entries), PLACE).drafted_us == pytest.approx(17_500.0)


def test_a_request_that_does_not_say_its_tokens_counts_as_one():
    unsaid = {"timings": {"draft_n": 3, "draft_n_accepted": 1, "predicted_per_second": 40.0}}
    three = {
        "timings": {"draft_n": 3, "draft_n_accepted": 1, "predicted_n": 3, "predicted_per_second": 100.0}
    }
    assert rows_of(json.dumps([unsaid]), PLACE).drafted_us == pytest.approx(25_000.0)
    # three of 10 ms and one of 25
    assert rows_of(json.dumps([unsaid, three]), PLACE).drafted_us == pytest.approx(55_000.0 / 4.0)


@pytest.mark.parametrize("text", ["", "hello", "{}", "[]", "[1]", '{"a": NaN}', "| a | b | c |\n", "[" * 100])
def test_what_holds_no_speed_is_one_line(text):
    with one_line(DataError):
        rows_of(text, PLACE)


def test_mutated_pastes_are_read_or_refused():
    chance = random.Random(7)  # noqa: S311  # no secret
    for whole in (json.dumps(JSON), TABLE, BATCHED, json.dumps(SERVER)):
        for _ in range(60):
            letters = list(whole)
            for _ in range(chance.choice((1, 3, 20))):
                letters[chance.randrange(len(letters))] = chr(chance.randrange(32, 127))
            try:
                rows_of("".join(letters), PLACE)
            except DataError as error:
                told = str(error)
            else:
                told = ""
            assert "\n" not in told


def setting(latency, model="llama-3.1-8b", weights="Q4_0", runtime="llama.cpp-cuda"):
    return Setting(
        latency=latency, model=with_dtypes(load_model(model), None, weights), runtime=load_runtime(runtime),
        scope="model",
    )  # fmt: skip


def unsampled(latency):
    """As llama-bench runs a prompt: without logits of every column."""
    return replace_law(latency, msgspec.structs.replace(latency.law, row_us_per_million=0.0))


def measured(at, columns, depth=512):
    rows = [LocalRow(columns=m, depth=depth, time_us=1.0) for m in columns]
    times = pass_times(at.latency, at.model, at.runtime, rows)
    return [replace(row, time_us=float(us)) for row, us in zip(rows, times, strict=True)]


@pytest.mark.parametrize(
    ("gpu", "runtime"), [("rtx-3090", "llama.cpp-cuda"), ("m2-ultra", "llama.cpp-metal")]
)
@pytest.mark.parametrize("factors", [(0.8, 1.4, 0.7, 1.2), (1.1, 0.6, 1.2, 0.8)])
def test_four_rows_tell_what_another_machine_of_the_class_does(gpu, runtime, factors):
    own = unsampled(LocalLatency(load_gpu(gpu), load_runtime(runtime).local))
    true = setting(replace_law(own, scaled(own.law, *factors)), runtime=runtime)
    silent = setting(own, runtime=runtime)
    found = setting(
        corrected(own, silent.model, silent.runtime, measured(true, (1, 2, 4, 8))), runtime=runtime
    )
    others = (3, 5, 6, 7)
    for asked, known, before in zip(*(measured(at, others) for at in (true, found, silent)), strict=True):
        assert known.time_us == pytest.approx(asked.time_us, rel=0.05)
        assert (
            abs(known.time_us - asked.time_us) <= abs(before.time_us - asked.time_us) + 0.03 * asked.time_us
        )


def test_rows_are_met_and_the_band_narrows():
    own = unsampled(LocalLatency(load_gpu("m1-max"), "metal"))
    at = setting(own, weights="Q8_0", runtime="llama.cpp-metal")
    chance = np.random.default_rng(3)
    rows = [
        LocalRow(
            columns=row.columns, depth=row.depth, time_us=row.time_us * float(np.exp(chance.normal(0.1, 0.2)))
        )
        for row in measured(at, (1, 2, 4, 8))
    ]
    known = corrected(own, at.model, at.runtime, rows)
    again = measured(setting(known, weights="Q8_0", runtime="llama.cpp-metal"), (1, 2, 4, 8))
    assert [row.time_us for row in again] == pytest.approx([row.time_us for row in rows], rel=0.03)
    assert known.law.band <= own.law.band


def test_no_rows_change_nothing():
    own = LocalLatency(load_gpu("gb10"), "cuda")
    assert corrected(own, load_model("llama-3.1-8b"), load_runtime("llama.cpp-cuda"), []) is own


@pytest.mark.parametrize("law", laws(), ids=lambda law: law.name)
def test_a_law_scaled_by_one_is_itself(law):
    assert scaled(law, 1.0, 1.0, 1.0, 1.0) == law


def test_a_scenario_takes_the_file(tmp_path):
    path = tmp_path / "bench.json"
    path.write_text(json.dumps(JSON))
    asked = {
        "gpu": "rtx-3090", "model": "llama-3.1-8b", "weight_dtype": "Q4_K_M", "drafter": "ngram", "acceptance": 0.5,
    }  # fmt: skip
    told = Scenario(runtime="llama.cpp-cuda", bench=path, **asked)
    plain = float(decode_step(told.setting, 1, 32).time_us)
    assert plain == pytest.approx(8100, rel=0.04)
    with one_line(UsageError, "llama.cpp-cuda"):
        _ = Scenario(runtime="vllm", bench=path, **{**asked, "weight_dtype": None}).latency


def test_the_command_that_asks_for_rows_is_that_of_the_engine():
    assert bench_command("mlx").startswith("mlx_lm")
    assert ".gguf" not in bench_command("mlx")  # which it does not read
    assert "-m MODEL.gguf -p 1,2,4,8,16" in bench_command("llama.cpp-metal")
    with one_line(UsageError, "vllm"):
        bench_command("vllm")
