"""Small ONNX models with dynamic or data-dependent sizes: each operator that decides a size, or
whose loops depend on one. What is right is onnxruntime's word."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

Array = NDArray[Any]
Shape = Sequence[int | str]
MOST = 9  # of n
SIZES = (1, 3, 9)
F, INT, B = "float32", "int64", "bool"
rng = np.random.default_rng(11)


@dataclass(frozen=True)
class DynamicModel:
    """inputs: dtype and shape of each, where "n" is dynamic."""

    model: onnx.ModelProto
    inputs: Mapping[str, tuple[str, Shape]]
    given: Callable[[str, tuple[int, ...], str], Array]

    def arrays(self, n: int) -> dict[str, Array]:
        return {
            name: self.given(name, tuple(n if s == "n" else int(s) for s in shape), dtype)
            for name, (dtype, shape) in self.inputs.items()
        }


def plain(name: str, shape: tuple[int, ...], dtype: str) -> Array:
    """Floats with zeros among them; small indices; both truth values."""
    if dtype == INT:
        return np.asarray(rng.integers(0, 1 if name == "zero" else 3, shape))
    if dtype == B:
        return np.asarray(rng.random(shape) < 0.5)
    normal = rng.normal(size=shape).astype(dtype)
    return np.where(rng.random(shape) < 0.3, np.float32(0), normal)


def made(
    nodes: Sequence[onnx.NodeProto],
    inputs: Mapping[str, tuple[str, Shape]],
    outputs: Mapping[str, tuple[str, Shape | None]],
    constants: Mapping[str, Any] | None = None,
    given: Callable[[str, tuple[int, ...], str], Array] = plain,
) -> DynamicModel:
    def info(name: str, dtype: str, shape: Shape | None) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(
            name, helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), shape
        )

    graph = helper.make_graph(
        list(nodes),
        "dynamic",
        [info(name, *it) for name, it in inputs.items()],
        [info(name, *it) for name, it in outputs.items()],
        [numpy_helper.from_array(np.asarray(v), k) for k, v in (constants or {}).items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return DynamicModel(model, inputs, given)


def one(
    op: str,
    constants: Mapping[str, Any] | None = None,
    inputs: Mapping[str, tuple[str, Shape]] | None = None,
    out: str = F,
    order: str = "",
    given: Callable[[str, tuple[int, ...], str], Array] = plain,
    outputs: Sequence[str] = ("y",),
    **attrs: Any,
) -> DynamicModel:
    """One node: its inputs, then the constants, unless `order` says them."""
    known = {"x": (F, ("n", 8))} if inputs is None else inputs
    names = order.split() if order else [*known, *(constants or {})]
    node = helper.make_node(op, ["" if name == "-" else name for name in names], outputs, **attrs)
    return made([node], known, dict.fromkeys(outputs, (out, None)), constants, given)


def i64(*numbers: int) -> Array:
    return np.array(numbers, np.int64)


def weights(*shape: int) -> Array:
    return (rng.normal(size=shape) / 4).astype(np.float32)


IMAGE = {"x": (F, (1, 2, "n", 8))}


def decoder() -> DynamicModel:
    """One head of attention: a token's key and value join a cache of n."""
    width = 8
    nodes = [
        *(helper.make_node("MatMul", ["x", f"w{k}"], [k]) for k in "qkv"),
        helper.make_node("Concat", ["keys", "k"], ["every_key"], axis=0),
        helper.make_node("Concat", ["values", "v"], ["every_value"], axis=0),
        helper.make_node("Transpose", ["every_key"], ["turned"], perm=[1, 0]),
        helper.make_node("MatMul", ["q", "turned"], ["scores"]),
        helper.make_node("Softmax", ["scores"], ["shares"], axis=-1),
        helper.make_node("MatMul", ["shares", "every_value"], ["mixed"]),
        helper.make_node("MatMul", ["mixed", "head"], ["logits"]),
        helper.make_node("ArgMax", ["logits"], ["token"], axis=-1),
    ]
    constants = {f"w{k}": weights(width, width) for k in "qkv"} | {"head": weights(width, 16)}
    inputs: dict[str, tuple[str, Shape]] = {
        "x": (F, (1, width)),
        "keys": (F, ("n", width)),
        "values": (F, ("n", width)),
    }
    outputs = dict.fromkeys(("logits", "every_key", "every_value"), (F, None))
    return made(nodes, inputs, {**outputs, "token": (INT, None)}, constants)


def loop() -> DynamicModel:
    """The rows' running sums, by a Loop of n iterations."""
    body = helper.make_graph(
        [
            helper.make_node("Gather", ["x", "i"], ["row"], axis=0),
            helper.make_node("Add", ["sum_in", "row"], ["sum_out"]),
            helper.make_node("Identity", ["sum_out"], ["each"]),
            helper.make_node("Identity", ["go_in"], ["go_out"]),
        ],
        "body",
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, []),
            helper.make_tensor_value_info("go_in", TensorProto.BOOL, []),
            helper.make_tensor_value_info("sum_in", TensorProto.FLOAT, [8]),
        ],
        [
            helper.make_tensor_value_info("go_out", TensorProto.BOOL, []),
            helper.make_tensor_value_info("sum_out", TensorProto.FLOAT, [8]),
            helper.make_tensor_value_info("each", TensorProto.FLOAT, [8]),
        ],
    )
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("Gather", ["shape", "zero"], ["count"], axis=0),
        helper.make_node("Loop", ["count", "", "start"], ["last", "sums"], body=body),
    ]
    constants = {"zero": np.int64(0), "start": np.zeros(8, np.float32)}
    return made(nodes, {"x": (F, ("n", 8))}, {"last": (F, None), "sums": (F, None)}, constants)


def scan() -> DynamicModel:
    body = helper.make_graph(
        [
            helper.make_node("Add", ["s", "row"], ["t"]),
            helper.make_node("Identity", ["t"], ["each"]),
        ],
        "body",
        [helper.make_tensor_value_info(v, TensorProto.FLOAT, [8]) for v in ("s", "row")],
        [helper.make_tensor_value_info(v, TensorProto.FLOAT, [8]) for v in ("t", "each")],
    )
    node = helper.make_node("Scan", ["start", "x"], ["last", "sums"], body=body, num_scan_inputs=1)
    outputs = {"last": (F, None), "sums": (F, None)}
    return made([node], {"x": (F, ("n", 8))}, outputs, {"start": np.zeros(8, np.float32)})


def branch() -> DynamicModel:
    def side(name: str, op: str) -> onnx.GraphProto:
        out = helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 8])
        return helper.make_graph([helper.make_node(op, ["x"], [name])], name, [], [out])

    nodes = [
        helper.make_node("ReduceSum", ["x"], ["total"], keepdims=0),
        helper.make_node("Greater", ["total", "zero"], ["holds"]),
        helper.make_node(
            "If", ["holds"], ["y"], then_branch=side("a", "Relu"), else_branch=side("b", "Neg")
        ),
    ]
    return made(nodes, {"x": (F, ("n", 8))}, {"y": (F, None)}, {"zero": np.float32(0)})


def steps() -> DynamicModel:
    """0, 1, ... n - 1, from the input's shape."""
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("Gather", ["shape", "zero"], ["n"], axis=0),
        helper.make_node("Range", ["zero", "n", "one"], ["y"]),
    ]
    constants = {"zero": np.int64(0), "one": np.int64(1)}
    return made(nodes, {"x": (F, ("n", 8))}, {"y": (INT, None)}, constants)


def expand() -> DynamicModel:
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("Expand", ["row", "shape"], ["y"]),
    ]
    return made(nodes, {"x": (F, ("n", 8))}, {"y": (F, None)}, {"row": weights(1, 8)})


def norm() -> DynamicModel:
    nodes = [
        helper.make_node("LayerNormalization", ["x", "scale", "bias"], ["y"], axis=-1),
    ]
    constants = {"scale": weights(8), "bias": weights(8)}
    return made(nodes, {"x": (F, ("n", 8))}, {"y": (F, None)}, constants)


def recurrent(op: str, gates: int) -> DynamicModel:
    constants = {"w": weights(1, gates * 4, 8), "r": weights(1, gates * 4, 4)}
    return one(op, constants, {"x": (F, ("n", 1, 8))}, outputs=("y", "last"), hidden_size=4)


def distinct(name: str, shape: tuple[int, ...], dtype: str) -> Array:
    return rng.permutation(int(np.prod(shape))).reshape(shape).astype(dtype)


def boxes(name: str, shape: tuple[int, ...], dtype: str) -> Array:
    if name == "scores":
        return np.asarray(rng.random(shape).astype(dtype))
    corner = rng.random((*shape[:-1], 2))
    size = 0.2 + rng.random((*shape[:-1], 2))
    return np.asarray(np.concatenate([corner, corner + size], -1).astype(dtype))


TWO = {"x": (F, ("n", 8)), "z": (F, ("n", 8))}
MODELS: dict[str, Callable[[], DynamicModel]] = {
    "Relu": lambda: one("Relu"),
    "Add": lambda: one("Add", {"b": weights(8)}),
    "AddRows": lambda: one("Add", inputs={"x": (F, ("n", 8)), "z": (F, ("n", 1))}),
    "Concat": lambda: one("Concat", {"c": weights(2, 8)}, axis=0),
    "ConcatTwo": lambda: one("Concat", inputs=TWO, axis=0),
    "ConcatColumns": lambda: one("Concat", inputs=TWO, axis=1),
    "Tile": lambda: one("Tile", {"by": i64(2, 3)}),
    "MatMul": lambda: one("MatMul", {"w": weights(8, 5)}),
    "MatMulInner": lambda: one("MatMul", inputs={"x": (F, (3, "n")), "z": (F, ("n", 4))}),
    "Gemm": lambda: one("Gemm", {"w": weights(5, 8), "b": weights(5)}, transB=1),
    "Gather": lambda: one("Gather", {"t": weights(3, 6)}, {"i": (INT, ("n",))}, order="t i"),
    "GatherRows": lambda: one("Gather", inputs={"x": (F, ("n", 8)), "zero": (INT, (3,))}, axis=0),
    "Slice": lambda: one("Slice", {"a": i64(1), "b": i64(99), "c": i64(1), "d": i64(2)}),
    "SliceRows": lambda: one("Slice", {"a": i64(0), "b": i64(2), "c": i64(0)}),
    "Pad": lambda: one("Pad", {"by": i64(1, 0, 2, 1)}, mode="constant"),
    "Reshape": lambda: one("Reshape", {"to": i64(-1, 4)}),
    "Flatten": lambda: one("Flatten", inputs=IMAGE, axis=0),
    "Transpose": lambda: one("Transpose", perm=[1, 0]),
    "Softmax": lambda: one("Softmax", axis=0),
    "SoftmaxRows": lambda: one("Softmax", inputs={"x": (F, (3, "n"))}, axis=-1),
    "LayerNorm": norm,
    "ReduceSum": lambda: one("ReduceSum", {"axes": i64(0)}, keepdims=0),
    "ReduceMax": lambda: one("ReduceMax", axes=[1], keepdims=1),
    "ReduceMean": lambda: one("ReduceMean", axes=[0], keepdims=0),
    "ArgMax": lambda: one("ArgMax", out=INT, axis=0),
    "Conv": lambda: one("Conv", {"w": weights(3, 2, 3, 3)}, IMAGE, pads=[1, 1, 1, 1]),
    "MaxPool": lambda: one("MaxPool", None, IMAGE, kernel_shape=[1, 2], strides=[1, 2]),
    "AveragePool": lambda: one("AveragePool", None, IMAGE, kernel_shape=[1, 3]),
    "GlobalAveragePool": lambda: one("GlobalAveragePool", None, IMAGE),
    "Resize": lambda: one(
        "Resize", {"by": np.array([1, 1, 2, 2], np.float32)}, IMAGE, order="x - by", mode="nearest"
    ),
    "NonZero": lambda: one("NonZero", out=INT),
    "Compress": lambda: one(
        "Compress", inputs={"x": (F, ("n", 8)), "keep": (B, ("n",))}, axis=0
    ),
    "Unique": lambda: one("Unique", inputs={"i": (INT, ("n",))}, out=INT, sorted=1),
    "TopK": lambda: made(
        [helper.make_node("TopK", ["x", "k"], ["y", "i"], axis=1)],
        {"x": (F, ("n", 8))}, {"y": (F, None), "i": (INT, None)}, {"k": i64(3)},
        distinct,
    ),
    "NonMaxSuppression": lambda: one(
        "NonMaxSuppression",
        {"most": i64(3), "overlap": np.array([0.4], np.float32), "least": np.zeros(1, np.float32)},
        {"boxes": (F, (1, "n", 4)), "scores": (F, (1, 2, "n"))}, INT, given=boxes,
    ),
    "ScatterElements": lambda: one(
        "ScatterElements", {"i": np.zeros((1, 8), np.int64), "u": weights(1, 8)}, axis=0
    ),
    "ScatterND": lambda: one("ScatterND", {"i": i64(0).reshape(1, 1), "u": weights(1, 8)}),
    "Range": steps,
    "Loop": loop,
    "Scan": scan,
    "If": branch,
    "LSTM": lambda: recurrent("LSTM", 4),
    "GRU": lambda: recurrent("GRU", 3),
    "Where": lambda: one("Where", inputs={"c": (B, ("n", 8)), **TWO}),
    "Expand": expand,
    "Split": lambda: one("Split", {"parts": i64(3, 5)}, outputs=("y", "z"), axis=1),
    "CumSum": lambda: one("CumSum", {"axis": np.int64(0)}),
    "Einsum": lambda: one("Einsum", inputs=TWO, equation="ij,kj->ik"),
    "Squeeze": lambda: one("Squeeze", {"axes": i64(1)}, {"x": (F, ("n", 1, 8))}),
    "Equal": lambda: one("Equal", inputs={"a": (INT, ("n",)), "b": (INT, ("n",))}, out=B),
    "decoder": decoder,
}  # fmt: skip
