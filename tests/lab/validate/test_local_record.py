"""`make validate-local` without llama.cpp: its tools played by shell scripts, its page on what they say."""

import argparse

import pytest

pytest.importorskip("torch")

import msgspec
import torch
import validate_local as script
from common import near_ties
from common.llama_runs import Ran, passes, text_of
from common.local_page import Record, Round, Verification, best, page
from test_gguf import header, keys, tensors

from medusa_sim.lab.decoder.checkpoint import load_checkpoint
from medusa_sim.lab.decoder.tokenizer import load_tokenizer

LOG = """
0.1 I decoded  129 tokens in    0.041 seconds, speed: 3000.000 t/s
0.1 I n_drafted = 171
0.1 I n_accept  = 43
0.1 I spec: statistics draft-simple: #calls(b,g,a) =    1     86     80, #acc rate/pos = (0.372, 0.128)
"""
BENCH = """#!/bin/sh
model=; tokens=; made=; depths=
while [ $# -gt 0 ]; do
  case $1 in -p) tokens=$2;; -n) made=$2;; -d) depths=$2;; esac; shift
done
awk -v p="$tokens" -v n="$made" -v d="$depths" 'BEGIN {
  printf "["; first = 1; count = split(p, ps, ","); deep = split(d, ds, ",")
  for (j = 1; j <= deep; j++) for (i = 1; i <= count + (n > 0); i++) {
    m = i <= count ? ps[i] : 0; g = i <= count ? 0 : n
    ns = (m ? 2e6 + 3e5 * m : 2.3e6 * g) * (1 + ds[j] / 5000)
    printf "%s{\\"n_prompt\\": %d, \\"n_gen\\": %d, \\"n_depth\\": %d, ", (first ? "" : ","), m, g, ds[j]
    printf "\\"samples_ns\\": [%d, %d], \\"avg_ts\\": %f}", ns, ns * 1.01, 1e9 * (m + g) / ns
    first = 0
  }
  print "]" }'
"""
TEXT = f"""#!/bin/sh
while [ $# -gt 0 ]; do case $1 in -f) file=$2;; esac; shift; done
cat $file; echo " and more"
cat >&2 <<'END'{LOG}END
"""
PLAIN = '#!/bin/sh\necho " and more"\n'
QUANTISE = '#!/bin/sh\ncp "$1" "$2"\n'


def test_a_log_is_read_whole_or_not_at_all():
    found = text_of(Ran("the prompt and more", LOG, 1.0), "the prompt")
    assert found is not None
    assert (found.text, found.tokens, found.rounds, found.found) == (" and more", 129, 86, 80)
    assert found.seconds == pytest.approx(0.043)
    assert found.by_position == (0.372, 0.128)
    for line in LOG.strip().splitlines():
        assert text_of(Ran("", LOG.replace(line, ""), 1.0), "") is None


def test_texts_are_the_same_but_for_the_end_of_one():
    text = "def one(self):\n    return self.two and not self.three"
    assert script.same(text, f" {text} or more")
    assert script.same(f"a prompt {text}", text[:-3])
    assert not script.same(text, text.replace("one", "won"))
    assert not script.same("", text)


def test_samples_are_of_a_pass_or_of_a_token():
    rows = [
        {"n_prompt": 4, "n_gen": 0, "n_depth": 7, "samples_ns": [3e6, 4e6]},
        {"n_prompt": 0, "n_gen": 64, "n_depth": 0, "samples_ns": [64e6]},
    ]
    assert [tuple(each) for each in passes(rows)] == [(4, 7, True, (3.0, 4.0)), (1, 0, False, (1.0,))]


def steps(spread):
    return [
        Verification("m", "F16", 0, m, 1.05 * m, 2.0 * m, 1.0 * m, (1.0 * m, m * (1.0 + spread)))
        for m in script.COLUMNS
    ]


def record(**more):
    rounds = [Round("m", "F16", "ngram", n, 1.0 + 0.1 * n, 2.0, 1.0 + 0.1 * n, 2.0) for n in (1, 2)]
    told = {
        "steps": steps(0.01), "rounds": rounds, "differ": [], "runs": 9, "waited": 0, "seconds": 9.0,
        "threads": 1, "gpu": "cpu", "asked": "",
    }  # fmt: skip
    return Record(**{**told, **more})


def test_the_page_judges_errors_texts_and_the_machine():
    text, is_met = page(record(), 10.0)
    assert is_met
    assert "5.0 / 5.0 %" in text
    for worse in ({"differ": ["m: a text"]}, {"steps": steps(0.5)}):
        assert not page(record(**worse), 10.0)[1]
    assert not page(record(), 4.0)[1]
    chosen, true, lost = best([each._replace(speedup=3.0 - each.drafts) for each in record().rounds])
    assert (chosen.drafts, true.drafts) == (1, 2)
    assert lost == pytest.approx(1.0 - 1.1 / 1.2)
    assert msgspec.json.decode(msgspec.json.encode(record()), type=Record) == record()


CHECKPOINT = script.CHECKPOINTS / script.TARGET


def test_texts_part_at_a_tie_where_the_decoder_has_two_best_tokens():
    prompt = "x = [1, 2"
    tokenizer, model = load_tokenizer(CHECKPOINT), load_checkpoint(CHECKPOINT).model
    ids = tokenizer.encode(prompt).ids
    logits = model.logits(model(torch.tensor([ids])))[0, -1]
    best, second, third = (tokenizer.decode([each]) for each in logits.topk(3).indices.tolist())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(near_ties, "ROUNDINGS", 1e6)
        assert near_ties.part_at_tie(CHECKPOINT, prompt, best, second)
        assert not near_ties.part_at_tie(CHECKPOINT, prompt, best, third)
        assert not near_ties.part_at_tie(CHECKPOINT, prompt, best, best)
        patch.setattr(near_ties, "ROUNDINGS", 1.0)
        assert not near_ties.part_at_tie(CHECKPOINT, prompt, best, second)
    assert page(record(ties=["m: a text"]), 10.0)[1]


def test_a_run_goes_from_files_to_the_page(tmp_path, monkeypatch):
    tools = {
        "llama-bench": BENCH, "llama-speculative-simple": TEXT, "llama-completion": PLAIN,
        "llama-quantize": QUANTISE,
    }  # fmt: skip
    folder = tmp_path / "engine" / "build" / "bin"
    folder.mkdir(parents=True)
    for name, text in tools.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)

    def written(files):
        for name in ("trained", "trained-draft", "random", "random-draft"):
            for form in ("F16", "Q8_0", "Q4_0"):
                files.path(name, form).write_bytes(header(keys(), tensors()))

    def prompts(files, name):
        paths = [files.folder / f"{name}-{n}.txt" for n in range(4)]
        for path in paths:
            path.write_text("a prompt")
        return paths

    for name, value in (("DRAFTS", (1, 3)), ("REPEATS", 1), ("DEPTHS", (0,))):
        monkeypatch.setattr(script, name, value)
    monkeypatch.setattr(script.Files, "write", written)
    monkeypatch.setattr(script.Files, "prompts", prompts)
    given = argparse.Namespace(
        folder=tmp_path / "out", engine=tmp_path / "engine", gpu=script.GPU, threads=1, passes=1, prompts=4,
        small=True,
    )  # fmt: skip
    found = script.compared(given)
    assert len(found.steps) == 4 * len(script.DEPTHS) * len(script.COLUMNS)
    assert not found.differ
    assert {each.way for each in found.rounds} == {"draft-model", "ngram"}
    own, prior = (
        [abs(getattr(each, of) / each.measured_ms - 1.0) for each in found.steps]
        for of in ("own_ms", "prior_ms")
    )
    assert sum(own) < 0.5 * sum(prior)  # rows of a machine that is unlike its class
    text, _ = page(found, 10.0)
    assert "Best number of drafts" in text
    assert (tmp_path / "out" / "predicted.json").exists()
