"""--report FILE and --trace FILE: a record as a page, and as a timeline."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..files.unfinished import write_whole
from .options import Misuse, writable
from .tables import Record

REPORT_HELP = "Write an HTML report (adds details to --json)"
TRACE_HELP = "Write a timeline for Perfetto or Chrome, a .json file"


@dataclass(frozen=True, slots=True)
class Drawn:
    """The values of --report and --trace. `others` are the command's other files. Raises Misuse
    for a file that cannot be written, or is another of them."""

    report: str | None
    trace: str | None
    others: Sequence[str | None] = ()

    def __post_init__(self) -> None:
        taken = {Path(other).resolve() for other in self.others if other}
        for option, text in (("--report", self.report), ("--trace", self.trace)):
            if text is None:
                continue
            path = writable(option, text).resolve()
            if path in taken:
                raise Misuse(
                    "it would overwrite another file of this command",
                    where=f"{option} {text}",
                    mend="another name",
                )
            taken.add(path)

    def write(self, record: Record) -> None:
        """Writes the files. Raises OSError, and ReportError for a page that would be too large."""
        if self.report is None and self.trace is None:
            return
        from ..report import read_run, run_page, run_trace  # here: most runs draw nothing

        run = read_run(json.dumps(record), record["model"])
        if self.trace is not None:
            write_whole(writable("--trace", self.trace), run_trace(run))
        if self.report is not None:
            write_whole(writable("--report", self.report), run_page(run))
