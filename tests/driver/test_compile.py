"""What `compile` refuses before it compiles kernels."""

from __future__ import annotations

import pytest

import mlc_deploy as mlc
from mlc_deploy import te
from mlc_deploy.errors import LowerError
from mlc_deploy.graph import BlockBuilder, Function
from mlc_targets.object_format import MAX_OPERANDS


def summed(inputs: int) -> Function:
    b = BlockBuilder("main")
    total, *others = [b.param(f"x{n}", (4,)) for n in range(inputs)]
    for x in others:
        total = b.emit("add", total, x)
    return b.finish([total], ["y"])


def test_as_many_inputs_as_boards_take() -> None:
    assert mlc.compile(summed(MAX_OPERANDS - 1), "aarch64").program.calls


def test_more_inputs_than_boards_take() -> None:
    with pytest.raises(LowerError) as caught:
        mlc.compile(summed(MAX_OPERANDS), "aarch64")
    assert str(caught.value) == (
        "the model has 65 inputs and outputs; boards take 64\n"
        "  try: join some of one shape to a tensor with one more dimension"
    )


def test_more_operands_of_a_function_than_boards_take() -> None:
    def total(*tensors: te.Tensor) -> te.Tensor:
        made: te.Tensor = te.compute((4,), lambda i: sum(x[i] for x in tensors), name="total")
        return made

    b = BlockBuilder("main")
    x = b.param("x", (MAX_OPERANDS * 4,))
    parts = [b.emit("slice", x, begin=(n * 4,), step=(1,), shape=(4,)) for n in range(MAX_OPERANDS)]
    b.finish([b.emit_te(total, *parts, source="sum")], ["y"])
    with pytest.raises(LowerError) as caught:
        mlc.compile(b.get(), "aarch64")
    assert str(caught.value) == (
        "kernel 'total' takes 65 tensors; boards take 64\n"
        "  in:  layer 'sum'\n"
        "  try: two calls, each of a part of the tensors"
    )
