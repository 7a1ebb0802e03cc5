"""Converters of onnxruntime's own operators (com.microsoft), which its optimizers and quantizers
write. Most become a sequence of ONNX's operators. Quantized ones are in onnx_quantize.py."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..graph.nodes import Constant, Deferred, TensorType, Value
from ..ir import same_dim, same_shape
from ..ops import Array
from ..ops.block_scaled import SIZES, STORED
from .layers.blocks import times_blocks
from .layers.indices import gather
from .layers.integers import integer_matmul
from .layers.products import matmul, scaled
from .layers.shapes import iota, reshape, select, split, stacked, transposed, with_axis
from .node import shape_of
from .onnx_decoders import causal
from .onnx_node import Converter, OnnxNode
from .onnx_quantize import channels_first, dynamic_quantize

WINDOW = ("auto_pad", "dilations", "group", "kernel_shape", "pads", "strides")
GEMM = ("alpha", "beta", "transA", "transB")
INT8_DATA = 4  # MatMulNBits' accuracy_level: data may be rounded to int8
TOP_BITS = {4: 0x88, 8: 0x80}  # flipping these bits of a byte makes its weights two's complement

# ------------------------------------------------------------------------------- fused operators


def _activation(n: OnnxNode, y: Value, numbers: Sequence[float]) -> Value:
    """y through the function that the attribute `activation` names."""
    name = n.attr("activation", "")
    keys = {"LeakyRelu": ["alpha"], "HardSigmoid": ["alpha", "beta"], "Clip": ["min", "max"]}
    own: dict[str, Any] = dict(zip(keys.get(name, []), numbers, strict=False))
    match name:
        case "":
            return y
        case "Clip":
            return n.emit("clip", y, **own)
        case "Relu" | "Sigmoid" | "Tanh" | "LeakyRelu" | "HardSigmoid":
            return n.standard(name, y, **own)[0]
    raise n.refuse(f"activation '{name}' is not supported")


def _fused_conv(n: OnnxNode) -> Any:
    (y,) = n.standard("Conv", n.input(0), n.input(1), n.optional(2), keep=WINDOW)
    y = y if n.optional(3) is None else n.emit("add", y, n.input(3))
    return _activation(n, y, n.attr("activation_params", []))


def _fused_gemm(n: OnnxNode) -> Any:
    (y,) = n.standard("Gemm", n.input(0), n.input(1), n.optional(2), keep=GEMM)
    numbers = (n.attr(f"activation_{key}", None) for key in ("alpha", "beta"))
    return _activation(n, y, [number for number in numbers if number is not None])


def _fused_matmul(n: OnnxNode) -> Any:
    def side(k: int, name: str) -> Value:
        x, rank = n.input(k), len(n.shape(k))
        if n.attr(f"transBatch{name}", 0):
            x = n.emit("transpose", x, axes=[*range(1, rank - 1), 0, rank - 1])
        return transposed(n, x) if n.attr(f"trans{name}", 0) and rank > 1 else x

    return scaled(n, matmul(n, side(0, "A"), side(1, "B")), n.attr("alpha", 1.0))


def _gelu(n: OnnxNode) -> Any:
    x = n.input(0) if n.optional(1) is None else n.emit("add", n.input(0), n.input(1))
    if n.op == "QuickGelu":
        return n.emit("multiply", x, n.emit("sigmoid", scaled(n, x, n.attr("alpha", 1.702))))
    return n.emit("gelu", x, approximate="tanh" if n.op == "FastGelu" else "none")


# --------------------------------------------------------------------------------- normalization


def _norm(n: OnnxNode, x: Value, scale: Value, shift: Value | None) -> Value:
    """Normalizes the last dimension about the mean or, in the simplified form, about 0."""
    if "Simplified" in n.op:
        return n.standard("RMSNormalization", x, scale, axis=-1, keep=["epsilon"])[0]
    return n.standard("LayerNormalization", x, scale, shift, axis=-1, keep=["epsilon"])[0]


def _simplified_norm(n: OnnxNode) -> Any:
    """It is in ONNX's own domain, though ONNX does not define it."""
    keep = ["axis", "epsilon"]
    return n.standard("RMSNormalization", n.input(0), n.input(1), keep=keep)[0]


def _skip_norm(n: OnnxNode) -> Any:
    simple = n.op.startswith("SkipSimplified")
    shift, bias = (None, n.optional(3)) if simple else (n.optional(3), n.optional(4))
    total = n.emit("add", n.input(0), n.input(1))
    total = total if bias is None else n.emit("add", total, bias)
    _refuse_statistics(n)
    return [_norm(n, total, n.input(2), shift), None, None, total]


def _refuse_statistics(n: OnnxNode) -> None:
    if any(n.outputs[1:3]):
        raise n.refuse("the outputs 'mean' and 'inv_std_var' are not supported")


def _embed_norm(n: OnnxNode) -> Any:
    """The sum of the embeddings of words, places and segments, normalized."""
    batch, length = n.shape()
    total = gather(n, n.input(2), n.input(0), 0, from_end=False)
    places = n.optional(8) or n.constant(np.arange(length), "int32")
    total = n.emit("add", total, gather(n, n.input(3), places, 0, from_end=False))
    if n.optional(1) is not None:
        total = n.emit("add", total, gather(n, n.input(4), n.input(1), 0, from_end=False))
    mask = n.optional(7)
    count: Value = n.constant(np.zeros(batch), "int32")
    if mask is not None:
        count = n.emit("sum", n.cast(mask, "int32"), axes=[1], keepdims=False)
    return [_norm(n, total, n.input(5), n.input(6)), count, total]


# ------------------------------------------------------------------------------------- attention


def _kept(n: OnnxNode, mask: Value, length: int) -> Value:
    """Which keys count, [B, 1, 1 or S, L]. mask: lengths [B], or flags [B, L] or [B, S, L]."""
    rank = len(shape_of(mask))
    if rank == 1 and same_dim(shape_of(mask)[0], n.shape()[0]):
        kept = n.emit(
            "less", iota(n, length, 2, 1, "int32"), with_axis(n, n.cast(mask, "int32"), 1)
        )
    elif rank in (2, 3):
        kept = n.cast(mask, "bool")
    else:
        raise n.refuse(f"a mask of shape {list(shape_of(mask))} is not supported")
    return with_axis(n, kept if rank == 3 else with_axis(n, kept, 1), 1)


def _attend(
    n: OnnxNode, q: Value, k: Value, v: Value, mask: Value | None, bias: Value | None,
    past: Sequence[Value | None],
) -> list[Value]:  # fmt: skip
    """The output [B, S, N * H], and the present keys and values [B, N, L, H]. Queries, keys and
    values of three dimensions are [B, S, N * H]."""
    dtype, heads = q.type.dtype, n.attr("num_heads")
    before = 0 if past[0] is None else shape_of(past[0])[2]
    there = not isinstance(before, int) or before > 0
    rows = shape_of(q)[-2]
    length = before + shape_of(k)[-2]
    low, zero = n.constant(n.attr("mask_filter_value", -10000.0), dtype), n.constant(0, dtype)
    terms = [] if bias is None else [bias]
    if mask is not None:
        terms.append(n.emit("where", _kept(n, mask, length), zero, low))
    if n.attr("unidirectional", 0):
        least = n.constant(np.finfo(dtype).min, dtype)
        unseen = n.emit("where", causal(n, rows, length), n.constant(0, dtype), least)
        terms.append(reshape(n, unseen, (1, 1, rows, length)))
    total = terms[0] if terms else None
    for term in terms[1:]:
        total = n.emit("add", total, term)  # type: ignore[arg-type]
    if len(shape_of(k)) == 4 and not same_shape(shape_of(k), shape_of(q)):  # k has heads
        q = _apart(n, q, heads)
    own: dict[str, Any] = {}
    if len(shape_of(q)) == 3:
        own = {"q_num_heads": heads, "kv_num_heads": heads}
    scale = n.attr("scale", 0.0)
    if scale:
        own["scale"] = scale
    outputs = 3 if there or any(n.outputs[1:]) else 1
    y, *present = n.standard("Attention", q, k, v, total, *past, outputs=outputs, **own)
    if len(shape_of(y)) == 4:
        batch, _, _, width = shape_of(y)
        y = reshape(n, n.emit("transpose", y, axes=(0, 2, 1, 3)), (batch, rows, heads * width))
    if outputs == 3 and not there and len(shape_of(present[0])) == 3:
        present = [_apart(n, p, heads) for p in present]
    return [y, *present]


def _apart(n: OnnxNode, x: Value, heads: int) -> Value:
    """[B, S, N * H] as [B, N, S, H]"""
    batch, rows, width = shape_of(x)
    x = reshape(n, x, (batch, rows, heads, width // heads))
    return n.emit("transpose", x, axes=(0, 2, 1, 3))


def _refuse_rotary(n: OnnxNode) -> None:
    for name in ("do_rotary", "past_present_share_buffer"):
        if n.attr(name, 0):
            raise n.refuse(f"{name} is not supported")


def _of_one_product(
    n: OnnxNode, together: Value, mask: Value | None, past: Value | None, bias: Value | None
) -> Any:
    """Attention with queries, keys and values joined along the last dimension."""
    _refuse_rotary(n)
    width = shape_of(together)[-1]
    sizes = n.attr("qkv_hidden_sizes", None) or [width // 3] * 3
    q, k, v = split(n, together, sizes, 2)
    before = [None, None] if past is None else [select(n, past, 0), select(n, past, 1)]
    y, *present = _attend(n, q, k, v, mask, bias, before)
    return [y, stacked(n, present)] if present else y


def _attention(n: OnnxNode) -> Any:
    together = matmul(n, n.input(0), n.input(1))
    together = together if n.optional(2) is None else n.emit("add", together, n.input(2))
    return _of_one_product(n, together, n.optional(3), n.optional(4), n.optional(5))


def _quantized_attention(n: OnnxNode) -> Any:
    x, w = n.input(0), n.input(1)
    sums = n.cast(integer_matmul(n, x, w, n.optional(6), n.optional(7)), "float32")
    scale = n.emit("multiply", n.input(3), n.input(4))
    together = n.emit("add", n.emit("multiply", sums, scale), n.input(2))
    return _of_one_product(n, together, n.optional(5), n.optional(8), None)


def _multi_head_attention(n: OnnxNode) -> Any:
    if n.optional(1) is None or n.optional(2) is None:
        raise n.refuse("queries, keys and values in one input are not supported")
    if any(n.optional(number) is not None for number in (8, 9)) or any(n.outputs[3:]):
        raise n.refuse("shared buffers and beams are not supported")
    every = [n.input(number) for number in range(3)]
    if (bias := n.optional(3)) is not None:
        parts = split(n, bias, [shape_of(x)[-1] for x in every], 0)
        every = [n.emit("add", x, own) for x, own in zip(every, parts, strict=True)]
    past = [n.optional(6), n.optional(7)]
    return _attend(n, every[0], every[1], every[2], n.optional(4), n.optional(5), past)


def _rotary(n: OnnxNode) -> Any:
    """Positions are given one by one, [B, S], or only the first one, [1]. If the number of heads is
    not given, it follows from the cosines: a head has one for every two numbers."""
    if n.attr("is_packed_batching", 0) or n.attr("scale", 1.0) != 1:
        raise n.refuse("packed batches and a scale are not supported")
    x, places = n.input(0), n.input(1)
    batch, rows = shape_of(x)[0], shape_of(x)[-2]
    if len(shape_of(places)) == 1:
        places = n.emit("add", places, iota(n, rows, 2, 1))
        places = n.emit("broadcast_to", places, shape=(batch, rows))
    cosines = n.input(2)
    heads = n.attr("num_heads", 0)
    if len(shape_of(x)) == 3 and not heads:
        heads = shape_of(x)[-1] // (2 * shape_of(cosines)[-1])
    keep = ["interleaved", "rotary_embedding_dim"]
    inputs = (x, cosines, n.input(3), places)
    return n.standard("RotaryEmbedding", *inputs, keep=keep, num_heads=heads)[0]


# ------------------------------------------------------------------------------ quantized weights


def _matmul_n_bits(n: OnnxNode) -> Any:
    """x times weights [N, K], quantized in blocks along K to 2, 4 or 8 bits and packed. Only
    accuracy level 4 rounds the data to int8."""
    bits, size, count, width = (n.attr(key) for key in ("bits", "block_size", "N", "K"))
    if n.optional(4) is not None:
        raise n.refuse("an order of groups (g_idx) is not supported")
    blocks = -(-width // size)
    x, scales = n.input(0), reshape(n, n.input(2), (count, blocks))
    stored, zeros = n.constant_input(1, "B"), None
    if (given := n.optional(3)) is not None and given.type.dtype == "uint8":
        packed = n.fixed(3, "zero_points").reshape(count, -1)
        zeros = _unpacked(packed, bits, (count, -1))[:, :blocks]
    elif given is not None:
        raise n.refuse("zero points that are not whole numbers are not supported")
    if bits in STORED and size in SIZES:
        plain = Constant(stored.value.reshape(count, blocks, -1))
        numbers = Deferred(TensorType(plain.type.shape, STORED[bits]), _signed, (plain, bits))
        middle = 1 << bits - 1
        offsets = None if zeros is None else (zeros.astype(np.int16) - middle).astype(np.int8)
        rounds = n.attr("accuracy_level", 0) == INT8_DATA
        y = times_blocks(n, x, Constant(numbers), scales, offsets, bits, rounds)
    else:
        q = Constant(_unpacked(stored.value, bits, (count, blocks, size)))
        if zeros is None:
            zeros = np.full((count, blocks), 1 << bits - 1, np.uint8)
        apart = Constant(zeros[..., None].copy())
        w = n.call("dequantize", q, reshape(n, scales, (count, blocks, 1)), apart)
        w = reshape(n, w, (count, blocks * size))
        w = n.emit("slice", w, begin=(0, 0), step=(1, 1), shape=(count, width))
        y = matmul(n, x, n.emit("transpose", n.cast(w, x.type.dtype), axes=(1, 0)))
    return y if n.optional(5) is None else n.emit("add", y, n.input(5))


def _signed(stored: Constant, bits: int) -> Array:
    """Converts bytes of weights to two's complement."""
    signed: Array = stored.value ^ np.uint8(TOP_BITS[bits])
    return signed.view(STORED[bits])


def _unpacked(data: Any, bits: int, shape: Sequence[int]) -> Any:
    parts = data[..., None] >> np.arange(0, 8, bits).astype(np.uint8)
    parts &= np.uint8((1 << bits) - 1)
    return parts.reshape(shape)


def _dynamic_matmul(n: OnnxNode) -> Any:
    """x times quantized weights. Data that are not quantized yet are, by their least and largest
    number."""
    zeros: tuple[Value | None, Value | None]
    if n.op == "DynamicQuantizeMatMul":
        x, x_scale, zero = dynamic_quantize(n, n.input(0))
        w, w_scale, zeros, bias = n.input(1), n.input(2), (zero, n.optional(3)), n.optional(4)
    else:
        x, w, x_scale, w_scale = (n.input(k) for k in range(4))
        zeros, bias = (n.optional(4), n.optional(5)), n.optional(6)
    sums = n.cast(integer_matmul(n, x, w, *zeros), x_scale.type.dtype)
    y = n.emit("multiply", sums, n.emit("multiply", x_scale, w_scale))
    return y if bias is None else n.emit("add", y, bias)


def _max_pool(n: OnnxNode) -> Any:
    return n.standard("MaxPool", n.input(0), keep=[*WINDOW, "ceil_mode"])[0]


RUNTIME: Mapping[str, Converter] = {
    "SimplifiedLayerNormalization": _simplified_norm,
    **{
        f"com.microsoft::{name}": convert
        for name, convert in {
            "Attention": _attention, "BiasGelu": _gelu,
            "DynamicQuantizeMatMul": _dynamic_matmul, "EmbedLayerNormalization": _embed_norm,
            "FastGelu": _gelu, "FusedConv": _fused_conv, "FusedGemm": _fused_gemm,
            "FusedMatMul": _fused_matmul, "Gelu": _gelu, "MatMulIntegerToFloat": _dynamic_matmul,
            "MatMulNBits": _matmul_n_bits, "MultiHeadAttention": _multi_head_attention,
            "NhwcMaxPool": channels_first(_max_pool), "QAttention": _quantized_attention,
            "QuickGelu": _gelu, "RotaryEmbedding": _rotary, "SkipLayerNormalization": _skip_norm,
            "SkipSimplifiedLayerNormalization": _skip_norm, "TransposeMatMul": _fused_matmul,
        }.items()
    },
}  # fmt: skip
