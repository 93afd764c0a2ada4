"""`medusa-sim app`: the app in a browser, on this machine."""

from __future__ import annotations

import contextlib
import importlib.util
import re
import socket
import sys
import threading
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from medusa_sim.cli import options as take
from medusa_sim.cli import say
from medusa_sim.cli.values import Whole
from medusa_sim.errors import UsageError, install, shown

_HOST = re.compile(r"(\*\.)?[A-Za-z0-9:][A-Za-z0-9.:-]{0,252}")
_LOCAL = ("localhost", "127.0.0.1", "::1")


@take.command("medusa-sim app", "medusa-sim app --port 8600 --no-browser")
@click.option("--port", default=8501, show_default=True, type=Whole(1, 65535), help="Port.")
@click.option(
    "--address",
    default="localhost",
    show_default=True,
    help="Address to listen on; anything but localhost lets others on the network in.",
)
@click.option(
    "--host",
    "hosts",
    multiple=True,
    help="Name that others reach it by, a proxy's among them; again for more.",
)
@click.option("--browser/--no-browser", default=True, show_default=True, help="Open a browser window.")
def app(*, port: int, address: str, hosts: tuple[str, ...], browser: bool) -> None:
    """Explore in a browser: the answer, under load, which GPU, evidence.

    Needs Streamlit (pip install '.[app]' in the project's folder). Nothing leaves this machine.
    Ctrl-C ends it.
    """
    if importlib.util.find_spec("streamlit") is None:
        raise UsageError(f"the app needs Streamlit, which is not installed; {install('app')}")
    check_address(address, port)
    script = main_script()
    options = streamlit_options(script.parent / ".streamlit" / "config.toml")
    allowed = allowed_hosts(options["server.allowedHosts"], address, hosts)
    if address not in _LOCAL:
        names = ", ".join(name for name in allowed if name not in _LOCAL)
        say(
            f"warning: everyone who reaches {address}:{port} as {names} can use the app; it has no log-in "
            "(docs/server.md: behind a proxy that has one)"
        )
    options |= {
        "server.port": port,
        "server.allowedHosts": allowed,
        "server.address": address,
        "server.headless": not browser,
    }
    leave_out_here()
    from streamlit.web import bootstrap

    ask_nobody()
    say(f"medusa-sim app: http://{address}:{port} (Ctrl-C ends it)")
    bootstrap.load_config_options({name.replace(".", "_"): value for name, value in options.items()})
    threading.Thread(target=_warm_up, args=(script.parent,), daemon=True).start()
    bootstrap.run(str(script), False, sys.argv[1:], {})


def _warm_up(folder: Path) -> None:
    """Import what the first page needs, and answer it, while the server and the browser start."""
    sys.path.insert(0, str(folder))
    importlib.import_module("warm").first_page()


def allowed_hosts(known: Sequence[str], address: str, hosts: Sequence[str]) -> list[str]:
    """Names under which the app answers: no page of another site reaches it under a name of its own.

    address: what it listens on; of all addresses, this machine's name and addresses. hosts: others by which
    it is reached. Raises UsageError for what is no name of a host.
    """
    wrong = next((name for name in hosts if not _HOST.fullmatch(name)), None)
    if wrong is not None:
        raise UsageError(f"--host {shown(wrong)}: a name such as sim.example.com or *.example.com is needed")
    here = [address]
    if address in ("", "0.0.0.0", "::"):  # noqa: S104
        here = [socket.gethostname()]
        with contextlib.suppress(OSError):
            here += [str(found[4][0]) for found in socket.getaddrinfo(here[0], None)]
    return list(dict.fromkeys((*known, *here, *hosts)))


def ask_nobody() -> None:
    """Keep Streamlit from asking another machine which address this one has, for a page of another site."""
    from streamlit import net_util

    net_util.get_external_ip = lambda: None


def leave_out_here() -> None:
    """Take the folder that the app is started in off the path of modules, as `python -P` does.

    `python -m medusa_sim app` puts it first: a file html.py that lies there would be taken for the library's.
    """
    if not sys.flags.safe_path and sys.path and sys.path[0] in ("", str(Path.cwd())):
        del sys.path[0]


def check_address(address: str, port: int) -> None:
    """Refuse at once an address that is not this machine's, or a port that is taken. Raises UsageError."""
    try:
        family, kind, _, _, place = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind) as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(place)
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UsageError(
            f"cannot listen on {shown(address)}, port {port} ({reason}); give an address of this machine "
            "with --address, or another --port"
        ) from error


def streamlit_options(path: Path) -> dict[str, Any]:
    """`{"server.maxUploadSize": 2, ...}`: the file that `streamlit run app/main.py` finds by itself.

    Raises UsageError where the file is missing.
    """
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UsageError(
            f"{path} is missing: the installation is incomplete; install medusa-sim again"
        ) from None
    return dict(_flat(tables))


def _flat(table: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in table.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{before}{name}.")
        else:
            yield f"{before}{name}", value


def main_script() -> Path:
    """The app's entry point, in a checkout or in the wheel. Raises UsageError where it is missing."""
    package = Path(__file__).resolve().parents[1]
    for path in (package / "_app" / "main.py", package.parent / "app" / "main.py"):
        if path.is_file():
            return path
    raise UsageError("the app's files are missing: the installation is incomplete; install medusa-sim again")
