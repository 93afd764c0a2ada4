"""The tables of tests/data: published figures with their sources, inputs with what is told of them."""

import tomllib
from pathlib import Path
from typing import Any


def table(name: str) -> dict[str, Any]:
    """The whole of tests/data/NAME.toml."""
    return tomllib.loads((Path(__file__).parent / "data" / f"{name}.toml").read_text())
