"""`validate` on published trees and throughput curves: made-up files, one exit 3."""

from pathlib import Path

import pytest
from asking import answered, document
from click.testing import CliRunner, Result

from medusa_sim.cli.validate import validate
from medusa_sim.errors import ThresholdError

VECTORS = "name,child,prob\n" + "".join(
    f"llama-68m-7b-chat-T0.6-P1-cnn,{child},{prob}\n" for child, prob in ((1, 0.5), (2, 0.1), ("none", 0.4))
)
RUNS = (
    "log,algorithm,draft,dataset,growmap,T,tokens_per_step\n"
    "a.txt,SpecHub,llama-68m,cnn,2^3,0.6,1.96\n"  # 1 + 0.6 + 0.36: as independence predicts
    "a.txt,SpecHub,llama-68m,cnn,2^2,0.6,2.0\n"  # predicted 1.6: 20 % low
)
CURVES = (
    "setup,method,batch_or_concurrency,throughput_ratio_vs_no_spec\n"
    "SGLang H100 chain3,EAGLE-3,2,1.8\nSGLang H100 chain3,EAGLE-3,64,1.4\n"
)


def called(*arguments: str) -> Result:
    return CliRunner().invoke(validate, list(arguments))


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    written = {}
    for name, text in (("vectors", VECTORS), ("runs", RUNS), ("curves", CURVES)):
        (tmp_path / f"{name}.csv").write_text(text)
        written[name] = str(tmp_path / f"{name}.csv")
    return written


def test_trees_are_scored_from_child_vectors(files):
    given = ("validate", "--tree-runs", files["runs"], "--child-vectors", files["vectors"])
    rows = {row["growmap"]: row for row in document(*given)["rows"]}
    assert rows["2^3"]["error"] == pytest.approx(0.0, abs=1e-12)
    assert rows["2^2"]["error"] == pytest.approx(-0.2, rel=1e-12)
    table = answered(*given)
    assert "worst run" in table.stdout
    assert "20.0 %" in table.stdout


def test_curves_say_what_the_engine_must_add(files):
    rows = document("validate", "--batch-curves", files["curves"])["rows"]
    assert [row["batch"] for row in rows] == [2, 64]
    for row in rows:
        step_us = row["verify_us"] + row["draft_us"] + row["engine_us"]
        explained = row["tokens_per_step"] * row["decode_step_us"] / step_us
        assert explained == pytest.approx(row["published_speedup"], rel=1e-9)


def test_a_missed_threshold_is_told_apart(files):
    arguments = ("--tree-runs", files["runs"], "--child-vectors", files["vectors"], "--fail-above")
    assert called(*arguments, "15").exit_code == 0
    assert isinstance(called(*arguments, "5").exception, ThresholdError)
