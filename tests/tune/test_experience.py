"""What a cost model begins with, from databases of other runs, boards and kernels."""

from __future__ import annotations

from dataclasses import replace
from math import log2

import numpy as np
import pytest

from mlc_deploy.schedule import Schedule
from mlc_deploy.tune.cost_model import ROUNDS, TreeModel
from mlc_deploy.tune.database import Database, Record, pack
from mlc_deploy.tune.experience import experience
from mlc_deploy.tune.features import features
from mlc_deploy.tune.records import Candidate, Measured, Task
from mlc_deploy.tune.search import make_search
from mlc_deploy.tune.space import decisions_of
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
    return 1.0 + abs(log2(rows[1]) - 2) + abs(log2(columns[1]) - 4)


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
    assert np.mean(costs[True]) < 0.95 * np.mean(costs[False])


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
    wanted = np.array([best / cost for _, cost in rows])
    assert np.abs(after - wanted).mean() < np.abs(before - wanted).mean() / 2
    assert model.trees.num_trees() == 2 * ROUNDS and prior.num_trees() == ROUNDS


def test_it_is_what_there_was_before_the_run(database: Database) -> None:
    task = matmul_task(64, 64, 32)
    grown = Database()
    grown.merge(database)
    own = [record(task, c, run="now") for c in make_search("random", task, space, 5).propose(9)]
    grown.add(own)
    one, two = (experience(d, "now", HOST, "instructions") for d in (database, grown))
    assert one.model_to_string() == two.model_to_string()
    assert experience(grown, "earlier", HOST, "instructions") is None


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
