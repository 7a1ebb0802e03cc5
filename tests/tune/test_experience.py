"""What a cost model begins with, from databases of other runs, boards and kernels."""

from __future__ import annotations

from dataclasses import replace
from math import log2
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mlc_deploy.schedule import Schedule
from mlc_deploy.tune import experience as module
from mlc_deploy.tune.cost_model import FEWEST, ROUNDS, SHARPNESS, TreeModel
from mlc_deploy.tune.experience import MOST_REPLAYED, experience
from mlc_deploy.tune.features import features
from mlc_deploy.tune.records import Candidate, Task
from mlc_deploy.tune.search import make_search
from mlc_deploy.tune.space import decisions_of
from mlc_deploy.tuned import Database, Measured, Record, pack
from tests.tune.searches import HOST, matmul_task


def space(sch: Schedule) -> None:
    i, j, k = sch.get_loops("c")
    i0, i1 = sch.split(i, sch.sample_perfect_tile(i, 2, 64))
    j0, j1 = sch.split(j, sch.sample_perfect_tile(j, 2, 64))
    sch.reorder(i0, j0, k, i1, j1)
    sch.vectorize(j1)


def cost_of(candidate: Candidate) -> float:
    """Least for tiles of 4 x 16."""
    rows, columns = decisions_of(candidate.trace)
    assert isinstance(rows, tuple) and isinstance(columns, tuple)
    return 1.0 + 0.05 * (abs(log2(rows[1]) - 2) + abs(log2(columns[1]) - 4))


def record(task: Task, candidate: Candidate, **changes: object) -> Record:
    cost = Measured("ok", (), round(1e6 * cost_of(candidate)), "emulated")
    made = Record(
        task.name, task.workload, str(HOST), "a board", "instructions", "earlier",
        candidate.program, pack(candidate.trace.dumps()), cost,
    )  # fmt: skip
    return replace(made, **changes)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def database() -> Database:
    """Of two kernels, on two kinds of boards, of which one is 100 times as fast."""
    made = Database()
    for task, board, factor in (
        (matmul_task(64, 64, 32), "a board", 100),
        (matmul_task(32, 128, 16), "another", 1),
    ):
        made.add_workload(task.func)
        for candidate in make_search("random", task, space, 3).propose(30):
            found = record(task, candidate, board=board)
            count = (found.measured.instructions or 0) * factor
            measured = Measured("ok", (), count, "emulated")
            made.add([replace(found, measured=measured)])
    return made


def test_a_kernel_that_nobody_measured_is_ranked_by_what_others_were_like(
    database: Database,
) -> None:
    task = matmul_task(128, 64, 64)
    candidates = make_search("random", task, space, 7).propose(30)
    prior = experience(database, "now", HOST, "instructions")
    scores = TreeModel(0, prior).scores([features(c.func, HOST) for c in candidates])
    costs = [-cost_of(c) for c in candidates]
    ranks = [np.argsort(np.argsort(values)) for values in (scores, costs)]
    assert np.asarray(np.corrcoef(ranks))[0, 1] > 0.6  # Spearman's


def test_a_search_that_begins_with_it_finds_good_ones_sooner(database: Database) -> None:
    task = matmul_task(128, 64, 64)
    prior = experience(database, "now", HOST, "instructions")
    costs = {
        known: [
            cost_of(c)
            for seed in range(8)
            for c in make_search("evolutionary", task, space, seed, (), trees).propose(8)
        ]
        for known, trees in ((True, prior), (False, None))
    }
    assert np.mean(costs[True]) - 1 < 0.9 * (np.mean(costs[False]) - 1)


def test_what_is_learnt_is_added_to_it(database: Database) -> None:
    prior = experience(database, "now", HOST, "instructions")
    assert prior.num_trees() == ROUNDS
    task = matmul_task(128, 64, 64)
    rows = [
        (features(c.func, HOST), cost_of(c))
        for c in make_search("random", task, space, 9).propose(24)
    ]
    model = TreeModel(0, prior)
    before = model.scores([v for v, _ in rows])
    model.learn(task.workload, rows)
    after = model.scores([v for v, _ in rows])
    best = min(cost for _, cost in rows)
    wanted = np.array([best / cost for _, cost in rows]) ** SHARPNESS
    assert np.abs(after - wanted).mean() < np.abs(before - wanted).mean() / 2
    assert model.trees.num_trees() == 2 * ROUNDS and prior.num_trees() == ROUNDS


def test_it_is_what_there_was_before_the_run(database: Database, tmp_path: Path) -> None:
    """Whoever has written to the file since."""
    task = matmul_task(64, 64, 32)
    grown = Database(tmp_path / "db")
    grown.merge(database)
    began = experience(grown, "now", HOST, "instructions").model_to_string()
    found = make_search("random", task, space, 5).propose(9)
    grown.add(record(task, c, run="now") for c in found)
    Database(tmp_path / "db").add(record(task, c, run="theirs", board="b") for c in found)
    again = experience(Database(tmp_path / "db"), "now", HOST, "instructions")
    assert again.model_to_string() == began
    after = experience(Database(tmp_path / "db"), "after", HOST, "instructions")
    assert after.model_to_string() != began


def test_what_tells_nothing_is_left_out() -> None:
    task = matmul_task(64, 64, 32)
    candidates = make_search("random", task, space, 3).propose(20)
    failed = Measured("crash")
    for changes in (
        {"target": "another"},
        {"objective": "seconds"},
        {"final": True},
        {"measured": failed},
        {"packed": pack('[1,[["get_block",{"name":"none"},"b",null]]]')},
        {"packed": pack("[99,[]]")},
    ):
        database = Database()
        database.add_workload(task.func)
        database.add(record(task, c, **changes) for c in candidates)
        assert len(database) == 20
        assert experience(database, "now", HOST, "instructions") is None, changes
    nowhere = Database()
    nowhere.add(record(task, c) for c in candidates)
    assert experience(nowhere, "now", HOST, "instructions") is None


def test_of_many_kernels_a_bounded_number_is_replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    task = matmul_task(64, 64, 32)
    candidates = make_search("random", task, space, 3).propose(20)
    database = Database()
    database.add_workload(task.func)
    # boards with 8 results each, and at last one with more
    for board in range(2 * MOST_REPLAYED // FEWEST):
        database.add(record(task, c, board=f"board {board}") for c in candidates[:FEWEST])
    database.add(record(task, c, board="the best known") for c in candidates)
    replayed: list[str] = []

    def counted(of: Database, records: list[Record], target: object) -> Any:
        replayed.extend(r.board for r in records)
        return seen(of, records, HOST)

    seen = module._seen
    monkeypatch.setattr(module, "_seen", counted)
    assert experience(database, "now", HOST, "instructions") is not None
    assert len(replayed) <= MOST_REPLAYED and "the best known" in replayed


def test_programs_and_traces_that_are_none_are_left_out() -> None:
    task = matmul_task(64, 64, 32)
    candidates = make_search("random", task, space, 3).propose(20)
    for text, changes in (
        ("def main(:", {}),
        (str(task.func), {"packed": pack('[1,[["unroll",{"lop":"i"},"",null]]]')}),
        (str(task.func), {"packed": pack('[1,[["unroll",{"loop":{"output":[7,0]}},"",null]]]')}),
    ):
        database = Database()
        database.add(record(task, c, **changes) for c in candidates)
        database._workloads[task.workload] = text
        assert experience(database, "now", HOST, "instructions") is None, changes
