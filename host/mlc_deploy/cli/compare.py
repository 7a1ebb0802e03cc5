"""`mlc-deploy compare`: two records of `--json`, layer by layer; a gate for builds."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

import click
from rich.table import Table

from ..files.fields import Malformed, parsed
from ..files.outside import read_file
from .errors import FAILED, OK
from .help import OUTPUTS, command, grouped
from .options import DEBUG, Misuse
from .tables import Record, add_row, console_for, labelled, plain_table

Costs = Mapping[tuple[str, int], float]  # by a layer's name, and its number among equal names

# Figures to compare, the preferred one first: a layer's key -> the column's title, and the words
# for less and for more.
MEASURES = {
    "instructions": ("instructions", "fewer instructions", "more instructions"),
    "median_us": ("µs", "less time", "more time"),
    "predicted_ms": ("predicted ms", "less predicted time", "more predicted time"),
}
BY = {"instructions": "instructions", "time": "median_us", "predicted": "predicted_ms"}
BY_HELP = "Compare by this (default: instructions, else time, else predicted)"
KEYS = ("model", "target", "precision", "threads", "board", "layers", "instructions", "latency")
RISE_HELP = "Allow a rise of PERCENT (default: 1; measured times need more)"


@command(
    examples=(
        "mlc-deploy model.onnx --target aarch64 --json before.json",
        "mlc-deploy compare before.json after.json --rise 2",
    )
)
@click.argument("before", type=click.Path())
@click.argument("after", type=click.Path())
@grouped(OUTPUTS, "--rise", type=float, default=1.0, metavar="PERCENT", help=RISE_HELP)
@grouped(OUTPUTS, "--by", type=click.Choice(tuple(BY)), help=BY_HELP)
@DEBUG
def compare(before: str, after: str, rise: float, by: str | None) -> int:
    """Compare the results of two runs, layer by layer.

    BEFORE and AFTER are JSON files written by `mlc-deploy MODEL --json FILE`. Executed instructions
    are compared if both have them, else measured times, else predicted times. The exit status is 1
    if the model's cost rose by more than PERCENT, so a build can stop there.
    """
    if not 0 <= rise < float("inf"):
        raise Misuse("--rise must be 0 or more", where=f"--rise {rise:g}", mend="--rise 1")
    old, new = read_record(before), read_record(after)
    change = changed(old, new, rise, (BY[by],) if by else tuple(MEASURES))
    if change is None and by:
        raise Misuse(
            f"a file has no {by if by == 'instructions' else f'{by} time'}",
            where=f"{before}, {after}",
            mend="without --by, or results from the same --board",
        )
    if change is None:
        raise Misuse(
            "the results cannot be compared: one has instructions, the other times",
            where=f"{before}, {after}",
            mend="the same --board for both",
        )
    console = console_for(sys.stdout)
    console.print(_table(old, new, change))
    console.print()
    for text in _differences(old, new):
        console.print(labelled("note", text, "yellow"), soft_wrap=True)
    style = "bold red" if change.rose else "green"
    console.print(labelled("verdict", change.verdict, style), soft_wrap=True)
    return FAILED if change.rose else OK


@dataclass(frozen=True, slots=True)
class Change:
    """A model's cost in two records, by one of MEASURES; a rise up to `limit` percent is none."""

    measure: str
    was: float
    now: float
    limit: float

    @property
    def rose(self) -> bool:
        return self.now > self.was * (1 + self.limit / 100)

    @property
    def verdict(self) -> str:
        """5.26 % fewer instructions; 1.02 % more instructions, above the limit of 1 %"""
        _, fewer, more = MEASURES[self.measure]
        if self.now == self.was:
            return "no change"
        share = "infinitely"
        if self.was:
            share = f"{abs(self.now - self.was) / self.was:.2%}".replace("%", " %")
        if self.now < self.was:
            return f"{share} {fewer}"
        side = "above" if self.rose else "within"
        return f"{share} {more}, {side} the limit of {self.limit:g} %"


def changed(
    old: Record, new: Record, limit: float, measures: Sequence[str] = tuple(MEASURES)
) -> Change | None:
    """The change of a model's cost, by the first measure that both records have; None if they share
    none."""
    for measure in measures:
        was, now = _whole(old, measure), _whole(new, measure)
        if was is not None and now is not None:
            return Change(measure, was, now, limit)
    return None


def read_record(file: str) -> Record:
    """A record that --json wrote. Raises Misuse for any other file."""
    try:
        record = parsed(read_file(file))
        for layer in record["layers"]:
            layer["name"].text()
            for measure in MEASURES:
                layer[measure].maybe_amount()
        if foreseen := record["predicted"]:
            foreseen["ms"].maybe_amount()
        record["instructions"].maybe_amount()
        if latency := record["latency"]:
            latency["median_ms"].maybe_amount()
            latency["verdict"].text()
        if board := record["board"]:
            board["url"].text()
        return {key: record.value[key] for key in KEYS} | {"predicted": foreseen.value}
    except FileNotFoundError:
        raise Misuse("there is no such file", where=file, mend="a file that --json wrote") from None
    except OSError as error:
        raise Misuse(f"cannot be read: {error.strerror}", where=file) from None
    except (Malformed, KeyError):
        raise Misuse(
            "this is not a results file of mlc-deploy",
            where=file,
            mend="mlc-deploy MODEL --board B --json FILE",
        ) from None


def _whole(record: Record, measure: str) -> float | None:
    """The model's cost: instructions, median µs, or predicted ms; None if unknown, or for an
    emulator's time."""
    if measure == "instructions":
        return None if record["instructions"] is None else float(record["instructions"])
    if measure == "predicted_ms":
        return None if record["predicted"] is None else float(record["predicted"]["ms"])
    latency = record["latency"]
    if latency is None or latency["verdict"] == "emulated":
        return None
    return float(latency["median_ms"]) * 1e3


def _layers(record: Record, measure: str) -> Costs:
    times: dict[str, Any] = {}
    return {
        (layer["name"], next(times.setdefault(layer["name"], count()))): float(layer[measure])
        for layer in record["layers"]
        if layer.get(measure) is not None
    }


def _table(before: Record, after: Record, change: Change) -> Table:
    old, new = _layers(before, change.measure), _layers(after, change.measure)
    title = MEASURES[change.measure][0]
    table = plain_table(
        ("layer", False), (f"{title} before", True), ("after", True), ("change", True)
    )
    for key in (*new, *(key for key in old if key not in new)):
        was, now = old.get(key), new.get(key)
        share = "" if was is None or now is None else _share(was, now)
        add_row(table, key[0], _number(was), _number(now), share)
    was, now = change.was, change.now
    add_row(table, "whole model", _number(was), _number(now), _share(was, now), style="bold")
    return table


def _number(cost: float | None) -> str:
    if cost is None:
        return "-"
    if cost == int(cost):
        return f"{cost:,.0f}"
    return f"{cost:,.1f}" if cost >= 10 else f"{cost:.3g}"


def _share(before: float, after: float) -> str:
    return f"{(after - before) / before:+.2%}" if before else ""


def _differences(old: Record, new: Record) -> Sequence[str]:
    """The other differences, and warnings about the times."""
    found = [
        f"{what} was {old[what]}, and is {new[what]}"
        for what in ("model", "target", "precision", "threads")
        if old[what] != new[what]
    ]
    boards = [record["board"] and record["board"]["url"] for record in (old, new)]
    if boards[0] != boards[1]:
        found.append(f"board was {boards[0]}, and is {boards[1]}")
    for when, record in (("before", old), ("after", new)):
        verdict = (record["latency"] or {}).get("verdict")
        if verdict not in (None, "ok", "emulated"):
            found.append(f"the times {when} are {verdict}")
    return found
