"""A run as a timeline in the Trace Event Format, which Perfetto (ui.perfetto.dev) and Chrome
(chrome://tracing) open: the steps of this machine, and each layer on the board.

The board's clock is not synchronized with this machine's. Its run is drawn where this machine
waited for it, and the names of tracks say so. What was not measured is left out or labelled: a
record without `spans` has the time of each layer, but not when a thread worked on it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from mlc_targets.text import shown

from ..errors import ReportError
from .costs import CLASSES
from .record import Layer, Run

HOST, BOARD = 1, 2  # processes, as the format calls them
RAN_IN = ("run", "timing", "farm")  # the host's steps in which the board ran
Event = dict[str, Any]


def run_trace(run: Run) -> str:
    """The timeline as JSON. Raises ReportError if the record has neither steps nor times."""
    events = [*_host(run), *_board(run)]
    if not any(event["ph"] == "X" for event in events):
        raise ReportError(
            "the record has nothing for a timeline: no steps, and no times of layers",
            where=run.model,
            mend="mlc-deploy MODEL --board B --trace FILE",
        )
    return json.dumps(
        {
            "traceEvents": events,
            "displayTimeUnit": "ms",
            "otherData": {"model": run.model, "target": run.target, "not measured": _unknown(run)},
        },
        allow_nan=False,
    )


def _host(run: Run) -> Iterator[Event]:
    yield from _named(HOST, "this machine", {1: "mlc-deploy"})
    for step in run.steps:
        args = {}
        if step.name == "upload" and run.upload_bytes is not None:
            args["bytes"] = run.upload_bytes
        yield _event(HOST, 1, step.name, step.begin_s * 1e6, step.seconds * 1e6, args)


def _board(run: Run) -> Iterator[Event]:
    if run.url is None:
        return
    begin = next((s.begin_s * 1e6 for s in run.steps if s.name in RAN_IN), 0.0)
    emulated = ", emulated: times are not those of a board" if run.emulated else ""
    name = f"{run.url}, by its own clock{emulated}"
    if run.spans:
        threads = sorted({span.thread for span in run.spans})
        yield from _named(BOARD, name, {n: f"thread {n}: one run" for n in threads})
        for span in run.spans:
            layer = run.layers[span.layer]
            yield _event(
                BOARD, span.thread, layer.name, begin + span.begin_us, span.us, _args(layer)
            )
        return
    timed = [layer for layer in run.layers if layer.median_us is not None]
    if not timed:
        return
    yield from _named(BOARD, name, {0: "layers, by their medians (threads not measured)"})
    at = begin
    for layer in timed:
        took = layer.median_us or 0.0
        yield _event(BOARD, 0, layer.name, at, took, _args(layer))
        at += took


def _unknown(run: Run) -> list[str]:
    """What the timeline does not show, though a reader could think so."""
    found = ["how the board's clock stands to this machine's: its run begins where the host waits"]
    if run.url is not None and not run.spans:
        found.append("when each thread worked: layers stand one after the other, by their medians")
        found.append("what the board does between layers")
    if not run.steps:
        found.append("what this machine did, and when")
    return found


def _args(layer: Layer) -> dict[str, Any]:
    args: dict[str, Any] = {"kernel": layer.kernel, "shape": list(layer.shape)}
    if layer.turns != 1:
        args["turns"] = layer.turns
    if layer.instructions is not None:
        args["instructions"] = layer.instructions
    if layer.by_class:
        args |= {name: layer.by_class[name] for name in CLASSES if name in layer.by_class}
    return args


def _named(process: int, name: str, threads: dict[int, str]) -> Iterator[Event]:
    yield {"ph": "M", "pid": process, "tid": 0, "name": "process_name", "args": {"name": name}}
    for number, text in threads.items():
        args = {"name": text}
        yield {"ph": "M", "pid": process, "tid": number, "name": "thread_name", "args": args}


def _event(
    process: int, thread: int, name: str, begin: float, took: float, args: dict[str, Any]
) -> Event:
    """A piece of work; times in microseconds."""
    return {
        "ph": "X", "pid": process, "tid": thread, "name": shown(name), "ts": round(begin, 3),
        "dur": round(took, 3), "args": args,
    }  # fmt: skip
