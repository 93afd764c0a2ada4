"""The app open to strangers: links, uploads, jobs, and the server that it runs in."""

import http.client
import os
import re
import signal
import socket
import subprocess
import sys
import time
import types
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import answer_cache
import guard
import jobs
import pytest
import show
import uploads
import worker
from hostile import NAMES
from one_line import one_line
from pages_read import APP, Opened
from streamlit.testing.v1 import AppTest
from test_escaping import texts_of

from medusa_sim.cli.app import allowed_hosts, main_script, streamlit_options
from medusa_sim.errors import DataError, SpecError, UsageError
from medusa_sim.models.named import load_model
from medusa_sim.outside import limits

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "server.md").read_text(encoding="utf-8")
OPTIONS = streamlit_options(main_script().parent / ".streamlit" / "config.toml")
_DIRECTIVE = re.compile(r"(?<!\\):[a-z]|://|\bwww\.[a-z]|@[\w-]+\.", re.IGNORECASE)


@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
def test_a_page_shows_a_name_as_text(name: str) -> None:
    written = show.escaped(name)
    assert not _DIRECTIVE.search(written)
    shown = "".join(texts_of(f"x {written} y"))
    assert "[" not in name or "[" in shown


@pytest.mark.parametrize("first", range(0, len(NAMES), 3))
def test_a_link_injects_nothing(opened: Opened, first: int) -> None:
    """Each name as a value of two parameters or as one of its own, three names a page."""
    gpu, drafter, name = (list(NAMES.values())[(first + i) % len(NAMES)] for i in range(3))
    page = opened("evidence", **{"gpu": gpu, "drafter": drafter, name: "x"})
    told = [line.value for line in (*page.warning, *page.error)]
    assert told
    assert not [line for line in told if _DIRECTIVE.search(line)]
    for line in told:
        texts_of(f"x {line}")  # no mark of any kind


@pytest.mark.parametrize(
    "model", ["/etc", "/nonexist", "docs", "tests", "a\0b", "../x/config.json", *NAMES.values()]
)
def test_a_model_of_a_link_is_not_looked_for_on_the_disk(monkeypatch: Any, model: str) -> None:
    def refuse(*given: Any, **named: Any) -> None:
        raise AssertionError("looked")

    for name in ("exists", "isfile", "isdir"):
        monkeypatch.setattr(os.path, name, refuse)
    with pytest.raises(SpecError):
        load_model(model, on_disk=False)


@pytest.mark.parametrize("query", ["embed-options", "embed_options", "embed", "a\0b", "_", ""])
def test_odd_parameters_show_no_traceback(query: str) -> None:
    page = AppTest.from_file(str(APP / "main.py"), default_timeout=600)
    page.query_params[query] = "x"
    page.run()
    assert not page.exception
    assert not [error for error in page.error if error.icon == show.FAULT]


def test_uploads_are_counted() -> None:
    storage: dict[str, dict[str, Any]] = {}

    def add_file(session_id: str, file: Any) -> None:
        storage.setdefault(session_id, {})[file.file_id] = file

    def remove_file(session_id: str, file_id: str) -> None:
        storage[session_id].pop(file_id)

    manager = types.SimpleNamespace(file_storage=storage, add_file=add_file, remove_file=remove_file)
    guard.counted(manager)
    guard.counted(manager)
    for number in range(50):
        manager.add_file(session_id="a", file=types.SimpleNamespace(file_id=f"{number}", data=b"x" * 1_000))
    assert list(storage["a"]) == [f"{number}" for number in range(50 - guard.MOST_FILES, 50)]
    from starlette.exceptions import HTTPException

    large = b"x" * (guard.MOST_BYTES // 4)
    for number in range(3):
        manager.add_file(session_id=f"{number}", file=types.SimpleNamespace(file_id="f", data=large))
    with pytest.raises(HTTPException, match="413"):
        manager.add_file(session_id="4", file=types.SimpleNamespace(file_id="f", data=large))


def test_an_upload_is_no_file(monkeypatch: pytest.MonkeyPatch) -> None:
    import tempfile

    monkeypatch.setattr(tempfile, "mkdtemp", None)
    monkeypatch.setattr(tempfile, "mkstemp", None)
    content = (ROOT / "docs" / "example_config.json").read_bytes()
    assert uploads.model_bytes("config.json", content) == content
    with pytest.raises(DataError, match=f"at most {limits.CONFIG_BYTES:,}"):
        uploads.model_bytes("config.json", b"x" * (limits.CONFIG_BYTES + 1))


def slept(seconds: float, *, advance: Any) -> float:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        advance(1, 2)
    return seconds


def refused(*, advance: Any) -> None:
    raise UsageError("no")


def memory(size: int, *, advance: Any) -> int:
    return len(bytearray(size))


def where(*, advance: Any) -> tuple[str, int]:
    return os.environ.get("MEDUSA_SIM_DATA_DIR", ""), os.nice(0)


def test_a_job_tells_returns_and_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MEDUSA_SIM_DATA_DIR", "/own")
    told: list[tuple[int, int]] = []
    watch = jobs.Watch(lambda *at: told.append(at), lambda line: None)
    assert jobs.run(partial(slept, 1.0), watch, session="a") == 1.0
    assert (1, 2) in told
    with pytest.raises(UsageError, match=r"^no$"):
        jobs.run(refused, session="a")
    folder, nice = jobs.run(where, session="a")
    assert folder == "/own"
    assert nice >= 10
    monkeypatch.delenv("MEDUSA_SIM_DATA_DIR")
    assert jobs.run(where, session="a")[0] == ""


@pytest.mark.parametrize(
    ("job", "most_s", "told"),
    [
        (partial(slept, 60.0), 1.0, "of a processor"),
        (partial(memory, worker.MOST_BYTES), 30.0, "more memory"),
    ],
)
def test_a_job_that_takes_too_much_is_ended_in_one_line(job: Any, most_s: float, told: str) -> None:
    with one_line(UsageError, match=told):
        jobs.run(job, session="a", most_s=most_s)


def test_a_job_whose_page_has_gone_is_ended() -> None:
    class Gone(BaseException):
        """As Streamlit stops a page."""

    def gone(done: int, total: int) -> None:
        raise Gone

    with pytest.raises(Gone):
        jobs.run(partial(slept, 60.0), jobs.Watch(gone, lambda line: None), session="a")
    ticket = jobs.QUEUE.enter("b")
    assert jobs.QUEUE.ahead_of(ticket) == 0
    jobs.QUEUE.leave(ticket)


def test_two_at_once_in_the_order_in_which_they_came_a_sessions_second_last() -> None:
    queue = jobs.Queue(2)
    first, again, second, third = (queue.enter(name) for name in ("a", "a", "b", "c"))
    assert [queue.ahead_of(ticket) for ticket in (first, again, second, third)] == [0, 2, 0, 1]
    queue.leave(first)
    assert [queue.ahead_of(ticket) for ticket in (again, second, third)] == [0, 0, 1]
    queue.leave(second)
    assert queue.ahead_of(third) == 0
    alone = jobs.Queue(2)
    assert [alone.ahead_of(alone.enter("a")) for _ in range(3)] == [0, 0, 1]


def both_running(folder: str, name: str, *, advance: Any) -> str:
    """Ends when the other has begun, too."""
    Path(folder, name).touch()
    while len(list(Path(folder).iterdir())) < jobs.AT_ONCE:
        advance(0, 1)
        time.sleep(0.01)
    return name


def test_a_search_has_as_many_jobs_at_once_as_there_are_processes(tmp_path: Path) -> None:
    names = [f"{n}" for n in range(jobs.AT_ONCE)]
    told: list[tuple[int, int]] = []

    def answer(name: str, watch: jobs.Watch) -> str:
        return jobs.run(partial(both_running, str(tmp_path), name), watch, session="a", most_s=30.0)

    watch = jobs.Watch(lambda *at: told.append(at), lambda line: None)
    assert dict(jobs.as_completed(names, answer, watch)) == {name: name for name in names}
    assert told


def test_a_search_whose_page_has_gone_ends_its_jobs() -> None:
    class Gone(BaseException):
        """As Streamlit stops a page."""

    def gone(done: int, total: int) -> None:
        raise Gone

    def answer(name: str, watch: jobs.Watch) -> float:
        return jobs.run(partial(slept, job_s), watch, session="a")

    job_s, begun = 600.0, time.monotonic()
    with pytest.raises(Gone):
        list(jobs.as_completed(("1", "2", "3"), answer, jobs.Watch(gone, lambda line: None)))
    assert time.monotonic() - begun < job_s / 2  # processes begin slowly on a machine that others use
    assert jobs.QUEUE.running == 0


def test_who_waits_is_shown() -> None:
    tickets = [jobs.QUEUE.enter(f"other {n}") for n in range(jobs.AT_ONCE)]
    told: list[str] = []

    def waiting(line: str) -> None:
        told.append(line)
        if len(told) == 2:
            for ticket in tickets:
                jobs.QUEUE.leave(ticket)

    assert jobs.run(partial(slept, 0.0), jobs.Watch(lambda *at: None, waiting), session="me") == 0.0
    assert "number 1 in line" in told[0]


@pytest.mark.parametrize(
    ("address", "hosts", "more"),
    [
        ("localhost", (), []), ("127.0.0.1", (), []), ("192.0.2.7", (), ["192.0.2.7"]),
        ("localhost", ("sim.example.com", "*.example.org"), ["sim.example.com", "*.example.org"]),
    ],
)  # fmt: skip
def test_the_app_answers_to_names_that_it_knows(
    address: str, hosts: tuple[str, ...], more: list[str]
) -> None:
    assert allowed_hosts(OPTIONS["server.allowedHosts"], address, hosts) == [
        *OPTIONS["server.allowedHosts"],
        *more,
    ]
    assert socket.gethostname() in allowed_hosts([], "0.0.0.0", ())  # noqa: S104
    for wrong in ("*", "a b", "", "https://x", "x" * 300):
        with one_line(UsageError, match="name such as"):
            allowed_hosts([], "localhost", (wrong,))


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


WAYS = {
    "medusa-sim app": ("-m", "medusa_sim", "app", "--no-browser", "--port"),
    "streamlit run": (
        "-m", "streamlit", "run", str(APP / "main.py"), "--server.headless", "true", "--server.port",
    ),
}  # fmt: skip


@contextmanager
def served(way: str, tmp_path: Path) -> Iterator[int]:
    port = free_port()
    process = subprocess.Popen(
        [sys.executable, *WAYS[way], str(port)], cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        for _ in range(240):
            with suppress(OSError), urlopen(f"http://127.0.0.1:{port}/_stcore/health", timeout=5) as answer:
                assert answer.read() == b"ok"
                break
            time.sleep(0.25)
        yield port
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(30)


def handshake(port: int, **headers: str) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    own = {"Upgrade": "websocket", "Connection": "Upgrade", "Sec-WebSocket-Version": "13",
           "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ=="}  # fmt: skip
    connection.request("GET", "/_stcore/stream", headers={**own, **headers})
    status = connection.getresponse().status
    connection.close()
    return status


def listeners(port: int) -> set[str]:
    """Addresses that a port of this machine is open on, as the kernel writes them."""
    lines = [
        line.split()
        for name in ("tcp", "tcp6")
        for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]
    ]
    return {
        of[1].partition(":")[0] for of in lines if of[3] == "0A" and int(of[1].partition(":")[2], 16) == port
    }


LOOPBACK = {"0100007F", "00000000000000000000000001000000"}


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="reads Linux's list of sockets")
@pytest.mark.parametrize("way", WAYS)
def test_either_way_of_starting_lets_this_machine_in_alone(way: str, tmp_path: Path) -> None:
    with served(way, tmp_path) as port:
        found = listeners(port)
        assert found
        assert found <= LOOPBACK
        assert handshake(port, Host=f"localhost:{port}") == 101
        assert handshake(port, Host=f"evil.example:{port}") == 403
        assert handshake(port, Host=f"localhost:{port}", Origin="https://evil.example") == 403
    assert not list(tmp_path.iterdir())


def test_the_page_on_running_it_tells_the_truth() -> None:
    numbers = {
        "processor": f"{worker.MOST_S:.0f} s of a processor, {worker.MOST_BYTES >> 30} GB",
        "kept": f"{answer_cache.KEPT_BYTES / 1e6:.0f} MB, and {answer_cache.LONG_BYTES / 1e6:.0f} MB of "
        "those that took long",
        "config": f"{limits.CONFIG_BYTES / 1e6:.0f} MB for a config.json",
        "header": f"the first {limits.SENT_HEADER_BYTES / 1e6:.0f} MB of a GGUF file",
        "uploads": f"{limits.UPLOAD_BYTES / 1e6:.0f} MB otherwise",
        "held": f"six of a session, {guard.MOST_BYTES / 1e6:.0f} MB in all",
    }  # fmt: skip
    assert not [told for told in numbers.values() if told not in PAGE]
    assert (guard.MOST_FILES, jobs.AT_ONCE) == (6, 2)
    assert OPTIONS["server.maxUploadSize"] * 1e6 == limits.SENT_HEADER_BYTES
    assert OPTIONS["server.address"] == "localhost"
    assert OPTIONS["server.allowedHosts"] == ["localhost", "127.0.0.1", "::1"]
    assert all(f"`{host}`" in PAGE for host in OPTIONS["server.allowedHosts"])
    sent = ("browser.gatherUsageStats", "server.showEmailPrompt")
    assert [OPTIONS[name] for name in sent] == [False, False]
    assert OPTIONS["server.fileWatcherType"] == "none"
    assert OPTIONS["client.showErrorDetails"] == "none"


def test_streamlit_asks_no_other_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    from streamlit import net_util
    from streamlit.web.server.server_util import is_url_from_allowed_origins

    asked: list[str] = []
    monkeypatch.setattr(net_util, "_make_blocking_http_get", lambda url, **_: asked.append(url))
    guard.stand()
    assert not is_url_from_allowed_origins("https://evil.example")
    assert asked == []
