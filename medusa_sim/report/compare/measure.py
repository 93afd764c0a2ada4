"""What a comparison saves, in words."""

from __future__ import annotations

from dataclasses import dataclass

from medusa_sim.setups.question import Measure


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasureWords:
    """Words for one measure."""

    best: str
    """What the chosen set-up is."""
    aim: str
    """What is looked for."""
    header: str
    """Header of its column in short tables."""
    against: str
    """What speed is traded for."""


WORDS: dict[Measure, MeasureWords] = {
    "cost": MeasureWords(best="Cheapest", aim="least cost", header="$ a million tokens", against="cost"),
    "throughput": MeasureWords(
        best="Most from a GPU", aim="most tokens a GPU", header="tokens/s a GPU", against="throughput per GPU"
    ),
    "energy": MeasureWords(
        best="Least energy", aim="least energy", header="J a token", against="energy per token"
    ),
}
