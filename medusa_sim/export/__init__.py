"""A recommendation as launch settings of serving engines; `export.engines` writes them."""

from __future__ import annotations

from medusa_sim.data import shipped_dir
from medusa_sim.reading import read_toml

TABLES = read_toml(shipped_dir() / "profiles" / "exports.toml")
"""What is known of each engine, by name (`settings.EngineExport`)."""
ENGINES: tuple[str, ...] = (*TABLES, "json")
"""What settings are written for."""
