"""Numbers and verdicts of a text."""

import re


def numbers(text: str) -> list[str]:
    """Every number of a text, as it stands there."""
    return re.findall(r"\d[\d.,]*\d|\d", text)


def verdicts(text: str) -> str:
    """Verdicts and numbers of a text, in its order."""
    return " ".join(re.findall(r"pays|uncertain|loses|\d[\d,]*", text))
