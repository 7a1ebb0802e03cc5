"""Converters of onnxruntime's operators for decoders: attention over a cache with fewer heads than
the queries have, and embeddings of few bits."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from ..graph.nodes import Value
from ..ir import Dim, is_const
from ..ops.elementwise import same_extent
from .layers.indices import checked
from .layers.products import scaled
from .layers.shapes import expand, iota, joined, reshape, rows, split, transposed
from .node import Node, shape_of
from .onnx_node import Converter, OnnxNode

LOWEST = float(np.finfo(np.float32).min)

# ------------------------------------------------------------------------------------- attention


def causal(n: Node, count: Dim, length: Dim, window: int = -1) -> Value:
    """Which of `length` keys each of `count` queries sees, bool[count, length]. The last `count`
    keys are the queries' own. A query sees no later key; with a window, only its last `window`
    keys."""
    before = n.extents.value(n, length - count)
    query = n.emit("add", iota(n, count, 2, 0), before)
    key = iota(n, length, 2, 1)
    seen = n.emit("less_equal", key, query)
    if window > 0:
        first = n.emit("subtract", query, n.constant(window, "int64"))
        seen = n.emit("logical_and", seen, n.emit("greater", key, first))
    return seen


def shared_attention(
    n: Node, q: Value, k: Value, v: Value, bias: Value, scale: float, softcap: float = 0.0,
    sink: Value | None = None,
) -> Value:  # fmt: skip
    """Attention of queries [B, H, S, D] over keys and values [B, K, L, D]: [B, S, H * D]. H / K
    query heads share a head of keys; they are the rows of one product. bias: added to scores; it
    broadcasts to [B, H, S, L]. sink [H]: a score without a value."""
    batch, heads, count, width = shape_of(q)
    kept, length = shape_of(k)[1:3]
    group = heads // kept
    q = reshape(n, scaled(n, q, scale), (batch, kept, group * count, width))
    scores = n.emit("matmul", q, transposed(n, k))
    scores = reshape(n, scores, (batch, heads, count, length))
    if softcap:
        scores = scaled(n, n.emit("tanh", scaled(n, scores, 1 / softcap)), softcap)
    scores = n.emit("add", scores, bias)
    if sink is not None:
        own = reshape(n, n.cast(sink, scores.type.dtype), (1, heads, 1, 1))
        own = expand(n, own, (batch, heads, count, 1))
        every = n.emit("softmax", joined(n, [own, scores], 3), axis=3)
        parts = n.emit(
            "slice", every, begin=(0, 0, 0, 1), step=(1,) * 4, shape=(batch, heads, count, length)
        )
    else:
        parts = n.emit("softmax", scores, axis=3)
    parts = reshape(n, parts, (batch, kept, group * count, length))
    y = reshape(n, n.emit("matmul", parts, v), (batch, heads, count, shape_of(v)[3]))
    y = n.emit("transpose", y, axes=(0, 2, 1, 3))
    return reshape(n, y, (batch, count, heads * shape_of(v)[3]))


def _group_query_attention(n: OnnxNode) -> Any:
    """A past belongs to one text and has as many rows as were read; the step's rows are appended to
    it. The shapes give the total length, so the input `seqlens_k` is not needed."""
    heads, kept = n.attr("num_heads"), n.attr("kv_num_heads")
    for name in ("k_quant_type", "v_quant_type"):
        if n.attr(name, "NONE") not in ("NONE", ""):
            raise n.refuse(f"a cache of quantized numbers ({name}) is not supported")
    if any(n.outputs[3:]):
        raise n.refuse("the output 'output_qk' is not supported")
    q = n.input(0)
    batch, count, width = shape_of(q)
    if n.optional(1) is None:
        head = width // (heads + 2 * kept)
        q, k, v = split(n, q, [heads * head, kept * head, kept * head], 2)
    else:
        head = width // heads
        k, v = n.input(1), n.input(2)
    past = [n.optional(3), n.optional(4)]
    before = 0 if past[0] is None else shape_of(past[0])[2]
    empty = is_const(before, 0)
    if not empty and not is_const(batch, 1):
        raise n.refuse(
            f"{batch} texts with a past, each of a length of its own, are not supported", "one text"
        )
    parts = [
        n.emit("transpose", reshape(n, x, (batch, count, own, head)), axes=(0, 2, 1, 3))
        for x, own in ((q, heads), (k, kept), (v, kept))
    ]
    if n.attr("do_rotary", 0):
        places = n.optional(9)
        if places is None:
            places = n.emit("add", iota(n, count, 2, 1), n.extents.value(n, before))
            places = expand(n, places, (batch, count))
        keep = {"interleaved": n.attr("rotary_interleaved", 0)}
        parts[:2] = [
            n.standard("RotaryEmbedding", x, n.input(7), n.input(8), places, **keep)[0]
            for x in parts[:2]
        ]
    q, k, v = parts
    if not empty:
        k, v = (joined(n, [own, x], 2) for own, x in zip(past, (k, v), strict=True))  # type: ignore[list-item]
    length = shape_of(k)[2]
    dtype = q.type.dtype
    seen = causal(n, count, length, n.attr("local_window_size", -1))
    low = float(np.finfo(dtype).min)
    bias = n.emit("where", seen, n.constant(0, dtype), n.constant(low, dtype))
    if (more := n.optional(10)) is not None:
        if not same_extent(shape_of(more)[3], length):
            more = rows(n, more, 0, length, 3)
        bias = n.emit("add", bias, more)
    sink = n.optional(11)
    if sink is None and n.attr("smooth_softmax", 0) > 0:
        sink = n.constant(np.zeros(heads), dtype)
    scale = n.attr("scale", 0.0) or 1 / math.sqrt(head)
    y = shared_attention(n, q, k, v, bias, scale, n.attr("softcap", 0.0), sink)
    return [y, k, v]


# ------------------------------------------------------------------------------------ embeddings


def _gather_block_quantized(n: OnnxNode) -> Any:
    """Rows of a table that is quantized in blocks along its last dimension, to 4 or 8 bits. Only
    the gathered rows are dequantized."""
    table, indices = n.input(0), n.input(1)
    rank = len(shape_of(table))
    if n.attr("gather_axis", 0) % rank or n.attr("quantize_axis", 1) % rank != rank - 1:
        raise n.refuse("axes other than 0 (of rows) and the last one (of blocks) are not supported")
    bits, size = n.attr("bits", 4), n.attr("block_size", 128)
    packed = n.kind(0) is None  # several numbers to a byte; narrow types are unpacked already
    indices = checked(n, indices, [shape_of(table)[0]])
    found = [
        None if x is None else n.emit("gather", x, indices, axis=0)
        for x in (table, n.real(2), n.optional(3))
    ]
    own, scales, zeros = found
    assert own is not None and scales is not None
    if packed:
        own = _numbers(n, own, bits)
        zeros = None if zeros is None else _numbers(n, zeros, bits)
    *lead, width = shape_of(own)
    blocks = shape_of(scales)[-1]
    if zeros is not None:  # cut off the padding of the last byte
        zeros = n.cast(rows(n, zeros, 0, blocks, len(lead)), "float32")
    elif packed:
        zeros = n.constant(1 << bits - 1, "float32")
    y = n.cast(own, "float32")
    if zeros is not None:
        y = n.emit("subtract", y, _spread(n, zeros, size, width))
    y = n.emit("multiply", y, _spread(n, n.cast(scales, "float32"), size, width))
    return n.cast(y, scales.type.dtype)


def _numbers(n: OnnxNode, x: Value, bits: int) -> Value:
    """The numbers of `bits` bits in bytes, the low ones first."""
    if bits == 8:
        return x
    *lead, width = shape_of(x)
    shifts = n.constant(np.arange(0, 8, bits), "uint8")
    parts = n.emit("shift", reshape(n, x, (*lead, width, 1)), shifts, left=False)
    parts = n.emit("bitwise_and", parts, n.constant((1 << bits) - 1, "uint8"))
    return reshape(n, parts, (*lead, width * 8 // bits))


def _spread(n: OnnxNode, x: Value, size: int, width: int) -> Value:
    """Repeats the number of each block for the block's elements."""
    if not shape_of(x):
        return x
    *lead, blocks = shape_of(x)
    x = expand(n, reshape(n, x, (*lead, blocks, 1)), (*lead, blocks, size))
    return rows(n, reshape(n, x, (*lead, blocks * size)), 0, width, len(lead))


DECODERS: Mapping[str, Converter] = {
    "com.microsoft::GatherBlockQuantized": _gather_block_quantized,
    "com.microsoft::GroupQueryAttention": _group_query_attention,
}
