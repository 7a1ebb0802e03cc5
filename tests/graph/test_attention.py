"""Attention in products and a softmax, as exporters write it, becomes one call where it pays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from mlc_deploy.graph import BlockBuilder, Function, Value, const, evaluate
from mlc_deploy.graph.attention import recognize_attention
from mlc_deploy.graph.nodes import Call
from mlc_deploy.graph.verify import verify
from mlc_targets import Target

Array = NDArray[Any]
HEADS, KEPT, COUNT, LENGTH, WIDTH = 4, 2, 2, 64, 16
Write = Callable[[BlockBuilder], Value]


def emit(bb: BlockBuilder, op: str, *args: Value, **attrs: Any) -> Value:
    made: Value = bb.emit(op, *args, **attrs)
    return made


def scores(bb: BlockBuilder, k: Value, scale: str, bias: Value | None = None) -> Value:
    """Of queries [1, H, S, D], in the ways that there are to multiply by 1/4 and to add."""
    q: Value = bb.param("q", (1, k.type.shape[1], COUNT, WIDTH))
    quarter, four = const(np.float32(0.25)), const(np.float32(4))
    if scale == "q":
        q = bb.emit("multiply", q, quarter)
    if scale == "k":
        k = bb.emit("multiply", k, quarter)
    x: Value = bb.emit("matmul", q, bb.emit("transpose", k, axes=(0, 1, 3, 2)))
    if scale == "after":
        x = bb.emit("divide", x, four)
    return x if bias is None else bb.emit("add", x, bias)


def plain(bb: BlockBuilder, scale: str = "after", bias: tuple[int, ...] = ()) -> Value:
    k, v = (bb.param(n, (1, HEADS, LENGTH, WIDTH)) for n in "kv")
    more = bb.param("bias", bias) if bias else None
    return emit(bb, "matmul", bb.emit("softmax", scores(bb, k, scale, more), axis=3), v)


def repeated(bb: BlockBuilder) -> Value:
    """Heads of keys stand there once for each query that reads them; half of the rows count."""

    def heads(name: str) -> Value:
        x = bb.param(name, (1, KEPT, 2 * LENGTH, WIDTH))
        x = bb.emit("slice", x, begin=(0,) * 4, step=(1,) * 4, shape=(1, KEPT, LENGTH, WIDTH))
        x = bb.emit("reshape", x, shape=(1, KEPT, 1, LENGTH, WIDTH))
        x = bb.emit("broadcast_to", x, shape=(1, KEPT, HEADS // KEPT, LENGTH, WIDTH))
        return emit(bb, "reshape", x, shape=(1, HEADS, LENGTH, WIDTH))

    k, v = heads("k"), heads("v")
    return emit(bb, "matmul", bb.emit("softmax", scores(bb, k, "q"), axis=-1), v)


def grouped(bb: BlockBuilder) -> Value:
    """Queries that share a head are the rows of one product; keys are stored in float16."""
    k, v = (
        bb.emit("cast", bb.param(n, (1, KEPT, LENGTH, WIDTH), "float16"), dtype="float32")
        for n in "kv"
    )
    q = bb.param("q", (1, HEADS, COUNT, WIDTH))
    q = bb.emit("multiply", q, const(np.float32(0.5)))
    rows = (1, KEPT, HEADS // KEPT * COUNT)
    q = bb.emit("reshape", q, shape=(*rows, WIDTH))
    x = bb.emit("matmul", q, bb.emit("transpose", k, axes=(0, 1, 3, 2)))
    x = bb.emit("reshape", x, shape=(1, HEADS, COUNT, LENGTH))
    x = bb.emit("add", x, bb.param("bias", (COUNT, LENGTH)))
    x = bb.emit("reshape", bb.emit("softmax", x, axis=3), shape=(*rows, LENGTH))
    y = bb.emit("matmul", x, v)
    y = bb.emit("reshape", y, shape=(1, HEADS, COUNT, WIDTH))
    return emit(bb, "transpose", y, axes=(0, 2, 1, 3))


def turned(bb: BlockBuilder) -> Value:
    """Heads of what three layers have made, row by row."""
    apart = [
        bb.param(n, (1, rows, HEADS, WIDTH)) for n, rows in zip("qkv", (9, 64, 64), strict=True)
    ]
    q, k, v = (
        bb.emit("transpose", x, axes=axes)
        for x, axes in zip(apart, ((0, 2, 1, 3), (0, 2, 3, 1), (0, 2, 1, 3)), strict=True)
    )
    y = bb.emit("matmul", bb.emit("softmax", bb.emit("matmul", q, k), axis=3), v)
    return emit(bb, "transpose", y, axes=(0, 2, 1, 3))


FORMS: dict[str, tuple[Write, dict[str, Any]]] = {
    "after": (plain, {"scale": 0.25}),
    "queries": (lambda bb: plain(bb, "q"), {"scale": 0.25}),
    "keys": (lambda bb: plain(bb, "k"), {"scale": 0.25}),
    "none": (lambda bb: plain(bb, ""), {"scale": 1.0}),
    "bias": (lambda bb: plain(bb, "after", (LENGTH,)), {"scale": 0.25}),
    "repeated": (repeated, {"scale": 0.25, "rows": LENGTH}),
    "grouped": (grouped, {"scale": 0.5, "heads_first": (True, True, True, False)}),
    "turned": (turned, {"scale": 1.0, "heads_first": (False,) * 4}),
}


def made(write: Write) -> Function:
    bb = BlockBuilder("main")
    return bb.finish([write(bb)])


def calls(function: Function) -> list[Call]:
    return [b.call for b in function.bindings if isinstance(b.call, Call)]


def recognized(function: Function, target: str = "aarch64") -> list[Call]:
    after = recognize_attention(Target(target))(function)
    verify(after)
    return [call for call in calls(after) if call.op == "attention"]


@pytest.mark.parametrize("form", FORMS)
def test_recognized(form: str) -> None:
    write, attrs = FORMS[form]
    function = made(write)
    after = recognize_attention(Target("aarch64"))(function)
    verify(after)
    (call,) = (c for c in calls(after) if c.op == "attention")
    assert not any(c.op in ("matmul", "softmax", "transpose", "broadcast_to") for c in calls(after))
    assert dict(call.attrs) == attrs
    rng = np.random.default_rng(0)
    given = {
        p.name: rng.standard_normal(p.type.sizes).astype(p.type.dtype) for p in function.params
    }
    wanted = evaluate(function, given)
    for name, mine in evaluate(after, given).items():
        np.testing.assert_allclose(mine, wanted[name], rtol=1e-4, atol=1e-5)


def test_left_as_it_is() -> None:
    """Where the parts are read elsewhere, where the softmax is not over the keys, where what is
    added does not broadcast to scores, and where the target has no vectors."""

    def read(bb: BlockBuilder) -> list[Value]:
        k, v = (bb.param(n, (1, HEADS, LENGTH, WIDTH)) for n in "kv")
        parts = bb.emit("softmax", scores(bb, k, ""), axis=3)
        return [bb.emit("matmul", parts, v), parts]

    bb = BlockBuilder("main")
    assert not recognized(bb.finish(read(bb)))

    def across(bb: BlockBuilder) -> Value:
        k, v = (bb.param(n, (1, HEADS, LENGTH, WIDTH)) for n in "kv")
        return emit(bb, "matmul", bb.emit("softmax", scores(bb, k, ""), axis=2), v)

    assert not recognized(made(across))
    assert recognized(made(plain))
    assert not recognized(made(plain), "llvm -mtriple=armv7a-linux-gnueabihf -device=arm_cpu")
    assert not recognized(made(plain), "c")


def test_products_stay_where_they_cost_less() -> None:
    """armv7's sixteen registers hold two rows of queries: of many, products of tiles take less."""

    def many(bb: BlockBuilder) -> Value:
        q, k, v = (bb.param(n, (1, 12, 128, 32)) for n in "qkv")
        x = bb.emit("matmul", q, bb.emit("transpose", k, axes=(0, 1, 3, 2)))
        return emit(bb, "matmul", bb.emit("softmax", x, axis=3), v)

    assert not recognized(made(many), "armv7a")
    assert recognized(made(plain), "armv7a")


@pytest.mark.parametrize(("cpu", "ops"), [("cortex-a76", 1), ("cortex-a72", 0)])
def test_float16_where_a_core_computes_with_it(cpu: str, ops: int) -> None:
    """Of as many keys as ViT has, whose product with queries has no schedule of its own."""
    bb = BlockBuilder("halves")
    q, k, v = (bb.param(n, (1, 3, 197, 64), "float16") for n in "qkv")
    x = bb.emit("matmul", q, bb.emit("transpose", k, axes=(0, 1, 3, 2)))
    y = bb.emit("matmul", bb.emit("softmax", x, axis=3), v)
    target = Target(f"llvm -mtriple=aarch64-linux-gnu -mcpu={cpu} -device=arm_cpu")
    found = recognize_attention(target)(bb.finish([y], ["y"]))
    calls = [b.call for b in found.bindings if isinstance(b.call, Call)]
    assert [c.op for c in calls].count("attention") == ops
