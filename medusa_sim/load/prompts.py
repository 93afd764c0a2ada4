"""Prompts that are being read, chunk by chunk, and the KV blocks that are reserved for them."""

from __future__ import annotations


class Prompt:
    """One prompt: its request, tokens that it will hold, left to compute, KV blocks, shared ones."""

    __slots__ = ("blocks", "left", "length", "request", "shared")

    def __init__(self, request: int, length: int, left: int, blocks: int, shared: int = 0) -> None:
        self.request, self.length, self.left, self.blocks, self.shared = request, length, left, blocks, shared


class Prompts:
    """Prompts in order of admission; `reserved` KV blocks hold all of each from the start."""

    def __init__(self) -> None:
        self._prompts: list[Prompt] = []
        self.reserved = 0

    def __len__(self) -> int:
        """How many are being read."""
        return len(self._prompts)

    @property
    def left(self) -> int:
        """Tokens left to compute."""
        return sum(prompt.left for prompt in self._prompts)

    def add(self, prompt: Prompt) -> None:
        """A prompt is admitted."""
        self._prompts.append(prompt)
        self.reserved += prompt.blocks

    def drop_last(self) -> int:
        """The prompt admitted last gives its blocks back; its request."""
        prompt = self._prompts.pop()
        self.reserved -= prompt.blocks
        return prompt.request

    def chunks(self, budget: int) -> list[tuple[int, int]]:
        """(tokens, end) of the chunk of each prompt in the next step, in order, while the budget lasts."""
        found = []
        for prompt in self._prompts:
            if budget <= 0:
                break
            tokens = min(prompt.left, budget)
            budget -= tokens
            found.append((tokens, prompt.length - prompt.left + tokens))
        return found

    def read(self, chunks: list[tuple[int, int]]) -> list[Prompt]:
        """All go on by their chunks; those that are at their end leave and are returned."""
        for prompt, (tokens, _) in zip(self._prompts, chunks, strict=False):
            prompt.left -= tokens
        ended = [prompt for prompt in self._prompts if not prompt.left]
        if ended:
            self._prompts = [prompt for prompt in self._prompts if prompt.left]
            self.reserved -= sum(prompt.blocks for prompt in ended)
        return ended
