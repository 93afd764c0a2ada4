"""Regular expressions and wildcards of a file, as `re` and `fnmatch` find them, in linear time or refused."""

import fnmatch
import json
import random
import re

import fuzzer
import pytest
from one_line import one_line

from medusa_sim.errors import SpecError
from medusa_sim.models.hf_config import model_from_config
from medusa_sim.models.patterns import Patterns, of_wildcards

NAMES = (
    "model.layers.7.self_attn.q_proj",
    "model.layers.17.mlp.experts.0.w1",
    "lm_head",
    "a",
    "",
    "visión.x",
)
LLAMA = {
    "architectures": ["LlamaForCausalLM"], "hidden_size": 4096, "intermediate_size": 11008,
    "num_hidden_layers": 32, "num_attention_heads": 32, "vocab_size": 32000, "max_position_embeddings": 4096,
}  # fmt: skip


@pytest.mark.parametrize(
    "pattern",
    [
        ".*self_attn.*", r".*mlp\.(gate|up|gate_up)_proj.*", r"model\.layers\.(?:1[0-9]|7)\.", "lm_head$",
        r"^model\.layers\.\d+\.mlp", r".*\.18\..*gate.*", "a{0,2}$", "(a|b)*?x?", r"[^.]+\.x", "",
        r"[a-z]+\.x", r"model\.layers\.\d{2}\.", r"[\w.-]+proj$", r"vis.ón", r".*\bx", "a{x}",
    ],
)  # fmt: skip
def test_found_is_what_re_finds(pattern):
    assert [name in Patterns([pattern]) for name in NAMES] == [
        bool(re.match(pattern, name)) for name in NAMES
    ]


def _pattern(pick: random.Random, depth: int = 0) -> str:
    parts = []
    for _ in range(pick.randint(1, 4)):
        part = pick.choice(("a", "b", ".", "c", r"\.", "[ab]", "[^a]", r"\d", "[a-c.]", r"\w", "("))
        if part == "(":
            inner = [_pattern(pick, depth + 1) for _ in range(pick.randint(1, 2))] if depth < 3 else ["a"]
            part = f"{pick.choice(('(', '(?:'))}{'|'.join(inner)})"
        parts.append(part + pick.choice(("", "", "", "*", "+", "?", "{2}", "{1,3}", "{0,}", "*?")))
    return "".join((*pick.choice(((), ("^",))), *parts, *pick.choice(((), ("$",)))))


def test_drawn_patterns_agree_with_re_and_fnmatch():
    pick = random.Random(7)  # noqa: S311
    for _ in range(400):
        pattern = _pattern(pick)
        wildcards = "".join(pick.choice(("a", "b", ".", "*", "?", "[ab]", "[!a]")) for _ in range(5))
        ours, wild = Patterns([pattern]), Patterns([of_wildcards(wildcards)])
        for _ in range(10):
            name = "".join(pick.choice("abcd..1") for _ in range(pick.randint(0, 9)))
            assert (name in ours) == bool(re.match(pattern, name)), (pattern, name)
            either = (wildcards, f"{wildcards}.*")
            assert (name in wild) == any(fnmatch.fnmatchcase(name, each) for each in either), (
                wildcards,
                name,
            )


@pytest.mark.parametrize(
    ("pattern", "told"),
    [
        ("(?=a)b", "perl operator"), ("(?!a)b", "perl operator"), (r"(a)\1", "escape sequence"),
        ("a**", "repetition operator"), ("*a", "no argument"), ("(a", "missing"), ("a)", "unexpected"),
        ("[b-a]", "range"), ("a{3,2}", "repetition size"), ("[a", "missing"), ("(" * 60, "missing"),
        ("((a{0,99}){0,99}){0,99}", "repetition size"),
    ],
)  # fmt: skip
def test_what_re2_does_not_take_is_refused(pattern, told):
    with pytest.raises(SpecError, match=told) as caught:
        Patterns([pattern])
    one_line(caught)


def _config(folder, quantisation):
    path = folder / "config.json"
    path.write_text(json.dumps({**LLAMA, "quantization_config": quantisation}))
    return path


GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 128}


def test_a_pattern_that_would_backtrack_for_hours_is_matched_at_once(tmp_path):
    with fuzzer.limited(2.0):
        model = model_from_config(_config(tmp_path, {**GPTQ, "dynamic": {"-:([a-z0-9._]+)+#": {}}}))
    assert model.form == "int4"


@pytest.mark.parametrize(
    "dynamic",
    [
        {f"-:.*a.*b.*{i}": {} for i in range(1_500)},
        {"-:(.|.{1,100}){1,100}(.|.{1,100}){1,100}#": {}},
        {f"-:{'(a|.*b)*' * 100}{i}": {} for i in range(40)},
    ],
)
def test_patterns_that_cost_too_much_are_refused_in_a_second(tmp_path, dynamic):
    with fuzzer.limited(2.0), pytest.raises(SpecError, match=r"quantization_config.*pattern") as caught:
        model_from_config(_config(tmp_path, {**GPTQ, "dynamic": dynamic}))
    one_line(caught)


def test_thousands_of_wildcards_are_refused(tmp_path):
    excluded = {
        "quant_method": "modelopt", "quant_algo": "FP8", "ignore": [f"*a*b*{i}" for i in range(5_000)],
    }  # fmt: skip
    with fuzzer.limited(2.0), pytest.raises(SpecError, match="patterns take more than"):
        model_from_config(_config(tmp_path, excluded))


def test_one_rule_a_layer_is_quick(tmp_path):
    """As exporters write them: a pattern for every gate of 400 layers."""
    dynamic = {rf"-:model\.layers\.{layer}\.mlp\.down_proj": {} for layer in range(400)}
    path = _config(tmp_path, {**GPTQ, "dynamic": dynamic})
    path.write_text(path.read_text().replace('"num_hidden_layers": 32', '"num_hidden_layers": 400'))
    with fuzzer.limited(4.0):
        model = model_from_config(path)
    assert len(model.groups) == 1
    assert model.groups[0].feed_forward.form not in (None, "int4")
