"""Small programs with known names of loops and blocks, which tests of primitives begin with."""

from __future__ import annotations

from collections.abc import Callable

from mlc_deploy import te
from mlc_deploy.ir import Expr, PrimFunc
from mlc_deploy.script import from_script


def parsed(text: str) -> PrimFunc:
    func = from_script(text)
    assert isinstance(func, PrimFunc)
    return func


def chain() -> PrimFunc:
    """B in loops i, j; C in loops i_1, j_1."""
    a = te.placeholder((8, 12), name="A")
    b = te.compute((8, 12), lambda i, j: a[i, j] + 1, name="B")
    return te.create_prim_func([a, te.compute((8, 12), lambda i, j: b[i, j] * 2, name="C")])


def diamond() -> PrimFunc:
    """B, then C of B, then D of both."""
    a = te.placeholder((16,), name="A")
    b = te.compute((16,), lambda i: a[i] + 1, name="B")
    c = te.compute((16,), lambda i: b[i] * 2, name="C")
    return te.create_prim_func([a, te.compute((16,), lambda i: b[i] + c[i], name="D")])


def matmul() -> PrimFunc:
    """C in loops i, j, k; D = C + 1 in loops i_1, j_1."""
    a, b = te.placeholder((8, 16), name="A"), te.placeholder((16, 12), name="B")
    k = te.reduce_axis(16, "k")
    c = te.compute((8, 12), lambda i, j: te.sum(a[i, k] * b[k, j], k), name="C")
    return te.create_prim_func([a, b, te.compute((8, 12), lambda i, j: c[i, j] + 1, name="D")])


def rows() -> PrimFunc:
    """A sum of each row: S in loops i, k, which is what matmul's `C` is without j."""
    a = te.placeholder((6, 10), name="A")
    k = te.reduce_axis(10, "k")
    return te.create_prim_func([a, te.compute((6,), lambda i: te.sum(a[i, k], k), name="S")])


def vast() -> PrimFunc:
    """2^32 turns of loops i, j."""
    a = te.placeholder((1,), name="A")
    return te.create_prim_func([a, te.compute((65536, 65536), lambda i, j: a[0], name="B")])


def addressed() -> PrimFunc:
    """B = A + 1, whose first element's address D gives away."""
    a = te.placeholder((16,), name="A")
    b = te.compute((16,), lambda i: a[i] + 1, name="B")
    d = te.compute((16,), lambda i: te.call_extern("float32", "f", te.address_of(b[0])), name="D")
    return te.create_prim_func([a, d])


def an_argument() -> PrimFunc:
    """C[i, j] = B[j, i] + 1, twice as many rows as B has columns, of B that is an output, too."""
    a = te.placeholder((6, 4), name="A")
    b = te.compute((6, 4), lambda i, j: a[i, j] * 2, name="B")
    c = te.compute((8, 3), lambda i, j: b[j, i // 2] + 1, name="C")
    return te.create_prim_func([a, b, c])


def stencil() -> PrimFunc:
    """C reads two neighbours of B."""
    a = te.placeholder((16,), name="A")
    b = te.compute((16,), lambda i: a[i] + 1, name="B")
    return te.create_prim_func([a, te.compute((15,), lambda i: b[i] + b[i + 1], name="C")])


def normalized() -> PrimFunc:
    """Every element less the maximum of its row, times 2."""
    a = te.placeholder((4, 6), name="A")
    k = te.reduce_axis(6, "k")
    top = te.compute((4,), lambda i: te.max(a[i, k], k), name="top")
    less = te.compute((4, 6), lambda i, j: a[i, j] - top[i], name="less")
    return te.create_prim_func([a, te.compute((4, 6), lambda i, j: less[i, j] * 2, name="out")])


def outer_sum() -> PrimFunc:
    """X in loop i, Y in loop j, and their sums: a block with two producers."""
    a, b = te.placeholder((4,), name="A"), te.placeholder((4,), name="B")
    x = te.compute((4,), lambda i: a[i] + 1, name="X")
    y = te.compute((4,), lambda j: b[j] + 1, name="Y")
    return te.create_prim_func([a, b, te.compute((4, 4), lambda p, q: x[p] + y[q], name="Z")])


def padded() -> PrimFunc:
    """P is A with a border; C, larger than P by a guard, reads it."""
    a = te.placeholder((6,), name="A")
    p = te.compute((6,), lambda i: a[i] + 1, name="P")
    c = te.compute((8,), lambda j: te.if_then_else(j < 6, p[j], 0), name="C")
    return te.create_prim_func([a, c])


def two_results() -> PrimFunc:
    """One block that computes B and B_1."""
    a = te.placeholder((16,), name="A")
    b = te.compute((16,), lambda i: (a[i] + 1, a[i] * 2), name="B")
    return te.create_prim_func([a, te.compute((16,), lambda i: b[0][i] + b[1][i], name="C")])


def endless() -> PrimFunc:
    """2^40 elements, more than one int32 loop counts."""
    a = te.placeholder((), name="A")
    return te.create_prim_func([a, te.compute((1 << 20, 1 << 20), lambda i, j: a[()], name="B")])


def symbolic() -> PrimFunc:
    n = te.var("n")
    a = te.placeholder((n,), name="A")
    return te.create_prim_func([a, te.compute((n,), lambda i: a[i] + 1, name="B")])


def scan() -> PrimFunc:
    """Each element reads the one before: its order is no choice."""
    return parsed(
        """
@T.prim_func
def main(A: T.Buffer((16, 4), "float32")):
    for i, j in T.grid(15, 4):
        with T.block("A"):
            v_i, v_j = T.axis.remap("SS", [i, j])
            T.reads(A[v_i, v_j])
            T.writes(A[v_i + 1, v_j])
            A[v_i + 1, v_j] = A[v_i, v_j] + T.float32(1)
"""
    )


def summed() -> PrimFunc:
    """Every row is added to B: the loop over rows writes the same elements again."""
    return parsed(
        """
@T.prim_func
def main(A: T.Buffer((8, 4), "float32"), B: T.Buffer((4,), "float32")):
    for i, k in T.grid(8, 4):
        with T.block("B"):
            v_i, v_k = T.axis.remap("SS", [i, k])
            T.reads(A[v_i, v_k], B[v_k])
            T.writes(B[v_k])
            B[v_k] = B[v_k] + A[v_i, v_k]
"""
    )


def twice() -> PrimFunc:
    """A sum that begins again with its second step, since 1 * 1 // 2 is 0."""
    return parsed(
        """
@T.prim_func
def main(A: T.Buffer((6, 32), "float32"), B: T.Buffer((6,), "float32")):
    for i, k in T.grid(6, 8):
        with T.block("B"):
            v_i = T.axis.spatial(6, i)
            v_k = T.axis.reduce(32, k * k // 2)
            T.reads(A[v_i, v_k])
            T.writes(B[v_i])
            with T.init():
                B[v_i] = T.float32(0)
            B[v_i] = B[v_i] + A[v_i, v_k]
"""
    )


def elsewhere() -> PrimFunc:
    """A sum whose init writes other elements than its steps."""
    return parsed(
        """
@T.prim_func
def main(A: T.Buffer((6, 8), "float32"), B: T.Buffer((6,), "float32")):
    for i, k in T.grid(6, 8):
        with T.block("B"):
            v_i, v_k = T.axis.remap("SR", [i, k])
            T.reads(A[v_i, v_k])
            T.writes(B[0:6])
            with T.init():
                B[v_i] = T.float32(0)
            B[5 - v_i] = B[5 - v_i] + A[v_i, v_k]
"""
    )


def neighbours() -> PrimFunc:
    """One loop of two blocks, of which the second reads what the first wrote an iteration ago."""
    return parsed(
        """
@T.prim_func
def main(A: T.Buffer((8,), "float32"), B: T.Buffer((9,), "float32"), C: T.Buffer((8,), "float32")):
    for i in range(8):
        with T.block("B"):
            v_i = T.axis.spatial(8, i)
            B[v_i + 1] = A[v_i] + T.float32(1)
        with T.block("C"):
            v_j = T.axis.spatial(8, i)
            C[v_j] = B[v_j]
"""
    )


def backwards() -> PrimFunc:
    """A sum whose init runs in the last iteration, and forgets those before."""
    return parsed(
        """
@T.prim_func
def main(A: T.Buffer((6, 8), "float32"), B: T.Buffer((6,), "float32")):
    for i, k in T.grid(6, 8):
        with T.block("B"):
            v_i = T.axis.spatial(6, i)
            v_k = T.axis.reduce(8, 7 - k)
            with T.init():
                B[v_i] = T.float32(0)
            B[v_i] = B[v_i] + A[v_i, v_k]
"""
    )


def chosen() -> PrimFunc:
    """Writes the elements of C whose elements of A are small."""
    return parsed(
        """
@T.prim_func
def main(A: T.Buffer((8,), "float32"), C: T.Buffer((8,), "float32")):
    for j in range(8):
        with T.block("C"):
            v_j = T.axis.spatial(8, j)
            T.where(A[j] < T.float32(3))
            C[v_j] = T.float32(1)
"""
    )


def summed_so_far() -> PrimFunc:
    """B[i] is the sum of a row up to the diagonal; C is B + 1."""
    a = te.placeholder((8, 8), name="A")

    def element(i: Expr) -> Expr:
        k = te.reduce_axis((0, i + 1), "k")
        return te.sum(a[i, k], k)

    b = te.compute((8,), element, name="B")
    return te.create_prim_func([a, te.compute((8,), lambda j: b[j] + 1, name="C")])


def triangle() -> PrimFunc:
    """The inner loop's extent is the outer loop's variable."""
    return parsed(
        """
@T.prim_func
def main(A: T.Buffer((8, 8), "float32"), B: T.Buffer((8, 8), "float32")):
    for i in range(8):
        for j in range(i + 1):
            with T.block("B"):
                v_i, v_j = T.axis.remap("SS", [i, j])
                T.reads(A[v_i, v_j])
                T.writes(B[v_i, v_j])
                B[v_i, v_j] = A[v_i, v_j] + T.float32(1)
"""
    )


def unread() -> PrimFunc:
    """Nothing reads B."""
    return parsed(
        """
@T.prim_func
def main(A: T.Buffer((8,), "float32"), C: T.Buffer((8,), "float32")):
    B = T.alloc_buffer((8,), "float32")
    for i in range(8):
        with T.block("B"):
            v_i = T.axis.remap("S", [i])
            T.reads(A[v_i])
            T.writes(B[v_i])
            B[v_i] = A[v_i] + T.float32(1)
    for j in range(8):
        with T.block("C"):
            v_j = T.axis.remap("S", [j])
            T.reads(A[v_j])
            T.writes(C[v_j])
            C[v_j] = A[v_j]
"""
    )


def repeated() -> PrimFunc:
    """B is written four times over: its block has an iteration that the store does not use."""
    return parsed(
        """
@T.prim_func
def main(A: T.Buffer((8,), "float32"), C: T.Buffer((8,), "float32")):
    B = T.alloc_buffer((8,), "float32")
    for i, r in T.grid(8, 4):
        with T.block("B"):
            v_i, v_r = T.axis.remap("SS", [i, r])
            T.reads(A[v_i])
            T.writes(B[v_i])
            B[v_i] = A[v_i] + T.float32(1)
    for j in range(8):
        with T.block("C"):
            v_j = T.axis.remap("S", [j])
            T.reads(B[v_j])
            T.writes(C[v_j])
            C[v_j] = B[v_j]
"""
    )


def in_vectors() -> PrimFunc:
    """Four elements at a time, as after tensorize."""
    return parsed(
        """
@T.prim_func
def main(A: T.Buffer((16,), "float32"), B: T.Buffer((16,), "float32")):
    for i in range(4):
        with T.block("B"):
            v_i = T.axis.remap("S", [i])
            T.reads(A[v_i * 4:v_i * 4 + 4])
            T.writes(B[v_i * 4:v_i * 4 + 4])
            B[T.Ramp(v_i * 4, 1, 4)] = A[T.Ramp(v_i * 4, 1, 4)]
"""
    )


Program = Callable[[], PrimFunc]
