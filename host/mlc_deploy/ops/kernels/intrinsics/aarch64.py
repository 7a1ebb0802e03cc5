"""Tensor intrinsics of AArch64."""

from __future__ import annotations

from functools import partial
from itertools import product as combinations

from . import describe, vectors
from .declare import Declare, declare_products, declare_sums_of_four
from .vectors import llvm

_declare = Declare("aarch64", "aarch64", "neon")
INTRINS = _declare.intrins


def _neon(name: str, dtype: str) -> vectors.Operation:
    return llvm(f"llvm.aarch64.neon.{name}", dtype)


BY_LANE = r"\s+v\d+\.4s, v\d+\.16b, v\d+\.4b\[\d\]"

declare_products(_declare, _neon, "", r"\b", BY_LANE)
for rows in (1, 2):
    _declare(
        f"sdot.rows{rows}",
        partial(describe.dot_rows, "int8", "int8", rows),
        vectors.dot_rows_by_lane(_neon("sdot.v4i32.v16i8", "int32x4")),
        rf"\bsdot{BY_LANE}",
        "dotprod",
    )

    _declare(
        f"sdot.windows{rows}",
        partial(describe.dot_of_windows, rows, 4, "int8"),
        vectors.dot_of_windows(_neon("sdot.v4i32.v16i8", "int32x4"), 4),
        r"\bsdot\b",
        "dotprod",
    )

_declare(
    "sdot.nibbles",
    describe.dot_of_nibbles,
    vectors.dot_of_nibbles(_neon("sdot.v4i32.v16i8", "int32x4")),
    rf"\bsdot{BY_LANE}",
    "dotprod",
)
_declare(
    "sdot.sixteen",
    describe.dot_of_sixteen,
    vectors.dot_of_sixteen(_neon("sdot.v4i32.v16i8", "int32x4")),
    rf"\bsdot{BY_LANE}",
    "dotprod",
)
_declare(
    "transpose.4x8",
    partial(describe.transposed, 4, 8, "int8"),
    vectors.transposed,
    r"\b(zip1|tbl)\b",
)

_declare(
    "smmla.nibbles",
    describe.squares_of_nibbles,
    vectors.squares_of_nibbles(_neon("smmla.v4i32.v16i8", "int32x4")),
    r"\bsmmla\b",
    "i8mm",
)

for sign, kind in (("s", "int"), ("u", "uint")):
    for bits, lanes in ((8, 8), (16, 4)):
        narrow, wide = f"{kind}{bits}", f"{kind}{2 * bits}"
        mull = _neon(f"{sign}mull.v{lanes}i{2 * bits}", f"{wide}x{lanes}")
        addlp = _neon(f"{sign}addlp.v{lanes}i{2 * bits}.v{2 * lanes}i{bits}", f"{wide}x{lanes}")
        _declare(
            f"{sign}mull.{wide}",
            partial(describe.product, narrow, wide, lanes),
            vectors.elementwise(mull),
            rf"\b{sign}mull\b",
        )
        _declare(
            f"{sign}mlal.{wide}",
            partial(describe.product_sum, narrow, wide, lanes),
            vectors.elementwise_sum(vectors.added(mull)),
            rf"\b{sign}mlal\b",
        )
        _declare(
            f"{sign}addlp.{wide}",
            partial(describe.pairs, narrow, wide, lanes),
            vectors.pairwise(addlp),
            rf"\b{sign}addlp\b",
        )
        _declare(
            f"{sign}adalp.{wide}",
            partial(describe.pairs_sum, narrow, wide, lanes),
            vectors.pairwise_sum(vectors.added(addlp)),
            rf"\b{sign}adalp\b",
        )

declare_sums_of_four(
    _declare,
    ("smull", _neon("smull.v8i16", "int16x8")),
    ("sadalp", vectors.added(_neon("saddlp.v4i32.v8i16", "int32x4"))),
    "smlal",
    (r"\bsadalp\b", r"\bsmull2\b", r"\bsmlal2\b"),
)
_declare(
    "addp.fours",
    describe.sums_of_fours,
    vectors.sums_of_fours(_neon("addp.v4i32", "int32x4")),
    r"\baddp\b",
)
for name, dtype in (("squares", "int32"), ("float.squares", "float32")):
    description = partial(describe.rows_of_squares, dtype)
    _declare(f"zip.{name}", description, vectors.rows_of_squares, r"\b(zip1|mov)\b")
_declare("scale.squares", describe.scaled_squares, vectors.scaled_squares, r"\bscvtf\b")

for data, values, lanes in combinations(("int8", "uint8"), ("int8", "uint8"), (16, 8)):
    _declare(
        f"tbl.{data}.{values}.{lanes}",
        partial(describe.lookup, data, values, lanes),
        vectors.looked_up(
            *(_neon(f"{name}4.v{lanes}i8", f"{values}x{lanes}") for name in ("tbl", "tbx"))
        ),
        r"\btbx\b",
    )

for bits, lanes in ((16, 8), (32, 4)):
    dtype = f"int{bits}"
    _declare(
        f"addp.{dtype}",
        partial(describe.pairs, dtype, dtype, lanes),
        vectors.pairwise_of_halves(_neon(f"addp.v{lanes}i{bits}", f"{dtype}x{lanes}")),
        r"\baddp\b",
    )
    _declare(
        f"sqrdmulh.{dtype}",
        partial(describe.high_product, dtype, f"int{2 * bits}", lanes),
        vectors.elementwise(_neon(f"sqrdmulh.v{lanes}i{bits}", f"{dtype}x{lanes}")),
        r"\bsqrdmulh\b",
    )

_declare(
    "srshl.int32",
    partial(describe.rounding_shift, 4),
    vectors.elementwise(_neon("srshl.v4i32", "int32x4")),
    r"\bsrshl\b",
    domains=describe.SHIFTS,
)

for dtype, lanes, suffix, needs in (
    ("float32", 4, "v4f32", "neon"),
    ("float16", 8, "v8f16", "neon fullfp16"),
):
    fma = llvm(f"llvm.fma.{suffix}", f"{dtype}x{lanes}")
    letter = suffix[-3:].replace("f32", "s").replace("f16", "h")
    _declare(
        f"fmla.lane.{dtype}",
        partial(describe.outer, dtype, lanes),
        vectors.outer_by_lane(fma),
        rf"\bfmla\s+v\d+\.{lanes}{letter}, v\d+\.{lanes}{letter}, v\d+\.{letter}\[\d\]",
        needs,
    )
    _declare(
        f"fmla.{dtype}",
        partial(describe.product_sum, dtype, dtype, lanes),
        vectors.elementwise_sum(lambda acc, a, b, fma=fma: fma(a, b, acc)),
        rf"\bfmla\s+v\d+\.{lanes}{letter}",
        needs,
    )
