"""Set-ups to start from: the app opens on the first, each answers, a bare link is not the defaults."""

from __future__ import annotations

import pytest

pytest.importorskip("streamlit")

from chosen import PRESETS, SetUp
from pages_read import APP, Opened, commands
from streamlit.testing.v1 import AppTest


@pytest.mark.parametrize("name", [name for name, preset in PRESETS.items() if "json" not in str(preset)])
def test_a_preset_answers(opened: Opened, name: str) -> None:
    preset = PRESETS[name]
    page = opened("answer", **preset)
    assert page.success
    assert not any("Ignored" in warning.value for warning in page.warning)
    assert f"--model {preset.get('model', 'vicuna-7b')}" in commands(page)[0]


def test_the_app_opens_on_the_first_and_keeps_what_a_link_says() -> None:
    def opened(**url: str) -> AppTest:
        page = AppTest.from_file(str(APP / "main.py"), default_timeout=600)
        for name, value in url.items():
            page.query_params[name] = value
        return page.run()

    assert opened().selectbox(key="model").value == "llama-3.1-8b"
    assert opened(preset="defaults").selectbox(key="model").value == "vicuna-7b"
    assert opened(gpu="l40s").selectbox(key="model").value == "vicuna-7b"


def test_a_set_up_is_one_line() -> None:
    line = SetUp(gpu="h200-sxm", model="deepseek-r1", drafter="mtp", tp=8, kv_dtype="fp8").line
    assert "\n" not in line
    for word in ("deepseek-r1", "8 x h200-sxm", "fp8 KV", "mtp", "context 1,024"):
        assert word in line
