"""The built documentation in a headless Chromium: light, dark, wide, narrow, and its search."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.report.browser import Browser

pytestmark = pytest.mark.report

ROOT = Path(__file__).parents[2]
NARROW = 390  # pixels, of a phone
# What sticks out of the window, but for what is cut or scrolls on its own.
TOO_WIDE = """[...document.querySelectorAll("main *, article *")].filter(element => {
  if (element.getBoundingClientRect().right <= innerWidth + 1) return false;
  for (let at = element.parentElement; at && at !== document.body; at = at.parentElement)
    if (getComputedStyle(at).overflowX !== "visible") return false;
  return true;
}).map(element => element.tagName + ": " + element.textContent.slice(0, 60))"""
LIGHTNESS = """(() => {
  const [r, g, b] = getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number);
  return (r + g + b) / 3;
})()"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "-d", str(folder / "doctrees"),
               str(ROOT / "docs"), str(folder / "html")]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return folder / "html"


def test_no_page_is_wider_than_a_phone(chromium: Browser, site: Path) -> None:
    pages = [page for page in sorted(site.rglob("*.html")) if page.name != "genindex.html"]
    assert len(pages) > 40
    wide = {}
    for page in pages:
        chromium.show(page.as_uri(), NARROW, 800)
        if chromium.run("document.documentElement.scrollWidth") > NARROW:
            wide[page.name] = chromium.run(TOO_WIDE)
    assert wide == {}


def test_pages_follow_the_reader_into_the_dark(chromium: Browser, site: Path) -> None:
    for dark, low, high in ((False, 200, 255), (True, 0, 60)):
        chromium.show((site / "index.html").as_uri(), 1280, 900, dark)
        assert low <= chromium.run(LIGHTNESS) <= high
        assert chromium.run("document.querySelectorAll('.sd-card').length") > 6


@pytest.mark.parametrize(
    ("words", "page"),
    [("quantization", "int8.html"), ("tflite", "tflite.html"), ("ncnn", "from_ncnn.html")],
)
def test_the_search_finds_pages(words: str, page: str, chromium: Browser, site: Path) -> None:
    chromium.show((site / "index.html").as_uri(), 1280, 900)
    assert chromium.run("document.querySelector('.sidebar-search').name") == "q"
    chromium.show(f"{(site / 'search.html').as_uri()}?q={words}", 1280, 900)
    chromium.wait("document.querySelectorAll('#search-results li').length > 0")
    found = chromium.run("[...document.querySelectorAll('#search-results li a')].map(a => a.href)")
    assert any(link.split("?")[0].endswith(page) for link in found), found


def test_the_schema_of_results_is_published(site: Path) -> None:
    assert list(site.rglob("record.schema.json"))
