"""Published curves of speedup by batch, and what an engine must add to a step for them."""

import pytest

from medusa_sim.errors import DataError
from medusa_sim.lab.validate.batch_curves import batch_curves

HEADER = "source,setup,method,batch_or_concurrency,throughput_ratio_vs_no_spec\n"
SETUP = "SGLang H100 Llama-3.1-8B chain3"


@pytest.mark.parametrize(
    ("method", "columns"),
    [
        (
            "EAGLE-3",
            {"tokens_per_step": [2.6049] * 2, "decode_step_us": [4705.5934, 4847.1942],
             "verify_us": [4730.1255, 4937.8227], "draft_us": [729.10547, 745.88776],
             "predicted_speedup": [2.245298, 2.2215164]},
        ),
        (
            "EAGLE",
            {"tokens_per_step": [2.795512] * 2, "verify_us": [4730.1255, 4937.8227],
             "draft_us": [1422.2414, 1442.0682], "predicted_speedup": [2.1381271, 2.1239218]},
        ),
    ],
)  # fmt: skip
def test_a_curve_is_priced_by_the_kernels_of_its_steps(method, columns, tmp_path):
    """On the roofline: three drafts in turn, four tokens verified, whole steps of Llama-3.1-8B on an H100."""
    path = tmp_path / "curves.csv"
    path.write_text(HEADER + f"made,{SETUP},{method},8,1.6\nmade,{SETUP},{method},2,1.8\n")
    frame = batch_curves(path, latency="roofline")
    for name, expected in columns.items():
        assert frame[name].tolist() == pytest.approx(expected, rel=1e-6), name


def test_batch_curves_say_what_the_engine_must_add(tmp_path):
    path = tmp_path / "curves.csv"
    path.write_text(HEADER + f"made,{SETUP},EAGLE-3,8,1.6\nmade,{SETUP},EAGLE-3,2,1.8\n")
    frame = batch_curves(path, latency="roofline")
    assert frame["batch"].tolist() == [2, 8]
    step_us = frame["verify_us"] + frame["draft_us"] + frame["engine_us"]
    assert (frame["tokens_per_step"] * frame["decode_step_us"] / step_us).tolist() == pytest.approx(
        [1.8, 1.6]
    )
    assert (frame["engine_us"] / step_us).tolist() == pytest.approx(frame["engine_share"].tolist())
    assert frame["relative_error"][0] == 0.0


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "cannot be read"),
        ("a,b\n1,2\n", "columns missing"),
        (HEADER, "no rows"),
        (HEADER + "x,H100 tree,EAGLE,1,1.0\n", "chainN"),
        (HEADER + f"x,{SETUP},HYDRA,1,1.0\n", "HYDRA"),
    ],
)
def test_bad_curves_are_one_line(text, told, tmp_path):
    path = tmp_path / "curves.csv"
    path.write_text(text)
    with pytest.raises(DataError, match=told):
        batch_curves(path)


def test_published_batch_curves(shared_data):
    frame = batch_curves(shared_data / "acceptance" / "batch_speedups_eagle.csv")
    eagle3 = frame[frame["method"] == "EAGLE-3"]
    # Without an engine's own time the model is too fast everywhere, and the share it must add is 10-40 %.
    assert (eagle3["predicted_speedup"] > eagle3["published_speedup"]).all()
    assert eagle3["engine_share"].between(0.05, 0.45).all()
    # The shape of the curve, acceptance cancelled, is met within about 13 % on average.
    assert eagle3["relative_error"].abs().mean() < 0.16
