"""The app in a real browser: Chromium, driven by Selenium, against a server of its own."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("streamlit")
pytest.importorskip("selenium")

from selenium import webdriver
from selenium.common.exceptions import StaleElementReferenceException
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import WebDriverWait

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--disable-dev-shm-usage",
)  # fmt: skip
WAIT_S = 20.0


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "browser" in str(item.path):
            item.add_marker(pytest.mark.browser)


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of a running app, as `medusa-sim app` starts it."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    folder = tmp_path_factory.mktemp("app")
    environment = {**os.environ, "MEDUSA_SIM_DATA_DIR": str(folder / "own"), "OMP_NUM_THREADS": "1"}
    command = [
        sys.executable,
        "-c",
        "from medusa_sim.cli import main; main()",
        "app",
        "--no-browser",
        "--port",
        str(port),
    ]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=environment, cwd=folder)
        address = f"http://localhost:{port}"
        for _ in range(200):
            try:
                urllib.request.urlopen(f"{address}/_stcore/health", timeout=1).close()  # noqa: S310  # our own
                break
            except OSError:
                time.sleep(0.1)
        yield address
        process.terminate()
        process.wait(timeout=20)
    assert "Traceback" not in (folder / "log").read_text()


class Browser:
    """A window with what tests ask of it."""

    def __init__(self, driver: webdriver.Chrome, server: str, downloads: Path) -> None:
        self.driver, self.server, self.downloads = driver, server, downloads

    def open(self, path: str = "/") -> None:
        self.driver.get(self.server + path)
        self.settled()

    def settled(self) -> None:
        """Until the page has a title and no run is under way."""
        self.until("return !!document.querySelector('h1')")
        self.until(
            "return document.querySelector('[data-testid=stApp]').dataset.testScriptState === 'notRunning'"
        )

    def answer(self) -> dict[str, str]:
        """The metrics of the first page, once all of them are drawn."""
        self.until("return document.querySelectorAll('[data-testid=stMetricValue]').length >= 5")
        self.settled()
        return self.metrics()

    def find(self, selector: str) -> WebElement:
        """The first such element, as soon as it is there; parts of a page come after its script has ended."""
        wait = WebDriverWait(self.driver, WAIT_S, poll_frequency=0.02)
        return wait.until(lambda d: next(iter(d.find_elements("css selector", selector)), None))

    def press(self, selector: str, told: str) -> None:
        """The first such button that says this."""

        def found() -> WebElement | None:
            buttons = self.driver.find_elements("css selector", selector)
            return next((each for each in buttons if told in each.text), None)

        self.until_true(lambda: found() is not None)
        self.driver.execute_script(
            "arguments[0].scrollIntoView({block: 'center'}); arguments[0].click()", found()
        )

    def until(self, script: str) -> Any:
        return WebDriverWait(self.driver, WAIT_S, poll_frequency=0.02).until(
            lambda d: d.execute_script(script)
        )

    def until_true(self, holds: Callable[[], bool]) -> None:
        """Until that holds; parts of a page that are replaced while it looks count as not yet."""
        wait = WebDriverWait(
            self.driver, WAIT_S, poll_frequency=0.02, ignored_exceptions=[StaleElementReferenceException]
        )
        wait.until(lambda _: holds())

    def text(self, selector: str) -> list[str]:
        return [each.text for each in self.driver.find_elements("css selector", selector)]

    def metrics(self) -> dict[str, str]:
        return {
            each.find_element("css selector", "[data-testid=stMetricLabel]").text: each.find_element(
                "css selector", "[data-testid=stMetricValue]"
            ).text
            for each in self.driver.find_elements("css selector", "[data-testid=stMetric]")
        }

    def errors(self) -> list[str]:
        """Console errors, but for Streamlit's own probing of where it is mounted."""
        return [
            entry["message"]
            for entry in self.driver.get_log("browser")
            if entry["level"] == "SEVERE" and "/_stcore/" not in entry["message"]
        ]

    def size(self, width: int, height: int, *, dark: bool = False) -> None:
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": scheme})


@pytest.fixture
def browser(server: str, tmp_path: Path) -> Iterator[Browser]:
    """A fresh window, 1280 px wide; downloads go to a folder of its own."""
    if CHROMIUM is None or DRIVER is None:
        pytest.skip("chromium and chromedriver are not installed (make test-browser installs them)")
    options = webdriver.ChromeOptions()
    for flag in (*FLAGS, f"--user-data-dir={tmp_path / 'profile'}"):
        options.add_argument(flag)
    options.binary_location = CHROMIUM
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    downloads = tmp_path / "downloads"
    downloads.mkdir()
    # Without a person's click Chromium asks before a second download.
    asked = {"profile.default_content_setting_values.automatic_downloads": 1}
    options.add_experimental_option("prefs", {"download.default_directory": str(downloads), **asked})
    driver = webdriver.Chrome(options=options, service=Service(DRIVER))
    found = Browser(driver, server, downloads)
    found.size(1280, 1000)
    yield found
    driver.quit()
