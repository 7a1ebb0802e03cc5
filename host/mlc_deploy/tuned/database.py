"""The results of tuning, in a file that is only appended to and survives kills and merges.

Each line is a JSON object, with a digest of its other entries in "check" and its version in "v".
There are four kinds:

    workload   name (its structural hash), text: the program, as `from_script` takes it
    result     task (a name for people), workload, target, board (mlc_deploy.tune.runner's
               fingerprint of it), objective, run (the search it belongs to), program (structural
               hash of the scheduled program), trace, final (whether it was measured again among
               the best), and the fields of `Measured`: verdict, seconds, instructions, timing,
               message
    plan       model (tuned.layouts' digest of it), name, target, board, objective, layouts (as
               graph.layouts has them: those chosen for the model's layers), cost
    run        run: a search of that name began here and knows the lines before

A line counts once it is whole and on the disk. If a program was measured twice, the later result
counts. Damaged lines, and values that no measurement gives, are skipped and named in `notes`. The
next writer removes a last line without its end. Processes that write to one file wait for each
other.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from hashlib import blake2b
from math import inf, isfinite
from pathlib import Path
from sys import intern
from typing import Any, get_args

from ..errors import MlcError, TuneError, writing
from ..files.fields import parsed
from ..files.limits import DATABASE_BYTES, LINE_BYTES
from ..ir import PrimFunc, structural_hash
from ..schedule.trace import Trace
from ..script import from_script
from .file_lock import locked
from .measured import Measured, Objective, Verdict

VERSION = 1
CHECK_BYTES = 8
MOST_NOTES = 20
KINDS = ("workload", "result", "plan", "run")
BEGINNING = b'{"check":"'  # of a line
MALFORMED = (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError)

# zlib's dictionary: frequent parts of traces, the commonest last. It halves a compressed trace.
# Only the process that made a Record reads its bytes, so WORDS may change.
WORDS = b"""["annotate",{"at":"key":"value":true["cache_read",{"block":"index":1,\
"scope":"global"},"b",["cache_write",{["tensorize",{"at":"intrin":"["transform_layout",\
{"block":"buffer":"index_map":"lambda i0, i1: [i0 // 8, i1, i0 % 8]"["compute_inline",\
{"block":"["reverse_compute_at",{"block":["fuse_reduction_epilogue",\
{"reduction_block":"epilogue_block":["tune_for",{"cpu":"cortex-a["sample_compute_location",\
{"block":"},"v",-1],["rfactor",{"loop":{"output":[4,1]},"factor_axis":1},"b",null],["get_block",\
{"name":"["get_consumers",{"block":"conv2d_tile"},"b",null],["set_scope",{"block":"index":0,\
"scope":"local"},"",null],["fuse",{"*order":[{"output":[6,0]},{"output":[7,0]}]},"l",null],\
["parallel",{"loop":{"output":[1,0]}},"",null],["compute_at",{"block":"loop":{"output":[8,1]}},"",\
null],["decompose_reduction",{"block":"loop":{"output":[12,8]}},"b",null],["get_loops",\
{"block":{"output":[19,0]}},"llllllllll",null],["sample_perfect_tile",{"loop":{"output":[4,0]},\
"n":2,"max_innermost_factor":16},"vv",[1,3]],["split",{"loop":{"output":[5,0]},\
"factors":[{"output":[7,0]},{"output":[7,1]}]},"ll",null],["reorder",{"*order":[{"output":[12,8]},\
{"output":[12,9]},{"output":[13,10]},{"output":[13,6]},{"output":[17,0]},{"output":[17,1]}]},"",\
null],["split",{"loop":{"output":[6,1]},"factors":[null,{"output":[2,0]}]},"ll",null],\
["sample_categorical",{"candidates":[1,2,3,4,6,8,9,12,16,24,25,32,48],"probs":[1.0,1.0,1.0,1.0,\
1.0,1.0,1.0,1.0,1.0]},"v",12],["split",{"loop":{"output":[3,1]},"factors":[null,4]},"ll",null],\
["vectorize",{"loop":{"output":[20,2]}},"",null],["unroll",{"loop":{"output":[20,1]}},"",null],\
["unroll",{"loop":{"output":["""

Subject = tuple[str, str, str, Objective]  # workload, target, board, objective


@dataclass(frozen=True, slots=True)
class Record:
    """A result. `packed` is the compressed trace, `steps` its JSON text; `trace` decodes it."""

    task: str
    workload: str
    target: str
    board: str
    objective: Objective
    run: str
    program: str
    packed: bytes
    measured: Measured
    final: bool = False

    @property
    def steps(self) -> str:
        return zlib.decompressobj(zdict=WORDS).decompress(self.packed).decode()

    @property
    def trace(self) -> Trace:
        """Raises ValueError for a trace of another version."""
        return Trace.loads(self.steps)

    @property
    def cost(self) -> float:
        """Seconds or instructions of one call; inf for a bad candidate."""
        return self.measured.cost(self.objective)

    @property
    def subject(self) -> Subject:
        """Records are comparable if their subjects are equal."""
        return self.workload, self.target, self.board, self.objective


OBJECTIVES = get_args(Objective)


def _rank(entry: Record | PlanRecord) -> tuple[int, float]:
    """A sort key: measured times come before predicted ones, and these before instructions."""
    return OBJECTIVES.index(entry.objective), entry.cost


def pack(steps: str) -> bytes:
    """Compresses the text of a trace for a Record."""
    packer = zlib.compressobj(zdict=WORDS)
    return packer.compress(steps.encode()) + packer.flush()


@dataclass(frozen=True, slots=True)
class PlanRecord:
    """The layouts of a tuned model, and the cost of all its kernels together."""

    model: str
    name: str
    target: str
    board: str
    objective: Objective
    layouts: Mapping[str, str]
    cost: float


class Database:
    """The results of a file; only in memory if `path` is None. Usable from one thread.

    Raises TuneError for a file that is not a database, or of another version; OSError.
    """

    def __init__(self, path: str | Path | None = None) -> None:
        self.path = Path(path) if path is not None else None
        self.records: list[Record] = []
        self.notes: list[str] = []
        self.plans: list[PlanRecord] = []
        self._workloads: dict[str, str] = {}
        self._checks: set[bytes] = set()
        self._newest: dict[Subject, dict[str, Record]] = {}
        self._searched: dict[Subject, dict[str, Record]] = {}  # the results that searches saw
        self._begun: dict[str, int] = {}  # by run, the number of results before it
        self._read_to = 0  # bytes of the file that were read
        self._line = 0
        if self.path is not None and self.path.exists():
            if not self.path.is_file():
                raise TuneError("a tuning database is a file", where=str(self.path))
            with self.path.open("rb") as file, locked(file, exclusive=False):
                self._catch_up(self._bounded(file))

    def _bounded(self, file: Any) -> bytes:
        """The rest of the file. Raises TuneError for one that is too large."""
        size = os.fstat(file.fileno()).st_size
        if size > DATABASE_BYTES.most:
            raise TuneError(
                f"the tuning database has {size:,} bytes, and at most {DATABASE_BYTES.most:,} are "
                "read",
                where=str(self.path),
                mend="a new file: mlc-deploy tune MODEL --db FILE",
            )
        found: bytes = file.read()
        return found

    def __len__(self) -> int:
        return len(self.records)

    # ------------------------------------------------------------------------------- questions

    def query(
        self,
        workload: str,
        target: str,
        *,
        board: str | None = None,
        objective: Objective | None = None,
    ) -> list[Record]:
        """The good results of a workload, one per program and board, best first: measured seconds
        before predicted ones, and these before instructions."""
        return sorted(self._good(workload, target, board, objective), key=_rank)

    def best(
        self,
        workload: str,
        target: str,
        *,
        board: str | None = None,
        objective: Objective | None = None,
    ) -> Record | None:
        """The first of `query`; None if it is empty."""
        return min(self._good(workload, target, board, objective), key=_rank, default=None)

    def _good(
        self, workload: str, target: str, board: str | None, objective: Objective | None
    ) -> Iterator[Record]:
        for (of, to, on, by), newest in self._newest.items():
            if (of, to) == (workload, target) and board in (None, on) and objective in (None, by):
                yield from (record for record in newest.values() if isfinite(record.cost))

    def programs(
        self, workload: str, target: str, board: str, objective: Objective, *, final: bool = True
    ) -> dict[str, Record]:
        """All results of a subject by program, bad ones included; do not change the dict. Without
        `final`, the results that searches saw, so that a stopped search sees the same again: no
        second measurements of the best, and of a repeated program the first good result."""
        of = self._newest if final else self._searched
        return of.get((workload, target, board, objective), {})

    def before(self, run: str) -> list[Record]:
        """The results from before the run of this name; an unknown run begins now. So a stopped
        run continues with what it knew, whatever others have added since."""
        if run not in self._begun:
            self._write([{"kind": "run", "run": run}])
        return self.records[: self._begun[run]]

    def plan(self, model: str, target: str) -> PlanRecord | None:
        """The best of the newest plans that each board has for a model, ranked as in `query`; None
        if there is none."""
        found = [p for p in self.plans if (p.model, p.target) == (model, target)]
        newest = {(p.board, p.objective): p for p in found}.values()
        return min(newest, key=_rank, default=None)

    def workload(self, name: str) -> PrimFunc | None:
        """The program of a workload; None if the file lacks it or, with a note, if its text cannot
        be read."""
        text = self._workloads.get(name)
        if text is None:
            return None
        try:
            func = from_script(text)
        except Exception as error:  # anyone may have written the text
            why = error.what if isinstance(error, MlcError) else type(error).__name__
            del self._workloads[name]
            self._note(
                f"{self.path or 'in memory'}: the program of workload {name} cannot be read: {why}"
            )
            return None
        return func if isinstance(func, PrimFunc) else None

    # --------------------------------------------------------------------------------- writing

    def add(self, records: Iterable[Record]) -> None:
        """Appends results. They are on the disk when it returns."""
        self._write([_as_json(record) for record in records])

    def add_workload(self, func: PrimFunc) -> None:
        """Adds a program, so that its results can be used without its model."""
        name = structural_hash(func)
        if name not in self._workloads:
            self._write([{"kind": "workload", "name": name, "text": str(func)}])

    def add_plans(self, plans: Iterable[PlanRecord]) -> None:
        """Appends plans. They are on the disk when it returns."""
        self._write([_plan_as_json(plan) for plan in plans])

    def merge(self, other: Database | str | Path) -> int:
        """Appends the lines of another database, or of a file, that this one lacks. Returns how
        many of them are results. Raises TuneError if there is no such file."""
        other = existing(other)
        before = len(self.records)
        texts = [
            {"kind": "workload", "name": name, "text": text}
            for name, text in other._workloads.items()
        ]
        plans = map(_plan_as_json, other.plans)
        self._write([*texts, *plans, *map(_as_json, other.records)])
        return len(self.records) - before

    def _write(self, bodies: Iterable[dict[str, Any]]) -> None:
        versioned = ({"v": VERSION, **body} for body in bodies)
        lines = {_check(body): body for body in versioned}
        if self.path is None:
            for check, body in lines.items():
                self._take(check, body, "in memory")
            return
        with writing(self.path), _opened(self.path) as file, locked(file, exclusive=True):
            if file.seek(0, os.SEEK_END) < self._read_to:
                self._note(f"{self.path}: the file was cut or removed while it was in use")
                self._read_to = self._line = 0
            file.seek(self._read_to)
            tail = self._catch_up(self._bounded(file))
            if tail:
                self._note(f"{self.path}: the last line had no end ({tail} bytes); it was removed")
                file.truncate(self._read_to)
            wanted = {c: b for c, b in lines.items() if c not in self._checks}
            if not wanted:
                return
            file.seek(self._read_to)
            data = b"".join(_line(check, body) for check, body in wanted.items())
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
            self._catch_up(data)

    # --------------------------------------------------------------------------------- reading

    def _catch_up(self, data: bytes) -> int:
        """Takes in `data`, the file's content after what was read. Returns the length of a last
        line without its end, which is left for later."""
        *lines, tail = data.split(b"\n")
        first = not self._read_to
        for line in lines:
            self._line += 1
            self._read_to += len(line) + 1
            self._parse(line)
        if first and data and not self._checks and (lines or not _may_begin(tail)):
            raise TuneError(
                "the file is not a tuning database",
                where=str(self.path),
                mend="a file that mlc-deploy tune wrote, or a new name",
            )
        return len(tail)

    def _parse(self, line: bytes) -> None:
        where = f"{self.path}:{self._line}"
        if len(line) > LINE_BYTES.most:
            self._note(f"{where}: the line has {len(line):,} bytes; it is skipped")
            return
        try:
            body = parsed(line).value
            check = bytes.fromhex(body.pop("check"))
            right = check == _check(body)
        except MALFORMED:
            self._note(f"{where}: no line of a database; it is skipped")
            return
        if not right:
            self._note(f"{where}: the line's digest is wrong; it is skipped")
            return
        version = body.get("v")
        if type(version) is int and version != VERSION:
            raise TuneError(
                f"the tuning database is of version {version}, and this is {VERSION}",
                where=where,
                mend="the mlc-deploy that wrote it, or another file",
            )
        self._take(check, body, where)

    def _take(self, check: bytes, body: dict[str, Any], where: str) -> None:
        if check in self._checks:
            return
        self._checks.add(check)
        try:
            self._keep(body)
        except MALFORMED:
            kind = body.get("kind")
            unknown = isinstance(kind, str) and kind not in KINDS
            what = (
                f"a line of the unknown kind {kind!a:.60}" if unknown else "no line of a database"
            )
            self._note(f"{where}: {what}; it is skipped")

    def _keep(self, body: dict[str, Any]) -> None:
        """Takes in a line's body. Raises one of MALFORMED, and keeps nothing, for a body that no
        writer writes."""
        _require(type(body["v"]) is int and body["kind"] in KINDS)
        if body["kind"] == "workload":
            self._workloads[_text(body["name"])] = _text(body["text"])
            return
        if body["kind"] == "plan":
            self.plans.append(_plan_from_json(body))
            return
        if body["kind"] == "run":
            self._begun.setdefault(_text(body["run"]), len(self.records))
            return
        record = _from_json(body)
        self.records.append(record)
        newest = self._newest.setdefault(record.subject, {})
        newest.pop(record.program, None)  # keeps the order of the records
        newest[record.program] = record
        if not record.final:
            searched = self._searched.setdefault(record.subject, {})
            known = searched.get(record.program)
            if known is None or known.measured.verdict != "ok":
                searched[record.program] = record

    def _note(self, text: str) -> None:
        if len(self.notes) < MOST_NOTES:
            self.notes.append(text)
        elif len(self.notes) == MOST_NOTES:
            self.notes.append("further damaged lines are not named")


def existing(database: Database | str | Path) -> Database:
    """The database, read if it is a file. Raises TuneError."""
    if not isinstance(database, (Database, str, Path)):
        raise TuneError(
            "this is not a tuning database",
            where=f"{database!r:.60}",
            mend="a Database, or the name of a file",
        )
    if isinstance(database, Database):
        return database
    if not Path(database).exists():
        raise TuneError(
            "there is no such tuning database",
            where=str(database),
            mend=f"mlc-deploy tune MODEL --db {database}, which makes it",
        )
    return Database(database)


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """Opens the file for reading and writing. If there is none, makes it and syncs its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    there = path.exists()
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0), 0o644)
    with os.fdopen(descriptor, "r+b") as file:
        if not there and hasattr(os, "O_DIRECTORY"):
            folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
        yield file


def _check(body: dict[str, Any]) -> bytes:
    """A digest of the values, not of the text: equal JSON written another way is accepted."""
    canonical = json.dumps(body, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return blake2b(canonical.encode(), digest_size=CHECK_BYTES).digest()


def _line(check: bytes, body: dict[str, Any]) -> bytes:
    whole = {"check": check.hex(), **body}
    return json.dumps(whole, separators=(",", ":"), allow_nan=False).encode() + b"\n"


def _may_begin(torn: bytes) -> bool:
    """Whether a torn line may be the beginning of a `_line`."""
    return torn[: len(BEGINNING)] == BEGINNING[: len(torn)]


def _plan_as_json(plan: PlanRecord) -> dict[str, Any]:
    return {"kind": "plan", **asdict(plan)}


def _as_json(record: Record) -> dict[str, Any]:
    measured = record.measured
    return {
        "kind": "result",
        "task": record.task,
        "workload": record.workload,
        "target": record.target,
        "board": record.board,
        "objective": record.objective,
        "run": record.run,
        "program": record.program,
        "verdict": measured.verdict,
        "seconds": list(measured.seconds),
        "instructions": measured.instructions,
        "timing": measured.timing,
        "message": measured.message,
        "final": record.final,
        "trace": json.loads(record.steps),
    }


def _plan_from_json(body: dict[str, Any]) -> PlanRecord:
    return PlanRecord(
        model=_text(body["model"]),
        name=_text(body["name"]),
        target=_text(body["target"]),
        board=_text(body["board"]),
        objective=_one_of(Objective, body["objective"]),
        layouts={_text(name): _text(layout) for name, layout in body["layouts"].items()},
        cost=_positive(body["cost"]),
    )


def _from_json(body: dict[str, Any]) -> Record:
    trace, instructions, final = body["trace"], body["instructions"], body["final"]
    _require(isinstance(trace, list) and isinstance(final, bool))
    _require(instructions is None or (type(instructions) is int and _positive(instructions) > 0))
    _require(isinstance(body["seconds"], list))
    return Record(
        task=intern(_text(body["task"])),
        workload=intern(_text(body["workload"])),
        target=intern(_text(body["target"])),
        board=intern(_text(body["board"])),
        objective=_one_of(Objective, body["objective"]),
        run=intern(_text(body["run"])),
        program=_text(body["program"]),
        packed=pack(json.dumps(trace, separators=(",", ":"))),
        measured=Measured(
            verdict=_one_of(Verdict, body["verdict"]),
            seconds=tuple(map(_positive, body["seconds"])),
            instructions=instructions,
            timing=intern(_text(body["timing"])),
            message=_text(body["message"]),
        ),
        final=final,
    )


def _require(condition: bool) -> None:
    if not condition:
        raise ValueError


def _text(value: Any) -> str:
    """A text that can be encoded."""
    _require(isinstance(value, str))
    value.encode()  # raises ValueError for half a surrogate pair
    return str(value)


def _one_of(words: Any, value: Any) -> Any:
    _require(value in get_args(words))
    return intern(value)


def _positive(value: Any) -> float:
    """A cost that a measurement can have."""
    _require(type(value) in (int, float) and 0 < float(value) < inf)
    return float(value)
