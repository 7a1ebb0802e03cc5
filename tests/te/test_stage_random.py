"""Random schedules of stages: each gives the numbers of the unscheduled program, or is refused."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

import mlc_deploy as mlc
from mlc_deploy import te
from mlc_deploy.errors import ScheduleError
from mlc_deploy.ir import IterVar, numpy_dtype
from mlc_deploy.ir.interp import run
from mlc_deploy.schedule.stages import default_args, stage_program
from mlc_rpc import Session
from tests.te.stage_programs import Array, run_flat, run_on

FACTORS = (1, 2, 3, 4, 5, 8)


def random_program(rng: Random) -> list[te.Tensor]:
    """Inputs and output of a chain of two to four stages: maps, stencils, sums, products."""
    rows, columns = rng.randint(3, 9), rng.randint(3, 13)
    x = te.placeholder((rows, columns), "int32", "X")
    inputs, now = [x], x
    for n in range(rng.randint(2, 4)):
        now = random_stage(rng, "BCDE"[n], now, inputs)
    return [*inputs, now]


def random_stage(rng: Random, name: str, x: te.Tensor, inputs: list[te.Tensor]) -> te.Tensor:
    rows, columns = (int(str(n)) for n in x.shape)
    k = te.reduce_axis((0, columns), f"k{name}")
    shape = (rows, columns)
    match rng.choice(("map", "shift", "sum", "matmul", "transpose", "both")):
        case "shift" if rows > 2 and columns > 2:
            shape = (rows - 1, columns - 2)
            made = te.compute(shape, lambda i, j: x[i, j] + x[i + 1, j + 2], name=name)
        case "sum" if columns > 2:
            window = te.reduce_axis((0, 3), f"k{name}")
            shape = (rows, columns - 2)
            made = te.compute(shape, lambda i, j: te.sum(x[i, j + window], axis=window), name=name)
        case "matmul":
            width = rng.randint(1, 6)
            w = te.placeholder((columns, width), "int32", f"W{name}")
            inputs.append(w)
            shape = (rows, width)
            made = te.compute(shape, lambda i, j: te.sum(x[i, k] * w[k, j], axis=k), name=name)
        case "transpose":
            made = te.compute((columns, rows), lambda i, j: x[j, i] * 2, name=name)
        case "both":
            made = te.compute(shape, lambda i, j: te.max(x[i, k] + x[i, j], axis=k), name=name)
        case _:
            made = te.compute(shape, lambda i, j: x[i, j] * 3 - 1, name=name)
    assert isinstance(made, te.Tensor)
    return made


def random_step(rng: Random, s: te.StageSchedule) -> str:
    """One call with random handles; the calls that succeed are the schedule."""
    computed = [stage for stage in s.stages if isinstance(stage.op, te.ComputeOp)]
    stage = rng.choice(computed)

    def axis(of: te.Stage = stage) -> IterVar:
        return rng.choice(of.leaf_iter_vars)

    call = rng.choices(list(CALLS), list(CALLS.values()))[0]
    match call:
        case "split":
            given = rng.choice(("factor", "nparts"))
            stage.split(axis(), **{given: rng.choice(FACTORS)})
        case "fuse":
            at = rng.randrange(len(stage.leaf_iter_vars))
            stage.fuse(*stage.leaf_iter_vars[at : at + 2])
        case "reorder":
            axes = list(stage.leaf_iter_vars)
            stage.reorder(*rng.sample(axes, rng.randint(1, len(axes))))
        case "vectorize" | "unroll" | "parallel":
            getattr(stage, call)(axis())
        case "compute_at":
            parent = rng.choice(computed)
            stage.compute_at(parent, axis(parent))
        case "compute_inline":
            stage.compute_inline()
        case "cache_read" if isinstance(stage.op, te.ComputeOp):
            s.cache_read(rng.choice(stage.op.input_tensors), "global", stage.op)
        case "cache_write" if isinstance(stage.op, te.ComputeOp):
            s.cache_write(_tensor(s, stage), rng.choice(("global", "local")))
        case "rfactor":
            s.rfactor(_tensor(s, stage), axis(), rng.choice((0, 1, -1)))
    return f"{call} {stage.name}"


CALLS = {
    "split": 6,
    "fuse": 2,
    "reorder": 4,
    "vectorize": 2,
    "unroll": 1,
    "parallel": 1,
    "compute_at": 5,
    "compute_inline": 1,
    "cache_read": 1,
    "cache_write": 1,
    "rfactor": 1,
}


def _tensor(s: te.StageSchedule, stage: te.Stage) -> te.Tensor:
    """What the stage computes."""
    read = [t for other in s.stages if isinstance(other.op, te.ComputeOp)
            for t in other.op.input_tensors if s[t] is stage]  # fmt: skip
    last = default_args(s)[-1]
    assert isinstance(last, te.Tensor)
    return read[0] if read else last


def scheduled(rng: Random, args: list[te.Tensor]) -> tuple[te.StageSchedule, list[str]]:
    s = te.create_schedule(args[-1].op)
    done: list[str] = []
    for _ in range(rng.randint(1, 10)):
        try:
            done.append(random_step(rng, s))
        except ScheduleError:
            continue
    return s, done


def check_random(seed: int, board: Session | None) -> bool:
    """Whether the schedule of that seed was legal."""
    rng = Random(seed)
    args = random_program(rng)
    arrays: list[Array] = [
        np.random.default_rng(seed).integers(-5, 6, tuple(int(str(n)) for n in t.shape))
        .astype(numpy_dtype(t.dtype))
        for t in args
    ]  # fmt: skip
    wanted = [a.copy() for a in arrays]
    run(te.create_prim_func(args), *wanted)
    s, done = scheduled(rng, args)
    try:
        func = stage_program(s, args)
    except ScheduleError:
        return False
    what = "\n".join([f"seed {seed}", *done, str(te.create_prim_func(args)), str(func)])
    found = [a.copy() for a in arrays]
    run(func, *found)
    np.testing.assert_array_equal(found[-1], wanted[-1], err_msg=what)
    found = [a.copy() for a in arrays]
    run(mlc.lower(s, args, simple_mode=True), *found)
    np.testing.assert_array_equal(found[-1], wanted[-1], err_msg=f"simple loops of {what}")
    found = [a.copy() for a in arrays]
    run_flat(mlc.lower(s, args), found)
    np.testing.assert_array_equal(found[-1], wanted[-1], err_msg=f"flat loops of {what}")
    if board is not None:
        run_on(board, mlc.build(s, args, "host"), found)
        np.testing.assert_array_equal(found[-1], wanted[-1], err_msg=f"compiled: {what}")
    return True


@pytest.mark.parametrize("group", range(4))
def test_random_schedules(group: int, local: Session) -> None:
    legal = [
        check_random(seed, local if seed % 10 == 0 else None)
        for seed in range(group * 60, group * 60 + 60)
    ]
    assert sum(legal) > 25, "most schedules are refused: this proves little"


@pytest.mark.schedules
@pytest.mark.parametrize("group", range(20))
def test_many_random_schedules(group: int, local: Session) -> None:
    legal = [
        check_random(seed, local if seed % 20 == 0 else None)
        for seed in range(1000 + group * 100, 1100 + group * 100)
    ]
    assert sum(legal) > 40, "most schedules are refused: this proves little"
