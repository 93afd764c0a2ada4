"""The app in a real browser: Chromium, driven by Selenium, against a server of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("streamlit")
pytest.importorskip("selenium")

import app_feel
from selenium import webdriver
from selenium.common.exceptions import StaleElementReferenceException
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import WebDriverWait

WAIT_S = 40.0
HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.browser)


@pytest.fixture(scope="session")
def server() -> Iterator[str]:
    """Address of a running app."""
    with app_feel.server() as (address, _):
        yield address


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
        app_feel.resize(self.driver, width, height, dark=dark)


@pytest.fixture
def browser(server: str, tmp_path: Path) -> Iterator[Browser]:
    """A fresh window, 1280 px wide; downloads go to a folder of its own."""
    if not app_feel.CHROMIUM or not app_feel.DRIVER:
        pytest.skip("chromium and chromedriver are not installed (make test-browser installs them)")
    (tmp_path / "downloads").mkdir()
    with app_feel.window(downloads=tmp_path / "downloads") as driver:
        yield Browser(driver, server, tmp_path / "downloads")
