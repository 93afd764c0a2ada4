"""Numbers that a sentence tells."""

import re


def numbers(text: str) -> list[str]:
    """Every number of a text, as it stands there."""
    return re.findall(r"\d[\d.,]*\d|\d", text)
