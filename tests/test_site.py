"""The site and a release: links that lead somewhere, a menu from README, a version from the tag."""

import json
import subprocess
import sys
from pathlib import Path

import build_site
import pytest
from build_release import version_of_commit

ROOT = Path(__file__).resolve().parents[1]


def test_links_lead_to_pages_and_copies(tmp_path):
    text = (
        "[a](docs/guide.md#the-app) [b](LICENSE) ![c](docs/speedup.png) [d](https://a.org/) [f](CHANGELOG.md)"
    )
    page = build_site.relinked(text, ROOT / "README.md", tmp_path)
    assert page == (
        "[a](guide.md#the-app) [b](files/LICENSE) ![c](speedup.png) [d](https://a.org/) [f](changelog.md)"
    )
    assert (tmp_path / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()


@pytest.mark.parametrize("target", ["docs/nothing.md", "../../etc/passwd"])
def test_a_link_that_leads_nowhere_stops_the_build(target, tmp_path):
    with pytest.raises(SystemExit, match="leads nowhere"):
        build_site.relinked(f"[a]({target})", ROOT / "README.md", tmp_path)


def test_the_menu_holds_every_document(tmp_path):
    menu = build_site.write_pages(tmp_path / "pages")
    pages = {page.name for page in (tmp_path / "pages").glob("*.md")}

    def named(entry):
        if isinstance(entry, dict):
            return {page for value in entry.values() for page in named(value)}
        return {entry} if isinstance(entry, str) else {page for one in entry for page in named(one)}

    assert named(menu) == pages
    assert {path.name for path in (ROOT / "docs").glob("*.md")} <= pages


def test_a_notebook_keeps_its_outputs(tmp_path):
    book = {
        "cells": [
            {"cell_type": "markdown", "source": ["# Title"]},
            {"cell_type": "code", "source": ["1 + 1"], "outputs": [{"data": {"text/plain": ["2"]}}]},
        ]
    }
    path = tmp_path / "a.ipynb"
    path.write_text(json.dumps(book))
    assert build_site.notebook_page(path).replace("\n", " ").strip() == (
        "# Title  ```python 1 + 1 ```  ```text 2 ```"
    )


def test_a_version_is_the_commits_tag():
    assert version_of_commit(["v1.2.0"], "0.1.0", 7) == "1.2.0"
    assert version_of_commit(["v1.2.0rc1", "nightly"], "0.1.0", 7) == "1.2.0rc1"
    assert version_of_commit(["nightly"], "0.1.0", 7) == "0.1.0.dev7"
    with pytest.raises(SystemExit, match="2 version tags"):
        version_of_commit(["v1.2.0", "v1.3.0"], "0.1.0", 7)


@pytest.mark.slow
def test_the_site_builds_without_a_warning_and_asks_no_other_host(tmp_path):
    pytest.importorskip("material", reason="make site installs it")
    site = tmp_path / "site"
    script = [sys.executable, str(ROOT / "benchmarks" / "build_site.py"), str(site)]
    done = subprocess.run(script, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    for page in site.glob("*.html"):
        assert 'src="http' not in page.read_text(encoding="utf-8"), page.name
