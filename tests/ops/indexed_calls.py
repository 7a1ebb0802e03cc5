"""Random calls of operators that index by data, sum over windows, sample, and count in integers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import numpy as np

from mlc_deploy.ops.elementwise import Elementwise
from mlc_deploy.ops.special import SPECIAL
from tests.ops.operator_calls import Array, OperatorCall, array, with_specials

REDUCTIONS = ("none", "add", "mul", "max", "min")


def shape_of(rng: Random, low: int = 1, high: int = 4, most: int = 6) -> tuple[int, ...]:
    return tuple(rng.randint(1, most) for _ in range(rng.randint(low, high)))


def places(rng: Random, shape: Sequence[int], extent: int) -> Array:
    """Indices into an axis of that extent, from either end."""
    drawn = [rng.randint(-extent, extent - 1) for _ in range(int(np.prod(shape)))]
    return np.array(drawn, rng.choice((np.int64, np.int32))).reshape(tuple(shape))


def gather_elements(rng: Random) -> OperatorCall:
    shape = shape_of(rng)
    axis = rng.randrange(len(shape))
    own = tuple(rng.randint(1, 6) if d == axis else rng.randint(1, n) for d, n in enumerate(shape))
    x = array(rng, shape, rng.choice(("float32", "int64", "uint8")))
    return OperatorCall("gather_elements", (x, places(rng, own, shape[axis])), {"axis": axis})


def gather_nd(rng: Random) -> OperatorCall:
    shape = shape_of(rng)
    batch = rng.randrange(len(shape))
    size = rng.randint(1, len(shape) - batch)
    front = (*shape[:batch], *shape_of(rng, 0, 2, 4))
    parts = [places(rng, front, n) for n in shape[batch : batch + size]]
    indices = np.stack([p.astype(np.int64) for p in parts], -1)
    return OperatorCall("gather_nd", (array(rng, shape), indices), {"batch_dims": batch})


def check_indices(rng: Random) -> OperatorCall:
    """Of one extent, or of one for each element of a tuple."""
    extents = tuple(rng.randint(1, 6) for _ in range(rng.choice((1, 1, 2, 3))))
    front = shape_of(rng, 0, 2)
    if len(extents) == 1:
        indices = places(rng, front, extents[0])
    else:
        columns = [places(rng, front, n).astype(np.int64) for n in extents]
        indices = np.stack(columns, -1)
    return OperatorCall("check_indices", (indices,), {"extents": extents, "from_end": True})


def scatter_elements(rng: Random) -> OperatorCall:
    """Without a reduction an element is met once, else which update stays would be undefined.
    With one, a place may lie beyond the end, and its update goes nowhere."""
    shape = shape_of(rng)
    axis, reduction = rng.randrange(len(shape)), rng.choice(REDUCTIONS)
    own = [rng.randint(1, n) for n in shape]
    if reduction == "none":
        order = np.array(rng.sample(range(shape[axis]), own[axis]))
        along = order.reshape([-1 if d == axis else 1 for d in range(len(shape))])
        indices = np.broadcast_to(along, own) - shape[axis] * rng.randint(0, 1)
    else:
        indices = places(rng, own, shape[axis] + rng.randint(0, 1))
    dtype = rng.choice(("float32", "int32"))
    inputs = (array(rng, shape, dtype), np.array(indices), array(rng, tuple(own), dtype))
    return OperatorCall("scatter_elements", inputs, {"axis": axis, "reduction": reduction})


def scatter_nd(rng: Random) -> OperatorCall:
    shape, reduction = shape_of(rng), rng.choice(REDUCTIONS)
    size = rng.randint(1, len(shape))
    if reduction == "none":
        every = list(np.ndindex(*shape[:size]))
        indices = np.array(rng.sample(every, rng.randint(1, min(len(every), 6))))
    else:
        parts = [places(rng, (5,), n + rng.randint(0, 1)) for n in shape[:size]]
        indices = np.stack([p.astype(np.int64) for p in parts], -1)
    updates = array(rng, (len(indices), *shape[size:]))
    return OperatorCall(
        "scatter_nd", (array(rng, shape), indices, updates), {"reduction": reduction}
    )


def find(rng: Random) -> OperatorCall:
    """Keys may be equal to each other, and no number may be one of them."""
    dtype = rng.choice(("float32", "int64", "uint8"))
    x = array(rng, shape_of(rng), dtype).round()
    others = array(rng, (rng.randint(0, 9),), dtype).round()
    keys = np.concatenate(
        [others, np.array(rng.choices(x.reshape(-1), k=rng.randint(1, 9)), dtype)]
    )
    return OperatorCall("find", (x, np.sort(keys)), {})


def top_k(rng: Random) -> OperatorCall:
    shape = shape_of(rng, most=9)
    axis = rng.randrange(len(shape))
    dtype = rng.choice(("float32", "int8", "uint8"))
    x = with_specials(rng, array(rng, shape, dtype))
    attrs = {"axis": axis, "k": rng.randint(1, shape[axis]), "largest": rng.random() < 0.5}
    return OperatorCall("top_k", (x,), attrs)


def cumulative(rng: Random) -> OperatorCall:
    shape = shape_of(rng, most=9)
    flags = {key: rng.random() < 0.5 for key in ("product", "exclusive", "reverse")}
    x = array(rng, shape, rng.choice(("float32", "int32")))
    return OperatorCall("cumulative", (x,), {"axis": rng.randrange(len(shape)), **flags})


def einsum(rng: Random) -> OperatorCall:
    equation = rng.choice(("bij,bjk->bik", "ij,kj,k->ik", "ii->i", "ij->", "i,j->ji", "ijj->i"))
    sizes = {c: rng.randint(1, 7) for c in "bijk"}
    terms = equation.split("->")[0].split(",")
    inputs = tuple(array(rng, tuple(sizes[c] for c in term)) for term in terms)
    return OperatorCall("einsum", inputs, {"equation": equation})


def window(rng: Random, rank: int) -> dict[str, Any]:
    return {
        "strides": tuple(rng.randint(1, 3) for _ in range(rank)),
        "dilations": tuple(rng.choice((1, 1, 2)) for _ in range(rank)),
        "pads": tuple(rng.randint(0, 2) for _ in range(2 * rank)),
    }


def conv_nd(rng: Random) -> OperatorCall:
    rank = rng.choice((1, 3))
    attrs = window(rng, rank) | {"groups": rng.choice((1, 2))}
    kernel = tuple(rng.randint(1, 3) for _ in range(rank))
    reach = [d * (k - 1) + 1 for k, d in zip(kernel, attrs["dilations"], strict=True)]
    channels = rng.randint(1, 3)
    data = (rng.randint(1, 2), channels * attrs["groups"], *(r + rng.randint(0, 4) for r in reach))
    weights = (rng.randint(1, 3) * attrs["groups"], channels, *kernel)
    return OperatorCall("conv_nd", (array(rng, data), array(rng, weights)), attrs)


def col2im(rng: Random) -> OperatorCall:
    rank = rng.randint(1, 3)
    attrs = window(rng, rank)
    kernel = tuple(rng.randint(1, 3) for _ in range(rank))
    reach = [d * (k - 1) + 1 for k, d in zip(kernel, attrs["dilations"], strict=True)]
    shape = tuple(r + rng.randint(0, 4) for r in reach)
    around = [n + attrs["pads"][d] + attrs["pads"][rank + d] for d, n in enumerate(shape)]
    counts = [(n - r) // s + 1 for n, r, s in zip(around, reach, attrs["strides"], strict=True)]
    columns = (rng.randint(1, 2), rng.randint(1, 3) * int(np.prod(kernel)), int(np.prod(counts)))
    return OperatorCall(
        "col2im", (array(rng, columns),), {**attrs, "kernel": kernel, "shape": shape}
    )


def sample(rng: Random) -> OperatorCall:
    """Places stay off the borders between pixels, where rounding decides."""
    rank = rng.randint(1, 3)
    mode = rng.choice(("nearest", "linear", "cubic") if rank < 3 else ("nearest", "linear"))
    shape = (rng.randint(1, 2), rng.randint(1, 3), *(rng.randint(1, 5) for _ in range(rank)))
    of = places(rng, (rng.randint(1, 4),), shape[0]) if rng.random() < 0.3 else None
    at = (shape[0] if of is None else len(of), *shape_of(rng, 1, 2, 5), rank)
    numbers = np.random.default_rng(rng.randrange(1 << 30))
    place = numbers.integers(-6, 11, at) + numbers.uniform(0.1, 0.4, at)
    place[numbers.random(at) < 0.1] = rng.choice((np.nan, np.inf, -np.inf))
    padding = rng.choice(("zeros", "border", "reflection"))
    attrs = {"mode": mode, "padding": padding, "corners": rng.random() < 0.5}
    inputs = (array(rng, shape), place.astype(np.float32), *([] if of is None else [of]))
    return OperatorCall("sample", inputs, attrs)


def resample(rng: Random) -> OperatorCall:
    shape = shape_of(rng)
    axis = rng.randrange(len(shape))
    table = (rng.randint(1, 7), rng.randint(1, 4))
    index = np.abs(places(rng, table, shape[axis])).clip(0, shape[axis] - 1).astype(np.int32)
    return OperatorCall("resample", (array(rng, shape), index, array(rng, table)), {"axis": axis})


def pool(rng: Random) -> OperatorCall:
    rank = rng.randint(1, 3)
    kernel = tuple(rng.randint(2, 3) for _ in range(rank))
    attrs: dict[str, Any] = {
        "kernel": kernel,
        "strides": tuple(rng.randint(1, 3) for _ in range(rank)),
        "dilations": (1,) * rank,
        "pads": tuple(rng.randint(0, 1) for _ in range(2 * rank)),
        "ceil_mode": rng.random() < 0.3,
    }
    op = rng.choice(("sum_pool", "max_pool_places"))
    if op == "max_pool_places":
        attrs["by_column"] = rng.random() < 0.5
    shape = (rng.randint(1, 2), rng.randint(1, 3), *(rng.randint(4, 8) for _ in range(rank)))
    return OperatorCall(op, (array(rng, shape),), attrs)


# ------------------------------------------------------------------------------------- integers


def bytes_of(rng: Random, shape: tuple[int, ...]) -> Array:
    numbers = np.random.default_rng(rng.randrange(1 << 30))
    dtype = rng.choice((np.int8, np.uint8))
    return numbers.integers(np.iinfo(dtype).min, np.iinfo(dtype).max + 1, shape).astype(dtype)


def sums(rng: Random) -> OperatorCall:
    """int32 sums of 8-bit numbers of both signs."""
    match rng.choice(("conv2d", "dense", "matmul")):
        case "conv2d":
            groups = rng.choice((1, 2))
            attrs = {
                "strides": (1, rng.randint(1, 2)),
                "dilations": (1, 1),
                "pads": (1, 0, rng.randint(0, 1), 1),
                "groups": groups,
                "pad_value": rng.randint(0, 100),
            }
            data = (1, 3 * groups, rng.randint(3, 6), rng.randint(3, 9))
            weights = (rng.randint(1, 9) * groups, 3, 2, 3)
            return OperatorCall("conv2d", (bytes_of(rng, data), bytes_of(rng, weights)), attrs)
        case "dense":
            n, k = rng.randint(1, 17), rng.randint(1, 33)
            transposed = rng.random() < 0.5
            w = (n, k) if transposed else (k, n)
            inputs = bytes_of(rng, (rng.randint(1, 5), k)), bytes_of(rng, w)
            return OperatorCall("dense", inputs, {"transpose_b": transposed})
    m, k, n = rng.randint(1, 5), rng.randint(1, 33), rng.randint(1, 17)
    return OperatorCall("matmul", (bytes_of(rng, (2, m, k)), bytes_of(rng, (k, n))), {})


def quantized(rng: Random) -> OperatorCall:
    """Per tensor or per channel; some of the results saturate."""
    shape = (2, rng.randint(1, 5), rng.randint(1, 9))
    own = rng.choice(((), (shape[1], 1)))
    numbers = np.random.default_rng(rng.randrange(1 << 30))
    dtype = rng.choice((np.int8, np.uint8, np.int16, np.uint16))
    zero = numbers.integers(0, 100, own).astype(dtype)
    scale = numbers.uniform(0.1, 2, own).astype(np.float32)
    match rng.choice(("quantize", "dequantize", "requantize")):
        case "quantize":
            x = with_specials(rng, numbers.normal(0, 100, shape).astype(np.float32))
            return OperatorCall("quantize", (x, scale, zero), {})
        case "dequantize":
            q = numbers.integers(0, 100, shape).astype(dtype)
            return OperatorCall("dequantize", (q, scale, zero), {})
    total = numbers.integers(-(10**6), 10**6, shape).astype(np.int32)
    return OperatorCall("requantize", (total, scale * np.float32(1e-4), zero), {})


FLOATS = {
    "acos": (-1, 1),
    "acosh": (1, 9),
    "asin": (-1, 1),
    "atanh": (-0.99, 0.99),
    "cosh": (-5, 5),
    "sinh": (-5, 5),
}
ATTRS: dict[str, dict[str, Any]] = {
    "isinf": {"positive": True, "negative": False},
    "shift": {"left": True},
    "shrink": {"lambd": 0.5, "bias": 0.2},
}


def special(rng: Random) -> OperatorCall:
    return special_call(rng.choice(SPECIAL), rng)


def special_call(entry: Elementwise, rng: Random) -> OperatorCall:
    shape = shape_of(rng, 0, 3)
    if "float" in entry.kinds:
        low, high = FLOATS.get(entry.name, (-9, 9))
        numbers = np.random.default_rng(rng.randrange(1 << 30))
        x = numbers.uniform(low, high, shape).astype(np.float32)
        if entry.gives_bool:
            x = np.where(x > 3, np.float32(np.inf), np.where(x < -3, np.float32(np.nan), x))
        x = np.where(numbers.random(shape) < 0.1, rng.choice((np.nan, np.inf, -np.inf, 1e30)), x)
        return OperatorCall(entry.name, (np.asarray(x, np.float32),), ATTRS.get(entry.name, {}))
    dtype = rng.choice(("int8", "uint8", "int32", "int64", "uint16"))
    inputs = [array(rng, shape, dtype) for _ in range(entry.inputs)]
    if entry.name == "integer_power":
        inputs[0] = np.where(inputs[0] == 0, inputs[0] + 1, inputs[0]).astype(dtype)
    attrs = {"left": rng.random() < 0.5} if entry.name == "shift" else {}
    return OperatorCall(entry.name, tuple(inputs), attrs)


def bitcast(rng: Random) -> OperatorCall:
    """Of numbers, since other bits may be no number."""
    x = array(rng, shape_of(rng), rng.choice(("float32", "int8")))
    if x.dtype == np.int8:
        return OperatorCall("bitcast", (x,), {"dtype": "uint8"})
    if rng.random() < 0.5:
        return OperatorCall("bitcast", (x,), {"dtype": "int32"})
    return OperatorCall("bitcast", (x.view(np.int32),), {"dtype": "float32"})


def pad_with(rng: Random) -> OperatorCall:
    shape = shape_of(rng)
    pads = tuple(rng.randint(0, 2) for _ in range(2 * len(shape)))
    return OperatorCall("pad_with", (array(rng, shape), array(rng, ())), {"pads": pads})


def nonzero(rng: Random) -> OperatorCall:
    shape = shape_of(rng)
    x = array(rng, shape, rng.choice(("float32", "int64", "uint8")))
    dropped = np.array([rng.random() < 0.5 for _ in range(x.size)]).reshape(shape)
    x = with_specials(rng, np.where(dropped, 0, x).astype(x.dtype))
    return OperatorCall("nonzero", (x,), {})


def suppress(rng: Random) -> OperatorCall:
    batch, classes, boxes = (rng.randint(1, n) for n in (2, 3, 12))
    scores = with_specials(rng, array(rng, (batch, classes, boxes)))
    limits = np.array(rng.randint(0, 6), np.int64), np.float32(rng.random() / 2), np.float32(-0.5)
    corners = np.abs(array(rng, (batch, boxes, 4)))
    attrs = {"centered": rng.random() < 0.5, "most": rng.choice((3, batch * classes * boxes))}
    return OperatorCall("suppress", (corners, scores, *map(np.asarray, limits)), attrs)


def unique(rng: Random) -> OperatorCall:
    """Of few numbers, so that many rows are equal."""
    shape = (rng.choice((1, 2, 9, 40)), rng.choice((1, 1, 2, 3)))
    drawn = [rng.randint(0, 3) for _ in range(int(np.prod(shape)))]
    x = np.array(drawn, rng.choice((np.float32, np.int64, np.uint8))).reshape(shape)
    return OperatorCall("unique", (with_specials(rng, x),), {"sorted": rng.random() < 0.5})


def grow(rng: Random) -> OperatorCall:
    shape = shape_of(rng)
    axis = rng.randrange(len(shape))
    attrs = {"axis": axis, "extent": shape[axis] + rng.randint(0, 3)}
    return OperatorCall("grow", (array(rng, shape),), attrs)


def first(rng: Random) -> OperatorCall:
    shape = shape_of(rng)
    extent = rng.randint(1, shape[0])
    return OperatorCall("first", (array(rng, shape), np.array(extent)), {"extent": extent})


def extent(rng: Random) -> OperatorCall:
    count = rng.randint(0, 9)
    return OperatorCall("extent", (np.array(count),), {"extent": count})


CALLS: dict[str, Callable[[Random], OperatorCall]] = {
    "bitcast": bitcast,
    "check_indices": check_indices,
    "col2im": col2im,
    "conv_nd": conv_nd,
    "cumulative": cumulative,
    "einsum": einsum,
    "extent": extent,
    "first": first,
    "gather_elements": gather_elements,
    "find": find,
    "gather_nd": gather_nd,
    "grow": grow,
    "nonzero": nonzero,
    "pad_with": pad_with,
    "pool": pool,
    "quantized": quantized,
    "resample": resample,
    "sample": sample,
    "scatter_elements": scatter_elements,
    "scatter_nd": scatter_nd,
    "special": special,
    "sums": sums,
    "suppress": suppress,
    "top_k": top_k,
    "unique": unique,
}


def drawn(kind: str, count: int) -> list[OperatorCall]:
    """The first calls of a kind; of the special ones, one of each operator and more."""
    rngs = [Random(f"{kind} {n}") for n in range(count)]
    if kind != "special":
        return [CALLS[kind](rng) for rng in rngs]
    return [special_call(entry, Random(entry.name)) for entry in SPECIAL] + [*map(special, rngs)]


# The operators that are drawn.
OPERATORS = frozenset(call.op for kind in CALLS for call in drawn(kind, 25))
