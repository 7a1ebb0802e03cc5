"""Small tasks of every kind: the function, and the default schedule of a target."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from mlc_deploy import te
from mlc_deploy.ir import PrimFunc
from mlc_deploy.ir.interp import run
from mlc_deploy.ops import TensorType
from mlc_deploy.ops.cpu import default_schedule
from mlc_deploy.ops.registry import compute
from mlc_deploy.tune.records import Task
from mlc_targets import Target
from tests.ops.planned import plan_for

TARGET = Target("aarch64")

CONV = {"strides": (1, 1), "dilations": (1, 1), "groups": 1}


def operator_task(
    op: str, shapes: Sequence[tuple[int, ...]], attrs: dict[str, object], target: Target = TARGET
) -> Task:
    """One operator, its data and weights in the layouts that the target asks for."""
    plan = plan_for(op, [TensorType(s, "float32") for s in shapes], attrs, target)
    assert plan is not None
    inputs = [te.placeholder(t.shape, t.dtype, f"p{n}") for n, t in enumerate(plan.arguments)]
    made = te.create_prim_func([*inputs, *plan.compute(inputs)], op)
    return Task(op, made, target, plan.schedule)


def plain_task(op: str, shape: tuple[int, ...], attrs: dict[str, object]) -> Task:
    """An operator of one input for which the target has no implementation of its own."""
    x = te.placeholder(shape, "float32", "x")
    func = te.create_prim_func([x, *compute(op, [x], attrs)], op)
    return Task(op, func, TARGET, lambda f: default_schedule(f, TARGET))


def tasks() -> dict[str, Task]:
    return {
        "matmul": operator_task("matmul", [(6, 10), (10, 8)], {}),
        "dense": operator_task("dense", [(3, 6), (20, 6)], {"transpose_b": True}),
        "conv": operator_task("conv2d", [(1, 4, 3, 5), (4, 4, 3, 3)], {**CONV, "pads": (1,) * 4}),
        "pointwise": operator_task(
            "conv2d", [(1, 4, 4, 5), (8, 4, 1, 1)], {**CONV, "pads": (0,) * 4}
        ),
        "odd channels": operator_task(
            "conv2d", [(1, 3, 4, 4), (7, 3, 3, 3)], {**CONV, "pads": (1,) * 4}
        ),
        "depthwise": operator_task(
            "conv2d", [(1, 4, 4, 5), (4, 1, 3, 3)], {**CONV, "groups": 4, "pads": (1,) * 4}
        ),
        "softmax": plain_task("softmax", (4, 24), {"axis": -1}),
        "relu": plain_task("relu", (3, 40), {}),
    }


def data(task: Task) -> list[NDArray[np.float32]]:
    """Small whole numbers, so that sums are the same in any order."""
    rng = np.random.default_rng(0)
    shapes = [tuple(int(n) for n in b.shape) for b in task.func.buffers]  # type: ignore[arg-type]
    return [rng.integers(-3, 4, s).astype(np.float32) for s in shapes]


def result(func: PrimFunc, arrays: Sequence[NDArray[np.float32]]) -> NDArray[np.float32]:
    """The last parameter, as the interpreter computes it."""
    own = [a.copy() for a in arrays]
    own[-1][...] = np.nan
    run(func, *own)
    return own[-1]
