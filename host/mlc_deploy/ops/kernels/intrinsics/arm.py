"""Tensor intrinsics of 32-bit ARM: NEON of ARMv7, and what ARMv8 adds to it."""

from __future__ import annotations

from functools import partial

from ....ir import Expr, Select
from . import describe, vectors
from .declare import Declare, declare_products, declare_sums_of_four
from .vectors import llvm

_declare = Declare("arm", "arm", "neon")
INTRINS = _declare.intrins


def _neon(name: str, dtype: str) -> vectors.Operation:
    return llvm(f"llvm.arm.neon.{name}", dtype)


for letter, kind in (("s", "int"), ("u", "uint")):
    for bits, lanes in ((8, 8), (16, 4)):
        narrow, wide, suffix = f"{kind}{bits}", f"{kind}{2 * bits}", f"{letter}{bits}"
        mull = _neon(f"vmull{letter}.v{lanes}i{2 * bits}", f"{wide}x{lanes}")
        padal = _neon(f"vpadal{letter}.v{lanes}i{2 * bits}.v{2 * lanes}i{bits}", f"{wide}x{lanes}")
        _declare(
            f"vmull.{suffix}",
            partial(describe.product, narrow, wide, lanes),
            vectors.elementwise(mull),
            rf"\bvmull\.{suffix}\b",
        )
        _declare(
            f"vmlal.{suffix}",
            partial(describe.product_sum, narrow, wide, lanes),
            vectors.elementwise_sum(vectors.added(mull)),
            rf"\bvmlal\.{suffix}\b",
        )
        _declare(
            f"vpadal.{suffix}",
            partial(describe.pairs_sum, narrow, wide, lanes),
            vectors.pairwise_sum(padal),
            rf"\bvpadal\.{suffix}\b",
        )

_vpaddl = _neon("vpaddls.v4i32.v8i16", "int32x4")


def _vpadal(acc: Expr, products: Expr) -> Expr:
    """The first value of sums is a constant where a reduction's first iteration is unrolled. If it
    is zero, vpaddl needs no register cleared; to LLVM, vpadal is an opaque call."""
    known = llvm("llvm.is.constant.v4i32", "bool")(acc)
    added = _neon("vpadals.v4i32.v8i16", "int32x4")(acc, products)
    return Select(known, acc + _vpaddl(products), added, acc.dtype)


declare_sums_of_four(
    _declare,
    ("vmull", _neon("vmulls.v8i16", "int16x8")),
    ("vpadal", _vpadal),
    "vmlal",
    (r"\bvpadal\.s16\b", r"\bvpadal\.s16\b", r"\bvmlal\.s8\b"),
)
_declare(
    "vpadd.fours",
    describe.sums_of_fours,
    vectors.sums_of_fours(vectors.by_halves(_neon("vpadd.v2i32", "int32x2"))),
    r"\bvpadd\.i32\b",
)

for dtype, lanes, kind in (
    ("int8", 8, "i8"),
    ("int16", 4, "i16"),
    ("int32", 2, "i32"),
    ("float32", 2, "f32"),
):
    _declare(
        f"vpadd.{kind}",
        partial(describe.pairs, dtype, dtype, lanes),
        vectors.pairwise_of_halves(_neon(f"vpadd.v{lanes}{kind}", f"{dtype}x{lanes}")),
        rf"\bvpadd\.{kind}\b",
    )

for bits, lanes in ((16, 8), (32, 4)):
    dtype = f"int{bits}"
    _declare(
        f"vqrdmulh.s{bits}",
        partial(describe.high_product, dtype, f"int{2 * bits}", lanes),
        vectors.elementwise(_neon(f"vqrdmulh.v{lanes}i{bits}", f"{dtype}x{lanes}")),
        rf"\bvqrdmulh\.s{bits}\b",
    )

_declare(
    "vrshl.s32",
    partial(describe.rounding_shift, 4),
    vectors.elementwise(_neon("vrshifts.v4i32", "int32x4")),
    r"\bvrshl\.s32\b",
    domains=describe.SHIFTS,
)


def _multiply_add(a: Expr, b: Expr, acc: Expr) -> Expr:
    """Rounded twice: 32-bit NEON has no fused multiply-add by lane."""
    return acc + a * b


_declare(
    "vmla.lane.f32",
    partial(describe.outer, "float32", 4),
    vectors.outer_by_lane(_multiply_add),
    r"\bvmla\.f32\s+q\d+, q\d+, d\d+\[\d\]",
)
_declare(
    "vfma.f32",
    partial(describe.outer, "float32", 4),
    vectors.outer_by_lane(llvm("llvm.fma.v4f32", "float32x4")),
    r"\bvfma\.f32\s+q\d+",
    "neon vfp4",
)

declare_products(_declare, _neon, "v", r"\.", r"\.\w+\s+q\d+, q\d+, d\d+\[\d\]")
