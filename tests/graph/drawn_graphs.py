"""Random small graphs, full of what passes look for: neutral elements, movements that cancel,
layers with scales around them, spelled-out operators."""

from __future__ import annotations

import math
from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np

from mlc_deploy import te
from mlc_deploy.graph import BlockBuilder, CallTIR, Constant, Function, TensorType, Value
from mlc_deploy.graph.constants import shape_of
from mlc_deploy.graph.definition import definition_of
from mlc_deploy.ir import same_shape

SIZES = (1, 2, 3, 4, 6)


class Draw:
    """A graph that grows call by call; `values` are the floats that further calls may read."""

    def __init__(self, rng: Random) -> None:
        self.rng = rng
        self.builder = BlockBuilder()
        self.integers: Value | None = None
        shape = (1, rng.choice((2, 4)), rng.choice((4, 6)), rng.choice((4, 5)))
        self.values: list[Value] = [self.builder.param("x", shape)]
        if rng.random() < 0.5:
            self.values.append(self.builder.param("y", (rng.choice((1, 3)), rng.choice(SIZES))))

    def emit(self, op: str, *args: Value, **attrs: Any) -> Any:
        return self.builder.emit(op, *args, **attrs)

    def any(self, rank: int | None = None) -> Value:
        """What was made last is read most, so that chains grow."""
        known = [v for v in self.values if v.type.shape]
        found = [v for v in known if rank in (None, len(v.type.shape))] or known
        return found[-1] if self.rng.random() < 0.6 else self.rng.choice(found)

    def alike(self, x: Value) -> list[Value]:
        return [v for v in self.values if same_shape(v.type.shape, x.type.shape)]

    def array(self, *shape: int, low: float = 0.25, high: float = 2.0) -> Constant:
        numbers = np.random.default_rng(self.rng.randrange(1 << 30))
        return Constant(numbers.uniform(low, high, shape).astype(np.float32))

    def constant_for(self, x: Value) -> Constant:
        """Of a shape that broadcasts against x: a number, one per channel, or one per element."""
        shape = shape_of(x)
        kinds = [(), shape, tuple(n if k == 1 else 1 for k, n in enumerate(shape)), shape[-1:]]
        chosen, value = self.rng.choice(kinds), self.rng.choice((0.0, 1.0, 2.0, 0.5, 3.0, None))
        return self.array(*chosen) if value is None else Constant(np.full(chosen, value, "f4"))


def number(value: float) -> Constant:
    return Constant(np.asarray(value, np.float32))


# ---------------------------------------------------------------------------------- elementwise


def _unary(d: Draw) -> Any:
    names = ("relu", "relu", "negative", "abs", "copy", "sigmoid", "tanh", "hard_sigmoid")
    op = d.rng.choice(names)
    return d.emit(op, d.any(), **({"alpha": 1 / 6, "beta": 0.5} if op == "hard_sigmoid" else {}))


def _clip(d: Draw) -> Any:
    low, high = d.rng.choice(((0.0, 6.0), (None, 1.0), (0.0, None), (-1.0, 0.5), (None, None)))
    return d.emit("clip", d.any(), min=low, max=high)


def _with_constant(d: Draw) -> Any:
    x = d.any()
    op = d.rng.choice(("add", "subtract", "multiply", "divide", "maximum", "minimum"))
    c = d.constant_for(x)
    if op == "divide":
        return d.emit(op, x, Constant(np.where(c.value == 0, np.float32(4), c.value)))
    return d.emit(op, c, x) if d.rng.random() < 0.3 else d.emit(op, x, c)


def _power(d: Draw) -> Any:
    base = d.emit("add", d.emit("abs", d.any()), number(0.5))
    return d.emit("power", base, number(d.rng.choice((1.0, 2.0, 0.5, -1.0, 3.0))))


def _binary(d: Draw) -> Any:
    x = d.any()
    op = d.rng.choice(("add", "multiply", "subtract", "maximum"))
    return d.emit(op, x, d.rng.choice(d.alike(x)))


def _cast(d: Draw) -> Any:
    x = d.any()
    between = d.emit("cast", x, dtype=d.rng.choice(("float64", "float32")))
    return d.emit("cast", d.emit("reshape", between, shape=shape_of(x)), dtype="float32")


def _where(d: Draw) -> Any:
    x = d.any()
    tests = [Constant(np.asarray(True)), Constant(np.asarray(False)), None]
    test = d.rng.choice(tests) or d.emit("less", x, number(0.5))
    return d.emit("where", test, x, d.emit("negative", x))


def _broadcast(d: Draw) -> Any:
    x = d.any()
    row = d.emit("mean", x, axes=[0], keepdims=True)
    return d.emit("add", x, d.emit("broadcast_to", row, shape=shape_of(x)))


def _constants(d: Draw) -> Any:
    x = d.any()
    c = d.emit("exp", d.emit("negative", d.array(*shape_of(x)[-1:])))
    return d.emit("add", x, d.emit("reshape", c, shape=c.type.shape))


def _integers(d: Draw) -> Any:
    """From integers to integers; only whether they are small joins the floats."""
    if d.integers is None:
        d.integers = d.builder.param("n", d.any().type.shape, "int32")
    z = d.integers
    shape = shape_of(z)
    value = d.rng.choice((0, 1, 2, -3))
    c = Constant(np.full(d.rng.choice(((), shape)), value, np.int32))
    order = d.rng.sample(range(len(shape)), len(shape))
    match d.rng.randrange(5):
        case 0:
            z = d.emit(d.rng.choice(("add", "subtract", "multiply", "divide")), z, c)
        case 1:
            z = d.emit(d.rng.choice(("maximum", "minimum")), d.emit("relu", z), c)
        case 2:
            other = d.emit("cast", z, dtype=d.rng.choice(("int8", "int64", "float64")))
            z = d.emit("cast", d.emit("transpose", other, axes=order), dtype="int32")
        case 3:
            z = d.emit("transpose", z, axes=order)
        case 4:
            return d.emit("cast", d.emit("less", z, c), dtype="float32")
    d.integers = z
    return None


# -------------------------------------------------------------------------------------- moving


def _transpose(d: Draw) -> Any:
    x = d.any()
    rank = len(x.type.shape)
    axes = d.rng.sample(range(rank), rank)
    if rank == 4 and d.rng.random() < 0.8:
        axes = list(d.rng.choice(((0, 2, 3, 1), (0, 3, 1, 2))))
    return d.emit("transpose", x, axes=axes)


def _reshape(d: Draw) -> Any:
    x = d.any()
    shape = shape_of(x)
    total = math.prod(shape)
    forms = [shape, (total,), (1, total), (shape[0], total // shape[0]), (*shape, 1)]
    forms += [(1, *shape)] if len(shape) < 4 else []
    return d.emit("reshape", x, shape=d.rng.choice(forms))


def _slice(d: Draw) -> Any:
    x = d.any()
    parts = []
    for extent in shape_of(x):
        first, step = d.rng.randrange(extent), d.rng.choice((1, 2, -1))
        room = first + 1 if step < 0 else -(-(extent - first) // step)
        part = (first, step, d.rng.randint(1, room))
        parts.append((0, 1, extent) if d.rng.random() < 0.6 else part)
    begin, step_, shape = zip(*parts, strict=True)
    return d.emit("slice", x, begin=begin, step=step_, shape=shape)


def _concatenate(d: Draw) -> Any:
    x = d.any()
    others = d.rng.sample(d.alike(x), min(len(d.alike(x)), 2))
    return d.emit("concatenate", x, *others, axis=d.rng.randrange(len(x.type.shape)))


def _pad(d: Draw) -> Any:
    x = d.any(4)
    rank = len(x.type.shape)
    pads = [d.rng.choice((0, 1)) if k % rank >= rank - 2 else 0 for k in range(2 * rank)]
    return d.emit("pad", x, pads=pads, mode="constant", value=d.rng.choice((0.0, 0.0, 1.0)))


def _gather(d: Draw) -> Any:
    x = d.any()
    axis = d.rng.randrange(len(x.type.shape))
    extent = shape_of(x)[axis]
    picked = d.rng.choice((0, -1, list(range(extent)), [0, extent - 1, 0]))
    return d.emit("gather", x, Constant(np.asarray(picked, np.int64)), axis=axis)


# -------------------------------------------------------------------------- layers, reductions


def _conv2d(d: Draw, x: Value | None = None) -> Any:
    x = x or d.any(4)
    if len(x.type.shape) != 4:
        return None
    _, channels, height, width = shape_of(x)
    groups = channels if d.rng.random() < 0.3 else 1
    outputs = groups if groups > 1 else d.rng.choice((1, 2, 4))
    k = d.rng.choice((1, 3)) if min(height, width) >= 3 else 1
    w = d.array(outputs, channels // groups, k, k, low=-0.5, high=0.5)
    pads = [d.rng.choice((0, 1)) if k > 1 else 0 for _ in range(4)]
    return d.emit("conv2d", x, w, strides=[1, 1], pads=pads, dilations=[1, 1], groups=groups)


def _matrix(d: Draw, x: Value | None = None) -> Any:
    x = x or d.any()
    shape, outputs = shape_of(x), d.rng.choice((1, 3, 4))
    if len(shape) < 2:
        return None
    if len(shape) > 2 or d.rng.random() < 0.3:
        return d.emit("matmul", x, d.array(shape[-1], outputs, low=-0.5, high=0.5))
    turned = d.rng.random() < 0.5
    sizes = (outputs, shape[1]) if turned else (shape[1], outputs)
    return d.emit("dense", x, d.array(*sizes, low=-0.5, high=0.5), transpose_b=turned)


def _scaled_layer(d: Draw) -> Any:
    """A layer with scales and biases per channel before it and behind it."""
    x = d.any(d.rng.choice((2, 4)))
    if len(x.type.shape) not in (2, 4):
        return None

    def along(value: Value) -> Constant:
        sizes = shape_of(value)
        return d.array(*(n if k == 1 else 1 for k, n in enumerate(sizes)))

    x = d.emit("multiply", d.emit("add", x, along(x)), along(x))
    y = (_conv2d if len(x.type.shape) == 4 else _matrix)(d, x)
    y = d.emit("add", d.emit("multiply", y, along(y)), along(y))
    return d.emit("add", d.emit("divide", y, along(y)), along(y))


def _parallel(d: Draw) -> Any:
    x = d.any(2)
    if len(x.type.shape) != 2:
        return None
    width = shape_of(x)[1]
    layers = [d.emit("dense", x, d.array(n, width), transpose_b=True) for n in (2, 3)]
    if d.rng.random() < 0.5:
        layers = [d.emit("add", y, d.array(*shape_of(y)[1:])) for y in layers]
    return d.emit("concatenate", *layers, axis=1)


def _pool(d: Draw) -> Any:
    x = d.any(4)
    if len(x.type.shape) != 4:
        return None
    spatial = shape_of(x)[2:]
    kernel = d.rng.choice((spatial, tuple(min(n, 2) for n in spatial)))
    attrs: dict[str, Any] = {"kernel": kernel, "strides": (1, 1), "dilations": (1, 1)}
    attrs |= {"pads": (0, 0, 0, 0), "ceil_mode": False}
    if d.rng.random() < 0.5:
        return d.emit("max_pool", x, **attrs)
    return d.emit("avg_pool", x, **attrs, count_include_pad=d.rng.random() < 0.5)


def _reduce(d: Draw) -> Any:
    x = d.any()
    rank = len(x.type.shape)
    axes = sorted(d.rng.sample(range(rank), min(rank, d.rng.choice((1, 1, 2)))))
    op = d.rng.choice(("mean", "max", "sum"))
    return d.emit(op, x, axes=axes, keepdims=d.rng.random() < 0.7)


# ---------------------------------------------------------------------------------- spelled out


def _batch_norm(d: Draw) -> Any:
    x = d.any(4)
    if len(x.type.shape) < 2:
        return None
    channels = shape_of(x)[1]
    return d.emit("batch_norm", x, *(d.array(channels) for _ in range(4)), epsilon=1e-3)


def _layer_norm(d: Draw) -> Any:
    x = d.any()
    axes = [len(x.type.shape) - 1]
    centred = d.emit("subtract", x, d.emit("mean", x, axes=axes, keepdims=True))
    square = d.emit("multiply", centred, centred)
    if d.rng.random() < 0.5:
        square = d.emit("power", centred, number(2.0))
    variance = d.emit("mean", square, axes=axes, keepdims=True)
    deviation = d.emit("sqrt", d.emit("add", variance, number(0.1)))
    if d.rng.random() < 0.5:
        return d.emit("divide", centred, deviation)
    return d.emit("multiply", d.emit("reciprocal", deviation), centred)


def _softmax(d: Draw) -> Any:
    x = d.any()
    axes = [d.rng.randrange(len(x.type.shape))]
    top = d.emit("max", x, axes=axes, keepdims=True)
    power = d.emit("exp", d.emit("subtract", x, top))
    return d.emit("divide", power, d.emit("sum", power, axes=axes, keepdims=True))


def _activation(d: Draw) -> Any:
    x = d.any()
    match d.rng.randrange(4):
        case 0:
            return d.emit("multiply", x, d.emit("sigmoid", x))
        case 1:
            root = d.emit("erf", d.emit("divide", x, number(math.sqrt(2))))
            half = d.emit("multiply", x, number(0.5))
            return d.emit("multiply", half, d.emit("add", root, number(1.0)))
        case 2:
            six = d.emit("clip", d.emit("add", x, number(3.0)), min=0.0, max=6.0)
            return d.emit("divide", d.emit("multiply", x, six), number(6.0))
    whole = d.emit("add", d.emit("exp", d.emit("negative", d.emit("tanh", x))), number(1.0))
    return d.emit("reciprocal", whole)


def _dead(d: Draw) -> Any:
    d.emit("exp", d.any())
    return None


def _user_function(d: Draw) -> Any:
    """Read as operators; or left as it is, to be fused: what is elementwise, moves, has stages."""
    x = d.any()
    name = d.rng.choice(("scaled", "turned", "reversed", "in_stages"))
    given = te.placeholder(shape_of(x), x.type.dtype, "x")
    match name:
        case "scaled":
            made = te.compute(given.shape, lambda *i: te.max(given(*i) * 0.5, -1.0))
        case "turned":
            made = te.compute(given.shape[::-1], lambda *i: given(*i[::-1]))
        case "reversed":
            made = te.compute(given.shape, lambda *i: given(*i[:-1], given.shape[-1] - 1 - i[-1]))
        case _:
            half = te.compute(given.shape, lambda *i: given(*i) * 0.5)
            made = te.compute(given.shape, lambda *i: half(*i) - given(*i))
    func = te.create_prim_func([given, made], name)
    out = TensorType(tuple(made.shape), x.type.dtype)
    return d.builder.emit(CallTIR(name, (x,), (out,), definition=definition_of(func, 1)))


KINDS: tuple[Callable[[Draw], Any], ...] = (
    _unary, _clip, _with_constant, _with_constant, _power, _binary, _binary, _cast, _where,
    _broadcast, _constants, _integers, _integers, _integers, _transpose, _transpose, _reshape,
    _reshape, _slice, _concatenate, _pad, _gather, _conv2d, _conv2d, _matrix, _matrix,
    _scaled_layer, _scaled_layer, _parallel, _pool, _reduce, _batch_norm, _layer_norm, _softmax,
    _activation, _activation, _dead, _user_function,
)  # fmt: skip


def graph(seed: int, calls: int = 12) -> Function:
    """A function of about so many calls; its outputs are what nothing reads, and one more."""
    d = Draw(Random(seed))
    for _ in range(calls):
        made = d.rng.choice(KINDS)(d)
        if made is not None:
            d.values.append(made)
    given = [*d.values[1:], *([d.integers] if d.integers else [])]
    read = {a for b in d.builder.finish([d.values[0]]).bindings for a in b.call.args}
    outputs = [v for v in given if v not in read] or d.values[-1:]
    return d.builder.finish([*outputs, d.rng.choice(d.values)])


# ------------------------------------------------------------------------------ layers of a model


def _small(d: Draw, *shape: int) -> Constant:
    """int8 numbers, as weights have them."""
    numbers = np.random.default_rng(d.rng.randrange(1 << 30))
    return Constant(numbers.integers(-20, 21, shape).astype(np.int8))


def _step(d: Draw, value: float) -> tuple[Constant, Constant]:
    """A scale that is a power of two, so that floats hold its multiples exactly, and a zero."""
    return number(value), Constant(np.asarray(d.rng.choice((0, 3, -5)), np.int8))


def _kernel(d: Draw, x: Value) -> tuple[Constant, dict[str, Any]]:
    channels = shape_of(x)[1]
    groups = d.rng.choice((1, 1, channels)) if channels % 4 == 0 else 1
    outputs = groups if groups > 1 else d.rng.choice((3, 8, 12))
    k = d.rng.choice((1, 3))
    attrs = {"strides": (1, 1), "dilations": (1, 1), "pads": (k // 2,) * 4, "groups": groups}
    return _small(d, outputs, channels // groups, k, k), attrs


def _pairs_layer(d: Draw, x: Value) -> Any:
    """A layer between quantize and dequantize, as exporters write it."""
    w, attrs = _kernel(d, x)
    real = d.emit("dequantize", x, *_step(d, 2.0**-5))
    weights = d.emit("dequantize", w, number(2.0**-6), Constant(np.asarray(0, np.int8)))
    y = d.emit("conv2d", real, weights, **attrs)
    y = d.emit("relu", y) if d.rng.random() < 0.5 else y
    return d.emit("quantize", y, *_step(d, 2.0**-3))


def _int8_layer(d: Draw, x: Value) -> Any:
    """A layer on integers with its bias and requantization."""
    w, attrs = _kernel(d, x)
    outputs = shape_of(w)[0]
    y = d.emit("conv2d", x, w, **attrs, pad_value=d.rng.choice((0, 4)))
    bias = Constant(np.arange(outputs, dtype=np.int32).reshape(-1, 1, 1) * 7 - 20)
    scale = Constant(np.full((outputs, 1, 1), 0.011, np.float32))
    return d.emit("requantize", d.emit("add", y, bias), scale, _step(d, 1.0)[1])


def _function_of_bytes(d: Draw, x: Value) -> Any:
    real = d.emit("dequantize", x, *_step(d, 2.0**-5))
    op = d.rng.choice(("tanh", "sigmoid", "abs"))
    return d.emit("quantize", d.emit(op, real), *_step(d, 2.0**-6))


def _lookup(d: Draw, x: Value) -> Any:
    table = np.random.default_rng(d.rng.randrange(1 << 30)).integers(-128, 128, 256)
    return d.emit("lookup", x, Constant(table.astype(np.int8)))


LAYERS: tuple[Callable[[Draw, Value], Any], ...] = (
    _pairs_layer, _pairs_layer, _int8_layer, _int8_layer, _function_of_bytes, _lookup,
)  # fmt: skip


def _side_by_side(d: Draw, rows: Value) -> Any:
    """Two layers of one row, as one or apart, which lie side by side."""
    layers: list[Value] = [d.emit("dense", rows, d.array(32, 16), transpose_b=True) for _ in "ab"]
    if d.rng.random() < 0.5:
        layers = [d.emit(op, y) for op, y in zip(("abs", "negative"), layers, strict=True)]
    return d.emit("concatenate", *layers, axis=1)


def _volume(d: Draw) -> Any:
    """A convolution of three dimensions, in one group or several."""
    x, groups = d.builder.param("volume", (1, 4, 4, 5, 5)), d.rng.choice((1, 2, 4))
    w = d.array(4, 4 // groups, d.rng.choice((1, 2, 3)), 3, 3, low=-0.3, high=0.3)
    strides, pads = d.rng.choice(((1, 1, 1), (2, 1, 2))), (d.rng.choice((0, 1)), 1, 1) * 2
    y = d.emit("conv_nd", x, w, strides=strides, dilations=(1, 1, 1), pads=pads, groups=groups)
    return d.emit("relu", y)


def layers_graph(seed: int, calls: int = 4) -> Function:
    """A chain of layers of int8, convolutions of floats that are worth transforming, and layers
    side by side; outputs are the results of each, and some in between."""
    d = Draw(Random(seed))
    channels = d.rng.choice((3, 8, 12))
    x: Value = d.builder.param("q", (1, channels, 8, 8), "int8")
    outputs: list[Value] = []
    for _ in range(calls):
        x = d.rng.choice(LAYERS)(d, x)
        outputs += [x] if d.rng.random() < 0.2 else []
    y: Value = d.builder.param("image", (1, 32, 12, 12))
    for _ in range(d.rng.randint(0, 2)):
        w = d.array(32, 32, 3, 3, low=-0.1, high=0.1)
        y = d.emit("conv2d", y, w, strides=(1, 1), dilations=(1, 1), pads=(1,) * 4, groups=1)
    side = d.emit("relu", _side_by_side(d, d.builder.param("row", (1, 16))))
    outputs += [_volume(d)] if d.rng.random() < 0.3 else []
    return d.builder.finish([x, y, side, *(o for o in outputs if o is not x)])


def wide_graph(seed: int) -> Function:
    """A concatenation of as many tensors as no kernel takes, and more."""
    rng = Random(seed)
    bb = BlockBuilder("main")
    xs = [bb.param(f"x{n}", (2, 3)) for n in range(4)]
    values = [bb.emit("tanh", rng.choice(xs)) if rng.random() < 0.5 else rng.choice(xs)
              for _ in range(rng.randrange(64, 90))]  # fmt: skip
    return bb.finish([bb.emit("concatenate", *values, axis=rng.randrange(2))], ["y"])


def attention_graph(seed: int) -> Function:
    """Rows that look at rows, of heads, with a factor and a mask here or there."""
    rng = Random(seed)
    bb = BlockBuilder("main")
    heads, count, length, width = rng.choice((1, 4)), rng.choice((1, 2, 5)), 64, 16
    q = bb.param("q", (1, heads, count, width))
    k, v = (bb.param(name, (1, heads, length, width)) for name in "kv")
    x: Value = bb.emit("matmul", q, bb.emit("transpose", k, axes=(0, 1, 3, 2)))
    if rng.random() < 0.5:
        x = bb.emit("multiply", x, Constant(np.asarray(0.25, np.float32)))
    if rng.random() < 0.5:
        x = bb.emit("add", x, bb.param("bias", (count, length)))
    y = bb.emit("matmul", bb.emit("softmax", x, axis=3), v)
    return bb.finish([bb.emit("transpose", y, axes=(0, 2, 1, 3))], ["y"])
