"""Tables for people fit a screen: sentences first, GB and TFLOP/s, 100 characters a line at most."""

import pytest
from asking import document, run

MOST = 100


@pytest.mark.parametrize(
    "words",
    [
        "specs", "specs h100-sxm", "specs vllm-0.33", "specs llama-3.1-8b", "specs prices", "specs rtx-3090",
        "roofline --gpu h100-sxm --model llama-3.1-8b",
        "roofline --model llama-33b --runtime paper --batch 16",
        "roofline --gpu h200-sxm --model deepseek-r1 --tp 8 --seq 1024,4096",
    ],
)  # fmt: skip
def test_no_line_is_wider_than_a_screen(words):
    text = run(*words.split()).stdout
    assert max(map(len, text.splitlines())) <= MOST


def test_a_roofline_says_what_binds_and_rows_keep_their_units():
    words = ("roofline", "--gpu", "h100-sxm", "--model", "llama-3.1-8b", "--batch", "1", "--candidates", "8")
    text = run(*words).stdout
    assert "h100-sxm computes 989 TFLOP/s in bf16 and reads 3,350 GB/s" in text
    assert "e+" not in text
    row = next(
        each for each in document(*words)["rows"] if each["op"] == "qkv_proj" and each["phase"] == "decode"
    )
    (line,) = (each for each in text.splitlines() if each.startswith("qkv_proj") and " decode " in each)
    assert f"{row['flops_per_s'] / 1e12:.2f}"[:3] in line
    assert row["bound"] in line
