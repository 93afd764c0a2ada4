"""The Medusa paper's tables and figures: golden values with the goals of the project as tolerances."""

import numpy as np
import pandas as pd
import pytest
from asking import document, run
from tables import table

from medusa_sim import data
from medusa_sim.acceptance.heads import HeadAccuracy, expected_tokens_per_step
from medusa_sim.acceptance.tree import CandidateTree
from medusa_sim.errors import UsageError
from medusa_sim.gpus.gpu import load_gpu
from medusa_sim.lab.reproduce import TARGETS, reproduction, scores
from medusa_sim.lab.reproduce.decoding import best_cartesian, table1, table3
from medusa_sim.lab.reproduce.published import (
    CANDIDATES,
    PUBLISHED,
    SEQ_LENS,
    cited,
    paper_latency,
    paper_roof,
    read_published,
)
from medusa_sim.lab.reproduce.token_rates import PlainStep, chain_tokens, host_us_per_launch
from medusa_sim.scenario.acceptance import constant_rate
from medusa_sim.step import host

GOALS = {
    # target, quantity, baseline -> mean error to stay below (the project's goals)
    ("table6", "time", ""): 0.015,
    ("table6", "T(candidates) / T(1)", ""): 0.015,
    ("table8", "time", ""): 0.02,
    ("table8", "T(candidates) / T(1)", ""): 0.02,
    ("figure21", "speedup difference", "fixed"): 0.08,
    ("figure21", "speedup from 0.5", "fixed"): 0.04,
    ("figure22", "speedup difference", "fixed"): 0.08,
    ("figure22", "speedup from 0.5", "fixed"): 0.07,
}


def curve(frame: pd.DataFrame, axis: str, place: int, column: str = "speedup_fixed") -> pd.Series:
    return frame[frame[axis] == place].set_index("candidates")[column]


@pytest.fixture(scope="module")
def errors() -> pd.DataFrame:
    return scores().set_index(["target", "quantity", "baseline"])


@pytest.mark.parametrize("key", GOALS)
def test_goals(errors, key):
    assert errors.loc[key, "mean_error"] < GOALS[key]


def test_a_score_is_the_mean_and_the_worst_of_its_cells(errors):
    frame = reproduction("table8").frame
    row = errors.loc[("table8", "time", "")]
    assert (row.cells, row.mean_error) == (len(frame), pytest.approx(frame.error.abs().mean()))
    worst = frame.loc[frame.error.abs().idxmax()]
    assert row.worst_error == pytest.approx(abs(worst.error))
    assert row.worst_cell == f"batch {worst.batch}, candidates {worst.candidates}"
    several = frame[frame.candidates > 1]
    row = errors.loc[("table8", "T(candidates) / T(1)", "")]
    assert (row.cells, row.mean_error) == (len(several), pytest.approx(several.ratio_error.abs().mean()))
    drawn = reproduction("figure22").frame.dropna(subset="published_speedup")
    drawn = drawn[drawn.candidates > 1]
    readable = drawn[drawn.published_speedup >= 0.5]
    for kept, quantity, column in (
        (drawn, "speedup difference", "difference_fixed"), (readable, "speedup from 0.5", "error_fixed"),
    ):  # fmt: skip
        row = errors.loc[("figure22", quantity, "fixed")]
        assert (row.cells, row.mean_error) == (len(kept), pytest.approx(kept[column].abs().mean()))
    assert 0 < len(readable) < len(drawn)


def test_equal_batch_and_length_is_not_what_the_figure_divides_by(errors):
    fixed, same = (
        errors.loc[("figure22", "speedup difference", name), "mean_error"] for name in ("fixed", "same")
    )
    assert same > 3 * fixed


@pytest.mark.parametrize("name", ["table6", "table8"])
def test_intensities_follow_from_table_5(name):
    frame = reproduction(name).frame
    # Printed to two decimals.
    assert frame["operational_intensity"].to_numpy() == pytest.approx(
        frame["published_operational_intensity"].to_numpy(), abs=0.0051
    )


def test_table_7_shares_a_row_with_table_6_and_shows_no_published_value():
    table6, table7 = reproduction("table6").frame, reproduction("table7").frame
    shared6 = curve(table6, "seq_len", 1024, "predicted_us")
    shared7 = curve(table7, "batch", 16, "predicted_us")
    assert shared7.to_numpy() == pytest.approx(shared6.to_numpy(), rel=1e-12)
    assert table7.filter(like="published").isna().all().all()
    assert len(table7) == 56


def test_best_counts_and_the_cliff():
    # Appendix G.3: 64 is best at batch 1, and Figures 22 and 23 drop from 64 to 80 candidates at batch 4.
    figure22, figure23 = reproduction("figure22").frame, reproduction("figure23").frame
    assert curve(figure22, "batch", 1).idxmax() == 64
    for seq_len in SEQ_LENS:
        speedups = curve(figure23, "seq_len", seq_len)
        assert speedups.idxmax() == 32
        assert speedups[80] < 0.9 * speedups[64]


def test_figure_21_stacks_to_its_latency_and_starts_at_one():
    frame = reproduction("figure21").frame
    bars = frame[["predicted_qk_pv", "predicted_qkv_linear", "predicted_up_gate_down"]].sum(axis=1)
    assert bars.to_numpy() == pytest.approx(frame["predicted_normalized_latency"].to_numpy(), rel=1e-12)
    first = frame.iloc[0]
    assert first["candidates"] == 1
    assert first["speedup_fixed"] == first["speedup_same"] == pytest.approx(1.0, rel=1e-12)
    # The project's goal for this figure; the latencies are 1.00 to 1.18, read off to 0.02 or so.
    assert frame["predicted_normalized_latency"].to_numpy() == pytest.approx(
        frame["published_normalized_latency"].to_numpy(), abs=0.08
    )


def test_figure_23_is_a_prediction():
    frame = reproduction("figure23").frame
    assert frame["published_speedup"].isna().all()
    assert sorted(frame["seq_len"].unique()) == sorted(SEQ_LENS)
    long, short = curve(frame, "seq_len", 8192), curve(frame, "seq_len", 128)
    assert (long < short).all()


@pytest.mark.parametrize("name", ["figure9", "figure11", "figure13", "figure17"])
def test_operator_figures_have_every_setting_below_the_roof(name):
    frame = reproduction(name).frame
    # 8 operators, 49 settings, prefill and decode.
    assert len(frame) == 8 * 49 * 2
    assert set(frame["series"]) == {
        f"{kind} {phase}" for kind in ("qkv mlp", "up/gate/down", "qk/pv") for phase in ("init", "ar")
    }
    assert frame["published_flops_per_s"].isna().all()
    assert (frame["flops_per_s"] <= frame["roofline_flops_per_s"] * (1 + 1e-9)).all()


def test_other_gpus_say_whose_kernels_stand_in():
    assert "A100" in reproduction("figure13").caveat
    latency = paper_latency(load_gpu("a40"))
    products = latency.gpu.kernel_set("paper").unfused
    assert products.fit.inherited_from == "a100-80gb-pcie:paper"


def test_the_a6000_roof_is_the_papers():
    gpu = load_gpu("rtx-a6000")
    assert gpu.peak("fp16") == pytest.approx(154.8e12)
    assert paper_roof(gpu).peak("fp16") == pytest.approx(181e12)


@pytest.mark.parametrize(
    ("figure", "table"), [("figure18", "table6"), ("figure19", "table7"), ("figure20", "table8")]
)
def test_point_figures_are_their_tables(figure, table):
    points, cells = reproduction(figure).frame, reproduction(table).frame
    assert points["predicted_flops_per_s"].equals(cells["predicted_flops_per_s"])


def test_every_target_answers_to_its_name_and_an_unknown_one_to_the_nearest():
    for name in ("table6", "figure12", "figure20", "figure23"):
        found = reproduction(name)
        assert found.name == name
        assert found.source.startswith(("Medusa", "T. Cai"))
        assert "\n" not in found.caveat
    assert [name for name in TARGETS if name.startswith("figure")] == [
        *(f"figure{n}" for n in range(9, 24)),
        "figure7b",
    ]
    with pytest.raises(UsageError, match="did you mean 'table6'"):
        reproduction("tabel6")


def test_every_published_file_is_cited():
    files = sorted(path.stem for path in (data.shipped_dir() / PUBLISHED).glob("*.csv"))
    assert "medusa_figures21_22" in files
    for name in files:
        assert "arXiv" in cited(name)
        assert len(read_published(name)) > 0


def test_speedup_is_tokens_per_step_over_the_baseline():
    frame = reproduction("figure22").frame
    base = frame[(frame["batch"] == 1) & (frame["candidates"] == 1)]["decode_step_us"].item()
    assert (frame["predicted_tokens_per_step"] * base / frame["verify_step_us"]).to_numpy() == pytest.approx(
        frame["speedup_fixed"].to_numpy(), rel=1e-12
    )
    assert np.array_equal(np.unique(frame["candidates"]), CANDIDATES)


DRAWN = ("table6", "table8", "figure9", "figure18", "figure21", "figure22", "figure23", "rsd-figure1",
         "rsd-figure4")  # fmt: skip


MEANS = table("reproduced")
"""Of each column of a target, as kernels that are fitted to the papers give it."""


@pytest.mark.parametrize("target", sorted(TARGETS))
def test_every_target_has_rows_a_source_and_a_plot(target, tmp_path):
    path = tmp_path / f"{target}.png"
    found = document("reproduce", target, *(("--plot", path) if target in DRAWN else ()))
    assert target not in DRAWN or path.read_bytes().startswith(b"\x89PNG")
    assert found["target"] == target
    assert found["rows"]
    assert "arXiv" in found["source"]
    if target != "rsd-figure1":  # exact numbers of a toy; the paper prints no table of it
        assert any(key.startswith("published_") for key in found["rows"][0])
    for name, mean in MEANS[target].items():
        values = [row[name] for row in found["rows"] if row[name] is not None]
        assert np.mean(values) == pytest.approx(mean, rel=1e-6), name


def test_a_target_without_a_picture_is_refused_before_its_table(tmp_path):
    result = run("reproduce", "table1", "--plot", tmp_path / "table1.png")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "table1 has no plot" in result.stderr
    assert not list(tmp_path.iterdir())


def test_without_a_target_the_errors_are_listed():
    found = document("reproduce")["rows"]
    assert {"table6", "table8", "figure21", "figure22"} <= {row["target"] for row in found}
    assert all(row["target"] in run("reproduce").stdout for row in found)


GOAL = 0.12
"""Runtime parameters fitted on some rows of one table are to predict its others so well."""


def test_table_1_in_its_parts():
    frame = table1()
    # Nothing is fitted to the overheads: the host's time of a drafted step comes from other runs of the code.
    assert (frame["step_overhead"] < frame["predicted_overhead"]).all()
    assert frame["difference"].abs().max() < 0.08
    assert frame["difference"].abs().mean() < 0.07
    assert frame["host_bound"].tolist() == [True, True, True, False]
    # 7B and 13B, read to two digits, are what hf-eager was fitted to; Zephyr's code copies K and V.
    rate = 1e6 / frame["decode_step_us"]
    assert rate.to_numpy() == pytest.approx(frame["published_tokens_per_s"].to_numpy(), rel=0.04)


def test_table_3_in_its_order():
    frame = table3()
    gap = (frame["predicted_speedup"] - frame["published_speedup"]).tolist()
    assert frame["difference"].tolist() == pytest.approx(gap)
    assert (np.diff(frame["predicted_speedup"]) > 0.0).all()
    assert (np.diff(frame["published_speedup"]) > 0.0).all()
    # printed as "about"; overheads are up to 0.1 too high, which makes speedups too small
    assert frame["predicted_speedup"].to_numpy() == pytest.approx(
        frame["published_speedup"].to_numpy(), rel=0.15
    )


@pytest.mark.parametrize(("candidates", "shape", "tokens"), [(1, (), 1.0), (2, (1,), 1.5), (3, (1, 1), 1.75)])
def test_of_heads_of_one_rank_the_best_tree_is_a_chain(candidates, shape, tokens):
    """Rates of a half: 1 + 0.5 + 0.25."""
    heads = constant_rate(0.5, 3).heads
    best = best_cartesian(heads, candidates)
    assert best.paths == CandidateTree.chain(len(shape)).paths
    assert expected_tokens_per_step(best, heads) == pytest.approx(tokens)
    assert best_cartesian(constant_rate(0.05, 3).heads, candidates).paths == best.paths


def test_the_best_cartesian_tree_is_the_best_of_all_small_ones():
    heads = HeadAccuracy.checked([[0.5, 0.2, 0.1], [0.4, 0.2, 0.1]])
    best = best_cartesian(heads, 8)
    every = [CandidateTree.cartesian((s,)) for s in (1, 2, 3)] + [
        tree
        for a in (1, 2, 3)
        for b in (1, 2, 3)
        if (tree := CandidateTree.cartesian((a, b))).candidates <= 8
    ]
    assert best.candidates <= 8
    tokens = max(expected_tokens_per_step(tree, heads) for tree in every)
    assert expected_tokens_per_step(best, heads) == pytest.approx(tokens)


def test_recursive_rejection_accepts_always_and_beats_the_rest():
    frame = reproduction("rsd-figure1").frame
    by_method = frame.pivot_table(
        index=["draft_p", "target_q"], columns="method", values="predicted_acceptance"
    )
    assert by_method["Recur. Rej. Samp."].to_numpy() == pytest.approx(1.0, abs=1e-9)
    # Optimal transport bounds what any method with replacement can reach.
    assert (by_method["OTM"] >= by_method["K-SEQ"] - 1e-9).all()
    assert (by_method["K-SEQ"] >= by_method["Multi-Round SD"] - 1e-9).all()
    assert by_method.loc[(0.5, 0.5)].to_numpy() == pytest.approx(1.0, abs=1e-9)


@pytest.mark.parametrize("name", ["rsd-figure4", "rsd-figure5"])
def test_trees_are_predicted_from_short_chains(name):
    frame = reproduction(name).frame
    trees = frame[frame["decoder"] != "SD"]
    assert trees["error"].abs().mean() < 0.03  # the goal on pairs given only as short chains
    assert (frame["predicted_mbsu"] < frame["predicted_block_efficiency"]).all()  # drafting is not free


def test_tables_predict_their_own_other_rows():
    for name in ("table4", "table1-rates"):
        frame = reproduction(name).frame
        left = frame[~frame["is_fitted"]]
        assert set(left["model"]) == {"vicuna-33b", "zephyr-7b"}
        assert left["error"].abs().max() < GOAL


@pytest.mark.parametrize(("table", "others"), [("table1-rates", 4.6), ("table4", 2.7)])
def test_the_overlap_that_one_table_asks_for_holds_in_the_other(monkeypatch, table, others):
    """`others` is the exponent with the least squared error over the rows of the other table."""
    other = {"table1-rates": "table4", "table4": "table1-rates"}[table]
    misses = {}
    for exponent in (others - 0.5, others, others + 0.5):
        monkeypatch.setattr(host, "HOST_OVERLAP", exponent)
        misses[exponent] = float((reproduction(other).frame["error"] ** 2).sum())
    assert min(misses, key=lambda exponent: misses[exponent]) == others
    monkeypatch.setattr(host, "HOST_OVERLAP", others)
    frame = reproduction(table).frame
    assert frame.loc[~frame["is_fitted"], "error"].abs().max() < GOAL


def test_figure_7b_from_three_lengths():
    frame = reproduction("figure7b").frame
    for _, found in frame.groupby("draft"):
        left = found[~found["is_fitted"]]
        assert len(left) == 12
        assert left["error"].abs().max() < GOAL
        best, chosen = (
            found.loc[found[f"{kind}_tokens_per_s"].idxmax(), "gamma"] for kind in ("published", "predicted")
        )
        assert best == chosen


def test_rsd_rates_of_methods_that_were_not_fitted():
    """8 % is the worst mean of a method and target (RSD-S, Chat-7B: 7.0 %) and a margin."""
    frame = reproduction("rsd-token-rates").frame
    left = frame[~frame["is_fitted"]]
    means = left["error"].abs().groupby([left["target"], left["decoder"]]).mean()
    trees = means[means.index.get_level_values("decoder") != "AR"]
    assert trees.max() < 0.08
    assert (left[left["decoder"] == "AR"]["error"] < 0).all()  # the speculative loop's own time


def test_the_host_is_found_again_and_a_chain_is_a_geometric_series():
    steps = [PlainStep(1.0, 400.0), PlainStep(2.0, 600.0)]
    assert host_us_per_launch(steps, [400.0 * 55.0, 600.0 * 55.0]) == pytest.approx(55.0, rel=1e-4)
    assert steps[0].time_us(0.0) == 1.0
    assert chain_tokens(np.asarray(0.5), np.asarray(2.0)) == pytest.approx(1 + 0.5 + 0.25)
