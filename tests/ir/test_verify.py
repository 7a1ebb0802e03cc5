"""The verifier finds each kind of defect, and says after which pass."""

from __future__ import annotations

import pytest

from mlc_deploy.ir import (
    Binary,
    Block,
    Buffer,
    Compare,
    Evaluate,
    For,
    Let,
    Load,
    PrimFunc,
    Seq,
    Stmt,
    Store,
    Var,
    const,
)
from mlc_deploy.ir.verify import VerifyError, verify
from tests.schedule.small_programs import chain, matmul, symbolic

A = Buffer("A", (8,))
B = Buffer("B", (8, 8))
VI, VJ = Var("i"), Var("j")
ONE = const(1.0)


def program(body: Stmt, *allocs: Buffer) -> PrimFunc:
    return PrimFunc("main", (A, B), Block("root", (), (), (), body, allocs=allocs))


def block(name: str) -> Block:
    return Block(name, (), (), (), Store(A, (const(0),), ONE))


DEFECTS: dict[str, Stmt] = {
    "variable 'i' is used outside its loop": Store(A, (VI,), ONE),
    "variable 'j' is used outside its loop": Seq(
        (For(VJ, const(8), "serial", Store(A, (VJ,), ONE)), Store(A, (VJ,), ONE))
    ),
    "store to 'B' has 1 indices of 2": Store(B, (const(0),), ONE),
    "store of int32 to 'A' of float32": Store(A, (const(0),), const(1)),
    "load of 'B' has 1 indices of 2": Store(A, (const(0),), Load(B, (const(0),), "float32")),
    "'T.int32(1) + T.int64(1)': int32 + int64": Evaluate(
        Binary("+", const(1), const(1, "int64"), "int32")
    ),
    "'T.int32(1) < T.int64(1)': int32 < int64": Evaluate(
        Compare("<", const(1), const(1, "int64"), "bool")
    ),
    "two blocks are called 'twice'": Seq((block("twice"), block("twice"))),
}


@pytest.mark.parametrize("defect", DEFECTS)
def test_defects(defect: str) -> None:
    with pytest.raises(VerifyError) as caught:
        verify(program(DEFECTS[defect]), "some pass")
    lines = str(caught.value).splitlines()
    assert lines[0] == f"after some pass: {defect}"
    assert lines[1] == "@T.prim_func", "the program is shown"


def test_a_parameter_is_not_allocated() -> None:
    with pytest.raises(VerifyError, match="block 'root' allocates parameter 'A'"):
        verify(program(Store(A, (const(0),), ONE), A))


def test_a_buffer_that_is_nowhere() -> None:
    inner = Buffer("inner", (4,))
    with pytest.raises(VerifyError, match="buffer 'inner' is neither a parameter nor allocated"):
        verify(program(Store(inner, (const(0),), ONE)))


def test_two_loops_of_one_name_beside_blocks() -> None:
    func = chain()
    root = func.body
    assert isinstance(root, Block) and isinstance(root.body, Seq)
    first = root.body.stmts[0]
    twice = Block(
        "root",
        (),
        (),
        (),
        Seq((first, For(Var("i"), const(1), "serial", Seq(())))),
        allocs=root.allocs,
    )
    with pytest.raises(VerifyError, match="two loops are called 'i'"):
        verify(PrimFunc("main", func.params, twice))


@pytest.mark.parametrize("make", [chain, matmul, symbolic])
def test_well_formed(make: object) -> None:
    func = make()  # type: ignore[operator]
    assert verify(func) is func


def test_let_binds_in_its_body_only() -> None:
    verify(program(Let(VI, const(3), Store(A, (VI,), ONE))))
    with pytest.raises(VerifyError, match="variable 'i'"):
        verify(program(Seq((Let(VI, const(3), Seq(())), Store(A, (VI,), ONE)))))
