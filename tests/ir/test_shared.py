"""Walks over expressions visit each node once: of 2^60 places, a walk from place to place would not
end. Each test has seconds of processor time, whatever else the machine does."""

from __future__ import annotations

import copy
import pickle
import signal
from collections.abc import Iterator
from types import FrameType

import numpy as np
import pytest

import mlc_deploy as mlc
from mlc_deploy.arith import Known, expr_bounds, linear, simplify, simplify_expr
from mlc_deploy.ir import (
    Binary,
    Buffer,
    Expr,
    Load,
    PrimFunc,
    Store,
    Var,
    binary,
    free_vars,
    once,
    rebuild,
    replace_buffers,
    statements,
    structural_equal,
    structural_hash,
    substitute,
    walk,
    with_fields,
)
from mlc_deploy.ir.interp import run
from mlc_deploy.ir.parts import SHORT
from mlc_deploy.ir.structural import content, same_expr
from mlc_deploy.ir.verify import verify
from mlc_deploy.lower import lower
from mlc_deploy.schedule import Schedule
from mlc_deploy.script import from_script
from mlc_deploy.tune.features import features
from tests.shared import CASES, DEPTH, LEVELS, SIZE, doubled, function

SECONDS = 60  # of processor time; the slowest takes two


@pytest.fixture(autouse=True)
def ends() -> Iterator[None]:
    def late(number: int, frame: FrameType | None) -> None:
        raise TimeoutError(f"no end after {SECONDS} seconds")

    before = signal.signal(signal.SIGPROF, late)
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    yield
    signal.setitimer(signal.ITIMER_PROF, 0)
    signal.signal(signal.SIGPROF, before)


@pytest.fixture(params=CASES)
def func(request: pytest.FixtureRequest) -> PrimFunc:
    return function(*CASES[request.param])


def value(func: PrimFunc) -> Expr:
    return next(s.value for s in statements(func.body) if isinstance(s, Store))


def nodes(e: Expr) -> int:
    return sum(1 for _ in walk(e))


def test_a_walk_visits_each_node_once(func: PrimFunc) -> None:
    visited = list(walk(value(func)))
    assert len(visited) == len(set(visited)) < 8 * DEPTH


def test_rewriting(func: PrimFunc) -> None:
    e = value(func)
    (v,) = free_vars(e)
    (buffer,) = {n.buffer for n in walk(e) if isinstance(n, Load)}
    other, w = Buffer("other", buffer.shape, buffer.dtype), Var("w")
    moved = substitute(replace_buffers(e, {buffer: other}), {v: w})
    assert nodes(moved) <= nodes(e)
    assert free_vars(moved) == {w}
    assert {n.buffer for n in walk(moved) if isinstance(n, Load)} == {other}

    @once
    def kept(n: Expr) -> Expr:
        calls.append(n)
        return rebuild(n, kept)

    calls: list[Expr] = []
    assert kept(e) is e
    assert len(calls) == nodes(e)


def test_reasoning(func: PrimFunc) -> None:
    e, inside = value(func), dict.fromkeys(free_vars(value(func)), (0, SIZE - 1))
    for ranges in (inside, Known(inside)):
        simple = simplify_expr(e, ranges)
        assert nodes(simple) <= 8 * DEPTH
        if e.dtype in ("int32", "int64"):
            linear(e, ranges)
            expr_bounds(e, ranges)
    simplify(func.body)


def test_comparing(func: PrimFunc) -> None:
    e = value(func)
    (v,) = free_vars(e)
    again = substitute(substitute(e, {v: Var("other")}), {})
    assert not same_expr(e, again)
    back = substitute(again, dict.fromkeys(free_vars(again), v))
    assert back is not e and same_expr(e, back) and content(e) == content(back)
    copied = function_again(func)
    assert structural_equal(func, copied) and structural_hash(func) == structural_hash(copied)


def function_again(func: PrimFunc) -> PrimFunc:
    """The same, of other variables and buffers."""
    found = pickle.loads(pickle.dumps(func))
    assert isinstance(found, PrimFunc)
    return found


def test_what_is_shared_makes_no_difference() -> None:
    levels = 12  # 2^12 places are few enough to write each out
    x = Buffer("x", (SIZE,))
    shared: Expr = x[0]
    for _ in range(levels):
        shared = shared + shared

    def tree(level: int) -> Expr:
        return binary("+", tree(level - 1), tree(level - 1)) if level else x[0]

    alone = tree(levels)
    assert nodes(alone) == 2 ** (levels + 1) - 1 + 2**levels > 100 * nodes(shared)
    assert same_expr(shared, alone)
    store = Store(Buffer("y", (SIZE,)), (), shared)
    assert structural_hash(store) == structural_hash(with_fields(store, value=alone))
    other = with_fields(store, value=Binary("+", alone, shared.a, "float32"))  # type: ignore[attr-defined]
    assert structural_hash(other) != structural_hash(store)


def test_pickles_and_copies_keep_what_is_shared(func: PrimFunc) -> None:
    for again in (pickle.loads(pickle.dumps(func)), copy.deepcopy(func)):
        assert structural_equal(func, again)
        assert nodes(value(again)) == nodes(value(func))
        assert verify(again) is again  # its variables are those of its loops
    assert len(pickle.dumps(func)) < 200_000


def test_the_script_names_what_is_shared_and_reads_it_back(func: PrimFunc) -> None:
    text = func.script()
    assert len(text) < 200_000
    assert "T.meta_var" in text
    again = from_script(text)
    assert isinstance(again, PrimFunc)
    assert structural_equal(func, again)
    assert nodes(value(again)) <= SHORT * nodes(value(func))  # small parts are written out
    assert again.script() == text
    assert len(str(value(func))) < 200_000 and len(repr(value(func))) < 200_000


def test_small_parts_are_written_where_they_stand() -> None:
    assert "meta_var" not in function(lambda e: e * e + e).script()


def test_lowering(func: PrimFunc) -> None:
    verify(func)
    kernel = lower(func)
    assert all(nodes(s.value) < 8 * DEPTH for s in statements(kernel.body) if isinstance(s, Store))


def test_schedules_and_features(func: PrimFunc) -> None:
    sch = Schedule(func)
    (block,) = sch.get_blocks()
    (loop,) = sch.get_loops(block)
    _outer, inner = sch.split(loop, [None, 4])
    sch.cache_read(block, 0, "global")
    sch.cache_write(block, 0, "local")
    sch.vectorize(inner)
    features(sch.func, mlc.Target("aarch64"))
    lower(sch.func)


@pytest.mark.parametrize("target", ["aarch64", "armv7a"])
def test_llvm_is_given_each_operation_once(func: PrimFunc, target: str) -> None:
    library = mlc.build(func, target=target)
    assert len(library.llvm_ir.splitlines()) < 200 * nodes(value(func))
    assert len(library.object_bytes) < 1 << 18


def test_the_interpreter_computes_each_value_once() -> None:
    x = np.arange(SIZE, dtype=np.float32)
    y = np.empty_like(x)
    run(function(doubled), x, y)
    np.testing.assert_array_equal(y, x * np.float32(2) ** LEVELS)


def test_inlining_computes_an_element_once() -> None:
    """Each stage reads the one before it twice, and in two ways of writing."""
    tensor = mlc.te.placeholder((SIZE,), "float32", "x")
    tensors = [tensor]
    for n in range(LEVELS):
        before = tensors[-1]
        tensors.append(mlc.te.compute((SIZE,), lambda i: before[i] + before[i], f"y{n}"))  # noqa: B023
    sch = Schedule(mlc.te.create_prim_func([tensors[0], tensors[-1]], "chain"))
    for n in range(LEVELS - 1):
        sch.compute_inline(f"y{n}")
    assert nodes(value(sch.func)) < 3 * LEVELS
