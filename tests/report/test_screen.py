"""One layout for every answer: no line wider than asked, warnings alike, --verbose only adds."""

import itertools
import re

import pytest
from asking import answered

from medusa_sim.report.screen import (
    LABELS,
    MOST_PROSE,
    MOST_WARNINGS,
    NARROWEST,
    WIDTH,
    Fact,
    Screen,
    fact_lines,
    screen_text,
)
from medusa_sim.report.table import TextTable

ENGINE = "--gpu h100-sxm --model llama-3.1-8b --drafter eagle3"
ANSWERS = (
    f"recommend {ENGINE} --batch 1..4 --max-latency-ms 8",
    "recommend --gpu l40s --model llama-3-70b --latency roofline --batch 1..2",
    "sweep --batch 1..4 --latency roofline",
    f"load {ENGINE} --policy none,3 --rate 4 --requests 60 --seeds 1 --no-search",
    "compare --gpu h100-sxm --model llama-3.1-8b --gpus 1 --engine vllm --drafter none,eagle3 --users 8",
    f"check {ENGINE} --batch 8 --seq 600 --drafts 0 --measured-tpot-ms 7.1",
)
TABLE = TextTable(
    headers=("batch", "tokens/s", "why"),
    rows=(("1..44", "5,195", "words and more words " * 4), ("45..64", "5,981", "x")),
    right=(True, True, False),
    title="What is told of each batch, with more words than a narrow terminal has room for",
    expendable=("tokens/s",),
)
SCREEN = Screen(
    asked="896 in, 256 out, 1..64 requests at once: llama-3.1-8b bf16 on h100-sxm, vllm-0.33, EAGLE-3 layer",
    answer=("Enable speculation at batch 1..64: 2.17x at batch 1 with 5 drafts, 1.34x at batch 64.",),
    tables=(TABLE,),
    details=(TABLE,),
    facts=tuple(Fact(label, f"{label} " + "and what is told " * 9, detail=i % 2 > 0)
                for i, label in enumerate(reversed(LABELS))),
    warnings=tuple(f"number {i}: " + "words " * 40 for i in range(5)),
)  # fmt: skip


def test_text_follows_a_wide_table_as_far_as_it_reads_well():
    """Tables of 60, 104 and 140 columns on a terminal of 160: text of 100 (WIDTH), 104 and 110."""
    for wide, expected in ((60, WIDTH), (104, 104), (140, MOST_PROSE)):
        table = TextTable(headers=("x" * wide,), rows=(("1",),), right=(False,))
        screen = Screen(asked="a " * 200, tables=(table,))
        lines = screen_text(screen, WIDTH, 160).splitlines()
        assert max(len(line) for line in lines if line.lstrip().startswith("a")) in (expected - 1, expected)
        assert max(map(len, screen_text(screen, WIDTH, None).splitlines()[:2])) <= WIDTH


@pytest.mark.parametrize("verbose", [False, True])
@pytest.mark.parametrize("width", [NARROWEST, 60, 80, 100])
def test_no_line_is_wider_than_asked(width, verbose):
    text = screen_text(SCREEN, width, width, verbose=verbose)
    assert max(map(len, text.splitlines())) <= width


def test_verbose_only_adds():
    brief, whole = (screen_text(SCREEN, 100, 100, verbose=verbose) for verbose in (False, True))
    told, rest = " ".join(brief.split()), " ".join(whole.split())
    every = [SCREEN.asked, *SCREEN.answer, *(fact.text.strip() for fact in SCREEN.facts), *SCREEN.warnings]
    assert [line.strip() for line in every if line.strip() not in rest] == []
    assert [fact.label for fact in SCREEN.facts if fact.detail is (fact.text.strip() in told)] == []
    assert whole.count("warning: ") == len(SCREEN.warnings)
    assert brief.count("warning: ") == MOST_WARNINGS
    assert "--verbose" not in whole


def test_facts_stand_in_one_order_behind_one_column():
    labels = [fact.label for fact in SCREEN.facts]
    assert labels == list(LABELS)
    starts = {len(re.match(r"(\S+ )*\S*\s+", line)[0]) for line in fact_lines(SCREEN.facts[:3], 400)}
    assert len(starts) == 1


@pytest.mark.parametrize("words", ANSWERS)
def test_every_answer_has_this_layout(words):
    brief, whole = (answered(*words.split(), *more).stdout for more in ((), ("--verbose",)))
    for text in (brief, whole):
        assert max(len(line) for line in text.splitlines() if not line.startswith("  ")) <= 100
    told = " ".join(whole.split())
    parts = [part for part in brief.split("\n\n") if "with --verbose)" not in part]
    facts = re.compile(r"^(?=[A-Z])", re.MULTILINE)
    lines = itertools.chain.from_iterable(facts.split(part) for part in parts)
    missing = [line for line in lines if line.strip() and " ".join(line.split()) not in told]
    assert missing == []
    asked, answer, *_ = parts
    assert re.match(r"[\d,]+ (in|tokens of context)", asked)
    assert answer.strip()[-1] in ".:"
