"""How many rows a command makes, and where its axes end."""

from types import SimpleNamespace

import pytest
from asking import answered, document, frame, run

from medusa_sim.cli import sweep
from medusa_sim.cli.load import rates_of
from medusa_sim.cli.values import BATCH, CANDIDATES, DRAFTS, SEQ_LEN, TP
from medusa_sim.doubts import of_answer, of_scenario
from medusa_sim.errors import UsageError
from medusa_sim.grid.axes import Grid
from medusa_sim.report.sweep import screen


@pytest.mark.parametrize(
    ("axis", "largest"),
    [(BATCH, 65_536), (SEQ_LEN, 16_777_216), (CANDIDATES, 65_536), (TP, 1_024), (DRAFTS, 64)],
)
def test_an_axis_ends_where_it_says(axis, largest):
    """Nineteen digits are a number out of range, a hundred no other."""
    assert axis.values(str(largest)) == (largest,)
    for beyond in (largest + 1, "1" + "0" * 18, "1" + "0" * 19, "1" + "0" * 99):
        with pytest.raises(UsageError):
            axis.values(str(beyond))


def test_rows_are_doubted_to_the_ends_of_their_grid(monkeypatch):
    """Of batches 2 to 8 at lengths 512 and 1,024, to 16 candidates; a table finds the best of all counts."""
    asked: list[tuple[object, ...]] = []
    monkeypatch.setattr(
        of_scenario, "scenario_doubts", lambda scenario, largest: asked.append((largest,)) or ()
    )
    monkeypatch.setattr(
        of_answer, "answer_doubts", lambda scenario, longest, ends: asked.append((longest, ends)) or ()
    )
    words = (
        "sweep",
        "--batch",
        "2..8",
        "--seq",
        "512,1024",
        "--candidates",
        "1,4,16",
        "--latency",
        "roofline",
    )
    answered(*words, "--format", "csv")
    assert asked == [(16,), (1024, (2, 8))]
    monkeypatch.setattr(screen, "scenario_doubts", lambda scenario, largest: asked.append((largest,)) or ())
    answered(*words)
    assert asked[2] == (16,)  # the largest that is best


def grid_of(batches: int, lengths: int, counts: int = 1) -> Grid:
    return Grid.of(range(1, batches + 1), range(64, 64 + lengths), range(1, counts + 1))


def test_a_table_for_people_has_at_most_two_thousand_batches_and_lengths(monkeypatch):
    """50 batches at 20 lengths in each of two answers are 2,000; at 21 in two 2,100, in one 1,050."""
    monkeypatch.setattr("medusa_sim.plan.sweep_answer.sweep_answer", lambda one, grid, grid_alone: None)
    monkeypatch.setattr(
        "medusa_sim.report.sweep.screen.sweep_screen",
        lambda answer, warned, several: SimpleNamespace(warnings=()),
    )
    shown: list[int] = []
    output = SimpleNamespace(screens=lambda screens: shown.append(len(screens)))
    monkeypatch.setattr(sweep, "warned_once", list)
    for lengths, answers in ((20, 2), (21, 1)):
        sweep._show_best(output, [(None, ())] * answers, grid_of(50, lengths), grid_alone=False)
    assert shown == [2, 1]
    for batches, lengths, answers in ((50, 21, 2), (2001, 1, 1), (1, 2001, 1)):
        with pytest.raises(UsageError):
            sweep._show_best(output, [(None, ())] * answers, grid_of(batches, lengths), grid_alone=False)


@pytest.mark.parametrize(
    ("counts", "form", "fits"), [(10, "table", True), (11, "table", False), (11, "csv", True)]
)
def test_a_table_has_at_most_twenty_thousand_rows(monkeypatch, counts, form, fits):
    """50 batches at 40 lengths of ten counts are 20,000."""
    scenario = SimpleNamespace(covered=lambda candidates: candidates)
    grid = grid_of(50, 40, counts)
    assert sweep.rows_of([scenario, scenario], grid) == 2 * 50 * 40 * counts
    monkeypatch.setattr("medusa_sim.grid.sweep.sweep", lambda *given: iter(()))
    # what follows the check has nothing to write
    with pytest.raises(StopIteration if fits else UsageError):
        sweep._write_rows(SimpleNamespace(form=form), (scenario,), grid, ())


def test_a_hundred_rates_are_run_at_once():
    assert len(rates_of(",".join(map(str, range(1, 101))))) == 100
    with pytest.raises(UsageError, match="101 rates"):
        rates_of(",".join(map(str, range(1, 102))))
    assert rates_of("2,1,2") == (2.0, 1.0)


@pytest.mark.parametrize("command", ["recommend", "card"])
def test_a_question_goes_from_its_least_batch_to_its_largest(monkeypatch, tmp_path, command):
    asked: list[tuple[int, int]] = []

    def stop(scenario: object, question: object) -> None:
        asked.append((question.batch_min, question.batch_max))
        raise UsageError("asked")

    monkeypatch.setattr("medusa_sim.plan.recommend.recommend", stop)
    more = ["-o", tmp_path / "card.png"] if command == "card" else []
    assert run(command, "--batch", "16,2,4", *more).exit_code == 2
    assert asked == [(2, 16)]


@pytest.mark.parametrize(("tokens", "error", "least"), [(1.05, 0.2, 1.0), (1.4, 0.1, 1.3)])
def test_a_tree_emits_its_root_at_least(monkeypatch, tokens, error, least):
    monkeypatch.setattr("medusa_sim.acceptance.heads.expected_tokens_per_step", lambda *given: tokens)
    monkeypatch.setattr("medusa_sim.acceptance.heads.tokens_per_step_error", lambda *given: error)
    said = document("tree", "build", "--head-accuracy", "medusa1-vicuna-7b", "--candidates", "4")
    low, high = said["tokens_per_step_low"], said["tokens_per_step_high"]
    assert (low, high) == (pytest.approx(least), pytest.approx(tokens + error))


def test_a_profile_says_to_which_count_it_goes_and_leaves_larger_ones_out():
    """Of four heads with one rank each chains go to five candidates."""
    table = frame("acceptance", "show", "0.7,0.5,0.3,0.2", "--candidates", "1..6")
    assert table.candidates.tolist() == [1, 2, 3, 4, 5]
    assert table.heads_worth_running.tolist() == [0, 1, 2, 3, 4]
    assert table.depth.tolist() == [0, 1, 2, 3, 4]
    for counts, told in (("1..6", True), ("1..5", False)):
        notes = answered(
            "acceptance", "show", "0.7,0.5,0.3,0.2", "--candidates", counts, "--format", "csv"
        ).stderr
        assert ("larger ones left out" in notes) == told
    assert run("acceptance", "show", "0.7,0.5,0.3,0.2", "--candidates", "6").exit_code == 2
    assert frame("acceptance", "show", "0.7,0.5,0.3,0.2").candidates.tolist() == [1, 2, 4, 5]


def test_a_profile_says_that_its_shares_look_like_conditional_rates():
    for rates, told in (("0.71,0.66,0.64", True), ("0.71,0.47,0.30", False)):
        shown = answered("acceptance", "show", rates).stdout
        assert ("warning:" in shown) == ("give conditional:" in " ".join(shown.split())) == told
