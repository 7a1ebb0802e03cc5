"""Pages as HTML: well formed, whole, and only text where a model's names stand."""

from __future__ import annotations

import base64
import copy
import json
import re
import zlib
from html.parser import HTMLParser
from typing import Any

import pytest

from mlc_deploy.errors import ReportError
from mlc_deploy.report import parse_run, run_page
from mlc_deploy.report.markup import Html, h, join
from mlc_deploy.report.page import MOST_BYTES
from tests.report.records import LAYERS, TENSORS, record

HOSTILE = "</script></style><img src=x onerror=alert(1)>\"'&{{}}\u202e\x00\n`"
NAMES = {
    name: f"{name}{HOSTILE}"
    for name in (
        "model",
        *(r[0] for r in LAYERS),
        *(r[1] for r in LAYERS),
        *(t[0] for t in TENSORS),
    )
}
PARTS = ("summary", "verdict", "board", "layers", "roofline", "arena", "graph", "samples")
VOID = {"meta", "circle", "line", "path", "rect", "use"}


class Reader(HTMLParser):
    """The page's elements: each that begins ends, in its order."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.stack: list[str] = []
        self.feed(page)
        self.close()
        assert self.stack == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.stack.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.stack.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.stack[-1:] not in (["style"], ["script"]):
            self.texts.append(data)


def page_of(found: dict[str, Any], before: dict[str, Any] | None = None) -> str:
    return run_page(parse_run(found, "x"), parse_run(before, "y") if before else None)


def texts_of(page: str) -> dict[str, list[str]]:
    """Loops and assembly by a kernel's number, of what the page's script inflates."""
    found = re.search(r'id="texts">([^<]*)<', page)
    assert found
    unpacked = json.loads(zlib.decompress(base64.b64decode(found[1]), -15))
    kernels: dict[str, list[str]] = unpacked["kernels"]
    return kernels


@pytest.mark.parametrize("timed", [False, True])
def test_a_page_has_every_part(timed: bool) -> None:
    page = page_of(record(timed))
    read = Reader(page)
    ids = [attrs["id"] for tag, attrs in read.elements if tag == "section"]
    assert ids[: len(PARTS)] == list(PARTS)
    links = [attrs["href"] for tag, attrs in read.elements if tag == "a" and "class" not in attrs]
    assert {f"#{name}" for name in PARTS} <= set(links)
    told = " ".join(read.texts)
    for name, *_ in LAYERS:
        assert name in told
    nodes = [a for tag, a in read.elements if a.get("class") == "node"]
    assert [a["data-call"] for a in nodes] == [str(n) for n in range(len(LAYERS))]
    if timed:
        assert all(word in told for word in ("p50", "p99", "12.5 mJ", "clock, GHz", "a fan"))
    else:
        assert all(word in told for word in ("at most 4 per instruction", "930,900 a run"))


def test_nothing_is_loaded() -> None:
    """No address stands where a browser follows one, and the policy forbids it besides."""
    page, policy = page_of(record()), ""
    for tag, attrs in Reader(page).elements:
        assert tag not in ("img", "link", "iframe", "object", "base", "form")
        assert not {"src", "srcset", "action", "data", "xlink:href"} & attrs.keys()
        assert (attrs.get("href") or "#").startswith("#")
        assert not [name for name in attrs if name.startswith("on")]
        if attrs.get("http-equiv") == "Content-Security-Policy":
            policy = attrs["content"] or ""
    assert policy.startswith("default-src 'none'; ") and "unsafe-inline'; script" in policy
    assert "url(" not in page and "@import" not in page


def test_names_are_text() -> None:
    honest, hostile = Reader(page_of(record())), Reader(page_of(record(names=NAMES)))

    def shape(read: Reader) -> list[tuple[str, tuple[str, ...]]]:
        return [(tag, tuple(attrs)) for tag, attrs in read.elements if tag != "text"]

    assert shape(hostile) == shape(honest)
    page = page_of(record(names=NAMES))
    assert "<img" not in page and "\x00" not in page and "\u202e" not in page
    told = " ".join(hostile.texts)
    assert "stem</script></style><img src=x onerror=alert(1)>" in told
    assert HOSTILE in texts_of(page)["5"][0]


def test_names_are_text_in_a_page_of_two_records() -> None:
    page = page_of(record(names=NAMES), record())
    Reader(page)
    assert "<img" not in page and "model was small_net" in page


def test_markup_escapes_what_is_no_markup() -> None:
    assert h("b", "<i>", Html("<u/>"), None, 1.25, ["&"], class_='"x"') == (
        '<b class="&quot;x&quot;">&lt;i&gt;<u/>1.2&amp;</b>'
    )
    assert h("rect", x=1.0, hidden=True, title=None, draggable=False) == '<rect x="1" hidden/>'
    assert join("a\nb") == "a\\nb"


def test_kernels_texts() -> None:
    found = texts_of(page_of(record()))
    assert list(found) == [str(n) for n in range(len(LAYERS))]
    loops, assembly = found["5"]
    assert loops.startswith("@T.prim_func\ndef softmax")
    assert assembly == "softmax:\n    fmla v0.4s, v1.4s, v2.4s\n    ret"


def test_the_cheapest_kernels_have_no_text_where_the_page_would_be_too_large() -> None:
    found = record()
    noise = base64.b85encode(zlib.compress(bytes(range(256)))).decode()
    for number, (_, kernel, *_) in enumerate(LAYERS):
        lines = (f"{noise[n % 40 :]}{n * (number + 7919) % 999983}" for n in range(30_000))
        found["details"]["kernels"][kernel]["loops"] = "\n".join(lines)
    page = page_of(found)
    assert len(page.encode()) < MOST_BYTES
    kept = texts_of(page)
    assert "1" in kept and "5" not in kept
    assert "of the cheapest kernels have no text" in page


def many(times: int) -> dict[str, Any]:
    found = record()
    found["layers"] *= times
    found["details"]["calls"] *= times
    return found


def test_many_layers() -> None:
    """Too many for the picture, and then for a page."""
    page = page_of(many(130))
    assert len(page.encode()) < MOST_BYTES and 'id="picture"' not in page
    assert "780 layers: too many for a picture" in page and len(texts_of(page)) == len(LAYERS)
    with pytest.raises(ReportError, match="and a page has at most 1,000,000"):
        page_of(many(500))


def test_before_and_after() -> None:
    before, after = record(), record()
    for layer in after["layers"]:
        layer["instructions"] = layer["instructions"] * 9 // 10
    after["instructions"] = sum(layer["instructions"] for layer in after["layers"])
    before["layers"].append(copy.deepcopy(before["layers"][0]) | {"name": "removed"})
    before["instructions"] += before["layers"][-1]["instructions"]
    before["details"] = None
    told = " ".join(Reader(page_of(after, before)).texts)
    share = 1 - after["instructions"] / before["instructions"]
    assert f"{share * 100:.1f} % fewer executed instructions." in told
    assert "gone" in told and "▼" in told and "▲" not in told
    assert "cannot be compared" in page_of(record(), record(timed=True))


def test_predicted_figures_are_marked() -> None:
    found = record()
    found["predicted"] = {"ms": 3.5, "low": 3.0, "high": 4.2, "threads": {"1": 3.5, "4": 1.25}}
    for layer in found["layers"]:
        layer["predicted_ms"] = layer["instructions"] / 1e6
    told = " ".join(Reader(page_of(found)).texts)
    assert "predicted time" in told and "3 ms to 4.2 ms, 4 threads 1.25 ms" in told
    assert "Predicted time of each layer (predicted, not measured)" in told
    assert "predicted" not in " ".join(Reader(page_of(record())).texts).lower()


def test_what_is_missing_is_said() -> None:
    found = record()
    found["details"] = None
    page = page_of(found)
    assert "mlc-deploy MODEL --report report.html" in page
    saved = record()
    saved["details"]["kernels"] = None
    assert "a saved model has only machine code" in page_of(saved)
    assert "no sensor" not in page_of(record(timed=True))
    assert "no sensor" in page_of(record(timed=True) | {"energy": None})


def roof_of(found: dict[str, Any]) -> tuple[int, set[str]]:
    """How many lines the drawing for wide windows has, and what stands at them."""
    page = page_of(found)
    read = Reader(page)
    lines = [attrs for tag, attrs in read.elements if attrs.get("class") == "roof"]
    return len(lines) // 2, {
        t for t in read.texts if t.startswith("at most") or t.endswith(" from memory")
    }


def test_the_roofline_has_the_limits_of_the_cores() -> None:
    timed = record(timed=True)
    lines = {"at most 28.8 GMAC/s in float32", "4 GB/s from memory"}
    assert roof_of(timed) == (2, lines)
    assert "The lines are the limits of 4 cores cortex-a72 at 1,800 MHz." in page_of(timed)
    timed["layers"][1]["dtype"] = "int8"
    assert roof_of(timed) == (3, lines | {"at most 57.6 GMAC/s in int8"})
    timed["limits"] = None
    assert roof_of(timed) == (0, set())
    assert "are unknown, so there is no line" in page_of(timed)
    assert roof_of(record()) == (1, {"at most 4 per instruction"})


def test_a_prediction_for_a_board_of_the_users_says_so() -> None:
    found = record()
    found["predicted"] = {
        "ms": 2.0, "low": 1.8, "high": 2.4, "threads": {"1": 2.0, "4": 0.7}, "core": "cortex-a72",
        "mhz": 1800, "calibrated": {"board": "attic", "date": "2026-11-24", "cpu": "cortex-a72",
                                    "like": False},
    }  # fmt: skip
    note = "1.8 ms to 2.4 ms, 4 threads 700 µs, on attic, calibrated on 2026-11-24"
    assert note in Reader(page_of(found)).texts
    found["predicted"]["calibrated"] = None
    assert not any("calibrated" in text for text in Reader(page_of(found)).texts)
