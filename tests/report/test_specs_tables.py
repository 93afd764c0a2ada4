"""Tables of what is known: counts, units and sizes of GPUs, models, runtimes, profiles and prices."""

from types import SimpleNamespace
from typing import Any

import pytest

from medusa_sim.acceptance.profile import load_acceptance
from medusa_sim.engines.engine import StepLimit
from medusa_sim.engines.runtime import load_runtime
from medusa_sim.gpus.gpu import load_gpu
from medusa_sim.gpus.local import laws_of
from medusa_sim.gpus.prices import STALE_DAYS
from medusa_sim.models.named import load_model
from medusa_sim.report.blocks import Heading
from medusa_sim.report.document import markdown_page
from medusa_sim.report.specs.rows import (
    _limit_text,
    _term_note,
    facts_of,
    gpu_rows,
    model_rows,
    price_rows,
    runtime_rows,
    spec_rows,
)
from medusa_sim.report.specs.tables import SpecEntry, entry_sentence, names_screen, overview_tables


def entry(kind: str, name: str) -> SpecEntry:
    return SpecEntry(kind=kind, name=name, rows=tuple(spec_rows(kind, name)))


def cells(kind: str, name: str, title: str) -> dict[str, str]:
    """The row of an entry in its table."""
    table = next(each for each in overview_tables([entry(kind, name)], None) if each.title == title)
    (row,) = table.rows
    return dict(zip(table.headers, row, strict=True))


def test_a_gpu_is_shown_in_terabytes_and_tensor_speeds():
    """80 GiB are 85.9 GB."""
    row = cells("gpu", "h100-sxm", "GPUs")
    assert (row["SMs"], row["memory"], row["bandwidth"]) == ("132", "85.9 GB", "3.35 TB/s")
    assert (row["fp16 TFLOP/s"], row["fp8 TFLOP/s"]) == ("989.4", "1,979")


def test_passes_of_a_device_are_as_sure_as_its_surest_law():
    gpu = load_gpu("rtx-3060")
    tables = overview_tables([entry("gpu", gpu.name)], None)
    (row,) = next(each for each in tables if "passes within" in each.headers).rows
    least = min(law.band for law in laws_of(gpu.local))
    assert f"{100 * least:.0f} %" in row


def test_a_model_is_shown_in_billions_of_weights_and_experts_of_all():
    row = cells("model", "qwen3-30b-a3b", "models")
    assert (row["layers"], row["hidden"], row["experts"]) == ("48", "2048", "8 of 128")
    assert (row["10^9 weights"], row["active"]) == ("30.53", "3.35")
    assert row["KV a token"] == "98.3 kB"  # 2 x 48 layers x 4 heads x 128 x 2 bytes
    dense = cells("model", "llama-3.1-8b", "models")
    assert (dense["experts"], dense["state"], dense["KV a token"]) == ("-", "-", "131 kB")


def test_layers_with_two_mixers_list_both():
    model = load_model("llama-3.1-8b")
    rows = {row.key: row for row in model_rows(model)}
    assert rows["groups[0].count"].value == 32
    assert rows["groups[0].mixer.heads"].value == 32
    assert rows["parameter_count"].value == model.parameter_count
    assert (rows["weight_bytes"].value, rows["weight_bytes"].unit) == (model.weight_bytes, "bytes")
    (group,) = model.groups
    both = SimpleNamespace(count=2, mixers=(*group.mixers, *group.mixers), feed_forward=group.feed_forward)
    names = ("architecture", "layers", "hidden", "attention", "vocab", "notes", "source")
    sizes = (
        "max_seq_len", "norm", "positions", "norms_per_layer", "samples_top_k", "samples_top_p",
        "tied_embeddings",
        "dtype", "weight_dtype", "activation_dtype", "kv_dtype", "mtp_layers", "parameter_count",
        "active_parameter_count", "weight_bytes", "kv_bytes_per_token", "late_kv_bytes_per_token",
        "state_bytes",
    )  # fmt: skip
    made = SimpleNamespace(**{name: getattr(model, name) for name in (*names, *sizes)}, groups=(both,))
    keys = {row.key for row in model_rows(made)}
    assert {"groups[0].mixer[0].heads", "groups[0].mixer[1].heads"} <= keys


def test_names_are_counted_by_kind_and_prices_by_their_cards():
    row = SimpleNamespace(key="l4", source="")
    entries: list[Any] = [
        SimpleNamespace(kind="gpu", name="a", rows=()), SimpleNamespace(kind="gpu", name="b", rows=()),
        SimpleNamespace(kind="model", name="m", rows=(row,)),
        SimpleNamespace(kind="price", name="prices", rows=(row, SimpleNamespace(key="a40"), row)),
    ]  # fmt: skip
    screen = names_screen(entries)
    assert screen.answer == ("2 GPUs, 1 models.",)
    told = {fact.label: fact.text for fact in screen.facts}
    assert (told["GPUs"], told["Models"], told["Prices"]) == ("a, b", "m", "l4, a40")


def test_a_gpu_in_a_sentence_is_its_speed_its_memory_and_its_sources():
    text = entry_sentence(entry("gpu", "h100-sxm"))
    rows = gpu_rows(load_gpu("h100-sxm"))
    assert text.endswith(f"{len(rows)} facts from {len({row.source for row in rows})} sources.")
    assert "in bf16" in text


def test_acceptance_is_shown_at_powers_of_two():
    rows = {row.key: row.value for row in spec_rows("acceptance", "medusa1-vicuna-7b")}
    profile = load_acceptance("medusa1-vicuna-7b")
    most = rows["candidates_max"]
    told = [int(key.partition(".")[2]) for key in rows if key.startswith("tokens_per_step.")]
    assert told == [2**power for power in range(20) if 2**power <= most]
    for count in told:
        assert rows[f"tokens_per_step.{count}"] == pytest.approx(float(profile.tokens_per_step([count])[0]))


@pytest.mark.parametrize(("days", "is_old"), [(STALE_DAYS, False), (STALE_DAYS + 1, True)])
def test_a_price_that_is_too_old_says_so(days, is_old):
    price = SimpleNamespace(
        gpu="l4",
        usd_per_gpu_hour=0.5,
        offer="made",
        date="2026-01-01",
        note="",
        source="",
        age_days=lambda: days,
    )
    (row,) = price_rows([price])
    assert (row.value, row.unit) == (0.5, "$/GPU-hour")
    assert ("older than" in row.note) == is_old


def test_units_follow_the_ending_of_a_name():
    rows = facts_of({"a.memory_bytes": 1.0, "b.x_us": 2.0, "sms": 3}, "here")
    assert [row.unit for row in rows][2] == ""
    assert rows[0].unit != rows[1].unit
    told = {row.key: (row.value, row.unit) for row in runtime_rows(load_runtime("hf-eager"))}
    assert told["host_us_per_launch"] == (load_runtime("hf-eager").host_us_per_launch, "us")


def test_terms_and_limits_are_shown_with_their_bands():
    limit = StepLimit(tokens=8192, requests=1024, memory_gib=70.0, but=("a100",))
    assert _limit_text(limit) == "8192 tokens and 1024 requests from 70 GiB but a100"
    assert _limit_text(StepLimit(tokens=1, requests=2)) == "1 tokens and 2 requests"
    captured = {"tokens": 1, "requests": 2, "captured": 8}
    assert _limit_text(StepLimit(**captured)) == "1 tokens and 2 requests, graphs to 8"
    assert (
        _limit_text(StepLimit(**captured, captured_by_four=9, memory_gib=20))
        == "1 tokens and 2 requests, graphs to 8 (9 by four GPUs), from 20 GiB"
    )
    term = SimpleNamespace(
        band=0.25, measured=None, valid="", elsewhere=(SimpleNamespace(value=3.5, rule="other"),),
        deviations=(),
        heldout_error=0.123, inherited_from="", note="",
    )  # fmt: skip
    assert _term_note(term) == "±25 %; 3.5 as other; held-out error 12.3 %"


def test_headings_of_a_page_are_of_the_second_level_unless_said():
    lines = markdown_page([Heading("a"), Heading("b", level=3)]).splitlines()
    assert [line for line in lines if line.startswith("#")] == ["## a", "### b"]
