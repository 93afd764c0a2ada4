"""What a user can cause is told in one line."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

Caught = pytest.ExceptionInfo[Exception]


@contextmanager
def one_line(error: type[Exception], *words: str, match: str | None = None) -> Iterator[Caught]:
    """The block ends with this error, in one line that has these words."""
    with pytest.raises(error, match=match) as caught:
        yield caught
    message = str(caught.value)
    assert "\n" not in message
    assert not [word for word in words if word not in message], message
