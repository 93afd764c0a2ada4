"""Caches, states and keys of sparse and windowed attention, by hand on small layers."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from left_out import numbers_left_out

from medusa_sim.engines.engine import StepLimit
from medusa_sim.errors import SpecError
from medusa_sim.gpus.gpu import load_gpu
from medusa_sim.models.feed_forwards import Mlp
from medusa_sim.models.hf_config import model_of
from medusa_sim.models.mixers import Grouped
from medusa_sim.models.model import Model
from medusa_sim.models.named import load_model
from medusa_sim.models.parallel import Parallel
from medusa_sim.models.quantisation import _scale_bytes
from medusa_sim.models.sparse import BlockSparse, Compressed, Indexer

LAYER = {"heads": 16, "head_dim": 64, "rope_dim": 16, "q_rank": 32, "o_rank": 8, "o_groups": 2, "size": 128}


def test_a_layer_that_chooses_blocks_keeps_an_index_key_beside_k_and_v():
    layer = BlockSparse(heads=8, kv_heads=2, head_dim=64, index_heads=4, index_dim=32, block=128, blocks=16)
    assert layer.token_bytes("bf16") == 2 * 2 * 64 * 2 + 2 * 32
    assert layer.token_bytes("fp8") == 2 * 2 * 64 + 2 * 32


def test_an_indexer_has_queries_of_its_heads_one_key_and_a_weight_a_head():
    """Of 16 hidden and 32 of compressed queries; one that takes over a choice has nothing of its own."""
    made = Indexer(topk=10, heads=2, dim=8)
    assert (made.weights(16, 32), made.other_parameters(16), made.token_bytes) == (
        32 * 16 + 16 * 8,
        16 + 32,
        12.0,
    )
    taken = Indexer(topk=10, heads=2, dim=8, reuses=True)
    assert (taken.weights(16, 32), taken.other_parameters(16), taken.token_bytes) == (0, 0, 0.0)


@pytest.mark.parametrize(("overlap", "branches"), [(False, 2), (True, 4)])
def test_compressed_attention_keeps_a_window_and_rows_of_what_is_older(overlap, branches):
    """A row of 64 values in 16 bits, one of 4 tokens compressed with 8 index values and their scale."""
    layer = Compressed(**LAYER, ratio=4, overlap=overlap, indexer=Indexer(heads=2, dim=8, topk=10))
    row, older = 64 * 2, (64 * 2 + 8 + 4) / 4
    assert layer.token_bytes("bf16") == row + older
    assert layer.cache_bytes(np.array([100.0, 1000.0]), "bf16") == pytest.approx(
        [100 * row + 100 * older, 128 * row + 1000 * older]
    )
    # two blocks of 4 tokens in fp32, of keys and of the indexer's
    assert layer.state_bytes("bf16") == branches * 4 * 4 * (64 + 8)
    assert layer.keys(np.array([20.0, 1000.0])) == pytest.approx([20 + 5, 128 + 10])
    assert layer.as_grouped() == Grouped(heads=16, kv_heads=2, head_dim=128)


def test_a_window_alone_keeps_no_state_and_without_an_indexer_every_row_is_read():
    alone = Compressed(**LAYER)
    assert (alone.token_bytes("bf16"), alone.state_bytes("bf16")) == (64 * 2, 0.0)
    every = Compressed(**LAYER, ratio=8)
    assert every.state_bytes("bf16") == 2 * 8 * 4 * 64
    assert float(every.keys(np.array(1024.0))) == 128 + 128
    assert Compressed(**{**LAYER, "heads": 4}).as_grouped() == Grouped(heads=4, kv_heads=1, head_dim=128)


def windows(**more: object) -> list[int | None]:
    """By layer of a model of six."""
    config = {
        "architectures": ["Qwen2ForCausalLM"], "hidden_size": 64, "num_hidden_layers": 6, "vocab_size": 100,
        "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 128, "sliding_window": 32,
        "torch_dtype": "bfloat16", "max_position_embeddings": 4096,
    }  # fmt: skip
    model = model_of(config | more, Path("config.json"), "made")
    return [mixer.window for group in model.groups for _ in range(group.count) for mixer in group.mixers]


def test_the_first_layers_of_a_switched_window_see_everything():
    assert windows(use_sliding_window=True, max_window_layers=4) == [None] * 4 + [32] * 2
    assert windows(use_sliding_window=True) == [32] * 6
    assert windows(use_sliding_window=False) == [None] * 6


def test_ways_of_a_split_are_those_that_split():
    assert Parallel(tp=8).ways == "tp 8"
    assert Parallel(tp=8, ep=8, dp_attention=True).ways == "tp 8, ep 8, data-parallel attention"


def test_a_mixture_without_dense_layers_has_an_mlp_of_the_width_that_its_config_names():
    model = load_model("qwen3-30b-a3b")
    assert (model.mlp.width, model.mlp.gated) == (6144, True)


@pytest.mark.parametrize(("gated", "layers"), [(True, 3), (False, 2)])
def test_an_mlp_has_a_bias_for_each_output_of_its_layers(gated, layers):
    """Gate and up of 40 outputs each, or one such layer, and down of 16."""
    made = Mlp(width=40, gated=gated, bias=True)
    assert made.weights(16) == layers * 16 * 40
    assert made.other_parameters(16) == (layers - 1) * 40 + 16
    assert Mlp(width=40, gated=gated).other_parameters(16) == 0
    assert made.widest == layers * 40


def test_a_limit_of_a_step_holds_for_cards_of_its_memory_and_more():
    """An H100 has 80 GiB, an A40 48."""
    large, small = load_gpu("h100-sxm"), load_gpu("a40")
    assert (large.memory_bytes, small.memory_bytes) == (80 * 2**30, 48 * 2**30)
    for memory_gib, held in ((80.0, [True, False]), (48.0, [True, True]), (80.1, [False, False])):
        limit = StepLimit(tokens=1, requests=1, memory_gib=memory_gib)
        assert [limit.holds_for(gpu.name, gpu.memory_bytes) for gpu in (large, small)] == held
    assert not StepLimit(tokens=1, requests=1, but=("h100",)).holds_for(large.name, large.memory_bytes)


@pytest.mark.parametrize(
    ("kv_len", "q_len", "slides", "chunked"),
    [(80, 4, 80, 80), (100, 4, 100, 100), (102, 4, 102, 54), (500, 4, 103, 54), (500, 1, 100, 51)],
)
def test_keys_of_a_window_are_those_before_each_query_and_half_of_a_chunk(kv_len, q_len, slides, chunked):
    for in_chunks, keys in ((False, slides), (True, chunked)):
        mixer = Grouped(heads=8, kv_heads=2, head_dim=64, size=100, chunked=in_chunks)
        assert float(mixer.keys(np.array(float(kv_len)), np.array(float(q_len)))) == keys


@pytest.mark.parametrize(("streams", "connections"), [(1, 0), (4, 2 * (24 * 401 + 3))])
def test_norms_of_a_layer_and_what_mixes_its_streams(streams, connections):
    """Two norms of 100 weights; a block makes 4 x 6 weights of four streams, with biases and three scales."""
    model = SimpleNamespace(streams=streams, hidden=100, norms_per_layer=2, _norm_size=100)
    assert Model._unquantised(model, SimpleNamespace(blocks=2, parts=())) == 2 * 100 + connections


def test_what_is_left_out_is_nothing_but_for_these():
    """Factors and counts are one, sizes those that most have."""
    assert numbers_left_out("models") == {
        "Found.streams": 1,
        "Grouped.inputs": 1,
        "Indexer.heads": 64,
        "Indexer.dim": 128,
        "Model.norms_per_layer": 2,
        "Model.streams": 1,
        "_Entry.streams": 1,
        "Parallel.tp": 1,
        "Parallel.ep": 1,
        "Recurrent.conv": 4,
        "Architecture.norms_per_layer": 2,
    }


@pytest.mark.parametrize(
    ("group", "zeros", "per_weight"), [(1, False, 2.0), (128, True, 2.5 / 128), (-1, True, 0.0)]
)
def test_a_group_of_weights_shares_a_scale_of_16_bits_and_a_zero_point_of_4(group, zeros, per_weight):
    assert _scale_bytes(group, 4, "x", has_zeros=zeros) == pytest.approx(per_weight)
    with pytest.raises(SpecError, match="from 1"):
        _scale_bytes(0, 4, "x", has_zeros=zeros)
