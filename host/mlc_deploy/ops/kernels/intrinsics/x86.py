"""Tensor intrinsics of x86-64."""

from __future__ import annotations

from functools import partial

from . import describe, vectors
from .declare import Declare
from .vectors import llvm

_declare = Declare("x86_64", "x86")
INTRINS = _declare.intrins

# Products of int16, added in pairs. LLVM fuses this and the addition to sums where a CPU has an
# instruction for both (vpdpwssd of VNNI).
for lanes, name, feature in ((4, "sse2.pmadd.wd", "sse2"), (8, "avx2.pmadd.wd", "avx2")):
    multiply_add = vectors.added(llvm(f"llvm.x86.{name}", f"int32x{lanes}"))
    _declare(
        f"pmaddwd.{lanes}",
        partial(describe.dot, "int16", "int8", lanes, 2),
        vectors.dot_of_pairs(multiply_add),
        r"\bv?pmaddwd\b",
        feature,
    )

_declare(
    "pmaddwd.windows",
    partial(describe.dot_of_pairs, "int16", 8),
    vectors.dot_of_neighbours(vectors.added(llvm("llvm.x86.avx2.pmadd.wd", "int32x8"))),
    r"\bvpmaddwd\b",
    "avx2",
)

# Products of uint8 and int8, added in fours (VNNI): for one or two rows of the data against eight
# columns, or for eight channels of one or two pixels.
for rows, feature in ((1, "avxvnni"), (2, "avx512vnni")):
    multiply_add = llvm(f"llvm.x86.avx512.vpdpbusd.{256 * rows}", f"int32x{8 * rows}")
    for name, description, made in (
        (
            "rows",
            partial(describe.dot_rows_of_quads, rows),
            vectors.dot_rows_of_quads(multiply_add),
        ),
        ("windows", partial(describe.dot_of_quads, rows), vectors.dot_of_neighbours(multiply_add)),
    ):
        _declare(
            f"vpdpbusd.{name}{rows}",
            description,
            made,
            r"\bvpdpbusd\b",
            feature,
        )

# Interleaves rows for these sums.
for dtype, widening in (("int8", "vpmovsxbw"), ("uint8", "vpmovzxbw")):
    _declare(
        f"interleave.{dtype}",
        partial(describe.interleaved_pairs, dtype, "int16"),
        vectors.interleaved_pairs,
        rf"\b{widening}\b",
        "avx2",
    )
for columns, phases in ((1, 1), (4, 1), (4, 2)):
    _declare(
        f"interleave.quads{columns}.phases{phases}.uint8",
        partial(describe.interleaved_quads, "uint8", columns, phases),
        vectors.interleaved_quads,
        r"\bvpshufb\b",
        "avx2" if columns == 1 else "avx512bw",
    )

for depth in (16, 32):
    _declare(
        f"pmaddubsw.nibbles{depth}",
        partial(describe.dot_of_raised_nibbles, depth),
        vectors.dot_of_raised_nibbles(
            llvm("llvm.x86.avx2.pmadd.ub.sw", "int16x16"),
            llvm("llvm.x86.avx2.pmadd.wd", "int32x8"),
        ),
        r"\bvpmaddubsw\b",
        "avx2",
    )
