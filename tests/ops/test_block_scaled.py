"""Products with weights of few bits in blocks: on every level of CPU against numpy, on this one
against onnxruntime's MatMulNBits, and what they cost."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import ModelProto, TensorProto, helper, numpy_helper

import mlc_deploy as mlc
from mlc_deploy.frontend import from_onnx
from mlc_deploy.graph import BlockBuilder, Function
from mlc_deploy.graph.lower import lower_fused
from mlc_deploy.graph.nodes import Call, const
from mlc_deploy.ops import TensorType, evaluate, infer_types
from mlc_deploy.ops.block_scaled import SIZES, STORED
from mlc_deploy.ops.strategy import best_plan
from mlc_targets import Target
from tests.ops.operator_calls import close
from tests.ops.planned import laid_out, types_of
from tests.ops.test_int8 import LEVELS, Array, level

if TYPE_CHECKING:
    from mlc_rpc import Session

__all__ = ["level"]  # the fixture: a session with each level's CPU


@dataclass(frozen=True)
class Product:
    """[rows, K] times weights of a number of blocks of `size` elements. full: data may be -128."""

    rows: int
    columns: int
    blocks: int
    size: int = 32
    bits: int = 4
    zeros: bool = False
    scale: str = "float16"
    data: str = "int8"
    full: bool = False

    def arrays(self) -> list[Array]:
        """Data, weights, scales and zero points; every third row at its ends."""
        rng = np.random.default_rng(self.columns)
        low, apart = -128 if self.full else -127, (self.columns, self.blocks)
        x = rng.integers(low, 128, (self.rows, self.blocks * self.size))
        x[::3] = low
        stored = (*apart, self.size * self.bits // 8)
        w = rng.integers(0, 256, stored, np.uint8)
        w[::2] = np.where(rng.random(stored) < 0.7, 0x88 if self.bits == 4 else 0x80, w)[::2]
        scale = (rng.random(apart) * 2 - 1).astype(self.scale)
        half = 1 << self.bits - 1
        zeros = [rng.integers(-half, half, apart).astype(np.int8)] if self.zeros else []
        x = x.astype(self.data) if self.data == "int8" else (x / 100).astype(self.data)
        return [x, w.view(STORED[self.bits]), scale, *zeros]

    @property
    def attrs(self) -> dict[str, Any]:
        return {"bits": self.bits, "narrow": not self.full}

    def wanted(self) -> Array:
        """By the definition, in float64."""
        x, w, scale, *zeros = self.arrays()
        if self.bits == 4:
            w = np.stack([w & 15, w >> 4], axis=-1).astype(np.int8).reshape(*w.shape[:2], -1)
            w = np.where(w > 7, w - 16, w)
        offset = zeros[0][..., None].astype(np.float64) if zeros else 0.0
        real = (w.astype(np.float64) - offset) * scale[..., None].astype(np.float64)
        found: Array = x.astype(np.float64) @ real.reshape(self.columns, -1).T
        return found.astype(np.float32 if self.data == "int8" else self.data)


PRODUCTS = (
    Product(1, 32, 4),
    Product(1, 48, 3, zeros=True, scale="float32"),
    Product(1, 39, 2, size=256),
    Product(1, 33, 2, bits=8),
    Product(5, 20, 3, size=16, zeros=True),
    Product(18, 24, 2, size=64),
    Product(3, 18, 2, size=128, bits=8, zeros=True),
    Product(2, 40, 2, full=True),
    Product(1, 16, 2, bits=8, full=True),
    Product(2, 7, 2, data="float32", zeros=True, scale="float32"),
    Product(3, 16, 2, bits=8, data="float16", zeros=True),
)


def function_of(products: tuple[Product, ...]) -> Function:
    b = BlockBuilder("products")
    outputs = []
    for n, p in enumerate(products):
        x, *constants = p.arrays()
        data = b.param(f"x{n}", x.shape, p.data)
        outputs.append(b.emit("dense_blocks", data, *map(const, constants), **p.attrs))
    return b.finish(outputs)


def check(session: Session, target: str, products: tuple[Product, ...]) -> None:
    inputs = {f"x{n}": p.arrays()[0] for n, p in enumerate(products)}
    found = session.load(mlc.compile(function_of(products), target)).run(inputs)
    for p, array in zip(products, found.values(), strict=True):
        assert close(array, p.wanted()), f"{p}: {np.abs(array - p.wanted()).max()}"


def test_products_of_any_size(level: tuple[str, Session]) -> None:
    name, session = level
    few = name == "sse2"  # has no kernels of its own
    check(session, LEVELS[name].target, PRODUCTS[:2] if few else PRODUCTS)


@given(
    rows=st.integers(1, 20),
    columns=st.integers(1, 40),
    blocks=st.integers(1, 5),
    size=st.sampled_from(SIZES),
    bits=st.sampled_from(list(STORED)),
    zeros=st.booleans(),
    scale=st.sampled_from(("float16", "float32")),
    full=st.booleans(),
)
@settings(max_examples=4, deadline=None)
def test_products_drawn(
    local: Session, rows: int, columns: int, blocks: int, size: int, bits: int, zeros: bool,
    scale: str, full: bool,
) -> None:  # fmt: skip
    drawn = Product(rows, columns, blocks, size, bits, zeros, scale, "int8", full)
    check(local, "host", (drawn,))


@pytest.mark.parametrize("product", PRODUCTS, ids=str)
def test_the_reference_is_the_definition(product: Product) -> None:
    """Also of packed weights, in every target's layout."""
    arrays = product.arrays()
    (found,) = evaluate("dense_blocks", arrays, product.attrs)
    assert close(found, product.wanted())
    for of in LEVELS.values():
        plan = best_plan("dense_blocks", types_of(arrays), product.attrs, Target(of.target))
        if plan is None:
            continue
        packed = laid_out(plan, arrays)
        assert types_of(packed) == list(plan.arguments)
        (found,) = evaluate("dense_blocks", packed, plan.attrs)
        assert close(found, product.wanted())


PLANS = {
    "i8mm": ("quads", "squares"), "dotprod": ("quads", "quads"), "aarch64": ("columns", "columns"),
    "armv7": ("columns", "columns"), "avx2": ("pairs", "pairs"),
}  # fmt: skip


@pytest.mark.parametrize("name", PLANS)
def test_the_levels_instructions_are_taken(name: str) -> None:
    taken = []
    for rows in (1, 64):
        types = types_of(Product(rows, 32, 4).arrays())
        plan = best_plan("dense_blocks", types, {"bits": 4}, Target(LEVELS[name].target))
        assert plan is not None
        taken.append(plan.name.removeprefix("dense_blocks_"))
    assert tuple(taken) == PLANS[name]


# ------------------------------------------------------------------------------------------ costs

# Instructions per weight of one row, and per product of what the level's instruction does at once,
# of 64 rows; in a few columns, where what comes once costs more.
MOST = {"i8mm": (0.20, 2.50), "dotprod": (0.20, 1.70), "aarch64": (0.32, 1.10), "armv7": (0.41, 0)}


def test_instructions(level: tuple[str, Session]) -> None:
    name, session = level
    if name not in MOST:
        pytest.skip("instructions are counted under QEMU")
    together = {"i8mm": 32, "dotprod": 16}.get(name, 4)
    for rows, most in zip((1, 64), MOST[name], strict=True):
        product = Product(rows, 256, 16)
        if not most:
            continue
        target, arrays = Target(LEVELS[name].target), product.arrays()
        plan = best_plan("dense_blocks", types_of(arrays), product.attrs, target)
        assert plan is not None
        b = BlockBuilder("f")
        params = [b.param(f"p{n}", t.shape, t.dtype) for n, t in enumerate(plan.arguments)]
        made: Any = b.emit(Call(plan.op, tuple(params), plan.attrs, plan))
        func = lower_fused(b.finish([made]), target, "f")
        module = session.load(mlc.build(func, target=target))
        given = [*laid_out(plan, arrays), np.zeros((rows, 256), np.float32)]
        counted = module["f"].profile(*map(session.tensor, given)).counts
        module.close()
        assert counted is not None
        products = rows * 256 * 16 * 32 / (together if rows > 1 else 1)
        assert counted[0].total <= most * products, (rows, counted[0].total / products)


# ------------------------------------------------------------------------------------------ models


def model(
    rows: int | str, columns: int, depth: int, size: int, bits: int, zeros: bool, accuracy: int
) -> ModelProto:
    rng, blocks = np.random.default_rng(3), -(-depth // size)
    own = {
        "q": rng.integers(0, 256, (columns, blocks, size * bits // 8), np.uint8),
        "s": (rng.random((columns, blocks)) / 50).astype(np.float32),
    }
    if zeros:
        own["z"] = rng.integers(0, 256, (columns, -(-blocks * bits // 8)), np.uint8)
    node = helper.make_node(
        "MatMulNBits", ["x", *own], ["y"], domain="com.microsoft", N=columns, K=depth, bits=bits,
        block_size=size, accuracy_level=accuracy,
    )  # fmt: skip
    values = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, (rows, width))
        for name, width in (("x", depth), ("y", columns))
    ]
    weights = [numpy_helper.from_array(array, name) for name, array in own.items()]
    graph = helper.make_graph([node], "model", values[:1], values[1:], weights)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9)


@pytest.mark.parametrize(("depth", "size"), [(96, 32), (100, 16), (256, 128)])
@pytest.mark.parametrize(("bits", "zeros"), [(4, False), (4, True), (8, True)])
def test_as_onnxruntime(local: Session, depth: int, size: int, bits: int, zeros: bool) -> None:
    """At accuracy level 4 data are rounded to 8 bits; onnxruntime has a scale per block of them,
    here there is one per row."""
    made = model(5, 24, depth, size, bits, zeros, 4)
    x = np.random.default_rng(4).standard_normal((5, depth)).astype(np.float32)
    (wanted,) = onnxruntime.InferenceSession(made.SerializeToString()).run(None, {"x": x})
    found = local.load(mlc.compile(from_onnx(made), "host")).run({"x": x})["y"]
    assert np.abs(found - wanted).max() <= 0.02 * np.abs(wanted).max()


def test_rows_that_a_run_decides(local: Session) -> None:
    made = model("rows", 24, 96, 32, 4, True, 4)
    here = onnxruntime.InferenceSession(made.SerializeToString())
    loaded = local.load(mlc.compile(from_onnx(made, dims={"rows": "<=40"}), "host"))
    for rows in (1, 6, 33):
        x = np.random.default_rng(rows).standard_normal((rows, 96)).astype(np.float32)
        (wanted,) = here.run(None, {"x": x})
        assert np.abs(loaded.run({"x": x})["y"] - wanted).max() <= 0.02 * np.abs(wanted).max()


def test_rows_as_int8(level: tuple[str, Session]) -> None:
    """The same bits everywhere; a row of zeros stays zeros."""
    name, session = level
    x = np.random.default_rng(5).standard_normal((4, 70)).astype(np.float32)
    x[1], x[2, 3], x[3] = 0, 1e20, x[3] * 1e-20
    b = BlockBuilder("rows")
    q, scale = b.emit("quantize_rows", b.param("x", x.shape))
    compiled = mlc.compile(b.finish([q, scale]), LEVELS[name].target)
    found = list(session.load(compiled).run({"x": x}).values())
    wanted = evaluate("quantize_rows", [x], {})
    np.testing.assert_array_equal(found[0], wanted[0])
    np.testing.assert_array_equal(found[1], wanted[1])
    assert not found[0][1].any() and found[0][2, 3] == 127


X, W, SCALE = (
    TensorType((2, 64), "int8"),
    TensorType((8, 2, 16), "uint8"),
    TensorType((8, 2), "float16"),
)


@pytest.mark.parametrize(
    ("types", "bits", "message"),
    [
        ((X, W, SCALE), 3, "dense_blocks: weights of 3 bits"),
        ((X, W, SCALE), 8, "dense_blocks: int8[2, 64], uint8[8, 2, 16], float16[8, 2]"),
        ((X, TensorType((8, 2, 4), "uint8"), SCALE), 4,
         "dense_blocks: blocks of 8 elements, not of 16, 32, 64, 128, 256"),
        ((TensorType((2, 65), "int8"), W, SCALE), 4,
         "dense_blocks: int8[2, 65], uint8[8, 2, 16], float16[8, 2], blocks of 32 elements"),
    ],
)  # fmt: skip
def test_refusals(types: tuple[TensorType, ...], bits: int, message: str) -> None:
    with pytest.raises(ValueError) as caught:
        infer_types("dense_blocks", types, {"bits": bits})
    assert str(caught.value) == message
