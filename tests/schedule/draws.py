"""Random sequences of primitives with random handles, and what must hold of what they make."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mlc_deploy.errors import LowerError, ScheduleError
from mlc_deploy.ir import Const, For, PrimFunc, const, rebuild, statements, substitute, with_fields
from mlc_deploy.ir.interp import run
from mlc_deploy.lower import Kernel, lower
from mlc_deploy.schedule import Schedule
from mlc_targets import Target
from tests.schedule.programs import random_data, random_program

Step = tuple[str, tuple[Any, ...]]
Draw = Callable[[Schedule, Random], tuple[Any, ...]]
Arrays = list[NDArray[Any]]

MOST_STEPS = 8


def _loop(sch: Schedule, rng: Random) -> str:
    loops = [s.name for s in statements(sch.func.body) if isinstance(s, For)]
    return rng.choice(loops or ["none"])


def _block(sch: Schedule, rng: Random) -> str:
    return rng.choice(sch.get_blocks())


def _loops(sch: Schedule, block: str) -> list[str]:
    """The loops around a block, or a name that is none."""
    return [str(n) for n in sch.get_loops(block)] or ["none"]


def _split(sch: Schedule, rng: Random) -> tuple[Any, ...]:
    loop = _loop(sch, rng)
    parts = rng.choice((2, 2, 3))
    factors: list[int | None] = [rng.choice((1, 2, 3, 4, 5, 8)) for _ in range(parts)]
    if rng.random() < 0.9:
        factors[rng.randrange(len(factors))] = None
    return loop, tuple(factors)


def _fuse(sch: Schedule, rng: Random) -> tuple[Any, ...]:
    loops = _loops(sch, _block(sch, rng))
    at = rng.randrange(len(loops))
    return tuple(loops[at : at + rng.choice((2, 2, 3))])


def _reorder(sch: Schedule, rng: Random) -> tuple[Any, ...]:
    loops = _loops(sch, _block(sch, rng))
    return tuple(rng.sample(loops, min(len(loops), rng.randint(1, 4))))


def _one_loop(sch: Schedule, rng: Random) -> tuple[Any, ...]:
    return (_loop(sch, rng),)


def _innermost(sch: Schedule, rng: Random) -> tuple[Any, ...]:
    loops = _loops(sch, _block(sch, rng))
    return (loops[-1] if rng.random() < 0.6 else rng.choice(loops),)


def _one_block(sch: Schedule, rng: Random) -> tuple[Any, ...]:
    return (_block(sch, rng),)


def _block_and_loop(sch: Schedule, rng: Random) -> tuple[Any, ...]:
    block = _block(sch, rng)
    near = [*sch.get_consumers(block), *sch.get_producers(block)]
    loops = sch.get_loops(rng.choice(near)) if near and rng.random() < 0.8 else []
    return block, str(rng.choice(loops)) if loops else _loop(sch, rng)


def _compute_at(sch: Schedule, rng: Random) -> tuple[Any, ...]:
    block, loop = _block_and_loop(sch, rng)
    numbers = range(len(sch.block(block).iters))
    return block, loop, tuple(n for n in numbers if rng.random() < 0.15)


def _own_loop(sch: Schedule, rng: Random) -> tuple[Any, ...]:
    block = _block(sch, rng)
    loops = sch.get_loops(block)
    return block, str(rng.choice(loops)) if loops and rng.random() < 0.9 else _loop(sch, rng)


def _cached(sch: Schedule, rng: Random) -> tuple[Any, ...]:
    return _block(sch, rng), rng.randrange(2), rng.choice(("global", "local"))


def _rfactor(sch: Schedule, rng: Random) -> tuple[Any, ...]:
    return _loop(sch, rng), rng.randrange(3)


def _index_map(rng: Random, ndim: int) -> str:
    """A permutation, one dimension cut in two, or two made one."""
    names = [f"i{n}" for n in range(ndim)]
    results = list(names)
    kind = rng.randrange(3)
    at = rng.randrange(ndim) if ndim else 0
    if ndim and kind == 0:
        rng.shuffle(results)
    elif ndim and kind == 1:
        factor = rng.choice((2, 3, 4))
        results[at : at + 1] = [f"i{at} // {factor}", f"i{at} % {factor}"]
        if rng.random() < 0.5:
            results.append(results.pop(at + 1))
    elif ndim > 1 and at:
        results[at - 1 : at + 1] = [f"i{at - 1} * {rng.choice((2, 4, 16))} + i{at}"]
    return f"lambda {', '.join(names)}: [{', '.join(results)}]"


def _transform_layout(sch: Schedule, rng: Random) -> tuple[Any, ...]:
    block = _block(sch, rng)
    found = sch.block(block)
    inner = [r.buffer for r in (*found.reads, *found.writes) if r.buffer not in sch.func.params]
    buffer = rng.choice(inner or [sch.func.buffers[0]])  # a parameter would be passed otherwise
    ndim = buffer.ndim if inner else 7
    return block, buffer.name, _index_map(rng, ndim)


def _transform_block(sch: Schedule, rng: Random) -> tuple[Any, ...]:
    block = _block(sch, rng)
    return block, _index_map(rng, len(sch.block(block).iters))


def _padding(sch: Schedule, rng: Random) -> tuple[Any, ...]:
    block = _block(sch, rng)
    return block, tuple(rng.choice((1, 1, 2, 3, 4)) for _ in sch.block(block).iters)


# primitive -> (how often, how its arguments are drawn)
DRAWS: dict[str, tuple[int, Draw]] = {
    "split": (6, _split),
    "fuse": (3, _fuse),
    "reorder": (3, _reorder),
    "parallel": (2, _one_loop),
    "vectorize": (3, _innermost),
    "unroll": (1, _one_loop),
    "add_unit_loop": (1, _one_block),
    "compute_inline": (2, _one_block),
    "reverse_compute_inline": (2, _one_block),
    "compute_at": (5, _compute_at),
    "reverse_compute_at": (4, _block_and_loop),
    "decompose_reduction": (2, _own_loop),
    "cache_read": (1, _cached),
    "cache_write": (1, _cached),
    "set_scope": (1, _cached),
    "rfactor": (2, _rfactor),
    "transform_layout": (1, _transform_layout),
    "transform_block_layout": (1, _transform_block),
    "decompose_padding": (1, _own_loop),
    "pad_einsum": (1, _padding),
}


def draw_step(sch: Schedule, rng: Random) -> Step:
    names = list(DRAWS)
    name = rng.choices(names, [DRAWS[n][0] for n in names])[0]
    return name, DRAWS[name][1](sch, rng)


def apply_step(sch: Schedule, step: Step) -> bool:
    """Whether the primitive was legal. Any exception but ScheduleError is a defect of ours, and so
    is a refusal that changed something."""
    before = sch.func
    name, args = step
    try:
        getattr(sch, name)(*args)
    except ScheduleError as error:
        assert sch.func is before, f"{name} refused, and changed the program"
        assert str(error).startswith(f"{name}: "), f"'{error}' does not name {name}"
        return False
    return True


@dataclass(frozen=True, slots=True)
class Drawn:
    """A program, the legal steps of its schedule, and what it must compute."""

    seed: int
    program: PrimFunc
    scheduled: PrimFunc
    steps: tuple[Step, ...]
    inputs: Arrays
    expected: Arrays

    def kernel(self, name: str, target: Target | None = None) -> Kernel:
        return lower(with_fields(self.scheduled, name=name), target)

    def __str__(self) -> str:
        lines = [f"  {name}{args}" for name, args in self.steps]
        return "\n".join([f"seed {self.seed}", *lines, str(self.program), str(self.scheduled)])


def drawn_schedule(seed: int, make_program: Callable[[Random], PrimFunc] = random_program) -> Drawn:
    rng = Random(seed)
    program = make_program(rng)
    inputs = random_data(program, rng)
    expected = [a.copy() for a in inputs]
    run(program, *expected)
    sch = Schedule(program)
    steps: list[Step] = []
    for _ in range(rng.randint(1, MOST_STEPS * 2)):
        step = draw_step(sch, rng)
        try:
            if apply_step(sch, step):
                steps.append(step)
        except Exception as error:
            so_far = Drawn(seed, program, sch.func, (*steps, step), inputs, expected)
            raise AssertionError(f"{type(error).__name__}: {error}\n{so_far}") from error
        if len(steps) == MOST_STEPS:
            break
    return Drawn(seed, program, sch.func, tuple(steps), inputs, expected)


# ----------------------------------------------------------------------------- what must hold


def check_interpreted(drawn: Drawn) -> Kernel:
    """The scheduled program and its flat loops give the unscheduled program's numbers; so they do
    with the turns of parallel loops run backwards, and cut into two runs."""
    _same(drawn, drawn.scheduled, "scheduled")
    _same(drawn, _backwards(drawn.scheduled), "parallel iterations backwards")
    try:
        kernel = drawn.kernel("kernel")
    except LowerError:
        raise
    except Exception as error:
        raise AssertionError(f"lower: {type(error).__name__}: {error}\n{drawn}") from error
    flat = kernel.body
    _same(drawn, flat, "lowered")
    _same(drawn, _backwards(flat), "lowered, parallel iterations backwards")
    if kernel.parallel is not None:
        _same_in_tasks(drawn, kernel)
    return kernel


def _same(drawn: Drawn, func: PrimFunc, what: str) -> None:
    arrays = [a.copy() for a in drawn.inputs]
    try:
        run(func, *arrays)
    except Exception as error:
        raise AssertionError(f"{what}: {type(error).__name__}: {error}\n{drawn}\n{func}") from error
    compare(drawn, arrays, f"{what}\n{func}")


def compare(drawn: Drawn, arrays: Sequence[NDArray[Any]], what: str) -> None:
    for param, actual, wanted in zip(drawn.program.params, arrays, drawn.expected, strict=True):
        if not np.array_equal(actual, wanted):
            raise AssertionError(f"'{param.name}' is wrong, {what}\n{drawn}\n{actual}\n{wanted}")


def _backwards(func: PrimFunc) -> PrimFunc:
    """func with its parallel loops run from the last turn to the first."""

    def visit(m: Any) -> Any:
        if isinstance(m, For) and m.kind == "parallel":
            last = m.extent - 1 - m.var
            return with_fields(m, kind="serial", body=substitute(visit(m.body), {m.var: last}))
        return rebuild(m, visit)

    return with_fields(func, body=visit(func.body))


def _same_in_tasks(drawn: Drawn, kernel: Kernel) -> None:
    """Each task by itself, the last first; scratch is fresh, and poisoned, for each."""
    loop = kernel.parallel
    assert loop is not None
    if not isinstance(loop.extent, Const):
        return
    turns = int(loop.extent)
    arrays = [a.copy() for a in drawn.inputs]
    root = kernel.body.body
    for task in reversed(range(turns)):
        one = substitute(loop.body, {loop.var: const(task, loop.var.dtype)})
        run(with_fields(kernel.body, body=with_fields(root, body=one)), *arrays)
    compare(drawn, arrays, f"task by task\n{kernel.body}")
