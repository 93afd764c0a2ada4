"""The wheel that anybody can fetch: its hash, the rule, what is laid out; on a wheel of our own making."""

import hashlib
import json
import zipfile

import evidence
import evidence_rule
import numpy as np
import pandas as pd
import pytest
from common import evidence_wheel, routing
from common.evidence_rows import INSIDE, LAYOUTS, TIME, Place
from common.measured_pairs import WHEEL, source_of

GEMM = "l40s/gemm/sglang/0.5.14/gemm_perf.parquet"
EXPERTS = "h100_sxm/moe/trtllm/1.3.0rc20/moe_perf.parquet"
TABLES = {
    GEMM: {"gemm_dtype": "bfloat16", "m": 1, "n": 64, "k": 128},
    EXPERTS: {
        "moe_dtype": "fp8", "num_tokens": 4, "hidden_size": 2688, "inter_size": 1856, "topk": 6,
        "num_experts": 128, "moe_tp_size": 1, "moe_ep_size": 1, "distribution": "balanced",
    },
    "b200_sxm/mla/vllm/0.24.0/mla_generation_module_perf.parquet": {
        "mla_dtype": "fp8", "kv_cache_dtype": "fp8", "gemm_type": "nvfp4", "num_heads": 8, "batch_size": 2,
        "isl": 1, "step": 64, "tp_size": 1,
    },
    "h200_sxm/comm/nccl/2.29.2/nccl_perf.parquet": {
        "op_name": "all_gather", "nccl_dtype": "half", "num_gpus": 4, "message_size": 1024,
    },
    "gb200/comm/sglang/0.5.12/wideep_deepep_normal_perf.parquet": {
        "node_num": 2, "hidden_size": 7168, "num_token": 8, "num_topk": 8, "num_experts": 256,
        "dispatch_sms": 20, "dispatch_transmit_us": 30.0, "dispatch_notify_us": 5.0,
        "combine_sms": 24, "combine_transmit_us": 40.0, "combine_notify_us": 2.0,
    },
    "h100_sxm/attention/vllm/0.24.0/context_attention_perf.parquet": {
        "batch_size": 1, "isl": 64, "num_heads": 8, "num_key_value_heads": 2, "head_dim": 128,
        "beam_width": 1, "attn_dtype": "bfloat16", "kv_cache_dtype": "bfloat16", "step": 1024,
        "window_size": 128,
    },
    "h100_sxm/sparse_attention/sglang/0.5.14/dsv4_csa_context_module_perf.parquet": {
        "model": "m", "architecture": "a", "mla_dtype": "bfloat16", "kv_cache_dtype": "fp8",
        "gemm_type": "bfloat16", "num_heads": 64, "batch_size": 1, "isl": 8, "tp_size": 1,
        "step": 1024, "compress_ratio": 4,
    },
}  # fmt: skip
"""One row of some tables, apart from what all of them have."""


def row(path, latency=0.001):
    place = Place.of(INSIDE + path)
    same = {"framework": place.framework, "version": place.version, "device": "card", "kernel_source": "k"}
    return pd.DataFrame([{"op_name": "op"} | same | TABLES[path] | {"latency": latency}])


def layout_of(path):
    place = Place.of(INSIDE + path)
    return next(layout for layout in LAYOUTS if layout.takes(place)), place


def laid(path, *latencies):
    layout, place = layout_of(path)
    return layout.rows(
        pd.concat([row(path, each) for each in latencies or (0.001,)], ignore_index=True), place
    )


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
        held.write(parquet, INSIDE + GEMM)
        held.writestr("aiconfigurator_core/__init__.py", "raise SystemExit('it was run')")
    monkeypatch.setattr(evidence_wheel, "SHA256", hashlib.sha256(path.read_bytes()).hexdigest())
    monkeypatch.setattr(evidence_wheel, "OUT", tmp_path / "out")
    monkeypatch.setattr(evidence_rule, "RULE", tmp_path / "rule.json")
    return path


def test_a_wheel_of_another_hash_is_not_read(wheel, monkeypatch):
    monkeypatch.setattr(evidence_wheel, "SHA256", "0" * 64)
    with pytest.raises(SystemExit, match="nothing of it was read"):
        evidence_wheel.fetched(wheel)


def test_a_wheel_that_is_not_there_is_one_line(tmp_path):
    with pytest.raises(SystemExit, match="no such file"):
        evidence_wheel.fetched(tmp_path / "none.whl")


def test_only_tables_are_unzipped_and_only_given_rows_laid_out(wheel, tmp_path):
    tables = evidence_wheel.unzipped(evidence_wheel.fetched(wheel))
    assert [path.suffix for path in evidence_wheel.OUT.rglob("*") if path.is_file()] == [".parquet"]
    file = "measured/l40s_gemm_sglang.parquet"
    clause = {"dtype": ["bf16"], "n": [64, 128]}
    evidence_rule.RULE.write_text(json.dumps({file: {GEMM: [clause]}}))
    ((name, rows),) = evidence.lay_out(tables, tmp_path / "data")
    found = pd.read_parquet(tmp_path / "data" / name)
    assert (rows, len(found)) == (20, 20)
    assert set(found.n) == {64, 128}
    assert found.time_us.tolist() == pytest.approx((found.m + 0.25).tolist())


@pytest.mark.parametrize("given", ["all", "columns", "one column's parts", "parts of parts", "scattered"])
def test_clauses_hold_the_given_rows_and_no_other(given):
    both = pd.concat([table(), table().assign(k=256)], ignore_index=True)
    layout, place = layout_of(GEMM)
    rows = layout.rows(both, place)
    belongs = {
        "all": np.ones(len(rows), dtype=bool),
        "columns": ((rows.n <= 192) & (rows.m > 3)).to_numpy(),
        "one column's parts": ((rows.n == 64) & (rows.m > 3) | (rows.n == 128) & (rows.m < 3)).to_numpy(),
        "parts of parts": ((rows.k == 128) & ((rows.n == 64) & (rows.m > 3) | (rows.n == 128) & (rows.m < 3))
                           | (rows.k == 256) & (rows.m == 2)).to_numpy(),
        "scattered": np.random.default_rng(4).random(len(rows)) < 0.5,
    }[given]  # fmt: skip
    clauses = evidence_rule.clauses_of(rows, np.asarray(belongs))
    assert np.array_equal(evidence_rule.holds(rows, clauses), belongs)
    named = [clause[evidence_rule.ONLY] for clause in clauses if evidence_rule.ONLY in clause]
    assert bool(named) == (given == "scattered")
    of_given = set(evidence_rule.hashes(rows[belongs], evidence_rule.shapes(rows)))
    assert {each[i : i + 8] for each in named for i in range(0, len(each), 8)} <= of_given


def test_the_rule_names_no_time_and_is_small():
    text = (evidence.ROOT / "benchmarks" / "evidence_rule.json").read_text()
    assert len(text) < 1_000_000
    assert {layout.file for layout in LAYOUTS} == evidence_rule.rule().keys()
    for parts in evidence_rule.rule().values():
        for clauses in parts.values():
            assert all(TIME not in clause and "latency" not in clause for clause in clauses)


def test_every_file_of_the_wheel_is_laid_out():
    """What the page says is in the wheel alone is what `make evidence` repeats."""
    from medusa_sim.engines.accuracy_groups import groups

    assert {group.data for group in groups() if group.source == WHEEL} == evidence_rule.rule().keys()
    assert {source_of(file) for file in evidence_rule.rule()} == {WHEEL}


@pytest.mark.parametrize("path", TABLES)
def test_a_table_is_in_microseconds_under_the_names_of_its_file(path):
    found = laid(path)
    assert set(found.gpu.astype(str)) & {
        "card",
        *(Place.of(INSIDE + path).system, Place.of(INSIDE + path).gpu),
    }
    if "deepep" not in path:
        assert found[TIME].tolist() == [1.0]


def test_what_tables_do_not_say_in_so_many_words():
    (expert,) = laid(EXPERTS).itertuples()
    assert not expert.gated  # Nemotron-3's
    paths = {path.split("/")[-1].removesuffix("_perf.parquet"): path for path in TABLES}
    (latent,) = laid(paths["mla_generation_module"]).itertuples()
    assert (latent.scope, latent.phase, latent.q_len, latent.kv_len) == ("module", "decode", 1, 64)
    (gather,) = laid(paths["nccl"]).itertuples()
    assert gather.bytes == 2048
    sent, back = laid(paths["wideep_deepep_normal"]).itertuples()
    assert (sent.phase, sent.time_us, sent.sms, sent.ep) == ("dispatch", 35.0, 20, 16)
    assert (back.phase, back.time_us, back.sms, back.ep) == ("combine", 42.0, 24, 16)
    (sparse,) = laid(paths["dsv4_csa_context_module"]).itertuples()
    assert (sparse.op, sparse.phase, sparse.verifies) == ("csa", "context", True)


def test_repeats_are_one_row_where_the_file_has_one():
    assert laid(EXPERTS, 0.001, 0.002, 0.009)[TIME].tolist() == [2.0]
    assert len(laid(GEMM, 0.001, 0.002)) == 2


@pytest.mark.parametrize(("experts", "topk", "tokens", "hit"), [(8, 2, 1, 2), (8, 2, 64, 8), (256, 8, 4, 32)])
def test_balanced_tokens_share_no_expert_while_any_is_left(experts, topk, tokens, hit):
    found = routing.expected(experts, topk, 1, "balanced", tokens)
    assert found["local_experts_hit"] == hit
    assert found["local_rows"] == tokens * topk
    assert found["local_rows_tile16"] == 16 * hit * -(-tokens * topk // (16 * hit))


@pytest.mark.parametrize("tokens", [1, 7, 64, 3000])
@pytest.mark.parametrize("alpha", [1.01, 1.2])
def test_drawn_tokens_are_all_there_and_none_twice_on_an_expert(tokens, alpha):
    counts = routing.drawn(64, 6, 4, alpha, tokens)
    assert (counts.sum(axis=(1, 2)) == tokens * 6).all()
    assert counts.min() >= 0
    assert counts.max() <= tokens
    assert np.array_equal(counts, routing.drawn(64, 6, 4, alpha, tokens))


def test_a_power_law_wakes_fewer_experts_and_loads_its_busiest_rank_more():
    flat, drawn = (routing.expected(256, 8, 8, law, 64) for law in ("balanced", "power_law_1.01"))
    assert flat["local_experts_hit"] > drawn["local_experts_hit"]
    assert flat["local_rows"] < drawn["local_rows"]


def test_routing_stands_beside_every_row():
    rows = pd.DataFrame({
        "experts": [8, 8, 64], "topk": 2, "ep": [1, 1, 2],
        "distribution": ["balanced", "power_law_1.2", "balanced"], "tokens": [4, 4, 100],
        "time_us": [1.0, 2.0, 3.0],
    })  # fmt: skip
    found = routing.with_routing(rows)
    assert found.time_us.tolist() == [1.0, 2.0, 3.0]
    assert found.local_rows.tolist()[::2] == [8.0, 100.0]
