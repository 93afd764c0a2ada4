"""On your own machine: a paste in, the verdict of the command out, what is wrong in one line."""

import json
from pathlib import Path

import pytest
import uploads
from chosen import OWN_MODEL
from one_line import one_line
from pages_read import Opened, commands, csv_rows, metrics, printed, text_of
from test_gguf import HIDDEN, header, keys, tensors

from medusa_sim.errors import MedusaSimError
from medusa_sim.latency.local import LocalLatency
from medusa_sim.report.words.numbers import percent
from medusa_sim.scenario.scenario import Scenario

ROWS = [
    {
        "build_number": 9859, "gpu_info": "NVIDIA GeForce RTX 3090", "backends": "CUDA", "n_depth": 0,
        "model_filename": "Meta-Llama-3.1-8B-Instruct-Q4_K_M.gguf", "n_prompt": prompt, "n_gen": made,
        "avg_ts": rate,
    }
    for prompt, made, rate in ((1, 0, 120.0), (2, 0, 220.0), (4, 0, 390.0), (8, 0, 560.0), (0, 64, 125.0))
]  # fmt: skip


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_a_paste_gives_the_answer_of_the_command(opened: Opened) -> None:
    page = opened("own", own_rate="0.8")
    before = text_of(page)
    assert "a device like yours" in str(metrics(page)) + before
    assert "given: 0.8" in before
    pasted = json.dumps(ROWS)
    page.text_area(key="own_bench").set_value(pasted).run()
    assert not page.error, page.error[0].value
    assert "rtx-3090, llama.cpp-cuda, llama-3.1-8b, q4_k_m" in text_of(page)
    told = next(line for line in commands(page) if "--by-count" in line)
    name = next(word for word in told.split() if word.startswith("bench-"))
    Path(name).write_text(pasted)
    rows = csv_rows(printed(told))
    shown = metrics(page)
    best = max(float(row["speedup"]) for row in rows)
    assert shown["Speedup"] == f"{best:.2f}x"
    scenario = Scenario(
        gpu="rtx-3090", runtime="llama.cpp-cuda", model="llama-3.1-8b", weight_dtype="q4_k_m", bench=name,
        drafter="ngram", acceptance=0.8,
    )  # fmt: skip
    assert isinstance(scenario.latency, LocalLatency)
    assert shown["A pass is known within"] == percent(scenario.latency.law.band)


def test_what_is_no_benchmark_is_one_line(opened: Opened) -> None:
    page = opened("own")
    page.text_area(key="own_bench").set_value("hello").run()
    assert "llama-bench" in page.error[0].value


def test_every_drafter_and_backend_of_a_device_is_answered(opened: Opened) -> None:
    for url in ({"device": "m2-ultra", "backend": "mlx"}, {"own_drafter": "draft-model"}, {"device": "gb10"}):
        page = opened("own", **url)
        assert page.success or page.warning or page.error
        assert metrics(page)


def test_the_start_of_a_gguf_file_is_a_model(opened: Opened) -> None:
    content = header(keys(), tensors())
    page = opened("own", own_model=OWN_MODEL, backend="llama.cpp-cuda")
    assert "drop its file" in page.error[0].value
    page.file_uploader(key="config").set_value(("tiny.gguf", content, "application/octet-stream")).run()
    assert not page.error, page.error[0].value
    assert "model.gguf on rtx-3090" in (page.success or page.error or page.warning)[0].value
    assert "own_file" not in {box.key for box in page.selectbox}, "its tensors say their types"
    told = next(line for line in commands(page) if "--by-count" in line)
    Path("model.gguf").write_bytes(content + bytes(100))
    best = max(float(row["speedup"]) for row in csv_rows(printed(told)))
    assert metrics(page)["Speedup"] == f"{best:.2f}x"


def test_what_is_no_header_of_weights_is_one_line() -> None:
    content = header(keys(), tensors())
    assert uploads.model_bytes("a.gguf", content) == content
    assert uploads.model_of(content).hidden == HIDDEN
    for bad, told in ((content[:300], "cut short"), (b"GGUF" + bytes(16_000_000), "at most 16,000,000")):
        with one_line(MedusaSimError, match=told):
            uploads.model_bytes("a.gguf", bad)
