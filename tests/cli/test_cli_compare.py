"""`medusa-sim compare`: what is scored from it, its table and its one-line errors."""

import csv
import io
import json

import pytest
from asking import run as asked
from click.testing import Result

R1 = (
    "--gpu h200-sxm,b200,b300 --model deepseek-r1 --engine sglang,tensorrt-llm "
    "--weight-dtype fp8_block,nvfp4 "
    "--gpus 8 --drafter none,mtp --prompt-tokens 900 --output-tokens 900 --tokens-per-s-per-user 40 "
    "--batch 16,64 --no-dp-attention --ep 8"
)


def run(line: str) -> Result:
    return asked("compare", *line.split())


@pytest.fixture(scope="module")
def answer() -> dict[str, object]:
    result = run(f"{R1} --format json")
    assert result.exit_code == 0, result.output
    found: dict[str, object] = json.loads(result.stdout)
    return found


def test_a_row_a_set_up(answer):
    result = run(f"{R1} --format csv")
    rows = list(csv.DictReader(io.StringIO(result.stdout)))
    wanted = "gpu gpus tp ep dp_attention precision engine drafter drafts batch tokens_per_s_per_gpu \
        tokens_per_s_per_user usd_per_million_tokens on_frontier chosen"
    assert set(wanted.split()) <= set(rows[0])
    assert len(rows) == len(answer["rows"])
    keys = [
        tuple(row[name] for name in ("gpu", "tp", "precision", "engine", "drafter", "batch")) for row in rows
    ]
    assert len(set(keys)) == len(keys) == (1 + 2 + 2) * 2 * 2 * 2  # an H200 has no nvfp4
    assert sum(row["chosen"] == "true" for row in rows) == 1


def test_json_says_the_rest(answer):
    assert {"answer", "chosen", "chosen_without_speculation", "runners_up", "refused", "warnings"} <= set(
        answer
    )
    assert all(set(item) == {"setup", "reason"} for item in answer["refused"])


def test_the_table_begins_with_the_answer():
    result = run(
        "--model llama-3.1-8b --gpu h100-sxm,l40s --gpus 1,2 --engine vllm --tokens-per-s-per-user 60"
    )
    first = result.stdout.splitlines()[0]
    assert "tokens/s a user" in first
    assert "without speculation" in first or "no drafter does better" in first
    assert "Nothing is both faster" in result.stdout
