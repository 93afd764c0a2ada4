"""What the app changes of the server that it runs in, whichever way it was started; done once."""

from __future__ import annotations

from typing import Any

from streamlit import runtime

from medusa_sim.cli.app import ask_nobody

MOST_FILES = 6
"""Uploads of a session: its pages have three places for one; the oldest goes first."""
MOST_BYTES = 128_000_000
"""Most bytes of the uploads of all sessions together."""


def stand() -> None:
    """Count uploads, and ask no other machine for anything."""
    ask_nobody()
    if runtime.exists():
        counted(runtime.get_instance().uploaded_file_mgr)


def counted(manager: Any) -> None:
    """Limit the files of a session, of which the oldest go, and the bytes of all sessions."""
    if getattr(manager, "is_counted", False):
        return
    take = manager.add_file

    def add_file(session_id: str, file: Any) -> None:
        from starlette.exceptions import HTTPException

        of_session = manager.file_storage.get(session_id, {})
        while len(of_session) >= MOST_FILES and file.file_id not in of_session:
            manager.remove_file(session_id, next(iter(of_session)))
        held = [each for files in list(manager.file_storage.values()) for each in list(files.values())]
        if sum(len(each.data) for each in held) + len(file.data) > MOST_BYTES:
            raise HTTPException(status_code=413, detail="the server holds as many files as it may")
        take(session_id=session_id, file=file)

    manager.add_file, manager.is_counted = add_file, True
