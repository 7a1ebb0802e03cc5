"""Timelines in the Trace Event Format."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest

from mlc_deploy.errors import ReportError
from mlc_deploy.report import parse_run, run_trace
from tests.report.records import LAYERS, record


def trace_of(found: dict[str, Any]) -> dict[str, Any]:
    made: dict[str, Any] = json.loads(run_trace(parse_run(found, "x")))
    for event in made["traceEvents"]:
        assert event["ph"] in ("X", "M") and isinstance(event["pid"], int)
        assert event["ph"] == "M" or (event["ts"] >= 0 and event["dur"] >= 0)
    return made


def events(trace: dict[str, Any], process: int) -> list[dict[str, Any]]:
    return [e for e in trace["traceEvents"] if e["ph"] == "X" and e["pid"] == process]


def test_steps_of_the_host_and_layers_by_their_medians() -> None:
    trace = trace_of(record())
    steps = events(trace, 1)
    assert [s["name"] for s in steps] == ["read", "connect", "compile", "upload", "run"]
    assert steps[3]["args"] == {"bytes": 130_000} and steps[4]["ts"] == 2e6
    layers = events(trace, 2)
    assert [e["name"] for e in layers] == [name for name, *_ in LAYERS]
    assert layers[0]["ts"] == 2e6 and layers[0]["args"]["instructions"] == 310_000
    for before, after in pairwise(layers):
        assert after["ts"] == pytest.approx(before["ts"] + before["dur"], abs=0.01)
    assert any("when each thread worked" in text for text in trace["otherData"]["not measured"])
    names = [e["args"]["name"] for e in trace["traceEvents"] if e["name"] == "process_name"]
    assert names[1].endswith("by its own clock, emulated: times are not those of a board")


def test_threads_where_the_board_told_of_them() -> None:
    spans = [
        {"layer": 0, "thread": 0, "begin_us": 1.5, "us": 20.25},
        {"layer": 0, "thread": 3, "begin_us": 2.0, "us": 19.0},
        {"layer": 1, "thread": 0, "begin_us": 22.0, "us": 7.0},
    ]
    trace = trace_of(record(timed=True) | {"spans": spans})
    found = [(e["tid"], e["name"], e["ts"], e["dur"]) for e in events(trace, 2)]
    assert found == [
        (0, "stem", 2_000_001.5, 20.25),
        (3, "stem", 2_000_002.0, 19.0),
        (0, "body.conv", 2_000_022.0, 7.0),
    ]
    assert not any("each thread" in text for text in trace["otherData"]["not measured"])


def test_names_and_nothing_to_draw() -> None:
    trace = trace_of(record(names={"stem": "\x1b]0;\u202e"}))
    assert events(trace, 2)[0]["name"] == "\\x1b]0;\\u202e"
    bare = record() | {"steps": None, "board": None}
    with pytest.raises(ReportError, match="the record has nothing for a timeline"):
        trace_of(bare)
