"""What only a browser shows: pages draw, links reproduce them, files go in and out, the console is clean."""

from __future__ import annotations

import csv
import time
from pathlib import Path

import pytest

pytest.importorskip("selenium")
pytest.importorskip("axe_core_python")

import app_feel
from axe_core_python.selenium import Axe
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
    browser.until("return document.querySelectorAll('[data-testid=stVegaLiteChart] svg').length > 0")
    # A command lies on one line until the style sheet has come, so this waits until the page fits.
    browser.until("return document.querySelector('[data-testid=stMain]').scrollWidth <= window.innerWidth")


@pytest.mark.parametrize(
    ("link", "title", "words"),
    [
        ("load?policy=schedule", "Under load", "schedule"),
        ("load?runtime=sglang&policy=schedule", "Under load", "sglang-0.5"),
        ("load?tpot-ms=30", "Under load", "30"),
        ("evidence?runtime=sglang", "How far to trust it", "sglang-0.5"),
        ("which-gpu?engine=sglang&gpu_choices=l40s", "Which GPU?", "sglang"),
        ("which-gpu?gpus=1&gpu_choices=l40s", "Which GPU?", "l40s"),
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
    text = (
        "return document.body.innerText + [...document.querySelectorAll('input')].map(e => e.value).join(' ')"
    )
    browser.until_true(lambda: words in browser.driver.execute_script(text))


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


TREES = "gpu=a100-80gb-pcie&model=vicuna-7b&drafter=medusa"
EVERY = (*(page for page in PAGES if page != "tree"), f"tree?{TREES}", "beside?kept=gpu%3Dl40s")
SMALL = """
const seen = e => e.checkVisibility() && e.getBoundingClientRect().width > 0
const size = e => (e.closest('label, [data-testid=stSlider]') || e).getBoundingClientRect()
const wanted = 'button, a[href], input, select, summary, [role=button], [role=combobox]'
return [...document.querySelectorAll('[data-testid=stMain] :is(' + wanted + ')')].filter(seen)
  .filter(e => size(e).width < 24 || size(e).height < 24)
  .map(e => e.tagName + ' ' + (e.ariaLabel || e.innerText))
"""
"""What is pressed, typed into or moved and smaller than 24 px, its label counted where one belongs to it."""


FAINT = """
const place = Object.assign(document.createElement('canvas'), {width: 1, height: 1})
const pen = place.getContext('2d', {willReadFrequently: true})
const known = new Map()
const rgba = colour => {
  if (!known.has(colour)) {
    pen.clearRect(0, 0, 1, 1); pen.fillStyle = colour; pen.fillRect(0, 0, 1, 1)
    const [r, g, b, a] = pen.getImageData(0, 0, 1, 1).data
    known.set(colour, [r, g, b, a / 255])
  }
  return known.get(colour)
}
const over = ([r, g, b, a], below) => [r, g, b].map((each, i) => a * each + (1 - a) * below[i])
const holds = (e, box) => {
  const {left, right, top, bottom, width} = e.getBoundingClientRect()
  if (width > 32) return true  // else a knob, whose number may stand beside it
  const [x, y] = [(box.left + box.right) / 2, (box.top + box.bottom) / 2]
  return left <= x && x <= right && top <= y && y <= bottom
}
const behind = (e, box) => {
  if (!e) return [255, 255, 255]
  const own = holds(e, box) ? rgba(getComputedStyle(e).backgroundColor) : [0, 0, 0, 0]
  return own[3] === 1 ? own.slice(0, 3) : over(own, behind(e.parentElement, box))
}
const light = colour => colour.map(each => each / 255)
  .map(each => each <= 0.04045 ? each / 12.92 : ((each + 0.055) / 1.055) ** 2.4)
  .reduce((sum, each, i) => sum + each * [0.2126, 0.7152, 0.0722][i], 0)
const contrast = (one, other) => {
  const [low, high] = [light(one), light(other)].sort((a, b) => a - b)
  return (high + 0.05) / (low + 0.05)
}
const found = []
let looked = 0
const unread = 'script, style, svg, [disabled], [aria-hidden=true]', range = document.createRange()
const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT)
while (walk.nextNode()) {
  const e = walk.currentNode.parentElement, style = getComputedStyle(e), size = parseFloat(style.fontSize)
  if (!walk.currentNode.data.trim() || e.closest(unread) || !e.getClientRects().length
      || !e.checkVisibility({opacityProperty: true, visibilityProperty: true})) continue
  looked += 1
  range.selectNodeContents(walk.currentNode)
  const below = behind(e, range.getBoundingClientRect())
  const seen = contrast(over(rgba(style.color), below), below)
  const wanted = size >= 24 || (size >= 18.66 && style.fontWeight >= 700) ? 3 : 4.5
  if (seen < wanted) found.push([walk.currentNode.data.trim().slice(0, 60), +seen.toFixed(2), style.color])
}
return [looked, found]
"""
"""Text below the contrast that WCAG AA asks for, charts apart; axe's own rule stops at `color-mix`."""


@pytest.mark.parametrize("page", EVERY)
@pytest.mark.parametrize(("width", "dark"), [(1280, False), (1280, True), (390, False), (390, True)])
def test_axe_finds_nothing_serious(browser: Browser, page: str, width: int, dark: bool) -> None:
    """Names of inputs, roles, landmarks; contrast of 4.5:1, and targets of 24 px."""
    browser.size(width, 900, dark=dark)
    browser.open(f"/{page}")
    browser.until(app_feel.DRAWN)
    browser.settled()
    found = Axe().run(browser.driver)
    assert {"label", "button-name"} <= {rule["id"] for rule in found["passes"]}, "it has looked"
    serious = [
        (rule["id"], node["html"][:200], node["failureSummary"])
        for rule in found["violations"]
        if rule["impact"] in ("serious", "critical")
        for node in rule["nodes"]
    ]
    assert serious == []
    assert browser.driver.execute_script(SMALL) == []
    looked, faint = browser.driver.execute_script(FAINT)
    assert looked > 20
    assert faint == []


@pytest.mark.parametrize("page", EVERY)
def test_the_keyboard_alone_reaches_every_input(browser: Browser, page: str) -> None:
    """A list's own field opens it with an arrow, a number's field counts with arrows: their buttons may be
    passed over."""
    browser.open(f"/{page}")
    browser.until(app_feel.DRAWN)
    browser.settled()
    passed = browser.driver.execute_script(
        "const wanted = 'button, a[href], input, textarea, select, summary'\n"
        "const field = e => e.tagName === 'BUTTON' && e.parentElement.closest("
        "'[data-testid=stSelectbox], [data-testid=stNumberInput], [data-testid=stMultiSelect]')\n"
        "return [...document.querySelectorAll('[data-testid=stMain] :is(' + wanted + ')')]"
        ".filter(e => e.checkVisibility() && !e.disabled && e.tabIndex < 0 && !field(e))"
        ".map(e => e.outerHTML.slice(0, 200))"
    )
    assert passed == []


def test_slider_moves_the_answer_and_the_link(browser: Browser) -> None:
    browser.open("/")
    before = browser.answer()
    app_feel.type_into(browser.driver, browser.find(app_feel.SLIDER), Keys.ARROW_RIGHT * 3)
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
    browser.open("/?model=my+file%3A+config.json%2C+GGUF")
    bad = tmp_path / "bad.json"
    bad.write_text("{", encoding="utf-8")
    upload = "[data-testid=stFileUploader] input[type=file]"
    browser.find(upload).send_keys(str(bad))
    browser.until(
        "return [...document.querySelectorAll('[data-testid=stAlert]')].some(e => /json/.test(e.innerText))"
    )
    assert not browser.text("[data-testid=stException]")
    good = Path(__file__).resolve().parents[2] / "docs" / "example_config.json"
    browser.open("/?model=my+file%3A+config.json%2C+GGUF")
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
