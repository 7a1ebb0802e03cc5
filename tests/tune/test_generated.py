"""Every point of a space, generated or the default's, compiled and run, gives what its function
means: exactly, on whole numbers, on every machine, with its tensor intrinsics and without."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from random import Random
from typing import TYPE_CHECKING

import numpy as np
import pytest

from mlc_deploy.driver.build import build
from mlc_deploy.errors import ScheduleError
from mlc_deploy.graph.evaluate import evaluate
from mlc_deploy.graph.lower import unscheduled_fused
from mlc_deploy.ir import IRModule, with_fields
from mlc_deploy.tune.postproc import why_not
from mlc_deploy.tune.records import Task
from mlc_deploy.tune.space import Decider, Default, DesignSpace, Point, PostOrderApply, point
from mlc_targets import Target
from tests.ops.test_int8 import KINDS, LEVELS, Layer, level, numbers
from tests.tune.tasks import data, operator_task, result

if TYPE_CHECKING:
    from mlc_rpc import Session

__all__ = ["level"]  # a fixture

HERE = Target("host")
POINTS = 3


def points(task: Task, random: Random) -> Iterator[Point]:
    spaces: list[DesignSpace] = [*[PostOrderApply()] * POINTS, Default()]
    for space in spaces:
        with suppress(ScheduleError):
            found = point(space, task, Decider(Random(random.getrandbits(32))))
            if why_not(found.func, task.target) is None:
                yield found


def check_int8(session: Session, target: Target, layer: Layer, random: Random) -> int:
    """How many of the layer's points use an intrinsic; all of them are exact."""
    function, arrays = layer.function(target)
    begun = unscheduled_fused(function, target, "layer")
    made = list(points(Task("layer", begun.func, target, begun.schedule), random))
    assert made, f"{layer}"
    funcs = {f"point{n}": with_fields(p.func, name=f"point{n}") for n, p in enumerate(made)}
    name = "points" if len(funcs) > 1 else "point0"
    module = session.load(build(IRModule(dict(funcs)), target=target, name=name))
    (wanted,) = evaluate(function, arrays).values()
    given = [session.tensor(np.ascontiguousarray(a)) for a in arrays]
    for name, found in zip(funcs, made, strict=True):
        out = session.tensor(np.zeros_like(wanted))
        module[name](*given, out)
        np.testing.assert_array_equal(out.numpy(), wanted, f"{layer}\n{found.trace}")
    module.close()
    return sum("tensorize" in str(p.trace) for p in made)


def test_int8(local: Session) -> None:
    rng = Random(1)
    data, weights = numbers(rng, (5, 16), -128), numbers(rng, (16, 16), -127)
    layer = Layer("dense", data, weights, {"transpose_b": True}, True)
    assert check_int8(local, HERE, layer, rng)


@pytest.mark.schedules
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("part", range(4))
def test_int8_on_every_machine(kind: str, part: int, level: tuple[str, Session]) -> None:
    name, session = level
    random = Random(f"{kind} {part}")
    check_int8(session, Target(LEVELS[name].target), KINDS[kind](random), random)


def float_task(random: Random, target: Target) -> Task:
    """A layer of any size, in the layouts of the target."""
    n, c, k = random.randint(1, 9), random.randint(1, 12), random.randint(1, 40)
    lanes = max(target.lanes("float32"), 1)
    conv = {"strides": (random.choice((1, 2)),) * 2, "dilations": (1, 1), "pads": (1,) * 4}
    size, filters = (random.randint(3, 9), random.randint(3, 9)), lanes * random.randint(1, 3)
    match random.randrange(4):
        case 0:
            return operator_task("dense", [(n, c), (k, c)], {"transpose_b": True}, target)
        case 1:
            return operator_task("matmul", [(n, c), (c, lanes * random.randint(1, 5))], {}, target)
        case 2:
            shapes: list[tuple[int, ...]] = [(1, filters, *size), (filters, 1, 3, 3)]
            return operator_task("conv2d", shapes, {**conv, "groups": filters}, target)
    shapes = [(1, c, *size), (filters, c, 3, 3)]
    return operator_task("conv2d", shapes, {**conv, "groups": 1}, target)


def check_floats(session: Session, target: Target, random: Random) -> None:
    task = float_task(random, target)
    arrays = data(task)
    wanted = result(task.func, arrays)
    made = list(points(task, random))
    assert made
    for found in made:
        module = session.load(build(found.func, target=target, name="points"))
        out = session.tensor(np.full_like(wanted, np.nan))
        module["points"](*(session.tensor(a) for a in arrays[:-1]), out)
        np.testing.assert_array_equal(out.numpy(), wanted, f"{found.trace}")
        module.close()


def test_floats(local: Session) -> None:
    check_floats(local, HERE, Random(1))


@pytest.mark.schedules
@pytest.mark.parametrize("board", ["local", "aarch64", "armv7"])
@pytest.mark.parametrize("part", range(12))
def test_floats_on_every_machine(board: str, part: int, request: pytest.FixtureRequest) -> None:
    session: Session = request.getfixturevalue(board)
    target = {"local": HERE, "aarch64": Target("aarch64"), "armv7": Target("armv7a")}[board]
    check_floats(session, target, Random(part))
