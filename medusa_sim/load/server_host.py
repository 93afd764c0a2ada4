"""What a server's host does beside the steps: it schedules ahead, and sends what they emit to clients."""

from __future__ import annotations

from dataclasses import dataclass

from medusa_sim.engines.engine import Engine
from medusa_sim.units import US_PER_S


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerHost:
    """Steps that it schedules ahead, and what it takes of its own."""

    steps_ahead: int = 0
    client_s: float = 0.0
    """From the client to the queue and back."""
    client_band: float = 0.0
    """Half-width of the 80 % interval of it, relative."""
    sending_s: float = 0.0
    """To send a token of one request."""


def server_host(engine: Engine | None, method: str = "") -> ServerHost:
    """The host of an engine. method: of the drafter that is loaded; with some no step is scheduled ahead."""
    if engine is None:
        return ServerHost()
    return ServerHost(
        steps_ahead=0 if method in engine.synchronous_drafters else round(engine.steps_ahead.value),
        client_s=engine.server_us.value / US_PER_S,
        client_band=engine.server_us.band,
        sending_s=engine.server_us_per_request.value / US_PER_S,
    )
