"""What was measured, in a file that is only ever appended to, and that survives kills and merges.

A file of JSON lines, each an object with the digest of the rest of it in "check" and the version of
its form in "v". There are four kinds:

    workload   name (its structural hash), text: the program, as `from_script` takes it
    result     task (a name for people), workload, target, board (mlc_deploy.tune.runner's
               fingerprint of it), objective, run (which search it belongs to), program (structural
               hash of the scheduled program), trace, final (whether it was measured once more among
               the best), and what `Measured` has: verdict, seconds, instructions, timing, message
    plan       model (tuned.layouts' digest of it), name, target, board, objective, layouts (as
               graph.layouts has them: what the layers of the model computed in was chosen so), cost
    run        run: a search of that name began here, and may know what stands before

A line counts when it is whole and on the disk. Of a program that was measured twice the later
result counts. Lines that are damaged, or hold what no measurement gives, are skipped, and named in
`notes`; a last line without its end is removed by whoever writes next. Processes that write to one
file wait for each other.
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

# What traces consist of, the commonest last: with it, zlib makes half as much of one. A Record's
# bytes are read by the process that made them alone, so it may be changed.
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
    """A result. `steps` is the trace as JSON text, kept in less memory; `trace` decodes it."""

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
        """Seconds or instructions of one call; inf where the candidate is no good."""
        return self.measured.cost(self.objective)

    @property
    def subject(self) -> Subject:
        """Records are comparable when this is the same."""
        return self.workload, self.target, self.board, self.objective


OBJECTIVES = get_args(Objective)


def _rank(entry: Record | PlanRecord) -> tuple[int, float]:
    """What was measured counts more than what was predicted, and that more than instructions."""
    return OBJECTIVES.index(entry.objective), entry.cost


def pack(steps: str) -> bytes:
    """The text of a trace, as a Record has it."""
    packer = zlib.compressobj(zdict=WORDS)
    return packer.compress(steps.encode()) + packer.flush()


@dataclass(frozen=True, slots=True)
class PlanRecord:
    """The layouts that a tuned model computes in, and what its kernels cost together then."""

    model: str
    name: str
    target: str
    board: str
    objective: Objective
    layouts: Mapping[str, str]
    cost: float


class Database:
    """The results of a file, and of no file when `path` is None. Usable from one thread.

    Raises TuneError for a file that is no database, or a later version's; OSError.
    """

    def __init__(self, path: str | Path | None = None) -> None:
        self.path = Path(path) if path is not None else None
        self.records: list[Record] = []
        self.notes: list[str] = []
        self.plans: list[PlanRecord] = []
        self._workloads: dict[str, str] = {}
        self._checks: set[bytes] = set()
        self._newest: dict[Subject, dict[str, Record]] = {}
        self._searched: dict[Subject, dict[str, Record]] = {}  # what searches were told
        self._begun: dict[str, int] = {}  # results that were there before, by run
        self._read_to = 0  # bytes of the file
        self._line = 0
        if self.path is not None and self.path.exists():
            if not self.path.is_file():
                raise TuneError("a tuning database is a file", where=str(self.path))
            with self.path.open("rb") as file, locked(file, exclusive=False):
                self._catch_up(file.read())

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
        """The good results of a workload, best first, one per program and board: those in seconds
        before predicted ones, and these before those in instructions."""
        return sorted(self._good(workload, target, board, objective), key=_rank)

    def best(
        self,
        workload: str,
        target: str,
        *,
        board: str | None = None,
        objective: Objective | None = None,
    ) -> Record | None:
        """The first of `query`; None where it is empty."""
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
        """All that was tried of a subject, the bad included, by program; do not change it. Without
        `final`, what searches were told: not that the best were measured once more, and of what is
        measured again the first result that is good, as one that is stopped is told the same."""
        of = self._newest if final else self._searched
        return of.get((workload, target, board, objective), {})

    def before(self, run: str) -> list[Record]:
        """The results from before the run of this name, which begins now if nobody knows it. So a
        run that was stopped knows what it knew, whatever others have added since."""
        if run not in self._begun:
            self._write([{"kind": "run", "run": run}])
        return self.records[: self._begun[run]]

    def plan(self, model: str, target: str) -> PlanRecord | None:
        """The plan of lowest cost of a model among the newest of each board, by seconds where there
        is one; None where there is none."""
        found = [p for p in self.plans if (p.model, p.target) == (model, target)]
        newest = {(p.board, p.objective): p for p in found}.values()
        return min(newest, key=_rank, default=None)

    def workload(self, name: str) -> PrimFunc | None:
        """The program of a workload; None where the file does not have it, or, with a note, in a
        form that cannot be read."""
        text = self._workloads.get(name)
        if text is None:
            return None
        try:
            func = from_script(text)
        except Exception as error:  # the text may be anyone's, and anything
            why = error.what if isinstance(error, MlcError) else type(error).__name__
            del self._workloads[name]
            self._note(
                f"{self.path or 'in memory'}: the program of workload {name} cannot be read: {why}"
            )
            return None
        return func if isinstance(func, PrimFunc) else None

    # --------------------------------------------------------------------------------- writing

    def add(self, records: Iterable[Record]) -> None:
        """Appends results. When it returns they are on the disk."""
        self._write([_as_json(record) for record in records])

    def add_workload(self, func: PrimFunc) -> None:
        """Keeps a program, so that its results can be used without the model it is from."""
        name = structural_hash(func)
        if name not in self._workloads:
            self._write([{"kind": "workload", "name": name, "text": str(func)}])

    def add_plans(self, plans: Iterable[PlanRecord]) -> None:
        """Appends plans. When it returns they are on the disk."""
        self._write([_plan_as_json(plan) for plan in plans])

    def merge(self, other: Database | str | Path) -> int:
        """Appends what another database, or a file, has and this one has not; how many results that
        were. Raises TuneError where there is no such file."""
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
        lines = {_check(b): b for body in bodies for b in (_versioned(body),)}
        if self.path is None:
            for check, body in lines.items():
                self._take(check, body, "in memory")
            return
        with writing(self.path), _opened(self.path) as file, locked(file, exclusive=True):
            if file.seek(0, os.SEEK_END) < self._read_to:
                self._note(f"{self.path}: the file was cut or removed while it was in use")
                self._read_to = self._line = 0
            file.seek(self._read_to)
            tail = self._catch_up(file.read())
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
        """Takes in what the file has from where it was read to; the bytes of a line without its
        end, which are left for later."""
        *lines, tail = data.split(b"\n")
        first = not self._read_to
        for line in lines:
            self._line += 1
            self._read_to += len(line) + 1
            self._parse(line)
        if first and data and not self._checks and (lines or not _may_begin(tail)):
            raise TuneError(
                "the file is no tuning database",
                where=str(self.path),
                mend="one that mlc-deploy tune wrote; where there is none it makes one",
            )
        return len(tail)

    def _parse(self, line: bytes) -> None:
        where = f"{self.path}:{self._line}"
        try:
            body = json.loads(line)
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
        """Raises one of MALFORMED for what no writer writes, and then keeps nothing."""
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
        newest.pop(record.program, None)  # so that the order is that of the records
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
    """The database, read where it is a file. Raises TuneError."""
    if not isinstance(database, (Database, str, Path)):
        raise TuneError(
            "this is no tuning database",
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
    """The file for reading and writing; made, and its folder's entry made durable, where there is
    none."""
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


def _versioned(body: dict[str, Any]) -> dict[str, Any]:
    return {"v": VERSION, **body}


def _canonical(body: dict[str, Any]) -> str:
    return json.dumps(body, sort_keys=True, separators=(",", ":"), allow_nan=False)


def _check(body: dict[str, Any]) -> bytes:
    """Of the values: another way to write the same JSON does no harm."""
    return blake2b(_canonical(body).encode(), digest_size=CHECK_BYTES).digest()


def _line(check: bytes, body: dict[str, Any]) -> bytes:
    whole = {"check": check.hex(), **body}
    return json.dumps(whole, separators=(",", ":"), allow_nan=False).encode() + b"\n"


def _may_begin(torn: bytes) -> bool:
    """Whether it may be the beginning of what _line makes."""
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
    """A text that can be written anywhere."""
    _require(isinstance(value, str))
    value.encode()  # raises ValueError for half a surrogate pair
    return str(value)


def _one_of(words: Any, value: Any) -> Any:
    _require(value in get_args(words))
    return intern(value)


def _positive(value: Any) -> float:
    """A cost that a measurement may have had."""
    _require(type(value) in (int, float) and 0 < float(value) < inf)
    return float(value)
