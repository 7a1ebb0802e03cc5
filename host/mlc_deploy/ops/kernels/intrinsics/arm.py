"""Tensor intrinsics of 32-bit ARM: NEON of ARMv7, and what ARMv8 adds to it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from ....ir import Expr, PrimFunc, Select, Stmt
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
    needs = {"arm": frozenset(features.split())}
    INTRINS.append(
        TensorIntrin(f"arm.{name}", description, implementation, needs, instruction, domains or {})
    )


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

_vmull = _neon("vmulls.v8i16", "int16x8")
_vpaddl = _neon("vpaddls.v4i32.v8i16", "int32x4")


def _vpadal(acc: Expr, products: Expr) -> Expr:
    """The first value of sums is a constant where a reduction's first turn is unrolled. If it is
    zero, vpaddl needs no register cleared; to LLVM, vpadal is an opaque call."""
    known = llvm("llvm.is.constant.v4i32", "bool")(acc)
    added = _neon("vpadals.v4i32.v8i16", "int32x4")(acc, products)
    return Select(known, acc + _vpaddl(products), added, acc.dtype)


_declare(
    "vmull.vpadal",
    partial(describe.dot_in_fours, 8),
    vectors.dot_in_fours(_vmull, _vpadal),
    r"\bvpadal\.s16\b",
)
_declare(
    "vmull.vpadal.16",
    partial(describe.dot_in_fours, 16),
    vectors.dot_in_fours(_vmull, _vpadal, apart=True),
    r"\bvpadal\.s16\b",
)
_declare(
    "vmlal.vpadal",
    partial(describe.dot_in_fours, 16),
    vectors.dot_in_fours(_vmull, _vpadal),
    r"\bvmlal\.s8\b",
    domains=describe.NARROW,
)
_declare(
    "vmlal.columns",
    describe.columns_of_bytes,
    vectors.columns_of_bytes(_vmull),
    r"\bvmlal\.s8\b",
    domains=describe.NARROW_DATA,
)
_declare(
    "vmlal.nibbles",
    describe.columns_of_nibbles,
    vectors.columns_of_nibbles(_vmull),
    r"\bvmlal\.s8\b",
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
    instruction = r"\bv[su]{1,2}dot\."
    _declare(f"v{name}", partial(describe.dot, a, b), vectors.dot_of_one(dot), instruction, feature)
    _declare(
        f"v{name}.lane",
        partial(describe.tile_by_lane, a, b),
        vectors.dot_by_lane(dot),
        rf"\bv{name}\.\w+\s+q\d+, q\d+, d\d+\[\d\]",
        feature,
    )

for name, a, b in (
    ("smmla", "int8", "int8"),
    ("ummla", "uint8", "uint8"),
    ("usmmla", "uint8", "int8"),
):
    matrix = _neon(f"{name}.v4i32.v16i8", "int32x4")
    _declare(
        f"v{name}",
        partial(describe.tile, a, b, 2, 2, 8),
        vectors.matrix(matrix),
        rf"\bv{name}\.",
        "i8mm",
    )
