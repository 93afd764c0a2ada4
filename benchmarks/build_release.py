"""A release in a folder: source distribution and wheel of the commit that is checked out, checked by twine.

    python benchmarks/build_release.py out/release            # make release
    python -m twine upload out/release/1.2.0/*          # publish it

The version is the commit's tag (`v1.2.0` gives 1.2.0). Without a tag it is a development release of the
package's own version, numbered by commits (1.2.0.dev345). What is built is the commit, never the working
tree: a changed file stops the build.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from common.script import ROOT, command_line

TAG = re.compile(r"v(\d+\.\d+\.\d+(?:(?:a|b|rc)\d+)?)")
VERSION = re.compile(r'^__version__ = "([^"]+)"$', re.MULTILINE)


def git(*arguments: str) -> str:
    """Output of a git command in this tree."""
    return subprocess.run(
        ["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.strip()


def version_of_commit(tags: list[str], own: str, commits: int) -> str:
    """Version of a commit from its tags, else a development release of `own`; refuses two versions."""
    versions = [match[1] for tag in tags if (match := TAG.fullmatch(tag))]
    if len(versions) > 1:
        raise SystemExit(f"this commit has {len(versions)} version tags: {', '.join(tags)}; keep one")
    return versions[0] if versions else f"{own}.dev{commits}"


def build(releases: Path) -> Path:
    """Build and check the checked-out commit; returns its folder, named for the version, in `releases`."""
    if changed := git("status", "--porcelain", "--untracked-files=no"):
        raise SystemExit(
            f"{len(changed.splitlines())} files differ from the commit; commit or stash them first"
        )
    with tempfile.TemporaryDirectory() as scratch:
        tree = Path(scratch) / "tree"
        archive = Path(scratch) / "tree.tar"
        git("archive", "--output", str(archive), "HEAD")
        shutil.unpack_archive(archive, tree)
        module = tree / "medusa_sim" / "__init__.py"
        text = module.read_text(encoding="utf-8")
        own = VERSION.search(text)
        assert own is not None, "medusa_sim/__init__.py names its version"
        tags, commits = git("tag", "--points-at", "HEAD").split(), int(git("rev-list", "--count", "HEAD"))
        version = version_of_commit(tags, own[1], commits)
        folder = releases / version
        if folder.exists():
            raise SystemExit(f"{folder} exists: this version was built; remove the folder to build it again")
        module.write_text(VERSION.sub(f'__version__ = "{version}"', text), encoding="utf-8")
        built = Path(scratch) / "built"
        # Without isolation: what builds is pinned in constraints.txt with everything else.
        command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(built), str(tree)]
        subprocess.run(command, check=True, capture_output=True)
        files = sorted(built.iterdir())
        subprocess.run([sys.executable, "-m", "twine", "check", "--strict", *files], check=True)
        folder.mkdir(parents=True)
        for file in files:
            shutil.copyfile(file, folder / file.name)
    return folder


def main() -> None:
    """Read the command line and build."""
    parser = command_line(__doc__)
    parser.add_argument("releases", type=Path, nargs="?", default=Path("out/release"))
    folder = build(parser.parse_args().releases)
    for file in sorted(folder.iterdir()):
        print(f"{file}  {file.stat().st_size / 1e6:.1f} MB")
    if ".dev" in folder.name:
        print(f"{folder.name}: the commit has no version tag (git tag v1.2.0 names one)")
    print(f"publish: {sys.executable} -m twine upload {folder}/*")


if __name__ == "__main__":
    main()
