"""Tensor intrinsics of AArch64."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from itertools import product as combinations

from ....ir import PrimFunc, Stmt
from ....schedule.tensor_intrin import TensorIntrin
from . import describe, vectors
from .vectors import llvm

INTRINS: list[TensorIntrin] = []


def _declare(
    name: str,
    description: Callable[[], PrimFunc],
    implementation: Callable[..., Stmt],
    instruction: str,
    features: str = "neon",
    domains: Mapping[str, tuple[int, int]] | None = None,
) -> None:
    needs = {"aarch64": frozenset(features.split())}
    INTRINS.append(
        TensorIntrin(
            f"aarch64.{name}", description, implementation, needs, instruction, domains or {}
        )
    )


def _neon(name: str, dtype: str) -> vectors.Operation:
    return llvm(f"llvm.aarch64.neon.{name}", dtype)


BY_LANE = r"\s+v\d+\.4s, v\d+\.16b, v\d+\.4b\[\d\]"

# LLVM's usdot takes the unsigned operand first; by lane, the second operand is the lane.
for name, a, b, llvm_name, feature in (
    ("sdot", "int8", "int8", "sdot", "dotprod"),
    ("udot", "uint8", "uint8", "udot", "dotprod"),
    ("usdot", "int8", "uint8", "usdot", "i8mm"),
    ("sudot", "uint8", "int8", "usdot", "i8mm"),
):
    dot = _neon(f"{llvm_name}.v4i32.v16i8", "int32x4")
    if name == "sudot":
        dot = vectors.swapped(dot)
    _declare(
        name, partial(describe.dot, a, b), vectors.dot_of_one(dot), r"\b[su]{1,2}dot\b", feature
    )
    _declare(
        f"{name}.lane",
        partial(describe.tile_by_lane, a, b),
        vectors.dot_by_lane(dot),
        rf"\b{name}{BY_LANE}",
        feature,
    )

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

for name, a, b in (
    ("smmla", "int8", "int8"),
    ("ummla", "uint8", "uint8"),
    ("usmmla", "uint8", "int8"),
):
    product = _neon(f"{name}.v4i32.v16i8", "int32x4")
    _declare(
        name, partial(describe.tile, a, b, 2, 2, 8), vectors.matrix(product), rf"\b{name}\b", "i8mm"
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

_smull = _neon("smull.v8i16", "int16x8")
_sadalp = vectors.added(_neon("saddlp.v4i32.v8i16", "int32x4"))
_addp = _neon("addp.v4i32", "int32x4")
_declare(
    "smull.sadalp",
    partial(describe.dot_in_fours, 8),
    vectors.dot_in_fours(_smull, _sadalp),
    r"\bsadalp\b",
)
_declare(
    "smull.sadalp.16",
    partial(describe.dot_in_fours, 16),
    vectors.dot_in_fours(_smull, _sadalp, apart=True),
    r"\bsmull2\b",
)
_declare(
    "smlal.sadalp",
    partial(describe.dot_in_fours, 16),
    vectors.dot_in_fours(_smull, _sadalp),
    r"\bsmlal2\b",
    domains=describe.NARROW,
)
_declare(
    "smlal.columns",
    describe.columns_of_bytes,
    vectors.columns_of_bytes(_smull),
    r"\bsmlal2\b",
    domains=describe.NARROW_DATA,
)
_declare(
    "smlal.nibbles",
    describe.columns_of_nibbles,
    vectors.columns_of_nibbles(_smull),
    r"\bsmlal2\b",
)
_declare(
    "addp.fours",
    describe.sums_of_fours,
    vectors.sums_of_fours(_addp),
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
