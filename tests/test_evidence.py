"""The wheel that anybody can fetch: its hash, the rule, what is laid out; on a wheel of our own making."""

import base64
import hashlib
import json
import zipfile

import evidence
import numpy as np
import pandas as pd
import pytest

PLACE = "l40s/gemm/sglang/0.5.14/gemm_perf.parquet"


def table(rows=60):
    m, n = np.divmod(np.arange(rows), 6)
    return pd.DataFrame({
        "framework": "SGLang", "version": "0.5.14", "device": "NVIDIA L40S", "op_name": "gemm",
        "kernel_source": "torch", "gemm_dtype": np.where(n < 4, "bfloat16", "fp8"), "m": m + 1,
        "n": 64 * (n + 1), "k": 128, "latency": 0.001 * (m + 1.25),
    })  # fmt: skip


@pytest.fixture
def wheel(tmp_path, monkeypatch):
    """A wheel with one table, whose hash is taken for the true one."""
    parquet = tmp_path / "gemm.parquet"
    table().to_parquet(parquet)
    path = tmp_path / "small.whl"
    with zipfile.ZipFile(path, "w") as held:
        held.write(parquet, evidence.INSIDE + PLACE)
        held.writestr("aiconfigurator_core/__init__.py", "raise SystemExit('it was run')")
    monkeypatch.setattr(evidence, "SHA256", hashlib.sha256(path.read_bytes()).hexdigest())
    monkeypatch.setattr(evidence, "OUT", tmp_path / "out")
    monkeypatch.setattr(evidence, "RULE", tmp_path / "rule.json")
    return path


def test_a_wheel_of_another_hash_is_not_read(wheel, monkeypatch):
    monkeypatch.setattr(evidence, "SHA256", "0" * 64)
    with pytest.raises(SystemExit, match="nothing of it was read"):
        evidence.fetched(wheel)


def test_only_tables_are_unzipped_and_only_given_rows_laid_out(wheel, tmp_path):
    folder = evidence.unzipped(evidence.fetched(wheel))
    assert [path.suffix for path in folder.rglob("*") if path.is_file()] == [".parquet"]
    file = "measured/l40s_gemm_sglang.parquet"
    clause = {"dtype": ["bf16"], "n": [64, 128]}
    evidence.RULE.write_text(json.dumps({file: {PLACE: [clause]}}))
    ((name, rows),) = evidence.lay_out(folder, tmp_path / "data")
    laid = pd.read_parquet(tmp_path / "data" / name)
    assert (rows, len(laid)) == (20, 20)
    assert set(laid.n) == {64, 128}
    assert laid.time_us.tolist() == pytest.approx((laid.m + 0.25).tolist())


@pytest.mark.parametrize("given", ["all", "columns", "one column's parts", "scattered"])
def test_clauses_hold_the_given_rows_and_no_other(given):
    both = pd.concat([table(), table().assign(k=256)], ignore_index=True)
    rows = evidence.measured_gemm(both, evidence.Place.of(evidence.INSIDE + PLACE))
    belongs = {
        "all": np.ones(len(rows), dtype=bool),
        "columns": ((rows.n <= 192) & (rows.m > 3)).to_numpy(),
        "one column's parts": ((rows.n == 64) & (rows.m > 3) | (rows.n == 128) & (rows.m < 3)).to_numpy(),
        "scattered": np.arange(len(rows)) % 7 != rows.k // 100,
    }[given]
    clauses = evidence.clauses_of(rows, np.asarray(belongs))
    assert np.array_equal(evidence.holds(rows, clauses), belongs)
    assert (evidence.ONLY in json.dumps(clauses)) == (given == "scattered")
    named = [base64.b64decode(clause[evidence.ONLY]) for clause in clauses if evidence.ONLY in clause]
    of_given = evidence.hashes(rows[belongs], evidence.shapes(rows))
    assert all(np.isin(np.frombuffer(each, dtype="<u4"), of_given).all() for each in named)


def test_the_rule_names_no_time_and_is_small():
    text = (evidence.ROOT / "benchmarks" / "evidence_rule.json").read_text()
    assert len(text) < 200_000
    rule = json.loads(text)
    assert {layout.file for layout in evidence.LAYOUTS} >= rule.keys()
    for parts in rule.values():
        for clauses in parts.values():
            assert all(evidence.TIME not in clause and "latency" not in clause for clause in clauses)
