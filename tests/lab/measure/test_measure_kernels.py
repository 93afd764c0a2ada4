"""The timed kernels are the operators that they claim to be, and measured rows go round the whole tool."""

import json
from functools import partial

import numpy as np
import pytest
import torch
from asking import answered, document, run
from decoder_models import tiny_config
from torch.nn import functional

from medusa_sim.gpus.gpu import load_gpu
from medusa_sim.lab.decoder.attention import CachedPass
from medusa_sim.lab.decoder.model import Attention
from medusa_sim.lab.measure.bench import CpuBench, results_kept
from medusa_sim.lab.measure.kernels import Pool, calls, tree_mask
from medusa_sim.lab.measure.shapes import TimedShape
from medusa_sim.latency.measured import MeasuredLatency, load_profile
from medusa_sim.latency.measurement import Meta, read_meta
from medusa_sim.latency.operator_time import Source
from medusa_sim.operators.kinds import operator_of
from medusa_sim.operators.table import operators_of, read_rows

CACHE = 10_000


def case(kind: str, between_bytes: float = 0.0, written: float = 0.0, **sizes: int) -> TimedShape:
    return TimedShape(
        operator=operator_of(kind, "fp32", sizes),
        level=0,
        between_bytes=between_bytes,
        activation_bytes=written,
    )


@pytest.fixture
def pool() -> Pool:
    torch.manual_seed(0)
    return Pool(torch.device("cpu"), CACHE)


def closure(call: object) -> dict[str, object]:
    """What a call has bound: its operands."""
    if isinstance(call, partial):
        return dict(enumerate(call.args))
    code, cells = call.__code__, call.__closure__ or ()
    return {name: cell.cell_contents for name, cell in zip(code.co_freevars, cells, strict=True)}


def test_operands_rotate_until_nothing_of_them_is_cached(pool):
    """Copies lie side by side and cover three caches, or what the model reads in a step if that is less."""
    cold = calls(case("gemm", 1e12, m=2, n=16, k=16), pool)
    assert len(cold) == int(np.ceil(3 * CACHE / (16 * 16 * 4)))
    weights = [closure(call)["weight"] for call in cold]
    places = [weight.data_ptr() for weight in weights]
    assert len(set(places)) == len(places)
    assert np.all(np.diff(places) == 16 * 16 * 4)
    small_model = calls(case("gemm", 4096.0, m=2, n=16, k=16), pool)
    assert len(small_model) == 4
    assert len(calls(case("gemm", 1e12, m=1, n=100, k=100), pool)) == 1  # larger than the rotation


def test_activations_are_as_cold_as_a_layer_leaves_them(pool):
    """Tokens rotate through what a layer writes, beside the weights, and results are held as long."""
    few = case("gemm", 4096.0, written=10 * 2 * 16 * 4.0, m=2, n=16, k=16)
    rotation = calls(few, pool)
    rows = [closure(call)["rows"].data_ptr() for call in rotation]
    assert len(rotation) == len(set(rows)) == 10
    assert len({closure(call)["weight"].data_ptr() for call in rotation}) == 4
    norms = calls(case("rms_norm", written=7 * 6 * 16 * 4.0, m=6, n=16), pool)
    assert len({closure(call)[0].data_ptr() for call in norms}) == 7
    assert results_kept(few, rotation[0]()) == 10
    assert results_kept(case("gemm", m=2, n=16, k=16), rotation[0]()) == 1
    rope = case("rope", written=3 * 6 * 128 * 4.0, m=6, n=128)
    assert results_kept(rope, calls(rope, pool)[0]()) == 3  # queries and keys together


def test_linear_layers_are_products(pool):
    for call in calls(case("gemm", 1e9, m=3, n=10, k=7), pool)[:3]:
        held = closure(call)
        x, weight = held["rows"].double(), held["weight"].double()
        naive = torch.stack([(row * weight).sum(1) for row in x])
        assert call().shape == (3, 10)
        assert torch.allclose(call().double(), naive, atol=1e-5)


@pytest.mark.parametrize("heads", [(4, 4), (4, 2)])
def test_unfused_products_are_those_of_table_5(pool, heads):
    sizes = {"batch": 2, "q_len": 3, "kv_len": 11, "heads": heads[0], "kv_heads": heads[1], "head_dim": 8}
    group = heads[0] // heads[1]
    for op in ("qk", "pv"):
        (call, *_) = calls(case(op, **sizes), pool)
        held = closure(call)
        left = held["left"].reshape(2, heads[0], 3, -1)
        right = held["right"].repeat_interleave(group, 1)
        naive = torch.einsum("bhqx,bhxy->bhqy", left.double(), right.double())
        assert torch.allclose(call().reshape(naive.shape).double(), naive, atol=1e-4)


def naive_attention(call: object, causal: bool) -> torch.Tensor:
    """Softmax attention row by row, from the operands that the call has bound."""
    held = closure(call)
    layer = held["layer"]
    batch, heads, q_len, head_dim = held["q"].shape
    keys, values = held["cache"].keys[layer].clone(), held["cache"].values[layer].clone()
    group, start = heads // keys.shape[1], keys.shape[2] - q_len
    keys[:, :, start:], values[:, :, start:] = (held[name].transpose(1, 2) for name in ("k", "v"))
    sees = torch.ones(q_len, q_len).tril().bool() if causal else tree_mask(q_len, torch.device("cpu"))
    out = torch.zeros(batch, q_len, heads, head_dim, dtype=torch.float64)
    for b in range(batch):
        for h in range(heads):
            for i in range(q_len):
                seen = list(range(start)) + [start + j for j in range(q_len) if sees[i, j]]
                key, value = keys[b, h // group, seen].double(), values[b, h // group, seen].double()
                scores = key @ held["q"][b, h, i].double() / head_dim**0.5
                out[b, i, h] = torch.softmax(scores, 0) @ value
    return out.reshape(batch, q_len, -1)


@pytest.mark.parametrize("heads", [(4, 4), (4, 2)])
@pytest.mark.parametrize(
    ("op", "q_len"),
    [("decode_attention", 1), ("verify_attention", 2), ("verify_attention", 9), ("prefill_attention", 16)],
)
def test_fused_attention_attends_to_prefix_and_ancestors(pool, op, q_len, heads):
    for between in (0.0, 1e9):
        found = calls(
            case(op, between, batch=2, q_len=q_len, kv_len=16, heads=heads[0], kv_heads=heads[1], head_dim=8),
            pool,
        )
        call = found[-1]
        expected = naive_attention(call, op == "prefill_attention")
        assert torch.allclose(call().double(), expected, atol=1e-5)


def test_fused_attention_is_the_decoders(pool):
    """The same numbers as the decoder's module between rotation and output projection."""
    sizes = {"batch": 2, "q_len": 5, "kv_len": 12, "heads": 4, "kv_heads": 2, "head_dim": 8}
    (call, *_) = calls(case("verify_attention", **sizes), pool)
    held = closure(call)
    module = Attention(tiny_config(), 0)
    flat = {"q": held["q"].transpose(1, 2)} | {name: held[name] for name in ("k", "v")}
    for name, value in flat.items():
        module._modules[f"{name}_proj"] = lambda _, value=value: value.reshape(10, -1)
    module._modules["o_proj"] = lambda x: x
    step = CachedPass(
        torch.ones(2, 5, 1, 8), torch.zeros(2, 5, 1, 8), held["bias"],
        cache=held["cache"], slots=held["slots"], kv_len=12,
    )  # fmt: skip
    assert torch.equal(module(torch.zeros(10, 32), step).view(2, 5, -1), call())


def test_tree_mask_is_a_tree():
    mask = tree_mask(40, torch.device("cpu")).numpy()
    assert mask.diagonal().all()
    assert not np.triu(mask, 1).any()
    assert mask[:, 0].all()  # everyone descends from the root
    assert (mask.astype(int) @ mask.astype(int) > 0).astype(bool).tolist() == mask.tolist()  # transitive
    assert mask.sum(1).max() == 4  # depth 3 and the node itself: four children each
    assert 1 < mask.sum() / 40 < 6  # far from causal


def test_elementwise_kernels(pool):
    def one(op: str, n: int = 16) -> tuple[torch.Tensor, dict[str, object]]:
        (call, *_) = calls(case(op, m=6, n=n), pool)
        return call(), closure(call)

    out, held = one("rms_norm")
    x = held[0].double()
    assert torch.allclose(out.double(), x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt(), atol=1e-5)
    out, held = one("residual")
    assert torch.equal(out, held[0] + held[1])
    out, held = one("activation")
    gate = held["gate"].double()
    assert torch.allclose(out.double(), gate * torch.sigmoid(gate) * held["up"].double(), atol=1e-5)
    out, held = one("embedding")
    assert torch.equal(out, functional.embedding(held[0], held[1]))
    out, held = one("next_token")
    assert torch.equal(out, held[0].max(-1).indices)
    (queries, keys), held = one("rope", 3 * 128)
    assert (queries.shape[2], keys.shape[2]) == (2, 1)  # heads; half of them, rounded down, are keys
    assert queries.numel() + keys.numel() == 6 * 3 * 128  # every element of every token is rotated once
    x, cos, sin = (held[name].double() for name in ("x", "cos", "sin"))
    half = torch.cat((x[..., 64:], x[..., :64]), -1)
    assert torch.allclose(torch.cat((keys, queries), 2).double(), x * cos + half * sin, atol=1e-5)


@pytest.mark.parametrize(("width", "dim"), [(256, 128), (192, 64), (96, 32), (48, 16), (12, 4), (6, 2)])
def test_heads_that_are_rotated_are_as_wide_as_divides_the_row(pool, width, dim):
    queries, keys = calls(case("rope", m=5, n=width), pool)[0]()
    heads = width // dim
    assert queries.shape == (1, 5, heads - max(1, heads // 2), dim)
    assert keys.shape == (1, 5, max(1, heads // 2), dim)


def test_cpu_bench_returns_repeats(pool):
    ticks = iter(np.arange(0.0, 1e4, 1e-3))
    found = CpuBench(pool, clock=lambda: float(next(ticks))).timing(case("gemm", 1e9, m=2, n=8, k=8))
    assert found.repeats >= 7
    assert found.time_us == pytest.approx(1e3, rel=1e-6)  # the fake clock moves 1 ms a reading
    assert found.spread == pytest.approx(0.0, abs=1e-6)


CONFIG = json.dumps(tiny_config(64).to_hf() | {"torch_dtype": "bfloat16"})


@pytest.mark.usefixtures("small_grid")
def test_measure_calibrate_time_round_trip(tmp_path):
    """measure writes rows and a hardware file; calibrate fits them; time and validate read both."""
    (tmp_path / "config.json").write_text(CONFIG, encoding="utf-8")
    data = ("--data-dir", tmp_path / "data")
    answered("measure", "operators", "--models", tmp_path / "config.json", "--name", "tiny-cpu", *data)
    folder = tmp_path / "data" / "profiles" / "operators" / "tiny-cpu"
    files = sorted(folder.glob("*.csv"))
    assert [file.stem for file in files] == ["attention_fp32", "elementwise_fp32", "gemm_fp32"]
    meta = read_meta(folder, Meta)
    assert meta.environment.name == "tiny-cpu"
    assert meta.rates.flops_per_s["fp32"] > 0.0
    card = load_gpu("tiny-cpu", tmp_path / "data")
    assert card.architecture == "cpu"
    assert card.sources["bandwidth_bytes_per_s"].startswith("measured by medusa-sim")

    fitted = document("calibrate", "rows", "--gpu", "tiny-cpu", "--kernels", "torch", *data, *files)
    places = {(row["section"], row["key"]) for row in fitted["rows"]}
    assert ("serial_gemm", "fp32") in places
    assert {
        ("serial_attention", kind) for kind in ("decode_attention", "verify_attention", "prefill_attention")
    } <= places
    assert ("unfused", "") in places
    for latency in ("measured", "calibrated"):
        for file in files:
            asked = ("--gpu", "tiny-cpu", "--ops", file, "--kernels", "torch", "--latency", latency)
            rows = document("time", *asked, *data)["rows"]
            assert len(rows) == len(read_rows(file))
            assert all(np.isfinite(row["predicted_us"]) and row["predicted_us"] > 0.0 for row in rows)
            if latency == "measured":
                assert all(row["predicted_us"] == row["time_us"] for row in rows)
    profile = load_profile("tiny-cpu", tmp_path / "data")
    lookup = MeasuredLatency(card, profile, None)
    frame = read_rows(files[0], need_time=True)
    for index, operator in operators_of(frame):
        found = lookup.time(operator)
        assert np.array_equal(found.time_us, frame["time_us"].to_numpy()[index])
        assert np.all(found.source == Source.MEASURED)


@pytest.mark.usefixtures("small_grid")
def test_measure_refuses_and_resumes(tmp_path):
    (tmp_path / "config.json").write_text(CONFIG, encoding="utf-8")
    given = ("measure", "operators", "--models", tmp_path / "config.json", "--out", tmp_path / "rows")
    given += ("--name", "x")
    given += ("--data-dir", tmp_path / "data")
    answered(*given, "--budget", "3")
    for more, told in (
        ((), "add --resume"),
        (("--resume", "--dtype", "fp8"), "allowed: fp32, bf16, fp16"),
    ):
        ended = run(*given, *more)  # the machine's load may be told first
        assert ended.exit_code == 2
        assert told in ended.stderr
    answered(*given, "--resume", "--dtype", "fp32,bf16", "--budget", "3")
    assert len(read_meta(tmp_path / "rows", Meta).resumed) == 1
