"""The requests that decode: what they have to emit, how long they are, the KV blocks that they hold."""

from __future__ import annotations

import numpy as np

from medusa_sim.arrays import IntArray
from medusa_sim.load.draws import Draws
from medusa_sim.load.limits import Limits

_NEVER = 1 << 62
"""Step in which the first request ends where nothing decodes."""


class Decoding:
    """Requests in the first `count` places of the arrays, in order of admission.

    step: how many steps all have made, _base: when one joined last. first_end: the least of `ends`, in place
    _first; length_sum: tokens in the KV cache, of all, shared_sum: of `shared`. drafts: of every request, or
    where they differ (`differ`) of the one that has the most; asked: of all together; fresh: of one that
    joins; _apart: whether some have more than others, _none: whether some may have none.

    Arrays: at: which request; own: its cell of `Draws` at `_base`; row: the same with its drafts, low:
    with one fewer; goal: the sum of cells at which it has emitted everything, ends: the step; final: tokens
    in the KV cache when all are out; shared: blocks that are held elsewhere too; each: drafts; past:
    (2, requests) what sums at row and low have to grow by to be the drafts accepted and tried (`seen`).
    """

    def __init__(self, limits: Limits, draws: Draws) -> None:
        self.block_tokens, self.held = limits.block_tokens, limits.held
        self.slots = 1 + limits.lookahead
        self.draws, self._is_plain = draws, draws.is_plain
        self._state = np.zeros((11, limits.max_requests), dtype=np.int64)
        self.at, self.own, self.row, self.low, self.goal, self.ends, self.final, self.shared = self._state[:8]
        self.each, self._rows, self._past = self._state[8], self._state[2:4], self._state[9:]
        self._ones = np.ones(limits.max_requests, dtype=np.int64)
        self._stopped: dict[int, tuple[int, int]] = {}
        self.count = self.step = 0
        self.drafts = self.asked = self.fresh = self._made = 0
        self.differ = self._apart = self._none = False
        self.length_sum = self.shared_sum = self._passed = self._base = self._first = 0
        self.first_end = _NEVER

    def join(self, request: int, remaining: int, length: int, shared: int = 0) -> None:
        """A request whose prompt has been read decodes from the next step on."""
        place, step, sums = self.count, self.step, self.draws.sums
        if step > self._base:
            self._state[1:4, :place] += step - self._base
            self._base = step
        cell = self.draws.begins[request]
        first = cell + self.fresh * self.draws.size
        low = max(first - self.draws.size, cell)
        accepted, tried = self._stopped.pop(request, (0, 0))
        if self._is_plain:
            now, ends = first, step + remaining
        else:
            now = sums.item(first)
            ends = step + int(sums[first : first + remaining + 1].searchsorted(now + remaining))
            accepted, tried = accepted - now + step, tried - sums.item(low) + (0 if self.fresh else step)
        self._none = self._none or not self.fresh
        self._state[:, place] = (
            request, cell, first, low, now + remaining, ends, length + remaining, shared, self.fresh,
            accepted, tried,
        )  # fmt: skip
        self.length_sum += length
        self.shared_sum += shared
        self._passed += now
        if ends < self.first_end:
            self.first_end, self._first = ends, place
        self.asked += self.fresh
        self.drafts = max(self.drafts, self.fresh)
        self.count = place + 1

    def draft(self, drafts: int, made: int = 0) -> None:
        """So many drafts of every request from now on; made: drafted for each, where that is more."""
        if drafts == self.fresh and made == self._made and not self._apart:
            return
        self.drafts, self.fresh, self._made = max(drafts, made), drafts, made
        self.asked, self.differ, self._apart = drafts * self.count, made > drafts, False
        self._none = not drafts
        self._read_on(drafts)

    def _read_on(self, drafts: int | IntArray) -> None:
        """Find where the requests end with other drafts."""
        b = self.count
        self.each[:b] = drafts
        if self._is_plain or not b:
            return
        sums, size = self.draws.sums, self.draws.size
        goal, own, row, ends = (array[:b] for array in (self.goal, self.own, self.row, self.ends))
        left = self.remaining
        np.add(own, drafts * size, out=row)
        np.maximum(row - size, own, out=self.low[:b])
        passed = self._cells()
        goal[:] = passed + left
        ends[:] = sums.searchsorted(goal) - row + self._base
        self._passed = int(passed.dot(self._ones[:b]))
        self._first = int(ends.argmin())
        self.first_end = ends.item(self._first)

    @property
    def remaining(self) -> IntArray:
        """(requests,) tokens that each has to emit."""
        left: IntArray = self.goal[: self.count] - self._cells()
        return left

    def _cells(self) -> IntArray:
        """Sums of cells before the ones that are next."""
        row, since = self.row[: self.count], self.step - self._base
        cells: IntArray = row + since if self._is_plain else self.draws.sums[since:].take(row)
        return cells

    def advance(self, steps: int, gained: int | None = None) -> int:
        """Tokens that so many steps give, at most up to `first_end`; those that end may give too many.

        gained: how many, where `gained_at` has said it.
        """
        self.step += steps
        if gained is None:
            gained = steps * self.count
            if self.drafts:
                gained = int(self._cells().dot(self._ones[: self.count])) - self._passed
        self._passed += gained
        self.length_sum += gained
        return gained

    def gained_at(self, steps: list[int]) -> list[int]:
        """Tokens that each of so many steps would give, as `advance`; the requests stay where they are."""
        if self._is_plain or not self.drafts:
            return [each * self.count for each in steps]
        since, row, passed = self.step - self._base, self.row[: self.count], self._passed
        places = row + (since + np.array(steps))[:, None]
        gained: list[int] = (np.add.reduce(self.draws.sums.take(places), axis=1) - passed).tolist()
        return gained

    def leave(self) -> tuple[list[int], int]:
        """(requests that have emitted everything and leave, tokens that they gave beyond it)."""
        all_gone, over = [], 0
        while self.first_end <= self.step:
            request, left = self._drop(self._first)
            all_gone.append(request)
            over -= left
        return all_gone, over

    def drop_last(self) -> tuple[int, int]:
        """(request, tokens that remain) of the request that was admitted last; its place is free."""
        place = self.count - 1
        accepted, tried = (0, 0) if self._is_plain else self.seen()[:, place].tolist()
        dropped = self._drop(place)
        self._stopped[dropped[0]] = accepted, tried
        return dropped

    def _drop(self, place: int) -> tuple[int, int]:
        """The request in a place leaves; it, and the tokens that remain of it."""
        request, _, row, _, goal, _, final, shared, drafts = self._state[:9, place].tolist()
        passed = row + self.step - self._base
        if not self._is_plain:
            passed = self.draws.sums.item(passed)
        left = goal - passed
        last = self.count = self.count - 1
        if place < last:
            self._state[:, place:last] = self._state[:, place + 1 : last + 1]
        self._passed -= passed
        self.asked -= drafts
        if self._apart and drafts == self.drafts > self._made:
            self.drafts = int(np.maximum.reduce(self.each[:last], initial=self._made))
        self.length_sum -= final - left
        self.shared_sum -= shared
        self._first = int(self.ends[:last].argmin()) if last else 0
        self.first_end = self.ends.item(self._first) if last else _NEVER
        return request, left

    def seen(self) -> IntArray:
        """(2, requests) drafts accepted and drafts tried of each.

        Of K drafts those are tried that would be emitted with K - 1: all that were accepted, and the next.
        """
        b, step = self.count, self.step
        past: IntArray = self.draws.sums[step - self._base :].take(self._rows[:, :b])
        past += self._past[:, :b]
        past[0] -= step
        if self._none:
            past[1] -= step * (self.each[:b] == 0)
        return past

    def found_share(self, steps: int) -> float:
        """Of the last so many steps and all requests, in how many drafts were found."""
        hits = self.draws.found
        now = self.own[: self.count] + (self.step - self._base)
        passed = np.add.reduce(hits.take(now)) - np.add.reduce(hits.take(now - steps))
        return float(passed) / (steps * self.count)

    def blocks(self, drafts: int, steps: int = 1) -> int:
        """KV blocks held in the last of so many steps, if every draft is accepted until then."""
        more = (drafts + 1) * (steps - 1) + drafts + self.slots
        length = self.final[: self.count] - self.remaining
        filled = (length + (more + self.block_tokens - 1)) // self.block_tokens
        if self.held is None:
            return int(np.add.reduce(filled)) - self.shared_sum
        return int(np.ceil(self.held.take(filled, mode="clip").sum())) - self.shared_sum

    def blocks_bound(self, drafts: int, steps: int) -> int:
        """KV blocks held in the last of so many steps, at most; quicker than `blocks` where it can be."""
        if self.held is not None:
            return self.blocks(drafts, steps)
        size = self.block_tokens
        more = (drafts + 1) * steps - 1 + self.slots
        return (self.length_sum + self.count * (more + size - 1)) // size - self.shared_sum

    def steps_until_full(self, drafts: int, kv_blocks: int) -> int:
        """Steps after which so many blocks may be full, at least 1."""
        size, count = self.block_tokens, self.count
        if self.held is not None:
            free = (kv_blocks - self.blocks(drafts) - count) * size
        else:
            free = (kv_blocks + self.shared_sum) * size - self.length_sum
            free -= count * (size - 2 + self.slots)
        return max(free // (count * (drafts + 1)), 1)

    @property
    def cache_tokens(self) -> int:
        """Tokens' worth of KV cache that is held, of all layers."""
        if self.held is None:
            return self.length_sum - self.shared_sum * self.block_tokens
        return self.blocks(-self.slots) * self.block_tokens
