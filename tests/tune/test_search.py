"""Searches: deterministic, never the same twice, complete, and better than chance."""

from __future__ import annotations

import sys
from collections.abc import Callable
from math import inf, log2
from random import Random

import numpy as np
import pytest

from mlc_deploy.errors import TuneError
from mlc_deploy.ir import structural_hash
from mlc_deploy.schedule import Schedule
from mlc_deploy.schedule.trace import Trace
from mlc_deploy.tune.cost_model import TreeModel
from mlc_deploy.tune.features import features
from mlc_deploy.tune.mutate import mutated, other
from mlc_deploy.tune.records import Candidate, Search, Task
from mlc_deploy.tune.search import EvolutionarySearch, make_search
from mlc_deploy.tune.space import Choice, Decider, Default, PostOrderApply, decisions_of, point
from tests.tune.tasks import TARGET, operator_task

MATMUL = operator_task("matmul", [(64, 48), (48, 64)], {})


def tiled(sch: Schedule) -> None:
    """9 x 7 x 4 points."""
    i, j, k = sch.get_loops("matmul_tile")
    i0, i1 = sch.split(i, sch.sample_perfect_tile(i, 2, 64))
    j0, j1 = sch.split(j, [None, sch.sample_categorical([1, 2, 4, 8, 16, 32, 64], [1.0] * 7)])
    k0, k1 = sch.split(k, [None, sch.sample_categorical([1, 2, 3, 4], [1.0] * 4)])
    sch.reorder(i0, j0, k0, i1, k1, j1)
    sch.annotate(k1, "steps", 1)


def cost_of(candidate: Candidate) -> float:
    """Least where the tile is 8 x 16 and three steps are one turn."""
    rows, columns, steps = decisions_of(candidate.trace)
    assert isinstance(rows, tuple) and isinstance(columns, int) and isinstance(steps, int)
    return 1.0 + abs(log2(rows[1]) - 3) + abs(log2(columns) - 4) + abs(steps - 3) / 2


def run(search: Search, trials: int, batch: int, cost: Callable[[Candidate], float]) -> list[float]:
    """What each proposal cost, in order."""
    costs: list[float] = []
    while len(costs) < trials:
        proposed = search.propose(min(batch, trials - len(costs)))
        if not proposed:
            break
        told = [(c, cost(c)) for c in proposed]
        search.tell(told)
        costs += [x for _, x in told]
    return costs


def proposals(kind: str, seed: int, trials: int = 16) -> list[str]:
    search = make_search(kind, MATMUL, None, seed)
    seen: list[str] = []

    def cost(candidate: Candidate) -> float:
        seen.append(candidate.program)
        return inf if len(seen) % 7 == 0 else float(int(candidate.program[:4], 16))

    run(search, trials, 8, cost)
    return seen


@pytest.mark.parametrize("kind", ["evolutionary", "random"])
def test_a_seed_decides_everything_and_nothing_comes_twice(kind: str) -> None:
    first = proposals(kind, 1)
    assert first == proposals(kind, 1)
    assert len(set(first)) == len(first) == 16
    assert set(first) != set(proposals(kind, 2, 8))


@pytest.mark.parametrize("kind", ["evolutionary", "random"])
def test_the_default_comes_first_and_traces_say_it_all(kind: str) -> None:
    found = make_search(kind, MATMUL, None, 0).propose(6)
    assert found[0].program == structural_hash(MATMUL.default(MATMUL.func))
    for candidate in found:
        sch = Schedule(MATMUL.func)
        Trace.loads(candidate.trace.dumps()).apply(sch)
        assert structural_hash(sch.func) == candidate.program


def test_a_grid_is_the_whole_space() -> None:
    search = make_search("grid", MATMUL, tiled)
    costs = run(search, 1000, 50, cost_of)
    assert len(costs) == 7 * 7 * 4  # 64 is 2 to the 6th: 7 ways to cut it in two
    assert min(costs) == 1.0
    assert search.propose(1) == []


def test_evolution_finds_the_best_of_a_space_in_a_fraction_of_it() -> None:
    costs = run(make_search("evolutionary", MATMUL, tiled, 3), 64, 8, cost_of)
    assert min(costs) == 1.0


def test_a_space_that_is_exhausted_proposes_nothing() -> None:
    def two(sch: Schedule) -> None:
        sch.split(sch.get_loops("matmul_tile")[2], [None, sch.sample_categorical([2, 4], [1, 1])])

    for kind in ("evolutionary", "random"):
        assert len(run(make_search(kind, MATMUL, two, 0), 10, 4, lambda c: 1.0)) == 2


def test_known_traces_are_where_evolution_begins() -> None:
    made = make_search("random", MATMUL, tiled, 5).propose(12)
    best = min(made, key=cost_of)
    known = [c.trace for c in sorted(made, key=cost_of)]
    search = make_search("evolutionary", MATMUL, tiled, 6, known)
    first = search.propose(4)
    assert str(first[0].trace) == str(best.trace) and first[0].origin == "known"
    search.tell([(c, cost_of(c)) for c in first])
    assert isinstance(search, EvolutionarySearch)
    assert search.best[0].cost == cost_of(best) and search.best[0].point.choices


def test_replay_is_what_is_known_each_program_once() -> None:
    made = make_search("random", MATMUL, tiled, 5).propose(6)
    other = Trace.from_json([1, [["get_block", {"name": "none"}, "b", None]]])
    known = [other, *(c.trace for c in made), made[0].trace]
    search = make_search("replay", MATMUL, tiled, 0, known)
    assert [c.program for c in search.propose(20)] == [c.program for c in made]
    assert search.propose(1) == []


def test_a_default_that_no_trace_gives_is_left_out() -> None:
    other = Task("other", MATMUL.func, TARGET, lambda func: func)
    found = make_search("random", other, None, 0).propose(2)
    assert [c.origin for c in found] == ["random", "random"]
    assert make_search("random", other, Default(), 0).propose(2) == []


# --------------------------------------------------------------------------------- cost models


def drawn(count: int) -> list[tuple[np.ndarray, float]]:
    """Features of random points, and costs that are no function of features by definition."""
    found = []
    for candidate in make_search("random", MATMUL, PostOrderApply(), 9).propose(count):
        columns, *others = (d for d in decisions_of(candidate.trace) if isinstance(d, int))
        rows, steps = others[0] if len(others) > 1 else 1, others[-1]
        cost = (1 + abs(columns * rows / 64 - 4)) * (1 + 4 / steps)
        found.append((features(candidate.func, TARGET), cost))
    return found


def test_trees_learn_what_is_fast() -> None:
    rows = drawn(72)
    model = TreeModel(0)
    model.learn("matmul", rows[:48])
    scores, fast = model.scores([v for v, _ in rows[48:]]), [-c for _, c in rows[48:]]
    ranks = [np.argsort(np.argsort(values)) for values in (scores, fast)]
    assert np.asarray(np.corrcoef(ranks))[0, 1] > 0.6  # Spearman's


def test_a_model_is_the_same_for_the_same_results() -> None:
    rows = drawn(24)
    vectors = [v for v, _ in rows]
    models = [TreeModel(1), TreeModel(1)]
    for model in models:
        model.learn("matmul", [(v, c if n % 5 else inf) for n, (v, c) in enumerate(rows)])
    wanted = models[0].scores(vectors)
    np.testing.assert_array_equal(models[1].scores(vectors), wanted)


def test_costs_far_apart_are_learnt_from() -> None:
    """Weights far apart leave sums that are nothing but rounding: LightGBM must not split there, as
    it would for these."""
    vectors = [v for v, _ in drawn(48)]
    for seed in (98, 153, 175):
        model = TreeModel(0)
        costs = 1 / np.random.default_rng(seed).random(48)
        model.learn("any", list(zip(vectors, costs, strict=True)))
        assert len(set(model.scores(vectors))) > 8


@pytest.mark.parametrize("kind", ["evolutionary", "random", "grid"])
def test_a_space_in_which_nothing_is_possible_says_why(kind: str) -> None:
    def impossible(sch: Schedule) -> None:
        sch.parallel(sch.get_loops("matmul_tile")[2])

    with pytest.raises(TuneError) as refusal:
        make_search(kind, MATMUL, impossible).propose(4)
    assert str(refusal.value) == (
        "no schedule of the space is possible\n"
        "  in:  task 'matmul': parallel: loop 'k' carries the reduction of block 'matmul_tile'\n"
        "  try: the space's function on a Schedule of the task's function, by itself"
    )


def test_an_unknown_search_is_refused() -> None:
    with pytest.raises(TuneError, match=r"no search 'forest'\n  try: one of"):
        make_search("forest", MATMUL)


def test_without_lightgbm_the_message_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lightgbm", None)
    with pytest.raises(TuneError) as error:
        make_search("evolutionary", MATMUL)
    assert str(error.value) == (
        "the cost model needs the package lightgbm, which is not installed\n"
        "  try: pip install 'mlc-deploy[tune]'; or --search random, which needs no model"
    )
    assert make_search("random", MATMUL).propose(1)


def test_features_have_one_length_and_are_finite() -> None:
    tasks = [MATMUL, operator_task("matmul", [(1, 3), (3, 4)], {})]
    vectors = [
        features(point(space, task, Decider(by_default=True)).func, TARGET)
        for task in tasks
        for space in (Default(), PostOrderApply())
    ]
    vectors += [features(task.func, TARGET) for task in tasks]
    assert len({v.shape for v in vectors}) == 1
    assert all(np.isfinite(v).all() for v in vectors)


def test_options_that_are_equal_are_no_choice() -> None:
    alike = Choice(taken=1, options=(1, 1))
    number = Choice(taken=1, options=(1, 1, 2))
    for seed in range(50):
        assert mutated([alike], Random(seed)) is None
        assert mutated([alike, number], Random(seed)) in ((1, 1), (1, 2))
        assert other(number, Random(seed)) == 2
