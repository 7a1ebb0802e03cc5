"""Pages in a headless Chromium: every part is visible at both widths, light and dark; clicks work;
nothing is said to the console, and nothing is loaded."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from PIL import Image

from mlc_deploy.report import Plan, Task, Trial, parse_run, run_page, tuning_page
from mlc_deploy.report.page import MOST_BYTES
from tests.models.architectures import onnx_model
from tests.report.browser import Browser
from tests.report.records import record
from tests.report.test_page import HOSTILE, NAMES, PARTS

pytestmark = pytest.mark.report

WINDOWS = [(1280, 900, False), (1280, 900, True), (400, 800, False), (400, 800, True)]
READY_SECONDS = 1.0
CONTRAST = 4.5  # of text, as WCAG 2.2 has it at AA
# Everything that is drawn of a part, and how much of the window's width it has.
PART = """(name => {
  const part = document.getElementById(name);
  const seen = element => element.checkVisibility({checkOpacity: true, checkVisibilityCSS: true})
    && element.getBoundingClientRect().width > 0 && element.getBoundingClientRect().height > 0;
  const box = part.getBoundingClientRect();
  return {seen: seen(part), title: seen(part.querySelector("h2")), left: box.left,
    right: box.right, height: box.height,
    drawings: [...part.querySelectorAll("svg.drawing, svg#picture")].filter(seen).length};
})"""
# The least contrast of texts with what is behind them, and the text.
LEAST_CONTRAST = """(() => {
  const canvas = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
  const rgb = (...layers) => {
    for (const color of layers) { canvas.fillStyle = color; canvas.fillRect(0, 0, 1, 1); }
    return [...canvas.getImageData(0, 0, 1, 1).data].slice(0, 3);
  };
  const light = color => {
    const [r, g, b] = color.map(c => c / 255).map(
      c => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  let least = [99, ""];
  for (const element of document.querySelectorAll(
      "h1, h2, h3, p, b, small, dt, dd, li, td, th, a, button, summary, pre, span")) {
    if (!element.checkVisibility() || !element.textContent.trim()) continue;
    const behind = [];
    for (let at = element; at; at = at.parentElement)
      behind.unshift(getComputedStyle(at).backgroundColor);
    const ground = light(rgb("white", ...behind));
    const ink = light(rgb("white", ...behind, getComputedStyle(element).color));
    const contrast = (Math.max(ink, ground) + 0.05) / (Math.min(ink, ground) + 0.05);
    if (contrast < least[0]) least = [contrast, element.textContent.slice(0, 80)];
  }
  return least;
})()"""


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A page of each sort."""
    folder = tmp_path_factory.mktemp("pages")
    trials = [Trial("ok" if n % 3 else "crash", (9 - n % 5) / 1e3 if n % 3 else None)
              for n in range(40)]  # fmt: skip
    tasks = [Task(f"kernel{HOSTILE}", "llvm -mcpu=cortex-a72", "pi", "seconds", trials)]
    before = record(timed=True)
    for layer in before["layers"]:
        layer["median_us"] *= 1.25
    texts = {
        "counted": run_page(parse_run(record(), "x")),
        "timed": run_page(parse_run(record(timed=True), "x"), parse_run(before, "y")),
        "hostile": run_page(parse_run(record(names=NAMES), "x")),
        "tuning": tuning_page("t.jsonl", tasks, [Plan("net", "pi", "seconds", 3, 0.01)]),
    }
    for name, text in texts.items():
        (folder / f"{name}.html").write_text(text, encoding="utf-8")
    return {name: folder / f"{name}.html" for name in texts}


def looked_at(chromium: Browser, page: Path, window: tuple[int, int, bool]) -> list[str]:
    """Opens the page, and the names of its parts, all of which are visible."""
    width, height, dark = window
    chromium.open(page, width, height, dark)
    assert chromium.run("document.documentElement.scrollWidth") <= width
    parts: list[str] = chromium.run("[...document.querySelectorAll('section')].map(s => s.id)")
    for name in parts:
        found = chromium.run(f"{PART}({json.dumps(name)})")
        assert found["seen"] and found["title"] and found["height"] > 60, (name, found)
        assert found["left"] >= 0 and found["right"] <= width, (name, found)
        if name in ("roofline", "arena", "graph"):
            assert found["drawings"] == 1, (name, found)
    return parts


def quiet(chromium: Browser, page: Path) -> None:
    """Nothing was said, and nothing asked for but the page."""
    assert chromium.said == []
    assert chromium.asked == [page.as_uri()]


@pytest.mark.parametrize("window", WINDOWS, ids=lambda w: f"{w[0]}{' dark' if w[2] else ''}")
@pytest.mark.parametrize("name", ["counted", "timed", "hostile", "tuning"])
def test_every_part_is_visible(
    name: str, window: tuple[int, int, bool], chromium: Browser, pages: dict[str, Path]
) -> None:
    parts = looked_at(chromium, pages[name], window)
    expected = {*PARTS, *(["change"] if name == "timed" else [])}
    assert set(parts) >= (expected if name != "tuning" else {"summary", "board-0", "layouts"})
    least, text = chromium.run(LEAST_CONTRAST)
    assert least >= CONTRAST, (least, text)
    shot = np.asarray(Image.open(BytesIO(chromium.screenshot(whole=True))).convert("L"), float)
    assert shot.shape[1] == window[0]
    assert (shot.mean() < 90) == window[2]  # it is dark where that is wanted
    quiet(chromium, pages[name])


@pytest.mark.parametrize("name", ["counted", "hostile"])
@pytest.mark.parametrize("width", [1280, 400])
def test_a_click_shows_a_kernels_loops_and_assembly(
    name: str, width: int, chromium: Browser, pages: dict[str, Path]
) -> None:
    chromium.open(pages[name], width, 800)
    called = NAMES if name == "hostile" else {}
    text = "document.querySelector('#kernel pre')?.textContent ?? ''"
    kernel = called.get("conv2d_relu_1", "conv2d_relu_1")
    chromium.wait(f"{text}.includes('def conv2d_relu_1')")  # the costliest, before any click
    chromium.click("#picture [data-call='5']")
    chromium.wait(f"{text}.includes('def softmax')")
    chromium.click("#kernel .tabs button:nth-of-type(2)")
    assembly = ":\n    fmla v0.4s, v1.4s, v2.4s\n    ret"
    chromium.wait(f"({text}).endsWith({json.dumps(assembly)})")
    chromium.click(".bars li:nth-of-type(2) a")  # a bar chooses a kernel, too
    chromium.wait(f"{text}.includes({json.dumps(kernel.splitlines()[0])})")
    assert "fmla" in chromium.run(text)  # and assembly stays chosen
    chosen = "[...document.querySelectorAll('[data-chosen]')].map(e => e.dataset.call)"
    assert set(chromium.run(chosen)) == {"1"}
    quiet(chromium, pages[name])


def test_keys_and_order(chromium: Browser, pages: dict[str, Path]) -> None:
    chromium.open(pages["counted"], 1280, 900)
    chromium.run("document.querySelector(\"#picture [data-call='2']\").focus()")
    for kind in ("keyDown", "keyUp"):
        chromium.call("Input.dispatchKeyEvent", type=kind, key="Enter", code="Enter",
                      windowsVirtualKeyCode=13)  # fmt: skip
    chromium.wait("document.querySelector('#kernel h3')?.textContent === 'body.depthwise'")
    tops = """[...document.querySelectorAll('.bars li')]
      .sort((a, b) => a.getBoundingClientRect().top - b.getBoundingClientRect().top)
      .map(li => li.querySelector('b').textContent)"""
    assert chromium.run(tops)[0] == "stem"
    chromium.click("button.order")
    chromium.wait(f"{tops}[0] === 'body.conv'")
    assert chromium.run(tops)[:3] == ["body.conv", "stem", "body.depthwise"]
    quiet(chromium, pages["counted"])


def test_classes_differ_without_colour(chromium: Browser, pages: dict[str, Path]) -> None:
    """Each class of instructions has a pattern of its own: grey bars differ from each other."""
    chromium.open(pages["counted"], 1280, 900)
    styles = chromium.run("""[...document.querySelectorAll('.legend i')].map(
      i => getComputedStyle(i).backgroundImage.replace(/rgba?\\([^)]*\\)/g, ''))""")
    assert len(styles) == 6 and len(set(styles)) == 6
    marks = chromium.run("""[...document.querySelectorAll('#roofline .legend svg g')].map(
      g => g.firstElementChild.outerHTML.replace(/ class="[^"]*"/, ''))""")
    assert len(marks) == len(set(marks)) == 2


def test_no_name_becomes_an_element(chromium: Browser, pages: dict[str, Path]) -> None:
    chromium.open(pages["hostile"], 1280, 900)
    assert chromium.run("document.querySelectorAll('img').length") == 0
    assert chromium.run("document.scripts.length") == 2
    assert chromium.run("document.title").startswith("model</script></style><img src=x")
    quiet(chromium, pages["hostile"])


def test_a_script_of_anyone_else_does_not_run(
    chromium: Browser, pages: dict[str, Path], tmp_path: Path
) -> None:
    """Were a name ever to become one, the page's policy would stop it."""
    page = tmp_path / "changed.html"
    text = pages["counted"].read_text(encoding="utf-8")
    page.write_text(text.replace("</main>", "<script>window.ran = 1</script></main>"))
    chromium.open(page, 1280, 900)
    assert chromium.run("window.ran ?? 0") == 0
    assert any("Content Security Policy" in text for text in chromium.said)


# ---------------------------------------------------------------------------- a model of the field


@pytest.fixture(scope="module")
def resnet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """ResNet-50's page, as the command makes it on this machine."""
    folder = tmp_path_factory.mktemp("resnet")
    onnx.save(onnx_model("resnet50"), str(folder / "resnet50.onnx"))
    files = ("--report", "page.html", "--json", "record.json", "--trace", "trace.json")
    program = (sys.executable, "-m", "mlc_deploy.cli")
    command = [*program, "resnet50.onnx", "--board", "local://", *files]
    subprocess.run(command, cwd=folder, check=True, capture_output=True, timeout=1500)
    yield folder
    shutil.rmtree(folder)


@pytest.mark.parametrize("window", WINDOWS, ids=lambda w: f"{w[0]}{' dark' if w[2] else ''}")
def test_resnet50(window: tuple[int, int, bool], chromium: Browser, resnet: Path) -> None:
    page = resnet / "page.html"
    assert page.stat().st_size < MOST_BYTES
    looked_at(chromium, page, window)
    took = []
    for _ in range(3):
        began = time.perf_counter()
        chromium.open(page, *window)
        chromium.click("#picture [data-call='7']")
        chromium.wait("document.querySelector('#kernel pre')?.textContent.includes('@T.prim_func')")
        took.append(time.perf_counter() - began)
    assert min(took) < READY_SECONDS, took
    quiet(chromium, page)


def test_resnet50s_record_and_timeline(resnet: Path) -> None:
    found: dict[str, Any] = json.loads((resnet / "record.json").read_text())
    details = found["details"]
    assert len(details["calls"]) == len(found["layers"]) > 50
    assert {layer["kernel"] for layer in found["layers"]} == set(details["kernels"])
    assert found["memory"]["alive_peak_bytes"] <= details["arena"]["bytes"]
    trace = json.loads((resnet / "trace.json").read_text())
    layers = {e["name"] for e in trace["traceEvents"] if e["ph"] == "X" and e["pid"] == 2}
    assert layers == {layer["name"] for layer in found["layers"]}
