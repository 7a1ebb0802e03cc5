"""Calls of every operator with awkward shapes: long rows, one row, primes, one channel, 2,049
channels, many inputs, large windows. Types alone are drawn, since nothing is computed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import prod
from random import Random
from typing import Any

from mlc_deploy.graph import BlockBuilder, Function
from mlc_deploy.graph.nodes import Call
from mlc_deploy.ops import TensorType, frozen_attrs, infer_types
from mlc_deploy.ops.elementwise import TABLE
from mlc_deploy.ops.layout import layout
from mlc_deploy.ops.special import SPECIAL
from mlc_deploy.ops.winograd import KERNEL, TILES
from mlc_targets import Target
from mlc_targets.object_format import MAX_OPERANDS
from tests.ops.planned import plan_for

SMALL = (1, 1, 2, 3, 4, 7, 8, 16, 31)
LARGE = (64, 97, 100, 127, 500, 1000, 1021, 1999, 2048, 2049, 4000, 4099, 16000, 65537)
CHANNELS = (1, 1, 2, 3, 8, 13, 16, 31, 64, 97, 128, 256, 1021, 2048, 2049)
WINDOWS = (1, 1, 1, 2, 3, 3, 5, 7, 9, 31, 64, 255)
MOST_ELEMENTS = 1 << 24  # of a tensor
FLOATS = ("float32", "float32", "float16")
BYTES = ("int8", "uint8")
NUMBERS = (*FLOATS, "int8", "uint8", "int32", "int64")
DTYPES = {
    "float": FLOATS,
    "int": ("int8", "int16", "int32", "int64"),
    "uint": ("uint8", "uint16", "uint32"),
    "bool": ("bool",),
}
ATTRS: dict[str, dict[str, Any]] = {
    "clip": {"min": 0, "max": 2},
    "elu": {"alpha": 0.7},
    "gelu": {"approximate": "tanh"},
    "hard_sigmoid": {"alpha": 0.2, "beta": 0.5},
    "isinf": {"positive": True, "negative": False},
    "leaky_relu": {"alpha": 0.1},
    "mod": {"truncated": False},
    "selu": {"alpha": 1.67, "gamma": 1.05},
    "shift": {"left": True},
    "shrink": {"lambd": 0.5, "bias": 0.2},
    "thresholded_relu": {"alpha": 0.5},
}


@dataclass(frozen=True, slots=True)
class AwkwardCall:
    """An operator on data, and constant weights where `weights` says so."""

    op: str
    types: tuple[TensorType, ...]
    attrs: dict[str, Any] = field(default_factory=dict)
    weights: bool = False

    def __str__(self) -> str:
        shown = [str(t) for t in self.types]
        return f"{self.op}({', '.join(shown[:4] + ['...'] * (len(shown) > 4))}) {self.attrs}"

    def function(self, target: Target, follows: bool) -> Function:
        """As the target wants it; an addition along channels and a relu, where wanted."""
        types, attrs = list(self.types), self.attrs
        plan = plan_for(self.op, types, attrs, target) if self.weights else None
        if plan is not None:
            types, attrs = list(plan.arguments), plan.attrs
        builder = BlockBuilder("call")
        params = [builder.param(f"p{n}", t.shape, t.dtype) for n, t in enumerate(types)]
        emitted = builder.emit(Call(self.op, tuple(params), frozen_attrs(attrs), plan))
        results = emitted if isinstance(emitted, tuple) else (emitted,)
        first = results[0]
        if follows and len(results) == 1 and first.type.dtype in (*FLOATS, "int32"):
            sizes = first.type.sizes
            blocks = (len(sizes) == 5 and "out_layout" in attrs) or "layout" in attrs
            bias = [n if d == 1 or (blocks and d == 4) else 1 for d, n in enumerate(sizes)]
            given = builder.param("bias", bias, first.type.dtype)
            results = (builder.emit("relu", builder.emit("add", first, given)),)
        return builder.finish(list(results))


# ---------------------------------------------------------------------------------------- shapes


def shape(rng: Random, low: int = 0, high: int = 5) -> tuple[int, ...]:
    """Small extents with one or two large ones among them, seldom none or one of nothing."""
    sizes = [rng.choice(SMALL) for _ in range(rng.randint(low, high))]
    for n in rng.sample(range(len(sizes)), min(len(sizes), rng.choice((0, 1, 1, 2)))):
        sizes[n] = rng.choice(LARGE)
    if sizes and rng.random() < 0.03:
        sizes[rng.randrange(len(sizes))] = 0
    return tuple(sizes) if prod(sizes) <= MOST_ELEMENTS else shape(rng, low, high)


def narrowed(rng: Random, sizes: Sequence[int]) -> tuple[int, ...]:
    """A shape that broadcasts to another."""
    small = [1 if rng.random() < 0.4 else n for n in sizes]
    return tuple(small[rng.randint(0, len(small)) if rng.random() < 0.4 else 0 :])


def call(op: str, *types: tuple[Sequence[int], str], **attrs: Any) -> AwkwardCall:
    return AwkwardCall(op, tuple(TensorType(tuple(s), d) for s, d in types), attrs)


def dtype(rng: Random) -> str:
    return rng.choice(NUMBERS)


# ------------------------------------------------------------------------- element by element


def elementwise(op: str, rng: Random) -> AwkwardCall:
    entry = ELEMENTWISE[op]
    kind = rng.choice([d for kind in entry.kinds for d in DTYPES[kind]])
    whole = shape(rng)
    others = [(narrowed(rng, whole), kind) for _ in range(entry.inputs - 1)]
    given = [(whole, kind), *others]
    rng.shuffle(given)
    return call(op, *given, **ATTRS.get(op, {}))


def pointwise(op: str, rng: Random) -> AwkwardCall:
    whole, kind = shape(rng), rng.choice(FLOATS)
    steps = ((rng.choice("+-*"), 0, 1), ("const", kind, "0.5"), (rng.choice(("max", "/")), 2, 3))
    return call(op, (whole, kind), (narrowed(rng, whole), kind), function="f", steps=steps)


def cast(op: str, rng: Random) -> AwkwardCall:
    return call(op, (shape(rng), dtype(rng)), dtype=dtype(rng))


def bitcast(op: str, rng: Random) -> AwkwardCall:
    a, b = rng.choice((("float32", "int32"), ("int8", "uint8"), ("int32", "float32")))
    return call(op, (shape(rng), a), dtype=b)


def where(op: str, rng: Random) -> AwkwardCall:
    whole, kind = shape(rng), dtype(rng)
    return call(op, (narrowed(rng, whole), "bool"), (whole, kind), (narrowed(rng, whole), kind))


def quantized(op: str, rng: Random) -> AwkwardCall:
    whole, kind = shape(rng, 2), rng.choice(BYTES)
    own = rng.choice(((), (whole[1], *(1,) * (len(whole) - 2))))
    data = {"quantize": "float32", "requantize": "int32"}.get(op, kind)
    if op == "offset":
        return call(op, (whole, kind))
    return call(op, (whole, data), (own, "float32"), (own, kind))


def rescale(op: str, rng: Random) -> AwkwardCall:
    whole, kind = shape(rng, 2), rng.choice((*BYTES, "int32"))
    own = rng.choice(((), (whole[1], *(1,) * (len(whole) - 2))))
    return call(op, (whole, "int32"), (own, "int32"), (own, "int32"), ((), kind))


def lookup(op: str, rng: Random) -> AwkwardCall:
    rows = rng.choice((1, 3, 97, 1999, 2048, 65537)), rng.choice((8, 16, 1, 7, 2049))
    return call(op, (rng.choice((rows, shape(rng))), rng.choice(BYTES)), ((256,), "int8"))


def batch_norm(op: str, rng: Random) -> AwkwardCall:
    whole, kind = shape(rng, 2), rng.choice(FLOATS)
    own = ((whole[1],), kind)
    return call(op, (whole, kind), own, own, own, own, epsilon=1e-5)


# ------------------------------------------------------------------------------- other places


def reshape(op: str, rng: Random) -> AwkwardCall:
    whole = shape(rng, 1)
    to = (prod(whole),) if rng.random() < 0.5 else (*reversed(whole), 1)
    return call(op, (whole, dtype(rng)), shape=to)


def transpose(op: str, rng: Random) -> AwkwardCall:
    whole = shape(rng, 2)
    return call(op, (whole, dtype(rng)), axes=tuple(rng.sample(range(len(whole)), len(whole))))


def broadcast_to(op: str, rng: Random) -> AwkwardCall:
    whole = shape(rng)
    return call(op, (narrowed(rng, whole), dtype(rng)), shape=whole)


def tile(op: str, rng: Random) -> AwkwardCall:
    whole = shape(rng, 1, 4)
    return call(op, (whole, dtype(rng)), reps=tuple(rng.choice((1, 1, 2, 31)) for _ in whole))


def concatenate(op: str, rng: Random) -> AwkwardCall:
    """Up to as many inputs as a kernel takes besides its output."""
    whole, kind = list(shape(rng, 1, 4)), dtype(rng)
    axis, parts = rng.randrange(len(whole)), []
    for _ in range(rng.choice((1, 2, 3, 7, MAX_OPERANDS - 1))):
        parts.append(
            [rng.choice((1, 1, 2, 7, 100)) if n == axis else m for n, m in enumerate(whole)]
        )
    return call(op, *((part, kind) for part in parts), axis=axis)


def slice_(op: str, rng: Random) -> AwkwardCall:
    whole = shape(rng, 1)
    step = [rng.choice((1, 1, 2, 7, -1, -3)) for _ in whole]
    sizes = [
        max(1, n // abs(s) - rng.randint(0, 1)) if n else 0
        for n, s in zip(whole, step, strict=True)
    ]
    begin = [0 if s > 0 else max(n - 1, 0) for n, s in zip(whole, step, strict=True)]
    return call(op, (whole, dtype(rng)), begin=begin, step=step, shape=sizes)


def pads(rng: Random, rank: int) -> tuple[int, ...]:
    return tuple(rng.choice((0, 0, 1, 2, 7, 100)) for _ in range(2 * rank))


def pad(op: str, rng: Random) -> AwkwardCall:
    whole = shape(rng, 1)
    mode = rng.choice(("constant", "reflect", "edge", "wrap"))
    return call(op, (whole, rng.choice(FLOATS)), pads=pads(rng, len(whole)), mode=mode, value=0.5)


def pad_with(op: str, rng: Random) -> AwkwardCall:
    whole, kind = shape(rng, 1), dtype(rng)
    return call(op, (whole, kind), ((), kind), pads=pads(rng, len(whole)))


def gather(op: str, rng: Random) -> AwkwardCall:
    whole = shape(rng, 1, 4)
    axis = rng.randrange(len(whole))
    return call(op, (whole, dtype(rng)), (shape(rng, 0, 3), "int64"), axis=axis)


def gather_elements(op: str, rng: Random) -> AwkwardCall:
    whole = shape(rng, 1, 4)
    return call(op, (whole, dtype(rng)), (whole, "int64"), axis=rng.randrange(len(whole)))


def gather_nd(op: str, rng: Random) -> AwkwardCall:
    whole = shape(rng, 1, 4)
    batch = rng.randrange(len(whole))
    size = rng.randint(1, len(whole) - batch)
    places = (*whole[:batch], rng.choice((1, 100, 2049)), size)
    return call(op, (whole, "float32"), (places, "int64"), batch_dims=batch)


def scatter_elements(op: str, rng: Random) -> AwkwardCall:
    whole, kind = shape(rng, 1, 4), rng.choice(("float32", "int32"))
    own = tuple(rng.randint(1, n) if n else 0 for n in whole)
    reduction = rng.choice(("none", "add", "mul", "max", "min"))
    axis = rng.randrange(len(whole))
    return call(op, (whole, kind), (own, "int64"), (own, kind), axis=axis, reduction=reduction)


def scatter_nd(op: str, rng: Random) -> AwkwardCall:
    whole, size = shape(rng, 1, 4), 1
    size = rng.randint(1, len(whole))
    count = rng.choice((1, 7, 100, 2049))
    updates = ((count, *whole[size:]), "float32")
    reduction = rng.choice(("none", "add", "mul", "max", "min"))
    return call(op, (whole, "float32"), ((count, size), "int64"), updates, reduction=reduction)


def layout_transform(op: str, rng: Random) -> AwkwardCall:
    plain = (rng.choice((1, 3)), rng.choice(CHANNELS), rng.choice(SMALL), rng.choice(LARGE))
    source, to = rng.choice((("NCHW", "NCHW4c"), ("NCHW", "NCHW8c"), ("NCHW", "NHWC")))
    if rng.random() < 0.5 and "c" in to:
        lanes = layout(to).tiles["C"][0]
        whole = (plain[0], -(-plain[1] // lanes), *plain[2:], lanes)
        return call(op, (whole, dtype(rng)), source=to, to=source, channels=lanes * whole[1])
    return call(op, (plain, dtype(rng)), source=source, to=to)


# ----------------------------------------------------------------------------------- reductions


def reduction(op: str, rng: Random) -> AwkwardCall:
    whole = shape(rng, 1)
    axes = tuple(rng.sample(range(len(whole)), rng.randint(1, len(whole))))
    return call(op, (whole, rng.choice(NUMBERS)), axes=axes, keepdims=rng.random() < 0.5)


def place(op: str, rng: Random) -> AwkwardCall:
    whole, axis = shape(rng, 1), 0
    axis = rng.randrange(len(whole))
    flags = {"keepdims": rng.random() < 0.5, "last": rng.random() < 0.5}
    return call(op, (whole, rng.choice(NUMBERS)), axis=axis, **flags)


def softmax(op: str, rng: Random) -> AwkwardCall:
    whole = shape(rng, 1)
    return call(op, (whole, rng.choice(FLOATS)), axis=rng.randrange(len(whole)))


def norm(op: str, rng: Random) -> AwkwardCall:
    whole = shape(rng, 1)
    axes = tuple(range(rng.randrange(len(whole)), len(whole)))
    return call(op, (whole, rng.choice(FLOATS)), axes=axes, epsilon=1e-5)


def lrn(op: str, rng: Random) -> AwkwardCall:
    whole = shape(rng, 2)
    size = rng.choice((1, 3, 5, 31))
    beta = rng.choice((0.75, 0.8, 2.0))
    return call(op, (whole, "float32"), size=size, alpha=1e-4, beta=beta, bias=1.0)


def cumulative(op: str, rng: Random) -> AwkwardCall:
    whole = shape(rng, 1)
    flags = {key: rng.random() < 0.5 for key in ("product", "exclusive", "reverse")}
    return call(op, (whole, "float32"), axis=rng.randrange(len(whole)), **flags)


def nonzero(op: str, rng: Random) -> AwkwardCall:
    return call(op, (shape(rng, 1, 4), dtype(rng)))


def suppress(op: str, rng: Random) -> AwkwardCall:
    batch, classes, boxes = (rng.choice(CHANNELS) for _ in range(3))
    number, threshold = ((), "int64"), ((), "float32")
    scores = (batch, classes, boxes)
    return call(
        op, ((batch, boxes, 4), "float32"), (scores, "float32"), number,
        threshold, threshold, centered=rng.random() < 0.5, most=rng.choice(LARGE),
    )  # fmt: skip


def extent(op: str, rng: Random) -> AwkwardCall:
    return call(op, ((), "int64"), extent=rng.choice(LARGE))


def find(op: str, rng: Random) -> AwkwardCall:
    kind = dtype(rng)
    return call(op, (shape(rng, 0), kind), ((rng.choice((1, 2, 7, 100, 2049)),), kind))


def first(op: str, rng: Random) -> AwkwardCall:
    whole = shape(rng, 1)
    return call(op, (whole, dtype(rng)), ((), "int64"), extent=rng.randint(0, whole[0]))


def grow(op: str, rng: Random) -> AwkwardCall:
    whole = shape(rng, 1, 3)
    axis = rng.randrange(len(whole))
    return call(op, (whole, dtype(rng)), axis=axis, extent=whole[axis] + rng.choice(SMALL))


def unique(op: str, rng: Random) -> AwkwardCall:
    return call(op, (shape(rng, 2, 2), dtype(rng)), sorted=rng.random() < 0.5)


def top_k(op: str, rng: Random) -> AwkwardCall:
    whole = shape(rng, 1)
    axis = rng.randrange(len(whole))
    k = rng.choice((1, min(5, whole[axis]), whole[axis]))
    return call(op, (whole, "float32"), axis=axis, k=k, largest=rng.random() < 0.5)


def einsum(op: str, rng: Random) -> AwkwardCall:
    equation = rng.choice(("bij,bjk->bik", "ij,kj,k->ik", "ii->i", "ij->", "i,j->ji", "ijj->i"))
    sizes = {c: rng.choice((*SMALL, 100, 127, 1999)) for c in "bijk"}
    terms = equation.split("->")[0].split(",")
    return call(op, *(([sizes[c] for c in term], "float32") for term in terms), equation=equation)


# ------------------------------------------------------------------------------------- windows


def area(rng: Random, rank: int) -> tuple[int, ...]:
    """Long rows, one row, primes, squares."""
    kind = rng.choice(("row", "row", "column", "square", "any"))
    long = rng.choice(LARGE)
    if kind == "any":
        return tuple(rng.choice((*SMALL, 97, 100)) for _ in range(rank))
    if kind == "square":
        return (rng.choice((7, 14, 31, 56, 97)),) * rank
    rest = (rng.choice((1, 1, 1, 2, 3, 7)),) * (rank - 1)
    return (*rest, long) if kind == "row" else (long, *rest)


def window(rng: Random, sizes: Sequence[int], pools: bool = False) -> dict[str, Any]:
    """A kernel that fits into an area, with its strides, dilations and pads."""
    kernel = tuple(min(n, rng.choice(WINDOWS)) for n in sizes)
    if pools and rng.random() < 0.3:
        kernel = tuple(sizes)  # the whole of it
    fits = [(n - 1) // (k - 1) if k > 1 else 1 for n, k in zip(sizes, kernel, strict=True)]
    dilations = tuple(min(most, rng.choice((1, 1, 1, 2, 9))) for most in fits)
    before = [rng.choice((0, k // 2)) for k in kernel]
    return {
        "kernel": kernel,
        "strides": tuple(rng.choice((1, 1, 1, 2, 3, 160)) for _ in sizes),
        "dilations": tuple(max(1, d) for d in dilations),
        "pads": (*before, *before),
    }


def convolution(op: str, rng: Random) -> AwkwardCall:
    rank = 2 if op == "conv2d" else rng.choice((1, 3))
    sizes = area(rng, rank)
    attrs = window(rng, sizes)
    kernel = attrs.pop("kernel")
    channels, filters, groups = rng.choice(CHANNELS), rng.choice(CHANNELS), 1
    match rng.choice(("one", "one", "depthwise", "groups")):
        case "depthwise":
            groups = filters = channels
        case "groups":
            groups = rng.choice((2, 3, 16))
            channels, filters = (-(-n // groups) * groups for n in (channels, filters))
    kind = rng.choice(("float32", "float32", "float16", "int8"))
    if kind == "int8":
        attrs["narrow_weights"] = rng.random() < 0.5
    data = (rng.choice((1, 1, 1, 3)), channels, *sizes), kind
    weights = (filters, channels // groups, *kernel), kind
    if max(prod(data[0]), prod(weights[0])) > MOST_ELEMENTS:
        return convolution(op, rng)
    found = call(op, data, weights, **attrs, groups=groups)
    return AwkwardCall(op, found.types, found.attrs, weights=op == "conv2d")


def winograd(op: str, rng: Random) -> AwkwardCall:
    sizes, m = area(rng, 2), rng.choice(TILES)
    channels, filters = (8 * rng.choice((1, 2, 3, 16, 257)) for _ in range(2))
    data = (1, channels, *sizes), "float32"
    weights = (filters, channels, m + KERNEL - 1, m + KERNEL - 1), "float32"
    found = call(op, data, weights, tile=m, pads=(1, 1, 1, 1))
    return AwkwardCall(op, found.types, found.attrs, weights=True)


def pooling(op: str, rng: Random) -> AwkwardCall:
    sizes = area(rng, rng.choice((1, 2, 2, 2, 3)))
    attrs = window(rng, sizes, pools=True)
    rank = len(sizes)
    attrs["pads"] = tuple(
        min(p, k - 1) for p, k in zip(attrs["pads"], attrs["kernel"] * 2, strict=True)
    )
    attrs["ceil_mode"] = rng.random() < 0.3
    if op == "avg_pool":
        attrs["count_include_pad"] = rng.random() < 0.5
    if op == "max_pool_places":
        attrs["by_column"] = rng.random() < 0.5
    kind = rng.choice(("float32", "float32", "float16", "int8"))
    found = call(op, ((rng.choice((1, 3, 1000)), rng.choice(CHANNELS), *sizes), kind), **attrs)
    if found.types[0].elements > MOST_ELEMENTS:
        return pooling(op, rng)
    return AwkwardCall(op, found.types, found.attrs, weights=rank == 2)


def col2im(op: str, rng: Random) -> AwkwardCall:
    sizes = area(rng, rng.choice((1, 2)))
    attrs = window(rng, sizes)
    counts = [
        (n + 2 * p - d * (k - 1) - 1) // s + 1
        for n, p, d, k, s in zip(
            sizes,
            attrs["pads"][: len(sizes)],
            attrs["dilations"],
            attrs["kernel"],
            attrs["strides"],
            strict=True,
        )
    ]
    columns = (1, rng.choice((1, 3, 31)) * prod(attrs["kernel"]), prod(counts))
    return call(op, (columns, "float32"), **attrs, shape=sizes)


def sample(op: str, rng: Random) -> AwkwardCall:
    rank = rng.randint(1, 3)
    mode = rng.choice(("nearest", "linear", "cubic") if rank < 3 else ("nearest", "linear"))
    data = (rng.choice((1, 3)), rng.choice((1, 3, 2049)), *(rng.choice(SMALL) for _ in range(rank)))
    at = (data[0], rng.choice(LARGE), rank)
    attrs = {"mode": mode, "padding": rng.choice(("zeros", "border", "reflection"))}
    return call(op, (data, "float32"), (at, "float32"), **attrs, corners=rng.random() < 0.5)


def resample(op: str, rng: Random) -> AwkwardCall:
    whole = shape(rng, 1)
    table = rng.choice((1, 7, 97, 2049)), rng.choice((1, 2, 4, 31))
    axis = rng.randrange(len(whole))
    return call(op, (whole, "float32"), (table, "int32"), (table, "float32"), axis=axis)


# ------------------------------------------------------------------------------------- products


def dense(op: str, rng: Random) -> AwkwardCall:
    rows, depth, columns = (
        rng.choice((1, 1, 2, 31, 1000)),
        rng.choice(CHANNELS),
        rng.choice(CHANNELS),
    )
    transposed, kind = rng.random() < 0.7, rng.choice(("float32", "float16", "int8"))
    w = (columns, depth) if transposed else (depth, columns)
    found = call(op, ((rows, depth), kind), (w, kind), transpose_b=transposed)
    return AwkwardCall(op, found.types, found.attrs, weights=rng.random() < 0.8)


def dense_blocks(op: str, rng: Random) -> AwkwardCall:
    rows, columns = rng.choice((1, 1, 2, 31, 1000)), rng.choice(CHANNELS)
    blocks, size = rng.choice((1, 3, 7, 32)), rng.choice((16, 32, 64, 128, 256))
    bits, kind = rng.choice((4, 4, 8)), rng.choice(("int8", "int8", "float32", "float16"))
    apart = (columns, blocks)
    w = (*apart, size * bits // 8), "int8" if bits == 8 else "uint8"
    zeros = [(apart, "int8")] * rng.choice((0, 1))
    data, scale = ((rows, blocks * size), kind), (apart, rng.choice(("float16", "float32")))
    found = call(op, data, w, scale, *zeros, bits=bits, narrow=rng.random() < 0.7)
    return AwkwardCall(op, found.types, found.attrs, weights=rng.random() < 0.8)


def quantize_rows(op: str, rng: Random) -> AwkwardCall:
    return call(op, ((rng.choice((1, 2, 31, 1000)), rng.choice(CHANNELS)), "float32"))


def append_rows(op: str, rng: Random) -> AwkwardCall:
    lead, count, width = rng.choice((1, 3, 31)), rng.choice((1, 2, 31)), rng.choice((1, 64, 97))
    most, kind = count + rng.choice((0, 1, 1000)), rng.choice(("float32", "float16"))
    numbers = [((), "int64")] * rng.choice((1, 2))
    cache, rows = ((lead, most, width), kind), ((lead, count, width), kind)
    return call(op, cache, rows, *numbers, owned=True)


def draw_token(op: str, rng: Random) -> AwkwardCall:
    logits = (rng.choice((1, 63, 64, 1000, 32_000)),), rng.choice(("float32", "float16"))
    numbers = (((), dtype) for dtype in ("float32", "int64", "float32", "float64"))
    return call(op, logits, *numbers)


def attention(op: str, rng: Random) -> AwkwardCall:
    kept, group = rng.choice((1, 2, 5, 12)), rng.choice((1, 1, 2, 3, 8))
    count, width = rng.choice((1, 1, 2, 31, 197)), rng.choice((1, 8, 13, 64, 80, 128, 256))
    length, values = count + rng.choice((0, 1, 31, 2048)), rng.choice((width, 1, 64))
    q, kind = (1, kept * group, count, width), rng.choice(("float32", "float16"))
    attrs = {"scale": 0.1, "causal": rng.random() < 0.5, "window": rng.choice((0, 0, 9, 600))}
    bias = [((1, 1, count, length), "float32")] * rng.choice((0, 1))
    own = ((1, kept, length, width), kind), ((1, kept, length, values), kind)
    return call(op, (q, "float32"), *own, *bias, **attrs)


def matmul(op: str, rng: Random) -> AwkwardCall:
    rows, depth, columns = (
        rng.choice((1, 1, 7, 127, 2049)),
        rng.choice(CHANNELS),
        rng.choice(CHANNELS),
    )
    lead, kind = (
        rng.choice(((), (12,), (3, 31), (1000,))),
        rng.choice(("float32", "float16", "int8")),
    )
    transposed = rng.random() < 0.5
    if prod(lead) * max(rows * depth, depth * columns, rows * columns) > MOST_ELEMENTS:
        return matmul(op, rng)
    w = (columns, depth) if transposed else (depth, columns)
    attrs = {"transpose_b": True} if transposed else {}
    return call(op, ((*lead, rows, depth), kind), ((*lead, *w), kind), **attrs)


ELEMENTWISE = {entry.name: entry for entry in (*TABLE, *SPECIAL)}
SHARED: dict[str, Callable[[str, Random], AwkwardCall]] = {
    "argmax": place,
    "argmin": place,
    "avg_pool": pooling,
    "conv2d": convolution,
    "conv_nd": convolution,
    "dequantize": quantized,
    "fast_softmax": softmax,
    "layer_norm": norm,
    "log_softmax": softmax,
    "max": reduction,
    "max_pool": pooling,
    "max_pool_places": pooling,
    "mean": reduction,
    "min": reduction,
    "offset": quantized,
    "prod": reduction,
    "quantize": quantized,
    "requantize": quantized,
    "rms_norm": norm,
    "slice": slice_,
    "sum": reduction,
    "sum_pool": pooling,
    "winograd_conv2d": winograd,
}
OWN = (
    append_rows,
    attention,
    batch_norm,
    bitcast,
    broadcast_to,
    cast,
    col2im,
    concatenate,
    cumulative,
    dense,
    dense_blocks,
    draw_token,
    einsum,
    extent,
    find,
    first,
    gather,
    gather_elements,
    gather_nd,
    grow,
    layout_transform,
    lookup,
    lrn,
    matmul,
    nonzero,
    pad,
    pad_with,
    pointwise,
    quantize_rows,
    resample,
    rescale,
    reshape,
    sample,
    scatter_elements,
    scatter_nd,
    softmax,
    suppress,
    tile,
    top_k,
    transpose,
    unique,
    where,
)
DRAWS: dict[str, Callable[[str, Random], AwkwardCall]] = {
    **dict.fromkeys(ELEMENTWISE, elementwise),
    **SHARED,
    **{draw.__name__: draw for draw in OWN},
}


def drawn(op: str, number: int) -> AwkwardCall:
    """The call of that number: the first that the operator takes."""
    rng = Random(f"{op} {number}")
    for _ in range(100):
        found = DRAWS[op](op, rng)
        try:
            outputs = infer_types(op, found.types, found.attrs)
        except ValueError:
            continue
        if sum(t.elements for t in outputs) <= MOST_ELEMENTS:
            return found
    raise AssertionError(f"of 100 calls that were drawn, {op} takes none")
