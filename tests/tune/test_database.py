"""The database: durable, checked, readable, mergeable, and mended where a write was cut short."""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import sys
import zlib
from dataclasses import replace
from hashlib import blake2b
from math import inf
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlc_deploy import Schedule
from mlc_deploy.errors import TuneError
from mlc_deploy.ir import structural_hash
from mlc_deploy.tuned import Database, Measured, PlanRecord, Record, pack
from mlc_deploy.tuned.database import CHECK_BYTES
from tests.tune.searches import matmul, sampled

TARGET = "llvm -mtriple=aarch64-linux-gnu"


def record(program: str = "p", cost: float = 1.0, **changes: object) -> Record:
    made = Record(
        task="matmul",
        workload="w",
        target=TARGET,
        board="aarch64, 4 cortex-a72",
        objective="seconds",
        run="r",
        program=program,
        packed=pack("[1,[]]"),
        measured=Measured("ok", (cost, cost * 1.1, cost * 0.9)),
    )
    return replace(made, **changes)  # type: ignore[arg-type]


def test_what_is_added_is_there_for_another_reader(tmp_path: Path) -> None:
    sch = Schedule(matmul(), seed=3)
    sampled(sch)
    written = record(packed=pack(sch.trace.dumps().replace(", ", ",").replace(": ", ":")))
    Database(tmp_path / "db").add([written, record("q", 2.0)])
    read = Database(tmp_path / "db")
    assert read.records == [written, record("q", 2.0)]
    again = Schedule(matmul())
    read.records[0].trace.apply(again)
    assert structural_hash(again.func) == structural_hash(sch.func)


def test_questions_are_answered_best_first_and_the_later_result_of_a_program_counts() -> None:
    database = Database()
    counted = Measured("ok", (), 12)
    wrong = Measured("wrong", (1e-9,))
    database.add(
        [
            record("a", 3.0),
            record("b", 2.0),
            record("c", 1.0, measured=wrong),
            record("d", objective="instructions", measured=counted),
            record("e", 0.1, target="another"),
            record("b", 4.0, final=True),
            record("f", 1.0, board="another"),
        ]
    )
    programs = [r.program for r in database.query("w", TARGET)]
    assert programs == ["f", "a", "b", "d"]
    of_board = database.query("w", TARGET, board="aarch64, 4 cortex-a72", objective="seconds")
    assert [(r.program, r.cost) for r in of_board] == [("a", 3.0), ("b", 4.0)]
    best = database.best("w", TARGET, objective="instructions")
    assert best is not None and best.cost == 12
    assert database.best("v", TARGET) is None
    tried = database.programs("w", TARGET, "aarch64, 4 cortex-a72", "seconds")
    assert list(tried) == ["a", "c", "b"] and tried["c"].cost == inf


def test_a_run_knows_what_there_was_before_it_whoever_adds_to_it(tmp_path: Path) -> None:
    database = Database(tmp_path / "db")
    database.add([record("a")])
    assert [r.program for r in database.before("mine")] == ["a"]
    other = Database(tmp_path / "db")
    other.add([record("b", run="theirs")])
    assert [r.program for r in other.before("theirs")] == ["a", "b"]
    database.add([record("c", run="mine")])
    for again in (database, Database(tmp_path / "db")):
        assert [r.program for r in again.before("mine")] == ["a"]
    merged = Database()
    merged.merge(database)
    assert [r.program for r in merged.before("mine")] == ["a", "b", "c"]


def test_a_search_is_told_the_first_good_result_of_a_program() -> None:
    database = Database()
    crashed = Measured("crash")
    database.add([record("a", measured=crashed), record("a", 3.0), record("a", 2.0, run="other")])
    database.add([record("a", 4.0, final=True)])
    subject = ("w", TARGET, "aarch64, 4 cortex-a72", "seconds")
    assert database.programs(*subject, final=False)["a"].cost == 3.0  # type: ignore[arg-type]
    assert database.programs(*subject)["a"].cost == 4.0  # type: ignore[arg-type]


def test_workloads_are_kept_as_programs(tmp_path: Path) -> None:
    func = matmul()
    database = Database(tmp_path / "db")
    database.add_workload(func)
    database.add_workload(func)
    found = Database(tmp_path / "db").workload(structural_hash(func))
    assert found is not None and structural_hash(found) == structural_hash(func)
    assert len((tmp_path / "db").read_text().splitlines()) == 1
    assert database.workload("unknown") is None


def test_a_file_that_is_cut_anywhere_loses_the_cut_line_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.fsync", lambda _: None)  # a thousand of them take long
    path = tmp_path / "db"
    rows = [record(str(n), float(n + 1)) for n in range(2)]
    Database(path).add(rows)
    whole = path.read_bytes()
    ends = [n + 1 for n, byte in enumerate(whole) if byte == ord("\n")]
    for size in range(len(whole) + 1):
        path.write_bytes(whole[:size])
        complete = sum(end <= size for end in ends)
        database = Database(path)
        assert database.records == rows[:complete]
        database.add([record("next")])
        torn = size - ([0, *ends][complete])
        assert database.notes == (
            [f"{path}: the last line had no end ({torn} bytes); it was removed"] if torn else []
        )
        assert Database(path).records == [*rows[:complete], record("next")]
        assert Database(path).notes == []


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_a_changed_byte_costs_its_line_and_is_named(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    rows = [record(str(n), float(n + 1)) for n in range(3)]
    path = tmp_path_factory.mktemp("db") / "db"
    Database(path).add(rows)
    lines = path.read_bytes().splitlines(keepends=True)
    place = data.draw(st.integers(0, len(lines[1]) - 2))
    old = lines[1][place]
    new = data.draw(st.integers(0, 255).filter(lambda b: b not in (old, ord("\n"))))
    lines[1] = lines[1][:place] + bytes([new]) + lines[1][place + 1 :]
    path.write_bytes(b"".join(lines))
    found = Database(path)
    if found.records != rows:  # a digit of the same value: 1.0 for 1.00
        assert found.records == [rows[0], rows[2]]
        (note,) = found.notes
        assert note in (
            f"{path}:2: no line of a database; it is skipped",
            f"{path}:2: the line's digest is wrong; it is skipped",
        )
    found.add([record("next")])
    assert Database(path).records[-1] == record("next")


def test_a_file_that_was_written_anew_by_another_tool_is_read(tmp_path: Path) -> None:
    Database(tmp_path / "db").add([record()])
    body = json.loads((tmp_path / "db").read_text())
    (tmp_path / "db").write_text(json.dumps(body, sort_keys=True) + "\n")
    assert Database(tmp_path / "db").records == [record()]


def test_databases_are_merged_and_nothing_is_doubled(tmp_path: Path) -> None:
    one, two = Database(tmp_path / "one"), Database(tmp_path / "two")
    one.add([record("a"), record("b", 2.0)])
    two.add([record("b", 2.0), record("c", 0.5)])
    two.add_workload(matmul())
    assert one.merge(two) == 1
    assert one.merge(two) == 0
    again = Database(tmp_path / "one")
    assert [r.program for r in again.records] == ["a", "b", "c"]
    assert again.workload(structural_hash(matmul())) is not None


def test_what_is_no_database_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(b"\x08\x07\x12")
    with pytest.raises(TuneError) as refusal:
        Database(path)
    assert str(refusal.value) == (
        "the file is not a tuning database\n"
        f"  in:  {path}\n"
        "  try: a file that mlc-deploy tune wrote, or a new name"
    )
    assert path.read_bytes() == b"\x08\x07\x12"


@pytest.mark.parametrize("text", ['{\n  "model": "digits"\n}\n', '{"model":"digits"}'])
def test_json_of_another_kind_is_no_database_and_stays_as_it_is(tmp_path: Path, text: str) -> None:
    path = tmp_path / "record.json"
    path.write_text(text)
    with pytest.raises(TuneError, match="the file is not a tuning database"):
        Database(path).add([record("a")])
    assert path.read_text() == text


def test_what_is_no_file_is_no_database(tmp_path: Path) -> None:
    for path in (tmp_path, Path("/dev/full")):
        with pytest.raises(TuneError, match="a tuning database is a file"):
            Database(path)
    with pytest.raises(TuneError, match="there is no such tuning database"):
        Database().merge(tmp_path / "missing.jsonl")


def test_a_later_version_is_refused(tmp_path: Path) -> None:
    from mlc_deploy.tuned import database as module

    body = {"v": 2, "kind": "result"}
    path = tmp_path / "db"
    path.write_bytes(module._line(module._check(body), body))
    with pytest.raises(TuneError) as refusal:
        Database(path)
    assert str(refusal.value) == (
        "the tuning database is of version 2, and this is 1\n"
        f"  in:  {path}:1\n"
        "  try: the mlc-deploy that wrote it, or another file"
    )


def whole(body: Any) -> bytes:
    """A line of a database with a valid digest."""
    text = json.dumps(body, sort_keys=True, separators=(",", ":"))
    check = blake2b(text.encode(), digest_size=CHECK_BYTES).hexdigest()
    return json.dumps({"check": check, **body}).encode() + b"\n"


def bodies(path: Path) -> list[dict[str, Any]]:
    """A result, a workload and a plan, as they are written."""
    database = Database(path)
    database.add([record("good", 2.0)])
    database.add_workload(matmul())
    database.add_plans([PLAN])
    found = [json.loads(line) for line in path.read_bytes().splitlines()]
    return [{k: v for k, v in body.items() if k != "check"} for body in found]


PLAN = PlanRecord("m", "net", TARGET, "a board", "seconds", {"conv": "NCHW4c"}, 1.0)
RESULT, WORKLOAD, A_PLAN = range(3)
NO_LINE = "no line of a database"


@pytest.mark.parametrize(
    ("kind", "changes", "why"),
    [
        (RESULT, {"kind": "wish"}, "a line of the unknown kind 'wish'"),
        (RESULT, {"kind": None}, NO_LINE),
        (RESULT, {"v": "1"}, NO_LINE),
        (RESULT, {"v": None}, NO_LINE),
        (RESULT, {"task": 5}, NO_LINE),
        (RESULT, {"task": "\ud800"}, NO_LINE),
        (RESULT, {"objective": "watts"}, NO_LINE),
        (RESULT, {"verdict": []}, NO_LINE),
        (RESULT, {"seconds": [0.0]}, NO_LINE),
        (RESULT, {"seconds": [-1.0]}, NO_LINE),
        (RESULT, {"seconds": [1, "2"]}, NO_LINE),
        (RESULT, {"seconds": [10**400]}, NO_LINE),
        (RESULT, {"seconds": {"1": 2}}, NO_LINE),
        (RESULT, {"instructions": -5}, NO_LINE),
        (RESULT, {"instructions": 0}, NO_LINE),
        (RESULT, {"instructions": True}, NO_LINE),
        (RESULT, {"instructions": 10**400}, NO_LINE),
        (RESULT, {"final": "no"}, NO_LINE),
        (RESULT, {"trace": "[1,[]]"}, NO_LINE),
        (WORKLOAD, {"text": None}, NO_LINE),
        (WORKLOAD, {"name": ["w"]}, NO_LINE),
        (A_PLAN, {"cost": 0}, NO_LINE),
        (A_PLAN, {"cost": None}, NO_LINE),
        (A_PLAN, {"layouts": ["NCHW"]}, NO_LINE),
        (A_PLAN, {"layouts": {"conv": 4}}, NO_LINE),
    ],
)
def test_a_line_that_nobody_measured_is_named(
    tmp_path: Path, kind: int, changes: dict[str, Any], why: str
) -> None:
    path = tmp_path / "db"
    good = bodies(path)
    with path.open("ab") as file:
        file.write(whole(good[kind] | {"program": "bad", "name": "bad"} | changes))
    found = Database(path)
    assert found.notes == [f"{path}:4: {why}; it is skipped"]
    assert found.records == [record("good", 2.0)] and found.plans == [PLAN]
    found.add([record("next")])
    assert [r.program for r in Database(path).records] == ["good", "next"]


@pytest.mark.parametrize("field", ["kind", "workload", "seconds", "trace", "final"])
def test_a_line_that_lacks_a_field_is_named(tmp_path: Path, field: str) -> None:
    path = tmp_path / "db"
    body = bodies(path)[RESULT]
    del body[field]
    path.write_bytes(whole(body))
    assert Database(path).notes == [f"{path}:1: {NO_LINE}; it is skipped"]


@pytest.mark.parametrize(
    "line",
    [
        b'{"check": "00", "seconds": [NaN]}',
        b'{"check": "00", "seconds": [1e999]}',
        b'{"check": "00", "trace": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"check": "00", "seconds": ' + b"9" * 5000 + b"}",
        b'{"check": 5}', b'"check"', b"[1]", b"null", b"", b"\xff",
    ],
)  # fmt: skip
def test_a_line_that_is_none_is_named(tmp_path: Path, line: bytes) -> None:
    path = tmp_path / "db"
    Database(path).add([record()])
    with path.open("ab") as file:
        file.write(line + b"\n")
    found = Database(path)
    assert found.records == [record()]
    assert found.notes == [f"{path}:2: {NO_LINE}; it is skipped"]


def test_a_result_without_a_cost_is_no_answer() -> None:
    database = Database()
    database.add([record("a", measured=Measured("ok")), record("b", objective="instructions")])
    assert database.query("w", TARGET) == [] and database.best("w", TARGET) is None
    assert len(database) == 2


@pytest.mark.parametrize(
    ("text", "why"),
    [("def main(:", "invalid syntax"), ("\0", "ValueError|null"), ("(" * 100_000, "")],
)
def test_a_program_that_cannot_be_read_is_none(text: str, why: str, tmp_path: Path) -> None:
    path = tmp_path / "db"
    path.write_bytes(whole({"v": 1, "kind": "workload", "name": "w", "text": text}))
    database = Database(path)
    assert database.workload("w") is None and database.workload("w") is None
    (note,) = database.notes
    assert re.match(rf"{path}: the program of workload w cannot be read: .*({why})", note)


def test_the_newest_plan_of_a_board_counts() -> None:
    database = Database()
    lucky = replace(PLAN, cost=0.1, layouts={"conv": "NCHW"})
    elsewhere = replace(PLAN, cost=0.9, board="another")
    counted = replace(PLAN, cost=0.01, objective="instructions")
    database.add_plans([lucky, counted, elsewhere, PLAN])
    assert database.plan("m", TARGET) == elsewhere
    database.add_plans([replace(PLAN, cost=0.5)])
    assert database.plan("m", TARGET) == replace(PLAN, cost=0.5)


def test_a_trace_takes_little_memory() -> None:
    sch = Schedule(matmul(), seed=3)
    sampled(sch)
    steps = json.dumps(sch.trace.as_json(), separators=(",", ":"))
    assert len(pack(steps)) < 0.65 * len(zlib.compress(steps.encode()))


VALUES: st.SearchStrategy[Any] = st.sampled_from(
    [None, True, 0, -1, 2, 10**400, 0.0, -0.5, 1e-9, "", "ok", "seconds", "result", "workload",
     "plan", "\ud800", [], [1], [None], {}, {"a": 1}, [1, []], [[[]]]]
)  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_a_mutated_line_is_read_or_named(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("db") / "db"
    body = data.draw(st.sampled_from(bodies(path)))
    for _ in range(data.draw(st.integers(1, 3))):
        key = data.draw(st.sampled_from([*body, "more"]).filter(lambda k: k != "v"))
        if data.draw(st.booleans()):
            body = body | {key: data.draw(VALUES)}
        else:
            body = {k: v for k, v in body.items() if k != key}
    path.write_bytes(whole(body))
    found = Database(path)
    kept = bool(found.records or found.plans or found._workloads)
    assert kept != bool(found.notes)
    for record_ in found.records:
        for name in (record_.workload, "w"):
            assert all(0 < r.cost < inf for r in found.query(name, record_.target))
        with contextlib.suppress(ValueError):
            record_.trace.apply(Schedule(matmul()))
    for name in list(found._workloads):
        found.workload(name)
    found.plan("m", TARGET)
    again = Database()
    again.merge(found)
    assert again.records == found.records and again.plans == found.plans


WRITER = """
import sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from mlc_deploy.tuned import Database
from tests.tune.test_database import record
database = Database(Path(sys.argv[2]))
for n in range(15):
    database.add([record(f"{sys.argv[3]} {n}")])
"""


def test_two_processes_write_to_one_file(tmp_path: Path) -> None:
    path = tmp_path / "db"
    root = str(Path(__file__).parents[2])
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITER, root, str(path), name]) for name in "ab"
    ]
    assert [w.wait(60) for w in writers] == [0, 0]
    found = Database(path)
    assert not found.notes
    for name in "ab":
        of_one = [r.program for r in found.records if r.program.startswith(name)]
        assert of_one == [f"{name} {n}" for n in range(15)]


def test_a_file_that_was_removed_meanwhile_is_begun_anew(tmp_path: Path) -> None:
    path = tmp_path / "db"
    database = Database(path)
    database.add([record("a")])
    path.unlink()
    database.add([record("b")])
    assert [r.program for r in Database(path).records] == ["b"]
    assert database.notes == [f"{path}: the file was cut or removed while it was in use"]
