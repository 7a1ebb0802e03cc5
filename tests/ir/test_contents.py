"""What a program holds at all."""

from __future__ import annotations

from mlc_deploy import te
from mlc_deploy.ir import Cast, Load, PrimFunc, Ramp, Select, Shuffle, contents
from mlc_deploy.script import from_script


def program(statement: str) -> PrimFunc:
    func = from_script(f"""
from mlc_deploy.script import tir as T

@T.prim_func
def main(A: T.Buffer((64,), "float32"), B: T.Buffer((64,), "float32")):
    for k in range(4):
        {statement}
""")
    assert isinstance(func, PrimFunc)
    return func


def test_kinds_calls_and_buffers() -> None:
    func = program("B[k] = T.exp(A[k]) + T.cast(k, 'float32')")
    found = contents(func.body)
    assert {Load, Cast} <= found.kinds and not {Select, Shuffle, Ramp} & found.kinds
    assert found.calls == {"exp"}
    assert [b.name for b in found.loaded] == ["A"]


def test_strided_loads() -> None:
    assert not contents(program("B[T.Ramp(k, 1, 4)] = A[T.Ramp(k, 1, 4)]")).strided
    assert not contents(program("B[T.Ramp(k, 2, 4)] = A[T.Ramp(k, 1, 4)]")).strided
    assert contents(program("B[T.Ramp(k, 1, 4)] = A[T.Ramp(k, 2, 4)]")).strided
    assert contents(te.placeholder((4,), "float32", "A")[te.var("n")]).loaded
