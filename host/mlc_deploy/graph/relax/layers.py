"""Relax's layers (R.nn): convolutions, pooling, normalizations, attention."""

from __future__ import annotations

import math
from typing import Any

from ...ir import dtype_of
from ..nodes import Call, Constant, Value
from .parts import (
    Emits,
    Made,
    along,
    as_dtype,
    axes_of,
    axis_of,
    call,
    in_order,
    integer,
    integers,
    number,
    pads_of,
    rank_of,
    refused,
    reshaped,
    result_in,
    root,
    several,
    shape_of,
    tensor,
)

SPATIAL = {1: "W", 2: "HW", 3: "DHW"}


def _conv(rank: int) -> Any:
    letters, word = SPATIAL[rank], f"nn.conv{rank}d"
    plain, weights = f"NC{letters}", f"OI{letters}"

    def made(
        e: Emits,
        data: Any,
        weight: Any,
        strides: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
        data_layout: str = plain,
        kernel_layout: str = weights,
        out_layout: str | None = None,
        out_dtype: str | None = None,
    ) -> Made:
        x = in_order(e, word, tensor(word, data), data_layout, plain)
        w = in_order(e, word, tensor(word, weight), kernel_layout, weights)
        if out_dtype not in (None, "", "void") and dtype_of(out_dtype).kind == "float":
            x, w = as_dtype(e, x, out_dtype), as_dtype(e, w, out_dtype)
        moves: dict[str, Any] = {
            "strides": several(word, "strides", strides, rank),
            "dilations": several(word, "dilation", dilation, rank),
            "pads": pads_of(word, padding, rank),
            "groups": integer(word, "groups", groups),
        }
        y = _convolved(e, x, w, moves)
        return result_in(out_layout or data_layout, plain, y, e)

    return made


def _convolved(e: Emits, x: Value, w: Value, moves: dict[str, Any]) -> Call:
    """One dimension is two with height 1: conv2d has kernels of its own."""
    match rank_of(x):
        case 4:
            return call("conv2d", x, w, **moves)
        case 3:
            high = {"strides": 1, "dilations": 1}
            wide = {key: [high[key], *moves[key]] for key in high}
            begin, end = moves["pads"]
            x, w = (reshaped(e, v, (*shape_of(v)[:2], 1, shape_of(v)[2])) for v in (x, w))
            y = e.emit("conv2d", x, w, **{**moves, **wide, "pads": [0, begin, 0, end]})
            batch, channels, _, width = y.type.shape
            return call("reshape", y, shape=(batch, channels, width))
    return call("conv_nd", x, w, **moves)


def _conv_transpose(rank: int) -> Any:
    letters, word = SPATIAL[rank], f"nn.conv{rank}d_transpose"
    plain, weights = f"NC{letters}", f"IO{letters}"

    def made(
        e: Emits,
        data: Any,
        weight: Any,
        strides: Any = 1,
        padding: Any = 0,
        output_padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
        data_layout: str = plain,
        kernel_layout: str = weights,
        out_layout: str | None = None,
        out_dtype: str | None = None,
    ) -> Made:
        """A product gives what each element of the data adds to the result; col2im adds it up."""
        x = in_order(e, word, tensor(word, data), data_layout, plain)
        w = in_order(e, word, tensor(word, weight), kernel_layout, weights)
        step = several(word, "strides", strides, rank)
        apart = several(word, "dilation", dilation, rank)
        more = several(word, "output_padding", output_padding, rank)
        pads, groups = pads_of(word, padding, rank), integer(word, "groups", groups)
        batch, channels, *sizes = shape_of(x)
        inputs, share, *kernel = shape_of(w)
        if not all(isinstance(n, int) for n in (channels, inputs, share, *sizes, *kernel)):
            raise refused(f"R.{word} needs sizes that are numbers, not {x.type} and {w.type}")
        if channels != inputs or channels % groups:
            raise refused(f"R.{word}: {channels} channels, weights {w.type}, {groups} groups")
        own: Any = channels // groups
        columns, places = share * math.prod(kernel), math.prod(sizes)
        spread = reshaped(e, w, (groups, own, columns))
        spread = e.emit("transpose", spread, axes=(0, 2, 1))
        parts = e.emit("matmul", spread, reshaped(e, x, (batch, groups, own, places)))
        parts = reshaped(e, parts, (batch, groups * columns, places))
        shape = [
            (n - 1) * s - pads[d] - pads[rank + d] + apart[d] * (kernel[d] - 1) + 1 + more[d]
            for d, (n, s) in enumerate(zip(sizes, step, strict=True))
        ]
        ends = [p - m for p, m in zip(pads[rank:], more, strict=True)]
        moves = {"kernel": kernel, "strides": step, "dilations": apart}
        y = call("col2im", parts, shape=shape, **moves, pads=[*pads[:rank], *ends])
        if any(p < m for p, m in zip(pads[rank:], more, strict=True)):
            y = _longer(e, parts, shape, kernel, step, apart, pads, more)
        return result_in(out_layout or data_layout, plain, y, e)

    return made


def _longer(
    e: Emits, parts: Value, shape: Any, kernel: Any, step: Any, apart: Any, pads: Any, more: Any
) -> Call:
    """Where output_padding exceeds the padding, zeros follow the result."""
    rank = len(shape)
    ends = [p - m for p, m in zip(pads[rank:], more, strict=True)]
    behind = [max(-n, 0) for n in ends]
    inner = [n - b for n, b in zip(shape, behind, strict=True)]
    cut = [*pads[:rank], *(max(n, 0) for n in ends)]
    y = e.emit("col2im", parts, shape=inner, kernel=kernel, strides=step, dilations=apart, pads=cut)
    return call("pad", y, pads=[0] * (4 + rank) + behind, mode="constant", value=0)


def _pool(op: str, rank: int) -> Any:
    letters, word = SPATIAL[rank], f"nn.{op}{rank}d"
    plain = f"NC{letters}"

    def made(
        e: Emits,
        data: Any,
        pool_size: Any = 1,
        strides: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        ceil_mode: bool = False,
        count_include_pad: bool = False,
        layout: str = plain,
        out_layout: str | None = None,
    ) -> Made:
        x = in_order(e, word, tensor(word, data), layout, plain)
        own = {"count_include_pad": bool(count_include_pad)} if op == "avg_pool" else {}
        y = call(
            op,
            x,
            kernel=several(word, "pool_size", pool_size, rank),
            strides=several(word, "strides", strides, rank),
            dilations=several(word, "dilation", dilation, rank),
            pads=pads_of(word, padding, rank),
            ceil_mode=bool(ceil_mode),
            **own,
        )
        return result_in(out_layout or layout, plain, y, e)

    return made


def _adaptive(rank: int) -> Any:
    letters, word = SPATIAL[rank], f"nn.adaptive_avg_pool{rank}d"
    plain = f"NC{letters}"

    def made(
        e: Emits,
        data: Any,
        output_size: Any = None,
        layout: str = plain,
        out_layout: str | None = None,
    ) -> Made:
        x = in_order(e, word, tensor(word, data), layout, plain)
        sizes = shape_of(x)[2:]
        if output_size is None:
            return result_in(out_layout or layout, plain, call("copy", x), e)
        wanted = several(word, "output_size", output_size, rank)
        if all(n == 1 for n in wanted):
            y = call("mean", x, axes=list(range(2, 2 + rank)), keepdims=True)
            return result_in(out_layout or layout, plain, y, e)
        divides = zip(sizes, wanted, strict=True)
        if not all(isinstance(n, int) and n % out == 0 for n, out in divides):
            what = f"R.{word}: averages of {x.type} to {tuple(wanted)}"
            raise refused(what, "sizes that divide the data's")
        kernel = [n // out for n, out in zip(sizes, wanted, strict=True)]
        y = call("avg_pool", x, kernel=kernel, strides=kernel, dilations=[1] * rank,
                 pads=[0] * (2 * rank), ceil_mode=False, count_include_pad=False)  # fmt: skip
        return result_in(out_layout or layout, plain, y, e)

    return made


def pad(
    e: Emits, data: Any, pad_width: Any, pad_value: Any = 0, pad_mode: str = "constant"
) -> Made:
    """pad_width: the beginning and the end of each dimension, one after the other."""
    x = tensor("nn.pad", data)
    if isinstance(pad_width, (list, tuple)):
        pad_width = [n for p in pad_width for n in (p if isinstance(p, (list, tuple)) else [p])]
    widths = integers("nn.pad", "pad_width", pad_width)
    if len(widths) != 2 * rank_of(x):
        raise refused(f"R.nn.pad: {len(widths)} widths for {rank_of(x)} dimensions")
    value = pad_value.value.item() if isinstance(pad_value, Constant) else pad_value
    return call("pad", x, pads=[*widths[::2], *widths[1::2]], mode=pad_mode, value=value)


# ---------------------------------------------------------------------------------- normalization


def batch_norm(
    e: Emits,
    data: Any,
    gamma: Any,
    beta: Any,
    moving_mean: Any,
    moving_var: Any,
    axis: int,
    epsilon: float = 1e-5,
    center: bool = True,
    scale: bool = True,
    momentum: float = 0.1,
) -> Made:
    """By the moving statistics, which stay as they are: a model here is not trained."""
    word = "nn.batch_norm"
    x, mean, var = (tensor(word, v) for v in (data, moving_mean, moving_var))

    def every(n: int) -> Value:
        made: Value = e.emit("broadcast_to", number(n, x.type.dtype), shape=shape_of(mean))
        return made

    factor = tensor(word, gamma) if scale else every(1)
    shift = tensor(word, beta) if center else every(0)
    at, rank = axis_of(word, x, axis), rank_of(x)
    order = [0, at, *(d for d in range(1, rank) if d != at)] if at else [1, 0, *range(2, rank)]
    moved = at not in (1,)
    if moved:
        x = e.emit("transpose", x, axes=tuple(order))
    y = call("batch_norm", x, factor, shift, mean, var, epsilon=epsilon)
    if moved:
        y = call("transpose", e.emit(y), axes=tuple(order.index(d) for d in range(rank)))
    return y, moving_mean, moving_var


def _affine(
    e: Emits, y: Value | Call, gamma: Value | None, beta: Value | None, axes: list[int]
) -> Made:
    """y * gamma + beta, which have a dimension for each of some axes."""
    for op, v in (("multiply", gamma), ("add", beta)):
        if v is not None:
            value: Value = e.emit(y) if isinstance(y, Call) else y
            y = call(op, value, along(e, v, axes, rank_of(value)))
    return y


def layer_norm(
    e: Emits,
    data: Any,
    gamma: Any,
    beta: Any,
    axes: Any,
    epsilon: float = 1e-5,
    center: bool = True,
    scale: bool = True,
) -> Made:
    word = "nn.layer_norm"
    x, over = tensor(word, data), axes_of(word, tensor(word, data), axes)
    y = call("layer_norm", x, axes=over, epsilon=epsilon)
    factor = tensor(word, gamma) if scale else None
    return _affine(e, y, factor, tensor(word, beta) if center else None, over)


def group_norm(
    e: Emits,
    data: Any,
    gamma: Any,
    beta: Any,
    num_groups: int,
    channel_axis: int,
    axes: Any,
    epsilon: float = 1e-5,
    center: bool = True,
    scale: bool = True,
) -> Made:
    word = "nn.group_norm"
    x = tensor(word, data)
    at, over = axis_of(word, x, channel_axis), axes_of(word, x, axes)
    channels, shape = shape_of(x)[at], shape_of(x)
    groups = integer(word, "num_groups", num_groups)
    if not isinstance(channels, int) or channels % groups:
        raise refused(f"R.{word}: {channels} channels in {groups} groups")
    parted = reshaped(e, x, (*shape[:at], groups, channels // groups, *shape[at + 1 :]))
    inside = [at + 1, *(d + (d > at) for d in over if d != at)]
    y = e.emit("layer_norm", parted, axes=sorted(inside), epsilon=epsilon)
    whole = call("reshape", y, shape=shape)
    factor = tensor(word, gamma) if scale else None
    return _affine(e, whole, factor, tensor(word, beta) if center else None, [at])


def rms_norm(e: Emits, data: Any, weight: Any, axes: Any = -1, epsilon: float = 1e-5) -> Made:
    word = "nn.rms_norm"
    x, over = tensor(word, data), axes_of(word, tensor(word, data), axes)
    y = call("rms_norm", x, axes=over, epsilon=epsilon)
    return _affine(e, y, tensor(word, weight), None, over)


def dropout(e: Emits, data: Any, rate: float = 0.5) -> Made:
    """The data itself and a mask of ones: a model here is not trained."""
    x = tensor("nn.dropout", data)
    ones = call("broadcast_to", number(1, x.type.dtype), shape=shape_of(x))
    return call("copy", x), ones


# -------------------------------------------------------------------------------------- attention


def attention(
    e: Emits,
    query: Any,
    key: Any,
    value: Any,
    bias: Any = None,
    scale: float | None = None,
    causal_mask: str | None = None,
    window_size: int | None = None,
) -> Made:
    """[batch, rows, heads, width], of queries, keys and values alike."""
    word = "nn.attention"
    q, k, v = (tensor(word, t) for t in (query, key, value))
    if rank_of(q) != 4:
        raise refused(f"R.{word} takes [batch, rows, heads, width], not {q.type}")
    if window_size is not None:
        raise refused(f"R.{word}: window_size is not supported", "a bias that masks")
    if causal_mask not in (None, "TopLeft", "BottomRight"):
        raise refused(f"R.{word}: no causal_mask '{causal_mask}'", '"TopLeft", "BottomRight"')
    if causal_mask == "TopLeft" and shape_of(q)[1] != shape_of(k)[1]:
        what = f'R.{word}: causal_mask="TopLeft" of {shape_of(q)[1]} rows and {shape_of(k)[1]} keys'
        raise refused(what, '"BottomRight", or a bias that masks')
    width = shape_of(q)[3]
    if scale is None and not isinstance(width, int):
        raise refused(f"R.{word} needs a scale: the width '{width}' is not a number", "scale=0.125")
    factor = root(width) if scale is None else float(scale)  # type: ignore[arg-type]
    biases = [] if bias is None else [tensor(word, bias)]
    return call(
        "attention", q, k, v, *biases, scale=factor, causal=causal_mask is not None,
        heads_first=(False,) * 4,
    )  # fmt: skip


def table() -> dict[str, Any]:
    return {
        **{f"nn.conv{rank}d": _conv(rank) for rank in SPATIAL},
        **{f"nn.conv{rank}d_transpose": _conv_transpose(rank) for rank in (1, 2)},
        **{f"nn.{op}{rank}d": _pool(op, rank) for rank in SPATIAL for op in POOLS},
        **{f"nn.adaptive_avg_pool{rank}d": _adaptive(rank) for rank in SPATIAL},
        "nn.attention": attention,
        "nn.attention_bias": attention,
        "nn.batch_norm": batch_norm,
        "nn.dropout": dropout,
        "nn.group_norm": group_norm,
        "nn.layer_norm": layer_norm,
        "nn.pad": pad,
        "nn.rms_norm": rms_norm,
    }


POOLS = ("max_pool", "avg_pool")
