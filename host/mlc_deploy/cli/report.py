"""The result of a job as tables and lines, made from the record alone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TextIO

from rich.table import Table

from mlc_rpc.cores import ranges
from mlc_targets import BASE, Target

from .box import box_facts
from .tables import (
    Record,
    add_row,
    bytes_text,
    console_for,
    count_text,
    in_short,
    line,
    plain_table,
    print_facts,
    tensor_text,
)

GOOD, WARNING, BAD = "green", "yellow", "bold red"


def show(record: Record, stream: TextIO, verbose: bool = False) -> None:
    """Prints the record as tables. A narrow terminal cuts the ends of names."""
    console = console_for(stream)
    console.print(line(_title(record), "bold", short=True))
    console.print()
    console.print(_layers(record))
    if verbose and record["instructions"] is not None:
        console.print()
        console.print(_classes(record))
    console.print()
    print_facts(console, _facts(record))


def _title(record: Record) -> str:
    board, target = record["board"], Target(record["target"]).short_name
    if record["level"] != BASE:
        target = f"{target} with {record['level']}"
    if board is None:
        return f"{record['model']} for {target}, not run"
    cpu = "" if board["cpu_model"] == "unknown" else f" ({board['cpu_model']})"
    return f"{record['model']} for {target} on {board['url']}{cpu}"


def _layers(record: Record) -> Table:
    """Per layer: its kernel, result and cost; in a model with loops, also the iterations that the
    cost is of."""
    layers: Sequence[Record] = record["layers"]
    if record["instructions"] is not None:
        title, costs = "instructions", [layer["instructions"] for layer in layers]
        texts = [f"{cost:,}" for cost in costs]
    elif layers and layers[0]["median_us"] is not None:
        title, costs = _micro(record), [layer["median_us"] for layer in layers]
        texts = [f"{cost:,.1f}" for cost in costs]
    else:
        table = plain_table(("layer", False), ("kernel", False), ("output", False))
        for layer in layers:
            add_row(table, layer["name"], layer["kernel"], tensor_text(layer))
        return table
    looped = any("turns" in layer for layer in layers)
    foreseen = record.get("predicted") is not None
    ahead = [("predicted ms", True)] if foreseen else []
    columns = ("layer", False), ("kernel", False), ("output", False)
    turns = [("turns", True)] if looped else []
    table = plain_table(*columns, *turns, (title, True), ("share", True), *ahead)
    total = sum(costs)
    for layer, cost, text in zip(layers, costs, texts, strict=True):
        share = f"{cost / total:.1%}" if total else ""
        often = [str(layer.get("turns", 1))] if looped else []
        ms = [milliseconds(layer["predicted_ms"])] if foreseen else []
        shown = tensor_text(layer)
        add_row(table, layer["name"], layer["kernel"], shown, *often, text, share, *ms)
    whole = f"{total:,}" if record["instructions"] is not None else f"{total:,.1f}"
    ms = [milliseconds(record["predicted"]["ms"])] if foreseen else []
    blank = [""] if looped else []
    add_row(table, "total", "", "", *blank, whole, "100.0%", *ms, style="bold")
    return table


def milliseconds(ms: float) -> str:
    """Three digits: a prediction is no more precise."""
    return f"{ms:.3g}" if ms < 1000 else f"{ms:,.0f}"


def _predicted(found: Record) -> str:
    """176 ms (160 to 195), 1 thread; 4 threads 96 ms, on cortex-a72 at 1,800 MHz"""
    more = "".join(
        f"; {n} threads {milliseconds(ms)} ms" for n, ms in found["threads"].items() if n != "1"
    )
    on = f"on {found['core']} at {found['mhz']:,.0f} MHz, not measured"
    if own := found.get("calibrated"):
        as_if = f", counted as a {found['core']}'s" if own["like"] else ""
        core = own["cpu"] if own["like"] else found["core"]
        on = f"on {own['board']} ({core}{as_if}), calibrated on this board on {own['date']}"
    bounds = f"({milliseconds(found['low'])} to {milliseconds(found['high'])})"
    return f"{milliseconds(found['ms'])} ms {bounds}, 1 thread{more}, {on}"


def _classes(record: Record) -> Table:
    """Per layer: executed instructions by class."""
    layers: Sequence[Record] = record["layers"]
    names = list(layers[0]["by_class"]) if layers else []
    table = plain_table(("layer", False), *((name, True) for name in names))
    for layer in layers:
        add_row(table, layer["name"], *(count_text(layer["by_class"][name]) for name in names))
    sums = [sum(layer["by_class"][name] for layer in layers) for name in names]
    add_row(table, "total", *map(count_text, sums), style="bold")
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
        if output["ok"] is None:
            text = f"{output['name']} {tensor_text(output)}: not compared (no reference)"
            yield "output", text, ""
            continue
        error, share = output["max_abs_err"], output["max_rel_err"]
        size = "nan or infinite" if error is None else f"{error:.2g}"
        relative = "" if share is None else f", {share:.2g} of the largest"
        text = f"{output['name']} {tensor_text(output)}: error {size}{relative}"
        if stepped := output.get("stepped"):
            text += f" ({count_text(stepped)} elements off by steps of integers)"
        if moves := output.get("moves"):
            text += f" (ill-conditioned: the model itself moves by {moves:.2g})"
        verdict = "ok" if output["ok"] else "WRONG"
        yield "output", f"{text}: {verdict}", GOOD if output["ok"] else BAD
    if "quantized" in record:
        yield "int8", in_short(record["quantized"]), ""
    for begin, end in record.get("states", {}).items():
        yield "state", f"{begin} stays on the board; {end} is its next value", ""
    for lost in record["interruptions"] or ():
        rebooted = ", rebooted" if lost["rebooted"] else ""
        back = f"back after {_time(lost['seconds'] * 1e3)}{rebooted}; all was done again"
        yield "lost", f"{lost['what']}; {back}", WARNING
    if found := record["latency"]:
        yield "latency", _latency(record), "" if found["verdict"] in ("ok", "emulated") else WARNING
        for doubt in found["findings"] if found["verdict"] != "emulated" else ():
            yield "warning", f"{doubt['what']}; try: {doubt['mend']}", WARNING
        if conditions := _conditions(found):
            yield "board", conditions, ""
    if record["board"] is not None:
        for label, text in box_facts(record["board"]["box"]):
            yield label, text, WARNING
    if record["upload_s"] is not None:
        seconds = _time(record["upload_s"] * 1e3)
        yield "upload", f"{seconds}: {bytes_text(record['upload_bytes'])}", ""
    sizes = ", ".join(
        f"{name} {bytes_text(record[f'{name}_bytes'])}" for name in ("object", "weights", "arena")
    )
    if record["compile_s"] is None:
        yield "saved", sizes, ""
    else:
        yield "compile", f"{_time(record['compile_s'] * 1e3)}: {sizes}", ""
    if foreseen := record.get("predicted"):
        yield "predicted", _predicted(foreseen), ""


def _latency(record: Record) -> str:
    found = record["latency"]
    threads = "1 thread" if record["threads"] == 1 else f"{record['threads']} threads"
    if found["verdict"] == "emulated":
        count = record["instructions"]
        uncounted = "not counted" if record["threads"] == 1 else f"not counted on {threads}"
        quoted = uncounted if count is None else f"{count:,}"
        return f"emulated, not a board's time; executed instructions: {quoted}"
    return (
        f"median {_time(found['median_ms'])}, p95 {_time(found['p95_ms'])}, "
        f"deviation {_time(found['mad_ms'])}, {found['n']} samples, "
        f"{threads}: {found['verdict']}"
    )


def _conditions(latency: Record) -> str:
    """The known clocks, temperatures and counts during the samples."""
    found = latency["conditions"] or {"before": {}, "after": {}}
    parts = []
    if latency["cores"]:
        model = "" if latency["cluster"] in ("", "unknown") else f"{latency['cluster']} "
        parts.append(f"{model}cores {ranges(latency['cores'])}")
    if clock := _span(found, "clock_khz", 1e6, ".2f"):
        parts.append(f"{clock} GHz")
    zones = [zone for zone in found["after"] if zone.startswith("zone")]
    parts += [f"{_span(found, zone, 1e3, '.0f')} °C" for zone in zones]
    counts = latency["per_run"]
    if counts["cycles"] and counts["instructions"]:
        parts.append(f"{counts['instructions'] / counts['cycles']:.2f} instructions per cycle")
    if counts["cache_misses"]:
        parts.append(f"{count_text(round(counts['cache_misses']))} cache misses per run")
    return ", ".join(parts)


def _span(conditions: Record, fact: str, unit: float, digits: str) -> str:
    """The range of a fact; "" if it is unknown."""
    rows = [conditions[side].get(fact, ()) for side in ("before", "after")]
    known = [value / unit for row in rows for value in row if value is not None]
    ends = dict.fromkeys(f"{value:{digits}}" for value in (min(known), max(known))) if known else ()
    return " to ".join(ends)


def _flat(values: Any) -> list[int]:
    return [n for v in values for n in _flat(v)] if isinstance(values, list) else [values]


def _series(values: Any) -> str:
    flat = _flat(values)
    return " ".join(map(str, flat[:32])) + (" ..." if len(flat) > 32 else "")


def _time(ms: float) -> str:
    """Three digits."""
    for unit, size in (("s", 1e3), ("ms", 1.0)):
        if ms >= size:
            return f"{ms / size:.3g} {unit}"
    return f"{ms * 1e3:.3g} µs"


def _micro(record: Record) -> str:
    return "emulated µs" if record["latency"]["verdict"] == "emulated" else "µs"
