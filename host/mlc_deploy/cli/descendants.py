"""The processes that descend from this one."""

from __future__ import annotations

import os
import signal
import sys
import time
from contextlib import suppress
from typing import NamedTuple

LOOK_SECONDS = 0.005


class Process(NamedTuple):
    """`start` (ticks since boot) tells a process from a later one with the same number."""

    pid: int
    start: int


def descendants(of: set[Process] | None = None) -> set[Process]:
    """The descendants of this process and of the processes `of`, and those of `of` that still run.
    Empty outside Linux."""
    parents: dict[Process, int] = {}
    for name in os.listdir("/proc") if sys.platform == "linux" else ():
        if name.isdigit():
            with suppress(OSError):  # it has ended meanwhile
                with open(f"/proc/{name}/stat", "rb") as file:
                    fields = file.read().rpartition(b")")[2].split()
                if fields[0] not in b"ZX":
                    parents[Process(int(name), int(fields[19]))] = int(fields[1])
    found = {process for process in of or () if process in parents}
    above = {os.getpid(), *(process.pid for process in found)}
    while more := {p for p, parent in parents.items() if parent in above} - found:
        found |= more
        above = {process.pid for process in more}
    return found


def end_descendants(term_seconds: float, kill_seconds: float) -> None:
    """Sends SIGTERM to all descendants, and SIGKILL to those left after term_seconds."""
    found = descendants()
    asked: set[Process] = set()
    for number, seconds in ((signal.SIGTERM, term_seconds), (signal.SIGKILL, kill_seconds)):
        deadline = time.monotonic() + seconds
        while found and time.monotonic() < deadline:
            told = found - asked if number == signal.SIGTERM else found
            # Parents first: a living shell would report its killed child.
            for process in sorted(told, key=lambda process: (process.start, process.pid)):
                with suppress(OSError):  # it has ended, or its number belongs to another user
                    os.kill(process.pid, number)
            asked |= found
            time.sleep(LOOK_SECONDS)
            found = descendants(found)
