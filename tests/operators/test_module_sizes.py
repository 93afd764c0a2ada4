"""Sizes of the modules that were measured are those of the models' own configs."""

import numpy as np
import pytest

from medusa_sim.models.mixers import Latent
from medusa_sim.models.named import load_model
from medusa_sim.models.sparse import BlockSparse, Compressed
from medusa_sim.operators.sparse_sizes import (
    DSA_SIZES,
    HEAD_DIMS,
    KEY_CHOICES,
    MODULE_SIZES,
    OUT_RANK,
    KeyChoice,
    ModuleSizes,
    module_sizes,
)


def _latent(name: str) -> tuple[int, Latent]:
    model = load_model(name)
    return model.hidden, next(mixer for _, mixer in model.blocks(Latent) if mixer.indexer)


def test_modules_of_latent_attention_are_those_of_deepseek_v3_2():
    hidden, mixer = _latent("deepseek-v3.2")
    index = mixer.indexer
    sizes = ModuleSizes(hidden, mixer.q_rank, index.heads, mixer.nope_dim, mixer.v_dim)
    assert MODULE_SIZES["dsa"] == sizes
    assert KEY_CHOICES["dsa"] == KeyChoice(index.topk, all_heads=mixer.heads)
    assert (mixer.kv_rank, mixer.rope_dim, index.dim, index.topk) == DSA_SIZES


def test_modules_of_chosen_blocks_are_those_of_minimax_m3():
    model = load_model("minimax-m3")
    ((_, mixer),) = model.blocks(BlockSparse)
    assert MODULE_SIZES["msa"][:3] == (model.hidden, 0, mixer.index_heads)
    assert KEY_CHOICES["msa"] == KeyChoice(mixer.block * mixer.blocks, all_heads=mixer.heads)
    assert (HEAD_DIMS["msa"], HEAD_DIMS["index"]) == (mixer.head_dim, mixer.index_dim)


@pytest.mark.parametrize(("kind", "ratio"), [("csa", 4), ("hca", 128)])
def test_modules_of_compressed_keys_are_those_of_deepseek_v4(kind, ratio):
    model = load_model("deepseek-v4-flash")
    mixer = next(each for _, each in model.blocks(Compressed) if each.ratio == ratio)
    index = mixer.indexer
    assert MODULE_SIZES[kind][:3] == (model.hidden, mixer.q_rank, index.heads if index else 0)
    assert KEY_CHOICES[kind] == KeyChoice(index.topk if index else 0, mixer.size, ratio, mixer.heads)
    assert (HEAD_DIMS[kind], OUT_RANK) == (mixer.head_dim, mixer.o_rank)


def test_a_named_model_has_its_own_sizes_and_another_those_of_the_kind():
    hidden, mixer = _latent("glm-5.2")
    own = (hidden, mixer.q_rank, mixer.indexer.heads, mixer.nope_dim, mixer.v_dim)
    found = np.array(module_sizes("dsa_no_indexer", np.array(["zai/GLM-5-Air", "other/model"])))
    assert tuple(found[:, 0]) == own
    assert tuple(found[:, 1]) == MODULE_SIZES["dsa"]
