"""What came of a job, for people: made of the record and nothing else."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TextIO

from rich.console import Console
from rich.table import Table
from rich.text import Text

Record = dict[str, Any]

WIDE = 200  # columns where no terminal says how many
LABEL_COLUMN = 11
GOOD, BAD, FAINT = "green", "bold red", "dim"


def show(record: Record, stream: TextIO, verbose: bool = False) -> None:
    """Prints the record as tables; on a terminal, what is too wide loses the ends of names."""
    console = Console(file=stream, highlight=False, markup=False)
    if not console.is_terminal:
        console = Console(file=stream, highlight=False, markup=False, width=WIDE)
    console.print(Text(_title(record), style="bold", no_wrap=True, overflow="ellipsis"))
    console.print()
    console.print(_layers(record))
    if verbose and record["instructions"] is not None:
        console.print()
        console.print(_classes(record))
    console.print()
    for label, text, style in _facts(record):
        line = Text().append(f" {label:<{LABEL_COLUMN - 1}}", FAINT).append(text, style)
        console.print(line, soft_wrap=True)


def _title(record: Record) -> str:
    board = record["board"]
    if board is None:
        return f"{record['model']} for {_short(record['target'])}, not run"
    cpu = "" if board["cpu_model"] == "unknown" else f" ({board['cpu_model']})"
    return f"{record['model']} for {_short(record['target'])} on {board['url']}{cpu}"


def _short(target: str) -> str:
    from mlc_targets import Target

    return Target(target).short_name


def _table(*columns: tuple[str, bool]) -> Table:
    """A table without lines; columns as (title, whether it holds numbers). The first may shrink."""
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style=FAINT)
    for number, (title, right) in enumerate(columns):
        table.add_column(
            f" {title}" if number == 0 else title,
            justify="right" if right else "left",
            no_wrap=number > 0,
        )
    return table


def _row(table: Table, first: str, *cells: str, style: str = "") -> None:
    name = Text(f" {first}", no_wrap=True, overflow="ellipsis")
    table.add_row(name, *(Text(cell) for cell in cells), style=style)


def _layers(record: Record) -> Table:
    """Per layer: its kernel, what it computes, and its cost."""
    layers: Sequence[Record] = record["layers"]
    if record["instructions"] is not None:
        title, costs = "instructions", [layer["instructions"] for layer in layers]
        texts = [f"{cost:,}" for cost in costs]
    elif layers and layers[0]["median_us"] is not None:
        title, costs = _micro(record), [layer["median_us"] for layer in layers]
        texts = [f"{cost:,.1f}" for cost in costs]
    else:
        table = _table(("layer", False), ("kernel", False), ("computes", False))
        for layer in layers:
            _row(table, layer["name"], layer["kernel"], _tensor(layer))
        return table
    columns = ("layer", False), ("kernel", False), ("computes", False), (title, True)
    table = _table(*columns, ("share", True))
    total = sum(costs)
    for layer, cost, text in zip(layers, costs, texts, strict=True):
        share = f"{cost / total:.1%}" if total else ""
        _row(table, layer["name"], layer["kernel"], _tensor(layer), text, share)
    whole = f"{total:,}" if record["instructions"] is not None else f"{total:,.1f}"
    _row(table, "total", "", "", whole, "100.0%", style="bold")
    return table


def _classes(record: Record) -> Table:
    """Per layer: executed instructions by class."""
    layers: Sequence[Record] = record["layers"]
    names = list(layers[0]["by_class"]) if layers else []
    table = _table(("layer", False), *((name, True) for name in names))
    for layer in layers:
        _row(table, layer["name"], *(_count(layer["by_class"][name]) for name in names))
    sums = [sum(layer["by_class"][name] for layer in layers) for name in names]
    _row(table, "total", *map(_count, sums), style="bold")
    return table


def _facts(record: Record) -> Iterable[tuple[str, str, str]]:
    """(label, text, style) of the lines below the table."""
    if found := record["predictions"]:
        yield "predicted", _series(found["predicted"]), ""
        yield "label", _series(found["label"]), ""
        count = len(_flat(found["label"]))
        right = round(found["accuracy"] * count)
        yield "accuracy", f"{right} of {count}, {found['accuracy']:.1%}", ""
    for output in record["outputs"] or ():
        error, share = output["max_abs_err"], output["max_rel_err"]
        size = "nan or infinite" if error is None else f"{error:.2g}"
        relative = "" if share is None else f", {share:.2g} of the largest"
        text = f"{output['name']} {_tensor(output)}: error {size}{relative}"
        verdict = "ok" if output["ok"] else "WRONG"
        yield "output", f"{text}: {verdict}", GOOD if output["ok"] else BAD
    if found := record["latency"]:
        yield "latency", _latency(record), ""
    if record["upload_s"] is not None:
        seconds = _time(record["upload_s"] * 1e3)
        yield "upload", f"{seconds}: {_bytes(record['upload_bytes'])}", ""
    sizes = ", ".join(
        f"{name} {_bytes(record[f'{name}_bytes'])}" for name in ("object", "weights", "arena")
    )
    yield "compile", f"{_time(record['compile_s'] * 1e3)}: {sizes}", ""


def _latency(record: Record) -> str:
    found = record["latency"]
    if found["verdict"] == "emulated":
        count = record["instructions"]
        quoted = "not counted" if count is None else f"{count:,}"
        return f"emulated, says nothing of a board; executed instructions: {quoted}"
    return (
        f"median {_time(found['median_ms'])}, p95 {_time(found['p95_ms'])}, "
        f"mad {_time(found['mad_ms'])}, {found['n']} samples: {found['verdict']}"
    )


def _tensor(of: Record) -> str:
    """A shape as 16x3x8x8, with its dtype where that is not float32."""
    shape = "x".join(map(str, of["shape"])) or "scalar"
    return shape if of["dtype"] == "float32" else f"{shape} {of['dtype']}"


def _flat(values: Any) -> list[int]:
    return [n for v in values for n in _flat(v)] if isinstance(values, list) else [values]


def _series(values: Any) -> str:
    flat = _flat(values)
    return " ".join(map(str, flat[:32])) + (" ..." if len(flat) > 32 else "")


def _count(n: int) -> str:
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if n >= size:
            return f"{n / size:.3g} {unit}"
    return str(n)


def _bytes(n: int) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if n >= size:
            return f"{n / size:.1f} {unit}"
    return f"{n} B"


def _time(ms: float) -> str:
    """Three digits."""
    for unit, size in (("s", 1e3), ("ms", 1.0)):
        if ms >= size:
            return f"{ms / size:.3g} {unit}"
    return f"{ms * 1e3:.3g} µs"


def _micro(record: Record) -> str:
    return "emulated µs" if record["latency"]["verdict"] == "emulated" else "µs"
