"""Calls of every operator with awkward shapes: long rows, one row, primes, one channel, 2,049
channels, many inputs, large windows. Types alone are drawn, since nothing is computed."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from random import Random

from mlc_deploy.ops import infer_types
from mlc_deploy.ops.elementwise import TABLE
from mlc_deploy.ops.layout import layout
from mlc_deploy.ops.special import SPECIAL
from mlc_targets.object_format import MAX_OPERANDS
from tests.ops.awkward import (
    ATTRS,
    BYTES,
    CHANNELS,
    DTYPES,
    FLOATS,
    LARGE,
    MOST_ELEMENTS,
    NUMBERS,
    SMALL,
    AwkwardCall,
    call,
    dtype,
    narrowed,
    shape,
)
from tests.ops.awkward_layers import (
    append_rows,
    attention,
    col2im,
    convolution,
    dense,
    dense_blocks,
    draw_token,
    matmul,
    pooling,
    quantize_rows,
    resample,
    sample,
    winograd,
)

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


def repeat(op: str, rng: Random) -> AwkwardCall:
    whole = shape(rng, 1, 4)
    times, axis = rng.choice((1, 2, 3, 31)), rng.randrange(len(whole))
    return call(op, (whole, dtype(rng)), axis=axis, times=times)


def depth_to_space(op: str, rng: Random) -> AwkwardCall:
    block = [rng.choice((1, 2, 3, 7)) for _ in range(rng.randint(1, 2))]
    batch, channels, *spatial = shape(rng, 2 + len(block), 3 + len(block))
    whole = batch, channels * prod(block), *spatial
    return call(op, (whole, dtype(rng)), block=block)


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


def check_indices(op: str, rng: Random) -> AwkwardCall:
    whole = shape(rng, 1)
    extents = tuple(rng.choice(LARGE) for _ in range(rng.choice((1, min(whole[-1], 5)))))
    whole = (*whole[:-1], len(extents)) if len(extents) > 1 else whole
    kind = rng.choice(("int32", "int64"))
    return call(op, (whole, kind), extents=extents, from_end=rng.random() < 0.5)


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
    classes, boxes = (rng.choice(CHANNELS) for _ in range(2))
    batch = rng.choice(SMALL)  # scores have fewer than 2^31 elements
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
    check_indices,
    col2im,
    concatenate,
    cumulative,
    dense,
    dense_blocks,
    depth_to_space,
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
    repeat,
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
