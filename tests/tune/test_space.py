"""Every point of a space is a legal schedule of the task, and equal in result; its trace says it
all."""

from __future__ import annotations

from contextlib import suppress
from itertools import product
from random import Random

import numpy as np
import pytest

from mlc_deploy.errors import ScheduleError, TuneError
from mlc_deploy.ir import structural_equal
from mlc_deploy.lower import lower
from mlc_deploy.schedule import Schedule
from mlc_deploy.schedule.sampling import factorizations
from mlc_deploy.schedule.trace import Trace
from mlc_deploy.tune.mutate import crossed, mutated
from mlc_deploy.tune.postproc import verify_registers, why_not
from mlc_deploy.tune.records import Task
from mlc_deploy.tune.space import (
    Decider,
    Default,
    DesignSpace,
    Point,
    PostOrderApply,
    ScheduleFn,
    Union,
    decisions_of,
    default_space,
    every_point,
    members,
    point,
)
from mlc_deploy.tune.template import Config, template
from tests.tune.tasks import CONV, TARGET, data, operator_task, result, tasks

TASKS = tasks()
POINTS = 2
MANY_POINTS = 50


def replayed(task: Task, trace: Trace) -> Schedule:
    sch = Schedule(task.func)
    trace.apply(sch)
    return sch


def check(task: Task, found: Point) -> None:
    """As it is scheduled and as it is lowered it gives the unscheduled function's numbers, and its
    trace, written and read, gives it again."""
    arrays = data(task)
    wanted = result(task.func, arrays)
    for func in (found.func, lower(found.func).body):
        np.testing.assert_allclose(result(func, arrays), wanted, rtol=2e-6, err_msg=str(func))
    again = replayed(task, Trace.loads(found.trace.dumps()))
    assert structural_equal(again.func, found.func)


SPACES = pytest.mark.parametrize("space", [Default(), PostOrderApply()], ids=["default", "rules"])


@SPACES
@pytest.mark.parametrize("name", ["matmul", "pointwise", "depthwise", "softmax", "relu"])
def test_points_keep_the_result(name: str, space: DesignSpace) -> None:
    check_points(TASKS[name], space, range(POINTS))


@pytest.mark.schedules
@SPACES
@pytest.mark.parametrize("part", range(MANY_POINTS // 10))
@pytest.mark.parametrize("name", TASKS)
def test_many_points_keep_the_result(name: str, space: DesignSpace, part: int) -> None:
    check_points(TASKS[name], space, range(part * 10, part * 10 + 10))


def check_points(task: Task, space: DesignSpace, seeds: range) -> None:
    """Points by chance, a neighbour of one, and two of them crossed."""
    made: list[Point] = []
    for seed in seeds:
        with suppress(ScheduleError):
            made.append(point(space, task, Decider(Random(seed))))
    assert made
    for found in made:
        check(task, found)
    random = Random(seeds[0])
    changed = mutated(made[0].choices, random)
    if changed is not None:
        mixed = crossed(made[0].choices, made[-1].choices, random)
        for decisions in (changed, mixed):
            with suppress(ScheduleError):
                check(task, point(space, task, Decider(random, decisions)))


@pytest.mark.parametrize("name", TASKS)
def test_the_default_schedule_is_a_point(name: str) -> None:
    task = TASKS[name]
    found = point(Default(), task, Decider(by_default=True))
    assert structural_equal(found.func, task.default(task.func))
    assert structural_equal(replayed(task, found.trace).func, found.func)


@pytest.mark.parametrize("name", ["matmul", "conv", "softmax"])
def test_decisions_make_a_point_again(name: str) -> None:
    task = TASKS[name]
    for space in members(default_space()):
        found = point(space, task, Decider(Random(3)))
        again = point(space, task, Decider(Random(4), found.decisions))
        assert again.program == found.program
        assert decisions_of(found.trace) == found.decisions


def test_scheduling_without_a_tuner_is_not_changed_by_choices() -> None:
    sch = Schedule(TASKS["matmul"].func)
    assert sch.choice(4, [2, 4, 8]) == 4
    assert not sch.trace.instructions


def test_a_space_with_the_result_of_other_loops_has_no_default() -> None:
    task = TASKS["matmul"]
    other = Task("other", task.func, TARGET, lambda func: func)
    with pytest.raises(TuneError) as error:
        point(Default(), other, Decider(by_default=True))
    assert str(error.value) == (
        "the default schedule of task 'other' has no trace\n"
        "  try: a default that works on a Schedule of the task's function"
    )


# ------------------------------------------------------------------------------ what rules make


@pytest.mark.parametrize("name", ["matmul", "conv", "softmax", "relu"])
def test_rules(name: str, golden: object) -> None:
    """One point's trace and program."""
    found = point(PostOrderApply(), TASKS[name], Decider(Random(2)))
    golden(f"{found.trace}\n\n{found.func}", f"tune_rules_{name}")  # type: ignore[operator]


def test_a_tile_fits_into_the_registers() -> None:
    tasks = [
        operator_task("matmul", [(64, 64), (64, 64)], {}),
        operator_task("conv2d", [(1, 64, 8, 8), (64, 64, 1, 1)], {**CONV, "pads": (0,) * 4}),
    ]
    for task, space, seed in product(tasks, members(default_space()), range(4)):
        found = point(space, task, Decider(Random(seed)))
        assert verify_registers(found.func, TARGET) is None


def test_what_cannot_be_built_is_rejected() -> None:
    def unrolled(sch: Schedule) -> None:
        for loop in sch.get_loops("matmul_tile"):
            sch.unroll(loop)

    def wide(sch: Schedule) -> None:
        sch.vectorize(sch.fuse(*sch.get_loops("matmul")))

    task = operator_task("matmul", [(64, 64), (64, 64)], {})
    reasons = [
        why_not(point(ScheduleFn(f), task, Decider()).func, TARGET) for f in (unrolled, wide)
    ]
    assert reasons == [
        "block 'matmul_tile' is unrolled to 262144 copies",
        "loop 'i0_1_i1_1_fused' makes vectors of 4096 elements",
    ]


# ------------------------------------------------------------------------------------ templates


@template
def rows(cfg: Config, sch: Schedule) -> None:
    i, j, k = sch.get_loops("matmul_tile")
    cfg.define_split("rows", i)
    cfg.define_knob("steps", [1, 2, 5])
    i0, i1 = cfg["rows"].apply(i)
    k0, k1 = sch.split(k, [None, cfg["steps"].val])
    sch.reorder(i0, k0, k1, i1, j)
    sch.unroll(k1)


def test_a_template_is_a_space() -> None:
    task = TASKS["matmul"]  # 6 rows of sums of 10
    programs = {point(rows, task, chooser).program for chooser in every_point()}
    assert len(programs) == len(factorizations(6, 2, 6)) * 3
    check(task, point(rows, task, Decider(Random(1))))


def test_all_of_a_union_is_enumerated() -> None:
    task = TASKS["matmul"]

    def never(sch: Schedule) -> None:
        sch.parallel(sch.get_loops("matmul")[0])

    both = Union((rows, ScheduleFn(never)))
    made = [point(both, task, chooser) for chooser in every_point()]
    assert len({p.program for p in made}) == len(made) == 13


def test_mistakes_in_templates() -> None:
    def twice(cfg: Config, sch: Schedule) -> None:
        cfg.define_knob("steps", [1, 2])
        cfg.define_knob("steps", [1, 2])

    def missing(cfg: Config, sch: Schedule) -> None:
        cfg.define_knob("steps", [1, 2])
        cfg["step"]

    messages = []
    for function in (twice, missing):
        with pytest.raises(TuneError) as error:
            point(template(function), TASKS["matmul"], Decider())
        messages.append(str(error.value))
    assert messages == [
        "the template defines 'steps' twice\n  try: a name for each",
        "the template has not defined 'step'\n  try: one of steps",
    ]
