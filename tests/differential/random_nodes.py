"""What random graphs are made of: functions that add a node, and leaves it needs, to a graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tests.differential.random_onnx import FLOATS, INTEGERS, NUMBERS, OPEN, Drawn, Value

Maker = Callable[[Drawn], object]


def _unary(op: str, exact: bool = False, **ranges: tuple[float, ...]) -> Maker:
    """An operator of one input; ranges are attributes and the values they may have."""

    def make(d: Drawn) -> object:
        x = d.value()
        attrs = {name: d.one_of(choices) for name, choices in ranges.items() if d.chance()}
        return x and d.node(op, [x], exact, **attrs)

    return make


def _step(op: str) -> Maker:
    """An operator that jumps, so that its input must be the same to the bit."""

    def make(d: Drawn) -> object:
        x = d.value(exact=True)
        return x and d.node(op, [x], True)

    return make


def _binary(op: str, dtypes: tuple[str, ...], exact: bool = False, steps: bool = False) -> Maker:
    def make(d: Drawn) -> object:
        x = d.value(dtypes, exact=steps)
        if x is None:
            return None
        y = d.broadcast_partner(x, x.array.dtype.name)
        if steps and not y.exact:
            return None
        pair = [y, x] if d.chance() else [x, y]
        return d.node(op, pair, exact)

    return make


def _reduce(op: str, exact: bool = False) -> Maker:
    def make(d: Drawn) -> object:
        x = d.value(ranks=(1, 2, 3, 4))
        if x is None:
            return None
        axes = sorted({d.number(-x.rank, x.rank - 1) % x.rank for _ in range(d.number(1, 2))})
        keep = d.number(0, 1)
        return d.node(op, [x, d.known(np.array(axes, np.int64))], exact, keepdims=keep)

    return make


def _arg(op: str) -> Maker:
    def make(d: Drawn) -> object:
        x = d.value(NUMBERS, (1, 2, 3, 4), exact=True)
        if x is None:
            return None
        axis, keep = d.number(-x.rank, x.rank - 1), d.number(0, 1)
        return d.node(op, [x], True, axis=axis, keepdims=keep, select_last_index=d.number(0, 1))

    return make


def _softmax(op: str) -> Maker:
    def make(d: Drawn) -> object:
        x = d.value(ranks=(1, 2, 3, 4))
        return x and d.node(op, [x], axis=d.number(-x.rank, x.rank - 1))

    return make


def _clip(d: Drawn) -> object:
    x = d.value()
    low, high = (d.known(np.float32(v)) if d.chance() else None for v in (-0.5, 1.25))
    return x and d.node("Clip", [x, low, high], True)


def _where(d: Drawn) -> object:
    condition = d.value(("bool",))
    if condition is None:
        return None
    x = d.broadcast_partner(condition, "float32")
    return d.node("Where", [condition, x, d.broadcast_partner(condition, "float32")], True)


def _cast(d: Drawn) -> object:
    x = d.value((*NUMBERS, "bool", "uint8"), exact=True)
    return x and d.node("Cast", [x], True, to=d.one_of((1, 6, 7, 9)))


# --------------------------------------------------------------------------------------- shapes


def _reshape(d: Drawn) -> object:
    x = d.value((*NUMBERS, "bool"), (1, 2, 3, 4))
    if x is None:
        return None
    sizes = list(x.shape)
    if d.chance() and len(sizes) > 1:
        k = d.number(0, len(sizes) - 2)
        sizes[k : k + 2] = [sizes[k] * sizes[k + 1]]
    elif sizes[-1] % 2 == 0:
        sizes[-1:] = [sizes[-1] // 2, 2]
    whole = [k for k, n in enumerate(sizes) if d.open_dim and n % OPEN == 0]
    for at in whole[:1] or ([d.number(0, len(sizes) - 1)] if d.chance() else []):
        sizes[at] = -1
    return d.node("Reshape", [x, d.known(np.array(sizes, np.int64))], True)


def _transpose(d: Drawn) -> object:
    x = d.value((*NUMBERS, "bool"), (2, 3, 4))
    if x is None:
        return None
    perm = list(range(x.rank))
    for k in range(x.rank - 1):
        other = d.number(k, x.rank - 1)
        perm[k], perm[other] = perm[other], perm[k]
    return d.node("Transpose", [x], True, perm=perm)


def _unsqueeze(d: Drawn) -> object:
    x = d.value((*NUMBERS, "bool"), (0, 1, 2, 3))
    return x and d.node("Unsqueeze", [x, d.known(np.array([d.number(0, x.rank)]))], True)


def _squeeze(d: Drawn) -> object:
    x = d.value(NUMBERS)
    if x is None or 1 not in x.shape:
        return None
    ones = [axis for axis, n in enumerate(x.shape) if n == 1]
    axes = [d.known(np.array(ones))] if d.open_dim or d.chance() else []
    return d.node("Squeeze", [x, *axes], True)


def _flatten(d: Drawn) -> object:
    x = d.value(NUMBERS, (1, 2, 3, 4))
    return x and d.node("Flatten", [x], True, axis=d.number(0, x.rank))


def _expand(d: Drawn) -> object:
    x = d.value(NUMBERS, (0, 1, 2, 3))
    if x is None:
        return None
    shape = [n if n > 1 else d.one_of((1, 2, 3)) for n in x.shape]
    shape = [1 if d.open_dim and n == OPEN else n for n in shape]
    shape = [d.one_of((1, 2)), *shape] if d.chance() else shape
    return d.node("Expand", [x, d.known(np.array(shape, np.int64))], True)


def _tile(d: Drawn) -> object:
    x = d.value(NUMBERS, (1, 2, 3))
    if x is None:
        return None
    reps = [d.one_of((1, 1, 2, 3)) for _ in x.shape]
    return d.node("Tile", [x, d.known(np.array(reps, np.int64))], True)


def _concat(d: Drawn) -> object:
    x = d.value(NUMBERS, (1, 2, 3, 4))
    if x is None:
        return None
    axis = d.number(0, x.rank - 1)
    parts: list[Value] = [x]
    for _ in range(d.number(1, 2)):
        like = [v for v in d.values if _fits(v, x, axis)]
        if like and d.chance():
            parts.append(d.one_of(like))
        else:
            shape = [d.number(1, 5) if k == axis else n for k, n in enumerate(x.shape)]
            parts.append(d.leaf(shape, x.array.dtype.name))
    return d.node("Concat", parts, True, axis=axis)


def _fits(v: Value, x: Value, axis: int) -> bool:
    same = v.rank == x.rank and v.array.dtype == x.array.dtype
    return same and all(
        a == b or k == axis for k, (a, b) in enumerate(zip(v.shape, x.shape, strict=False))
    )


def _slice(d: Drawn) -> object:
    x = d.value(NUMBERS, (1, 2, 3, 4))
    if x is None:
        return None
    axis = d.number(0, x.rank - 1)
    extent = x.shape[axis]
    begin, step = d.number(0, extent - 1), d.one_of((1, 1, 2, -1))
    end = d.number(begin + 1, extent) if step > 0 else -extent - 1
    parts = [np.array([v], np.int64) for v in (begin, end, axis, step)]
    return d.node("Slice", [x, *map(d.known, parts)], True)


def _pad(d: Drawn) -> object:
    x = d.value(FLOATS, (1, 2, 3, 4))
    if x is None:
        return None
    mode = d.one_of(("constant", "edge", "reflect"))
    most = [2 if mode != "reflect" else min(2, n - 1) for n in x.shape] * 2
    pads = d.known(np.array([d.number(0, m) for m in most], np.int64))
    fill = d.known(np.float32(1.5)) if mode == "constant" and d.chance() else None
    return d.node("Pad", [x, pads, fill], True, mode=mode)


def _gather(d: Drawn) -> object:
    x = d.value(NUMBERS, (1, 2, 3))
    if x is None:
        return None
    axis = d.number(0, x.rank - 1)
    count = d.number(1, 4)
    n = x.shape[axis]
    places = np.array([d.number(-n, n - 1) for _ in range(count)], d.one_of(INTEGERS))
    return d.node("Gather", [x, d.known(places, d.chance())], True, axis=axis)


def _split(d: Drawn) -> object:
    """As a slice of the halves, since nodes here have one output."""
    x = d.value(FLOATS, (2, 3, 4))
    if x is None or x.shape[1] < 2:
        return None
    middle = x.shape[1] // 2
    cuts = [(0, middle), (middle, x.shape[1])]
    for begin, end in cuts:
        parts = [np.array([v], np.int64) for v in (begin, end, 1)]
        d.node("Slice", [x, *map(d.known, parts)], True)
    return None


# --------------------------------------------------------------------------------------- layers


def _window(d: Drawn, spatial: tuple[int, ...]) -> dict[str, Any]:
    """kernel_shape, strides, dilations and pads that fit the data. No SAME padding where a stride
    exceeds its kernel: engines disagree about padding below zero there."""
    kernel = [d.number(1, min(3, n)) for n in spatial]
    dilations = [
        d.one_of((1, 1, 2)) if k > 1 and 2 * (k - 1) < n else 1
        for k, n in zip(kernel, spatial, strict=True)
    ]
    strides = [d.number(1, 3) for _ in spatial]
    attrs: dict[str, Any] = {"kernel_shape": kernel, "strides": strides, "dilations": dilations}
    if d.chance():
        attrs["pads"] = [d.number(0, k // 2) for k in kernel * 2]
    elif max(dilations) == 1 and d.chance():
        covers = all(stride <= k for stride, k in zip(strides, kernel, strict=True))
        attrs["auto_pad"] = d.one_of(
            ("SAME_UPPER", "SAME_LOWER", "VALID") if covers else ("VALID",)
        )
    return attrs


def _image(d: Drawn) -> Value:
    """A value that may be one, or one made for this."""
    x = d.value(ranks=(4,))
    if x is not None and d.chance():
        return x
    sizes = (1, 3, 4, 5, 8, 9)
    shape = (d.one_of((1, 1, 2)), d.one_of((1, 3, 4, 6, 8)), d.one_of(sizes), d.one_of(sizes))
    return d.leaf(shape, constant=False)


def _conv(d: Drawn) -> object:
    x = _image(d)
    channels = x.shape[1]
    groups = d.one_of([g for g in (1, 1, 2, channels) if channels % g == 0])
    outputs = groups * d.number(1, 4)
    attrs = _window(d, x.shape[2:])
    kernel = attrs["kernel_shape"]
    assert isinstance(kernel, list)
    w = d.leaf((outputs, channels // groups, *kernel), constant=d.number(0, 4) > 0)
    bias = [d.leaf((outputs,))] if d.chance() else []
    return d.node("Conv", [x, w, *bias], group=groups, **attrs)


def _pool(op: str) -> Maker:
    def make(d: Drawn) -> object:
        x = _image(d)
        attrs = _window(d, x.shape[2:])
        if op == "AveragePool":
            attrs["count_include_pad"] = d.number(0, 1)
        return d.node(op, [x], op == "MaxPool", **attrs, ceil_mode=d.number(0, 1))

    return make


def _global(op: str) -> Maker:
    return lambda d: d.node(op, [_image(d)], op == "GlobalMaxPool")


def _normalize(op: str) -> Maker:
    def make(d: Drawn) -> object:
        x = _image(d)
        parameters = [d.leaf((x.shape[1],)) for _ in range(2)]
        if op == "BatchNormalization":
            variance = np.abs(d.leaf((x.shape[1],)).array) + np.float32(0.5)
            parameters += [d.leaf((x.shape[1],)), d.known(variance)]
        return d.node(op, [x, *parameters])

    return make


def _layer_norm(d: Drawn) -> object:
    x = d.value(ranks=(2, 3))
    if x is None:
        return None
    scale, bias = d.leaf(x.shape[-1:]), d.leaf(x.shape[-1:])
    return d.node("LayerNormalization", [x, scale, bias], axis=-1)


def _matmul(d: Drawn) -> object:
    a = d.value(ranks=(2, 3, 4))
    if a is None:
        return None
    k, n = a.shape[-1], d.number(1, 9)
    batch = [m if d.chance() else 1 for m in a.shape[:-2]] if d.chance() else []
    return d.node("MatMul", [a, d.leaf((*batch, k, n))])


def _gemm(d: Drawn) -> object:
    a = d.value(ranks=(2,))
    if a is None:
        return None
    ta, tb = d.number(0, 1), d.number(0, 1)
    m, k = a.shape[::-1] if ta else a.shape
    n = d.number(1, 9)
    b = d.leaf((n, k) if tb else (k, n))
    c = [d.leaf(d.one_of(((n,), (m, n), (1, n), ())))] if d.chance() else []
    factors: dict[str, Any] = {key: d.one_of((0.5, 2.0)) for key in ("alpha", "beta") if d.chance()}
    return d.node("Gemm", [a, b, *c], transA=ta, transB=tb, **factors)


def _resize(d: Drawn) -> object:
    x = _image(d)
    scales = np.array([1, 1, d.one_of((1, 2, 3)), d.one_of((1, 2))], np.float32)
    mode = d.one_of(("nearest", "linear"))
    how = d.one_of(("asymmetric", "half_pixel", "align_corners"))
    nearest = {"nearest_mode": "floor"} if mode == "nearest" else {}
    return d.node(
        "Resize",
        [x, None, d.known(scales)],
        mode == "nearest",
        mode=mode,
        coordinate_transformation_mode=how,
        **nearest,
    )


def _depth_to_space(d: Drawn) -> object:
    x = d.leaf((1, 4 * d.number(1, 2), d.number(1, 4), d.number(1, 4)))
    return d.node("DepthToSpace", [x], True, blocksize=2, mode=d.one_of(("DCR", "CRD")))


def _quantize(d: Drawn) -> object:
    x = d.value(exact=True)
    if x is None:
        return None
    zero = np.array(3, d.one_of((np.int8, np.uint8)))
    scale = d.known(np.float32(0.25))
    return d.node("QuantizeLinear", [x, scale, d.known(zero)], True)


def _dequantize(d: Drawn) -> object:
    x = d.value(("int8", "uint8"))
    if x is None:
        return None
    zero = d.known(np.array(2, x.array.dtype))
    return d.node("DequantizeLinear", [x, d.known(np.float32(0.5)), zero], True)


def _cumsum(d: Drawn) -> object:
    x = d.value(ranks=(1, 2, 3))
    if x is None:
        return None
    axis = d.known(np.array(d.number(0, x.rank - 1), np.int64))
    return d.node("CumSum", [x, axis], exclusive=d.number(0, 1), reverse=d.number(0, 1))


NODES: tuple[Maker, ...] = (
    *(_unary(op, True) for op in ("Abs", "Neg", "Relu", "Identity")),
    *(_unary(op) for op in ("Cos", "Erf", "Exp", "Sigmoid", "Sin", "Softplus", "Softsign", "Tanh")),
    *(_unary(op) for op in ("HardSwish", "Mish", "Atan", "Sqrt", "Log", "Reciprocal")),
    _unary("Elu", alpha=(0.5, 2.0)),
    _unary("LeakyRelu", alpha=(0.25, 0.125)),
    _unary("Selu", gamma=(0.5, 2.0)),
    _unary("HardSigmoid", alpha=(0.25,), beta=(0.5,)),
    *(_step(op) for op in ("Ceil", "Floor", "Round", "Sign")),
    *(_binary(op, NUMBERS, True) for op in ("Add", "Sub", "Mul", "Add", "Mul")),
    *(_binary(op, NUMBERS, True) for op in ("Max", "Min")),
    _binary("Div", FLOATS),
    _binary("PRelu", FLOATS, True),
    *(_binary(op, NUMBERS, True, True) for op in ("Equal", "Greater", "Less", "LessOrEqual")),
    *(_binary(op, ("bool",), True) for op in ("And", "Or", "Xor")),
    *(_reduce(op) for op in ("ReduceMean", "ReduceSum", "ReduceL2", "ReduceSumSquare")),
    *(_reduce(op, True) for op in ("ReduceMax", "ReduceMin")),
    _arg("ArgMax"),
    _arg("ArgMin"),
    _softmax("Softmax"),
    _softmax("LogSoftmax"),
    *(_clip, _where, _cast, _reshape, _transpose, _unsqueeze, _squeeze, _flatten, _expand, _tile),
    *(_concat, _concat, _slice, _pad, _gather, _split, _cumsum),
    *(_conv, _conv, _conv, _conv, _matmul, _gemm, _layer_norm, _resize, _depth_to_space),
    *(_pool(op) for op in ("MaxPool", "AveragePool")),
    *(_global(op) for op in ("GlobalAveragePool", "GlobalMaxPool")),
    *(_normalize(op) for op in ("BatchNormalization", "InstanceNormalization")),
    *(_quantize, _dequantize),
)
