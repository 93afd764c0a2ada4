"""What only a browser shows: pages draw, links reproduce them, files go in and out, the console is clean."""

from __future__ import annotations

import csv
import time
from pathlib import Path

import pytest

pytest.importorskip("selenium")

import app_feel
from conftest import Browser
from selenium.webdriver.common.keys import Keys

pytestmark = [pytest.mark.browser, pytest.mark.filterwarnings("ignore")]
PAGES = ("", "load", "tree", "which-gpu", "own", "evidence")


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.parametrize(("width", "dark"), [(1280, False), (390, True)])
def test_page_opens_and_fits(browser: Browser, page: str, width: int, dark: bool) -> None:
    browser.size(width, 900, dark=dark)
    browser.open(f"/{page}")
    assert browser.text("h1")[0]
    assert not browser.text("[data-testid=stException]")
    assert browser.errors() == []
    overflow = "return document.querySelector('[data-testid=stMain]').scrollWidth - window.innerWidth"
    assert browser.driver.execute_script(overflow) <= 0
    browser.until("return document.querySelectorAll('[data-testid=stVegaLiteChart] svg').length > 0")


@pytest.mark.parametrize(
    ("link", "title", "words"),
    [
        ("load?policy=schedule", "Under load", "schedule"),
        ("load?runtime=sglang&policy=schedule", "Under load", "sglang-0.5"),
        ("load?tpot-ms=30", "Under load", "30"),
        ("evidence?runtime=sglang", "How far to trust it", "sglang-0.5"),
        ("which-gpu?engine=sglang&cards=l40s", "Which GPU?", "sglang"),
        ("which-gpu?gpus=1&cards=l40s", "Which GPU?", "l40s"),
        ("evidence?runtime=sglang&kept=gpu%3Db200", "How far to trust it", "sglang-0.5"),
        ("tree?runtime=cuda-graph&seq=2000&drafter=medusa&model=vicuna-7b", "Candidate trees", "2000"),
    ],
)
def test_a_link_with_other_names_opens_its_own_page(
    browser: Browser, link: str, title: str, words: str
) -> None:
    browser.open(f"/{link}")
    browser.until_true(lambda: title in browser.text("h1"))
    browser.settled()
    assert not [line for line in browser.text("[data-testid=stAlert]") if "Ignored" in line]
    whole = browser.driver.execute_script(
        "return document.body.innerText + [...document.querySelectorAll('input')].map(e => e.value).join(' ')"
    )
    assert words in whole


@pytest.mark.parametrize("dark", [False, True])
def test_a_phone_shows_the_whole_answer(browser: Browser, dark: bool) -> None:
    """The headline names GPU and model; charts end within the screen; figures of the map do not overlap."""
    browser.size(390, 900, dark=dark)
    set_up = "gpu=a100-80gb-pcie&model=vicuna-7b&drafter=medusa"  # trees, so that the map is full
    browser.open(f"/?{set_up}&batch=4&look=map")
    browser.answer()
    headline = browser.text("[data-testid=stAlert]")[0]
    assert "vicuna-7b on a100-80gb-pcie" in headline
    browser.until("return document.querySelectorAll('[data-testid=stVegaLiteChart] svg').length >= 3")
    beyond = browser.driver.execute_script(
        "return [...document.querySelectorAll('[data-testid=stVegaLiteChart] svg text')]"
        ".filter(e => e.textContent && getComputedStyle(e).opacity > 0)"
        ".map(e => [e.textContent, e.getBoundingClientRect()])"
        ".filter(([, box]) => box.width && (box.right > innerWidth + 1 || box.left < -1)).map(([t]) => t)"
    )
    assert beyond == []
    overlaps = browser.driver.execute_script(
        "const cells = [...document.querySelectorAll('[data-testid=stVegaLiteChart] svg text')]"
        ".filter(e => /^[0-9]\\.[0-9]{2}$/.test(e.textContent)).map(e => e.getBoundingClientRect())\n"
        "return [cells.length, cells.filter((a, i) => cells.some((b, j) => j > i && a.left < b.right"
        " && b.left < a.right && a.top + 4 < b.bottom && b.top + 4 < a.bottom)).length]"
    )
    assert overlaps[0] > 50
    assert overlaps[1] == 0


@pytest.mark.parametrize("width", [1280, 390])
def test_tables_are_not_cut(browser: Browser, width: int) -> None:
    browser.size(width, 900)
    for page in ("", "load", "which-gpu", "evidence?gpu=a100-80gb-pcie", "evidence?view=numbers+in+use"):
        browser.open(f"/{page}")
        browser.until(
            "const tables = [...document.querySelectorAll('.numbers')]\n"
            "return tables.length > 0 && tables.every(e => e.scrollWidth <= e.clientWidth + 2)"
        )


def test_slider_moves_the_answer_and_the_link(browser: Browser) -> None:
    browser.open("/")
    before = browser.answer()
    batch = browser.find(app_feel.SLIDER)
    batch.send_keys(Keys.ARROW_RIGHT * 3)
    browser.until("return location.search.includes('batch=4')")
    browser.until_true(lambda: browser.metrics() != before)  # the link may change before the page does
    after = browser.answer()
    link = browser.driver.current_url
    browser.driver.get("about:blank")
    browser.driver.get(link)
    assert browser.answer() == after
    assert browser.errors() == []


def test_shared_inputs_stay_from_page_to_page(browser: Browser) -> None:
    browser.open("/?gpu=l40s&seq=2048")
    for name in ("Under load", "Which GPU?", "Evidence", "Answer"):
        links = browser.driver.find_elements("css selector", "[data-testid=stTopNavLink]")
        next(each for each in links if name in each.text).click()
        browser.until(f"return document.querySelector('[aria-current=page]')?.innerText.includes('{name}')")
        browser.settled()
        assert "l40s" in browser.find(".st-key-bar").get_attribute("innerHTML")
    assert browser.errors() == []


def test_a_bad_link_is_noted_and_the_page_stands(browser: Browser) -> None:
    browser.open("/?gpu=nope&batch=0&what=ever")
    note = " ".join(browser.text("[data-testid=stAlert]"))
    assert "gpu=nope" in note
    assert "batch=0" in note
    assert "what" in note
    assert browser.answer()["Speedup"].endswith("x")


def _downloaded(browser: Browser, suffix: str) -> Path:
    for _ in range(300):
        found = [path for path in browser.downloads.glob(f"*.{suffix}") if path.stat().st_size]
        if found:
            return found[0]
        time.sleep(0.1)
    raise AssertionError(f"no {suffix} came: {list(browser.downloads.iterdir())}")


def test_downloads(browser: Browser) -> None:
    browser.open("/?batch_max=8")
    browser.answer()
    browser.press("[data-testid=stPopover] button", "Command, files")
    browser.until("return document.querySelectorAll('[data-testid=stDownloadButton] button').length >= 3")
    for suffix in ("CSV", "PNG", "SVG"):
        buttons = browser.driver.find_elements("css selector", "[data-testid=stDownloadButton] button")
        button = next(each for each in buttons if each.text.strip().endswith(suffix))
        browser.driver.execute_script(
            "arguments[0].scrollIntoView({block: 'center'}); arguments[0].click()", button
        )
        path = _downloaded(browser, suffix.lower())
        if suffix == "CSV":
            rows = list(csv.DictReader(path.read_text().splitlines()))
            assert [int(row["batch"]) for row in rows] == list(range(1, 9))
        elif suffix == "PNG":
            assert path.read_bytes().startswith(b"\x89PNG")
        else:
            assert path.read_text().startswith("<svg")


def test_a_bad_config_is_one_line_and_a_good_one_answers(browser: Browser, tmp_path: Path) -> None:
    browser.open("/?model=my+config.json")
    bad = tmp_path / "bad.json"
    bad.write_text("{", encoding="utf-8")
    upload = "[data-testid=stFileUploader] input[type=file]"
    browser.find(upload).send_keys(str(bad))
    browser.until(
        "return [...document.querySelectorAll('[data-testid=stAlert]')].some(e => /json/.test(e.innerText))"
    )
    assert not browser.text("[data-testid=stException]")
    good = Path(__file__).resolve().parents[2] / "docs" / "example_config.json"
    browser.open("/?model=my+config.json")
    browser.find(upload).send_keys(str(good))
    browser.until("return document.querySelectorAll('[data-testid=stMetricValue]').length >= 5")
    assert browser.errors() == []


def test_nothing_is_fetched_from_elsewhere(browser: Browser) -> None:
    for page in PAGES:
        browser.open(f"/{page}")
        fetched = browser.driver.execute_script(
            "return performance.getEntriesByType('resource').map(e => e.name)"
        )
        assert [url for url in fetched if url.startswith("http") and not url.startswith(browser.server)] == []


def test_a_phone_asks_on_one_line_that_opens_and_folds_when_it_is_put(browser: Browser) -> None:
    browser.size(390, 900)
    browser.open("/?batch=4")
    browser.answer()
    form = browser.find("[data-testid=stForm]")
    assert not form.is_displayed()
    browser.driver.execute_script("document.querySelector('.st-key-bar_opened input').click()")
    browser.until_true(lambda: browser.find("[data-testid=stForm]").is_displayed())
    browser.press("[data-testid=stForm] button", "Apply")
    browser.until_true(lambda: not browser.find("[data-testid=stForm]").is_displayed())
    assert browser.errors() == []


def test_an_embedded_answer_has_nothing_around_it(browser: Browser) -> None:
    browser.driver.get(f"{browser.server}/?embed=true&batch=4")
    browser.until("return document.querySelectorAll('[data-testid=stMetricValue]').length >= 5")
    browser.until("return document.querySelectorAll('[data-testid=stVegaLiteChart] svg').length > 0")
    assert not browser.text("[data-testid=stForm]")
    assert not browser.text("[data-testid=stTopNavLink]")
    assert "the whole answer" in browser.driver.execute_script("return document.body.innerText")
