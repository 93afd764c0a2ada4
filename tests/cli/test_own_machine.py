"""`recommend --bench` with a file of one's own: the paste tells the machine, the file its own types."""

import json

from asking import answered
from test_gguf import header, keys, tensors


def test_the_types_of_a_file_are_its_own_whatever_the_paste_calls_it(tmp_path):
    model, paste = tmp_path / "own-Q4_0.gguf", tmp_path / "bench.json"
    model.write_bytes(header(keys(), tensors()))
    told = {"gpu_info": "NVIDIA GeForce RTX 3090", "backends": "CUDA", "model_filename": model.name}
    rows = [
        {**told, "n_prompt": m, "n_gen": 0, "avg_ts": 900.0 * m, "samples_ns": [1.1e6, 1.2e6, 9e9]}
        for m in (1, 4)
    ]
    paste.write_text(json.dumps(rows))
    result = answered(
        "recommend", "--bench", paste, "--model", model, "--drafter", "ngram", "--acceptance", 0.5,
        "--batch", 1, "--seq", 128,
    )  # fmt: skip
    said = result.stderr + result.stdout
    assert "q4_k_m@" in said
    assert "weight dtype" not in said
    assert "for your rtx-3090" in said
