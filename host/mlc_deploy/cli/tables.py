"""Tables, and numbers as people read them."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any, TextIO

from rich.console import Console
from rich.table import Table
from rich.text import Text

from mlc_targets.text import LONG, shown

Record = dict[str, Any]

WIDE = 200  # columns without a terminal
LABEL_COLUMN = 11  # characters: the longest label and a space
FAINT = "dim"


def console_for(stream: TextIO) -> Console:
    """A console for plain text. A narrow terminal cuts the ends of names."""
    console = Console(file=stream, highlight=False, markup=False, emoji=False)
    if console.is_terminal:
        return console
    return Console(file=stream, highlight=False, markup=False, emoji=False, width=WIDE)


def line(text: str, style: str = "", *, short: bool = False) -> Text:
    """One line, which may hold text from outside: a model's names, a board's words. A narrow
    terminal cuts the end of a `short` line."""
    cut = {"no_wrap": True, "overflow": "ellipsis"} if short else {}
    return Text(shown(text, LONG), style, **cut)  # type: ignore[arg-type]


def tell(text: str, stream: TextIO | None = None) -> None:
    """Prints lines that may hold text from outside, on stdout by default."""
    print("\n".join(shown(each, LONG) for each in text.split("\n")), file=stream or sys.stdout)


def labelled(label: str, text: str, style: str = "") -> Text:
    """A line below a table."""
    return line(f" {label:<{LABEL_COLUMN - 1}}", FAINT).append(line(text, style))


def print_facts(console: Console, facts: Iterable[tuple[str, ...]]) -> None:
    """Prints lines of (label, text), or of (label, text, style)."""
    for fact in facts:
        console.print(labelled(*fact), soft_wrap=True)


def plain_table(*columns: tuple[str, bool]) -> Table:
    """A table without lines; columns are (title, holds numbers). The first may shrink."""
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style=FAINT)
    for number, (title, right) in enumerate(columns):
        table.add_column(
            f" {title}" if number == 0 else title,
            justify="right" if right else "left",
            no_wrap=number > 0,
        )
    return table


def add_row(table: Table, first: str, *cells: str, style: str = "") -> None:
    table.add_row(line(f" {first}", short=True), *map(line, cells), style=style)


def tensor_text(of: Record) -> str:
    """A shape as 16x3x8x8, with its dtype unless it is float32."""
    shape = "x".join(map(str, of["shape"])) or "scalar"
    return shape if of["dtype"] == "float32" else f"{shape} {of['dtype']}"


def count_text(n: int) -> str:
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if n >= size:
            return f"{n / size:.3g} {unit}"
    return str(n)


def bytes_text(n: int) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if n >= size:
            return f"{n / size:.1f} {unit}"
    return f"{n} B"


def in_short(record: Record) -> str:
    """4 of 4 layers; agreement 100.00 % before, 99.90 % after"""
    integers = sum(layer["bits"] < 32 for layer in record["layers"])
    text = f"{integers} of {len(record['layers'])} layers"
    if record["measure"]:
        of = record["measure"].split()[0]
        text += f"; {of} {record['before']:.2f} % before, {record['after']:.2f} % after"
    return text
