"""A page: one file that opens offline, made from a run's record (record.py) or a tuning's results
(tuning.py).

Names from a model are escaped (markup.py). The page also forbids loading anything, and any script
but its own.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from mlc_targets import Target, TargetError

from ..errors import ReportError
from .arena import arena
from .change import change
from .costs import costs_of
from .graph import WANTED, graph, texts
from .layers import layers
from .markup import Html, h, join
from .record import Run
from .roofline import roofline
from .samples import samples
from .summary import board, figures, verdict

MOST_BYTES = 1_000_000  # of a page
ROOM = 10_000  # bytes for the note on kernels that are left out
FOLDER = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Part:
    """A section: its name in links, its title and its content."""

    name: str
    title: str
    content: Html


def run_page(run: Run, before: Run | None = None) -> str:
    """The page of a run, compared with an earlier one if given. A page that would be too large has
    no picture of the graph, and then lacks some kernels' texts. Raises ReportError for a model with
    so many layers that this does not suffice."""
    before_graph = [
        Part("summary", "Summary", figures(run)),
        Part("verdict", "Verdict", verdict(run)),
        Part("board", "Board", board(run)),
        *([Part("change", "Before and after", change(before, run))] if before else []),
        Part("layers", "Layers", layers(run)),
        Part("roofline", "Roofline", roofline(run)),
        Part("arena", "Arena", arena(run)),
    ]
    after_graph = Part("samples", "Samples", samples(run))
    place = "compiled, not run" if run.url is None else f"on {run.url}"
    title, subtitle = f"{run.model} {place}", f"for {_short(run.target)}"
    facts, _ = texts(run, 0)
    for pictured in (True, False):
        parts = [*before_graph, Part("graph", "Kernels", graph(run, pictured)), after_graph]
        room = MOST_BYTES - ROOM - len(_whole(title, subtitle, parts).encode())
        if room > len(facts):
            break
    holder, left_out = texts(run, room)
    return page(title, subtitle, [*parts, *_missing(run, left_out)], holder)


def page(title: str, subtitle: str, parts: Iterable[Part], holder: Html | None = None) -> str:
    """A whole page. Raises ReportError if it would be too large."""
    made = _whole(title, subtitle, list(parts), holder)
    size = len(made.encode())
    if size > MOST_BYTES:
        raise ReportError(
            f"the page would have {size:,} bytes, and a page has at most {MOST_BYTES:,}",
            mend="the record of a smaller model, or --trace, which has no such limit",
        )
    return made


def _whole(title: str, subtitle: str, parts: Sequence[Part], holder: Html | None = None) -> Html:
    style, script = _file("style.css"), _file("script.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    return join(
        Html("<!doctype html>\n"),
        h(
            "html",
            h(
                "head",
                h("meta", charset="utf-8"),
                h("meta", http_equiv="Content-Security-Policy", content=policy),
                h("meta", name="viewport", content="width=device-width, initial-scale=1"),
                h("meta", name="referrer", content="no-referrer"),
                h("title", title),
                h("style", Html(style)),
            ),
            h(
                "body",
                h("header", h("h1", title), h("p", subtitle, class_="sub")),
                h("nav", h("ul", (h("li", h("a", p.title, href=f"#{p.name}")) for p in parts)),
                  aria_label="parts of this page"),
                h("main", (h("section", h("h2", p.title), p.content, id=p.name) for p in parts)),
                h("footer", "Made by mlc-deploy. The file is whole: it loads nothing."),
                holder,
                h("script", Html(script)),
            ),
            lang="en",
        ),
    )  # fmt: skip


@cache
def _file(name: str) -> str:
    return (FOLDER / name).read_text(encoding="utf-8")


def _short(target: str) -> str:
    try:
        return Target(target).short_name
    except TargetError:  # of another version, or of an unknown board
        return target


def _missing(run: Run, left_out: list[str]) -> list[Part]:
    """A section on what the record lacks, and how to get it."""
    rows: list[Html] = []
    if run.details is None:
        rows.append(
            h(
                "li",
                "The roofline, the arena and the kernels need details that are "
                "not in this JSON file. ",
                h("code", WANTED),
                " makes a page with them; with ",
                h("code", "--json FILE"),
                " as well, the JSON file contains them.",
            )
        )
    elif not run.details.kernels:
        rows.append(
            h(
                "li",
                "Kernels have no loops and assembly: a saved model has only "
                "machine code. Use the model that it was compiled from.",
            )
        )
    if left_out:
        rows.append(
            h(
                "li",
                f"{len(left_out)} of the cheapest kernels have no text, since the page "
                "would be too large: ",
                ", ".join(left_out[:20]),
                " and others" if len(left_out) > 20 else None,
                ".",
            )
        )
    if not costs_of(run):
        rows.append(h("li", "Nothing ran: with ", h("code", "--board"), ", layers have costs."))
    elif not run.timed:
        rows.append(
            h(
                "li",
                "Times of a board: with ",
                h("code", "--board ssh://…"),
                ". ",
                "An emulator counts instructions alone.",
            )
        )
    if run.timed and not run.counted:
        rows.append(
            h(
                "li",
                "Instructions by class: a board does not count them; ",
                h("code", "--board qemu://CPU"),
                " does.",
            )
        )
    if run.timed and not run.energy:
        rows.append(h("li", "Energy: the board has no sensor that its kernel shows."))
    return [Part("missing", "Not in the record", h("ul", rows))] if rows else []
