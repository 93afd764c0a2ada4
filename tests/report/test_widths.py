"""Tables for people fit a screen: sentences first, GB and TFLOP/s, 100 characters a line at most."""

import pytest
from asking import document, run

from medusa_sim.cli.time import GIVEN_UP
from medusa_sim.report.table import BETWEEN, TextTable

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


def test_lines_of_a_pipe_are_as_wide_as_columns_says(monkeypatch, tmp_path):
    asked = ("roofline", "--latency", "roofline", "--batch", "1")
    widest = {}
    for columns in ("nonsense", "80"):
        monkeypatch.setenv("COLUMNS", columns)
        widest[columns] = max(map(len, run(*asked).stdout.splitlines()))
    run(*asked, "-o", tmp_path / "answer.txt")
    of_file = max(map(len, (tmp_path / "answer.txt").read_text().splitlines()))
    assert widest["80"] <= 80 < widest["nonsense"] == of_file <= MOST


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


def test_words_of_two_folded_columns_stay_in_their_row():
    """A name and two texts in 39 characters: the lines of a row hold both texts from its first line on."""
    texts = {
        "a": ("one host_us_per_request of many", "of a source that is read"),
        "b": ("two", "that was read twice in May"),
    }
    table = TextTable(
        headers=("", "value", "source"), rows=tuple((name, *told) for name, told in texts.items()),
        right=(False, False, False),
    )  # fmt: skip
    folded = table.folded(39)
    assert sum(folded.widths) + 2 * BETWEEN <= 39
    firsts = [place for place, row in enumerate(folded.rows) if row[0]]
    for (name, told), first, last in zip(texts.items(), firsts, [*firsts[1:], len(folded.rows)], strict=True):
        lines = folded.rows[first:last]
        assert lines[0][0] == name
        for column, text in enumerate(told, start=1):
            cells = [line[column] for line in lines]
            assert "".join(cells).replace(" ", "") == text.replace(" ", "")
            assert all(cells[: len(list(filter(None, cells)))])  # no gap between its lines


def test_a_narrow_table_of_operators_keeps_the_time_that_is_predicted():
    names = ("op", "m", "n", "k", "batch", "q_len", "kv_len", "heads", "kv_heads", "head_dim", "predicted_us",
             "low_us", "high_us", "bound")  # fmt: skip
    others = tuple(name for name in reversed(names[1:]) if name not in GIVEN_UP)
    table = TextTable(
        headers=names, rows=(tuple(name.replace("_", " ") for name in names),), right=(True,) * len(names),
        expendable=(*GIVEN_UP, *others),
    )  # fmt: skip
    assert {"op", "m", "predicted_us"} <= set(table.narrowed(30).headers)
