"""`mlc-deploy report`: a page, or a timeline, of earlier results."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from ..errors import ReportError
from ..files.fields import NoJson, parsed
from ..files.outside import read_file
from ..files.unfinished import write_whole
from ..report import Plan, Task, Trial, read_run, run_page, run_trace, tuning_page
from .drawn import TRACE_HELP
from .errors import OK
from .help import OUTPUTS, command, grouped
from .options import DEBUG, Misuse, writable
from .progress import Progress

if TYPE_CHECKING:
    from ..tuned import Database

DATABASE = b'{"check":'  # a tuning database begins with it
OUTPUT = "report.html"


@command(
    examples=(
        "mlc-deploy model.onnx --json record.json --report page.html",
        "mlc-deploy report before.json after.json -o change.html",
    )
)
@click.argument("records", nargs=-1, required=True, metavar="RECORD [AFTER]")
@grouped(
    OUTPUTS, "-o", "--output", metavar="FILE", help=f"Write the page to FILE (default: {OUTPUT})"
)
@grouped(OUTPUTS, "--trace", "trace_file", metavar="FILE", help=TRACE_HELP)
@DEBUG
def report(records: tuple[str, ...], output: str | None, trace_file: str | None) -> int:
    """Write an HTML report of a run, of two runs, or of a tuning.

    RECORD is a file written by --json, or a database of `mlc-deploy tune`. With two records, the
    report shows the second and what changed since the first. It is one file that opens offline.

    A record has the kernels' code, the arena and the graph if its run used both --json and
    --report. With --trace and without --output, no page is written.
    """
    if len(records) > 2:
        raise Misuse("a page shows one results file, or compares two", where=" ".join(records))
    to = Path(output or OUTPUT)
    for option, text in (("--output", output or OUTPUT), ("--trace", trace_file)):
        if text and Path(text).resolve() in (Path(r).resolve() for r in records):
            what = "it would overwrite a results file"
            raise Misuse(what, where=f"{option} {text}", mend="another name")
        if text:
            writable(option, text)
    contents = [_content(file) for file in records]
    if any(content.startswith(DATABASE) for content in contents):
        if len(records) > 1 or trace_file:
            what = "a tuning database has its own page"
            raise Misuse(what, where=" ".join(records), mend="one database, without --trace")
        write_whole(to, _tuning(records[0]))
        return OK
    for file, content in zip(records, contents, strict=True):
        _refuse_tuning(file, content)
    runs = [read_run(content, file) for file, content in zip(records, contents, strict=True)]
    if trace_file:
        write_whole(writable("--trace", trace_file), run_trace(runs[-1]))
    if output or not trace_file:
        write_whole(to, run_page(runs[-1], runs[0] if len(runs) > 1 else None))
    return OK


def _content(file: str) -> bytes:
    """The bytes of a file. Raises Misuse if it cannot be read."""
    try:
        return read_file(file)
    except FileNotFoundError:
        raise Misuse("there is no such file", where=file, mend="a file that --json wrote") from None
    except OSError as error:
        raise Misuse(f"cannot be read: {error.strerror}", where=file) from None


def _refuse_tuning(file: str, content: bytes) -> None:
    """Raises Misuse for a file of `tune --json`, which holds no single trial."""
    try:
        found = parsed(content).value
    except NoJson:
        return  # read_run says what is wrong
    if isinstance(found, dict) and "tasks" in found and isinstance(found.get("db"), str):
        what = "these are the results of a tuning, without its trials; the database has them"
        raise Misuse(what, where=file, mend=f"mlc-deploy report {found['db']}")


def _tuning(file: str) -> str:
    from ..tuned import Database  # here: a page of a record needs no compiler

    database = Database(file)
    for note in database.notes:
        Progress(False).warn(note)
    if not database.records and not database.plans:
        raise ReportError(
            "the database holds no result",
            where=file,
            mend=f"mlc-deploy tune MODEL --db {file}",
        )
    plans = [Plan(p.name, p.board, p.objective, len(p.layouts), p.cost) for p in database.plans]
    return tuning_page(Path(file).name, _tasks(database), plans, database.notes)


def _tasks(database: Database) -> list[Task]:
    """Each kernel on each board, with its trials in the order of the file. Repeated measurements of
    the best are left out."""
    found: dict[tuple[str, ...], list[Trial]] = {}
    for record in database.records:
        if record.final:
            continue
        cost = record.cost if record.measured.verdict == "ok" else None
        trials = found.setdefault((record.task, *record.subject), [])
        trials.append(Trial(record.measured.verdict, cost))
    return [
        Task(name, target, board, objective, trials)
        for (name, _, target, board, objective), trials in found.items()
    ]
