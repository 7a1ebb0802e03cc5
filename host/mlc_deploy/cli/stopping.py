"""--stop-after LAYER[@N]: the results of a layer as a table, in the record and as files."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TextIO

import numpy as np
from numpy.typing import NDArray

from mlc_rpc.stopped import Stopped

from ..files.unfinished import replacing
from .tables import Record, add_row, console_for, plain_table, tensor_text

STOP_HELP = "Stop after a layer, at iteration N or N-M, and show it"


def _rows(stops: Iterable[Stopped], to: Path | None) -> Iterator[Record]:
    """The entries of the record's `stops`, one per result. Writes the results into `to`."""
    for stopped in stops:
        for name, array in stopped.results.items():
            yield {
                "layer": stopped.layer,
                "kernel": stopped.kernel,
                "turn": stopped.turn,
                "name": name,
                "shape": list(array.shape),
                "dtype": array.dtype.name,
                **_figures(array),
                "file": None if to is None else _written(stopped, name, array, to),
            }


def _figures(array: NDArray[np.generic]) -> Record:
    wide = array.astype(np.float64)
    finite = wide[np.isfinite(wide)]
    least, most, mean = (
        (float(finite.min()), float(finite.max()), float(finite.mean()))
        if finite.size
        else (None, None, None)
    )
    return {"least": least, "most": most, "mean": mean, "not_finite": wide.size - finite.size}


def _written(stopped: Stopped, name: str, array: NDArray[np.generic], to: Path) -> str:
    """Writes a result, and returns the file's name, in which "_" replaces slashes and the like."""
    layer, result = (re.sub(r"[^\w.-]", "_", part) for part in (stopped.layer, name))
    file = f"{layer}.{stopped.turn}.{result}.npy"
    with replacing(to / file) as part, part.open("wb") as opened:
        np.save(opened, array)
    return file


def shown_stops(stops: Iterable[Stopped], to: Path | None, stream: TextIO) -> list[Record]:
    """The rows. Prints them as a table, also if a later iteration does not come."""
    rows: list[Record] = []
    try:
        for row in _rows(stops, to):
            rows.append(row)
    finally:
        if rows:
            _show(rows, stream)
    return rows


def _show(rows: Iterable[Record], stream: TextIO) -> None:
    """A line for each result of each iteration."""
    texts = ("layer", "iteration", "result", "shape", "least", "most", "mean", "not finite")
    table = plain_table(*((text, text not in ("layer", "result", "shape")) for text in texts))
    for row in rows:
        numbers = (row[name] for name in ("least", "most", "mean"))
        shown = ("" if number is None else f"{number:.6g}" for number in numbers)
        add_row(
            table, row["layer"], str(row["turn"]), row["name"], tensor_text(row), *shown,
            str(row["not_finite"]),
        )  # fmt: skip
    console_for(stream).print(table)
