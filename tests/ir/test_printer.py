"""How the IR reads."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from mlc_deploy import te
from mlc_deploy.ir import (
    Broadcast,
    Buffer,
    Call,
    Evaluate,
    Expr,
    For,
    If,
    IRModule,
    Let,
    Ramp,
    Seq,
    Shuffle,
    Stmt,
    Store,
    Var,
    all_of,
    any_of,
    binary,
    call,
    cast,
    compare,
    const,
    if_then_else,
    not_,
    select,
)
from tests.schedule.small_programs import chain, matmul, normalized, symbolic, two_results

VI, VJ, VK = Var("i"), Var("j"), Var("k")
A, B = Buffer("A", (8, 8)), Buffer("B", (8,), "int32")
F = const(2.5)

EXPRESSIONS: dict[str, Expr] = {
    "i + j * k": VI + VJ * VK,
    "(i + j) * k": (VI + VJ) * VK,
    "i - (j - k)": VI - (VJ - VK),
    "i - j - k": VI - VJ - VK,
    "i // 4 * 4 + i % 4": VI // 4 * 4 + VI % 4,
    "i // (j + 1)": VI // (VJ + 1),
    "0 - i": -VI,
    "i * -3": VI * -3,
    "i + -3": VI + -3,
    "i & j | k": VI & VJ | VK,
    "i << 2 + j": VI << (const(2) + VJ),
    "(i | j) & k": (VI | VJ) & VK,
    "i < j": compare("<", VI, VJ),
    "i < j and j < k or i == 0": any_of(all_of(VI < VJ, VJ < VK), compare("==", VI, 0)),
    "i < j and (j < k or i == 0)": all_of(VI < VJ, any_of(VJ < VK, compare("==", VI, 0))),
    "not A[i, j] < T.float32(2.5)": not_(A[VI, VJ] < F),
    "T.min(i, j + 1)": binary("min", VI, VJ + 1),
    "T.truncdiv(i, 3)": te.truncdiv(VI, 3),
    "A[i, j + 1]": A[VI, VJ + 1],
    "T.Select(i < 1, B[i], 0)": select(VI < 1, B[VI], 0),
    "T.if_then_else(i < 1, B[i], 0)": if_then_else(VI < 1, B[VI], 0),
    'T.Cast("float32", i + 1)': cast("float32", VI + 1),
    "T.exp(A[i, j])": call("exp", "float32", A[VI, VJ]),
    'T.float32("inf")': const(float("inf")),
    'T.float32("-inf")': const(float("-inf")),
    'T.float32("nan")': const(float("nan")),
    "T.float16(0.5)": const(0.5, "float16"),
    "T.int64(5000000000)": const(5_000_000_000),
    "T.uint8(200)": const(200, "uint8"),
    "T.bool(True)": const(True),
    "-7": const(-7),
    "T.Ramp(i * 4, 1, 4)": Ramp(VI * 4, const(1), 4, "int32x4"),
    "T.Broadcast(i, 4)": Broadcast(VI, 4, "int32x4"),
    "T.Shuffle([T.Broadcast(i, 2)], [1, 0])": Shuffle(
        (Broadcast(VI, 2, "int32x2"),), (1, 0), "int32x2"
    ),
}


@pytest.mark.parametrize("text", EXPRESSIONS)
def test_expressions(text: str) -> None:
    assert str(EXPRESSIONS[text]) == text


STATEMENTS: dict[str, Stmt] = {
    "pass": Seq(()),
    "B[i] = B[j] + 1": Store(B, (VI,), B[VJ] + 1),
    'T.evaluate(T.call_intrin("int32", "wait", i))': Evaluate(Call("wait", (VI,), "int32")),
    "k: T.int32 = i + 1\nB[k] = 0": Let(VK, VI + 1, Store(B, (VK,), const(0))),
    "if i < 3:\n    B[i] = 0\nelse:\n    B[i] = 1": If(
        VI < 3, Store(B, (VI,), const(0)), Store(B, (VI,), const(1))
    ),
    "for i in T.vectorized(8):\n    B[i] = 0": For(
        VI, const(8), "vectorized", Store(B, (VI,), const(0))
    ),
    "for i, j in T.grid(8, 4):\n    B[i] = j": For(
        VI, const(8), "serial", For(VJ, const(4), "serial", Store(B, (VI,), VJ))
    ),
    "for i in range(8):\n    for j in range(i):\n        B[j] = i": For(
        VI, const(8), "serial", For(VJ, VI, "serial", Store(B, (VJ,), VI))
    ),
    'for i in T.unrolled(8, annotations={"a": 1, "b": "x"}):\n    B[i] = 0': For(
        VI, const(8), "unrolled", Store(B, (VI,), const(0)), {"b": "x", "a": 1}
    ),
}


@pytest.mark.parametrize("text", STATEMENTS)
def test_statements(text: str) -> None:
    assert str(STATEMENTS[text]) == text


PROGRAMS = {
    "chain": chain,
    "matmul": matmul,
    "normalized": normalized,
    "symbolic": symbolic,
    "two_results": two_results,
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(name: str, golden: Callable[..., None]) -> None:
    golden(str(PROGRAMS[name]()), f"printed_{name}")


def test_a_module_is_a_class_of_its_functions(golden: Callable[..., None]) -> None:
    golden(IRModule({"a": chain(), "b": matmul()}).script(), "printed_module")
