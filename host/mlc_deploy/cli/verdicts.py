"""The results of models on boards: a table, JUnit XML for a CI, and a page."""

from __future__ import annotations

import xml.etree.ElementTree as xml
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import TextIO

from .compare import Change
from .errors import FAILED
from .tables import Record, add_row, console_for, labelled, line, plain_table

GOOD, BAD = "green", "bold red"
STYLE = """
:root { color-scheme: light dark; font: 15px/1.4 system-ui, sans-serif; }
body { max-width: 70rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; padding: .3rem .6rem; border-bottom: 1px solid #8886; }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; }
pre { white-space: pre-wrap; margin: .3rem 0 1rem; }
.failed { font-weight: bold; }
""".strip()


@dataclass(frozen=True, slots=True)
class Verdict:
    """A model on a kind of board. seconds: to compile it and wait for the board. failures: a
    message each. record: None if it did not run. change: of its cost since the baseline; note: why
    there is no change. status: the exit status that its own run would have had."""

    model: str
    kind: str
    seconds: float
    failures: tuple[str, ...] = ()
    record: Record | None = None
    change: Change | None = None
    note: str = ""
    status: int = FAILED

    @property
    def ok(self) -> bool:
        return not self.failures

    @property
    def word(self) -> str:
        if self.failures:
            return "FAILED"
        assert self.record is not None
        return "not compared" if self.record["ok"] is None else "ok"

    @property
    def cost(self) -> str:
        """Executed instructions, or the median time; "-" if neither is known."""
        record = self.record
        if record is None:
            return "-"
        if record["instructions"] is not None:
            return f"{record['instructions']:,} instructions"
        latency = record["latency"]
        if latency is None or latency["verdict"] == "emulated":
            return "-"
        return f"{latency['median_ms']:.3g} ms"

    @property
    def since(self) -> str:
        return self.change.verdict if self.change else self.note


def summary(verdicts: Sequence[Verdict]) -> str:
    """12 runs: 11 ok, 1 failed"""
    failed = sum(not v.ok for v in verdicts)
    ok = len(verdicts) - failed
    runs = "1 run" if len(verdicts) == 1 else f"{len(verdicts)} runs"
    return f"{runs}: {ok} ok, {failed} failed"


def show(verdicts: Sequence[Verdict], stream: TextIO) -> None:
    """Prints a row for each verdict, then the failures."""
    console = console_for(stream)
    held = any(v.since for v in verdicts)
    columns = [("model", False), ("board", False), ("result", False), ("cost", True)]
    table = plain_table(*columns, *([("baseline", False)] if held else []))
    for v in verdicts:
        more = (v.since,) if held else ()
        add_row(table, v.model, v.kind, v.word, v.cost, *more, style="" if v.ok else BAD)
    console.print(table)
    console.print()
    for v in verdicts:
        for text in v.failures:
            console.print(line(f" {v.model} on {v.kind}", BAD))
            for each in text.split("\n"):
                console.print(line(f"   {each}"), soft_wrap=True)
    failed = any(not v.ok for v in verdicts)
    console.print(labelled("verdict", summary(verdicts), BAD if failed else GOOD))


def as_junit(verdicts: Sequence[Verdict]) -> str:
    """JUnit's XML: a suite for each kind of board, a case for each model."""
    root = xml.Element("testsuites", _counts(verdicts))
    for kind in dict.fromkeys(v.kind for v in verdicts):
        own = [v for v in verdicts if v.kind == kind]
        suite = xml.SubElement(root, "testsuite", {"name": kind, **_counts(own)})
        for v in own:
            about = {"classname": kind, "name": v.model, "time": f"{v.seconds:.3f}"}
            case = xml.SubElement(suite, "testcase", about)
            for text in v.failures:
                failure = xml.SubElement(
                    case, "failure", {"message": _printed(text.split("\n")[0])}
                )
                failure.text = _printed(text)
            costs = _printed(", ".join(filter(None, (v.cost, v.since))))
            xml.SubElement(case, "system-out").text = costs
    xml.indent(root)
    return xml.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _counts(verdicts: Sequence[Verdict]) -> dict[str, str]:
    failures = sum(not v.ok for v in verdicts)
    return {
        "tests": str(len(verdicts)),
        "failures": str(failures),
        "time": f"{sum(v.seconds for v in verdicts):.3f}",
    }


def _printed(text: str) -> str:
    """Text without characters that XML cannot hold."""
    return "".join(c if c in "\t\n" or c.isprintable() else "?" for c in text)


def as_html(verdicts: Sequence[Verdict]) -> str:
    """One page without scripts, which opens offline."""
    rows = "\n".join(
        f'<tr class="{"ok" if v.ok else "failed"}"><td>{escape(v.model)}</td>'
        f"<td>{escape(v.kind)}</td><td>{escape(v.word)}</td>"
        f'<td class="number">{escape(v.cost)}</td><td>{escape(v.since)}</td></tr>'
        for v in verdicts
    )
    failures = "\n".join(
        f"<h2>{escape(v.model)} on {escape(v.kind)}</h2>"
        + "".join(f"<pre>{escape(text)}</pre>" for text in v.failures)
        for v in verdicts
        if v.failures
    )
    return f"""<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>mlc-deploy test</title>
<style>
{STYLE}
</style>
<h1>{escape(summary(verdicts))}</h1>
<table>
<tr><th>model</th><th>board</th><th>result</th><th class="number">cost</th><th>baseline</th></tr>
{rows}
</table>
{failures}
</html>
"""
