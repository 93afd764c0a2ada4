"""`medusa-sim app`: the app in a browser, on this machine."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import click

from medusa_sim.cli.group import examples
from medusa_sim.errors import UsageError

_LOCAL = ("localhost", "127.0.0.1", "::1")


@click.command(epilog=examples("medusa-sim app", "medusa-sim app --port 8600 --no-browser"))
@click.option("--port", type=click.IntRange(1, 65535), default=8501, show_default=True, help="Port.")
@click.option(
    "--address",
    default="localhost",
    show_default=True,
    help="Address to listen on; anything but localhost lets others on the network in.",
)
@click.option("--browser/--no-browser", default=True, show_default=True, help="Open a browser window.")
def app(port: int, address: str, *, browser: bool) -> None:
    """Explore in a browser: choose, roofline, trees, comparisons, validation, sources.

    Needs Streamlit (pip install 'medusa-sim[app]'). Nothing leaves this machine. Ctrl-C ends it.
    """
    if importlib.util.find_spec("streamlit") is None:
        raise UsageError("the app needs Streamlit, which is not installed; pip install 'medusa-sim[app]'")
    if address not in _LOCAL:
        click.echo(
            f"warning: everyone who reaches {address}:{port} can use the app; it has no log-in", err=True
        )
    from streamlit.web import bootstrap

    options = {
        "server.port": port,
        "server.address": address,
        "server.headless": not browser,
        "server.fileWatcherType": "none",
        "server.maxUploadSize": 2,
        "browser.gatherUsageStats": False,
        "client.toolbarMode": "minimal",
        "client.showErrorLinks": False,
    }
    bootstrap.load_config_options({name.replace(".", "_"): value for name, value in options.items()})
    bootstrap.run(str(main_script()), False, sys.argv[1:], {})


def main_script() -> Path:
    """The app's entry point, in a checkout or in the wheel. Raises UsageError where it is missing."""
    package = Path(__file__).resolve().parents[1]
    for path in (package / "_app" / "main.py", package.parent / "app" / "main.py"):
        if path.is_file():
            return path
    raise UsageError("the app's files are missing: the installation is incomplete; install medusa-sim again")
