"""Products of two matrices of 8-bit numbers that are both data: on every level of CPU, in any size,
exact to numpy and to onnxruntime."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

import mlc_deploy as mlc
from mlc_deploy.frontend import from_onnx
from mlc_deploy.graph import BlockBuilder, Function
from mlc_deploy.graph.nodes import const
from mlc_deploy.ops import TensorType
from mlc_deploy.ops.strategy import best_plan
from mlc_targets import Target
from tests.ops.test_int8 import LEVELS, Array, level

if TYPE_CHECKING:
    from mlc_rpc import Session

__all__ = ["level"]  # the fixture: a session with each level's CPU


@dataclass(frozen=True)
class Product:
    """[..., M, K] times [..., K, N], of these dtypes; and a bias of the columns and relu, fused."""

    left: tuple[int, ...]
    right: tuple[int, ...]
    dtypes: tuple[str, str] = ("int8", "int8")
    biased: bool = False

    @property
    def bias(self) -> Array:
        return np.arange(-5, self.right[-1] - 5, dtype=np.int32) * 1000

    def arrays(self) -> tuple[Array, Array]:
        rng = np.random.default_rng(7)
        made = []
        for shape, dtype in zip((self.left, self.right), self.dtypes, strict=True):
            ends = np.iinfo(dtype)
            drawn = rng.integers(ends.min, ends.max + 1, shape)
            made.append(np.where(rng.random(shape) < 0.3, ends.min, drawn).astype(dtype))
        return made[0], made[1]

    def wanted(self) -> Array:
        a, b = self.arrays()
        found: Array = np.matmul(a.astype(np.int32), b.astype(np.int32))
        return np.maximum(found + self.bias, 0) if self.biased else found


PRODUCTS = (
    Product((2, 16, 32), (2, 32, 24)),  # whole blocks
    Product((1, 17), (17, 35)),  # one row
    Product((1, 31), (31, 35), biased=True),
    Product((2, 9, 70), (2, 70, 1)),  # one column
    Product((3, 1, 9, 17), (1, 2, 17, 11)),  # batches broadcast
    Product((2, 9, 40), (40, 13)),  # one matrix for all
    Product((6, 19), (19, 16), ("uint8", "uint8")),
    Product((2, 3), (3, 2)),  # too small to be packed
)


def function_of(products: tuple[Product, ...]) -> Function:
    b = BlockBuilder("products")
    outputs = []
    for n, p in enumerate(products):
        x, y = (
            b.param(f"{name}{n}", shape, dtype)
            for name, shape, dtype in zip("xy", (p.left, p.right), p.dtypes, strict=True)
        )
        made = b.emit("matmul", x, y)
        outputs.append(b.emit("relu", b.emit("add", made, const(p.bias))) if p.biased else made)
    return b.finish(outputs)


def check(session: Session, target: str, products: tuple[Product, ...]) -> None:
    given = {
        f"{name}{n}": array
        for n, p in enumerate(products)
        for name, array in zip("xy", p.arrays(), strict=True)
    }
    compiled = mlc.compile(function_of(products), target)
    found = session.load(compiled).run(given)
    for p, array in zip(products, found.values(), strict=True):
        np.testing.assert_array_equal(array, p.wanted(), str(p))


def test_products_of_any_size(level: tuple[str, Session]) -> None:
    name, session = level
    check(session, LEVELS[name].target, PRODUCTS)


@pytest.mark.parametrize("name", LEVELS)
def test_the_levels_instructions_are_taken(name: str) -> None:
    types = [TensorType(shape, "int8") for shape in ((3, 9, 17), (3, 11, 17))]
    chosen = best_plan("matmul", types, {"transpose_b": True}, Target(LEVELS[name].target))
    assert chosen is not None and chosen.name == "matmul_int8"


@given(
    rows=st.sampled_from((1, 2, 3, 5, 8, 9, 17)),
    depth=st.sampled_from((1, 3, 5, 7, 8, 9, 16, 17, 33)),
    columns=st.sampled_from((1, 3, 5, 7, 8, 9, 17)),
    dtypes=st.tuples(*[st.sampled_from(("int8", "uint8"))] * 2),
    zeros=st.tuples(*[st.sampled_from((0, 3, 127))] * 2),
)
@settings(max_examples=6, deadline=None)
def test_as_onnxruntime(
    local: Session,
    rows: int,
    depth: int,
    columns: int,
    dtypes: tuple[str, str],
    zeros: tuple[int, int],
) -> None:
    """MatMulInteger of two inputs with zero points. (QLinearMatMul is the same and a requantize.)

    onnxruntime saturates u8 * s8 on x86-64 without VNNI: the second matrix is halved for it."""
    if dtypes == ("int8", "uint8"):
        dtypes = ("uint8", "int8")  # which onnxruntime does not know
    a, b = Product((rows, depth), (depth, columns), dtypes).arrays()
    b = (b // 4).astype(b.dtype)
    kinds = {"int8": TensorProto.INT8, "uint8": TensorProto.UINT8}
    inputs = [
        helper.make_tensor_value_info(n, kinds[d], v.shape)
        for n, d, v in zip("ab", dtypes, (a, b), strict=True)
    ]
    points = [
        helper.make_tensor(f"{n}z", kinds[d], [], [z])
        for n, d, z in zip("ab", dtypes, zeros, strict=True)
    ]
    node = helper.make_node("MatMulInteger", ["a", "b", "az", "bz"], ["y"])
    output = helper.make_tensor_value_info("y", TensorProto.INT32, (rows, columns))
    graph = helper.make_graph([node], "product", inputs, [output], points)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    (wanted,) = session.run(None, {"a": a, "b": b})
    found = local.load(mlc.compile(from_onnx(model), "host")).run({"a": a, "b": b})
    np.testing.assert_array_equal(found["y"], wanted)
