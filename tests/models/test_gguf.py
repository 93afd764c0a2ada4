"""Headers of GGUF files: sizes and types are read, the tensors never, and nothing harms."""

import os
import random
import struct
import time

import pytest
from one_line import one_line

from medusa_sim.errors import SpecError
from medusa_sim.file_types import FILES, TYPES
from medusa_sim.models.gguf import _FILES, FAMILIES, model_from_gguf
from medusa_sim.models.gguf_header import _TYPES, read_header
from medusa_sim.models.hf_families import CLASSES
from medusa_sim.models.named import load_model
from medusa_sim.scenario.scenario import Scenario

NUMBER = {"q4_k": 12, "q6_k": 14, "f32": 0, "q8_0": 8, "mxfp4": 39}
GGML_TYPES = (
    "f32 f16 q4_0 q4_1 - - q5_0 q5_1 q8_0 - q2_k q3_k q4_k q5_k q6_k - iq2_xxs iq2_xs iq3_xxs iq1_s iq4_nl "
    "iq3_s iq2_s iq4_xs - - - - - iq1_m bf16 - - - tq1_0 tq2_0 - - - mxfp4 nvfp4"
)  # fmt: skip
"""`enum ggml_type` of ggml.h in its order from 0; -: taken away, or no type of a model's weights."""
LLAMA_FILES = (
    "f32 f16 q4_0 q4_1 - - - q8_0 q5_0 q5_1 q2_k q3_k_s q3_k_m q3_k_l q4_k_s q4_k_m q5_k_s q5_k_m q6_k "
    "iq2_xxs iq2_xs q2_k_s - iq3_xxs iq1_s iq4_nl iq3_s iq3_m iq2_s iq2_m iq4_xs iq1_m bf16 "
    "- - - - - mxfp4_moe"
)  # fmt: skip
"""`enum llama_ftype` of llama.h in its order from 0."""
LAYERS, HIDDEN, WIDE, HEADS, KV, VOCAB = 8, 512, 1408, 8, 2, 1000


def text(value):
    encoded = value.encode()
    return struct.pack("<Q", len(encoded)) + encoded


def pair(key, value):
    if isinstance(value, str):
        return text(key) + struct.pack("<I", 8) + text(value)
    if isinstance(value, list) and value and isinstance(value[0], str):
        return text(key) + struct.pack("<IIQ", 9, 8, len(value)) + b"".join(map(text, value))
    if isinstance(value, list):
        return text(key) + struct.pack("<IIQ", 9, 5, len(value)) + struct.pack(f"<{len(value)}i", *value)
    return text(key) + struct.pack("<II", 4, value)


def tensor(name, sizes, of):
    dimensions = struct.pack(f"<I{len(sizes)}Q", len(sizes), *sizes)
    return text(name) + dimensions + struct.pack("<IQ", NUMBER[of], 0)


def tensors(tied=False):
    found = [
        tensor("token_embd.weight", (HIDDEN, VOCAB), "q4_k"),
        tensor("output_norm.weight", (HIDDEN,), "f32"),
    ]
    found += [] if tied else [tensor("output.weight", (HIDDEN, VOCAB), "q6_k")]
    for layer in range(LAYERS):
        more = "q6_k" if layer % 2 else "q4_k"
        sizes = {
            "attn_q": (HIDDEN, HIDDEN, "q4_k"), "attn_k": (HIDDEN, HIDDEN // 4, "q4_k"),
            "attn_v": (HIDDEN, HIDDEN // 4, more), "attn_output": (HIDDEN, HIDDEN, "q4_k"),
            "ffn_gate": (HIDDEN, WIDE, "q4_k"), "ffn_up": (HIDDEN, WIDE, "q4_k"),
            "ffn_down": (WIDE, HIDDEN, more),
        }  # fmt: skip
        for name, (columns, rows, of) in sizes.items():
            found.append(tensor(f"blk.{layer}.{name}.weight", (columns, rows), of))
        found.append(tensor(f"blk.{layer}.attn_norm.weight", (HIDDEN,), "f32"))
    return found


def keys(architecture="llama", vocabulary=VOCAB, **more):
    own = {
        "block_count": LAYERS, "embedding_length": HIDDEN, "feed_forward_length": WIDE,
        "context_length": 4096, "attention.head_count": HEADS, "attention.head_count_kv": KV,
    } | more  # fmt: skip
    return [
        pair("general.architecture", architecture), pair("general.file_type", 15),
        *(pair(f"{architecture}.{key}", value) for key, value in own.items()),
        pair("tokenizer.ggml.tokens", [f"t{n}" for n in range(vocabulary)]),
    ]  # fmt: skip


def header(pairs, infos, version=3):
    return b"GGUF" + struct.pack("<IQQ", version, len(infos), len(pairs)) + b"".join(pairs) + b"".join(infos)


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "tiny-Q4_K_M.gguf"
    path.write_bytes(header(keys(), tensors()) + bytes(1000))
    return path


def test_sizes_and_types_are_those_of_the_file(file):
    model = load_model(file)
    assert (model.layers, model.hidden, model.vocab, model.max_seq_len) == (LAYERS, HIDDEN, VOCAB, 4096)
    assert (model.attention.heads, model.attention.kv_heads, model.mlp.width) == (HEADS, KV, WIDE)
    assert model.weight_dtype.startswith("q4_k_m@")
    assert not model.tied_embeddings
    mix = FILES[model.weight_dtype]
    assert dict(mix["down"]) == {"q4_k": 0.5, "q6_k": 0.5}
    assert dict(mix["head"]) == {"q6_k": 1.0}
    assert dict(mix["linear"]) == {"q4_k": 1.0}


def test_its_bytes_are_those_of_its_tensors(file):
    sizes = {"q4_k": 0.0, "q6_k": 0.0}
    for found in read_header(file).tensors:
        if found.is_matrix:
            sizes[found.type] += found.weights
    whole = sum(TYPES[name] * count for name, count in sizes.items())
    model = load_model(file)
    norms = 2.0 * HIDDEN * (2 * LAYERS + 1)
    assert model.weight_bytes == pytest.approx(whole + norms, rel=1e-9)


NUMBERS = [
    (0, "B", 200), (1, "b", -100), (2, "H", 40_000), (3, "h", -30_000), (4, "I", 3_000_000_000),
    (5, "i", -2_000_000_000), (6, "f", 0.5), (7, "?", True), (10, "Q", 2**63),
    (11, "q", -(2**62)), (12, "d", 1e300),
]  # fmt: skip
"""(number of a type of keys in gguf.h, its struct, a value that no smaller one holds)."""


def test_keys_of_every_type_are_numbers_alone_and_in_lists(tmp_path):
    path = tmp_path / "keys.gguf"
    alone = [text(f"k{of}") + struct.pack(f"<I{form}", of, value) for of, form, value in NUMBERS]
    lists = [
        text(f"l{of}") + struct.pack(f"<IIQ2{form}", 9, of, 2, value, value) for of, form, value in NUMBERS
    ]
    path.write_bytes(header([*alone, *lists, pair("last", "word")], []))
    found = read_header(path)
    assert found.keys == {
        **{f"k{of}": value for of, _, value in NUMBERS},
        **{f"l{of}": [value, value] for of, _, value in NUMBERS},
        "last": "word",
    }
    assert found.lengths == {f"l{of}": 2 for of, _, _ in NUMBERS}


def test_a_scenario_runs_with_a_file(file):
    scenario = Scenario(
        gpu="rtx-3090", model=file, runtime="llama.cpp-cuda", drafter="ngram", acceptance=0.5
    )  # fmt: skip
    assert scenario.model.weight_dtype.startswith("q4_k_m@")
    with pytest.raises(SpecError, match=r"llama\.cpp-cuda"):
        Scenario(gpu="h100-sxm", model=file, runtime="vllm", drafter="ngram", acceptance=0.5)


def test_a_number_a_layer_is_the_largest_and_drafting_layers_are_no_layers_of_the_model(tmp_path):
    """Layers without attention have 0 K/V heads; what comes behind the list is read, too."""
    path = tmp_path / "made.gguf"
    path.write_bytes(header(keys(**{"attention.head_count_kv": [0, KV, 0, 1] * 2}), tensors()) + bytes(1000))
    model = load_model(path)
    assert (model.attention.kv_heads, model.vocab) == (KV, VOCAB)
    own = pair("llama.attention.head_count_kv", [KV] * LAYERS)
    cut = header([pair("general.architecture", "llama"), own[:-4]], [])
    path.write_bytes(cut)
    with one_line(SpecError, "ends beyond the header"):
        read_header(path)


def test_tied_embeddings_serve_as_head(tmp_path):
    path = tmp_path / "tied.gguf"
    path.write_bytes(header(keys(), tensors(tied=True)))
    model = load_model(path)
    assert model.tied_embeddings
    assert FILES[model.weight_dtype]["head"] == FILES[model.weight_dtype]["embedding"]
    table, norms = VOCAB * HIDDEN * TYPES["q4_k"], 2.0 * HIDDEN * (2 * LAYERS + 1)
    layers = sum(
        TYPES[each.type] * each.weights
        for each in read_header(path).tensors
        if each.is_matrix and each.name.startswith("blk.")
    )
    assert model.weight_bytes == pytest.approx(table + layers + norms, rel=1e-9)


def test_a_model_in_several_files_is_read_whole(tmp_path):
    infos = tensors()
    (tmp_path / "m-00001-of-00002.gguf").write_bytes(header(keys(), infos[:20]))
    (tmp_path / "m-00002-of-00002.gguf").write_bytes(header([], infos[20:]))
    (tmp_path / "whole.gguf").write_bytes(header(keys(), infos))
    split, whole = (load_model(tmp_path / name) for name in ("m-00001-of-00002.gguf", "whole.gguf"))
    assert split.weight_bytes == whole.weight_bytes
    (tmp_path / "m-00002-of-00002.gguf").unlink()
    with pytest.raises(SpecError, match="no such file"):
        load_model(tmp_path / "m-00001-of-00002.gguf")


def test_every_architecture_has_readers():
    assert {family.name for family in FAMILIES.values()} <= CLASSES.keys()


@pytest.mark.parametrize("architecture", ["qwen3moe", "llama"])  # Mixtral calls itself Llama
def test_experts_have_types_of_their_own(tmp_path, architecture):
    path = tmp_path / "moe.gguf"
    inter = "feed_forward_length" if architecture == "llama" else "expert_feed_forward_length"
    more = {"expert_count": 16, "expert_used_count": 4, inter: 256}
    infos = [
        *tensors(), *(tensor(f"blk.{n}.ffn_{part}_exps.weight", (HIDDEN, 256, 16), "mxfp4")
                      for n in range(LAYERS) for part in ("gate", "up", "down")),
    ]  # fmt: skip
    path.write_bytes(header(keys(architecture, **more), infos))
    model = load_model(path)
    assert (model.experts.experts, model.experts.topk, model.experts.inter) == (16, 4, 256)
    assert dict(FILES[model.weight_dtype]["experts"]) == {"mxfp4": 1.0}


def test_a_large_file_is_read_in_a_tenth_of_a_second(tmp_path):
    path = tmp_path / "large.gguf"
    with path.open("wb") as out:
        out.write(header(keys(vocabulary=250_000), tensors()))
        os.truncate(out.fileno(), 50 * 10**9)  # sparse: fifty gigabytes that nobody reads
    took = []
    for _ in range(3):
        began = time.process_time()
        model_from_gguf(path)
        took.append(time.process_time() - began)
    assert min(took) < 0.1


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"", "GGUF"), (b"GGML" + bytes(40), "GGUF"), (b"GGUF", "cut short"),
        (header(keys(), tensors(), version=1), "version 1"), (header(keys("no-such"), tensors()), "no-such"),
        (header(keys(), []), "names no matrix"), (header(keys() + keys(), tensors()), "twice"),
        (header(keys(), tensors())[:-20], "cut short"),
        (b"GGUF" + struct.pack("<IQQ", 3, 1 << 60, 1), "at most are read"),
        (header([pair("a", 1)[:-8] + struct.pack("<I", 99)], []), "kind 99"),
        (header([text("a") + struct.pack("<IIQ", 9, 8, 1 << 60)], []), "entries"),
    ],
)  # fmt: skip
def test_what_is_no_header_is_one_line(tmp_path, content, told):
    path = tmp_path / "bad.gguf"
    path.write_bytes(content)
    with one_line(SpecError, told):
        load_model(path)


def test_mutated_headers_are_read_or_refused_in_one_line(tmp_path):
    whole, chance = header(keys(vocabulary=40), tensors()), random.Random(42)  # noqa: S311  # no secret
    path = tmp_path / "mutated.gguf"
    refused = 0
    for _ in range(300):
        content = bytearray(whole)
        for _ in range(chance.choice((1, 1, 2, 8))):
            content[chance.randrange(len(content))] = chance.randrange(256)
        if chance.random() < 0.3:
            del content[chance.randrange(len(content)) :]
        path.write_bytes(content)
        if (told := refusal(path)) is not None:
            assert "\n" not in told
            assert len(told) < 600
            refused += 1
    assert refused > 100


def refusal(path):
    """What is said about a file that is not read; None of one that is."""
    try:
        load_model(path)
    except SpecError as error:
        return str(error)
    return None


@pytest.mark.parametrize(("known", "names"), [(_TYPES, GGML_TYPES), (_FILES, LLAMA_FILES)])
def test_types_have_the_numbers_of_ggml(known, names):
    assert known == {number: name for number, name in enumerate(names.split()) if name != "-"}
