"""The report in a real browser: what no reading of its text can show."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench.page.render import html
from bench.page.sections import sections
from tests.tiny_browser import browser, missing, sized
from tests.tiny_report import NET, golden_samples, load, made_run

REASON = missing()
pytestmark = pytest.mark.skipif(REASON is not None, reason=f"no browser: {REASON}")

ATTACK = "<img src=https://example.com/x onerror=window.hurt=1><script>window.hurt=1</script>"
LONG = "a-very-long-loader-name-without-any-space-" * 5


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("page")
    run = made_run(
        *golden_samples(),
        load(ATTACK, 0.3, storage=replace(NET, label=ATTACK)),
        load(LONG, 0.2, cache="warm"),
    )
    other = made_run(*[load("pt", 1.0, n, bytes=1 << 26) for n in (1, 2)])
    found, across = sections([run, other])
    path = folder / "report.html"
    path.write_text(html(found, across, [b'{"a": 1}\n', b"{}\n"]))
    return path.as_uri()


@pytest.fixture(scope="module")
def driver(page: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with browser(tmp_path_factory.mktemp("profile")) as driver:
        sized(driver, 1280, 900)
        driver.get(page)
        yield driver


def test_it_opens_without_a_word_on_the_console(driver: Any) -> None:
    assert "coldload" in driver.title
    assert driver.get_log("browser") == []
    assert driver.execute_script("return window.hurt") is None


def test_it_asks_the_network_for_nothing(driver: Any, page: str) -> None:
    sent = [json.loads(entry["message"])["message"] for entry in driver.get_log("performance")]
    asked = [m["params"] for m in sent if m["method"] == "Network.requestWillBeSent"]
    ours = [one["request"]["url"] for one in asked if one["documentURL"] == page]
    assert page in ours
    assert [url for url in ours if url != page and not url.startswith("data:")] == []
    assert [one for one in asked if one["request"]["url"].startswith(("http", "ws"))] == []


def test_every_picture_has_its_text_for_those_who_cannot_see_it(driver: Any) -> None:
    driver.execute_cdp_cmd("Accessibility.enable", {})
    nodes = driver.execute_cdp_cmd("Accessibility.getFullAXTree", {})["nodes"]
    spoken = [
        node["name"]["value"]
        for node in nodes
        if node.get("role", {}).get("value") in {"image", "img"} and not node.get("ignored")
    ]
    drawn = driver.execute_script("return document.querySelectorAll('svg').length")
    assert drawn == len(spoken) > 5
    assert all("GB/s" in text or "second" in text or " s" in text for text in spoken)
    assert min(map(len, spoken)) > 30


SORTED = """
const [table, column] = arguments;
return [...document.querySelectorAll('table')[table].tBodies[0].rows]
  .map((row) => row.cells[column].textContent);
"""


def clicked(driver: Any, column: str) -> list[str]:
    heads = driver.execute_script(
        "return [...document.querySelectorAll('table')[0].tHead.rows[0].cells]"
        ".map((cell) => cell.textContent)"
    )
    number = heads.index(column)
    driver.execute_script(
        "document.querySelectorAll('table')[0].tHead.rows[0].cells[arguments[0]]"
        ".firstElementChild.click()",
        number,
    )
    return driver.execute_script(SORTED, 0, number)


def test_tables_sort_by_figures_and_by_words(driver: Any) -> None:
    falling = clicked(driver, "GB/s")
    assert falling == sorted(falling, key=float, reverse=True)
    assert len(set(falling)) > 3
    rising = clicked(driver, "GB/s")
    assert rising == falling[::-1]
    words = clicked(driver, "memory")
    assert words == sorted(words)
    shares = clicked(driver, "% of ceiling")
    there = [float(text) for text in shares if text]
    assert there == sorted(there, reverse=True)
    assert shares[len(there) :] == [""] * (len(shares) - len(there))  # what isn't there is last
    pressed = driver.execute_script(
        "return [...document.querySelectorAll('th[aria-sort]')].map((h) => h.textContent)"
    )
    assert pressed == ["% of ceiling"]


@pytest.mark.parametrize("width", [320, 390, 768, 1280])
def test_nothing_is_wider_than_the_screen(driver: Any, page: str, width: int) -> None:
    sized(driver, width, 800, phone=width < 700)
    driver.get(page)
    assert driver.execute_script("return window.innerWidth") == width
    assert driver.execute_script("return document.documentElement.scrollWidth") <= width


def test_letters_in_pictures_stay_legible_on_a_phone(driver: Any, page: str) -> None:
    sized(driver, 390, 800, phone=True)
    driver.get(page)
    heights = driver.execute_script(
        "return [...document.querySelectorAll('svg text')].map("
        "(t) => parseFloat(getComputedStyle(t).fontSize)"
        " * t.ownerSVGElement.getScreenCTM().a)"
    )
    assert min(heights) >= 7.5


CONTRAST = """
const light = (c) => {
  const [r, g, b] = c.match(/[\\d.]+/g).slice(0, 3).map((v) => v / 255)
    .map((v) => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const paper = light(getComputedStyle(document.body).backgroundColor);
const ratio = (a) => (Math.max(a, paper) + 0.05) / (Math.min(a, paper) + 0.05);
const words = [...document.querySelectorAll('svg text, p, li, dd, dt, td, th, h1, h2')];
const styles = words.filter((e) => e.textContent.trim() && e.textContent != '\\u25a0')
  .map((e) => e.tagName === 'text' ? getComputedStyle(e).fill : getComputedStyle(e).color);
return [paper, Math.min(...styles.map((colour) => ratio(light(colour))))];
"""


@pytest.mark.parametrize("dark", [False, True])
def test_words_stand_out_from_the_page_in_light_and_dark(
    driver: Any, page: str, dark: bool
) -> None:
    sized(driver, 1280, 900, dark=dark)
    driver.get(page)
    paper, least = driver.execute_script(CONTRAST)
    assert (paper < 0.1) is dark
    assert least >= 3.7


def test_it_prints(driver: Any, page: str) -> None:
    sized(driver, 1280, 900)
    driver.get(page)
    printed = driver.execute_cdp_cmd("Page.printToPDF", {"paperWidth": 8.27, "paperHeight": 11.7})
    assert len(printed["data"]) > 50_000


def test_the_records_are_in_the_page(driver: Any, page: str, tmp_path: Path) -> None:
    sized(driver, 1280, 900)
    driver.get(page)
    text = driver.execute_async_script(
        "const done = arguments[0];"
        "const raw = atob(document.querySelector('a[download]').href.split(',')[1]);"
        "const bytes = Uint8Array.from(raw, (c) => c.charCodeAt(0));"
        "new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream('gzip')))"
        ".text().then(done);"
    )
    assert text == '{"a": 1}\n'
