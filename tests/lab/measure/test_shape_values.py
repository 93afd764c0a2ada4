"""Shapes that are measured and the device they are measured on, by hand."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from medusa_sim.lab.measure import environment, kernels, together
from medusa_sim.lab.measure.environment import differences
from medusa_sim.lab.measure.record import _best_rates
from medusa_sim.lab.measure.shapes import (
    BATCH_LEVELS,
    CONTEXT_LEVELS,
    PREFILL_BATCH_LEVELS,
    PREFILL_LEVELS,
    Q_LEVELS,
    UNFUSED_Q_LEVELS,
    _attention,
    _interleaved,
    elementwise_widths,
    fill_up,
    linear_layers,
    shape_of,
    timed_shapes,
)
from medusa_sim.lab.measure.together import Together, _mixed
from medusa_sim.lab.measure.turns import Visit
from medusa_sim.latency.measurement import Rates
from medusa_sim.models.named import load_model
from medusa_sim.operators.attention import Attention
from medusa_sim.operators.gemm import Gemm

LLAMA = load_model("llama-3.1-8b")
"""4096 wide, MLP 14,336, 32 heads and 8 of keys of 128, 128,256 tokens, 32 layers."""


def test_an_mlp_without_a_gate_has_no_product_of_both():
    """OPT-125M is 768 wide, with an MLP of 3,072."""
    without = linear_layers(load_model("opt-125m"))
    assert ("up_proj", 3072, 768) in without
    assert "gate_up_proj" not in [name for name, *_ in without]


def test_linear_layers_are_each_shape_once_under_its_first_name():
    assert linear_layers(LLAMA) == [
        ("qkv_proj", 4096 + 2 * 1024, 4096), ("o_proj", 4096, 4096), ("gate_up_proj", 28_672, 4096),
        ("down_proj", 4096, 14_336), ("k_proj", 1024, 4096), ("up_proj", 14_336, 4096),
        ("lm_head", 128_256, 4096),
    ]  # fmt: skip


def test_rows_between_linear_layers_are_as_wide_as_what_they_read():
    assert dict(elementwise_widths(LLAMA)) == {
        "rms_norm": 4096, "next_token": 128_256, "residual": 4096, "activation": 14_336, "embedding": 4096,
        "rope": 4096 + 1024,
    }  # fmt: skip


def test_an_operator_is_as_cold_as_the_weights_and_caches_between_two_uses():
    """All weights; for attention K and V of every layer as well; of what a layer writes for a token."""
    weights, written = 2.0 * LLAMA.parameter_count, 24 * 4096 + 4 * 14_336
    gemm = shape_of(LLAMA, Gemm(name="o_proj", m=3, n=4096, k=4096, dtype="bf16"), 1)
    assert (gemm.level, gemm.between_bytes) == (1, weights)
    assert gemm.activation_bytes == 3 * 2 * written
    sizes = {"batch": 2, "q_len": 1, "kv_len": 100, "heads": 32, "kv_heads": 8, "head_dim": 128}
    attention = Attention(name="a", kind="decode_attention", dtype="bf16", **sizes)
    case = shape_of(LLAMA, attention, 0)
    assert case.between_bytes == weights + 32 * float(attention.kv_bytes)
    assert float(attention.kv_bytes) == 2 * (2 * 8 * 100 * 128) * 2  # K and V in two bytes
    assert case.activation_bytes == 0.0


def test_attention_comes_by_how_much_its_sizes_tell():
    made = {
        (one.kind, one.batch, one.q_len, one.kv_len): level for one, level in _attention(LLAMA, "bf16")
    }  # fmt: skip
    for context, first in CONTEXT_LEVELS.items():
        for batch, second in BATCH_LEVELS.items():
            assert made["decode_attention", batch, 1, context + 1] == max(0, first + second + Q_LEVELS[1] - 2)
            for q_len in set(Q_LEVELS) - {1}:
                level = made["verify_attention", batch, q_len, context + q_len]
                assert level == first + second + Q_LEVELS[q_len]
            for q_len, third in UNFUSED_Q_LEVELS.items():
                assert made["qk", batch, q_len, context] == 2 + first + second + third
    for q_len, first in PREFILL_LEVELS.items():
        for batch, second in PREFILL_BATCH_LEVELS.items():
            assert made["prefill_attention", batch, q_len, q_len] == max(0, first + second - 2)


def made(m: int, level: int, family: str = "gemm", kind: str = "gemm") -> Any:
    operator = SimpleNamespace(FAMILY=family, kind=kind)
    return SimpleNamespace(operator=operator, level=level, key=(family, m), m=m)


def test_families_of_a_level_advance_together():
    """Of two and of four the places are 0.25, 0.75 and 0.125, 0.375, 0.625, 0.875."""
    few = [made(m, 1, "attention") for m in range(2)]
    many = [made(m, 1) for m in range(4)]
    early = made(9, 0)
    found = [(case.operator.FAMILY, case.m) for case in _interleaved([*few, *many, early])]
    assert found == [
        ("gemm", 9), ("gemm", 0), ("attention", 0), ("gemm", 1), ("gemm", 2), ("attention", 1), ("gemm", 3),
    ]  # fmt: skip


def test_kinds_that_are_needed_are_filled_up_to_the_least():
    needed = [made(0, 0), made(1, 0)]
    more = [made(1, 1), made(2, 1), made(3, 1), made(0, 1, "attention", "qk")]
    first, rest = fill_up(needed, more, 3)
    assert [case.m for case in first] == [0, 1, 2]
    assert [(case.operator.kind, case.m) for case in rest] == [("gemm", 3), ("qk", 0)]


def test_a_tree_has_four_children_a_node():
    """Nodes 1 to 4 are the root's, 5 and 6 the first one's."""
    mask = kernels.tree_mask(7, torch.device("cpu"))
    seen = [set(row.nonzero().ravel().tolist()) for row in mask]
    assert seen == [{0}, {0, 1}, {0, 2}, {0, 3}, {0, 4}, {0, 1, 5}, {0, 1, 6}]


def test_of_two_runs_the_higher_rates_and_the_lower_launches_are_kept():
    first = Rates(
        copy_bytes_per_s=1.0, read_bytes_per_s=4.0, flops_per_s={"fp16": 1.0, "fp32": 3.0},
        launch_eager_us=5.0,
        launch_graph_us=2.0,
    )  # fmt: skip
    second = Rates(
        copy_bytes_per_s=2.0, read_bytes_per_s=3.0, flops_per_s={"fp16": 2.0, "bf16": 7.0},
        launch_eager_us=6.0,
        launch_graph_us=1.0,
    )  # fmt: skip
    for best in (_best_rates(first, second), _best_rates(second, first)):
        assert (best.copy_bytes_per_s, best.read_bytes_per_s) == (2.0, 4.0)
        assert best.flops_per_s == {"bf16": 7.0, "fp16": 2.0, "fp32": 3.0}
        assert (best.launch_eager_us, best.launch_graph_us) == (5.0, 1.0)


@pytest.mark.parametrize(("rounds", "rows"), [(0, 1), (1, 1), (2, 2)])
def test_rows_are_those_of_whole_rounds_or_of_the_first(rounds, rows):
    turns = SimpleNamespace(rounds=rounds, found={(1, 1): None}, times_us=lambda cell: [3.0, 4.0, 5.0])
    subject = SimpleNamespace(
        grid=SimpleNamespace(batches=(1,)), trees=(1,),
        row=lambda batch, count, repetition, timing: (repetition, timing.time_us),
    )  # fmt: skip
    together = SimpleNamespace(turns=turns, subject=subject)
    assert Together._rows(together) == [(0, 3.0), (1, 4.0), (2, 5.0)][:rows]


def test_steps_stand_evenly_among_operators_and_come_by_again():
    """Three operators at 1/6, 1/2 and 5/6; a step that comes twice at 1/2 and, half a round on, at 0."""
    operators, step = [Visit(place, lambda: None) for place in range(3)], Visit("s", lambda: None, 2)
    assert [visit.key for visit in _mixed(operators, [step])] == ["s", 0, 1, "s", 2]


@pytest.mark.parametrize(
    ("title", "name"),
    [
        ("Intel(R) Xeon(R) Processor", "intel-xeon-processor"), ("AMD EPYC 9R14", "amd-epyc-9r14"),
        ("Made CPU @ 2.50GHz", "made"), ("(TM)", "device"),
    ],
)  # fmt: skip
def test_a_device_is_named_for_its_title(title, name):
    assert environment.slug(title) == name


def seen(**more: Any) -> Any:
    given = {
        "name": "a",
        "device": "A",
        "kind": "cpu",
        "units": 2,
        "threads": 2,
        "clocks_mhz": {"core": 2000.0},
    }
    return SimpleNamespace(**{**given, **more})


@pytest.mark.parametrize(
    ("other", "lines"),
    [
        (seen(), 0), (seen(threads=1), 1), (seen(name="b", units=1), 2),
        (seen(clocks_mhz={"core": 2000.0 / (1 - environment.CLOCK_TOLERANCE) - 1e-6}), 0),
        (seen(clocks_mhz={"core": 2000.0 / (1 - environment.CLOCK_TOLERANCE) + 1e-3}), 1),
        (seen(clocks_mhz={"sm": 1.0}), 0),
    ],
)  # fmt: skip
def test_what_differs_is_shown_of_two_devices(other, lines):
    assert len(differences(seen(), other)) == lines
    cuda = {"kind": "cuda"}
    assert len(differences(seen(**cuda), seen(**cuda, threads=1))) == 0


def test_a_cpu_tells_its_clocks_in_megahertz(tmp_path, monkeypatch):
    info = tmp_path / "cpuinfo"
    info.write_text("model name\t:  Made  up\ncpu MHz\t\t: 2499.6\n")
    monkeypatch.setattr(environment, "_CPUINFO", info)
    monkeypatch.setattr(environment, "_CPU_TREE", tmp_path)
    assert environment._cpu_clocks_mhz() == ({"core": 2500.0}, {"core": 2500.0})
    assert environment._cpu_title() == "Made up"
    limit = tmp_path / "cpu0" / "cpufreq" / "cpuinfo_max_freq"
    limit.parent.mkdir(parents=True)
    limit.write_text("3400000\n")
    assert environment._cpu_clocks_mhz() == ({"core": 3400.0}, {"core": 2500.0})
    assert environment._mhz({"a": "1410", "b": "[N/A]"}, {"sm": "a", "memory": "b"}) == {"sm": 1410.0}
    monkeypatch.setattr(environment.os, "getloadavg", lambda: (1.234, 9.0, 9.0))
    assert environment.load_average() == 1.23
    assert np.isfinite(environment._cpu_facts()["memory_bytes"])


def test_every_case_of_two_models_is_there_once_at_its_level():
    """By kind: how many, their levels, bytes and FLOPs; by level: how many, and how cold they are."""
    kinds: dict[str, list[float]] = {}
    levels: dict[int, list[float]] = {}
    for case in timed_shapes([LLAMA, load_model("vicuna-7b")], ("fp16",)):
        of_kind = (1, case.level, case.bytes, case.flops)
        of_level = (1, case.between_bytes, case.activation_bytes)
        for found, key, values in ((kinds, case.operator.kind, of_kind), (levels, case.level, of_level)):
            before = found.get(key, [0.0] * len(values))
            found[key] = [was + float(value) for was, value in zip(before, values, strict=True)]
    assert kinds == {
        "gemm": pytest.approx([636, 1656, 1.3538005e11, 4.0388698e13]),
        "decode_attention": pytest.approx([98, 208, 4.23285432e10, 6.767906e10]),
        "rms_norm": [21, 19, 152158208, 152158208],
        "verify_attention": pytest.approx([1176, 6762, 5.36439677e11, 4.30776072e13]),
        "next_token": pytest.approx([42, 38, 5.95318989e9, 5.95318989e9]),
        "residual": [21, 19, 228237312, 38039552],
        "prefill_attention": pytest.approx([48, 60, 3.22043904e9, 1.37504489e12]),
        "activation": pytest.approx([42, 38, 1.41221837e9, 1.17684864e9]),
        "embedding": [21, 19, 152158208, 0], "rope": [42, 38, 494514176, 370885632],
        "qk": pytest.approx([784, 5684, 2.98777477e11, 1.57286085e13]),
        "pv": pytest.approx([784, 5684, 2.98777477e11, 1.57286085e13]),
    }  # fmt: skip
    assert [levels[level][0] for level in range(13)] == [
        124, 295, 220, 294, 482, 388, 480, 498, 404, 268, 168, 78, 16,
    ]  # fmt: skip
    assert [levels[level][1] / 1e12 for level in range(13)] == pytest.approx(
        [1.90172322, 4.54808325, 3.52347918, 4.83162828, 8.29273121, 7.7130986, 9.83906386, 11.8489021,
         11.9605021, 9.64101469, 6.47860303, 3.03679313, 0.279248503]
    )  # fmt: skip
    assert [levels[level][2] / 1e10 for level in range(6)] == pytest.approx(
        [0.132176282, 1.21213297, 2.3135019, 1.59695811, 3.50084342, 0.0]
    )


@pytest.mark.parametrize(
    ("rounds", "differ", "steady"), [(5, 0.009, True), (4, 0.009, False), (5, 0.011, False)]
)
def test_a_session_is_steady_after_five_rounds_whose_speedups_agree_to_a_hundredth(
    monkeypatch, rounds, differ, steady
):
    monkeypatch.setattr(together, "speedups_differ", lambda rows: differ)
    session = SimpleNamespace(turns=SimpleNamespace(rounds=rounds), _rows=list)
    assert Together._is_steady(session) is steady  # type: ignore[arg-type]
