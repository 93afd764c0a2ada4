"""How long a look-up in the text goes on finding drafts: texts replayed as if they were outputs.

    python benchmarks/lookup_runs.py            # five seconds of one core

Sources of Python's standard library and pages of this project, 600 tokens of each as a prompt and 300 as the
output; words and signs stand for tokens. A step looks the last n tokens up, longest first, the earliest copy.
r is the mean run of steps that find drafts over that of as many independent ones, 1 / (1 - z).
"""

from __future__ import annotations

import re
import sysconfig
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from common.script import ROOT, command_line

TEXTS = {
    "code": sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))[::4],
    "prose": sorted((ROOT / "docs").glob("*.md")),
}
PROMPT, WHOLE = 600, 900
_TOKEN = re.compile(r"\w+|[^\w\s]|\n[ ]*")


def looked_up(text: Sequence[str], place: int, sizes: Sequence[int], drafts: int) -> Sequence[str]:
    """What followed the earliest copy of the last tokens before a place."""
    for size in sizes:
        pattern = text[place - size : place]
        for first in range(place - size):
            if text[first : first + size] == pattern:
                return text[first + size : min(first + size + drafts, place)]
    return ()


def replayed(text: Sequence[str], sizes: Sequence[int], drafts: int) -> tuple[list[bool], list[int]]:
    """(whether drafts were found, how many were accepted) in each step."""
    found, accepted, place = [], [], PROMPT
    while place < len(text) - 1:
        guess = looked_up(text, place, sizes, drafts)
        right = [one == other for one, other in zip(guess, text[place:], strict=False)]
        found.append(bool(guess))
        accepted.append(right.index(False) if False in right else len(right))
        place += accepted[-1] + 1
    return found, accepted


def main() -> None:
    """Print a line a kind of text and rule."""
    parser = command_line(__doc__)
    parser.add_argument("--texts", type=int, help="of each kind, so many at most")
    most = parser.parse_args().texts
    print("text   n     K  found  first accepted  tokens/step  run   r")
    for name, files in TEXTS.items():
        texts = [_TOKEN.findall(path.read_text(encoding="utf-8", errors="ignore"))[:WHOLE] for path in files]
        texts = [text for text in texts if len(text) == WHOLE][:most]
        for sizes in ((3, 2), (5, 4, 3), (5,)):
            for drafts in (3, 5):
                runs = [replayed(text, sizes, drafts) for text in texts]
                found = np.concatenate([each for each, _ in runs])
                accepted = np.concatenate([each for _, each in runs])
                after = np.concatenate([np.array(each[1:])[np.array(each[:-1])] for each, _ in runs])
                run = 1.0 / (1.0 - after.mean())
                print(f"{name:6s} {sizes[-1]}..{sizes[0]}  {drafts}  {found.mean():.3f}  "
                      f"{(accepted[found] > 0).mean():14.2f}  {1 + accepted.mean():11.2f}  "
                      f"{run:.2f}  {run * (1 - found.mean()):.2f}")  # fmt: skip


if __name__ == "__main__":
    main()
