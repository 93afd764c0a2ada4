"""Seconds from opening the app to its first answer, and from a slider move to the new one, in Chromium.

Beside them the seconds of CPU that the server took for each: those hold on a busy machine too. Openings
alternate with those of a page of Streamlit that says "hello" alone, which no page of its can undercut.

    python benchmarks/app_feel.py [repeats]
    python benchmarks/app_feel.py --pictures docs/images

Asked: 2 s and 300 ms, medians. The server has served one page before; every opening is a fresh window.
Needs Chromium and its driver (`make test-browser` installs them). --pictures writes screenshots instead: the
page Answer, and one sheet a theme with every page as wide as a screen and as a phone.
"""

from __future__ import annotations

import io
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from common.script import command_line
from PIL import Image

try:
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.keys import Keys
    from selenium.webdriver.remote.webelement import WebElement
    from selenium.webdriver.support.ui import WebDriverWait
except ModuleNotFoundError:
    raise SystemExit("Error: selenium is not installed; `make test-browser` installs it") from None

FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--hide-scrollbars",
    "--disable-dev-shm-usage",
)  # fmt: skip
CHROMIUM, DRIVER = (shutil.which(name) or "" for name in ("chromium", "chromedriver"))
HELLO = "import streamlit as st; st.title('hello')"
SLIDER = "input[type=range][aria-label^='Requests at once']"
CONTEXT = "input[aria-label='Context (tokens)']"
ANSWERED = "return document.querySelectorAll('[data-testid=stMetricValue]').length >= 5"
WATCH = """
const told = '[data-testid=stAlert], [data-testid=stCaptionContainer]'
const verdict = () => [...document.querySelectorAll(told)].map(e => e.textContent).join()
const state = () => document.querySelector('[data-testid=stApp]').dataset.testScriptState
const before = verdict(), at = window.at = {}
const moved = () => { at.moved = performance.now() }
document.addEventListener('keydown', moved, {once: true, capture: true})
document.addEventListener('mousedown', moved, {once: true, capture: true})
const timer = setInterval(() => {
  if (!at.moved) return
  if (!at.answered && verdict() !== before) at.answered = performance.now()
  if (at.answered && state() === 'notRunning') { at.drawn = performance.now(); clearInterval(timer) }
}, 2)
"""
"""Times taken in the page itself: the verdict names the batch, a caption the context."""
IDLE = "return document.querySelector('[data-testid=stApp]').dataset.testScriptState === 'notRunning'"
DRAWN = "return !document.querySelector('[data-testid=stSkeleton]')"
_EAGLE = "gpu=h100-sxm&model=llama-3.1-8b&drafter=eagle3"
_PAPERS = "gpu=a100-80gb-pcie&model=vicuna-7b&drafter=medusa"
PAGES = {
    "answer": f"?{_EAGLE}&batch=4",
    "load": f"load?{_EAGLE}&tpot=12",
    "compare": f"which-gpu?{_EAGLE}",
    "own": "own",
    "tree": f"tree?size=32&{_PAPERS}",
    "evidence": f"evidence?{_PAPERS}",
}
SCREEN, PHONE = 1280, 390
SHEET_HEIGHT = 1500
"""Of what a sheet shows of a page, in its own pixels: the rest is cut off below."""


@contextmanager
def server(script: str = "") -> Iterator[tuple[str, int]]:
    """A running app, as `medusa-sim app` starts it: its address and process. It must leave no traceback.

    script: another page instead of the app's.
    """
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    code = "from medusa_sim.cli import main; main()"
    with tempfile.TemporaryDirectory() as folder, (Path(folder) / "log").open("w+") as log:
        environment = {**os.environ, "MEDUSA_SIM_DATA_DIR": f"{folder}/none", "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-c", code, "app", "--no-browser", "--port", str(port)]
        if script:
            (page := Path(folder) / "page.py").write_text(script, encoding="utf-8")
            options = [f"--server.port={port}", "--server.headless=true", "--browser.gatherUsageStats=false"]
            command = [sys.executable, "-m", "streamlit", "run", str(page), *options]
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log, cwd=folder)
        address = f"http://localhost:{port}"
        try:
            for _ in range(200):
                try:
                    urllib.request.urlopen(f"{address}/_stcore/health", timeout=1).close()  # noqa: S310
                    break
                except OSError:
                    time.sleep(0.1)
            yield address, process.pid
        finally:
            process.terminate()
            process.wait(timeout=20)
        log.seek(0)
        told = log.read()
        assert "Traceback" not in told, told


@contextmanager
def window(
    width: int = SCREEN, height: int = 1000, *, dark: bool = False, downloads: Path | None = None
) -> Iterator[webdriver.Chrome]:
    """A fresh browser window, and the folder of its downloads."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        options = webdriver.ChromeOptions()
        for flag in (*FLAGS, f"--user-data-dir={profile}", f"--window-size={width},{height}"):
            options.add_argument(flag)
        options.binary_location = CHROMIUM
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        # Without a person's click Chromium asks before a second download.
        asked = {"profile.default_content_setting_values.automatic_downloads": 1}
        options.add_experimental_option(
            "prefs", {"download.default_directory": str(downloads or profile), **asked}
        )
        driver = webdriver.Chrome(options=options, service=Service(DRIVER))
        try:
            resize(driver, width, height, dark=dark)
            yield driver
        finally:
            driver.quit()


def resize(driver: webdriver.Chrome, width: int, height: int, *, dark: bool = False) -> None:
    """Give a window a screen of that size, and a theme."""
    metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})


def until(driver: webdriver.Chrome, script: str) -> None:
    """Wait for a script to say true, looking every 5 ms."""
    WebDriverWait(driver, 60, poll_frequency=0.005).until(lambda d: d.execute_script(script))


def cpu_s(process: int) -> float:
    """Seconds of CPU that a process has taken, its threads included."""
    fields = Path(f"/proc/{process}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def first_answer_s(address: str, process: int, answered: str = ANSWERED) -> tuple[float, float]:
    """From asking for the page to the metrics on it; CPU of the server until the page is drawn."""
    with window() as driver:
        began, before = time.monotonic(), cpu_s(process)
        driver.get(address)
        until(driver, answered)
        taken = time.monotonic() - began
        until(driver, IDLE)
        time.sleep(0.5)
        return taken, cpu_s(process) - before


Times = list[tuple[float, float, float]]
"""Seconds to a changed answer, to the page drawn and idle, and of the server's CPU."""


def slider_s(address: str, process: int, repeats: int) -> tuple[Times, Times]:
    """From a key on the batch slider, and from Enter behind another context in the bar."""
    with window() as driver:
        driver.get(f"{address}/?seq=1024")
        for done in (ANSWERED, IDLE, DRAWN, f"return !!document.querySelector({SLIDER!r})"):
            until(driver, done)
        handle = driver.find_element("css selector", SLIDER)
        right = partial(type_into, driver, handle, Keys.ARROW_RIGHT)
        sliders = [_changed_s(driver, process, right) for _ in range(repeats)]
        driver.find_element("css selector", ".st-key-bar_more summary").click()
        until(driver, f"return document.querySelector({CONTEXT!r})?.checkVisibility()")
        context = driver.find_element("css selector", CONTEXT)
        fields = []
        for longer in range(1, repeats + 1):
            context.send_keys(Keys.CONTROL, "a", Keys.NULL, f"{1024 + longer}")
            fields.append(_changed_s(driver, process, partial(context.send_keys, Keys.ENTER)))
        return sliders, fields


def type_into(driver: webdriver.Chrome, element: WebElement, keys: str) -> None:
    """Keys to what has the focus: `send_keys` refuses the input of a slider, which lies under its thumb."""
    driver.execute_script("arguments[0].focus()", element)
    ActionChains(driver).send_keys(keys).perform()


def _changed_s(driver: webdriver.Chrome, process: int, act: Callable[[], None]) -> tuple[float, float, float]:
    before = cpu_s(process)
    driver.execute_script(WATCH)
    act()
    until(driver, "return !!window.at.drawn")
    times = driver.execute_script("return window.at")
    time.sleep(0.5)
    taken = cpu_s(process) - before
    return (times["answered"] - times["moved"]) / 1e3, (times["drawn"] - times["moved"]) / 1e3, taken


def pictures(address: str, folder: Path) -> None:
    """`answer.png`, and `app-light.png` and `app-dark.png` with every page at both widths."""
    folder.mkdir(parents=True, exist_ok=True)
    whole = _picture(address, PAGES["answer"], SCREEN, 1900, dark=False)
    whole.quantize(256, dither=Image.Dither.NONE).save(folder / "answer.png", optimize=True)
    for theme in ("light", "dark"):
        high, widths = SHEET_HEIGHT * 2 // 5, (SCREEN * 2 // 5, PHONE * 2 // 5)
        wide = sum(widths) + 24
        sheet = Image.new("RGB", (3 * wide, 2 * (high + 16)), "#8a8a8a")
        for i, page in enumerate(PAGES.values()):
            left, top = i % 3 * wide + 8, i // 3 * (high + 16) + 8
            for width, small in zip((SCREEN, PHONE), widths, strict=True):
                shown = _picture(address, page, width, SHEET_HEIGHT, dark=theme == "dark")
                sheet.paste(shown.resize((small, high), Image.Resampling.LANCZOS), (left, top))
                left += small + 8
        sheet.quantize(256, dither=Image.Dither.NONE).save(folder / f"app-{theme}.png", optimize=True)
    for path in sorted(folder.glob("*.png")):
        print(f"{path}: {path.stat().st_size / 1e3:.0f} kB")


def _picture(address: str, path: str, width: int, height: int, *, dark: bool) -> Image.Image:
    """One page as it looks once it is drawn."""
    with window(width, height, dark=dark) as driver:
        driver.get(f"{address}/{path}")
        until(driver, "return !!document.querySelector('h1')")
        until(driver, IDLE)
        until(driver, DRAWN)
        time.sleep(1)
        return Image.open(io.BytesIO(driver.get_screenshot_as_png())).convert("RGB")


def main() -> None:
    """Time, or take pictures."""
    options = command_line(__doc__)
    options.add_argument("repeats", type=int, nargs="?", default=7, help="openings and moves of each kind")
    options.add_argument("--pictures", type=Path, metavar="DIR")
    asked = options.parse_args()
    if not CHROMIUM or not DRIVER:
        raise SystemExit(
            "Error: chromium or chromedriver is not installed; `make test-browser` installs both"
        )
    with server() as (address, process):
        if asked.pictures is not None:
            pictures(address, asked.pictures)
            return
        cold = first_answer_s(address, process)
        with server(HELLO) as (bare, other):
            titled = "return !!document.querySelector('h1')"
            first_answer_s(bare, other, titled)
            pairs = [
                (*first_answer_s(address, process), *first_answer_s(bare, other, titled))
                for _ in range(asked.repeats)
            ]
        sliders, fields = slider_s(address, process, asked.repeats)
    told, cpu, floor, floor_cpu = (statistics.median(each) for each in zip(*pairs, strict=True))
    print(
        f"first answer: {told:.2f} s, median of {asked.repeats} (2 asked), {cpu:.2f} s of the server's CPU; "
        f"{cold[0]:.2f} s the very first; a page that says hello: {floor:.2f} s, {floor_cpu:.2f} s of CPU"
    )
    for name, times in (("batch slider", sliders), ("context field, a new search each", fields)):
        whats = ("answer changed", "all drawn", "the server's CPU")
        for what, taken in zip(whats, zip(*times, strict=True), strict=True):
            ms = [1e3 * each for each in taken]
            print(f"{name}, {what}: {statistics.median(ms):.0f} ms median, worst {max(ms):.0f}")


if __name__ == "__main__":
    main()
