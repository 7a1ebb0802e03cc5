"""Tensor intrinsics of x86-64."""

from __future__ import annotations

from functools import partial

from ....schedule.tensor_intrin import TensorIntrin
from . import describe, vectors
from .vectors import llvm

INTRINS: list[TensorIntrin] = []

# Products of int16, added in pairs. LLVM fuses this and the addition to sums where a CPU has an
# instruction for both (vpdpwssd of VNNI).
for lanes, name, feature in ((4, "sse2.pmadd.wd", "sse2"), (8, "avx2.pmadd.wd", "avx2")):
    multiply_add = vectors.added(llvm(f"llvm.x86.{name}", f"int32x{lanes}"))
    INTRINS.append(
        TensorIntrin(
            f"x86.pmaddwd.{lanes}",
            partial(describe.dot, "int16", "int8", lanes, 2),
            vectors.dot_of_pairs(multiply_add),
            {"x86_64": frozenset({feature})},
            r"\bv?pmaddwd\b",
        )
    )

INTRINS.append(
    TensorIntrin(
        "x86.pmaddwd.windows",
        partial(describe.dot_of_pairs, "int16", 8),
        vectors.dot_of_neighbours(vectors.added(llvm("llvm.x86.avx2.pmadd.wd", "int32x8"))),
        {"x86_64": frozenset({"avx2"})},
        r"\bvpmaddwd\b",
    )
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
        INTRINS.append(
            TensorIntrin(
                f"x86.vpdpbusd.{name}{rows}",
                description,
                made,
                {"x86_64": frozenset({feature})},
                r"\bvpdpbusd\b",
            )
        )

# Interleaves rows for these sums.
for dtype, widening in (("int8", "vpmovsxbw"), ("uint8", "vpmovzxbw")):
    INTRINS.append(
        TensorIntrin(
            f"x86.interleave.{dtype}",
            partial(describe.interleaved_pairs, dtype, "int16"),
            vectors.interleaved_pairs,
            {"x86_64": frozenset({"avx2"})},
            rf"\b{widening}\b",
        )
    )
for columns, phases in ((1, 1), (4, 1), (4, 2)):
    INTRINS.append(
        TensorIntrin(
            f"x86.interleave.quads{columns}.phases{phases}.uint8",
            partial(describe.interleaved_quads, "uint8", columns, phases),
            vectors.interleaved_quads,
            {"x86_64": frozenset({"avx2" if columns == 1 else "avx512bw"})},
            r"\bvpshufb\b",
        )
    )

for depth in (16, 32):
    INTRINS.append(
        TensorIntrin(
            f"x86.pmaddubsw.nibbles{depth}",
            partial(describe.dot_of_raised_nibbles, depth),
            vectors.dot_of_raised_nibbles(
                llvm("llvm.x86.avx2.pmadd.ub.sw", "int16x16"),
                llvm("llvm.x86.avx2.pmadd.wd", "int32x8"),
            ),
            {"x86_64": frozenset({"avx2"})},
            r"\bvpmaddubsw\b",
        )
    )
