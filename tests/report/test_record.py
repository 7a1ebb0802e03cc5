"""Records from anyone: what is none is refused, with a message that says what and where."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlc_deploy.errors import ReportError
from mlc_deploy.files.fields import Field, Malformed
from mlc_deploy.report import parse_run, read_run, run_page
from tests.report.records import record

WHOLE = json.dumps(record())


def changed(*path: str | int, to: Any) -> str:
    found = json.loads(WHOLE)
    at: Any = found
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = to
    return json.dumps(found)


BAD = {
    "no JSON": "hello",
    "truncated": WHOLE[:700],
    "empty": "",
    "another object": '{"name": "x"}',
    "a list": "[1, 2]",
    "another version": changed("record", to=2),
    "a name that is none": changed("layers", 1, "name", to=7),
    "a count below 0": changed("layers", 2, "instructions", to=-5),
    "half an instruction": changed("layers", 2, "instructions", to=1.5),
    "infinite": changed("latency", "samples", 0, to=float("inf")),
    "a huge number": changed("arena_bytes", to=10**400),
    "layers are not list": changed("layers", to={}),
    "a tensor that is not there": changed("details", "calls", 0, "reads", to=[99]),
    "too few calls": changed("details", "calls", to=[]),
    "a kernel without text": changed("details", "kernels", "softmax", to={"loops": None}),
    "nested": "[" * 100_000,
    "a span of no layer": changed("spans", to=[{"layer": 6, "thread": 0, "begin_us": 0, "us": 1}]),
}


def test_refusals(golden: Callable[..., None]) -> None:
    texts = []
    for name, text in BAD.items():
        with pytest.raises(ReportError) as caught:
            read_run(text, "record.json")
        texts.append(f"{name}\n{caught.value}")
    with pytest.raises(ReportError) as caught:
        read_run(b"\xff\xfe\x00", "record.json")
    texts.append(f"no text\n{caught.value}")
    golden("\n\n".join(texts), "report_refusals")


def test_a_record_of_a_compilation_alone() -> None:
    found = record()
    absent = ("board", "outputs", "latency", "instructions", "threads", "upload_s", "memory",
              "upload_bytes", "ok", "reference", "predictions", "interruptions", "energy",
              "steps", "details")  # fmt: skip
    found |= dict.fromkeys(absent)
    found["layers"] = [x | {"median_us": None, "instructions": None, "by_class": None}
                       for x in found["layers"]]  # fmt: skip
    run = parse_run(found, "x")
    assert (run.timed, run.counted, run.details) == (False, False, None)
    page = run_page(run)
    assert "Not run" in page and "need details that are not in this JSON file" in page


@given(st.data())
def test_whatever_stands_anywhere_is_refused_or_drawn(data: st.DataObject) -> None:
    """A value somewhere becomes another: no exception but ReportError comes of it."""
    found = record(timed=data.draw(st.booleans()))
    at: Any = found
    while True:
        keys = list(at) if isinstance(at, dict) else list(range(len(at)))
        key = data.draw(st.sampled_from(keys))
        inner = at[key]
        if isinstance(inner, dict | list) and inner and data.draw(st.integers(0, 4)):
            at = inner
            continue
        others: list[Any] = [
            None,
            True,
            -1,
            0,
            1.5,
            10**9,
            "",
            "</script>",
            [],
            {},
            [[]],
            {"a": None},
        ]
        at[key] = data.draw(st.sampled_from(others))
        break
    try:
        run_page(parse_run(found, "x"))
    except ReportError as error:
        assert str(error)


def test_fields_say_where() -> None:
    field = Field({"a": [{"b": "text"}]})
    (inner,) = field["a"]
    assert inner["b"].text() == "text" and not inner["c"]
    with pytest.raises(Malformed, match=r"a\[0\]\.b is a text, and must be a number"):
        inner["b"].number()
    with pytest.raises(Malformed, match=r"a\[0\]\.c is null, and must be a text"):
        inner["c"].text()
    with pytest.raises(Malformed, match="a is a list, and must be an object"):
        field["a"]["b"]
