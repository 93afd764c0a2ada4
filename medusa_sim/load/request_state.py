"""State of one request of a run, from when it is sent until its last token."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True, eq=False)
class RequestState:
    """One request and how far it is.

    number: its index in `Requests`. session_tokens: of its session before it, None without sessions. left:
    tokens still to emit, as of when it joined or left the batch. stopped_s: when it was preempted, None while
    it is not. While its prompt is read, unread: tokens still to compute, after a preemption also those that
    it had emitted; blocks: KV blocks reserved for it, without `shared` ones that others hold too. While it
    decodes, offset, base, end and last_step are those of `Batch`.
    """

    number: int
    prompt_tokens: int
    output_tokens: int
    session_tokens: int | None
    left: int
    unread: int = 0
    blocks: int = 0
    shared: int = 0
    offset: int = 0
    base: int = 0
    end: int = 0
    last_step: int = 0
    stopped_s: float | None = None

    @property
    def served(self) -> float:
        """Share of its output that it had emitted when it joined or left the batch."""
        return 1.0 - self.left / self.output_tokens

    @property
    def committed(self) -> int:
        """Tokens of its prompt and of what it has emitted."""
        return self.prompt_tokens + self.output_tokens - self.left

    @property
    def cached(self) -> int:
        """Tokens in the KV cache while it decodes: the last one is the input of the next step."""
        return self.committed - 1
