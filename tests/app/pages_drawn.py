"""Set-ups of links, and specifications as pictures."""

import downloads
from charts.style import Spec

EIGHT_B = {"gpu": "h100-sxm", "model": "llama-3.1-8b", "drafter": "eagle3"}
FEW = {"gpu_choices": "h100-sxm,l40s", "copies": "1", "weights": "bf16"}


def drawn(spec: Spec) -> str:
    """The chart as a picture: the specification is valid and everything that it needs is in it."""
    picture = downloads.picture(spec, "svg")
    assert isinstance(picture, str)
    assert picture.startswith("<svg")
    assert len(picture) > 4000
    return picture
