"""Regular expressions and wildcards that a file gives, matched in time linear in the name.

Python's `re` backtracks: `([a-z]+)+#` of a file would take hours on a name of forty letters, and no other
thread runs meanwhile. RE2 does not (R. Cox, Regular expression matching in the wild, 2010). It refuses what
would need that: references backwards and looks around.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable

from medusa_sim.errors import SpecError, shown
from medusa_sim.outside.limits import PATTERN_BYTES, PATTERN_S


def of_wildcards(name: str) -> str:
    """The regular expression of a name with `*`, `?` and `[...]`, or of a module inside one of that name."""
    parts = (_of_wildcard(part) for part in re.split(r"([*?]|\[[^]]+\])", name))
    return "".join(parts) + r"(?:\..*)?$"


def _of_wildcard(part: str) -> str:
    if part in ("*", "?"):
        return {"*": ".*", "?": "."}[part]
    if part.startswith("[") and part.endswith("]"):
        inside = part[1:-1].replace("\\", r"\\").replace("[", r"\[")
        return f"[^{inside[1:]}]" if inside.startswith("!") else f"[{inside}]"
    return re.escape(part)


class Patterns:
    """Names that begin with what one of some regular expressions describes, as `re.match` finds them.

    Raises SpecError for an expression that RE2 does not take, for too many or too long ones, and on asking
    where the names take more than PATTERN_S.
    """

    def __init__(self, given: Iterable[str]) -> None:
        # a compiled library, which one config in fifty needs
        import re2

        options = re2.Options()
        options.log_errors, options.max_mem = False, PATTERN_BYTES
        patterns = list(dict.fromkeys(given))
        for pattern in patterns:
            try:
                re2.compile(pattern, options)
            except re2.error as error:
                problem = error.args[0].decode()
                raise SpecError(f"pattern {shown(pattern)}: {problem}; allowed: the syntax of RE2") from None
        try:
            self._any = re2.compile("|".join(f"(?:{pattern})" for pattern in patterns), options)
        except re2.error:
            raise SpecError(
                f"its {len(patterns):,} patterns take more than {PATTERN_BYTES:,} bytes"
            ) from None
        self._left_s = PATTERN_S

    def __contains__(self, name: object) -> bool:
        started_s = time.thread_time()
        found = self._any.match(str(name)) is not None
        self._left_s -= time.thread_time() - started_s
        if self._left_s < 0.0:
            raise SpecError(
                "patterns match the names of its modules too slowly; give fewer, or fewer with `*`"
            )
        return found
