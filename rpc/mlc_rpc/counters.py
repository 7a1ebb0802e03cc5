"""Executed instructions per call, from the records of QEMU's counting plugin.

The plugin (device_runtime/qemu_plugin/count.c) appends one record for each mark of the board's
program. A begin and an end mark enclose each call. The first pair has the index CALIBRATION and
encloses a kernel that only returns; its counts are the cost of marking and are subtracted.
If the plugin simulates data caches, a record also has the lines that each cache fetched.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from mlc_targets.caches import Cache

CLASSES = ("mac", "vector", "load", "store", "branch", "scalar")
BEGIN, END = 1, 2
CALIBRATION = 0xFFFFFFFF
MOST_BYTES = 1 << 24  # of marks read at once: more than any model makes
RECORD = struct.Struct(f"<II{len(CLASSES)}Q")  # tag, index, instructions so far by class


class CounterError(Exception):
    """The plugin's file is torn, or its marks do not pair."""


@dataclass(frozen=True, slots=True)
class Record:
    """One mark, BEGIN or END of a call. `counters`: the instructions executed so far, by class;
    then the lines that each cache has fetched."""

    tag: int
    index: int
    counters: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CallCounts:
    """Instructions that one call executed, by class; `index` is that of the call table. `misses`:
    the lines of 64 bytes that each simulated cache fetched, by the cache's name."""

    index: int
    by_class: dict[str, int]
    misses: dict[str, int] = field(default_factory=dict)

    @property
    def total(self) -> int:
        return sum(self.by_class.values())


def parse_records(data: bytes, caches: int = 0) -> list[Record]:
    """The records of a plugin that simulates `caches` caches. Raises CounterError when `data` is
    not a whole number of records, or holds an unknown tag."""
    form = struct.Struct(f"{RECORD.format}{caches}Q")
    if len(data) % form.size:
        raise CounterError(
            f"counter file is torn: {len(data)} bytes are not a multiple of {form.size}\n"
            "  try: run again; QEMU was killed while it wrote, or the disk is full"
        )
    records = [Record(tag, index, tuple(rest)) for tag, index, *rest in form.iter_unpack(data)]
    for number, record in enumerate(records):
        if record.tag not in (BEGIN, END):
            raise CounterError(
                f"counter file is torn: record {number} has tag {record.tag}, neither begin nor end"
            )
    return records


def per_call(records: Sequence[Record], caches: Sequence[str] = ()) -> list[CallCounts]:
    """Counts of each call in the order of the marks, less the cost of marking.

    Raises CounterError when a begin has no end, or a call comes before any calibration.
    """
    if len(records) % 2:
        raise CounterError(f"call {records[-1].index} began and never ended: was it killed?")
    calls: list[CallCounts] = []
    cost: tuple[int, ...] | None = None
    for begin, end in zip(records[::2], records[1::2], strict=True):
        if (begin.tag, end.tag) != (BEGIN, END) or begin.index != end.index:
            raise CounterError(
                f"marks do not pair: tag {begin.tag} of call {begin.index} "
                f"is followed by tag {end.tag} of call {end.index}"
            )
        spent = tuple(b - a for a, b in zip(begin.counters, end.counters, strict=True))
        if begin.index == CALIBRATION:
            cost = spent
        elif cost is None:
            raise CounterError(f"call {begin.index} comes before any calibration")
        else:
            net = [a - b for a, b in zip(spent, cost, strict=True)]
            executed, fetched = net[: len(CLASSES)], (max(n, 0) for n in net[len(CLASSES) :])
            calls.append(
                CallCounts(
                    begin.index,
                    dict(zip(CLASSES, executed, strict=True)),
                    dict(zip(caches, fetched, strict=True)),
                )
            )
    return calls


def per_index(counts: Sequence[CallCounts], turns: Sequence[int]) -> list[CallCounts]:
    """Sums the counts of each call of the call table; `turns` says how often each call ran. Raises
    CounterError when the marks are more than that."""
    sums = [CallCounts(n, dict.fromkeys(CLASSES, 0)) for n in range(len(turns))]
    left = list(turns)
    for call in counts:
        if call.index >= len(left) or not left[call.index]:
            raise CounterError(f"call {call.index} was counted more often than it ran")
        left[call.index] -= 1
        so_far = sums[call.index]
        for name, count in call.by_class.items():
            so_far.by_class[name] += count
        for name, count in call.misses.items():
            so_far.misses[name] = so_far.misses.get(name, 0) + count
    return sums


class Counter:
    """The plugin's file while the board's program runs: `start`, a marked run, `take`."""

    def __init__(self, path: Path, caches: Sequence[Cache] = ()) -> None:
        self._path = path
        self._caches = tuple(cache.name for cache in caches)
        self._offset = 0

    def start(self) -> None:
        """Skips earlier records, such as those of a run that crashed."""
        self._offset = self._path.stat().st_size if self._path.exists() else 0

    def take(self, calls: int | None = None) -> list[CallCounts]:
        """Counts of the calls since `start` or the last `take`. The emulated program writes the
        marks, so they are checked: raises CounterError unless they are for `calls` calls (None:
        any number) and no count is negative."""
        data = b""
        if self._path.exists():
            with self._path.open("rb") as file:
                file.seek(self._offset)
                data = file.read(MOST_BYTES)
        self._offset += len(data)
        found = per_call(parse_records(data, len(self._caches)), self._caches)
        if calls is not None and len(found) != calls:
            raise CounterError(f"{len(found)} calls were counted, and {calls} ran")
        for call in found:
            if call.total < 0:
                raise CounterError(f"call {call.index} took less than nothing: {call.total}")
        return found


def plugin_remedy() -> str:
    """Where to get a QEMU that counts: an installed package has no scripts."""
    if (Path(__file__).parents[2] / "scripts" / "build-qemu").exists():
        return "scripts/build-qemu"
    return "a QEMU that was built with --enable-plugins, as Debian 12's qemu-user"
