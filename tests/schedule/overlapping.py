"""Random programs that tensor expressions do not make: loops through results and reduction at once,
guards on buffers, writes of one element by many iterations, inits of other elements than the steps,
loops of open length. Each is legal as it stands; most primitives must refuse it."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from mlc_deploy.ir import PrimFunc
from tests.schedule.small_programs import parsed

SIZES = (2, 3, 4, 5, 6, 8)
OPS = ("B[{0}] + {1}", "T.max(B[{0}], {1})", "B[{0}] * T.int32(2) + {1}")


def function(params: str, body: str) -> PrimFunc:
    lines = "\n".join(f"    {line}" for line in body.strip("\n").splitlines())
    return parsed(f"@T.prim_func\ndef main({params}):\n{lines}\n")


def buffer(name: str, *shape: object) -> str:
    return f'{name}: T.Buffer(({", ".join(map(str, shape))},), "int32")'


def rows_in_one_loop(rng: Random) -> PrimFunc:
    """A sum or product of each row, whose loop goes through rows and columns, perhaps too far."""
    n, m, more = rng.choice(SIZES), rng.choice(SIZES), rng.choice((0, 0, 3))
    step = rng.choice(OPS[:2]).format("vi", "A[vi, vk]")
    guard = f"T.where(f < {n * m})" if more else ""
    return function(
        f"{buffer('A', n, m)}, {buffer('B', n)}",
        f"""
for f in range({n * m + more}):
    with T.block("B"):
        vi = T.axis.spatial({n}, f // {m})
        vk = T.axis.reduce({m}, f % {m})
        {guard}
        with T.init():
            B[vi] = {rng.choice((0, -5))}
        B[vi] = {step}
""",
    )


def parts_of_rows(rng: Random) -> PrimFunc:
    """A reduction in tiles: one loop goes through parts of the rows and of the columns."""
    n, m, p, q = (rng.choice((2, 3, 4)) for _ in range(4))
    return function(
        f"{buffer('A', n * p, m * q)}, {buffer('B', n * p)}",
        f"""
for i, f, k in T.grid({n}, {p * m}, {q}):
    with T.block("B"):
        vi = T.axis.spatial({n * p}, i * {p} + f // {m})
        vk = T.axis.reduce({m * q}, f % {m} * {q} + k)
        with T.init():
            B[vi] = 0
        B[vi] = B[vi] + A[vi, vk]
""",
    )


def added_up(rng: Random) -> PrimFunc:
    """Iterations that say they are of results, and write one element many times."""
    n, m = rng.choice(SIZES), rng.choice(SIZES)
    at = rng.choice(("vk", "vi // 2", "vi % 2", "(vi + vk) // 2", "0", "vi"))
    step = rng.choice((*OPS, "{1}")).format(at, "A[vi, vk]")
    return function(
        f"{buffer('A', n, m)}, {buffer('B', n + m)}",
        f"""
for i, k in T.grid({n}, {m}):
    with T.block("B"):
        vi, vk = T.axis.remap("SS", [i, k])
        B[{at}] = {step}
""",
    )


def begun_elsewhere(rng: Random) -> PrimFunc:
    """A reduction whose init writes other elements than its steps."""
    n, m = rng.choice(SIZES), rng.choice(SIZES)
    at = rng.choice((f"{n - 1} - vi", "vi // 2", f"(vi + 1) % {n}"))
    return function(
        f"{buffer('A', n, m)}, {buffer('B', n)}",
        f"""
for i, k in T.grid({n}, {m}):
    with T.block("B"):
        vi, vk = T.axis.remap("SR", [i, k])
        T.reads(A[vi, vk])
        T.writes(B[0:{n}])
        with T.init():
            B[vi] = 1
        B[{at}] = B[{at}] + A[vi, vk]
""",
    )


def steps_again(rng: Random) -> PrimFunc:
    """A reduction that takes steps twice, or begins anew in the middle."""
    n, m = rng.choice(SIZES), rng.choice(SIZES)
    k = rng.choice(("k * k // 2", "k // 2", f"k % {max(m // 2, 1)}", f"{m - 1} - k"))
    return function(
        f"{buffer('A', n, 64)}, {buffer('B', n)}",
        f"""
for i, k in T.grid({n}, {m}):
    with T.block("B"):
        vi = T.axis.spatial({n}, i)
        vk = T.axis.reduce(64, {k})
        with T.init():
            B[vi] = 0
        B[vi] = B[vi] + A[vi, vk]
""",
    )


def guarded(rng: Random) -> PrimFunc:
    """A block under a guard that reads what another block computed."""
    n = rng.choice(SIZES)
    return function(
        f"{buffer('A', n)}, {buffer('C', n)}",
        f"""
P = T.alloc_buffer(({n},), "int32")
for i in range({n}):
    with T.block("P"):
        vi = T.axis.spatial({n}, i)
        P[vi] = A[vi] * {rng.choice((1, 2, -1))}
for j in range({n}):
    with T.block("C"):
        vj = T.axis.spatial({n}, j)
        T.where(P[{rng.choice(("j", f"{n - 1} - j"))}] < {rng.randint(-3, 3)})
        C[vj] = {rng.choice(("A[vj]", "P[vj] + 1", "7"))}
""",
    )


def one_after_another(rng: Random) -> PrimFunc:
    """Each element of the one before; or two blocks in one loop, the second of the first's last."""
    n = rng.choice(SIZES)
    if rng.random() < 0.5:
        return function(
            f"{buffer('A', n)}, {buffer('B', n + 1)}",
            f"""
for i in range({n}):
    with T.block("B"):
        vi = T.axis.spatial({n}, i)
        B[vi + 1] = B[vi] + A[vi]
""",
        )
    shift = rng.choice((0, 1, 2))
    return function(
        f"{buffer('A', n)}, {buffer('B', n + 2)}, {buffer('C', n)}",
        f"""
for i in range({n}):
    with T.block("B"):
        vi = T.axis.spatial({n}, i)
        B[vi + {rng.choice((0, 2))}] = A[vi] + 1
    with T.block("C"):
        vj = T.axis.spatial({n}, i)
        C[vj] = B[vj + {shift}] * 2
""",
    )


def open_rows(rng: Random) -> PrimFunc:
    """A sum of each row, of open length, over all of it or so far."""
    columns, m = rng.choice((("5", "5"), ("i + 1", "n")))
    return function(
        "a: T.handle, b: T.handle",
        f"""
n = T.int32()
A = T.match_buffer(a, (n, {m}), "int32")
B = T.match_buffer(b, (n,), "int32")
for i in range(n):
    for k in range({columns}):
        with T.block("B"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                B[vi] = 0
            B[vi] = B[vi] + A[vi, vk]
""",
    )


KINDS: tuple[Callable[[Random], PrimFunc], ...] = (
    rows_in_one_loop,
    parts_of_rows,
    added_up,
    begun_elsewhere,
    steps_again,
    guarded,
    one_after_another,
    open_rows,
)


def overlapping_program(rng: Random) -> PrimFunc:
    return rng.choice(KINDS)(rng)
