"""`medusa-sim app` and `streamlit run app/main.py` start with the same options, and ask nobody anything."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("streamlit")

from streamlit import config

from medusa_sim.cli.app import main_script, streamlit_options
from medusa_sim.errors import UsageError

OPTIONS = main_script().parent / ".streamlit" / "config.toml"


def test_nothing_is_asked_or_sent() -> None:
    options = streamlit_options(OPTIONS)
    assert options["logger.hideWelcomeMessage"] is True
    assert options["server.showEmailPrompt"] is False
    assert options["browser.gatherUsageStats"] is False


def test_streamlit_knows_every_option() -> None:
    known = config.get_config_options()
    assert set(streamlit_options(OPTIONS)) <= set(known)


def test_a_missing_file_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="installation is incomplete") as caught:
        streamlit_options(tmp_path / "config.toml")
    assert "\n" not in str(caught.value)
