"""Small decoders of random weights, as exporters write them, and onnxruntime's loop around them.

PLAIN is of ONNX's operators (transformers, optimum), FUSED of onnxruntime's, with weights of 4 bits
(onnxruntime-genai's builder).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray
from onnx import ModelProto, TensorProto, helper, numpy_helper

from mlc_deploy.decode.model import read_decoder
from mlc_deploy.driver.model_graph import model_graph
from mlc_deploy.graph import Function
from mlc_deploy.graph.program import GraphProgram, lower_graph
from mlc_targets import Target

Array = NDArray[Any]
PLAIN, FUSED = "plain", "fused"
VOCABULARY, WIDTH, HEADS, KEPT, HEAD, INNER, LAYERS = 64, 64, 4, 2, 16, 96, 2
LONGEST = 256  # positions that the tables of angles have
BLOCK = 32  # numbers of 4 bits with one scale
INT64, FLOAT = TensorProto.INT64, TensorProto.FLOAT
PROMPT = [3, 14, 15, 9, 26, 5, 35, 8, 9, 7, 9, 3, 23]


class _Graph:
    """A graph as it grows; a node's output is called by its operator and number."""

    def __init__(self, seed: int) -> None:
        self.random = np.random.default_rng(seed)
        self.nodes: list[Any] = []
        self.weights: list[Any] = []

    def __call__(self, op: str, *inputs: str, outputs: int = 1, **attributes: Any) -> Any:
        made = [f"{op}_{len(self.nodes)}_{k}" for k in range(outputs)]
        self.nodes.append(helper.make_node(op, [*inputs], made, name=made[0], **attributes))
        return made[0] if outputs == 1 else made

    def own(self, op: str, *inputs: str, outputs: int = 1, **attributes: Any) -> Any:
        return self(op, *inputs, outputs=outputs, domain="com.microsoft", **attributes)

    def const(self, value: Any, dtype: Any = np.int64) -> str:
        name = f"c{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.asarray(value, dtype), name))
        return name

    def weight(self, *shape: int, scale: float = 0.35) -> str:
        return self.const(self.random.normal(0, scale, shape), np.float32)


def decoder(
    style: str = PLAIN, seed: int = 0, window: int = 0, longest: int = LONGEST
) -> ModelProto:
    """window: keys that a token sees, its own among them; 0: all."""
    g = _Graph(seed)
    angles = np.arange(longest)[:, None] / 100.0 ** (np.arange(HEAD // 2) / (HEAD // 2))
    tables = [g.const(f(angles), np.float32) for f in (np.cos, np.sin)]
    x = g("Gather", g.weight(VOCABULARY, WIDTH, scale=1), "input_ids")
    context = _fused_context(g) if style == FUSED else _plain_context(g, tables, window)
    skip: str | None = None
    presents: list[str] = []
    for layer in range(LAYERS):
        normed, x = _norm(g, style, x, skip)
        q, k, v = (_linear(g, style, normed, n * HEAD) for n in (HEADS, KEPT, KEPT))
        past = [f"past_key_values.{layer}.{kind}" for kind in ("key", "value")]
        if style == FUSED:
            y, *present = g.own(
                "GroupQueryAttention", q, k, v, *past, *context, *tables, outputs=3,
                num_heads=HEADS, kv_num_heads=KEPT, do_rotary=1, local_window_size=window or -1,
            )  # fmt: skip
        else:
            y, *present = _attention(g, q, k, v, past, context)
        presents += present
        normed, x = _norm(g, style, x, _linear(g, style, y, WIDTH))
        gate, up = (_linear(g, style, normed, INNER) for _ in range(2))
        gate = g("Mul", gate, g("Sigmoid", gate))
        skip = _linear(g, style, g("Mul", gate, up), WIDTH, INNER)
    normed, _ = _norm(g, style, x, skip)
    logits = g("MatMul", normed, g.weight(WIDTH, VOCABULARY))
    names = [f"present.{n}.{kind}" for n in range(LAYERS) for kind in ("key", "value")]
    for name, made in zip(("logits", *names), (logits, *presents), strict=True):
        g.nodes.append(helper.make_node("Identity", [made], [name]))
    value = helper.make_tensor_value_info
    inputs = [
        value("input_ids", INT64, ["batch", "sequence"]),
        value("attention_mask", INT64, ["batch", "total"]),
    ]
    if style == PLAIN:
        inputs.append(value("position_ids", INT64, ["batch", "sequence"]))
    caches = [f"past_key_values.{n}.{kind}" for n in range(LAYERS) for kind in ("key", "value")]
    inputs += [value(name, FLOAT, ["batch", KEPT, "past", HEAD]) for name in caches]
    outputs = [value("logits", FLOAT, ["batch", "sequence", VOCABULARY])]
    outputs += [value(name, FLOAT, ["batch", KEPT, "total", HEAD]) for name in names]
    graph = helper.make_graph(g.nodes, "decoder", inputs, outputs, g.weights)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def _norm(g: _Graph, style: str, x: str, skip: str | None) -> tuple[str, str]:
    """The norm of x, to which skip is added, and that sum."""
    scale = g.const(g.random.uniform(0.5, 1.5, WIDTH), np.float32)
    if style == FUSED:
        if skip is None:
            return g("SimplifiedLayerNormalization", x, scale, axis=-1, epsilon=1e-6), x
        done = g.own("SkipSimplifiedLayerNormalization", x, skip, scale, outputs=4, epsilon=1e-6)
        g.nodes[-1].output[1:3] = ["", ""]
        return done[0], done[3]
    x = x if skip is None else g("Add", x, skip)
    mean = g("ReduceMean", g("Mul", x, x), axes=[-1])
    root = g("Sqrt", g("Add", mean, g.const(1e-6, np.float32)))
    return g("Mul", g("Div", x, root), scale), x


def _linear(g: _Graph, style: str, x: str, columns: int, rows: int = WIDTH) -> str:
    if style == PLAIN:
        made: str = g("MatMul", x, g.weight(rows, columns))
        return made
    numbers = g.random.integers(0, 256, (columns, rows // BLOCK, BLOCK // 2))
    scales = np.full(columns * rows // BLOCK, 0.06)
    packed, scale = g.const(numbers, np.uint8), g.const(scales, np.float32)
    made = g.own("MatMulNBits", x, packed, scale, bits=4, block_size=BLOCK, N=columns, K=rows)
    return made


def _fused_context(g: _Graph) -> list[str]:
    """seqlens_k and total_sequence_length, as the builder computes them."""
    total = g("Gather", g("Shape", "attention_mask"), g.const(1))
    count = g("ReduceSum", "attention_mask", g.const([1]), keepdims=0)
    lengths = g("Cast", g("Sub", count, g.const(1)), to=TensorProto.INT32)
    return [lengths, g("Cast", total, to=TensorProto.INT32)]


def _plain_context(g: _Graph, tables: list[str], window: int) -> list[str]:
    """cos and sin of the positions, what is added to scores, and 0."""
    zero, one = g.const(0), g.const(1)
    past = g("Gather", g("Shape", "past_key_values.0.key"), g.const(2))
    total = g("Add", past, g("Gather", g("Shape", "input_ids"), one))
    query = g("Unsqueeze", g("Range", past, total, one), g.const([1]))
    key = g("Unsqueeze", g("Range", zero, total, one), g.const([0]))
    seen = g("LessOrEqual", key, query)
    if window:
        seen = g("And", seen, g("Greater", key, g("Sub", query, g.const(window))))
    padding = g("Unsqueeze", g("Cast", "attention_mask", to=TensorProto.BOOL), g.const([1, 2]))
    low = g.const(np.finfo(np.float32).min, np.float32)
    bias = g("Where", g("And", seen, padding), g.const(0, np.float32), low)
    found = []
    for table in tables:
        rows = g("Gather", table, "position_ids")
        found.append(g("Unsqueeze", g("Concat", rows, rows, axis=-1), g.const([1])))
    return [*found, bias]


def _attention(
    g: _Graph, q: str, k: str, v: str, past: list[str], context: list[str]
) -> tuple[str, str, str]:
    cos, sin, bias = context

    def apart(x: str, heads: int) -> str:
        x = g("Reshape", x, g.const([1, -1, heads, HEAD]))
        made: str = g("Transpose", x, perm=[0, 2, 1, 3])
        return made

    def turned(x: str) -> str:
        half, end = HEAD // 2, np.iinfo(np.int64).max
        low, high = (g("Slice", x, *(g.const([n]) for n in (b, e, 3))) for b, e in
                     ((0, half), (half, end)))  # fmt: skip
        other = g("Concat", g("Neg", high), low, axis=-1)
        made: str = g("Add", g("Mul", x, cos), g("Mul", other, sin))
        return made

    def repeated(x: str) -> str:
        x = g("Unsqueeze", x, g.const([2]))
        x = g("Expand", x, g.const([1, 1, HEADS // KEPT, 1, 1]))
        made: str = g("Reshape", x, g.const([1, HEADS, -1, HEAD]))
        return made

    keys = g("Concat", past[0], turned(apart(k, KEPT)), axis=2)
    values = g("Concat", past[1], apart(v, KEPT), axis=2)
    scores = g("MatMul", turned(apart(q, HEADS)), g("Transpose", repeated(keys), perm=[0, 1, 3, 2]))
    scores = g("Mul", scores, g.const(HEAD**-0.5, np.float32))
    parts = g("Softmax", g("Add", scores, bias), axis=-1)
    y = g("Transpose", g("MatMul", parts, repeated(values)), perm=[0, 2, 1, 3])
    return g("Reshape", y, g.const([1, -1, HEADS * HEAD])), keys, values


def saved(folder: Path, style: str = PLAIN, **options: Any) -> Path:
    path = folder / f"{style}.onnx"
    onnx.save(decoder(style, **options), path)
    return path


def planned(path: Path, target: str, **how: Any) -> GraphProgram:
    """What a decoder becomes for a target, before its kernels are compiled; how: as read_decoder
    takes it."""
    return program_of(read_decoder(path, **how), target)


def program_of(function: Function, target: str) -> GraphProgram:
    """What a function becomes for a target, before its kernels are compiled."""
    graphs = model_graph(function, Target(target))
    return lower_graph(graphs.optimized, graphs.module)


def by_onnxruntime(path: Path, prompt: list[int], count: int) -> tuple[list[int], list[Array]]:
    """The most likely tokens behind a prompt, and the logits that each was taken by."""
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    names = [i.name for i in session.get_inputs()]
    past = {n: np.zeros((1, KEPT, 0, HEAD), np.float32) for n in names if n.startswith("past")}
    step, read = list(prompt), 0
    tokens: list[int] = []
    logits: list[Array] = []
    while len(tokens) < count:
        given: dict[str, Array] = {
            "input_ids": np.array([step]),
            "attention_mask": np.ones((1, read + len(step)), np.int64),
            "position_ids": np.arange(read, read + len(step))[None],
        }
        inputs = {n: a for n, a in given.items() if n in names} | past
        first, *present = session.run(None, inputs)
        read += len(step)
        past = dict(zip(past, present, strict=True))
        logits.append(first[0, -1])
        tokens.append(int(first[0, -1].argmax()))
        step = tokens[-1:]
    return tokens, logits
