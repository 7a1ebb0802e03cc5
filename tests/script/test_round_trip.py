"""What is printed parses back to an equal program, and prints as the same text again."""

from __future__ import annotations

import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mlc_deploy import IRModule, LowerError, PrimFunc, te
from mlc_deploy.ir import (
    Binary,
    Const,
    For,
    Let,
    Seq,
    Stmt,
    Store,
    structural_equal,
    walk,
    with_fields,
)
from mlc_deploy.ir.nodes import Block, Buffer, Call, Evaluate, Var
from mlc_deploy.ir.printer import FLOAT_CALLS
from mlc_deploy.lower import lower
from mlc_deploy.script import from_script
from tests.script.programs import random_function, random_schedule

seeds = st.integers(0, 1 << 32)
thorough = settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True
)


def assert_round_trip(func: PrimFunc) -> PrimFunc:
    text = func.script()
    again = from_script(text)
    assert isinstance(again, PrimFunc)
    assert structural_equal(func, again), f"{text}\n--- parsed back\n{again.script()}"
    assert again.name == func.name
    assert repr(dict(again.attrs)) == repr({key: func.attrs[key] for key in sorted(func.attrs)})
    assert again.script() == text
    return again


@thorough
@given(seeds)
def test_any_nodes(seed: int) -> None:
    assert_round_trip(random_function(random.Random(seed)))


@thorough
@given(seeds)
def test_scheduled_and_lowered(seed: int) -> None:
    func = random_schedule(random.Random(seed))
    assert_round_trip(func)

    def watch(step: str, flat: PrimFunc, changed: bool) -> None:
        if changed:
            assert_round_trip(flat)

    try:
        lower(func, watch=watch)
    except LowerError:
        pass


def test_several_functions_are_a_module() -> None:
    one, two = random_schedule(random.Random(1)), random_schedule(random.Random(2))
    module = IRModule({"one": one, "two": two, "conv/1": with_fields(one, name="conv/1")})
    again = from_script(module.script())
    assert isinstance(again, IRModule)
    assert list(again) == ["one", "two", "conv/1"]
    assert [again[key].name for key in again] == ["main", "main", "conv/1"]
    assert structural_equal(module, again)
    assert again.script() == module.script()
    in_text = from_script(f"{with_fields(one, name='one')}\n\n{with_fields(two, name='two')}")
    assert isinstance(in_text, IRModule)
    assert structural_equal(in_text, IRModule({"one": one, "two": two}))


def function_of(body: Stmt, *params: Buffer | Var) -> PrimFunc:
    return PrimFunc("main", params, Block("root", (), (), (), body))


def test_names_that_stand_twice_are_told_apart() -> None:
    i, b = Var("i"), Buffer("B", (8,), "int32")
    loop = For(i, Const(4, "int32"), "serial", Store(b, (i,), i))
    text = str(function_of(Seq((loop, loop)), b))
    assert text.splitlines()[2:] == [
        "    for i in range(4):",
        "        B[i] = i",
        "    for i_1 in range(4):",
        "        B[i_1] = i_1",
    ]


def test_a_binding_holds_for_what_is_below_it_alone() -> None:
    x, b = Var("x"), Buffer("B", (8,), "int32")
    let = Let(x, Const(3, "int32"), Store(b, (x,), x))
    after = Store(b, (Const(0, "int32"),), Const(1, "int32"))
    again = assert_round_trip(function_of(Seq((let, after, let)), b))
    assert str(again).splitlines()[2:] == [
        "    with T.LetStmt(T.int32(3)) as x:",
        "        B[x] = x",
        "    B[0] = 1",
        "    x_1: T.int32 = 3",
        "    B[x_1] = x_1",
    ]


@pytest.mark.parametrize(
    ("value", "dtype", "text"),
    [
        (float("nan"), "float32", 'T.float32("nan")'),
        (float("-inf"), "float16", 'T.float16("-inf")'),
        (-0.0, "float64", "T.float64(-0.0)"),
        (0.10000000149011612, "float32", "T.float32(0.1)"),
        (1 << 40, "int64", "T.int64(1099511627776)"),
        (-(1 << 31), "int32", "-2147483648"),
        ((1 << 64) - 1, "uint64", "T.uint64(18446744073709551615)"),
        (True, "bool", "T.bool(True)"),
    ],
)
def test_constants(value: float, dtype: str, text: str) -> None:
    given_value = Const(value, dtype)
    func = function_of(Evaluate(given_value))
    assert str(func).splitlines()[-1] == f"    T.evaluate({text})"
    (read,) = [n for n in walk(assert_round_trip(func)) if isinstance(n, Const)][-1:]
    assert repr(read.value) == repr(value) and read.dtype == dtype


def test_what_is_not_simplified_stays_so() -> None:
    n, b = Var("n"), Buffer("B", (8,), "int32")
    one, zero = Const(1, "int32"), Const(0, "int32")
    body = Store(b, (Binary("*", n, one, "int32"),), Binary("+", one, zero, "int32"))
    func = assert_round_trip(function_of(body, b, n))
    assert str(func).splitlines()[-1] == "    B[n * T.int32(1)] = T.int32(1) + T.int32(0)"


def test_symbolic_shapes() -> None:
    n, m = te.var("n"), te.var("m", "int64")
    a = te.placeholder((n * 2, m), name="A")
    b = te.compute((n * 2, m), lambda i, j: a[i, j] + 1.0, name="B")
    text = str(assert_round_trip(te.create_prim_func([a, b, n])))
    assert text.splitlines()[1:5] == [
        "def main(var_A: T.handle, var_B: T.handle, n: T.int32):",
        "    m = T.int64()",
        '    A = T.match_buffer(var_A, (n * 2, m), "float32")',
        '    B = T.match_buffer(var_B, (n * 2, m), "float32")',
    ]


@pytest.mark.parametrize("name", [*FLOAT_CALLS, "likely", "llvm.fma"])
@pytest.mark.parametrize("dtype", ["float32", "float16x8", "int32"])
def test_intrinsics(name: str, dtype: str) -> None:
    value = Var("x", dtype)
    count = FLOAT_CALLS.get(name, 1)
    call = Call(name, (value,) * count, "bool" if name == "likely" else dtype)
    func = assert_round_trip(function_of(Evaluate(call), value))
    named = f"T.{name}(x" in str(func)
    assert named == (name in FLOAT_CALLS and dtype != "int32")
