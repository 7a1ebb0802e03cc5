"""What instructions compute, as tensor expressions. A is the first operand, B the second."""

from __future__ import annotations

from .... import te
from ....ir import Expr, PrimFunc, const, select
from ....schedule.tensor_intrin import accumulating, rows_apart
from ....te import Tensor
from ...block_scaled import nibble, raised_nibble
from ...lookup import VALUES, place


def _func(*tensors: Tensor) -> PrimFunc:
    return te.create_prim_func(tensors, "description")


def dot(a: str, b: str, columns: int = 4, depth: int = 4) -> PrimFunc:
    """C[j] += A[k] * B[j, k]: int32 [columns], a [depth], b [columns, depth]."""
    x, y = te.placeholder((depth,), a, "A"), te.placeholder((columns, depth), b, "B")
    k = te.reduce_axis((0, depth), "k")

    def element(j: Expr) -> Expr:
        return te.sum(x[k].astype("int32") * y[j, k].astype("int32"), k)

    return accumulating(_func(x, y, te.compute((columns,), element, name="C")))


def tile(a: str, b: str, rows: int, columns: int, depth: int) -> PrimFunc:
    """C[i, j] += A[i, k] * B[j, k]: int32 [rows, columns], a [rows, depth], b [columns, depth]."""
    x, y = te.placeholder((rows, depth), a, "A"), te.placeholder((columns, depth), b, "B")
    k = te.reduce_axis((0, depth), "k")

    def element(i: Expr, j: Expr) -> Expr:
        return te.sum(x[i, k].astype("int32") * y[j, k].astype("int32"), k)

    return accumulating(_func(x, y, te.compute((rows, columns), element, name="C")))


def tile_by_lane(a: str, b: str) -> PrimFunc:
    """C[i, j] += A[i, k] * B[j, k], all of [4, 4]; rows of C anywhere."""
    return rows_apart(tile(a, b, 4, 4, 4), "C")


def dot_rows(a: str, b: str, rows: int) -> PrimFunc:
    """C[i, j] += A[i, 4*h + k] * B[h, j, k]: int32 [rows, 4], a [rows, 8], b [2, 4, 4]; rows of C
    and both halves of B anywhere."""
    return rows_apart(_two_quads(a, b, rows, 4), "B", "C")


def dot_rows_of_quads(rows: int) -> PrimFunc:
    """C[i, j] += A[i, 4*h + k] * B[h, j, k] over h of 2 and k of 4: int32 [rows, 8], of uint8 A
    [rows, 8] and int8 B [2, 8, 4]."""
    return _two_quads("uint8", "int8", rows, 8)


def _two_quads(a: str, b: str, rows: int, columns: int) -> PrimFunc:
    x, y = te.placeholder((rows, 8), a, "A"), te.placeholder((2, columns, 4), b, "B")
    h, k = te.reduce_axis((0, 2), "h"), te.reduce_axis((0, 4), "k")

    def element(i: Expr, j: Expr) -> Expr:
        return te.sum(x[i, h * 4 + k].astype("int32") * y[h, j, k].astype("int32"), (h, k))

    return accumulating(_func(x, y, te.compute((rows, columns), element, name="C")))


def dot_of_nibbles() -> PrimFunc:
    """C[j] += A[8*h + 4*g + k] * 16 * half h of B[g, j, k] over g and h of 2 and k of 4: int32 [4],
    of int8 and nibbles, A [16], B [2, 4, 4], both parts of B anywhere."""
    x, y = te.placeholder((16,), "int8", "A"), te.placeholder((2, 4, 4), "uint8", "B")
    g, h, k = (te.reduce_axis((0, n), name) for n, name in ((2, "g"), (2, "h"), (4, "k")))

    def element(j: Expr) -> Expr:
        weight = nibble(y[g, j, k], h.var).astype("int32")
        return te.sum(x[h * 8 + g * 4 + k].astype("int32") * weight, (g, h, k))

    func = accumulating(_func(x, y, te.compute((4,), element, name="C")))
    return rows_apart(func, "B")


def dot_of_sixteen() -> PrimFunc:
    """C[j] += A[4*g + k] * B[g, j, k] over g and k of 4: int32 [4], of int8, A [16], B [4, 4, 4],
    parts of B anywhere."""
    x, y = te.placeholder((16,), "int8", "A"), te.placeholder((4, 4, 4), "int8", "B")
    g, k = (te.reduce_axis((0, 4), name) for name in "gk")

    def element(j: Expr) -> Expr:
        return te.sum(x[g * 4 + k].astype("int32") * y[g, j, k].astype("int32"), (g, k))

    func = accumulating(_func(x, y, te.compute((4,), element, name="C")))
    return rows_apart(func, "B")


def columns_of_bytes() -> PrimFunc:
    """C[j] += A[k] * B[k, j], over k of 16: int32 [16], of int8, A [16], B [16, 16]."""
    x, y = te.placeholder((16,), "int8", "A"), te.placeholder((16, 16), "int8", "B")
    k = te.reduce_axis((0, 16), "k")

    def element(j: Expr) -> Expr:
        return te.sum(x[k].astype("int32") * y[k, j].astype("int32"), k)

    return accumulating(_func(x, y, te.compute((16,), element, name="C")))


def squares_of_nibbles() -> PrimFunc:
    """C[p, i, j] += A[h, i, 4*g + k] * 16 * half h of B[g, 2*p + j, k], h and g of 2 and k of 4:
    int32 [2, 2, 2], of int8 and nibbles, A [2, 2, 8], B [2, 4, 4], both parts of B anywhere."""
    x, y = te.placeholder((2, 2, 8), "int8", "A"), te.placeholder((2, 4, 4), "uint8", "B")
    h, g, k = (te.reduce_axis((0, n), name) for n, name in ((2, "h"), (2, "g"), (4, "k")))

    def element(p: Expr, i: Expr, j: Expr) -> Expr:
        weight = nibble(y[g, p * 2 + j, k], h.var).astype("int32")
        return te.sum(x[h, i, g * 4 + k].astype("int32") * weight, (h, g, k))

    func = accumulating(_func(x, y, te.compute((2, 2, 2), element, name="C")))
    return rows_apart(func, "B")


def columns_of_nibbles() -> PrimFunc:
    """C[j] += A[2*q + h] * half h of B[q, j], over q of 8 and h of 2: int16 [16], of int8 and
    nibbles, A [16], B [8, 16]."""
    x, y = te.placeholder((16,), "int8", "A"), te.placeholder((8, 16), "uint8", "B")
    q, h = te.reduce_axis((0, 8), "q"), te.reduce_axis((0, 2), "h")

    def element(j: Expr) -> Expr:
        weight = (nibble(y[q, j], h.var) >> 4).astype("int16")
        return te.sum(x[q * 2 + h].astype("int16") * weight, (q, h))

    return accumulating(_func(x, y, te.compute((16,), element, name="C")))


def dot_of_raised_nibbles(depth: int) -> PrimFunc:
    """C[j] += A[8*q + 4*h + k] * (half h of B[q, j, k] + 8), over q of depth / 8, h of 2 and k of
    4: int32 [8], of int8 and nibbles, A [depth], B [depth / 8, 8, 4], parts of B anywhere."""
    x = te.placeholder((depth,), "int8", "A")
    y = te.placeholder((depth // 8, 8, 4), "uint8", "B")
    q, h, k = (te.reduce_axis((0, n), m) for n, m in ((depth // 8, "q"), (2, "h"), (4, "k")))

    def element(j: Expr) -> Expr:
        weight = raised_nibble(y[q, j, k], h.var)
        return te.sum(x[q * 8 + h * 4 + k].astype("int32") * weight, (q, h, k))

    func = accumulating(_func(x, y, te.compute((8,), element, name="C")))
    return rows_apart(func, "B")


def scaled_squares() -> PrimFunc:
    """C[p, i, j] += A[p, i, j] * B[2*p + j]: float32 [2, 2, 2], A int32, B [4]."""
    x, y = te.placeholder((2, 2, 2), "int32", "A"), te.placeholder((4,), "float32", "B")
    once = te.reduce_axis((0, 1), "once")

    def element(p: Expr, i: Expr, j: Expr) -> Expr:
        return te.sum(x[p, i, j].astype("float32") * y[p * 2 + j], once)

    return accumulating(_func(x, y, te.compute((2, 2, 2), element, name="C")))


def dot_in_fours(depth: int) -> PrimFunc:
    """C[j, p] += A[8*h + 2*p + k] * B[j, 8*h + 2*p + k] over k of 2 and h of depth / 8: int32
    [4, 4], of int8, A [depth], B [4, depth]."""
    x, y = te.placeholder((depth,), "int8", "A"), te.placeholder((4, depth), "int8", "B")
    h, k = te.reduce_axis((0, depth // 8), "h"), te.reduce_axis((0, 2), "k")

    def element(j: Expr, p: Expr) -> Expr:
        at = h * 8 + p * 2 + k
        return te.sum(x[at].astype("int32") * y[j, at].astype("int32"), (h, k))

    return accumulating(_func(x, y, te.compute((4, 4), element, name="C")))


def dot_of_windows(pixels: int, taps: int, dtype: str) -> PrimFunc:
    """C[q, c] += A[8*t + c] * B[q, c, t] over t of `taps`: int32 [pixels, 8], of dtype A [8*taps],
    so many pixels of 8 channels, and B [pixels, 8, taps]."""
    x = te.placeholder((8 * taps,), dtype, "A")
    y = te.placeholder((pixels, 8, taps), dtype, "B")
    t = te.reduce_axis((0, taps), "t")

    def element(q: Expr, c: Expr) -> Expr:
        return te.sum(x[t * 8 + c].astype("int32") * y[q, c, t].astype("int32"), t)

    return accumulating(_func(x, y, te.compute((pixels, 8), element, name="C")))


def dot_of_pairs(dtype: str, lanes: int) -> PrimFunc:
    """C[i] += A[i, 0] * B[i, 0] + A[i, 1] * B[i, 1]: int32 [lanes]."""
    x, y = te.placeholder((lanes, 2), dtype, "A"), te.placeholder((lanes, 2), dtype, "B")
    t = te.reduce_axis((0, 2), "t")

    def element(i: Expr) -> Expr:
        return te.sum(x[i, t].astype("int32") * y[i, t].astype("int32"), t)

    return accumulating(_func(x, y, te.compute((lanes,), element, name="C")))


def dot_of_quads(pixels: int) -> PrimFunc:
    """C[p, i] += A[p, i, t] * B[i, t] over t of 4: int32 [pixels, 8], of uint8 A and int8 B; of one
    pixel, without p."""
    lead = (pixels,) if pixels > 1 else ()
    x = te.placeholder((*lead, 8, 4), "uint8", "A")
    y = te.placeholder((8, 4), "int8", "B")
    t = te.reduce_axis((0, 4), "t")

    def element(*i: Expr) -> Expr:
        return te.sum(x[(*i, t)].astype("int32") * y[i[-1], t].astype("int32"), t)

    return accumulating(_func(x, y, te.compute((*lead, 8), element, name="C")))


def interleaved_pairs(dtype: str, result: str) -> PrimFunc:
    """C[j, i] = A[i, j] in the result's dtype, a [2, 8]; rows of A anywhere."""
    x = te.placeholder((2, 8), dtype, "A")
    c = te.compute((8, 2), lambda j, i: x[i, j].astype(result), name="C")
    return rows_apart(_func(x, c), "A")


def interleaved_quads(dtype: str, columns: int, phases: int) -> PrimFunc:
    """C[f, p, j, i] = A[i, 8*(p*phases + f) + j], a [4, 8*columns]; blocks of C by f may lie
    anywhere. One phase: without f; one column: without p."""
    x = te.placeholder((4, 8 * columns), dtype, "A")
    lead = tuple(n for n in (phases, columns // phases) if n > 1)

    def element(*at: Expr) -> Expr:
        *block, j, i = at
        match block:
            case [f, p]:
                return x[i, (p * phases + f) * 8 + j]
            case [p]:
                return x[i, p * 8 + j]
        return x[i, j]

    func = _func(x, te.compute((*lead, 8, 4), element, name="C"))
    return rows_apart(func, "C") if phases > 1 else func


def transposed(rows: int, columns: int, dtype: str) -> PrimFunc:
    """C[j, i] = A[i, j], a [rows, columns]."""
    x = te.placeholder((rows, columns), dtype, "A")
    return _func(x, te.compute((columns, rows), lambda j, i: x[i, j], name="C"))


def rows_of_squares(dtype: str) -> PrimFunc:
    """C[i, v, j] = A[v, i, j]: the rows of two matrices of 2 x 2 side by side; rows of C
    anywhere."""
    x = te.placeholder((2, 2, 2), dtype, "A")
    c = te.compute((2, 2, 2), lambda i, v, j: x[v, i, j], name="C")
    return rows_apart(_func(x, c), "C")


def lookup(data: str, values: str, lanes: int) -> PrimFunc:
    """C[j] = T[A[j]], A read as unsigned: a table of 256 bytes."""
    x, table = te.placeholder((lanes,), data, "A"), te.placeholder((VALUES,), values, "T")
    return _func(x, table, te.compute((lanes,), lambda j: table[place(x[j])], name="C"))


def sums_of_fours() -> PrimFunc:
    """C[j] = A[j, 0] + A[j, 1] + A[j, 2] + A[j, 3]: int32 [4]."""
    x = te.placeholder((4, 4), "int32", "A")
    p = te.reduce_axis((0, 4), "p")
    return _func(x, te.compute((4,), lambda j: te.sum(x[j, p], p), name="C"))


def outer(dtype: str, lanes: int) -> PrimFunc:
    """C[i, j] += A[i] * B[j], all of one dtype, [lanes, lanes]; rows of C anywhere."""
    x, y = te.placeholder((lanes,), dtype, "A"), te.placeholder((lanes,), dtype, "B")
    once = te.reduce_axis((0, 1), "once")
    c = te.compute((lanes, lanes), lambda i, j: te.sum(x[i] * y[j], once), name="C")
    return rows_apart(accumulating(_func(x, y, c)), "C")


def product(dtype: str, result: str, lanes: int) -> PrimFunc:
    """C[i] = A[i] * B[i] in the result's dtype."""
    x, y = te.placeholder((lanes,), dtype, "A"), te.placeholder((lanes,), dtype, "B")
    c = te.compute((lanes,), lambda i: x[i].astype(result) * y[i].astype(result), name="C")
    return _func(x, y, c)


def product_sum(dtype: str, result: str, lanes: int) -> PrimFunc:
    """C[i] += A[i] * B[i] in the result's dtype."""
    x, y = te.placeholder((lanes,), dtype, "A"), te.placeholder((lanes,), dtype, "B")
    once = te.reduce_axis((0, 1), "once")

    def element(i: Expr) -> Expr:
        return te.sum(x[i].astype(result) * y[i].astype(result), once)

    return accumulating(_func(x, y, te.compute((lanes,), element, name="C")))


def pairs(dtype: str, result: str, lanes: int) -> PrimFunc:
    """C[i] = A[2*i] + A[2*i + 1] in the result's dtype."""
    x = te.placeholder((2 * lanes,), dtype, "A")
    k = te.reduce_axis((0, 2), "k")
    c = te.compute((lanes,), lambda i: te.sum(x[i * 2 + k].astype(result), k), name="C")
    return _func(x, c)


def pairs_sum(dtype: str, result: str, lanes: int) -> PrimFunc:
    """C[i] += A[2*i] + A[2*i + 1] in the result's dtype."""
    return accumulating(pairs(dtype, result, lanes))


def high_product(dtype: str, wide: str, lanes: int) -> PrimFunc:
    """C[i] = A[i] * B[i] * 2 / 2^bits, rounded to the nearest (halves up) and saturated."""
    bits = int(dtype.removeprefix("int"))
    x, y = te.placeholder((lanes,), dtype, "A"), te.placeholder((lanes,), dtype, "B")

    def element(i: Expr) -> Expr:
        whole = x[i].astype(wide) * y[i].astype(wide) + (1 << (bits - 2))
        return te.minimum(whole >> (bits - 1), (1 << (bits - 1)) - 1).astype(dtype)

    return _func(x, y, te.compute((lanes,), element, name="C"))


def rounding_shift(lanes: int) -> PrimFunc:
    """C[i] = A[i] << B[i], or where B is negative A >> -B rounded to the nearest (halves up)."""
    x, y = te.placeholder((lanes,), "int32", "A"), te.placeholder((lanes,), "int32", "B")

    def element(i: Expr) -> Expr:
        wide = x[i].astype("int64")
        left = wide << te.maximum(y[i], 0).astype("int64")
        by = te.maximum(0 - y[i], 1).astype("int64")
        right = (wide + (const(1, "int64") << (by - 1))) >> by
        return select(y[i] >= 0, left, right).astype("int32")

    return _func(x, y, te.compute((lanes,), element, name="C"))


SHIFTS = {"B": (-32, 31)}  # the shifts that rounding_shift describes

# Weights for which int16 holds the sum of two products with any int8.
NARROW = {"B": (-127, 127)}
NARROW_DATA = {"A": (-127, 127)}  # the same for data, with any weights
