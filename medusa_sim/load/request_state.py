"""State of one request of a run, from when it is sent until its last token."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True, eq=False)
class RequestState:
    """One request and how far it is.

    number: its index in `Requests`. session_tokens: of its session before it, None without sessions.
    committed: tokens of its prompt and of what it has emitted. stopped_s: when it was preempted, None while
    it is not. While its prompt is read, unread: tokens still to compute, after a preemption also those
    that it had emitted; blocks: KV blocks reserved for it, without `shared` ones that others hold too. While
    it decodes, draw: the index of its next step in `Draws`; end: that of the step after its last.
    """

    number: int
    prompt_tokens: int
    output_tokens: int
    session_tokens: int | None
    committed: int
    unread: int = 0
    blocks: int = 0
    shared: int = 0
    draw: int = 0
    end: int = 0
    stopped_s: float | None = None

    @property
    def left(self) -> int:
        """Tokens still to emit; below 0 where its last step emitted more."""
        return self.prompt_tokens + self.output_tokens - self.committed

    @property
    def cached(self) -> int:
        """Tokens in the KV cache while it decodes: the last one is the input of the next step."""
        return self.committed - 1
