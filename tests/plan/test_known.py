"""What is certain, what is not: ranges of verdicts, where drafts are made in them, and who says the same."""

import itertools

import numpy as np
import pytest
from asking import document
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numbers_in_text import verdicts

import medusa_sim as ms
from medusa_sim.grid.axes import Grid
from medusa_sim.grid.cells import price
from medusa_sim.plan.break_even import break_even_batches, find_break_even
from medusa_sim.plan.coarse_search import at_few_counts, coarse_searches
from medusa_sim.plan.sweep_answer import sweep_answer
from medusa_sim.plan.verdict import (
    GAIN,
    LOSES,
    NO_GAIN,
    PAYS,
    KnownOdds,
    Stretch,
    drafting_spans,
    odds_of,
    stretches,
)
from medusa_sim.report.length_view import length_view
from medusa_sim.report.words.break_even import break_even_text

LETTERS = {"P": PAYS, "g": GAIN, "n": NO_GAIN, "L": LOSES}


def found(letters: str):
    odds = np.array([LETTERS[each] for each in letters])
    return find_break_even(KnownOdds(np.arange(1, odds.size + 1), odds), lambda at: odds[at - 1])


@pytest.mark.parametrize(
    ("letters", "kinds", "spans", "text"),
    [
        ("PPnngPPLL", "pl", ((1, 7),), "loses 8 9"),
        ("PgngggPgg", "pupu", ((1, 2), (4, 9)), None),  # 2 to 6 is wider than 1 and than 7
        ("PPgngLL", "pul", ((1, 3),),
         "pays 2, uncertain 5 3 loses 7"),
        ("PPgg", "pu", ((1, 4),), "pays 2 uncertain 4"),
        ("LLgLL", "l", (), "loses 1 5"),
        ("LngPP", "lup", ((3, 5),),
         "loses 1, uncertain 3 3 pays 5"),
        ("PLP", "plp", ((1, 1), (3, 3)), None),
        ("ggnLL", "ul", ((1, 2),),
         "uncertain 3 2 loses 5"),
        ("nnn", "u", (), "uncertain 1 3"),
        ("PLnggL", "pl", ((1, 1),), "loses 2 6"),
        ("PLPPLgg", "plplu", ((1, 1), (3, 4)),
         "pays 1, loses 2, pays 4, loses 5 uncertain 7"),
    ],
)  # fmt: skip
def test_stretches_merge_and_are_shown_as_few_as_are_true(letters, kinds, spans, text):
    one = found(letters)
    assert "".join(stretch.verdict[0] for stretch in one.known) == kinds
    assert one.spans == spans
    assert text is None or verdicts(break_even_text(one, "batch")) == text


@given(arrays(np.int64, st.integers(1, 40), elements=st.integers(LOSES, PAYS)))
def test_drafts_are_made_where_it_certainly_pays_and_never_where_it_certainly_loses(odds):
    values = np.arange(1, odds.size + 1)
    known = stretches(KnownOdds(values, odds))
    assert [known[0].first, known[-1].last] == [1, odds.size]
    assert all(one.last + 1 == after.first for one, after in itertools.pairwise(known))
    on = np.zeros(odds.size, dtype=bool)
    for first, last in drafting_spans(KnownOdds(values, odds), known):
        assert not on[first - 1 : last].any()
        on[first - 1 : last] = True
    assert on[odds == PAYS].all()
    assert not on[odds == LOSES].any()
    if (odds == PAYS).any():
        paying = [range(one.first, one.last + 1) for one in known if one.verdict == "pays"]
        # a predicted loss is run through only between two batches that certainly pay
        assert all(any(batch in of for of in paying) for batch in values[on & (odds == NO_GAIN)])


@pytest.mark.parametrize("change", [2, 63, 64, 65, 700])
def test_changes_are_found_to_the_whole_number(change):
    """Between values that are told apart; three kinds within one gap too."""

    def odds_at(at):
        return np.where(at < change, PAYS, np.where(at < change + 2, GAIN, LOSES))

    values = np.array([1, 64, 1000])
    one = find_break_even(KnownOdds(values, odds_at(values)), odds_at)
    assert one.known[0] == Stretch(1, change - 1, "pays")
    assert one.known[-1].first == change + 2
    assert one.spans == ((1, change + 1),)


SERVER = {
    "gpu": "h100-sxm", "model": "llama-3.1-8b", "drafter": "eagle3", "prompt_tokens": 512,
    "output_tokens": 256,
}  # fmt: skip


@pytest.mark.parametrize(
    "given", [{}, SERVER, {**SERVER, "acceptance": "2.48@3", "runtime": "sglang"}], ids=str
)
def test_sweep_its_plot_and_recommend_choose_one_count_at_one_request(given):
    scenario = ms.Scenario(**given)
    grid = Grid.of([1], [scenario.length], [1, 2, 3, 4, 8, 48])
    swept = sweep_answer(scenario, grid)
    view = length_view(scenario, grid, scenario.length)
    for batches in (1, range(1, 65)):
        row = scenario.recommend(batches).answer.schedule[0]
        assert row.candidates == swept.column("candidates")[0] == view.counts[view.best[0]]
        assert row.speedup_at_batch_min == pytest.approx(float(view.speedup[0, view.best[0]]))


def test_every_form_of_an_answer_tells_one_verdict():
    """Headline, sweep, JSON and rows, of a server that drafts up to somewhere within its doubt."""
    scenario = ms.Scenario(**SERVER, runtime="sglang")
    told = scenario.recommend(range(1, 65))
    crossing_ = told.answer.break_even_batches[0]
    kinds = [stretch.verdict for stretch in crossing_.known]
    assert kinds[0] == "pays"
    assert f"It {break_even_text(crossing_, 'batch')}." in str(told)
    swept = sweep_answer(scenario, Grid.of([1, 64], [scenario.length], [1, 2, 3, 4]))
    assert swept.break_evens[0].known[0] == crossing_.known[0]
    words = [f"--{name.replace('_', '-')}={value}" for name, value in SERVER.items()]
    values = document("recommend", *words, "--runtime", "sglang", "--batch", "1..64")
    (by_length,) = values["break_even_batch_by_seq_len"]
    assert [each["verdict"] for each in by_length["known"]] == kinds
    assert [tuple(each) for each in by_length["drafts_made"]] == list(crossing_.spans)
    for row in told.answer.schedule:
        on = row.candidates > 1
        assert on == any(first <= row.batch_min and row.batch_max <= last for first, last in crossing_.spans)
        assert row.verdict in {"pays": ("pays",), "loses": ("loses",)}.get(row.verdict, ("uncertain",))
        assert (row.uncertain is None) == (row.verdict != "uncertain")
        inside = [
            one.verdict for one in crossing_.known if one.first <= row.batch_min and row.batch_max <= one.last
        ]
        assert not inside or inside[0] in (row.verdict, "uncertain", "pays")


def test_odds_are_those_of_the_best_count_that_fits():
    scenario = ms.Scenario(**SERVER)
    by_count = price(scenario, np.arange(1, 300, 7), [640]).by_count
    odds = odds_of(by_count)[:, 0]
    gain = np.where(by_count.fits, by_count.speedup, 0.0)[:, 0, 1:]
    low, high = (end[:, 0, 1:] for end in by_count.speedup_band)
    rows, best = np.arange(odds.size), gain.argmax(axis=1)
    np.testing.assert_array_equal(odds == PAYS, low[rows, best] > 1.0)
    np.testing.assert_array_equal(odds == LOSES, high[rows, best] <= 1.0)
    few = at_few_counts(scenario.options())
    (whole,) = break_even_batches(coarse_searches(scenario, few, np.array([640])))
    assert whole.known[0].verdict == "pays"
