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

    step: how many steps all have made. first_end: the least of `ends`; length_sum: tokens in the KV cache, of
    all, shared_sum: of `shared`. drafts: of every request, or where they differ (`differ`) of the one that
    has the most; asked: of all together; fresh: of one that joins; _apart: whether
    some have more than others.

    Arrays: at: which request; own: its cell of `Draws` before step 0; row: the same with its drafts; goal:
    the sum of cells at which it has emitted everything, ends: the step; final: tokens in the KV cache when
    all are out; shared: blocks that are held elsewhere too; since: the step when it was last looked at,
    accepted, tried: drafts until then.
    """

    def __init__(self, limits: Limits, draws: Draws) -> None:
        self.block_tokens, self.held = limits.block_tokens, limits.held
        self.slots = 1 + limits.lookahead
        self.draws, self._is_plain = draws, draws.is_plain
        self._state = np.zeros((10, limits.max_requests), dtype=np.int64)
        self.at, self.own, self.row, self.goal, self.ends, self.final, self.shared = self._state[:7]
        self.since, self.accepted, self.tried = self._state[7:]
        self._places = np.zeros((2, limits.max_requests), dtype=np.int64)
        self._stopped: dict[int, tuple[int, int]] = {}
        self.count = self.step = 0
        self.drafts = self.asked = self.fresh = self._made = 0
        self.differ = self._apart = False
        self.length_sum = self.shared_sum = self._passed = 0
        self.first_end = _NEVER

    def join(self, request: int, remaining: int, length: int, shared: int = 0) -> None:
        """A request whose prompt has been read decodes from the next step on."""
        place, step, sums = self.count, self.step, self.draws.sums
        cell = self.draws.begins[request]
        first = cell + self.fresh * self.draws.size
        if self._is_plain:
            now, ends = first, step + remaining
        else:
            now = sums.item(first)
            ends = int(sums.searchsorted(np.int32(now + remaining))) - first + step
        own, row, final = cell - step, first - step, length + remaining
        past = self._stopped.pop(request, (0, 0))
        self._state[:, place] = (request, own, row, now + remaining, ends, final, shared, step, *past)
        self.length_sum += length
        self.shared_sum += shared
        self._passed += now
        self.first_end = min(self.first_end, ends)
        self.asked += self.fresh
        self.drafts = max(self.drafts, self.fresh)
        self.count = place + 1

    def draft(self, drafts: int, made: int = 0) -> None:
        """So many drafts of every request from now on; made: drafted for each, where that is more."""
        if drafts == self.fresh and made == self._made and not self._apart:
            return
        self.drafts, self.fresh, self._made = max(drafts, made), drafts, made
        self.asked, self.differ, self._apart = drafts * self.count, made > drafts, False
        self._read_on(drafts)

    def draft_each(self, each: IntArray, fresh: int, made: int = 0) -> None:
        """Of each request so many drafts are verified from now on, of one that joins `fresh`.

        made: drafted for every request, where that is more than its own.
        """
        if self._apart and (fresh, made) == (self.fresh, self._made):
            rows = self.row[: self.count] - self.own[: self.count]
            if np.logical_and.reduce(rows == each * self.draws.size):
                return
        self.drafts, self.asked = int(np.maximum.reduce(each, initial=made)), int(np.add.reduce(each))
        self.fresh, self.differ, self._made, self._apart = fresh, True, made, True
        self._read_on(each)

    def _read_on(self, drafts: int | IntArray) -> None:
        """Find where the requests end with other drafts."""
        if self._is_plain or not self.count:
            return
        sums = self.draws.sums
        goal, row, ends = (array[: self.count] for array in (self.goal, self.row, self.ends))
        left = self.remaining
        row[:] = self.own[: self.count]
        row += drafts * self.draws.size
        passed = sums.take(row + self.step)
        goal[:] = passed + left
        ends[:] = sums.searchsorted(goal.astype(np.int32)) - row
        self._passed = int(np.add.reduce(passed))
        self.first_end = int(np.minimum.reduce(ends))

    @property
    def remaining(self) -> IntArray:
        """(requests,) tokens that each has to emit."""
        left: IntArray = self.goal[: self.count] - self._cells()
        return left

    def _cells(self) -> IntArray:
        """Sums of cells before the ones that are next."""
        places: IntArray = self.row[: self.count] + self.step
        return places if self._is_plain else self.draws.sums.take(places)

    def advance(self, steps: int, gained: int | None = None) -> int:
        """Tokens that so many steps give, at most up to `first_end`; those that end may give too many.

        gained: how many, where `gained_at` has said it.
        """
        self.step += steps
        if gained is None:
            gained = int(np.add.reduce(self._cells())) - self._passed if self.drafts else steps * self.count
        self._passed += gained
        self.length_sum += gained
        return gained

    def gained_at(self, steps: list[int]) -> list[int]:
        """Tokens that each of so many steps would give, as `advance`; the requests stay where they are."""
        if self._is_plain or not self.drafts:
            return [each * self.count for each in steps]
        begin, row, passed = self.step, self.row[: self.count], self._passed
        places = row + (begin + np.array(steps))[:, None]
        found: list[int] = (np.add.reduce(self.draws.sums.take(places), axis=1) - passed).tolist()
        return found

    def leave(self) -> tuple[list[int], int]:
        """(requests that have emitted everything and leave, tokens that they gave beyond it)."""
        all_gone, over = [], 0
        while self.first_end <= self.step:
            place = int(self.ends[: self.count].argmin())
            request, left = self._drop(place)
            all_gone.append(request)
            over -= left
        return all_gone, over

    def drop_last(self) -> tuple[int, int]:
        """(request, tokens that remain) of the request that was admitted last; its place is free."""
        place = self.count - 1
        found = self._drop(place)
        self._stopped[found[0]] = int(self.accepted[place]), int(self.tried[place])
        return found

    def _drop(self, place: int) -> tuple[int, int]:
        """The request in a place leaves; it, and the tokens that remain of it."""
        request, own, row, goal, _, final, shared = self._state[:7, place].tolist()
        passed = row + self.step if self._is_plain else self.draws.sums.item(row + self.step)
        left = goal - passed
        last = self.count = self.count - 1
        if place < last:
            self._state[:, place:last] = self._state[:, place + 1 : last + 1]
        self._passed -= passed
        if row > own:
            drafts = (row - own) // self.draws.size
            self.asked -= drafts
            if self._apart and drafts == self.drafts > self._made:
                rows = self.row[:last] - self.own[:last]
                self.drafts = (
                    int(np.maximum.reduce(rows, initial=self._made * self.draws.size)) // self.draws.size
                )
        self.length_sum -= final - left
        self.shared_sum -= shared
        ends = self.ends[:last]
        self.first_end = ends.item(ends.argmin()) if last else _NEVER
        return request, left

    def seen(self) -> IntArray:
        """(2, requests) drafts accepted and drafts tried of each.

        Of K drafts those are tried that would be emitted with K - 1: all that were accepted, and the next.
        """
        b, sums = self.count, self.draws.sums
        row, since, own = self.row[:b], self.since[:b], self.own[:b]
        places = self._places[:, :b]
        places[0] = row
        np.subtract(row, self.draws.size, out=places[1])
        np.maximum(places[1], own, out=places[1])
        gained = sums.take(places + self.step)
        places += since
        gained -= sums.take(places)
        gained[0] -= self.step - since
        gained[1] *= row > own
        past = self._state[8:, :b]
        past += gained
        since[:] = self.step
        return past

    def found_share(self, steps: int) -> float:
        """Of the last so many steps and all requests, in how many drafts were found."""
        found = self.draws.found
        now = self.own[: self.count] + self.step
        passed = np.add.reduce(found.take(now)) - np.add.reduce(found.take(now - steps))
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
