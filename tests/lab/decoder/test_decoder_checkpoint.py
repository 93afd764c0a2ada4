"""Checkpoints: three public head layouts, round trips, and one line for every malformed file."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from asking import run
from decoder_models import tiny_heads, tiny_llama
from one_line import one_line
from safetensors.torch import load_file, save_file

from medusa_sim.errors import DataError, MedusaSimError, OutputError, SpecError
from medusa_sim.lab.decoder import checkpoint_folder
from medusa_sim.lab.decoder.checkpoint import find_head_file, load_checkpoint, read_weights
from medusa_sim.lab.decoder.checkpoint_folder import OWN_FILES, check_replaceable, save_checkpoint
from medusa_sim.lab.decoder.heads import PREFIX, heads_from_tensors, layout_of_keys, new_heads
from medusa_sim.lab.decoder.tokenizer import decode, encode, load_tokenizer, train_tokenizer
from medusa_sim.lab.decoder.training.corpus import file_windows, is_heldout, read_corpus, token_stream

MODEL = tiny_llama(dtype=torch.float32)
HIDDEN = torch.randn(3, 32, generator=torch.Generator().manual_seed(0))


def _public_v1(layers: int = 1) -> dict[str, torch.Tensor]:
    """Keys as in `medusa_lm_head` of FasterDecoding's v1.3 heads: head.block.linear and head.L.weight."""
    heads = new_heads(MODEL.lm_head, count=5, layers=layers)
    return {name: torch.randn_like(value) for name, value in heads.state_dict().items()}


@pytest.mark.parametrize("layers", [1, 2])
def test_three_public_layouts_are_told_apart_by_their_keys(layers):
    own = _public_v1(layers)
    shared = {name: value for name, value in own.items() if "linear" in name}
    inside = {PREFIX + name: value for name, value in own.items()} | MODEL.state_dict()
    for tensors, own_output, prefix in ((own, True, ""), (shared, False, ""), (inside, True, PREFIX)):
        layout = layout_of_keys(tensors, "x")
        assert (layout.count, layout.layers, layout.own_output, layout.prefix) == (
            5,
            layers,
            own_output,
            prefix,
        )
        heads = heads_from_tensors(tensors, hidden=32, vocab=13, where="x")
        assert heads is not None
        logits = heads(HIDDEN, MODEL.lm_head)
        assert logits.shape == (5, 3, 13)
        x = HIDDEN
        for j in range(layers):
            x = x + torch.nn.functional.silu(x @ own[f"2.{j}.linear.weight"].T + own[f"2.{j}.linear.bias"])
        expected = x @ (own[f"2.{layers}.weight"].T if own_output else MODEL.lm_head.weight.T)
        assert torch.allclose(logits[2], expected, atol=1e-5)
    assert layout_of_keys(MODEL.state_dict(), "x") is None


def test_new_heads_start_as_the_language_model_head():
    for own_output in (True, False):
        heads = new_heads(MODEL.lm_head, count=3, own_output=own_output)
        assert float(heads.get_parameter("0.0.linear.weight").detach().abs().max()) == 0.0
        assert torch.equal(heads(HIDDEN, MODEL.lm_head)[1], MODEL.lm_head(HIDDEN))


def test_missing_and_unexpected_head_keys_are_errors():
    for lost in ("3.0.linear.weight", "1.0.linear.bias", "4.1.weight", "0.1.weight"):
        tensors = _public_v1()
        del tensors[lost]
        with pytest.raises(SpecError, match=f"'{lost}' is missing"):
            heads_from_tensors(tensors, hidden=32, vocab=13, where="x")
    prefixed = {PREFIX + name: value for name, value in _public_v1().items()}
    with pytest.raises(SpecError, match="unexpected"):
        heads_from_tensors(prefixed | {PREFIX + "0.extra": HIDDEN}, hidden=32, vocab=13, where="x")
    with pytest.raises(SpecError, match="none like"):
        heads_from_tensors({PREFIX + "0.extra": HIDDEN}, hidden=32, vocab=13, where="x")
    with pytest.raises(SpecError, match=r"'0\.0\.linear\.weight' is missing"):  # not a module for each number
        heads_from_tensors({"999999999.0.linear.weight": HIDDEN}, hidden=32, vocab=13, where="x")
    with pytest.raises(SpecError, match="has shape"):
        heads_from_tensors(_public_v1(), hidden=32, vocab=14, where="x")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_a_saved_model_with_heads_comes_back(tmp_path, dtype):
    heads = tiny_heads(MODEL, count=3)
    save_checkpoint(tmp_path / "m", MODEL, heads, dtype=dtype)
    loaded = load_checkpoint(tmp_path / "m")
    assert loaded.heads.count == 3
    for name, value in MODEL.state_dict().items():
        assert torch.equal(loaded.model.state_dict()[name], value.to(dtype).float())
    for name, value in heads.state_dict().items():
        assert torch.equal(loaded.heads.state_dict()[name], value.to(dtype).float())
    assert [path.name for path in tmp_path.iterdir()] == ["m"]


@pytest.mark.parametrize("own_output", [True, False])
def test_head_files_beside_a_model_and_of_a_repository(tmp_path, own_output):
    heads = tiny_heads(MODEL, own_output=own_output)
    save_checkpoint(tmp_path / "base", MODEL, dtype=torch.float32)
    (tmp_path / "repo").mkdir()
    save_file(dict(heads.state_dict()), tmp_path / "repo" / "medusa_lm_head.safetensors")
    assert find_head_file(tmp_path / "base") is None
    by_folder = load_checkpoint(tmp_path / "base", heads_path=tmp_path / "repo").heads
    # The v1 file: a state_dict of a module list, written by torch.save; what config says is not asked.
    torch.save(dict(heads.state_dict()), tmp_path / "base" / "medusa_lm_head.pt")
    beside = load_checkpoint(tmp_path / "base").heads
    for found in (by_folder, beside):
        assert found is not None
        assert torch.equal(found(HIDDEN, MODEL.lm_head), heads(HIDDEN, MODEL.lm_head))


def test_shards_are_joined(tmp_path):
    save_checkpoint(tmp_path / "m", MODEL, dtype=torch.float32)
    tensors = load_file(tmp_path / "m" / "model.safetensors")
    (tmp_path / "m" / "model.safetensors").unlink()
    names = sorted(tensors)
    parts = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    for file, part in parts.items():
        save_file({name: tensors[name] for name in part}, tmp_path / "m" / file)
    index = {"weight_map": {name: file for file, part in parts.items() for name in part}}
    (tmp_path / "m" / "model.safetensors.index.json").write_text(json.dumps(index))
    assert set(read_weights(tmp_path / "m")) == set(names)
    (tmp_path / "m" / "b.safetensors").unlink()
    with pytest.raises(SpecError, match=r"b\.safetensors: shard is missing"):
        load_checkpoint(tmp_path / "m")


def _truncated(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


def _edited(change: Callable[[dict[str, torch.Tensor]], object]) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        tensors = load_file(folder / "model.safetensors")
        change(tensors)
        save_file(tensors, folder / "model.safetensors")

    return edit


def _nan(tensors: dict[str, torch.Tensor]) -> None:
    tensors["model.norm.weight"][3] = float("nan")


def _wide(tensors: dict[str, torch.Tensor]) -> None:
    tensors["model.layers.1.mlp.up_proj.weight"] = torch.zeros(49, 32)


BROKEN: dict[str, tuple[Callable[[Path], object], str]] = {
    "truncated": (_truncated, "not a readable safetensors"),
    "no weights": (lambda f: (f / "model.safetensors").unlink(), "no such file"),
    "no config": (lambda f: (f / "config.json").unlink(), "no such file"),
    "config text": (lambda f: (f / "config.json").write_text("{"), "cannot be parsed"),
    "config list": (lambda f: (f / "config.json").write_text("[]"), "JSON object"),
    "nan": (_edited(_nan), "'model.norm.weight' holds NaN"),
    "wrong shape": (_edited(_wide), r"up_proj.weight has shape \(49, 32\), config.json says \(48, 32\)"),
    "missing": (_edited(lambda t: t.pop("model.norm.weight")), "'model.norm.weight' is missing"),
    "unknown": (_edited(lambda t: t.update(strange=torch.zeros(1))), "unexpected tensor 'strange'"),
    "head gone": (_edited(lambda t: t.pop("medusa_head.1.1.weight")), "medusa_head.1.1.weight"),
    "index text": (lambda f: (f / "model.safetensors.index.json").write_text("{}"), "weight_map"),
    "index outside": (
        lambda f: (f / "model.safetensors.index.json").write_text('{"weight_map": {"a": "../x"}}'),
        "must be a file of the same folder",
    ),
    "pickle": (lambda f: (f / "medusa_lm_head.pt").write_bytes(b"\x80\x04c"), "weights-only"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_malformed_checkpoints_are_one_line(case, tmp_path):
    save_checkpoint(tmp_path / "m", MODEL, tiny_heads(MODEL, count=2), dtype=torch.float32)
    spoil, told = BROKEN[case]
    spoil(tmp_path / "m")
    before = sorted(path.name for path in (tmp_path / "m").iterdir())
    with one_line(MedusaSimError, match=told):
        load_checkpoint(tmp_path / "m")
    assert sorted(path.name for path in (tmp_path / "m").iterdir()) == before


def test_legacy_head_file_with_code_in_it_is_not_run(tmp_path):
    class Evil:
        def __reduce__(self) -> tuple[Callable[..., object], tuple[str, ...]]:
            return (Path.touch, (str(tmp_path / "ran"),))

    save_checkpoint(tmp_path / "m", MODEL, dtype=torch.float32)
    torch.save({"0.0.linear.weight": Evil()}, tmp_path / "m" / "medusa_lm_head.pt")
    with pytest.raises(SpecError, match="weights-only"):
        load_checkpoint(tmp_path / "m")
    assert not (tmp_path / "ran").exists()


def test_nothing_is_left_where_writing_fails(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError):
        save_checkpoint(tmp_path / "file" / "m", MODEL)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_tokenizer_round_trips_any_text(tmp_path):
    tokenizer = train_tokenizer(["def f(x):\n    return x\n"] * 20, vocab=280)
    (tmp_path / "tokenizer.json").write_text(tokenizer.to_str())
    loaded = load_tokenizer(tmp_path)
    for text in ("def f(x):\n\treturn x", "ünïcode → ☃", "", "a\x00b", "<|endoftext|> as text"):
        tokens = encode(loaded, text)
        assert tokens == encode(tokenizer, text)
        if "<|" not in text:
            assert decode(loaded, tokens) == text
    with pytest.raises(SpecError, match="no such file"):
        load_tokenizer(tmp_path / "nowhere")
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(SpecError, match="not a tokenizer file"):
        load_tokenizer(tmp_path)


def test_corpus_holds_whole_files_out(tmp_path):
    for i in range(60):
        (tmp_path / f"file{i}.py").write_text(f"x = {i}\n" * 60)
    (tmp_path / "short.py").write_text("x\n")
    (tmp_path / "test").mkdir()
    (tmp_path / "test" / "t.py").write_text("y = 1\n" * 60)
    corpus = read_corpus(tmp_path)
    assert len(corpus.training) + len(corpus.heldout) == 60
    assert corpus.heldout
    assert all(is_heldout(name) for name in corpus.heldout)
    assert not any(is_heldout(name) for name in corpus.training)
    tokenizer = train_tokenizer(corpus.training.values(), vocab=270)
    stream = token_stream(corpus.training, tokenizer)
    assert int((stream == 0).sum()) == len(corpus.training)
    prompts = file_windows(corpus.heldout, tokenizer, count=5, prompt_tokens=8, continuation_tokens=4)
    assert [len(prompt) for prompt in prompts] == [12] * 5
    with pytest.raises(DataError, match="has more than 1000000 tokens"):
        file_windows(corpus.heldout, tokenizer, count=1, prompt_tokens=10**6)
    with pytest.raises(DataError, match="need at least one of each"):
        read_corpus(tmp_path / "test")


RECORD = {"recipe": {"method": "backbone"}}


def _contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def _foreign_folder(path: Path, names: list[str]) -> Path:
    path.mkdir()
    for name in names:
        (path / name).parent.mkdir(exist_ok=True)
        (path / name).write_text("{}")
    return path


@pytest.mark.parametrize(
    ("names", "told"),
    [
        (["config.json", "model.safetensors", "tokenizer.json", "training.json", "notes.md"], "'notes.md'"),
        (["config.json", ".git/HEAD"], "'.git'"),
        (["config.json", "a.txt", "b.txt"], "'a.txt' and 1 more"),
        (["model.safetensors/x"], "'model.safetensors'"),
        (["config.json", "model.safetensors"], "training did not write"),
        (["config.json", "training.json"], "training did not write"),
    ],
)
@pytest.mark.parametrize("overwrite", [False, True])
def test_a_folder_with_anything_else_is_refused_and_stays(tmp_path, names, told, overwrite):
    folder = _foreign_folder(tmp_path / "m", names)
    before = _contents(tmp_path)
    with one_line(OutputError, match=told):
        save_checkpoint(folder, MODEL, record=RECORD, overwrite=overwrite)
    assert _contents(tmp_path) == before
    arguments = ["train", "--method", "backbone", "--save", str(folder), "--steps", "1"]
    result = run(*arguments, *(["--overwrite"] if overwrite else []))
    assert result.exit_code == 1
    assert told in result.stderr
    assert _contents(tmp_path) == before


def test_a_link_among_the_files_is_foreign_and_one_to_an_empty_folder_is_filled(tmp_path):
    (tmp_path / "precious.json").write_text("{}")
    folder = _foreign_folder(tmp_path / "m", [])
    (folder / "config.json").symlink_to(tmp_path / "precious.json")
    with pytest.raises(OutputError, match=r"'config\.json'"):
        check_replaceable(folder, overwrite=True)
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    save_checkpoint(tmp_path / "link", MODEL, record=RECORD)
    assert (tmp_path / "link").is_symlink()
    assert set(_contents(tmp_path / "real")) == {"config.json", "model.safetensors", "training.json"}
    with pytest.raises(OutputError, match="is a file"):
        check_replaceable(tmp_path / "real" / "config.json")


def test_a_finished_checkpoint_is_replaced_only_when_asked_and_as_a_whole(tmp_path):
    folder = tmp_path / "m"
    save_checkpoint(folder, MODEL, tiny_heads(MODEL, count=2), record=RECORD, tokenizer_json="{}")
    with pytest.raises(OutputError, match="--overwrite"):
        save_checkpoint(folder, MODEL, record=RECORD)
    assert load_checkpoint(folder).heads is not None
    save_checkpoint(folder, MODEL, record=RECORD | {"again": True}, overwrite=True)
    assert load_checkpoint(folder).heads is None
    assert json.loads((folder / "training.json").read_text())["again"]
    assert not (folder / "tokenizer.json").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["m"]


def test_the_old_checkpoint_comes_back_where_the_new_one_cannot_be_put(tmp_path, monkeypatch):
    folder = tmp_path / "m"
    save_checkpoint(folder, MODEL, record=RECORD)
    before = _contents(tmp_path)
    rename = Path.rename

    def fails_once(path: Path, target: Path) -> Path:
        if target == folder and not path.name.endswith(".old"):
            raise OSError(28, "No space left on device")
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", fails_once)
    with pytest.raises(OutputError, match="No space left"):
        save_checkpoint(folder, MODEL, record=RECORD, overwrite=True)
    assert _contents(tmp_path) == before


def test_what_came_into_a_replaced_folder_is_not_deleted(tmp_path, monkeypatch):
    """A file that appears between the check and the swap outlives both."""
    folder = tmp_path / "m"
    save_checkpoint(folder, MODEL, record=RECORD)
    check = checkpoint_folder.check_replaceable

    def then_a_file_appears(directory: Path, *, overwrite: bool = False) -> None:
        check(directory, overwrite=overwrite)
        (folder / "late.txt").write_text("kept")

    monkeypatch.setattr(checkpoint_folder, "check_replaceable", then_a_file_appears)
    with pytest.raises(OutputError):
        save_checkpoint(folder, MODEL, record=RECORD, overwrite=True)
    assert [path.read_text() for path in tmp_path.rglob("late.txt")] == ["kept"]
    assert set(OWN_FILES) > {path.name for path in folder.iterdir()}


def test_no_module_of_the_package_removes_trees():
    package = Path(checkpoint_folder.__file__).parents[2]
    assert not [path for path in package.rglob("*.py") if "rmtree" in path.read_text(encoding="utf-8")]
