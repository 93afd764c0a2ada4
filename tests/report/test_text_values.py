"""Numbers that sentences and tables of answers tell, by hand, of answers that were made up."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from numbers_in_text import numbers, verdicts

from medusa_sim.arrays import Span, joined
from medusa_sim.grid.axes import Grid
from medusa_sim.grid.quantity import BY_NAME
from medusa_sim.plan.break_even import BreakEven
from medusa_sim.plan.recommend import recommend
from medusa_sim.plan.sweep_answer import sweep_answer
from medusa_sim.plan.verdict import Stretch
from medusa_sim.report.recommend import sentences
from medusa_sim.report.recommend import warnings as of_recommendation
from medusa_sim.report.recommend.facts import request_latency_text
from medusa_sim.report.recommend.screen import schedule_table, search_note
from medusa_sim.report.recommend.sentences import short_answer
from medusa_sim.report.roofline_screen import _sentences, _table
from medusa_sim.report.sweep import screen as of_sweep
from medusa_sim.report.sweep import screen as sweep_tables
from medusa_sim.report.sweep import screen as swept
from medusa_sim.report.sweep import sentences as sweep_sentences
from medusa_sim.report.table import TextTable, _lines, cell_text
from medusa_sim.report.words import caveats
from medusa_sim.report.words.break_even import break_even_text
from medusa_sim.report.words.caveats import guessed_text, more_requests_text
from medusa_sim.report.words.cost import COST_COLUMNS, cost_facts
from medusa_sim.report.words.memory import memory_text
from medusa_sim.report.words.numbers import (
    and_more,
    counted,
    drafts_text,
    duration,
    percent,
    significant,
    span,
    spans_text,
    times,
    times_between,
    with_prefix,
)
from medusa_sim.report.words.scenario import drafter_text, span_of_percents
from medusa_sim.report.words.standing import WHAT_IS_NEW, standing_sentence
from medusa_sim.scenario.question import Question
from medusa_sim.scenario.scenario import Scenario


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (significant(9.9994), "9.999"), (significant(9.9996), "10.000"), (significant(1e12), "1.000e+12"),
        (significant(9.99e11, 3), "999,000,000,000"), (significant(1.234e-5, 3), "0.0000123"),
        (significant(9.99e-6, 3), "9.99e-06"), (significant(-12.345, 3), "-12.3"), (significant(1234.6, 2),
        "1,235"),
        (significant(math.inf), "inf"), (significant(math.nan), "-"),
        (duration(999.4), "999 us"), (duration(1e3), "1.00 ms"), (duration(999_400.0), "999 ms"),
        (duration(1e6), "1.00 s"), (duration(-2e6), "-2.00 s"), (duration(-2e3), "-2.00 ms"),
        (duration(math.inf), "-"),
        (with_prefix(999.0, "B"), "999 B"), (with_prefix(1e3, "B"), "1.00 kB"), (with_prefix(-2e6, "B"),
        "-2.00 MB"),
        (with_prefix(2.5e15, "B", 2), "2.5 PB"),
        (with_prefix(1e15, "B"), "1.00 PB"), (with_prefix(1e12, "B"), "1.00 TB"), (with_prefix(1e9, "B"),
        "1.00 GB"), (with_prefix(math.nan, "B"), "-"),
        (percent(0.01234), "1.2 %"), (percent(0.5, 0), "50 %"), (times(1.236), "1.24x"), (times(math.nan),
        "-"),
        (times_between(1.2, 1.9), "1.20-1.90x"), (times_between(1.201, 1.204), "1.20x"),
        (span(8, 8), "8"), (span(1, 8), "1..8"), (spans_text([(1, 2), (3, 3), (5, 6)]), "1..3, 5..6"),
        (spans_text([(1, 4), (4, 9)]), "1..9"), (drafts_text(1), "no drafts"), (drafts_text(2), "1 draft"),
        (drafts_text(4), "3 drafts"), (counted(14, False), "14 candidates"), (counted(4, True), "3 drafts"),
        (and_more(["a"]), "a"), (and_more(["a", "b", "c"]), "a and 2 more"),
        (cell_text("kv_bytes", 999.0), "999.0"), (cell_text("kv_bytes", 1e3), "1.00 kB"),
        (cell_text("kv_bytes", -1e3), "-1.00 kB"), (cell_text("time_us", 1e3), "1,000"),
        (cell_text("x", True), "yes"),
        (cell_text("x", None), "-"), (cell_text("x", 12345), "12345"), (cell_text("x", "a\n b"), "a b"),
    ],
)  # fmt: skip
def test_a_number_is_shown_so(text, told):
    assert text == told


def test_parts_of_memory_are_tenths_of_a_gb_and_hundredths_below_one():
    told = memory_text((1.26e9, 0.994e9, 0.01e9, 0.009e9))
    assert told == "weights 1.3, drafter 0.99, KV cache 0.01, activations < 0.01 GB"
    assert memory_text((1e9, 0.0, 1e12, 0.0)) == "weights 1.0, KV cache 1,000.0 GB"


def test_drafts_beyond_what_was_measured_are_guessed():
    first = SimpleNamespace(guessed_from=4)
    assert guessed_text(first, 3) == ""
    assert numbers(guessed_text(first, 4)) == ["3"]
    assert guessed_text(SimpleNamespace(guessed_from=2), 2) == " (guessed beyond 1 draft)"
    assert guessed_text(SimpleNamespace(guessed_from=None), 9) == ""


def test_costs_are_shown_at_both_ends_and_once_where_these_are_one():
    scenario = Scenario(gpu="h100-sxm", model="llama-3.1-8b", drafter="eagle3", acceptance=0.7, price=3.0)
    costs = {"batch 1": (2.0, 3.0, 4.0, 5.0), "between": (9.0,) * 4, "batch 64": (0.25, 0.5, 0.75, 1.25)}
    told = {where: dict(zip(COST_COLUMNS, values, strict=True)) for where, values in costs.items()}
    usd, _, joule = cost_facts(scenario, told)
    assert numbers(usd.text) == ["2.00", "1", "3.00", "0.250", "64", "0.500"]
    error = 100.0 * scenario.gpu.power.fit.error
    assert numbers(joule.text) == ["4.00", "1", "5.00", "0.750", "64", "1.25", f"{error:.0f}"]
    first = {"batch 1": told["batch 1"]}
    assert numbers(next(iter(cost_facts(scenario, first))).text) == ["2.00", "1", "3.00"]
    assert not list(cost_facts(scenario, {}))


def known(*stretches: tuple[str, int, int], spans: tuple[tuple[int, int], ...] = ()) -> BreakEven:
    return BreakEven(
        known=tuple(Stretch(first, last, kind) for kind, first, last in stretches), spans=joined(spans)
    )


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (known(("pays", 1, 512)), "pays 1 512"),
        (known(("uncertain", 1, 512)),
        "uncertain 1 512"),
        (known(("pays", 1, 9), ("loses", 10, 512)), "loses 10 512"),
        (known(("loses", 1, 9), ("pays", 10, 512)), "pays 10 512"),
        (
            known(("pays", 1, 9), ("uncertain", 10, 19), ("loses", 20, 512), spans=((1, 15),)),
            "pays 9, uncertain 19 15 loses 512",
        ),
        (
            known(("loses", 1, 9), ("uncertain", 10, 512), spans=((12, 512),)),
            "loses 9 uncertain 12 512",
        ),
        (
            known(("loses", 1, 9), ("uncertain", 10, 512), spans=((10, 512),)),
            "loses 9 uncertain 512",
        ),
        (
            known(("pays", 1, 4), ("loses", 5, 8), ("pays", 9, 9), ("uncertain", 10, 512), spans=((1, 3),)),
            "pays 4, loses 8, pays 9 uncertain 512",
        ),
        (
            known(("loses", 1, 1402), ("pays", 1403, 16790), ("uncertain", 16791, 16850), spans=((9, 9),)),
            "pays 1,403 16,790",
        ),
    ],
)  # fmt: skip
def test_stretches_are_shown_by_their_ends(given, told):
    assert verdicts(break_even_text(given, "batch")) == told


def test_a_band_of_percents_is_its_ends():
    assert span_of_percents([0.085, 0.056, 0.06]) == "5.6-8.5 %"
    assert span_of_percents([0.0521, 0.0519]) == "5.2 %"


@pytest.mark.parametrize(
    ("kind", "between", "told"),
    [
        ("measured", 0.0, ["41", "2.5", "80", "7.0"]),
        ("version", 0.03, ["41", "2.5", "80", "7.0", "3.0"]),
        ("unserved", 0.0, ["80", "7.0"]),
    ],
)
def test_the_error_to_expect_of_plain_steps_is_shown_with_their_band(kind, between, told):
    scenario = SimpleNamespace(
        model=SimpleNamespace(name="made", numbers=""), runtime=SimpleNamespace(name="engine"),
        gpus_text="a card",
    )  # fmt: skip
    near = None if kind == "unserved" else SimpleNamespace(group=SimpleNamespace(cells=41))
    found = SimpleNamespace(
        kind=kind, half_width=0.07, nearness=near, expected=0.025, between=between, nearest="another"
    )
    text = standing_sentence(scenario, found)
    assert numbers(text) == told
    assert ("another" in text.partition(": ")[2].replace(WHAT_IS_NEW[kind], "")) == (kind == "version")


MEDUSA = Scenario(
    gpu="h100-sxm", model="vicuna-7b", drafter="medusa", runtime="cuda-graph", latency="roofline"
)
CHAIN = Scenario(
    gpu="h100-sxm", model="llama-3.1-8b", drafter="eagle3", acceptance=0.7, runtime="vllm", latency="roofline"
)


@pytest.mark.parametrize(("scenario", "word"), [(MEDUSA, "heads"), (CHAIN, "drafts")])
@pytest.mark.parametrize("lengths", [(512,), (512, 4096)])
def test_a_sweep_names_lengths_where_there_are_several_and_heads_of_trees(scenario, word, lengths):
    answer = sweep_answer(scenario, Grid.of([1, 8], lengths, [1, 2, 4]))
    headers = sweep_tables.best_table(answer).headers
    assert ("heads" in headers, "drafts" in headers) == (word == "heads", word == "drafts")
    assert ("length" in headers) == (len(lengths) > 1)
    last = {True: ["8", "4,096"], False: ["8"]}[len(lengths) > 1]
    assert numbers(sweep_sentences.answer_text(answer))[-len(last) :] == last
    assert all((" at length " in line) == (len(lengths) > 1) for line in sweep_sentences.by_batch(answer))
    costs = next(fact.text for fact in swept.facts(answer) if fact.label == "Cost")
    assert ("length 4,096" in costs) == (len(lengths) > 1)


@pytest.mark.parametrize("traffic", [None, object()])
@pytest.mark.parametrize("lengths", [(512,), (512, 4096)])
def test_a_schedule_has_columns_for_what_differs(lengths, traffic):
    found = recommend(CHAIN, Question(batch_max=1, seq_len=lengths))
    answer = SimpleNamespace(
        schedule=found.schedule, question=found.question, chains=True,
        scenario=SimpleNamespace(traffic=traffic, drafting=CHAIN.drafting),
    )  # fmt: skip
    headers = schedule_table(answer).headers
    assert ("length" in headers) == (len(lengths) > 1)
    assert "candidates" not in headers
    assert (BY_NAME["step_speedup"].title in headers) == (traffic is not None)


def test_a_sweep_tells_the_memory_of_its_largest_batch_of_what_can_be_used():
    answer = sweep_answer(MEDUSA, Grid.of([8, 1], [512], [1, 2, 4]))
    use = next(fact.text for fact in swept.facts(answer) if fact.label == "Memory use")
    assert numbers(use)[-3:] == [f"{MEDUSA.usable_memory_bytes / 1e9:,.1f}", "8", "512"]
    fit = next(fact.text for fact in swept.facts(answer) if fact.label == "Memory")
    assert int(numbers(fit)[0]) == answer.memory(answer.column("batch").tolist().index(8))[1]


@pytest.mark.parametrize(("share", "told"), [(0.0, 1), (0.04, 4)])
def test_what_is_free_without_drafting_is_shown_where_drafting_costs(share, told):
    free = SimpleNamespace(largest=256, verification=np.array([40]), whole=np.array([30]))
    answer = SimpleNamespace(
        scenario=SimpleNamespace(traffic=None),
        drafting_share=share,
        free=free,
        grid=Grid.of([2], [512], [1]),
        gain="speedup",
    )
    *_, text = swept.column_facts(answer)
    assert numbers(text.text) == ["10", "2", "4.0", "40"][:told]
    assert [sweep_tables.free_text(count, free) for count in (255, 256, 257)] == ["255", "256+", "257+"]


def test_requests_of_a_recommendation_are_shown_with_and_without_drafts():
    times_us = {"total_us": 2e6, "plain_total_us": 3e6, "first_token_us": 2e5, "plain_first_token_us": 1e5}
    told = ["2.00", "3.00", "200", "100"]
    alone = request_latency_text(SimpleNamespace(batch=1, candidates=2, **times_us))
    assert (numbers(alone), "without drafts" in alone) == (told, False)
    many = request_latency_text(SimpleNamespace(batch=64, candidates=1, **times_us))
    assert (numbers(many), "without drafts" in many) == (["64", *told], True)


@pytest.mark.parametrize(("batch", "told"), [([3, 4, 5], []), ([3, 5, 9], ["3", "7"])])
def test_batches_that_were_not_searched_are_shown(batch, told):
    answer = SimpleNamespace(cells=SimpleNamespace(surface=SimpleNamespace(batch=np.array(batch))))
    assert [numbers(line)[:2] for line in search_note(answer)] == ([told] if told else [])


def schedule_row(batch_min: int, batch_max: int, **more: Any) -> Any:
    given = {
        "seq_len": 512, "candidates": 4, "drafts": 3, "chain": True, "paths": None, "speedup": 1.5,
        "speedup_low": 1.4,
        "speedup_high": 1.6, "speedup_at_batch_min": 2.0, "speedup_lowest": 1.5, "batch_lowest": batch_max,
        "meets_latency": None, "fits_memory": True, "verdict": "pays", "uncertain": None,
        "speculative_speedup": 1.5, "speculative_candidates": 4,
        "required_acceptance_factor": None, "required_tokens_per_step": 2.5,
    }  # fmt: skip
    batches = Span(batch_min, batch_max)
    at = {"batch_min": batch_min, "batch_max": batch_max, "batches": [*batches], "span": batches}
    return SimpleNamespace(**at, **{**given, **more})


def recommended(*rows: Any, lengths: tuple[int, ...] = (512,), **more: Any) -> Any:
    question = SimpleNamespace(
        seq_len=lengths,
        batch_min=1,
        batch_max=64,
        max_latency_ms=None,
        objective="speedup",
        max_latency_us=None,
    )
    given = {"schedule": rows, "chains": True, "where_it_fits": (), "question": question, "enable": True}
    return SimpleNamespace(**given, scenario=SimpleNamespace(guessed_from=None), **more)


GAINS = {1: (2.0, 1.8), 20: (1.2, 0.9), 33: (1.49, 1.3), 64: (1.5, 1.4)}
"""Speedup and lower end of its interval by batch."""


@pytest.mark.parametrize(
    ("rows", "gains", "told"),
    [
        ([schedule_row(1, 1)], {1: (1.5, 1.4)}, ["1.50", "80", "1.40", "1.60", "3"]),
        ([schedule_row(1, 64)], {}, ["2.00", "1", "3", "1.50", "80", "1.40", "1.60", "64", "3"]),
        (  # the interval of a batch whose gain is sure is told at the end alone
            [schedule_row(1, 64)], {1: (2.0, 1.0)},
            ["2.00", "80", "1.00", "1.60", "1", "3", "1.50", "80", "1.40", "1.60", "64", "3"],
        ),
        (
            [schedule_row(1, 8), schedule_row(9, 32, speedup_lowest=1.2, batch_lowest=20),
             schedule_row(33, 64)], {},
            ["2.00", "1", "3", "1.20", "80", "0.90", "1.60", "20", "1.50", "80", "1.40", "1.60", "64", "3"],
        ),
        (  # within 1 % of the end: 1.49 > 0.99 x 1.5
            [schedule_row(1, 8), schedule_row(9, 33, speedup_lowest=1.49), schedule_row(34, 64)], {},
            ["2.00", "1", "3", "1.50", "80", "1.40", "1.60", "64", "3"],
        ),
    ],
)  # fmt: skip
def test_a_gain_is_shown_at_both_ends_and_where_it_is_least(rows, gains, told):
    def cell(batch: int, length: int) -> Any:
        speedup, low = (GAINS | gains)[batch]
        return schedule_row(batch, batch, speedup=speedup, speedup_low=low)

    assert numbers(sentences._gain(recommended(*rows, scheduled_row_at=cell))) == told
    several = sentences._gain(recommended(*rows, lengths=(512, 1024), scheduled_row_at=cell))
    assert several.count(" of length 512") == several.count(" at batch ")


@pytest.mark.parametrize(
    ("candidates", "lengths", "told"),
    [
        ((4, 4), (512,), "Enable speculation at batch 1..64"),
        ((4, 1), (512,), "Enable speculation at batch 1..8"),
        ((1, 4), (512,), "Enable speculation at batch 9..64"),
        ((4, 4), (512, 1024), "Enable speculation at batch 1..64 wherever it fits"),
        ((4, 1), (512, 1024), "Enable speculation at batch 1..8 (length 512)"),
        ((1, 1), (512,), "Do not enable speculation at batch 1..64"),
    ],
)
def test_a_verdict_names_the_batches_that_draft(candidates, lengths, told):
    first, last = candidates
    rows = (schedule_row(1, 8, candidates=first), schedule_row(9, 64, candidates=last))
    assert sentences._where_to_enable(recommended(*rows, lengths=lengths)) == told


@pytest.mark.parametrize(
    ("gains", "told"),
    [((0.9, 1.0), "a loss is predicted"), ((0.9, 1.05), "no gain is certain"), ((), "at batch 1..64")],
)
def test_where_nothing_is_certain_a_loss_is_told_only_where_no_batch_would_gain(gains, told):
    rows = [
        schedule_row(n, n, candidates=1, verdict="uncertain", speculative_speedup=gain)
        for n, gain in enumerate(gains, 1)
    ]
    sure = schedule_row(64, 64, candidates=1, verdict="loses", speculative_speedup=1.5)
    assert told in sentences._where_to_enable(recommended(*rows, sure))


@pytest.mark.parametrize(
    ("uncertain", "lengths", "told"),
    [
        ((None, (41, 64)), (512, 512), "batch 1..64 (gain uncertain at 41..64)"),
        (((4, 8), (9, 20)), (512, 512), "batch 1..64 (gain uncertain at 4..20)"),
        (((1, 8), (9, 64)), (512, 512), "batch 1..64 (gain uncertain)"),
        (
            (None, (41, 64)),
            (512, 1024),
            "batch 1..8 (length 512); batch 9..64 (length 1,024, gain uncertain at 41..64)",
        ),
    ],
)
def test_a_verdict_names_the_batches_whose_gain_is_uncertain(uncertain, lengths, told):
    rows = [
        schedule_row(*batches, uncertain=doubt, seq_len=length)
        for batches, doubt, length in zip(((1, 8), (9, 64)), uncertain, lengths, strict=True)
    ]
    answer = recommended(*rows, lengths=tuple(dict.fromkeys(lengths)))
    assert sentences._where_to_enable(answer) == f"Enable speculation at {told}"


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"speculative_speedup": 1.01}, ["1.01", "64", "3"]),
        ({"speculative_speedup": 0.9}, ["0.90", "64", "3"]),
        (
            {"speculative_speedup": 0.9, "required_acceptance_factor": 1.2},
            ["0.90", "64", "3", "2.50", "1.20"],
        ),
    ],
)
def test_what_it_takes_to_break_even_is_shown_of_the_best_row(more, told):
    rows = [schedule_row(1, 8, speculative_speedup=0.5), schedule_row(9, 64, **more)]
    text = sentences._need(recommended(*rows))
    assert numbers(text) == told
    assert ("does not fit" in text) == (more["speculative_speedup"] > 1.0)


def test_a_late_batch_is_shown_beside_those_that_plain_decoding_keeps():
    """10 ms allowed: plain decoding takes 8, 10 and 12 at batches 1, 2 and 4, of which 4 would not fit."""
    cells = SimpleNamespace(
        server=SimpleNamespace(tpot_us=np.array([[[8e3, 1.0]], [[10e3, 1.0]], [[12e3, 1.0]]])),
        fits=np.ones((3, 1, 2), np.bool_),
        surface=SimpleNamespace(batch=np.array([1, 2, 4])),
    )  # fmt: skip
    answer = recommended(schedule_row(1, 2), schedule_row(3, 4, meets_latency=False), cells=cells)
    answer.question.max_latency_us, answer.question.max_latency_ms = 10e3, 10.0
    assert [numbers(line) for line in sentences._late(answer)] == [["10", "2"], ["3..4", "10"]]
    cells.fits[1] = False
    assert numbers(sentences._late(answer)[0]) == ["10", "1"]


def test_a_roof_and_what_each_phase_waits_for():
    """Reading prompts: 30 of 40 us wait for memory, and 40 us take twice the 20 that are allowed."""
    gpu = CHAIN.gpu
    rows = [
        {"phase": "prefill", "flops": 1.0, "time_us": 30.0, "flops_per_s": 1.0, "roofline_flops_per_s": 3.0,
         "bound": "memory"},
        {"phase": "prefill", "flops": 1.0, "time_us": 10.0, "flops_per_s": 1.0, "roofline_flops_per_s": 1.0,
         "bound": "compute"},
    ]  # fmt: skip
    roof, phase = _sentences(pa.Table.from_pylist(rows), gpu, "bf16")
    peak, bandwidth = gpu.peak("bf16"), gpu.bandwidth_bytes_per_s
    told = [f"{peak / 1e12:.0f}", f"{bandwidth / 1e9:,.0f}", f"{peak / bandwidth:.0f}"]
    assert [number for number in numbers(roof) if number in told] == told
    assert numbers(phase) == ["75", "2.00"]
    one = {"op": "mlp", "phase": "prefill", "batch": 2, "seq_len": 512, "query_tokens": 3, "flops": 2e9,
    "bytes": 3e9,
           "operational_intensity": 0.666, "time_us": 1500.0, "flops_per_s": 2e12,
           "roofline_flops_per_s": 4e12,
           "bound": "memory"}  # fmt: skip
    (cells,) = _table([one], "").rows
    assert cells == (
        "mlp",
        "prefill",
        "2",
        "3",
        "2.000",
        "3.00",
        "0.666",
        "1.50 ms",
        "2.00",
        "4.00",
        "memory",
    )
    assert "length" in _table([one, {**one, "seq_len": 1024}], "").headers


def test_a_narrow_table_leaves_out_what_it_may_and_folds_words_to_sixteen():
    """Widths 4 + 2 + 30 + 2 + 5 = 43 characters."""
    table = TextTable(
        headers=("name", "words", "count"), rows=(("a", "x" * 14 + " " + "y" * 15, "12345"),),
        right=(False, False, True), expendable=("count",),
    )  # fmt: skip
    assert table.narrowed(43).headers == ("name", "words", "count")
    assert table.narrowed(42).headers == ("name", "words")
    assert len(table.folded(43).rows) == 1
    assert len(table.folded(42).rows) == 2
    assert table.folded(1).widths[1] == 15  # folded to no fewer than 16
    long = TextTable(
        headers=("n", "w", "c"), rows=(("a", "z " * 30, "1"),), right=(False, False, True), expendable=("c",)
    )
    assert long.narrowed(1 + 2 + 40 + 2 + 1).headers == ("n", "w", "c")
    assert long.narrowed(45).headers == ("n", "w")


def test_what_is_the_same_in_every_row_stands_in_the_title():
    table = TextTable.rounded({"gpu": ["a", "a"], "x": [1, 2], "y": [None, None]}, "t", fold_constants=True)
    assert (table.headers, table.title, table.right) == (("x",), "t  gpu=a", (True,))
    assert TextTable.rounded({"gpu": ["a"]}, fold_constants=True).headers == ("gpu",)


def test_requests_beyond_which_throughput_falls_are_shown_in_order(monkeypatch):
    monkeypatch.setattr(
        caveats, "slower_with_more", lambda cells: [(64, -0.12), (8, -0.05), (16, -0.03), (1, -0.02)]
    )
    (line,) = more_requests_text(None)
    assert numbers(line) == ["8", "5", "16", "3", "64", "12"]


@pytest.mark.parametrize(
    ("more", "kind", "told"),
    [
        ({}, "pays", ("1.50x", "with 3 drafts a step", "80 %: 1.40 to 1.60")),
        ({"verdict": "uncertain"}, "uncertain", ("1.50x", "with 3 drafts a step", "80 %: 1.40 to 1.60")),
        ({"candidates": 1}, "off", ("off", "decode without drafts", "drafts would give 1.50x at best")),
        (
            {"fits_memory": False},
            "no room",
            ("no room", "does not fit in memory", "81.5 GB a GPU, of 72.0 GB"),
        ),
    ],
)
def test_a_card_tells_a_row_in_a_few_words(more, kind, told):
    row = schedule_row(1, 8, memory_bytes=81.5e9, **more)
    answer = recommended(row)
    answer.scenario.usable_memory_bytes = 72e9
    found = short_answer(answer, row)
    assert (found.kind, (found.figure, found.action, found.more)) == (kind, told)


@pytest.mark.parametrize(
    ("chain", "paths", "told"),
    [
        (True, (), "a chain of 4 candidates"),
        (False, (), "a tree of 4 candidates"),
        (False, None, "4 candidates"),
    ],
)
def test_a_card_calls_a_chain_what_is_one(chain, paths, told):
    row = schedule_row(1, 8, chain=chain, paths=paths)
    answer = recommended(row)
    answer.chains = False
    assert short_answer(answer, row).action == f"with {told} a step"


def test_a_page_warns_of_its_longest_length_and_its_least_and_most_requests(monkeypatch):
    seen: list[Any] = []
    monkeypatch.setattr(caveats, "answer_doubts", lambda scenario, *given: seen.append(given) or [])
    list(caveats.caveats([CHAIN], Grid.of([8, 2], [512, 4096], [1])))
    monkeypatch.setattr(of_sweep, "answer_doubts", lambda scenario, *given: seen.append(given) or [])
    of_sweep.warnings(sweep_answer(CHAIN, Grid.of([8, 2], [512, 4096], [1])))
    monkeypatch.setattr(of_recommendation, "answer_doubts", lambda scenario, *given: seen.append(given) or [])
    of_recommendation._model_warnings(
        recommend(CHAIN, Question(batch_max=8, batch_min=2, seq_len=(512, 4096)))
    )
    assert seen == [(4096, (2, 8))] * 3


def test_a_word_that_is_too_long_breaks_behind_its_last_mark_or_where_the_line_ends():
    assert _lines("as host_us_per_request", 12) == ["as", "host_us_per_", "request"]
    assert _lines("abcdefgh ij", 5) == ["abcde", "fgh", "ij"]


def test_heads_are_counted_and_a_draft_model_is_named():
    assert drafter_text(MEDUSA.but(heads=4)).startswith("4 ")
    drafted = Scenario(
        gpu="h100-sxm",
        model="llama-3.1-8b",
        drafter="draft-model",
        draft_model="llama-3.2-1b",
        acceptance=0.7,
    )
    assert "llama-3.2-1b" in drafter_text(drafted)


def test_tokens_that_are_free_are_drafts_where_chains_are_counted():
    found = recommend(CHAIN, Question(batch_max=1, seq_len=(512,)))
    for chains in (True, False):
        answer = SimpleNamespace(
            schedule=found.schedule, question=found.question, chains=chains, scenario=found.scenario
        )
        table = schedule_table(answer)
        free = table.rows[0][table.headers.index(BY_NAME["free_candidates"].title)]
        assert int(free) == found.schedule[0].free_candidates - chains
